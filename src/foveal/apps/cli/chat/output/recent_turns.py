"""The last turns of a resumed session as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foveal.apps.cli.chat.output.styled_text import Row, Span, bold, dim, row
from foveal.apps.cli.chat.user_message import typed_text
from foveal.core.compaction.carried_record import is_carried_record
from foveal.core.log.events import Event, ModelSaid, ToolReturned, UserSaid, text_of
from foveal.core.view.fold import effective_events
from foveal.sessions.session import Session

MAX_SHOWN_TURNS: Final = 3
MAX_SHOWN_MESSAGE_LINES: Final = 3
MAX_SHOWN_ANSWER_LINES: Final = 8
_READ_EVENTS: Final = (300, 3_000, 30_000)
"""Events at the end of the log among which the last turns are looked for, more if those are not enough."""


async def recent_turn_rows(session: Session) -> list[Row]:
    """Return the last messages and answers of a session, each shortened; no rows if it has none."""
    count = (await session.info()).events
    for wanted in _READ_EVENTS:
        turns = split_turns(effective_events(await session.events(first=max(0, count - wanted))))
        if len(turns) >= MAX_SHOWN_TURNS or wanted >= count:
            break
    shown = turns[-MAX_SHOWN_TURNS:]
    if not shown:
        return []
    is_all = len(turns) <= MAX_SHOWN_TURNS and wanted >= count
    many = "the last turn" if len(shown) == 1 else f"the last {len(shown)} turns"
    head = "" if is_all else f"  … {many}, shortened; the model sees the whole conversation"
    rows = [row(dim(head)), row()] if head else []
    return rows + [line for turn in shown for line in _turn_rows(turn)]


def split_turns(events: Sequence[Event]) -> list[list[Event]]:
    """Return events by turn, each beginning with a message of the user; what comes before the first is left out."""
    turns: list[list[Event]] = []
    for event in events:
        if isinstance(event.fact, UserSaid) and not is_carried_record(text_of(event.fact.content)):
            turns.append([event])
        elif turns:
            turns[-1].append(event)
    return turns


def _turn_rows(turn: Sequence[Event]) -> list[Row]:
    said = turn[0].fact
    assert isinstance(said, UserSaid)
    lines = _shortened(typed_text(said.content), MAX_SHOWN_MESSAGE_LINES, turn[0].handle)
    first, *rest = lines
    rows = [row(Span("› ", "accent"), bold(first)), *(row("  ", bold(line)) for line in rest), row()]
    calls = sum(isinstance(event.fact, ToolReturned) for event in turn)
    if calls:
        rows += [row(dim(f"● {calls:,} tool call{'s' * (calls != 1)}")), row()]
    answers = [event for event in turn if isinstance(event.fact, ModelSaid) and _answer_text(event)]
    if answers:
        text = _answer_text(answers[-1])
        rows += [row(line) for line in _shortened(text, MAX_SHOWN_ANSWER_LINES, answers[-1].handle)]
        rows.append(row())
    return rows


def _answer_text(event: Event) -> str:
    return text_of(event.fact.content).strip() if isinstance(event.fact, ModelSaid) else ""


def _shortened(text: str, most: int, handle: str) -> list[str]:
    lines = text.strip("\n").split("\n")
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"… {len(lines) - most + 1:,} more lines · /expand {handle}"]
