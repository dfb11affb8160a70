"""Sessions of killed processes: acknowledged events are stored, and the view is the fold of the log.

FOVEAL_SOAK=1 kills ten times as often.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Final

import pytest

from foveal.core.engine import Engine
from foveal.core.log import (
    REDUCTIONS,
    AnyFact,
    Compacted,
    Event,
    Masked,
    ModelSaid,
    Opened,
    ToolReturned,
    UserSaid,
)
from foveal.errors import UnknownSession
from foveal.sessions import Session
from foveal.stores import SqliteStore
from support import warm_start
from support.effort import rest_in_soak
from support.legality import check_anthropic, check_chat
from support.paths import SUPPORT
from support.session_worker import SESSION, SMALL_WINDOW, turn
from support.warm_start import WarmProcess

SOAK: Final = bool(os.environ.get("FOVEAL_SOAK"))
ROUNDS: Final = 120 if SOAK else 12
WORKER: Final = SUPPORT / "session_worker.py"
CHILD_TIMEOUT_S: Final = 240.0
"""After this time a child process is killed."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def worker(*args: object) -> AbstractContextManager[WarmProcess]:
    return warm_start.child([WORKER, *args])


def shown(engine: Engine) -> list[Any]:
    return [fact for step in engine.view.steps for fact in step.facts()]


def appended_facts(log: list[Event]) -> list[AnyFact]:
    """Return the facts that a caller appended, without those that the session recorded itself."""
    return [event.fact for event in log if isinstance(event.fact, UserSaid | ModelSaid | ToolReturned)]


def author(fact: AnyFact) -> str:
    content = getattr(fact, "content", "")
    text = content if isinstance(content, str) else content[0].text
    found = re.match(r"\S+", text)
    assert found is not None
    return found.group()


async def check_reopened(path: Path) -> list[Event]:
    """Open the session as the next process does, check it, fit a request; return the log before that."""
    async with SqliteStore(path, durability="normal") as store:
        log = await store.read(SESSION)
        assert [event.seq for event in log] == list(range(len(log)))
        session = await Session.open(store, SESSION, **SMALL_WINDOW)
        assert await store.read(SESSION) == log, "opening alone records nothing"
        whole = Engine(session._writer.settings, log=log)
        assert shown(await session._writer.load()) == shown(whole)
        fitted = await session.fit()
        assert check_chat(fitted.to_openai()) == []
        assert check_anthropic(fitted.to_anthropic()) == []
        assert fitted.tokens <= fitted.limit
        after = await store.read(SESSION)
        assert after[: len(log)] == log
        assert all(isinstance(event.fact, REDUCTIONS) for event in after[len(log) :])
        assert list(fitted.facts) == shown(Engine(session._writer.settings, log=after))
        return log


# ── SIGKILL ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", rest_in_soak([1, 2]))
def test_a_session_survives_kill_9_at_any_moment(path: Path, seed: int) -> None:
    pick = random.Random(seed)
    lives: dict[str, int] = {}
    log: list[Event] = []
    with worker("spawn", path) as spawner:
        for nr in range(ROUNDS):
            name = f"life{nr}"
            appended = pick.choice((0, 1, 5, 20)) if nr % 3 < 2 else None
            seconds = pick.choice((0.0, 0.005, 0.05)) * pick.random()
            acknowledged = _one_life(spawner, name, appended, seconds)
            before = log
            try:
                log = asyncio.run(check_reopened(path))
            except UnknownSession:
                assert acknowledged == []
                continue
            assert log[: len(before)] == before
            _nothing_is_lost(log, name, nr, acknowledged)
            lives[name] = len(acknowledged)
    assert sum(lives.values()) > ROUNDS
    assert any(isinstance(event.fact, Compacted) for event in log)


def _one_life(spawner: WarmProcess, name: str, appended: int | None, seconds: float) -> list[int]:
    """Kill a child some time after so many acknowledged events, or after its start if that is None; return the
    acknowledged seqs."""
    assert spawner.stdin is not None
    assert spawner.stdout is not None
    spawner.stdin.write(f"{name}\n".encode())
    spawner.stdin.flush()
    word, pid = spawner.stdout.readline().split()
    assert word == b"child"
    found: list[int] = []
    if appended is not None:
        assert spawner.stdout.readline() == b"open\n"
        found += [int(spawner.stdout.readline()) for _ in range(appended)]
    time.sleep(seconds)
    os.kill(int(pid), signal.SIGKILL)
    return found + _numbers(spawner.stdout)


def _numbers(lines: IO[bytes]) -> list[int]:
    found: list[int] = []
    for line in lines:
        if line == b"ended\n":
            return found
        if line != b"open\n":
            found.append(int(line))
    raise AssertionError("the spawner is gone")


def _nothing_is_lost(log: list[Event], name: str, first: int, acknowledged: list[int]) -> None:
    """Check that the child's facts are a prefix of what it appended, with everything that was acknowledged, and
    that each append is stored whole or not at all."""
    found = [fact for fact in appended_facts(log) if author(fact) == name]
    appends = [facts for nr in range(first, first + len(found) + 1) for facts in turn(name, nr)]
    ends, expected = {0}, []
    for facts in appends:
        expected += facts
        ends.add(len(expected))
    assert found == expected[: len(found)]
    assert len(found) in ends, "half of an append is stored"
    assert len(found) >= len(acknowledged)
    assert [log[seq].fact for seq in acknowledged] == found[: len(acknowledged)]


# ── Several processes ────────────────────────────────────────────────────────────────────────────────────


def test_two_processes_on_one_session_lose_nothing_and_keep_order(path: Path) -> None:
    turns = 60 if SOAK else 12
    names = ("anna", "bert")
    with worker("append", path, "anna", turns) as anna, worker("append", path, "bert", turns) as bert:
        for child in (anna, bert):
            _wait_until_open(child)
        for child in (anna, bert):
            _let_go(child)
        answers = [child.communicate(timeout=CHILD_TIMEOUT_S) for child in (anna, bert)]
    assert [err for _, err in answers if err] == []
    log = asyncio.run(check_reopened(path))
    for name, (out, _) in zip(names, answers, strict=True):
        expected = [fact for nr in range(turns) for facts in turn(name, nr) for fact in facts]
        assert [fact for fact in appended_facts(log) if author(fact) == name] == expected
        promised = [int(line) for line in out.split(b"\n") if line.isdigit()]
        assert [log[seq].fact for seq in promised] == expected
    kinds = Counter(type(event.fact) for event in log)
    assert kinds[Opened] in (1, 2)
    assert kinds[Masked] + kinds[Compacted] > 0


def _wait_until_open(child: WarmProcess) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == b"open\n"


def _let_go(child: WarmProcess) -> None:
    assert child.stdin is not None
    child.stdin.write(b"go\n")
    child.stdin.flush()


@pytest.mark.parametrize("seed", range(10 if SOAK else 2))
def test_when_one_of_two_processes_is_killed_the_other_continues(path: Path, seed: int) -> None:
    turns = 6
    with worker("spawn", path) as spawner, worker("append", path, "anna", turns) as anna:
        _wait_until_open(anna)
        _let_go(anna)
        acknowledged = _one_life(spawner, "bert", 4 * seed, 0.05 * random.Random(seed).random())
        out, err = anna.communicate(timeout=CHILD_TIMEOUT_S)
    assert err == b""
    log = asyncio.run(check_reopened(path))
    expected = [fact for nr in range(turns) for facts in turn("anna", nr) for fact in facts]
    assert [fact for fact in appended_facts(log) if author(fact) == "anna"] == expected
    assert [log[int(line)].fact for line in out.split(b"\n") if line.isdigit()] == expected
    _nothing_is_lost(log, "bert", 0, acknowledged)
