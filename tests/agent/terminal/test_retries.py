"""Requests that fail or are cut, as a chat in a terminal shows them: retries, lasting errors, long answers."""

from __future__ import annotations

import json

from support.chat_project import ChatProject
from support.provider_stand_in import Answer, StandIn, Trouble
from support.terminal import CTRL_D, Terminal

RATE_LIMITED = Trouble(
    status=429, headers=(("retry-after", "2"),), body='{"error": {"message": "slow down"}}'
)


def remote_model(standin: StandIn) -> dict[str, str]:
    """Return the variables that select the model of the stand-in."""
    variables = {"OPENAI_BASE_URL": standin.openai, "OPENAI_API_KEY": "sk-x", "OPENAI_MODEL": "gpt-4.1"}
    return {"FOVEAL_PROVIDER": "", **variables}


def remote_chat(project: ChatProject, standin: StandIn) -> Terminal:
    return project.terminal("--no-tools", env=remote_model(standin))


def test_a_retry_counts_down_to_the_next_try_and_a_cut_answer_says_so(project: ChatProject) -> None:
    answers = [Answer(text="One, two,", is_cut=True), Answer(text="three.")]
    with (
        StandIn(
            script=lambda number: answers.pop(0),
            trouble=lambda number: RATE_LIMITED if number == 1 else None,
        ) as standin,
        remote_chat(project, standin) as terminal,
    ):
        terminal.see("ctx")
        terminal.enter("count")
        terminal.see("▪ rate limited (429): next try in 2 s, 2 of 5")
        terminal.see("rate limited (429), try 2 of 5 in 2 s")
        terminal.see("rate limited (429), try 2 of 5 in 1 s")
        terminal.see("the answer has reached its limit of")
        terminal.see("Say “go on” to continue.")
        assert standin.attempts == 2
        terminal.enter("go on")
        terminal.see("three.")
        assert [message["content"] for message in standin.requests[-1].body["messages"][1:]] == [
            "count",
            "One, two,",
            "go on",
        ]
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_the_client_library_is_imported_before_the_first_message(project: ChatProject) -> None:
    """A module in its place says when: a warm process has some of what the library loads."""
    (project.home / "openai.py").write_text(
        "from pathlib import Path\nPath(__file__ + '.imported').touch()\n"
    )
    with StandIn() as standin, remote_chat(project, standin) as terminal:
        terminal.see("ctx")
        terminal.see(lambda _: (project.home / "openai.py.imported").exists())
        assert standin.attempts == 0


def test_errors_that_cannot_heal_are_not_retried(project: ChatProject) -> None:
    troubles = [
        Trouble(
            status=status,
            headers=(("retry-after-ms", "5"),),
            body=json.dumps({"error": {"message": "no", "code": code}}),
        )
        for status, code in [(429, "insufficient_quota"), (401, "invalid_api_key"), (400, "invalid_value")]
    ]
    with StandIn(trouble=lambda number: troubles[number - 1]) as standin:
        done = project.run_piped("chat", "--no-tools", input="one\ntwo\nthree\n", env=remote_model(standin))
        assert standin.attempts == 3
    assert "next try" not in done.stderr
    assert "has no credit left (429)" in done.stderr
    assert "does not accept the key" in done.stderr
    assert "refused the request (400)" in done.stderr
