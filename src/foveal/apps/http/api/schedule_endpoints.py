"""`/api/schedules`: prompts that come into a session at given times, each tenant's own.

Those of the configuration are shown, and changed there: here that is a 409.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response
from starlette.routing import Route

from foveal.apps.http.api.operation import ApiCall, Operation, OperationResult, Worker, answer, routes_of
from foveal.apps.http.api.schemas import ApiBody, EmptyBody, Id
from foveal.apps.http.http_errors import HttpError
from foveal.core.redaction.redact import scrub
from foveal.server.jobs import schedule as cron
from foveal.server.jobs import schedule as schedules
from foveal.server.jobs.schedule import Missed
from foveal.server.jobs.schedule_store import (
    Result,
    ScheduleExists,
    ScheduleIsConfigured,
    ScheduleState,
    ScheduleStore,
    UnknownSchedule,
)
from foveal.server.service import Service

T = TypeVar("T")
ALL: Final = "/api/schedules"
ONE: Final = f"{ALL}/{{schedule}}"

Name = Annotated[
    str,
    Meta(
        pattern=rf"^{schedules.NAME}$(?!\n)",
        min_length=1,
        max_length=64,
        description="letters, digits and . _ -, a letter or digit first",
    ),
]
Cron = Annotated[
    str,
    Meta(min_length=9, max_length=cron.LONGEST, examples=["0 9 * * MON-FRI"], description=cron.ALLOWED),
]
Zone = Annotated[str, Meta(min_length=1, max_length=64, examples=["Europe/Berlin"], description=cron.ZONES)]
Prompt = Annotated[str, Meta(min_length=1, max_length=schedules.LONGEST_PROMPT)]


class NewSchedule(ApiBody, frozen=True):
    """A prompt, the session that it comes into (made when it is not there), and when: five fields of cron."""

    name: Name
    session: Id
    cron: Cron
    prompt: Prompt
    zone: Zone = "UTC"
    missed: Missed = "once"
    """For times that passed while no server ran: one run for all of them, or none."""
    enabled: bool = True


class ScheduleChange(ApiBody, frozen=True):
    """What is to be different."""

    session: Id | UnsetType = UNSET
    cron: Cron | UnsetType = UNSET
    prompt: Prompt | UnsetType = UNSET
    zone: Zone | UnsetType = UNSET
    missed: Missed | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class ApiSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stands; times are seconds since 1970."""

    name: str
    session: str
    cron: str
    zone: str
    prompt: str
    missed: Missed
    enabled: bool
    source: Literal["api", "config"]
    next: float | None
    """When it is due next; null while it is not enabled."""
    last: float | None
    """The time that it ran for last: one of its own, or when it was asked to run."""
    result: Result
    """What became of its last run."""


class ApiSchedules(msgspec.Struct, frozen=True, kw_only=True):
    schedules: list[ApiSchedule]


class ApiScheduleRun(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """Of the message in the session."""


# ── handlers ─────────────────────────────────────────────────────────────────────────────────────────────────


async def list_(ask: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return answer(ApiSchedules(schedules=[_told(line) for line in await _table(ask).lines(ask.tenant.name)]))


async def create(ask: ApiCall[NewSchedule, EmptyBody]) -> Response:
    given = msgspec.structs.asdict(ask.body)
    schedule = schedules.Schedule(**_kept(ask, given), tenant=ask.tenant.name)
    line = await _carried_out(_table(ask).create(schedule, now=ask.service.ground.clock()))
    return answer(_told(line), status=201, headers={"Location": f"{ALL}/{line.schedule.name}"})


async def get(ask: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return answer(_told(await _carried_out(_table(ask).line(*_name(ask)))))


async def change(ask: ApiCall[ScheduleChange, EmptyBody]) -> Response:
    given = {name: value for name, value in msgspec.structs.asdict(ask.body).items() if value is not UNSET}
    now = ask.service.ground.clock()
    return answer(_told(await _carried_out(_table(ask).change(*_name(ask), _kept(ask, given), now=now))))


async def delete(ask: ApiCall[EmptyBody, EmptyBody]) -> Response:
    await _carried_out(_table(ask).delete(*_name(ask)))
    return Response(status_code=204)


async def run(ask: ApiCall[EmptyBody, EmptyBody]) -> Response:
    ask.worker()
    key = await _carried_out(_table(ask).run_now(*_name(ask), now=ask.service.ground.clock()))
    return answer(ApiScheduleRun(key=key), status=202)


def _table(ask: ApiCall[Any, Any]) -> ScheduleStore:
    return ScheduleStore(ask.service.ground.database)


def _name(ask: ApiCall[Any, Any]) -> tuple[str, str]:
    return ask.tenant.name, ask.names["schedule"]


def _kept(ask: ApiCall[Any, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What may be stored of what was given."""
    if ask.service.ground.redact is not None and "prompt" in given:
        return {**given, "prompt": scrub(given["prompt"])}
    return given


def _told(line: ScheduleState) -> ApiSchedule:
    values = msgspec.structs.asdict(line.schedule)
    del values["tenant"]
    following = line.following if line.schedule.enabled else None
    return ApiSchedule(**values, next=following, last=line.due, result=line.result)


async def _carried_out(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except UnknownSchedule as problem:
        raise HttpError(404, str(problem), code="unknown_schedule") from None
    except ScheduleExists as problem:
        raise HttpError(409, str(problem), code="schedule_exists") from None
    except ScheduleIsConfigured as problem:
        raise HttpError(409, str(problem), code="schedule_of_config") from None


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────

_GIVES: Final = {"schedule": "$response.body#/name"}
_PLACE: Final = {"Location": "Where it is."}
_STANDS: Final = OperationResult(what="As it stands.", shape=ApiSchedule)

OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    Operation(
        id="list_schedules",
        method="GET",
        path=ALL,
        what="The schedules, by name.",
        handler=list_,
        body=EmptyBody,
        query=EmptyBody,
        answers=(OperationResult(what="All of them.", shape=ApiSchedules),),
    ),
    Operation(
        id="create_schedule",
        method="POST",
        path=ALL,
        what="Have a prompt come into a session at given times.",
        handler=create,
        body=NewSchedule,
        query=EmptyBody,
        answers=(
            OperationResult(
                status=201, what="It is stored.", shape=ApiSchedule, headers=_PLACE, gives=_GIVES
            ),
        ),
        errors=(409, 422),
    ),
    Operation(
        id="get_schedule",
        method="GET",
        path=ONE,
        what="One schedule.",
        handler=get,
        body=EmptyBody,
        query=EmptyBody,
        answers=(_STANDS,),
        errors=(404,),
    ),
    Operation(
        id="change_schedule",
        method="PATCH",
        path=ONE,
        what="Change it, switch it off or on; its times count from now on.",
        handler=change,
        body=ScheduleChange,
        query=EmptyBody,
        answers=(_STANDS,),
        errors=(404, 409, 422),
    ),
    Operation(
        id="delete_schedule",
        method="DELETE",
        path=ONE,
        what="Delete it; what it said stays in its session.",
        handler=delete,
        body=EmptyBody,
        query=EmptyBody,
        answers=(OperationResult(status=204, what="It is gone."),),
        errors=(404, 409),
    ),
    Operation(
        id="run_schedule",
        method="POST",
        path=f"{ONE}/run",
        what="Run it now, in the background; its times stay as they are.",
        handler=run,
        body=EmptyBody,
        query=EmptyBody,
        answers=(OperationResult(status=202, what="It is stored and will be done.", shape=ApiScheduleRun),),
        errors=(404,),
    ),
)


def routes(service: Service, work: Worker | None) -> list[Route]:
    return routes_of(OPERATIONS, service, work)
