"""Slash command /init: the agent writes an AGENTS.md for the project."""

from __future__ import annotations

from importlib import resources
from typing import Final

from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.output.agent_event_rows import note
from foveal.agent.terminal.output.styled_text import Row
from foveal.agent.terminal.user_interface import Question
from foveal.agent.terminal.user_message import UserMessage
from foveal.errors import FovealError

INSTRUCTIONS_NAME: Final = "AGENTS.md"


async def init(state: ChatState, argument: str) -> list[Row]:
    """Send the prepared request; ask first if the file exists."""
    if state.toolbox.get("write") is None:
        raise FovealError("/init needs the tools read and write; /tools on offers tools to the model")
    path = state.options.folder / INSTRUCTIONS_NAME
    if path.exists():
        question = Question(
            text=f"{INSTRUCTIONS_NAME} exists. Let the agent rewrite it?",
            unattended_advice=f"Move {INSTRUCTIONS_NAME} away to have a new one written.",
        )
        if await state.ui.ask(question) != "y":
            return [note(f"{INSTRUCTIONS_NAME} stays as it is")]
    text = resources.files("foveal.agent.terminal").joinpath("init.md").read_text("utf-8").strip()
    wish = f"{text}\n\nThe user adds: {argument}" if argument else text
    state.send_message(UserMessage(content=wish, shown=wish))
    return [note(f"the agent reads the project and writes {INSTRUCTIONS_NAME}; you are asked before it does")]
