"""Command `database`: the tables of Foveal in a PostgreSQL database.

    foveal database migrate [URL] [--grant ROLE]     create the tables, or bring them to this version

Servers and `foveal.open_store` migrate by themselves if their role may create tables. Run the command beforehand
with the role that owns the database; the servers' role then needs only the rights that `--grant` gives it.
"""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from importlib.util import find_spec
from typing import Any, Final

from foveal.core.wire.safe_print import visible
from foveal.errors import BadSetting

COMMANDS: Final = ("database",)


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    about = "create and migrate the tables in a PostgreSQL database"
    database = commands.add_parser("database", help=about, description=about)
    subcommands = database.add_subparsers(dest="act", required=True, metavar="migrate")
    about = "create Foveal's tables, or bring them to this version"
    migrate = subcommands.add_parser("migrate", help=about, description=about)
    about = "postgresql://user@host/database; default: server.database of the configuration (FOVEAL_DATABASE)"
    migrate.add_argument("url", nargs="?", metavar="URL", help=about)
    about = "let this role read and write the tables, but not change them"
    migrate.add_argument("--grant", metavar="ROLE", help=about)


async def database(args: Namespace) -> int:
    """Run the subcommand and return the exit code."""
    return await _migrate(args.url or _configured_url(), args.grant)


def _configured_url() -> str:
    from foveal.config import load

    url = load(project=False, environ=os.environ).get("server.database")
    if not isinstance(url, str) or not url:
        raise BadSetting("URL", "", "name the database, or set FOVEAL_DATABASE")
    return url


async def _migrate(url: str, role: str | None) -> int:
    from foveal.stores import require_postgres

    require_postgres()
    from foveal.server.databases.postgres_schema import SERVICE_MIGRATIONS
    from foveal.stores.postgres.connection import PostgresPool
    from foveal.stores.postgres.schema import STORE_MIGRATIONS, grant, migrate

    async with PostgresPool(url, connections=1) as pool:
        print(visible(pool.name))
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
    from foveal.server.jobs.engine_tables import migrate_engine_tables

    before, after = await asyncio.to_thread(migrate_engine_tables, url, role=role)
    _print_change("jobs", before, after)


def _print_change(component: str, before: int, after: int) -> None:
    done = f"version {after}, unchanged" if before == after else f"{before} → {after}"
    print(f"  {component:<8} {done}")
