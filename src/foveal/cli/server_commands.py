"""`foveal token`, `admin` and `pair`: who may use a server, what was used, and the audit trail.

    foveal token create [--tenant NAME] [--label TEXT] [--memory USER]     prints the secret, once
    foveal token create --role admin                                       one that manages the server
    foveal token list
    foveal token revoke ID

    foveal admin tenants
    foveal admin tokens
    foveal admin usage [--by tenant,user,model,day] [--since 2026-01-01] [--tenant NAME]
    foveal admin budgets [--tenant NAME]
    foveal admin health
    foveal admin audit [--since 7d] [--tenant NAME] [--user ID] [--action erase] [--format jsonl]

    foveal pair discord                  print a code, which works once and for ten minutes
    foveal pair discord --list           list the paired users
    foveal pair discord --forget ID      remove a paired user

The commands work on the server's folder (`--folder` if it is not the configured one) or database, whether or not
the server runs. A running server notices a change within a second. `/api/admin` answers as `foveal admin` does,
over HTTP. Days and times of `admin` are those of UTC. The audit trail records that it was read.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from foveal.core.wire.safe_print import counted, one_line, visible
from foveal.errors import FovealError

if TYPE_CHECKING:
    import msgspec

    from foveal.config import Config
    from foveal.server.audit import AuditTrail
    from foveal.server.auth_tokens import AuthTokens
    from foveal.server.budgets import Budgets
    from foveal.server.daily_usage import DailyUsage, UsageRow
    from foveal.server.databases import Database
    from foveal.server.pairing import ChatPlatform, Pairing
    from foveal.server.storage import Storage

COMMANDS: Final = ("token", "admin", "pair")
TOKEN_ROLE_NAMES: Final = ("tenant", "admin", "metrics")
"""`TOKEN_ROLES` of the server, which the parser does without."""
FOLDER_ARGUMENT: Final[dict[str, Any]] = {
    "type": Path,
    "metavar": "PATH",
    "help": "the server's folder, in place of a database too; default: that of the configuration",
}


def add_commands(commands: Any) -> None:
    """Add the commands to the parser."""
    _add_token_command(commands)
    _add_admin_command(commands)
    _add_pair_command(commands)


# ── token ────────────────────────────────────────────────────────────────────────────────────────────────


def _add_token_command(commands: Any) -> None:
    """Add the command to the parser."""
    about = "create, list and revoke the tokens that clients of the server need"
    token = commands.add_parser("token", help=about, description=about)
    token.add_argument("--folder", **FOLDER_ARGUMENT)
    subcommands = token.add_subparsers(dest="act", required=True, metavar="create|list|revoke")
    create = _subcommand(subcommands, "create", "create a token and print its secret, once")
    create.add_argument(
        "--role",
        choices=TOKEN_ROLE_NAMES,
        default=TOKEN_ROLE_NAMES[0],
        help="tenant opens the sessions of a tenant; admin manages the server and opens none; metrics reads its"
        " numbers only; default: tenant",
    )
    create.add_argument(
        "--tenant", metavar="NAME", help="the tenant whose sessions it opens; default: default"
    )
    create.add_argument("--label", default="", metavar="TEXT", help="what it is for")
    create.add_argument(
        "--memory",
        metavar="USER",
        help="the user whose memory drop-in requests show; @request: the user whom each request names; "
        "'USER; hears' also obeys \"remember that\"",
    )
    _subcommand(subcommands, "list", "list all tokens, without their secrets")
    revoke = _subcommand(subcommands, "revoke", "revoke a token")
    revoke.add_argument("id", metavar="ID", help="as `foveal token list` shows it")


def _subcommand(subcommands: Any, name: str, about: str) -> ArgumentParser:
    """Return the parser of a subcommand; `--folder` is accepted before and after its name."""
    parser: ArgumentParser = subcommands.add_parser(name, help=about, description=about)
    parser.add_argument("--folder", **{**FOLDER_ARGUMENT, "default": SUPPRESS})
    return parser


def _config(folder: Path | None, *, creates: bool = False) -> Config:
    """Return the configuration, in which a given folder also replaces a database. Raises `FovealError` for one that
    does not exist, unless the command `creates` it."""
    from foveal.config import load

    if folder is not None and not creates and not folder.is_dir():
        raise FovealError(
            f"there is no folder of a server at {visible(str(folder))}: name its `server.folder`"
        )
    return load(flags={"server.folder": None if folder is None else str(folder)}, project=False)


def shell_command(words: str, folder: Path | None) -> str:
    """Return a command for the user to type, with `--folder` if a folder is given."""
    where = "" if folder is None else f" --folder {shlex.quote(str(folder))}"
    return f"`foveal {words}{where}`"


async def token(args: Namespace) -> int:
    """Run the subcommand and return the exit code."""
    from foveal.server.audit import AuditTrail
    from foveal.server.auth_tokens import AuthTokens
    from foveal.server.storage import open_service_database

    config = _config(args.folder, creates=args.act == "create")
    async with open_service_database(config, os.environ) as database:
        tokens, audit = AuthTokens(database), AuditTrail(database, clock=time.time)
        if args.act == "create":
            return await _create(tokens, audit, args)
        if args.act == "list":
            return await print_tokens(tokens, args.folder)
        return await _revoke(tokens, audit, args.id, args.folder)


async def _create(tokens: AuthTokens, audit: AuditTrail, args: Namespace) -> int:
    from foveal.server.audit import token_object
    from foveal.server.auth_tokens import NewToken

    new = NewToken.checked(
        role=args.role, tenant=args.tenant, label=args.label, memory=args.memory, prefix="--"
    )
    id, secret = await tokens.create(**new._asdict(), now=time.time())
    await audit.record("token", token_object(id, "created", new.role), tenant=new.tenant)
    print(secret)
    whose = f"of tenant {new.tenant}" if new.tenant else f"with the role {new.role}"
    print(f"token {id} {whose}: keep the line above, it is not shown again", file=sys.stderr)
    return 0


async def print_tokens(tokens: AuthTokens, folder: Path | None) -> int:
    """Print all tokens, without their secrets, and return the exit code."""
    found = await tokens.list()
    if not found:
        print(f"no token yet: {shell_command('token create', folder)} creates one")
    for token in found:
        state = "valid" if token.revoked is None else f"revoked {_time(token.revoked)}"
        label = one_line(token.label, width=60)
        memory = f"memory: {token.memory}  " if token.memory else ""
        whose = token.tenant or f"({token.role})"
        print(f"{token.id}  {whose:<20}  {_time(token.created)}  {state}  {memory}{label}".rstrip())
    return 0


async def _revoke(tokens: AuthTokens, audit: AuditTrail, id: str, folder: Path | None) -> int:
    from foveal.server.audit import token_object

    if (revoked := await tokens.revoke(id, now=time.time())) is not None:
        await audit.record("token", token_object(id, "revoked", revoked.role), tenant=revoked.tenant)
        print(f"token {id} is revoked")
        return 0
    message = (
        f"there is no valid token {one_line(id, width=40)}; {shell_command('token list', folder)} shows them"
    )
    print(message, file=sys.stderr)
    return 1


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


# ── admin ────────────────────────────────────────────────────────────────────────────────────────────────

OUTPUT_FORMATS: Final = ("text", "jsonl")
_DURATION: Final = re.compile(r"([0-9]{1,6})([mhd])")
_SECONDS: Final = {"m": 60, "h": 3_600, "d": 86_400}
_MAX_CELL_CHARS: Final = 80


def _add_admin_command(commands: Any) -> None:
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
    budgets = _act(acts, "budgets", "list what is spent against each limit of [budgets]")
    budgets.add_argument("--tenant", metavar="NAME", help="only this tenant")
    audit = _act(acts, "audit", "print who did what, oldest first, without text of messages")
    for parser in (usage, audit):
        parser.add_argument(
            "--since",
            type=_parse_time,
            metavar="TIME",
            help="2026-01-31, 2026-01-31T09:00, or 7d, 24h, 30m ago",
        )
        parser.add_argument("--until", type=_parse_time, metavar="TIME", help="as --since; default: now")
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


def _parse_time(text: str) -> float:
    """Return a time in seconds since 1970."""
    if found := _DURATION.fullmatch(text):
        return time.time() - int(found[1]) * _SECONDS[found[2]]
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ArgumentTypeError(f"{one_line(text)!r} is no time such as 2026-01-31 or 7d") from None


class _Server(NamedTuple):
    """The storage of a server, and its tables."""

    storage: Storage
    database: Database
    tokens: AuthTokens
    usage: DailyUsage
    audit: AuditTrail
    budgets: Budgets


async def admin(args: Namespace) -> int:
    """Run the subcommand and return the exit code."""
    from foveal.server.audit import AuditTrail
    from foveal.server.auth_tokens import AuthTokens
    from foveal.server.budgets import Budgets
    from foveal.server.daily_usage import DailyUsage
    from foveal.server.storage import open_service_storage

    config = _config(args.folder)
    async with open_service_storage(config, os.environ) as (storage, database):
        usage, audit = DailyUsage(database, clock=time.time), AuditTrail(database, clock=time.time)
        budgets = Budgets(config, database, clock=time.time)
        server = _Server(storage, database, AuthTokens(database), usage, audit, budgets)
        return await _ACTS[args.act](server, args)


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


async def _budgets(server: _Server, args: Namespace) -> int:
    from foveal.core.models.spending import SpendingLimit, time_text

    limits = await server.budgets.spent_limits(tenant=args.tenant)
    if args.format == "jsonl":
        return _print_lines(limits)
    rows = []
    for one in limits:
        shown = SpendingLimit(amount=1.0, unit=one.unit).shown
        amounts = (one.spent, one.reserved, max(0.0, one.left))
        until = "" if one.until is None else time_text(one.until)
        rows.append((one.tenant, one.scope, one.key, one.limit, *map(shown, amounts), until))
    _print_table(("tenant", "scope", "of", "limit", "spent", "reserved", "left", "until"), rows)
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
    "budgets": _budgets,
    "health": _health,
    "audit": _audit,
}


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


# ── pair ─────────────────────────────────────────────────────────────────────────────────────────────────

PLATFORM_NAMES: Final = ("telegram", "discord")


def _add_pair_command(commands: Any) -> None:
    """Add the command to the parser."""
    about = "give a user access to the bot on Telegram or Discord"
    pair = commands.add_parser("pair", help=about, description=about)
    pair.add_argument("platform", type=_platform, metavar="|".join(PLATFORM_NAMES), help="the chat app")
    pair.add_argument("--folder", **FOLDER_ARGUMENT)
    what = pair.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="list the paired users")
    what.add_argument("--forget", type=_user, metavar="ID", help="remove this paired user")


def _platform(text: str) -> str:
    if text.lower() not in PLATFORM_NAMES:
        raise ArgumentTypeError(
            f"there is no bot on {one_line(text)!r}, only on {' and '.join(PLATFORM_NAMES)}"
        )
    return text.lower()


def _user(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ArgumentTypeError(f"a user id is a number, as `--list` shows it, not {one_line(text)!r}")
    return int(text)


async def pair(args: Namespace) -> int:
    """Print a code, list the paired users or remove one, and return the exit code."""
    from foveal.server.audit import AuditTrail
    from foveal.server.pairing import CODE_TTL_S, Pairing
    from foveal.server.storage import open_service_database

    async with open_service_database(_config(args.folder), os.environ) as database:
        pairing, audit = Pairing(database), AuditTrail(database, clock=time.time)
        if args.list:
            return await _print_users(pairing, args.platform)
        if args.forget is not None:
            return await _remove_user(pairing, audit, args)
        code = await pairing.create_code(args.platform, now=time.time())
        await audit.record("token", f"pairing:{args.platform} code created", tenant=args.platform)
    print(f"Send this to the bot on {args.platform.capitalize()} within {CODE_TTL_S / 60:.0f} minutes:\n")
    print(f"    /pair {code}\n")
    print("The user who sends it first has access from then on; the code works once.")
    return 0


async def _print_users(pairing: Pairing, platform: ChatPlatform) -> int:
    users = [entry for entry in await pairing.list() if entry.platform == platform]
    if not users:
        print(f"no user is paired with the bot on {platform.capitalize()}")
    for entry in users:
        print(f"{entry.user:<20} since {time.strftime('%Y-%m-%d %H:%M', time.localtime(entry.since))}")
    return 0


async def _remove_user(pairing: Pairing, audit: AuditTrail, args: Namespace) -> int:
    user, bot = args.forget, f"the bot on {args.platform.capitalize()}"
    if await pairing.unpair(args.platform, user):
        await audit.record("token", f"pairing:{args.platform} removed", tenant=args.platform)
        print(f"{user} no longer has access to {bot}")
        return 0
    folder = f" --folder {shlex.quote(str(args.folder))}" if args.folder else ""
    print(
        f"{user} is not paired with {bot}; `foveal pair {args.platform}{folder} --list` lists the paired users"
    )
    return 1
