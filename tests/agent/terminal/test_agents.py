"""`--agent NAME`: a chat with the settings of `[agents.NAME]`."""

from __future__ import annotations

from pathlib import Path

import pytest

from foveal.events import Instructed, Opened
from support.chat_project import ChatProject, InProcessChat, run_chat

CONFIG = """
model = "scripted/plain"
prompt = "Answer in English."
[agents.reviewer]
model = "scripted/reviewer"
prompt = "file://reviewer.md"
window = 50_000
[agents.reviewer.context]
policy = "recent-summary"
[agents.reviewer.compaction]
threshold = 0.5
[agents.reviewer.tools]
deny = ["write_file"]
"""


@pytest.fixture
def project(tmp_path: Path) -> ChatProject:
    made = ChatProject(tmp_path)
    folder = tmp_path / ".config" / "foveal"
    folder.mkdir(parents=True)
    (folder / "foveal.toml").write_text(CONFIG)
    (folder / "reviewer.md").write_text("You review code.\n")
    return made


def test_a_chat_uses_the_settings_of_its_agent(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(chat: InProcessChat) -> None:
        await chat.send("Hello.")
        report = await chat.state.session.report()
        assert (report.model, report.window, report.policy) == ("scripted/reviewer", 50_000, "recent-summary")
        assert chat.state.config.loaded.policy().act == 0.5
        assert "write_file" not in str(chat.state.toolbox.schemas)

    run_chat(project, monkeypatch, steps, agent="reviewer")
    facts = [event.fact for event in project.events()]
    assert [fact.model for fact in facts if isinstance(fact, Opened)] == ["scripted/reviewer"]
    system = next(fact for fact in facts if isinstance(fact, Instructed))
    assert str(system.content).endswith("\n\nYou review code.")


def test_a_chat_without_an_agent_uses_the_other_settings(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        await chat.send("Hello.")
        assert (await chat.state.session.report()).policy == "economy"

    run_chat(project, monkeypatch, steps)
    system = next(event.fact for event in project.events() if isinstance(event.fact, Instructed))
    assert str(system.content).endswith("\n\nAnswer in English.")


@pytest.mark.parametrize("command", [("run", "Hello."), ("chat",)])
def test_an_unknown_agent_is_wrong_usage_and_the_others_are_named(
    project: ChatProject, command: tuple[str, ...]
) -> None:
    done = project.run_piped(*command, "--agent", "nope", input="Hello.\n")
    assert done.returncode == 2
    assert done.stderr.endswith("error: there is no agent nope; there are: reviewer\n")


def test_an_unknown_agent_ends_the_chat_in_a_terminal(project: ChatProject) -> None:
    with project.terminal("--agent", "nope") as terminal:
        assert terminal.ended() == 2
        assert "there is no agent nope; there are: reviewer" in " ".join(terminal.text.split())
