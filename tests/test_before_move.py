"""Files written before all modules moved: they open, and show the same bytes.

`data/before_move/make.py` wrote the files with the code of the commit that its docstring names, and with them what
that code showed. Covered are:

1. `sessions.db`: a SQLite store with ten sessions. Together they have every kind of event, every level of detail,
   references to lines shown above, replaced instructions, tools, media, thinking, usage, snapshots, pins, undo,
   rewind and expand, a refused request, summaries by a model and by the ledger, a summary that was prepared in the
   background, a failed compaction, a fork, a continued session and an erased one.
2. `contexts/*.jsonl`: logs of `Context` runs, for each preset in each dialect. They are read, written, and rendered
   in all dialects.
3. `server.tar`: the folder of a `foveal serve` that was killed. It has two tenants, tokens, inbox, rooms, pairings,
   chats, schedules, errands, jobs and drop-in conversations in each dialect.
4. `foveal.toml`: a configuration with every key.

Sentences for people (of reports and errors) are left out: they may be reworded. What a model sees and what the log
has is compared byte for byte.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sqlite3
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, Final, get_args

import apsw
import pytest

import foveal
from foveal.config import load
from foveal.core.log import (
    Call,
    Clipped,
    Compacted,
    Event,
    Instructed,
    Known,
    Media,
    Text,
    Thinking,
    Unknown,
    decode,
    encode,
    kind,
    parts,
)
from foveal.core.tokens.counter import counter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import fold
from foveal.core.view.request import Fitted
from foveal.server import AuthTokens, ChatMessage, ChatPlace, Chats, PairedUser, Pairing, Service, TokenCaller
from foveal.stores.sqlite.schema import MIGRATIONS
from support.provider_stand_in import Answer, StandIn
from support.serve_process import serving

DATA: Final = Path(__file__).parent / "data" / "before_move"
sys.path.insert(0, str(DATA))

import observed  # noqa: E402

Json = dict[str, Any]
DEADLINE: Final = 60.0
DECIDED_NOW: Final = ("report", "max_tokens", "continued", "later")
"""What depends on what the policies decide now, beside the log."""
DECIDED_BY_PRESETS: Final = {
    "target", "clip_share", "skeleton_share", "skeleton_tokens",
    "summary_tokens", "summary_share", "early_tokens", "early", "patience",
    "mask_arguments", "refer",
}  # fmt: skip
"""Values that `economy` has changed since, or no longer has, or not in mode `confirm`."""
NEW_FIELDS: Final = {
    "cache_write_12h",
    "until", "estimated", "mode", "turn_tokens", "notice", "cache_miss", "settings", "warnings",
    "statements", "replaced_by", "replaced_since", "dropped_thinking", "binds_thinking",
    "unknown_calls", "unpriced", "answers", "answered",
    "fitted", "requests", "newest", "imported", "user",
    "shortened",
    "tools", "deferred", "tools.defer", "tools.core",
    "cause", "failures", "budgets", "periods", "summary_tokens",
    "compaction.summarise", "server.forward_other_paths", "summary_cost_share",
    "agent", "max_tool_iterations", "on_disconnect", "telegram.agent", "discord.agent",
    "tasks.max_tokens", "tasks.max_cost",
}  # fmt: skip
"""Fields of events and reports that this version has added."""
OTHER_FIGURES: Final = {
    "saved"
}  # it was compared with sending everything without a cache if none was reported
"""Figures that this version computes in another way."""
NEW_KINDS: Final = {
    "superseded", "thinking_left_out", "foreign_summary", "tools_loaded", "prioritised", "steered",
    "branched", "branch_ended",
}  # fmt: skip
"""Kinds of events that this version has added."""
RECALLED_LESS: Final = {"work", "work-forked"}
"""Sessions with replaced system texts, which recall no longer reads."""
LEVELS: Final = {"full", "clipped", "masked", "summarised", "dropped", "-"}


def unpacked(name: str) -> bytes:
    return gzip.decompress((DATA / f"{name}.gz").read_bytes())


SESSIONS: Final[Json] = json.loads(unpacked("sessions.json"))
CONTEXTS: Final[dict[str, Json]] = {case["name"]: case for case in json.loads(unpacked("contexts.json"))}


def log_of(name: str) -> list[bytes]:
    return unpacked(f"contexts/{name}.jsonl").splitlines()


def same(seen: Any, expected: Any, place: str = "") -> None:
    """Compare part by part: a difference in a large value names its place. Fields that only new events have are
    left out (`NEW_FIELDS`), and figures that mean something else (`OTHER_FIGURES`)."""
    if isinstance(seen, dict) and isinstance(expected, dict):
        seen, expected = ({k: v for k, v in d.items() if k not in OTHER_FIGURES} for d in (seen, expected))
        seen = {name: value for name, value in seen.items() if name in expected or name not in NEW_FIELDS}
    if isinstance(seen, dict) and isinstance(expected, dict) and seen.keys() == expected.keys():
        for name in expected:
            same(seen[name], expected[name], f"{place}/{name}")
    elif isinstance(seen, list) and isinstance(expected, list) and len(seen) == len(expected):
        for at, (one, other) in enumerate(zip(seen, expected, strict=True)):
            same(one, other, f"{place}/{at}")
    else:
        assert seen == expected, place


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def schema(path: Path) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        made = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name").fetchall()
        numbers = [
            connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        ]
        return [*made, *numbers]
    finally:
        connection.close()


def migrated(before: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The schema of an old store after its one migration: an index of sessions by activity, with its trigger."""
    *made, application, version = before
    assert version == (2,)
    new = {("index", "sessions_by_activity"), ("trigger", "activity_is_current")}
    added = [(*name, sql) for name, sql in _statements_of_new_store().items() if name in new]
    assert len(added) == len(new)
    return [*sorted([*made, *added], key=lambda row: row[:2]), application, (3,)]


def _statements_of_new_store() -> dict[tuple[str, str], str]:
    connection = apsw.Connection(":memory:")
    for migration in MIGRATIONS:
        migration(connection)
    rows = connection.execute("SELECT type, name, sql FROM sqlite_schema")
    return {(kind, name): sql for kind, name, sql in rows}


# ── what there is ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The events of all fixtures but the server's."""

    async def read() -> list[Event]:
        path = tmp_path_factory.mktemp("stored") / "sessions.db"
        path.write_bytes(unpacked("sessions.db"))
        async with foveal.open_store(path) as store:
            return [event for info in await store.sessions() for event in await store.read(info.id)]

    return [*asyncio.run(read()), *(decode(line) for name in CONTEXTS for line in log_of(name))]


def test_every_kind_of_event_part_and_level_occurs(stored: list[Event]) -> None:
    facts = [event.fact for event in stored]
    tags = {known.__struct_config__.tag for known in get_args(Known)}
    assert {kind(fact) for fact in facts if not isinstance(fact, Unknown)} == tags - NEW_KINDS
    assert {kind(fact) for fact in facts if isinstance(fact, Unknown)} == {"dreamt"}
    held = [part for fact in facts for part in parts(getattr(fact, "content", ""))]
    assert {type(part) for part in held} >= {Text, Thinking, Call, Media}
    lines = [line for one in (*SESSIONS["seen"].values(), *_seen()) for line in one.get("why", ())]
    assert {line["level"] for line in lines} == LEVELS
    assert {policy["policy"] for policy in CONTEXTS.values()} == set(foveal.PRESETS) - {"plain"}
    assert {fact.by for fact in facts if isinstance(fact, Compacted)} == {"ledger", "example/model"}
    assert any(fact.sources for fact in facts if isinstance(fact, Clipped))
    assert any(fact.replaces for fact in facts if isinstance(fact, Instructed))
    assert {getattr(fact, "dialect", "") for fact in facts} >= {
        "openai_chat",
        "openai_responses",
        "anthropic",
    }


def _seen() -> list[Json]:
    return [case["seen"] for case in CONTEXTS.values()]


# ── stores and logs ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("id", SESSIONS["settings"])
def test_an_old_session_shows_the_same(id: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    path.write_bytes(unpacked("sessions.db"))
    before = schema(path)

    async def look() -> Json:
        async with foveal.open_store(path) as store:
            return await observed.session_seen(store, id, SESSIONS["settings"][id])

    seen, expected = plain(asyncio.run(look())), SESSIONS["seen"][id]
    for name in (*DECIDED_NOW, *(["recall_read"] if id in RECALLED_LESS else [])):
        seen.pop(name, None)
        expected = {key: value for key, value in expected.items() if key != name}
    same(_without_limit(seen), _without_limit(expected))
    assert schema(path) == migrated(before)


def _without_limit(seen: Json) -> Json:
    """What a session shows, without the limit of a request: the margin follows the measured error since."""
    if "tokens" not in (fit := seen.get("fit") or {}):
        return seen
    tokens, _, whole = fit["tokens"]
    return seen | {"fit": fit | {"tokens": [tokens, whole]}}


def test_a_new_store_has_the_schema_of_the_old_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    old.write_bytes(unpacked("sessions.db"))

    async def make() -> None:
        async with foveal.open_store(new) as store:
            await store.append("one", [Event(0, foveal.UserSaid(content="Hello."))])

    asyncio.run(make())
    assert schema(new) == migrated(schema(old))


@pytest.mark.parametrize("name", CONTEXTS)
def test_an_old_log_is_read_written_and_rendered_the_same(name: str) -> None:
    lines, case = log_of(name), CONTEXTS[name]
    events = [decode(line) for line in lines]
    assert [encode(event) for event in events] == lines
    shown = case["session"]["fit"]
    if "openai_chat" not in shown:  # the conversation did not fit
        return
    fitted = Fitted.of(fold(events, MessageTokens(counter("estimate"))))
    messages = {
        "openai_chat": fitted.to_openai(),
        "openai_responses": fitted.to_responses(),
        "anthropic": fitted.to_anthropic(),
    }
    for dialect in messages.keys() - {case["dialect"]}:
        messages[dialect] = observed.digest(messages[dialect])
    same(plain(messages), {dialect: shown[dialect] for dialect in messages})
    assert fitted.system == shown["system"]


# ── a server ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a server that was killed."""
    packed = tmp_path / "server.tar"
    packed.write_bytes(unpacked("server.tar"))
    with tarfile.open(packed) as tar:
        tar.extractall(tmp_path / "server", filter="data")
    return tmp_path / "server"


def script(number: int) -> Answer:
    return Answer(text=f"Answer {number}: the parser is fine.", thought=f"Thought {number}.")


def _without_reductions(seen: Json) -> Json:
    """What a server shows, without what the policies decide now about drop-in requests."""
    kept = ("x-foveal-model", "x-foveal-session", "x-foveal-whole")
    requests = [
        (request["status"], [request["headers"][name] for name in kept]) for request in seen["drop-in"]
    ]
    return _with_sums(seen) | {"drop-in": requests}


def _with_sums(value: Any) -> Any:
    """A value in which reports have the sum of their categories, and neither tokens of events, nor limits and what
    follows from them, nor calls, which were those of one process, nor newer fields: how the sum is divided has
    changed."""
    if isinstance(value, list):
        return [_with_sums(one) for one in value]
    if not isinstance(value, dict):
        return value
    left_out = (
        {"reduced", "tokens"}
        if {"handle", "level"} <= value.keys()
        else {"reduced", "limit", "warn", "act", "turns_left"}
    )
    if "totals" in value:
        left_out.add("calls")
    kept = {name: _with_sums(one) for name, one in value.items() if name not in left_out}
    return kept | {"totals": sum(kept["totals"].values())} if "totals" in kept else kept


def test_an_old_server_folder_shows_the_same_and_its_open_work_is_done(folder: Path) -> None:
    told = json.loads(unpacked("server.json"))
    before = {name: schema(folder / name) for name in ("tenants/default.db", "tenants/second.db")}
    path = os.pathsep.join(
        [*filter(None, [os.environ.get("PYTHONPATH")]), str(Path(__file__).parent), str(DATA)]
    )
    with StandIn(script=script) as standin:
        addresses = {"server.openai_url": standin.openai, "server.anthropic_url": standin.anthropic}
        with serving(
            folder=folder,
            settings=told["settings"] | addresses,
            environment={"PYTHONPATH": path},
            provider="observed:provider",
        ) as server:
            seen = observed.server_seen(server.url, told["old"]["tokens"], told["old"], standin.requests)
            _until_done(folder)
            assert server.stop() == 0
    same(*(_without_reductions(one) for one in (plain(seen), told["seen"])))
    after = {name: schema(folder / name) for name in before}
    assert after == {name: migrated(old) for name, old in before.items()}


def test_the_tables_of_an_old_server_become_those_of_a_new_one(folder: Path, tmp_path: Path) -> None:
    async def open_in(place: Path) -> None:
        config = load(tmp_path, environ={}, user_folder=tmp_path)
        async with Service.open(config, folder=place, environment={}) as service:
            await service.runtime.database.check_writable()

    asyncio.run(open_in(tmp_path / "new"))
    asyncio.run(open_in(folder))
    assert columns(folder / "service.db") == columns(tmp_path / "new" / "service.db")


def columns(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the columns of each table and index."""
    names = [name for (name,) in rows(path, "SELECT name FROM sqlite_schema")]
    kinds = ("table_xinfo", "index_xinfo")
    return {name: [row for kind in kinds for row in rows(path, f"PRAGMA {kind}('{name}')")] for name in names}


def _until_done(folder: Path) -> None:
    """The job that was begun and the errand that no worker had seen are done, each once."""
    end = time.monotonic() + DEADLINE
    while rows(folder / "service.db", "SELECT id FROM errands"):
        assert time.monotonic() < end, rows(folder / "work.db", "SELECT name, status FROM workflow_status")
        time.sleep(0.05)
    jobs = rows(folder / "work.db", "SELECT name, queue_name FROM workflow_status")
    # The errand that was done before may be gone: the records of finished ones are deleted after a while.
    assert jobs in ([("errand", "errands")] * 2, [("errand", "errands")] * 3)


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path, timeout=DEADLINE)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_old_tokens_pairings_and_chats_are_known(folder: Path, tmp_path: Path) -> None:
    old, now = json.loads(unpacked("server.json"))["old"], observed.START + 180

    async def look() -> None:
        config = load(tmp_path, environ={}, user_folder=tmp_path)
        async with Service.open(config, folder=folder, environment={}) as service:
            database = service.runtime.database
            tokens, pairing, chats = AuthTokens(database), Pairing(database), Chats(database)
            listed = [(one.tenant, one.label, one.created, one.revoked) for one in await tokens.list()]
            assert sorted(listed, key=str) == [
                ("default", "of default", now, None),
                ("second", "of second", now, None),
                ("second", "old", now, now + 1),
            ]
            callers = {name: await tokens.authenticate(secret) for name, secret in old["tokens"].items()}
            assert callers["revoked"] is None
            assert isinstance(callers["second"], TokenCaller)
            assert callers["second"].tenant == "second"
            assert await pairing.list() == (PairedUser(platform="telegram", user=42, since=now),)
            assert await pairing.retry_after("discord", 77, now=now + 600) == 3_000
            assert await pairing.claim("discord", old["codes"]["discord"], 78, now=now + 599)
            assert await chats.session("telegram", ChatPlace(42)) == "telegram-42-2"
            waiting = ChatMessage(key="m2", place=ChatPlace(42), session="telegram-42-2", at=now)
            assert await chats.undelivered("telegram", now=now) == [waiting]
            assert not await chats.record_command("discord", "c1", place=ChatPlace(77), now=now)

    asyncio.run(look())


# ── a configuration ──────────────────────────────────────────────────────────────────────────────────────


NEW_KEYS = (
    "budgets.agent",
    "budgets.conversation",
    "budgets.tell_model",
    "budgets.tenant",
    "budgets.unknown_price",
    "budgets.user",
    "context.hook",
    "context.model_cuts",
    "memory.budget",
    "memory.enabled",
    "memory.learn_proposals",
    "memory.learn_spoken",
    "memory.learn_tools",
    "memory.propose_with_model",
    "memory.tool",
    "prompt",
    "discord.approvers",
    "discord.tools",
    "server.approval_minutes",
    "server.database",
    "server.forward_other_paths",
    "server.memory",
    "server.memory_budget",
    "server.memory_tools",
    "server.proxy_retention_days",
    "server.summary_cost_share",
    "server.webhook",
    "server.webhook_private",
    "server.webhook_secret",
    "telegram.approvers",
    "telegram.tools",
    "telegram.webhook",
    "tools.approval",
    "tools.branches",
    "tools.core",
    "tools.defer",
    "tools.network",
    "tools.sandbox",
)
"""Keys that did not exist then."""


def test_an_old_configuration_means_the_same(tmp_path: Path) -> None:
    config = load(tmp_path, environ={}, user_folder=DATA)
    seen, expected = plain(observed.config_seen(config)), json.loads(unpacked("config.json"))
    for agents, task in ((seen, "retain_user_share"), (expected, "keep_task")):
        for agent in agents["agents"].values():
            assert agent["session"]["policy"].pop(task)
            assert agent["policy"].pop(task)  # the same promise under its new name: the first message stays
            for values in (agent["policy"], agent["session"]["policy"]):
                if values["ladder"] == "economy":
                    for name in DECIDED_BY_PRESETS:
                        values.pop(name, None)
    for name in NEW_KEYS:
        del seen["shown"][name]
    same(seen, expected)
