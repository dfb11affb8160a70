"""Memory in the chat: what is said in one session is known in the next, and its owner sees and corrects it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from foveal.core.log.events import MEMORY_SOURCE, Equipped, Instructed
from support.chat_project import ChatProject, InProcessChat, run_chat
from support.terminal import CTRL_D, ENTER

DOWN = "\x1b[B"


def shown_memory(project: ChatProject, session: str) -> str:
    """Return what the next request of a session shows of the memory."""
    texts = [str(message["content"]) for message in project.request(session) if message["role"] == "system"]
    return "\n".join(text for text in texts if "# Memory of" in text)


def run(project: ChatProject, task: str, session: str, *options: str) -> str:
    done = project.run_piped("run", "--session", session, *options, task)
    assert done.returncode == 0, done.stderr
    return done.stderr


def memory_file(project: ChatProject) -> Path:
    return project.home / ".config" / "foveal" / "memory.md"


def another_project(project: ChatProject) -> ChatProject:
    """Return another project of the same user: another folder, the same home and store."""
    other = ChatProject.__new__(ChatProject)
    other.__dict__.update(project.__dict__, folder=project.home / "other")
    other.folder.mkdir()
    return other


def test_what_is_said_in_one_session_is_known_in_the_next(project: ChatProject) -> None:
    told = run(project, "Remember that my name is Ada. Remember that the port is 8081.", "monday")
    assert "Remembered m0: my name is Ada." in told
    assert "Remembered m1: the port is 8081." in told
    run(project, "Remember that I never want a push to main.", "monday")
    run(project, "Remember that the port is 9090 now, not 8081.", "monday")

    elsewhere = another_project(project)
    run(elsewhere, "hi", "tuesday")
    known = shown_memory(elsewhere, "tuesday")
    assert "my name is Ada." in known
    assert "push to main" in known
    assert "9090" in known
    assert "the port is 8081." not in known

    listed = json.loads(project.run_piped("memory", "list", "--json").stdout)
    rule = next(entry["id"] for entry in listed if "push to main" in entry["text"])
    assert project.run_piped("chat", "--session", "tuesday", input=f"/forget {rule}\nhi\n").returncode == 0
    assert "push to main" not in shown_memory(project, "tuesday")
    assert "push to main" not in memory_file(project).read_text()


def test_edits_of_the_file_are_the_owners(project: ChatProject) -> None:
    run(project, "Remember that the port is 8081.", "s")
    path = memory_file(project)
    assert "- the port is 8081. <!-- m0 -->" in path.read_text()
    path.write_text(path.read_text().replace("8081", "7070") + "- I prefer tabs.\n")
    run(project, "hi", "next")
    assert "- [m0] the port is 7070." in shown_memory(project, "next")
    assert "I prefer tabs." in shown_memory(project, "next")
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "7070" not in line))
    run(project, "hi", "next")
    assert "7070" not in shown_memory(project, "next")


def test_a_session_without_entries_sends_what_it_sent_without_memory(project: ChatProject) -> None:
    def sent(session: str, *options: str) -> tuple[list[object], list[str]]:
        run(project, "hi", session, *options)
        tools = [event.fact for event in project.events(session) if isinstance(event.fact, Equipped)]
        return project.request(session), re.findall(r'"name": ?"(\w+)"', tools[-1].tools.__repr__())

    with_memory, tools = sent("with")
    without, fewer_tools = sent("without", "--set", "memory.enabled=false")
    assert json.dumps(with_memory) == json.dumps(without)
    assert not memory_file(project).exists()


# ── Off-switches ─────────────────────────────────────────────────────────────────────────────────────────


def offered(project: ChatProject, session: str) -> str:
    [*_, last] = [event.fact for event in project.events(session) if isinstance(event.fact, Equipped)]
    return str(last)


@pytest.mark.parametrize("key", ["enabled", "learn_spoken", "learn_tools", "learn_proposals"])
def test_each_way_to_learn_can_be_switched_off(project: ChatProject, key: str) -> None:
    run(project, "Remember that I prefer tabs. Never push to main.", "s", "--set", f"memory.{key}=false")
    listed = json.loads(project.run_piped("memory", "list", "--json").stdout)
    spoken = [entry for entry in listed if not entry.get("proposed")]
    proposed = [entry for entry in listed if entry.get("proposed")]
    assert bool(spoken) == (key not in ("enabled", "learn_spoken"))
    assert bool(proposed) == (key not in ("enabled", "learn_proposals"))
    assert ("'remember'" in offered(project, "s")) == (key not in ("enabled", "learn_tools"))


def test_the_budget_is_that_of_the_settings(project: ChatProject) -> None:
    for number in range(40):
        assert project.run_piped("memory", "add", f"Server {number} is in rack {number * 7}.").returncode == 0
    run(project, "hi", "s", "--set", "memory.budget=200")
    assert "more entries: recall_search finds them" in shown_memory(project, "s")
    run(project, "hi", "wide", "--set", "memory.budget=4000")
    assert "more entries" not in shown_memory(project, "wide")
