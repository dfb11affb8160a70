"""Every operation of `/api/sessions`: the routes and the document are both made from this list."""

from __future__ import annotations

from typing import Any, Final

from foveal.apps.server.api import looking, sessions, shapes, steering, turns
from foveal.apps.server.api.operations import Answer, Operation
from foveal.apps.server.api.shapes import Nothing
from foveal.apps.server.api.streams import EVENTS, STREAM
from foveal.report import Report

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
_STREAM: Final = Answer(
    what="The turn as server-sent events, each of this shape. The last one is `outcome`; `id` counts from 1.",
    media=STREAM,
    schema=EVENT,
    headers=_TURN,
    gives=_SAME,
)
_OUTCOME: Final = Answer(what="The turn and its outcome.", shape=shapes.Turn, headers=_TURN, gives=_SAME)
_LATER: Final = Answer(status=202, what="It is stored and will be done.", shape=shapes.Accepted)
_MESSAGES: Final = Answer(
    what="All of it: lines of JSON (`to=foveal`), or a list of messages in a provider's dialect.",
    schema={"type": "array", "items": {"type": "object"}},
)
_LINES: Final = Answer(what=_MESSAGES.what, media=looking.LINES, schema={"type": "string"})

OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    Operation(
        id="create_session",
        method="POST",
        path=ALL,
        what="Begin a session.",
        handler=sessions.create,
        body=shapes.NewSession,
        query=Nothing,
        answers=(
            Answer(status=201, what="It is stored.", shape=shapes.Opened, headers=_PLACE, gives=_SESSION),
        ),
        errors=(409, 422),
    ),
    Operation(
        id="list_sessions",
        method="GET",
        path=ALL,
        what="The sessions, the most recently active first, page by page.",
        handler=sessions.list_,
        body=Nothing,
        query=shapes.ListQuery,
        answers=(Answer(what="One page.", shape=shapes.Sessions),),
        errors=(422,),
    ),
    Operation(
        id="get_session",
        method="GET",
        path=ONE,
        what="One session.",
        handler=sessions.get,
        body=Nothing,
        query=Nothing,
        answers=(Answer(what="What it is.", shape=shapes.Opened),),
        errors=(404,),
    ),
    Operation(
        id="rename_session",
        method="PATCH",
        path=ONE,
        what="Give a session another title.",
        handler=sessions.rename,
        body=shapes.NewTitle,
        query=Nothing,
        answers=(Answer(what="What it is now.", shape=shapes.Opened),),
        errors=(404,),
    ),
    Operation(
        id="delete_session",
        method="DELETE",
        path=ONE,
        what="Stop a session's turn and erase its text for good; its id is not used again.",
        handler=sessions.delete,
        body=Nothing,
        query=Nothing,
        answers=(Answer(status=204, what="It is erased."),),
        errors=(404,),
    ),
    Operation(
        id="fork_session",
        method="POST",
        path=f"{ONE}/fork",
        what="A new session with the events of this one, up to one of them.",
        handler=sessions.fork,
        body=shapes.Fork,
        query=Nothing,
        answers=(
            Answer(status=201, what="The new session.", shape=shapes.Opened, headers=_PLACE, gives=_SESSION),
        ),
        errors=(404, 409, 422),
    ),
    Operation(
        id="run_turn",
        method="POST",
        path=f"{ONE}/turns",
        what="Say something to the model: the answer begins when the words are stored.",
        handler=turns.run,
        body=shapes.NewTurn,
        query=Nothing,
        answers=(_STREAM, _OUTCOME, _LATER),
        errors=(404, 409, 422, 502),
    ),
    Operation(
        id="follow_turn",
        method="GET",
        path=TURN,
        what="Follow a turn from its beginning, or from behind the last event that was seen; or how it stands.",
        handler=turns.follow,
        body=Nothing,
        query=shapes.TurnQuery,
        answers=(_STREAM, _OUTCOME),
        errors=(404,),
        reads={"Last-Event-ID": "The id of the last event that was seen."},
    ),
    Operation(
        id="stop_turn",
        method="POST",
        path=f"{TURN}/stop",
        what="Stop a turn; what was said so far stays. One that has ended stays as it is.",
        handler=turns.stop,
        body=Nothing,
        query=Nothing,
        answers=(_OUTCOME,),
        errors=(404,),
    ),
    Operation(
        id="ask_again",
        method="POST",
        path=f"{ONE}/again",
        what="Ask the model again when the last turn failed.",
        handler=turns.again,
        body=shapes.Again,
        query=Nothing,
        answers=(_STREAM, _OUTCOME),
        errors=(404, 409, 422, 502),
    ),
    Operation(
        id="get_context",
        method="GET",
        path=f"{ONE}/context",
        what="What fills the window and why; the totals add up to the window.",
        handler=looking.context,
        body=Nothing,
        query=Nothing,
        answers=(Answer(what="The report.", shape=Report),),
        errors=(404,),
    ),
    Operation(
        id="get_usage",
        method="GET",
        path=f"{ONE}/usage",
        what="Tokens by kind, and what they cost.",
        handler=looking.usage,
        body=Nothing,
        query=Nothing,
        answers=(Answer(what="What was used.", shape=shapes.Usage),),
        errors=(404,),
    ),
    Operation(
        id="append_events",
        method="POST",
        path=f"{ONE}/events",
        what="Store messages without asking the model.",
        handler=steering.append,
        body=shapes.NewMessages,
        query=Nothing,
        answers=(Answer(status=201, what="They are stored.", shape=shapes.Stored, gives=_EVENT),),
        errors=(404, 409, 422),
    ),
    Operation(
        id="list_events",
        method="GET",
        path=f"{ONE}/events",
        what="The log, page by page.",
        handler=looking.events,
        body=Nothing,
        query=shapes.EventsQuery,
        answers=(Answer(what="One page.", shape=shapes.Events),),
        errors=(404,),
    ),
    Operation(
        id="get_event",
        method="GET",
        path=f"{ONE}/events/{{handle}}",
        what="One event with its whole text, and how it stands in the next request.",
        handler=looking.event,
        body=Nothing,
        query=Nothing,
        answers=(Answer(what="The event.", shape=shapes.Whole),),
        errors=(404,),
    ),
    Operation(
        id="compact_session",
        method="POST",
        path=f"{ONE}/compact",
        what="Summarise old turns now.",
        handler=steering.compact,
        body=shapes.Compact,
        query=Nothing,
        answers=(Answer(what="What came of it.", shape=shapes.Compacted), _LATER),
        errors=(404, 409),
    ),
    Operation(
        id="undo_reduction",
        method="POST",
        path=f"{ONE}/undo",
        what="Take back one reduction, or a pin.",
        handler=steering.undo,
        body=shapes.Undo,
        query=Nothing,
        answers=(Answer(what="What was taken back.", shape=shapes.Undone),),
        errors=(404, 409, 422),
    ),
    Operation(
        id="pin_rule",
        method="POST",
        path=f"{ONE}/pins",
        what="Keep a rule in every request.",
        handler=steering.pin,
        body=shapes.Pin,
        query=Nothing,
        answers=(Answer(status=201, what="It is stored; `undo` takes it back.", shape=shapes.Pinned),),
        errors=(404, 409),
    ),
    Operation(
        id="search_session",
        method="GET",
        path=f"{ONE}/search",
        what="Events that have words of a query, best first, hidden ones included.",
        handler=looking.search,
        body=Nothing,
        query=shapes.SearchQuery,
        answers=(Answer(what="What was found.", shape=shapes.Hits),),
        errors=(404,),
    ),
    Operation(
        id="export_session",
        method="GET",
        path=f"{ONE}/export",
        what="The whole session, to keep or to take elsewhere.",
        handler=looking.export,
        body=Nothing,
        query=shapes.ExportQuery,
        answers=(_LINES, _MESSAGES),
        errors=(404,),
    ),
)
