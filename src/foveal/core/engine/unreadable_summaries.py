"""Summaries of a provider that the model cannot read: what takes their place.

A compaction item of OpenAI is encrypted for one model and account, and only Responses can send it. Once another
model, account or API continues the conversation, the item says nothing, or the provider refuses it. Then:

1. A `Compacted` with the reason `unreadable` takes it back: the messages in front of it count again. Undoing that
   event shows the item again.
2. Clients that compact leave out the messages that the item stands for. The log has them: it was rewound when the
   shorter list came. A record that the ledger writes from them stands in the place of the item.
3. If the log has nothing of it, a notice says that something is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

from msgspec import UNSET
from msgspec.structs import replace

from foveal.core.compaction.health import read_metrics
from foveal.core.compaction.plan import Plan, read_range
from foveal.core.compaction.summary import (
    END_LINE,
    LEDGER_AUTHOR,
    SummarySource,
    header_line,
    ledger_summary,
)
from foveal.core.engine.stored_messages import MESSAGE_FACTS, without_marks
from foveal.core.log.events import (
    DIALOGUE_TYPES,
    UNREADABLE,
    AnyFact,
    Compacted,
    Dialect,
    Event,
    ForeignSummary,
    Noted,
    Opened,
    Reverted,
    Rewound,
    ThinkingLeftOut,
    UserSaid,
    handle,
    raw,
)
from foveal.core.log.ranges import Ranges
from foveal.core.tokens.message_tokens import CountedFact
from foveal.core.view.fold import effective_events
from foveal.core.view.view import View
from foveal.core.wire.common import FOREIGN_SUMMARY_TITLE

FOREIGN_TOPIC: Final = "summary by another provider"
NOTHING_KNOWN: Final = (
    "[foveal: an earlier part of this conversation is not shown here. Another model has made a summary of it that "
    "cannot be read.]"
)
"""What stands in the place of a summary if the log has nothing of what it stands for."""


class Unreadable(NamedTuple):
    """What the model, or its provider, cannot read."""

    items: tuple[int, ...]
    """The summaries, oldest first."""
    model: str
    problem: str = ""
    """The provider's message; "" if no request was sent."""
    leaves_out_thinking: bool = False
    """Whether there is encrypted reasoning, which the provider refuses as well."""


# ── What cannot be read ──────────────────────────────────────────────────────────────────────────────────


def unreadable_after_switch(view: View, opened: Opened, before: Opened) -> Unreadable:
    """Return what another model cannot read: encrypted summaries, and Anthropic's blocks if it is no Claude."""
    if not before.model or opened.model == before.model:
        return Unreadable((), opened.model)
    is_claude = "claude" in opened.model.lower()
    return Unreadable(
        tuple(seq for seq, fact in _summaries(view) if fact.is_opaque or not is_claude), opened.model
    )


def unreadable_in_dialect(view: View, dialect: Dialect, *, model: str) -> Unreadable:
    """Return the encrypted summaries that a dialect cannot send."""
    newest = (step.utterance.fact for step in view.permanent_steps if step.kind == "foreign")
    if not any(isinstance(fact, ForeignSummary) and _is_lost_in(fact, dialect) for fact in newest):
        return Unreadable((), model)
    return Unreadable(tuple(seq for seq, fact in _summaries(view) if _is_lost_in(fact, dialect)), model)


def refused_as_unreadable(view: View, *, model: str, problem: str) -> Unreadable | None:
    """Return what a provider can have refused because it cannot decrypt it; None if there is nothing."""
    items = tuple(seq for seq, fact in _summaries(view) if fact.is_opaque)
    has_thinking = any(step.has_thinking for step in view.steps)
    return Unreadable(items, model, problem, has_thinking) if items or has_thinking else None


def _summaries(view: View) -> Iterator[tuple[int, ForeignSummary]]:
    for step in view.steps:
        if isinstance(step.utterance.fact, ForeignSummary):
            yield step.utterance.seq, step.utterance.fact


def _is_lost_in(fact: ForeignSummary, dialect: Dialect) -> bool:
    return not fact.text and fact.dialect != dialect


# ── What takes its place ─────────────────────────────────────────────────────────────────────────────────


class RecordWriter(NamedTuple):
    """What writing a record needs beside the log."""

    view: View
    room: int
    """Units that a record may take."""
    ratio: float
    """Tokens per unit."""

    def facts(self, unreadable: Unreadable, log: Sequence[Event]) -> list[AnyFact]:
        """Return what to record instead of what cannot be read. `log` is the whole log."""
        facts: list[AnyFact] = []
        told: set[int] = set()
        natives: set[bytes] = set()
        for seq in unreadable.items:
            item = log[seq].fact
            if isinstance(item, Compacted):  # the provider wrote it for Foveal, which has a record beside it
                facts += [Reverted(target=seq), replace(item, native=UNSET, dialect="", reason="model")]
                continue
            assert isinstance(item, ForeignSummary)
            lost = [event for event in lost_messages(log, log[seq]) if event.seq not in told]
            told.update(event.seq for event in lost)
            is_new = bytes(item.native) not in natives
            natives.add(bytes(item.native))
            record = self._record(lost, log) if lost else self._notice(item, seq) if is_new else _NO_RECORD
            if item.text and is_new:  # another provider's model reads the text, as a message
                text = f"{FOREIGN_SUMMARY_TITLE}\n{item.text}"
                record = replace(record, summary=f"{text}\n\n{record.summary}".rstrip(), chunks=(text,))
            facts.append(replace(record, first=seq, last=seq, rule=_rule(unreadable.model, seq, item)))
        if unreadable.leaves_out_thinking:
            facts.append(ThinkingLeftOut())
        return [*facts, *([Noted(text=_note(unreadable), topic=FOREIGN_TOPIC)] if facts else ())]

    def _record(self, lost: Sequence[Event], log: Sequence[Event]) -> Compacted:
        """Return a record of messages that are only in the log."""
        meter = self.view.meter
        units = sum(meter.message(event.seq, cast(CountedFact, event.fact)) for event in lost)
        plan = Plan(
            first=lost[0].seq,
            last=lost[-1].seq,
            turns=sum(isinstance(event.fact, UserSaid) for event in lost),
            events=len(lost),
            before=max(units, self.room + 1),  # a record of a few messages may be larger than they are
            room=self.room,
            total=self.view.units,
            reason=UNREADABLE,
            rule="",
        )
        later = [event for event in effective_events(log) if event.seq > plan.last]
        resolved, inside, after = read_range(plan, [*lost, *later], has_drops=False)
        outcome = ledger_summary(
            SummarySource(plan=resolved, events=inside, after=after, counter=meter.counter, ratio=self.ratio)
        )
        text = outcome.summary if isinstance(outcome, Compacted) else header_line(plan, LEDGER_AUTHOR)
        return replace(
            _NO_RECORD,
            summary=text,
            # A later summary of a wider range does not find these messages in it, and takes over this text.
            chunks=(_body(text),),
            metrics=raw(replace(read_metrics(outcome), before=round(units * self.ratio))),
            written_from=_ranges(lost),
        )

    def _notice(self, item: ForeignSummary, seq: int) -> Compacted:
        """Return the notice that something is missing; none if messages in front of the item are shown again."""
        before = (step for step in self.view.steps if step.seq < seq and step.kind == "passed")
        is_known = any(not isinstance(step.utterance.fact, ForeignSummary) for step in before)
        return _NO_RECORD if is_known or item.text else replace(_NO_RECORD, summary=NOTHING_KNOWN)


_NO_RECORD: Final = Compacted(first=0, last=0, summary="", by=LEDGER_AUTHOR, reason=UNREADABLE)


def _rule(model: str, seq: int, item: ForeignSummary) -> str:
    return f"{model} cannot read {handle(seq)}{' as it is' if item.text else ''}"


def instead_text(fact: Compacted) -> str:
    """Return what is shown in the place of a summary that the model cannot read."""
    messages = sum(last - first + 1 for first, last in fact.written_from)
    if fact.summary.startswith(FOREIGN_SUMMARY_TITLE):
        return "its text is shown as a message" + (", with a record from the log" if messages else "")
    if messages:
        return f"a record of {messages:,} message{'s' * (messages != 1)} from the log is shown instead"
    if fact.summary:
        return "the log has nothing of what it stands for, and a notice says so"
    return "the messages that it stands for are shown again"


def unreadable_text(event: Event) -> str:
    """Return what is shown in the place of a summary, as a sentence for the user."""
    fact = event.fact
    assert isinstance(fact, Compacted)
    return (
        f"{fact.rule}, a summary that a provider made for another model or account: {instead_text(fact)} "
        f'({event.handle}); `undo("{event.handle}")` sends the summary again'
    )


def resent_warning(undone: AnyFact) -> str:
    """Return what to tell a user who has taken `undone` back: what a model cannot read is sent to it again. "" for
    anything else."""
    if not isinstance(undone, Compacted) or not undone.takes_item_back:
        return ""
    return f"{undone.rule}, and the next request has it again: the provider may refuse that request"


def _note(unreadable: Unreadable) -> str:
    things = [handle(seq) for seq in unreadable.items]
    if unreadable.leaves_out_thinking:
        things.append("earlier reasoning")
    said = f". The provider says: {unreadable.problem}" if unreadable.problem else ""
    return f"{unreadable.model} cannot read {', '.join(things)}{said}"


def _body(text: str) -> str:
    """Return a record without its first and last line, which say what it is."""
    return text.removesuffix(END_LINE).partition("\n")[2].strip()


def _is_dialogue(event: Event) -> bool:
    return type(event.fact) in DIALOGUE_TYPES


def _ranges(events: Sequence[Event]) -> Ranges:
    """Return the seqs of events as ranges without gaps."""
    found: list[tuple[int, int]] = []
    for event in events:
        if found and found[-1][1] == event.seq - 1:
            found[-1] = (found[-1][0], event.seq)
        else:
            found.append((event.seq, event.seq))
    return tuple(found)


# ── What the log has of it ───────────────────────────────────────────────────────────────────────────────


def lost_messages(log: Sequence[Event], item: Event) -> list[Event]:
    """Return the messages that a summary stands for and that no request shows: those that the caller left out when
    it passed the summary in. `log` is the whole log."""
    shown = [without_marks(e.fact) for e in effective_events(log) if isinstance(e.fact, UserSaid)]
    found = {event.seq: event for event in _left_out_with(log, item)}
    return [
        event
        for _, event in sorted(found.items())
        if not (isinstance(event.fact, UserSaid) and without_marks(event.fact) in shown)
    ]


def _left_out_with(log: Sequence[Event], item: Event) -> Iterator[Event]:
    rewind = next((e for e in reversed(log[: item.seq]) if isinstance(e.fact, Rewound)), None)
    if rewind is None or not isinstance(rewind.fact, Rewound) or not rewind.fact.keep_reductions:
        return  # only a shorter list keeps the reductions; the user takes back more
    to = rewind.fact.to
    gone = [event for event in effective_events(log[: rewind.seq]) if event.seq > to]
    resent = [e.fact for e in log[rewind.seq : item.seq] if isinstance(e.fact, MESSAGE_FACTS)]
    for event in gone[: _end_of_summarised(gone, resent, item)]:
        fact = event.fact
        if _is_dialogue(event):
            yield event
        elif isinstance(fact, ForeignSummary):
            yield from _left_out_with(log, event)
        elif isinstance(fact, Compacted) and fact.takes_item_back:
            yield from _left_out_with(log, log[fact.first])


def _end_of_summarised(gone: Sequence[Event], resent: Sequence[AnyFact], item: Event) -> int:
    """Return how many of the events that a list left out its item stands for: those before the same item, if the
    log has it already; all if messages were sent again; none if the list was edited before the item was made."""
    native = item.fact.native if isinstance(item.fact, ForeignSummary) else None
    same = (at for at, e in enumerate(gone) if isinstance(e.fact, ForeignSummary) and e.fact.native == native)
    made = next(same, None)
    if made is not None:
        return made + 1
    said = [without_marks(event.fact) for event in gone if isinstance(event.fact, MESSAGE_FACTS)]
    is_edited = resent and not any(without_marks(fact) in said for fact in resent)
    return 0 if is_edited else len(gone)
