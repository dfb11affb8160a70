"""Truncation: cuts texts to limits in tokens, bytes and lines.

`clip` cuts one text, `clip_parts` several texts of one result. Both return `None` for a text that needs no
cutting; the caller then shows the identical string. Otherwise they return a `Clip` whose pieces are spans of the
original and marker strings. A marker says how much was kept of how much, and the handle of the whole text. The
pieces are recorded in the log: showing them again (`join_pieces`) needs no tokenizer, and nothing is cut twice.

    head   the beginning                     tail   the end
    both   beginning and end                 smart  both, and the middle lines that matter (errors, verdicts)

Contract:

1. What is shown never exceeds a limit in any unit. The marker counts too; a limit too small for the marker shows
   the marker alone.
2. Spans ascend, do not overlap, and lie inside the text. Cuts are at line ends when one is near (the last
   tenth of a piece), and not inside an emoji sequence, a combined character or a surrogate pair.
3. The same text, limits, handle and counter give the same Clip.
4. Work is one count of newlines over the text (and of its UTF-8 bytes, if those are limited and it is not ASCII)
   plus work proportional to the limit; memory is proportional to the limit. `smart` adds the bounded search of
   `foveal.core.reduction.important_lines`. Tokens of a text longer than `MAX_COUNTED_CHARS` are extrapolated from
   evenly spaced samples and marked `~`; such a text counts as over its limit if they are more than twice the limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from math import inf
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from foveal.core.log.events import Clipped
from foveal.core.reduction.cut_points import (
    MAX_COUNTED_CHARS,
    PartCounter,
    TextSize,
    character_boundary,
    counter_for_parts,
    fitting_end,
    head_end,
    line_count,
    measure,
    measure_alone,
    newline_count,
    tail_start,
    total_tokens,
    utf8_size,
)
from foveal.core.reduction.important_lines import ImportantLine, Span, find_important_lines
from foveal.core.tokens.counter import Counter
from foveal.errors import BadSetting

Strategy = Literal["head", "tail", "both", "smart"]
Pieces: TypeAlias = tuple[Span | str, ...]

MAX_MIDDLE_SHARE: Final = 0.4
"""The share of the limit that `smart` may spend on middle lines; what these do not need goes to head and tail."""
_MAX_ATTEMPTS: Final = 8
_MIN_GAP_CHARS: Final = 24
"""A smaller gap is shown, because its marker would be about as long."""
_MAX_MIDDLE_LINES: Final = 600
_MAX_MISSES: Final = 12
"""Important lines in a row that do not fit, after which no further one is tried."""
_TOKENS_PER_LINE: Final = 40
"""About; of a limit in tokens, how many important lines are enough to fill the share of the middle."""
_CERTAINLY_OVER: Final = 2
"""A long text whose extrapolated tokens are this many times the limit is over it."""
_MAX_SEAM_TOKENS: Final = 2
_UNLIMITED_SIZE: Final = TextSize(inf, inf, inf)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a text is shown, and which part.

    Examples:
        ```python
        import foveal

        limits = foveal.Limits(strategy="both", bytes=10 * 1024, lines=256)
        ctx = foveal.Context("gpt-4.1", policy=foveal.policy("economy", clip=limits))
        ```
    """

    strategy: Strategy = "smart"
    """Which part is shown: `head`, `tail`, `both`, or `smart`, which adds middle lines that matter."""
    tokens: int | None = None
    """Most tokens; 0 shows only the marker, None is no limit."""
    bytes: int | None = None
    """Most UTF-8 bytes; 0 shows only the marker, None is no limit."""
    lines: int | None = None
    """Most lines; 0 shows only the marker, None is no limit."""
    head_share: float = 0.5
    """For `both` and `smart`: the share that goes to the beginning."""

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise BadSetting("strategy", self.strategy, f"one of {', '.join(get_args(Strategy))}")
        for field in ("tokens", "bytes", "lines"):
            value = getattr(self, field)
            if value is not None and (type(value) is not int or value < 0):
                raise BadSetting(field, value, "a whole number from 0, or None for no limit")
        share: object = self.head_share
        if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 <= share <= 1:
            raise BadSetting("head_share", share, "a number from 0 to 1")


UNLIMITED = Limits()
"""Never clips."""
BYTES_10K = Limits(strategy="both", bytes=10 * 1024, lines=256)
"""10 KiB and 256 lines, half from the beginning and half from the end."""
TOKENS_8K = Limits(strategy="head", tokens=8_000)
"""The first 8,000 tokens."""


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    r"""What is shown instead of a text. A line that is shown in part counts as kept.

    Examples:
        ```python
        import foveal
        from foveal.core.tokens.counter import counter

        cut = foveal.clip("line\n" * 900, foveal.Limits(lines=20), handle="e4", counter=counter("estimate"))
        assert cut is not None and cut.total_lines == 900
        ```
    """

    pieces: Pieces
    """Spans of characters of the original, and markers; joined in order, they are the shown text."""
    strategy: Strategy
    """The strategy of the limits."""
    kept_tokens: int
    """Tokens of the shown spans."""
    total_tokens: int
    """Tokens of the whole text."""
    exact: bool
    """Whether `total_tokens` was counted with an exact counter rather than estimated."""
    kept_lines: int
    """Lines that are shown, whole or in part."""
    total_lines: int
    """Lines of the whole text."""

    def to_fact(self, target: int, part: int, *, rule: str) -> Clipped:
        """Return the clip as a fact about one part of a result.

        Args:
            target: The seq of the result.
            part: The index of the part; -1 when the content is plain text.
            rule: The rule that decided it.
        """
        return Clipped(
            target=target,
            pieces=self.pieces,
            part=part,
            kept_tokens=self.kept_tokens,
            total_tokens=self.total_tokens,
            kept_lines=self.kept_lines,
            total_lines=self.total_lines,
            strategy=self.strategy,
            rule=rule,
        )


def join_pieces(text: str, pieces: Pieces) -> str:
    """Return what the model sees of the text."""
    return "".join(piece if isinstance(piece, str) else text[piece[0] : piece[1]] for piece in pieces)


def choose_limits(
    default: Limits, *, per_tool: Mapping[str, Limits], tool: str, call: Limits | None
) -> Limits:
    """Return the limits that apply: the call's, else the tool's, else the default."""
    return call if call is not None else per_tool.get(tool, default)


def clip(
    text: str, limits: Limits, *, handle: str, counter: Counter, keep: Sequence[Span] = ()
) -> Clip | None:
    r"""Cut one text to its limits.

    Args:
        text: The text.
        limits: The limits and the strategy.
        handle: The name of the whole text in the marker, such as `e4`.
        counter: Counts tokens; `foveal.core.tokens.counter.counter` returns one.
        keep: Spans in the middle that are shown before head and tail, as far as 40 % of the limit holds them.

    Returns:
        What is shown; None when the text is within all limits.

    Examples:
        ```python
        import foveal
        from foveal.core.reduction.truncation import join_pieces
        from foveal.core.tokens.counter import counter

        text = "line\n" * 900
        cut = foveal.clip(text, foveal.Limits(lines=20), handle="e4", counter=counter("estimate"))
        assert cut is not None
        print(join_pieces(text, cut.pieces))
        ```
    """
    whole = room_for(limits)
    parts = counter_for_parts(text, counter, limits.tokens)
    tokens, exact = total_tokens(text, parts) if whole.tokens < inf else (0, False)
    if _is_within(text, whole, parts, tokens=tokens, exact=exact):
        return None
    if whole.tokens == inf:
        tokens, exact = total_tokens(text, parts)
    task = _ClipTask(text, limits, whole, handle, parts, tokens, exact, utf8_size(text, whole), tuple(keep))
    room = whole.minus(task.reserve())
    for attempt in range(_MAX_ATTEMPTS):
        spans = _choose_spans(task, room) if min(room) > 0 else []
        made = task.assemble(spans)
        over = task.shown_size(made.pieces).minus(whole)
        if not spans or (max(over) <= 0 and len(made.pieces) > 1):
            return made
        room = room.minus(TextSize(*(max(unit, 1) * 2**attempt for unit in over)))
    return task.assemble([])


def clip_to_spans(text: str, spans: Sequence[Span], *, handle: str, counter: Counter) -> Clip:
    """Return a text cut to these spans, which ascend."""
    parts = counter_for_parts(text, counter, None)
    tokens, exact = total_tokens(text, parts)
    task = _ClipTask(text, Limits(), _UNLIMITED_SIZE, handle, parts, tokens, exact, 0, ())
    return task.assemble(_merge_spans(spans))


def _is_within(text: str, whole: TextSize, counter: Counter, *, tokens: int, exact: bool) -> bool:
    """Return whether a text is within all limits. A long text with `tokens` by extrapolation is counted as far as
    its limit, unless it is `_CERTAINLY_OVER` times above it."""
    if whole.tokens < inf and exact:
        return tokens <= whole.tokens and fitting_end(text, whole._replace(tokens=inf), counter) == len(text)
    if whole.tokens < inf and tokens > _CERTAINLY_OVER * whole.tokens and len(text) > MAX_COUNTED_CHARS:
        return False
    return fitting_end(text, whole, counter) == len(text)


def room_for(limits: Limits) -> TextSize:
    """Return the limits as a size, with `inf` for units without one."""
    return TextSize(*[inf if unit is None else unit for unit in (limits.tokens, limits.bytes, limits.lines)])


class _ClipTask(NamedTuple):
    """One text to cut, with its totals."""

    text: str
    limits: Limits
    whole: TextSize
    """The limits as a size."""
    handle: str
    counter: PartCounter
    tokens: int
    exact: bool
    bytes: int
    keep: tuple[Span, ...]

    def span_size(self, span: Span, room: TextSize) -> TextSize:
        """Return the size of a span in the units that are limited."""
        tokens = self.counter.span(*span) if room.tokens < inf else 0
        if room.bytes == room.lines == inf:  # the usual limits
            return TextSize(tokens, 0, 0)
        text = self.text[span[0] : span[1]]
        return TextSize(tokens, utf8_size(text, room), line_count(text) if room.lines < inf else 0)

    def shown_size(self, pieces: Pieces) -> TextSize:
        """Return the size of the joined pieces in the units that are limited; the tokens may be a few too many.

        With an exact counter the pieces are counted together only if their sum is near the limit. They meet at
        line ends, because a marker is on its own line, and there have at most `_MAX_SEAM_TOKENS` more together
        than apart."""
        whole, tokens = self.whole, 0
        if self.counter.exact and whole.tokens < inf:
            for piece in pieces:
                tokens += self.counter.count(piece) if isinstance(piece, str) else self.counter.span(*piece)
            tokens += _MAX_SEAM_TOKENS * len(pieces)
            if tokens <= whole.tokens:
                whole = TextSize(inf, whole.bytes, whole.lines)
        if whole == _UNLIMITED_SIZE:
            return TextSize(tokens, 0, 0)
        size = measure(join_pieces(self.text, pieces), whole, self.counter)
        return size if whole.tokens < inf else size._replace(tokens=tokens)

    def reserve(self) -> TextSize:
        """Return the size of the marker at its longest: all numbers at their maximum, a newline on either side."""
        longest = self.marker(self.tokens, self.bytes, len(self.text), len(self.text))
        size = measure(f"\n{longest}\n", self.whole, self.counter)
        return TextSize(size.tokens, size.bytes, 1)

    def marker(self, tokens: int, size: int, lines: int, all_lines: int) -> str:
        kept, total = "" if self.counter.exact else "~", "" if self.exact else "~"
        parts = f"kept {kept}{tokens:,} of {total}{self.tokens:,} tokens, {lines:,} of {all_lines:,} lines"
        if self.limits.bytes is not None:
            parts += f", {size:,} of {self.bytes:,} bytes"
        return f"[foveal: {parts} ({self.limits.strategy}); whole text: {self.handle}]"

    def assemble(self, spans: Sequence[Span]) -> Clip:
        """Return the clip that shows these spans: the marker in the first gap, a short note in every other."""
        text, end = self.text, len(self.text)
        pieces: list[Span | str] = []
        gaps: list[tuple[int, Span]] = []
        newlines = lines_left_out = at = size = 0
        for span in (*spans, (end, end)):
            start, stop = span
            if at < start:
                passed, lines = _lines_left_out(text, at, start)
                gaps.append((len(pieces), (at, start)))
                pieces.append(_on_own_line(text, at, start, _gap_note(lines, start - at)))
                newlines, lines_left_out = newlines + passed, lines_left_out + lines
            if start < stop:
                pieces.append(span)
                newlines += newline_count(text, start, stop)
                size += utf8_size(text[start:stop], self.whole) if self.whole.bytes < inf else 0
            at = stop
        all_lines = newlines + (text[-1:] not in ("", "\n"))
        kept_lines = all_lines - lines_left_out
        tokens = min(sum(starmap(self.counter.span, spans)), self.tokens)
        if gaps:
            place, gap = gaps[0]
            pieces[place] = _on_own_line(text, *gap, self.marker(tokens, size, kept_lines, all_lines))
        return Clip(
            pieces=tuple(pieces),
            strategy=self.limits.strategy,
            kept_tokens=tokens,
            total_tokens=self.tokens,
            exact=self.exact,
            kept_lines=kept_lines,
            total_lines=all_lines,
        )


def _gap_note(lines: int, characters: int) -> str:
    return f"[… {lines:,} lines …]" if lines else f"[… {characters:,} characters …]"


def _on_own_line(text: str, start: int, end: int, note: str) -> str:
    before = "\n" if start > 0 and text[start - 1] != "\n" else ""
    return before + note + ("\n" if end < len(text) else "")


def _lines_left_out(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the newlines in a gap, and the lines of which nothing is shown."""
    newlines = newline_count(text, start, end)
    open_left = start > 0 and text[start - 1] != "\n"
    open_right = text[end - 1] != "\n"
    lines = newlines + open_right - open_left - (open_right and end < len(text))
    return newlines, max(0, lines)


# ── Choosing the spans ───────────────────────────────────────────────────────────────────────────────────


def _choose_spans(task: _ClipTask, room: TextSize) -> list[Span]:
    share = {"head": 1.0, "tail": 0.0}.get(task.limits.strategy, task.limits.head_share)
    if task.limits.strategy != "smart" and not task.keep:
        return _merge_spans(_head_and_tail(task, room, share))
    low, high = _head_and_tail(task, room.times(1 - MAX_MIDDLE_SHARE), share)
    if task.keep:
        found = [ImportantLine(a, b, 0, b"") for a, b in task.keep if low[1] <= a and b <= high[0]]
    else:
        enough = int(min(room.tokens, _MAX_MIDDLE_LINES * _TOKENS_PER_LINE)) // _TOKENS_PER_LINE
        found = find_important_lines(task.text, low[1], high[0], enough=enough)
    middle, room = _choose_middle(task, found, room.times(MAX_MIDDLE_SHARE), room)
    return _merge_spans([*_head_and_tail(task, room, share), *middle])


def _head_and_tail(task: _ClipTask, room: TextSize, share: float) -> tuple[Span, Span]:
    """Return head and tail, either of which may be empty; the tail also gets what the head could not use."""
    text, counter = task.text, task.counter
    end = head_end(text, room.times(share), counter) if share else 0
    rest = room.minus(task.span_size((0, end), room))
    start = tail_start(text, rest, counter) if share < 1 and min(rest) > 0 else len(text)
    return (0, end), (max(start, end), len(text))


def _choose_middle(
    task: _ClipTask, found: Sequence[ImportantLine], budget: TextSize, room: TextSize
) -> tuple[list[Span], TextSize]:
    """Return as many of the important lines, best first, as the budget holds, and the room left after them."""
    gap = measure("[… 10,000 lines …]\n", room, task.counter)
    places = min(unit / (cost + 1) for unit, cost in zip(budget, gap, strict=True))
    lines = [
        _whole_characters(task.text, line) for line in found[: int(min(4 * places + 8, _MAX_MIDDLE_LINES))]
    ]
    spans: set[Span] = set()
    edges: set[int] = set()
    misses = 0
    for start, end in lines:
        size = task.span_size((start, end), room)._replace(lines=1)
        cost = size if start in edges or end in edges else size.minus(gap.times(-1))
        if cost.within(budget):
            spans.add((start, end))
            edges.update((start, end))
            budget, room, misses = budget.minus(cost), room.minus(cost), 0
        elif (misses := misses + 1) == _MAX_MISSES:
            break
    return sorted(spans), room


def _whole_characters(text: str, line: ImportantLine) -> Span:
    start = character_boundary(text, line.start, 1)
    return start, max(start, character_boundary(text, line.end, -1))


def _merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Sort the spans and join those that touch or are separated by less than a marker."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if start < end and merged and start - merged[-1][1] <= _MIN_GAP_CHARS:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < end:
            merged.append((start, end))
    return merged


# ── Several texts with one limit ─────────────────────────────────────────────────────────────────────────


def clip_parts(texts: Sequence[str], limits: Limits, *, handle: str, counter: Counter) -> list[Clip | None]:
    """Cut several texts of one result so that together they are within the limits.

    Small parts stay whole, and the large ones share what is left evenly. When there are too many parts to give each
    room for a marker, whole parts are left out (their pieces are empty), and the first of them says how many.
    """
    whole = room_for(limits)
    sizes = {i: measure_alone(text, whole, counter) for i, text in enumerate(texts) if text}
    if _fair_share(list(sizes.values()), whole) == _UNLIMITED_SIZE:
        return [None] * len(texts)
    notice = (
        f"[foveal: left out {len(sizes):,} of {len(sizes):,} parts ({limits.strategy}); whole text: {handle}]"
    )
    shown, level = _choose_parts(sizes, whole, measure(notice, whole, counter), limits.strategy)
    left_out = [i for i in sizes if i not in shown]
    notice = notice.replace(f"{len(sizes):,}", f"{len(left_out):,}", 1)
    each = msgspec.structs.replace(limits, **{k: int(v) for k, v in level._asdict().items() if v < inf})
    return [
        _leave_out(text, limits.strategy, counter, (notice,) if i == left_out[0] else ())
        if i in left_out
        else clip(text, each, handle=handle, counter=counter)
        for i, text in enumerate(texts)
    ]


def _fair_share(sizes: Sequence[TextSize], room: TextSize) -> TextSize:
    """Return, in each unit, the most that a part may take so that all parts are within the room; `inf` if all are.

    A part that is cut in one unit takes its fair share in all, because its marker needs room in all.
    """
    while True:
        level = TextSize(
            *(_fair_share_of_unit([size[unit] for size in sizes], room[unit]) for unit in range(3))
        )
        wanted = [size if size.within(level) else _UNLIMITED_SIZE for size in sizes]
        if wanted == sizes:
            return level
        sizes = wanted


def _fair_share_of_unit(sizes: Sequence[float], room: float) -> float:
    """Return the most that each may take, so that small parts leave their unused share to the others."""
    for filled, size in enumerate(sorted(sizes) if room < inf else ()):
        share = room // (len(sizes) - filled)
        if size > share:
            return max(0, share)
        room -= size
    return inf


def _choose_parts(
    sizes: Mapping[int, TextSize], room: TextSize, notice: TextSize, strategy: Strategy
) -> tuple[set[int], TextSize]:
    """Return the parts that are shown at all, and the most each may take; a cut part needs room for its marker."""
    order = _precedence(list(sizes), strategy)

    def level(count: int) -> TextSize:
        rest = room if count == len(order) else room.minus(notice)
        return _fair_share([sizes[i] for i in order[:count]], rest)

    def is_crowded(count: int) -> int:
        return not notice.times(3).within(level(count))

    count = bisect_left(range(1, len(order) + 1), 1, key=is_crowded)
    return set(order[:count]), level(count) if count else room


def _precedence(parts: list[int], strategy: Strategy) -> list[int]:
    """Return the parts in the order of precedence: from the beginning, from the end, or from both ends inwards."""
    if strategy == "head":
        return parts
    if strategy == "tail":
        return parts[::-1]
    inwards = [at for pair in zip(parts, parts[::-1], strict=True) for at in pair]
    return list(dict.fromkeys(inwards))


def _leave_out(text: str, strategy: Strategy, counter: Counter, pieces: Pieces) -> Clip | None:
    if not text:
        return None
    tokens, exact = total_tokens(text, counter)
    lines = line_count(text)
    return Clip(
        pieces=pieces,
        strategy=strategy,
        kept_tokens=0,
        total_tokens=tokens,
        exact=exact,
        kept_lines=0,
        total_lines=lines,
    )
