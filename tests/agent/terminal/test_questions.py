"""Questions in a terminal: all of the text can be read, and no early key answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.application import application, create_app_session
from prompt_toolkit.completion import DummyCompleter
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from prompt_toolkit.utils import get_cwidth

from foveal.agent.terminal.output import panel_host
from foveal.agent.terminal.output.panel_host import QUIET_S, REPEAT_S, SHOWN_S
from foveal.agent.terminal.output.panels import QuestionPanel, ScrolledRows, SwitchMenu, wrap_exactly
from foveal.agent.terminal.output.screen import Screen
from foveal.agent.terminal.output.styled_text import Span, cell_width, plain_text, row, single_line, text_rows
from foveal.agent.terminal.user_interface import NO, YES, Choice, MenuItem, Question
from support.chat_project import ChatProject
from support.effort import rest_in_soak
from support.terminal import CTRL_C, ESCAPE, TAB, Terminal
from support.waiting import DEADLINE_S, until

SIZES: Final = rest_in_soak([(60, 20), (80, 24), (120, 40)])
ALWAYS: Final = Choice("s", "Always `git status`, in this session", lasts=True)
END, HOME, PAGE_DOWN = "\x1b[F", "\x1b[H", "\x1b[6~"
CHECK_INTERVAL_S: Final = 0.005
"""How often a screen of these tests, whose clock is theirs, looks whether a question takes keys."""


def shows(*texts: str) -> Callable[[Terminal], bool]:
    """Return a condition: all texts are on the screen now, not only in what has scrolled off."""
    return lambda terminal: all(text in "\n".join(terminal.lines) for text in texts)


def write_of(lines: int) -> list[tuple[str, dict[str, Any]]]:
    return [("write", {"path": "new.txt", "content": "".join(f"line {n}\n" for n in range(1, lines + 1))})]


# ── In a chat ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_a_long_write_is_asked_about_in_full(project: ChatProject, columns: int, rows: int) -> None:
    project.script(write_of(70), "Written.")
    with project.terminal(columns=columns, rows=rows) as terminal:
        terminal.see("ctx ")
        terminal.enter("write it")
        terminal.see(
            shows("Allow write new.txt", "Yes, once", "Enter, Esc", "more lines between", "line 1\n")
        )
        assert shows("line 70")(terminal)
        assert not shows("line 35")(terminal)
        terminal.type(PAGE_DOWN)
        terminal.see(shows("more lines above", "Allow write new.txt", "Yes, once"))
        terminal.type(END)
        terminal.see(shows("line 70", "the end", "Allow write new.txt", "Yes, once"))
        assert not (project.folder / "new.txt").exists()
        terminal.type("y")
        terminal.see("Written.")
    assert (project.folder / "new.txt").read_text().endswith("line 70\n")


def test_a_command_cannot_hide_its_end_behind_spaces(project: ChatProject) -> None:
    command = f"echo hello{' ' * 5_000}; rm a.txt"
    project.script([("run", {"command": command})], "Not run.")
    with project.terminal(columns=60, rows=20) as terminal:
        terminal.see("ctx ")
        terminal.enter("greet me")
        terminal.see(shows("echo hello", "more lines between", "; rm a", "No (Esc)"))
        terminal.type(ESCAPE)
        terminal.see("Not run.")
    assert (project.folder / "a.txt").exists()


def unwrapped(terminal: Terminal) -> str:
    """The text of the screen without blanks and marks of wrapped lines."""
    return "".join("".join(terminal.lines).replace("┊", "").split())


@pytest.mark.parametrize(
    ("separator", "columns", "rows"),
    rest_in_soak(
        [("; ", 40, 12), ("\n", 200, 60), ("\n", 80, 24), ("\n", 40, 12), ("; ", 80, 24), ("; ", 200, 60)]
    ),
)
def test_head_and_tail_of_a_long_command_are_shown_before_it_is_allowed(
    project: ChatProject, columns: int, rows: int, separator: str
) -> None:
    middle = separator.join(f"echo {number} of many" for number in range(300))
    project.script(
        [("run", {"command": f"echo BEGIN{separator}{middle}{separator}rm a.txt # END"})], "Not run."
    )
    with project.terminal("--session", "s", columns=columns, rows=rows) as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        terminal.see(shows("(or Enter, Esc)"))
        terminal.see(shows("BEGIN", "more lines between", "# END", "y  Yes, once", "press one of these keys"))
        assert "echo150ofmany" not in unwrapped(terminal)
        # One of them may be divided between two pages.
        while not any(f"echo{number}ofmany" in unwrapped(terminal) for number in (149, 150)):
            before = terminal.lines
            terminal.type(PAGE_DOWN)
            terminal.see(lambda t, before=before: t.lines != before and shows("y  Yes, once")(t))
        terminal.answer("n")
        terminal.see("Not run.")
    assert (project.folder / "a.txt").exists()


def test_a_hidden_character_and_its_code_look_different(project: ChatProject) -> None:
    texts = ("\\u{202e}x", "\u202ex", "⟨U+202E⟩x", "a\tb", "a␉b", "a b", "a\u00a0b")
    commands = [f"echo '{text}'" for text in texts]
    project.script(*([("run", {"command": command})] for command in commands), "Done.")
    seen = []
    with project.terminal("--session", "s", "--set", "tools.approval=ask", columns=100) as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        for number, _ in enumerate(commands, 1):
            terminal.see(lambda t, n=number: t.text.count("Allow run") == n and shows("(or Enter, Esc)")(t))
            question = "\n".join(terminal.lines).rpartition("● ")[2]
            seen.append(question.partition("y  Yes")[0])
            terminal.answer("n")
        terminal.see("Done.")
    assert "⟨U+202E⟩x" in seen[1]
    assert len({text.partition("'")[2].partition("'")[0] for text in seen}) == len(commands)
    assert "\u202e" not in terminal.raw.decode()


def test_the_question_stays_when_the_terminal_is_resized(project: ChatProject) -> None:
    project.script(write_of(62), "Not written.")
    with project.terminal(columns=120, rows=40) as terminal:
        terminal.see("ctx ")
        terminal.enter("write it")
        terminal.see(shows("Allow write new.txt", "more lines between"))
        terminal.resize(60, 20)
        terminal.see(
            lambda terminal: any(line.strip() == "session" for line in terminal.lines)
        )  # drawn again
        terminal.see(shows("Allow write new.txt", "No (or Enter, Esc)", "more lines between", " ctx "))
        terminal.type(END)
        terminal.see(shows("line 62", "Allow write new.txt"))
        terminal.enter("")
        terminal.see("Not written.")
    assert not (project.folder / "new.txt").exists()


def test_v_shows_the_text_on_the_whole_screen_and_returns(project: ChatProject) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07 harmless\n"
    project.script(
        [("write", {"path": "new.txt", "content": evil + "x\n" * 5_000 + "last\n"})], "Not written."
    )
    with project.terminal() as terminal:
        terminal.see("ctx ")
        terminal.enter("write it")
        terminal.see(shows("Allow write new.txt", "␛[2J␛]0;owned␇ harmless", "more lines between"))
        terminal.answer("v")
        terminal.see(shows("q or Esc returns"))
        assert b"\x1b[?1049h" in terminal.raw
        terminal.type(END)
        terminal.see(shows("last", "the end"))
        terminal.type("y")  # answers nothing here
        terminal.type("q")
        terminal.see(lambda t: b"\x1b[?1049l" in t.raw and shows("Yes, once", "No (or Enter, Esc)")(t))
        assert not (project.folder / "new.txt").exists()
        terminal.type("n")
        terminal.see("Not written.")
    assert b"\x1b]0;owned" not in terminal.raw


def test_text_typed_before_the_question_is_no_answer(project: ChatProject) -> None:
    project.script(write_of(2), "Written.", held_after=0)
    with project.terminal("--session", "s", has_quick_questions=False) as terminal:
        terminal.see("ctx ")
        terminal.enter("write it")
        terminal.type("y")  # while the model is writing
        terminal.see(shows("› y"))
        project.release()
        terminal.see(shows("Allow write new.txt", "Tab keeps it for later"))
        terminal.type("n")
        terminal.see(shows("› yn"))
        assert not (project.folder / "new.txt").exists()
        terminal.type(TAB)
        terminal.see(lambda t: not shows("Tab keeps it")(t))
        terminal.answer("y")
        terminal.see("Written.")
        terminal.see(shows("› yn"))
    assert project.user_messages() == ["write it"]


@pytest.mark.parametrize("keys_per_second", rest_in_soak([12, 5, 2]))
def test_what_a_typist_types_as_the_question_appears_is_text(
    project: ChatProject, keys_per_second: int
) -> None:
    words = "so also check"
    project.script(write_of(2), "Not written.", held_after=0)
    with project.terminal("--session", "s", has_quick_questions=False) as terminal:
        terminal.see("ctx ")
        terminal.enter("write it")
        terminal.see("thinking")
        for place, key in enumerate(words):
            if place == 0:
                project.release()  # the question appears while the next keys arrive
            terminal.type(key)
            terminal.read_for(1 / keys_per_second)
        terminal.see(shows("Allow write new.txt", f"› {words}", "Tab keeps it for later"))
        assert "y confirms" not in terminal.text
        terminal.type(ESCAPE)
        terminal.see("Not written.")
        terminal.see(shows(f"› {words}"))
    assert not (project.folder / "new.txt").exists()
    assert project.user_messages() == ["write it"]


@pytest.mark.parametrize("burst", rest_in_soak(["sy", "\x1b[200~y\x1b[201~", "s", "so al", "y"], kept=2))
def test_a_burst_of_keys_that_arrives_with_the_question_is_text(project: ChatProject, burst: str) -> None:
    project.script(write_of(2), "Not written.", held_after=0)
    with project.terminal("--session", "s", has_quick_questions=False) as terminal:
        terminal.see("ctx ")
        terminal.enter("write it")
        terminal.see("thinking")
        project.release()
        terminal.type(burst)  # as over a slow connection: nothing, and then all at once
        kept = burst.removeprefix("\x1b[200~").removesuffix("\x1b[201~").strip()
        terminal.see(shows(f"› {kept}", "Tab keeps it for later"))
        terminal.type(TAB)
        terminal.answer("n")
        terminal.see("Not written.")
        terminal.see(shows(f"› {kept}"))
    assert not (project.folder / "new.txt").exists()
    assert project.user_messages() == ["write it"]


def test_always_is_given_with_two_keys_and_shown_as_such(project: ChatProject) -> None:
    project.script(write_of(2), [("write", {"path": "b.txt", "content": "b"})], "Written.")
    with project.terminal("--session", "s", has_quick_questions=False) as terminal:
        terminal.see("ctx ")
        terminal.enter("write it")
        terminal.see(shows("n  No (or Enter, Esc)", "press one of these keys"))
        terminal.type("s")
        terminal.see(shows("one moment, then y confirms your answer, which lasts · Esc goes back"))
        terminal.see(shows("  y confirms your answer, which lasts · Esc goes back, other keys are text"))
        terminal.confirm()
        terminal.see("Written.")
        assert terminal.text.count("Allow write") == 1
    assert (project.folder / "b.txt").read_text() == "b"


def test_a_change_that_needs_no_question_is_shown_after_it_ran(project: ChatProject) -> None:
    project.script([("edit", {"path": "a.txt", "old": "two", "new": "three"})], "Changed.")
    with project.terminal("--yes") as terminal:
        terminal.see("ctx ")
        terminal.enter("change it")
        seen = terminal.see("Changed.")
        assert "Allow" not in seen
        assert "│     2 -two\n│     2 +three" in seen
        colours = {
            terminal.screen.buffer[y][9].fg for y, line in enumerate(terminal.lines) if "three" in line
        }
        assert colours & {"008700", "green"}


def test_a_running_command_shows_its_last_lines_and_the_time(project: ChatProject) -> None:
    command = "for n in 1 2 3 4 5 6 7 8; do echo out $n; done; until [ -e go ]; do sleep 0.1; done"
    project.script([("run", {"command": command})], "Finished.")
    with project.terminal("--yes") as terminal:
        terminal.see("ctx ")
        terminal.enter("run it")
        terminal.see(shows("│ out 4", "│ out 8"))
        terminal.see(lambda t: re.search(r" · \d+ s · Ctrl-C stops", "\n".join(t.lines)) is not None)
        assert not shows("│ out 3")(terminal)
        (project.folder / "go").touch()
        terminal.see("Finished.")
        assert not shows("│ out 8")(terminal)


# ── The screen alone ─────────────────────────────────────────────────────────────────────────────────────


class Keyboard:
    """Keys for a screen, and the clock that times them."""

    def __init__(self, keys: PipeInput) -> None:
        self.keys = keys
        self.now = 100.0
        self.submitted: list[str] = []
        """What was sent as a message."""

    def clock(self) -> float:
        return self.now

    async def press(self, screen: Screen, text: str) -> None:
        """Send text at once, and wait until the screen has handled it."""
        handled = asyncio.Event()
        screen.app.key_processor.after_key_press += lambda _: handled.set()
        self.keys.send_text(text)
        await asyncio.wait_for(handled.wait(), DEADLINE_S)


one_time_bindings: Final = cache(application.load_key_bindings)
"""prompt_toolkit makes 800 for each application, always the same: it takes half of the time of a screen."""


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_host, "CHECK_INTERVAL_S", CHECK_INTERVAL_S)
    monkeypatch.setattr(application, "load_key_bindings", one_time_bindings)


@asynccontextmanager
async def open_screen() -> AsyncIterator[tuple[Screen, Keyboard]]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keyboard = Keyboard(keys)
        screen = Screen(
            DummyCompleter(),
            on_submit=keyboard.submitted.append,
            on_interrupt=lambda: None,
            clock=keyboard.clock,
        )
        running = asyncio.create_task(screen.app.run_async())
        await until(lambda: screen.app.render_counter)
        try:
            yield screen, keyboard
        finally:
            screen.app.exit()
            await running


async def ask(screen: Screen, keyboard: Keyboard, text: str, **given: Any) -> asyncio.Task[str]:
    """Open a question, and wait until keys answer it."""
    asking = await open_question(screen, text, **given)
    await takes_keys(screen, keyboard, text)
    return asking


async def open_question(screen: Screen, text: str, **given: Any) -> asyncio.Task[str]:
    """Open a question, and wait until it is drawn."""
    asking = asyncio.create_task(screen.ask(Question(text=text, **given)))
    await drawn(screen, text)
    return asking


async def drawn(screen: Screen, text: str) -> None:
    await until(lambda: screen.panels.question is not None and screen.panels.question.question.text == text)
    count = screen.app.render_counter
    screen.app.invalidate()
    await until(lambda: screen.app.render_counter > count)


async def takes_keys(screen: Screen, keyboard: Keyboard, text: str) -> None:
    await drawn(screen, text)
    keyboard.now += SHOWN_S
    await until(screen.panels.takes_keys)


async def still_ignores_keys(screen: Screen) -> None:
    """Check that a question does not take keys, after it had time to find out that it could."""
    await asyncio.sleep(3 * CHECK_INTERVAL_S)
    assert screen.panels.is_early


async def set_text_aside(screen: Screen, keyboard: Keyboard) -> None:
    """Press Tab, once the question says what it does."""
    await until(lambda: screen.panels.question is not None and screen.panels.question.has_typed_text)
    await keyboard.press(screen, "\t")


def test_a_key_that_arrives_before_the_first_drawing_is_text() -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            asking = asyncio.create_task(screen.ask(Question(text="Delete all?")))
            await asyncio.sleep(0)  # the question is open, and the loop has not drawn it
            await keyboard.press(screen, "y")
            assert (asking.done(), screen.entry.text) == (False, "y")
            await set_text_aside(screen, keyboard)
            await takes_keys(screen, keyboard, "Delete all?")
            keyboard.keys.send_text("n")
            assert await asyncio.wait_for(asking, DEADLINE_S) == "n"
            assert screen.entry.text == "y"

    asyncio.run(steps())


def test_a_key_that_waits_unread_while_the_question_is_drawn_is_text() -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            early = ["y"]
            screen.app.before_render += lambda _: keyboard.keys.send_text(early.pop()) if early else None
            asking = asyncio.create_task(screen.ask(Question(text="Delete all?")))
            await until(lambda: asking.done() or screen.entry.text)
            assert (early, asking.done(), screen.entry.text) == ([], False, "y")
            asking.cancel()

    asyncio.run(steps())


def test_a_question_takes_keys_after_it_was_seen() -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            asking = await open_question(screen, "Delete all?")
            keyboard.now += SHOWN_S - 0.01
            await still_ignores_keys(screen)
            keyboard.now += 0.01
            await until(screen.panels.takes_keys)
            keyboard.keys.send_text("y")
            assert await asyncio.wait_for(asking, DEADLINE_S) == "y"

    asyncio.run(steps())


def test_a_question_takes_keys_only_when_the_user_has_stopped_typing() -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            asking = await open_question(screen, "Delete all?")
            for place, key in enumerate("so also check"):
                keyboard.now += QUIET_S - 0.01
                await still_ignores_keys(screen)
                await keyboard.press(screen, key)
                assert screen.entry.text == "so also check"[: place + 1]
            keyboard.now += QUIET_S
            await until(lambda: not screen.panels.is_early)
            await keyboard.press(screen, "y")  # the input line has text
            assert (asking.done(), screen.entry.text) == (False, "so also checky")
            asking.cancel()

    asyncio.run(steps())


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("s", "s"),
        ("so also\r", "so also\n"),
        ("\r", ""),
        ("\x1b[200~y\ns\x1b[201~", "y\ns"),
        ("ab\x1b[Dc", "acb"),
        ("ab\x1b\rc", "ab\nc"),
        ("pass", "pass"),
        ("/new\r", "/new\n"),
    ],
)
def test_what_is_typed_too_early_stays_in_the_input_line(typed: str, kept: str) -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            asking = await open_question(screen, "Delete all?", choices=(YES, ALWAYS, NO))
            await keyboard.press(screen, typed)
            await until(lambda: screen.entry.text == kept)
            assert not asking.done()
            if kept:
                await set_text_aside(screen, keyboard)
            await takes_keys(screen, keyboard, "Delete all?")
            keyboard.keys.send_text("y")
            assert await asyncio.wait_for(asking, DEADLINE_S) == "y"
            assert (screen.entry.text, keyboard.submitted) == (kept, [])

    asyncio.run(steps())


@pytest.mark.parametrize("typed", ["", "half a text"])
def test_esc_refuses_at_once(typed: str) -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            screen.entry.insert_text(typed)
            asking = await open_question(screen, "Delete all?")
            keyboard.keys.send_text(ESCAPE)
            assert await asyncio.wait_for(asking, DEADLINE_S) == "n"
            assert screen.entry.text == typed

    asyncio.run(steps())


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("y", "y"),
        ("Y", "y"),
        ("y\r", "y"),
        ("\r", "n"),
        ("n", "n"),
        ("yes\r", "y"),
        ("no\r", "n"),
    ],
)
def test_one_key_or_one_word_answers(typed: str, answer: str) -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            asking = await ask(screen, keyboard, "Run it?", choices=(YES, ALWAYS, NO))
            keyboard.keys.send_text(typed)
            assert await asyncio.wait_for(asking, DEADLINE_S) == answer
            assert screen.entry.text == ""

    asyncio.run(steps())


@pytest.mark.parametrize(
    ("typed", "answer", "sent"),
    [
        ("y\r", "y", []),
        ("yes\r", "y", []),
        ("n\r", "n", []),
        ("\r", "n", []),
        (ESCAPE, "n", []),
        ("you forgot tests\r", "n", ["you forgot tests"]),
        ("yesterday\r", "n", ["yesterday"]),
    ],
)
def test_a_line_answers_where_a_reply_is_invited(typed: str, answer: str, sent: list[str]) -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            asking = await ask(screen, keyboard, "Carry it out?", waits=False)
            for key in [typed] if typed == ESCAPE else typed:
                assert screen.panels.question is None or answer == "n" or not asking.done()
                await keyboard.press(screen, key)
            assert await asyncio.wait_for(asking, DEADLINE_S) == answer
            assert (keyboard.submitted, screen.entry.text) == (sent, "")

    asyncio.run(steps())


def test_an_answer_in_a_line_waits_for_enter_after_the_question_was_seen() -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            asking = await open_question(screen, "Carry it out?", waits=False)
            await keyboard.press(screen, "y")
            await keyboard.press(screen, "\r")  # too early
            keyboard.now += SHOWN_S
            await until(lambda: not screen.panels.is_early)
            assert (asking.done(), screen.entry.text, keyboard.submitted) == (False, "y", [])
            await keyboard.press(screen, "\r")
            assert await asyncio.wait_for(asking, DEADLINE_S) == "y"

    asyncio.run(steps())


# ── The second key of an answer that lasts ───────────────────────────────────────────────────────────────


@asynccontextmanager
async def confirming(first: str = "s") -> AsyncIterator[tuple[Screen, Keyboard, asyncio.Task[str]]]:
    """Open a question, and choose the answer that lasts."""
    async with open_screen() as (screen, keyboard):
        asking = await ask(screen, keyboard, "Run it?", choices=(YES, ALWAYS, NO))
        await keyboard.press(screen, first)
        question = screen.panels.question
        assert question is not None
        await until(lambda: question.is_confirming)
        assert not asking.done()
        yield screen, keyboard, asking
        asking.cancel()


@pytest.mark.parametrize("second", ["y", "Y"])
def test_an_answer_that_lasts_needs_a_second_key(second: str) -> None:
    async def steps() -> None:
        async with confirming() as (screen, keyboard, asking):
            await takes_keys(screen, keyboard, "Run it?")
            keyboard.keys.send_text(second)
            assert await asyncio.wait_for(asking, DEADLINE_S) == "s"
            assert screen.entry.text == ""

    asyncio.run(steps())


@pytest.mark.parametrize(
    ("other", "text"),
    [("\r", ""), (ESCAPE, ""), ("\x1b[A", ""), ("s", "ss"), ("n", "sn"), ("\x1b[200~yes\x1b[201~", "syes")],
)
def test_any_other_second_key_returns_to_the_question(other: str, text: str) -> None:
    async def steps() -> None:
        async with confirming() as (screen, keyboard, asking):
            await takes_keys(screen, keyboard, "Run it?")
            keyboard.keys.send_text(other)
            question = screen.panels.question
            assert question is not None
            await until(lambda: not question.is_confirming and screen.entry.text == text)
            assert (asking.done(), question.is_open, screen.panels.is_early) == (False, True, True)
            if text:
                await set_text_aside(screen, keyboard)
            await takes_keys(screen, keyboard, "Run it?")
            keyboard.keys.send_text("y")
            assert await asyncio.wait_for(asking, DEADLINE_S) == "y"

    asyncio.run(steps())


@pytest.mark.parametrize("words", ["so also check", "synchronise"])
@pytest.mark.parametrize("keys_per_second", rest_in_soak([12, 5, 2]))
def test_words_typed_at_a_question_never_grant_what_lasts(words: str, keys_per_second: int) -> None:
    async def steps() -> None:
        async with confirming() as (screen, keyboard, asking):
            for key in words[1:]:
                keyboard.now += 1 / keys_per_second
                await asyncio.sleep(2 * CHECK_INTERVAL_S)
                await keyboard.press(screen, key)
            assert (asking.done(), screen.entry.text) == (False, words)

    asyncio.run(steps())


@pytest.mark.parametrize("second", ["y", "yy"])
def test_a_second_key_that_comes_early_counts_if_no_other_follows(second: str) -> None:
    async def steps() -> None:
        async with confirming() as (screen, keyboard, asking):
            keyboard.now += 0.2
            for key in second:
                await keyboard.press(screen, key)
            await drawn(screen, "Run it?")
            keyboard.now += SHOWN_S - 0.01
            await still_ignores_keys(screen)
            assert (asking.done(), screen.entry.text) == (False, "")
            keyboard.now += 0.01
            assert await asyncio.wait_for(asking, DEADLINE_S) == "s"
            assert screen.entry.text == ""

    asyncio.run(steps())


@pytest.mark.parametrize("typed", ["yes, but first", "\x1b[200~y\x1b[201~", "q", "a"])
def test_several_keys_at_once_and_pastes_are_text(typed: str) -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            asking = await ask(screen, keyboard, "Run it?")
            await keyboard.press(screen, typed)
            assert not asking.done()
            assert screen.entry.text == typed.removeprefix("\x1b[200~").removesuffix("\x1b[201~")
            asking.cancel()

    asyncio.run(steps())


def test_a_key_that_is_held_down_answers_one_question() -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            first = await ask(screen, keyboard, "First?")
            second = asyncio.create_task(screen.ask(Question(text="Second?")))
            await keyboard.press(screen, "y")
            assert await asyncio.wait_for(first, DEADLINE_S) == "y"
            await drawn(screen, "Second?")
            for _ in range(8):
                keyboard.now += REPEAT_S / 2
                await keyboard.press(screen, "y")
            question = screen.panels.question
            assert question is not None
            assert (question.is_open, second.done(), screen.entry.text) == (True, False, "")
            await takes_keys(screen, keyboard, "Second?")
            keyboard.keys.send_text("y")
            assert await asyncio.wait_for(second, DEADLINE_S) == "y"

    asyncio.run(steps())


def test_a_second_question_waits_for_the_first() -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            first = await ask(screen, keyboard, "First?")
            second = asyncio.create_task(screen.ask(Question(text="Second?")))
            await keyboard.press(screen, "yn")  # two keys at once are text
            assert (first.done(), screen.entry.text) == (False, "yn")
            await set_text_aside(screen, keyboard)
            await takes_keys(screen, keyboard, "First?")
            keyboard.keys.send_text("y")
            assert await asyncio.wait_for(first, DEADLINE_S) == "y"
            await until(lambda: screen.entry.text == "yn")
            assert not second.done()
            second.cancel()

    asyncio.run(steps())


def test_a_menu_takes_keys_as_a_question_does() -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            choosing = asyncio.create_task(screen.choose_many("Which?", [MenuItem("a", "the first")]))
            await until(lambda: screen.panels.panel is not None)
            await keyboard.press(screen, " y\r")  # for the message that the user was writing
            await until(lambda: screen.entry.text == " y\n")
            for key in (" ", "\r", "y"):
                count = screen.app.render_counter
                screen.app.invalidate()
                await until(lambda count=count: screen.app.render_counter > count)
                assert not choosing.done()
                keyboard.now += SHOWN_S
                await until(screen.panels.takes_keys)
                await keyboard.press(screen, key)
            assert await asyncio.wait_for(choosing, DEADLINE_S) == frozenset({"a"})
            assert (screen.entry.text, keyboard.submitted) == (" y\n", [])

    asyncio.run(steps())


def test_text_typed_at_the_confirmation_of_a_menu_returns_to_it() -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            menu = SwitchMenu("Which?", [MenuItem("a", "the first")])
            showing = asyncio.create_task(screen.panels.run(menu))
            menu.press(" ")
            await until(lambda: screen.panels.panel is menu)
            await until(lambda: not screen.panels.is_early or advance(keyboard))
            await keyboard.press(screen, "\r")
            assert (menu.is_confirming, screen.panels.is_early) == (True, True)
            await keyboard.press(screen, "y")
            assert (menu.is_confirming, screen.entry.text) == (True, "")
            await keyboard.press(screen, "o")
            assert (menu.is_confirming, menu.is_open, screen.entry.text) == (False, True, "yo")
            showing.cancel()

    asyncio.run(steps())


def advance(keyboard: Keyboard) -> bool:
    keyboard.now += SHOWN_S
    return False


@pytest.mark.parametrize("key", [ESCAPE, CTRL_C])
def test_a_menu_is_left_at_once(key: str) -> None:
    async def steps() -> None:
        async with open_screen() as (screen, keyboard):
            picking = asyncio.create_task(screen.pick("Which?", [MenuItem("a", "the first")]))
            await until(lambda: screen.panels.panel is not None)
            keyboard.keys.send_text(key)
            assert await asyncio.wait_for(picking, DEADLINE_S) is None

    asyncio.run(steps())


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["x" * 5_000, "a b " * 300, "漢字" * 500, "❤️é" * 200, "\x1b[31m" * 100, ""])
@pytest.mark.parametrize("width", [20, 59, 79, 119])
def test_wrapping_keeps_every_character(text: str, width: int) -> None:
    parts = row(Span("+", "good"), text)
    lines = list(wrap_exactly(parts, width))
    shown = ["".join(span.text for span in line) for line in lines]
    assert "".join(line[2:] for line in shown) == "+" + text.replace("\x1b", "␛").replace(
        "\ufe0f", "⟨U+FE0F⟩"
    )
    assert all(cell_width(line) <= width for line in shown)
    assert [line[0] for line in shown] == ["│"] + ["┊"] * (len(shown) - 1)


@pytest.mark.parametrize(("columns", "rows"), SIZES)
@pytest.mark.parametrize("has_text", [False, True])
def test_question_and_choices_fit_below_any_text(columns: int, rows: int, *, has_text: bool) -> None:
    long = "very " * 500 + "long"
    choices = (YES, Choice("s", f"Always {long}"), Choice("p", f"Always {long}"), NO)
    panel = QuestionPanel(Question(text=long, details=tuple(text_rows("x\n" * 5_000)), choices=choices))
    panel.has_typed_text = has_text
    height = rows - (5 if has_text else 3)
    drawn = panel.rows(width=columns - 1, height=height)
    assert len(drawn) <= height
    assert all(f"  {choice.key}  " in plain_text(drawn) for choice in choices)
    panel.press("end")
    assert "  the end\n" in plain_text(panel.rows(width=columns - 1, height=height))


WIDE: Final = st.text(st.sampled_from("ab ;'漢☰☷⚊🏻䷀❤é\u0301\ufe0f\u00a0\u200b"), max_size=300)
"""Symbols such as ☰ take 1 column in one table of widths and 2 in another."""


@given(text=WIDE | st.text(max_size=200), width=st.integers(20, 120))
def test_every_line_of_a_question_fits_the_columns_that_are_drawn(text: str, width: int) -> None:
    choices = (YES, Choice("s", f"Always {text}"), NO)
    panel = QuestionPanel(Question(text=f"Allow {text}?", details=tuple(text_rows(text)), choices=choices))
    for parts in panel.rows(width=width, height=12):
        line = "".join(single_line(span.text) for span in parts)
        assert max(get_cwidth(line), cell_width(line)) <= width


@pytest.mark.parametrize("width", rest_in_soak([20, 79, 40, 60], kept=2))
@pytest.mark.parametrize("filler", ["☰", "漢", "x", "a b ", "🏻"])
def test_the_end_of_a_command_is_in_the_question_or_above_it(filler: str, width: int) -> None:
    for count in range(1, 60):
        text = f"Allow run: echo '{filler * count}';touch PWN?"
        panel = QuestionPanel(Question(text=text))
        lines = plain_text(panel.rows(width=width, height=200)).split("\n")
        assert "PWN" in "".join(clipped(line, width).removeprefix("┊ ").strip() for line in lines)


def clipped(line: str, columns: int) -> str:
    """What prompt_toolkit draws of a line."""
    return "".join(mark for at, mark in enumerate(line) if get_cwidth(line[: at + 1]) <= columns)


def test_every_line_can_be_reached() -> None:
    body = ScrolledRows([row(f"line {number}") for number in range(100)])
    seen: set[str] = set()
    for _ in range(20):
        seen |= set(plain_text(body.window(width=60, height=12)).split("\n"))
        body.press("pagedown")
    assert {f"│ line {number}" for number in range(100)} <= seen
