"""Which sources have sessions that can be changed."""

from __future__ import annotations

import os

from foveal.recall.archive import ArchiveSource, PostgresSource, SqliteSource, StoreSource


def store_refusal(source: ArchiveSource) -> str:
    """Return why the sessions of a source cannot be changed; "" if it is a store that can be written."""
    match source:
        case StoreSource() | PostgresSource():
            return ""
        case SqliteSource():
            folder = os.path.dirname(source.name)
            if os.access(source.name, os.W_OK) and os.access(folder, os.W_OK):
                return ""
            return f"{source.name} cannot be written by this user"
        case _:
            return (
                "a transcript of another program can only be read: what its model sees is decided there; "
                "`foveal import` copies it into a store, where you can change it"
            )
