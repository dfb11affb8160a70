"""Structs of API requests and responses; the OpenAPI document is made from them.

1. Requests with unknown fields are refused.
2. A response always has all fields of its struct.
3. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import asdict

from foveal.agent import events as agent_events
from foveal.core.engine.event_status import EventStatus
from foveal.core.engine.report import Report
from foveal.core.log import events
from foveal.core.log.codec import plain
from foveal.core.log.events import DialectName, Priority
from foveal.core.models.cost import UsageTotals
from foveal.core.wire import original_text
from foveal.core.wire.event_text import search_text
from foveal.core.wire.query_match import best_window, query_terms
from foveal.core.wire.safe_print import one_line
from foveal.memory import MemoryEntry
from foveal.memory.facts import EntryKind
from foveal.memory.quotes import MAX_ENTRY_CHARS
from foveal.ports import Hit, SessionInfo
from foveal.server import Turn, TurnOutcome
from foveal.server.audit import AUDIT_PAGE, AuditAction, AuditEntry
from foveal.server.auth_tokens import USER_PATTERN, TokenRole
from foveal.server.budgets import SpentLimit
from foveal.server.daily_usage import UsageRow

ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._~:@-]*$(?!\n)"
"""Pattern of the ids of sessions: characters that need no escaping in a URL."""
MODEL_PATTERN: Final = r"^([A-Za-z0-9][A-Za-z0-9._:+-]*(/[A-Za-z0-9][A-Za-z0-9._:+-]*)*)?$(?!\n)"
"""Pattern of a model name: without an address and without a path, which a client must not choose."""
MAX_SESSIONS_PER_PAGE: Final = 500
MAX_EVENTS_PER_PAGE: Final = 1_000
MAX_API_ID_CHARS: Final = 200
MAX_HITS: Final = 200
MAX_ENTRIES_PER_PAGE: Final = 1_000
MAX_CARRIED_EVENTS: Final = 200

Id: TypeAlias = Annotated[
    str,
    Meta(
        pattern=ID_PATTERN,
        min_length=1,
        max_length=MAX_API_ID_CHARS,
        examples=["demo"],
        description="letters, digits and . _ ~ : @ -, a letter or digit first",
    ),
]
Day: TypeAlias = Annotated[
    str, Meta(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$(?!\n)", max_length=10, examples=["2026-01-31"])
]
ShortText: TypeAlias = Annotated[str, Meta(max_length=200)]
ModelName: TypeAlias = Annotated[
    str,
    Meta(
        pattern=MODEL_PATTERN,
        max_length=200,
        description="a name such as openai/gpt-5.1, without an address and without a path",
    ),
]
UserId: TypeAlias = Annotated[
    str,
    Meta(
        pattern=rf"^{USER_PATTERN}$(?!\n)",
        min_length=1,
        max_length=MAX_API_ID_CHARS,
        examples=["ada"],
        description="the id of a user in your system: letters, digits and . _ ~ : @ | + -, a letter or digit first",
    ),
]
UserText: TypeAlias = Annotated[str, Meta(min_length=1, examples=["Why is the sky blue?"])]
EntryText: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=MAX_ENTRY_CHARS, examples=["I prefer tabs."])
]
Seq: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Handle: TypeAlias = Annotated[
    str,
    Meta(pattern=r"^e?[0-9]{1,15}$(?!\n)", examples=["e2"], description="the handle of an event, such as e2"),
]
Handles: TypeAlias = Annotated[list[Handle], Meta(min_length=1, max_length=MAX_CARRIED_EVENTS)]
JsonObjects: TypeAlias = Annotated[list[dict[str, Any]], Meta(min_length=1)]


class ApiBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of request bodies and query strings."""


class EmptyBody(ApiBody, frozen=True):
    """No fields: the operation has no body, or no query string."""


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────


class NewSession(ApiBody, frozen=True):
    """A session to create; without `id` the server generates one, without `model` it uses that of the agent, or its
    own."""

    id: Id | None = None
    model: ModelName = ""
    agent: ShortText = ""
    """The agent of the server's configuration, `[agents.NAME]`, whose settings the session has."""
    title: ShortText = ""
    system: str = ""
    user: UserId | None = None
    """The user who speaks in it: the session shows this user's memory, and "remember that …" changes it."""
    continue_from: Id | None = None
    """The session of which the new one takes over a record."""
    carry: Literal["record", "summary", "rules"] | Handles = "record"
    """What it takes over: rules, first request, summaries and newest messages; or less, or these events."""


class NewTitle(ApiBody, frozen=True):
    title: ShortText


class NewMessages(ApiBody, frozen=True):
    """Messages to store without asking the model: a user's `text`, or `messages` in a provider's format."""

    text: UserText | UnsetType = UNSET
    messages: JsonObjects | UnsetType = UNSET
    dialect: DialectName = ""
    """The format of the messages; detected if it is not given."""


class NewTurn(ApiBody, frozen=True):
    """A user message: `text`, or the `content` of a user message in a provider's format."""

    text: UserText | UnsetType = UNSET
    content: JsonObjects | UnsetType = UNSET
    key: ShortText = ""
    """A name for this message: a second request with the same key and text is the same turn, with another text an
    error."""
    stream: bool = True
    background: bool = False
    """Respond as soon as the message is stored; if the provider is unavailable, the server retries later."""


class RetryBody(ApiBody, frozen=True):
    stream: bool = True


class CompactBody(ApiBody, frozen=True):
    focus: Annotated[str, Meta(max_length=2_000)] = ""
    """What the summary must keep in particular."""
    agreed: bool = False
    """The yes to the `question` of the context, in mode `confirm`: reduce as mode `auto` would now. `focus` is not
    used then."""
    background: bool = False


class UndoBody(ApiBody, frozen=True):
    handle: Handle | None = None
    """The reduction, pin, supersession or rewind to undo; the latest of them that is no pin if it is not given."""


class DropBody(ApiBody, frozen=True):
    handle: Handle
    """A message, a tool result or a summary."""


class PinBody(ApiBody, frozen=True):
    text: Annotated[str, Meta(min_length=1, max_length=20_000)]


class SupersedeBody(ApiBody, frozen=True):
    handle: Handle
    """A message of the user, or a pinned rule, that no longer holds."""
    by: Handle
    """The later message of the user that replaces it."""


class MarkBody(ApiBody, frozen=True):
    handle: Handle
    """A message."""
    priority: Priority
    """When reductions hide it: `low` before all others, `high` last of all."""


class ForkBody(ApiBody, frozen=True):
    id: Id | None = None
    at: Handle | None = None
    """The last event that the new session has; all events if it is not given."""


class ListQuery(ApiBody, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=MAX_SESSIONS_PER_PAGE)] = 50
    after: Annotated[str, Meta(max_length=600)] = ""
    """The `next` of the previous page."""


class EventsQuery(ApiBody, frozen=True):
    first: Seq = 0
    last: Seq | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_EVENTS_PER_PAGE)] = 100


class SearchQuery(ApiBody, frozen=True):
    q: Annotated[str, Meta(min_length=1, max_length=1_000)]
    limit: Annotated[int, Meta(ge=1, le=MAX_HITS)] = 20


class ExportQuery(ApiBody, frozen=True):
    to: Literal[
        "foveal", "openai_chat", "openai_responses", "anthropic", "gemini", "bedrock", "openai", "responses"
    ] = "foveal"
    """`openai` is `openai_chat`, `responses` is `openai_responses`."""


class TurnQuery(ApiBody, frozen=True):
    stream: bool = True


class MemoryQuery(ApiBody, frozen=True):
    q: Annotated[str, Meta(max_length=1_000)] = ""
    """Words to search for, best first; without them all entries come, oldest first."""
    all: bool = False
    """Return entries too that are proposed, replaced or forgotten; not with `q`."""
    limit: Annotated[int, Meta(ge=1, le=MAX_ENTRIES_PER_PAGE)] = 200
    after: Annotated[str, Meta(max_length=20)] = ""
    """The `next` of the previous page; not with `q`."""


class NewEntry(ApiBody, frozen=True):
    """A statement of the user."""

    text: EntryText
    kind: EntryKind | None = None
    """Decided by the words if it is not given."""


class EntryChange(ApiBody, frozen=True):
    text: EntryText


class AcceptBody(ApiBody, frozen=True):
    text: EntryText | None = None
    """Another text for the proposal."""


class ProposeBody(ApiBody, frozen=True):
    session: Id
    """A session of this user, whose rules, corrections and facts become proposals."""


class ImportBody(ApiBody, frozen=True):
    lines: str
    """What `export` returned."""


# ── Responses ────────────────────────────────────────────────────────────────────────────────────────────


class ApiSession(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    title: str
    created: float
    active: float
    """When the latest event was stored."""
    events: int
    bytes: int
    agent: str
    """The agent of the configuration whose settings it has; "" for the server's own."""


class ApiOpenedSession(ApiSession, frozen=True, kw_only=True):
    """A session, with the model that answers in it."""

    model: str
    user: str
    """The user whose memory it shows; "" for none."""


class ApiOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where an entry comes from."""

    source: str
    """`told`, `spoken`, `quoted`, `proposed`, `file` or `imported`."""
    by: str
    session: str
    event: str
    """The handle of the user's message in the session."""
    quote: str
    """The words of the user."""


class ApiEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a memory."""

    id: str
    text: str
    kind: EntryKind
    at: float | None
    counts: bool
    """Whether requests may show it."""
    proposed: bool
    forgotten: bool
    replaced_by: str
    """The id of the later entry that replaces it; "" for none."""
    uses: int
    origin: ApiOrigin


class ApiMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of a user's memory."""

    entries: list[ApiEntry]
    next: str | None
    """The value of `after` for the next page; null on the last page."""


class ApiUndoneEntry(msgspec.Struct, frozen=True, kw_only=True):
    entry: ApiEntry | None
    """The entry as it is now; null if the change was that it was remembered."""


class ApiKeptMessages(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    messages: int
    """How many messages of the user it has; of all users in a drop-in session, which names no authors."""


class ApiErased(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased of a user, together with the memory, and what was not."""

    sessions: list[str]
    """The erased sessions."""
    kept: list[ApiKeptMessages]
    """Sessions in which other people spoke too: the user's messages stay in them until the session is deleted."""


# ── Administration ───────────────────────────────────────────────────────────────────────────────────────


class NewTokenBody(ApiBody, frozen=True):
    """A token to create."""

    role: TokenRole = "tenant"
    tenant: Annotated[str, Meta(max_length=MAX_API_ID_CHARS)] | None = None
    """The tenant whose sessions it opens, `default` if null; null for other roles."""
    label: ShortText = ""
    """What it is for."""
    memory: Annotated[str, Meta(max_length=2 * MAX_API_ID_CHARS)] | None = None
    """The user whose memory drop-in requests show, as `foveal token create --memory` takes it."""


class AdminUsageQuery(ApiBody, frozen=True):
    by: Annotated[str, Meta(max_length=100)] = "tenant"
    """What to sum by, separated by commas: `tenant`, `user`, `model`, `day`; empty: one sum of all."""
    since: Day = ""
    """The first day; empty: all before `until` too."""
    until: Day = ""
    """The last day, included; empty: today."""
    tenant: Annotated[str, Meta(max_length=MAX_API_ID_CHARS)] | None = None
    """Only this tenant."""
    user: Annotated[str, Meta(max_length=MAX_API_ID_CHARS)] | None = None
    """Only this user."""


class AdminBudgetsQuery(ApiBody, frozen=True):
    tenant: Annotated[str, Meta(max_length=MAX_API_ID_CHARS)] | None = None
    """Only this tenant."""


class AuditQuery(ApiBody, frozen=True):
    since: Annotated[float, Meta(ge=0)] = 0.0
    until: Annotated[float, Meta(ge=0)] | None = None
    tenant: Annotated[str, Meta(max_length=MAX_API_ID_CHARS)] | None = None
    action: AuditAction | None = None
    user: Annotated[str, Meta(max_length=MAX_API_ID_CHARS)] | None = None
    """Only rows about this user, whom they name by a digest."""
    limit: Annotated[int, Meta(ge=1, le=AUDIT_PAGE)] = 200
    after: Seq = 0
    """The id of the last row that was read."""


class ApiToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret."""

    id: str
    role: str
    tenant: str
    """"" for a role that belongs to no tenant."""
    label: str
    memory: str
    created: float
    revoked: float | None


class ApiTokens(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[ApiToken]
    """Revoked ones too, oldest first."""


class ApiNewToken(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    secret: str
    """What clients send; it cannot be read again."""


class ApiTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant with its usage of the last 30 days."""

    name: str
    tokens: int
    """Valid tokens."""
    usage: UsageRow


class ApiTenants(msgspec.Struct, frozen=True, kw_only=True):
    tenants: list[ApiTenant]
    """Those with sessions, tokens or usage."""


class ApiUsageSums(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[UsageRow]
    """The most expensive first."""


class ApiBudgets(msgspec.Struct, frozen=True, kw_only=True):
    limits: list[SpentLimit]
    """Limits of which anything is spent or reserved, those with the least left first."""


class ApiHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the server that answers, with what `/healthz` does not tell everyone."""

    version: str
    storage: str
    """The folder, or the database without its password."""
    problems: list[str]
    failing_tenants: list[str]
    """Tenants whose sessions could not be used in the last minute."""
    sessions_open: int
    turns_running: int
    inbox: int | None
    """Messages that wait for an answer; null if they cannot be counted."""
    inbox_oldest_s: float | None
    """Age of the oldest of them; null if there is none."""


class ApiAudit(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[AuditEntry]
    """Oldest first."""
    next: int | None
    """The value of `after` for the next page; null if there are no more rows now."""


class ApiSessions(msgspec.Struct, frozen=True, kw_only=True):
    sessions: list[ApiSession]
    """The most recently active first."""
    next: str | None
    """The value of `after` for the next page; null on the last page."""


class ApiEvent(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    seq: int
    at: float | None
    kind: str
    fact: Raw
    """The fact as the log stores it."""


class ApiEvents(msgspec.Struct, frozen=True, kw_only=True):
    events: list[ApiEvent]
    next: int | None
    """The value of `first` for the next page; null on the last page."""


class ApiWholeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event with its whole text, and how the next request shows it."""

    event: ApiEvent
    original: str
    shown: EventStatus


class StoredHandles(msgspec.Struct, frozen=True, kw_only=True):
    handles: list[str]


class ApiContext(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the next request in tokens; the context report has the details."""

    used: int
    limit: int
    window: int
    state: str
    """`ok`, `warn`, `act` or `over`."""
    question: str
    """The question to ask the user, in mode `confirm` above its threshold; `compact` with `agreed` is the yes."""
    notice: str
    """What to tell the user with it: the next turn will probably not fit, and is then reduced without a yes."""


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
    """null until the turn has ended."""


class ApiAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is stored and will run."""

    session: str
    key: str
    """For a turn: the same message with this key and without `background` waits for the same turn."""


class ApiCompaction(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    before: int
    """Tokens of the next request before and after the compaction."""
    after: int
    by: str
    """The author of the summary, and below it its text; "" for another reduction that `agreed` allowed."""
    summary: str


class ApiUndone(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    kind: str
    warning: str
    """What can go wrong because of it, such as that the model cannot read what it is sent again; "" most often."""


class ApiDropped(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    """The event that records it."""


class ApiSuperseded(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    """The event that records it."""


class ApiMarked(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    """The event that records it."""


class ApiPin(msgspec.Struct, frozen=True, kw_only=True):
    handle: str


class ApiUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of the session so far. `calls` are the requests to the model that were answered or reported.
    `spent` and `saved` are US dollars of the calls whose price is known, null if it is known of none;
    `unknown_calls` says how many calls are not part of them."""

    calls: int
    input: int
    cache_read: int
    cache_write: int
    output: int
    reasoning: int
    spent: float | None
    unknown_calls: int
    saved: float | None
    cached_share: float | None
    """The share of the last request that came from the provider's cache."""


class ApiHit(msgspec.Struct, frozen=True, kw_only=True):
    handle: str
    seq: int
    kind: str
    score: float
    excerpt: str
    """The part of the text with most words of the query, on one line."""


class ApiHits(msgspec.Struct, frozen=True, kw_only=True):
    hits: list[ApiHit]


class ApiProblem(msgspec.Struct, frozen=True, kw_only=True):
    """An error as RFC 9457 defines it; some errors have further members."""

    type: str
    title: str
    status: int
    detail: str


# ── Events of a stream that differ from those of `foveal.agent.events` ─────────────────────────────


class ApiReduction(msgspec.Struct, frozen=True, kw_only=True, tag_field="happening", tag="reduced"):
    events: tuple[ApiEvent, ...]
    before: int
    after: int


class ApiTurnEnd(msgspec.Struct, frozen=True, kw_only=True, tag_field="happening", tag="ended"):
    why: str
    problem: str
    """Why it ended without an answer; "" if it was answered."""
    context: ApiContext


# ── Conversion from the types of the service ─────────────────────────────────────────────────────────────

MAX_EXCERPT_CHARS: Final = 240


def session_to_api(info: SessionInfo, agent: str) -> ApiSession:
    return ApiSession(
        id=info.id,
        title=info.title,
        created=info.created,
        active=info.active,
        events=info.events,
        bytes=info.bytes,
        agent=agent,
    )


def opened_session_to_api(info: SessionInfo, *, agent: str, model: str, user: str) -> ApiOpenedSession:
    return ApiOpenedSession(**asdict(session_to_api(info, agent)), model=model, user=user)


def entry_to_api(entry: MemoryEntry) -> ApiEntry:
    origin = entry.origin
    return ApiEntry(
        id=entry.id,
        text=entry.text,
        kind=entry.kind,
        at=entry.at,
        counts=entry.counts,
        proposed=entry.proposed,
        forgotten=entry.forgotten,
        replaced_by=entry.replaced_by or "",
        uses=entry.uses,
        origin=ApiOrigin(
            source=origin.source,
            by=origin.by,
            session=origin.session,
            event=origin.event,
            quote=origin.quote,
        ),
    )


def event_to_api(event: events.Event) -> ApiEvent:
    return ApiEvent(
        handle=event.handle,
        seq=event.seq,
        at=event.at,
        kind=events.kind(event.fact),
        fact=_encode_fact(event.fact),
    )


def _encode_fact(fact: events.AnyFact) -> Raw:
    if isinstance(fact, events.Unknown):
        return fact.raw
    try:
        return Raw(msgspec.json.encode(fact))
    except UnicodeEncodeError:  # a lone surrogate is not UTF-8, but a JSON escape can hold it
        return events.raw(plain(fact))


def context_to_api(report: Report) -> ApiContext:
    return ApiContext(
        used=report.used,
        limit=report.limit,
        window=report.window,
        state=report.state,
        question=report.question,
        notice=report.notice,
    )


def outcome_to_api(outcome: TurnOutcome) -> ApiOutcome:
    return ApiOutcome(
        text=outcome.text,
        why=outcome.why,
        problem=outcome.problem,
        code=outcome.code,
        context=None if outcome.report is None else context_to_api(outcome.report),
    )


async def turn_to_api(turn: Turn) -> ApiTurn:
    ended = outcome_to_api(await turn.outcome()) if turn.state == "ended" else None
    return ApiTurn(turn=turn.id, session=turn.session, key=turn.key, state=turn.state, outcome=ended)


def agent_event_to_api(event: agent_events.AgentEvent) -> msgspec.Struct:
    """Return an agent event as a stream sends it: log events as `ApiEvent`, of a report only its totals."""
    match event:
        case agent_events.ContextReduced():
            log_events = tuple(map(event_to_api, event.events))
            return ApiReduction(events=log_events, before=event.before, after=event.after)
        case agent_events.TurnFinished():
            return ApiTurnEnd(why=event.why, problem=event.problem, context=context_to_api(event.report))
        case _:
            return event


def usage_to_api(totals: UsageTotals) -> ApiUsage:
    return ApiUsage(
        calls=totals.calls,
        input=totals.input,
        cache_read=totals.cache_read,
        cache_write=totals.cache_write,
        output=totals.output,
        reasoning=totals.reasoning,
        spent=totals.spent,
        unknown_calls=totals.unknown_calls,
        saved=totals.saved,
        cached_share=totals.cached_share,
    )


def hits_to_api(found: Sequence[Hit], log_events: Sequence[events.Event], query: str) -> ApiHits:
    """Return the hits, best first, each with an excerpt of its text around the words of the query."""
    by_seq = {event.seq: event for event in log_events}
    words = query_terms(query)
    return ApiHits(
        hits=[_hit_to_api(hit, by_seq[hit.seq], words) for hit in found if hit.seq in by_seq],
    )


def _hit_to_api(hit: Hit, event: events.Event, words: frozenset[str]) -> ApiHit:
    text = search_text(event.fact) or original_text(event.fact)
    start = max(0, best_window(text, words, width=MAX_EXCERPT_CHARS) - MAX_EXCERPT_CHARS // 4)
    excerpt = one_line(text[start : start + 2 * MAX_EXCERPT_CHARS], width=MAX_EXCERPT_CHARS)
    return ApiHit(
        handle=event.handle,
        seq=hit.seq,
        kind=events.kind(event.fact),
        score=hit.score,
        excerpt=f"…{excerpt}" if start else excerpt,
    )
