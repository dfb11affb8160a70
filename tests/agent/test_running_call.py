"""Output and time of running tools, and the end of a turn while one runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foveal
from foveal import Session
from foveal.agent.events import AgentEvent, ToolFinished, ToolOutputStreamed
from foveal.agent.loop import Agent
from foveal.agent.tool import MAX_LIVE_LINES, RunningCall
from foveal.agent.tools import Toolbox, Workspace, shell_tool
from foveal.core.log import ToolReturned
from foveal.testing import Scripted
from support.waiting import DEADLINE_S

SLOW_S = 0.6
"""Seconds until the user answers."""


def run_turn(
    folder: Path,
    *calls: str,
    stop_at: type | None = None,
    on_event: Callable[[AgentEvent], None] = lambda event: None,
    **options: Any,
) -> tuple[list[AgentEvent], list[Any]]:
    """Return the events of a turn that runs commands, and the results in the log."""

    async def turn() -> tuple[list[AgentEvent], list[Any]]:
        provider = Scripted([("run", {"command": command}) for command in calls], "done")
        async with foveal.open_store(str(folder / "a.db")) as store:
            session = await Session.open(store, "a", model=provider.model)
            agent = Agent(session, provider, Toolbox([shell_tool(Workspace(folder))]), **options)
            events, stream = [], agent.run("go")
            async for event in stream:
                events.append(event)
                on_event(event)
                if stop_at is not None and isinstance(event, stop_at):
                    await stream.aclose()
                    break
            results = [e.fact for e in await session.events() if isinstance(e.fact, ToolReturned)]
            await session.close()
            return events, results

    return asyncio.run(asyncio.wait_for(turn(), DEADLINE_S))


def test_a_running_command_reports_its_last_lines_and_its_time(tmp_path: Path) -> None:
    def touch_shown_lines(event: AgentEvent) -> None:
        for line in event.lines if isinstance(event, ToolOutputStreamed) else ():
            (tmp_path / f"{line} is shown").touch()

    command = "; ".join(
        f"echo {line}; until [ -e '{line} is shown' ]; do sleep 0.02; done" for line in ("one", "two")
    )
    events, _ = run_turn(tmp_path, command, on_event=touch_shown_lines)
    streamed = [event for event in events if isinstance(event, ToolOutputStreamed) and event.lines]
    assert list(dict.fromkeys(event.lines for event in streamed)) == [("one",), ("one", "two")]
    assert 0 < streamed[0].seconds < streamed[-1].seconds


def test_the_time_of_a_silent_command_is_reported_regularly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.agent.tool._REPORT_INTERVAL_S", 0.2)
    events, _ = run_turn(tmp_path, "sleep 0.5")
    assert {event.lines for event in events if isinstance(event, ToolOutputStreamed)} == {()}


def test_time_in_which_the_user_is_asked_does_not_count(tmp_path: Path) -> None:
    async def slow_yes(call: Any, what: str) -> bool:
        await asyncio.sleep(SLOW_S)
        return True

    async def slow_no(call: Any, what: str) -> bool:
        await asyncio.sleep(0.3)
        return False

    started = time.monotonic()
    events, _ = run_turn(tmp_path, "true", approve=slow_yes)
    others_s = time.monotonic() - started - SLOW_S
    told = [event for event in events if isinstance(event, ToolFinished | ToolOutputStreamed)]
    assert isinstance(told[-1], ToolFinished)
    assert all(0 <= event.seconds < others_s for event in told)
    (tmp_path / "a.db").unlink()
    events, _ = run_turn(tmp_path, "true", approve=slow_no)
    assert [event.seconds for event in events if isinstance(event, ToolFinished)] == [0.0]


def test_a_turn_that_is_closed_while_a_command_runs_ends_it_and_keeps_its_output(tmp_path: Path) -> None:
    _, results = run_turn(tmp_path, "echo begun; sleep 60; touch survived", stop_at=ToolOutputStreamed)
    assert [result.content.startswith("begun\n") for result in results] == [True]
    assert "was stopped" in results[0].content
    assert not (tmp_path / "survived").exists()


def test_live_lines_are_few_short_and_safe_to_print() -> None:
    running = RunningCall()
    running.add_output(b"".join(b"line %d\n" % number for number in range(100_000)))
    lines = running.last_lines()
    assert len(lines) == MAX_LIVE_LINES
    assert lines[-1] == "line 99999"
    running.add_output(b"10 %\r50 %\r90 %\r\n\x1b[31mred\x1b[0m \x1b]0;title\x07\x9b2J\xff" + b"x" * 9_000)
    *_, percent, coloured = running.last_lines()
    assert percent == "90 %"
    assert coloured.startswith("red ")
    assert len(coloured) <= 500
    assert coloured.isprintable()


def test_nothing_is_reported_before_a_tool_starts_or_without_news() -> None:
    running = RunningCall()
    running.add_output(b"early")
    assert (running.take_news(), running.seconds) == (False, 0.0)
    running.start()
    assert [running.take_news(), running.take_news()] == [True, False]
