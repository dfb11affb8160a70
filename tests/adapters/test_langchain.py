"""LangChain agents with the middleware, against a provider that refuses illegal requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from foveal.adapters import Piece
from foveal.adapters.langchain import FovealMiddleware, LangChainFormat
from foveal.core.log import Compacted, Steered, Used
from foveal.errors import BadSetting, ConversationIdMissing
from support.adapter_runs import (
    OVERFLOW_TURNS,
    SHORT_TURNS,
    TURNS,
    WINDOW,
    SummarisingStandIn,
    check_run,
    search,
)
from support.provider_stand_in import Answer, StandIn

THREAD: Any = {"configurable": {"thread_id": "one"}}


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with StandIn(window=WINDOW) as standin:
        yield standin


def agent(
    provider: StandIn,
    middleware: FovealMiddleware,
    *,
    streaming: bool = False,
    saver: InMemorySaver | None = None,
    others: Sequence[AgentMiddleware[Any, Any, Any]] = (),
) -> Any:
    model = ChatOpenAI(
        base_url=provider.openai,
        api_key="none",  # type: ignore[arg-type]
        model="gpt-4.1",
        max_retries=0,
        streaming=streaming,
        stream_usage=True,
        max_completion_tokens=1_000,
    )
    return create_agent(
        model,
        [search],
        system_prompt="You are a careful agent. Never delete anything.",
        middleware=[middleware, *others],
        checkpointer=saver or InMemorySaver(),
    )


def settings(**more: Any) -> dict[str, Any]:
    return {"window": WINDOW, "reserve": 1_000, **more}


@pytest.mark.parametrize(
    ("is_async", "streaming", "turns"),
    [
        pytest.param(False, False, SHORT_TURNS, id="sync-whole"),
        pytest.param(False, True, SHORT_TURNS, marks=pytest.mark.soak, id="sync-streaming"),
        pytest.param(True, False, SHORT_TURNS, marks=pytest.mark.soak, id="async-whole"),
        pytest.param(True, True, TURNS, id="async-streaming"),
    ],
)
def test_an_agent_stays_inside_the_window(
    provider: StandIn, *, is_async: bool, streaming: bool, turns: int
) -> None:
    middleware = FovealMiddleware(**settings())
    graph = agent(provider, middleware, streaming=streaming)
    shown: list[BaseMessage] = []

    async def run() -> None:
        for turn in range(turns):
            question = {"messages": [HumanMessage(f"Question {turn}: look it up.")]}
            state = await graph.ainvoke(question, THREAD) if is_async else graph.invoke(question, THREAD)
            assert state["messages"][: len(shown)] == shown, "the stored history has changed"
            shown[:] = state["messages"]

    asyncio.run(run())
    check_run(provider, requests=5 * turns)
    context = middleware.conversations.get("one").context
    assert sum(isinstance(event.fact, Used) for event in context.log) == len(provider.requests)
    results = [message for message in shown if isinstance(message, ToolMessage)]
    assert all(str(message.content) == search(_query(shown, message)) for message in results)


def _query(messages: list[BaseMessage], result: ToolMessage) -> str:
    calls = (call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls)
    return str(next(call["args"]["query"] for call in calls if call["id"] == result.tool_call_id))


def ask(graph: Any, turns: int, *, thread: Any = THREAD) -> list[BaseMessage]:
    for turn in range(turns):
        state = graph.invoke({"messages": [HumanMessage(f"Question {turn}: look it up.")]}, thread)
    messages: list[BaseMessage] = state["messages"]
    return messages


async def ask_async(graph: Any, turns: int) -> None:
    for turn in range(turns):
        await graph.ainvoke({"messages": [HumanMessage(f"Question {turn}: look it up.")]}, THREAD)


@pytest.mark.parametrize(
    "is_async", [pytest.param(False, marks=pytest.mark.soak, id="sync"), pytest.param(True, id="async")]
)
def test_the_model_of_the_agent_writes_the_summaries(*, is_async: bool) -> None:
    middleware = FovealMiddleware(**settings(summarise="own"))
    with SummarisingStandIn(window=WINDOW) as provider:
        graph = agent(provider, middleware)
        if is_async:
            asyncio.run(ask_async(graph, SHORT_TURNS))
        else:
            ask(graph, SHORT_TURNS)
    assert provider.faults == []
    assert provider.summaries
    written = [
        e.fact for e in middleware.conversations.get("one").context.log if isinstance(e.fact, Compacted)
    ]
    assert any(fact.by == "gpt-4.1" for fact in written), [fact.by for fact in written]


def test_an_overflow_of_the_provider_is_recovered(provider: StandIn) -> None:
    middleware = FovealMiddleware(window=4 * WINDOW, reserve=1_000)
    graph = agent(provider, middleware)
    messages = ask(graph, OVERFLOW_TURNS)
    refused = [request for request in provider.requests if request.faults]
    assert refused
    assert len(provider.requests) - len(refused) == OVERFLOW_TURNS * 5
    assert isinstance(messages[-1], AIMessage)


@pytest.mark.parametrize("conversation", [None, lambda request: str(request.messages[0].content)])
def test_recall_tools_answer_from_the_conversation_that_calls_them(
    provider: StandIn, conversation: Any
) -> None:
    def script(number: int) -> Answer:
        if number == 3:
            return Answer(calls=(("recall_search", {"query": "zebra"}),))
        return Answer(text=f"Answer {number}.")

    provider.script = script
    graph = agent(provider, FovealMiddleware(**settings(recall_tools=True), conversation=conversation))
    graph.invoke({"messages": [HumanMessage("The zebra is called Ann.")]}, THREAD)
    graph.invoke(
        {"messages": [HumanMessage("The zebra is called Bob.")]}, {"configurable": {"thread_id": "two"}}
    )
    state = graph.invoke({"messages": [HumanMessage("What is its name?")]}, THREAD)
    (result,) = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    assert "called Ann" in str(result.content)
    assert "called Bob" not in str(result.content)


def test_the_model_sees_its_window_and_asks_for_a_cut(provider: StandIn) -> None:
    status = 16

    def script(number: int) -> Answer:
        if number == status:
            return Answer(calls=(("context_status", {}),))
        if number == status + 1:
            return Answer(calls=(("context_cut", {"why": "the search is done"}),))
        return (
            Answer(calls=(("search", {"query": f"{number} 7.0"}),)) if number < 20 else Answer(text="Done.")
        )

    provider.script, provider.window = script, 100_000
    middleware = FovealMiddleware(context_tools=True, window=100_000)
    messages = ask(agent(provider, middleware), 1)
    shown, cut = [
        str(m.content) for m in messages if isinstance(m, ToolMessage) and "[foveal context" in m.content
    ]
    assert shown.count("\n") == 4
    assert "the cut is made" in cut
    assert provider.faults == []
    (steered,) = [
        e.fact for e in middleware.conversations.get("one").context.log if isinstance(e.fact, Steered)
    ]
    assert steered == Steered(by="model", reason="the search is done")


def test_a_reduced_answer_of_blocks_is_shown_reduced() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    use = {"type": "tool_use", "id": "c1", "name": "write", "input": {"text": "long"}}
    call = {"type": "tool_call", "id": "c1", "name": "write", "args": {"text": "long"}}
    answer = AIMessage([thinking, {"type": "text", "text": "a long text"}, use], tool_calls=[call], id="a1")
    shown = {"id": "c1", "function": {"name": "write", "arguments": '{"text": "…"}'}}
    text = {"type": "text", "text": "a …"}
    message = {"role": "assistant", "content": [thinking, text], "tool_calls": [shown]}
    [built] = LangChainFormat().build([Piece(message, 0, whole=False)], answer)
    assert built.content == [thinking, text, {**use, "input": {"text": "…"}}]
    without = {**message, "content": "a …"}
    [other] = LangChainFormat().build([Piece(without, 0, whole=False)], answer)
    assert other.content == [text, {**use, "input": {"text": "…"}}]
    assert isinstance(built, AIMessage)
    assert (built.id, built.tool_calls[0]["args"]) == ("a1", {"text": "…"})


def test_contexts_in_a_store_survive_a_restart(provider: StandIn, tmp_path: Path) -> None:
    saver = InMemorySaver()
    for turns in (SHORT_TURNS, 1):
        at = len(provider.requests)
        middleware = FovealMiddleware(**settings(store=str(tmp_path / "contexts.db")))
        graph = agent(provider, middleware, saver=saver)
        ask(graph, turns)
        middleware.conversations.close()
    assert provider.faults == []
    requests = provider.requests
    assert (
        requests[at].body["messages"][: len(requests[at - 1].body["messages"])]
        == requests[at - 1].body["messages"]
    )


def test_native_fields_of_shown_messages_are_not_lost(provider: StandIn) -> None:
    seen: list[list[BaseMessage]] = []

    class Spy(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            seen.append(request.messages)
            return handler(request)

    middleware = FovealMiddleware(**settings())
    graph = agent(provider, middleware, others=[Spy()])
    messages = ask(graph, SHORT_TURNS)
    by_id = {message.id: message for message in messages}
    shown = [message for message in seen[-1] if message.id in by_id]
    assert len(shown) > 5
    assert any(message != by_id[message.id] for message in shown) or len(shown) < len(messages)
    for message in shown:
        own = by_id[message.id]
        assert type(message) is type(own)
        assert message.response_metadata == own.response_metadata


def test_the_id_of_a_conversation_in_place_of_a_function_is_refused() -> None:
    with pytest.raises(BadSetting, match="conversation = 'ci' is not allowed: a function"):
        FovealMiddleware(conversation="ci")  # type: ignore[arg-type]


def test_with_strict_ids_a_run_without_a_thread_is_an_error(provider: StandIn) -> None:
    provider.script = lambda number: Answer(text=f"Answer {number}.")
    runner = agent(provider, FovealMiddleware(**settings(strict_ids=True)))
    runner.checkpointer = None  # LangGraph itself asks for a thread where it keeps one
    said = {"messages": [{"role": "user", "content": "Hello"}]}
    with pytest.raises(ConversationIdMissing, match="thread_id"):
        runner.invoke(said)
    runner.invoke(said, {"configurable": {"thread_id": "one"}})
    assert len(provider.requests) == 1
