"""Events of an agent's turn, for code that shows or forwards them.

They are not stored: the session's log has what lasts, and `handle` names the event there.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from foveal.core.engine.report import Report
from foveal.core.log.events import Call, Event
from foveal.ports import PromptProgress, ReplyPiece, RetryWait


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="happening"):
    """Base class of the events."""


class UserMessageStored(AgentEvent, frozen=True, tag="heard"):
    """The user message is stored and cannot be lost any more."""

    handle: str


class MemoryChanged(AgentEvent, frozen=True, tag="remembered"):
    """The memory has remembered or forgotten something: the user asked for it, or the model called a tool."""

    text: str
    """What was remembered or forgotten, as a sentence for the user."""


class BudgetReached(AgentEvent, frozen=True, tag="budget_reached"):
    """A soft spending limit is reached: requests are still answered."""

    text: str
    """Whose limit it is and what is spent, as a sentence for the user."""


class PromptReading(AgentEvent, frozen=True, tag="reading"):
    """A slow model is reading the request."""

    progress: PromptProgress


class TextStreamed(AgentEvent, frozen=True, tag="streamed"):
    """A piece of the answer has arrived."""

    piece: ReplyPiece


class ModelAnswered(AgentEvent, frozen=True, tag="answered"):
    """The model's whole answer is stored."""

    text: str
    calls: int
    """Number of tool calls in the answer."""
    handle: str
    max_tokens: int = 0
    """The limit of output tokens at which the answer was cut; 0 if the model ended it."""


class RetryScheduled(AgentEvent, frozen=True, tag="retrying"):
    """The request has failed and is sent again after a wait."""

    wait: RetryWait


class ToolCalling(AgentEvent, frozen=True, tag="calling"):
    """A tool is about to run."""

    call: Call
    what: str
    """Description of the call in one line, safe to print."""


class ToolOutputStreamed(AgentEvent, frozen=True, tag="output"):
    """A tool that reports its output is running: sent when it has printed something, and at least every second."""

    call: Call
    lines: tuple[str, ...]
    """The last lines that it has printed so far, safe to print."""
    seconds: float
    """Seconds since it started, without the time in which the user was asked."""


class ToolFinished(AgentEvent, frozen=True, tag="returned"):
    """A tool has returned, and its whole result is stored."""

    call: Call
    text: str
    error: bool
    seconds: float
    """Seconds for which it ran, without the time in which the user was asked; 0 if it did not run."""
    handle: str


class LimitReached(AgentEvent, frozen=True, tag="limit_reached"):
    """The next request does not fit, and in mode `confirm` the user has not agreed to a reduction: what must go is
    reduced next."""

    needed: int
    """Tokens of the request."""
    available: int
    """Most tokens that it may take."""


class ContextReduced(AgentEvent, frozen=True, tag="reduced"):
    """Something was truncated, masked, summarised or dropped for the next request, or a summary failed."""

    events: tuple[Event, ...]
    before: int
    """Tokens of the request before the reduction."""
    after: int
    """Tokens of the request after it."""


class RequestRefused(AgentEvent, frozen=True, tag="refused"):
    """The provider refused the request as too large; a smaller one follows."""

    problem: str


class HookFailed(AgentEvent, frozen=True, tag="hook_failed"):
    """A hook has raised an exception."""

    hook: str
    at: str
    problem: str


class TurnFinished(AgentEvent, frozen=True, tag="ended"):
    """The turn is over."""

    why: Literal["answered", "steps", "denied"]
    report: Report
    problem: str = ""
    """Why it ended without an answer, as the end of a sentence about the turn; "" if it was answered."""
