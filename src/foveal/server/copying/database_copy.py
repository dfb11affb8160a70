"""The copy as a whole: tokens, the sessions of each tenant, then the other tables.

Rows of the tables that are already in the target are compared before the first session is copied, which takes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from foveal.errors import BadSetting
from foveal.server.copying.places import (
    CopyPlace,
    CopySource,
    CopyTarget,
    FilePlace,
    FolderPlace,
    pair_tenants,
)
from foveal.server.copying.progress import CopyProgress
from foveal.server.copying.session_copy import copy_sessions
from foveal.server.copying.table_copy import (
    OTHER_TABLES,
    TOKENS_TABLE,
    TableCopySpec,
    check_table,
    copy_table,
)
from foveal.stores import is_postgres_url, other_url_error, require_postgres


def copy_place(text: str) -> CopyPlace:
    """Return the place that a user has named. A path that does not exist is a store file if it ends in `.db`."""
    if is_postgres_url(text):
        require_postgres()
        from foveal.server.copying.database_place import DatabasePlace

        return DatabasePlace(text)
    if "://" in text:
        raise other_url_error(text, "a postgresql:// URL, a data folder or a store file")
    path = Path(text).expanduser().absolute()
    is_file = path.is_file() or (not path.exists() and path.suffix == ".db")
    return FilePlace(path) if is_file else FolderPlace(path)


async def copy_database(
    source: CopyPlace,
    target: CopyPlace,
    progress: CopyProgress,
    *,
    tenant: str | None = None,
    is_live: bool = False,
) -> None:
    """Copy everything from `source` to `target`, and compare it there.

    `tenant`: the tenant of a store file; between other places, copy only the sessions of this tenant. `is_live`:
    copy only the sessions, of a source that may be in use."""
    if source.name == target.name:
        raise BadSetting("TO", target.name, "another place than FROM")
    async with source.source(is_live=is_live) as opened:
        pairs = pair_tenants(opened, tenant, to_file=target.is_file)
        async with target.target() as into:
            has_tables = not is_live and tenant is None
            if has_tables:
                await _check_tables(opened, into)
                # First the tokens: a server on an incomplete target must not serve requests without one.
                await _copy_tables(opened, into, [TOKENS_TABLE], progress)
            for of_source, of_target in pairs:
                await _copy_tenant(opened, into, of_source, of_target, progress)
            if has_tables:
                await _copy_tables(opened, into, OTHER_TABLES, progress)
            await opened.check_unused()
            await into.check_unused()
            if into.tables is not None:
                # COMMIT writes what was not yet on the database's disk.
                await into.tables.database.check_writable()


async def _copy_tenant(
    source: CopySource, target: CopyTarget, of_source: str, of_target: str, progress: CopyProgress
) -> None:
    progress.begin(of_source or source.name)
    reader = source.open_store(of_source)
    try:
        writer = target.open_store(of_target)
        try:
            name = f"{target.name}, tenant {of_target}" if of_target else target.name
            await copy_sessions(reader, writer, name, progress)
        finally:
            await writer.close()
    finally:
        await reader.close()
    progress.tenants += 1


async def _check_tables(source: CopySource, target: CopyTarget) -> None:
    if source.tables is not None and target.tables is not None:
        for table in (TOKENS_TABLE, *OTHER_TABLES):
            await check_table(table, source.tables, target.tables, target.name)


async def _copy_tables(
    source: CopySource, target: CopyTarget, tables: Sequence[TableCopySpec], progress: CopyProgress
) -> None:
    if source.tables is not None and target.tables is not None:
        for table in tables:
            await copy_table(table, source.tables, target.tables, target.name, progress)
