"""Table of all operations of `/api/sessions`; routes and OpenAPI document are made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.responses import Response

from foveal.core.engine.operations import OPERATIONS, OperationName
from foveal.core.engine.report import Report
from foveal.server.api import schemas, session_endpoints, turn_endpoints
from foveal.server.api.operation import ApiCall, ApiOperation, ApiResult
from foveal.server.api.schemas import EmptyBody
from foveal.server.api.turn_endpoints import EVENT_NAMES
from foveal.web.event_stream import EVENT_STREAM_TYPE

SESSIONS_PATH: Final = "/api/sessions"
SESSION_PATH: Final = f"{SESSIONS_PATH}/{{session}}"
TURN_PATH: Final = f"{SESSION_PATH}/turns/{{turn}}"

STREAM_EVENT_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": EVENT_NAMES},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
"""JSON schema of one server-sent event."""

# ── Results that several operations share ────────────────────────────────────────────────────────────────

_TURN_HEADERS: Final = {"X-Foveal-Turn": "The turn's id.", "Location": "Where the turn can be followed."}
_TURN_LINKS: Final = {"session": "$request.path.session", "turn": "$response.header.X-Foveal-Turn"}
_EVENT_LINKS: Final = {"session": "$request.path.session", "handle": "$response.body#/handles/0"}
_STREAM: Final = ApiResult(
    "The turn as server-sent events of this form. The last one is `outcome`; `id` counts from 1.",
    media_type=EVENT_STREAM_TYPE,
    schema=STREAM_EVENT_SCHEMA,
    headers=_TURN_HEADERS,
    links=_TURN_LINKS,
)
_OUTCOME: Final = ApiResult(
    "The turn and its outcome.", schemas.ApiTurn, headers=_TURN_HEADERS, links=_TURN_LINKS
)
_ACCEPTED: Final = ApiResult("The job is stored and will run.", schemas.ApiAccepted, status=202)
_EXPORT: Final = (
    "The whole session: lines of JSON (`to=foveal`), or a list of messages in a provider's dialect."
)


def _new_session(description: str) -> ApiResult:
    return ApiResult(
        description,
        schemas.ApiOpenedSession,
        status=201,
        headers={"Location": "The path of the session."},
        links={"session": "$response.body#/id"},
    )


def _operation(
    name: OperationName,
    *,
    id: str,
    handler: Callable[[ApiCall[Any, EmptyBody]], Awaitable[Response]],
    results: tuple[ApiResult, ...],
    path: str = "",
    errors: tuple[int, ...] = (409, 413, 422),
) -> ApiOperation[Any, EmptyBody]:
    """Return the row of an operation of `OPERATIONS`, which says what it does."""
    return ApiOperation(
        id=id,
        method="POST",
        path=f"{SESSION_PATH}/{path or name}",
        summary=OPERATIONS[name].summary,
        handler=handler,
        results=results,
        errors=errors,
    )


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────

SESSION_OPERATIONS: Final[tuple[ApiOperation[Any, Any], ...]] = (
    ApiOperation(
        id="create_session",
        method="POST",
        path=SESSIONS_PATH,
        summary="Create a session, or one that continues another.",
        handler=session_endpoints.create_session,
        results=(_new_session("The session is stored."),),
        errors=(404, 409, 422),
    ),
    ApiOperation(
        id="list_sessions",
        path=SESSIONS_PATH,
        summary="List the sessions page by page, the most recently active first.",
        handler=session_endpoints.list_sessions,
        results=(ApiResult("One page.", schemas.ApiSessions),),
        errors=(422,),
    ),
    ApiOperation(
        id="get_session",
        path=SESSION_PATH,
        summary="Return a session.",
        handler=session_endpoints.get_session,
        results=(ApiResult("The session.", schemas.ApiOpenedSession),),
    ),
    ApiOperation(
        id="rename_session",
        method="PATCH",
        path=SESSION_PATH,
        summary="Change the title of a session.",
        handler=session_endpoints.rename_session,
        results=(ApiResult("The changed session.", schemas.ApiOpenedSession),),
    ),
    ApiOperation(
        id="delete_session",
        method="DELETE",
        path=SESSION_PATH,
        summary="Stop the session's turn and erase its text permanently; its id cannot be used again.",
        handler=session_endpoints.delete_session,
        results=(ApiResult("The session is erased.", status=204),),
    ),
    ApiOperation(
        id="fork_session",
        method="POST",
        path=f"{SESSION_PATH}/fork",
        summary="Create a session with the events of this one, up to a given event.",
        handler=session_endpoints.fork_session,
        results=(_new_session("The new session."),),
        errors=(409, 422),
    ),
    ApiOperation(
        id="run_turn",
        method="POST",
        path=f"{SESSION_PATH}/turns",
        summary="Send a user message to the model; the response begins when the message is stored.",
        handler=turn_endpoints.run_turn,
        results=(_STREAM, _OUTCOME, _ACCEPTED),
        errors=(409, 422, 502),
    ),
    ApiOperation(
        id="follow_turn",
        path=TURN_PATH,
        summary="Follow a turn from its beginning or after the last event seen; or return its state.",
        handler=turn_endpoints.follow_turn,
        results=(_STREAM, _OUTCOME),
        request_headers={"Last-Event-ID": "The id of the last event that the client has seen."},
    ),
    ApiOperation(
        id="stop_turn",
        method="POST",
        path=f"{TURN_PATH}/stop",
        summary="Stop a turn and keep the text so far; a turn that has ended does not change.",
        handler=turn_endpoints.stop_turn,
        results=(_OUTCOME,),
    ),
    ApiOperation(
        id="ask_again",
        method="POST",
        path=f"{SESSION_PATH}/again",
        summary="Ask the model again after a failed turn.",
        handler=turn_endpoints.retry_turn,
        results=(_STREAM, _OUTCOME),
        errors=(409, 422, 502),
    ),
    ApiOperation(
        id="get_context",
        path=f"{SESSION_PATH}/context",
        summary="Return what fills the window and why; the parts add up to the window.",
        handler=session_endpoints.get_context,
        results=(ApiResult("The report.", Report),),
    ),
    ApiOperation(
        id="get_usage",
        path=f"{SESSION_PATH}/usage",
        summary="Return the used tokens by kind, and their cost.",
        handler=session_endpoints.get_usage,
        results=(ApiResult("The usage.", schemas.ApiUsage),),
    ),
    ApiOperation(
        id="append_events",
        method="POST",
        path=f"{SESSION_PATH}/events",
        summary="Store messages without asking the model.",
        handler=session_endpoints.append_messages,
        results=(
            ApiResult("The messages are stored.", schemas.StoredHandles, status=201, links=_EVENT_LINKS),
        ),
        errors=(409, 422),
    ),
    ApiOperation(
        id="list_events",
        path=f"{SESSION_PATH}/events",
        summary="List the events of the log, page by page.",
        handler=session_endpoints.list_events,
        results=(ApiResult("One page.", schemas.ApiEvents),),
    ),
    ApiOperation(
        id="get_event",
        path=f"{SESSION_PATH}/events/{{handle}}",
        summary="Return an event with its whole text, and how the next request shows it.",
        handler=session_endpoints.get_event,
        results=(ApiResult("The event.", schemas.ApiWholeEvent),),
    ),
    _operation(
        "compact",
        id="compact_session",
        handler=session_endpoints.compact_session,
        results=(ApiResult("The summary.", schemas.ApiCompaction), _ACCEPTED),
        errors=(409, 422),
    ),
    _operation(
        "undo",
        id="undo_reduction",
        handler=session_endpoints.undo_reduction,
        results=(ApiResult("The event that was undone.", schemas.ApiUndone),),
    ),
    _operation(
        "drop",
        id="drop_event",
        handler=session_endpoints.drop_event,
        results=(ApiResult("It is hidden; `undo` shows it again.", schemas.ApiDropped),),
        errors=(409, 422),
    ),
    _operation(
        "pin",
        id="pin_rule",
        path="pins",
        handler=session_endpoints.pin_rule,
        results=(ApiResult("The rule is stored; `undo` removes it.", schemas.ApiPin, status=201),),
        errors=(409,),
    ),
    _operation(
        "mark",
        id="mark_message",
        handler=session_endpoints.mark_message,
        results=(ApiResult("The priority is stored; `undo` removes it.", schemas.ApiMarked),),
        errors=(409, 422),
    ),
    _operation(
        "supersede",
        id="supersede_message",
        handler=session_endpoints.supersede_message,
        results=(ApiResult("The message names the later one; `undo` removes that.", schemas.ApiSuperseded),),
    ),
    ApiOperation(
        id="search_session",
        path=f"{SESSION_PATH}/search",
        summary="Search the events for the words of a query, hidden events included, best first.",
        handler=session_endpoints.search_session,
        results=(ApiResult("The hits.", schemas.ApiHits),),
    ),
    ApiOperation(
        id="export_session",
        path=f"{SESSION_PATH}/export",
        summary="Export the whole session.",
        handler=session_endpoints.export_session,
        results=(
            ApiResult(_EXPORT, media_type=session_endpoints.NDJSON_TYPE, schema={"type": "string"}),
            ApiResult(_EXPORT, schema={"type": "array", "items": {"type": "object"}}),
        ),
    ),
)
