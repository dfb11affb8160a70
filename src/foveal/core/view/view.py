"""The view: what the model will see, folded from the log.

1. A step is one utterance with *all* of its results, so no reduction can split a call from its answer.
2. A result goes to the newest open call with its id; a result that no call waits for is kept out and reported.
3. A call without a result is shown with a fixed synthetic one.
4. Instructions, pinned steps and summaries that the provider made are never hidden, whatever a range says.
5. Thinking that is bound to what comes before it (`wire.bound_thinking`) is left out once any of that has changed:
   all of it up to the event that made the change, so that no block between others is missing.
6. The view writes no text that the log could have recorded: placeholders, clips and summaries are texts of the
   events that made them. Only the notice for dropped steps, the words before a pinned rule and the line
   after a superseded message are written here.

Folding n events takes O(n), advancing by one takes O(1); hiding steps takes O(visible). Units are counted on
demand, and only of what is then visible.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import takewhile
from operator import attrgetter
from typing import assert_never

from foveal.core.log.events import (
    BRANCH,
    LEFT_OUT_BY_CALLER,
    Branched,
    BranchEnded,
    Call,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Equipped,
    Erased,
    Event,
    Expanded,
    ForeignSummary,
    Instructed,
    Marked,
    Masked,
    Media,
    ModelSaid,
    Noted,
    Opened,
    Overflowed,
    Pinned,
    Prioritised,
    Priority,
    Reverted,
    Rewound,
    SnapshotTaken,
    Steered,
    Superseded,
    ThinkingLeftOut,
    ToolReturned,
    ToolsLoaded,
    Unknown,
    Used,
    UserSaid,
    calls_of,
)
from foveal.core.log.ranges import Ranges, intersect_ranges, is_within, seqs_outside, subtract_ranges
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.dropped import DroppedMessages
from foveal.core.view.line_index import LineIndex, References
from foveal.core.view.loaded_tools import ToolUse
from foveal.core.view.shown_thinking import ShownThinking
from foveal.core.view.steps import (
    CoveredRange,
    OpenCalls,
    Overlay,
    ShownMessage,
    Slot,
    Step,
    hidden_ranges,
    shown_summary,
)

_seq = attrgetter("seq")


class ShownMedia(dict[tuple[int, int], Media]):
    """Media by seq and part, oldest first. Only the view changes it."""

    def add(self, shown: ShownMessage) -> None:
        """Add the media of a message."""
        content = shown.fact.content
        if not isinstance(content, str):
            for place, part in enumerate(content):
                if isinstance(part, Media):
                    self[shown.seq, place] = part

    def forget(self, shown: ShownMessage, part: int = -1) -> None:
        """Remove one part of a message, or all of them."""
        content = shown.fact.content
        if self and not isinstance(content, str):
            for place in range(len(content)) if part == -1 else (part,):
                self.pop((shown.seq, place), None)


class View:
    """The visible steps in the order of the log, and what is known about them.

    `advance` is the only way to change a view. Other code reads its attributes and calls its queries.
    """

    def __init__(
        self,
        meter: MessageTokens,
        *,
        expansions: tuple[Event, ...] = (),
        reverted_masks: Set[int] = frozenset(),
        reverted_summaries: Ranges = (),
        whole_steps: Mapping[int, int] | None = None,
        thinking_from: int = 0,
    ) -> None:
        self.meter = meter
        self.thinking: ShownThinking = ShownThinking(self._render_again, start=thinking_from)
        self.expansions = expansions
        """The events that show a range as it was said until the next user message."""
        self.reverted_masks = reverted_masks
        """Results whose mask was reverted. They are not masked again unless there is no other way."""
        self.reverted_summaries = reverted_summaries
        """Ranges of reverted summaries. They are not summarised again unless there is no other way."""
        self.whole_steps: Mapping[int, int] = whole_steps or {}
        """Steps that are shown as they were said, whatever reduced them, and the pin that says so."""
        self.steps: list[Step] = []
        self.asides: dict[str, ShownMessage] = {}
        """Instructions that are sent beside the messages, by source."""
        self.unmasked_results: dict[int, Slot] = {}
        """By seq, oldest first."""
        self.media: ShownMedia = ShownMedia()
        self.covered_ranges: list[CoveredRange] = []
        self.orphan_results: list[int] = []
        """Results that no call waited for: in the log, not in the request."""
        self.late_results: list[int] = []
        """Results that came after later messages: they changed a step that had already been shown."""
        self.memory: Step | None = None
        """The step that shows what a memory holds."""
        self.permanent_steps: list[Step] = []
        """Instructions and pinned rules: what no reduction hides."""
        self.result_count: int = 0
        """Non-empty results so far, visible or not."""
        self.turn_count: int = 0
        self.dropped: DroppedMessages = DroppedMessages()
        self.notice: Step | None = None
        """The step that says which messages were dropped."""
        self.unreadable: list[int] = []
        """The events that take back summaries of another provider, which the model cannot read."""
        self.unnamed_results: list[int] = []
        """Results of hidden steps that no summary and no notice names, because they came late."""
        self.superseded: dict[int, int] = {}
        """Messages of the user and pinned rules that no longer hold, and the later message that replaces each; also
        those that are hidden."""
        self.superseded_since: dict[int, int] = {}
        """For the same messages: the event that says so."""
        self.priorities: dict[int, tuple[Priority, int]] = {}
        """The priorities of single messages, and the event that says so; also of those that are hidden."""
        self.open_branches: list[tuple[int, Branched]] = []
        """The branches that have not ended, the outermost first, each with its event."""
        self.tools: tuple[int, Equipped] | None = None
        """The tools on offer, and the event that says so."""
        self.tool_use: ToolUse = ToolUse(self)
        self.line_index: LineIndex = LineIndex()
        """The lines of results and call arguments that are shown as they were said."""
        self.references: References = References()
        self._shown_in: dict[int, tuple[Step, ShownMessage]] = {}
        self._open_calls = OpenCalls()
        self._units = 0
        self._uncounted: list[Step] = []
        self._first_changed = 0
        """The seq before which no step has changed since `take_first_changed` was called."""

    # ── Queries ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def units(self) -> int:
        """Units of all visible steps."""
        for step in self._uncounted:
            if step.units is None:
                self._units += step.measure(self.meter)
        self._uncounted.clear()
        return self._units

    def units_of(self, step: Step) -> int:
        """Return the units of one step, counted only where they are not known."""
        if step.units is None:
            return step.count(self.meter)
        return step.units

    @property
    def aside_units(self) -> int:
        """Units of the system text that is sent beside the messages."""
        return sum(shown.units(self.meter) for shown in self.asides.values())

    @property
    def tool_units(self) -> int:
        """Units of the tools on offer; an empty list is not sent."""
        return 0 if self.tools is None else self.tool_use.units(self.tools, self.meter)

    @property
    def permanent_units(self) -> int:
        """Units of instructions and pinned rules among the messages."""
        return sum(map(self.units_of, self.permanent_steps))

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
        return self._shown_in.keys()

    @property
    def has_drops(self) -> bool:
        """Whether an event of the view's log has dropped messages."""
        return any(cover.level == "dropped" for cover in self.covered_ranges)

    @property
    def hidden_open_calls(self) -> list[tuple[str, int]]:
        """Calls that wait for a result in steps that are not shown: their ids, and the seqs of the steps."""
        hidden = (slot for slot in self._open_calls if slot.step.seq not in self._shown_in)
        return [(slot.call.id, slot.step.seq) for slot in hidden]

    def find(self, seq: int) -> tuple[Step, ShownMessage] | None:
        """Return the visible step that event `seq` is shown in, and the event as shown."""
        return self._shown_in.get(seq)

    def cover_of(self, seq: int) -> CoveredRange | None:
        """Return what hid the event `seq`: the newest cover of its step."""
        for cover in reversed(self.covered_ranges):
            if is_within(seq, cover.ranges):
                return cover
        return None

    def covers_of(self, seqs: Sequence[int]) -> dict[int, CoveredRange]:
        """Return the same for each of many events, in ascending order, that was hidden."""
        found: dict[int, CoveredRange] = {}
        for cover in self.covered_ranges:  # a newer one replaces an older one
            for first, last in cover.ranges:
                inside = seqs[bisect_left(seqs, first) : bisect_right(seqs, last)]
                found.update(dict.fromkeys(inside, cover))
        return found

    @contextmanager
    def holding(self, steps: Iterable[Step]) -> Iterator[None]:
        """Have the ladder leave these steps as they are, as if they were pinned, while it is entered."""
        held = [step for step in steps if not step.is_held]
        for step in held:
            step.hold()
        try:
            yield
        finally:
            for step in held:
                step.let_go()

    def take_first_changed(self) -> int:
        """Return the seq before which no step was added, changed or removed since the last call."""
        first, self._first_changed = self._first_changed, sys.maxsize
        return first

    # ── Folding ──────────────────────────────────────────────────────────────────────────────────────

    def advance(self, event: Event) -> None:
        """Apply the next effective event. For rewinds and reverts, which change earlier ones, see
        `fold.advance`."""
        seq, fact = event.seq, event.fact
        self.thinking.begin_event(seq)
        match fact:
            case ModelSaid():
                self._add_utterance(seq, fact)
            case ToolReturned():
                self._add_result(seq, fact)
            case UserSaid():
                self.turn_count += 1
                self._add(Step(seq, "user", fact))
            case Instructed():
                self._add_instruction(seq, fact)
            case ForeignSummary():
                self._add_foreign_summary(seq, fact)
            case Clipped():
                self._clip(seq, fact)
            case Masked():
                self.apply_masks(seq, fact)
            case Dropped():
                self._drop(seq, fact)
            case Compacted():
                self._compact(seq, fact)
            case Pinned():
                self._pin(seq, fact)
            case Superseded():
                self._supersede(seq, fact)
            case Prioritised():
                self.priorities[fact.target] = (fact.priority, seq)
            case Equipped():
                self.thinking.tools_changed(self.tools and self.tools[1], fact)
                self.tools = (seq, fact)
                self.tool_use.equip(seq, fact)
            case ToolsLoaded():
                self.tool_use.load(seq, fact)
            case Marked():
                self._mark(seq, fact)
            case Expanded():
                for step in self._within(((fact.first, fact.last),)):
                    step.pin(seq)
            case Opened():
                self.thinking.opened(fact)
            case ThinkingLeftOut():
                self.thinking.left_out(fact)
            case Branched():
                self.open_branches.append((seq, fact))
            case BranchEnded():
                self._end_branches(fact.branch)
            case (
                Noted()
                | Used()
                | SnapshotTaken()
                | Erased()
                | Unknown()
                | Overflowed()
                | CompactionFailed()
                | Steered()
            ):
                pass
            case Reverted() | Rewound():
                raise AssertionError("a rewind or a revert changes which events are effective: fold again")
            case _:
                assert_never(fact)

    def _add(self, step: Step) -> None:
        if not step.is_pinned:
            step.pin(self.whole_steps.get(step.seq, _covering_expansion(step.seq, self.expansions)))
        self.steps.append(step)
        self._place(step, step.utterance)
        self._uncounted.append(step)
        self._note_change(step)

    def add_permanent(self, step: Step) -> None:
        """Add a step that no reduction hides."""
        self._add(step)
        self.permanent_steps.append(step)

    def remove_permanent(self, step: Step) -> None:
        """Take such a step out of view."""
        self.permanent_steps.remove(step)
        self._remove([step])

    def _place(self, step: Step, shown: ShownMessage) -> None:
        self._shown_in[shown.seq] = (step, shown)
        self.media.add(shown)

    def _displace(self, shown: ShownMessage) -> None:
        self._shown_in.pop(shown.seq, None)
        self._forget_content(shown)

    def _forget_content(self, shown: ShownMessage) -> None:
        """Forget what a policy or a reference could find in a message that the model no longer sees."""
        self.unmasked_results.pop(shown.seq, None)
        self.media.forget(shown)
        self.line_index.discard(shown.seq)
        self.references.forget(shown.seq)
        self.references.source_changed(shown.seq)

    def invalidate(self, step: Step, *, is_own_thinking_behind: bool = False) -> None:
        """Have the step counted and rendered again, because it has changed."""
        self._render_again(step)
        self._note_change(step, is_own_thinking_behind=is_own_thinking_behind)

    def _render_again(self, step: Step) -> None:
        if step.units is not None:
            self._units -= step.units
            self._uncounted.append(step)
        self._first_changed = min(self._first_changed, step.seq)
        step.invalidate()

    def _note_change(self, step: Step, *, is_own_thinking_behind: bool = False) -> None:
        """Note that a step was added, changed or removed. Its own thinking comes before its results, and is behind
        what changed only if that is said."""
        self._first_changed = min(self._first_changed, step.seq)
        self.thinking.changed(step.seq - is_own_thinking_behind)

    def _add_utterance(self, seq: int, fact: ModelSaid) -> None:
        step = Step(seq, "model", fact)
        for place, call in calls_of(fact.content):
            self._open_calls.add(step.add_call(place, call))
            self.tool_use.count_call(call.name)
        self._add(step)
        self.thinking.add(step)
        if step.slots:
            self.line_index.add(seq, step.utterance)

    def _add_result(self, seq: int, fact: ToolReturned) -> None:
        slot = self._open_calls.take(fact.call_id)
        if slot is None:
            self.orphan_results.append(seq)
            return
        step = slot.step
        shown = ShownMessage(seq, fact)
        step.add_result(slot, shown)
        if step.seq not in self._shown_in:  # the call is hidden by now, and so is its result
            self.unnamed_results.append(seq)
            return
        if step is not self.steps[-1]:
            self.late_results.append(seq)
        if step.kind == "passed":
            self._shown_in[seq] = (step, shown)
            self.invalidate(step)
            return
        self._place(step, shown)
        self.line_index.add(seq, shown)
        self.unmasked_results[seq] = slot
        if fact.content:
            slot.set_ordinal(self.result_count)
            self.result_count += 1
        self.invalidate(step)

    def _add_instruction(self, seq: int, fact: Instructed) -> None:
        if fact.aside:
            self.thinking.system_changed(self.asides.get(fact.source), fact)
            self.asides[fact.source] = ShownMessage(seq, fact)
            return
        if fact.is_memory:
            self._show_memory(seq, fact)
            return
        if fact.replaces is None:
            self.add_permanent(Step(seq, "instructed", fact))
            return
        if (old := self._shown_in.get(fact.replaces)) is not None:  # else it was rewound since
            self._show_newer(old[0], seq, fact)

    def _show_newer(self, step: Step, seq: int, fact: Instructed) -> None:
        """Show a newer version of an instruction in the place of the older one."""
        self._displace(step.utterance)
        step.replace_utterance(ShownMessage(seq, fact))
        self._place(step, step.utterance)
        self.invalidate(step)

    def _show_memory(self, seq: int, fact: Instructed) -> None:
        """Show what a memory holds behind the instructions at the beginning; an empty text takes it away."""
        if self.memory is not None and fact.content:
            self._show_newer(self.memory, seq, fact)
        elif self.memory is not None:
            self.remove_permanent(self.memory)
            self.memory = None
        elif fact.content:
            leading = list(takewhile(lambda step: step.kind == "instructed", self.steps))
            self.show_instruction(seq, fact, place=leading[-1].seq if leading else 0)

    def _add_foreign_summary(self, seq: int, fact: ForeignSummary) -> None:
        """Add a summary of the provider. What it stands for stays in the request, and no longer counts."""
        for step in self.steps:
            if step.is_covered_by(fact):
                self._units -= step.units or 0
                for shown in step.shown_messages():
                    self._forget_content(shown)
                step.pass_by()
        if self.notice is not None:  # the provider's summary stands for what was dropped before it, too
            self._remove([self.notice])
        self.notice, self.dropped, self.unnamed_results = None, DroppedMessages(), []
        self._add(Step(seq, "foreign", fact))
        self.permanent_steps = [s for s in (*self.permanent_steps, self.steps[-1]) if s.kind != "passed"]

    def _clip(self, seq: int, fact: Clipped) -> None:
        if (found := self._shown_in.get(fact.target)) is not None and fact.again >= 0:
            self._show_again(seq, fact, *found)
        elif found is not None:
            text = found[1].clipped_text(fact)
            self._overlay(fact.target, fact.part, Overlay(text, "clipped", seq, fact.rule, fact.sources))

    def _show_again(self, seq: int, fact: Clipped, step: Step, shown: ShownMessage) -> None:
        if step.kind == "passed":
            return
        shown.show_again(seq, fact)
        self.line_index.discard(shown.seq)
        self.line_index.add(shown.seq, shown)
        self.invalidate(step)

    def _overlay(self, target: int, part: int, overlay: Overlay) -> bool:
        """Show a text in place of a message or a part of it; return whether it is shown."""
        found = self._shown_in.get(target)
        if found is None:  # hidden, rewound or never there: nothing to show differently
            return False
        step, shown = found
        if step.kind in ("foreign", "passed"):
            return False  # the provider's own summary, or what it stands for: both are sent as they came
        if step.seq in self.whole_steps or any(step.pin_seq == event.seq for event in self.expansions):
            return False  # the step is pinned whole, or expanded: it is shown as it was said
        content = shown.fact.content
        if part != -1 and (isinstance(content, str) or not 0 <= part < len(content)):
            return False  # no such part: the log was edited outside of Foveal
        if overlay.level == "clipped" and overlay.text == shown.original_text(part):
            shown.remove_overlay(part)  # the clip keeps everything
            self.references.set(target, part, ())
        else:
            shown.add_overlay(part, overlay)
            are_shown = all(source in self._shown_in for source in overlay.sources)
            self.references.set(target, part, overlay.sources, are_shown=are_shown)
            self.references.source_changed(target)
        if overlay.level == "masked":
            self.media.forget(shown, part)
            if part == -1:
                self.unmasked_results.pop(target, None)
                self.references.forget(target)
        self.line_index.discard(target)
        if step.slots:
            self.line_index.add(target, shown)
        self.invalidate(step, is_own_thinking_behind=shown is step.utterance)
        return True

    def _mark(self, seq: int, fact: Marked) -> None:
        if (found := self._shown_in.get(fact.target)) is not None:
            before = found[1].fact
            found[1].mark(seq, fact.marks)
            self._render_again(found[0])
            self.thinking.fields_changed(before, found[1].fact, place=found[0].seq)

    def _pin(self, seq: int, fact: Pinned) -> None:
        if fact.target is not None and (found := self._shown_in.get(fact.target)) is not None:
            found[0].pin(seq)
        if fact.text:
            rule = Instructed(content=f"Pinned rule: {fact.text}", source="pinned")
            step = Step(seq, "pinned", rule)
            step.pin(seq)
            self.add_permanent(step)

    def _supersede(self, seq: int, fact: Superseded) -> None:
        self.superseded[fact.target] = fact.by
        self.superseded_since[fact.target] = seq
        found = self._shown_in.get(fact.target)
        if found is not None and found[0].kind not in ("foreign", "passed"):  # a fold shows the hidden again
            found[1].supersede(seq, fact.by)
            self.invalidate(found[0])

    def _drop(self, seq: int, fact: Dropped) -> None:
        hidden = self._hide(CoveredRange("dropped", seq, hidden_ranges(fact), fact.rule))
        named = self._name_results(fact.ranges) if fact.names_ranges else 0
        if fact.reason == LEFT_OUT_BY_CALLER or (not hidden and not named):
            return
        messages = sum(step.message_count for step in hidden) + named
        self.dropped.add(fact, messages)
        if not hidden:  # only late results: the notice goes before everything that was said
            hidden = [step for step in self.steps if step.kind != "instructed"][:1]
        places = [step.seq for step in (*hidden[:1], self.notice) if step is not None]
        self.show_notice(min(places, default=seq), owner=seq)

    def _name_results(self, ranges: Ranges) -> int:
        """Take late results in these ranges off the list of unnamed ones; return how many there were."""
        before = len(self.unnamed_results)
        self.unnamed_results = seqs_outside(self.unnamed_results, ranges)
        return before - len(self.unnamed_results)

    def show_notice(self, place: int, *, owner: int) -> None:
        """Show the notice that says which messages were dropped, as it is since the event `owner`."""
        if self.notice is not None:
            self._remove([self.notice])
            self.notice = None
        if self.dropped.messages:
            fact = UserSaid(content=self.dropped.notice())
            # The notice is no event of the log, so its seq is negative.
            self.notice = Step(place, "notice", fact, event_seq=-1 - owner)
            self._insert(self.notice)

    def apply_masks(self, seq: int, fact: Masked | Compacted) -> bool:
        """Show the placeholders of a fact in place of what they stand for; return whether any is shown."""
        overlays = (
            (mask.target, mask.part, Overlay(mask.text, "masked", seq, fact.rule)) for mask in fact.masks
        )
        return sum(self._overlay(*overlay) for overlay in overlays) > 0

    def _end_branches(self, first: int) -> None:
        """End the branch that began with event `first`, and those that began inside."""
        self.open_branches = [(seq, fact) for seq, fact in self.open_branches if seq < first]

    def _compact(self, seq: int, fact: Compacted) -> None:
        if fact.takes_item_back:
            self._show_instead(seq, fact)
            return
        if fact.reason == BRANCH:  # a rewind may have taken back the event that ended the branch
            self._end_branches(fact.first)
        is_record = self.apply_masks(seq, fact)
        ranges = hidden_ranges(fact)
        places = [high for step in self.summaries for _, high in intersect_ranges(step.covers, ranges)]
        hidden = self._hide(CoveredRange("summarised", seq, ranges, fact.rule))
        places += [step.seq for step in hidden]
        # A record of a cut stands behind the steps that stay without their results, and the result of a branch is
        # shown even if nothing was said inside.
        if is_record or (fact.reason == BRANCH and not places):
            places = [fact.last]
        if not places:
            return
        self._name_results(ranges)
        if self.dropped.cover(fact.first, fact.last) and self.notice is not None:
            self.show_notice(self.notice.seq, owner=seq)
        messages = sum(step.message_count for step in hidden)
        staying = (
            shown.seq for step in self._within(ranges) if not step.covers for shown in step.shown_messages()
        )
        covers = subtract_ranges(ranges, tuple((other, other) for other in staying))
        self.show_summary(seq, fact, place=max(places), messages=messages, covers=covers)

    def _show_instead(self, seq: int, fact: Compacted) -> None:
        """Show a record in the place of a summary that the model cannot read; without a text, nothing."""
        self.note_unreadable(seq)
        if fact.summary:
            messages = sum(last - first + 1 for first, last in fact.written_from)
            self.show_summary(seq, fact, place=fact.last, messages=max(messages, 1))

    def note_unreadable(self, seq: int) -> None:
        """Note that the event `seq` takes back a summary that the model cannot read."""
        self.unreadable.append(seq)

    def show_summary(
        self, seq: int, fact: Compacted, *, place: int, messages: int, covers: Ranges | None = None
    ) -> None:
        """Insert a summary; by default it stands for all that the compaction hides."""
        ranges = hidden_ranges(fact) if covers is None else covers
        content = shown_summary(fact)
        if isinstance(content, ForeignSummary):  # a provider reads nothing in front of its own summary
            said = (step.seq for step in self.steps if step.kind != "instructed")
            place = min(place, next(said, place))
        summary = Step(place, "summary", content, event_seq=seq, message_count=messages, covers=ranges)
        self._place(summary, summary.utterance)
        self._insert(summary)

    def show_instruction(self, seq: int, fact: Instructed, *, place: int) -> None:
        """Insert an instruction at the place of the older version that it replaces; what a memory holds, behind the
        instruction at that place."""
        step = Step(place, "instructed", fact, event_seq=seq)
        self._place(step, step.utterance)
        self._insert(step)
        self.permanent_steps.append(step)
        if fact.is_memory:
            self.memory = step

    def pin_step(self, seq: int, pin_seq: int) -> None:
        """Pin the step that shows event `seq`, as the event `pin_seq` says."""
        self._shown_in[seq][0].pin(pin_seq)

    def sort_tied(self, seqs: Sequence[int]) -> None:
        """Sort steps at the same place as `seqs` says: the seqs of their events, -1 for the notice."""
        self._first_changed = 0
        ranks = {seq: rank for rank, seq in enumerate(seqs)}
        self.steps.sort(key=lambda step: (step.seq, ranks.get(max(step.utterance.seq, -1), -1)))

    def expect_result(self, call_id: str, seq: int) -> None:
        """Add a call of a hidden step that waits for its result, which will be hidden too."""
        call = Call(id=call_id, name="", arguments="")
        self._open_calls.add(Step(seq, "model", ModelSaid(content=(call,))).add_call(0, call))

    def restore_counts(
        self,
        *,
        result_count: int,
        turn_count: int,
        dropped: DroppedMessages,
        unnamed_results: Iterable[int],
        ordinals: Mapping[int, int],
        orphan_results: Iterable[int],
    ) -> None:
        """Set what a checkpoint had counted in events that the view no longer needs."""
        self.result_count, self.turn_count = result_count, turn_count
        self.dropped, self.unnamed_results = dropped, list(unnamed_results)
        self.orphan_results = list(orphan_results)
        for slot in (slot for step in self.steps for slot in step.slots):
            if slot.result is not None:
                slot.set_ordinal(ordinals.get(slot.result.seq, slot.ordinal))

    def _hide(self, cover: CoveredRange) -> list[Step]:
        """Take the steps in a cover's ranges out of view. A summary goes when newer covers have taken over every
        event that it stood for."""
        self.covered_ranges.append(cover)
        hidden = [step for step in self._within(cover.ranges) if not step.is_permanent]
        for step in self.summaries:
            if step.is_pinned:
                continue
            moved = step.release(cover.ranges)
            if not step.covers:
                hidden.append(step)
            elif moved:
                self.steps.remove(step)
                self.steps.insert(bisect_left(self.steps, step.seq, key=_seq), step)
                self._note_change(step)
        self._remove(hidden)
        late = (shown.seq for step in hidden if step.kind != "summary" for shown in step.shown_messages())
        self.unnamed_results += seqs_outside(late, cover.ranges)
        return hidden

    def _within(self, ranges: Sequence[tuple[int, int]]) -> Iterator[Step]:
        for first, last in ranges:
            at = bisect_left(self.steps, first, key=_seq)
            while at < len(self.steps) and self.steps[at].seq <= last:
                yield self.steps[at]
                at += 1

    def _remove(self, gone: Sequence[Step]) -> None:
        removed = {id(step) for step in gone}
        self.thinking.remove(removed)
        for step in gone:
            self._note_change(step, is_own_thinking_behind=True)
            if step.units is not None:
                self._units -= step.units
            step.retire()
            for shown in step.shown_messages():
                self._displace(shown)
        if removed:
            self.steps = [step for step in self.steps if id(step) not in removed]

    def _insert(self, step: Step) -> None:
        """Insert a step in front of others at its place; what a memory holds, behind an instruction there."""
        at = bisect_left(self.steps, step.seq, key=_seq)
        if step.is_memory and at < len(self.steps) and self.steps[at].kind == "instructed":
            at += self.steps[at].seq == step.seq
        self.steps.insert(at, step)
        self._uncounted.append(step)
        self._note_change(step, is_own_thinking_behind=True)


def _covering_expansion(seq: int, expansions: Iterable[Event]) -> int:
    """Return the first of these expansions whose range contains a step; -1 if there is none."""
    for event in expansions:
        if isinstance(event.fact, Expanded) and event.fact.first <= seq <= event.fact.last:
            return event.seq
    return -1
