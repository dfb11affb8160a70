"""Writing a summary with models, as a generator that yields requests and is sent replies.

Without a model, `summary.ledger_summary` writes it. The generator returns the fact to record. It never waits, so
short drivers run it without an event loop (`summariser.run_dialogue`) and with one
(`sessions.background_compaction`).

1. A provider that compacts conversations itself may be asked to do so (`native`). The ledger is written beside it.
   Other writers follow if it fails. A writer whose provider has the conversation in its cache is asked inside the
   conversation (`shared`).
2. Otherwise, or if that fails, the conversation is quoted (`cold`), in as many chunks as the writer's window needs.
   The text about a chunk is never rewritten: a later summary of a wider range is made of the same parts.
3. Several parts are joined if the room holds them, else merged by one more request, never in more than one level.
4. Each draft is validated, and requested once more with its faults (`draft_requests`).
5. A request that was too large is made smaller, at most twice. After any other failure the next writer continues
   with what is not yet written, and after the last writer the ledger, which needs no model.

The prompts are built from the texts in `md`. A user's own prompt replaces the task: what to write and under which
headings. How the conversation is quoted, that nothing in it is an instruction, and how a reply ends are always the
built-in texts, so every reply can be validated. `{words}` and `{focus}` in a user's prompt are filled in; a missing
one is added at its end.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Final

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
from foveal.core.compaction.health import CompactionOutcome
from foveal.core.compaction.known_names import KnownNames
from foveal.core.compaction.summariser_protocol import Dialogue, DraftFailure, DraftRequest, SummaryWriter
from foveal.core.compaction.summary import (
    END_LINE,
    SMALL_PART_UNITS,
    NativeSummary,
    SummaryPart,
    SummarySource,
    in_order,
    join_parts,
    ledger_part,
    max_joined_units,
    record,
    reuse_parts,
    shorten_texts,
    unwritten,
)
from foveal.core.compaction.validation import DraftRules, PromptPhrases, ValidatedDraft, neutralise
from foveal.core.log.events import Event, handle

MAX_FOCUS_CHARS: Final = 2_000
"""Characters of the user's focus that the prompt shows."""
WORDS_PER_UNIT: Final = 0.6
"""An English word takes 1.3 tokens; models keep to a limit when asked for a little less than is allowed."""
MIN_WORDS: Final = 40

_PART_TITLE: Final = re.compile(r"^=== ([a-z ]+) ===\n", re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"\{(words|focus|range|part|parts|faults)\}")
_HEADING: Final = re.compile(r"^##\s+(\S.*?)\s*$", re.MULTILINE)


@functools.cache
def prompt_parts() -> Mapping[str, str]:
    """Return the texts of `md` by name."""
    from importlib.resources import files  # slow to import, and needed only once

    text = files("foveal.core.compaction").joinpath("summary_prompt.md").read_text("utf-8")
    titles_and_texts = _PART_TITLE.split(text)[1:]
    pairs = zip(titles_and_texts[::2], titles_and_texts[1::2], strict=True)
    return {title: part.strip() for title, part in pairs}


def resolve_task(prompt: str) -> str:
    """Return the user's task or the default one, with all placeholders."""
    task = prompt.strip() or prompt_parts()["task"]
    if "{words}" not in task:
        task += "\n\n" + prompt_parts()["limit"]
    if "{focus}" not in task:
        task += "\n\n{focus}"
    if "</summary>" not in task:
        task += "\n\n" + prompt_parts()["closing"]
    return task


def required_sections(task: str) -> tuple[str, ...]:
    """Return the headings that a task asks for."""
    return tuple(dict.fromkeys(_HEADING.findall(task)))


def word_limit(units: int) -> int:
    """Return how many words to ask for when `units` are allowed."""
    return max(MIN_WORDS, int(units * WORDS_PER_UNIT) // 10 * 10)


def task_text(prompt: str, *, max_units: int, focus: str = "") -> str:
    """Return the task: what to write, in at most `max_units` units."""
    wish = fill_part("focus", focus=_quote_focus(focus)) if focus.strip() else ""
    return re.sub(
        r"\n{3,}", "\n\n", _fill(resolve_task(prompt), words=str(word_limit(max_units)), focus=wish)
    ).strip()


def cold_system(prompt: str, *, max_units: int, focus: str = "") -> str:
    """Return the system text for a conversation that is quoted in the only message."""
    return f"{task_text(prompt, max_units=max_units, focus=focus)}\n\n{prompt_parts()['cold']}"


def merge_system(prompt: str, *, max_units: int, focus: str = "") -> str:
    """Return the system text for merging several summaries into one."""
    return f"{task_text(prompt, max_units=max_units, focus=focus)}\n\n{prompt_parts()['merge']}"


def shared_message(prompt: str, *, max_units: int, focus: str = "", faults: Sequence[str] = ()) -> str:
    """Return the message to add to the unquoted conversation."""
    texts = [
        prompt_parts()["shared"],
        task_text(prompt, max_units=max_units, focus=focus),
        _fault_list(faults),
    ]
    return "\n\n".join(filter(None, texts))


def cold_message(
    transcript: str,
    *,
    span: tuple[int, int],
    max_units: int,
    part: tuple[int, int] = (1, 1),
    kept: bool = False,
    faults: Sequence[str] = (),
) -> str:
    """Return the message that quotes a conversation, or a part of it: that of the seqs of the `span`."""
    texts = [
        fill_part("begin", range=" to ".join(map(handle, span))),
        fill_part("part", part=str(part[0]), parts=str(part[1])) if part[1] > 1 else "",
        prompt_parts()["kept"] if kept else "",
        transcript,
        fill_part("end", words=str(word_limit(max_units))),
        _fault_list(faults),
    ]
    return "\n\n".join(filter(None, texts))


def merge_message(records: Sequence[str], *, max_units: int, faults: Sequence[str] = ()) -> str:
    """Return the message that quotes the summaries of consecutive parts, oldest first."""
    texts = [
        "\n".join((f"[record {number} of {len(records)}]", *(f"> {line}" for line in record.splitlines())))
        for number, record in enumerate(records, 1)
    ]
    return "\n\n".join(
        filter(None, [*texts, fill_part("merge end", words=str(word_limit(max_units))), _fault_list(faults)])
    )


def fill_part(name: str, **values: str) -> str:
    return _fill(prompt_parts()[name], **values)


def _fill(text: str, **values: str) -> str:
    """Fill in all placeholders at once, so that inserted text is not searched for placeholders."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def _quote_focus(focus: str) -> str:
    text = neutralise(focus.strip())
    short = text if len(text) <= MAX_FOCUS_CHARS else text[: MAX_FOCUS_CHARS - 1] + "…"
    return "\n".join(f"> {line}" for line in short.splitlines())


def _fault_list(faults: Sequence[str]) -> str:
    return fill_part("faults", faults="\n".join(f"- {fault[:900]}" for fault in faults)) if faults else ""


MAX_CHUNKS: Final = 12
"""Chunks that a model is asked about; the oldest part of a longer conversation has only a ledger."""
MIN_SECTION_UNITS: Final = 80
"""With fewer units for a model's sections, no model is asked."""
_UNLIMITED: Final = 10**9


def summary_dialogue(
    source: SummarySource, writers: Sequence[SummaryWriter], *, prompt: str = ""
) -> Dialogue[CompactionOutcome]:
    """Write the summary of a range with the first of the writers that succeeds; `prompt` is the user's own."""
    work = _SummaryInProgress(source, prompt)
    if source.sections_units < MIN_SECTION_UNITS:
        work.tally.note_small_room(source.plan.room)
    else:
        for place, writer in enumerate(writers):
            requester = DraftRequester(place, writer, source, work.rules, work.tally)
            if (
                yield from work.compact_natively(requester) if writer.is_native else work.complete(requester)
            ):
                break
    return work.outcome()


class _SummaryInProgress:
    """The parts written so far, and what is still to be written."""

    def __init__(self, source: SummarySource, prompt: str) -> None:
        self.source, self.plan, self.counter, self.prompt = source, source.plan, source.counter, prompt
        self.keep = frozenset(source.plan.keep)
        self.parts: list[SummaryPart] = reuse_parts(source)
        also = (*source.beside, *(part.text for part in self.parts), prompt, source.plan.focus)
        self.rules = DraftRules(
            known=KnownNames(source.events, also=also, elsewhere=source.elsewhere),
            conversation=(*source.before, *source.events, *source.after),
            instructions=PromptPhrases([prompt], built_in=[*prompt_parts().values(), END_LINE]),
            sections=required_sections(resolve_task(prompt)),
            max_units=source.sections_units,
            max_accepted_units=source.max_sections_units,
            counter=source.counter,
        )
        self.tally = DraftTally()
        self.merged = ""
        self.authors: list[str] = []
        self.native: NativeSummary | None = None

    def complete(self, requester: DraftRequester) -> Dialogue[bool]:
        """Ask one writer for all that is missing; return whether the summary is complete."""
        if requester.writer.shares_cache and self.source.shared_total and self.unwritten():
            yield from self._write_shared(requester)
        done = (not self.unwritten() or (yield from self._write_chunks(requester))) and (
            yield from self._merge(requester)
        )
        if not done:
            # The next writer may do better than a ledger.
            self.parts = [part for part in self.parts if part.model]
        return done

    def compact_natively(self, requester: DraftRequester) -> Dialogue[bool]:
        """Ask the provider for its own compaction; return whether it made one."""
        capacity = requester.shared_capacity(self.source.shared_total)
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
        self.native = NativeSummary(reply.native, requester.label, requester.writer.dialect)
        self.parts = []
        return True

    def unwritten(self) -> list[Event]:
        """Return the events that no part covers."""
        return unwritten(self.source, self.parts)

    def add(self, events: Sequence[Event], text: str, author: str) -> None:
        """Add a part that a model wrote."""
        part = SummaryPart(events[-1].seq, frozenset(event.seq for event in events), text)
        self.parts = in_order([*self.parts, part])
        self.authors.append(author)

    def add_ledger(self, events: Sequence[Event]) -> None:
        """Cover events with a ledger, because no model wrote about them."""
        self.parts = in_order([*self.parts, ledger_part(self.source, events, self.source.index)])

    # ── Inside the conversation ──

    def _write_shared(self, requester: DraftRequester) -> Dialogue[None]:
        message = shared_message(self.prompt, max_units=self.rules.max_units, focus=self.plan.focus)
        frame = ceil((self.counter.count(message) + FAULT_LIST_UNITS) * requester.ratio)
        capacity = requester.shared_capacity(self.source.shared_total + frame)
        if capacity is None:
            return

        def build(faults: Sequence[str]) -> DraftRequest:
            text = shared_message(
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
        system = cold_system(self.prompt, max_units=self.rules.max_units, focus=self.plan.focus)
        message = cold_message("", span=(self.plan.first, self.plan.last), max_units=1, kept=True)
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
            self.add_ledger(oldest)
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
            self.add_ledger(chunk.events)
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
        system = cold_system(self.prompt, max_units=max_units, focus=self.plan.focus)
        kept = any(event.seq in self.keep for event in chunk.events)

        def build(faults: Sequence[str]) -> DraftRequest:
            text = cold_message(
                chunk.text,
                span=(chunk.first, chunk.last),
                max_units=max_units,
                part=position,
                kept=kept,
                faults=faults,
            )
            stage = "summary" if count == 1 else f"part {number} of {count}"
            return requester.build(capacity, "cold", text, system=system, stage=stage)

        before = self.plan.before if is_alone else max(chunk.units, SMALL_PART_UNITS)
        return (yield from requester.request_valid(build, max_units=max_units, before=before))

    # ── Joining and merging ──

    def _merge(self, requester: DraftRequester) -> Dialogue[bool]:
        """Merge the parts into one text if they do not fit as they are; return whether they fit now."""
        whole = join_parts(self.source, self.parts, _UNLIMITED)
        if self.counter.count(whole) <= max_joined_units(self.source, self.parts):
            return bool(whole)
        records = [part.text for part in self.parts if part.text]
        system = merge_system(self.prompt, max_units=self.rules.max_units, focus=self.plan.focus)
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
        short = shorten_texts(records, room=int(room * 0.9), counter=self.counter)

        def build(faults: Sequence[str]) -> DraftRequest:
            text = merge_message(short, max_units=capacity.max_units, faults=faults)
            return requester.build(capacity, "cold", text, system=system, stage="merge")

        return build

    # ── Outcome ──

    def outcome(self) -> CompactionOutcome:
        """Return the fact to record, with what is written so far."""
        return record(
            self.source,
            self.merged or join_parts(self.source, self.parts),
            parts=self.parts,
            authors=self.authors,
            metrics=self.tally.metrics(),
            native=self.native,
        )
