"""State of an engine without its events: the content of a checkpoint."""

from __future__ import annotations

from typing import Any

import msgspec

from foveal.core.compaction.health import CompactionHealth
from foveal.core.engine.overflow import ProviderLimits
from foveal.core.engine.past_calls import PastCalls
from foveal.core.models.cost import UsageTotals
from foveal.core.tokens.calibration import Calibration
from foveal.core.tokens.message_tokens import MessageCounts
from foveal.core.view.checkpoint import ViewCheckpoint


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


class _StateCounts(msgspec.Struct, frozen=True):
    """The part of a state that a reader of the whole log needs."""

    counts: MessageCounts | None = None


def stored_counts(state: bytes) -> MessageCounts | None:
    """Return the counts in the state of a checkpoint; None if it has none, or is damaged."""
    try:
        return msgspec.json.decode(state, type=_StateCounts).counts
    except msgspec.DecodeError:
        return None
