"""Requests for one draft from one writer, with retries and validation.

1. A transient failure is retried once.
2. A draft with faults is requested once more, with the list of its faults; a second draft that is worse is not
   used.
3. Lines with names that do not occur in the source are then removed.
4. All requests of a compaction are counted in one `DraftTally`, whichever writer they go to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Final, NamedTuple, TypeAlias

import msgspec

from foveal.core.compaction import validation
from foveal.core.compaction.health import CompactionMetrics, FailureCause, WriterFailure
from foveal.core.compaction.summariser_protocol import (
    Dialogue,
    Draft,
    DraftFailure,
    DraftRequest,
    SummaryForm,
    SummaryWriter,
)
from foveal.core.compaction.summary import SummarySource
from foveal.core.compaction.validation import DraftRules, ValidatedDraft

RequestBuilder: TypeAlias = Callable[[Sequence[str]], DraftRequest]
"""Builds the request that lists these faults of an earlier draft."""

MAX_DRAFT_REQUESTS: Final = 40
"""Limit for one compaction."""
MAX_SHRINKS: Final = 2
"""How often a request that was too large is made smaller."""
SHRINK_FACTOR: Final = 0.7
"""Size of the next request as a share of the refused one, when the provider does not state its limit."""
MIN_OUTPUT_TOKENS: Final = 128
MIN_INPUT_UNITS: Final = 256
"""A writer with less than either is not asked."""
THINKING_TOKENS: Final = 4_000
"""Tokens that a reply may take beyond its text, for the writer's thinking."""
MIN_THINKING_TOKENS: Final = 1_000
"""Least of these, where the rest of the window is the conversation."""
MIN_SHARED_TEXT_SHARE: Final = 1 / 3
"""Least share of its text that a reply must have room for, where the rest of the window is the conversation."""
MIN_COUNTING_MARGIN: Final = 0.05
"""Least share of the window that is left free, because counts are estimates."""
FAULT_LIST_UNITS: Final = 300
"""Units left free for the list of faults."""


class WriterCapacity(NamedTuple):
    """How much one writer can read and write."""

    max_units: int
    """Units to ask for."""
    max_tokens: int
    room: int
    """Units that the quoted transcript may take."""


class DraftTally:
    """Counts the requests of one compaction and what they cost."""

    def __init__(self) -> None:
        self.asked: int = 0
        self.input: int = 0
        self.cached: int = 0
        self.output: int = 0
        self.seconds: float = 0.0
        self.cost: float | None = 0.0
        self.form: str = ""
        self.checks: list[str] = []
        self.failures: dict[str, WriterFailure] = {}
        """The last failure of each writer, by its label."""

    def note(self, writer: SummaryWriter, problem: str) -> None:
        """Record a problem of a writer for the metrics."""
        self.checks.append(f"{writer.label}: {problem[:300]}")

    def note_failure(self, writer: SummaryWriter, cause: FailureCause, problem: str) -> None:
        """Record that a request brought no usable text; a later one of the same writer may still bring one."""
        self.note(writer, problem)
        self.failures[writer.label] = WriterFailure(by=writer.label, cause=cause, problem=problem[:300])

    def note_small_room(self, room: int) -> None:
        """Record that no writer was asked, because the room is too small."""
        self.checks.append(f"a room of {room:,} is too small to ask a model")

    def add(self, writer: SummaryWriter, request: DraftRequest, reply: Draft | DraftFailure) -> None:
        """Count one request and its reply."""
        self.asked += 1
        self.seconds += reply.seconds
        if isinstance(reply, DraftFailure):
            self.note_failure(writer, "error", reply.problem)
            return
        self.form = request.form
        kinds = {"input": reply.input, "cache_read": reply.cache_read, "cache_write": reply.cache_write}
        self.input += sum(kinds.values())
        self.cached += reply.cache_read
        self.output += reply.output
        cost = writer.model.cost(**kinds, output=reply.output) if sum(kinds.values()) else None
        self.cost = None if cost is None or self.cost is None else self.cost + cost

    def metrics(self) -> CompactionMetrics:
        return CompactionMetrics(
            seconds=self.seconds,
            input=self.input,
            cached=self.cached,
            output=self.output,
            cost=self.cost if self.asked else None,
            asked=self.asked,
            form=self.form,
            checks=tuple(self.checks),
            failures=tuple(self.failures.values()),
        )


class DraftRequester:
    """Requests drafts from one writer and keeps what its refusals reveal about its window."""

    def __init__(
        self, index: int, writer: SummaryWriter, source: SummarySource, rules: DraftRules, tally: DraftTally
    ) -> None:
        self.index: int = index
        self.writer: SummaryWriter = writer
        self.rules: DraftRules = rules
        self.tally: DraftTally = tally
        self.ratio: float = max(source.ratio, writer.model.token_ratio)
        self._margin_share = max(MIN_COUNTING_MARGIN, source.margin)
        self._window = writer.model.window
        self._shrinks = 0
        self._last: DraftRequest | None = None

    @property
    def label(self) -> str:
        return self.writer.label

    def capacity(self, frame: str) -> WriterCapacity | None:
        """Return what the writer can read and write beside the text `frame`; None when that is too little."""
        model = self.writer.model
        max_tokens = min(self._text_tokens + THINKING_TOKENS, model.max_output, self._window // 3)
        free = min(model.max_input, self._window - max_tokens) - self._margin
        room = int(free / self.ratio) - self.rules.counter.count(frame) - FAULT_LIST_UNITS
        if max_tokens < MIN_OUTPUT_TOKENS or room < MIN_INPUT_UNITS:
            self.tally.note(self.writer, f"a window of {self._window:,} tokens is too small for a summary")
            return None
        return self._capacity(max_tokens, room)

    def shared_capacity(self, tokens: int) -> WriterCapacity | None:
        """Return what the writer can write after a request of `tokens`; None when that is too little.

        A small window leaves less for thinking and for the text, since the request is cheap: the provider has most
        of it cached."""
        model = self.writer.model
        free = self._window - tokens - self._margin
        max_tokens = min(self._text_tokens + THINKING_TOKENS, model.max_output, free)
        text_share = (max_tokens - MIN_THINKING_TOKENS) / self._text_tokens
        if tokens > model.max_input or text_share < MIN_SHARED_TEXT_SHARE:
            return None
        capacity = self._capacity(max_tokens, 0)
        return capacity._replace(max_units=int(capacity.max_units * min(1.0, text_share)))

    @property
    def _margin(self) -> int:
        """Tokens to leave free, because counts are estimates."""
        return int(self._window * self._margin_share)

    @property
    def _text_tokens(self) -> int:
        """Tokens that a reply may take for its text."""
        return ceil(1.5 * self.rules.max_units * self.ratio)

    def _capacity(self, max_tokens: int, room: int) -> WriterCapacity:
        return WriterCapacity(min(self.rules.max_units, int(0.8 * max_tokens / self.ratio)), max_tokens, room)

    def limit_window(self, tokens: int) -> None:
        """Take over a limit that the provider stated."""
        self._window = min(self._window, tokens)

    def shrink(self, failure: DraftFailure) -> bool:
        """Lower the window after a refusal; return whether a smaller request is worth sending."""
        if not failure.overflow or self._shrinks >= MAX_SHRINKS or self._last is None:
            return False
        self._shrinks += 1
        units = self.rules.counter.count_all([self._last.system, self._last.text])
        sent = ceil(sum(units) * self.ratio) + self._last.max_tokens
        is_stated = 0 < failure.limit < sent
        self.limit_window(failure.limit if is_stated else int(sent * SHRINK_FACTOR))
        return True

    def build(
        self,
        capacity: WriterCapacity,
        form: SummaryForm,
        text: str,
        *,
        system: str = "",
        stage: str,
    ) -> DraftRequest:
        return DraftRequest(
            writer=self.index,
            form=form,
            text=text,
            system=system,
            max_tokens=capacity.max_tokens,
            stage=stage,
            dialect=self.writer.dialect,
        )

    def request(self, request: DraftRequest) -> Dialogue[Draft | DraftFailure]:
        """Send a request; a transient failure is retried once."""
        for _ in range(2):
            if self.tally.asked >= MAX_DRAFT_REQUESTS:
                return DraftFailure(problem=f"{MAX_DRAFT_REQUESTS} requests are enough")
            self._last = request
            reply = yield request
            self.tally.add(self.writer, request, reply)
            if isinstance(reply, Draft) or reply.overflow or not reply.transient:
                break
        if isinstance(reply, Draft) and reply.stop == "refused":
            self.tally.note_failure(self.writer, "refused", "It was refused.")
            return DraftFailure(problem="it was refused")
        return reply

    def request_valid(
        self, build: RequestBuilder, *, max_units: int, before: int
    ) -> Dialogue[ValidatedDraft | DraftFailure | None]:
        """Return a usable draft, or None when two drafts were unusable."""
        drafts: list[ValidatedDraft] = []
        faults: Sequence[str] = ()
        for _ in range(2):
            request = build(faults)
            reply = yield from self.request(request)
            if isinstance(reply, DraftFailure):
                return _best_usable(drafts, self.rules) or reply
            draft = validation.validate_draft(reply, self.rules, max_units=max_units, before=before)
            faults = draft.faults
            if draft.removed:
                self.tally.note(self.writer, f"sentences about the user, removed: {draft.removed}")
            if not faults:
                return draft
            self.tally.note_failure(self.writer, "rejected", " ".join(faults))
            drafts.append(draft)
            if request.form == "shared" and draft.unusable:
                break  # it cannot tell where the conversation ends; a quoted conversation has a marked end
        return _best_usable(drafts, self.rules)


def _best_usable(drafts: Sequence[ValidatedDraft], rules: DraftRules) -> ValidatedDraft | None:
    """Return the draft with the fewest faults, without the lines that have them."""
    usable = [
        draft for draft in reversed(drafts) if not draft.unusable and draft.units <= rules.max_accepted_units
    ]
    for draft in sorted(usable, key=_fault_count):
        text = validation.without_faulty_lines(draft, rules)
        if text:
            return msgspec.structs.replace(
                draft, text=text, units=rules.counter.count(text), unknown_names=()
            )
    return None


def _fault_count(draft: ValidatedDraft) -> tuple[int, bool]:
    return len(draft.unknown_names), bool(draft.too_large)
