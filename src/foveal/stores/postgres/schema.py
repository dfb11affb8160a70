"""Tables of the store in a PostgreSQL database, and the migrations that create them.

All tables are in the schema `foveal`. A new database runs the same migrations as an old one: the schema is the list
of migrations. A migration never changes after a release has shipped it; a later change is another migration.

    schema_version  the version of each component: `store` here, `service` for the tables of the server
    session         one row per session: its length, its size, when it was last active
    event           one row per event, with the id that its writer gave it
    blob, cut       large texts, once per tenant and content; which one belongs at which offset of which event
    checkpoint      from where a session can be opened without reading all of it: a cache
    search_…        the full-text index: a cache as well
    lease           which process may write a session

Every table has the tenant as the first column of its key, and a policy that shows a transaction only the rows of
the tenant in its setting `foveal.tenant`; `foveal.all_tenants` is for work of the service as a whole.

The foreign key of `cut` locks a blob while an append refers to it, so that an erasure cannot delete it meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from psycopg import sql

from foveal.errors import BadSetting, StoreUnusable
from foveal.stores.postgres.connection import Connection, ConnectionLost, PostgresPool, SqlStatement

MIGRATION_LOCK: Final = 0x466F7665616C
"""`Foveal`: key of the advisory lock under which migrations run."""

_MAX_MIGRATION_S: Final = 3600.0
_MAX_MIGRATION_ATTEMPTS: Final = 5


class Migration(NamedTuple):
    """The statements that lead from the version before to `version`; versions start at 1."""

    version: int
    statements: Sequence[str]


class SchemaChange(NamedTuple):
    """What a call of `migrate` did to the tables of a component."""

    component: str
    before: int
    after: int


def isolated(table: str) -> tuple[str, ...]:
    """Return statements that restrict a table with the column `tenant` to the rows of the transaction's tenant.

    FORCE applies the policies to the table's owner as well; only superusers and roles with BYPASSRLS see all."""
    return (
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
        f"CREATE POLICY of_tenant ON {table} USING (tenant = current_setting('foveal.tenant', true))",
        f"CREATE POLICY of_all_tenants ON {table} USING (current_setting('foveal.all_tenants', true) = 'on')",
    )


_TABLES: Final = (
    """
    CREATE TABLE foveal.session (
        tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
        key bigint GENERATED ALWAYS AS IDENTITY,
        id text COLLATE "C" NOT NULL,
        full_id text COLLATE "C",
        title text NOT NULL DEFAULT '',
        created double precision NOT NULL,
        active double precision NOT NULL,
        head bigint NOT NULL,
        bytes bigint NOT NULL,
        erasures integer NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant, key),
        UNIQUE (tenant, id)
    )
    """,
    "CREATE INDEX session_by_activity ON foveal.session (tenant, active DESC, id DESC)",
    "CREATE INDEX session_with_text ON foveal.session (tenant, active DESC, id DESC) WHERE erasures = 0",
    """
    CREATE TABLE foveal.event (
        tenant text COLLATE "C" NOT NULL,
        session bigint NOT NULL,
        seq bigint NOT NULL CHECK (seq >= 0),
        event_id uuid NOT NULL,
        at double precision,
        cuts integer NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (tenant, session, seq)
    )
    """,
    "ALTER TABLE foveal.event ALTER COLUMN body SET STORAGE EXTERNAL",
    """
    CREATE TABLE foveal.blob (
        tenant text COLLATE "C" NOT NULL,
        digest bytea NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (tenant, digest)
    )
    """,
    "ALTER TABLE foveal.blob ALTER COLUMN body SET STORAGE EXTERNAL",
    """
    CREATE TABLE foveal.cut (
        tenant text COLLATE "C" NOT NULL,
        session bigint NOT NULL,
        seq bigint NOT NULL,
        nr integer NOT NULL,
        place bigint NOT NULL,
        digest bytea NOT NULL,
        PRIMARY KEY (tenant, session, seq, nr),
        FOREIGN KEY (tenant, digest) REFERENCES foveal.blob (tenant, digest)
    )
    """,
    "CREATE INDEX cut_of_blob ON foveal.cut (tenant, digest, session)",
    """
    CREATE TABLE foveal.checkpoint (
        tenant text COLLATE "C" NOT NULL,
        session bigint NOT NULL,
        seq bigint NOT NULL,
        needed bytea NOT NULL,
        state bytea NOT NULL,
        PRIMARY KEY (tenant, session)
    )
    """,
    """
    CREATE TABLE foveal.search_progress (
        tenant text COLLATE "C" NOT NULL,
        session bigint NOT NULL,
        seq bigint NOT NULL,
        pieces bigint NOT NULL,
        more bigint NOT NULL,
        PRIMARY KEY (tenant, session)
    )
    """,
    """
    CREATE TABLE foveal.search_piece (
        tenant text COLLATE "C" NOT NULL,
        session bigint NOT NULL,
        piece bigint NOT NULL,
        seq bigint NOT NULL,
        words integer NOT NULL,
        PRIMARY KEY (tenant, session, piece)
    )
    """,
    """
    CREATE TABLE foveal.search_term (
        tenant text COLLATE "C" NOT NULL,
        session bigint NOT NULL,
        term text COLLATE "C" NOT NULL,
        first bigint NOT NULL,
        pieces bytea NOT NULL,
        PRIMARY KEY (tenant, session, term, first)
    )
    """,
    """
    CREATE TABLE foveal.lease (
        tenant text COLLATE "C" NOT NULL,
        name text COLLATE "C" NOT NULL,
        epoch bigint NOT NULL,
        owner text,
        until timestamptz,
        PRIMARY KEY (tenant, name)
    )
    """,
)

STORE_TABLES: Final = (
    "session",
    "event",
    "blob",
    "cut",
    "checkpoint",
    "search_progress",
    "search_piece",
    "search_term",
    "lease",
)

STORE_MIGRATIONS: Final = (
    Migration(1, (*_TABLES, *(line for table in STORE_TABLES for line in isolated(f"foveal.{table}")))),
)


async def schema_version(pool: PostgresPool, component: str) -> int:
    """Return the version of a component's tables; 0 if there are none."""
    table = SqlStatement("SELECT to_regclass('foveal.schema_version') IS NOT NULL")
    if (await pool.run(None, table, snapshot=True))[0] != [(True,)]:
        return 0
    (rows,) = await pool.run(
        None,
        SqlStatement("SELECT version FROM foveal.schema_version WHERE component = %s", (component,)),
        snapshot=True,
    )
    return rows[0][0] if rows else 0


async def migrate(pool: PostgresPool, component: str, migrations: Sequence[Migration]) -> SchemaChange:
    """Bring a component's tables to the newest version, once even if several processes call this.

    Raises `StoreUnusable` if a later version of Foveal has written them. A process checks this once: when a later
    version migrates the tables meanwhile, in a rolling upgrade, the process continues with them until it ends."""
    newest = migrations[-1].version
    if component in pool.current_components:
        return SchemaChange(component, newest, newest)
    before = await schema_version(pool, component)
    _refuse_later(pool, component, before, newest)
    if before < newest:
        before = await _repeat_until_known(pool, component, migrations)
    pool.current_components.add(component)
    return SchemaChange(component, before, newest)


async def _repeat_until_known(pool: PostgresPool, component: str, migrations: Sequence[Migration]) -> int:
    """Run the migrations, again if the connection broke: those that were carried out are then left out."""
    for _ in range(_MAX_MIGRATION_ATTEMPTS - 1):
        with suppress(ConnectionLost):
            return await _run_migrations(pool, component, migrations)
    return await _run_migrations(pool, component, migrations)


async def _run_migrations(pool: PostgresPool, component: str, migrations: Sequence[Migration]) -> int:
    """Run the migrations that are missing, and return the version before."""
    newest = migrations[-1].version
    async with pool.transaction(None, statement_s=_MAX_MIGRATION_S, lock_s=_MAX_MIGRATION_S) as connection:
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        before = await _locked_version(connection, component)
        _refuse_later(pool, component, before, newest)
        for migration in migrations:
            if migration.version > before:
                for statement in migration.statements:
                    await connection.execute(statement)
        await connection.execute(
            "INSERT INTO foveal.schema_version VALUES (%s, %s)"
            " ON CONFLICT (component) DO UPDATE SET version = excluded.version",
            (component, newest),
        )
    return before


async def _locked_version(connection: Connection, component: str) -> int:
    """Return the version, while no other process migrates; the table of versions is created if it is missing."""
    # Not `CREATE SCHEMA IF NOT EXISTS`: that needs the right to create schemas even if this one exists.
    if not await _one(connection, "SELECT to_regnamespace('foveal') IS NOT NULL"):
        await connection.execute("CREATE SCHEMA foveal")
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS foveal.schema_version (component text PRIMARY KEY, version integer NOT NULL)"
    )
    found = await _one(
        connection, "SELECT version FROM foveal.schema_version WHERE component = %s", component
    )
    return found if isinstance(found, int) else 0


async def _one(connection: Connection, query: str, *values: object) -> object:
    row = await (await connection.execute(query.encode(), values)).fetchone()
    return row[0] if row else None


def _refuse_later(pool: PostgresPool, component: str, version: int, newest: int) -> None:
    if version > newest:
        raise StoreUnusable(
            f"{pool.name} was written by a later version of Foveal (its {component} schema is {version}, this"
            f" version knows {newest}); it was left as it is: upgrade Foveal to use it"
        )


async def check_role(pool: PostgresPool, role: str) -> None:
    """Raise `BadSetting` if the database server has no such role."""
    found, *_ = await pool.run(None, SqlStatement("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)))
    if not found:
        raise BadSetting("role", role, "a role of this database server: create it with CREATE ROLE … LOGIN")


async def grant(pool: PostgresPool, role: str) -> None:
    """Let a role read and write Foveal's tables, those of later migrations too, but not change them."""
    name = sql.Identifier(role)
    async with pool.transaction(None) as connection:
        for text in (
            "GRANT USAGE ON SCHEMA foveal TO {}",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA foveal TO {}",
            "GRANT USAGE ON ALL SEQUENCES IN SCHEMA foveal TO {}",
            "ALTER DEFAULT PRIVILEGES IN SCHEMA foveal GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {}",
            "ALTER DEFAULT PRIVILEGES IN SCHEMA foveal GRANT USAGE ON SEQUENCES TO {}",
        ):
            await connection.execute(sql.SQL(text).format(name))
