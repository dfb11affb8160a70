"""What requests of the API hold and what it answers: the OpenAPI document is made from these.

Requests refuse fields that they do not know. Every field of an answer is always there, so that a program can rely
on it; times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import asdict

from foveal.agent import agent_events
from foveal.core.engine.report import EventStatus, Report
from foveal.core.log import events
from foveal.core.log.codec import plain
from foveal.core.log.events import Dialect
from foveal.core.models.cost import UsageTotals
from foveal.core.wire import original
from foveal.core.wire.event_text import around, findable, telling
from foveal.core.wire.safe_print import one_line
from foveal.ports import Hit, SessionInfo
from foveal.server import Turn, TurnOutcome

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


class ApiBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client sends."""


class EmptyBody(ApiBody, frozen=True):
    """No fields at all."""


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────


class NewSession(ApiBody, frozen=True):
    """A session to be; an id is made up when none is given, and the model is the server's own."""

    id: Id | None = None
    model: ModelName = ""
    title: Name = ""
    system: str = ""


class NewTitle(ApiBody, frozen=True):
    title: Name


class NewMessages(ApiBody, frozen=True):
    """What to store without asking the model: the user's `text`, or `messages` as a provider has them."""

    text: Words | UnsetType = UNSET
    messages: Parts | UnsetType = UNSET
    dialect: Dialect = ""
    """Whose messages they are; recognised when it is not given."""


class NewTurn(ApiBody, frozen=True):
    """What the user says: a `text`, or the `content` of a user's message as a provider has it."""

    text: Words | UnsetType = UNSET
    content: Parts | UnsetType = UNSET
    key: Name = ""
    """A name for this message: the same key again is the same turn."""
    stream: bool = True
    background: bool = False
    """Answer at once, when it is stored; a provider that is out of order is asked again later."""


class RetryBody(ApiBody, frozen=True):
    stream: bool = True


class CompactBody(ApiBody, frozen=True):
    focus: Annotated[str, Meta(max_length=2_000)] = ""
    """What to keep above all."""
    background: bool = False


class UndoBody(ApiBody, frozen=True):
    handle: Handle | None = None
    """The reduction or pin to take back; the newest reduction when it is not given."""


class PinBody(ApiBody, frozen=True):
    text: Annotated[str, Meta(min_length=1, max_length=20_000)]


class ForkBody(ApiBody, frozen=True):
    id: Id | None = None
    at: Handle | None = None
    """The last event that the new session has; all of them when it is not given."""


class ListQuery(ApiBody, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=MOST_SESSIONS)] = 50
    after: Annotated[str, Meta(max_length=600)] = ""
    """The `next` of the page before."""


class EventsQuery(ApiBody, frozen=True):
    first: Seq = 0
    last: Seq | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] = 100


class SearchQuery(ApiBody, frozen=True):
    q: Annotated[str, Meta(min_length=1, max_length=1_000)]
    limit: Annotated[int, Meta(ge=1, le=MOST_HITS)] = 20


class ExportQuery(ApiBody, frozen=True):
    to: Literal["foveal", "openai", "responses", "anthropic"] = "foveal"


class TurnQuery(ApiBody, frozen=True):
    stream: bool = True


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────


class ApiSession(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    title: str
    created: float
    active: float
    """When the newest event was stored."""
    events: int
    bytes: int


class ApiOpenedSession(ApiSession, frozen=True, kw_only=True):
    """A session, with the model that answers in it."""

    model: str


class ApiSessions(msgspec.Struct, frozen=True, kw_only=True):
    sessions: list[ApiSession]
    """The most recently active first."""
    next: str | None
    """What `after` must be for the next page; null when this is the last."""


class ApiEvent(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    seq: int
    at: float | None
    kind: str
    fact: Raw
    """The fact as the log has it."""


class ApiEvents(msgspec.Struct, frozen=True, kw_only=True):
    events: list[ApiEvent]
    next: int | None
    """What `first` must be for the next page; null when there are no more."""


class ApiWholeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event with its whole text, and how it stands in the next request."""

    event: ApiEvent
    original: str
    shown: EventStatus


class StoredHandles(msgspec.Struct, frozen=True, kw_only=True):
    handles: list[str]


class ApiContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the next request takes, in tokens; all of it is in the context report."""

    used: int
    limit: int
    window: int
    state: str
    """`ok`, `warn`, `act` or `over`."""


class ApiOutcome(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    why: str
    """`answered`, `steps`, `stopped` or `failed`."""
    problem: str
    code: str
    context: ApiContext | None


class ApiTurn(msgspec.Struct, frozen=True, kw_only=True):
    turn: str
    session: str
    key: str
    state: Literal["waiting", "running", "ended"]
    outcome: ApiOutcome | None
    """When it has ended."""


class ApiAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """It is stored and will be done."""

    session: str
    key: str
    """For a turn: the same message with the same key is the same turn, and waits for it without `background`."""


class ApiCompaction(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    before: int
    """Tokens of the next request before and after."""
    after: int
    by: str
    summary: str


class ApiUndone(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    kind: str


class ApiPin(msgspec.Struct, frozen=True, kw_only=True):
    handle: str


class ApiUsage(msgspec.Struct, frozen=True, kw_only=True):
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


class ApiHit(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    seq: int
    kind: str
    score: float
    excerpt: str
    """Where it has most of the words, on one line."""


class ApiHits(msgspec.Struct, frozen=True, kw_only=True):
    hits: list[ApiHit]


class ApiProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What was wrong, as RFC 9457 has it; some have numbers beside these."""

    type: str
    title: str
    status: int
    detail: str


# ── what a stream tells beside the happenings of `foveal.agent.agent_events` ─────────────────────────────────────


class ApiReduction(msgspec.Struct, frozen=True, kw_only=True, tag_field="happening", tag="reduced"):
    events: tuple[ApiEvent, ...]
    before: int
    after: int


class ApiTurnEnd(msgspec.Struct, frozen=True, kw_only=True, tag_field="happening", tag="ended"):
    why: str
    context: ApiContext


# ── telling ───────────────────────────────────────────────────────────────────────────────────────
# Facts and outcomes of the service in the shapes of the API.

EXCERPT: Final = 240
"""Characters of an excerpt, at the most."""


def session(info: SessionInfo) -> ApiSession:
    return ApiSession(
        id=info.id,
        title=info.title,
        created=info.created,
        active=info.active,
        events=info.events,
        bytes=info.bytes,
    )


def opened(info: SessionInfo, model: str) -> ApiOpenedSession:
    return ApiOpenedSession(**asdict(session(info)), model=model)


def event(told: events.Event) -> ApiEvent:
    return ApiEvent(
        handle=told.handle,
        seq=told.seq,
        at=told.at,
        kind=events.kind(told.fact),
        fact=_written(told.fact),
    )


def _written(fact: events.AnyFact) -> Raw:
    if isinstance(fact, events.Unknown):
        return fact.raw
    try:
        return Raw(msgspec.json.encode(fact))
    except UnicodeEncodeError:  # a lone surrogate is not UTF-8, but JSON's own escapes can carry it
        return events.raw(plain(fact))


def context(report: Report) -> ApiContext:
    return ApiContext(used=report.used, limit=report.limit, window=report.window, state=report.state)


def outcome(told: TurnOutcome) -> ApiOutcome:
    return ApiOutcome(
        text=told.text,
        why=told.why,
        problem=told.problem,
        code=told.code,
        context=None if told.report is None else context(told.report),
    )


async def turn(told: Turn) -> ApiTurn:
    ended = outcome(await told.outcome()) if told.state == "ended" else None
    return ApiTurn(turn=told.id, session=told.session, key=told.key, state=told.state, outcome=ended)


def happening(told: agent_events.AgentEvent) -> msgspec.Struct:
    """What a stream says of a happening: events as everywhere in the API, and of the report only its numbers."""
    match told:
        case agent_events.ContextReduced():
            made = tuple(map(event, told.events))
            return ApiReduction(events=made, before=told.before, after=told.after)
        case agent_events.TurnFinished():
            return ApiTurnEnd(why=told.why, context=context(told.report))
        case _:
            return told


def usage(accounts: UsageTotals) -> ApiUsage:
    return ApiUsage(
        calls=accounts.calls,
        input=accounts.input,
        cache_read=accounts.cache_read,
        cache_write=accounts.cache_write,
        output=accounts.output,
        reasoning=accounts.reasoning,
        spent=accounts.spent,
        saved=accounts.saved,
        cached_share=accounts.cached_share,
    )


def hits(found: Sequence[Hit], among: Sequence[events.Event], query: str) -> ApiHits:
    """What was found, best first, each with the part of its text that the query is about."""
    held = {told.seq: told for told in among}
    words = telling(query)
    return ApiHits(
        hits=[_hit(hit, held[hit.seq], words) for hit in found if hit.seq in held],
    )


def _hit(hit: Hit, told: events.Event, words: frozenset[str]) -> ApiHit:
    text = findable(told.fact) or original(told.fact)
    start = max(0, around(text, words, width=EXCERPT) - EXCERPT // 4)
    excerpt = one_line(text[start : start + 2 * EXCERPT], width=EXCERPT)
    return ApiHit(
        handle=told.handle,
        seq=hit.seq,
        kind=events.kind(told.fact),
        score=hit.score,
        excerpt=f"…{excerpt}" if start else excerpt,
    )
