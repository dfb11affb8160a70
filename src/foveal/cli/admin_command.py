"""`foveal admin`: tenants, tokens, usage, health and the audit trail of a server.

    foveal admin tenants
    foveal admin tokens
    foveal admin usage [--by tenant,user,model,day] [--since 2026-01-01] [--tenant NAME]
    foveal admin health
    foveal admin audit [--since 7d] [--tenant NAME] [--user ID] [--action erase] [--format jsonl]

The command works on the server's folder or database, whether or not the server runs; `/api/admin` answers the same
over HTTP. Days and times are those of UTC. The audit trail records that it was read.
"""

from __future__ import annotations

import os
import re
import sys
import time
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from foveal.cli.token_command import FOLDER_ARGUMENT, print_tokens
from foveal.core.wire.safe_print import counted, one_line

if TYPE_CHECKING:
    import msgspec

    from foveal.server.audit import AuditTrail
    from foveal.server.auth_tokens import AuthTokens
    from foveal.server.daily_usage import DailyUsage, UsageRow
    from foveal.server.databases import Database
    from foveal.server.storage import Storage

COMMANDS: Final = ("admin",)
OUTPUT_FORMATS: Final = ("text", "jsonl")
_DURATION: Final = re.compile(r"([0-9]{1,6})([mhd])")
_SECONDS: Final = {"m": 60, "h": 3_600, "d": 86_400}
_MAX_CELL_CHARS: Final = 80


# ── Parser ───────────────────────────────────────────────────────────────────────────────────────────────


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    about = "tenants, tokens, usage, health and the audit trail of a server"
    admin = commands.add_parser("admin", help=about, description=about)
    admin.add_argument("--folder", **FOLDER_ARGUMENT)
    acts = admin.add_subparsers(dest="act", required=True, metavar="|".join(_ACTS))
    _act(acts, "tenants", "list the tenants with their usage of the last 30 days")
    tokens = acts.add_parser("tokens", help="list all tokens", description="list all tokens")
    tokens.add_argument("--folder", **{**FOLDER_ARGUMENT, "default": SUPPRESS})
    usage = _act(acts, "usage", "sum reported tokens and their cost")
    usage.add_argument(
        "--by",
        default="tenant",
        metavar="NAMES",
        help="what to sum by: tenant, user, model and day, separated by commas; default: tenant",
    )
    audit = _act(acts, "audit", "print who did what, oldest first, without text of messages")
    for parser in (usage, audit):
        parser.add_argument(
            "--since", type=_time, metavar="TIME", help="2026-01-31, 2026-01-31T09:00, or 7d, 24h, 30m ago"
        )
        parser.add_argument("--until", type=_time, metavar="TIME", help="as --since; default: now")
        parser.add_argument("--tenant", metavar="NAME", help="only this tenant")
        parser.add_argument("--user", metavar="ID", help="only this user")
    audit.add_argument("--action", metavar="NAME", help="only this action, such as erase")
    _act(acts, "health", "say whether the storage can be used, and what waits for an answer")


def _act(acts: Any, name: str, about: str) -> ArgumentParser:
    parser: ArgumentParser = acts.add_parser(name, help=about, description=about)
    parser.add_argument("--folder", **{**FOLDER_ARGUMENT, "default": SUPPRESS})
    parser.add_argument(
        "--format", choices=OUTPUT_FORMATS, default="text", help="jsonl: one JSON object per line"
    )
    return parser


def _time(text: str) -> float:
    """Return a time in seconds since 1970."""
    if found := _DURATION.fullmatch(text):
        return time.time() - int(found[1]) * _SECONDS[found[2]]
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ArgumentTypeError(f"{one_line(text)!r} is no time such as 2026-01-31 or 7d") from None


# ── Running ──────────────────────────────────────────────────────────────────────────────────────────────


class _Server(NamedTuple):
    """The storage of a server, and its tables."""

    storage: Storage
    database: Database
    tokens: AuthTokens
    usage: DailyUsage
    audit: AuditTrail


async def admin(args: Namespace) -> int:
    """Run the subcommand and return the exit code."""
    from foveal.config import load
    from foveal.server.audit import AuditTrail
    from foveal.server.auth_tokens import AuthTokens
    from foveal.server.daily_usage import DailyUsage
    from foveal.server.storage import open_service_storage

    opened = open_service_storage(load(project=False), os.environ, folder=args.folder)
    async with opened as (storage, database):
        usage, audit = DailyUsage(database, clock=time.time), AuditTrail(database, clock=time.time)
        return await _ACTS[args.act](_Server(storage, database, AuthTokens(database), usage, audit), args)


async def _tenants(server: _Server, args: Namespace) -> int:
    from foveal.server.api.admin_endpoints import tenant_summaries

    found = await tenant_summaries(server.storage, server.tokens, server.usage, now=time.time())
    if args.format == "jsonl":
        return _print_lines(found)
    header = ("tenant", "tokens", *_USAGE_HEADER)
    _print_table(header, [(one.name, f"{one.tokens:,}", *_usage_cells(one.usage)) for one in found])
    return 0


async def _tokens(server: _Server, args: Namespace) -> int:
    return await print_tokens(server.tokens, args.folder)


async def _usage(server: _Server, args: Namespace) -> int:
    from foveal.server.daily_usage import usage_day, usage_groups

    groups = usage_groups(args.by)
    rows = await server.usage.rows(
        groups,
        since="" if args.since is None else usage_day(args.since),
        until=usage_day(time.time() if args.until is None else args.until),
        tenant=args.tenant,
        user=args.user,
    )
    if args.format == "jsonl":
        return _print_lines(rows)
    cells = [(*(getattr(row, group) or "-" for group in groups), *_usage_cells(row)) for row in rows]
    _print_table((*groups, *_USAGE_HEADER), cells)
    return 0


async def _audit(server: _Server, args: Namespace) -> int:
    import msgspec

    from foveal.server.audit import AuditFilter

    until = float("inf") if args.until is None else args.until
    chosen = AuditFilter(args.since or 0.0, until, args.tenant, args.action, args.user)
    async for entry in server.audit.entries(chosen):
        if args.format == "jsonl":
            print(msgspec.json.encode(entry).decode())
            continue
        at = datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
        cells = (entry.tenant, entry.actor, entry.action, entry.object, entry.outcome, entry.address)
        print("  ".join([at, *(one_line(cell, width=_MAX_CELL_CHARS) or "-" for cell in cells)]))
    await server.audit.record("export" if args.format == "jsonl" else "read", "admin:audit")
    return 0


async def _health(server: _Server, args: Namespace) -> int:
    from foveal.errors import StoreError

    print(f"storage  {server.storage.place}")
    try:
        await server.database.check_writable()
        from foveal.server.inbox import Inbox

        waiting, oldest = await Inbox(server.database).unanswered()
    except StoreError as problem:
        print(f"problem  {one_line(str(problem), width=400)}")
        return 1
    age = "" if oldest is None else f", the oldest for {max(0, time.time() - oldest):,.0f} s"
    print(f"waiting  {counted(waiting, 'message')}{age}")
    return 0


_ACTS: Final[dict[str, Callable[[_Server, Namespace], Awaitable[int]]]] = {
    "tenants": _tenants,
    "tokens": _tokens,
    "usage": _usage,
    "health": _health,
    "audit": _audit,
}


# ── Output ───────────────────────────────────────────────────────────────────────────────────────────────

_USAGE_HEADER: Final = ("calls", "input", "cached", "output", "cost")


def _usage_cells(row: UsageRow) -> tuple[str, ...]:
    from foveal.core.models.cost import cost_text

    cost = cost_text(row.dollars, row.unpriced, None)
    counts = row.calls, row.input + row.cache_write, row.cache_read, row.output
    return (*(f"{count:,}" for count in counts), cost)


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    shown = [[one_line(cell, width=_MAX_CELL_CHARS) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(line.rstrip())
    if not rows:
        print("nothing was counted yet", file=sys.stderr)


def _print_lines(rows: Sequence[msgspec.Struct]) -> int:
    import msgspec

    for row in rows:
        print(msgspec.json.encode(row).decode())
    return 0
