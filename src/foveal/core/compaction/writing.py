"""The dialogue with those who can write summaries, as a generator: it yields what to ask, is sent what came back,
and returns the fact to record. Nothing here waits, so that two short drivers can run it, with and without a loop.

1. A writer whose provider has the conversation in its cache is asked there (`shared`).
2. Otherwise, or if that fails, the conversation is quoted (`cold`), in as many pieces as the writer's window needs.
   What was written about a piece is never rewritten: a later summary of a wider range is made of the same pieces.
3. Several pieces are joined if the room holds them, else merged by one more request; never in more than one level.
4. Each answer is checked, and asked for once more with its faults (`drafting`).
5. A request that was too large is made smaller, twice at most. Whatever else goes wrong, the next writer goes on
   with what is not yet written; after the last one the ledger, which needs nobody.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from math import ceil
from typing import Final, TypeAlias

from msgspec.structs import replace

from foveal.core.compaction import prompt, summary_text
from foveal.core.compaction.chunks import SourceChunk, chunks
from foveal.core.compaction.draft import (
    FAULTS,
    DraftRules,
    DraftTally,
    DraftWriter,
    Make,
    Talk,
    WriterCapacity,
)
from foveal.core.compaction.health import CompactionMeasures
from foveal.core.compaction.ledger.ledger import ledger
from foveal.core.compaction.plan import Plan, settled
from foveal.core.compaction.protocol import Ask, Failure, SummaryWriter
from foveal.core.compaction.summary_text import CODE, SummaryPart
from foveal.core.compaction.validation import DraftReading, KnownNames, score
from foveal.core.log.events import Compacted, CompactionFailed, Event, ModelSaid, ToolReturned, UserSaid, raw
from foveal.core.tokens.counter import Counter
from foveal.core.tokens.message_tokens import PER_MESSAGE

CompactionOutcome: TypeAlias = Compacted | CompactionFailed

MOST_CHUNKS: Final = 12
"""Pieces that a model is asked about; of a longer conversation the oldest part has a ledger only."""
LEAST: Final = 80
"""Units for a model's sections below which none is asked."""
SMALL: Final = 400
"""Units of a piece that may be as large as what it stands for: it is one of several."""


def dialogue(
    plan: Plan,
    events: Sequence[Event],
    *,
    writers: Sequence[SummaryWriter],
    counter: Counter,
    ratio: float = 1.0,
    prompt: str = "",
    shared_total: int = 0,
    earlier: Sequence[Compacted] = (),
    elsewhere: Set[str] = frozenset(),
    beside: Sequence[str] = (),
    after: Sequence[Event] = (),
) -> Talk[CompactionOutcome]:
    """Have the range of a plan summarised.

    `events` are those of the range that count, oldest first. `ratio` is tokens per unit, `shared_total` the tokens
    of the request as it stands. What models wrote for `earlier` summaries inside the range is used again. Names in
    `elsewhere` are shown outside of the range; so are the texts `beside` it (instructions, newer messages), whose
    names a summary may use as well. The events `after` the range may have settled what stands in it.
    """
    within = [event for event in events if plan.first <= event.seq <= plan.last]
    pieces = summary_text.reused(plan, within, earlier)
    also = (*beside, *(piece.text for piece in pieces), prompt, plan.focus)
    evidence = KnownNames(within, also=also, elsewhere=elsewhere)
    work = _Writing(plan, within, pieces, evidence, counter, ratio, prompt, after)
    if work.rules.most < LEAST and writers:
        work.tally.checks.append(f"a room of {plan.room:,} is too small to ask a model")
    elif writers:
        for number, writer in enumerate(writers):
            if (yield from work.by(DraftWriter(number, writer, work.rules, work.tally), shared_total)):
                break
    return work.outcome()


class _Writing:
    def __init__(
        self,
        plan: Plan,
        events: Sequence[Event],
        pieces: list[SummaryPart],
        evidence: KnownNames,
        counter: Counter,
        ratio: float,
        task: str,
        after: Sequence[Event],
    ) -> None:
        self.plan, self.events, self.pieces, self.task = plan, events, pieces, task
        self.after = after
        self.keep = frozenset(plan.keep)
        self.counter = counter
        self.rules = DraftRules(
            evidence=evidence,
            sections=prompt.sections(prompt.resolve(task)),
            most=summary_text.allowed(plan) // 2,
            hard=int(summary_text.allowed(plan) * 0.85),
            counter=counter,
            ratio=max(ratio, 0.01),
        )
        self.tally = DraftTally()
        self.merged = ""
        self.authors: list[str] = []

    def by(self, desk: DraftWriter, shared_total: int) -> Talk[bool]:
        """Whether this writer has brought the work to its end."""
        if desk.writer.shares_cache and shared_total and self.todo():
            yield from self._share(desk, shared_total)
        done = (not self.todo() or (yield from self._read(desk))) and (yield from self._merge(desk))
        if not done:
            self.pieces = [piece for piece in self.pieces if piece.model]  # the next one may do better
        return done

    def todo(self) -> list[Event]:
        """The events that nothing has been written about."""
        done = frozenset[int]().union(*(piece.seqs for piece in self.pieces))
        told = (event for event in self.events if isinstance(event.fact, UserSaid | ModelSaid | ToolReturned))
        return [event for event in told if event.seq not in done]

    def add(self, events: Sequence[Event], text: str, author: str = "") -> None:
        """A piece by a model, or a ledger."""
        seqs = frozenset(event.seq for event in events)
        self.pieces.append(SummaryPart(events[-1].seq, seqs, text, model=bool(author)))
        self.pieces.sort(key=lambda piece: piece.last)
        self.authors += [author] if author else []

    # ── inside the conversation ──

    def _share(self, desk: DraftWriter, total: int) -> Talk[None]:
        asked = prompt.shared(self.task, most=self.rules.most, focus=self.plan.focus)
        size = desk.size("")
        needed = total + ceil((self.counter.count(asked) + FAULTS) * desk.ratio)
        if size is None or needed > desk.writer.model.input_limit(size.max_tokens):
            return

        def make(faults: Sequence[str]) -> Ask:
            text = prompt.shared(self.task, most=size.most, focus=self.plan.focus, faults=faults)
            return desk.ask(size, "shared", text, stage="summary")

        got = yield from desk.written(make, most=size.most, before=self.plan.before)
        if isinstance(got, DraftReading):
            self.add(self.todo(), got.text, desk.name)
        elif isinstance(got, Failure) and got.overflow and got.limit:
            desk.window = min(desk.window, got.limit)

    # ── quoted ──

    def _read(self, desk: DraftWriter) -> Talk[bool]:
        """Whether there is now something about every event."""
        system = prompt.cold(self.task, most=self.rules.most, focus=self.plan.focus)
        around = system + prompt.quoting("", first=self.plan.first, last=self.plan.last, most=1, kept=True)
        while size := desk.size(around):
            failure = yield from self._read_all(desk, size)
            if failure is None:
                return True
            if not desk.narrow(failure):
                return False
        return False

    def _read_all(self, desk: DraftWriter, size: WriterCapacity) -> Talk[Failure | None]:
        pieces = chunks(self.todo(), room=size.room, counter=self.counter, keep=self.keep)
        if oldest := [event for chunk in pieces[:-MOST_CHUNKS] for event in chunk.events]:
            self._tell(oldest)
        pieces = pieces[-MOST_CHUNKS:]
        missed = 0
        for place, chunk in enumerate(pieces, 1):
            got = yield from self._piece(desk, size, chunk, (place, len(pieces)))
            if isinstance(got, Failure):
                return got
            if isinstance(got, DraftReading):
                self.add(chunk.events, got.text, desk.name)
                continue
            missed += 1
            if len(pieces) == 1 or missed == place == 2:
                return Failure(problem="its answers cannot be used")
            self._tell(chunk.events)
        return None

    def _piece(
        self, desk: DraftWriter, size: WriterCapacity, chunk: SourceChunk, part: tuple[int, int]
    ) -> Talk[DraftReading | Failure | None]:
        alone = part[1] == 1 and not self.pieces
        most = size.most if alone else min(size.most, max(LEAST, chunk.units // 2))
        system = prompt.cold(self.task, most=most, focus=self.plan.focus)
        kept = any(event.seq in self.keep for event in chunk.events)

        def make(faults: Sequence[str]) -> Ask:
            text = prompt.quoting(
                chunk.text, first=chunk.first, last=chunk.last, most=most, part=part, kept=kept, faults=faults
            )
            stage = "summary" if part[1] == 1 else f"part {part[0]} of {part[1]}"
            return desk.ask(size, "cold", text, system=system, stage=stage)

        before = self.plan.before if alone else max(chunk.units, SMALL)
        return (yield from desk.written(make, most=most, before=before))

    def _tell(self, events: Sequence[Event]) -> None:
        """The ledger of a piece, for want of better."""
        room = min(SMALL, self.rules.most)
        self.add(events, ledger(events, room=room, counter=self.counter, keep=self.keep))

    # ── put together ──

    def _most(self) -> int:
        several = sum(piece.model for piece in self.pieces) > 1
        return self.rules.most if several else self.rules.hard

    def _merge(self, desk: DraftWriter) -> Talk[bool]:
        """Whether the pieces have become one text that fits, or fit as they are."""
        whole = summary_text.concatenated(self.pieces, most=10**9, counter=self.counter)
        if self.counter.count(whole) <= self._most():
            return bool(whole)
        records = [piece.text for piece in self.pieces if piece.text]
        system = prompt.merging(self.task, most=self.rules.most, focus=self.plan.focus)
        while size := desk.size(system):
            make = self._merging(desk, size, system, records)
            got = yield from desk.written(make, most=size.most, before=self.plan.before)
            if isinstance(got, DraftReading):
                self.merged = got.text
                self.authors.append(desk.name)
                return True
            if got is None or not desk.narrow(got):
                return False
        return False

    def _merging(self, desk: DraftWriter, size: WriterCapacity, system: str, records: Sequence[str]) -> Make:
        room = size.room - 12 * len(records)
        short = summary_text.shares(records, room=int(room * 0.9), counter=self.counter)

        def make(faults: Sequence[str]) -> Ask:
            text = prompt.quoting_records(short, most=size.most, faults=faults)
            return desk.ask(size, "cold", text, system=system, stage="merge")

        return make

    # ── the end ──

    def outcome(self) -> CompactionOutcome:
        """The fact to record: with what was written, with the ledger alone, or that neither is small enough."""
        by = ", ".join(dict.fromkeys(self.authors)) or CODE
        sections = self.merged or summary_text.concatenated(
            self.pieces, most=self._most(), counter=self.counter
        )
        summary = self._text(by, sections)
        if not summary:
            by = CODE
            summary = self._text(CODE, "") or summary_text.bare(
                self.plan, self.events, counter=self.counter, after=self.after
            )
        plan = self.plan
        metrics = raw(self._measures(summary))
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
            chunks=self._recorded(),
            by=by,
            metrics=metrics,
            reason=plan.reason,
            rule=plan.rule,
        )

    def _text(self, by: str, sections: str) -> str:
        return summary_text.composed(
            self.plan,
            self.events,
            by=by,
            sections=sections,
            counter=self.counter,
            elsewhere=self.rules.evidence.elsewhere,
            after=self.after,
        )

    def _recorded(self) -> tuple[str, ...]:
        """The texts to put a later summary together from; none when no model wrote any: it shall read anew."""
        if not any(piece.model for piece in self.pieces):
            return ()
        if rest := self.todo():
            self._tell(rest)
        return tuple(piece.text for piece in self.pieces if piece.text)

    def _measures(self, summary: str) -> CompactionMeasures:
        plan, ratio = self.plan, self.rules.ratio
        after = self.counter.count(summary) + PER_MESSAGE if summary else 0
        return replace(
            self.tally.measures(),
            turns=plan.turns,
            events=plan.events,
            before=round(plan.before * ratio),
            after=round(after * ratio),
            chunks=len(self.pieces),
            score=score(summary, self.rules.evidence) if summary else None,
        )


# ── unasked ───────────────────────────────────────────────────────────────────────────────────────
# A summary that no model is asked for: the ledger, which always succeeds.


def ledger_summary(
    plan: Plan,
    events: Sequence[Event],
    *,
    counter: Counter,
    ratio: float,
    elsewhere: Set[str] = frozenset(),
) -> CompactionOutcome:
    """The outcome of a plan without a model; `events` are those that count, from its beginning or before."""
    # most conversations never get here

    made = settled(plan, events)
    inside = [event for event in events if made.first <= event.seq <= made.last]
    after = [event for event in events if event.seq > made.last]
    try:
        next(
            dialogue(made, inside, writers=(), counter=counter, ratio=ratio, elsewhere=elsewhere, after=after)
        )
    except StopIteration as done:
        outcome: CompactionOutcome = done.value
        return outcome
    raise AssertionError("nobody was there to be asked")
