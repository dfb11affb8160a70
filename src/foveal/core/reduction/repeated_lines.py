"""Lines of a fresh result that already stand above: shown as a reference, when it arrives.

What is saved before a result was ever sent breaks no cache. An agent reads the same file again and again, so long
runs of lines of a new result stand verbatim, in the same order, in what the model sees anyway. Each such run
becomes one line that says how many lines they are, how they begin and end, and where they stand:

    [foveal: 69 lines as above, from `def fit(self):` to `return self`, in the result of read src/x.py; whole: e57]

1. A reference points to text that is shown as it was said, above, in one piece; never to another reference.
2. It holds as long as what it points to is shown unchanged. `dangling` finds those that no longer do, and `again`
   writes them anew from what is shown then, or whole: this goes before every other reduction, so that no request is
   sent with a reference to something that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from foveal.core.log.events import Call, Clipped, Content, Text, handle, parts
from foveal.core.reduction.placeholder import bare, leaves, subject
from foveal.core.tokens.counter import Counter
from foveal.core.view.steps import Shown, Slot, Step
from foveal.core.view.view import View

SHORT: Final = 3
"""Fewer lines than this are not worth a look."""
QUOTE: Final = 60
"""Characters of the first and the last line that a reference quotes."""
PLACES: Final = 8
"""A line that stands in a text more often is looked for at so many places."""
COST: Final = 48
"""Units that a reference takes, about."""
CHARACTERS: Final = 4
"""Characters to a unit, roughly."""


class RepeatedRun(NamedTuple):
    """Lines `first` to `last`, the latter not included, that stand in `source`."""

    first: int
    last: int
    source: int
    what: str


def clips(view: View, target: int, content: Content, *, saving: int, rule: str) -> Iterator[Clipped]:
    """The clips that show each text of the result `target` with references; none where none is worth it."""
    for place, part in enumerate(parts(content)):
        if isinstance(part, Text):
            at = -1 if isinstance(content, str) else place
            made = clip(view, target, at, saving=saving, rule=rule)
            if made is not None:
                yield made


def clip(view: View, target: int, part: int, *, saving: int, rule: str) -> Clipped | None:
    """A text of the result `target` with the runs of lines that stand above it as references, each of which saves
    `saving` units or more; None when there is none."""
    found = view.find(target)
    text = found[1].said(part) if found is not None else None
    least = (saving + COST) * CHARACTERS
    if found is None or text is None or len(text) < least:
        return None
    lines = text.split("\n")
    runs = _runs(view, found, lines, least)
    return _clipped(target, part, text, lines, runs, view.meter.counter, rule) if runs else None


def dangling(view: View) -> Iterator[tuple[int, int, str]]:
    """Results with a reference to something that has changed since: their seq, the part and the rule."""
    for slot in view.live.values():
        shown = slot.result
        if shown is None or not shown.overlays:
            continue
        for part, overlay in shown.overlays.items():
            if overlay.sources and any(_changed(view, seq, overlay.owner) for seq in overlay.sources):
                yield shown.seq, part, overlay.rule


def again(view: View, *, saving: int) -> Clipped | None:
    """The first dangling reference, written anew, or whole if nothing shall be saved; None when there is none."""
    for seq, part, rule in dangling(view):
        anew = clip(view, seq, part, saving=saving, rule=rule) if saving else None
        found = view.find(seq)
        whole = (found[1].said(part) if found is not None else None) or ""
        return anew or Clipped(target=seq, part=part, pieces=((0, len(whole)),), rule=rule)
    return None


def _changed(view: View, seq: int, since: int) -> bool:
    found = view.find(seq)
    if found is None:
        return True
    overlays = found[1].overlays or {}
    return any(overlay.owner > since for overlay in overlays.values())


# ── where the lines stand ────────────────────────────────────────────────────────────────────────────────


def _runs(view: View, target: tuple[Step, Shown], lines: list[str], least: int) -> list[RepeatedRun]:
    """Runs of lines worth a reference, in their order, each from the newest place that has them."""
    wanted = set(map(bare, lines))
    free = [True] * len(lines)
    found: list[RepeatedRun] = []
    for shown, slot in _above(view, target):
        if sum(map(len, wanted & known(shown))) >= least:
            for text in _texts(shown):
                for first, last in _common(lines, text.split("\n"), free, least):
                    free[first:last] = [False] * (last - first)
                    found.append(RepeatedRun(first, last, shown.seq, _what(slot)))
    return sorted(found)


def known(shown: Shown) -> frozenset[str]:
    """The lines of a message that are shown as they were said, bare."""
    if shown.lines is None:
        shown.lines = frozenset(bare(line) for text in _texts(shown) for line in text.split("\n"))
    return shown.lines


def _texts(shown: Shown) -> list[str]:
    """The texts of a message that are shown as they were said."""
    overlays = shown.overlays or {}
    if -1 in overlays:
        return []
    texts: list[str] = []
    for place, part in enumerate(parts(shown.fact.content)):
        if place not in overlays and isinstance(part, Text):
            texts.append(part.text)
        elif place not in overlays and isinstance(part, Call):
            texts.extend(leaves(part.arguments))
    return texts


def _above(view: View, target: tuple[Step, Shown]) -> Iterator[tuple[Shown, Slot | None]]:
    """What stands above a result, newest first: results with their calls, and utterances with calls."""
    step, result = target
    for other in reversed(view.steps):
        if other.seq > step.seq or not other.slots:
            continue
        for slot in reversed(other.slots):
            if slot.result is not None and (other is not step or slot.result.seq < result.seq):
                yield slot.result, slot
        yield other.said, None


def _what(slot: Slot | None) -> str:
    if slot is None:
        return "the arguments of a call"
    return f"the result of {slot.call.name} {subject(slot.call)}".rstrip()


def _common(lines: list[str], others: list[str], free: list[bool], least: int) -> Iterator[tuple[int, int]]:
    """Runs of free lines that stand in `others` in the same order without a gap, each as long as it goes."""
    places: dict[str, list[int]] = {}
    for place, line in enumerate(others):
        places.setdefault(line, []).append(place)
    at = 0
    while at < len(lines):
        same = (_same(lines, others, free, at, place) for place in places.get(lines[at], [])[:PLACES])
        size = max(same, default=0)
        if size >= SHORT and sum(map(len, lines[at : at + size])) + size >= least:
            yield at, at + size
        at += max(1, size)


def _same(lines: list[str], others: list[str], free: list[bool], at: int, place: int) -> int:
    size, most = 0, min(len(lines) - at, len(others) - place)
    while size < most and free[at + size] and lines[at + size] == others[place + size]:
        size += 1
    return size


# ── how it is written ────────────────────────────────────────────────────────────────────────────────────


def _clipped(
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
        mark = _reference(lines[run.first : run.last], run.what, handle(target))
        pieces.append(mark + ("\n" if end < len(text) else ""))
        at = end
    if at < len(text):
        pieces.append((at, len(text)))
    left = sum(run.last - run.first for run in runs)
    shown = "".join(piece if isinstance(piece, str) else text[piece[0] : piece[1]] for piece in pieces)
    return Clipped(
        target=target,
        part=part,
        pieces=tuple(pieces),
        sources=tuple(sorted({run.source for run in runs})),
        kept_tokens=counter.count(shown),
        total_tokens=counter.count(text),
        kept_lines=len(lines) - left,
        total_lines=len(lines),
        strategy="seen",
        rule=rule,
    )


def _reference(lines: list[str], what: str, name: str) -> str:
    told = [line.strip() for line in lines if line.strip()]
    first, last = _short(told[0]), _short(told[-1])
    return f"[foveal: {len(lines):,} lines as above, from `{first}` to `{last}`, in {what}; whole: {name}]"


def _short(line: str) -> str:
    return line if len(line) <= QUOTE else line[: QUOTE - 1] + "…"
