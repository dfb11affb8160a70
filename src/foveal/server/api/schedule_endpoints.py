"""`/api/schedules`: prompts that are sent to a session at given times.

Each tenant has its own schedules. Schedules of the configuration are listed too, but a request cannot change
them: it gets a 409.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from foveal.core.redaction.redact import scrub
from foveal.server.api.operation import ApiCall, ApiOperation, ApiResult
from foveal.server.api.schemas import ApiBody, EmptyBody, Id, ShortText
from foveal.server.jobs.schedule_store import (
    CRON_HELP,
    MAX_CRON_CHARS,
    MAX_PROMPT_CHARS,
    SCHEDULE_NAME_PATTERN,
    ZONE_HELP,
    MissedRule,
    RunResult,
    Schedule,
    ScheduleExists,
    ScheduleIsConfigured,
    ScheduleState,
    ScheduleStore,
    UnknownSchedule,
)
from foveal.web.http_errors import HttpError
from foveal.web.request_body import json_response

T = TypeVar("T")
SCHEDULES_PATH: Final = "/api/schedules"
SCHEDULE_PATH: Final = f"{SCHEDULES_PATH}/{{schedule}}"

# ── Bodies ───────────────────────────────────────────────────────────────────────────────────────────────

ScheduleName = Annotated[
    str,
    Meta(
        pattern=rf"^{SCHEDULE_NAME_PATTERN}$(?!\n)",
        min_length=1,
        max_length=64,
        description="letters, digits and . _ -, a letter or digit first",
    ),
]
Cron = Annotated[
    str, Meta(min_length=9, max_length=MAX_CRON_CHARS, examples=["0 9 * * MON-FRI"], description=CRON_HELP)
]
Zone = Annotated[str, Meta(min_length=1, max_length=64, examples=["Europe/Berlin"], description=ZONE_HELP)]
Prompt = Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT_CHARS)]


class NewSchedule(ApiBody, frozen=True):
    """A prompt, its session (created if it does not exist), and its times as five cron fields."""

    name: ScheduleName
    session: Id
    cron: Cron
    prompt: Prompt
    zone: Zone = "UTC"
    missed: MissedRule = "once"
    """For times that passed while no server ran: one run for all of them, or none."""
    enabled: bool = True
    agent: ShortText = ""
    """The agent of the server's configuration with which the session is created."""


class ScheduleChange(ApiBody, frozen=True):
    """The fields to change."""

    session: Id | UnsetType = UNSET
    cron: Cron | UnsetType = UNSET
    prompt: Prompt | UnsetType = UNSET
    zone: Zone | UnsetType = UNSET
    missed: MissedRule | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    agent: ShortText | UnsetType = UNSET


class ApiSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and its state; times are seconds since 1970."""

    name: str
    session: str
    cron: str
    zone: str
    prompt: str
    missed: MissedRule
    enabled: bool
    source: Literal["api", "config"]
    agent: str
    """The agent with which its session is created; "" for the server's own settings."""
    next: float | None
    """The next time it is due; null if it is disabled."""
    last: float | None
    """The time of its last run: a time of the schedule, or the time of the request to run it now."""
    result: RunResult
    """The result of its last run."""


class ApiSchedules(msgspec.Struct, frozen=True, kw_only=True):
    schedules: list[ApiSchedule]


class ApiScheduleRun(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """The key of the message in the session."""


# ── Handlers ─────────────────────────────────────────────────────────────────────────────────────────────


async def list_schedules(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    states = await _store(call).list(call.tenant.name)
    return json_response(ApiSchedules(schedules=[_to_api(state) for state in states]))


async def create_schedule(call: ApiCall[NewSchedule, EmptyBody]) -> Response:
    call.audit_as(f"schedule:{call.body.name}")
    fields = _redacted(call, msgspec.structs.asdict(call.body))
    call.service.runtime.config_of(call.body.agent)  # raises if it has no such agent
    schedule = Schedule(**fields, tenant=call.tenant.name)
    state = await _with_http_errors(_store(call).create(schedule, now=_now(call)))
    location = {"Location": f"{SCHEDULES_PATH}/{state.schedule.name}"}
    return json_response(_to_api(state), status=201, headers=location)


async def get_schedule(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return json_response(_to_api(await _with_http_errors(_store(call).get(*_key(call)))))


async def change_schedule(call: ApiCall[ScheduleChange, EmptyBody]) -> Response:
    given = {name: value for name, value in msgspec.structs.asdict(call.body).items() if value is not UNSET}
    call.service.runtime.config_of(given.get("agent", ""))
    changed = _store(call).update(*_key(call), _redacted(call, given), now=_now(call))
    return json_response(_to_api(await _with_http_errors(changed)))


async def delete_schedule(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    await _with_http_errors(_store(call).delete(*_key(call)))
    return Response(status_code=204)


async def run_schedule(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    call.require_worker()
    key = await _with_http_errors(_store(call).queue_run_now(*_key(call), now=_now(call)))
    return json_response(ApiScheduleRun(key=key), status=202)


def _store(call: ApiCall[Any, Any]) -> ScheduleStore:
    call.access.check_unbound()  # schedules belong to the tenant; those of a user would not count for this user
    return ScheduleStore(call.service.runtime.database)


def _key(call: ApiCall[Any, Any]) -> tuple[str, str]:
    return call.tenant.name, call.path_params["schedule"]


def _now(call: ApiCall[Any, Any]) -> float:
    return call.service.runtime.clock()


def _redacted(call: ApiCall[Any, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with secrets removed from the prompt, unless `server.redact` is off."""
    if call.service.runtime.redact is not None and "prompt" in fields:
        return {**fields, "prompt": scrub(fields["prompt"])}
    return fields


def _to_api(state: ScheduleState) -> ApiSchedule:
    fields = msgspec.structs.asdict(state.schedule)
    del fields["tenant"]
    next_due = state.next_due if state.schedule.enabled else None
    return ApiSchedule(**fields, next=next_due, last=state.last_due, result=state.result)


async def _with_http_errors(work: Awaitable[T]) -> T:
    """Return the result of `work`; errors of the schedule store become `HttpError`."""
    try:
        return await work
    except UnknownSchedule as problem:
        raise HttpError(404, str(problem), code="unknown_schedule") from None
    except ScheduleExists as problem:
        raise HttpError(409, str(problem), code="schedule_exists") from None
    except ScheduleIsConfigured as problem:
        raise HttpError(409, str(problem), code="schedule_of_config") from None


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────

_SCHEDULE: Final = ApiResult("The schedule.", ApiSchedule)

SCHEDULE_OPERATIONS: Final[tuple[ApiOperation[Any, Any], ...]] = (
    ApiOperation(
        id="list_schedules",
        path=SCHEDULES_PATH,
        summary="List the schedules, by name.",
        handler=list_schedules,
        results=(ApiResult("All schedules.", ApiSchedules),),
    ),
    ApiOperation(
        id="create_schedule",
        method="POST",
        path=SCHEDULES_PATH,
        summary="Create a schedule: a prompt for a session at given times.",
        handler=create_schedule,
        results=(
            ApiResult(
                "The schedule is stored.",
                ApiSchedule,
                status=201,
                headers={"Location": "The path of the schedule."},
                links={"schedule": "$response.body#/name"},
            ),
        ),
        errors=(409, 422),
    ),
    ApiOperation(
        id="get_schedule",
        path=SCHEDULE_PATH,
        summary="Return a schedule.",
        handler=get_schedule,
        results=(_SCHEDULE,),
    ),
    ApiOperation(
        id="change_schedule",
        method="PATCH",
        path=SCHEDULE_PATH,
        summary="Change, disable or enable a schedule; its times count from now on.",
        handler=change_schedule,
        results=(_SCHEDULE,),
        errors=(409, 422),
    ),
    ApiOperation(
        id="delete_schedule",
        method="DELETE",
        path=SCHEDULE_PATH,
        summary="Delete a schedule; its messages stay in the session.",
        handler=delete_schedule,
        results=(ApiResult("The schedule is deleted.", status=204),),
        errors=(409,),
    ),
    ApiOperation(
        id="run_schedule",
        method="POST",
        path=f"{SCHEDULE_PATH}/run",
        summary="Run a schedule now, in the background; its times do not change.",
        handler=run_schedule,
        results=(ApiResult("The run is stored and will start.", ApiScheduleRun, status=202),),
    ),
)
