"""What requests of the API hold and what it answers: the OpenAPI document is made from these.

Requests refuse fields that they do not know. Every field of an answer is always there, so that a program can rely
on it; times are seconds since 1970.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from foveal.events import Dialect
from foveal.report import Line

ID: Final = r"^[A-Za-z0-9][A-Za-z0-9._~:@-]*$(?!\n)"
"""What a session may be called: what stands in a URL as it is."""
MODEL: Final = r"^([A-Za-z0-9][A-Za-z0-9._:+-]*(/[A-Za-z0-9][A-Za-z0-9._:+-]*)*)?$(?!\n)"
"""How a model may be named: without an address, which is not a client's choice, and without a path."""
MOST_SESSIONS: Final = 500
MOST_EVENTS: Final = 1_000
MOST_HITS: Final = 200

Id: TypeAlias = Annotated[
    str,
    Meta(
        pattern=ID,
        min_length=1,
        max_length=200,
        examples=["demo"],
        description="letters, digits and . _ ~ : @ -, a letter or digit first",
    ),
]
Name: TypeAlias = Annotated[str, Meta(max_length=200)]
ModelName: TypeAlias = Annotated[
    str,
    Meta(
        pattern=MODEL,
        max_length=200,
        description="a name such as openai/gpt-5.1, without an address and without a path",
    ),
]
Words: TypeAlias = Annotated[str, Meta(min_length=1, examples=["Why is the sky blue?"])]
Seq: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Handle: TypeAlias = Annotated[
    str,
    Meta(pattern=r"^e?[0-9]{1,15}$(?!\n)", examples=["e2"], description="the handle of an event, such as e2"),
]
Parts: TypeAlias = Annotated[list[dict[str, Any]], Meta(min_length=1)]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client sends."""


class Nothing(Request, frozen=True):
    """No fields at all."""


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────


class NewSession(Request, frozen=True):
    """A session to be; an id is made up when none is given, and the model is the server's own."""

    id: Id | None = None
    model: ModelName = ""
    title: Name = ""
    system: str = ""


class NewTitle(Request, frozen=True):
    title: Name


class NewMessages(Request, frozen=True):
    """What to store without asking the model: the user's `text`, or `messages` as a provider has them."""

    text: Words | UnsetType = UNSET
    messages: Parts | UnsetType = UNSET
    dialect: Dialect = ""
    """Whose messages they are; recognised when it is not given."""


class NewTurn(Request, frozen=True):
    """What the user says: a `text`, or the `content` of a user's message as a provider has it."""

    text: Words | UnsetType = UNSET
    content: Parts | UnsetType = UNSET
    key: Name = ""
    """A name for this message: the same key again is the same turn."""
    stream: bool = True
    background: bool = False
    """Answer at once, when it is stored; a provider that is out of order is asked again later."""


class Again(Request, frozen=True):
    stream: bool = True


class Compact(Request, frozen=True):
    focus: Annotated[str, Meta(max_length=2_000)] = ""
    """What to keep above all."""
    background: bool = False


class Undo(Request, frozen=True):
    handle: Handle | None = None
    """The reduction or pin to take back; the newest reduction when it is not given."""


class Pin(Request, frozen=True):
    text: Annotated[str, Meta(min_length=1, max_length=20_000)]


class Fork(Request, frozen=True):
    id: Id | None = None
    at: Handle | None = None
    """The last event that the new session has; all of them when it is not given."""


class ListQuery(Request, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=MOST_SESSIONS)] = 50
    after: Annotated[str, Meta(max_length=600)] = ""
    """The `next` of the page before."""


class EventsQuery(Request, frozen=True):
    first: Seq = 0
    last: Seq | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] = 100


class SearchQuery(Request, frozen=True):
    q: Annotated[str, Meta(min_length=1, max_length=1_000)]
    limit: Annotated[int, Meta(ge=1, le=MOST_HITS)] = 20


class ExportQuery(Request, frozen=True):
    to: Literal["foveal", "openai", "responses", "anthropic"] = "foveal"


class TurnQuery(Request, frozen=True):
    stream: bool = True


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────


class Session(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    title: str
    created: float
    active: float
    """When the newest event was stored."""
    events: int
    bytes: int


class Opened(Session, frozen=True, kw_only=True):
    """A session, with the model that answers in it."""

    model: str


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    sessions: list[Session]
    """The most recently active first."""
    next: str | None
    """What `after` must be for the next page; null when this is the last."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    seq: int
    at: float | None
    kind: str
    fact: Raw
    """The fact as the log has it."""


class Events(msgspec.Struct, frozen=True, kw_only=True):
    events: list[Event]
    next: int | None
    """What `first` must be for the next page; null when there are no more."""


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """One event with its whole text, and how it stands in the next request."""

    event: Event
    original: str
    shown: Line


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    handles: list[str]


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What the next request takes, in tokens; all of it is in the context report."""

    used: int
    limit: int
    window: int
    state: str
    """`ok`, `warn`, `act` or `over`."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    why: str
    """`answered`, `steps`, `stopped` or `failed`."""
    problem: str
    sort: str
    context: Context | None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    turn: str
    session: str
    key: str
    state: Literal["waiting", "running", "ended"]
    outcome: Outcome | None
    """When it has ended."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """It is stored and will be done."""

    session: str
    key: str
    """For a turn: the same message with the same key is the same turn, and waits for it without `background`."""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    before: int
    """Tokens of the next request before and after."""
    after: int
    by: str
    summary: str


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    kind: str


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    handle: str


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What the session has used so far; dollars are null when a price is unknown."""

    calls: int
    input: int
    cache_read: int
    cache_write: int
    output: int
    reasoning: int
    spent: float | None
    saved: float | None
    cached_share: float | None
    """The part of the last request that came from the provider's cache."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    seq: int
    kind: str
    score: float
    excerpt: str
    """Where it has most of the words, on one line."""


class Hits(msgspec.Struct, frozen=True, kw_only=True):
    hits: list[Hit]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What was wrong, as RFC 9457 has it; some have numbers beside these."""

    type: str
    title: str
    status: int
    detail: str


# ── what a stream tells beside the happenings of `foveal.happenings` ─────────────────────────────────────


class Reduced(msgspec.Struct, frozen=True, kw_only=True, tag_field="happening", tag="reduced"):
    events: tuple[Event, ...]
    before: int
    after: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="happening", tag="ended"):
    why: str
    context: Context
