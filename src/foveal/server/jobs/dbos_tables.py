"""The tables of the job engine in a PostgreSQL database, created before a server starts.

A server creates them itself if its role may. DBOS writes and versions them; Foveal only names their schema.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg
import sqlalchemy
from dbos import DBOSPortableJSONSerializer
from dbos._migration import get_dbos_schema_permissions_sql, get_migration_versions
from dbos._sys_db import SystemDatabase
from sqlalchemy.exc import SQLAlchemyError

from foveal.server.jobs.dbos_backend import ENGINE_SCHEMA, silence_console, unusable_tables
from foveal.server.jobs.dbos_connections import EngineConnections


class EngineTables(NamedTuple):
    """Versions of the tables before and after a migration."""

    before: int
    after: int


def migrate_engine_tables(url: str, *, role: str | None = None) -> EngineTables:
    """Create the engine's tables or bring them to the installed version of DBOS, and let `role` use them."""
    silence_console()
    connections = EngineConnections(url)
    try:
        before, after = get_migration_versions(connections.engine, ENGINE_SCHEMA, use_listen_notify=False)
        tables = SystemDatabase.create(
            system_database_url="postgresql://",
            engine_kwargs={},
            engine=connections.engine,
            schema=ENGINE_SCHEMA,
            serializer=DBOSPortableJSONSerializer(),
            executor_id=None,
            use_listen_notify=False,
        )
        tables.run_migrations()
        if role is not None:
            with connections.engine.begin() as connection:
                for statement in get_dbos_schema_permissions_sql(ENGINE_SCHEMA, role):
                    connection.execute(sqlalchemy.text(statement))
    except (SQLAlchemyError, psycopg.Error) as problem:
        raise unusable_tables(problem) from problem
    finally:
        connections.close()
    return EngineTables(before, after)
