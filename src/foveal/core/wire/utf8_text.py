"""Replaces lone surrogates, which UTF-8 cannot hold, in what is read from a caller.

No provider accepts a lone surrogate, and most clients cannot encode it. So `Wire.read` and `encode_json`, through
which messages, system texts and tools pass, replace it by U+FFFD; two halves that form a pair become its character.
Facts that an application appends itself are stored as they are.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

_Value = TypeVar("_Value")

_utf8_encoder: Final = msgspec.json.Encoder(enc_hook=str)  # for subclasses of `str`, which msgspec does not know


def replace_surrogates(value: _Value) -> _Value:
    """Return a value of JSON, or a fact, with U+FFFD in place of lone surrogates; `Raw` is left as it is."""
    return _replace(value)  # type: ignore[no-any-return]


def is_utf8(fact: msgspec.Struct) -> bool:
    """Return whether UTF-8 can hold all texts of a fact."""
    content = getattr(fact, "content", None)
    if type(content) is str and content.isascii() and getattr(fact, "extra", UNSET) is UNSET:
        call_id = getattr(fact, "call_id", "")
        return call_id.isascii() or _can_encode(fact)
    return _can_encode(fact)


def _can_encode(value: object) -> bool:
    try:
        _utf8_encoder.encode(value)
    except UnicodeEncodeError:
        return False
    return True


def _replace(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else _replace_in_text(value)
    if isinstance(value, dict):
        return {_replace(name): _replace(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_replace, value))
    if isinstance(value, msgspec.Struct):
        fields = {name: _replace(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    return value


def _replace_in_text(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
