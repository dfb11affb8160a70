"""Bytes inside Bedrock blocks, as JSON can store them.

boto3 takes and returns `bytes` for images, documents and redacted reasoning; the JSON of the HTTP API has Base64
text there. The log keeps which of the two a value was: `bytes` become an object with one field, `BYTES_MARK`, and
come back as `bytes`; a text stays a text.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Mapping
from typing import Any

from foveal.core.wire.media import BYTES_MARK


def mark_bytes(value: Any) -> Any:
    """Return a copy of a value with each `bytes` as an object that JSON can store."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {BYTES_MARK: b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {name: mark_bytes(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mark_bytes(inner) for inner in value]
    return value


def restore_bytes(value: Any) -> Any:
    """Return a copy of a stored value with its `bytes` restored."""
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(encoded := value.get(BYTES_MARK), str):
            restored = decode_base64(encoded)
            return value if restored is None else restored
        return {name: restore_bytes(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [restore_bytes(inner) for inner in value]
    return value


def decode_base64(text: str) -> bytes | None:
    """Return the bytes of a Base64 text, None if it is none."""
    try:
        return b64decode(text, validate=True)
    except (Error, ValueError):
        return None
