"""References: lines of a new result that the view already shows.

An agent reads the same file again and again, so long runs of lines of a new result occur verbatim, in the same
order, in what the model sees anyway. When the result arrives, each such run becomes one line that says how many
lines they are, how they begin and end, and where they are. What is saved before a result was ever sent breaks no
cache.

    [foveal: 69 lines as above, from `def fit(self):` to `return self`, in the result of read src/x.py; whole: e57]

1. A reference points to text that is shown as it was said, above, in one piece; never to another reference.
2. It is valid while its source is shown unchanged. `find_dangling` finds references that are no longer valid, and
   `repair_dangling` writes them again from what is shown then, or whole. The policies do this before every other
   reduction, so no request contains a reference to something that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from foveal.core.log.events import Clipped, Content, Text, handle, parts
from foveal.core.reduction.placeholder import call_subject
from foveal.core.tokens.counter import Counter
from foveal.core.view.steps import ShownMessage, Slot, Step
from foveal.core.view.text_facts import strip_line_number
from foveal.core.view.view import View

MIN_REPEATED_LINES: Final = 3
"""Shorter runs are not replaced."""
MAX_QUOTE_CHARS: Final = 60
"""Characters of the first and the last line that a reference quotes."""
MAX_PLACES_PER_LINE: Final = 8
"""Places at which a line that occurs more often in a text is compared."""
REFERENCE_UNITS: Final = 48
"""Units that a reference takes, about."""
CHARS_PER_UNIT: Final = 4
"""Characters to a unit, roughly."""


class RepeatedRun(NamedTuple):
    """Lines `first` to `last`, the latter not included, that occur in the event `source`."""

    first: int
    last: int
    source: int
    what: str


def reference_clips(
    view: View, target: int, content: Content, *, saving: int, rule: str
) -> Iterator[Clipped]:
    """Yield the clips that show the texts of the result `target` with references; none where none is worth it."""
    for place, part in enumerate(parts(content)):
        if isinstance(part, Text):
            at = -1 if isinstance(content, str) else place
            made = reference_clip(view, target, at, saving=saving, rule=rule)
            if made is not None:
                yield made


def reference_clip(view: View, target: int, part: int, *, saving: int, rule: str) -> Clipped | None:
    """Return the clip of one text of the result `target` with references to the runs of lines above it.

    Each reference saves `saving` units or more; None when there is none."""
    found = view.find(target)
    text = found[1].original_text(part) if found is not None else None
    min_chars = (saving + REFERENCE_UNITS) * CHARS_PER_UNIT
    if found is None or text is None or len(text) < min_chars:
        return None
    lines = text.split("\n")
    runs = _find_runs(view, found, lines, min_chars)
    return _clip_fact(target, part, text, lines, runs, view.meter.counter, rule) if runs else None


def find_dangling(view: View) -> Iterator[tuple[int, int, str]]:
    """Yield the references to something that has changed since: the seq of the result, the part and the rule."""
    for slot in view.unmasked_results.values():
        shown = slot.result
        if shown is None or not shown.overlays:
            continue
        for part, overlay in shown.overlays.items():
            if overlay.sources and any(_has_changed(view, seq, overlay.owner) for seq in overlay.sources):
                yield shown.seq, part, overlay.rule


def repair_dangling(view: View, *, saving: int) -> Clipped | None:
    """Return the first dangling reference, written again, or the whole text if `saving` is 0; None without any."""
    for seq, part, rule in find_dangling(view):
        rewritten = reference_clip(view, seq, part, saving=saving, rule=rule) if saving else None
        found = view.find(seq)
        whole = (found[1].original_text(part) if found is not None else None) or ""
        return rewritten or Clipped(target=seq, part=part, pieces=((0, len(whole)),), rule=rule)
    return None


def _has_changed(view: View, seq: int, since: int) -> bool:
    found = view.find(seq)
    if found is None:
        return True
    overlays = found[1].overlays or {}
    return any(overlay.owner > since for overlay in overlays.values())


# ── Finding the lines ────────────────────────────────────────────────────────────────────────────────────


def _find_runs(
    view: View, target: tuple[Step, ShownMessage], lines: list[str], min_chars: int
) -> list[RepeatedRun]:
    """Return the runs of lines worth a reference, in their order, each from the newest place that has them."""
    wanted = set(map(strip_line_number, lines))
    free = [True] * len(lines)
    found: list[RepeatedRun] = []
    for shown, slot in _above(view, target):
        # The known lines of a message are cached: this test skips most messages without splitting their texts.
        if sum(map(len, wanted & shown.verbatim_lines())) >= min_chars:
            for text in shown.verbatim_texts():
                for first, last in _common_runs(lines, text.split("\n"), free, min_chars):
                    free[first:last] = [False] * (last - first)
                    found.append(RepeatedRun(first, last, shown.seq, _describe(slot)))
    return sorted(found)


def _above(view: View, target: tuple[Step, ShownMessage]) -> Iterator[tuple[ShownMessage, Slot | None]]:
    """Yield what is above a result, newest first: results with their calls, and utterances with calls."""
    step, result = target
    for other in reversed(view.steps):
        if other.seq > step.seq or not other.slots:
            continue
        for slot in reversed(other.slots):
            if slot.result is not None and (other is not step or slot.result.seq < result.seq):
                yield slot.result, slot
        yield other.utterance, None


def _describe(slot: Slot | None) -> str:
    if slot is None:
        return "the arguments of a call"
    return f"the result of {slot.call.name} {call_subject(slot.call)}".rstrip()


def _common_runs(
    lines: list[str], others: list[str], free: list[bool], min_chars: int
) -> Iterator[tuple[int, int]]:
    """Yield the runs of free lines that occur in `others` in the same order without a gap, as long as possible."""
    places: dict[str, list[int]] = {}
    for place, line in enumerate(others):
        places.setdefault(line, []).append(place)
    at = 0
    while at < len(lines):
        candidates = places.get(lines[at], [])[:MAX_PLACES_PER_LINE]
        size = max((_run_length(lines, others, free, at, place) for place in candidates), default=0)
        if size >= MIN_REPEATED_LINES and sum(map(len, lines[at : at + size])) + size >= min_chars:
            yield at, at + size
        at += max(1, size)


def _run_length(lines: list[str], others: list[str], free: list[bool], at: int, place: int) -> int:
    size, limit = 0, min(len(lines) - at, len(others) - place)
    while size < limit and free[at + size] and lines[at + size] == others[place + size]:
        size += 1
    return size


# ── Writing the reference ────────────────────────────────────────────────────────────────────────────────


def _clip_fact(
    target: int, part: int, text: str, lines: list[str], runs: list[RepeatedRun], counter: Counter, rule: str
) -> Clipped:
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    pieces: list[tuple[int, int] | str] = []
    at = 0
    for run in runs:
        begin, end = starts[run.first], min(starts[run.last], len(text))
        if at < begin:
            pieces.append((at, begin))
        reference = _reference(lines[run.first : run.last], run.what, handle(target))
        pieces.append(reference + ("\n" if end < len(text) else ""))
        at = end
    if at < len(text):
        pieces.append((at, len(text)))
    left_out = sum(run.last - run.first for run in runs)
    shown = "".join(piece if isinstance(piece, str) else text[piece[0] : piece[1]] for piece in pieces)
    return Clipped(
        target=target,
        part=part,
        pieces=tuple(pieces),
        sources=tuple(sorted({run.source for run in runs})),
        kept_tokens=counter.count(shown),
        total_tokens=counter.count(text),
        kept_lines=len(lines) - left_out,
        total_lines=len(lines),
        strategy="seen",
        rule=rule,
    )


def _reference(lines: list[str], what: str, whole: str) -> str:
    words = [line.strip() for line in lines if line.strip()]
    first, last = _quote(words[0]), _quote(words[-1])
    return f"[foveal: {len(lines):,} lines as above, from `{first}` to `{last}`, in {what}; whole: {whole}]"


def _quote(line: str) -> str:
    return line if len(line) <= MAX_QUOTE_CHARS else line[: MAX_QUOTE_CHARS - 1] + "…"
