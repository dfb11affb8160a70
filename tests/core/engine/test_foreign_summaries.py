"""Compaction blocks and items of a provider: kept whole and in place, whatever is reduced around them."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

import foveal
from foveal.core.log.events import Compacted, Event, ForeignSummary, Noted, Reverted
from foveal.core.tokens.counter import counter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.checkpoint import needed_seqs, restore_view, take_checkpoint
from foveal.core.view.fold import fold
from foveal.core.view.request import Fitted, render_view
from foveal.core.wire import wire_for
from foveal.errors import NotDropped

BLOCK: Final = {"type": "compaction", "content": "The user wants CI green.", "signature": "c2ln"}
ITEM: Final = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA" * 40}
PRESETS: Final = ("economy", "handoff", "recent", "rolling", "sliding-summary")
LONG: Final = "\n".join(f"line {number}: value {number * 7919 % 1000}" for number in range(120))


def _anthropic_turns(first: int, count: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in range(first, first + count):
        call = {"type": "tool_use", "id": f"t{turn}", "name": "bash", "input": {"command": f"run {turn}"}}
        result = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": f"{turn}\n{LONG}"}
        messages += [
            {"role": "user", "content": f"Task {turn}: look at file_{turn}.py"},
            {"role": "assistant", "content": [{"type": "text", "text": f"I look {turn}."}, call]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": f"Done with {turn}."},
        ]
    return messages


def _responses_turns(first: int, count: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for turn in range(first, first + count):
        items += [
            {"role": "user", "content": f"Task {turn}: look at file_{turn}.py"},
            {"type": "function_call", "call_id": f"c{turn}", "name": "bash", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{turn}", "output": f"{turn}\n{LONG}"},
            {"role": "assistant", "content": f"Done with {turn}."},
        ]
    return items


def _context(policy: str, dialect: str) -> foveal.Context:
    model = "claude-sonnet-4-5" if dialect == "anthropic" else "gpt-4.1"
    return foveal.Context(model, policy=policy, window=12_000, reserve=1_000, dialect=dialect)


def _blocks(messages: list[Any]) -> list[Any]:
    contents = (message["content"] for message in messages)
    return [block for content in contents if isinstance(content, list) for block in content]


@pytest.mark.parametrize("policy", PRESETS)
def test_a_compaction_block_outlives_every_reduction(policy: str) -> None:
    history = [
        {"role": "assistant", "content": [BLOCK]},
        *_anthropic_turns(0, 12),
    ]
    ctx = _context(policy, "anthropic")
    for end in range(2, len(history) + 1, 4):
        sent = ctx.fit(history[:end])
        assert sent[0]["role"] == "assistant"
        assert sent[0]["content"][0] == BLOCK
        assert _blocks(sent).count(BLOCK) == 1
    assert ctx.report().reduced


@pytest.mark.parametrize("policy", PRESETS)
def test_a_compaction_item_outlives_every_reduction(policy: str) -> None:
    history = [{"role": "user", "content": "Make CI green."}, ITEM, *_responses_turns(0, 12)]
    ctx = _context(policy, "openai_responses")
    for end in range(3, len(history) + 1, 4):
        sent = ctx.fit(history[:end])
        assert sent.count(ITEM) == 1
        assert sent.index(ITEM) <= 1
    assert ctx.report().reduced


def test_what_comes_before_a_block_is_sent_as_it_came_and_not_counted() -> None:
    before = _anthropic_turns(0, 30)
    answer = {
        "role": "assistant",
        "content": [
            {**BLOCK, "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "I go on."},
            {"type": "tool_use", "id": "x", "name": "bash", "input": {}},
        ],
    }
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "ok"}]}
    history = [*before, {"role": "user", "content": "Go on."}, answer, result]
    ctx = _context("economy", "anthropic")
    assert ctx.fit(history) == history
    report = ctx.report()
    assert not report.reduced
    assert report.used < 500
    assert ctx.why("e3").level == "summarised"


def test_the_notice_of_dropped_messages_goes_when_an_item_stands_for_them() -> None:
    history = [*_responses_turns(0, 40), {"role": "user", "content": "Go on."}]
    ctx = _context("recent", "openai_responses")
    notice, *rest = ctx.fit(history)
    assert "older messages are not shown here" in notice["content"]
    more = [ITEM, {"role": "user", "content": "And now?"}]
    assert ctx.fit([*history, *more]) == [*rest, *more]
    item = next(event for event in ctx.log if isinstance(event.fact, ForeignSummary))
    (found,) = ctx.report().breaks
    assert (found.cause, found.why) == (item.handle, "foreign_summary")
    undone = [*ctx.log, Event(len(ctx.log), Reverted(target=item.seq))]
    view = fold(undone, MessageTokens(counter("estimate")))
    assert render_view(view, wire_for("openai_responses"))[0] == [notice, *rest, more[-1]]


def test_a_moved_cache_mark_does_not_make_a_block_a_new_one() -> None:
    marked = {**BLOCK, "cache_control": {"type": "ephemeral"}}
    ctx = _context("economy", "anthropic")
    ctx.fit([{"role": "assistant", "content": [marked]}, {"role": "user", "content": "Go on."}])
    history = [{"role": "assistant", "content": [BLOCK]}, {"role": "user", "content": "Go on."}]
    assert ctx.fit(history) == history
    assert sum(isinstance(event.fact, ForeignSummary) for event in ctx.log) == 1


@pytest.mark.parametrize("policy", PRESETS)
def test_the_newest_of_several_blocks_counts_and_all_stay(policy: str) -> None:
    newer = {**BLOCK, "content": "CI is green."}
    history = [
        *_anthropic_turns(0, 5),
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": [BLOCK, {"type": "text", "text": "One."}]},
        *_anthropic_turns(5, 5),
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": [newer, newer]},
        *_anthropic_turns(10, 12),
    ]
    ctx = _context(policy, "anthropic")
    sent = ctx.fit(history)
    summaries = [block for block in _blocks(sent) if block["type"] == "compaction"]
    assert summaries == [BLOCK, newer, newer]
    assert ctx.report().reduced


@pytest.mark.parametrize("content", [None, "", 3, ["a"]])
def test_a_block_without_a_summary_covers_nothing_and_passes(content: Any) -> None:
    failed = {"type": "compaction", "content": content}
    history = [
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": [failed, {"type": "text", "text": "Yes."}]},
        {"role": "user", "content": "Good."},
    ]
    ctx = _context("economy", "anthropic")
    assert ctx.fit(history) == history
    assert not any(isinstance(event.fact, ForeignSummary) for event in ctx.log)


def test_an_item_splits_the_items_of_the_model() -> None:
    items = [
        {"role": "user", "content": "Make CI green."},
        {"role": "assistant", "content": "I look."},
        ITEM,
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gBBB"},
        {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
    ]
    ctx = _context("economy", "openai_responses")
    assert ctx.fit(items) == items
    assert [type(event.fact).__name__ for event in ctx.log][2:5] == [
        "ModelSaid",
        "ForeignSummary",
        "ModelSaid",
    ]


def test_a_summary_of_foveal_in_front_of_an_item_is_not_what_the_user_said() -> None:
    ctx = _context("handoff", "openai_responses")
    history = _responses_turns(0, 30)
    for end in range(4, len(history) + 1, 4):
        ctx.fit(history[:end])
    ctx.fit([*history, ITEM, {"role": "user", "content": "Go on."}])
    view = fold(ctx.log, MessageTokens(counter("estimate")))
    summaries = {event.seq for event in ctx.log if isinstance(event.fact, Compacted)}
    assert any(step.kind == "passed" and step.utterance.seq in summaries for step in view.steps)
    assert summaries.isdisjoint(Fitted.of(view).seqs)


def test_a_restored_view_shows_the_same() -> None:
    history = [
        *_anthropic_turns(0, 12),
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": [BLOCK, {"type": "text", "text": "One."}]},
        *_anthropic_turns(12, 12),
    ]
    ctx = _context("economy", "anthropic")
    ctx.fit(history[:40])  # a cut before the block
    sent = ctx.fit(history)
    meter = MessageTokens(counter("auto"))
    view = fold(ctx.log, meter)
    needed = needed_seqs(view)
    events = [event for event in ctx.log if event.seq in needed]
    restored = restore_view(events, take_checkpoint(view), meter)
    wire = wire_for("anthropic")
    assert render_view(view, wire)[0] == sent
    assert render_view(restored, wire)[0] == sent
    assert restored.units == view.units


def test_another_model_gets_the_messages_that_an_opaque_item_stands_for() -> None:
    history = [{"role": "user", "content": "Make CI green."}, *_responses_turns(0, 1), ITEM]
    ctx = _context("economy", "openai_responses")
    assert ctx.fit(history) == history
    ctx.use("gpt-5", window=12_000)
    assert ctx.fit(history) == history[:-1]
    assert ctx.report().used > 1_000
    assert any(isinstance(event.fact, Noted) for event in ctx.log)


def test_a_session_with_another_model_does_so_too() -> None:
    asyncio.run(_switch_session())


async def _switch_session() -> None:
    history = [{"role": "user", "content": "Make CI green."}, *_responses_turns(0, 1), ITEM]
    async with foveal.stores.MemoryStore() as store:
        session = await foveal.Session.open(store, "demo", model="gpt-5")
        await session.take(*history)
        assert ITEM in (await session.fit()).to_responses()
        await session.close()
        session = await foveal.Session.open(store, "demo", model="gpt-4.1")
        request = await session.fit()
        assert request.to_responses() == history[:-1]
        assert request.tokens > 1_000
        await session.close()


def test_a_summary_of_the_provider_cannot_be_dropped() -> None:
    ctx = _context("economy", "openai_responses")
    ctx.fit([{"role": "user", "content": "a"}, ITEM, {"role": "user", "content": "c"}])
    with pytest.raises(NotDropped, match="the provider made"):
        ctx.drop("e2")
