"""What the log says about past calls: how many, when, and whether their prefix is lost.

A policy may know of past calls only what is folded here, so a repeated `fit`, a reopened session and a fork decide
as the first `fit` did.

1. A call is an answer of the model. A request without an answer is not a call.
2. A request was sent when its newest message was recorded, or, if its usage was reported, at that time.
3. The prefix is lost when the tools, the system text beside the messages, or the model have changed since the
   last answer.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from foveal.core.engine.prefix import may_move_prefix
from foveal.core.log.events import (
    AnyFact,
    Compacted,
    CompactionFailed,
    Equipped,
    Event,
    Instructed,
    ModelSaid,
    Noted,
    Opened,
    SnapshotTaken,
    ToolReturned,
    Used,
    UserSaid,
)
from foveal.core.models.model import Model
from foveal.core.policies import Moment


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

    def after(self, event: Event, *, units: int = 0) -> PastCalls:
        """Return the calls after one more event; `units` is the size of a message."""
        fact, said = event.fact, self.said + units
        if type(fact) is UserSaid or type(fact) is ToolReturned:
            return replace(self, news_at=event.at, said=said, is_reduced=False)
        calls = self._after_call(event)
        if units:
            calls = replace(calls, said=said)
        if isinstance(fact, Noted | SnapshotTaken | CompactionFailed):
            return calls
        is_reduced = _is_reduction_of_a_policy(fact)
        return calls if is_reduced is calls.is_reduced else replace(calls, is_reduced=is_reduced)

    def _after_call(self, event: Event) -> PastCalls:
        fact = event.fact
        if isinstance(fact, ModelSaid):
            return replace(
                self,
                count=self.count + 1,
                read=self.read + self.said,
                sent_at=self.news_at,
                lost_at=-1,
                is_switched=False,
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
            prefix_lost=self.count > 0 and self.lost_at >= 0,
            model_switched=self.is_switched,
            said=self.said,
            spent=model.write_ratio * self.said + model.read_ratio * self.read,
        )


def _is_reduction_of_a_policy(fact: AnyFact) -> bool:
    if not may_move_prefix(fact) or isinstance(fact, Equipped | Instructed):
        return False
    return not (isinstance(fact, Compacted) and fact.reason == "hand")
