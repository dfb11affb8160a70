"""What an agent tells while it works: one closed family of small facts, for whoever shows or forwards them.

They are told, not stored: what lasts is in the session's log, and a handle leads there.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from foveal.core.engine.report import Report
from foveal.core.log.events import Call, Event
from foveal.ports import ReplyPiece


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="happening"):
    """Something that the agent did or met."""


class UserMessageHeard(AgentEvent, frozen=True, tag="heard"):
    """The user's words are stored: from here on they are not lost."""

    handle: str


class TextStreamed(AgentEvent, frozen=True, tag="streamed"):
    """A bit of the answer as it comes."""

    piece: ReplyPiece


class ModelAnswered(AgentEvent, frozen=True, tag="answered"):
    """The model's whole answer is stored."""

    text: str
    calls: int
    handle: str


class ToolCalling(AgentEvent, frozen=True, tag="calling"):
    """A tool is about to run."""

    call: Call
    what: str
    """One line for people."""


class ToolFinished(AgentEvent, frozen=True, tag="returned"):
    """A tool has returned, and its whole result is stored."""

    call: Call
    text: str
    error: bool
    seconds: float
    handle: str


class ContextReduced(AgentEvent, frozen=True, tag="reduced"):
    """Something was clipped, masked, summarised or dropped for the next request, or a summary failed."""

    events: tuple[Event, ...]
    before: int
    """Tokens of the request before and after."""
    after: int


class RequestRefused(AgentEvent, frozen=True, tag="refused"):
    """The provider said that the request was too large; a smaller one follows."""

    problem: str


class HookFailed(AgentEvent, frozen=True, tag="hook_failed"):
    hook: str
    at: str
    problem: str


class TurnFinished(AgentEvent, frozen=True, tag="ended"):
    """The turn is over."""

    why: Literal["answered", "steps", "denied"]
    report: Report
