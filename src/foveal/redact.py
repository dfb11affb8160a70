"""Secrets kept out of the log: the same fact, with every secret in it replaced by words that say what was there.

1. What has no secret in it comes back as the same object.
2. The same secret always leaves the same words, and those are left alone when they are read again.
3. No more than four characters of a secret remain, and of a password none.
4. JSON stays JSON: a secret is replaced inside the string in which it stands.
5. The ids that hold calls and results together, and the names of tools, are never touched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from foveal import secret_places, secret_shapes
from foveal.events import AnyFact
from foveal.private_keys import private_keys
from foveal.secret_shapes import Found

SCANS: Final = (private_keys, *secret_shapes.SCANS, *secret_places.SCANS)
"""In the order in which they give a secret its name."""
KEPT: Final = frozenset({"id", "call_id", "name", "origin"})
"""Fields of facts that are references, not words."""
SHORTEST: Final = 8
"""Characters of the shortest text with a secret in it: `a://b:c@`."""
SHOWN: Final = 4
"""Characters of a long secret that remain, for who has to find out which one it was."""

T = TypeVar("T")


def found(text: str) -> list[Found]:
    """The secrets in a text, in order; those that overlap are one."""
    if len(text) < SHORTEST:
        return []
    hits = sorted(
        ((hit, rank) for rank, scan in enumerate(SCANS) for hit in scan(text)),
        key=lambda ranked: (ranked[0].start, ranked[1]),
    )
    merged: list[Found] = []
    for hit, _ in hits:
        if merged and hit.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = last._replace(end=max(last.end, hit.end), tail=last.tail and hit.tail)
        else:
            merged.append(hit)
    return merged


def scrub(text: str) -> str:
    """The text without its secrets."""
    return _replaced(text, found(text))


def facts(fact: AnyFact) -> AnyFact:
    """The fact without the secrets in any of its texts."""
    return _struct(fact)


def _replaced(text: str, secrets: Sequence[Found]) -> str:
    if not secrets:
        return text
    pieces: list[str] = []
    at = 0
    for secret in secrets:
        pieces += [text[at : secret.start], _placeholder(text, secret)]
        at = secret.end
    return "".join([*pieces, text[at:]])


def _placeholder(text: str, secret: Found) -> str:
    tail = text[secret.end - SHOWN : secret.end] if secret.tail else ""
    return f"[foveal: redacted {secret.name}{f' …{tail}' if tail.isalnum() else ''}]"


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────

_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS: Final = re.compile(
    rf"(?s:(?P<key>{_STRING})(?P<colon>\s*+:\s*+)(?P<value>{_STRING})?|(?P<alone>{_STRING}))"
)
_ESCAPED: Final = re.compile(r"\\/|\\u00[2-7]")
"""Characters of a secret that may be written as escapes, so that it cannot be seen before they are read."""


def scrub_json(text: str) -> str:
    """A JSON text without the secrets in its strings, however deep; a string knows the key it stands under.

    The text is not parsed as a whole: what is not changed stays as it was written, and no depth is too deep."""
    if not found(text) and not _ESCAPED.search(text):
        return text
    scrubbed = _STRINGS.sub(_in_json, text)
    return text if scrubbed == text else scrubbed


def _in_json(match: re.Match[str]) -> str:
    if match["alone"] is not None:
        return _literal(match["alone"])
    value = match["value"]
    key = _literal(match["key"])
    return key + match["colon"] + (_literal(value, under=match["key"][1:-1]) if value else "")


def _literal(literal: str, *, under: str = "") -> str:
    try:
        text = cast(str, json.loads(literal, strict=False))
    except ValueError:  # an escape that JSON does not have: the model's own arguments may have it
        text = literal[1:-1]
    context = f"{under[-64:]}: " if under else ""
    secrets = [
        hit._replace(start=max(0, hit.start - len(context)), end=hit.end - len(context))
        for hit in found(context + text)
        if hit.end > len(context)
    ]
    return _written(_replaced(text, secrets)) if secrets else literal


def _written(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except RecursionError:
        return True
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return True


# ── facts ────────────────────────────────────────────────────────────────────────────────────────────────


def _struct(value: T) -> T:
    changed = {}
    for name in cast(Any, value).__struct_fields__:
        if name not in KEPT:
            old = getattr(value, name)
            new = _value(old, arguments=name == "arguments")
            if new is not old:
                changed[name] = new
    return cast(T, replace(cast(Any, value), **changed)) if changed else value


def _value(value: Any, *, arguments: bool = False) -> Any:
    if isinstance(value, str):
        return scrub_json(value) if arguments and _is_json(value) else scrub(value)
    if isinstance(value, Raw):
        text = bytes(value).decode()
        scrubbed = scrub_json(text)
        return value if scrubbed is text else Raw(scrubbed.encode())
    if isinstance(value, tuple):
        new = tuple(map(_value, value))
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    return _struct(value) if isinstance(value, msgspec.Struct) else value
