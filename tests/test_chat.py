"""`foveal chat` and `foveal run` as people use them: in a real terminal, in pipes, and by programs that read JSON."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from foveal.apps.cli.chat.cards import context_card, shared
from foveal.apps.cli.chat.commands import COMMANDS, command
from foveal.apps.cli.chat.desk import Desk
from foveal.apps.cli.chat.dialogue import Dialogue
from foveal.apps.cli.chat.entry import Pastes
from foveal.apps.cli.chat.markdown import Painter
from foveal.apps.cli.chat.options import Options
from foveal.apps.cli.chat.plain import Plain
from foveal.apps.cli.chat.rows import cells, cut, painted, plain, row
from foveal.apps.cli.chat.splitting import Blocks
from foveal.context import Context
from foveal.errors import FovealError
from foveal.events import Event, Noted, ToolReturned, UserSaid, text_of
from foveal.fitted import Fitted
from foveal.fold import fold
from foveal.meter import Meter
from foveal.stores import open_store
from foveal.tokens import counter
from legal import check_chat
from terminal import CTRL_C, CTRL_D, ENTER, ESCAPE, TAB, Terminal

EVIL: Final = "\x1b[2J\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07 \x9b31m \u202eevil\u2066 \u200b\U000e0041 \x00\r\b\x7f [red]x[/red]"
PROVIDER: Final = """
import asyncio, time
from foveal.errors import ProviderError
from foveal.testing import Scripted

def make(name, *, environment, window, progress):
    if name == "broken/model":
        raise ProviderError("no provider is known for 'broken/model'; possible are …", sort="refused")
    return Scripted({answers}, window={holds} or window or 0, name=name or "scripted/model", delay={delay})
"""
UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\U000e0000-\U000e007f]"
)


class Place:
    """A folder to talk in, a store, and a provider that answers from a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.store = folder / "chats.db"
        self.home = folder
        self.folder.mkdir()
        (self.folder / "a.txt").write_text("one\ntwo\n")
        self.answers("Hello **you**.")

    def answers(self, *answers: Any, delay: float = 0.0, holds: int = 0, code: str = "") -> None:
        listed = ", ".join(map(repr, answers)) or code
        (self.home / "script.py").write_text(PROVIDER.format(answers=listed, delay=delay, holds=holds))

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOVEAL_", "XDG_"))}
        kept.pop("NO_COLOR", None)
        return {
            **kept,
            "FOVEAL_PROVIDER": "script:make",
            "FOVEAL_STORE": str(self.store),
            "PYTHONPATH": str(self.home),
            "PYTHONUTF8": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TERM": "xterm-256color",
            "HOME": str(self.home),
        }

    def terminal(self, *args: object, env: Mapping[str, str] | None = None, **how: Any) -> Terminal:
        return Terminal("chat", *args, env={**self.env, **(env or {})}, cwd=self.folder, **how)

    def piped(
        self, *args: object, said: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "foveal.apps.cli", *map(str, args)],
            input=said, env={**self.env, **(env or {})}, cwd=self.folder, capture_output=True, encoding="utf-8",
            timeout=60, check=False,
        )  # fmt: skip

    def events(self, session: str = "s") -> list[Event]:
        async def read() -> list[Event]:
            async with open_store(self.store) as store:
                return await store.read(session)

        return asyncio.run(read())

    def request(self, session: str = "s") -> list[dict[str, Any]]:
        """What the model would be sent now; it is legal."""
        messages = Fitted.of(fold(self.events(session), Meter(counter("estimate")))).to_openai()
        check_chat(messages)
        return messages

    def said(self, session: str = "s") -> list[str]:
        return [
            text_of(event.fact.content) for event in self.events(session) if isinstance(event.fact, UserSaid)
        ]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# ── the terminal ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_banner_says_who_answers_what_it_holds_and_where_it_is_kept(place: Place) -> None:
    with place.terminal("--session", "s", "--window", 8000) as terminal:
        seen = terminal.see("ctx ")
    assert "foveal  scripted/model" in seen
    assert "window 8,000 tokens (given by you) · policy economy, auto" in seen
    assert "session s · /help" in seen
    assert re.fullmatch(r" ctx \d+/8,000 \d+\.\d % ▕█?·+▏.*", terminal.bottom)


def test_an_answer_is_drawn_as_markdown_and_the_status_follows(place: Place) -> None:
    place.answers("# Title\n\nHello **you**, see `x`.\n\n- one\n- two\n\n```python\nx = 1\n```\n")
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("hi there")
        seen = terminal.see(lambda t: "x = 1" in t.text and "turns left" in t.bottom)
        assert "› hi there" in seen
        assert "Hello you, see x." in seen
        assert " • one\n • two" in seen
        assert "**" not in seen
        assert "```" not in seen
        assert b"\x1b[1m" in terminal.raw  # bold
    assert place.said() == ["hi there"]


def test_a_tool_call_is_folded_and_can_be_expanded(place: Place) -> None:
    (place.folder / "long.txt").write_text("".join(f"line {n}\n" for n in range(1, 101)))
    place.answers([("read", {"path": "long.txt"})], "It has a hundred lines.")
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("read it")
        seen = terminal.see("It has a hundred lines.")
        assert "● read long.txt" in seen
        assert "│ line 1\n" in seen
        assert "line 50" not in seen
        handle = re.search(r"more lines, [\d,]+ characters · (?:\S+ s · )?/expand (e\d+)", seen)
        assert handle is not None
        terminal.enter(f"/expand {handle[1]}")
        terminal.see("line 99")
    assert all("line 99" not in text for text in place.said())


def test_a_tool_that_changes_something_asks_and_always_is_remembered(place: Place) -> None:
    run = [("run", {"command": "touch made"})]
    place.answers(run, "No?", run, "Yes.", run, "Again.")
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("do it")
        terminal.see("Allow run: touch made?")
        assert not (place.folder / "made").exists()
        terminal.enter("")  # N is what Enter says
        terminal.see("No?")
        assert not (place.folder / "made").exists()
        terminal.enter("do it now")
        terminal.see(lambda t: t.bottom and "[y/N/a = always run: touch made]" in "\n".join(t.lines))
        terminal.enter("a")
        terminal.see("Yes.")
        assert (place.folder / "made").exists()
        terminal.enter("and once more")
        terminal.see("Again.")
        assert terminal.text.count("Allow run: touch made?") == 2


def test_a_line_that_is_no_answer_waits_and_the_question_stays(place: Place) -> None:
    place.answers([("write", {"path": "b.txt", "content": "x"})], "Written.", "Second.")
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("write b")
        terminal.see("Allow write b.txt")
        terminal.enter("also the entry")  # ends with a y, and is no yes
        terminal.see("waits: also the entry")
        assert not (place.folder / "b.txt").exists()
        terminal.enter("y")
        terminal.see("Second.")
        assert (place.folder / "b.txt").read_text() == "x"
    assert place.said() == ["write b", "also the entry"]


def test_ctrl_c_in_mid_answer_leaves_a_legal_session_that_goes_on(place: Place) -> None:
    place.answers("\n".join(f"word {n}" for n in range(400)), "Back again.", delay=0.02)
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("tell me")
        terminal.see("word 10")
        terminal.type(CTRL_C)
        terminal.see("stopped; what was said is kept")
        messages = place.request()
        assert messages[-1]["role"] == "assistant"
        assert "word 10" in messages[-1]["content"]
        assert "word 399" not in messages[-1]["content"]
        terminal.enter("go on")
        terminal.see("Back again.")
    assert any(isinstance(e.fact, Noted) and "ended early" in e.fact.text for e in place.events())


def test_ctrl_c_in_the_middle_of_parallel_calls_gives_each_of_them_a_result(place: Place) -> None:
    calls = [("read", {"path": "a.txt"}), ("run", {"command": "sleep 60"}), ("read", {"path": "a.txt"})]
    place.answers(calls, "never said")
    with place.terminal("--session", "s", "--yes") as terminal:
        terminal.see("ctx ")
        terminal.enter("do three things")
        terminal.see("● run: sleep 60")
        terminal.type(CTRL_C)
        terminal.see("stopped; what was said is kept")
    place.request()  # is legal
    results = [text_of(e.fact.content) for e in place.events() if isinstance(e.fact, ToolReturned)]
    assert len(results) == 3
    assert "one" in results[0]
    assert "interrupted by the user" in results[2]


def test_ctrl_c_twice_leaves_and_so_does_ctrl_d(place: Place) -> None:
    with place.terminal() as terminal:
        terminal.see("ctx ")
        terminal.type(CTRL_C)
        terminal.see("Ctrl-C once more, or Ctrl-D, leaves")
        terminal.type(CTRL_C)
        assert terminal.ended() == 0
    with place.terminal() as terminal:
        terminal.see("ctx ")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_ctrl_c_clears_a_line_first(place: Place) -> None:
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.type("not this")
        terminal.see("› not this")
        terminal.type(CTRL_C)
        terminal.see(lambda t: "not this" not in t.text)
        terminal.enter("but this")
        terminal.see("Hello you.")
    assert place.said() == ["but this"]


def test_what_is_typed_while_a_turn_runs_waits_and_runs_afterwards(place: Place) -> None:
    place.answers("\n\n".join(f"part {n}" for n in range(25)), "Second.", "Third.", delay=0.03)
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("one")
        terminal.see("part 2")
        terminal.enter("two")
        terminal.enter("three")
        terminal.see("waits: two\n  waits: three")
        assert place.said() == ["one"]  # what waits is not yet said
        terminal.enter("/tokens")  # only looks: is answered at once
        terminal.see("average turn" if False else "threshold")
        seen = terminal.see("Third.")
    assert place.said() == ["one", "two", "three"]
    assert seen.index("part 24") < seen.index("› two") < seen.index("Second.") < seen.index("› three")


def test_a_command_that_changes_something_waits_for_the_turn(place: Place) -> None:
    place.answers("\n\n".join(f"part {n}" for n in range(20)), delay=0.03)
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("one")
        terminal.see("part 2")
        terminal.enter("/pin never push")
        terminal.see("waits: /pin never push")
        seen = terminal.see("pinned “never push”")
    assert seen.index("part 19") < seen.index("pinned “never push”")


def test_ctrl_c_gives_back_what_was_waiting(place: Place) -> None:
    place.answers("\n\n".join(f"part {n}" for n in range(200)), "never said", delay=0.03)
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("one")
        terminal.see("part 2")
        terminal.enter("two")
        terminal.see("waits: two")
        terminal.type(CTRL_C)
        terminal.see(lambda t: "› two" in t.text and "stopped" in t.text)
    assert place.said() == ["one"]


def test_a_paste_of_a_megabyte_arrives_whole_and_keeps_its_lines(place: Place) -> None:
    text = "".join(f"{n:06} ünïcode and some words\n" for n in range(32_000))[: 1024 * 1024]
    with place.terminal("--session", "s", "--window", 1_000_000) as terminal:
        terminal.see("ctx ")
        terminal.type("look: ")
        began = time.monotonic()
        terminal.paste(text)
        terminal.see("› look: [paste 1: ", seconds=20)
        assert time.monotonic() - began < 10
        terminal.type(ENTER)
        terminal.see("Hello you.", seconds=20)
    assert place.said() == [f"look: {text}"]


def test_a_short_paste_stands_in_the_line_as_it_is_and_sends_nothing(place: Place) -> None:
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.paste("first\r\nsecond\n")
        terminal.see("› first\n  second")
        assert "Hello" not in terminal.text
        terminal.type("third" + ENTER)
        terminal.see("Hello you.")
    assert place.said() == ["first\nsecond\nthird"]


def test_alt_enter_begins_a_new_line(place: Place) -> None:
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.type("first" + ESCAPE + ENTER + "second")
        terminal.see("› first\n  second")
        terminal.type(ENTER)
        terminal.see("Hello you.")
    assert place.said() == ["first\nsecond"]


def test_commands_and_files_are_completed(place: Place) -> None:
    (place.folder / "unusual_name.py").write_text("")
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.type("/comp")
        terminal.see("/compaction-status")
        terminal.type("act" + CTRL_C)
        terminal.type("read unus" + TAB)
        terminal.see("› read unusual_name.py")


def test_what_was_typed_before_comes_back_with_the_arrow(place: Place) -> None:
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("remember me")
        terminal.see("Hello you.")
    with place.terminal("--session", "t") as terminal:
        terminal.see("ctx ")
        terminal.type("\x1b[A")
        terminal.see("› remember me")
    history = place.home / ".local/state/foveal/history"
    assert history.stat().st_mode & 0o077 == 0


def test_the_screen_follows_the_size_of_the_window(place: Place) -> None:
    place.answers("word " * 60)
    with place.terminal("--session", "s", columns=120, rows=40) as terminal:
        terminal.see("ctx ")
        terminal.enter("hi")
        terminal.see(lambda t: "turns left" in t.bottom)
        terminal.resize(40, 12)
        terminal.see(
            lambda t: t.bottom.startswith(" ctx ") and len(t.bottom) <= 40 and "›" in "".join(t.lines[-4:])
        )
        terminal.type("typed")
        terminal.see("› typed")


@pytest.mark.parametrize("colours", [True, False])
def test_nothing_that_others_wrote_can_command_the_terminal(place: Place, colours: bool) -> None:
    (place.folder / "evil.txt").write_text(EVIL + "\n" + EVIL)
    name = "evil\x1b]0;name\x07.txt"
    (place.folder / name).write_text("x")
    place.answers(
        [
            ("read", {"path": "evil.txt"}),
            ("list", {"path": "."}),
            ("run", {"command": f"echo '{EVIL[1:5]}' \x1b[31m"}),
        ],
        f"Text {EVIL}\n\n`{EVIL}`\n\n&#27;[2J &#x202e; <b>&#x9b;</b>\n\n[l](http://x\x1b]8;;\x07)\n\nThe end.",
        [(f"no{EVIL}", {EVIL: EVIL})],
        "Done.",
    )
    quiet = {} if colours else {"NO_COLOR": "1"}
    with place.terminal("--session", "s", env=quiet) as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        terminal.see("Allow run")
        terminal.enter("n")
        terminal.see("The end.")
        terminal.enter("and")
        seen = terminal.see("Done.")
        terminal.enter("/why evil")
        terminal.see("in the last request")
        terminal.enter("/expand e6")
        terminal.see("owned")
    raw = terminal.raw.decode()
    assert "\x1b]" not in raw  # no title, no clipboard, no links
    assert "\x1b[2J" not in raw
    assert "\x9b" not in raw
    for hidden in "\u202e\u2066\u200b\U000e0041\x00\x07":
        assert hidden not in raw
    assert "␛[2J" in seen
    assert "[red]x[/red]" in seen
    if not colours:
        coloured = re.findall(r"\x1b\[([\d;]*)m", raw)
        assert {code for code in coloured if re.search(r"(^|;)(3[0-7]|9\d|38|4\d)", code)} <= {
            "39",
            "49",
            "39;49",
        }


def test_a_provider_that_fails_is_one_clear_message_and_the_prompt_comes_back(place: Place) -> None:
    code = """
        ProviderError("Anthropic refused the key in ANTHROPIC_API_KEY: check it", sort="key"),
        ProviderError("the connection broke off", sort="interrupted", partial="I was say"),
        ValueError("odd \\x1b[31m"),
        "Fine now."
    """
    place.answers(code=code)
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("one")
        terminal.see("✗ Anthropic refused the key in ANTHROPIC_API_KEY: check it")
        terminal.enter("two")
        terminal.see("✗ the connection broke off")
        terminal.enter("three")
        terminal.see("✗ scripted/model: odd ␛[31m")
        terminal.enter("four")
        terminal.see("Fine now.")
        assert "Traceback" not in terminal.text
    place.request()
    assert place.said() == ["one", "two", "three", "four"]


def test_a_start_that_fails_says_why_and_ends(place: Place) -> None:
    with place.terminal("--model", "broken/model") as terminal:
        assert terminal.ended() == 1
        assert "✗ no provider is known for 'broken/model'" in terminal.text
    with place.terminal(env={"FOVEAL_PROVIDER": "nowhere:make"}) as terminal:
        assert terminal.ended() == 1
        assert "FOVEAL_PROVIDER = 'nowhere:make' is not allowed" in terminal.text


def test_in_mode_confirm_the_question_comes_back_after_each_answer(place: Place) -> None:
    place.answers(*["word " * 900] * 4, *["word " * 120] * 20)
    with place.terminal("--session", "s", "--window", 8000, "--mode", "confirm", rows=40) as terminal:
        terminal.see("ctx ")
        for number in range(20):
            terminal.enter(f"tell me {number}")
            terminal.see(lambda t, n=number: f"› tell me {n}" in t.text and "Ctrl-C stops" not in t.text)
            if "Compact conversation?" in terminal.text:
                break
        asked = re.search(
            r"Context usage at \d+ % \(([\d,]+)/[\d,]+ tokens\)\. Compact conversation\?", terminal.text
        )
        assert asked
        assert "policy confirm, confirm" in terminal.text
        terminal.see("[y/N]")
        terminal.enter("another question")  # any other line is a no
        terminal.see("Compact conversation? no")
        terminal.see(lambda t: t.text.count("Compact conversation?") >= 2 and "[y/N]" in "\n".join(t.lines))
        terminal.enter("y")
        seen = terminal.see("before and after:")
        assert "summarised e" in seen
        terminal.see(lambda t: "[y/N]" not in "\n".join(t.lines))


def test_a_progress_line_is_shown_while_a_compaction_runs_and_messages_wait(place: Place) -> None:
    place.answers(*["word " * 500] * 4, "\n".join(["slow"] * 60), "Last answer.", delay=0.02)
    with place.terminal("--session", "s", "--window", 20_000, rows=40) as terminal:
        terminal.see("ctx ")
        for number in range(4):
            terminal.enter(f"tell me {number}")
            terminal.see(
                lambda t, n=number: (
                    f"› tell me {n}" in t.text and "waits" not in t.text and "stops" not in t.text
                )
            )
        terminal.enter("/compact the words")
        terminal.see("Compact the conversation now?")
        terminal.enter("y")
        terminal.see("compacting")
        terminal.enter("are you there?")
        terminal.see("waits: are you there?")
        seen = terminal.see("› are you there?", seconds=20)
        assert seen.index("before and after:") < seen.index("› are you there?")


def test_a_project_with_instructions_is_asked_about_once(place: Place) -> None:
    (place.folder / ".git").mkdir()
    (place.folder / "AGENTS.md").write_text("Always answer in rhymes.\n")
    with place.terminal("--session", "s") as terminal:
        terminal.see("Do you trust this project?")
        terminal.enter("y")
        terminal.see("ctx ")
        terminal.enter("hi")
        terminal.see("Hello you.")
        terminal.enter("/instructions")
        terminal.see(re.compile(r"AGENTS\.md\s+\d+").search and "instructions, ")
    assert "Always answer in rhymes." in json.dumps(place.request())
    with place.terminal("--session", "t") as terminal:
        terminal.see("ctx ")
        assert "trust" not in terminal.text
