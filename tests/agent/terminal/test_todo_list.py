"""The to-do list in the chat: above the input line, with /todo, and after /rewind."""

from __future__ import annotations

import pytest

from support.chat_project import ChatProject, InProcessChat, run_chat
from support.terminal import CTRL_C

ITEMS = [
    ("read the parser", "done"),
    ("make the tokens frozen", "active"),
    *((f"step number {number}", "pending") for number in range(3, 11)),
]


def call(*items: tuple[str, str]) -> list[tuple[str, object]]:
    return [("todo", {"items": [{"text": text, "state": state} for text, state in items]})]


def test_the_list_is_shown_above_the_input_and_is_gone_when_all_is_done(project: ChatProject) -> None:
    project.script(call(*ITEMS), "Planned.", call(*((text, "done") for text, _ in ITEMS)), "All done.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("plan it")
        terminal.see(
            lambda t: "Planned." in t.text and {"to-do 1 of 10 done", "  … 5 more · /todo"} <= set(t.lines)
        )
        place = terminal.lines.index("to-do 1 of 10 done")
        assert terminal.lines[place + 1 : place + 6] == [
            "  › make the tokens frozen",
            "  □ step number 3",
            "  □ step number 4",
            "  □ step number 5",
            "  … 5 more · /todo",
        ]
        assert terminal.lines[place + 6].startswith("›")
        terminal.enter("/todo")
        seen = terminal.see("step number 10")
        assert "■ read the parser" in seen
        terminal.enter("finish")
        terminal.see(
            lambda t: "All done." in t.text and not any(line.startswith("to-do ") for line in t.lines)
        )


def test_the_list_folds_to_one_row_on_a_small_terminal(project: ChatProject) -> None:
    project.script(call(*ITEMS), "Planned.")
    with project.terminal("--session", "s", columns=40, rows=12) as terminal:
        terminal.see("ctx ")
        terminal.enter("plan it")
        terminal.see(lambda t: "to-do 1 of 10 done · make the tokens f…" in t.lines)
        assert not any("□" in line for line in terminal.lines)


def test_a_rewind_takes_the_list_back_and_a_new_chat_of_the_session_shows_it(project: ChatProject) -> None:
    project.script(call(("first", "active")), "One.", call(("second", "active")), "Two.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("begin")
        terminal.see(lambda t: "One." in t.text and "  › first" in t.lines)
        terminal.enter("go on")
        terminal.see(lambda t: "Two." in t.text and "  › second" in t.lines)
    with project.terminal("--session", "s") as terminal:
        terminal.see(lambda t: "  › second" in t.lines)
        said = [event for event in project.events() if getattr(event.fact, "content", "") == "go on"]
        terminal.enter(f"/rewind {said[0].handle} conversation")
        terminal.see(lambda t: "  › first" in t.lines and "  › second" not in t.lines)
        terminal.type(CTRL_C)  # the message of the turn is in the input line again
        terminal.enter("/undo")
        terminal.see(lambda t: "  › second" in t.lines)


def test_without_a_list_the_command_says_so(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(chat: InProcessChat) -> None:
        assert await chat.send("/todo") == "the model keeps no to-do list in this conversation\n"

    run_chat(project, monkeypatch, steps)
