"""Hooks of the agent: the points at which they are called, and what they can change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from foveal.agent.tool import ToolOutput
from foveal.core.log.events import Call, Event
from foveal.ports import Reply
from foveal.sessions.session import Session

HookPoint = Literal["before_model", "after_model", "before_tool", "after_tool", "on_reduction", "on_overflow"]


class HookOccasion(msgspec.Struct, frozen=True, kw_only=True):
    """The point at which a hook is called, and what happened there."""

    at: HookPoint
    session: Session
    call: Call | None = None
    """Set before and after a tool."""
    output: ToolOutput | None = None
    """Set after a tool."""
    reply: Reply | None = None
    """Set after the model."""
    events: tuple[Event, ...] = ()
    """The recorded events of a reduction or an overflow."""


class HookVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A change that a hook requests; a hook that returns None requests none."""

    deny: str = ""
    """Before a tool: the result that the model gets instead of the call being run."""
    output: ToolOutput | None = None
    """After a tool: replaces its result. The original is not stored."""


Hook = Callable[[HookOccasion], Awaitable[HookVerdict | None]]
