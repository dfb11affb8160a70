"""Sessions when processes die: what was acknowledged is there, and the view is the fold of the whole log.

FOVEAL_SOAK=1 kills ten times as often.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pytest

from foveal.core.engine import Engine
from foveal.core.log import (
    REDUCTIONS,
    AnyFact,
    Dropped,
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
from support.legality import check_anthropic, check_chat
from support.paths import SUPPORT
from support.session_worker import SESSION, SMALL, turn

SOAK: Final = bool(os.environ.get("FOVEAL_SOAK"))
ROUNDS: Final = 300 if SOAK else 30
WORKER: Final = SUPPORT / "session_worker.py"
LONGEST: Final = 60.0
"""Seconds that any child may live."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@contextmanager
def worker(*args: object) -> Iterator[subprocess.Popen[bytes]]:
    """A child, which is gone afterwards."""
    command = [sys.executable, str(WORKER), *map(str, args)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def shown(engine: Engine) -> list[Any]:
    return [fact for step in engine.view.steps for fact in step.facts()]


def said(log: list[Event]) -> list[AnyFact]:
    """The facts that somebody appended, without what the session recorded of its own."""
    return [event.fact for event in log if isinstance(event.fact, UserSaid | ModelSaid | ToolReturned)]


def speaker(fact: AnyFact) -> str:
    content = getattr(fact, "content", "")
    text = content if isinstance(content, str) else content[0].text
    found = re.match(r"\S+", text)
    assert found is not None
    return found.group()


async def reopened(path: Path) -> list[Event]:
    """Open the session as the next process would, check it, make a request; returns the log before that."""
    async with SqliteStore(path, durability="normal") as store:
        log = await store.read(SESSION)
        assert [event.seq for event in log] == list(range(len(log)))
        session = await Session.open(store, SESSION, **SMALL)
        assert await store.read(SESSION) == log, "opening alone records nothing"
        whole = Engine(*session._keeper.setup, log=log)
        assert shown(await session._keeper.ready()) == shown(whole)
        fitted = await session.fit()
        assert check_chat(fitted.to_openai()) == []
        assert check_anthropic(fitted.to_anthropic()) == []
        assert fitted.tokens <= fitted.limit
        after = await store.read(SESSION)
        assert after[: len(log)] == log
        assert all(isinstance(event.fact, REDUCTIONS) for event in after[len(log) :])
        assert list(fitted.facts) == shown(Engine(*session._keeper.setup, log=after))
        return log


# ── kill -9 ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", [1, 2])
def test_a_session_survives_kill_9_at_any_moment(path: Path, seed: int) -> None:
    pick = random.Random(seed)
    lives: dict[str, int] = {}
    log: list[Event] = []
    with worker("nursery", path) as nursery:
        for nr in range(ROUNDS):
            name = f"life{nr}"
            seconds = pick.choice((0.005, 0.05, 0.2)) * pick.random()
            acknowledged = _one_life(nursery, name, seconds, opened=nr % 3 < 2)
            before = log
            try:
                log = asyncio.run(reopened(path))
            except UnknownSession:
                assert acknowledged == []
                continue
            assert log[: len(before)] == before
            _nothing_is_lost(log, name, nr, acknowledged)
            lives[name] = len(acknowledged)
    assert sum(lives.values()) > ROUNDS * 3
    assert any(isinstance(event.fact, Masked) for event in log)
    assert any(isinstance(event.fact, Dropped) for event in log)


def _one_life(nursery: subprocess.Popen[bytes], name: str, seconds: float, *, opened: bool) -> list[int]:
    """Kill a child some time after it began, or after it had opened the session; what it was promised."""
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(f"{name}\n".encode())
    nursery.stdin.flush()
    word, pid = nursery.stdout.readline().split()
    assert word == b"child"
    if opened:
        assert nursery.stdout.readline() == b"open\n"
    time.sleep(seconds)
    os.kill(int(pid), signal.SIGKILL)
    return _numbers(nursery.stdout)


def _numbers(lines: IO[bytes]) -> list[int]:
    found: list[int] = []
    for line in lines:
        if line == b"ended\n":
            return found
        if line != b"open\n":
            found.append(int(line))
    raise AssertionError("the nursery is gone")


def _nothing_is_lost(log: list[Event], name: str, first: int, acknowledged: list[int]) -> None:
    """What the child said is the beginning of what it had to say, at least as far as it was promised, and each
    append is there whole or not at all."""
    found = [fact for fact in said(log) if speaker(fact) == name]
    appends = [facts for nr in range(first, first + len(found) + 1) for facts in turn(name, nr)]
    ends, expected = {0}, []
    for facts in appends:
        expected += facts
        ends.add(len(expected))
    assert found == expected[: len(found)]
    assert len(found) in ends, "half of an append is there"
    assert len(found) >= len(acknowledged)
    assert [log[seq].fact for seq in acknowledged] == found[: len(acknowledged)]


# ── several processes ────────────────────────────────────────────────────────────────────────────────────


def test_two_processes_that_talk_to_one_session_at_once_lose_nothing_and_keep_their_order(path: Path) -> None:
    turns = 60 if SOAK else 12
    names = ("anna", "bert")
    with worker("talk", path, "anna", turns) as anna, worker("talk", path, "bert", turns) as bert:
        for child in (anna, bert):
            _wait_until_open(child)
        for child in (anna, bert):
            _let_go(child)
        answers = [child.communicate(timeout=LONGEST) for child in (anna, bert)]
    assert [err for _, err in answers if err] == []
    log = asyncio.run(reopened(path))
    for name, (out, _) in zip(names, answers, strict=True):
        expected = [fact for nr in range(turns) for facts in turn(name, nr) for fact in facts]
        assert [fact for fact in said(log) if speaker(fact) == name] == expected
        promised = [int(line) for line in out.split(b"\n") if line.isdigit()]
        assert [log[seq].fact for seq in promised] == expected
    kinds = Counter(type(event.fact) for event in log)
    assert kinds[Opened] in (1, 2)
    assert kinds[Masked] + kinds[Dropped] > 0


def _wait_until_open(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == b"open\n"


def _let_go(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.write(b"go\n")
    child.stdin.flush()


@pytest.mark.parametrize("seed", range(10 if SOAK else 3))
def test_when_one_of_two_processes_is_killed_the_other_goes_on(path: Path, seed: int) -> None:
    turns = 6
    with worker("nursery", path) as nursery, worker("talk", path, "anna", turns) as anna:
        _wait_until_open(anna)
        _let_go(anna)
        acknowledged = _one_life(nursery, "bert", 0.4 * random.Random(seed).random(), opened=True)
        out, err = anna.communicate(timeout=LONGEST)
    assert err == b""
    log = asyncio.run(reopened(path))
    expected = [fact for nr in range(turns) for facts in turn("anna", nr) for fact in facts]
    assert [fact for fact in said(log) if speaker(fact) == "anna"] == expected
    assert [log[int(line)].fact for line in out.split(b"\n") if line.isdigit()] == expected
    _nothing_is_lost(log, "bert", 0, acknowledged)
