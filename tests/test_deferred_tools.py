"""Laws of deferred tools: the model has every tool that it loaded, and what was sent before stays as it was."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal import BadSetting, Context, ModelSaid, UserSaid, events
from foveal.core.log import Equipped, ToolReturned, ToolsLoaded
from foveal.core.view.loaded_tools import named_tools
from foveal.core.wire import wire_for
from foveal.core.wire.legality import request_faults
from foveal.core.wire.thinking_check import ThinkingCheck
from support.effort import examples
from support.histories import Json, long_text
from support.mcp_tools import neutral_tools, recorded_servers, tools_of

MODELS: Final = {
    "anthropic": "claude-fable-5-1",
    "openai_responses": "gpt-5.5",
    "openai_chat": "gpt-4.1",
    "gemini": "gemini-2.5-pro",
    "bedrock": "us.anthropic.claude-fable-5-1-v1:0",
}
IN_PLACE: Final = ("anthropic", "openai_responses")
NAMES: Final = [tool["name"] for tool in neutral_tools()]
CORE: Final = NAMES[:3]
few = examples(15)


class Loop:
    """An agent's loop: a model that loads tools, calls loaded ones, and calls some that it never loaded."""

    def __init__(self, dialect: Any, *, seed: int = 0, window: int = 200_000, **settings: Any) -> None:
        self.dialect, self.rng, self.wire = dialect, Random(seed), wire_for(dialect)
        self.ctx = Context(
            MODELS[dialect],
            dialect=dialect,
            window=window,
            reserve=1_000,
            tokenizer="estimate",
            **{"defer_tools": True, "core_tools": CORE, **settings},
        )
        self.given, self.messages, self.check = tools_of(dialect), list[Json](), ThinkingCheck()
        self.requests: list[tuple[list[Json], list[Json]]] = []
        self.loaded: set[str] = set()
        self.calls = 0
        self.add(UserSaid(content="Work through the list."))

    def add(self, *facts: Any) -> None:
        written = [self.wire.write(fact) for fact in facts]
        self.messages = self.wire.join([self.messages, *written])

    def fit(self) -> tuple[list[Json], list[Json]]:
        request = self.ctx.fit(self.messages, tools=self.given), self.ctx.tools
        self.requests.append(request)
        return request

    def call(self, name: str, arguments: Json, *, lines: int = 3) -> None:
        """Send a request, answer it with one call, and add the result."""
        request, tools = self.fit()
        self.calls += 1
        id = f"call_{self.calls}"
        call = events.Call(id=id, name=name, arguments=json.dumps(arguments))
        block = {"type": "thinking", "thinking": f"thought {self.calls}", "signature": f"sig{self.calls}"}
        thinking = events.Thinking(native=events.raw(block), text=block["thinking"])
        is_thinking = self.dialect == "anthropic"
        said = ModelSaid(
            content=(thinking, call) if is_thinking else (call,), dialect="anthropic" if is_thinking else ""
        )
        self.check.remember(self.dialect, request, self.wire.write(said), tools=tools)
        text = self.ctx.load_tools(arguments) if name == "load_tools" else long_text(self.rng, lines)
        self.add(said, ToolReturned(call_id=id, name=name, content=text))
        self.loaded.update(arguments.get("names", ()) if name == "load_tools" else {name})

    def load(self, *names: str) -> None:
        self.call("load_tools", {"names": list(names)})

    def step(self, *, lines: int = 30) -> None:
        """Do one of what models do."""
        wanted = self.rng.sample(NAMES, self.rng.randint(1, 3))
        match self.rng.randrange(4):
            case 0:
                self.load(*wanted)
            case 1:
                self.call(wanted[0], {"query": long_text(self.rng, 1)}, lines=lines)
            case _:
                known = sorted(self.loaded & set(NAMES)) or CORE
                self.call(self.rng.choice(known), {"query": long_text(self.rng, 1)}, lines=lines)


def available(request: list[Json], tools: list[Json]) -> set[str]:
    """Return the tools that a provider gives the model; fails if it would refuse the request."""
    declared = [name for name, _ in named_tools(tools)]
    assert len(declared) == len(set(declared)), "a tool is declared twice"
    waiting = {name for name, tool in named_tools(tools) if tool.get("defer_loading")}
    found = set(declared) - waiting
    for message in request:
        if message.get("type") == "additional_tools":
            added = {name for name, _ in named_tools(message["tools"])}
            assert not added & found, "a tool is added twice"
            found |= added
        blocks = message.get("content")
        for block in blocks if isinstance(blocks, list) else ():
            content = block.get("content") if isinstance(block, dict) else None
            for inner in content if isinstance(content, list) else ():
                if inner.get("type") == "tool_reference":
                    assert inner["tool_name"] in waiting, "a reference to a tool that is not deferred"
                    found.add(inner["tool_name"])
    return found


def check_requests(loop: Loop) -> None:
    """Check the newest request: legal, and with every tool that was loaded."""
    request, tools = loop.fit()
    assert request_faults(loop.dialect, request, tools=tools, thinking=loop.check) == []
    assert available(request, tools) == {*CORE, "load_tools", *loop.loaded}
    report = loop.ctx.report()
    assert report.used <= report.limit


# ── Laws ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dialect", MODELS)
@given(seed=st.integers(0, 2**32))
@few
def test_the_model_has_what_it_loaded_and_nothing_before_moves(dialect: str, seed: int) -> None:
    loop = Loop(dialect, seed=seed)
    for _ in range(8):
        loop.step(lines=3)
        check_requests(loop)
    for (before, tools), (now, others) in zip(loop.requests, loop.requests[1:], strict=False):
        assert now[: len(before)] == before
        if dialect in IN_PLACE:
            assert others == tools
        else:
            assert list(named_tools(others))[: len(list(named_tools(tools)))] == list(named_tools(tools))
    breaks = loop.ctx.report().breaks
    loads = {one["names"] for one in ()} or [event for event in loop.ctx.log if isinstance(event.fact, Equipped)]
    assert len(breaks) == len(loads) - 1
    assert {one.why for one in breaks} <= {"equipped"}
    if dialect in IN_PLACE:
        assert breaks == ()


@pytest.mark.parametrize("dialect", MODELS)
@given(seed=st.integers(0, 2**32), policy=st.sampled_from(["economy", "recent", "rolling", "handoff"]))
@few
def test_tools_stay_loaded_whatever_is_reduced(dialect: str, seed: int, policy: str) -> None:
    loop = Loop(dialect, seed=seed, window=40_000, policy=policy)
    for _ in range(20):
        loop.step(lines=150)
        check_requests(loop)
    saved = Context.load(
        loop.ctx.save(), dialect=loop.dialect, window=40_000, reserve=1_000, tokenizer="estimate",
        policy=policy, defer_tools=True, core_tools=CORE,
    )  # fmt: skip
    assert saved.fit(loop.messages, tools=loop.given) == loop.requests[-1][0]
    assert saved.tools == loop.requests[-1][1]
