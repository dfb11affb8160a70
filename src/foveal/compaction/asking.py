"""What is said between a compaction and the model that writes for it, in words of neither."""

from __future__ import annotations

from typing import Literal

import msgspec

from foveal.models import Model


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a writer."""

    writer: int
    """Which of the writers, counted from 0."""
    form: Literal["shared", "cold"]
    """`shared`: the conversation as it stands, and `text` as one more user message: its prefix is cached.
    `cold`: `system`, and `text` as the only message."""
    text: str
    system: str = ""
    max_tokens: int
    """What the answer may take."""
    stage: str = ""
    """For the progress line: what this request is about."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer answered."""

    text: str
    stop: Literal["", "end", "length", "tools", "refused"] = ""
    """Why it ended; "" when nobody says."""
    input: int = 0
    """Tokens read at the full price …"""
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    seconds: float = 0.0


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """That a writer gave no answer."""

    problem: str
    transient: bool = False
    """Worth another try: a time-out, a busy server."""
    limit: int = 0
    """Tokens that the writer can hold, when it refused the request as too large and said so."""
    overflow: bool = False
    seconds: float = 0.0


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can write summaries."""

    model: Model
    name: str = ""
    """What it is called, if not by its model."""
    shares_cache: bool = False
    """It is the conversation's own model, and its provider caches prefixes."""

    @property
    def called(self) -> str:
        return self.name or self.model.name
