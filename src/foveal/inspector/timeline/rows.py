"""Rows of a timeline: each event in one line, without what takes long to find out.

An outline of a long log and its timeline need the same rows, so each one is made once. The timeline adds the size,
and whether the text of a result reports a failure.
"""

from __future__ import annotations

from msgspec.structs import replace

from foveal.core.compaction.ledger.call_reader import read_call
from foveal.core.log.events import (
    AnyFact,
    Clipped,
    Event,
    Expanded,
    ModelSaid,
    Pinned,
    Reverted,
    Rewound,
    Superseded,
    ToolReturned,
    calls_of,
    kind,
)
from foveal.core.log.original_text import original_text
from foveal.core.tokens.message_tokens import CountedFact, MessageTokens
from foveal.core.view.text_facts import reports_failure
from foveal.core.wire.safe_print import one_line
from foveal.inspector.timeline.event_sentences import event_sentence
from foveal.inspector.timeline.timeline import TimelineRow
from foveal.inspector.timeline.view_tracker import fact_category


class TimelineRows:
    """Makes the rows of one log; each event is asked for in order, or was asked for before."""

    def __init__(self) -> None:
        self._rows: dict[int, TimelineRow] = {}
        self._calls: dict[str, tuple[int, str, str]] = {}
        """The newest calls by id: the event, the tool and the file."""

    def row(self, event: Event) -> TimelineRow:
        """Return the row of an event."""
        known = self._rows.get(event.seq)
        if known is None:
            known = self._rows[event.seq] = self._made(event)
        return known

    def sized_row(self, event: Event, meter: MessageTokens) -> TimelineRow:
        """Return the row of an event with all that it has."""
        row, fact = self.row(event), event.fact
        if not isinstance(fact, CountedFact):
            return row
        failed = row.failed or (isinstance(fact, ToolReturned) and reports_failure(original_text(fact)))
        return replace(row, units=meter.message(event.seq, fact), failed=failed)

    def _made(self, event: Event) -> TimelineRow:
        fact = event.fact
        tool, path, call = "", "", -1
        if isinstance(fact, ModelSaid):
            tool, path = self._note_calls(event.seq, fact)
        elif isinstance(fact, ToolReturned):
            call, tool, path = self._calls.get(fact.call_id, (-1, one_line(fact.name), ""))
        return TimelineRow(
            seq=event.seq,
            kind=kind(fact),
            category=fact_category(fact),
            at=event.at,
            preview=event_sentence(fact),
            chars=len(original_text(fact)),
            tool=tool,
            path=path,
            call=call,
            failed=isinstance(fact, ToolReturned) and fact.error,
            target=_target(fact),
        )

    def _note_calls(self, seq: int, fact: ModelSaid) -> tuple[str, str]:
        """Remember the calls of an answer; return the tool and the file of the first one."""
        first = ("", "")
        for _, call in calls_of(fact.content):
            touched = read_call(call).touched
            path = one_line(touched[0][0]) if touched else ""
            tool = one_line(call.name)
            self._calls[call.id] = (seq, tool, path)
            first = first if first[0] else (tool, path)
        return first


def _target(fact: AnyFact) -> int:
    match fact:
        case Reverted(target=target) | Clipped(target=target) | Superseded(target=target):
            return target
        case Rewound(to=to):
            return to
        case Pinned(target=target) if target is not None:
            return target
        case Expanded(first=first):
            return first
        case _:
            return -1
