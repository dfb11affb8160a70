"""Sessions as a whole: begin one, list them, name one, branch it, erase it."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from foveal.apps.server.api import telling
from foveal.apps.server.api.asking import Ask, answer
from foveal.apps.server.api.models import check_model, offered
from foveal.apps.server.api.shapes import (
    Fork,
    ListQuery,
    NewSession,
    NewTitle,
    Nothing,
    Sessions,
)
from foveal.apps.server.refusals import Refusal
from foveal.errors import ProviderError
from foveal.events import parse_handle
from foveal.ports import SessionInfo
from foveal.service import Room


async def create(ask: Ask[NewSession, Nothing]) -> Response:
    given = ask.body
    check_model(given.model, ask.service.ground)
    try:
        room = await ask.tenant.create(
            given.id or "", model=given.model, title=given.title, system=given.system
        )
    except ProviderError as problem:  # nobody was asked yet: it is the name, or what the server lacks for it
        if not given.model:
            raise
        told = f"{given.model!r} cannot be used here ({problem.sort}); {offered(ask.service.ground)}"
        raise Refusal(422, told, code="model_not_available") from None
    return await _described(room, status=201)


async def get(ask: Ask[Nothing, Nothing]) -> Response:
    return await _described(await ask.room())


async def rename(ask: Ask[NewTitle, Nothing]) -> Response:
    room = await ask.room()
    await room.rename(ask.body.title)
    return await _described(room)


async def fork(ask: Ask[Fork, Nothing]) -> Response:
    at = None if ask.body.at is None else parse_handle(ask.body.at)
    new = await ask.tenant.fork(ask.names["session"], ask.body.id or "", at=at)
    return await _described(new, status=201)


async def delete(ask: Ask[Nothing, Nothing]) -> Response:
    await ask.tenant.delete(ask.names["session"])
    return Response(status_code=204)


async def _described(room: Room, *, status: int = 200) -> Response:
    where = {"Location": f"/api/sessions/{quote(room.id, safe='')}"} if status == 201 else None
    return answer(telling.opened(await room.info(), room.model), status=status, headers=where)


# ── the list ─────────────────────────────────────────────────────────────────────────────────────────────


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The last session of a page. Sessions that become active later are in front of it, so that no page repeats
    what another has shown."""

    active: float
    id: str


async def list_(ask: Ask[Nothing, ListQuery]) -> Response:
    after = _cursor(ask.query.after) if ask.query.after else None
    found = sorted(await ask.tenant.sessions(), key=_order)
    if after is not None:
        found = [info for info in found if _order(info) > (-after.active, after.id)]
    page = found[: ask.query.limit]
    more = len(found) > len(page)
    return answer(
        Sessions(sessions=[telling.session(info) for info in page], next=_written(page[-1]) if more else None)
    )


def _order(info: SessionInfo) -> tuple[float, str]:
    return -info.active, info.id


def _written(info: SessionInfo) -> str:
    return urlsafe_b64encode(msgspec.json.encode(Cursor(info.active, info.id))).decode()


def _cursor(text: str) -> Cursor:
    try:
        return msgspec.json.decode(urlsafe_b64decode(text.encode("ascii")), type=Cursor)
    except ValueError:
        raise Refusal(422, "`after` must be the `next` of the page before", code="invalid_cursor") from None
