"""Sessions, recall and the command line on a store in PostgreSQL."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import foveal
from foveal.cli.__main__ import main
from foveal.core.log import Call, ModelSaid, ToolReturned, UserSaid
from foveal.core.tokens.counter import counter
from foveal.errors import BadSetting, SessionExists, StoreUnusable
from foveal.ports import Store
from foveal.recall import Recall
from foveal.sessions import Session
from foveal.stores import MemoryStore, open_store
from foveal.stores.postgres.store import PostgresStore
from support.paths import ROOT
from support.store_contract import Clock

SMALL: dict[str, Any] = {"model": "gpt-4.1", "window": 4_000, "reserve": 400, "tokenizer": "estimate"}
TURNS = 24

Open = Callable[[], AbstractAsyncContextManager[Store]]


async def long_session(open_again: Open) -> list[object]:
    """Run a session that is reduced, opened again, forked, undone and searched; return what it showed."""
    clock, shown = Clock(), []
    for part in range(3):
        async with open_again() as store:
            session = await Session.open(store, "long", clock=clock, **SMALL)
            for turn in range(part * TURNS // 3, (part + 1) * TURNS // 3):
                await session.append(
                    UserSaid(content=f"question {turn} about the zeppelin {turn % 7}"),
                    ModelSaid(content=(Call(id=f"c{turn}", name="read", arguments="{}"),)),
                    ToolReturned(call_id=f"c{turn}", content=f"file {turn}: " + f"okapi{turn} lines " * 400),
                )
                shown.append((await session.fit()).to_openai())
                await session.append(ModelSaid(content=f"answer {turn}"))
    async with open_again() as store:
        session = await Session.open(store, "long", clock=clock, **SMALL)
        recall = Recall(session, counting=counter("estimate"))
        shown += [await recall.call("recall_search", {"query": "okapi11 zeppelin"})]
        shown += [await recall.call("recall_read", {"handle": "e3"}), str(await session.report())]
        forked = await session.fork("copy", at=40)
        shown += [(await forked.fit()).to_openai(), [event.seq for event in await forked.events()]]
        await session.compact()
        shown += [(await session.fit()).to_openai(), await session.undo()]
        shown += [(await session.fit()).to_openai()]
        await session.rename("Ünïcode \0 title")
        shown += [(info.id, info.title, info.events, info.active) for info in await store.sessions()]
        with pytest.raises(SessionExists):
            await session.fork("copy")
        await session.delete()
        shown += [(info.id, info.erased, info.title) for info in await store.sessions()]
        shown += [await store.read("long", last=3)]
    return shown


def test_a_long_session_shows_the_same_on_postgresql_as_in_memory(store_url: str) -> None:
    memory = MemoryStore()

    async def compare() -> None:
        expected = await long_session(lambda: memory)
        found = await long_session(lambda: open_store(store_url, tenant="someone"))
        assert found == expected

    asyncio.run(compare())


def test_open_store_opens_a_tenant_of_a_database(store_url: str) -> None:
    async def work() -> None:
        async with (
            foveal.open_store(store_url) as store,
            foveal.open_store(store_url, tenant="b") as other,
        ):
            assert isinstance(store, PostgresStore)
            assert isinstance(other, PostgresStore)
            assert (store.tenant, other.tenant) == ("default", "b")
            session = await Session.open(store, "demo", model="gpt-4.1")
            await session.append(UserSaid(content="hello"))
            assert [info.id for info in await store.sessions()] == ["demo"]
            assert await other.sessions() == []

    asyncio.run(work())


def test_the_example_in_the_docs_runs(store_url: str) -> None:
    page = (ROOT / "docs/library/sessions.md").read_text("utf-8").partition("## On PostgreSQL")[2]
    code = page.partition("```py\n")[2].partition("```")[0]
    assert "postgresql://user@host/database" in code
    code = code.replace("postgresql://user@host/database", store_url)
    asyncio.run(eval(compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)))  # noqa: S307


def test_without_psycopg_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = foveal.stores.importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name.startswith("psycopg") else find(name)
    )
    with pytest.raises(StoreUnusable, match=r"pip install 'foveal\[postgres\]'"):
        open_store("postgresql://host/db")


def test_the_library_does_not_import_psycopg_unless_a_url_asks_for_it() -> None:
    code = "import sys, foveal, foveal.stores; foveal.open_store('x.db'); sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ── foveal database migrate ──────────────────────────────────────────────────────────────────────────────


def test_migrate_prints_what_it_did_and_does_it_once(
    postgres_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["database", "migrate", postgres_url]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["store", "service", "jobs"]
    assert all(" 0 → " in line for line in lines)
    monkeypatch.setenv("FOVEAL_DATABASE", postgres_url)
    assert main(["database", "migrate"]) == 0
    assert all(line.endswith("unchanged") for line in capsys.readouterr().out.splitlines()[1:])


def test_migrate_for_an_unknown_role_creates_nothing(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["database", "migrate", postgres_url, "--grant", "nosuchrole"]) == 1
    printed = capsys.readouterr()
    assert ("nosuchrole" in printed.err, "CREATE ROLE" in printed.err) == (True, True)
    assert len(printed.out.splitlines()) == 1, "only the name of the database"


def test_a_tenant_that_a_folder_could_not_hold_is_refused() -> None:
    for tenant in ("../../evil", "Bad Tenant", ""):
        with pytest.raises(BadSetting, match="tenant"):
            open_store("postgresql://127.0.0.1:1/db", tenant=tenant)


def test_migrate_without_a_database_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOVEAL_DATABASE", raising=False)
    assert main(["database", "migrate"]) == 1
    assert "FOVEAL_DATABASE" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url", ["postgresql://me:s3cret@127.0.0.1:1/db", "postgresql://me:s3cret%zz@host/db"]
)
def test_migrate_never_prints_the_password(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert main(["database", "migrate", url]) == 1
    printed = capsys.readouterr()
    assert "s3cret" not in printed.out + printed.err
