"""What changes a session without asking its model: messages from elsewhere, summaries, pins, and back again."""

from __future__ import annotations

from msgspec import UNSET
from starlette.responses import Response

from foveal import wire
from foveal.events import AnyFact, Compacted, UserSaid, kind
from foveal.apps.server.api import shapes
from foveal.apps.server.api.asking import Ask, answer
from foveal.apps.server.api.shapes import Compact, NewMessages, Nothing, Pin, Undo
from foveal.apps.server.refusals import Refusal
from foveal.errors import UnknownHandle


async def append(ask: Ask[NewMessages, Nothing]) -> Response:
    given = ask.body
    if (given.text is UNSET) == (given.messages is UNSET):
        raise Refusal(400, "send either `text` or `messages`", code="invalid_body")
    facts: list[AnyFact] = []
    if given.text is not UNSET:
        facts.append(UserSaid(content=given.text))
    else:
        messages = given.messages or []  # which is set, as text is not
        most: int = ask.service.ground.config.get("server.max_messages")
        if len(messages) > most:
            raise Refusal(413, f"{len(messages):,} messages at once; {most:,} are allowed", code="too_many")
        reader = wire.wire(given.dialect or wire.detect(messages))
        facts += (fact for chunk in reader.read(messages) for fact in chunk.facts)
    stored = await (await ask.room()).append(*facts)
    return answer(shapes.Stored(handles=[event.handle for event in stored]), status=201)


async def compact(ask: Ask[Compact, Nothing]) -> Response:
    room = await ask.room()
    if ask.body.background:
        newest = (await room.info()).events - 1
        await ask.worker().compact(ask.tenant.name, room.id, newest)
        return answer(shapes.Accepted(session=room.id, key=""), status=202)
    done = await room.compact(ask.body.focus)
    fact = done.event.fact
    assert isinstance(fact, Compacted)
    return answer(
        shapes.Compacted(
            handle=done.event.handle,
            before=done.before,
            after=done.after,
            by=fact.by,
            summary=fact.summary,
        )
    )


async def undo(ask: Ask[Undo, Nothing]) -> Response:
    room = await ask.room()
    try:
        event = await room.undo(ask.body.handle)
    except UnknownHandle as problem:
        if ask.body.handle is None:
            raise Refusal(409, str(problem), code="nothing_to_undo") from None
        raise
    return answer(shapes.Undone(handle=event.handle, kind=kind(event.fact)))


async def pin(ask: Ask[Pin, Nothing]) -> Response:
    return answer(shapes.Pinned(handle=await (await ask.room()).pin(ask.body.text)), status=201)
