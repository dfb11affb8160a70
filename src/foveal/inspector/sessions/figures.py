"""Figures of a session for its row in the overview, summed from its events."""

from __future__ import annotations

from array import array
from functools import cache, lru_cache
from typing import Final

from msgspec.structs import replace

from foveal.core.log.events import (
    REDUCTIONS,
    AnyFact,
    Compacted,
    CompactionFailed,
    Event,
    ModelSaid,
    Noted,
    Opened,
    Overflowed,
    ThinkingLeftOut,
    Used,
)
from foveal.core.log.logged_requests import RequestFinder
from foveal.core.models.cost import UsageTotals
from foveal.core.models.model import Model, model
from foveal.core.redaction import scrub
from foveal.core.wire.safe_print import one_line
from foveal.errors import BadSetting
from foveal.inspector.sessions.source import MAX_ROW_SHARES, SessionRow
from foveal.transcripts.transcript import API_ERROR_TOPIC

MAX_ROW_ERROR_CHARS: Final = 200
_TURN_TOPIC: Final = "turn"
"""Topic of the agent's note about a turn that ended early."""


class SessionFigures:
    """What the events of one session add up to; each event is added once, in order."""

    def __init__(self, *, model: str = "", window: int = 0) -> None:
        """`model` answers until the log names another; `window` overrides what is known of the models."""
        self.model = model
        self.origin = ""
        """The session that this one continues, as the log names it: `id`, or `id@seq` for a fork."""
        self.next_seq = 0
        self._given_window = window
        self._recorded_window = 0
        self._totals = UsageTotals()
        self._finder = RequestFinder()
        self._closed_requests = 0
        self._shares = array("d")
        self._reductions = 0
        self._error = ""
        self._error_at = 0.0
        self._times: tuple[float, ...] = ()

    def add(self, event: Event) -> None:
        """Add the next event."""
        self.next_seq = event.seq + 1
        if event.at is not None:
            self._times = (self._times[0] if self._times else event.at, event.at)
        fact = event.fact
        self._closed_requests += self._finder.add(event) is not None
        match fact:
            case Opened():
                from foveal.core.engine.settings import recorded_window  # loads the engine

                self.model = fact.model or self.model
                self.origin = fact.origin or self.origin
                self._recorded_window = recorded_window(fact) or 0
            case Used():
                self._add_usage(fact)
            case ModelSaid():
                self._totals = self._totals.with_answer()
            case Compacted() | CompactionFailed():
                from foveal.core.compaction.health import read_metrics  # loads the engine

                metrics = read_metrics(fact)
                self._totals = self._totals.with_summary(metrics.cost, asked=metrics.asked)
            case _:
                pass
        self._reductions += isinstance(fact, REDUCTIONS)
        if failure := _failure(fact):
            self._error, self._error_at = failure, event.at or 0.0

    def _add_usage(self, used: Used) -> None:
        self.model = used.model or self.model
        known = _known_model(self.model)
        if known is not None:
            self._totals = self._totals.after(used, known)
        else:
            self._totals = self._totals.after(used, _unpriced())
        window = self.window
        if window:
            self._shares.append(used.prompt / window)

    @property
    def window(self) -> int:
        """Tokens in the window of the newest model; 0 if that is unknown."""
        known = _known_model(self.model)
        return self._given_window or self._recorded_window or (known.window if known is not None else 0)

    def fill(self, row: SessionRow, *, is_partial: bool) -> SessionRow:
        """Return the row with these figures."""
        totals = self._totals
        prompts = totals.input + totals.cache_read + totals.cache_write
        return replace(
            row,
            model=self.model or row.model,
            window=self.window,
            used=totals.last.prompt if totals.last is not None else 0,
            shares=tuple(round(share, 4) for share in _thinned(self._shares)),
            requests=self._closed_requests + (self._finder.open is not None),
            reported=totals.calls,
            spent=totals.spent if totals.calls else None,
            unknown_calls=totals.unknown_calls,
            cache_share=round(totals.cache_read / prompts, 4) if prompts else None,
            reductions=self._reductions,
            error=self._error,
            error_at=self._error_at,
            events=row.events or (0 if is_partial else self.next_seq),
            times=self._times,
            created=row.created or (self._times[0] if self._times and not is_partial else 0.0),
            partial=is_partial,
        )


@cache
def _unpriced() -> Model:
    """Return what stands for a model without a name: usage is summed, prices are unknown."""
    return model("unknown")


@lru_cache(maxsize=256)
def _known_model(name: str) -> Model | None:
    try:
        return model(name)
    except BadSetting:
        return None


def _failure(fact: AnyFact) -> str:
    """Return the failure that an event reports, "" for any other."""
    match fact:
        case Overflowed():
            text = fact.problem or "a request was too large for the provider"
        case ThinkingLeftOut():
            text = fact.problem
        case CompactionFailed():
            text = f"{'a summariser failed' if fact.cause else 'no summary was written'}: {fact.problem}"
        case Noted(topic=topic) if topic in (_TURN_TOPIC, API_ERROR_TOPIC):
            text = fact.text
        case _:
            return ""
    return one_line(scrub(text), width=MAX_ROW_ERROR_CHARS)


def _thinned(shares: array[float]) -> list[float]:
    """Return at most `MAX_ROW_SHARES` values, evenly chosen, with the first and the last one."""
    count = len(shares)
    if count <= MAX_ROW_SHARES:
        return list(shares)
    return [shares[place * (count - 1) // (MAX_ROW_SHARES - 1)] for place in range(MAX_ROW_SHARES)]
