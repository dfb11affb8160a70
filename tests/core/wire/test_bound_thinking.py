"""Bound thinking in each dialect, the fields of requests, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from foveal import Context
from foveal.core.wire.bound_thinking import (
    BINDING_BETA,
    ThinkingCheck,
    with_beta,
    with_dropped_blocks,
)
from foveal.core.wire.legality import request_faults
from foveal.core.wire.overflow_errors import refused_thinking, refuses_controls

Json = dict[str, Any]
DROP = {"prefix_mismatch_behavior": "drop_block"}


def thought(number: int) -> Json:
    return {"type": "thinking", "thinking": f"Hm {number}.", "signature": f"sig{number}"}


def turn(number: int) -> list[Json]:
    said = {"role": "assistant", "content": [thought(number), {"type": "text", "text": f"Yes {number}."}]}
    return [said, {"role": "user", "content": f"And {number}?"}]


HISTORY: list[Json] = [{"role": "user", "content": "Go."}, *turn(1), *turn(2), *turn(3)]


@pytest.fixture
def check() -> ThinkingCheck:
    """A check that knows the answers of the history."""
    made = ThinkingCheck()
    for at in (1, 3, 5):
        made.remember("anthropic", HISTORY[:at], HISTORY[at : at + 1], system="Be careful.")
    return made


def without(*places: int) -> list[Json]:
    """Return the history without the thinking of some messages."""
    return [
        {**message, "content": message["content"][1:]} if at in places else message
        for at, message in enumerate(HISTORY)
    ]


@pytest.mark.parametrize("places", [(), (1,), (1, 3), (1, 3, 5)])
def test_thinking_may_be_left_out_from_the_start(check: ThinkingCheck, places: tuple[int, ...]) -> None:
    assert check.faults("anthropic", without(*places), system="Be careful.") == []


@pytest.mark.parametrize("places", [(3,), (1, 5)])
def test_thinking_at_the_end_of_the_chain_may_be_left_out_but_not_between(
    check: ThinkingCheck, places: tuple[int, ...]
) -> None:
    faults = check.faults("anthropic", without(*places), system="Be careful.")
    assert faults == (["[5].content[0] thinking without the one before it"] if places == (3,) else [])


def test_cache_marks_do_not_count(check: ThinkingCheck) -> None:
    block = {"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}}
    marked = [{"role": "user", "content": [block]}, *HISTORY[1:]]
    assert check.faults("anthropic", marked, system="Be careful.") == []


@pytest.mark.parametrize(
    "changed",
    [
        {"system": "Be quick."},
        {"system": "Be careful.", "tools": [{"name": "bash"}]},
        {"system": "Be careful.", "messages": [{"role": "user", "content": "Go!"}, *HISTORY[1:]]},
        {
            "system": "Be careful.",
            "messages": [HISTORY[0], {"role": "user", "content": "Now."}, *HISTORY[1:]],
        },
    ],
)
def test_every_other_change_counts_and_can_be_repaired(check: ThinkingCheck, changed: Json) -> None:
    messages = changed.pop("messages", HISTORY)
    assert len(check.faults("anthropic", messages, **changed)) == 3
    assert request_faults("anthropic", messages, thinking=check, **changed)
    left = check.without_refused("anthropic", messages, **changed)
    assert "thinking" not in str(left)
    assert check.faults("anthropic", left, **changed) == []


def test_only_what_is_before_a_refused_block_is_left_out(check: ThinkingCheck) -> None:
    edited = [*HISTORY[:2], {"role": "user", "content": "Edited."}, *HISTORY[3:]]
    reply = {"role": "assistant", "content": [thought(4), {"type": "text", "text": "Yes 4."}]}
    sent = check.without_refused("anthropic", edited, system="Be careful.")
    check.remember("anthropic", sent, [reply], system="Be careful.")
    left = check.without_refused("anthropic", [*edited, reply], system="Be careful.")
    assert [message for message in left if "thinking" in str(message)] == [reply]


# ── Dialects ─────────────────────────────────────────────────────────────────────────────────────────────


def test_reasoning_of_bedrock_is_left_out_after_a_change() -> None:
    reasoning = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}}
    messages: list[Json] = [
        {"role": "user", "content": [{"text": "Go."}]},
        {"role": "assistant", "content": [reasoning, {"text": "Yes."}]},
        {"role": "user", "content": [{"text": "And?"}]},
    ]
    ctx = Context("us.anthropic.claude-opus-5-5-20261001-v1:0", dialect="bedrock")
    assert ctx.fit(messages, system="Be careful.") == messages
    assert ctx.fit(messages, system="Be quick.")[1]["content"] == [{"text": "Yes."}]


def test_reasoning_of_bedrock_at_the_end_of_a_message_stays() -> None:
    reasoning = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}}
    messages: list[Json] = [
        {"role": "user", "content": [{"text": "Go."}]},
        {"role": "assistant", "content": [{"text": "Yes."}, reasoning]},
        {"role": "user", "content": [{"text": "And?"}]},
    ]
    assert Context("anthropic.claude-fable-5-1", dialect="bedrock").fit(messages) == messages


def test_signatures_of_gemini_stay_with_their_calls() -> None:
    call = {"functionCall": {"name": "ls", "args": {}}, "thoughtSignature": "c2ln"}
    messages: list[Json] = [
        {"role": "user", "parts": [{"text": "Go."}]},
        {"role": "model", "parts": [{"text": "Hm.", "thought": True}, call]},
        {"role": "user", "parts": [{"functionResponse": {"name": "ls", "response": {"output": "a.py"}}}]},
    ]
    ctx = Context("gemini-3-pro", dialect="gemini")
    assert ctx.fit(messages, system="Be careful.") == messages
    assert ctx.fit(messages, system="Be quick.") == messages


def test_thoughts_of_claude_in_the_form_of_gemini_are_bound() -> None:
    """A framework of Google writes the messages of every model as its own."""
    call = {"functionCall": {"name": "ls", "args": {}}}
    messages: list[Json] = [
        {"role": "user", "parts": [{"text": "Go."}]},
        {"role": "model", "parts": [{"text": "Hm.", "thought": True, "thoughtSignature": "c2ln"}, call]},
        {"role": "user", "parts": [{"functionResponse": {"name": "ls", "response": {"output": "a.py"}}}]},
    ]
    ctx = Context("claude-opus-5-5", dialect="gemini")
    assert ctx.fit(messages, system="Be careful.") == messages
    assert ctx.fit(messages, system="Be quick.")[1]["parts"] == [call]


# ── Fields and refusals ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, {"type": "adaptive", "block_binding": DROP}),
        ({"type": "adaptive"}, {"type": "adaptive", "block_binding": DROP}),
        (
            {"type": "enabled", "budget_tokens": 9},
            {"type": "enabled", "budget_tokens": 9, "block_binding": DROP},
        ),
        ({"type": "adaptive", "block_binding": None}, {"type": "adaptive", "block_binding": DROP}),
        ({"type": "disabled"}, None),
        ({"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}, None),
        ("adaptive", None),
        ({"type": "adaptive", "block_binding": []}, {"type": "adaptive", "block_binding": DROP}),
    ],
)
def test_the_field_asks_the_provider_to_drop_blocks(thinking: object, expected: Json | None) -> None:
    assert with_dropped_blocks(thinking, thinks=True) == expected
    assert with_dropped_blocks(thinking) == (expected if thinking else None)


def test_the_header_keeps_the_clients_values() -> None:
    assert with_beta("") == BINDING_BETA
    assert with_beta("a, b") == f"a,b,{BINDING_BETA}"
    assert with_beta(f"{BINDING_BETA},a") == f"{BINDING_BETA},a"


def test_refusals_are_told_apart() -> None:
    bound = (
        "messages.1.content.0: … The block is bound to a different conversation. Remove the block, or set "
    )
    bound += "`thinking.block_binding.prefix_mismatch_behavior`"
    unknown = "thinking.adaptive.block_binding: Extra inputs are not permitted"
    assert refused_thinking(ValueError(bound)) == bound
    assert not refuses_controls({"body": {"error": {"message": bound}}})
    assert refuses_controls({"body": {"error": {"message": unknown}}})
    assert refused_thinking(unknown) is None
    assert refused_thinking("prompt is too long") is None
    assert not refuses_controls(None)
