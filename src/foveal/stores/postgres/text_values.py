"""Any text as a value of PostgreSQL, which allows no NUL and only short keys.

Ordinary text is stored as it is, so that it can be read in `psql`.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from foveal.errors import StoreError

MAX_KEY_BYTES: Final = 1_000
"""Longest text that is a key as it is; an index of PostgreSQL holds keys of at most 2,704 bytes."""
_KEY_START_CHARS: Final = 200
_ESCAPED: Final = re.compile(r"\\(.)")


def to_text(value: str) -> str:
    """Return a text without NUL: a NUL becomes `\\0`, and a backslash is doubled."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise StoreError("the id and title of a session must be valid Unicode; nothing was stored") from None
    return value.replace("\\", "\\\\").replace("\0", "\\0")


def from_text(text: str) -> str:
    """Return the value that `to_text` was given."""
    if "\\" not in text:
        return text
    return _ESCAPED.sub(lambda found: "\0" if found[1] == "0" else found[1], text)


def to_key(value: str) -> str:
    """Return a text that identifies the value and fits into an index: of a long one, its start and its digest."""
    text = to_text(value)
    data = text.encode()
    if len(data) <= MAX_KEY_BYTES:
        return text
    # `\#` occurs in no other key, because `to_text` writes only `\\` and `\0`.
    return f"{text[:_KEY_START_CHARS]}\\#{blake2b(data, digest_size=32).hexdigest()}"
