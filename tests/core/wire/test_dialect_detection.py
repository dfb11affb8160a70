"""Detection of dialects, and the likely dialect of messages that all dialects read alike."""

from __future__ import annotations

import pytest

import foveal
from foveal.core.wire import detect_dialect
from support.histories import ESTIMATE, Json, user
from support.legality import check_anthropic, check_chat

CLAUDE = ("claude-sonnet-4-5", "anthropic/claude-opus-4", "openrouter/anthropic/claude-sonnet-4-5")


def _turns(ctx: foveal.Context, *, first: list[Json]) -> list[list[Json]]:
    """Return the requests of a conversation of texts that is reduced on its way."""
    history, requests = list(first), []
    for number in range(20):
        history.append(user(f"question {number} " * 20))
        requests.append(ctx.fit(history))
        history.append({"role": "assistant", "content": f"answer {number} " * 60})
    return requests


@pytest.mark.parametrize("name", CLAUDE)
def test_plain_texts_for_claude_are_legal_in_both_apis(name: str) -> None:
    ctx = foveal.Context(name, window=4_000, tokenizer=ESTIMATE)
    ctx.pin("Be brief.")
    for request in _turns(ctx, first=[]):
        assert check_anthropic(request) == []
        assert check_chat(request) == []


def test_a_system_message_shows_that_claude_is_used_through_chat() -> None:
    ctx = foveal.Context("openrouter/anthropic/claude-sonnet-4-5", window=4_000, tokenizer=ESTIMATE)
    system = {"role": "system", "content": "Be brief."}
    for request in _turns(ctx, first=[system]):
        assert request[0] == system
        assert check_chat(request) == []


def test_calls_in_chat_form_decide_for_claude_too() -> None:
    ctx = foveal.Context("openrouter/anthropic/claude-sonnet-4-5", tokenizer=ESTIMATE)
    ctx.pin("Be brief.")
    ctx.fit([user("hi")])
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    request = ctx.fit([user("hi"), asked, {"role": "tool", "tool_call_id": "a", "content": "x"}])
    assert asked in request
    assert check_chat(request) == []


def test_parts_of_gemini_have_no_type() -> None:
    assert detect_dialect([{"role": "user", "parts": ({"text": "x"},)}]) == "gemini"
    assert detect_dialect([{"parts": []}]) == "gemini"
    assert detect_dialect([{"id": "m", "role": "user", "parts": [{"type": "text", "text": "x"}]}]) != "gemini"
    assert (
        detect_dialect([{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "x"}]}]) == ""
    )
