"""Measures the server: drop-in clients, tenants, a large session, SQLite and PostgreSQL, several processes.

    python -m bench server
    python -m bench.bench_server dropin         one part or several: dropin, tenants, large_session, postgres
    python -m bench.bench_server --small        with small sizes, to try the benchmark itself

Everything runs on this machine: clients, servers, upstream and database share its cores. The rows of PostgreSQL use
a server that the benchmark starts, or the one that `FOVEAL_TEST_POSTGRES` names.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench import bench_dropin, large_session, several_servers, store_comparison, tenant_memory
from bench.measure import Row, progress
from bench.processes import PostgresMissing, postgres_database
from bench.several_servers import TurnSizes
from bench.store_comparison import StoreSizes


class ServerSizes(NamedTuple):
    clients: Sequence[int] = bench_dropin.CLIENT_COUNTS
    tenants: int = tenant_memory.TENANTS
    events: int = large_session.EVENTS
    stores: StoreSizes = StoreSizes()
    turns: TurnSizes = TurnSizes()


FULL: Final = ServerSizes()
SMALL: Final = ServerSizes(
    clients=(20,),
    tenants=50,
    events=3_000,
    stores=StoreSizes(rounds=2, appends=30, sessions=200, events=500, repetitions=10),
    turns=TurnSizes(seconds=2.0, rounds=1, clients=24, pairs=8, left=4),
)


def rows(sizes: ServerSizes = FULL, parts: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of the named parts, or of all."""
    for name in parts or PARTS:
        yield from PARTS[name](sizes)


def _postgres_rows(sizes: ServerSizes) -> Iterator[Row]:
    progress("server: PostgreSQL …")
    try:
        with postgres_database() as url, tempfile.TemporaryDirectory(prefix="foveal-bench-") as folder:
            yield from store_comparison.rows(Path(folder), url, sizes.stores)
            yield from several_servers.rows(url, sizes.turns)
    except (ImportError, PostgresMissing) as problem:
        yield Row("SQLite against PostgreSQL, and several processes", None, note=str(problem))


PARTS: Final[dict[str, Callable[[ServerSizes], Iterator[Row]]]] = {
    "dropin": lambda sizes: bench_dropin.streaming_rows(sizes.clients),
    "tenants": lambda sizes: tenant_memory.rows(sizes.tenants),
    "large_session": lambda sizes: large_session.client_rows(sizes.events),
    "postgres": _postgres_rows,
}


def main(arguments: Sequence[str]) -> None:
    parts = [name for name in arguments if name != "--small"]
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"there is no part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    for row in rows(SMALL if "--small" in arguments else FULL, parts):
        progress("")
        print(f"{row.what:<72} {row.measured:>16} {row.target:>18} {row.verdict:<7} {row.note}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
