"""References: lines of a new result that the view already shows.

An agent reads the same file again and again, so long runs of lines of a new result occur verbatim, in the same
order, in what the model sees anyway. When the result arrives, each such run becomes one line that says how many
lines they are, how they begin and end, and where they are. What is saved before a result was ever sent breaks no
cache.

    [foveal: 69 lines as above, from `def fit(self):` to `return self`, in the result of read src/x.py; whole: e57]

1. A reference points to text that is shown as it was said, above, in one piece; never to another reference.
2. It is valid while its source is shown unchanged. The view knows references that are no longer valid
   (`View.references`), and `repair_dangling` writes them again from what is shown then, or whole. The policies do
   this before every other reduction, so no request contains a reference to something that is not there.
3. A search costs the length of the new result and of the runs that it finds: `View.line_index` says which messages
   show a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from foveal.core.log.events import Clipped, Content, Text, handle, parts
from foveal.core.reduction.placeholder import call_subject
from foveal.core.view.line_index import MAX_INDEXED_TEXT_CHARS, SplitText
from foveal.core.view.view import View

MIN_REPEATED_LINES: Final = 3
"""Shorter runs are not replaced."""
MAX_QUOTE_CHARS: Final = 60
"""Characters of the first and the last line that a reference quotes."""
MAX_SOURCES: Final = 4
"""Messages that a result is compared with: those that show most of its lines."""
REFERENCE_UNITS: Final = 48
"""Units that a reference takes, about."""
CHARS_PER_UNIT: Final = 4
"""Characters to a unit, roughly."""
_BLOCK_LINES: Final = 16
"""Lines that are compared at once."""


class RepeatedRun(NamedTuple):
    """Lines `first` to `last`, the latter not included, that occur in the event `source`."""

    first: int
    last: int
    source: int


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
    if found is None or text is None or not min_chars <= len(text) <= MAX_INDEXED_TEXT_CHARS:
        return None
    runs = _find_runs(view, target, text, min_chars)
    return _clip_fact(view, target, part, text, runs, rule) if runs else None


def repair_dangling(view: View, *, saving: int) -> Clipped | None:
    """Return the first reference to something that has changed, written again, or the whole text if `saving` is 0;
    None without any."""
    for seq, part in view.references.dangling():
        found = view.find(seq)
        overlay = found[1].overlays.get(part) if found is not None and found[1].overlays else None
        if found is None or overlay is None:
            continue
        rewritten = reference_clip(view, seq, part, saving=saving, rule=overlay.rule) if saving else None
        whole = found[1].original_text(part) or ""
        return rewritten or Clipped(target=seq, part=part, pieces=((0, len(whole)),), rule=overlay.rule)
    return None


# ── Finding the lines ────────────────────────────────────────────────────────────────────────────────────


def _find_runs(view: View, target: int, text: str, min_chars: int) -> list[RepeatedRun]:
    """Return the runs of lines worth a reference, in their order, each from the place that has most of them."""
    index = view.line_index
    index.read_until(target)
    split = index.split(text)
    lines = split.lines
    holders = index.holders(split.keys, before=target)
    sources = {seq: _source_texts(view, seq) for seq in _most_frequent(holders.values())}
    found: list[RepeatedRun] = []
    taken = 0
    for place, seqs in holders.items():
        if place < taken:
            continue
        first = last = source = 0
        for seq in seqs:
            for text_above in sources.get(seq, ()):
                begin, end = text_above.run(lines, place, taken)
                if end - begin > last - first:
                    first, last, source = begin, end, seq
        if last - first >= MIN_REPEATED_LINES and _chars(lines, first, last) >= min_chars:
            found.append(RepeatedRun(first, last, source))
            taken = last
    return found


def _most_frequent(holders: Iterable[tuple[int, ...]]) -> list[int]:
    """Return the messages that hold most lines; of equal ones the newest come first."""
    hits = Counter(chain.from_iterable(holders))
    return sorted(hits, key=lambda seq: (-hits[seq], -seq))[:MAX_SOURCES]


def _source_texts(view: View, seq: int) -> list[_SourceText]:
    found = view.find(seq)
    texts = found[1].verbatim_texts() if found is not None else ()
    return [_SourceText(seq, view.line_index.split(text)) for text in texts]


def _chars(lines: list[str], first: int, last: int) -> int:
    """Return the characters from one line to another, the ends of lines included."""
    return sum(map(len, lines[first:last])) + last - first


class _SourceText:
    """The lines of one text that is shown above."""

    def __init__(self, seq: int, split: SplitText) -> None:
        self._seq = seq
        self._lines = split.lines
        # Of a line that the text repeats, one place is enough: other lines of a run find the other places.
        self._places = split.places
        self._compared: dict[int, int] = {}
        """For each distance between the two texts, the line up to which they were compared."""

    def run(self, lines: list[str], place: int, taken: int) -> tuple[int, int]:
        """Return the lines around `place`, not before `taken`, that this text has in one piece; none of them if
        they were compared before."""
        others, other = self._lines, self._places.get(lines[place], -1)
        distance = other - place
        if other < 0 or place < self._compared.get(distance, 0):
            return 0, 0
        first, last = place, place + 1
        while first > taken and first + distance > 0 and lines[first - 1] == others[first - 1 + distance]:
            first -= 1
        end = min(len(lines), len(others) - distance)
        if last < end and lines[last] == others[last + distance]:
            last = _end_of_run(lines, others, last + 1, end, distance)
        self._compared[distance] = last
        return first, last


def _end_of_run(lines: list[str], others: list[str], last: int, end: int, distance: int) -> int:
    """Return the first line from `last` to `end` that differs from the one at that distance."""
    # A run of several lines is often long: many are compared at once.
    while last + _BLOCK_LINES <= end and (
        lines[last : last + _BLOCK_LINES] == others[last + distance : last + distance + _BLOCK_LINES]
    ):
        last += _BLOCK_LINES
    while last < end and lines[last] == others[last + distance]:
        last += 1
    return last


def _describe(view: View, seq: int) -> str:
    found = view.find(seq)
    slots = found[0].slots if found is not None else []
    slot = next((slot for slot in slots if slot.result is not None and slot.result.seq == seq), None)
    if slot is None:
        return "the arguments of a call"
    return f"the result of {slot.call.name} {call_subject(slot.call)}".rstrip()


# ── Writing the reference ────────────────────────────────────────────────────────────────────────────────


def _clip_fact(view: View, target: int, part: int, text: str, runs: list[RepeatedRun], rule: str) -> Clipped:
    lines, counter = view.line_index.split(text).lines, view.meter.counter
    pieces: list[tuple[int, int] | str] = []
    at = place = 0
    for run in runs:
        begin = at + _chars(lines, place, run.first)
        end = min(begin + _chars(lines, run.first, run.last), len(text))
        if at < begin:
            pieces.append((at, begin))
        source = _describe(view, run.source)
        reference = _reference(lines[run.first : run.last], source, handle(target))
        pieces.append(reference + ("\n" if end < len(text) else ""))
        at, place = end, run.last
    if at < len(text):
        pieces.append((at, len(text)))
    left_out = sum(run.last - run.first for run in runs)
    shown = "".join(piece if isinstance(piece, str) else text[piece[0] : piece[1]] for piece in pieces)
    # The counter remembers its last text: it has just counted the result, and counts what is shown next.
    total_tokens, kept_tokens = counter.count(text), counter.count(shown)
    return Clipped(
        target=target,
        part=part,
        pieces=tuple(pieces),
        sources=tuple(sorted({run.source for run in runs})),
        kept_tokens=kept_tokens,
        total_tokens=total_tokens,
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
