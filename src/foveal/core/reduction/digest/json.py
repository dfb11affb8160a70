"""Digest of JSON: ids and totals first, then containers, and long strings as texts of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from foveal.core.reduction.digest.pieces import (
    MAX_DIGEST_LINE_CHARS,
    MAX_DIGEST_LINES,
    MAX_HEAD_CHARS,
    MAX_VALUE_CHARS,
    cut,
    ends_first,
    packed,
)

_MIN_PROSE_CHARS: Final = 200
"""A string in JSON from this length on is a text with a digest of its own."""
_MAX_PROSE_STRINGS: Final = 8
_MAX_NESTING: Final = 3
"""Objects inside objects whose values are shown under their path."""
_MAX_CLOSED_BRACKETS: Final = 50
_MAX_TAIL_PAIRS: Final = 8
_STRING: Final = r'"(?:[^"\\]++|\\.)*+"'
_BEFORE_MARK: Final = rf'(?:[^"\[\]{{}},]++|{_STRING}?)*+'
_INSIDE: Final = rf'(?:[^"\[\]{{}}]++|{_STRING})*+'
_FLAT: Final = rf"(?:{{{_INSIDE}}}|\[{_INSIDE}\])"
_MARK: Final = re.compile(rf"{_BEFORE_MARK}([\[\]{{}},]|\Z)", re.DOTALL)
"""A bracket, a comma or the end, and all that stands before it."""
_INNER_MARK: Final = re.compile(rf"{_BEFORE_MARK}({_FLAT}(?:\s*+,\s*+{_FLAT})*+|[\[\]{{}},]|\Z)", re.DOTALL)
"""The same inside a container. Objects and arrays without others in them, one after the other, are one mark: most
rows of a long result are such."""
_JSON_PAIR: Final = re.compile(
    r'"([^"\\\n]{1,40})"\s{0,8}:\s{0,8}("[^"\\\n]{0,200}"|-?\d[\d.eE+-]{0,30}|true|false)'
)
_NAME_KEY: Final = re.compile(
    r"(?i:^|_|-)(?i:id|key|uuid|name|number|title|path|url)$|[a-z](?:Id|Key|Name|Number)$"
)
"""Keys whose values say which thing an object is about."""
_AMOUNT: Final = re.compile(
    r"[-+]?[$€£]?(?:\d{1,3}(?:[,' ]\d{3})+|\d{1,9})(?:[.,]\d{1,4})?\s?(?:%|[A-Z]{3}|[€$£])?"
)
"""A number that a later question may ask for, and not a longer one, such as a time in seconds since 1970."""
_MIN_AMOUNT_DIGITS: Final = 3
"""Fewer digits are a page, a version or a flag more often than an amount."""
_CLOSING: Final = {"{": "}", "[": "]"}


class _Number(str):
    """A number as the text has it: 1.50 stays 1.50."""

    __slots__ = ()


class ParsedJson(NamedTuple):
    """What was read of JSON."""

    value: object
    is_whole: bool


def parse_json_start(head: str, *, is_whole: bool) -> ParsedJson | None:
    """Return the JSON value of a text, a list of the values of its lines, or what its beginning holds; None if the
    text is not JSON."""
    value = _load(head) if is_whole else None
    if value is not None:
        return ParsedJson(value, is_whole=True)
    first, _, rest = head.partition("\n")
    if rest and not rest.isspace() and _load(first) is not None:
        lines = [line for line in head.split("\n") if line and not line.isspace()]
        values = [value for line in lines if (value := _load(line)) is not None]
        return ParsedJson(values, is_whole and len(values) == len(lines))
    # The beginning has enough for a digest, unless a long string stands there.
    value = _load(_closed(head[: MAX_DIGEST_LINES * MAX_DIGEST_LINE_CHARS])) or _load(_closed(head))
    return ParsedJson(value, is_whole=False) if value else None


def _load(text: str) -> object:
    try:
        return json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_Number)
    except (ValueError, RecursionError):
        return None


def _closed(text: str) -> str:
    """Return the beginning of JSON up to the last complete value, with its brackets closed."""
    closing, end, closing_at_end = "", 0, ""
    at = 0
    while (mark := (_INNER_MARK if closing else _MARK).match(text, at)) is not None and (kind := mark[1]):
        at = mark.end()
        if kind in _CLOSING:
            closing = _CLOSING[kind] + closing
            continue
        if kind in _CLOSING.values():
            if closing[:1] != kind:
                return ""  # not JSON
            closing = closing[1:]
        if 0 < len(closing) <= _MAX_CLOSED_BRACKETS:
            end, closing_at_end = (mark.start(1) if kind == "," else at), closing
    return text[:end] + closing_at_end


def json_digest(
    parsed: ParsedJson, tail: str, *, digest_text: Callable[[str], Iterator[str]]
) -> Iterator[str]:
    """Yield the lines of a digest; `tail` is the end of a long text, `digest_text` reads the long strings."""
    value = parsed.value
    if tail and isinstance(value, dict):
        value = {**value, **_last_values(tail), **value}
    pieces = _json_pieces(value, "", _MAX_NESTING, "" if parsed.is_whole else "+")
    lines = packed(pieces, ", ")
    yield from islice(lines, 1)
    if tail:
        pairs = _JSON_PAIR.findall(tail)[-_MAX_TAIL_PAIRS:]
        yield from packed((f"{key}: {value}" for key, value in pairs), ", ")
    for name, text in islice(_prose_strings(parsed.value), _MAX_PROSE_STRINGS):
        inner = digest_text(text[:MAX_HEAD_CHARS])
        yield from (f"{name}: {line}" if name else line for line in islice(inner, 1))
        yield from inner
    yield from lines


def _last_values(tail: str) -> dict[str, object]:
    """Return the plain values of the outermost object that stand behind its last container."""
    if not tail.endswith("}"):
        return {}
    last = tail[:-1].rstrip()
    behind = last[max(last.rfind("]"), last.rfind("}")) + 1 :]
    # Without a container in the tail, these are values of an object inside.
    pairs = _JSON_PAIR.findall(behind) if behind != last else []
    return {key: value.strip('"') for key, value in pairs}


def _json_pieces(value: object, path: str, nesting: int, more: str) -> Iterator[str]:
    """Yield the values of an object or array, each with its path; `more` marks counts that may be too small."""
    if isinstance(value, list):
        yield from _array_pieces(value, path, more)
        return
    if not isinstance(value, dict) or not nesting:
        if value not in (None, ""):
            yield f"{path}: {_brief(value)}" if path else _brief(value)
        return
    for key, inner in _telling_first(value):
        if not _is_prose(inner):
            yield from _json_pieces(inner, f"{path}.{key}" if path else key, nesting - 1, more)


def _telling_first(value: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield what an object is called, its amounts, its other plain values, and then its containers."""
    names = [key for key in value if _NAME_KEY.search(key) and _is_plain(value[key])]
    name = "id" if "id" in names else next(iter(names), "")

    def place(pair: tuple[str, object]) -> int:
        key, inner = pair
        if key == name:
            return 0
        if not _is_plain(inner):
            return 3
        return 1 if _is_amount(inner) and not _NAME_KEY.search(key) else 2

    return iter(sorted(value.items(), key=place))


def _is_amount(value: object) -> bool:
    if not isinstance(value, str) or not _AMOUNT.fullmatch(value):
        return False
    return sum(map(str.isdigit, value)) >= _MIN_AMOUNT_DIGITS


def _is_plain(value: object) -> bool:
    return not isinstance(value, dict | list)


def _array_pieces(items: Sequence[object], path: str, more: str) -> Iterator[str]:
    count = f"{len(items)}{more} {'element' if len(items) == 1 else 'elements'}"
    yield f"{path}: {count}" if path else count
    # The last element of an array that is not read completely says nothing about its end.
    yield from map(_brief, islice(items, MAX_DIGEST_LINES) if more else ends_first(items))


def _brief(value: object, nesting: int = 2) -> str:
    """Return a value in a few words."""
    width = MAX_VALUE_CHARS if nesting else MAX_VALUE_CHARS // 2
    if isinstance(value, dict):
        inner = islice(value.items(), 8 * nesting)
        text = ", ".join(
            f"{key}: {_brief(item, nesting - 1)}" for key, item in inner if item not in (None, "")
        )
        return cut(f"{{{text}}}", 2 * width)
    if isinstance(value, list):
        return cut(f"[{', '.join(_brief(item, nesting - 1) for item in value[: 4 * nesting])}]", width)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else cut(str(value), width)


def _is_prose(value: object) -> bool:
    return isinstance(value, str) and len(value) >= _MIN_PROSE_CHARS


def _prose_strings(
    value: object, name: str = "", nesting: int = 2 * _MAX_NESTING
) -> Iterator[tuple[str, str]]:
    """Yield the long strings of a JSON value, each with its key."""
    if isinstance(value, str):
        if _is_prose(value):
            yield name, value
    elif isinstance(value, dict | list) and nesting:
        pairs = value.items() if isinstance(value, dict) else ((name, inner) for inner in value)
        for key, inner in pairs:
            if isinstance(inner, dict | list) or _is_prose(inner):
                yield from _prose_strings(inner, key, nesting - 1)
