"""`foveal admin`, and what the commands of the server leave in the audit trail."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foveal.cli.__main__ import main
from foveal.cli.server_commands import TOKEN_ROLE_NAMES
from foveal.config import load
from foveal.core.log import Event, Used
from foveal.core.models.model import model
from foveal.core.models.spending import SpentAmount
from foveal.server.auth_tokens import TOKEN_ROLES
from foveal.server.budgets import Budgets, Spender
from foveal.server.daily_usage import DailyUsage
from foveal.server.pairing import Pairing
from support.serve_process import serving
from support.service_databases import open_database

Run = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    server = tmp_path / "server"
    server.mkdir()
    return server


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on the folder, and return what it prints."""

    def command(*words: str, code: int = 0) -> str:
        assert main([*words, "--folder", str(folder)]) == code
        return capsys.readouterr().out

    return command


def rows(run: Run, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("admin", "audit", "--format", "jsonl", *words).splitlines()]


def test_tokens_and_reads_of_the_trail_are_recorded(run: Run) -> None:
    run("token", "create", "--tenant", "alice")
    run("token", "create", "--role", "admin")
    id = run("token", "list").split()[0]
    run("token", "revoke", id)
    run("token", "revoke", id, code=1)
    assert "alice" in run("admin", "audit")
    found = rows(run)
    assert {(row["actor"], row["address"], row["outcome"]) for row in found} == {("command line", "", "ok")}
    assert [row["action"] for row in found] == ["token", "token", "token", "read"]
    assert sorted(row["tenant"] for row in found[:2]) == ["", "alice"]
    assert [row["object"].partition(" ")[2] for row in found[:3]] == [
        "created, role tenant",
        "created, role admin",
        f"revoked, role {'admin' if found[2]['tenant'] == '' else 'tenant'}",
    ]
    assert found[2]["object"].startswith(f"token:{id} revoked")
    assert rows(run)[-1]["action"] == "export"
    assert {row["tenant"] for row in rows(run, "--tenant", "alice")} == {"alice"}
    assert rows(run, "--action", "erase") == []
    assert rows(run, "--since", "1d", "--until", "2000-01-01") == []
    assert len(rows(run, "--since", "1d")) > 4


def test_access_to_a_bot_is_recorded_as_it_is_given_and_taken(run: Run, folder: Path) -> None:
    code = run("pair", "telegram").split("/pair ")[1].split()[0]

    async def claim() -> bool:
        async with open_database(folder) as database:
            return await Pairing(database).claim("telegram", code, 7, now=time.time())

    assert asyncio.run(claim())
    run("pair", "telegram", "--forget", "8", code=1)
    run("pair", "telegram", "--forget", "7")
    acts = "pairing:telegram code created", "pairing:telegram removed"
    assert [(row["actor"], row["action"], row["tenant"], row["object"]) for row in rows(run)] == [
        ("command line", "token", "telegram", act) for act in acts
    ]


def test_a_token_of_another_role_belongs_to_no_tenant(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert TOKEN_ROLE_NAMES == TOKEN_ROLES
    assert run("token", "create", "--role", "metrics").startswith("fv_")
    assert "(metrics)" in run("token", "list")
    assert run("admin", "tokens") == run("token", "list")
    for wrong in (["--tenant", "alice"], ["--memory", "ada"]):
        assert main(["token", "create", "--role", "admin", *wrong, "--folder", str(folder)]) == 1
        assert f"{wrong[0]} = '{wrong[1]}' is not allowed: not for a token with the role admin" in (
            capsys.readouterr().err
        )


def test_spending_is_printed_as_a_table_and_as_lines(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOVEAL_BUDGETS_USER", "4 USD; soft 1M tokens")
    assert run("admin", "budgets") == "tenant  scope  of  limit  spent  reserved  left  until\n"

    async def use() -> None:
        async with open_database(folder) as database:
            budgets = Budgets(load(tmp_path), database, clock=time.time)
            amount = SpentAmount(500_000, 1.0)
            reserved = await budgets.reserve(Spender("alice", user="ada"), model("gpt-4.1"), amount)
            assert reserved is not None
            await budgets.settle(reserved, amount)

    asyncio.run(use())
    table = run("admin", "budgets", "--tenant", "alice")
    assert [" ".join(line.split()) for line in table.splitlines()] == [
        "tenant scope of limit spent reserved left until",
        "alice user ada soft 1,000,000 tokens 500,000 tokens 0 tokens 500,000 tokens",
        "alice user ada 4 USD $1.00 $0.00 $3.00",
    ]
    lines = map(json.loads, run("admin", "budgets", "--format", "jsonl").splitlines())
    assert [(line["limit"], line["spent"], line["until"]) for line in lines] == [
        ("soft 1,000,000 tokens", 500_000, None),
        ("4 USD", 1.0, None),
    ]
    assert run("admin", "budgets", "--tenant", "bob").count("\n") == 1


def test_usage_is_printed_as_a_table_and_as_lines(run: Run, folder: Path) -> None:
    run("token", "create", "--tenant", "alice")

    async def use() -> None:
        async with open_database(folder) as database:
            usage = DailyUsage(database, clock=lambda: 86_400.0 * 10)
            facts = (
                Used(input=500_000, output=250_000, model="gpt-4.1"),
                Used(input=7, model="unheard/of\x1b"),
            )
            usage.add("alice", "s", [Event(seq, fact) for seq, fact in enumerate(facts)])
            await usage.close()

    asyncio.run(use())
    table = run("admin", "usage", "--by", "tenant")
    assert [" ".join(line.split()) for line in table.splitlines()] == [
        "tenant calls input cached output cost",
        "alice 2 500,007 0 250,000 $3.00, and 1 call without usage or price",
    ]
    lines = run("admin", "usage", "--by", "model,day", "--format", "jsonl").splitlines()
    first = json.loads(lines[0])
    assert (first["model"], first["day"], first["dollars"]) == ("gpt-4.1", "1970-01-11", 3.0)
    assert "\x1b" not in run("admin", "usage", "--by", "model")
    assert "alice" in run("admin", "tenants")
    assert json.loads(run("admin", "tenants", "--format", "jsonl"))["usage"]["calls"] == 0  # long ago
    assert run("admin", "usage", "--by", "person", code=1) == ""


def test_health_says_what_waits(run: Run, folder: Path) -> None:
    assert run("admin", "health") == f"storage  {folder}\nwaiting  0 messages\n"
    (folder / "service.db").write_bytes(b"not a database" * 1_000)
    assert "problem" in run("admin", "health", code=1)


@pytest.mark.parametrize("since", ["yesterday", "7", "2026-13-01"])
def test_a_time_that_is_none_is_an_error(since: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["admin", "audit", "--since", since])


@pytest.mark.parametrize("words", [["admin", "tenants"], ["token", "list"], ["pair", "telegram", "--list"]])
def test_a_folder_that_does_not_exist_is_an_error_and_is_not_created(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong"
    assert main([*words, "--folder", str(wrong)]) == 1
    assert f"there is no folder of a server at {wrong}" in capsys.readouterr().err
    assert not wrong.exists()


def test_a_server_that_starts_with_other_settings_is_recorded(run: Run, folder: Path) -> None:
    for rate in (10, 10, 20):
        with serving(folder=folder, settings={"server.rate": rate}):
            pass
    assert len(rows(run, "--action", "config")) == 2
