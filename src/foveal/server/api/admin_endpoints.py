"""`/api/admin`: tenants, tokens, usage, health and the audit trail, for tokens with the role `admin`.

1. No operation returns text of a conversation. An administrator who wants to read one creates a token of its
   tenant, and the audit trail says so.
2. The numbers are those of all servers that share the storage, except for the health, which is that of the server
   that answers.
3. The first token of a server comes from its command line: until then any program on the machine could create it.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace
from starlette.responses import Response

from foveal import __version__
from foveal.errors import StoreError
from foveal.server.api import schemas
from foveal.server.api.operation import ApiCall, ApiOperation, ApiResult
from foveal.server.api.schemas import AdminBudgetsQuery, AdminUsageQuery, AuditQuery, EmptyBody, NewTokenBody
from foveal.server.audit import AuditFilter, token_object
from foveal.server.auth_tokens import AuthToken, AuthTokens, NewToken
from foveal.server.daily_usage import DailyUsage, UsageRow, usage_day, usage_groups
from foveal.server.storage import Storage
from foveal.web.http_errors import HttpError
from foveal.web.request_body import json_response

ADMIN_API_PATH: Final = "/api/admin"
TOKENS_PATH: Final = f"{ADMIN_API_PATH}/tokens"
TENANT_USAGE_S: Final = 30 * 86_400.0
"""The list of tenants has the usage of this time."""
NO_USAGE: Final = UsageRow(calls=0, input=0, cache_read=0, cache_write=0, output=0, dollars=0.0, unpriced=0)


async def tenant_summaries(
    storage: Storage, tokens: AuthTokens, usage: DailyUsage, *, now: float
) -> list[schemas.ApiTenant]:
    """Return all tenants with sessions, tokens or usage, by name."""
    listed = [token for token in await tokens.list() if token.tenant]
    rows = {
        str(row.tenant): row for row in await usage.rows(["tenant"], since=usage_day(now - TENANT_USAGE_S))
    }
    names = {*await storage.tenants(), *(token.tenant for token in listed), *rows}
    return [
        schemas.ApiTenant(
            name=name,
            tokens=sum(token.tenant == name and token.revoked is None for token in listed),
            usage=replace(rows.get(name, NO_USAGE), tenant=name),
        )
        for name in sorted(names)
    ]


async def list_tenants(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    runtime = call.service.runtime
    tenants = await tenant_summaries(runtime.storage, _tokens(call), runtime.usage, now=runtime.clock())
    return json_response(schemas.ApiTenants(tenants=tenants))


async def list_tokens(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    found = await _tokens(call).list()
    return json_response(schemas.ApiTokens(tokens=list(map(_token_to_api, found))))


async def create_token(call: ApiCall[NewTokenBody, EmptyBody]) -> Response:
    tokens, body = _tokens(call), call.body
    if not await tokens.any_exist():
        detail = (
            "this server has no token yet: create the first one on its machine, with `foveal token create`"
        )
        raise HttpError(409, detail, code="no_first_token")
    new = NewToken.checked(role=body.role, tenant=body.tenant, label=body.label, memory=body.memory)
    id, secret = await tokens.create(**new._asdict(), now=call.service.runtime.clock())
    call.audit_as(token_object(id, "created", new.role), tenant=new.tenant)
    place = {"Location": f"{TOKENS_PATH}/{id}"}
    return json_response(schemas.ApiNewToken(id=id, secret=secret), status=201, headers=place)


async def revoke_token(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    id = call.path_params["token"]
    revoked = await _tokens(call).revoke(id, now=call.service.runtime.clock())
    if revoked is None:
        raise HttpError(404, f"there is no valid token {id[:40]!r}", code="unknown_token_id")
    call.audit_as(token_object(id, "revoked", revoked.role), tenant=revoked.tenant)
    return Response(status_code=204)


async def get_usage_sums(call: ApiCall[EmptyBody, AdminUsageQuery]) -> Response:
    query, usage = call.query, call.service.runtime.usage
    until = query.until or usage_day(call.service.runtime.clock())
    rows = await usage.rows(
        usage_groups(query.by), since=query.since, until=until, tenant=query.tenant, user=query.user
    )
    return json_response(schemas.ApiUsageSums(rows=rows))


async def list_budgets(call: ApiCall[EmptyBody, AdminBudgetsQuery]) -> Response:
    limits = await call.service.runtime.budgets.spent_limits(tenant=call.query.tenant)
    return json_response(schemas.ApiBudgets(limits=limits))


async def get_health(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    runtime, problems = call.service.runtime, list[str]()
    waiting: int | None = None
    oldest: float | None = None
    try:
        await runtime.database.check_writable()
        waiting, oldest = await runtime.inbox.unanswered()
    except StoreError as problem:
        problems.append(str(problem))
    sessions = call.service.live_sessions
    return json_response(
        schemas.ApiHealth(
            version=__version__,
            storage=runtime.storage.place,
            problems=problems,
            failing_tenants=sorted(runtime.failing_stores),
            sessions_open=len(sessions),
            turns_running=sum(session.is_busy for session in sessions),
            inbox=waiting,
            inbox_oldest_s=None if oldest is None else round(max(0.0, runtime.clock() - oldest), 1),
        )
    )


async def list_audit(call: ApiCall[EmptyBody, AuditQuery]) -> Response:
    query, until = call.query, call.query.until
    chosen = AuditFilter(
        query.since, float("inf") if until is None else until, query.tenant, query.action, query.user
    )
    found = await call.service.runtime.audit.page(chosen, after=query.after, limit=query.limit)
    following = found[-1].id if len(found) == query.limit else None
    return json_response(schemas.ApiAudit(entries=found, next=following))


def _tokens(call: ApiCall[Any, Any]) -> AuthTokens:
    return AuthTokens(call.service.runtime.database)


def _token_to_api(token: AuthToken) -> schemas.ApiToken:
    return schemas.ApiToken(
        id=token.id,
        role=token.role,
        tenant=token.tenant,
        label=token.label,
        memory=str(token.memory or ""),
        created=token.created,
        revoked=token.revoked,
    )


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────

ADMIN_OPERATIONS: Final[tuple[ApiOperation[Any, Any], ...]] = (
    ApiOperation(
        id="list_tenants",
        path=f"{ADMIN_API_PATH}/tenants",
        summary="List the tenants with their valid tokens and their usage of the last 30 days.",
        handler=list_tenants,
        results=(ApiResult("The tenants.", schemas.ApiTenants),),
    ),
    ApiOperation(
        id="list_tokens",
        path=TOKENS_PATH,
        summary="List all tokens, without their secrets.",
        handler=list_tokens,
        results=(ApiResult("The tokens.", schemas.ApiTokens),),
    ),
    ApiOperation(
        id="create_token",
        method="POST",
        path=TOKENS_PATH,
        summary="Create a token; the first one of a server comes from its command line.",
        handler=create_token,
        results=(
            ApiResult(
                "The token with its secret.",
                schemas.ApiNewToken,
                status=201,
                headers={"Location": "The path of the token."},
                links={"token": "$response.body#/id"},
            ),
        ),
        errors=(409, 422),
    ),
    ApiOperation(
        id="revoke_token",
        method="DELETE",
        path=f"{TOKENS_PATH}/{{token}}",
        summary="Revoke a token; its open streams end within seconds, on every server.",
        handler=revoke_token,
        results=(ApiResult("The token is revoked.", status=204),),
    ),
    ApiOperation(
        id="get_usage_sums",
        path=f"{ADMIN_API_PATH}/usage",
        summary="Sum reported tokens and their cost by tenant, user, model and day.",
        handler=get_usage_sums,
        results=(ApiResult("The sums.", schemas.ApiUsageSums),),
        errors=(422,),
    ),
    ApiOperation(
        id="list_budgets",
        path=f"{ADMIN_API_PATH}/budgets",
        summary="List what is spent against each limit of [budgets], in its current period.",
        handler=list_budgets,
        results=(ApiResult("The limits.", schemas.ApiBudgets),),
    ),
    ApiOperation(
        id="get_health",
        path=f"{ADMIN_API_PATH}/health",
        summary="Return the state of the server, with the names of tenants that cannot be used.",
        handler=get_health,
        results=(ApiResult("The state.", schemas.ApiHealth),),
    ),
    ApiOperation(
        id="list_audit",
        path=f"{ADMIN_API_PATH}/audit",
        summary="List the rows of the audit trail, page by page, oldest first.",
        handler=list_audit,
        results=(ApiResult("One page.", schemas.ApiAudit),),
    ),
)
