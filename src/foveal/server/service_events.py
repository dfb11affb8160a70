"""Service events: what the service reports to metrics, logs and traces.

No event carries the text of a message, except `EventsStored`: its observers use only kinds and numbers.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from foveal.core.log.events import Event


class ServiceEvent(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    session: str


class EventsStored(ServiceEvent, frozen=True):
    """This process appended events to a session's log. The events contain text that observers must not export."""

    events: tuple[Event, ...]


class TurnBegan(ServiceEvent, frozen=True):
    turn: str
    model: str


class TurnEnded(ServiceEvent, frozen=True):
    turn: str
    model: str
    seconds: float
    why: Literal["answered", "steps", "denied", "stopped", "failed"]
    problem: str = ""
    """The error's code or class name, never its message."""


class ProxyRequestEnded(ServiceEvent, frozen=True):
    """A request of a proxy client was answered or failed."""

    dialect: str
    model: str
    status: int
    seconds: float
    added_seconds: float
    """The part of `seconds` that Foveal itself took."""
    tokens: int
    unreduced_tokens: int
    """Tokens of the request without any reduction."""
    overflow_retries: int
    """How often upstream rejected the request as too large before it accepted it."""
    streamed: bool


class InboxCounted(ServiceEvent, frozen=True):
    count: int
    """Unanswered messages in the inbox, of all tenants and sessions."""
