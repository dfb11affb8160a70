"""Thinking in a view: which of it is shown, and from where on it is left out.

Some models bind thinking to what comes before it (`wire.bound_thinking`). Once something in front of shown thinking
has changed, all thinking from before the event that made the change is left out: what remains of the chain has no
gap, and it is the same in every request until the next change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from typing import Any

from foveal.core.log.events import (
    Call,
    Equipped,
    Instructed,
    Opened,
    Text,
    ThinkingLeftOut,
    extras,
    parts,
    unraw,
)
from foveal.core.tokens.message_tokens import CountedFact, MessageTokens
from foveal.core.view.steps import ShownMessage, Step
from foveal.core.wire.bound_thinking import ThinkingBinding, is_bound_utterance
from foveal.core.wire.cache_marks import strip_cache_marks


class ShownThinking:
    """The thinking that one view shows."""

    def __init__(self, render_again: Callable[[Step], None], *, start: int = 0) -> None:
        """`render_again` is called for each step that is shown without its thinking from now on."""
        self._render_again = render_again
        self.start: int = start
        """The event before which thinking is left out; 0 if there is none."""
        self.binding: ThinkingBinding = ThinkingBinding()
        """What the log says about the binding of thinking."""
        self.was_refused: bool = False
        """Whether a provider has refused thinking of this conversation."""
        self._steps: dict[int, Step] = {}
        """The steps whose thinking is shown, by seq, oldest first."""
        self._event = -1
        """The newest event."""
        self._is_restoring = False

    @property
    def is_bound(self) -> bool:
        """Whether the model binds thinking to what comes before it."""
        return self.binding.is_bound

    @property
    def seqs(self) -> Collection[int]:
        """The utterances whose thinking is shown, oldest first."""
        return self._steps.keys()

    def units_after(self, place: int, meter: MessageTokens) -> tuple[int, int]:
        """Return the units of the thinking that a change at a place would leave out, and the first step that has
        any; 0 and the place if there is none."""
        if not self._steps or not self.is_bound or next(reversed(self._steps)) <= place:
            return 0, place
        units = sum(step.utterance.thinking_units(meter) for step in self._steps.values())
        return units, min(place, next(iter(self._steps)))

    def begin_event(self, seq: int) -> None:
        """Take what follows as changes that this event makes."""
        self._event = seq

    def add(self, step: Step) -> None:
        """Add the newest utterance, if it has thinking."""
        if is_bound_utterance(step.utterance.fact):
            if step.seq < self.start:
                step.utterance.leave_out_thinking()
            else:
                self._steps[step.seq] = step

    def remove(self, gone: Set[int]) -> None:
        """Forget the steps with these `id()`s, because they are not shown any more."""
        if self._steps:
            self._steps = {seq: step for seq, step in self._steps.items() if id(step) not in gone}

    # ── Changes ──────────────────────────────────────────────────────────────────────────────────────

    def changed(self, place: int) -> None:
        """Take in that something at a place has changed; -1 is in front of all messages."""
        if self._steps and self.is_bound and next(reversed(self._steps)) > place:
            self._leave_out()

    def system_changed(self, before: ShownMessage | None, fact: Instructed) -> None:
        """Take in a system text beside the messages."""
        if self._steps and (before.fact.content if before else "") != fact.content:
            self.changed(-1)

    def tools_changed(self, before: Equipped | None, fact: Equipped) -> None:
        """Take in the tools on offer."""
        if self._steps and _unmarked_tools(before) != _unmarked_tools(fact):
            self.changed(-1)

    def fields_changed(self, before: CountedFact, fact: CountedFact, *, place: int) -> None:
        """Take in other fields around the content of a message. Thinking is not bound to cache marks."""
        if self._steps and _unmarked_extras(before) != _unmarked_extras(fact):
            self.changed(place)

    def opened(self, fact: Opened) -> None:
        """Take in which model reads the requests from now on."""
        before, self.binding = self.binding, self.binding.after(fact)
        if before.ends_with(self.binding):
            self._leave_out()

    def left_out(self, fact: ThinkingLeftOut) -> None:
        """Take in that all thinking is left out."""
        self.binding = self.binding.after(fact)
        self.was_refused = self.was_refused or bool(fact.problem)
        self._leave_out()

    def _leave_out(self) -> None:
        """Show no thinking from before the newest event."""
        if self._is_restoring:
            return
        self.start = max(self.start, self._event)
        steps, self._steps = self._steps, {}
        for step in steps.values():
            step.utterance.leave_out_thinking()
            self._render_again(step)

    # ── Checkpoints ──────────────────────────────────────────────────────────────────────────────────

    def begin_restoring(self) -> None:
        """Take the next changes as those that a checkpoint knows: no thinking is left out because of them."""
        self._is_restoring = True

    def end_restoring(self, binding: ThinkingBinding, *, start: int, was_refused: bool) -> None:
        """Set what a checkpoint knew. `start` is -1 if it knew nothing: then all thinking so far may be invalid."""
        self._is_restoring, self.was_refused = False, was_refused
        if start >= 0:
            self.binding, self.start = binding, start
        elif self.is_bound:
            self._event += 1
            self._leave_out()


def _unmarked_tools(fact: Equipped | None) -> Any:
    """Return the tools on offer without cache marks; an empty list if there are none."""
    return [] if fact is None else strip_cache_marks(unraw(fact.tools))


def _unmarked_extras(fact: CountedFact) -> list[Any]:
    """Return the extra fields of a message and its parts, without cache marks."""
    given = [part.extra for part in parts(fact.content) if isinstance(part, Text | Call)]
    return [strip_cache_marks(extras(extra)) for extra in (*given, fact.extra)]
