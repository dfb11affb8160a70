"""`foveal chat` and `foveal run` as people use them: in a real terminal, in pipes, and by programs."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from foveal.apps.cli.chat.chat_loop import ChatLoop
from foveal.apps.cli.chat.chat_state import ChatState
from foveal.apps.cli.chat.commands import COMMANDS, command
from foveal.apps.cli.chat.options import ChatOptions
from foveal.apps.cli.chat.output.context_card import shared
from foveal.apps.cli.chat.output.markdown import MarkdownBlocks, MarkdownPainter
from foveal.apps.cli.chat.output.styled_text import cells, cut, painted, plain, row
from foveal.apps.cli.chat.user_input import Pastes
from foveal.apps.cli.chat.user_interface import PlainOutput
from foveal.core.log import Event, Noted, ToolReturned, UserSaid, text_of
from foveal.core.tokens import MessageTokens
from foveal.core.tokens.counter import counter
from foveal.core.view import Fitted
from foveal.core.view.fold import fold
from foveal.errors import FovealError
from foveal.stores import open_store
from support.legality import check_chat
from support.paths import ROOT
from support.terminal import CTRL_C, CTRL_D, ENTER, ESCAPE, TAB, Terminal

EVIL: Final = (
    "\x1b[2J\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07 \x9b31m \u202eevil\u2066 \u200b\U000e0041 "
    "\x00\r\b\x7f [red]x[/red]"
)
PROVIDER: Final = """
import asyncio, time
from foveal.errors import ProviderError
from foveal.testing import Scripted

def make(name, *, environment, window, progress):
    if name == "broken/model":
        raise ProviderError("no provider is known for 'broken/model'; possible are …", code="refused")
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
            [sys.executable, "-m", "foveal.apps", *map(str, args)],
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
        messages = Fitted.of(fold(self.events(session), MessageTokens(counter("estimate")))).to_openai()
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
        terminal.see("threshold")
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
        terminal.paste(text)
        terminal.see("› look: [paste 1: ", seconds=60)
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
        ProviderError("Anthropic refused the key in ANTHROPIC_API_KEY: check it", code="key"),
        ProviderError("the connection broke off", code="interrupted", partial="I was say"),
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
    place.answers(*(f"{'word ' * 890}\n\nend {number}" for number in range(6)), "Shortly.", "Again.")
    with place.terminal("--session", "s", "--window", 8000, "--mode", "confirm", rows=40) as terminal:
        assert "policy confirm, confirm" in terminal.see("ctx ")
        for number in range(6):
            assert "Compact conversation?" not in terminal.text
            terminal.enter(f"tell me {number}")
            terminal.see(f"end {number}")
        terminal.see("[y/N]")
        asked = r"Context usage at 9\d % \([\d,]+/[\d,]+ tokens\)\. Compact conversation\?"
        assert re.search(asked, terminal.text)
        terminal.enter("another question")  # any other line is a no
        terminal.see("Compact conversation? no")
        terminal.see("Shortly.")
        terminal.see(lambda t: t.text.count("Compact conversation?") == 2 and "[y/N]" in t.text)
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
        terminal.see(lambda t: re.search(r"AGENTS\.md +\d+", t.text) is not None)
    assert "Always answer in rhymes." in json.dumps(place.request())
    with place.terminal("--session", "t") as terminal:
        terminal.see("ctx ")
        assert "trust" not in terminal.text


def test_a_notice_says_what_was_clipped_masked_summarised_or_dropped(place: Place) -> None:
    (place.folder / "long.txt").write_text("".join(f"line {n} of a long file\n" for n in range(2_000)))
    read = [("read", {"path": "long.txt"})]
    place.answers(read, "One.", "Two.", "Three.", "Four.")
    with place.terminal("--session", "s", "--window", 8000, rows=40) as terminal:
        terminal.see("ctx ")
        terminal.enter("read it")
        terminal.see("One.")
        terminal.enter("and then?")
        seen = terminal.see("instead of")
    clipped = re.search(r"▪ clipped (e\d+): the model sees [\d,]+ of its [\d,]+ tokens · /expand \1", seen)
    assert clipped
    assert re.search(r"▪ (masked|summarised|dropped) .*/undo e\d+", seen)
    assert re.search(r"▪ the request has [\d,]+ tokens instead of [\d,]+", seen)


# ── pipes ────────────────────────────────────────────────────────────────────────────────────────────────


def test_in_a_pipe_each_line_is_a_message_and_only_answers_are_printed(place: Place) -> None:
    place.answers("First **answer**.", [("list", {"path": "."})], "Second answer.")
    done = place.piped("chat", "--session", "s", said="one\n\ntwo\n")
    assert (done.returncode, done.stdout) == (0, "First **answer**.\nSecond answer.\n")
    assert "● list ." in done.stderr
    assert "│ a.txt" in done.stderr
    assert place.said() == ["one", "two"]
    assert "\x1b" not in done.stdout + done.stderr


def test_in_a_pipe_a_tool_that_changes_something_is_denied_unless_it_was_allowed(place: Place) -> None:
    write = [("write", {"path": "b.txt", "content": "x"})]
    place.answers(write, "Tried.")
    done = place.piped("run", "write b")
    assert not (place.folder / "b.txt").exists()
    assert (
        "no: there is no terminal to ask at. Allow it with --allow write, or everything with --yes."
        in done.stderr
    )
    assert (done.returncode, done.stdout) == (0, "Tried.\n")
    place.piped("run", "--allow", "read,write", "write b")
    assert (place.folder / "b.txt").read_text() == "x"


def test_without_tools_none_are_offered(place: Place) -> None:
    done = place.piped("chat", "--no-tools", said="/context\n")
    assert "free" in done.stdout
    assert "tools" not in done.stdout


def test_run_does_one_task_and_its_exit_code_says_whether_it_was_done(place: Place) -> None:
    done = place.piped("run", "--session", "s", "do this")
    assert (done.returncode, done.stdout) == (0, "Hello **you**.\n")
    done = place.piped("run", "--session", "t", said="all of\nthis is one task\n")
    assert place.said("t") == ["all of\nthis is one task\n"]
    place.answers(code='ProviderError("OpenAI wants you to wait 30 s: too many requests", code="rate")')
    done = place.piped("run", "do this")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "foveal: OpenAI wants you to wait 30 s: too many requests\n"
    done = place.piped("run", said=" \n")
    assert done.returncode == 1
    assert "there is no task" in done.stderr


def test_json_is_one_object_a_line_and_nothing_else(place: Place) -> None:
    place.answers([("read", {"path": "a.txt"})], f"Read {EVIL}", "\ud800 alone")
    done = place.piped("chat", "--json", "--session", "s", said="one\n/tokens\ntwo\n/nothing\n")
    assert done.stdout.isascii()
    told = [json.loads(line) for line in done.stdout.splitlines()]
    told = [one for one, before in zip(told, [{}, *told], strict=False) if not _streams(one, before)]
    assert told.pop(0)["session"] == "s"
    assert [one["happening"] for one in told] == [
        "heard", "answered", "calling", "returned", "streamed", "answered", "ended",
        "shown", "heard", "streamed", "answered", "ended", "failed",
    ]  # fmt: skip
    assert told[3]["text"].endswith("one\ntwo\n")
    assert told[5]["text"] == f"Read {EVIL}"
    assert told[6]["report"]["used"] > 0
    assert told[12]["problem"] == "there is no command /nothing; /help lists them"
    assert (done.returncode, done.stderr) == (1, "")


def _streams(one: dict[str, Any], before: dict[str, Any]) -> bool:
    """One more piece of the same answer."""
    return bool(one["happening"] == before.get("happening") == "streamed")


def test_nothing_that_others_wrote_comes_out_of_a_pipe_unchanged(place: Place) -> None:
    (place.folder / "evil.txt").write_text(EVIL)
    place.answers([("read", {"path": "evil.txt"}), (EVIL, {})], EVIL)
    done = place.piped(
        "chat", said=f"go\n/why owned\n/expand e5\n/expand e6\n/rewind\n/sessions\n/pin {EVIL}\n"
    )
    assert not UNSAFE.search(done.stdout)
    assert not UNSAFE.search(done.stderr)
    assert "␛]0;owned" in done.stdout


def test_a_session_is_gone_on_with_by_its_name_its_beginning_or_as_the_newest(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(talked: Talked) -> None:
        await talked.say("hi")
        opened.append(talked.desk.session.id)

    opened: list[str] = []
    for which in ({"session": "first-one"}, {"session": "second"}, {"newest": True}, {"resume": "fir"}, {}):
        talking(place, monkeypatch, steps, **{"session": "", **which})
    assert opened[:4] == ["first-one", "second", "second", "first-one"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}-[0-9a-f]{4}", opened[4])
    done = place.piped("run", "--resume", "nothing", "e")
    assert done.returncode == 1
    assert "no session 'nothing'" in done.stderr


def test_ctrl_c_ends_a_pipe_that_waits_for_more(place: Place) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "foveal.apps", "chat", "--session", "s"],
        env=place.env, cwd=place.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hi\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"Hello **you**.\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_ctrl_d_leaves_at_once_even_while_a_turn_runs(place: Place) -> None:
    place.answers("\n\n".join(f"part {n}" for n in range(400)), delay=0.05)
    with place.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        terminal.see("part 2")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert place.request()[-1]["role"] == "assistant"


def test_a_missing_key_is_one_sentence(place: Place) -> None:
    done = place.piped(
        "run",
        "--model",
        "anthropic/claude-sonnet-4-6",
        "x",
        env={"FOVEAL_PROVIDER": "", "ANTHROPIC_API_KEY": ""},
    )
    assert done.returncode == 1
    assert done.stderr.startswith("foveal: Anthropic needs a key: set ANTHROPIC_API_KEY")
    assert done.stderr.count("\n") == 1


def test_a_missing_library_is_named_with_the_command_that_installs_it(place: Place) -> None:
    (place.home / "sitecustomize.py").write_text("import sys; sys.modules['prompt_toolkit'] = None")
    with place.terminal() as terminal:
        assert terminal.ended() == 1
        assert "pip install 'foveal[chat]'" in terminal.text.replace("\n", "")


def test_a_wrong_call_is_explained(place: Place) -> None:
    assert place.piped("chat", "--mode", "perhaps").returncode == 2
    done = place.piped("run", "--policy", "perhaps", "x")
    assert done.returncode == 1
    assert "economy, handoff" in done.stderr
    done = place.piped("run", "--allow", "rm -rf /", "x")
    assert done.returncode == 1
    assert "the name of a tool" in done.stderr


# ── speed ────────────────────────────────────────────────────────────────────────────────────────────────


def test_help_loads_neither_the_terminal_nor_a_provider() -> None:
    code = "import sys; from foveal.apps.cli import _parser; _parser().format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {
        "prompt_toolkit",
        "rich",
        "openai",
        "anthropic",
        "mcp",
        "toktok",
        "apsw",
        "markdown_it",
    }


def test_the_prompt_comes_before_a_providers_library_is_loaded(place: Place) -> None:
    env = {"FOVEAL_PROVIDER": "", "OPENAI_API_KEY": "none", "PYTHONPROFILEIMPORTTIME": "1"}
    with place.terminal("--model", "openai/gpt-4.1", env=env, columns=200) as terminal:
        terminal.see("openai/gpt-4.1")
        raw = terminal.raw.decode()
    assert "prompt_toolkit" in raw
    assert not re.search(r"\| +(openai|rich|anthropic|httpx2?)\.", raw)


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────


class Talked:
    """A dialogue without a process: what each line has printed."""

    def __init__(self, dialogue: ChatLoop, out: io.StringIO, err: io.StringIO) -> None:
        self.dialogue, self.out, self.err = dialogue, out, err

    async def say(self, text: str) -> str:
        """What a line prints; problems begin with ✗."""
        self.out.seek(0), self.out.truncate()
        self.err.seek(0), self.err.truncate()
        before = self.dialogue.failures
        await self.dialogue.do(text)
        if self.dialogue.failures > before:
            return "✗ " + self.err.getvalue().removeprefix("foveal: ")
        return self.out.getvalue()

    @property
    def desk(self) -> ChatState:
        return self.dialogue.desk


def talking(
    place: Place, monkeypatch: pytest.MonkeyPatch, steps: Callable[[Talked], Any], **options: Any
) -> None:
    """Open a desk here, and go through some steps."""
    for name in [name for name in os.environ if name.startswith("FOVEAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FOVEAL_PROVIDER", "script:make")
    monkeypatch.setenv("HOME", str(place.home))
    monkeypatch.syspath_prepend(str(place.home))
    monkeypatch.delitem(sys.modules, "script", raising=False)

    async def run() -> None:
        out, err = io.StringIO(), io.StringIO()
        front = PlainOutput(out=out, err=err)
        given = ChatOptions(store=place.store, folder=place.folder, **{"session": "s", **options})
        async with AsyncExitStack() as stack:
            desk = await ChatState.open(given, front, stack)
            await steps(Talked(ChatLoop(desk, front), out, err))

    asyncio.run(run())


def test_context_shows_a_grid_whose_legend_adds_up_with_files_and_tools(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.home / ".config/foveal").mkdir(parents=True)
    (place.home / ".config/foveal/AGENTS.md").write_text("Answer in rhymes.\n")
    place.answers([("list", {"path": "."})], "Listed.")

    async def steps(talked: Talked) -> None:
        await talked.say("go")
        card = await talked.say("/context")
        lines = card.splitlines()
        assert lines[0] == "context scripted/model · window 8,000 (given by you)"
        grid = [line[:40].split() for line in lines[2:12]]
        assert [len(line) for line in grid] == [20] * 10
        legend = re.findall(r"^.{42}\S (\w+) +([\d,]+) +[\d.]+ %$", card, re.MULTILINE)
        amounts = {name: int(tokens.replace(",", "")) for name, tokens in legend}
        assert sum(amounts.values()) == 8_000
        assert re.search(r"window +8,000 +100\.0 %", card)
        report = await talked.desk.session.report()
        assert amounts == {name: tokens for name, tokens in report.totals.items() if tokens}
        assert f"used {report.used:,} (measured) · warns at {report.warn:,} · acts at {report.act:,}" in card
        below = card.split("instructions, by file")[1]
        assert f"AGENTS.md  {amounts['instructions']}" in below
        tools = re.findall(r"^  (\w+) +(\d+) +([\d,]+|–)$", below.split("tools:")[1], re.MULTILINE)
        assert sum(int(tokens) for _, tokens, _ in tools) == amounts["tools"]
        assert {name for name, _, results in tools if results != "–"} == {"list"}

    talking(place, monkeypatch, steps, window=8_000)


def test_what_commands_print_never_enters_the_conversation(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(talked: Talked) -> None:
        await talked.say("hi")
        before = await talked.desk.session.events()
        for text in ("/context", "/tokens", "/compaction-status", "/why hi", "/expand e3", "/instructions", "/help",
                     "/sessions", "/model", "/policy", "/rewind", "/nonsense", "/expand e999"):  # fmt: skip
            await talked.say(text)
        assert await talked.desk.session.events() == before

    talking(place, monkeypatch, steps)


def test_tokens_tells_of_the_latest_and_the_average_turn(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.answers([("list", {"path": "."})], "Listed.", "Short.")

    async def steps(talked: Talked) -> None:
        card = await talked.say("/tokens")
        assert "turns         0 so far" not in card
        assert "latest turn" not in card
        await talked.say("one")
        await talked.say("two")
        card = await talked.say("/tokens")
        report = await talked.desk.session.report()
        assert f"used          {report.used:,} of 128,000 tokens (measured, the next request)" in card
        assert re.search(r"latest turn   1 call, in [\d,]+ \(0 % cached\), out \d+, context \+\d+", card)
        assert re.search(r"average turn  2 calls, in [\d,]+", card)
        assert re.search(r"turns         2 so far, ~[\d,]+ turns left", card)
        assert f"threshold     acts at {report.act:,} tokens" in card
        assert "cost          not known: this model has no price" in card

    talking(place, monkeypatch, steps)


def test_the_cost_is_shown_where_a_price_is_known(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talked: Talked) -> None:
        await talked.say("one")
        assert re.search(r"cost +\$0\.\d+ in this session", await talked.say("/tokens"))

    talking(place, monkeypatch, steps, model="gpt-4.1")


def test_compact_shows_the_summary_and_before_and_after_and_can_be_undone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.answers(*["A long answer about bounds. " * 60] * 5)

    async def steps(talked: Talked) -> None:
        assert "nothing was summarised: nothing that may be" in await talked.say("/compact")
        for number in range(5):
            await talked.say(f"question {number}")
        status = await talked.say("/compaction-status")
        assert "policy   economy, mode auto" in status
        assert "now      nothing is being written" in status
        assert "writers  scripted/model, then the ledger" in status
        assert "no summaries yet" in status
        before = (await talked.desk.session.report()).used
        card = await talked.say("/compact the bounds")
        after = (await talked.desk.session.report()).used
        assert after < before
        assert f"before and after: {before:,} → {after:,} tokens" in card
        handle = re.search(r"/undo (e\d+) takes it back", card)[1]  # type: ignore[index]
        assert "  │ " in card
        assert f"{handle}: e" in await talked.say("/compaction-status")
        whole = await talked.say(f"/expand {handle}")
        assert "question 1" in whole
        why = await talked.say("/why question 1")
        assert f"summarised by {handle}" in why
        assert f"took back {handle} (compacted)" in await talked.say("/undo")
        assert (await talked.desk.session.report()).used == before
        assert (await talked.say("/undo e1")).startswith("✗ e1 is not a reduction or a pin")

    talking(place, monkeypatch, steps, window=32_000)


def test_why_says_whether_a_text_was_in_the_last_request_and_which_rule_hid_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.folder / "long.txt").write_text("".join(f"line {n} of the file\n" for n in range(3_000)))
    place.answers([("read", {"path": "long.txt"})], "Read.", "Yes.")

    async def steps(talked: Talked) -> None:
        assert "nothing has been sent since this session was opened" in await talked.say("/why hello")
        await talked.say("read it")
        assert "in the last request: message " in await talked.say("/why LINE 1 of")
        hidden = await talked.say("/why line 1500 of")
        assert hidden.startswith("not in the last request")
        assert re.search(r"e\d+ tool_returned: clipped by e\d+, rule: economy: clip, .*/expand e\d+", hidden)
        assert "no event of this session has it" in await talked.say("/why something else")
        assert (await talked.say("/why")).startswith("✗ /why needs some words")

    talking(place, monkeypatch, steps)


def test_expand_prints_a_text_in_parts_and_shows_it_to_the_model_for_one_turn(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.folder / "long.txt").write_text("".join(f"line {n} of the file\n" for n in range(1, 2_501)))
    place.answers([("read", {"path": "long.txt"})], "Read.", "Seen.", "Not any more.")

    async def steps(talked: Talked) -> None:
        await talked.say("read it")
        handle = re.search(r"/expand (e\d+)", talked.err.getvalue())[1]  # type: ignore[index]
        first = await talked.say(f"/expand {handle}")
        assert "line 150 of the file" in first
        assert "line 1250 of the file" not in first
        assert f"more with /expand {handle} 201" in first
        assert "line 1250 of the file" in await talked.say(f"/expand {handle} 1201")
        assert (await talked.say(f"/expand {handle} all")).startswith(
            "✗ 'all' is not allowed after the handle"
        )
        assert (await talked.say("/expand")).startswith("✗ '' is no handle: this session has e0 to e")
        assert not talked.desk.provider.places("line 1250 of the file")
        assert f"{handle} is shown whole to the model in the next turn" in await talked.say(
            f"/expand {handle} model"
        )
        await talked.say("and now?")
        assert "cannot be shown whole" not in talked.err.getvalue()
        assert talked.desk.provider.places("line 1250 of the file")
        await talked.say("and now?")
        assert not talked.desk.provider.places("line 1250 of the file")

    talking(place, monkeypatch, steps, window=48_000)


def test_pin_keeps_a_rule_in_every_request(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talked: Talked) -> None:
        assert "pinned “never push”, in every request from now on · /undo e" in await talked.say(
            "/pin never push"
        )
        await talked.say("hi")
        assert talked.desk.provider.places("never push")
        assert "pinned e4 as it is now" in await talked.say("/pin e4")
        assert (await talked.say("/pin")).startswith("✗ /pin needs a text")

    talking(place, monkeypatch, steps)


def test_instructions_lists_the_files_in_force_and_prints_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(talked: Talked) -> None:
        assert (await talked.say("/instructions")).startswith("no instructions are in force")
        (place.home / ".config/foveal").mkdir(parents=True)
        (place.home / ".config/foveal/AGENTS.md").write_text("Answer in rhymes.\n")
        await talked.say("hi")
        assert re.search(
            r"instructions, \d+ tokens\n  .*foveal/AGENTS.md  \d+", await talked.say("/instructions")
        )
        assert "Answer in rhymes." in await talked.say("/instructions AGENTS")
        assert (await talked.say("/instructions nothing")).startswith(
            "✗ no instructions in force have 'nothing'"
        )

    talking(place, monkeypatch, steps)


def test_the_model_and_the_policy_are_exchanged_for_this_session_only(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(talked: Talked) -> None:
        assert await talked.say("/model") == "scripted/model · window 32,000 (given by you)\n"
        await talked.say("said to the first")
        assert await talked.say("/model gpt-4.1") == "gpt-4.1 · window 128,000 (given by you)\n"
        assert (await talked.say("/model broken/model")).startswith(
            "✗ no provider is known for 'broken/model'"
        )
        assert (await talked.say("/model")).startswith("gpt-4.1")
        assert (await talked.say("/policy handoff")).startswith("handoff · mode auto · acts at ")
        assert (await talked.say("/policy nothing")).startswith(
            "✗ there is no policy 'nothing'; there are economy, "
        )
        assert "others: economy, " in await talked.say("/policy")
        await talked.say("again")
        assert len(talked.desk.provider.places("said to the first")) == 1

    talking(place, monkeypatch, steps, window=32_000)
    other = place.piped("chat", "--session", "other", said="/policy\n")
    assert other.stdout.startswith("economy")


def test_sessions_are_listed_resumed_forked_and_continued(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.piped("run", "--session", "older", "what was said in the older one")

    async def steps(talked: Talked) -> None:
        await talked.say("hi")
        await talked.say("/pin never push")
        listed = (await talked.say("/sessions")).splitlines()
        assert re.match(r"→  s +\d{4}-\d\d-\d\d \d\d:\d\d +\d+ events  hi", listed[0])
        assert re.match(r"   older +.*what was said in the older one", listed[1])
        assert (await talked.say("/fork copy")).startswith("session copy · ")
        await talked.say("in the copy")
        assert (await talked.say("/resume s")).startswith("session s · ")
        assert talked.desk.session.id == "s"
        assert not (await talked.say("/why in the copy")).startswith("in the last request")
        assert (await talked.say("/continue-from s")).startswith("session 20")
        await talked.say("go on")
        assert talked.desk.provider.places("never push")
        assert talked.desk.provider.places("This conversation continues session 's'")
        assert (await talked.say("/resume nothing")).startswith("✗ no session 'nothing'")
        assert (await talked.say("/resume")).startswith("✗ /resume needs a session")
        assert (await talked.say("/continue-from")).startswith("✗ /continue-from needs a session")
        assert (await talked.say("/fork copy")).startswith("✗ ")

    talking(place, monkeypatch, steps)
    assert place.said("copy") == ["hi", "in the copy"]
    assert place.said("s") == ["hi"]


def test_rewind_goes_back_to_before_a_message(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talked: Talked) -> None:
        assert (await talked.say("/rewind")) == "nothing was said yet\n"
        await talked.say("first")
        await talked.say("second")
        listed = await talked.say("/rewind")
        handles = re.findall(r"  (e\d+)  (\w+)", listed)
        assert [words for _, words in handles] == ["first", "second"]
        assert "back to before “second”" in await talked.say(f"/rewind {handles[1][0]}")
        await talked.say("third")
        assert not talked.desk.provider.places("second")
        assert talked.desk.provider.places("first")
        assert (await talked.say("/rewind e0")).startswith(
            "✗ 'e0' is no message of yours that counts; there are e"
        )

    talking(place, monkeypatch, steps)


def test_export_writes_a_file_and_writes_none_over(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talked: Talked) -> None:
        await talked.say("hi")
        assert "events written to " in await talked.say("/export out.jsonl")
        assert (await talked.say("/export out.jsonl")).startswith("✗ ")
        await talked.say("/export chat.json openai")
        assert (await talked.say("/export")).startswith(
            "✗ /export needs a file, and may be told a format: foveal, "
        )

    talking(place, monkeypatch, steps)
    messages = json.loads((place.folder / "chat.json").read_text())
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    assert (place.folder / "out.jsonl").read_text().count("\n") > 3


def test_help_is_the_table_of_commands_and_quit_leaves(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(talked: Talked) -> None:
        text = await talked.say("/help")
        for one in COMMANDS:
            assert one.name in text
            assert one.about in text
        assert not talked.dialogue.left
        await talked.say("/quit")
        assert talked.dialogue.left

    talking(place, monkeypatch, steps)


def test_every_command_is_on_its_page() -> None:
    page = (ROOT / "docs/chat.md").read_text(encoding="utf-8")
    assert [one.name for one in COMMANDS if f"`{one.name}" not in page] == []


def test_what_only_looks_like_a_command_is_a_message() -> None:
    assert command("what is /context?") is None
    assert command("/etc/hosts looks odd") is None
    assert command("/context\nis a command, I think") is None
    with pytest.raises(FovealError, match=r"did you mean /context\?"):
        command("/contxt")


def test_a_store_that_cannot_be_written_is_not_reported_as_success(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(talked: Talked) -> None:
        async def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(talked.desk.store, "append", full)
        assert (await talked.say("hi")).startswith("✗ [Errno 28] No space left on device")
        assert (await talked.say("/pin a rule")).startswith("✗ ")

    talking(place, monkeypatch, steps)


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────


def test_markdown_is_cut_where_a_block_ends_and_nowhere_else() -> None:
    text = "# A\n\nsome text\nmore\n\n- a\n\n- b\n\n  c\n\n```\nx\n\ny\n```\n\nend\n\n1. a\n\n2. b\n\nlast\n"
    for size in (1, 3, 1000):
        blocks = MarkdownBlocks()
        done = [block for at in range(0, len(text), size) for block in blocks.feed(text[at : at + size])]
        assert [*done, blocks.end()] == [
            "# A\n\n", "some text\nmore\n\n", "- a\n\n- b\n\n  c\n\n", "```\nx\n\ny\n```\n\n", "end\n\n",
            "1. a\n\n2. b\n\n", "last\n",
        ]  # fmt: skip


def test_drawn_markdown_keeps_every_word_and_nothing_that_commands() -> None:
    drawn = MarkdownPainter(colours=False).draw(
        "List<int> <!-- hidden --> [bold]x[/bold] :smile: &#x202e; &#27;[2J", width=100
    )
    assert drawn == "List<int> <!-- hidden --> [bold]x[/bold] :smile: \\u{202e} �[2J\n"
    assert "\x1b]8" not in MarkdownPainter(colours=True).draw("[a](http://b)", width=80)


def test_rows_are_safe_and_fit() -> None:
    assert plain([row("a\x1b[31m\nb\tc")]) == "a␛[31m␊b    c\n"
    assert painted([row("漢字漢字")], width=6, colours=False) == "漢字…\n"
    assert cells(cut("漢字漢字漢字", 7)) <= 7


def test_cells_of_the_grid_add_up_whatever_the_amounts() -> None:
    assert shared({"a": 1, "b": 1, "c": 999_998}, 200) == {"a": 1, "b": 1, "c": 198}
    assert sum(shared({str(n): n for n in range(1, 14)}, 200).values()) == 200
    assert shared({"a": 0, "b": 5}, 10) == {"a": 0, "b": 10}
    assert sum(shared({str(n): 1 for n in range(30)}, 20).values()) == 20


def test_a_paste_stands_for_its_text_as_long_as_its_name_is_there() -> None:
    pastes = Pastes()
    name = pastes.short("x" * 10_000)
    assert name == "[paste 1: 1 line, 10,000 characters]"
    assert pastes.whole(f"a {name} b") == f"a {'x' * 10_000} b"
    assert pastes.whole("[paste 2: 1 line, 10,000 characters]") == "[paste 2: 1 line, 10,000 characters]"
    assert pastes.short("short\ntext") == "short\ntext"
