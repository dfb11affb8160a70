"""A history that ends with `compaction_trigger`: `fit` leaves it whole, so that the provider compacts it."""

from __future__ import annotations

from typing import Any

import pytest

import foveal

TRIGGER = {"type": "compaction_trigger"}
ITEM = {"type": "compaction", "encrypted_content": "gAAAAABo"}


def history(calls: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [{"role": "user", "content": "Why is CI red?"}]
    for number in range(calls):
        id = f"c{number}"
        items.append({"type": "function_call", "call_id": id, "name": "bash", "arguments": "{}"})
        words = f"line {number} of the file is here\n" * 60
        items.append({"type": "function_call_output", "call_id": id, "output": words})
    return items


def fitted_until_cut(calls: int) -> tuple[foveal.Context, list[dict[str, Any]]]:
    ctx, items = foveal.Context("gpt-5", window=128_000), history(calls)
    for end in range(1, len(items) + 1, 2):
        ctx.fit(items[:end])
    assert ctx.report().reduced
    return ctx, items


def test_a_request_with_a_trigger_is_not_reduced_and_the_trigger_is_not_recorded() -> None:
    ctx, items = foveal.Context("gpt-5", window=64_000), history(60)
    fitted, origins = ctx.fit_with_origins([*items, TRIGGER])
    assert fitted == [*items, TRIGGER]
    assert [origin.input for origin in origins] == list(range(len(items) + 1))
    assert not ctx.report().reduced
    assert ctx.fit([items[0], ITEM]) == [items[0], ITEM]


def test_after_a_cut_the_provider_gets_the_whole_history() -> None:
    ctx, items = fitted_until_cut(110)
    cut, log = ctx.fit(items), ctx.log
    fitted, origins = ctx.fit_with_origins([*items, TRIGGER])
    assert fitted == [*items, TRIGGER]
    assert [origin.input for origin in origins] == list(range(len(items) + 1))
    fitted[0]["content"] = "Something else."
    assert ctx.log == log
    assert items[0]["content"] == "Why is CI red?"
    assert ctx.fit(items) == cut
    ctx.fit([*items, TRIGGER])
    ctx.observe({"input_tokens": 60_000, "output_tokens": 50})
    assert ctx.report().measured


def test_a_history_that_does_not_fit_whole_is_not_sent() -> None:
    ctx, items = fitted_until_cut(300)
    with pytest.raises(
        foveal.ContextOverflow, match="the provider compacts only what it can read whole"
    ) as found:
        ctx.fit([*items, TRIGGER])
    assert found.value.needed > found.value.available
    assert found.value.floor == found.value.needed
    assert ctx.fit(items)


def test_in_another_dialect_it_is_an_item_as_any_other() -> None:
    ctx = foveal.Context("gpt-4.1", dialect="openai_chat")
    with pytest.raises(foveal.MalformedMessage):
        ctx.fit([{"role": "user", "content": "Why is CI red?"}, TRIGGER])
