"""Turns: what the user says and what the model answers.

A request is answered only when the user's words are stored. From then on the turn is the server's: it ends whether
or not the client stays.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from msgspec import UNSET
from starlette.responses import Response

from foveal import wire
from foveal.apps.server.api import telling
from foveal.apps.server.api.asking import Ask, answer
from foveal.apps.server.api.shapes import Accepted, Again, NewTurn, Nothing, TurnQuery
from foveal.apps.server.api.streams import headers, streamed
from foveal.apps.server.refusals import Refusal
from foveal.events import UserSaid
from foveal.service import Turn

_STATUSES: Final[Mapping[str, int]] = {
    "ContextOverflow": 413,
    "StoreError": 503,
    "StoreUnusable": 503,
    "Conflict": 503,
}
"""Of turns that failed for another reason than their provider."""


async def run(ask: Ask[NewTurn, Nothing]) -> Response:
    said = _said(ask.body)
    room = await ask.room()
    if ask.body.background:
        return await _later(ask, said)
    turn = await room.say(said.content, key=ask.body.key, dialect=said.dialect)
    return streamed(turn) if ask.body.stream else await _whole(turn)


async def again(ask: Ask[Again, Nothing]) -> Response:
    room = await ask.room()
    turn = await room.again()
    return streamed(turn) if ask.body.stream else await _whole(turn)


async def follow(ask: Ask[Nothing, TurnQuery]) -> Response:
    turn = await _turn(ask)
    if ask.query.stream:
        return streamed(turn, after=_last_seen(ask.headers.get("last-event-id", "")))
    return answer(await telling.turn(turn), headers=headers(turn))


async def stop(ask: Ask[Nothing, Nothing]) -> Response:
    turn = await _turn(ask)
    turn.stop()
    if turn.state == "running":  # one that waits ends when it would begin
        await turn.outcome()
    return answer(await telling.turn(turn), headers=headers(turn))


async def _whole(turn: Turn) -> Response:
    """A turn's outcome; one that failed is most often the answer of a gateway whose upstream has failed."""
    outcome = await turn.outcome()
    if outcome.why == "failed":
        raise Refusal(
            _STATUSES.get(outcome.sort, 502),
            outcome.problem,
            title="The turn failed",
            code="turn_failed",
            headers=headers(turn),
            numbers={"turn": turn.id, "session": turn.session, "sort": outcome.sort},
        )
    return answer(await telling.turn(turn), headers=headers(turn))


async def _later(ask: Ask[NewTurn, Nothing], said: UserSaid) -> Response:
    if not isinstance(said.content, str):
        raise Refusal(422, "a turn in the background takes `text` only", code="text_only")
    session, key = ask.names["session"], ask.body.key or f"api-{secrets.token_hex(8)}"
    await ask.worker().run(ask.tenant.name, session, said.content, key=key)
    return answer(Accepted(session=session, key=key), status=202)


def _said(given: NewTurn) -> UserSaid:
    """The user's words as a fact; raises `Refusal` or `MalformedMessage`."""
    if (given.text is UNSET) == (given.content is UNSET):
        raise Refusal(400, "a turn needs either `text` or `content`", code="invalid_body")
    if given.text is not UNSET:
        return UserSaid(content=given.text)
    message = {"role": "user", "content": given.content}
    facts = [f for chunk in wire.wire(wire.detect([message])).read([message]) for f in chunk.facts]
    if len(facts) != 1 or not isinstance(facts[0], UserSaid):
        raise Refusal(422, "`content` must be what a user says, without results of tools", code="not_said")
    return facts[0]


async def _turn(ask: Ask[Nothing, TurnQuery] | Ask[Nothing, Nothing]) -> Turn:
    turn = (await ask.room()).turn(ask.names["turn"])
    if turn is None:
        raise Refusal(
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
        raise Refusal(400, "Last-Event-ID must be the id of an event of this turn", code="invalid_header")
    return int(text)
