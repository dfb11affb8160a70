"""`/api/memory`: what each user of the tenant wants to be known, to see, correct and erase.

1. A memory belongs to one user of one tenant: the token decides the tenant, the path names the user.
2. What is changed here counts in the next request of every session of the user, on all servers of the database.
"""

from __future__ import annotations

import re
from typing import Any, Final

from starlette.responses import Response

from foveal.errors import NotRemembered
from foveal.memory import MemoryEntry
from foveal.memory.memory import Memory
from foveal.server.api import schemas
from foveal.server.api.operation import ApiCall, ApiOperation, ApiResult
from foveal.server.api.schemas import (
    AcceptBody,
    EmptyBody,
    EntryChange,
    ImportBody,
    MemoryQuery,
    NewEntry,
    ProposeBody,
)
from foveal.server.api.session_endpoints import NDJSON_TYPE
from foveal.server.auth_tokens import is_user_id
from foveal.web.http_errors import HttpError
from foveal.web.request_body import json_response

USER_PATH: Final = "/api/users/{user}"
MEMORY_PATH: Final = "/api/memory/{user}"
ENTRY_PATH: Final = f"{MEMORY_PATH}/entries/{{entry}}"

# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────


async def list_entries(call: ApiCall[EmptyBody, MemoryQuery]) -> Response:
    memory, query = _memory(call), call.query
    if query.q:
        return _entries(await memory.search(query.q, limit=query.limit))
    after = int(query.after[1:]) if re.fullmatch(r"m[0-9]{1,15}", query.after) else -1
    if query.after and after < 0:
        raise HttpError(422, "`after` must be the `next` of the previous page", code="invalid_cursor")
    found = [entry for entry in await memory.entries(all=query.all) if entry.seq > after]
    page = found[: query.limit]
    return _entries(page, next=page[-1].id if len(found) > len(page) else None)


async def get_entry(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return _entry(await _named_entry(call))


async def list_proposals(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return _entries(await _memory(call).proposals())


async def export_memory(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return Response(await _memory(call).export(), media_type=NDJSON_TYPE)


# ── Changing ─────────────────────────────────────────────────────────────────────────────────────────────


async def add_entry(call: ApiCall[NewEntry, EmptyBody]) -> Response:
    text = call.service.runtime.storable_text(call.body.text)
    return _entry(await _memory(call).remember(text, kind=call.body.kind), status=201)


async def edit_entry(call: ApiCall[EntryChange, EmptyBody]) -> Response:
    entry, text = await _named_entry(call), call.service.runtime.storable_text(call.body.text)
    return _entry(await _memory(call).edit(entry.id, text))


async def forget_entry(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return _entry(await _memory(call).forget((await _named_entry(call)).id))


async def undo_entry(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return await _undo(call, (await _named_entry(call)).id)


async def undo_memory(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return await _undo(call)


async def accept_proposal(call: ApiCall[AcceptBody, EmptyBody]) -> Response:
    entry, text = await _named_entry(call), call.body.text
    given = None if text is None else call.service.runtime.storable_text(text)
    return _entry(await _memory(call).accept(entry.id, given))


async def reject_proposal(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return _entry(await _memory(call).reject((await _named_entry(call)).id))


async def propose_entries(call: ApiCall[ProposeBody, EmptyBody]) -> Response:
    await call.access.check_session(call.body.session)
    user, session = _user(call), await call.tenant.session(call.body.session)
    if session.user != user:
        raise HttpError(422, f"session {session.id!r} was not created for this user", code="other_user")
    return _entries(await call.tenant.propose(session))


async def import_memory(call: ApiCall[ImportBody, EmptyBody]) -> Response:
    return _entries(await _memory(call).import_(call.service.runtime.storable_text(call.body.lines)))


async def erase_memory(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    await _memory(call).erase()
    return Response(status_code=204)


async def erase_user(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    # A user does not erase the words of others; who may act for all users can.
    erased = await call.tenant.erase_user(_user(call), keeps_shared=bool(call.access.user))
    kept = [schemas.ApiKeptMessages(session=id, messages=count) for id, count in erased.kept.items()]
    return json_response(schemas.ApiErased(sessions=erased.sessions, kept=kept))


# ── Requests and responses ───────────────────────────────────────────────────────────────────────────────


def _user(call: ApiCall[Any, Any]) -> str:
    user = call.path_params["user"]
    if not is_user_id(user):
        raise HttpError(404, f"{user[:100]!r} cannot be the id of a user", code="unknown_user")
    return user


def _memory(call: ApiCall[Any, Any]) -> Memory:
    return call.tenant.memory(_user(call))


async def _named_entry(call: ApiCall[Any, Any]) -> MemoryEntry:
    """Return the entry that the path names; raises `HttpError` if there is none."""
    try:
        return await _memory(call).why(call.path_params["entry"])
    except NotRemembered as problem:
        raise HttpError(404, str(problem), code="unknown_entry") from None


def _entry(entry: MemoryEntry, *, status: int = 200) -> Response:
    return json_response(schemas.entry_to_api(entry), status=status)


def _entries(entries: list[MemoryEntry], *, next: str | None = None) -> Response:
    return json_response(schemas.ApiMemory(entries=list(map(schemas.entry_to_api, entries)), next=next))


async def _undo(call: ApiCall[Any, Any], id: str | None = None) -> Response:
    """Take back the newest change of an existing entry, or of all; raises `HttpError` if there is none."""
    try:
        entry = await _memory(call).undo(id)
    except NotRemembered as problem:
        raise HttpError(409, str(problem), code="nothing_to_undo") from None
    return json_response(schemas.ApiUndoneEntry(entry=None if entry is None else schemas.entry_to_api(entry)))


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────

_ENTRY: Final = ApiResult("The entry as it is now.", schemas.ApiEntry)
_ENTRIES: Final = ApiResult("The entries.", schemas.ApiMemory)
_UNDONE: Final = ApiResult("What was changed.", schemas.ApiUndoneEntry)
_LINKS: Final = {"user": "$request.path.user", "entry": "$response.body#/id"}

MEMORY_OPERATIONS: Final[tuple[ApiOperation[Any, Any], ...]] = (
    ApiOperation(
        id="list_memory",
        path=MEMORY_PATH,
        summary="List or search the entries of a user's memory.",
        handler=list_entries,
        results=(_ENTRIES,),
        errors=(422,),
    ),
    ApiOperation(
        id="add_entry",
        method="POST",
        path=MEMORY_PATH,
        summary="Remember a statement of the user; it replaces earlier ones about the same subject.",
        handler=add_entry,
        results=(ApiResult("The entry.", schemas.ApiEntry, status=201, links=_LINKS),),
        errors=(422,),
    ),
    ApiOperation(
        id="erase_memory",
        method="DELETE",
        path=MEMORY_PATH,
        summary="Erase the text of all entries permanently.",
        handler=erase_memory,
        results=(ApiResult("The memory is empty.", status=204),),
    ),
    ApiOperation(
        id="get_entry",
        path=ENTRY_PATH,
        summary="Return an entry with its origin: the user's words, the session and the message.",
        handler=get_entry,
        results=(_ENTRY,),
    ),
    ApiOperation(
        id="edit_entry",
        method="PATCH",
        path=ENTRY_PATH,
        summary="Change the text of an entry.",
        handler=edit_entry,
        results=(_ENTRY,),
        errors=(422,),
    ),
    ApiOperation(
        id="forget_entry",
        method="DELETE",
        path=ENTRY_PATH,
        summary="Take an entry out of all later requests; `undo` brings it back.",
        handler=forget_entry,
        results=(_ENTRY,),
        errors=(422,),
    ),
    ApiOperation(
        id="undo_entry",
        method="POST",
        path=f"{ENTRY_PATH}/undo",
        summary="Take back the newest change of an entry.",
        handler=undo_entry,
        results=(_UNDONE,),
        errors=(409,),
    ),
    ApiOperation(
        id="accept_proposal",
        method="POST",
        path=f"{ENTRY_PATH}/accept",
        summary="Keep a proposal.",
        handler=accept_proposal,
        results=(_ENTRY,),
        errors=(422,),
    ),
    ApiOperation(
        id="reject_proposal",
        method="POST",
        path=f"{ENTRY_PATH}/reject",
        summary="Refuse a proposal; it is not proposed again.",
        handler=reject_proposal,
        results=(_ENTRY,),
        errors=(422,),
    ),
    ApiOperation(
        id="undo_memory",
        method="POST",
        path=f"{MEMORY_PATH}/undo",
        summary="Take back the newest change of the memory.",
        handler=undo_memory,
        results=(_UNDONE,),
        errors=(409,),
    ),
    ApiOperation(
        id="list_proposals",
        path=f"{MEMORY_PATH}/proposals",
        summary="List the proposals that wait for the user's yes.",
        handler=list_proposals,
        results=(_ENTRIES,),
    ),
    ApiOperation(
        id="propose_entries",
        method="POST",
        path=f"{MEMORY_PATH}/proposals",
        summary="Propose what the user stated in a session.",
        handler=propose_entries,
        results=(ApiResult("The new proposals.", schemas.ApiMemory),),
        errors=(422,),
    ),
    ApiOperation(
        id="export_memory",
        path=f"{MEMORY_PATH}/export",
        summary="Export the entries that count.",
        handler=export_memory,
        results=(ApiResult("Lines of JSON.", media_type=NDJSON_TYPE, schema={"type": "string"}),),
    ),
    ApiOperation(
        id="import_memory",
        method="POST",
        path=f"{MEMORY_PATH}/import",
        summary="Keep the entries of an export; they get new ids.",
        handler=import_memory,
        results=(ApiResult("The entries that say it now.", schemas.ApiMemory),),
        errors=(422,),
    ),
    ApiOperation(
        id="erase_user",
        method="DELETE",
        path=USER_PATH,
        summary="Erase a user's memory and sessions permanently; messages in chats with others are listed.",
        handler=erase_user,
        results=(ApiResult("What was erased.", schemas.ApiErased),),
    ),
)
