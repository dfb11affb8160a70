"""Figures and notices of a chat: one percentage, turns left, costs, refused drafts, other writers, settings."""

from __future__ import annotations

import re

import pytest

from foveal.agent.terminal.commands.write import full_text
from foveal.agent.terminal.output.agent_event_rows import reduction_rows
from foveal.agent.terminal.output.live_area import status_row
from foveal.agent.terminal.output.styled_text import plain_text
from foveal.core.compaction.health import CompactionMetrics
from foveal.core.log import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    CompactionFailed,
    Event,
    Mask,
    ModelSaid,
    ToolReturned,
    UserSaid,
    raw,
)
from support import warm_start
from support.chat_project import ChatProject, InProcessChat, run_chat


def test_every_display_shows_the_same_percentage(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script("word " * 400, window=8_000)

    async def steps(chat: InProcessChat) -> None:
        await chat.send("hello")
        report = await chat.state.session.report()
        shown = [plain_text([status_row(report)]), str(report)]
        shown += [await chat.send(command) for command in ("/context", "/tokens", "/compaction-status")]
        used = report.percent(report.used)
        assert [used in text for text in shown] == [True] * 5
        sizes = [re.findall(rf"{report.used:,}\D", text) for text in shown]
        assert all(sizes)

    run_chat(project, monkeypatch, steps)


def test_in_a_narrow_terminal_the_missing_sandbox_is_named_before_the_bar_is_drawn(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(chat: InProcessChat) -> None:
        report = await chat.state.session.report()
        for width in (24, 40, 50, 80):
            shown = plain_text([status_row(report, width=width, sandbox="", warning="")])
            assert " no sandbox" in shown
            assert len(shown.rstrip("\n")) <= width
        assert "▕" in shown

    run_chat(project, monkeypatch, steps)


def test_without_a_yes_the_limit_is_told_before_and_after(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script(*(f"answer {number} " + "word " * 90 for number in range(200)), window=8_000)

    async def steps(chat: InProcessChat) -> None:
        told: list[str] = []
        while "▪ the request has" not in "".join(told[-1:]):
            await chat.send("more")
            told.append(chat.err.getvalue())
            assert len(told) < 200
        *before, asked, reduced = told
        question = (
            r"\? Context usage at [\d.]+ % of the window \([\d,]+/8,000 tokens\)\. Compact conversation\? no:"
        )
        first = next(number for number, text in enumerate(told) if re.search(question, text))
        assert all(text == "" for text in before[:first])
        assert all(re.search(question, text) for text in (*before[first:], asked)), "asked after each answer"
        assert re.search(r"▪ The next turn needs about [\d,]+ tokens and [\d,]+ are left: ", asked)
        first_line, *others = reduced.splitlines()
        assert re.match(
            r"▪ The next request needs [\d,]+ tokens and at most [\d,]+ fit: .* how to undo it\.", first_line
        )
        assert re.search(r"summarised e\d+–e\d+.*/undo e\d+", "\n".join(others))

    run_chat(project, monkeypatch, steps, mode="confirm")


def test_a_failed_turn_does_not_change_the_turns_left(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script(code='"word " * 300, "word " * 300, ProviderError("busy", code="server"), "word " * 300')

    async def steps(chat: InProcessChat) -> None:
        left = []
        for text in ("one", "two", "three", "four"):
            await chat.send(text)
            left.append((await chat.state.session.report()).turns_left or 0)
        assert left == sorted(left, reverse=True)
        assert left[1] - left[2] <= 1

    run_chat(project, monkeypatch, steps)


def notice(fact: AnyFact) -> str:
    return plain_text(reduction_rows([Event(9, fact)], 0, 0))


def test_a_failed_summary_shows_its_cost_and_why_the_draft_was_refused() -> None:
    metrics = raw({"asked": 2, "cost": 0.0123, "checks": ["m: empty", "m: names e99, which does not exist"]})
    failed = CompactionFailed(first=1, last=5, problem="the provider is busy", metrics=metrics)
    assert notice(failed) == "▪ no summary of e1–e5: the provider is busy, cost $0.01\n"
    record = Compacted(first=1, last=5, summary="s", by="ledger", metrics=metrics)
    assert notice(record).splitlines()[1] == (
        "▪ no draft of a model could be used: m: names e99, which does not exist, cost $0.01"
    )
    assert notice(Clipped(target=5, pieces=((0, 900),))) == ""  # it shows a text whole again
    unasked = Compacted(first=1, last=5, summary="s", by="ledger", metrics=raw({"asked": 0}))
    assert len(notice(unasked).splitlines()) == 1
    assert CompactionMetrics(asked=2).cost is None


def test_a_cut_is_one_line_and_expands_to_all_that_it_hides_or_shortens() -> None:
    call = Call(id="c", name="read", arguments='{"path": "a.py"}')
    masks = (Mask(target=2, text="[foveal: a.py]"), Mask(target=1, part=0, text="{}"))
    metrics = raw(CompactionMetrics(before=900, after=100))
    cut = Compacted(first=1, last=3, keep=(1,), masks=masks, summary="s", reason="price", metrics=metrics)
    said = (
        UserSaid(content="Go."),
        ModelSaid(content=(call,)),
        ToolReturned(call_id="c", content="the code"),
    )
    log = [Event(seq, fact) for seq, fact in enumerate((*said, ModelSaid(content="It is read."), cut))]
    assert notice(cut) == (
        "▪ hid 1 result and shortened 1 message (900 tokens), with a record of 100 tokens, to make further calls "
        "cheaper · /expand e9 · /undo e9\n"
    )
    text = full_text(log[4], log)
    assert "Go." not in text
    assert [part in text for part in ("a.py", "the code", "It is read.")] == [True] * 3


def test_the_record_in_place_of_a_refused_summary_names_edits_and_failed_commands(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.script(
        [("write", {"path": "made.txt", "content": "hello\n"})],
        [("run", {"command": "ls ./nowhere-at-all"})],
        "Done, but the listing failed. " + "It is a long story. " * 150,
        "Yes. " + "It is so. " * 200,
        "Indeed.",
        *["no"] * 8,
    )

    async def steps(chat: InProcessChat) -> None:
        for text in ("make a file and list a folder", "is that so?", "really?"):
            await chat.send(text)
        shown = await chat.send("/compact") + chat.err.getvalue()
        assert "no draft of a model could be used" in shown
        facts = [event.fact for event in await chat.state.session.events()]
        record = next(fact for fact in facts if isinstance(fact, Compacted))
        assert record.by == "ledger"
        assert "made.txt" in record.summary
        assert "nowhere-at-all" in record.summary

    run_chat(project, monkeypatch, steps, yes=True)


def test_two_chats_on_one_session_warn_each_other(project: ChatProject) -> None:
    project.script("First.", "Second.")
    with project.terminal("--session", "s") as first:
        first.see("ctx")
        first.enter("one")
        first.see("First.")
        with project.terminal("--session", "s") as second:
            second.see("another process has this session open")
            second.see("ctx")
            second.enter("two")
            second.see(lambda _: project.user_messages()[-1] == "two")
        first.enter("three")
        first.see(lambda terminal: bool(re.search(r"another process has added \d+ event", terminal.text)))
        first.see("Second.")
    assert project.user_messages() == ["one", "two", "three"]


def test_tools_are_switched_off_and_on(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(chat: InProcessChat) -> None:
        assert "tools: read, " in (offered := await chat.send("/tools"))
        assert await chat.send("/tools off") == "the model is offered no tools; /tools on offers them\n"
        assert len((await chat.state.session.fit()).tools) == 0
        assert await chat.send("/tools on") == offered
        assert "/tools takes on or off" in await chat.send("/tools maybe")

    run_chat(project, monkeypatch, steps)


def test_a_setting_of_the_command_line_applies(project: ChatProject) -> None:
    done = project.run_piped("chat", "--set", "context.policy=rolling", input="/policy\n")
    assert "rolling" in done.stdout
    wrong = project.run_piped("chat", "--set", "context.policy", input="/policy\n")
    assert (wrong.returncode, "KEY=VALUE" in wrong.stderr) == (1, True)


def test_run_reads_bytes_that_are_not_utf8(project: ChatProject) -> None:
    command = ["-m", "foveal.cli", "run", "--session", "s"]
    done = warm_start.run(command, cwd=project.folder, env=project.env, input=b"caf\xe9 \xff\n")
    assert (done.returncode, done.stdout) == (0, b"Hello **you**.\n")
    assert project.user_messages() == ["caf\ufffd \ufffd\n"]
