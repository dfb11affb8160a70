"""Arguments of `Context` are checked when they are given, not when they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foveal import BadSetting, Context, Limits

HISTORY = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx: ctx.limit("c1", {"head": 5}),
        lambda ctx: ctx.limit("c1", None),
        lambda ctx: ctx.limit(5, Limits()),
        lambda ctx: ctx.limit("", Limits()),
        lambda ctx: ctx.pin(""),
        lambda ctx: ctx.pin("  "),
        lambda ctx: ctx.pin(5),
        lambda ctx: ctx.pin("rule " * 9_000),
        lambda ctx: ctx.fit(HISTORY, tools=["search"]),
        lambda ctx: ctx.fit(HISTORY, tools=[{}]),
        lambda ctx: ctx.fit(HISTORY, tools=[print]),
        lambda ctx: ctx.fit(HISTORY, tools={"type": "function"}),
        lambda ctx: ctx.fit(HISTORY, system=5),
        lambda ctx: ctx.fit("hi"),
        lambda ctx: Context.load(b""),
    ],
)
def test_a_wrong_argument_is_refused_and_changes_nothing(call: Callable[[Context], Any]) -> None:
    ctx = Context("gpt-4.1", window=8_000)
    before = ctx.log
    with pytest.raises(BadSetting):
        call(ctx)
    assert ctx.log == before


def test_a_pin_that_is_too_large_says_by_how_much() -> None:
    with pytest.raises(BadSetting, match=r"it has 9,00\d tokens, a request 3,\d\d\d"):
        Context("gpt-4.1", window=8_000, reserve=4_096).pin("rule " * 9_000)


def test_lone_surrogates_survive_a_request_and_a_saved_context() -> None:
    ctx = Context("gpt-4.1")
    ctx.pin("a\ud800b")
    history = [{"role": "user", "content": "c\ud800d"}]
    fitted = ctx.fit(history, system="e\ud800f")
    assert Context.load(ctx.save()).fit(history, system="e\ud800f") == fitted
    assert [message["content"] for message in fitted] == ["Pinned rule: a\ufffdb", "c\ufffdd"]
