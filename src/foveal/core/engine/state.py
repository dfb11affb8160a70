"""State of an engine without its events: the content of a checkpoint.

`PastCalls` has what the log says about past calls: how many, when, and whether their prefix is lost. A policy may
know of them only what is folded here, so a repeated `fit`, a reopened session and a fork decide as the
first `fit` did.

1. A call is an answer of the model. A request without an answer is not a call.
2. A request was sent when its newest message was recorded, or, if its usage was reported, at that time.
3. The prefix is lost when the tools, the system text beside the messages, or the model have changed since the
   last answer.
4. A turn is a user message, its answers and their results, at the size at which they joined the request. A later
   reduction does not change it: what a turn adds is what the next one will probably add.

`AwaitedAnswer` knows whether the answer to the newest request still belongs to what is recorded. An answer is
recorded after its request was sent. What is recorded in between (an undo, a pinned rule, other tools) stands in
front of the answer, but was not in its request, so thinking in the answer may be bound to something else.
"""

from __future__ import annotations

from statistics import median
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from foveal.core.compaction.health import CompactionHealth
from foveal.core.engine.overflow import ProviderLimits
from foveal.core.engine.prefix import may_move_prefix
from foveal.core.log.events import (
    AnyFact,
    Clipped,
    Compacted,
    CompactionFailed,
    Equipped,
    Event,
    Instructed,
    Marked,
    ModelSaid,
    Noted,
    Opened,
    Overflowed,
    Prioritised,
    SnapshotTaken,
    Steered,
    Superseded,
    ThinkingLeftOut,
    ToolReturned,
    Used,
    UserSaid,
)
from foveal.core.models.cost import UsageTotals
from foveal.core.models.model import Model
from foveal.core.policies import Moment
from foveal.core.tokens.calibration import Calibration
from foveal.core.tokens.message_tokens import MessageCounts
from foveal.core.view.checkpoint import ViewCheckpoint

RECENT_TURNS: Final = 5
"""Turns from which the size of a typical turn is taken."""


class PastCalls(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The calls of one conversation, including those that were rewound."""

    count: int = 0
    """Answers of the model."""
    said: int = 0
    """Units of all messages so far."""
    read: int = 0
    """The sum of these units over all calls: what was read if every call had been sent everything before it."""
    news_at: float | None = None
    """The time of the newest message to the model."""
    sent_at: float | None = None
    """The time of the last request that was answered."""
    model: str = ""
    """The model that was opened last."""
    lost_at: int = -1
    """Seq of the event since the last answer that lost the prefix; -1 when there is none."""
    is_switched: bool = False
    """Another model was opened since the last answer."""
    is_reduced: bool = False
    """The newest events are the reductions of a policy: the next request was fitted already."""
    earlier_turns: tuple[int, ...] = ()
    """Units that each of the latest turns before this one has added to the request, oldest first."""
    turn: int = 0
    """Units that the turn of the newest user message has added."""
    is_answered: bool = False
    """The model has said something in this turn."""
    newest_message: int = -1
    """Seq of the newest message; -1 before the first one."""

    def after(self, event: Event, *, units: int = 0) -> PastCalls:
        """Return the calls after one more event; `units` is the size of a message."""
        fact, said = event.fact, self.said + units
        if type(fact) is UserSaid:
            return replace(
                self,
                news_at=event.at,
                said=said,
                is_reduced=False,
                earlier_turns=self.recent_turns[1 - RECENT_TURNS :],
                turn=units,
                is_answered=False,
                newest_message=event.seq,
            )
        if type(fact) is ToolReturned:
            turn = self.turn + units
            return replace(
                self, news_at=event.at, said=said, is_reduced=False, turn=turn, newest_message=event.seq
            )
        if isinstance(fact, Clipped) and fact.target == self.newest_message and not may_move_prefix(fact):
            # The message was never sent whole, so the turn has added only what is kept of it.
            turn = max(0, self.turn - max(0, fact.total_tokens - fact.kept_tokens))
            return replace(self, turn=turn, is_reduced=False)
        calls = self._after_call(event, units)
        if units:
            calls = replace(calls, said=said)
        if isinstance(fact, Noted | SnapshotTaken | CompactionFailed | Prioritised | Steered):
            return calls
        is_reduced = _is_reduction_of_a_policy(fact)
        return calls if is_reduced is calls.is_reduced else replace(calls, is_reduced=is_reduced)

    def _after_call(self, event: Event, units: int) -> PastCalls:
        fact = event.fact
        if isinstance(fact, ModelSaid):
            return replace(
                self,
                count=self.count + 1,
                read=self.read + self.said,
                sent_at=self.news_at,
                lost_at=-1,
                is_switched=False,
                turn=self.turn + units,
                is_answered=True,
                newest_message=event.seq,
            )
        if isinstance(fact, Used):
            return self if event.at is None else replace(self, sent_at=event.at)
        if isinstance(fact, Opened):
            return self._after_opened(event.seq, fact)
        if isinstance(fact, Equipped) or (isinstance(fact, Instructed) and fact.aside):
            return replace(self, lost_at=event.seq)
        return self

    def _after_opened(self, seq: int, fact: Opened) -> PastCalls:
        if not self.model or fact.model == self.model:
            return replace(self, model=fact.model)
        return replace(self, model=fact.model, lost_at=seq, is_switched=True)

    @property
    def recent_turns(self) -> tuple[int, ...]:
        """Units that each of the latest turns has added, oldest first. A turn without an answer, because it has
        failed or has only begun, says nothing about the size of turns."""
        return (*self.earlier_turns, self.turn) if self.is_answered else self.earlier_turns

    @property
    def typical_turn(self) -> int | None:
        """Units that a turn adds; None before the first answered one. It is the median: one huge message says
        little about the next turn."""
        return round(median(self.recent_turns)) if self.recent_turns else None

    @property
    def idle(self) -> float | None:
        """Seconds from the last answered request to the newest message; None when unknown. A clock that goes
        backwards counts as no time passed."""
        if self.sent_at is None or self.news_at is None:
            return None
        return max(0.0, self.news_at - self.sent_at)

    def moment(self, model: Model) -> Moment:
        """Return what a policy may know of the next request."""
        return Moment(
            calls=self.count,
            idle=self.idle,
            ttl=model.cache_ttl,
            read=model.read_ratio,
            write=model.write_ratio,
            output=model.output_ratio,
            prefix_lost=self.count > 0 and self.lost_at >= 0,
            model_switched=self.is_switched,
            said=self.said,
            spent=model.write_ratio * self.said + model.read_ratio * self.read,
        )


def _is_reduction_of_a_policy(fact: AnyFact) -> bool:
    if not may_move_prefix(fact) or isinstance(fact, Equipped | Instructed | Superseded | ThinkingLeftOut):
        return False
    return not (isinstance(fact, Compacted) and fact.reason in ("hand", "asked"))


class EngineState(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"view": "carried", "usage_totals": "accounts", "unreduced_units": "unreduced"},
):
    """A conversation after event `seq`, without the events themselves.

    Stored checkpoints keep the JSON names and the nesting that they had in the first version."""

    seq: int
    view: ViewCheckpoint
    calibration: Calibration
    usage_totals: UsageTotals
    unreduced_units: int
    past_calls: PastCalls = PastCalls()
    record: dict[str, Any] = {}
    """The fields of `CompactionHealth` and of `ProviderLimits`, in one object."""
    counts: MessageCounts | None = None
    """Units of the messages up to `seq`; None in checkpoints that were written before they were stored."""

    def __post_init__(self) -> None:
        self.compaction_health()  # raises `ValidationError` if another version wrote something else
        self.provider_limits()

    def compaction_health(self) -> CompactionHealth:
        return msgspec.convert(self.record, CompactionHealth)

    def provider_limits(self) -> ProviderLimits:
        return msgspec.convert(self.record, ProviderLimits)


_UNSEEN: Final = frozenset(
    {Used, Noted, Opened, SnapshotTaken, Overflowed, CompactionFailed, Marked, ThinkingLeftOut}
)
"""Facts that change nothing in front of an answer, or say themselves what they change."""


class AwaitedAnswer:
    """The answer to the newest request of this process, until it is recorded."""

    def __init__(self) -> None:
        self._is_awaited = False
        self._is_outdated = False

    def request_sent(self) -> None:
        """Take in that a request was sent."""
        self._is_awaited, self._is_outdated = True, False

    def mark_outdated(self) -> None:
        """Take in that something in front of the answer has changed."""
        self._is_outdated = True

    def is_outdated_by(self, fact: AnyFact) -> bool:
        """Take in a fact. Return whether it is the answer, and something in front of it has changed since its
        request."""
        if self._is_awaited and isinstance(fact, ModelSaid):
            self._is_awaited = False
            return self._is_outdated
        self._is_outdated = self._is_outdated or type(fact) not in _UNSEEN
        return False


class _StateCounts(msgspec.Struct, frozen=True):
    """The part of a state that a reader of the whole log needs."""

    counts: MessageCounts | None = None


def stored_counts(state: bytes) -> MessageCounts | None:
    """Return the counts in the state of a checkpoint; None if it has none, or is damaged."""
    try:
        return msgspec.json.decode(state, type=_StateCounts).counts
    except msgspec.DecodeError:
        return None
