"""Composes the ledger, the part of a summary that needs no model.

    Ledger(events, counter).write(room=2_000)

1. It is derived from the log alone, always succeeds, and is the same for the same events.
2. Its sections are, in this order: what the user said, in its order; files changed and read, and calls;
   unresolved errors; the agent's latest plan; what the agent said last; calls without a result; and quoted lines
   and names of calls and results, which take all room that is left, and at least half of it if there are enough.
3. Requests, paths of changed files, unresolved errors and the list of a planning tool come before everything else
   when the room is small. A line per section says what is left out; every request that is neither quoted nor
   visible is named by its handle.
4. Text quoted from the conversation follows a mark of its source; lines that begin at the margin are the ledger's
   own (`sections`).
5. Pinned rules, instructions and earlier summaries are left out: the first two stay in the request, and the events
   that an earlier summary covers are among the events.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cached_property
from typing import Final

from foveal.core.compaction.ledger import agent_messages, files_and_commands, likely_reused, unresolved_errors
from foveal.core.compaction.ledger.allocation import Section, fill_sections
from foveal.core.compaction.ledger.likely_reused import ReuseSigns
from foveal.core.compaction.ledger.range_facts import LedgerIndex, RangeFacts
from foveal.core.compaction.ledger.user_requests import collect_requests, requests_section
from foveal.core.log.events import DIALOGUE_TYPES, Event, handle
from foveal.core.tokens.counter import Counter

_EXCERPT_SHARE: Final = 0.7
"""Share of the room that useful items of other sections leave for quoted lines and names."""
_MIN_EXCERPT_UNITS: Final = 16
_MAX_LEFT_OVER_SHARE: Final = 0.1
"""If more of the room is left over, because the range has few lines and names, the other sections may use it."""


class Ledger:
    """The ledger of a range: read once, written for any room.

    `events` are the effective events of the range, oldest first. Events in `keep` stay visible beside the ledger
    and are only referred to; those of them that are `shortened` miss lines, which may be quoted. The events `after`
    the range may have answered a request or resolved an error inside it. An `index` has what earlier ledgers of the
    conversation have read; it saves time and changes nothing."""

    def __init__(
        self,
        events: Sequence[Event],
        counter: Counter,
        *,
        keep: Set[int] = frozenset(),
        shortened: Set[int] = frozenset(),
        after: Sequence[Event] = (),
        index: LedgerIndex | None = None,
    ) -> None:
        self._events = events
        self._counter = counter
        self._keep = keep
        self._shortened = shortened
        self._after = after
        self._index = index or LedgerIndex()
        self._sizes = self._index.item_sizes(counter)

    @cached_property
    def _facts(self) -> RangeFacts:
        return self._index.range_facts(self._events)

    @cached_property
    def _later(self) -> RangeFacts:
        return self._index.facts_after(self._facts, self._after)

    @cached_property
    def _signs(self) -> ReuseSigns:
        return ReuseSigns(
            self._facts, self._index, later=self._later, keep=self._keep, shortened=self._shortened
        )

    def write(
        self,
        *,
        room: int,
        elsewhere: Set[str] = frozenset(),
        span: tuple[int, int] | None = None,
        only_needed: bool = False,
    ) -> str:
        """Return the text in at most `room` units of the counter.

        Names in `elsewhere` are shown anyway and are not quoted. The last line names
        the seqs of the `span`, by default the first and last event; an empty one (0, -1) leaves the line out.
        `only_needed` writes nothing but requests, changed files and errors."""
        if room <= 0 or not any(type(event.fact) in DIALOGUE_TYPES for event in self._events):
            return ""
        last = _range_line(*(span or (self._events[0].seq, self._events[-1].seq)))
        left = room - (self._counter.count("\n" + last) + 1 if last else 0)
        if left < 0:
            return ""
        if only_needed:
            text = self._write_sections(left, useful=0, elsewhere=elsewhere)
        else:
            text = self._write_all(left, elsewhere)
        return "\n".join(filter(None, (text, last)))

    def _write_all(self, room: int, elsewhere: Set[str]) -> str:
        useful = int(room * (1 - _EXCERPT_SHARE)) if self._signs.results else room
        whole = self._write_with_excerpts(room, useful, elsewhere)
        unused = room - self._sizes.of_text(whole)
        if useful == room or unused <= room * _MAX_LEFT_OVER_SHARE:
            return whole
        return self._write_with_excerpts(room, min(room, useful + unused), elsewhere)

    def _write_with_excerpts(self, room: int, useful: int, elsewhere: Set[str]) -> str:
        text = self._write_sections(room, useful=useful, elsewhere=elsewhere)
        return self._with_excerpts(text, room, elsewhere=elsewhere)

    def _write_sections(self, room: int, *, useful: int, elsewhere: Set[str]) -> str:
        return fill_sections(
            self._sections(room, elsewhere), room=room, useful_room=useful, sizes=self._sizes
        )

    def _sections(self, room: int, elsewhere: Set[str]) -> Sequence[Section]:
        facts, later, keep = self._facts, self._later, self._keep
        requests = collect_requests(
            facts.requests,
            answered_at=max(facts.answered_at, later.answered_at),
            later=later.requests,
            superseded=facts.superseded | later.superseded,
            questions=facts.questions,
        )
        files, files_read = files_and_commands.file_sections(
            [file for file in facts.files.newest_first() if file.last not in keep],
            elsewhere=elsewhere,
            room=room,
        )
        asked = facts.requests[-1][0] if facts.requests else None
        return (
            requests_section(requests, keep=keep, room=room, counter=self._counter),
            files,
            files_read,
            files_and_commands.calls_section(
                [run for run in facts.commands.newest_first(later=later.commands) if run.seq not in keep]
            ),
            unresolved_errors.errors_section(facts.failures.unresolved(later=later.failures), keep=keep),
            agent_messages.plan_section(
                facts.planned, facts.said, asked=asked, keep=keep, is_replaced=bool(later.planned)
            ),
            agent_messages.last_words_section(facts.said, keep=keep),
            unresolved_errors.open_calls_section(facts.open_calls()),
        )

    def _with_excerpts(self, text: str, room: int, *, elsewhere: Set[str]) -> str:
        """Return the text with a block of quoted lines and names, if there is room for one."""
        left = room - self._sizes.of_text(text) - 2
        for _ in range(3):
            if left < _MIN_EXCERPT_UNITS:
                break
            block = likely_reused.write_excerpts(
                self._signs,
                text=text,
                elsewhere=elsewhere,
                room=left,
                counter=self._counter,
            )
            whole = "\n".join(filter(None, (text, block)))
            excess = self._sizes.of_text(whole) - room
            if excess <= 0:
                return whole
            left -= excess + 4
        return text


def _range_line(first: int, last: int) -> str:
    if last < first:
        return ""
    return f"look back: {handle(first)}–{handle(last)}" if last != first else f"look back: {handle(first)}"
