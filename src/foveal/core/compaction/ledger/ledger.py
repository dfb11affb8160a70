"""Composes the ledger, the part of a summary that needs no model.

    write_ledger(events, room=2_000, counter=counter)

1. It is derived from the log alone, always succeeds, and is the same for the same events.
2. Its sections are, in this order: what the user said, standing rules first; files changed and read, and commands;
   unresolved errors; the agent's latest plan; what the agent said last; calls without a result; and quoted tool
   output, which takes at most a quarter of the whole.
3. Requests, paths of changed files and unresolved errors come before everything else when the room is small. A line
   per section says what is left out; every request that is neither quoted nor visible is named by its handle.
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
from foveal.core.compaction.ledger.call_reader import ToolAction
from foveal.core.compaction.ledger.files_and_commands import TouchedFile, collect_actions
from foveal.core.compaction.ledger.likely_reused import ReuseSigns
from foveal.core.compaction.ledger.unresolved_errors import Failure
from foveal.core.compaction.ledger.user_requests import Request, collect_requests, requests_section
from foveal.core.log.events import Event, ModelSaid, ToolReturned, UserSaid, handle
from foveal.core.tokens.counter import Counter

_MESSAGE_FACTS: Final = (UserSaid, ModelSaid, ToolReturned)
_EXCERPT_RATIO: Final = 0.31
"""Units of quoted tool output for each unit of the rest: a little less than a quarter of the whole."""
_EXCERPT_SHARE: Final = 0.22
"""Share of the room that useful items of other sections leave for quoted tool output."""
_MIN_EXCERPT_UNITS: Final = 16


class Ledger:
    """The ledger of a range. What its sections tell is read once, for any number of texts.

    `events` are the effective events of the range, oldest first. Events in `keep` stay visible beside the ledger
    and are only referred to. The events `after` the range may have answered a request or resolved an error inside
    it."""

    def __init__(
        self, events: Sequence[Event], *, keep: Set[int] = frozenset(), after: Sequence[Event] = ()
    ) -> None:
        self._events = events
        self._keep = keep
        self._after = after

    @cached_property
    def _actions(self) -> list[ToolAction]:
        return collect_actions(self._events)

    @cached_property
    def _later(self) -> list[ToolAction]:
        return collect_actions(self._after)

    @cached_property
    def _requests(self) -> list[Request]:
        return collect_requests(self._events, after=self._after)

    @cached_property
    def _files(self) -> list[TouchedFile]:
        return files_and_commands.collect_files(self._actions)

    @cached_property
    def _failures(self) -> list[Failure]:
        return unresolved_errors.collect_failures(self._actions, later=self._later)

    @cached_property
    def _signs(self) -> ReuseSigns:
        return ReuseSigns([event for event in self._events if event.seq not in self._keep], self._actions)

    def write(
        self,
        *,
        room: int,
        counter: Counter,
        elsewhere: Set[str] = frozenset(),
        span: tuple[int, int] | None = None,
        only_needed: bool = False,
    ) -> str:
        """Return the text in at most `room` units of `counter`.

        Names in `elsewhere` are shown anyway and count for less. The last line names the seqs of the `span`, by
        default the first and last event; an empty one (0, -1) leaves the line out. `only_needed` writes nothing
        but requests, changed files and errors."""
        if room <= 0 or not any(isinstance(event.fact, _MESSAGE_FACTS) for event in self._events):
            return ""
        last = _range_line(*(span or (self._events[0].seq, self._events[-1].seq)))
        left = room - (counter.count("\n" + last) + 1 if last else 0)
        if left < 0:
            return ""
        sections = self._sections(room=room, left=left, counter=counter, elsewhere=elsewhere)
        has_output = any(isinstance(event.fact, ToolReturned) for event in self._events)
        useful = 0 if only_needed else int(left * (1 - _EXCERPT_SHARE)) if has_output else left
        text = fill_sections(sections, room=left, useful_room=useful, counter=counter)
        if text and not only_needed:
            text = self._with_excerpts(text, elsewhere=elsewhere, room=left, counter=counter)
        return "\n".join(filter(None, (text, last)))

    def _sections(self, *, room: int, left: int, counter: Counter, elsewhere: Set[str]) -> Sequence[Section]:
        files, files_read = files_and_commands.file_sections(self._files, elsewhere=elsewhere, room=room)
        return (
            requests_section(self._requests, keep=self._keep, room=left, counter=counter),
            files,
            files_read,
            files_and_commands.commands_section(self._actions, later=self._later),
            unresolved_errors.errors_section(self._failures, keep=self._keep),
            agent_messages.plan_section(self._events, self._actions, keep=self._keep),
            agent_messages.last_words_section(self._events, keep=self._keep),
            unresolved_errors.open_calls_section(self._actions),
        )

    def _with_excerpts(self, text: str, *, elsewhere: Set[str], room: int, counter: Counter) -> str:
        """Return the text with a block of quoted tool output, if there is room for one."""
        used = counter.count(text)
        left = min(room - used - 2, int(used * _EXCERPT_RATIO))
        if left < _MIN_EXCERPT_UNITS:
            return text
        known = elsewhere | likely_reused.names_in(text)
        for _ in range(2):
            block = likely_reused.write_excerpts(
                self._signs, self._actions, known=known, room=left, counter=counter
            )
            whole = "\n".join(filter(None, (text, block)))
            excess = counter.count(whole) - room
            if excess <= 0:
                return whole
            left -= excess + 4
        return text


def write_ledger(
    events: Sequence[Event],
    *,
    room: int,
    counter: Counter,
    keep: Set[int] = frozenset(),
    elsewhere: Set[str] = frozenset(),
    after: Sequence[Event] = (),
    span: tuple[int, int] | None = None,
    only_needed: bool = False,
) -> str:
    """Return one text of a ledger; see `Ledger` and `Ledger.write`."""
    ledger = Ledger(events, keep=keep, after=after)
    return ledger.write(room=room, counter=counter, elsewhere=elsewhere, span=span, only_needed=only_needed)


def _range_line(first: int, last: int) -> str:
    if last < first:
        return ""
    return f"look back: {handle(first)}–{handle(last)}" if last != first else f"look back: {handle(first)}"
