"""Difference of two requests: message by message, and line by line inside changed ones.

1. Messages are those of the log, one by one, also where a dialect joins neighbours of the same role: an exported
   file, which has no request as it was sent, compares the same ones. They are counted from the first that is no
   instruction, because dialects write the system text as a message or beside them.
2. Messages are paired by the events that they show, which have the same order in every request, so pairing is
   linear in their number. Lines are compared as a reader sees them: line breaks inside texts are line breaks.
3. `first` is where a provider's cache ends: the first message that differs, and the first byte in the compact JSON
   of the body, whose order is tools, system text, messages. Cache marks are left out: they move with every request
   and do not change what a provider caches.
4. `moved_by` names the events between the two requests that changed what both of them show.
5. The work is bounded: of very long texts the beginning and the end are compared, and texts that have too little in
   common are shown one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from foveal.core.engine.prefix import may_move_prefix
from foveal.core.log.events import (
    AnyFact,
    Dialect,
    Event,
    Expanded,
    Instructed,
    Opened,
    Pinned,
    Reverted,
    Rewound,
    Superseded,
    raw,
)
from foveal.core.wire.cache_marks import strip_cache_marks
from foveal.core.wire.request_text import common_prefix_chars
from foveal.core.wire.safe_print import counted
from foveal.inspector.timeline.event_sentences import event_sentence
from foveal.inspector.timeline.message_text import LogViews, log_until
from foveal.inspector.timeline.request_content import messages_one_by_one, request_content

MAX_DIFFED_CHARS: Final = 200_000
"""Longest text that is compared whole; of a longer one the beginning and the end, half of this each."""
MAX_COMPARED_LINES: Final = 3_000
"""Lines of two texts that are aligned, after equal lines at both ends."""
MAX_ROW_LINES: Final = 2_000
"""Lines of one row."""
MAX_ALL_LINES: Final = 20_000
"""Lines of all rows; later rows have none."""
MAX_DIFFED_LINE_CHARS: Final = 2_000
"""Characters of one line; a longer one is cut."""
CONTEXT_LINES: Final = 3
"""Equal lines around a difference."""
MAX_NAMED_MOVERS: Final = 12
"""Events that `moved_by` describes at most."""

DiffLine: TypeAlias = tuple[str, str]
"""`" "`, `"-"`, `"+"` or `"…"` for left out lines, and the text."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where two requests begin to differ."""

    message: int
    """Index of the first message that differs; -1 if the model, the tools or the instructions in front differ."""
    byte: int
    """Offset in the compact JSON of the whole body."""
    key: str = ""
    """What stands there in the second request, or in the first if that one is shorter; "" if there is none."""


class DiffRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of either request, what stands beside them, or a run of equal messages."""

    op: str
    """`same`, `changed`, `removed` or `added`."""
    a: int = -1
    """Index in the first request; -1 if the message is not in it."""
    b: int = -1
    key: str = ""
    label: str = ""
    lines: tuple[DiffLine, ...] = ()
    count: int = 1
    """Messages of a run."""


class RequestDiff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The difference of the requests after events `a` and `b`."""

    a: int
    b: int
    dialect: str
    first: Divergence | None = None
    """None if the second request begins with all of the first one."""
    same: int = 0
    """Messages at the beginning that are equal."""
    moved_by: str = ""
    by: tuple[int, ...] = ()
    """The events that `moved_by` describes."""
    rows: tuple[DiffRow, ...] = ()


def request_diff(
    log: Sequence[Event], *, a: int, b: int, dialect: str = "", views: LogViews | None = None
) -> RequestDiff:
    """Return how the request after event `b` differs from that after event `a`.

    Without a dialect, both are written in the dialect of the second one. Raises `UnknownHandle` and `BadSetting` as
    `sent_request` does.
    """
    views = LogViews() if views is None else views
    new = _side(log, b, dialect, views)
    pair = _Pair(_side(log, a, new.dialect, views), new)
    first = _divergence(pair)
    movers = _movers(log, a, b) if first is not None else []
    return RequestDiff(
        a=a,
        b=b,
        dialect=new.dialect,
        first=first,
        same=_equal_beginning(pair),
        moved_by=_movers_text(movers),
        by=tuple(event.seq for event in movers),
        rows=(*_beside_rows(pair), *_joined_runs(_rows(pair))),
    )


class _DiffedRequest(NamedTuple):
    """One of the two requests, without cache marks."""

    dialect: Dialect
    beside: dict[str, Any]
    """Model, tools and system text, with the instructions in front of the first other message."""
    keys: list[str]
    messages: list[Any]
    json: list[bytes]
    """Compact JSON of each message."""
    body: bytes
    """Compact JSON of the request as it is sent."""


class _Pair(NamedTuple):
    old: _DiffedRequest
    new: _DiffedRequest


def _side(log: Sequence[Event], at: int, dialect: str, views: LogViews) -> _DiffedRequest:
    content = request_content(log, at=at, dialect=dialect, views=views, sets_breakpoints=False)
    messages, tools, system = map(strip_cache_marks, (content.messages, content.tools, content.system))
    content = content._replace(messages=messages, tools=tools, system=system)
    with views.at(log, at) as view:
        logged = messages_one_by_one(view, content.dialect)
    shown = {key for keys in content.keys for key in keys}
    opening = [message for key, written in logged.opening if key in shown for message in written]
    texts = [system, *opening] if system is not None else opening
    others = [(key, strip_cache_marks(written)) for key, written in logged.others if written]
    return _DiffedRequest(
        content.dialect,
        {
            "model": content.model,
            "tools": tools,
            "system": strip_cache_marks(texts[0] if len(texts) == 1 else texts),
        },
        [key for key, _ in others],
        [written[0] if len(written) == 1 else written for _, written in others],
        [bytes(raw(written)) for _, written in others],
        bytes(raw(content.body())),
    )


# ── Where they diverge ────────────────────────────────────────────────────────────────────────────


def _equal_beginning(pair: _Pair) -> int:
    count = 0
    for one, other in zip(pair.old.json, pair.new.json, strict=False):
        if one != other:
            break
        count += 1
    return count


def _divergence(pair: _Pair) -> Divergence | None:
    at, byte = _equal_beginning(pair), _common_bytes(pair.old.body, pair.new.body)
    if pair.old.beside != pair.new.beside:
        return Divergence(message=-1, byte=byte)
    if at == len(pair.old.json):
        return None
    keys = pair.new.keys if at < len(pair.new.keys) else pair.old.keys
    return Divergence(message=at, byte=byte, key=keys[at])


def _common_bytes(one: bytes, other: bytes) -> int:
    return common_prefix_chars(one.decode("latin-1"), other.decode("latin-1"))


# ── What moved it ─────────────────────────────────────────────────────────────────────────────────


def _movers(log: Sequence[Event], a: int, b: int) -> list[Event]:
    """Return the events between two requests that can have changed what both show."""
    low, high = min(a, b), max(a, b)
    between = log_until(log, high)[len(log_until(log, low)) :]
    return [event for event in between if _moves(event.fact, low)]


def _moves(fact: AnyFact, before: int) -> bool:
    """Return whether a fact changes what a request with events up to `before` showed."""
    match fact:
        case Rewound():
            return fact.to < before
        case Instructed():
            is_newer = fact.replaces is not None and fact.replaces <= before
            return fact.aside or fact.is_memory or is_newer
        case Pinned():
            return fact.target is None or fact.whole
        case Superseded():
            return fact.target <= before
        case Reverted() | Expanded() | Opened():
            return True
        case _:
            return may_move_prefix(fact)


def _movers_text(movers: Sequence[Event]) -> str:
    named = [f"{event.handle}: {event_sentence(event.fact)}" for event in movers[:MAX_NAMED_MOVERS]]
    more = len(movers) - len(named)
    return "; ".join([*named, *([f"and {more:,} more"] if more else [])])


# ── Rows ──────────────────────────────────────────────────────────────────────────────────────────


def _beside_rows(pair: _Pair) -> Iterator[DiffRow]:
    """Yield a row for each thing beside the messages that differs."""
    for label in ("model", "tools", "system"):
        old, new = pair.old.beside[label], pair.new.beside[label]
        if old != new:
            yield DiffRow(op="changed", label=label, lines=line_diff(value_lines(old), value_lines(new)))


def _rows(pair: _Pair) -> Iterator[DiffRow]:
    """Yield a row for each message; those after `MAX_ALL_LINES` lines have none."""
    lines = 0
    for op, a, b in _paired(pair):
        row = _row(pair, op, a=a, b=b, shows_lines=lines < MAX_ALL_LINES)
        lines += len(row.lines)
        yield row


def _paired(pair: _Pair) -> Iterator[tuple[str, int, int]]:
    """Yield what became of each message, and its index in both requests; messages are paired by what they show."""
    places = {_paired_key(key): at for at, key in enumerate(pair.old.keys)}
    cursor = 0
    for b in range(len(pair.new.messages)):
        a = places.get(_paired_key(pair.new.keys[b]), -1)
        if a < cursor:
            yield "added", -1, b
            continue
        yield from (("removed", gone, -1) for gone in range(cursor, a))
        yield ("same" if pair.old.json[a] == pair.new.json[b] else "changed"), a, b
        cursor = a + 1
    yield from (("removed", gone, -1) for gone in range(cursor, len(pair.old.messages)))


def _paired_key(key: str) -> str:
    """Return the key by which messages are paired: the notice of dropped messages is one message for ever."""
    return "n" if key.startswith("n") else key


def _row(pair: _Pair, op: str, *, a: int, b: int, shows_lines: bool) -> DiffRow:
    side, at = (pair.new, b) if b >= 0 else (pair.old, a)
    key, message = side.keys[at], side.messages[at]
    first = message[0] if isinstance(message, list) else message
    label = f"{first.get('role') or first.get('type') or ''} {key}".strip()
    lines: tuple[DiffLine, ...] = ()
    if op != "same" and shows_lines:
        old = value_lines(pair.old.messages[a]) if a >= 0 else []
        lines = line_diff(old, value_lines(pair.new.messages[b]) if b >= 0 else [])
    return DiffRow(op=op, a=a, b=b, key=key, label=label, lines=lines)


def _joined_runs(rows: Iterator[DiffRow]) -> Iterator[DiffRow]:
    """Yield one row for each run of equal messages."""
    run: DiffRow | None = None
    for row in rows:
        if run is not None and row.op == "same":
            run = msgspec.structs.replace(run, count=run.count + 1)
            continue
        if run is not None:
            yield run
        run = row if row.op == "same" else None
        if run is None:
            yield row
    if run is not None:
        yield run


# ── Lines ─────────────────────────────────────────────────────────────────────────────────────────


def value_lines(value: Any, indent: str = "") -> list[str]:
    """Return a JSON value as lines, with the line breaks of its texts."""
    if isinstance(value, dict):
        return [line for name, item in value.items() for line in _named_lines(str(name), item, indent)]
    if isinstance(value, list):
        return [line for item in value for line in _named_lines("-", item, indent)]
    if isinstance(value, str):
        return [f"{indent}{line}" for line in _bounded(value).split("\n")]
    if value is None or isinstance(value, bool | int | float):
        return [f"{indent}{msgspec.json.encode(value).decode()}"]
    return [f"{indent}({len(value):,} bytes)"] if isinstance(value, bytes) else [f"{indent}{value}"]


def _named_lines(name: str, value: Any, indent: str) -> list[str]:
    title = name if name == "-" else f"{name}:"
    inner = value_lines(value, indent + "  ")
    if len(inner) == 1 and not isinstance(value, dict | list):
        return [f"{indent}{title} {inner[0].strip()}"]
    return [f"{indent}{title}", *inner]


def _bounded(text: str) -> str:
    if len(text) <= MAX_DIFFED_CHARS:
        return text
    half = MAX_DIFFED_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters …]\n{text[-half:]}"


def line_diff(old: Sequence[str], new: Sequence[str]) -> tuple[DiffLine, ...]:
    """Return the difference of two texts; runs of equal lines are left out but for a few around each difference."""
    start = _equal_lines(old, new)
    end = _equal_lines(old[start:][::-1], new[start:][::-1])
    inner_old, inner_new = old[start : len(old) - end], new[start : len(new) - end]
    lines: list[DiffLine] = [(" ", line) for line in old[:start]]
    if max(len(inner_old), len(inner_new)) > MAX_COMPARED_LINES:
        lines += [("-", line) for line in inner_old] + [("+", line) for line in inner_new]
    else:
        lines += _aligned(inner_old, inner_new)
    lines += [(" ", line) for line in old[len(old) - end :]]
    return tuple(_cut(list(_folded(lines))))


def _equal_lines(old: Sequence[str], new: Sequence[str]) -> int:
    count = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        count += 1
    return count


def _aligned(old: Sequence[str], new: Sequence[str]) -> Iterator[DiffLine]:
    # Lines that occur very often, such as empty ones, do not help to align texts and take most of the time.
    for op, low, high, new_low, new_high in SequenceMatcher(None, old, new, autojunk=True).get_opcodes():
        if op == "equal":
            yield from ((" ", line) for line in old[low:high])
            continue
        yield from (("-", line) for line in old[low:high])
        yield from (("+", line) for line in new[new_low:new_high])


def _folded(lines: list[DiffLine]) -> Iterator[DiffLine]:
    changed = [at for at, (mark, _) in enumerate(lines) if mark != " "]
    shown_until = 0
    for at in changed:
        first = max(shown_until, at - CONTEXT_LINES)
        if first > shown_until:
            yield "…", f"{first - shown_until:,} equal lines"
        last = min(len(lines), at + CONTEXT_LINES + 1)
        following = next((i for i in range(at + 1, last) if lines[i][0] != " "), last)
        yield from lines[first:following]
        shown_until = max(shown_until, following)
    if changed and shown_until < len(lines):
        yield "…", f"{len(lines) - shown_until:,} equal lines"


def _cut(lines: list[DiffLine]) -> list[DiffLine]:
    cut = [
        (mark, text if len(text) <= MAX_DIFFED_LINE_CHARS else f"{text[:MAX_DIFFED_LINE_CHARS]}…")
        for mark, text in lines
    ]
    if len(cut) <= MAX_ROW_LINES:
        return cut
    half = MAX_ROW_LINES // 2
    return [*cut[:half], ("…", counted(len(cut) - 2 * half, "line")), *cut[-half:]]
