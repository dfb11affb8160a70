"""Table of all operations of `/api/sessions`; routes and OpenAPI document are made from it."""

from __future__ import annotations

from typing import Any, Final

from foveal.core.engine.report import Report
from foveal.server.api import schemas, session_endpoints, turn_endpoints
from foveal.server.api.operation import Operation, OperationResult
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
_STREAM: Final = OperationResult(
    "The turn as server-sent events of this form. The last one is `outcome`; `id` counts from 1.",
    media_type=EVENT_STREAM_TYPE,
    schema=STREAM_EVENT_SCHEMA,
    headers=_TURN_HEADERS,
    links=_TURN_LINKS,
)
_OUTCOME: Final = OperationResult(
    "The turn and its outcome.", schemas.ApiTurn, headers=_TURN_HEADERS, links=_TURN_LINKS
)
_ACCEPTED: Final = OperationResult("The job is stored and will run.", schemas.ApiAccepted, status=202)
_EXPORT: Final = (
    "The whole session: lines of JSON (`to=foveal`), or a list of messages in a provider's dialect."
)


def _new_session(description: str) -> OperationResult:
    return OperationResult(
        description,
        schemas.ApiOpenedSession,
        status=201,
        headers={"Location": "The path of the session."},
        links={"session": "$response.body#/id"},
    )


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────

SESSION_OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    Operation(
        id="create_session",
        method="POST",
        path=SESSIONS_PATH,
        summary="Create a session, or one that continues another.",
        handler=session_endpoints.create_session,
        results=(_new_session("The session is stored."),),
        errors=(404, 409, 422),
    ),
    Operation(
        id="list_sessions",
        path=SESSIONS_PATH,
        summary="List the sessions page by page, the most recently active first.",
        handler=session_endpoints.list_sessions,
        results=(OperationResult("One page.", schemas.ApiSessions),),
        errors=(422,),
    ),
    Operation(
        id="get_session",
        path=SESSION_PATH,
        summary="Return a session.",
        handler=session_endpoints.get_session,
        results=(OperationResult("The session.", schemas.ApiOpenedSession),),
    ),
    Operation(
        id="rename_session",
        method="PATCH",
        path=SESSION_PATH,
        summary="Change the title of a session.",
        handler=session_endpoints.rename_session,
        results=(OperationResult("The changed session.", schemas.ApiOpenedSession),),
    ),
    Operation(
        id="delete_session",
        method="DELETE",
        path=SESSION_PATH,
        summary="Stop the session's turn and erase its text permanently; its id cannot be used again.",
        handler=session_endpoints.delete_session,
        results=(OperationResult("The session is erased.", status=204),),
    ),
    Operation(
        id="fork_session",
        method="POST",
        path=f"{SESSION_PATH}/fork",
        summary="Create a session with the events of this one, up to a given event.",
        handler=session_endpoints.fork_session,
        results=(_new_session("The new session."),),
        errors=(409, 422),
    ),
    Operation(
        id="run_turn",
        method="POST",
        path=f"{SESSION_PATH}/turns",
        summary="Send a user message to the model; the response begins when the message is stored.",
        handler=turn_endpoints.run_turn,
        results=(_STREAM, _OUTCOME, _ACCEPTED),
        errors=(409, 422, 502),
    ),
    Operation(
        id="follow_turn",
        path=TURN_PATH,
        summary="Follow a turn from its beginning or after the last event seen; or return its state.",
        handler=turn_endpoints.follow_turn,
        results=(_STREAM, _OUTCOME),
        request_headers={"Last-Event-ID": "The id of the last event that the client has seen."},
    ),
    Operation(
        id="stop_turn",
        method="POST",
        path=f"{TURN_PATH}/stop",
        summary="Stop a turn and keep the text so far; a turn that has ended does not change.",
        handler=turn_endpoints.stop_turn,
        results=(_OUTCOME,),
    ),
    Operation(
        id="ask_again",
        method="POST",
        path=f"{SESSION_PATH}/again",
        summary="Ask the model again after a failed turn.",
        handler=turn_endpoints.retry_turn,
        results=(_STREAM, _OUTCOME),
        errors=(409, 422, 502),
    ),
    Operation(
        id="get_context",
        path=f"{SESSION_PATH}/context",
        summary="Return what fills the window and why; the parts add up to the window.",
        handler=session_endpoints.get_context,
        results=(OperationResult("The report.", Report),),
    ),
    Operation(
        id="get_usage",
        path=f"{SESSION_PATH}/usage",
        summary="Return the used tokens by kind, and their cost.",
        handler=session_endpoints.get_usage,
        results=(OperationResult("The usage.", schemas.ApiUsage),),
    ),
    Operation(
        id="append_events",
        method="POST",
        path=f"{SESSION_PATH}/events",
        summary="Store messages without asking the model.",
        handler=session_endpoints.append_messages,
        results=(
            OperationResult(
                "The messages are stored.", schemas.StoredHandles, status=201, links=_EVENT_LINKS
            ),
        ),
        errors=(409, 422),
    ),
    Operation(
        id="list_events",
        path=f"{SESSION_PATH}/events",
        summary="List the events of the log, page by page.",
        handler=session_endpoints.list_events,
        results=(OperationResult("One page.", schemas.ApiEvents),),
    ),
    Operation(
        id="get_event",
        path=f"{SESSION_PATH}/events/{{handle}}",
        summary="Return an event with its whole text, and how the next request shows it.",
        handler=session_endpoints.get_event,
        results=(OperationResult("The event.", schemas.ApiWholeEvent),),
    ),
    Operation(
        id="compact_session",
        method="POST",
        path=f"{SESSION_PATH}/compact",
        summary="Summarise old turns now, or answer the question of mode `confirm` with yes.",
        handler=session_endpoints.compact_session,
        results=(OperationResult("The summary.", schemas.ApiCompaction), _ACCEPTED),
        errors=(409, 422),
    ),
    Operation(
        id="undo_reduction",
        method="POST",
        path=f"{SESSION_PATH}/undo",
        summary="Undo a reduction, a pin, a supersession or a rewind.",
        handler=session_endpoints.undo_reduction,
        results=(OperationResult("The event that was undone.", schemas.ApiUndone),),
        errors=(409, 413, 422),
    ),
    Operation(
        id="drop_event",
        method="POST",
        path=f"{SESSION_PATH}/drop",
        summary="Hide a message with its tool results, or a summary, from the model.",
        handler=session_endpoints.drop_event,
        results=(OperationResult("It is hidden; `undo` shows it again.", schemas.ApiDropped),),
        errors=(409, 422),
    ),
    Operation(
        id="pin_rule",
        method="POST",
        path=f"{SESSION_PATH}/pins",
        summary="Keep a rule in every request.",
        handler=session_endpoints.pin_rule,
        results=(OperationResult("The rule is stored; `undo` removes it.", schemas.ApiPin, status=201),),
        errors=(409,),
    ),
    Operation(
        id="supersede_message",
        method="POST",
        path=f"{SESSION_PATH}/supersede",
        summary="Say that a message of the user no longer holds, because of a later one.",
        handler=session_endpoints.supersede_message,
        results=(
            OperationResult("The message names the later one; `undo` removes that.", schemas.ApiSuperseded),
        ),
        errors=(409, 413, 422),
    ),
    Operation(
        id="search_session",
        path=f"{SESSION_PATH}/search",
        summary="Search the events for the words of a query, hidden events included, best first.",
        handler=session_endpoints.search_session,
        results=(OperationResult("The hits.", schemas.ApiHits),),
    ),
    Operation(
        id="export_session",
        path=f"{SESSION_PATH}/export",
        summary="Export the whole session.",
        handler=session_endpoints.export_session,
        results=(
            OperationResult(_EXPORT, media_type=session_endpoints.NDJSON_TYPE, schema={"type": "string"}),
            OperationResult(_EXPORT, schema={"type": "array", "items": {"type": "object"}}),
        ),
    ),
)
