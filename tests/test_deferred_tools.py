"""Laws of deferred tools: the model has every tool that it loaded, and what was sent before stays as it was."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveal
from foveal import BadSetting, Context, ModelSaid, UserSaid, events
from foveal.core.log import Equipped, ToolReturned, ToolsLoaded
from foveal.core.view.checkpoint import needed_seqs, restore_view, take_checkpoint
from foveal.core.view.fold import effective_events
from foveal.core.view.loaded_tools import named_tools
from foveal.core.view.request import render_view
from foveal.core.wire import wire_for
from foveal.core.wire.bound_thinking import ThinkingCheck
from foveal.core.wire.legality import request_faults
from support.effort import examples, rest_in_soak
from support.histories import Json, long_text
from support.mcp_tools import neutral_tools, recorded_servers, tools_of
from support.report_checks import figures

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
    size = figures(loop.ctx)
    assert size.used <= size.limit


# ── Laws ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
@pytest.mark.parametrize("dialect", rest_in_soak(MODELS, every=3))
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
    offers = [event for event in loop.ctx.log if isinstance(event.fact, Equipped)]
    assert len(breaks) == len(offers) - 1
    assert {one.why for one in breaks} <= {"equipped"}
    if dialect in IN_PLACE:
        assert breaks == ()


@pytest.mark.long
@pytest.mark.parametrize("dialect", rest_in_soak(MODELS, every=3))
@given(seed=st.integers(0, 2**32), policy=st.sampled_from(["economy", "recent", "rolling", "handoff"]))
@few
def test_tools_stay_loaded_whatever_is_reduced(dialect: str, seed: int, policy: str) -> None:
    loop = Loop(dialect, seed=seed, window=40_000, policy=policy)
    for _ in range(14):
        loop.step(lines=150)
        check_requests(loop)
    saved = Context.load(
        loop.ctx.save(), dialect=loop.dialect, window=40_000, reserve=1_000, tokenizer="estimate",
        policy=policy, defer_tools=True, core_tools=CORE,
    )  # fmt: skip
    assert saved.fit(loop.messages, tools=loop.given) == loop.requests[-1][0]
    assert saved.tools == loop.requests[-1][1]


def test_a_tool_loaded_in_place_is_added_to_the_tools_when_a_reduction_hides_the_place() -> None:
    loop = Loop("anthropic", window=40_000, policy="recent")
    loop.load(NAMES[40])
    while not any(isinstance(event.fact, events.Dropped) for event in loop.ctx.log):
        loop.call(CORE[0], {}, lines=200)
        check_requests(loop)
    offered = {name for name, tool in named_tools(loop.ctx.tools) if not tool.get("defer_loading")}
    assert NAMES[40] in offered
    loop.ctx.use(MODELS["anthropic"], window=100_000)
    loop.ctx.undo()
    check_requests(loop)


@pytest.mark.long
@pytest.mark.parametrize("dialect", rest_in_soak(MODELS))
@given(seed=st.integers(0, 2**32))
@few
def test_a_view_from_a_checkpoint_has_the_same_tools(dialect: str, seed: int) -> None:
    loop = Loop(dialect, seed=seed, window=40_000, policy="recent")
    for _ in range(12):
        loop.step(lines=150)
    loop.fit()
    view = loop.ctx._engine.view
    needed = needed_seqs(view)
    restored = restore_view(
        (event for event in effective_events(loop.ctx.log) if event.seq in needed),
        take_checkpoint(view),
        view.meter,
    )
    assert render_view(restored, loop.wire)[0] == render_view(view, loop.wire)[0]
    assert restored.tool_units == view.tool_units
    assert restored.tool_use.summary == view.tool_use.summary


# ── What is deferred ─────────────────────────────────────────────────────────────────────────────────────


def test_the_recording_has_a_hundred_tools_of_six_servers() -> None:
    assert len(recorded_servers()) == 6
    assert len(set(NAMES)) == 100


def test_a_request_has_core_tools_and_an_index_of_the_others() -> None:
    loop = Loop("openai_chat")
    loop.fit()
    assert [name for name, _ in named_tools(loop.ctx.tools)] == [*CORE, "load_tools"]
    index = loop.ctx.tools[-1]["function"]["description"]
    assert all(f"\n- {name}: " in index for name in NAMES[3:])
    report = loop.ctx.report()
    assert report.totals["tools"] < 6_000
    assert sum(tool.tokens for tool in report.tools if tool.deferred) > 20_000
    assert "101 tools" in str(report)
    assert "97 deferred" in str(report)


def test_the_report_says_how_many_tools_were_used() -> None:
    ctx = Context("gpt-4.1", tokenizer="estimate")
    call = {"id": "a", "type": "function", "function": {"name": NAMES[5], "arguments": "{}"}}
    messages: list[Json] = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ]
    ctx.fit(messages, tools=tools_of("openai_chat"))
    report = ctx.report()
    assert f"100 tools, {report.totals['tools']:,} tokens, 1 used" in str(report)
    assert [tool.name for tool in report.tools if tool.calls] == [NAMES[5]]
    assert sum(tool.tokens for tool in report.tools) == pytest.approx(report.totals["tools"], rel=0.02)


def test_few_tools_are_not_deferred() -> None:
    ctx = Context("gpt-4.1", defer_tools=True)
    tools = tools_of("openai_chat")[:6]
    ctx.fit([{"role": "user", "content": "Look."}], tools=tools)
    assert ctx.tools == tools
    assert not any(tool.deferred for tool in ctx.report().tools)


def test_tools_without_a_name_and_recall_tools_stay_on_offer() -> None:
    ctx = Context("claude-sonnet-5", defer_tools=True)
    search = {"type": "web_search_20250305", "name": "web_search"}
    recall = foveal.recall.tools("anthropic")
    ctx.fit([{"role": "user", "content": "Look."}], tools=[search, *tools_of("anthropic"), *recall])
    offered = [tool for tool in ctx.tools if not tool.get("defer_loading")]
    assert offered[:-1] == [search, *recall]


@pytest.mark.parametrize("model", ["claude-3-5-sonnet-20241022", "claude-opus-4-1"])
def test_an_older_model_gets_loaded_tools_at_the_end_of_the_list(model: str) -> None:
    loop = Loop("anthropic")
    loop.ctx = Context(model, dialect="anthropic", defer_tools=True, tokenizer="estimate")
    loop.load(NAMES[50])
    request, tools = loop.fit()
    assert [tool["name"] for tool in tools] == ["load_tools", NAMES[50]]
    assert "tool_reference" not in json.dumps(request)


def test_appended_uses_no_form_of_the_provider() -> None:
    loop = Loop("openai_responses", defer_tools="appended")
    loop.load(NAMES[50])
    request, tools = loop.fit()
    assert [tool["name"] for tool in tools] == [*CORE, "load_tools", NAMES[50]]
    assert "additional_tools" not in json.dumps(request)


def test_another_model_without_the_form_gets_all_loaded_tools_in_the_list() -> None:
    loop = Loop("anthropic")
    loop.load(NAMES[50], NAMES[60])
    loop.fit()
    loop.ctx.use("claude-3-5-sonnet-20241022")
    request, tools = loop.fit()
    assert [tool["name"] for tool in tools] == [*CORE, "load_tools", NAMES[50], NAMES[60]]
    assert available(request, tools) == {*CORE, "load_tools", NAMES[50], NAMES[60]}


def test_a_conversation_that_begins_without_deferral_keeps_the_tools_that_it_used() -> None:
    loop = Loop("openai_chat", defer_tools=False, core_tools=())
    loop.call(NAMES[70], {})
    loop.fit()
    assert len(loop.ctx.tools) == 100
    loop.ctx = Context.load(loop.ctx.save(), defer_tools=True, core_tools=CORE, tokenizer="estimate")
    request, tools = loop.fit()
    assert available(request, tools) == {*CORE, "load_tools", NAMES[70]}


def test_origins_are_known_beside_an_item_that_loads_tools() -> None:
    loop = Loop("openai_responses")
    loop.load(NAMES[50])
    fitted, origins = loop.ctx.fit_with_origins(loop.messages, tools=loop.given)
    assert len(fitted) == len(origins) == len(loop.messages) + 1
    assert [origin.input for origin in origins] == [0, 1, 2, None]


# ── Wrong input ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"names": []}, "needs the names of tools"),
        ({}, "needs the names of tools"),
        ("{broken", "needs the names of tools"),
        ("", "needs the names of tools"),
        ({"names": 5}, "needs the names of tools"),
        ({"names": [None, ""]}, "needs the names of tools"),
        ({"names": ["github__get_isue"]}, "similar: github__get_issue"),
        ({"names": ["x" * 500]}, "There is no tool"),
        ({"names": [CORE[0]]}, "needs no loading"),
        ({"names": ["load_tools"]}, "needs no loading"),
        (
            {"names": "github__get_issue, memory__read_graph"},
            "Loaded: github__get_issue, memory__read_graph.",
        ),
        ('{"name": "github__get_issue"}', "Loaded: github__get_issue."),
    ],
)
def test_a_wrong_call_is_answered_with_what_is_wrong(arguments: Any, expected: str) -> None:
    loop = Loop("openai_chat")
    loop.fit()
    assert expected in loop.ctx.load_tools(arguments)


@pytest.mark.parametrize("dialect", MODELS)
def test_a_call_that_loads_nothing_changes_nothing(dialect: str) -> None:
    loop = Loop(dialect)
    _, tools = loop.fit()
    for arguments in ({"names": ["nothing"]}, {"names": []}, {}):
        loop.call("load_tools", arguments)
    loop.loaded.clear()
    check_requests(loop)
    assert loop.ctx.tools == tools


@pytest.mark.long
@pytest.mark.parametrize("dialect", MODELS)
def test_a_list_that_shrinks_takes_loaded_tools_away(dialect: str) -> None:
    loop = Loop(dialect)
    loop.load(NAMES[10], NAMES[90])
    loop.load(NAMES[91])
    loop.fit()
    whole = loop.given
    declared = whole[0]["functionDeclarations"][:80] if dialect == "gemini" else whole[:80]
    loop.given = [{"functionDeclarations": declared}] if dialect == "gemini" else declared
    loop.loaded -= {NAMES[90], NAMES[91]}
    check_requests(loop)
    loop.given = whole
    request, tools = loop.fit()
    assert request_faults(loop.dialect, request, tools=tools, thinking=loop.check) == []


@pytest.mark.parametrize(
    "tools",
    [
        [*tools_of("openai_chat"), tools_of("openai_chat")[4]],
        [*tools_of("openai_chat"), {"type": "function", "function": {"name": "load_tools"}}],
    ],
)
def test_two_tools_with_one_name_are_refused(tools: list[Json]) -> None:
    with pytest.raises(BadSetting, match="a name of its own"):
        Context("gpt-4.1", defer_tools=True).fit([{"role": "user", "content": "Look."}], tools=tools)


def test_settings_are_checked() -> None:
    wrong: Any
    for wrong in ({"defer_tools": "yes"}, {"defer_tools": 2}, {"defer_tools": True, "core_tools": "bash"}):
        with pytest.raises(BadSetting):
            Context("gpt-4.1", **wrong)
    with pytest.raises(BadSetting, match="defer_tools"):
        Context("gpt-4.1").load_tools({"names": ["a"]})
    with pytest.raises(BadSetting, match="defer_tools"):
        foveal.transport.ConversationPool(defer_tools=True)


def test_loaded_tools_are_in_the_log() -> None:
    loop = Loop("anthropic")
    loop.load(NAMES[50])
    loop.fit()
    (fact,) = [event.fact for event in loop.ctx.log if isinstance(event.fact, ToolsLoaded)]
    assert [name for name, _ in named_tools(events.unraw(fact.tools))] == [NAMES[50]]
