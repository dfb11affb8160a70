"""Memory, SQLite and PostgreSQL give the same answers to the same searches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.log import AnyFact, ToolReturned, UserSaid
from foveal.ports import Hit, Store
from foveal.stores import MemoryStore, SqliteStore, open_store
from support.effort import examples
from support.postgres_server import fresh_database
from support.store_contract import log

WORDS = [
    "parser", "parse", "parsing", "token", "error", "errors", "zebra", "ZEBRA", "Zürich", "zurich", "café", "naïve",
    "parse_http", "parseHttp", "http.py", "HTTPServer", "e1f2a9", "2024-11-16", "the", "of",
    "and", "日本語テキスト", "日本", "語", "한국어", "привет", "ПРИВЕТ", "ß", "😀", "don't", "a/b/c.txt", "--flag",
    "running", "runs", "ran", "\x00", "\\", "'", '"', "%", "_", "*", "本",
]  # fmt: skip
LONG_WORD = "ж" * 3_000

texts = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join),
    st.text(max_size=30),
    st.tuples(st.sampled_from(WORDS), st.integers(1, 900)).map(lambda pair: f"{pair[0]} fill " * pair[1]),
    st.sampled_from([LONG_WORD, f"zebra {LONG_WORD}", "A" * 500, "\ud800 zebra"]),
)
facts = st.one_of(
    st.builds(lambda text: UserSaid(content=text), texts),
    st.builds(lambda text: ToolReturned(call_id="c", content=text), texts),
)
queries = st.one_of(st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join), st.text(max_size=12))


class OpenStores:
    """A store of each kind, opened once for all examples; each example has a session of its own."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self.stores: list[Store] = [MemoryStore(), SqliteStore(folder / "store.db", durability="normal")]
        self.stores.append(open_store(fresh_database()))

    def close(self) -> None:
        for store in self.stores:
            self.runner.run(store.close())
        self.runner.close()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStores]:
    stores = OpenStores(tmp_path_factory.mktemp("stores"))
    yield stores
    stores.close()


async def _answers(
    store: Store, batches: list[list[AnyFact]], asked: list[tuple[str, int]]
) -> list[list[Hit]]:
    """Append in batches with searches between them, so that the index grows in steps."""
    answers: list[list[Hit]] = []
    session, seq = uuid4().hex, 0
    for batch in batches:
        await store.append(session, log(*batch, first=seq))
        seq += len(batch)
        answers += [await store.search(session, query, limit=limit) for query, limit in asked]
    return answers


@examples(60)
@given(
    batches=st.lists(st.lists(facts, min_size=1, max_size=6), min_size=1, max_size=3),
    asked=st.lists(st.tuples(queries, st.sampled_from([1, 3, 50])), min_size=1, max_size=4),
)
def test_all_stores_find_the_same_events_with_the_same_scores(
    opened: OpenStores, batches: list[list[AnyFact]], asked: list[tuple[str, int]]
) -> None:
    expected, *others = [opened.runner.run(_answers(store, batches, asked)) for store in opened.stores]
    assert others == [expected, expected]
