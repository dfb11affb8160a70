"""`foveal chat` and `foveal run`: in a real terminal, in pipes, with JSON, and in-process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveal
from foveal.agent.terminal.commands import SLASH_COMMANDS, parse_command, with_slash_commands
from foveal.agent.terminal.factory import system_text
from foveal.agent.terminal.output.agent_event_rows import reduction_rows
from foveal.agent.terminal.output.context_card import turn_usages
from foveal.agent.terminal.output.markdown import MarkdownPainter
from foveal.agent.terminal.output.streaming import MarkdownBlocks
from foveal.agent.terminal.output.styled_text import (
    Span,
    Theme,
    ansi_text,
    bold,
    cell_width,
    cut,
    plain_text,
    row,
    wrap_row,
)
from foveal.agent.terminal.user_input import Pastes
from foveal.config.load import project_items
from foveal.config.project import items_hash
from foveal.core.log import Compacted, Event, Noted, Opened, ToolReturned, Used, UserSaid, text_of
from foveal.core.log.events import UNREADABLE, ForeignSummary, raw
from foveal.core.models.budget import apportion
from foveal.errors import FovealError
from support import warm_start
from support.chat_project import ChatProject, InProcessChat, run_chat
from support.effort import examples, rest_in_soak
from support.markdown_answers import Answer, answers
from support.paths import ROOT
from support.terminal import CTRL_C, CTRL_D, ENTER, ESCAPE, TAB

EVIL: Final = (
    "\x1b[2J\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07 \x9b31m \u202eevil\u2066 \u200b\U000e0041 "
    "\x00\r\b\x7f [red]x[/red]"
)
UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\U000e0000-\U000e007f]"
)


# ── the terminal ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_banner_shows_model_window_policy_and_session(project: ChatProject) -> None:
    with project.terminal("--session", "s", "--window", 8000) as terminal:
        seen = terminal.see("ctx ")
    assert "foveal  scripted/model" in seen
    assert "window 8,000 tokens (set by you) · policy economy, auto" in seen
    assert "session s · /help" in seen
    assert re.fullmatch(r" ctx [\d,]+/8,000 \d+\.\d % ▕█*·+▏.*", terminal.bottom)


def test_an_answer_is_drawn_as_markdown_and_the_status_line_updates(project: ChatProject) -> None:
    project.script("# Title\n\nHello **you**, see `x`.\n\n- one\n- two\n\n```python\nx = 1\n```\n")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("hi there")
        seen = terminal.see(lambda t: "x = 1" in t.text and "cache " in t.bottom)
        assert "› hi there" in seen
        assert "Hello you, see x." in seen
        assert " • one\n • two" in seen
        assert "**" not in seen
        assert "```" not in seen
        assert b"\x1b[1m" in terminal.raw  # bold
    assert project.user_messages() == ["hi there"]


def test_a_tool_result_is_shortened_and_can_be_expanded(project: ChatProject) -> None:
    (project.folder / "long.txt").write_text("".join(f"line {n}\n" for n in range(1, 101)))
    project.script([("read", {"path": "long.txt"})], "It has a hundred lines.")
    with project.terminal("--session", "s") as terminal:
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
    assert all("line 99" not in text for text in project.user_messages())


def test_a_writing_tool_asks_and_always_is_remembered(project: ChatProject) -> None:
    run = [("run", {"command": "touch made"})]
    project.script(run, "No?", run, "Yes.", run, "Again.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("do it")
        terminal.see("Allow run: touch made?")
        assert not (project.folder / "made").exists()
        terminal.answer(ENTER)  # Enter means no
        terminal.see("No?")
        assert not (project.folder / "made").exists()
        terminal.enter("do it now")
        terminal.see(lambda t: "Always exactly `touch made`, in this session" in "\n".join(t.lines))
        terminal.answer("s")
        terminal.see("Yes.")
        assert (project.folder / "made").exists()
        terminal.enter("and once more")
        terminal.see("Again.")
        assert terminal.text.count("Allow run: touch made?") == 2


def test_a_line_that_is_not_an_answer_is_queued_and_the_question_stays(project: ChatProject) -> None:
    project.script([("write", {"path": "b.txt", "content": "x"})], "Written.", "Second.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("write b")
        terminal.see("(or Enter, Esc)")
        terminal.enter("also the entry")  # ends with a y, and is not a yes
        terminal.see("queued: also the entry")
        assert not (project.folder / "b.txt").exists()
        terminal.answer("y")
        terminal.see("Second.")
        assert (project.folder / "b.txt").read_text() == "x"
    assert project.user_messages() == ["write b", "also the entry"]


def test_ctrl_c_during_an_answer_leaves_a_legal_session(project: ChatProject) -> None:
    project.script("\n".join(f"word {n}" for n in range(400)), "Back again.", delay=0.02, held_after=60)
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("tell me")
        terminal.see("word 10")
        terminal.type(CTRL_C)
        terminal.see("stopped; the conversation so far is kept")
        project.release()
        messages = project.request()
        assert messages[-1]["role"] == "assistant"
        assert "word 10" in messages[-1]["content"]
        assert "word 399" not in messages[-1]["content"]
        terminal.enter("go on")
        terminal.see("Back again.")
    assert any(isinstance(e.fact, Noted) and "ended early" in e.fact.text for e in project.events())


def test_ctrl_c_during_parallel_calls_gives_each_call_a_result(project: ChatProject) -> None:
    calls = [("read", {"path": "a.txt"}), ("run", {"command": "sleep 60"}), ("read", {"path": "a.txt"})]
    project.script(calls, "never said")
    with project.terminal("--session", "s", "--yes") as terminal:
        terminal.see("ctx ")
        terminal.enter("do three things")
        terminal.see("● run: sleep 60")
        terminal.type(CTRL_C)
        terminal.see("stopped; the conversation so far is kept")
    project.request()  # is legal
    results = [text_of(e.fact.content) for e in project.events() if isinstance(e.fact, ToolReturned)]
    assert len(results) == 3
    assert "one" in results[0]
    assert "interrupted by the user" in results[2]


def test_after_ctrl_c_the_status_is_current_and_queued_commands_are_not_sent(project: ChatProject) -> None:
    project.script([("run", {"command": "sleep 60"})], "Hello again.")
    with project.terminal("--session", "s", "--yes") as terminal:
        terminal.see("ctx ")
        terminal.enter("sleep")
        terminal.see("● run: sleep 60")
        terminal.enter("/pin never push")
        terminal.enter("and then this")
        terminal.see("queued: and then this")
        before = terminal.bottom
        terminal.type(CTRL_C)
        terminal.see("not run: /pin never push")
        terminal.see("› and then this")
        terminal.see(lambda t: t.bottom != before)
        terminal.enter("")
        terminal.see("Hello again.")
    assert project.user_messages() == ["sleep", "and then this"]


def test_ctrl_c_twice_quits_and_so_does_ctrl_d(project: ChatProject) -> None:
    with project.terminal() as terminal:
        terminal.see("ctx ")
        terminal.type(CTRL_C + CTRL_C)  # at once: they are two presses only within a few seconds
        assert terminal.ended() == 0
        assert "Ctrl-C again, or Ctrl-D, quits" in terminal.text
    with project.terminal() as terminal:
        terminal.see("ctx ")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_ctrl_c_clears_the_input_line_first(project: ChatProject) -> None:
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.type("not this")
        terminal.see("› not this")
        terminal.type(CTRL_C)
        terminal.see(lambda t: "not this" not in t.text)
        terminal.enter("but this")
        terminal.see("Hello you.")
    assert project.user_messages() == ["but this"]


def test_input_during_a_turn_is_queued_and_sent_afterwards(project: ChatProject) -> None:
    project.script("\n\n".join(f"part {n}" for n in range(25)), "Second.", "Third.", held_after=10)
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("one")
        terminal.see("part 2")
        terminal.enter("two")
        terminal.enter("three")
        terminal.see("queued: two\n  queued: three")
        assert project.user_messages() == ["one"]  # queued messages are not stored yet
        terminal.enter("/tokens")  # only reads: runs at once
        terminal.see("threshold")
        project.release()
        seen = terminal.see("Third.")
    assert project.user_messages() == ["one", "two", "three"]
    assert seen.index("part 24") < seen.index("› two") < seen.index("Second.") < seen.index("› three")


def test_a_writing_command_waits_for_the_turn(project: ChatProject) -> None:
    project.script("\n\n".join(f"part {n}" for n in range(20)), held_after=10)
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("one")
        terminal.see("part 2")
        terminal.enter("/pin never push")
        terminal.see("queued: /pin never push")
        project.release()
        seen = terminal.see("pinned “never push”")
    assert seen.index("part 19") < seen.index("pinned “never push”")


def test_ctrl_c_returns_queued_input_to_the_input_line(project: ChatProject) -> None:
    project.script("\n\n".join(f"part {n}" for n in range(200)), "never said", held_after=10)
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("one")
        terminal.see("part 2")
        terminal.enter("two")
        terminal.see("queued: two")
        terminal.type(CTRL_C)
        terminal.see(lambda t: "› two" in t.text and "stopped" in t.text)
    assert project.user_messages() == ["one"]


@pytest.mark.parametrize("size", rest_in_soak([128 * 1024, 1024 * 1024]))
def test_a_long_paste_is_sent_in_full(project: ChatProject, size: int) -> None:
    text = "".join(f"{n:06} ünïcode and some words\n" for n in range(32_000))[:size]
    with project.terminal("--session", "s", "--window", 1_000_000) as terminal:
        terminal.see("ctx ")
        terminal.type("look: ")
        terminal.paste(text)
        terminal.see("› look: [paste 1: ")
        terminal.type(ENTER)
        terminal.see("Hello you.")
    assert project.user_messages() == [f"look: {text}"]


def test_a_short_paste_is_shown_in_full_and_sends_nothing(project: ChatProject) -> None:
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.paste("first\r\nsecond\n")
        terminal.see("› first\n  second")
        assert "Hello" not in terminal.text
        terminal.type("third" + ENTER)
        terminal.see("Hello you.")
    assert project.user_messages() == ["first\nsecond\nthird"]


def test_alt_enter_inserts_a_new_line(project: ChatProject) -> None:
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.type("first" + ESCAPE + ENTER + "second")
        terminal.see("› first\n  second")
        terminal.type(ENTER)
        terminal.see("Hello you.")
    assert project.user_messages() == ["first\nsecond"]


def test_commands_and_files_are_completed(project: ChatProject) -> None:
    (project.folder / "unusual_name.py").write_text("")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.type("/comp")
        terminal.see("/compaction-status")
        terminal.type("act" + CTRL_C)
        terminal.type("read unus" + TAB)
        terminal.see("› read unusual_name.py")


def test_the_arrow_key_recalls_earlier_input(project: ChatProject) -> None:
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("remember me")
        terminal.see("Hello you.")
    with project.terminal("--session", "t") as terminal:
        terminal.see("ctx ")
        terminal.type("\x1b[A")
        terminal.see("› remember me")
    history = project.home / ".local/state/foveal/history"
    assert history.stat().st_mode & 0o077 == 0


def test_the_screen_adapts_to_the_terminal_size(project: ChatProject) -> None:
    project.script("word " * 60)
    with project.terminal("--session", "s", columns=120, rows=40) as terminal:
        terminal.see("ctx ")
        terminal.enter("hi")
        terminal.see(lambda t: "cache " in t.bottom)
        terminal.resize(40, 12)
        terminal.see(
            lambda t: t.bottom.startswith(" ctx ") and len(t.bottom) <= 40 and "›" in "".join(t.lines[-4:])
        )
        terminal.type("typed")
        terminal.see("› typed")


def test_output_of_commands_and_errors_is_wrapped_at_words(project: ChatProject) -> None:
    with project.terminal("--session", "s", columns=44, rows=40) as terminal:
        terminal.see("ctx ")
        terminal.enter("/pin")
        terminal.see("as it is now")
        terminal.enter("/tokens")
        seen = terminal.see("cost")
    assert {"✗", "handle,", "tokens,", "(estimated,", "threshold"} <= set(seen.split())
    assert re.search(r"acts\s+at\s+[\d.]+\s%\s+\([\d,]+\)", seen)
    assert not [line for line in seen.splitlines() if line.lstrip().startswith("%")]


@pytest.mark.parametrize("colours", rest_in_soak([False, True]))
def test_no_text_can_control_the_terminal(project: ChatProject, colours: bool) -> None:
    (project.folder / "evil.txt").write_text(EVIL + "\n" + EVIL)
    name = "evil\x1b]0;name\x07.txt"
    (project.folder / name).write_text("x")
    project.script(
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
    with project.terminal("--session", "s", env=quiet) as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        terminal.see("Allow run")
        terminal.answer("n")
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


def test_a_provider_error_is_one_message_and_the_chat_continues(project: ChatProject) -> None:
    code = """
        ProviderError("Anthropic refused the key in ANTHROPIC_API_KEY: check it", code="key"),
        ProviderError("the connection broke off", code="interrupted", partial="I was say"),
        ValueError("odd \\x1b[31m"),
        "Fine now."
    """
    project.script(code=code)
    with project.terminal("--session", "s") as terminal:
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
    project.request()
    assert project.user_messages() == ["one", "two", "three", "four"]


def test_a_failed_start_says_why_and_exits(project: ChatProject) -> None:
    with project.terminal("--model", "broken/model") as terminal:
        assert terminal.ended() == 1
        assert "✗ no provider is known for 'broken/model'" in terminal.text
    with project.terminal(env={"FOVEAL_PROVIDER": "nowhere:make"}) as terminal:
        assert terminal.ended() == 1
        assert "FOVEAL_PROVIDER = 'nowhere:make' is not allowed" in terminal.text


def test_mode_confirm_asks_after_each_answer(project: ChatProject) -> None:
    project.script(*(f"{'word ' * 852}\n\nend {number}" for number in range(6)), "Shortly.", "Again.")
    with project.terminal("--session", "s", "--window", 8000, "--mode", "confirm", rows=40) as terminal:
        assert "policy economy, confirm" in terminal.see("ctx ")
        for number in range(6):
            assert "conversation?" not in terminal.text
            terminal.enter(f"tell me {number}")
            terminal.see(f"end {number}")
        terminal.see("n  No (or Enter, Esc)")
        asked = (
            r"Context usage at ([\d.]+ %) of the window \(([\d,]+/8,000) tokens\)\. Compact conversation\?"
        )
        found = re.search(asked, " ".join(terminal.text.split()))
        assert found is not None
        assert terminal.bottom.startswith(f" ctx {found[2]} {found[1]} "), "the bar shows the same numbers"
        terminal.enter("another question")  # any other line is a no
        terminal.see("conversation? no")  # the question takes two lines
        terminal.see("Shortly.")
        terminal.see(lambda t: t.text.count("conversation?") == 2 and "n  No" in "\n".join(t.lines))
        terminal.answer(f"y{ENTER}")
        seen = terminal.see("before and after:")
        assert "summarised e" in seen
        assert "n  No" not in "\n".join(terminal.lines)


def test_a_line_answers_the_question_of_compact(project: ChatProject) -> None:
    project.script(*["word " * 500] * 4, "A summary of the words.")
    with project.terminal("--session", "s", "--window", 20_000, rows=40) as terminal:
        terminal.see("ctx ")
        for number in range(4):
            terminal.enter(f"tell me {number}")
            terminal.see(lambda t, n=number: t.bottom.count("cache") and t.text.count("word word") > n * 10)
        terminal.enter("/compact")
        terminal.see("n  No (or Enter, Esc)")
        terminal.enter("n")
        terminal.see("Compact the conversation now? no")
        terminal.enter("/compact")
        terminal.see(lambda t: "n  No (or Enter, Esc)" in "\n".join(t.lines))
        for key in "/undo":
            terminal.type(key)
        terminal.see("› /undo")
        assert terminal.text.count("Compact the conversation now? no") == 2
        terminal.enter("")
        terminal.see("nothing to undo")
        terminal.enter("/compact")
        terminal.see(lambda t: "n  No (or Enter, Esc)" in "\n".join(t.lines))
        terminal.enter("y")
        terminal.see("before and after:")


def test_a_running_compaction_shows_progress_and_messages_are_queued(project: ChatProject) -> None:
    project.script(*["word " * 500] * 4, "\n".join(["slow"] * 60), "Last answer.", held_after=10)
    with project.terminal("--session", "s", "--window", 20_000, rows=40) as terminal:
        terminal.see("ctx ")
        for number in range(4):
            terminal.enter(f"tell me {number}")
            terminal.see(
                lambda t, n=number: (
                    f"› tell me {n}" in t.text and "queued" not in t.text and "stops" not in t.text
                )
            )
        terminal.enter("/compact the words")
        terminal.see("Compact the conversation now?")
        terminal.answer(f"y{ENTER}")
        terminal.see("compacting")
        terminal.enter("are you there?")
        terminal.see("queued: are you there?")
        project.release()
        seen = terminal.see("› are you there?")
        assert seen.index("before and after:") < seen.index("› are you there?")


def test_reductions_are_shown_with_their_undo_commands(project: ChatProject) -> None:
    for name in ("first", "second"):
        text = "".join(f"line {n} of the {name} file\n" for n in range(2_000))
        (project.folder / f"{name}.txt").write_text(text)
    first, second = ([("read", {"path": f"{name}.txt"})] for name in ("first", "second"))
    # The model is asked for a summary in advance as well, and its drafts are refused.
    project.script(first, "One.", second, second, second, *["Two."] * 12)
    unlimited = ("--set", "context.max_tool_result_tokens=0")
    with project.terminal("--session", "s", "--window", 8000, *unlimited, rows=40) as terminal:
        terminal.see("ctx ")
        for words, answer in (("read it", "One."), ("and then?", "Two.")):
            terminal.enter(words)
            seen = terminal.see(answer)
    clipped = re.search(r"▪ clipped (e\d+): the model sees [\d,]+ of its [\d,]+ tokens · /expand \1", seen)
    assert clipped
    assert re.search(r"▪ (?:hid \d+ results?|summarised e\d+–e\d+) [^▪]*/undo e\d+", seen)
    assert re.search(r"▪ the request has [\d,]+ tokens instead of [\d,]+", seen)


def test_a_summary_says_why_it_was_made_before_the_window_was_full() -> None:
    for reason, why in (("tokens", ""), ("price", ", to make further calls cheaper")):
        fact = Compacted(first=4, last=9, summary="x", by="ledger", reason=reason)
        (shown,) = reduction_rows([Event(seq=11, fact=fact)], 0, 0)
        text = "".join(span.text for span in shown)
        assert f"summarised e4–e9 by ledger{why} · /expand e11 · /undo e11" in text


# ── pipes ────────────────────────────────────────────────────────────────────────────────────────────────


def test_in_a_pipe_each_line_is_a_message_and_answers_go_to_stdout(project: ChatProject) -> None:
    project.script("First **answer**.", [("list", {"path": "."})], "Second answer.")
    done = project.run_piped("chat", "--session", "s", input="one\n\ntwo\n")
    assert (done.returncode, done.stdout) == (0, "First **answer**.\nSecond answer.\n")
    assert "● list ." in done.stderr
    assert "│ a.txt" in done.stderr
    assert project.user_messages() == ["one", "two"]
    assert "\x1b" not in done.stdout + done.stderr


def test_in_a_pipe_a_writing_tool_needs_allow(project: ChatProject) -> None:
    write = [("write", {"path": "b.txt", "content": "x"})]
    project.script(write, "Tried.")
    done = project.run_piped("run", "write b")
    assert not (project.folder / "b.txt").exists()
    assert (
        "no: there is no terminal to ask at. Allow it with --allow write, or everything with --yes."
        in done.stderr
    )
    assert (done.returncode, done.stdout) == (3, "Tried.\n")
    project.run_piped("run", "--allow", "read,write", "write b")
    assert (project.folder / "b.txt").read_text() == "x"


def test_no_tools_offers_no_tools(project: ChatProject) -> None:
    done = project.run_piped("chat", "--no-tools", input="/context\n")
    assert "free" in done.stdout
    assert "tools" not in done.stdout


def test_run_does_one_task_and_sets_the_exit_code(project: ChatProject) -> None:
    done = project.run_piped("run", "--session", "s", "do this")
    assert (done.returncode, done.stdout) == (0, "Hello **you**.\n")
    done = project.run_piped("run", "--session", "t", input="all of\nthis is one task\n")
    assert project.user_messages("t") == ["all of\nthis is one task\n"]
    project.script(code='ProviderError("OpenAI wants you to wait 30 s: too many requests", code="rate")')
    done = project.run_piped("run", "do this")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "foveal: standard input is empty\nfoveal: OpenAI wants you to wait 30 s: too many requests\n"
    )
    done = project.run_piped("run", input=" \n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no task" in done.stderr


def test_a_task_that_ends_at_its_limit_of_tool_calls_is_not_done(project: ChatProject) -> None:
    project.script(*([("read", {"path": "a.txt"})] for _ in range(2)), "Done.")
    limit = ("--set", "max_tool_iterations=2")
    done = project.run_piped("run", *limit, "--session", "s", "read it again and again")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the turn has ended: it has reached its limit of 2 rounds of tool calls" in done.stderr
    assert project.run_piped("run", *limit, "--json", "--session", "t", "again").returncode == 1


def test_json_output_is_one_object_per_line(project: ChatProject) -> None:
    project.script([("read", {"path": "a.txt"})], f"Read {EVIL}", "\ud800 alone")
    done = project.run_piped("chat", "--json", "--session", "s", input="one\n/tokens\ntwo\n/nothing\n")
    assert done.stdout.isascii()
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    lines = [line for line, before in zip(lines, [{}, *lines], strict=False) if not _streams(line, before)]
    assert lines.pop(0)["session"] == "s"
    assert [line["happening"] for line in lines] == [
        "heard", "answered", "calling", "returned", "streamed", "answered", "ended",
        "shown", "heard", "streamed", "answered", "ended", "failed",
    ]  # fmt: skip
    assert lines[3]["text"].endswith("one\ntwo\n")
    assert lines[5]["text"] == f"Read {EVIL}"
    assert lines[6]["report"]["used"] > 0
    assert lines[12]["problem"] == "there is no command /nothing; /help lists them"
    assert (done.returncode, done.stderr) == (1, "")


def _streams(one: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return whether a line is one more piece of the same answer."""
    return bool(one["happening"] == before.get("happening") == "streamed")


def test_piped_output_has_no_control_characters(project: ChatProject) -> None:
    (project.folder / "evil.txt").write_text(EVIL)
    project.script([("read", {"path": "evil.txt"}), (EVIL, {})], EVIL)
    done = project.run_piped(
        "chat", input=f"go\n/why owned\n/expand e5\n/expand e6\n/rewind\n/sessions\n/pin {EVIL}\n"
    )
    assert not UNSAFE.search(done.stdout)
    assert not UNSAFE.search(done.stderr)
    assert "␛]0;owned" in done.stdout


def test_sessions_are_opened_by_id_prefix_or_as_the_newest(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        await chat.send("hi")
        opened.append(chat.state.session.id)

    opened: list[str] = []
    for which in ({"session": "first-one"}, {"session": "second"}, {"newest": True}, {"resume": "fir"}, {}):
        run_chat(project, monkeypatch, steps, **{"session": "", **which})
    assert opened[:4] == ["first-one", "second", "second", "first-one"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}-[0-9a-f]{4}", opened[4])
    done = project.run_piped("run", "--resume", "nothing", "e")
    assert done.returncode == 1
    assert "no session 'nothing'" in done.stderr


def test_ctrl_c_ends_a_chat_that_reads_a_pipe(project: ChatProject) -> None:
    process = warm_start.start(
        ["-m", "foveal.cli", "chat", "--session", "s"],
        env=project.env,
        cwd=project.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hi\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"Hello **you**.\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_ctrl_d_quits_even_while_a_turn_runs(project: ChatProject) -> None:
    project.script("\n\n".join(f"part {n}" for n in range(400)), held_after=10)
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.enter("go")
        terminal.see("part 2")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
    assert project.request()[-1]["role"] == "assistant"


def test_a_missing_key_is_one_sentence(project: ChatProject) -> None:
    done = project.run_piped(
        "run",
        "--model",
        "anthropic/claude-sonnet-4-6",
        "x",
        env={"FOVEAL_PROVIDER": "", "ANTHROPIC_API_KEY": ""},
    )
    assert done.returncode == 1
    problem = done.stderr.removeprefix("foveal: standard input is empty\n")
    assert problem.startswith("foveal: Anthropic needs a key: set ANTHROPIC_API_KEY")
    assert problem.count("\n") == 1


def test_a_missing_library_is_reported_with_its_install_command(project: ChatProject) -> None:
    program = project.home / "without_it.py"
    program.write_text(
        "import runpy, sys\n"
        "for name in [*sys.modules]:  # as in a new interpreter\n"
        "    if name.startswith('foveal.agent.terminal'):\n"
        "        del sys.modules[name]\n"
        "    elif name.partition('.')[0] == 'prompt_toolkit':\n"
        "        sys.modules[name] = None\n"
        "runpy.run_module('foveal.cli', run_name='__main__', alter_sys=True)\n"
    )
    with project.terminal(command=(sys.executable, str(program))) as terminal:
        assert terminal.ended() == 1
        assert "pip install 'foveal[chat]'" in terminal.text.replace("\n", "")


def test_wrong_options_are_explained(project: ChatProject) -> None:
    assert project.run_piped("chat", "--mode", "perhaps").returncode == 2
    done = project.run_piped("run", "--policy", "perhaps", "x")
    assert done.returncode == 1
    assert "economy, handoff" in done.stderr
    done = project.run_piped("run", "--allow", "rm -rf /", "x")
    assert done.returncode == 1
    assert "the name of a tool" in done.stderr


# ── speed ────────────────────────────────────────────────────────────────────────────────────────────────


def test_help_loads_neither_the_terminal_nor_a_provider() -> None:
    code = "import sys; from foveal.cli import _parser; _parser().format_help(); print(*sys.modules)"
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


def test_the_prompt_appears_before_provider_and_rich_are_imported(project: ChatProject) -> None:
    env = {"FOVEAL_PROVIDER": "", "OPENAI_API_KEY": "none", "PYTHONPROFILEIMPORTTIME": "1"}
    with project.terminal("--model", "openai/gpt-4.1", env=env, columns=200, is_cold=True) as terminal:
        terminal.see("openai/gpt-4.1")
        raw = terminal.raw.decode()
    assert "prompt_toolkit" in raw
    assert not re.search(r"\| +(openai|rich|anthropic|httpx2?)\.", raw)


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────


def test_context_shows_a_grid_and_tables_that_add_up(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.home / ".config/foveal").mkdir(parents=True)
    (project.home / ".config/foveal/AGENTS.md").write_text("Answer in rhymes.\n")
    project.script([("list", {"path": "."})], "Listed.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("go")
        card = await chat.send("/context")
        lines = card.splitlines()
        assert lines[0] == "context scripted/model · window 8,000 (set by you)"
        grid = [line[:40].split() for line in lines[2:12]]
        assert [len(line) for line in grid] == [20] * 10
        legend = re.findall(r"^.{42}\S (\w+) +([\d,]+) +[\d.]+ %$", card, re.MULTILINE)
        amounts = {name: int(tokens.replace(",", "")) for name, tokens in legend}
        assert sum(amounts.values()) == 8_000
        assert re.search(r"window +8,000 +100\.0 %", card)
        report = await chat.state.session.report()
        assert amounts == {name: tokens for name, tokens in report.totals.items() if tokens}
        used, warn, act, limit = map(report.percent, (report.used, report.warn, report.act, report.limit))
        assert f"used {report.used:,} tokens, {used} of the window (measured)\n" in card
        assert (
            f"warns at {warn} · acts at {act} ({report.act:,}) · at most {limit} ({report.limit:,})" in card
        )
        below = card.split("instructions, by file")[1]
        assert f"AGENTS.md  {amounts['instructions']}" in below
        tools = re.findall(r"^  (\w+) +(\d+) +([\d,]+|–)$", below.split(" used: definition")[1], re.MULTILINE)
        assert sum(int(tokens) for _, tokens, _ in tools) == amounts["tools"]
        assert [(name, results) for name, _, results in tools if results != "–"] == [
            ("list", f"{amounts['results']:,}")
        ]
        (listed,) = [line for line in report.events if line.kind == "tool_returned"]
        assert f", {amounts['results']:,} tokens now" in await chat.send(f"/why {listed.handle}")

    run_chat(project, monkeypatch, steps, window=8_000)


def test_the_output_of_commands_does_not_enter_the_conversation(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        await chat.send("hi")
        before = await chat.state.session.events()
        for text in ("/context", "/tokens", "/compaction-status", "/why hi", "/expand e3", "/instructions", "/help",
                     "/sessions", "/model", "/policy", "/rewind", "/nonsense", "/expand e999"):  # fmt: skip
            await chat.send(text)
        assert await chat.state.session.events() == before

    run_chat(project, monkeypatch, steps)


def test_tokens_shows_the_latest_and_the_average_turn(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script([("list", {"path": "."})], "Listed.", "Short.")

    async def steps(chat: InProcessChat) -> None:
        card = await chat.send("/tokens")
        assert "turns         0 so far" not in card
        assert "latest turn" not in card
        await chat.send("one")
        await chat.send("two")
        card = await chat.send("/tokens")
        report = await chat.state.session.report()
        share = report.percent(report.used)
        used = f"used          {report.used:,} of 128,000 tokens, {share}"
        assert f"{used} (measured, the next request)" in card
        assert re.search(r"latest turn   1 call, in [\d,]+ \(0 % cached\), out \d+, context \+\d+", card)
        assert re.search(r"average turn  2 calls, in [\d,]+", card)
        assert re.search(r"turns         2 so far$", card, re.MULTILINE)
        assert f"acts at {report.percent(report.act)} ({report.act:,})" in card
        assert "cost          not known: " in card

    run_chat(project, monkeypatch, steps)


def test_tokens_shows_the_cost_if_the_price_is_known(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        await chat.send("one")
        assert re.search(r"cost +\$0\.\d+$", await chat.send("/tokens"), re.MULTILINE)

    run_chat(project, monkeypatch, steps, model="gpt-4.1")


def test_compact_shows_summary_and_sizes_and_can_be_undone(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script(*["A long answer about bounds. " * 60] * 5)

    async def steps(chat: InProcessChat) -> None:
        assert "nothing was summarised: nothing that may be" in await chat.send("/compact")
        for number in range(5):
            await chat.send(f"question {number}")
        status = await chat.send("/compaction-status")
        assert "policy   economy, mode auto" in status
        assert "now      no summary is being written" in status
        assert "writers  scripted/model, then the ledger" in status
        assert "no summaries yet" in status
        before = (await chat.state.session.report()).used
        card = await chat.send("/compact the bounds")
        after = (await chat.state.session.report()).used
        assert after < before
        assert f"before and after: {before:,} → {after:,} tokens" in card
        handle = re.search(r"/undo (e\d+) takes it back", card)[1]  # type: ignore[index]
        assert "  │ " in card
        assert f"{handle}: e" in await chat.send("/compaction-status")
        whole = await chat.send(f"/expand {handle}")
        assert "A long answer about bounds." in whole
        why = await chat.send("/why A long answer about bounds.")
        assert f"summarised by {handle}" in why
        assert f"took back {handle} (compacted)" in await chat.send("/undo")
        assert (await chat.state.session.report()).used == before
        assert (await chat.send("/undo e1")).startswith(
            "✗ e1 is not a reduction, an expansion, a pin, a mark, a supersession or a rewind"
        )

    run_chat(project, monkeypatch, steps, window=32_000)


def test_why_finds_a_text_in_the_last_request_or_the_rule_that_hid_it(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "long.txt").write_text("".join(f"line {n} of the file\n" for n in range(3_000)))
    project.script([("read", {"path": "long.txt"})], "Read.", "Yes.")

    async def steps(chat: InProcessChat) -> None:
        assert "nothing has been sent since this session was opened" in await chat.send("/why hello")
        await chat.send("read it")
        assert "in the last request: message " in await chat.send("/why LINE 1 of")
        hidden = await chat.send("/why line 1500 of")
        assert hidden.startswith("not in the last request")
        assert re.search(r"e\d+ tool_returned: clipped by e\d+, rule: economy: clip, .*/expand e\d+", hidden)
        assert "no event of this session contains it" in await chat.send("/why something else")
        assert (await chat.send("/why")).startswith("✗ /why needs a text")

    run_chat(project, monkeypatch, steps, window=16_000)


def test_expand_prints_pages_and_can_show_a_text_to_the_model(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "long.txt").write_text("".join(f"line {n} of the file\n" for n in range(1, 2_501)))
    project.script([("read", {"path": "long.txt"})], "Read.", "Seen.", "Not any more.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("read it")
        handle = re.search(r"/expand (e\d+)", chat.err.getvalue())[1]  # type: ignore[index]
        first = await chat.send(f"/expand {handle}")
        assert "line 150 of the file" in first
        assert "line 1250 of the file" not in first
        assert f"more lines: /expand {handle} 201" in first
        assert "line 1250 of the file" in await chat.send(f"/expand {handle} 1201")
        assert (await chat.send(f"/expand {handle} all")).startswith(
            "✗ 'all' is not allowed after the handle"
        )
        assert (await chat.send("/expand")).startswith(
            "✗ '' is not a handle of this session, which has e0 to e"
        )
        assert not chat.state.provider.find_text("line 1250 of the file")
        assert f"{handle} is shown in full to the model in the next turn" in await chat.send(
            f"/expand {handle} model"
        )
        await chat.send("and now?")
        assert "cannot be shown whole" not in chat.err.getvalue()
        assert chat.state.provider.find_text("line 1250 of the file")
        await chat.send("and now?")
        assert not chat.state.provider.find_text("line 1250 of the file")

    run_chat(project, monkeypatch, steps, window=48_000, policy="handoff")


def test_undo_warns_of_a_summary_that_the_model_cannot_read(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        await chat.send("the first message")
        session = chat.state.session
        item = ForeignSummary(native=raw({"type": "compaction"}), dialect="openai_responses")
        (stored,) = await session.append(item)
        rule, seq = f"gpt-5 cannot read {stored.handle}", stored.seq
        await session.append(Compacted(first=seq, last=seq, summary="", reason=UNREADABLE, rule=rule))
        assert f"{rule}, and the next request has it again" in await chat.send("/undo")

    run_chat(project, monkeypatch, steps)


def test_drop_hides_a_message_until_undo(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(chat: InProcessChat) -> None:
        await chat.send("the first message")
        said = next(e for e in await chat.state.session.events() if isinstance(e.fact, UserSaid))
        refused = await chat.send(f"/drop {said.handle}")
        assert refused.startswith(f"✗ {said.handle} is the latest message of the user")
        await chat.send("another")
        answer = await chat.send(f"/drop {said.handle}")
        handle = re.search(rf"{said.handle} is not shown to the model any more · /undo (e\d+)", answer)[1]  # type: ignore[index]
        assert (await chat.state.session.why(said.handle)).by == handle
        assert f"took back {handle} (dropped)" in await chat.send("/undo")
        assert (await chat.state.session.why(said.handle)).level == "full"
        assert (await chat.send("/drop")).startswith("✗ /drop needs a handle")

    run_chat(project, monkeypatch, steps)


def test_supersede_says_that_a_message_no_longer_holds(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        await chat.send("Never push to main.")
        await chat.send("You can push to main now.")
        log = await chat.state.session.events()
        old, new = (event.handle for event in log if isinstance(event.fact, UserSaid))
        done = await chat.send(f"/supersede {old} {new}")
        assert f"{old} is replaced by {new}, and the model sees that beside it · /undo e" in done
        await chat.send("go on")
        assert chat.state.provider.find_text(f"[foveal: replaced by {new}]")
        recorded = done.rpartition("/undo ")[2].strip()
        assert f"replaced by {new} (on request, since {recorded})" in await chat.send(f"/why {old}")
        assert f"took back {recorded} (superseded): {old} holds again" in await chat.send("/undo")
        assert (await chat.send(f"/supersede {new} {old}")).startswith(f"✗ by = '{old}' is not allowed")
        assert (await chat.send("/supersede")).startswith("✗ /supersede needs two handles")

    run_chat(project, monkeypatch, steps)


def test_pin_keeps_a_rule_in_every_request(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(chat: InProcessChat) -> None:
        assert "pinned “never push”, in every request from now on · /undo e" in await chat.send(
            "/pin never push"
        )
        await chat.send("hi")
        assert chat.state.provider.find_text("never push")
        assert "pinned e4 as it is now" in await chat.send("/pin e4")
        assert (await chat.send("/pin")).startswith("✗ /pin needs a text")

    run_chat(project, monkeypatch, steps)


def test_instructions_lists_and_prints_the_files_in_force(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        assert (await chat.send("/instructions")).startswith("no instructions are in force")
        (project.home / ".config/foveal").mkdir(parents=True)
        (project.home / ".config/foveal/AGENTS.md").write_text("Answer in rhymes.\n")
        await chat.send("hi")
        assert re.search(
            r"instructions, \d+ tokens\n  .*foveal/AGENTS.md  \d+", await chat.send("/instructions")
        )
        assert "Answer in rhymes." in await chat.send("/instructions AGENTS")
        assert (await chat.send("/instructions nothing")).startswith(
            "✗ no instructions in force have 'nothing'"
        )

    run_chat(project, monkeypatch, steps)


def test_instructions_that_the_user_has_not_allowed_are_named(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / ".git").mkdir()
    (project.folder / "AGENTS.md").write_text("Always answer in rhymes.\n")
    (project.home / ".config/foveal").mkdir(parents=True)
    (project.home / ".config/foveal/AGENTS.md").write_text("Answer in English.\n")
    not_used = f"{project.folder}/AGENTS.md is not used: you were not asked about it yet"

    async def steps(chat: InProcessChat) -> None:
        assert "1 item of this project is not used" in chat.err.getvalue()
        listed = (await chat.send("/instructions")).splitlines()
        assert listed == [
            "no instructions are in force",
            f"  {project.home}/.config/foveal/AGENTS.md is read with your next message",
            f"  {not_used}",
        ]
        await chat.send("hi")
        assert "AGENTS.md  " in await chat.send("/instructions")

    run_chat(project, monkeypatch, steps)


def test_long_instructions_are_cut_for_a_small_window_and_the_start_says_so(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / ".git").mkdir()
    (project.folder / "AGENTS.md").write_text("Run the tests before a task is done.\n" * 800)
    monkeypatch.setenv("HOME", str(project.home))
    whole = items_hash(item for item, _ in project_items(project.folder))

    async def steps(chat: InProcessChat) -> None:
        found = re.search(r"AGENTS.md is cut: (\d+) of 800 lines are shown", chat.err.getvalue())
        assert found
        assert int(found[1]) > 0
        assert not (await chat.send("hi")).startswith("✗")
        assert found[0] in await chat.send("/instructions")
        assert chat.state.provider.find_text(f"({found[1]} of 800 lines shown)")

    run_chat(project, monkeypatch, steps, window=8_000, trust_hash=whole)


def test_a_chat_starts_with_a_record_of_another_session(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.run_piped("run", "--session", "older", "Never push to main.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("go on")
        assert chat.state.session.id == "new"
        assert chat.state.provider.find_text("Never push to main.")
        first = (await chat.state.session.events())[0].fact
        assert isinstance(first, Opened)
        assert first.origin == "older"

    run_chat(project, monkeypatch, steps, session="new", continue_from="old", carry="rules")


def test_model_and_policy_change_for_this_session_only(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        assert await chat.send("/model") == "scripted/model · window 32,000 (set by you)\n"
        await chat.send("said to the first")
        assert await chat.send("/model gpt-4.1") == "gpt-4.1 · window 32,000 (set by you)\n"
        assert (await chat.send("/model broken/model")).startswith(
            "✗ no provider is known for 'broken/model'"
        )
        assert (await chat.send("/model")).startswith("gpt-4.1")
        assert (await chat.send("/policy handoff")).startswith("handoff · mode auto · acts at ")
        assert (await chat.send("/policy nothing")).startswith(
            "✗ there is no policy 'nothing'; there are economy, "
        )
        assert "others: economy, " in await chat.send("/policy")
        await chat.send("again")
        assert len(chat.state.provider.find_text("said to the first")) == 1

    run_chat(project, monkeypatch, steps, window=32_000)
    other = project.run_piped("chat", "--session", "other", input="/policy\n")
    assert re.match(r"economy · .*, or earlier when a cut costs little\n", other.stdout)


BY_NAME: Final = """
from foveal.testing import Scripted

def make(name, *, environment, window, progress):
    known = 8_000 if name == "scripted/small" else 100_000
    return Scripted(*["Read."] * 9, window=window or known, name=name or "scripted/large")
"""


def test_a_smaller_model_in_the_middle_gets_a_request_that_fits(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.home / "script.py").write_text(BY_NAME)

    async def steps(chat: InProcessChat) -> None:
        for number in range(6):
            await chat.send(f"part {number}: " + "some words of a long message " * 600)
        before = await chat.state.session.report()
        assert before.used > 15_000
        assert await chat.send("/model scripted/small") == "scripted/small · window 8,000 (set by you)\n"
        assert (await chat.send("go on")) == "Read.\n"
        report = await chat.state.session.report()
        assert report.used < 8_000
        assert (await chat.send("/context")).startswith("context scripted/small · window 8,000")
        await chat.send("/model scripted/large")
        assert (await chat.send("/context")).startswith("context scripted/large · window 100,000")

    run_chat(project, monkeypatch, steps)
    project.request()


@pytest.mark.parametrize("given", [{"window": 32_000}, {"settings": {"window": "32000"}}])
def test_a_window_that_the_user_has_set_stays_with_each_model_that_has_room_for_it(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    (project.home / "script.py").write_text(BY_NAME)

    async def steps(chat: InProcessChat) -> None:
        assert await chat.send("/model scripted/small") == "scripted/small · window 8,000 (set by you)\n"
        assert (
            "the window of 32,000 tokens that you have set is not used: scripted/small has 8,000"
            in chat.err.getvalue()
        )
        assert await chat.send("/model scripted/large") == "scripted/large · window 32,000 (set by you)\n"
        assert chat.err.getvalue() == ""

    run_chat(project, monkeypatch, steps, **given)


def test_sessions_are_listed_resumed_forked_and_continued(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.run_piped("run", "--session", "older", "what was said in the older one")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("hi")
        await chat.send("/pin never push")
        listed = (await chat.send("/sessions")).splitlines()
        assert re.match(r"→  s +\d{4}-\d\d-\d\d \d\d:\d\d +\d+ events  hi", listed[0])
        assert re.match(r"   older +.*what was said in the older one", listed[1])
        assert (await chat.send("/fork copy")).startswith("session copy · ")
        assert (await chat.state.session.info()).title == "fork of hi"
        await chat.send("in the copy")
        assert "fork of hi" in await chat.send("/sessions")
        await chat.send("/fork second")
        assert (await chat.state.session.info()).title == "fork of hi"
        assert (await chat.send("/resume s")).startswith("session s · ")
        assert chat.state.session.id == "s"
        assert not (await chat.send("/why in the copy")).startswith("in the last request")
        assert (await chat.send("/continue-from s")).startswith("session 20")
        await chat.send("go on")
        assert chat.state.provider.find_text("never push")
        [place] = chat.state.provider.find_text("record of session 's'")
        assert place.endswith("(user)")
        assert chat.state.provider.find_text(system_text()[:60])
        assert (await chat.send("/continue-from s rules")).startswith("session 20")
        assert not any(isinstance(event.fact, UserSaid) for event in await chat.state.session.events())
        count = len(await chat.state.store.sessions())
        assert (await chat.send("/continue-from s everything")).startswith("✗ carry = 'everything'")
        assert (await chat.send("/continue-from s e999")).startswith("✗ no event has the handle 'e999'")
        assert len(await chat.state.store.sessions()) == count
        assert (await chat.send("/resume nothing")).startswith("✗ no session 'nothing'")
        assert (await chat.send("/resume")).startswith("✗ /resume needs a session")
        assert (await chat.send("/continue-from")).startswith("✗ /continue-from needs a session")
        assert (await chat.send("/fork copy")).startswith("✗ ")

    run_chat(project, monkeypatch, steps)
    assert project.user_messages("copy") == ["hi", "in the copy"]
    assert project.user_messages("s") == ["hi"]


def test_rewind_goes_back_to_before_a_message(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(chat: InProcessChat) -> None:
        assert (await chat.send("/rewind")) == "there are no messages yet\n"
        await chat.send("first")
        await chat.send("second")
        listed = await chat.send("/rewind")
        handles = re.findall(r"  (e\d+)  (\w+)", listed)
        assert [words for _, words in handles] == ["first", "second"]
        assert "back to before “second”" in await chat.send(f"/rewind {handles[1][0]}")
        await chat.send("third")
        assert not chat.state.provider.find_text("second")
        assert chat.state.provider.find_text("first")
        assert (await chat.send("/rewind e0")).startswith(
            "✗ 'e0' is not one of your messages in this session; there are e"
        )
        assert "(rewound): its messages are back in their places" in await chat.send("/undo")
        await chat.send("fourth")
        assert chat.state.provider.find_text("second")

    run_chat(project, monkeypatch, steps)
    assert project.user_messages() == ["first", "second", "third", "fourth"]


def test_undo_after_a_rewind_takes_back_the_rewind_and_no_older_summary(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script(*["A long answer about bounds. " * 60] * 12)

    async def steps(chat: InProcessChat) -> None:
        for number in range(5):
            await chat.send(f"question {number}")
        await chat.send("/compact")
        for number in range(5, 7):
            await chat.send(f"question {number}")
        before = (await chat.state.session.report()).used
        last = re.findall(r"  (e\d+)  question 6", await chat.send("/rewind"))[-1]
        await chat.send(f"/rewind {last}")
        assert (await chat.state.session.report()).used < before
        assert "(rewound)" in await chat.send("/undo")
        report = await chat.state.session.report()
        assert (report.used, len(report.summaries)) == (before, 1)

    run_chat(project, monkeypatch, steps, window=32_000)


def test_context_counts_the_tools_before_the_first_message(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        assert re.search(r"t tools +[\d,]+ ", await chat.send("/context"))

    run_chat(project, monkeypatch, steps)


def test_an_export_as_markdown_is_the_conversation_to_read(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "a.txt").write_text("a ```fence``` in it\n")
    project.script([("read", {"path": "a.txt"})], "It has **one** line.", "Taken back.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("read a.txt")
        await chat.send("never mind")
        await chat.send(f"/rewind e{chat.state.session.last - 2}")
        assert "4 messages written to " in await chat.send("/export out.md")
        assert (await chat.send("/export out.md")).startswith("✗ ")

    run_chat(project, monkeypatch, steps)
    text = (project.folder / "out.md").read_text()
    assert text.startswith("# read a.txt\n\n## User · e")
    assert '\n```\n{"path": "a.txt"}\n```\n' in text
    assert "\n````\na ```fence``` in it\n" in text
    assert "It has **one** line.\n" in text
    assert "never mind" not in text
    done = project.run_piped("export", "s", "--to", "markdown")
    assert done.stdout == text


def test_export_writes_a_file_and_never_overwrites(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        await chat.send("hi")
        assert "events written to " in await chat.send("/export out.jsonl")
        assert (await chat.send("/export out.jsonl")).startswith("✗ ")
        await chat.send("/export chat.json openai")
        assert (await chat.send("/export")).startswith("✗ /export needs a file, and takes a format: foveal, ")

    run_chat(project, monkeypatch, steps)
    messages = json.loads((project.folder / "chat.json").read_text())
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    assert (project.folder / "out.jsonl").read_text().count("\n") > 3


@pytest.mark.parametrize(
    "name", [".git/hooks/pre-commit", "AGENTS.md", ".envrc", "sub/../.vscode/tasks.json", "link/x"]
)
def test_export_does_not_write_protected_files(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (project.folder / ".git" / "hooks").mkdir(parents=True)
    (project.folder / ".vscode").mkdir()
    (project.folder / "sub").mkdir()
    (project.folder / "link").symlink_to(project.folder / ".git" / "hooks")
    before = sorted(project.folder.rglob("*"))

    async def steps(chat: InProcessChat) -> None:
        assert "is protected, because programs run or read it: name another file" in await chat.send(
            f"/export {name}"
        )

    run_chat(project, monkeypatch, steps)
    assert sorted(project.folder.rglob("*")) == before


def test_a_model_with_an_unknown_provider_is_said_to_be_one_of_the_configured_server(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        monkeypatch.delenv("FOVEAL_PROVIDER")
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        shown = await chat.send("/model nope/zzz")
        assert "openai/nope/zzz" in shown
        assert "there is no provider nope: nope/zzz is taken as a model of the server" in shown
        assert "there is no provider" not in await chat.send("/model openai/nope/zzz")
        assert "did you mean openai/gpt-5.1?" in await chat.send("/model opnai/gpt-5.1")

    run_chat(project, monkeypatch, steps)


def test_a_model_without_a_provider_says_that_the_provider_changes(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        monkeypatch.delenv("FOVEAL_PROVIDER")
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        assert "the provider is now" not in await chat.send("/model vllm/m")
        said = "the provider is now openai; /model vllm/nope asks vllm for this model"
        assert said in await chat.send("/model nope")
        assert "the provider is now" not in await chat.send("/model other")

    run_chat(project, monkeypatch, steps)


def test_export_creates_no_folder(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(chat: InProcessChat) -> None:
        for name in ("missing/x.md", project.home / "missing" / "x.md", "a.txt/x.md"):
            assert (await chat.send(f"/export {name}")).startswith("✗ there is no folder ")

    run_chat(project, monkeypatch, steps)
    assert not (project.folder / "missing").exists()
    assert not (project.home / "missing").exists()


def test_help_lists_all_commands_and_quit_ends_the_chat(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        text = await chat.send("/help")
        for one in SLASH_COMMANDS:
            assert one.name in text
            assert one.description in text
        assert not chat.loop.has_left
        await chat.send("/quit")
        assert chat.loop.has_left

    run_chat(project, monkeypatch, steps)


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs/terminal/chat.md").read_text(encoding="utf-8")
    assert [one.name for one in SLASH_COMMANDS if f"`{one.name}" not in page] == []


def test_text_that_only_resembles_a_command_is_a_message() -> None:
    assert parse_command("what is /context?") is None
    assert parse_command("/etc/hosts looks odd") is None
    with pytest.raises(FovealError, match="/context takes no further lines: nothing was run or sent"):
        parse_command("/context\nis a command, I think")
    with pytest.raises(FovealError, match=r"did you mean /context\?"):
        parse_command("/contxt")


def test_a_full_disk_is_reported(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(chat: InProcessChat) -> None:
        async def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(chat.state.store, "append", full)
        assert (await chat.send("hi")).startswith("✗ [Errno 28] No space left on device")
        assert (await chat.send("/pin a rule")).startswith("✗ ")

    run_chat(project, monkeypatch, steps)


# ── output and input ─────────────────────────────────────────────────────────────────────────────────────


def test_streamed_markdown_is_split_into_blocks() -> None:
    text = "# A\n\nsome text\nmore\n\n- a\n\n- b\n\n  c\n\n```\nx\n\ny\n```\n\nend\n\n1. a\n\n2. b\n\nlast\n"
    for size in (1, 3, 1000):
        blocks = MarkdownBlocks()
        done = [block for at in range(0, len(text), size) for block in blocks.feed(text[at : at + size])]
        assert [*done, blocks.end()] == [
            "# A\n\n", "some text\nmore\n\n", "- a\n\n- b\n\n  c\n\n", "```\nx\n\ny\n```\n\n", "end\n\n",
            "1. a\n\n2. b\n\n", "last\n",
        ]  # fmt: skip


def test_drawn_markdown_keeps_all_text_and_no_control_characters() -> None:
    drawn = MarkdownPainter(Theme(codes={})).draw(
        "List<int> <!-- hidden --> [bold]x[/bold] :smile: &#x202e; &#27;[2J", width=100
    )
    assert drawn == "List<int> <!-- hidden --> [bold]x[/bold] :smile: ⟨U+202E⟩ �[2J\n"
    assert "\x1b]8" not in MarkdownPainter(Theme()).draw("[a](http://b)", width=80)


@given(answer=answers(has_images=True), width=st.sampled_from([30, 40, 80, 200]))
@examples(60)
def test_drawn_markdown_loses_no_word(answer: Answer, width: int) -> None:
    drawn = MarkdownPainter(Theme(codes={})).draw(answer.markdown, width=width)
    shown = re.sub(
        r"[\s▌•]", "", drawn
    )  # a long word is broken, and a bar stands before each line of a quote
    place = 0
    for word in sorted(answer.words, key=answer.markdown.index):
        assert (place := shown.find(word, place)) >= 0, word


@pytest.mark.parametrize("width", range(20, 90, 7))
def test_an_image_in_a_line_takes_no_letter_from_it(width: int) -> None:
    words = (
        "Look at ![a picture that must be](http://x/y.png) seen at some place of a long line that goes on."
    )
    drawn = MarkdownPainter(Theme(codes={})).draw(words, width=width)
    told = "Look at image: a picture that must be (http://x/y.png) seen at some place of a long line that goes on."
    assert drawn.split() == told.split()


def test_a_pasted_tab_is_shown_as_a_blank_and_sent_as_it_is(project: ChatProject) -> None:
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.paste("if x:\n\treturn\t1")
        terminal.see("return")
        terminal.see(lambda t: any(line.strip() == "return  1" for line in t.lines))
        assert "^I" not in terminal.text
        terminal.enter("")
        terminal.see("Hello you.")
    assert project.user_messages() == ["if x:\n\treturn\t1"]


def test_rows_are_safe_to_print_and_fit_the_width() -> None:
    assert plain_text([row("a\x1b[31m\nb\tc")]) == "a␛[31m␊b    c\n"
    assert ansi_text([row("漢字漢字")], width=6, theme=Theme(codes={})) == "漢字…\n"
    assert cell_width(cut("漢字漢字漢字", 7)) <= 7


def test_a_long_row_is_wrapped_at_words_below_its_own_text() -> None:
    mark = row(Span("▪ clipped e27: the model sees ", "dim"), bold("1,868 of its"), " tokens · /expand e27")
    wrapped = wrap_row(mark, 40)
    assert plain_text(wrapped).splitlines() == [
        "▪ clipped e27: the model sees 1,868 of",
        "  its tokens · /expand e27",
    ]
    assert wrapped[1] == (Span("  ", "dim"), bold("its"), Span(" tokens · /expand e27"))
    for text, expected in {
        "  e3  the first of many": ["  e3  the first of", "      many"],
        "  │ so the summary goes on": ["  │ so the summary", "  │ goes on"],
        "a_word_longer_than_the_line": ["a_word_longer_than_t", "he_line"],
        "漢字漢字漢字 漢字": ["漢字漢字漢字 漢字"],
        "漢字漢字漢字漢字 漢字漢": ["漢字漢字漢字漢字", "漢字漢"],
    }.items():
        assert plain_text(wrap_row(row(text), 20)).splitlines() == expected
    assert wrap_row(row("short"), 40) == [row("short")]


def test_an_error_of_the_library_names_slash_commands() -> None:
    text = 'e4 does not fit; `expand` an event of it, call `compact()`, or `undo("e4")`; `undone` stays'
    assert with_slash_commands(text) == (
        "e4 does not fit; /expand an event of it, call /compact, or /undo e4; `undone` stays"
    )


def test_grid_cells_always_add_up() -> None:
    assert apportion({"a": 1, "b": 1, "c": 999_998}, 200) == {"a": 1, "b": 1, "c": 198}
    assert sum(apportion({str(n): n for n in range(1, 14)}, 200).values()) == 200
    assert apportion({"a": 0, "b": 5}, 10) == {"a": 0, "b": 10}


def test_a_turn_pays_the_price_of_writes_for_an_hour() -> None:
    priced = foveal.model("test", window=10_000, input_price=10.0, write_price=12.5, output_price=50.0)
    used = Used(input=0, cache_write=400, cache_write_1h=300)
    [turn] = turn_usages([Event(0, UserSaid(content="Hello.")), Event(1, used)], priced)
    assert turn.cost == pytest.approx((100 * 12.5 + 300 * 20) / 1e6)
    assert sum(apportion({str(n): 1 for n in range(30)}, 20).values()) == 20


def test_the_name_of_a_paste_expands_to_its_text() -> None:
    pastes = Pastes()
    name = pastes.collapse("x" * 10_000)
    assert name == "[paste 1: 1 line, 10,000 characters]"
    assert Pastes().collapse("a\n" * 150) == "[paste 1: 150 lines, 300 characters]"
    assert Pastes().collapse("a\n" * 149 + "a") == "[paste 1: 150 lines, 299 characters]"
    assert pastes.expand(f"a {name} b") == f"a {'x' * 10_000} b"
    assert pastes.expand("[paste 2: 1 line, 10,000 characters]") == "[paste 2: 1 line, 10,000 characters]"
    assert pastes.collapse("short\ntext") == "short\ntext"
