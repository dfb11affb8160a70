"""Every operation of `/api/sessions`: the routes and the document are both made from this list."""

from __future__ import annotations

from typing import Any, Final

from foveal.apps.http.api import schemas, session_endpoints, turn_endpoints
from foveal.apps.http.api.operation import Operation, OperationResult
from foveal.apps.http.api.schemas import EmptyBody
from foveal.apps.http.api.turn_endpoints import EVENTS, STREAM
from foveal.core.engine.report import Report

ALL: Final = "/api/sessions"
ONE: Final = f"{ALL}/{{session}}"
TURN: Final = f"{ONE}/turns/{{turn}}"

EVENT: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": EVENTS},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
"""One server-sent event."""
_PLACE: Final = {"Location": "Where it is."}
_SESSION: Final = {"session": "$response.body#/id"}
_EVENT: Final = {"session": "$request.path.session", "handle": "$response.body#/handles/0"}
_SAME: Final = {"session": "$request.path.session", "turn": "$response.header.X-Foveal-Turn"}
_TURN: Final = {"X-Foveal-Turn": "The turn's id.", "Location": "Where the turn can be followed."}
_STREAM: Final = OperationResult(
    what="The turn as server-sent events, each of this shape. The last one is `outcome`; `id` counts from 1.",
    media=STREAM,
    schema=EVENT,
    headers=_TURN,
    gives=_SAME,
)
_OUTCOME: Final = OperationResult(
    what="The turn and its outcome.", shape=schemas.ApiTurn, headers=_TURN, gives=_SAME
)
_LATER: Final = OperationResult(status=202, what="It is stored and will be done.", shape=schemas.ApiAccepted)
_MESSAGES: Final = OperationResult(
    what="All of it: lines of JSON (`to=foveal`), or a list of messages in a provider's dialect.",
    schema={"type": "array", "items": {"type": "object"}},
)
_LINES: Final = OperationResult(what=_MESSAGES.what, media=session_endpoints.LINES, schema={"type": "string"})

OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    Operation(
        id="create_session",
        method="POST",
        path=ALL,
        what="Begin a session.",
        handler=session_endpoints.create,
        body=schemas.NewSession,
        query=EmptyBody,
        answers=(
            OperationResult(
                status=201,
                what="It is stored.",
                shape=schemas.ApiOpenedSession,
                headers=_PLACE,
                gives=_SESSION,
            ),
        ),
        errors=(409, 422),
    ),
    Operation(
        id="list_sessions",
        method="GET",
        path=ALL,
        what="The sessions, the most recently active first, page by page.",
        handler=session_endpoints.list_,
        body=EmptyBody,
        query=schemas.ListQuery,
        answers=(OperationResult(what="One page.", shape=schemas.ApiSessions),),
        errors=(422,),
    ),
    Operation(
        id="get_session",
        method="GET",
        path=ONE,
        what="One session.",
        handler=session_endpoints.get,
        body=EmptyBody,
        query=EmptyBody,
        answers=(OperationResult(what="What it is.", shape=schemas.ApiOpenedSession),),
        errors=(404,),
    ),
    Operation(
        id="rename_session",
        method="PATCH",
        path=ONE,
        what="Give a session another title.",
        handler=session_endpoints.rename,
        body=schemas.NewTitle,
        query=EmptyBody,
        answers=(OperationResult(what="What it is now.", shape=schemas.ApiOpenedSession),),
        errors=(404,),
    ),
    Operation(
        id="delete_session",
        method="DELETE",
        path=ONE,
        what="Stop a session's turn and erase its text for good; its id is not used again.",
        handler=session_endpoints.delete,
        body=EmptyBody,
        query=EmptyBody,
        answers=(OperationResult(status=204, what="It is erased."),),
        errors=(404,),
    ),
    Operation(
        id="fork_session",
        method="POST",
        path=f"{ONE}/fork",
        what="A new session with the events of this one, up to one of them.",
        handler=session_endpoints.fork,
        body=schemas.ForkBody,
        query=EmptyBody,
        answers=(
            OperationResult(
                status=201,
                what="The new session.",
                shape=schemas.ApiOpenedSession,
                headers=_PLACE,
                gives=_SESSION,
            ),
        ),
        errors=(404, 409, 422),
    ),
    Operation(
        id="run_turn",
        method="POST",
        path=f"{ONE}/turns",
        what="Say something to the model: the answer begins when the words are stored.",
        handler=turn_endpoints.run,
        body=schemas.NewTurn,
        query=EmptyBody,
        answers=(_STREAM, _OUTCOME, _LATER),
        errors=(404, 409, 422, 502),
    ),
    Operation(
        id="follow_turn",
        method="GET",
        path=TURN,
        what="Follow a turn from its beginning, or from behind the last event that was seen; or how it stands.",
        handler=turn_endpoints.follow,
        body=EmptyBody,
        query=schemas.TurnQuery,
        answers=(_STREAM, _OUTCOME),
        errors=(404,),
        reads={"Last-Event-ID": "The id of the last event that was seen."},
    ),
    Operation(
        id="stop_turn",
        method="POST",
        path=f"{TURN}/stop",
        what="Stop a turn; what was said so far stays. One that has ended stays as it is.",
        handler=turn_endpoints.stop,
        body=EmptyBody,
        query=EmptyBody,
        answers=(_OUTCOME,),
        errors=(404,),
    ),
    Operation(
        id="ask_again",
        method="POST",
        path=f"{ONE}/again",
        what="Ask the model again when the last turn failed.",
        handler=turn_endpoints.again,
        body=schemas.RetryBody,
        query=EmptyBody,
        answers=(_STREAM, _OUTCOME),
        errors=(404, 409, 422, 502),
    ),
    Operation(
        id="get_context",
        method="GET",
        path=f"{ONE}/context",
        what="What fills the window and why; the totals add up to the window.",
        handler=session_endpoints.context,
        body=EmptyBody,
        query=EmptyBody,
        answers=(OperationResult(what="The report.", shape=Report),),
        errors=(404,),
    ),
    Operation(
        id="get_usage",
        method="GET",
        path=f"{ONE}/usage",
        what="Tokens by kind, and what they cost.",
        handler=session_endpoints.usage,
        body=EmptyBody,
        query=EmptyBody,
        answers=(OperationResult(what="What was used.", shape=schemas.ApiUsage),),
        errors=(404,),
    ),
    Operation(
        id="append_events",
        method="POST",
        path=f"{ONE}/events",
        what="Store messages without asking the model.",
        handler=session_endpoints.append,
        body=schemas.NewMessages,
        query=EmptyBody,
        answers=(
            OperationResult(status=201, what="They are stored.", shape=schemas.StoredHandles, gives=_EVENT),
        ),
        errors=(404, 409, 422),
    ),
    Operation(
        id="list_events",
        method="GET",
        path=f"{ONE}/events",
        what="The log, page by page.",
        handler=session_endpoints.events,
        body=EmptyBody,
        query=schemas.EventsQuery,
        answers=(OperationResult(what="One page.", shape=schemas.ApiEvents),),
        errors=(404,),
    ),
    Operation(
        id="get_event",
        method="GET",
        path=f"{ONE}/events/{{handle}}",
        what="One event with its whole text, and how it stands in the next request.",
        handler=session_endpoints.event,
        body=EmptyBody,
        query=EmptyBody,
        answers=(OperationResult(what="The event.", shape=schemas.ApiWholeEvent),),
        errors=(404,),
    ),
    Operation(
        id="compact_session",
        method="POST",
        path=f"{ONE}/compact",
        what="Summarise old turns now.",
        handler=session_endpoints.compact,
        body=schemas.CompactBody,
        query=EmptyBody,
        answers=(OperationResult(what="What came of it.", shape=schemas.ApiCompaction), _LATER),
        errors=(404, 409),
    ),
    Operation(
        id="undo_reduction",
        method="POST",
        path=f"{ONE}/undo",
        what="Take back one reduction, or a pin.",
        handler=session_endpoints.undo,
        body=schemas.UndoBody,
        query=EmptyBody,
        answers=(OperationResult(what="What was taken back.", shape=schemas.ApiUndone),),
        errors=(404, 409, 422),
    ),
    Operation(
        id="pin_rule",
        method="POST",
        path=f"{ONE}/pins",
        what="Keep a rule in every request.",
        handler=session_endpoints.pin,
        body=schemas.PinBody,
        query=EmptyBody,
        answers=(
            OperationResult(status=201, what="It is stored; `undo` takes it back.", shape=schemas.ApiPin),
        ),
        errors=(404, 409),
    ),
    Operation(
        id="search_session",
        method="GET",
        path=f"{ONE}/search",
        what="Events that have words of a query, best first, hidden ones included.",
        handler=session_endpoints.search,
        body=EmptyBody,
        query=schemas.SearchQuery,
        answers=(OperationResult(what="What was found.", shape=schemas.ApiHits),),
        errors=(404,),
    ),
    Operation(
        id="export_session",
        method="GET",
        path=f"{ONE}/export",
        what="The whole session, to keep or to take elsewhere.",
        handler=session_endpoints.export,
        body=EmptyBody,
        query=schemas.ExportQuery,
        answers=(_LINES, _MESSAGES),
        errors=(404,),
    ),
)
