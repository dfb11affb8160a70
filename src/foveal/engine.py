"""Decide, do, record: the log, its view, and the loop that reduces until the next request fits.

`Context` and `Session` are two faces of this. It is synchronous and knows no clock: whoever calls it says what
time it is. The only way to change anything is `append`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence, Set
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from foveal import clip as clipping
from foveal.accounts import Accounts
from foveal.budget import Budget, Caps, plan
from foveal.calibration import Calibration
from foveal.carry import Carried, carried, restore
from foveal.clip import UNLIMITED, Limits
from foveal.clip_parts import clip_parts
from foveal.errors import ContextOverflow
from foveal.events import (
    AnyFact,
    Clipped,
    Compacted,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Masked,
    ModelSaid,
    Opened,
    Text,
    ToolReturned,
    Used,
    UserSaid,
)
from foveal.fold import advance, effective, fold
from foveal.meter import Meter
from foveal.models import Model
from foveal.policies import Moment, Policy, decide, rungs
from foveal.tokens import Counter
from foveal.view import View

_seq = attrgetter("seq")
ROUNDS: Final = 5_000
"""Reductions for one request, at the most: a policy that goes on for longer is not getting anywhere."""
EXACT_SPREAD: Final = 0.05
"""How far the ratio of a model may be from its family's when a real vocabulary counts; see `calibration`."""
ESTIMATE_SPREAD: Final = 0.1


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as it was after event `seq`, without the events themselves."""

    seq: int
    carried: Carried
    calibration: Calibration
    accounts: Accounts
    unreduced: int


class Engine:
    """One conversation: its log, and everything that follows from it."""

    def __init__(
        self,
        model: Model,
        policy: Policy,
        caps: Caps,
        counter: Counter,
        *,
        log: Sequence[Event] = (),
        state: State | None = None,
    ) -> None:
        """Without `state`, `log` is the whole log; with it, the events that the state needs, and all newer ones."""
        self.model = model
        self.policy = policy
        self.caps = caps
        self.log: list[Event] = list(log)
        """The events in memory."""
        self.accounts = Accounts()
        self.mover: Event | None = None
        """The first event since the last request that can have changed what that one showed."""
        self._settled: tuple[int, Budget] | None = None
        meter = Meter(counter)
        spread = EXACT_SPREAD if counter.exact else ESTIMATE_SPREAD
        self.calibration = Calibration(ratio=model.token_ratio, spread=spread)
        self.unreduced = 0
        """Units of the whole conversation as it was said."""
        self.view: View
        if state is None:
            self.view = fold(self.log, meter)
            self._recount()
            for event in self.log:
                if isinstance(event.fact, Used):
                    self._account(event)
        else:
            self._resume(state, meter)
        self.next_seq = 1 + max(self.log[-1].seq if self.log else -1, -1 if state is None else state.seq)
        last = next((event for event in reversed(self.log) if isinstance(event.fact, Opened)), None)
        self.opened = last.fact if last is not None and isinstance(last.fact, Opened) else Opened(model="")
        self.opened_seq = last.seq if last is not None else -1
        self._hard = self.budget().hard

    def state(self) -> State:
        """What `Engine` needs, beside the events that the view needs, to go on from here."""
        return State(
            seq=self.next_seq - 1,
            carried=carried(self.view),
            calibration=self.calibration,
            accounts=self.accounts,
            unreduced=self.unreduced,
        )

    def _resume(self, state: State, meter: Meter) -> None:
        old = bisect_right(self.log, state.seq, key=_seq)
        self.view = restore(self.log[:old], state.carried, meter)
        self.calibration, self.accounts = state.calibration, state.accounts
        self.unreduced = state.unreduced
        for event in self.log[old:]:
            self.view.advance(event)
            self._account(event)

    def since(self, seq: int) -> list[Event]:
        """The events from `seq` on."""
        return self.log[bisect_left(self.log, seq, key=_seq) :]

    def forget(self, wanted: Set[int]) -> None:
        """Keep only these events in memory."""
        self.log = [event for event in self.log if event.seq in wanted]
        self.view.meter.forget(wanted)

    def take(self, event: Event) -> None:
        """An event that somebody else recorded."""
        self.log.append(event)
        self.next_seq = event.seq + 1
        self.view.advance(event)
        self._account(event)

    # ── record ───────────────────────────────────────────────────────────────────────────────────────

    def append(self, fact: AnyFact, *, at: float | None = None, limits: Limits | None = None) -> Event:
        """Record one fact. A result that is longer than its limits is recorded whole, and then its clip;
        `limits` are this call's own and go before those of the tool and the policy."""
        event = Event(self.next_seq, fact, at)
        self.next_seq += 1
        self.log.append(event)
        before = self.view
        self.view = advance(self.view, event, self.log)
        if self.view is not before:
            self._recount()
            self.mover = self.mover or event
        else:
            self._account(event)
            if isinstance(fact, ToolReturned):
                self._clip(event, fact, limits)
                if self.view.late[-1:] == [event.seq]:
                    self.mover = self.mover or event
        return event

    def _account(self, event: Event) -> None:
        fact = event.fact
        if self.mover is None and moves_prefix(event):
            self.mover = event
        if isinstance(fact, UserSaid | ModelSaid | ToolReturned | Instructed):
            self.unreduced += self.view.meter.message(event.seq, fact)
        elif isinstance(fact, Opened):
            self.opened, self.opened_seq = fact, event.seq
        elif isinstance(fact, Used):
            if fact.prompt <= self.model.window:  # a larger one was not this request's, or a sum of several
                self.calibration = self.calibration.observe(fact.units, fact.prompt)
            self.accounts = self.accounts.after(fact, self.model)

    def _recount(self) -> None:
        """The past has changed: count again what there is of it; what was spent remains spent."""
        said = (UserSaid, ModelSaid, ToolReturned, Instructed)
        facts = ((event.seq, event.fact) for event in effective(self.log))
        self.unreduced = sum(
            self.view.meter.message(seq, fact) for seq, fact in facts if isinstance(fact, said)
        )

    def _clip(self, event: Event, fact: ToolReturned, call: Limits | None) -> None:
        found = self.view.find(event.seq)
        if found is None:
            return
        name = next((slot.call.name for slot in found[0].slots if slot.result is found[1]), fact.name)
        limits = self._limits(name, call)
        if limits == UNLIMITED:
            return
        for clipped in _clips(event, fact, limits, self.view.meter.counter, rule=f"{self.policy.name}: clip"):
            self.append(clipped, at=event.at)

    def _limits(self, tool: str, call: Limits | None) -> Limits:
        default = self.policy.clip or UNLIMITED
        limits = clipping.choose(default, per_tool=self.policy.clip_tools, tool=tool, call=call)
        if self.policy.clip_share < 1 and limits != UNLIMITED:
            most = int(self._hard * self.policy.clip_share)
            limits = replace(limits, tokens=most if limits.tokens is None else min(most, limits.tokens))
        return limits

    # ── decide ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def fixed_units(self) -> int:
        return self.view.aside_units + self.view.tool_units

    @property
    def total_units(self) -> int:
        """Units of the whole request."""
        return self.view.units + self.fixed_units

    def budget(self) -> Budget:
        """The room of the next request, by what is known now."""
        caps = self.caps
        if self.policy.max_history_tokens and not caps.max_history_tokens:
            caps = replace(caps, max_history_tokens=self.policy.max_history_tokens)
        budget = plan(
            self.model,
            caps,
            self.calibration,
            warn=self.policy.warn,
            act=self.policy.act,
            fixed=self.fixed_units,
            instructed=self.view.permanent_units,
        )
        self._hard = budget.hard
        return budget

    def settle(self, moment: Moment, *, at: float | None = None) -> Budget:
        """Reduce until the next request fits, or raise `ContextOverflow`. Without new events since the last
        time this does nothing, whatever the clock says."""
        budget = self.budget()
        if self._settled == (self.next_seq, budget):
            return budget
        for _ in range(ROUNDS):
            reduction = decide(self.view, budget, moment, self.policy)
            if reduction is None:
                break
            self.append(reduction, at=at)
            moment = replace(moment, cutting=True)
        if self.view.units > budget.hard or self._too_much_media(budget):
            raise self._overflow(budget)
        self._settled = (self.next_seq, budget)
        return budget

    def take_back(self, seq: int) -> None:
        """Forget the reductions from `seq` on: the request they were made for will not be sent. Needs the whole
        log in memory."""
        if self.next_seq > seq:
            del self.log[bisect_left(self.log, seq, key=_seq) :]
            self.next_seq = seq
            self.view = fold(self.log, self.view.meter)
            self.view.meter.forget_from(seq)
            self.mover = self.mover if self.mover is not None and self.mover.seq < seq else None

    def _too_much_media(self, budget: Budget) -> bool:
        media = self.view.media
        if not media:
            return False
        return len(media) > budget.max_images or sum(m.size for m in media.values()) > budget.max_media_bytes

    def _overflow(self, budget: Budget) -> ContextOverflow:
        view, tokens = self.view, self.calibration.tokens
        if view.units <= budget.hard:
            size = sum(media.size for media in view.media.values())
            problem = (
                f"the request holds {len(view.media)} images with {size:,} bytes, but {budget.max_images} with "
                f"{budget.max_media_bytes:,} are allowed; the latest message must stay as it is: send fewer or "
                f"smaller ones, or raise max_images or max_media_bytes"
            )
        else:
            problem = self._too_large(budget)
        droppable = 0
        if self.policy.ladder != "off":
            droppable = sum(
                view.units_of(step) for step in rungs.droppable(view, keep_task=False, keep_open=False)
            )
        return ContextOverflow(
            problem,
            needed=tokens(self.total_units),
            available=self.available(budget),
            window=budget.window,
            reserve=budget.reserve,
            margin=budget.margin,
            floor=tokens(self.total_units - droppable),
        )

    def available(self, budget: Budget) -> int:
        """Tokens that the request may have: what it is compared with."""
        return min(budget.available, self.calibration.tokens(budget.hard + budget.fixed))

    def _too_large(self, budget: Budget) -> str:
        view, tokens = self.view, self.calibration.tokens
        latest = view.latest_user
        said = [
            f"context needs {tokens(self.total_units):,} tokens but {self.available(budget):,} are "
            f"available (window {budget.window:,}, reserve {budget.reserve:,}, margin {budget.margin:,})"
        ]
        if self.policy.ladder == "off":
            said.append('policy "off" reduces nothing: choose another, or start a new session')
        elif budget.fixed and tokens(budget.fixed) * 2 > budget.available:
            said.append(
                f"system text and tools alone take {tokens(budget.fixed):,}: shorten them, or offer fewer tools"
            )
        elif view.permanent_units * 2 > budget.hard:
            taken = round(view.permanent_units * self.calibration.ratio)
            said.append(
                f"system messages and pinned rules alone take {taken:,}: shorten or unpin some of them"
            )
        elif latest is not None and view.units_of(latest) * 2 > budget.hard:
            said.append(
                f"the latest message alone takes {round(view.units_of(latest) * self.calibration.ratio):,}: "
                "shorten it, raise `window`, or lower `reserve`"
            )
        else:
            said.append("what is left may not be cut: raise `window`, lower `reserve`, or unpin something")
        return "; ".join(said)


def _clips(
    event: Event, fact: ToolReturned, limits: Limits, counter: Counter, *, rule: str
) -> Iterable[Clipped]:
    """The clips that bring a result within its limits: one for plain text, one for each part otherwise."""
    if isinstance(fact.content, str):
        cut = clipping.clip(fact.content, limits, handle=event.handle, counter=counter)
        return [] if cut is None else [rungs.clipped(event.seq, -1, cut, rule=rule)]
    places = [place for place, part in enumerate(fact.content) if isinstance(part, Text)]
    texts = [part.text for part in fact.content if isinstance(part, Text)]
    cuts = clip_parts(texts, limits, handle=event.handle, counter=counter)
    return [
        rungs.clipped(event.seq, place, cut, rule=rule)
        for place, cut in zip(places, cuts, strict=True)
        if cut is not None
    ]


def moves_prefix(event: Event) -> bool:
    """A fact that can change what an earlier request had shown."""
    fact = event.fact
    if isinstance(fact, Clipped):
        return fact.rule == "squeeze"
    if isinstance(fact, Instructed):
        return fact.replaces is not None or fact.aside
    return isinstance(fact, Masked | Dropped | Compacted | Equipped)
