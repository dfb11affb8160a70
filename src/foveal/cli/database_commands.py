"""Command `database`: the tables of a PostgreSQL database, and copies of a server's data.

    foveal database migrate [URL] [--grant ROLE]     create the tables, or bring them to this version
    foveal database copy FROM TO                     copy everything, and compare it event by event

Servers and `foveal.open_store` migrate by themselves if their role may create tables. Run the command beforehand
with the role that owns the database; the servers' role then needs only the rights that `--grant` gives it.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from foveal.core.wire.safe_print import counted, visible
from foveal.errors import BadSetting, FovealError

if TYPE_CHECKING:
    from foveal.server.checked_copy import CopyProgress

COMMANDS: Final = ("database",)


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    about = "create the tables in a PostgreSQL database; copy a server's data to or from it"
    database = commands.add_parser("database", help=about, description=about)
    subcommands = database.add_subparsers(dest="act", required=True, metavar="migrate|copy")
    about = "create Foveal's tables, or bring them to this version"
    migrate = subcommands.add_parser("migrate", help=about, description=about)
    about = "postgresql://user@host/database; default: server.database of the configuration (FOVEAL_DATABASE)"
    migrate.add_argument("url", nargs="?", metavar="URL", help=about)
    about = "let this role read and write the tables, but not change them"
    migrate.add_argument("--grant", metavar="ROLE", help=about)
    _add_copy(subcommands)


def _add_copy(subcommands: Any) -> None:
    about = "copy sessions and service tables, and compare them event by event; an interrupted copy continues"
    copy = subcommands.add_parser("copy", help=about, description=about)
    about = "a server's data folder, a store file, or postgresql://user@host/database; it is only read"
    copy.add_argument("source", metavar="FROM", help=about)
    about = "the same; a path that does not exist becomes a store file if it ends in .db, otherwise a folder"
    copy.add_argument("target", metavar="TO", help=about)
    about = (
        "the tenant whose sessions a store file gets; for those of a store file, default: default; between other"
        " places: copy only the sessions of this tenant"
    )
    copy.add_argument("--tenant", metavar="NAME", help=about)
    about = (
        "copy only the sessions, while a server uses FROM; run again without it when the server has stopped"
    )
    copy.add_argument("--live", action="store_true", help=about)


async def database(args: Namespace) -> int:
    """Run the subcommand and return the exit code."""
    if args.act == "copy":
        return await _copy(args)
    return await _migrate(args.url or _configured_url(), args.grant)


def _configured_url() -> str:
    from foveal.config import load

    url = load(project=False, environ=os.environ).get("server.database")
    if not isinstance(url, str) or not url:
        raise BadSetting("URL", "", "name the database, or set FOVEAL_DATABASE")
    return url


async def _migrate(url: str, role: str | None) -> int:
    from foveal.stores import is_postgres_url, other_url_error, require_postgres

    if not is_postgres_url(url):
        raise other_url_error(url, "a URL that begins with postgresql://")
    require_postgres()
    from foveal.server.databases.postgres_database import SERVICE_MIGRATIONS
    from foveal.stores.postgres.connection import PostgresPool
    from foveal.stores.postgres.schema import STORE_MIGRATIONS, check_role, grant, migrate

    async with PostgresPool(url, connections=1) as pool:
        print(visible(pool.name))
        if role is not None:
            await check_role(pool, role)
        for component, migrations in (("store", STORE_MIGRATIONS), ("service", SERVICE_MIGRATIONS)):
            change = await migrate(pool, component, migrations)
            _print_change(component, change.before, change.after)
        await _migrate_jobs(url, role)
        if role is not None:
            await grant(pool, role)
            print(f"  {visible(role)} may read and write the tables")
    return 0


async def _migrate_jobs(url: str, role: str | None) -> None:
    """Migrate the tables of the job engine, which only servers have."""
    if find_spec("dbos") is None:
        return
    import asyncio

    from foveal.server.jobs.dbos_backend import migrate_engine_tables

    before, after = await asyncio.to_thread(migrate_engine_tables, url, role=role)
    _print_change("jobs", before, after)


def _print_change(component: str, before: int, after: int) -> None:
    done = f"version {after}, unchanged" if before == after else f"{before} → {after}"
    print(f"  {component:<8} {done}")


# ── Copy ─────────────────────────────────────────────────────────────────────────────────────────────────

COPY_PROGRESS_INTERVAL_S: Final = 2.0


async def _copy(args: Namespace) -> int:
    from foveal.server.checked_copy import CopyProgress
    from foveal.server.database_copy import copy_database, copy_place

    source, target = copy_place(args.source), copy_place(args.target)
    progress = CopyProgress(_ProgressPrinter())
    print(f"{visible(source.name)} → {visible(target.name)}", file=sys.stderr)
    try:
        await copy_database(source, target, progress, tenant=args.tenant, is_live=args.live)
    except (FovealError, OSError) as problem:
        if not progress.events and not progress.rows:
            raise
        raise FovealError(
            f"{problem} (compared so far: {_counts(progress)}; a further run continues)"
        ) from problem
    print(f"compared and equal: {_counts(progress)}")
    for table, rows in progress.rows.items():
        print(f"  {table:<15} {rows:,}")
    print(f"copied by this run: {counted(progress.new_events, 'event')}, {counted(progress.new_rows, 'row')}")
    if args.live:
        print("not copied: the service tables; stop the server, then run this again without --live")
    elif args.tenant and not source.is_file and not target.is_file:
        print("not copied: other tenants and the service tables; run this again without --tenant")
    elif not progress.rows and (source.is_file or target.is_file):
        print("not copied: the service tables, because a store file has none")
    return 0


class _ProgressPrinter:
    """Prints the progress of a copy on standard error, at intervals."""

    def __init__(self) -> None:
        self._printed = time.monotonic()

    def __call__(self, progress: CopyProgress) -> None:
        if time.monotonic() - self._printed >= COPY_PROGRESS_INTERVAL_S:
            self._printed = time.monotonic()
            print(f"  {visible(progress.place)}: {_counts(progress)}", file=sys.stderr, flush=True)


def _counts(progress: CopyProgress) -> str:
    return (
        f"{counted(progress.tenants, 'tenant')}, {counted(progress.sessions, 'session')}, "
        f"{counted(progress.events, 'event')}, {counted(progress.rows.total(), 'row')}"
    )
