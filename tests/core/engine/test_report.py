"""The report: totals that add up, thresholds, prefix breaks, text and JSON."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from msgspec import to_builtins
from msgspec.structs import replace

import foveal
from foveal import Report
from foveal.core.engine import Engine
from foveal.core.engine.report import CATEGORIES, report, usage_card, usage_line
from foveal.core.engine.settings import EngineSettings
from foveal.core.log import Clipped, Compacted, Event, Mask, Used, UserSaid
from foveal.core.models import Caps
from foveal.core.policies import policy
from support.histories import (
    ESTIMATE,
    call_message,
    context,
    events_of,
    plain_model,
    result,
    result_message,
    session,
    user,
)
from support.mcp_tools import tools_of
from support.report_checks import adds_up


def reduced_context(*, compact: bool = False) -> foveal.Context:
    ctx = context(6_000, {"preset": "economy", "compact": compact})
    history = session(0)
    ctx.pin("keep calm")
    for number in range(80):
        history += [call_message(f"c{number}"), result_message(f"c{number}", result(number, 300))]
        ctx.fit(history, tools=[{"type": "function", "function": {"name": "bash", "description": "x " * 40}}])
        if number > 30 and ctx.report().totals["summaries" if compact else "placeholders"]:
            break
    return ctx


def test_all_categories_add_up_to_the_window() -> None:
    found = reduced_context().report()
    assert tuple(found.totals) == CATEGORIES
    adds_up(found)
    for name in ("system", "tools", "pinned", "user", "assistant", "results", "placeholders"):
        assert found.totals[name] > 0, name


def test_an_empty_context_is_free_except_reserve_and_margin() -> None:
    found = context(10_000).report()
    assert found.used == 0
    assert {name for name, tokens in found.totals.items() if tokens} == {"reserve", "margin", "free"}
    assert found.totals["reserve"] == 1_000
    assert found.totals["margin"] >= 1_000
    assert found.totals["free"] == found.limit


def test_the_card_can_be_read_and_the_json_can_be_parsed() -> None:
    found = reduced_context().report()
    card = str(found)
    assert card == usage_card(found)
    assert card.splitlines()[0] == usage_line(found)
    assert f"ctx {found.used:,}/6,000" in card
    assert msgspec.json.decode(found.json(), type=Report) == found
    assert json.loads(found.json())["totals"] == found.totals


def test_a_size_is_measured_only_if_most_of_it_was_reported() -> None:
    ctx = context(6_000)
    history = session(1)
    ctx.fit(history)
    assert ctx.report().accuracy == "estimated"
    ctx.observe({"prompt_tokens": ctx.report().used, "completion_tokens": 5})
    assert ctx.report().accuracy == "measured"
    before = ctx.report().used
    ctx.fit([*history, user("a new text " * 400)])
    found = ctx.report()
    assert found.estimated == found.used - before
    assert found.accuracy == f"{found.estimated:,} tokens estimated"


@pytest.mark.parametrize("reported", [4_500, 7_000])
def test_a_request_above_its_limit_has_no_negative_part(reported: int) -> None:
    ctx = foveal.Context("gpt-5", window=5_000, reserve=1_000)
    ctx.fit([user("word " * 2_000)])
    ctx.observe({"prompt_tokens": reported, "completion_tokens": 5})
    found = ctx.report()
    adds_up(found)
    assert all(tokens > 0 for _, tokens in found.shown_totals)
    assert dict(found.shown_totals).get("over", 0) == max(0, found.used - 5_000)
    assert "-" not in str(found).replace("gpt-5", "")


def test_a_report_changes_nothing() -> None:
    ctx = context(6_000)
    request = ctx.fit(session(40))
    before = ctx.log
    for _ in range(3):
        str(ctx.report())
    assert ctx.log == before
    assert ctx.fit() == request
    assert "ctx " not in json.dumps(request)


@pytest.mark.parametrize("compact", [False, True])
def test_each_prefix_break_names_the_event_that_caused_it(compact: bool) -> None:
    ctx = reduced_context(compact=compact)
    breaks = ctx.report().breaks
    assert breaks
    for one in breaks:
        assert one.cause
        assert ctx.why(one.cause).kind == one.why in ("masked", "dropped", "clipped", "compacted")
        assert one.tokens > 0
    assert len({one.call for one in breaks}) == len(breaks)


def test_a_prefix_break_by_a_change_of_model_names_its_event() -> None:
    ctx = context(6_000)
    ctx.fit(session(2))
    ctx.use(replace(plain_model(8_000), name="somebody/else"))
    ctx.fit(session(2))
    (broken,) = ctx.report().breaks
    assert (broken.cause, broken.why) == (ctx.log[-1].handle, "opened")
    assert str(ctx.report()).endswith(f"1 prefix break in 2 requests, the last by {broken.cause}: opened")


def test_a_conversation_that_only_grows_has_no_prefix_breaks() -> None:
    ctx = context(50_000)
    for size in range(1, 12):
        ctx.fit(session(size))
    assert ctx.report().breaks == ()
    assert ctx.report().fitted == 11


def test_turns_left_shrink_as_the_window_fills() -> None:
    ctx = context(6_000)
    left = []
    for turn in range(8):
        ctx.append(user(f"{turn} " + "word " * 100), {"role": "assistant", "content": "word " * 100})
        ctx.fit()
        left.append(ctx.report().turns_left)
    assert left[0] is None, "one turn says little about many"
    assert None not in left[2:]
    assert left[2:] == sorted(left[2:], reverse=True)  # type: ignore[type-var]
    assert context().report().turns_left is None


def test_the_counter_and_its_ratio_are_named() -> None:
    assert context().report().counted_by == "estimate × 1.000"
    exact = foveal.Context("gpt-4.1").report().counted_by
    assert exact.startswith("o200k_base")


def test_system_text_and_instruction_files_are_separate_categories() -> None:
    from foveal.core.log import Instructed

    engine = Engine(EngineSettings(plain_model(8_000), policy("economy"), Caps(), ESTIMATE))
    engine.append(Instructed(content="You are careful."))
    engine.append(Instructed(content="Use tabs.", source="AGENTS.md"))
    totals = report(engine, fitted=0, breaks=()).totals
    assert totals["system"] > 0
    assert totals["instructions"] > 0


def test_usage_without_a_prompt_in_a_log_does_not_break_the_report() -> None:
    log = [Event(0, UserSaid(content="hi")), Event(1, Used(input=0))]
    engine = Engine(EngineSettings(plain_model(8_000), policy("economy"), Caps(), ESTIMATE), log=log)
    assert report(engine, fitted=0, breaks=()).cached_share in (None, 0.0)


def test_priorities_are_in_the_card() -> None:
    ctx = context(8_000, foveal.policy("economy", tool_priorities={"bash": "low"}))
    ctx.fit(session(7, words=20))
    ctx.mark("e4", priority="high")
    assert "\n  high priority: e4 · low priority: e6, e8, e10, e12, e14 and 1 more" in str(ctx.report())


def test_repairs_are_in_the_card() -> None:
    ctx = context()
    ctx.fit([user("go"), call_message("a"), result_message("x", "orphan"), user("?")])
    card = str(ctx.report())
    assert "call a (bash) has no result; a synthetic result is shown" in card
    assert "a result that no call waits for; kept out of the request" in card


def test_the_tokens_of_an_event_are_those_of_its_shown_text() -> None:
    ctx = reduced_context()
    lines = {line.handle: line for line in ctx.report().events}
    for event in events_of(ctx.log, UserSaid):
        if lines[event.handle].level == "full":
            assert lines[event.handle].tokens == 4 + ESTIMATE.count(ctx.original(event.handle))
    assert all(line.tokens == 0 for line in lines.values() if line.level in ("dropped", "-"))


@pytest.mark.parametrize("reported", [0.6, 0.93, 1.0, 1.4])
def test_the_tokens_of_events_add_up_to_their_category(reported: float) -> None:
    ctx = reduced_context()
    for _ in range(3):
        ctx.observe({"prompt_tokens": int(ctx.report().used * reported)})
    found = ctx.report()
    adds_up(found)
    sizes = dict.fromkeys(("user", "assistant", "summaries"), 0)
    for line in found.events:
        name = {"user_said": "user", "model_said": "assistant", "compacted": "summaries"}.get(line.kind, "")
        if name:
            sizes[name] += line.tokens
        assert ctx.why(line.handle) == line
    assert sizes == {name: found.totals[name] for name in sizes}
    results = [line for line in found.events if line.kind == "tool_returned"]
    assert sum(line.tokens for line in results if line.level != "masked") == found.totals["results"]


@pytest.mark.parametrize("compact", [False, True])
def test_the_levels_of_the_card_count_what_is_not_in_memory(compact: bool) -> None:
    found = reduced_context(compact=compact).report()
    levels = Counter(line.level for line in found.events if line.level not in ("-", "full"))
    assert {name: count for name, count in to_builtins(found.reduced).items() if count} == levels
    gone = replace(found, events=())
    assert usage_card(gone) == usage_card(found)
    level = "summarised" if compact else "masked"
    assert f"{levels[level]:,} {level}" in usage_card(gone)


@pytest.mark.parametrize("window", [1, 10, 700, 8_000, 1_000_000])
def test_the_report_of_an_empty_context_adds_up_for_any_window(window: int) -> None:
    adds_up(context(window).report())


def test_a_clipped_result_that_is_masked_as_a_whole_names_the_mask() -> None:
    ctx = context(8_000)
    listed = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "line\n" * 90}]}
    ctx.append(user("Go."), call_message("c"), listed)
    seq = ctx.log[-1].seq
    masks = (Mask(target=seq, text="[foveal]"),)
    ctx._engine.append(Clipped(target=seq, part=0, pieces=((0, 5), "[…]"), rule="squeeze"))
    ctx._engine.append(Compacted(first=seq, last=seq, summary="s", rule="economy", masks=masks))
    status = ctx.why(seq)
    assert (status.level, status.by, status.rule) == ("masked", f"e{seq + 2}", "economy")


@pytest.mark.parametrize("reported", [None, 900, 9_000])
@pytest.mark.parametrize("defer", [False, True])
@pytest.mark.parametrize("dialect", ["openai_chat", "anthropic"])
def test_the_tools_add_up_to_their_line(dialect: Any, defer: bool, reported: int | None) -> None:
    ctx = foveal.Context("gpt-4.1", dialect=dialect, defer_tools=defer)
    ctx.fit([{"role": "user", "content": "Why is CI red?"}], tools=tools_of(dialect))
    if reported is not None:
        ctx.observe({"prompt_tokens": reported, "completion_tokens": 5})
    report = ctx.report()
    assert any(tool.deferred for tool in report.tools) is defer
    assert sum(tool.tokens for tool in report.tools if not tool.deferred) == report.totals["tools"] > 0
