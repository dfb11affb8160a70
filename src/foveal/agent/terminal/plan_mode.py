"""Plan mode: the agent reads and proposes what it would do; the user agrees, or talks on.

1. While it is on, tools that change something are refused with a text that says so. Commands run only in the
   sandbox, where they cannot write in the working folder. Sub-agents are bound in the same way.
2. The tools and the system text stay as they are, so switching costs no cached prompt.
3. The log has a note for each switch: a session that is opened again is in the mode in which it ended.
4. An answer of the model is the proposal. A yes switches the mode off and sends the message to carry it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from foveal.agent.loop import HookOccasion, HookVerdict
from foveal.agent.permissions.command_rules import SHELL_TOOL
from foveal.agent.terminal.user_interface import Choice, Question
from foveal.agent.terminal.user_message import UserMessage
from foveal.agent.tool import Toolbox, ToolOutput
from foveal.agent.tools.todo import newest_events
from foveal.core.log.events import Call, Noted
from foveal.sessions.session import Session

PLAN_TOPIC: Final = "plan mode"
_ON, _OFF = "on", "off"
_WRITING_TOOLS: Final = frozenset({"remember", "forget", "memory"})
"""Tools that change the memory, without a question."""
PLAN_QUESTION: Final = Question(
    text="Carry out this plan?",
    choices=(
        Choice("y", "Yes: leave plan mode and carry it out"),
        Choice("n", "No: stay in plan mode, to talk about it"),
    ),
    waits=False,
    unattended_advice="Send /plan yes to carry it out.",
)
_REFUSED: Final = (
    "Not run: the user has switched plan mode on, in which nothing is changed. Read and search what you need, then "
    "answer with a plan: what you would change, where, and how to check it. The user decides about it."
)
_NO_COMMANDS: Final = (
    "Not run: in plan mode, a command runs only inside the sandbox, {why}. Use the other tools to look."
)


class PlanMode:
    """Whether a session is in plan mode, and what that forbids."""

    def __init__(self, toolbox: Callable[[], Toolbox], *, has_sandbox: bool) -> None:
        """`toolbox` returns the tools of the chat; sub-agents have no others."""
        self.is_on: bool = False
        self._toolbox = toolbox
        self._has_sandbox = has_sandbox

    async def switch(self, session: Session, *, on: bool) -> None:
        """Switch the mode and record it."""
        if on != self.is_on:
            self.is_on = on
            await session.append(Noted(text=_ON if on else _OFF, topic=PLAN_TOPIC))

    async def restore(self, session: Session) -> None:
        """Take over the mode in which a session ended."""
        self.is_on = False
        async for event in newest_events(session):
            if isinstance(event.fact, Noted) and event.fact.topic == PLAN_TOPIC:
                self.is_on = event.fact.text == _ON
                return

    async def refuse_changes(self, occasion: HookOccasion) -> HookVerdict | None:
        """The hook of the agent and its sub-agents: deny what the mode forbids."""
        if occasion.at != "before_tool" or occasion.call is None:
            return None
        why = self._refusal(occasion.call)
        return HookVerdict(deny=why) if why else None

    def _refusal(self, call: Call) -> str:
        toolbox = self._toolbox()
        tool = toolbox.get(call.name)
        if not self.is_on or tool is None or not (tool.needs_approval or tool.name in _WRITING_TOOLS):
            return ""
        if tool.name != SHELL_TOOL:
            return _REFUSED
        parsed = toolbox.parse_call(call.name, call.arguments)
        if not self._has_sandbox:
            return _NO_COMMANDS.format(why="and there is none here")
        leaves = not isinstance(parsed, ToolOutput) and parsed[1].get("outside_sandbox")
        return _NO_COMMANDS.format(why="not outside of it") if leaves else ""


def agreed_message() -> UserMessage:
    """Return the message that a yes sends."""
    text = "Yes, carry out the plan. Plan mode is off."
    return UserMessage(content=text, shown=text)
