"""The limit of tool results in the chat: tokens, memory and disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import foveal
from foveal.agent.terminal.factory import MAX_RESULT_SHARE, MAX_RESULT_TOKENS
from foveal.agent.tools.process_group import MAX_COMMAND_BYTES
from foveal.core.log import Clipped, ToolReturned, text_of
from foveal.core.tokens.counter import counter
from support.chat_project import ChatProject, InProcessChat, run_chat

MUCH = "seq -f 'line %.0f of a long build log' 40000; echo ERROR: no such header"
MEASURED = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
MAX_RSS_KB = 400 * 1024


@pytest.fixture
def project(tmp_path: Path) -> ChatProject:
    return ChatProject(tmp_path)


def cold_env(project: ChatProject) -> dict[str, str]:
    """Return the environment of a new interpreter, which imports the same Foveal as this one."""
    source = Path(foveal.__file__).parents[1]
    return project.env | {"PYTHONPATH": f"{project.home}{os.pathsep}{source}"}


def run_much(project: ChatProject, *args: str, window: int = 200_000) -> tuple[int, ToolReturned]:
    """Run a command with much output; return the tokens that it takes, and the stored result."""
    project.script([("run", {"command": MUCH})], "Done.", window=window)
    done = project.run_piped("run", "--yes", "--session", "s", *args, "build it")
    assert done.returncode == 0, done.stderr
    [shown] = [message for message in project.request() if message["role"] == "tool"]
    [stored] = [event.fact for event in project.events() if isinstance(event.fact, ToolReturned)]
    return counter("auto").count(shown["content"]), stored


def test_a_long_result_costs_the_model_what_the_limit_says_and_is_stored_whole(project: ChatProject) -> None:
    tokens, stored = run_much(project)
    assert 10_000 < tokens <= MAX_RESULT_TOKENS
    lines = text_of(stored.content).splitlines()
    assert lines[-2:] == ["ERROR: no such header", "exit status 0"]
    assert len(lines) == 40_002
    [clip] = [event.fact for event in project.events() if isinstance(event.fact, Clipped)]
    assert clip.total_lines == 40_002


def test_in_a_small_window_a_result_takes_a_tenth_of_the_room(project: ChatProject) -> None:
    tokens, _ = run_much(project, window=32_000)
    assert 1_000 < tokens <= 32_000 * MAX_RESULT_SHARE


def test_the_setting_replaces_the_limit(project: ChatProject) -> None:
    tokens, _ = run_much(project, "--set", "context.max_tool_result_tokens=30000")
    assert 20_000 < tokens <= 30_000


def test_what_the_user_attaches_has_no_limit_of_results(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "long.txt").write_text("a line of notes\n" * 5_000)
    project.script("Read.", window=200_000)

    async def steps(chat: InProcessChat) -> None:
        await chat.send("read @long.txt")
        said = chat.err.getvalue().partition("attached: ")[2].splitlines()[0]
        assert said == "long.txt, 25,000 tokens"

    run_chat(project, monkeypatch, steps)


@pytest.mark.soak
def test_300_mb_of_output_are_bounded_in_memory_on_disk_and_in_tokens(project: ChatProject) -> None:
    project.script([("run", {"command": "yes | head -c 300000000"})], "Done.", window=200_000)
    program = [sys.executable, "-m", "foveal.cli", "run", "--yes", "--session", "s", "go"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *program],
        cwd=project.folder, env=cold_env(project), capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    status, rss_kb = map(int, done.stdout.split())
    assert status == 0
    assert rss_kb < MAX_RSS_KB
    [stored] = [event.fact for event in project.events() if isinstance(event.fact, ToolReturned)]
    text = text_of(stored.content)
    assert len(text) < MAX_COMMAND_BYTES + 200
    assert f"[{300_000_000 - MAX_COMMAND_BYTES:,} bytes were left out here and not kept" in text
    assert os.path.getsize(project.store) < MAX_COMMAND_BYTES
    request = json.dumps(project.request())
    assert counter("auto").count(request) < MAX_RESULT_TOKENS + 2_000
