"""Permissions in a terminal: a model that tries to run more than the user has agreed to."""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

import pytest

from foveal.agent.permissions.command_rules import parse_command_line
from foveal.agent.permissions.decision import Ask, CallFacts
from foveal.agent.permissions.sandbox import find_sandbox
from foveal.agent.terminal.output.styled_text import plain_text
from foveal.agent.terminal.tool_approval import approval_question
from foveal.agent.tools.mcp import describe_mcp_call, preview_mcp_call
from foveal.core.log import ToolReturned, text_of
from support.chat_project import ChatProject
from support.effort import rest_in_soak
from support.paths import ROOT
from support.terminal import Terminal

ASK = {"FOVEAL_TOOLS_APPROVAL": "ask"}


def run(command: str) -> list[tuple[str, dict[str, Any]]]:
    return [("run", {"command": command})]


def screen(terminal: Terminal) -> str:
    """What is on the screen, as one line."""
    return " ".join(" ".join(terminal.lines).split())


def answer(terminal: Terminal, question: str, key: str) -> str:
    """Wait for a question, answer it, and return the screen as it was."""
    terminal.see(lambda t: question in screen(t) and "n No" in screen(t))
    seen = screen(terminal)
    terminal.answer(key)
    answered = re.compile(re.escape(question.rstrip("?")) + r".*?\? (yes|no|always)")
    terminal.see(lambda t: answered.search(screen(t)) is not None)
    return seen


def results(project: ChatProject) -> list[str]:
    return [text_of(event.fact.content) for event in project.events() if isinstance(event.fact, ToolReturned)]


def test_always_allows_exactly_the_shown_command(project: ChatProject) -> None:
    tricks = [
        "rm -f foo -f victim",
        "rm -f foo; rm victim",
        "rm -f foo $(rm victim)",
        "rm -f foo\nrm victim",
        "rm -f foo | rm victim",
    ]
    project.script(run("rm -f foo"), *map(run, tricks), run("rm -f foo"), "Done.")
    (project.folder / "victim").touch()
    with project.terminal("--session", "s", env=ASK, columns=110) as terminal:
        terminal.see("ctx ")
        terminal.enter("clean up")
        seen = answer(terminal, "Allow run: rm -f foo?", "s")
        assert "s Always exactly `rm -f foo`, in this session" in seen
        assert "p Always" not in seen
        asked = [answer(terminal, _question(trick), "n") for trick in tricks]
        assert "s Always exactly `rm -f foo -f victim`, in this session" in asked[0]
        assert "s Always exactly `rm victim`, in this session" in asked[1]
        assert "It can be allowed only once: it has `$`." in asked[2]
        assert "It can be allowed only once: it has several lines." in asked[3]
        assert all("s Always" not in seen for seen in asked[2:4])
        terminal.see("Done.")
    assert (project.folder / "victim").exists()
    assert [text.endswith("exit status 0") for text in results(project)] == [True, *[False] * 5, True]


def _question(command: str) -> str:
    """The question about a command; one of several lines stands above it."""
    return "rm victim │ It can be allowed only once" if "\n" in command else f"Allow run: {command}?"


def test_an_allowed_prefix_covers_no_option_that_writes(project: ChatProject) -> None:
    project.script(run("git status -s"), run("git status --output=x"), run("git status; git status"), "Done.")
    with project.terminal("--session", "s", "--allow", "run: git status", env=ASK, columns=110) as terminal:
        terminal.see("ctx ")
        terminal.enter("look")
        answer(terminal, "Allow run: git status --output=x?", "n")
        terminal.see("Done.")
        terminal.enter("/permissions")
        terminal.see("run: begins with `git status`")


def test_rules_are_listed_and_removed(project: ChatProject) -> None:
    project.script(run("touch a && ls a"), run("ls a"), "One.", run("ls a"), "Two.")
    with project.terminal("--session", "s", env=ASK, columns=110) as terminal:
        terminal.see("ctx ")
        terminal.enter("/permissions")
        terminal.see("no rules: each command asks, and each change of a file")
        terminal.enter("go")
        seen = answer(terminal, "Allow run: touch a && ls a?", "s")
        assert "Always exactly `touch a`, `ls a`, in this session" in seen
        terminal.see("One.")
        terminal.enter("/permissions")
        terminal.see(lambda t: "2 session run: exactly `ls a`" in screen(t))
        assert os.path.realpath("/bin/ls") in screen(terminal)
        terminal.enter("/permissions remove 2")
        terminal.see("removed: session, run: exactly `ls a`; it asks again")
        terminal.enter("/permissions remove 7")
        terminal.see("there is no rule 7; /permissions lists rules 1 to 1")
        terminal.enter("again")
        answer(terminal, "Allow run: ls a?", "n")
        terminal.see("Two.")


@pytest.mark.parametrize(
    ("options", "env", "told"),
    [
        (
            (),
            {},
            "no rules: there is no sandbox, so each command asks that does not only read files here\n"
            "  each change of a file asks, and each call of an MCP server\n",
        ),
        ((), ASK, "no rules: each command asks, and each change of a file"),
        (("--yes",), {}, "no rules: runs, and there is no sandbox"),
        pytest.param(
            (),
            {"FOVEAL_TOOLS_SANDBOX": "auto"},
            "no rules: in the sandbox, commands run; outside, each asks",
            marks=pytest.mark.skipif(find_sandbox(ROOT).sandbox is None, reason="needs a sandbox"),
        ),
        pytest.param(
            (),
            {"FOVEAL_TOOLS_SANDBOX": "auto", "FOVEAL_TOOLS_NETWORK": "true"},
            "and so does what cannot be restored, fetches or publishes\n",
            marks=pytest.mark.skipif(find_sandbox(ROOT).sandbox is None, reason="needs a sandbox"),
        ),
        (("--allow", "write"), {}, "everything else: there is no sandbox, so each command"),
    ],
)
def test_permissions_say_what_happens_without_a_rule(
    project: ChatProject, options: tuple[str, ...], env: dict[str, str], told: str
) -> None:
    done = project.run_piped("chat", *options, input="/permissions\n", env=env)
    assert told in done.stdout
    assert "protected paths and leaving the sandbox ask each time" in done.stdout


def test_permissions_say_that_a_rule_does_not_count_and_that_plan_mode_is_on(project: ChatProject) -> None:
    rules = [
        {
            "words": words, "is_prefix": True, "project": str(project.folder.resolve()),
            "program": "/usr/bin/git", "expires_at": time.time() + 1e6,
        }
        for words in (["git", "status"], ["git", "add"])
    ]  # fmt: skip
    state = project.home / ".local/state/foveal"
    state.mkdir(parents=True)
    (state / "permissions.json").write_text(json.dumps({"rules": rules}))
    done = project.run_piped("chat", input="/plan\n/permissions\n")
    first, second = (line for line in done.stdout.splitlines() if "begins with" in line)
    assert first.endswith("; does not count without a sandbox")
    assert "does not count" not in second
    assert "plan mode is on: nothing is changed until you agree to the plan" in done.stdout


@pytest.mark.parametrize("command", rest_in_soak(["/new", "/resume other", "/clear", "/fork"]))
def test_rules_of_a_session_end_with_it(project: ChatProject, command: str) -> None:
    project.script(run("touch a"), "One.", run("touch a"), "Two.")
    project.run_piped("chat", "--session", "other", input="hello\n")
    with project.terminal("--session", "s", env=ASK, columns=110) as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        answer(terminal, "Allow run: touch a?", "s")
        terminal.see("One.")
        terminal.enter("/model scripted/other")
        terminal.see("scripted/other · window")
        terminal.enter("/permissions")
        terminal.see(lambda t: "1 session run: exactly `touch a`" in screen(t))
        terminal.enter(command)
        terminal.see(lambda t: re.search(r"session \S+ · \d+ events", screen(t)) is not None)
        terminal.enter("/permissions")
        terminal.see("no rules: each command asks, and each change of a file")


def test_a_project_rule_is_stored_for_this_folder_only(project: ChatProject) -> None:
    rule = {
        "words": ["ls", "src"], "is_prefix": True, "project": str(project.folder.resolve()),
        "program": os.path.realpath("/bin/ls"), "expires_at": 4e9,
    }  # fmt: skip
    state = project.home / ".local/state/foveal"
    state.mkdir(parents=True)
    (state / "permissions.json").write_text(json.dumps({"rules": [rule]}))
    project.script(run("ls src"), "Done.")
    with project.terminal("--session", "s", env=ASK, columns=110) as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        answer(
            terminal, "Allow run: ls src?", "n"
        )  # a rule that ends in the year 2096 is not one of Foveal's
        terminal.see("Done.")


@pytest.mark.skipif(find_sandbox(ROOT).sandbox is None, reason="needs a sandbox")
def test_in_a_sandbox_first_words_can_be_allowed_for_the_project(project: ChatProject) -> None:
    sandboxed = {"FOVEAL_TOOLS_SANDBOX": "auto"}
    project.script(
        run("git status -s"), run("git status src"), run("git status --output=x"), run("git push"), "One."
    )
    with project.terminal("--session", "s", env=ASK | sandboxed, columns=110) as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        seen = answer(terminal, "Allow run: git status -s?", "p")
        assert "p Always commands that begin with `git status`, in this project, for 30 days" in seen
        assert "p Always" not in answer(terminal, "Allow run: git status --output=x?", "n")
        assert "p Always" not in answer(terminal, "Allow run: git push?", "n")
        terminal.see("One.")
    project.script(run("git status src"), run("touch made"), run("rm made"), "Two.")
    with project.terminal("--session", "s", env=sandboxed, columns=110) as terminal:  # mode auto
        terminal.see("ctx ")
        terminal.enter("again")
        terminal.see("Two.")
        assert "Allow" not in terminal.text  # `/rewind` can restore it
        assert not (project.folder / "made").exists()
        terminal.enter("/permissions")
        terminal.see(lambda t: "1 project run: begins with `git status`" in screen(t))
        terminal.enter("/permissions remove 1")
        terminal.see("removed: project, run: begins with `git status`; it asks again")
    assert json.loads((project.home / ".local/state/foveal/permissions.json").read_text()) == {"rules": []}


def test_protected_paths_ask_even_if_writing_is_allowed(project: ChatProject) -> None:
    (project.folder / "innocent").symlink_to(".git/hooks")
    project.script(
        [("write", {"path": "b.txt", "content": "b"})],
        [("write", {"path": "c.txt", "content": "c"})],
        [("write", {"path": "innocent/pre-commit", "content": "evil"})],
        [("write", {"path": "AGENTS.MD", "content": "evil"})],
        "Done.",
    )
    with project.terminal("--session", "s", env=ASK, columns=110) as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        seen = answer(terminal, "Allow write b.txt", "s")
        assert "s Always `write` in the working folder, in this session" in seen
        seen = answer(terminal, "Allow write innocent/pre-commit", "n")
        assert ".git/hooks is protected" in seen
        assert "s Always" not in seen
        answer(terminal, "Allow write AGENTS.MD", "n")
        terminal.see("Done.")
    assert sorted(path.name for path in project.folder.iterdir()) == ["a.txt", "b.txt", "c.txt", "innocent"]


def test_a_folder_swapped_while_the_question_is_open_is_not_written(project: ChatProject) -> None:
    for name in ("src", "other"):
        (project.folder / name).mkdir()
        (project.folder / name / "x.txt").write_text("one\n")
    project.script([("edit", {"path": "src/x.txt", "old": "one", "new": "two"})], "Done.")
    with project.terminal("--session", "s", env=ASK, columns=110) as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        terminal.see(lambda t: "Allow edit src/x.txt" in screen(t) and "n No" in screen(t))
        (project.folder / "src").rename(project.folder / "old")
        (project.folder / "src").symlink_to("other")
        answer(terminal, "Allow edit src/x.txt", "y")
        terminal.see("Done.")
    assert results(project) == [
        "other/x.txt is not as it was when the user was asked: the file or a folder on its path has changed since, "
        "so nothing was written. Read it and call again."
    ]
    assert (project.folder / "other/x.txt").read_text() == "one\n"


@pytest.mark.parametrize(
    ("given", "text", "details"),
    [
        ({"a": 1}, 'Allow odd__add {"a": 1}?', ""),
        (
            {"q": "x" * 990, "z": "rm -rf / HIDDEN"},
            "Allow odd__add, as shown above?",
            '{\n  "q": "' + "x" * 990 + '",\n  "z": "rm -rf / HIDDEN"\n}\n',
        ),
        ({"q": "a\u00a0b"}, "Allow odd__add, as shown above?", '{\n  "q": "a⟨U+00A0⟩b"\n}\n'),
    ],
)
def test_a_question_about_an_mcp_tool_shows_all_arguments(
    given: dict[str, Any], text: str, details: str
) -> None:
    what, preview = describe_mcp_call("odd__add")(given), preview_mcp_call(given)
    question = approval_question(Ask(), CallFacts(tool="odd__add"), what, preview)
    assert (question.text, plain_text(question.details)) == (text, details)


def test_a_command_that_looks_like_a_diff_is_shown_as_it_is() -> None:
    command = "cat <<X\n@@ -1 +1 @@\n+x\nX"
    call = CallFacts(tool="run", line=parse_command_line(command))
    question = approval_question(Ask(), call, "run: cat", command)
    assert (question.text, plain_text(question.details)) == ("Allow run, as shown above?", command + "\n")


def test_an_entry_that_allows_less_than_it_seems_to_says_so(project: ChatProject) -> None:
    project.script("Done.")
    done = project.run_piped("run", "--allow", "run: rm foo", "go")
    assert "allow run: rm foo allows exactly this command" in done.stderr
    done = project.run_piped("run", "--allow", "run: cd src", "go")
    assert (done.returncode, "`cd` changes the shell" in done.stderr) == (1, True)


def test_a_call_that_cannot_succeed_is_not_asked_about(project: ChatProject) -> None:
    project.script(
        [("write", {"path": "../x.txt", "content": "x"})],
        [("write", {"path": "a.txt", "content": "x"})],
        [("edit", {"path": "a.txt", "old": "three", "new": "four"})],
        [("run", '{"command": ')],
        "Done.",
    )
    with project.terminal("--session", "s", env=ASK, columns=110) as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        terminal.see("Done.")
        assert "Allow" not in terminal.text
    outside, unread, absent, broken = results(project)
    assert "is outside of the working folder" in outside
    assert "has not been read yet" in unread
    assert "is not in the file" in absent
    assert "not valid JSON" in broken
