"""Turns: what the user says and what the model answers.

A request is answered only when the user's words are stored. From then on the turn is the server's: it ends whether
or not the client stays.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from starlette.responses import Response, StreamingResponse

from foveal.agent import agent_events
from foveal.apps.http.api import schemas
from foveal.apps.http.api.operation import ApiCall, answer, encoded
from foveal.apps.http.api.schemas import ApiAccepted, EmptyBody, NewTurn, RetryBody, TurnQuery
from foveal.apps.http.http_errors import HttpError
from foveal.core import wire
from foveal.core.log.events import UserSaid
from foveal.server import Turn

# ── streams ───────────────────────────────────────────────────────────────────────────────────────
# A turn as server-sent events, which can be left and taken up again.
#
# id: 2
# event: streamed
# data: {"happening":"streamed","piece":{"text":"Because","kind":"text"}}
#
# 1. `event` is the happening's name, `id` counts from 1 within the turn, `data` is one line of JSON.
# 2. The last event is always `outcome`, which has no id. A client that lost the connection asks for the turn with the
# id of the last event that it saw, and gets the rest; of a turn that has ended, without the pieces of its answers.
# 3. A comment line comes when nothing else has for 15 seconds, so that no proxy takes the silence for death.
# 4. Leaving a stream ends nothing: the turn goes on.

SILENCE: Final = 15.0
BEAT: Final = b": still at work\n\n"
STREAM: Final = "text/event-stream"
EVENTS: Final = [
    *(str(kind.__struct_config__.tag) for kind in agent_events.AgentEvent.__subclasses__()),
    "outcome",
]
"""What an event may be called."""


def place(turn: Turn) -> str:
    """Where a turn is found."""
    return f"/api/sessions/{quote(turn.session, safe='')}/turns/{quote(turn.id, safe='')}"


def headers(turn: Turn) -> Mapping[str, str]:
    return {"X-Foveal-Turn": turn.id, "Location": place(turn)}


def streamed(turn: Turn, *, after: int = 0) -> StreamingResponse:
    """The events of a turn from the one behind `after` on."""
    said = {**headers(turn), "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(beating(_events(turn, after)), headers=said, media_type=STREAM)


async def _events(turn: Turn, after: int) -> AsyncGenerator[bytes, None]:
    async for number, told in turn.numbered(after=after):
        name = str(type(told).__struct_config__.tag)
        yield f"id: {number}\n".encode() + _event(name, schemas.happening(told))
    yield _event("outcome", schemas.outcome(await turn.outcome()))


def _event(name: str, data: msgspec.Struct) -> bytes:
    return f"event: {name}\ndata: ".encode() + encoded(data) + b"\n\n"


async def beating(
    events: AsyncGenerator[bytes, None], *, silence: float = SILENCE
) -> AsyncGenerator[bytes, None]:
    """The events, and a comment whenever none came for so many seconds."""
    async with aclosing(events):
        coming: asyncio.Task[bytes | None] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(_next(events))
                done, _ = await asyncio.wait({coming}, timeout=silence)
                if not done:
                    yield BEAT
                    continue
                event, coming = coming.result(), None
                if event is None:
                    return
                yield event
        finally:
            if coming is not None and not coming.done():
                coming.cancel()
                await asyncio.wait({coming})


async def _next(events: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(events, None)


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────

_STATUSES: Final[Mapping[str, int]] = {
    "ContextOverflow": 413,
    "StoreError": 503,
    "StoreUnusable": 503,
    "Conflict": 503,
}
"""Of turns that failed for another reason than their provider."""


async def run(ask: ApiCall[NewTurn, EmptyBody]) -> Response:
    said = _said(ask.body)
    room = await ask.room()
    if ask.body.background:
        return await _later(ask, said)
    turn = await room.say(said.content, key=ask.body.key, dialect=said.dialect)
    return streamed(turn) if ask.body.stream else await _whole(turn)


async def again(ask: ApiCall[RetryBody, EmptyBody]) -> Response:
    room = await ask.room()
    turn = await room.again()
    return streamed(turn) if ask.body.stream else await _whole(turn)


async def follow(ask: ApiCall[EmptyBody, TurnQuery]) -> Response:
    turn = await _turn(ask)
    if ask.query.stream:
        return streamed(turn, after=_last_seen(ask.headers.get("last-event-id", "")))
    return answer(await schemas.turn(turn), headers=headers(turn))


async def stop(ask: ApiCall[EmptyBody, EmptyBody]) -> Response:
    turn = await _turn(ask)
    turn.stop()
    if turn.state == "running":  # one that waits ends when it would begin
        await turn.outcome()
    return answer(await schemas.turn(turn), headers=headers(turn))


async def _whole(turn: Turn) -> Response:
    """A turn's outcome; one that failed is most often the answer of a gateway whose upstream has failed."""
    outcome = await turn.outcome()
    if outcome.why == "failed":
        raise HttpError(
            _STATUSES.get(outcome.code, 502),
            outcome.problem,
            title="The turn failed",
            code="turn_failed",
            headers=headers(turn),
            numbers={"turn": turn.id, "session": turn.session, "cause": outcome.code},
        )
    return answer(await schemas.turn(turn), headers=headers(turn))


async def _later(ask: ApiCall[NewTurn, EmptyBody], said: UserSaid) -> Response:
    if not isinstance(said.content, str):
        raise HttpError(422, "a turn in the background takes `text` only", code="text_only")
    session, key = ask.names["session"], ask.body.key or f"api-{secrets.token_hex(8)}"
    await ask.worker().run(ask.tenant.name, session, said.content, key=key)
    return answer(ApiAccepted(session=session, key=key), status=202)


def _said(given: NewTurn) -> UserSaid:
    """The user's words as a fact; raises `Refusal` or `MalformedMessage`."""
    if (given.text is UNSET) == (given.content is UNSET):
        raise HttpError(400, "a turn needs either `text` or `content`", code="invalid_body")
    if given.text is not UNSET:
        return UserSaid(content=given.text)
    message = {"role": "user", "content": given.content}
    facts = [f for chunk in wire.wire(wire.detect([message])).read([message]) for f in chunk.facts]
    if len(facts) != 1 or not isinstance(facts[0], UserSaid):
        raise HttpError(422, "`content` must be what a user says, without results of tools", code="not_said")
    return facts[0]


async def _turn(ask: ApiCall[EmptyBody, TurnQuery] | ApiCall[EmptyBody, EmptyBody]) -> Turn:
    turn = (await ask.room()).turn(ask.names["turn"])
    if turn is None:
        raise HttpError(
            404,
            f"there is no turn {ask.names['turn']!r}; of those that have ended only the latest are kept, "
            "and what they said is among the session's events",
            code="unknown_turn",
        )
    return turn


def _last_seen(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise HttpError(400, "Last-Event-ID must be the id of an event of this turn", code="invalid_header")
    return int(text)
