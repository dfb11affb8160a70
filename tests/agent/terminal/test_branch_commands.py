"""Branches in the chat: /branch and /return of the user, and the tools of the model."""

from __future__ import annotations

from typing import Any

import pytest

from support.chat_project import ChatProject, InProcessChat, run_chat


def test_the_user_folds_a_part_of_the_work(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    project.script("I look at the log.", "The disk was full.", "Anything else?")

    async def steps(chat: InProcessChat) -> None:
        assert "there are no branches; /branch TASK begins one" in await chat.send("/branch")
        assert "no branch is open" in await chat.send("/return")
        begun = await chat.send("/branch Find out why CI is red.")
        handle = begun.split("branch ", 1)[1].split(" ", 1)[0]
        assert "begins: go on as usual, /return folds it to its result" in begun
        await chat.send("look")
        await chat.send("and now?")
        assert f"{handle} open · Find out why CI is red." in await chat.send("/branch")
        folded = await chat.send("/return The disk of the builder was full.")
        assert "Result: The disk of the builder was full." in folded
        fold = folded.split("/undo ", 1)[1].split(" ", 1)[0]
        assert f"folded by {fold} · Find out why CI is red. → The disk of" in await chat.send("/branch")
        assert "I look at the log." not in str((await chat.state.session.fit()).to_openai())
        await chat.send(f"/undo {fold}")
        assert "I look at the log." in str((await chat.state.session.fit()).to_openai())
        assert "ended · Find out" in await chat.send("/branch")

    run_chat(project, monkeypatch, steps)
    project.request()


def test_return_without_a_result_takes_the_last_words_of_the_model(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script("The disk was full.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("/branch Look.")
        await chat.send("look")
        assert "Result (the last text of the model in it): The disk was full." in await chat.send("/return")

    run_chat(project, monkeypatch, steps)


TURN: Any = (
    [("branch", {"task": "Find the failing test."})],
    [("read", {"path": "a.txt"})],
    [("return", {"result": "test_dates.py fails"})],
    "The bound in parse() is wrong.",
)


def test_the_model_folds_a_part_of_its_turn(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    project.script(*TURN)

    async def steps(chat: InProcessChat) -> None:
        await chat.send("Why is CI red?")
        [status] = await chat.state.session.branches()
        assert (status.task, status.result) == ("Find the failing test.", "test_dates.py fails")
        assert status.is_folded

    run_chat(project, monkeypatch, steps, settings={"tools.branches": True})
    assert [message["role"] for message in project.request() if message["role"] != "system"] == [
        *("user", "assistant", "tool"),  # what the user said, and the call that began the branch
        *("user", "assistant"),  # the record, and the answer
    ]


def test_the_tools_are_offered_only_if_they_are_set(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        assert (chat.state.toolbox.get("branch"), chat.state.toolbox.get("return")) == (None, None)

    run_chat(project, monkeypatch, steps)
