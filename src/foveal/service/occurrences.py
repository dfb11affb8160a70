"""What the service tells to whoever watches it: metrics, logs, traces. Never the text of a message."""

from __future__ import annotations

from typing import Literal

import msgspec

from foveal.events import Event


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    session: str


class Stored(Occurrence, frozen=True):
    """This process has stored something. The events hold text; only their kinds and numbers may be told on."""

    events: tuple[Event, ...]


class TurnBegan(Occurrence, frozen=True):
    turn: str
    model: str


class TurnEnded(Occurrence, frozen=True):
    turn: str
    model: str
    seconds: float
    why: Literal["answered", "steps", "denied", "stopped", "failed"]
    problem: str = ""
    """The sort of what went wrong: the name of an error, never its words."""


class Exchanged(Occurrence, frozen=True):
    """A request of a drop-in client was answered."""

    dialect: str
    model: str
    status: int
    seconds: float
    added: float
    """Our own share of the seconds."""
    tokens: int
    whole: int
    """What the request would have taken without any reduction."""
    recovered: int
    """How often upstream said that it was too large before it took it."""
    streamed: bool


class Waiting(Occurrence, frozen=True):
    count: int
    """Messages that are stored and not yet taken up, of all sessions."""
