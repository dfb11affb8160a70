"""Shows the last turns of a resumed session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foveal.agent.terminal.output.styled_text import Row, Span, bold, dim, row
from foveal.agent.terminal.user_interface import UserInterface
from foveal.agent.terminal.user_message import typed_text
from foveal.core.compaction.carried_record import is_carried_record
from foveal.core.log.events import Event, ModelSaid, ToolReturned, UserSaid, text_of
from foveal.core.view.fold import effective_events
from foveal.core.wire.safe_print import counted
from foveal.sessions.session import Session

MAX_SHOWN_TURNS: Final = 3
MAX_SHOWN_MESSAGE_LINES: Final = 3
MAX_SHOWN_ANSWER_LINES: Final = 8
_READ_EVENTS: Final = (300, 3_000, 30_000)
"""Events at the end of the log among which the last turns are looked for, more if those are not enough."""


async def show_recent_turns(session: Session, ui: UserInterface) -> None:
    """Show the last messages and answers of a session, each shortened; nothing if it has none."""
    count = (await session.end()).next_seq
    for wanted in _READ_EVENTS:
        turns = split_turns(effective_events(await session.events(first=max(0, count - wanted))))
        if len(turns) >= MAX_SHOWN_TURNS or wanted >= count:
            break
    shown = turns[-MAX_SHOWN_TURNS:]
    if not shown:
        return
    is_all = len(turns) <= MAX_SHOWN_TURNS and wanted >= count
    many = "the last turn" if len(shown) == 1 else f"the last {len(shown)} turns"
    head = "" if is_all else f"  … {many}, shortened; the model sees the whole conversation"
    if head:
        ui.show([row(dim(head))])
    for turn in shown:
        _show_turn(turn, ui)


def split_turns(events: Sequence[Event]) -> list[list[Event]]:
    """Return events by turn, each beginning with a message of the user; what comes before the first is left out."""
    turns: list[list[Event]] = []
    for event in events:
        if isinstance(event.fact, UserSaid) and not is_carried_record(text_of(event.fact.content)):
            turns.append([event])
        elif turns:
            turns[-1].append(event)
    return turns


def _show_turn(turn: Sequence[Event], ui: UserInterface) -> None:
    said = turn[0].fact
    assert isinstance(said, UserSaid)
    (first, *rest), more = _shortened(typed_text(said.content), MAX_SHOWN_MESSAGE_LINES, turn[0].handle)
    ui.show([row(Span("› ", "accent"), bold(first)), *(row("  ", bold(line)) for line in rest), *more])
    calls = sum(isinstance(event.fact, ToolReturned) for event in turn)
    if calls:
        ui.show([row(dim(f"● {counted(calls, 'tool call')}"))])
    answers = [event for event in turn if isinstance(event.fact, ModelSaid) and _answer_text(event)]
    if answers:
        text = _answer_text(answers[-1])
        lines, more = _shortened(text, MAX_SHOWN_ANSWER_LINES, answers[-1].handle)
        ui.show_past_answer("\n".join(lines))
        if more:
            ui.show(more)


def _answer_text(event: Event) -> str:
    return text_of(event.fact.content).strip() if isinstance(event.fact, ModelSaid) else ""


def _shortened(text: str, most: int, handle: str) -> tuple[list[str], list[Row]]:
    """Return the first lines of a text, and a row about those that are left out, if there are any."""
    lines = text.strip("\n").split("\n")
    if len(lines) <= most:
        return lines, []
    left_out = counted(len(lines) - most + 1, "more line")
    return lines[: most - 1], [row(dim(f"… {left_out} · /expand {handle}"))]
