"""The agent in the terminal with the real local model, past its window several times over, and through a kill.

Takes minutes: FOVEAL_SOAK=1 runs it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from foveal import Session, model, open_store
from foveal.core.log import Compacted, Dropped, Masked, ModelSaid, UserSaid, text_of
from support.legality import check_chat

pytestmark = pytest.mark.soak
RULE: Final = "Rule for all of this: the word ZANZIBAR_77 must never be written in a file."
WINDOW: Final = 2_048


def story(number: int) -> str:
    """About 250 tokens to read, with a question that takes few words."""
    words = " ".join(f"box {number}-{place} holds {place * 7 % 13} pears;" for place in range(24))
    return f"Note {number}: {words} Answer with one short sentence: how many boxes did I name?"


def chat(tmp_path: Path, lines: list[str]) -> subprocess.Popen[str]:
    given = {**os.environ, "FOVEAL_STORE": str(tmp_path / "chat.db"), "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "foveal.cli", "chat", "--model", "local/qwen2.5-coder-0.5b"]
    command += ["--window", str(WINDOW), "--session", "pears", "--no-tools"]
    said = tmp_path / "said.txt"
    said.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with said.open(encoding="utf-8") as typed:
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=given,
            stdin=typed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


async def stored(tmp_path: Path) -> tuple[list[object], list[dict[str, object]]]:
    """The facts of the session, and the request that would be sent next."""
    async with open_store(str(tmp_path / "chat.db")) as store:
        session = await Session.open(store, "pears", model=model("local/x", window=WINDOW))
        facts: list[object] = [event.fact for event in await session.events()]
        return facts, (await session.fit()).to_openai()


def test_a_chat_outlives_its_window_and_a_kill_and_still_knows_its_rule(tmp_path: Path) -> None:
    first = chat(tmp_path, [RULE + " Say yes.", *(story(number) for number in range(12))])
    said, _ = first.communicate(timeout=900)
    assert first.returncode == 0, said
    second = chat(tmp_path, [story(number) for number in range(12, 20)])
    time.sleep(25)
    second.send_signal(signal.SIGKILL)
    second.communicate()
    third = chat(tmp_path, [story(number) for number in range(20, 24)])
    said_last, _ = third.communicate(timeout=900)
    assert third.returncode == 0, said_last
    assert "overflow" not in (said + said_last).lower()
    facts, request = asyncio.run(stored(tmp_path))
    assert sum(isinstance(fact, ModelSaid) for fact in facts) >= 16
    assert sum(isinstance(fact, Masked | Compacted | Dropped) for fact in facts) >= 2
    assert check_chat(request) == []
    assert any(RULE in str(message["content"]) for message in request)
    users = [text_of(fact.content) for fact in facts if isinstance(fact, UserSaid)]
    assert users[-1] == story(23)
    assert any(story(23) in str(message["content"]) for message in request)
