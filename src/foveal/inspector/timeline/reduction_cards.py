"""Reductions of a session: what each one did, why, what it cost, and when it pays.

A rewrite pays after `(w − r) / r · S / D` further calls: removing `D` tokens in front of `S` makes the provider
read `S` again at the write price `w` instead of the read price `r`, and each later call reads `D` tokens less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Final

from msgspec.structs import replace

from foveal.core.compaction.health import read_metrics
from foveal.core.engine.cut_counts import cut_text
from foveal.core.log.events import Clipped, Compacted, CompactionFailed, Dropped, Event, Masked
from foveal.core.models.model import Model
from foveal.core.view.steps import hidden_ranges
from foveal.core.wire.safe_print import one_line
from foveal.inspector.timeline.event_sentences import reason_text
from foveal.inspector.timeline.request_rows import RequestSize, key_seq
from foveal.inspector.timeline.timeline import MAX_CARD_KEYS, ReductionCard, ViewChange

_CHECKED_DRAFT: Final = (
    "length, sections and script",
    "every name occurs in the source",
    "sentences about the user are removed: the log quotes the user",
    "it does not repeat its instructions",
)
_UNCHECKED_DRAFT: Final = (
    "wrong statements made of words that occur",
    "omissions",
    "another language in the same script",
)
_CHECKED_LEDGER: Final = ("every line is taken from the log; no model wrote any of it",)
_UNCHECKED_LEDGER: Final = ("whether these are the details that matter later",)
_UNCHECKED_RECORDED: Final = ("everything: another program wrote it",)
_MAX_CHECK_CHARS: Final = 300


class ReductionCards:
    """Collects the cards of a growing log."""

    def __init__(self) -> None:
        self._cards: dict[int, ReductionCard] = {}

    def cards(self) -> tuple[ReductionCard, ...]:
        return tuple(self._cards.values())

    def add(
        self,
        event: Event,
        changes: Sequence[ViewChange],
        *,
        before: RequestSize,
        after: RequestSize,
        behind: int,
        model: Model,
    ) -> None:
        """Take over an event; `behind` is the units of the request behind the first message that it changed."""
        card = _card(event)
        if card is None:
            return
        keys = [change.key for change in changes if key_seq(change.key) != event.seq]
        removed = before.tokens - after.tokens
        behind_tokens = round(behind * after.ratio)
        self._cards[event.seq] = replace(
            card,
            before=before.tokens,
            after=after.tokens,
            keys=tuple(keys[:MAX_CARD_KEYS]),
            count=len(keys),
            behind=behind_tokens,
            pays_after=_pays_after(model, removed=removed, behind=behind_tokens) if keys else None,
            did=_did(event, changes),
        )

    def take_back(self, event: Event, effective: Set[int]) -> None:
        """Note which reductions are in force after an event that changes which earlier ones count."""
        for seq, card in self._cards.items():
            is_undone = seq not in effective
            if is_undone != (card.undone >= 0):
                self._cards[seq] = replace(card, undone=event.seq if is_undone else -1)


def _did(event: Event, changes: Sequence[ViewChange]) -> str:
    """Return what a cut did, in words; "" for any other event."""
    fact = event.fact
    if not isinstance(fact, Compacted) or not fact.masks:
        return ""
    gone = [change for change in changes if change.level == "summarised" and change.by == event.seq]
    return cut_text(fact, steps=sum(change.category in ("user", "assistant") for change in gone))


def _pays_after(model: Model, *, removed: int, behind: int) -> int | None:
    if removed <= 0 or model.input_price is None:
        return None
    read, write = model.read_ratio, model.write_ratio
    return math.ceil(max(0.0, (write - read) / read * behind / removed))


def _card(event: Event) -> ReductionCard | None:
    """Return the card of a reduction without its effect on the request; None for any other event."""
    match event.fact:
        case Clipped(target=target) as clip:
            return ReductionCard(seq=event.seq, kind="clipped", rule=clip.rule, first=target, last=target)
        case Masked() as masked:
            targets = [mask.target for mask in masked.masks]
            return ReductionCard(
                seq=event.seq,
                kind="masked",
                rule=masked.rule,
                reason=masked.reason,
                why=reason_text(masked.reason),
                first=min(targets, default=-1),
                last=max(targets, default=-1),
            )
        case Dropped() as dropped:
            return ReductionCard(
                seq=event.seq,
                kind="dropped",
                rule=dropped.rule,
                reason=dropped.reason,
                why=reason_text(dropped.reason),
                first=min((first for first, _ in dropped.ranges), default=-1),
                last=max((last for _, last in dropped.ranges), default=-1),
                ranges=hidden_ranges(dropped),
            )
        case Compacted() as summary:
            return _summary_card(event.seq, summary)
        case CompactionFailed() as failed:
            return replace(
                _metrics_card(event.seq, "compaction_failed", failed), problem=one_line(failed.problem)
            )
        case _:
            return None


def _summary_card(seq: int, fact: Compacted) -> ReductionCard:
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]
    if fact.by == "ledger":
        checked, unchecked = _CHECKED_LEDGER, _UNCHECKED_LEDGER
    elif fact.reason == "recorded":
        checked, unchecked = (), _UNCHECKED_RECORDED
    else:
        checked, unchecked = _CHECKED_DRAFT, _UNCHECKED_DRAFT
    return replace(
        _metrics_card(seq, "compacted", fact),
        rule=fact.rule,
        ranges=hidden_ranges(fact),
        chars=len(fact.summary),
        checked=checked,
        unchecked=unchecked,
    )


def _metrics_card(seq: int, kind: str, fact: Compacted | CompactionFailed) -> ReductionCard:
    metrics = read_metrics(fact)
    return ReductionCard(
        seq=seq,
        kind=kind,
        reason=fact.reason,
        why=reason_text(fact.reason),
        first=fact.first,
        last=fact.last,
        by=one_line(fact.by),
        checks=tuple(one_line(check, width=_MAX_CHECK_CHARS) for check in metrics.checks),
        score=metrics.score,
        cost=metrics.cost if metrics.asked or fact.reason == "recorded" else 0.0,
        seconds=metrics.seconds,
    )
