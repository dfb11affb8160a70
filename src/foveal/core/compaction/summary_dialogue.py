"""Writing a summary, as a generator that yields requests and is sent replies.

The generator returns the fact to record. It never waits, so short drivers run it without an event loop
(`summariser.run_dialogue`) and with it (`sessions.background_compaction`).

1. A provider that compacts conversations itself may be asked to do so (`native`). The ledger is written beside it.
   Other writers follow if it fails. A writer whose provider has the conversation in its cache is asked inside the
   conversation (`shared`).
2. Otherwise, or if that fails, the conversation is quoted (`cold`), in as many chunks as the writer's window needs.
   The text about a chunk is never rewritten: a later summary of a wider range is made of the same parts.
3. Several parts are joined if the room holds them, else merged by one more request, never in more than one level.
4. Each draft is validated, and requested once more with its faults (`draft_requests`).
5. A request that was too large is made smaller, at most twice. After any other failure the next writer continues
   with what is not yet written, and after the last writer the ledger, which needs no model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence, Set
from math import ceil
from operator import attrgetter
from typing import Final

from msgspec import UNSET, Raw
from msgspec.structs import replace

from foveal.core.compaction import summary_prompt, summary_text
from foveal.core.compaction.chunks import (
    TranscriptChunk,
    TranscriptSizer,
    newest_for_chunks,
    split_transcript,
)
from foveal.core.compaction.draft_requests import (
    FAULT_LIST_UNITS,
    DraftRequester,
    DraftTally,
    RequestBuilder,
    WriterCapacity,
)
from foveal.core.compaction.health import CompactionMetrics, CompactionOutcome
from foveal.core.compaction.known_names import KnownNames, score_summary
from foveal.core.compaction.ledger.ledger import Ledger
from foveal.core.compaction.ledger.range_facts import LedgerIndex
from foveal.core.compaction.plan import Plan, events_within, resolve_plan
from foveal.core.compaction.prompt_overlap import PromptPhrases
from foveal.core.compaction.requested_drops import without_requested_drops
from foveal.core.compaction.summariser_protocol import Dialogue, DraftFailure, DraftRequest, SummaryWriter
from foveal.core.compaction.summary_text import LEDGER_AUTHOR, SummaryPart
from foveal.core.compaction.validation import DraftRules, ValidatedDraft
from foveal.core.log.events import DIALOGUE_TYPES, Compacted, CompactionFailed, Dialect, Event, raw
from foveal.core.tokens.counter import Counter
from foveal.core.tokens.message_tokens import PER_MESSAGE

MAX_CHUNKS: Final = 12
"""Chunks that a model is asked about; the oldest part of a longer conversation has only a ledger."""
SECTIONS_SHARE: Final = 0.5
"""Share of a summary's text that a model is asked for."""
MAX_SECTIONS_SHARE: Final = 0.85
"""Share of a summary's text that a model's sections may take."""
MIN_SECTION_UNITS: Final = 80
"""With fewer units for a model's sections, no model is asked."""
SMALL_PART_UNITS: Final = 400
"""Up to this size the text about one of several chunks may be as large as the chunk."""
_UNLIMITED: Final = 10**9
_seq = attrgetter("seq")


def summary_dialogue(
    plan: Plan,
    events: Sequence[Event],
    *,
    writers: Sequence[SummaryWriter],
    counter: Counter,
    ratio: float = 1.0,
    margin: float = 0.0,
    prompt: str = "",
    shared_total: int = 0,
    earlier: Sequence[Compacted] = (),
    elsewhere: Set[str] = frozenset(),
    beside: Sequence[str] = (),
    before: Sequence[Event] = (),
    after: Sequence[Event] = (),
    index: LedgerIndex | None = None,
) -> Dialogue[CompactionOutcome]:
    """Write the summary of a plan's range.

    `events` are the effective events of the range, oldest first. `ratio` is tokens per unit, `margin` the share
    of the window by which counts may be too low, `shared_total` the tokens of the conversation's request up to
    the end of the range. What models wrote for `earlier` summaries inside the range is used again. Names in
    `elsewhere` are shown outside of the range. So are the texts `beside` it
    (instructions, newer messages), and a summary may use their names as well. A draft is in a script of the
    range or of the messages `before` and `after` it. The events `after` it may also have answered a request or
    resolved an error inside it. The `index` has what earlier ledgers have read.
    """
    inside = events_within(events, plan.first, plan.last)
    parts = summary_text.reuse_parts(plan, inside, earlier)
    also = (*beside, *(part.text for part in parts), prompt, plan.focus)
    known = KnownNames(inside, also=also, elsewhere=elsewhere)
    conversation = (*before, *inside, *after) if writers else ()
    # Without a writer, the texts of earlier summaries are used again as they are.
    authors = [fact.by for fact in earlier if fact.chunks] if parts and not writers else []
    work = _SummaryInProgress(
        plan, inside, parts, known, conversation, counter, ratio, margin, prompt, after, authors, index
    )
    if work.rules.max_units < MIN_SECTION_UNITS and writers:
        work.tally.note_small_room(plan.room)
    elif writers:
        for place, writer in enumerate(writers):
            requester = DraftRequester(place, writer, work.rules, work.tally)
            write = work.compact_natively if writer.is_native else work.complete
            if (yield from write(requester, shared_total)):
                break
    return work.outcome()


def ledger_summary(
    plan: Plan,
    events: Sequence[Event],
    *,
    counter: Counter,
    ratio: float,
    earlier: Sequence[Compacted] = (),
    elsewhere: Set[str] = frozenset(),
    index: LedgerIndex | None = None,
    has_drops: bool = True,
) -> CompactionOutcome:
    """Return the outcome of a plan without a model: the ledger, with what models wrote for `earlier` summaries.

    `events` are the effective events, from any place at or before the range. Names in `elsewhere` are
    shown outside of it. The `index` has what earlier ledgers have read. Where no event is a
    drop, `has_drops=False` saves the search for drops that the user requested."""
    events = without_requested_drops(events) if has_drops else events
    resolved = resolve_plan(plan, events, index)
    inside = events_within(events, resolved.first, resolved.last)
    dialogue = summary_dialogue(
        resolved,
        inside,
        writers=(),
        counter=counter,
        ratio=ratio,
        earlier=earlier,
        elsewhere=elsewhere,
        after=events[bisect_right(events, resolved.last, key=_seq) :],
        index=index,
    )
    try:
        next(dialogue)
    except StopIteration as done:
        outcome: CompactionOutcome = done.value
        return outcome
    raise AssertionError("a dialogue without writers makes no request")


class _SummaryInProgress:
    """The parts written so far, and what is still to be written."""

    def __init__(
        self,
        plan: Plan,
        events: Sequence[Event],
        parts: list[SummaryPart],
        known: KnownNames,
        conversation: Sequence[Event],
        counter: Counter,
        ratio: float,
        margin: float,
        prompt: str,
        after: Sequence[Event],
        authors: list[str],
        index: LedgerIndex | None,
    ) -> None:
        self.plan, self.events, self.parts, self.prompt = plan, events, parts, prompt
        self.after = after
        self.keep = frozenset(plan.keep)
        self.counter = counter
        self.rules = DraftRules(
            known=known,
            conversation=conversation,
            instructions=PromptPhrases(
                [prompt], built_in=[*summary_prompt.prompt_parts().values(), summary_text.END_LINE]
            ),
            sections=summary_prompt.required_sections(summary_prompt.resolve_task(prompt)),
            max_units=int(summary_text.max_text_units(plan) * SECTIONS_SHARE),
            max_accepted_units=int(summary_text.max_text_units(plan) * MAX_SECTIONS_SHARE),
            counter=counter,
            ratio=max(ratio, 0.01),
            margin=margin,
        )
        self.tally = DraftTally()
        self.merged = ""
        self.authors = authors
        self.index = index
        self.native: Raw | None = None
        """The compaction that the provider made."""
        self.native_author = ""
        self.native_dialect: Dialect = ""

    def complete(self, requester: DraftRequester, shared_total: int) -> Dialogue[bool]:
        """Ask one writer for all that is missing; return whether the summary is complete."""
        if requester.writer.shares_cache and shared_total and self.unwritten():
            yield from self._write_shared(requester, shared_total)
        done = (not self.unwritten() or (yield from self._write_chunks(requester))) and (
            yield from self._merge(requester)
        )
        if not done:
            # The next writer may do better than a ledger.
            self.parts = [part for part in self.parts if part.model]
        return done

    def compact_natively(self, requester: DraftRequester, shared_total: int) -> Dialogue[bool]:
        """Ask the provider for its own compaction; return whether it made one."""
        capacity = requester.shared_capacity(shared_total)
        if capacity is None:
            requester.tally.note(requester.writer, "the conversation leaves no room for a compaction")
            return False
        request = requester.build(capacity, "native", self.plan.focus, stage="summary")
        reply = yield from requester.request(request)
        if isinstance(reply, DraftFailure):
            return False
        if reply.native is None:
            requester.tally.note(requester.writer, "the provider's compaction is empty")
            return False
        self.native, self.native_dialect = reply.native, requester.writer.dialect
        self.parts, self.native_author = [], requester.label
        return True

    def unwritten(self) -> list[Event]:
        """Return the events that no part covers."""
        done = frozenset[int]().union(*(part.seqs for part in self.parts))
        return [e for e in self.events if type(e.fact) in DIALOGUE_TYPES and e.seq not in done]

    def add(self, events: Sequence[Event], text: str, author: str = "") -> None:
        """Add a part written by a model, or a ledger when `author` is empty."""
        seqs = frozenset(event.seq for event in events)
        self.parts.append(SummaryPart(events[-1].seq, seqs, text, model=bool(author)))
        self.parts.sort(key=lambda part: part.last)
        self.authors += [author] if author else []

    # ── Inside the conversation ──

    def _write_shared(self, requester: DraftRequester, total: int) -> Dialogue[None]:
        message = summary_prompt.shared_message(
            self.prompt, max_units=self.rules.max_units, focus=self.plan.focus
        )
        frame = ceil((self.counter.count(message) + FAULT_LIST_UNITS) * requester.ratio)
        capacity = requester.shared_capacity(total + frame)
        if capacity is None:
            return

        def build(faults: Sequence[str]) -> DraftRequest:
            text = summary_prompt.shared_message(
                self.prompt, max_units=capacity.max_units, focus=self.plan.focus, faults=faults
            )
            return requester.build(capacity, "shared", text, stage="summary")

        draft = yield from requester.request_valid(
            build, max_units=capacity.max_units, before=self.plan.before
        )
        if isinstance(draft, ValidatedDraft):
            self.add(self.unwritten(), draft.text, requester.label)
        elif isinstance(draft, DraftFailure) and draft.overflow and draft.limit:
            requester.limit_window(draft.limit)

    # ── Quoted, in chunks ──

    def _write_chunks(self, requester: DraftRequester) -> Dialogue[bool]:
        """Return whether every event is now covered by a part."""
        system = summary_prompt.cold_system(
            self.prompt, max_units=self.rules.max_units, focus=self.plan.focus
        )
        message = summary_prompt.cold_message(
            "", first=self.plan.first, last=self.plan.last, max_units=1, kept=True
        )
        while capacity := requester.capacity(system + message):
            failure = yield from self._write_all_chunks(requester, capacity)
            if failure is None:
                return True
            if not requester.shrink(failure):
                return False
        return False

    def _write_all_chunks(
        self, requester: DraftRequester, capacity: WriterCapacity
    ) -> Dialogue[DraftFailure | None]:
        unwritten, room = self.unwritten(), capacity.room
        sizer = TranscriptSizer(room, self.counter, self.keep)
        newest = newest_for_chunks(
            unwritten, room=room, chunks=MAX_CHUNKS, counter=self.counter, keep=self.keep, sizer=sizer
        )
        chunks = split_transcript(newest, room=room, counter=self.counter, keep=self.keep, sizer=sizer)
        del sizer  # it holds all quoted texts, which the requests do not need
        beyond = [event for chunk in chunks[:-MAX_CHUNKS] for event in chunk.events]
        if oldest := [*unwritten[: len(unwritten) - len(newest)], *beyond]:
            self._add_ledger(oldest, self.index)
        chunks = chunks[-MAX_CHUNKS:]
        missed = 0
        for number, chunk in enumerate(chunks, 1):
            draft = yield from self._write_chunk(requester, capacity, chunk, (number, len(chunks)))
            if isinstance(draft, DraftFailure):
                return draft
            if isinstance(draft, ValidatedDraft):
                self.add(chunk.events, draft.text, requester.label)
                continue
            missed += 1
            # A writer that fails at the only chunk, or at the first two, will fail at the others.
            if len(chunks) == 1 or missed == number == 2:
                return DraftFailure(problem="its answers cannot be used")
            self._add_ledger(chunk.events, self.index)
        return None

    def _write_chunk(
        self,
        requester: DraftRequester,
        capacity: WriterCapacity,
        chunk: TranscriptChunk,
        position: tuple[int, int],
    ) -> Dialogue[ValidatedDraft | DraftFailure | None]:
        number, count = position
        is_alone = count == 1 and not self.parts
        max_units = capacity.max_units
        if not is_alone:
            max_units = min(max_units, max(MIN_SECTION_UNITS, chunk.units // 2))
        system = summary_prompt.cold_system(self.prompt, max_units=max_units, focus=self.plan.focus)
        kept = any(event.seq in self.keep for event in chunk.events)

        def build(faults: Sequence[str]) -> DraftRequest:
            text = summary_prompt.cold_message(
                chunk.text,
                first=chunk.first,
                last=chunk.last,
                max_units=max_units,
                part=position,
                kept=kept,
                faults=faults,
            )
            stage = "summary" if count == 1 else f"part {number} of {count}"
            return requester.build(capacity, "cold", text, system=system, stage=stage)

        before = self.plan.before if is_alone else max(chunk.units, SMALL_PART_UNITS)
        return (yield from requester.request_valid(build, max_units=max_units, before=before))

    def _add_ledger(self, events: Sequence[Event], index: LedgerIndex | None = None) -> None:
        """Cover events with a ledger, because no model wrote about them. What it reads is kept in the `index`, if
        that is one of this summary alone: the events need not be consecutive."""
        room = min(SMALL_PART_UNITS, self.rules.max_units)
        ledger = Ledger(events, keep=self.keep, index=index)
        self.add(events, ledger.write(room=room, counter=self.counter))

    # ── Joining and merging ──

    def _max_joined_units(self) -> int:
        is_several = sum(part.model for part in self.parts) > 1
        return self.rules.max_units if is_several else self.rules.max_accepted_units

    def _merge(self, requester: DraftRequester) -> Dialogue[bool]:
        """Merge the parts into one text if they do not fit as they are; return whether they fit now."""
        whole = summary_text.join_parts(self.parts, max_units=_UNLIMITED, counter=self.counter)
        if self.counter.count(whole) <= self._max_joined_units():
            return bool(whole)
        records = [part.text for part in self.parts if part.text]
        system = summary_prompt.merge_system(
            self.prompt, max_units=self.rules.max_units, focus=self.plan.focus
        )
        while capacity := requester.capacity(system):
            build = self._merge_request_builder(requester, capacity, system, records)
            draft = yield from requester.request_valid(
                build, max_units=capacity.max_units, before=self.plan.before
            )
            if isinstance(draft, ValidatedDraft):
                self.merged = draft.text
                self.authors.append(requester.label)
                return True
            if draft is None or not requester.shrink(draft):
                return False
        return False

    def _merge_request_builder(
        self, requester: DraftRequester, capacity: WriterCapacity, system: str, records: Sequence[str]
    ) -> RequestBuilder:
        room = capacity.room - 12 * len(records)
        short = summary_text.shorten_texts(records, room=int(room * 0.9), counter=self.counter)

        def build(faults: Sequence[str]) -> DraftRequest:
            text = summary_prompt.merge_message(short, max_units=capacity.max_units, faults=faults)
            return requester.build(capacity, "cold", text, system=system, stage="merge")

        return build

    # ── Outcome ──

    def outcome(self) -> CompactionOutcome:
        """Return the fact to record: a summary by models, the ledger alone, or a failure if neither fits."""
        by = ", ".join(dict.fromkeys(self.authors)) or LEDGER_AUTHOR
        sections = self.merged or summary_text.join_parts(
            self.parts, max_units=self._max_joined_units(), counter=self.counter
        )
        summary = self._compose(by, sections)
        if not summary:
            by = LEDGER_AUTHOR
            summary = self._compose(LEDGER_AUTHOR, "") or summary_text.compose_ledger_only(
                self.plan, self.events, counter=self.counter, after=self.after, index=self.index
            )
        plan = self.plan
        by = self.native_author or by
        metrics = raw(self._metrics(summary, by=by))
        if not summary:
            sizes = [f"{round(units * self.rules.ratio):,}" for units in (plan.before, plan.room)]
            problem = f"the range takes {sizes[0]} tokens, and no summary of it fits into {sizes[1]}"
            return CompactionFailed(
                first=plan.first, last=plan.last, problem=problem, by=by, metrics=metrics, reason=plan.reason
            )
        return Compacted(
            first=plan.first,
            last=plan.last,
            summary=summary,
            keep=plan.keep,
            masks=plan.masks,
            chunks=self._part_texts(),
            native=UNSET if self.native is None else self.native,
            dialect=self.native_dialect,
            by=by,
            metrics=metrics,
            reason=plan.reason,
            rule=plan.rule,
        )

    def _compose(self, by: str, sections: str) -> str:
        return summary_text.compose(
            self.plan,
            self.events,
            by=by,
            sections=sections,
            counter=self.counter,
            elsewhere=self.rules.known.elsewhere,
            after=self.after,
            index=self.index,
        )

    def _part_texts(self) -> tuple[str, ...]:
        """Return the texts for a later summary to reuse; none if no model wrote any: it then reads the events."""
        if not any(part.model for part in self.parts):
            return ()
        if rest := self.unwritten():
            self._add_ledger(rest)
        return tuple(part.text for part in self.parts if part.text)

    def _metrics(self, summary: str, *, by: str) -> CompactionMetrics:
        plan, ratio = self.plan, self.rules.ratio
        after = self.counter.count(summary) + PER_MESSAGE if summary else 0
        return replace(
            self.tally.metrics(),
            failures=tuple(one for one in self.tally.failures.values() if one.by not in by.split(", ")),
            turns=plan.turns,
            events=plan.events,
            before=round(plan.before * ratio),
            after=round(after * ratio),
            chunks=len(self.parts),
            # The score judges a model; the ledger is derived from the log, and a cut has to be fast.
            score=score_summary(summary, self.rules.known) if summary and self.authors else None,
        )
