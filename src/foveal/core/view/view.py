"""The view: what the model will see, folded from the log.

1. A step is one utterance with *all* of its results, so nothing can split a call from its answer.
2. A result goes to the newest open call with its id; one that no call waits for is kept out and reported.
3. A call without a result is shown with a fixed synthetic one.
4. Instructions and pinned steps are never hidden, whatever a range says.
5. Nothing here formats or counts what the log could have recorded: placeholders, clips and summaries are
   texts of the events that made them. The only text written here is the notice for dropped steps.

Folding n events takes O(n), advancing by one takes O(1); hiding steps takes O(visible). Units are counted
when somebody asks for them, and only of what is then visible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import assert_never

from foveal.core.log.events import (
    Call,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Equipped,
    Erased,
    Event,
    Expanded,
    Instructed,
    Marked,
    Masked,
    Media,
    ModelSaid,
    Noted,
    Opened,
    Overflowed,
    Pinned,
    Reverted,
    Rewound,
    SnapshotTaken,
    Text,
    ToolReturned,
    Unknown,
    Used,
    UserSaid,
    calls_of,
    text_of,
)
from foveal.core.log.ranges import Ranges, common, without
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.steps import Level, Overlay, Shown, Slot, Step

_seq = attrgetter("seq")


class CoveredRange:
    """Ranges of seq that a drop or a compaction has hidden."""

    __slots__ = ("level", "owner", "ranges", "rule")

    def __init__(self, level: Level, owner: int, ranges: Ranges, rule: str) -> None:
        self.level: Level = level
        self.owner = owner
        self.ranges = ranges
        self.rule = rule


class View:
    """The visible steps in the order of the log, and what is known about them."""

    def __init__(self, meter: MessageTokens) -> None:
        self.meter = meter
        self.steps: list[Step] = []
        self.asides: dict[str, Shown] = {}
        """Instructions that are sent beside the messages, by source."""
        self.live: dict[int, Slot] = {}
        """Results that are not masked, by seq, oldest first."""
        self.media: dict[tuple[int, int], Media] = {}
        """Images, sounds and files in view, by seq and part, oldest first."""
        self.covers: list[CoveredRange] = []
        self.orphans: list[int] = []
        """Results that no call waited for: in the log, not in the request."""
        self.late: list[int] = []
        """Results that came after later messages: they changed a step that had already been shown."""
        self.permanent: list[Step] = []
        """Instructions and pinned rules: what no reduction hides."""
        self.results = 0
        """Non-empty results so far, visible or not."""
        self.turns = 0
        self.dropped_messages = 0
        self.notice: Step | None = None
        """The step that tells of them."""
        self.spared: set[int] = set()
        """Results whose mask somebody took back: not to be masked again unless there is no other way."""
        self.undone: Ranges = ()
        """What summaries that somebody took back had stood for: not to be summarised again unless there is no other
        way."""
        self.expanded: tuple[Event, ...] = ()
        """Ranges that are shown as they were said until the user speaks again."""
        self.tools: tuple[int, Equipped] | None = None
        """The tools on offer, and the event that says so."""
        self._where: dict[int, tuple[Step, Shown]] = {}
        self._waiting: dict[str, list[Slot]] = {}
        self._units = 0
        self._uncounted: list[Step] = []

    # ── questions ────────────────────────────────────────────────────────────────────────────────────

    @property
    def units(self) -> int:
        """Units of all visible steps."""
        for step in self._uncounted:
            if step.units is None:
                step.units = step.count(self.meter)
                self._units += step.units
        self._uncounted.clear()
        return self._units

    def units_of(self, step: Step) -> int:
        if step.units is None:
            return step.count(self.meter)
        return step.units

    @property
    def aside_units(self) -> int:
        """Units of the system text that is sent beside the messages."""
        return sum(shown.units(self.meter) for shown in self.asides.values())

    @property
    def tool_units(self) -> int:
        if self.tools is None:
            return 0
        seq, fact = self.tools
        return self.meter.text(seq, seq, -1, bytes(fact.tools).decode("utf-8", "replace"))

    @property
    def permanent_units(self) -> int:
        """Units of instructions and pinned rules among the messages."""
        return sum(self.units_of(step) for step in self.permanent)

    @property
    def latest_user(self) -> Step | None:
        return next((step for step in reversed(self.steps) if step.kind == "user"), None)

    @property
    def first_user(self) -> Step | None:
        return next((step for step in self.steps if step.kind == "user"), None)

    @property
    def summaries(self) -> list[Step]:
        """The summaries in view, oldest first."""
        return [step for step in self.steps if step.kind == "summary"]

    @property
    def seqs(self) -> Collection[int]:
        """The events that are shown, as messages or as summaries."""
        return self._where.keys()

    @property
    def hidden_calls(self) -> list[tuple[str, int]]:
        """Calls that still wait for a result in steps that are not shown: their ids, and the steps' seqs."""
        slots = (slot for waiting in self._waiting.values() for slot in waiting)
        return [(slot.call.id, slot.step.seq) for slot in slots if slot.step.seq not in self._where]

    def expect(self, call_id: str, seq: int) -> None:
        """A call in a step that is not shown waits for its result, which will not be shown either."""
        call = Call(id=call_id, name="", arguments="")
        waiting = self._waiting.setdefault(call_id, [])
        waiting.append(Slot(Step(seq, "model", ModelSaid(content=(call,))), 0, call))
        waiting.sort(key=lambda slot: slot.step.seq)

    def find(self, seq: int) -> tuple[Step, Shown] | None:
        """The visible step that event `seq` is shown in, and the event as shown."""
        return self._where.get(seq)

    def cover_of(self, seq: int) -> CoveredRange | None:
        """What hid the event `seq`: the newest cover of its step."""
        for cover in reversed(self.covers):
            if any(first <= seq <= last for first, last in cover.ranges):
                return cover
        return None

    # ── the fold ─────────────────────────────────────────────────────────────────────────────────────

    def advance(self, event: Event) -> None:
        """Take in the next event that counts. Rewinds and reverts change what counts: see `advance`."""
        seq, fact = event.seq, event.fact
        match fact:
            case ModelSaid():
                self._model(seq, fact)
            case ToolReturned():
                self._returned(seq, fact)
            case UserSaid():
                self.turns += 1
                self._add(Step(seq, "user", fact))
            case Instructed():
                self._instructed(seq, fact)
            case Clipped():
                text = _pieced(fact, self._where.get(fact.target))
                self._overlay(fact.target, fact.part, Overlay(text, "clipped", seq, fact.rule, fact.sources))
            case Masked():
                for mask in fact.masks:
                    self._overlay(mask.target, mask.part, Overlay(mask.text, "masked", seq, fact.rule))
            case Dropped():
                self._drop(seq, fact)
            case Compacted():
                self._compact(seq, fact)
            case Pinned():
                self._pin(seq, fact)
            case Equipped():
                self.tools = (seq, fact)
            case Marked():
                self._mark(seq, fact)
            case Expanded():
                for step in self._within(((fact.first, fact.last),)):
                    step.pin = seq
            case Opened() | Noted() | Used() | SnapshotTaken() | Erased() | Unknown():
                pass
            case CompactionFailed() | Overflowed():
                pass
            case Reverted() | Rewound():
                raise AssertionError("a rewind or a revert changes which events count: fold again")
            case _:
                assert_never(fact)

    def _add(self, step: Step) -> None:
        if self.expanded and not step.pinned:
            step.pin = next((e.seq for e in self.expanded if _inside(step.seq, e.fact)), -1)
        self.steps.append(step)
        self._place(step, step.said)
        self._uncounted.append(step)

    def _place(self, step: Step, shown: Shown) -> None:
        self._where[shown.seq] = (step, shown)
        content = shown.fact.content
        if not isinstance(content, str):
            for place, part in enumerate(content):
                if isinstance(part, Media):
                    self.media[shown.seq, place] = part

    def _displace(self, shown: Shown) -> None:
        self._where.pop(shown.seq, None)
        self.live.pop(shown.seq, None)
        self._forget_media(shown, -1)

    def _forget_media(self, shown: Shown, part: int) -> None:
        content = shown.fact.content
        if self.media and not isinstance(content, str):
            for place in range(len(content)) if part == -1 else (part,):
                self.media.pop((shown.seq, place), None)

    def _touch(self, step: Step) -> None:
        """The step has changed: it must be counted and written again."""
        step.native = None
        if step.units is not None:
            self._units -= step.units
            step.units = None
            self._uncounted.append(step)

    def _model(self, seq: int, fact: ModelSaid) -> None:
        step = Step(seq, "model", fact)
        for place, call in calls_of(fact.content):
            slot = Slot(step, place, call)
            step.slots.append(slot)
            self._waiting.setdefault(call.id, []).append(slot)
        self._add(step)

    def _returned(self, seq: int, fact: ToolReturned) -> None:
        slot = self._claim(fact.call_id)
        if slot is None:
            self.orphans.append(seq)
            return
        step = slot.step
        slot.result = shown = Shown(seq, fact)
        step.messages += 1
        if step.seq not in self._where:  # the call is hidden by now, and so is its result
            return
        if step is not self.steps[-1]:
            self.late.append(seq)
        self._place(step, shown)
        self.live[seq] = slot
        if fact.content:
            slot.ordinal = self.results
            self.results += 1
        self._touch(step)

    def _claim(self, call_id: str) -> Slot | None:
        """The call that a result with this id answers: of the newest step with an open one, the first."""
        waiting = self._waiting.get(call_id)
        if not waiting:
            return None
        newest = waiting[-1].step
        place = next(i for i, slot in enumerate(waiting) if slot.step is newest)
        slot = waiting.pop(place)
        if not waiting:
            del self._waiting[call_id]
        return slot

    def _instructed(self, seq: int, fact: Instructed) -> None:
        if fact.aside:
            self.asides[fact.source] = Shown(seq, fact)
            return
        if fact.replaces is None:
            self._add(Step(seq, "instructed", fact))
            self.permanent.append(self.steps[-1])
            return
        old = self._where.get(fact.replaces)
        if old is None:  # rewound since
            return
        step = old[0]
        self._displace(step.said)
        step.said = Shown(seq, fact)
        self._place(step, step.said)
        self._touch(step)

    def _overlay(self, target: int, part: int, overlay: Overlay) -> None:
        found = self._where.get(target)
        if found is None:  # hidden, rewound or never there: nothing to show differently
            return
        step, shown = found
        if any(step.pin == event.seq for event in self.expanded):
            return
        content = shown.fact.content
        if part != -1 and (isinstance(content, str) or not 0 <= part < len(content)):
            return  # no such part: a fact from a file that somebody wrote by hand
        if overlay.level == "clipped" and overlay.text == shown.said(part):  # what was cut is whole again
            shown.uncover(part)
        else:
            shown.overlay(part, overlay)
        if overlay.level == "masked":
            self._forget_media(shown, part)
            if part == -1:
                self.live.pop(target, None)
        self._touch(step)

    def _mark(self, seq: int, fact: Marked) -> None:
        found = self._where.get(fact.target)
        if found is not None:
            found[1].mark(seq, fact.marks)
            self._touch(found[0])

    def _pin(self, seq: int, fact: Pinned) -> None:
        if fact.target is not None:
            found = self._where.get(fact.target)
            if found is not None:
                found[0].pin = seq
        if fact.text:
            step = Step(seq, "pinned", Instructed(content=f"Pinned rule: {fact.text}", source="pinned"))
            step.pin = seq
            self._add(step)
            self.permanent.append(step)

    def _drop(self, seq: int, fact: Dropped) -> None:
        hidden = self._hide(CoveredRange("dropped", seq, hidden_by(fact), fact.rule))
        if not hidden:
            return
        self.dropped_messages += sum(step.messages for step in hidden)
        place = hidden[0].seq
        if self.notice is not None:
            place = min(place, self.notice.seq)
            self._remove([self.notice])
        self.show_notice(place)

    def show_notice(self, place: int) -> None:
        """Say at this place how many messages were dropped."""
        self.notice = Step(place, "notice", UserSaid(content=notice(self.dropped_messages)))
        self.notice.said.seq = -1 - self.dropped_messages  # no event of its own: the text names the count
        self._insert(self.notice)

    def _compact(self, seq: int, fact: Compacted) -> None:
        ranges = hidden_by(fact)
        places = [high for step in self.summaries for _, high in common(step.covers, ranges)]
        hidden = self._hide(CoveredRange("summarised", seq, ranges, fact.rule))
        places += [step.seq for step in hidden]
        if not places:
            return
        messages = sum(step.messages for step in hidden)
        staying = (shown.seq for step in self._within(ranges) if not step.covers for shown in step.shown())
        covers = without(ranges, tuple((other, other) for other in staying))
        self.show_summary(seq, fact, place=max(places), messages=messages, covers=covers)

    def show_summary(
        self, seq: int, fact: Compacted, *, place: int, messages: int, covers: Ranges | None = None
    ) -> None:
        summary = Step(place, "summary", UserSaid(content=fact.summary))
        summary.covers = hidden_by(fact) if covers is None else covers
        summary.said.seq = seq
        summary.messages = messages
        self._place(summary, summary.said)
        self._insert(summary)

    def show_instruction(self, seq: int, fact: Instructed, *, place: int) -> None:
        """An instruction that stands where an older version of it stood."""
        step = Step(place, "instructed", fact)
        step.said.seq = seq
        self._place(step, step.said)
        self._insert(step)
        self.permanent.append(step)

    def _hide(self, cover: CoveredRange) -> list[Step]:
        """Take the steps in a cover's ranges out of view. A summary goes when newer covers have taken over every
        event that it stood for."""
        self.covers.append(cover)
        hidden = [step for step in self._within(cover.ranges) if not _stays(step)]
        for step in self.summaries:
            if not step.pinned:
                step.covers = without(step.covers, cover.ranges)
                if not step.covers:
                    hidden.append(step)
                elif (
                    step.covers[-1][1] < step.seq
                ):  # it has lost its end, and stands no further back than the rest
                    self.steps.remove(step)
                    step.seq = step.covers[-1][1]
                    self.steps.insert(bisect_left(self.steps, step.seq, key=_seq), step)
        self._remove(hidden)
        return hidden

    def _within(self, ranges: Sequence[tuple[int, int]]) -> Iterator[Step]:
        for first, last in ranges:
            at = bisect_left(self.steps, first, key=_seq)
            while at < len(self.steps) and self.steps[at].seq <= last:
                yield self.steps[at]
                at += 1

    def _remove(self, gone: Iterable[Step]) -> None:
        removed = set()
        for step in gone:
            removed.add(id(step))
            self._touch(step)
            step.units = 0  # so that the uncounted list passes over it
            for shown in step.shown():
                self._displace(shown)
        if removed:
            self.steps = [step for step in self.steps if id(step) not in removed]

    def _insert(self, step: Step) -> None:
        at = bisect_left(self.steps, step.seq, key=_seq)
        self.steps.insert(at, step)
        self._uncounted.append(step)


def _stays(step: Step) -> bool:
    return step.pinned or step.kind in ("instructed", "notice", "summary")


def _inside(seq: int, fact: object) -> bool:
    return isinstance(fact, Expanded) and fact.first <= seq <= fact.last


def _pieced(fact: Clipped, found: tuple[Step, Shown] | None) -> str:
    if found is None:
        return ""
    content = found[1].fact.content
    if isinstance(content, str):
        text = content
    else:
        part = content[fact.part] if 0 <= fact.part < len(content) else None
        text = part.text if isinstance(part, Text) else text_of(content)
    return "".join(piece if isinstance(piece, str) else text[piece[0] : piece[1]] for piece in fact.pieces)


def hidden_by(fact: Dropped | Compacted) -> Ranges:
    """The ranges of seq that a reduction takes out of the view."""
    if isinstance(fact, Dropped):
        return fact.ranges
    return without(((fact.first, fact.last),), tuple((seq, seq) for seq in fact.keep))


def notice(messages: int) -> str:
    """What stands in the place of dropped steps."""
    return f"[foveal: {messages:,} older messages are not shown here; they are kept in the log]"
