"""Endpoints of turns, and turns as server-sent events.

1. A request is answered only after the user message is stored. From then on the turn runs to its end, whether
   or not the client stays connected; with `on_disconnect = "pause"` it stops when the last client that waits for
   it has gone. Turns that no client has asked for, such as those of schedules, never stop because of it.
2. A stream has events of this form; `event` is the kind of the agent event, `id` counts from 1 within the turn, and
   `data` is one line of JSON:

       id: 2
       event: streamed
       data: {"happening":"streamed","piece":{"text":"Because","kind":"text"}}

3. The last event is always `outcome`, which has no id, unless the token is revoked before: then it is `error`.
   A client that lost the connection requests the turn with the id of the last event that it saw, and
   gets the rest; of a turn that has ended, without the pieces of its answers.
4. After 15 seconds without an event the server sends a comment line, so proxies do not close the connection.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final
from urllib.parse import quote

from msgspec import UNSET
from starlette.responses import Response, StreamingResponse

from foveal.agent import events as agent_events
from foveal.core import wire
from foveal.core.log.events import UserSaid
from foveal.server import LiveSession, Turn
from foveal.server.api import schemas
from foveal.server.api.operation import ApiCall
from foveal.server.api.schemas import ApiAccepted, EmptyBody, NewTurn, RetryBody, TurnQuery
from foveal.web.event_stream import MayReadOn, encode_event, event_stream_response
from foveal.web.http_errors import HttpError, revoked_error, stream_error_event
from foveal.web.request_body import json_response

# ── Streams ──────────────────────────────────────────────────────────────────────────────────────────────

EVENT_NAMES: Final = [
    *(str(kind.__struct_config__.tag) for kind in agent_events.AgentEvent.__subclasses__()),
    "outcome",
    "error",
]
"""All values of `event`."""


def turn_path(turn: Turn) -> str:
    """Return the path of a turn."""
    return f"/api/sessions/{quote(turn.session, safe='')}/turns/{quote(turn.id, safe='')}"


def turn_headers(turn: Turn) -> Mapping[str, str]:
    """Return the response headers that name a turn."""
    return {"X-Foveal-Turn": turn.id, "Location": turn_path(turn)}


def event_stream(turn: Turn, *, may_read_on: MayReadOn, after: int = 0) -> StreamingResponse:
    """Return a stream of the events of a turn with an id above `after`."""
    return event_stream_response(
        _encoded_events(turn, after),
        may_read_on=may_read_on,
        last_event=stream_error_event(revoked_error(), "problem"),
        headers=turn_headers(turn),
    )


async def _encoded_events(turn: Turn, after: int) -> AsyncGenerator[bytes, None]:
    async for number, event in turn.numbered_events(after=after):
        name = str(type(event).__struct_config__.tag)
        yield encode_event(name, schemas.agent_event_to_api(event), id=str(number))
    yield encode_event("outcome", schemas.outcome_to_api(await turn.outcome()))


# ── Handlers ─────────────────────────────────────────────────────────────────────────────────────────────

_FAILURE_STATUSES: Final[Mapping[str, int]] = {
    "budget_exceeded": 429,
    "price_unknown": 403,
    "ContextOverflow": 413,
    "StoreError": 503,
    "StoreUnusable": 503,
    "Conflict": 503,
}
"""Statuses of turns that failed without the provider's fault; the others are 502, as of a gateway."""


async def run_turn(call: ApiCall[NewTurn, EmptyBody]) -> Response:
    message = _user_message(call.body)
    session = await call.session()
    if call.body.background:
        return await _run_in_background(call, message)
    turn = await session.submit(message.content, key=call.body.key, dialect=message.dialect)
    _watch_client(call, session, turn, pauses=True)
    if call.body.stream:
        return event_stream(turn, may_read_on=call.may_read_on)
    return await _outcome_response(turn)


async def retry_turn(call: ApiCall[RetryBody, EmptyBody]) -> Response:
    session = await call.session()
    turn = await session.retry()
    _watch_client(call, session, turn, pauses=True)
    if call.body.stream:
        return event_stream(turn, may_read_on=call.may_read_on)
    return await _outcome_response(turn)


async def follow_turn(call: ApiCall[EmptyBody, TurnQuery]) -> Response:
    id = call.path_params["turn"]
    session = await call.session()
    turn = _require_turn(await session.find_turn(id), id)
    if call.query.stream:
        _watch_client(call, session, turn, pauses=False)
        after = _last_event_id(call.headers.get("last-event-id", ""))
        return event_stream(turn, may_read_on=call.may_read_on, after=after)
    return json_response(await schemas.turn_to_api(turn), headers=turn_headers(turn))


async def stop_turn(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    id = call.path_params["turn"]
    turn = _require_turn((await call.session()).turn(id), id)  # another process cannot be reached from here
    turn.stop()
    if turn.state == "running":  # a waiting turn ends when it would start
        await turn.outcome()
    return json_response(await schemas.turn_to_api(turn), headers=turn_headers(turn))


_watchers: Final = set[asyncio.Task[None]]()
"""Tasks that wait for clients to go away; asyncio itself does not keep a task."""


def _watch_client(call: ApiCall[Any, Any], session: LiveSession, turn: Turn, *, pauses: bool) -> None:
    """Count the client among those that wait for a turn until it has gone, if the session pauses turns."""

    async def watch() -> None:
        with turn.awaited(pauses=pauses):
            waiting = [asyncio.ensure_future(wait) for wait in (call.client_end(), turn.outcome())]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()

    if session.pauses_on_disconnect:
        task = asyncio.create_task(watch())
        _watchers.add(task)
        task.add_done_callback(_watchers.discard)


async def _outcome_response(turn: Turn) -> Response:
    """Wait for the end of a turn and return its outcome; a failed turn raises `HttpError`."""
    outcome = await turn.outcome()
    if outcome.why == "failed":
        headers = dict(turn_headers(turn))
        if outcome.wait_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(outcome.wait_s)))
        raise HttpError(
            _FAILURE_STATUSES.get(outcome.code, 502),
            outcome.problem,
            title="The turn failed",
            code="turn_failed",
            headers=headers,
            members={"turn": turn.id, "session": turn.session, "cause": outcome.code},
        )
    return json_response(await schemas.turn_to_api(turn), headers=turn_headers(turn))


async def _run_in_background(call: ApiCall[NewTurn, EmptyBody], message: UserSaid) -> Response:
    if not isinstance(message.content, str):
        raise HttpError(422, "a turn in the background accepts only `text`", code="text_only")
    session, key = call.path_params["session"], call.body.key or f"api-{secrets.token_hex(8)}"
    await call.require_worker().run(call.tenant.name, session, message.content, key=key)
    return json_response(ApiAccepted(session=session, key=key), status=202)


def _user_message(given: NewTurn) -> UserSaid:
    """Return the user message as a fact; raises `HttpError` or `MalformedMessage`."""
    if (given.text is UNSET) == (given.content is UNSET):
        raise HttpError(400, "a turn needs either `text` or `content`", code="invalid_body")
    if given.text is not UNSET:
        return UserSaid(content=given.text)
    message = {"role": "user", "content": given.content}
    facts = [
        f for chunk in wire.wire_for(wire.detect_dialect([message])).read([message]) for f in chunk.facts
    ]
    if len(facts) != 1 or not isinstance(facts[0], UserSaid):
        raise HttpError(422, "`content` must be a user message without tool results", code="not_said")
    return facts[0]


def _require_turn(turn: Turn | None, id: str) -> Turn:
    if turn is None:
        raise HttpError(
            404,
            f"there is no turn {id!r}; the server keeps only the latest turns that have "
            "ended, and their messages are among the session's events",
            code="unknown_turn",
        )
    return turn


def _last_event_id(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise HttpError(400, "Last-Event-ID must be the id of an event of this turn", code="invalid_header")
    return int(text)
