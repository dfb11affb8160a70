"""Continuing sessions: of this folder, by id, from the menu; the last turns on the screen."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from foveal.agent.terminal.resuming import age
from foveal.core.log import Event, Opened, UserSaid
from foveal.errors import FovealError
from foveal.recall.archive.stored_sessions import SessionSummary, newest_session_of, session_summaries
from foveal.stores import open_store
from support.chat_project import ChatProject, InProcessChat, run_chat
from support.effort import rest_in_soak
from support.terminal import CTRL_C, CTRL_D, ENTER, ESCAPE, Terminal


def answer_lines(count: int) -> str:
    return "\n".join(f"- line {number}" for number in range(1, count + 1))


def test_continue_takes_the_newest_session_of_this_folder(project: ChatProject, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    project.run_piped("run", "--session", "here", "said here")
    project.folder, home = other, project.folder
    project.run_piped("run", "--session", "there", "said there")
    project.folder = home
    link = tmp_path / "link"
    link.symlink_to(home)
    project.folder = link
    done = project.run_piped("run", "--continue", "again")
    assert done.returncode == 0, done.stderr
    assert project.user_messages("here") == ["said here", "again"]
    assert project.user_messages("there") == ["said there"]


def test_sessions_of_older_versions_belong_to_no_folder(project: ChatProject) -> None:
    async def steps() -> list[SessionSummary]:
        async with open_store(project.store) as store:
            await store.append(
                "old", [Event(0, Opened(model="m"), 1.0), Event(1, UserSaid(content="hi"), 2.0)]
            )
            with pytest.raises(FovealError, match="there is no session of /x to continue"):
                await newest_session_of(store, "/x")
            return await session_summaries(store, limit=5)

    assert [(one.info.id, one.folder, one.tokens) for one in asyncio.run(steps())] == [("old", "", 0)]


def test_the_folder_is_in_the_first_event_and_survives_another_model(project: ChatProject) -> None:
    project.run_piped("run", "--session", "s", "one")
    project.run_piped("run", "--session", "s", "--model", "other/model", "two")

    async def steps() -> list[SessionSummary]:
        async with open_store(project.store) as store:
            return await session_summaries(store, limit=5)

    [found] = asyncio.run(steps())
    assert found.folder == os.path.realpath(project.folder)
    assert found.tokens > 0


def test_resume_without_an_id_opens_a_menu_and_shows_the_last_turns(project: ChatProject) -> None:
    numbers = range(1, 6)
    project.script(*(f"Answer {number}.\n{answer_lines(20)}" for number in numbers))
    said = "".join(f"question {number}\n" for number in numbers)
    project.run_piped("chat", "--session", "long", input=said)
    project.script("Hello.")
    project.run_piped("run", "--session", "short", "something else")
    with project.terminal("--resume") as terminal:
        seen = terminal.see("question 1")
        assert "something else" in seen
        assert "just now · this folder · " in seen
        assert " tokens · long" in seen
        terminal.see("type to search")
        terminal.type("quest")
        terminal.see(lambda t: not any("something else" in line for line in t.lines))
        terminal.type(ENTER)
        seen = terminal.see("continues after 5 turns")
        seen = terminal.see(lambda t: t.text.count("… 14 more lines · /expand e") == 3)
        assert "… the last 3 turns, shortened; the model sees the whole conversation" in seen
        assert "› question 3" in seen
        assert "› question 2" not in seen
        assert "Answer 5." in seen
        terminal.enter("/resume")
        terminal.see("Continue which session?")
        terminal.type(ESCAPE)
        terminal.see("this session stays open")
        terminal.enter("/resume short")
        seen = terminal.see("session short · ")
        terminal.see("› something else")


def test_escape_in_the_menu_leaves(project: ChatProject) -> None:
    project.run_piped("run", "--session", "s", "hi")
    with project.terminal("--resume") as terminal:
        terminal.see("Continue which session?")
        terminal.type(ESCAPE)
        assert terminal.ended() == 0
        assert "/help" not in terminal.text
    assert session_ids(project) == ["s"]


def session_ids(project: ChatProject) -> list[str]:
    async def read() -> list[str]:
        async with open_store(project.store) as store:
            return [info.id for info in await store.sessions()]

    return asyncio.run(read())


@pytest.mark.parametrize("leave", rest_in_soak([CTRL_D, "/quit" + ENTER, CTRL_C + CTRL_C]))
def test_leaving_says_how_to_continue_a_session_that_has_messages(project: ChatProject, leave: str) -> None:
    with project.terminal("--session", "my talk") as terminal:
        terminal.see("ctx ")
        terminal.type(leave)
        assert terminal.ended() == 0
        assert "to continue" not in terminal.text
    with project.terminal("--session", "my talk") as terminal:
        terminal.see("ctx ")
        terminal.enter("hi")
        terminal.see("Hello you.")
        terminal.type(leave)
        assert terminal.ended() == 0
        assert terminal.text.rstrip().endswith("to continue: foveal --resume 'my talk'")


@pytest.mark.parametrize("is_cold", rest_in_soak([False, True]))
def test_the_advice_to_continue_works_as_printed(project: ChatProject, is_cold: bool) -> None:
    with project.terminal("--session", "s", columns=200, env={"PATH": "/usr/bin:/bin"}) as terminal:
        terminal.see("ctx ")
        terminal.enter("hi")
        terminal.see("Hello you.")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
        [advice] = re.findall(r"to continue: (.*)", terminal.text)
    program, *arguments = shlex.split(advice)
    assert Path(program) == Path(sys.executable).with_name("foveal")
    assert os.access(program, os.X_OK)
    command = (program,) if is_cold else (sys.executable, "-m", "foveal.cli")
    with Terminal(*arguments, command=command, env=project.env, cwd=project.folder) as terminal:
        terminal.see("continues after 1 turn")


def test_the_advice_to_continue_names_another_store(project: ChatProject) -> None:
    other = project.home / "other.db"
    with project.terminal("--session", "s", "--store", other, columns=200) as terminal:
        terminal.see("ctx ")
        terminal.enter("hi")
        terminal.see("Hello you.")
        terminal.type(CTRL_D)
        terminal.see(f"to continue: foveal --resume s --store {other}")


def test_the_advice_to_continue_names_the_chosen_model_and_agent(project: ChatProject) -> None:
    settings = project.home / ".config/foveal/foveal.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("[agents.reviewer]\nprompt = 'Review.'\n")
    with project.terminal("--session", "s", "--agent", "reviewer", columns=200) as terminal:
        terminal.see("ctx ")
        terminal.enter("hi")
        terminal.see("Hello you.")
        terminal.enter("/model scripted/other")
        terminal.see("scripted/other · window")
        terminal.type(CTRL_D)
        terminal.see("to continue: foveal --resume s --agent reviewer --model scripted/other")


def test_the_advice_to_continue_names_what_the_user_has_set(project: ChatProject) -> None:
    options = ("--window", "30000", "--no-tools", "--no-project", "--yes", "--set", "tools.approval=ask")
    with project.terminal("--session", "s", *options, columns=200) as terminal:
        terminal.see("ctx ")
        terminal.enter("hi")
        terminal.see("Hello you.")
        terminal.enter("/policy recent")
        terminal.see("recent · mode")
        terminal.enter("/model scripted/other")
        terminal.see("scripted/other · window 30,000")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
        [advice] = re.findall(r"to continue: foveal (.*)", terminal.text)
    # What the user has allowed is left out, here `--yes`.
    assert advice.split() == [
        *("--resume", "s", "--set", "tools.approval=ask", "--policy", "recent", "--model", "scripted/other"),
        *("--window", "30000", "--no-project", "--no-tools"),
    ]


def test_the_last_turns_are_drawn_as_the_first_time(project: ChatProject) -> None:
    project.script("Hello **you**, `code`.\n\n- one\n- two")
    for how in ("--session", "--resume"):
        with project.terminal(how, "s") as terminal:
            terminal.see("ctx ")
            if how == "--session":
                terminal.enter("hi")
            terminal.see(lambda t: b"Hello \x1b[1myou\x1b[0m, \x1b[38;5;31mcode\x1b[0m.\r\n" in t.raw)
            terminal.see("• two")
            assert "**" not in terminal.text
    done = project.run_piped("chat", input="/resume s\n")
    assert "› hi\nHello **you**, `code`.\n" in done.stdout


def test_resume_needs_an_id_without_a_terminal(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    done = project.run_piped("chat", "--resume", input="hi\n")
    assert done.returncode == 1
    assert "there is no terminal to pick a session at" in done.stderr

    async def steps(chat: InProcessChat) -> None:
        assert (await chat.send("/resume")).startswith("✗ /resume needs a session id")

    run_chat(project, monkeypatch, steps)


def test_an_age_is_given_in_the_largest_unit() -> None:
    assert [age(seconds) for seconds in (5, 60, 7_200, 86_400 * 3)] == [
        "just now", "1 minute ago", "2 hours ago", "3 days ago",
    ]  # fmt: skip
