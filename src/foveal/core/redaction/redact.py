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
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from foveal.core.log.events import AnyFact
from foveal.core.redaction import patterns
from foveal.core.redaction.patterns import Secret, private_keys

SCANS: Final = (private_keys, *patterns.PATTERN_SCANS, *patterns.ASSIGNMENT_SCANS)
"""In the order in which they give a secret its name."""
KEPT: Final = frozenset({"id", "call_id", "name", "origin"})
"""Fields of facts that are references, not words."""
SHORTEST: Final = 8
"""Characters of the shortest text with a secret in it: `a://b:c@`."""
SHORT: Final = 1_000
_WORTH_A_LOOK: Final = re.compile(r"[A-Za-z0-9_+/.~-]{16}|://|%3|[wW][oO]?[rR]?[dD]|earer|EARER|uthoriz")
"""What most short texts do not have, and each that has a secret does; long ones are quicker to search at once."""
PASSES: Final = 8
"""A secret that is taken out may lay open where another one beside it ends."""
SHOWN: Final = 4
LONG: Final = 20
"""Of a secret with so many characters the last few remain, for who has to find out which one it was."""

T = TypeVar("T")


def found(text: str) -> list[Secret]:
    """The secrets in a text, in order; those that overlap are one."""
    if len(text) < SHORTEST or (len(text) < SHORT and not _WORTH_A_LOOK.search(text)):
        return []
    hits = sorted(
        ((hit, rank) for rank, scan in enumerate(SCANS) for hit in scan(text)),
        key=lambda ranked: (ranked[0].start, ranked[1]),
    )
    merged: list[Secret] = []
    for hit, _ in hits:
        if merged and hit.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = last._replace(end=max(last.end, hit.end), tail=last.tail and hit.tail)
        else:
            merged.append(hit)
    return merged


def scrub(text: str, *, under: str = "") -> str:
    """The text without its secrets; `under` is the name that it stands under, if it has one."""
    context = f"{under[-64:]}: " if under else ""
    for _ in range(PASSES):
        secrets = [hit for hit in found(context + text) if hit.end > len(context)]
        if not secrets:
            break
        text = _replaced(text, secrets, shift=len(context))
    return text


def facts(fact: AnyFact) -> AnyFact:
    """The fact without the secrets in any of its texts."""
    return _struct(fact)


def _replaced(text: str, secrets: Sequence[Secret], *, shift: int) -> str:
    """`shift`: by how much the text was shifted when they were found."""
    pieces: list[str] = []
    at = 0
    for secret in secrets:
        start, end = max(0, secret.start - shift), secret.end - shift
        pieces += [text[at:start], _placeholder(text[start:end], secret)]
        at = end
    return "".join([*pieces, text[at:]])


def _placeholder(words: str, secret: Secret) -> str:
    tail = words[-SHOWN:] if secret.tail and len(words) >= LONG and words[-SHOWN:].isalnum() else ""
    return f"[foveal: redacted {secret.name} …{tail}]"


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
    if not _may_have(text):
        return text
    keys = list(private_keys(text))
    starts = [key.start for key in keys]

    def literal(match: re.Match[str], group: str, *, under: str = "") -> str:
        start, end = match.span(group)
        at = bisect_left(starts, end) - 1  # a key that is a list of lines stands in several strings
        if at >= 0 and keys[at].end > start and not start < keys[at].start <= keys[at].end < end:
            return f'"{_placeholder("", keys[at])}"'
        return _literal(match[group], under=under)

    def scrubbed(match: re.Match[str]) -> str:
        if match["alone"] is not None:
            return literal(match, "alone")
        value = literal(match, "value", under=match["key"][1:-1]) if match["value"] is not None else ""
        return literal(match, "key") + match["colon"] + value

    done = _STRINGS.sub(scrubbed, text)
    return text if done == text else done


def _arguments(text: str) -> str:
    """What a model wrote as arguments: most often JSON, and not always."""
    if not _may_have(text):
        return text
    return scrub_json(text) if _is_json(text) else scrub(text)


def _may_have(text: str) -> bool:
    return bool(found(text) or _ESCAPED.search(text))


def _literal(literal: str, *, under: str = "") -> str:
    try:
        text = cast(str, json.loads(literal, strict=False))
    except ValueError:  # an escape that JSON does not have: the model's own arguments may have it
        text = literal[1:-1]
    scrubbed = scrub(text, under=under)
    return literal if scrubbed is text else _written(scrubbed)


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
        return _arguments(value) if arguments else scrub(value)
    if isinstance(value, Raw):
        text = bytes(value).decode("utf-8", "surrogateescape")  # nobody has checked these bytes
        scrubbed = scrub_json(text)
        return value if scrubbed is text else Raw(scrubbed.encode("utf-8", "surrogateescape"))
    if isinstance(value, tuple):
        new = tuple(map(_value, value))
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    return _struct(value) if isinstance(value, msgspec.Struct) else value
