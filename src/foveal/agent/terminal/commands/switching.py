"""Slash commands that switch: to another session (/new, /resume, /fork, /continue-from) or mode (/plan)."""

from __future__ import annotations

from typing import Final

from foveal.agent.terminal import factory
from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.commands.remembering import propose_at_end
from foveal.agent.terminal.options import parse_carry
from foveal.agent.terminal.output.agent_event_rows import note
from foveal.agent.terminal.output.live_area import usage_row
from foveal.agent.terminal.output.styled_text import Row, bold, row
from foveal.agent.terminal.plan_mode import agreed_message
from foveal.agent.terminal.resuming import pick_session, show_recent_turns
from foveal.core.wire.safe_print import counted, one_line
from foveal.errors import FovealError
from foveal.recall.archive.stored_sessions import find_session

FORK_TITLE: Final = "fork of "
"""How the title of a copied session begins."""


async def new(state: ChatState, argument: str) -> list[Row]:
    """Switch to a new, empty session; the old one is kept."""
    before = await state.session.info()
    await propose_at_end(state)
    await state.switch(id=factory.new_session_id())
    title = f" (“{one_line(before.title, width=50)}”)" if before.title else ""
    kept = note(f"the old session{title} is kept · /resume {before.id}", "good")
    return [*await _session_rows(state), kept]


async def resume(state: ChatState, argument: str) -> list[Row]:
    """Switch to another session; without an id, the user picks it."""
    if not argument and not state.ui.can_ask:
        raise FovealError("/resume needs a session id, or the beginning of it; /sessions lists them")
    if argument:
        id: str | None = await find_session(state.store, argument)
    else:
        id = await pick_session(state.store, state.ui, folder=state.options.folder, current=state.session.id)
    if id is None:
        return [note("this session stays open")]
    await propose_at_end(state)
    await state.switch(id=id)
    state.ui.show(await _session_rows(state))
    await show_recent_turns(state.session, state.ui)
    return []


async def fork(state: ChatState, argument: str) -> list[Row]:
    """Switch to a copy of this session; the original stays as it is."""
    id = argument or f"{state.session.id}-{factory.new_session_id()[-4:]}"
    title = (await state.session.info()).title
    await state.session.fork(id)
    await state.switch(id=id)
    if title:
        await state.session.rename(title if title.startswith(FORK_TITLE) else f"{FORK_TITLE}{title}")
    return await _session_rows(state)


async def continue_from(state: ChatState, argument: str) -> list[Row]:
    """Start a session with a record of another."""
    name, _, carry = argument.partition(" ")
    if not name:
        raise FovealError(
            "/continue-from needs a session id, or the beginning of it; /sessions lists them. A word after it "
            "says what to take over: record, summary, rules, or handles such as e3,e9"
        )
    await state.continue_from(await find_session(state.store, name), parse_carry(carry or "record"))
    return await _session_rows(state)


async def plan(state: ChatState, argument: str) -> list[Row]:
    """Switch plan mode on or off; `yes` leaves it and carries the plan out, and another text is planned."""
    is_planning = state.plan.is_on
    if argument == "yes" and not is_planning:
        raise FovealError("there is no plan to carry out; /plan begins one")
    leaves = argument in ("yes", "off") or (is_planning and not argument)
    await state.switch_plan_mode(on=not leaves)
    if argument == "yes":
        state.send_message(agreed_message())
    elif argument and not leaves:
        state.send_message(argument)
    if leaves:
        return [note("plan mode is off")] if is_planning else [note("plan mode is not on")]
    return [note("plan mode: the agent reads and proposes, and changes nothing · /plan off", "fair")]


async def _session_rows(state: ChatState) -> list[Row]:
    info, report = await state.session.info(), await state.session.report()
    title = f" · {one_line(info.title, width=50)}" if info.title else ""
    return [row(bold(f"session {info.id}"), f" · {counted(info.events, 'event')}{title}"), usage_row(report)]
