"""What a policy of the application's own sees: the view of one request, with its methods that make reductions.

`PolicyView` shows steps and results with texts, sizes, and whether they may go. Nothing of it can be changed. Its
methods return the next reduction, which is legal: `hide` results, `summarise` or `drop` steps, or what settings
would do (`by_settings`). `PolicyMoves` makes these reductions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import cached_property
from typing import Protocol

from foveal.core.compaction.plan import Plan
from foveal.core.log.events import Dropped, Masked, handle, text_of
from foveal.core.models.budget import Budget
from foveal.core.policies.moment import Decision, Moment
from foveal.core.view.steps import Level, Slot, Step, StepKind
from foveal.core.view.view import View


class PolicySettings(Protocol):
    """A policy as far as a view knows it: an object of `foveal.Policy`."""

    @property
    def name(self) -> str: ...
    @property
    def ladder(self) -> str: ...


class PolicyMoves(Protocol):
    """What makes the reductions of a view."""

    def maskable(self) -> Set[int]: ...
    def removable(self) -> Set[int]: ...
    def hide(self, slots: Sequence[Slot]) -> Masked | None: ...
    def summarise(self, steps: Set[int], focus: str) -> Plan | None: ...
    def drop(self, steps: Set[int]) -> Dropped | None: ...
    def by_settings(self, policy: PolicySettings, budget: Budget, moment: Moment) -> Decision: ...


class PolicyResult:
    """A tool result as a policy sees it.

    Examples:
        ```python
        from foveal.policies import PolicyResult

        def is_old_log(result: PolicyResult) -> bool:
            return result.tool == "read_log" and result.can_hide
        ```

    Args:
        view: The view that it is of.
        slot: The call with its result.
    """

    __slots__ = ("_slot", "_view")

    def __init__(self, view: PolicyView, slot: Slot) -> None:
        self._view = view
        self._slot = slot

    def __repr__(self) -> str:
        return f"<PolicyResult {self.handle} of {self.tool}: {self.units:,} units, {self.level}>"

    @property
    def seq(self) -> int:
        """The seq of its event."""
        assert self._slot.result is not None
        return self._slot.result.seq

    @property
    def handle(self) -> str:
        """The handle of its event, such as `e4`."""
        return handle(self.seq)

    @property
    def tool(self) -> str:
        """The name of the tool that was called."""
        return self._slot.call.name

    @property
    def arguments(self) -> str:
        """The arguments of the call, as the model wrote them."""
        return self._slot.call.arguments

    @property
    def text(self) -> str:
        """The text as the tool returned it, whatever is shown of it."""
        assert self._slot.result is not None
        return text_of(self._slot.result.fact.content)

    @property
    def units(self) -> int:
        """The units that it takes as it is shown."""
        assert self._slot.result is not None
        return self._slot.result.units(self._view._view.meter)

    @property
    def level(self) -> Level:
        """How it is shown: `full`, `clipped` or `masked`."""
        assert self._slot.result is not None
        return self._slot.result.level

    @property
    def has_failed(self) -> bool:
        """Whether it reports a failure."""
        assert self._slot.result is not None
        return self._slot.result.has_failed()

    @property
    def can_hide(self) -> bool:
        """Whether `hide` may take it. Not so: pinned results, those of the newest step, the first and the newest by
        the settings `keep_first` and `keep_last`, those of `exempt_tools`, failures of a tool that has not
        succeeded since, and what is hidden already."""
        return id(self._slot) in self._view._maskable


class PolicyStep:
    """A step as a policy sees it: one message with all results of its calls.

    Examples:
        ```python
        from foveal.policies import PolicyStep

        def is_small_talk(step: PolicyStep) -> bool:
            return step.can_go and not step.results and len(step.text) < 80
        ```

    Args:
        view: The view that it is of.
        step: The step.
    """

    __slots__ = ("_step", "_view")

    def __init__(self, view: PolicyView, step: Step) -> None:
        self._view = view
        self._step = step

    def __repr__(self) -> str:
        return f"<PolicyStep {self.handle} {self.kind}: {self.units:,} units>"

    @property
    def seq(self) -> int:
        """The seq of its message."""
        return self._step.seq

    @property
    def handle(self) -> str:
        """The handle of its message, such as `e4`."""
        return handle(self.seq)

    @property
    def kind(self) -> StepKind:
        """`user`, `model`, `summary`, `instructed`, `pinned`, `notice`, `foreign` (a summary that the provider
        made) or `passed` (what that stands for)."""
        return self._step.kind

    @property
    def text(self) -> str:
        """The text of the message as it was said, without calls and results."""
        return text_of(self._step.utterance.fact.content)

    @property
    def results(self) -> tuple[PolicyResult, ...]:
        """The results of its calls."""
        return tuple(PolicyResult(self._view, slot) for slot in self._step.slots if slot.result is not None)

    @property
    def has_open_call(self) -> bool:
        """Whether a call waits for its result."""
        return self._step.has_open_call

    @property
    def is_pinned(self) -> bool:
        """Whether a pin keeps it as it is."""
        return self._step.is_pinned

    @property
    def units(self) -> int:
        """The units that it takes as it is shown, with its results."""
        return self._view._view.units_of(self._step)

    @property
    def can_go(self) -> bool:
        """Whether `summarise` and `drop` may take it. Not so: instructions, pinned steps, summaries, the latest
        user message, the newest step, newest open calls, and user messages within their share of the room
        (`retain_user_share`)."""
        return id(self._step) in self._view._removable


class PolicyView:
    """What the next request would show, as a policy sees it.

    It is valid during one call of `decide`.

    Sizes are in units, as the budget is: tokens as Foveal counts them, before the count is corrected by what the
    provider reports.

    Examples:
        ```python
        from foveal.policies import PolicyStep, PolicyView

        def largest_step(view: PolicyView) -> PolicyStep:
            return max(view.steps, key=lambda step: step.units)
        ```

    Args:
        view: The view.
        moves: What makes the reductions.
    """

    def __init__(self, view: View, moves: PolicyMoves) -> None:
        self._view = view
        self._moves = moves

    def __repr__(self) -> str:
        return f"<PolicyView: {len(self._view.steps):,} steps, {self.units:,} units>"

    @property
    def units(self) -> int:
        """The units of all messages."""
        return self._view.units

    @cached_property
    def steps(self) -> tuple[PolicyStep, ...]:
        """The steps, oldest first."""
        return tuple(PolicyStep(self, step) for step in self._view.steps)

    @property
    def results(self) -> tuple[PolicyResult, ...]:
        """The tool results of all steps, oldest first."""
        return tuple(result for step in self.steps for result in step.results)

    @cached_property
    def _maskable(self) -> Set[int]:
        """The `id()`s of the calls whose results may be hidden."""
        return self._moves.maskable()

    @cached_property
    def _removable(self) -> Set[int]:
        """The `id()`s of the steps that may go."""
        return self._moves.removable()

    # ── Reductions ───────────────────────────────────────────────────────────────────────────────────────

    def hide(self, results: Iterable[PolicyResult]) -> Masked | None:
        """Return the reduction that hides results behind placeholders.

        Each placeholder has what `skeleton_share` and `skeleton_tokens` allow of the text, and its handle. Results
        that may not be hidden (`can_hide`) are left out.

        Args:
            results: The results, in any order.

        Returns:
            None if nothing would be saved.

        Examples:
            ```python
            from foveal.policies import Decision, PolicyView

            def hide_large(view: PolicyView) -> Decision:
                return view.hide(result for result in view.results if result.units > 2_000)
            ```
        """
        slots = (result._slot for result in results if result.can_hide)
        return self._moves.hide(sorted(slots, key=lambda slot: slot.step.seq))

    def summarise(self, steps: Iterable[PolicyStep], *, focus: str = "") -> Plan | None:
        """Return the plan to replace steps by one summary.

        A model writes it if there is one that summarises, otherwise code. The steps need not be neighbours. Earlier
        summaries become part of the new one. Steps that may not go (`can_go`) are left out. For one request, one
        summary is written.

        Args:
            steps: The steps, in any order.
            focus: What the summary keeps above all. "" lets the summariser choose.

        Returns:
            None if nothing would be saved.

        Examples:
            ```python
            from foveal.policies import Decision, PolicyView

            def summarise_older_half(view: PolicyView) -> Decision:
                return view.summarise(view.steps[: len(view.steps) // 2])
            ```
        """
        return self._moves.summarise({id(step._step) for step in steps if step.can_go}, focus)

    def drop(self, steps: Iterable[PolicyStep]) -> Dropped | None:
        """Return the reduction that takes steps out of the request.

        A notice names them. Steps that may not go (`can_go`) are left out.

        Args:
            steps: The steps, in any order.

        Returns:
            None if there is no step to drop, or if the request fits and less than half of it would be left:
            `summarise` keeps a record of what goes.

        Examples:
            ```python
            from foveal.policies import Decision, PolicyView

            def drop_oldest(view: PolicyView) -> Decision:
                return view.drop([step for step in view.steps if step.can_go][:10])
            ```
        """
        return self._moves.drop({id(step._step) for step in steps if step.can_go})

    def by_settings(self, policy: PolicySettings, budget: Budget, moment: Moment) -> Decision:
        """Return what the settings of a policy would do.

        Args:
            policy: The policy; a class of your own counts as its settings.
            budget: The budget that `decide` was given, or a smaller one.
            moment: The moment that `decide` was given.

        Examples:
            ```python
            import foveal
            from foveal.policies import Budget, Decision, Moment, PolicyView

            ROLLING = foveal.policy("rolling")

            def as_rolling(view: PolicyView, budget: Budget, moment: Moment) -> Decision:
                return view.by_settings(ROLLING, budget, moment)
            ```
        """
        return self._moves.by_settings(policy, budget, moment)
