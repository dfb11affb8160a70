"""`plain`: above a number of tokens, one summary and the newest messages."""

from __future__ import annotations

from typing import Any

import pytest

import foveal
from foveal import BadSetting, Context, testing
from foveal.core.log.events import Clipped, Compacted, Dropped, Masked
from foveal.core.policies.presets import PRESETS
from support.effort import rest_in_soak

Json = dict[str, Any]
SYSTEM = {"role": "system", "content": "You are careful."}
TASK = {"role": "user", "content": "Make the build green."}


def call(number: int, *, results: int = 1, lines: int = 40) -> list[Json]:
    ids = [f"call_{number}_{place}" for place in range(results)]
    calls = [{"id": id, "type": "function", "function": {"name": "bash", "arguments": "{}"}} for id in ids]
    text = "\n".join(f"{number}: part {line} is built" for line in range(lines))
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": id, "content": text} for id in ids),
    ]


def played(
    policy: foveal.Policy, calls: int, *, window: int = 60_000, **shape: int
) -> tuple[Context, list[Json]]:
    """Return a context after so many calls, and its last request."""
    ctx = Context("gpt-4.1", window=window, policy=policy, tokenizer="estimate")
    messages: list[Json] = [SYSTEM, TASK]
    request = ctx.fit(messages)
    for number in range(calls):
        messages += call(number, **shape)
        request = ctx.fit(messages)
    return ctx, request


def reductions(ctx: Context) -> list[type]:
    kinds = (Clipped, Compacted, Dropped, Masked)
    return [type(event.fact) for event in ctx.log if isinstance(event.fact, kinds)]


def test_nothing_is_cut_below_the_number_of_tokens() -> None:
    ctx, request = played(foveal.policy("plain", cut_at=30_000), 12)
    assert reductions(ctx) == []
    assert len(request) == 2 + 24


def test_a_cut_leaves_the_task_one_summary_and_the_newest_messages() -> None:
    policy = foveal.policy("plain", cut_at=3_000, keep_messages=6)
    ctx, request = played(policy, 40)
    cuts = [event.seq for event in ctx.log if isinstance(event.fact, Compacted)]
    assert reductions(ctx) == [Compacted] * len(cuts)
    newest = next(number for number in range(1, 41) if cuts[-1] in _seqs_after(ctx, number))
    assert request[:2] == [SYSTEM, TASK]
    assert "record of" in request[2]["content"]
    assert len(request) == 3 + 6 + 2 * (40 - newest)
    assert ctx.report().used <= 3_000


def _seqs_after(ctx: Context, number: int) -> range:
    """Return the seqs of the events between the result of call `number` and the next one."""
    results = [event.seq for event in ctx.log if type(event.fact).__name__ == "ToolReturned"]
    return range(results[number - 1], results[number] if number < len(results) else len(ctx.log))


def test_a_step_stays_whole_when_the_newest_messages_begin_inside_of_it() -> None:
    _, request = played(foveal.policy("plain", cut_at=3_000, keep_messages=5), 14, results=3, lines=20)
    assistants = [message for message in request if message["role"] == "assistant"]
    assert len([message for message in request if message["role"] == "tool"]) == 3 * len(assistants)


def test_without_summaries_a_notice_says_what_is_missing() -> None:
    ctx, request = played(foveal.policy("plain", cut_at=3_000, keep_messages=6, mode="off"), 12)
    assert set(reductions(ctx)) == {Dropped}
    assert "older messages are not shown here" in request[2]["content"]


def test_a_cut_that_would_free_little_waits() -> None:
    ctx, _ = played(foveal.policy("plain", cut_at=1_000, keep_messages=20), 11)
    assert ctx.report().used > 1_000
    assert reductions(ctx) == []


def test_a_request_fits_a_window_that_is_smaller_than_the_number_of_tokens() -> None:
    ctx, _ = played(foveal.policy("plain", cut_at=100_000, keep_messages=6), 40, window=6_000)
    assert ctx.report().used <= ctx.report().limit


def test_the_earlier_summary_is_part_of_the_new_one() -> None:
    ctx, request = played(foveal.policy("plain", cut_at=3_000, keep_messages=6), 40)
    assert reductions(ctx).count(Compacted) > 1
    assert sum("record of" in str(message["content"]) for message in request) == 1


def test_cut_at_is_another_name_of_act_tokens() -> None:
    same = foveal.policy("plain", act_tokens=50_000)
    assert (
        foveal.policy("plain", cut_at=50_000) == foveal.policy({"preset": "plain", "cut_at": 50_000}) == same
    )
    with pytest.raises(BadSetting, match="the same setting"):
        foveal.policy("plain", cut_at=1, act_tokens=2)
    with pytest.raises(BadSetting, match="cut_at = -1"):
        foveal.policy("plain", cut_at=-1)


def test_the_defaults_are_those_of_the_page() -> None:
    plain = PRESETS["plain"]
    assert (plain.act_tokens, plain.keep_messages, plain.keep_task) == (100_000, 20, True)


@pytest.mark.parametrize("mode", rest_in_soak(["auto", "off"]))
def test_plain_keeps_the_laws(mode: Any) -> None:
    policy = foveal.policy("plain", cut_at=2_000, keep_messages=4, mode=mode)
    assert testing.check_policy(policy, histories=4).reductions


def test_an_unknown_setting_is_refused_with_all_that_there_are() -> None:
    with pytest.raises(BadSetting, match="no such setting; there are cut_at, name, ladder"):
        foveal.policy("plain", cut_att=3)  # type: ignore[call-arg]
