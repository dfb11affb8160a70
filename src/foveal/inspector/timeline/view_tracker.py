"""Follows the view of a log event by event, and says what each event changed.

1. The engine folds the log; `add` compares its view with the one before and returns the changes, so that all of
   them in order give the view at any point of the log.
2. Messages that are already hidden get no further change when a newer reduction covers them too: a log that is
   reduced often would have as many changes as messages times reductions. `ReductionCard.ranges` has them.
3. An event that adds or replaces single messages costs O(1), a reduction of ranges O(view), and one that changes
   which earlier events are effective O(log), as the fold itself does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from msgspec import UNSET, Raw, UnsetType

from foveal.core.engine.event_status import instruction_category, result_category, step_category
from foveal.core.log.events import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    Content,
    Dropped,
    Event,
    Expanded,
    ForeignSummary,
    Instructed,
    Marked,
    Masked,
    ModelSaid,
    Pinned,
    Superseded,
    Text,
    ToolReturned,
    UserSaid,
    handle,
)
from foveal.core.log.ranges import seqs_outside
from foveal.core.view.steps import (
    NO_RESULT,
    PASSED_RULE,
    ShownMessage,
    Step,
    foreign_summary_seq,
    synthetic_units,
)
from foveal.core.view.view import View
from foveal.core.wire.cache_marks import count_cache_marks_in_json
from foveal.core.wire.event_text import original_text
from foveal.inspector.timeline.event_sentences import preview_text
from foveal.inspector.timeline.request_rows import key_seq
from foveal.inspector.timeline.timeline import ViewChange

_at = attrgetter("at")
_IN_VIEW: Final = ("full", "clipped", "masked")
_MESSAGES: Final = (UserSaid, ModelSaid, ToolReturned, Instructed)


_StepState: TypeAlias = tuple[int, int, str, bool]
"""Version, place and kind of a step, and whether it is the newest: it shows the same while these stay."""


class _Shown(NamedTuple):
    """How the request shows a message."""

    level: str
    category: str
    units: int
    by: int = -1
    rule: str = ""
    preview: str = ""
    place: int = -1


class ViewTracker:
    """The view of a growing log."""

    def __init__(self, log: Sequence[Event], view: View, effective: Iterable[Event] = ()) -> None:
        """`log` is the list that grows, `view` the view of it."""
        self._log = log
        self._view = view
        self._meter = view.meter
        self.effective: set[int] = {event.seq for event in effective}
        """The events that are effective."""
        self._shown: dict[str, _Shown] = {}
        """The state of every message that was ever in the view, by key."""
        self._in_view: dict[str, None] = {}
        """The keys of those that are in it now."""
        self._open_steps: dict[int, Step] = {}
        """Steps with calls that wait for a result, by seq: no message came after them."""
        self._visible_states: dict[int, tuple[tuple[object, ...], _Shown]] = {}
        """How messages are shown, by seq, each with what that was made of: a cut changes few of them."""
        self._step_items: dict[Step, tuple[_StepState, tuple[tuple[str, _Shown], ...]]] = {}
        """What the steps of the view showed at the last comparison: most are as they were."""
        self.marked: dict[int, None] = {}
        """Messages with a cache mark of the client, by seq, in the order in which they got it."""

    def add(
        self, event: Event, view: View, *, folded_again: Iterable[Event] | None = None
    ) -> list[ViewChange]:
        """Return what the newest event of the log changed; `view` is the one after it. `folded_again` are the
        effective events if the event changed which these are."""
        self._view = view
        if folded_again is not None:
            self.effective = {other.seq for other in folded_again}
            self._open_steps = {step.seq: step for step in view.steps if step.has_open_call}
            return self._compare(event, folded_again=True)
        self.effective.add(event.seq)
        self._follow_marks(event)
        touched = self._touched(event)
        if touched is None:
            return self._compare(event)
        return [change for key in touched if (change := self._change(event.seq, key)) is not None]

    def newest_request(self) -> list[ViewChange]:
        """Return how the newest request shows each message of the log.

        A change has the place of its message as `at`. What took a message out of the conversation is not known.
        """
        now = dict(self._items())
        changes = [_view_change(key_seq(key), key, state) for key, state in now.items()]
        for event in self._log:
            key = handle(event.seq)
            if key not in now and isinstance(event.fact, _MESSAGES):
                state = self._hidden(event.seq)
                by = -1 if state.level == "removed" else state.by
                changes.append(_view_change(event.seq, key, state._replace(by=by)))
        return sorted(changes, key=_at)

    def _touched(self, event: Event) -> list[str] | None:
        """Return the keys of the messages that an event can have changed; None if it can have changed any."""
        fact, seq = event.fact, event.seq
        match fact:
            case UserSaid():
                return [handle(seq), *self._missing_results()]
            case ModelSaid():
                missing = self._missing_results()
                self._note_open(seq)
                return [handle(seq), *missing]
            case ToolReturned():
                return [handle(seq), *self._answered(seq)]
            case Instructed() if not fact.is_beside_history:
                return [handle(seq), *self._missing_results()]
            case Clipped() | Superseded():
                return [handle(fact.target)]
            case Masked():
                return list(dict.fromkeys(handle(mask.target) for mask in fact.masks))
            case Instructed() | Dropped() | Compacted() | Pinned() | Expanded() | ForeignSummary():
                return None
            case _:
                return []

    def _follow_marks(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, Marked):
            self.marked.pop(fact.target, None)
            if any(_is_mark(mark.extra) for mark in fact.marks):
                self.marked[fact.target] = None
        elif isinstance(fact, _MESSAGES) and has_mark(fact.content, fact.extra):
            self.marked[event.seq] = None

    # ── Calls without results ────────────────────────────────────────────────────────────────────────

    def _note_open(self, seq: int) -> None:
        found = self._view.find(seq)
        if found is not None and found[0].has_open_call:
            self._open_steps[seq] = found[0]

    def _missing_results(self) -> list[str]:
        """Return the keys of the synthetic results that the next request shows for the first time: a message after
        an open call means that its result is not awaited any more, or will come late."""
        keys = [key for step in self._open_steps.values() for key, _ in _missing(step)]
        self._open_steps = {}
        return keys

    def _answered(self, seq: int) -> list[str]:
        """Return the keys of synthetic results that a result may have replaced."""
        found = self._view.find(seq)
        if found is None:
            return []
        step = found[0]
        if not step.has_open_call:
            self._open_steps.pop(step.seq, None)
        keys = (
            f"m{step.seq}.{place}" for place, slot in enumerate(step.all_slots) if slot.result is not None
        )
        return [key for key in keys if key in self._shown]

    # ── Changes ──────────────────────────────────────────────────────────────────────────────────────

    def _change(self, at: int, key: str) -> ViewChange | None:
        """Return the change of one message, None if it is shown as before."""
        now = self._state(key)
        if now is None or self._shown.get(key) == now:
            return None
        self._record(key, now)
        return _view_change(at, key, now)

    def _state(self, key: str) -> _Shown | None:
        """Return how the request shows one message; None for one that was never in it."""
        if key.startswith("m"):
            seq, _, place = key[1:].partition(".")
            found = self._view.find(int(seq))
            slot = found[0].all_slots[int(place)] if found is not None else None
            if slot is not None and slot.result is None:
                return self._no_result(found[0].seq if found else -1)
            return _gone(self._shown[key]) if key in self._shown else None
        seq_shown = int(key[1:])
        found = self._view.find(seq_shown)
        if found is not None:
            return self._visible(*found)
        return self._hidden(seq_shown)

    def _visible(self, step: Step, shown: ShownMessage) -> _Shown:
        """Return how the request shows a message of a step that is in view."""
        late = self._view.late_results
        is_late = bool(late) and step is not self._view.steps[-1] and shown.seq in late
        overlays = tuple(shown.overlays.values()) if shown.overlays else ()
        is_whole = not shown.leaves_out_thinking
        made_of = (step, step.kind, shown.fact, overlays, shown.superseded_by, shown.loads, is_whole, is_late)
        known = self._visible_states.get(shown.seq)
        if known is not None and known[0] == made_of and step.kind != "passed":
            return known[1]
        state = self._made_visible(step, shown, is_late=is_late)
        self._visible_states[shown.seq] = made_of, state
        return state

    def _made_visible(self, step: Step, shown: ShownMessage, *, is_late: bool) -> _Shown:
        is_utterance = shown is step.utterance
        category = step_category(step) if is_utterance else result_category(shown)
        place = step.seq if (is_utterance and step.seq != shown.seq) or (not is_utterance and is_late) else -1
        if step.kind == "passed":
            return _Shown("summarised", category, 0, foreign_summary_seq(self._view.steps), PASSED_RULE)
        if shown.is_as_said:
            preview = (
                preview_text(original_text(shown.fact))
                if step.kind in ("summary", "notice", "pinned", "foreign")
                else ""
            )
            return _Shown("full", category, shown.units(self._meter), preview=preview, place=place)
        by, rule = shown_because(shown)
        preview = preview_text(original_text(shown.as_shown()))
        return _Shown(shown.level, category, shown.units(self._meter), by, rule, preview, place)

    def _no_result(self, place: int) -> _Shown:
        return _Shown("full", "placeholders", synthetic_units(self._meter), preview=NO_RESULT, place=place)

    def _hidden(self, seq: int) -> _Shown:
        """Return the state of a message that is not in the request."""
        event = self._log[seq - self._log[0].seq]
        category = ((before := self._shown.get(handle(seq))) and before.category) or fact_category(event.fact)
        if seq not in self.effective:
            return _Shown("removed", category, 0, self._log[-1].seq, "taken back")
        if seq in self._view.orphan_results:
            return _Shown("dropped", category, 0, rule="a result that no call waits for")
        cover = self._view.cover_of(seq)
        if cover is not None:
            return _Shown(cover.level, category, 0, cover.owner, cover.rule)
        if isinstance(event.fact, ToolReturned):
            return _Shown("dropped", category, 0, rule="its call is not shown")
        return _Shown("removed", category, 0, self._log[-1].seq, "replaced by a newer one")

    def _compare(self, event: Event, *, folded_again: bool = False) -> list[ViewChange]:
        """Return the changes of an event that can have changed any message in view or, if the log was folded
        again, any message at all."""
        now = dict(self._items())
        newest = self._view.steps[-1] if self._view.steps else None
        if newest is not None and newest.has_open_call:  # what came after it may be hidden now
            self._open_steps[newest.seq] = newest
        gone = [key for key in (self._shown if folded_again else self._in_view) if key not in now]
        covered = self._newly_covered(event.seq, gone)
        states = [*((key, covered.get(key) or self._gone_state(key)) for key in gone), *now.items()]
        if isinstance(event.fact, _MESSAGES) and handle(event.seq) not in now:
            states.append((handle(event.seq), self._hidden(event.seq)))
        changes: list[ViewChange] = []
        for key, state in states:
            before = self._shown.get(key)
            if before is not state and before != state:
                self._record(key, state)
                changes.append(_view_change(event.seq, key, state))
        return changes

    def _newly_covered(self, seq: int, gone: Sequence[str]) -> dict[str, _Shown]:
        """Return the states of the messages that event `seq` has hidden, if it is a reduction of ranges."""
        cover = self._view.covered_ranges[-1] if self._view.covered_ranges else None
        if cover is None or cover.owner != seq:
            return {}
        seqs = [int(key[1:]) for key in gone if key[0] == "e"]
        outside = set(seqs_outside(seqs, cover.ranges))
        return {
            (key := handle(each)): _Shown(cover.level, self._shown[key].category, 0, seq, cover.rule)
            for each in seqs
            if each not in outside
        }

    def _record(self, key: str, state: _Shown) -> None:
        self._shown[key] = state
        if state.level in _IN_VIEW:
            self._in_view[key] = None
        else:
            self._in_view.pop(key, None)

    def _gone_state(self, key: str) -> _Shown:
        """Return the state of a message that was in view once and is not now."""
        before = self._shown[key]
        if key[0] != "e":
            return _gone(before)
        seq = int(key[1:])
        is_removed = before.level == "removed"
        if seq not in self.effective:
            return before if is_removed else self._hidden(seq)
        is_covered = before.level not in _IN_VIEW and (before.by < 0 or before.by in self.effective)
        return before if is_covered and not is_removed else self._hidden(seq)

    def _items(self) -> Iterator[tuple[str, _Shown]]:
        """Yield everything in the request but the tools."""
        view = self._view
        for shown in view.asides.values():
            category, units = instruction_category(shown.fact), shown.units(self._meter)
            yield handle(shown.seq), _Shown("full", category, units, place=0)
        newest = view.steps[-1] if view.steps else None
        known, self._step_items = self._step_items, {}
        for step in view.steps:
            state = (step.version, step.seq, step.kind, step is newest)
            before = None if view.late_results or step.kind == "passed" else known.get(step)
            if before is None or before[0] != state:
                before = state, tuple(self._items_of(step, is_newest=step is newest))
            self._step_items[step] = before
            yield from before[1]

    def _items_of(self, step: Step, *, is_newest: bool) -> Iterator[tuple[str, _Shown]]:
        if step is self._view.notice:
            notice = self._visible(step, step.utterance)
            yield f"n{-1 - step.utterance.seq}", notice._replace(place=step.seq)
            return
        for shown in step.shown_messages():
            yield handle(shown.seq), self._visible(step, shown)
        if not is_newest:
            for key, _ in _missing(step):
                yield key, self._no_result(step.seq)


def shown_because(shown: ShownMessage) -> tuple[int, str]:
    """Return the event because of which a message is not shown as it was said, and the rule; -1 and "" if it is."""
    newest = max((shown.overlays or {}).values(), key=lambda overlay: overlay.owner, default=None)
    by, rule = (-1, "") if newest is None else (newest.owner, newest.rule)
    if newest is None and shown.again >= 0:
        by, rule = shown.again_since, f"shows {handle(shown.again)} again"
    if shown.superseded_by >= 0:
        by = shown.superseded_since if newest is None else by
        rule = "; ".join(filter(None, (rule, f"replaced by {handle(shown.superseded_by)}")))
    return by, rule


def _missing(step: Step) -> Iterator[tuple[str, Call]]:
    for place, slot in enumerate(step.all_slots):
        if slot.result is None:
            yield f"m{step.seq}.{place}", slot.call


def _gone(before: _Shown) -> _Shown:
    return _Shown("removed", before.category, 0, rule="no longer needed")


def _view_change(at: int, key: str, shown: _Shown) -> ViewChange:
    return ViewChange(
        at=at,
        key=key,
        level=shown.level,
        category=shown.category,
        units=shown.units,
        by=shown.by,
        rule=shown.rule,
        preview=shown.preview,
        place=shown.place,
    )


def fact_category(fact: AnyFact) -> str:
    """Return the part of the request that a fact belongs to; "" if it is never sent."""
    match fact:
        case UserSaid():
            return "user"
        case ModelSaid():
            return "assistant"
        case ToolReturned():
            return "results"
        case Instructed():
            return instruction_category(fact)
        case Compacted() | ForeignSummary():
            return "summaries"
        case Pinned():
            return "pinned" if fact.text else ""
        case _:
            return ""


def has_mark(content: Content, extra: Raw | UnsetType) -> bool:
    """Return whether a message carries a cache mark of the client."""
    if _is_mark(extra):
        return True
    if isinstance(content, str):  # most messages
        return False
    return any(_is_mark(part.extra) for part in content if isinstance(part, Text | Call))


def _is_mark(extra: Raw | UnsetType) -> bool:
    return extra is not UNSET and count_cache_marks_in_json(bytes(extra)) > 0
