"""Agents of the Microsoft Agent Framework with the middleware, against a provider that refuses illegal requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from agent_framework import Agent, AgentSession, ChatMiddleware, Content, FunctionTool, Message
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from openai import AsyncOpenAI

from foveal.adapters.agent_framework import AgentFrameworkFormat, FovealChatMiddleware
from foveal.adapters.native_context import Piece
from foveal.core.log import Compacted, Used
from support.adapter_runs import (
    TURNS,
    WINDOW,
    SummarisingStandIn,
    check_run,
    count_breaks,
    long_search,
    search,
)
from support.provider_stand_in import Answer, StandIn

pytestmark = pytest.mark.soak
CLIENTS: dict[str, Any] = {"chat": OpenAIChatCompletionClient, "responses": OpenAIChatClient}


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with StandIn(window=WINDOW) as standin:
        yield standin


def agent(provider: StandIn, foveal: FovealChatMiddleware, form: str = "chat", **more: Any) -> Agent[Any]:
    openai = AsyncOpenAI(base_url=provider.openai, api_key="none", max_retries=0)
    arguments: dict[str, Any] = {
        "instructions": "You are a careful agent. Never delete anything.",
        "tools": [FunctionTool(name="search", description="Search the sources.", func=search)],
        "middleware": [foveal],
        "default_options": {"max_tokens": 1_000, **({"store": False} if form == "responses" else {})},
    }
    return Agent(CLIENTS[form](model="gpt-4.1", async_client=openai), **{**arguments, **more})


def middleware(**more: Any) -> FovealChatMiddleware:
    return FovealChatMiddleware(**{"window": WINDOW, "reserve": 1_000, **more})


def stored(session: AgentSession) -> list[dict[str, Any]]:
    return [message.to_dict() for message in session.state["in_memory"]["messages"]]


def context(foveal: FovealChatMiddleware, session: AgentSession) -> Any:
    return foveal.conversations.get(session.session_id).context


def used(context: Any) -> int:
    return sum(isinstance(event.fact, Used) for event in context.log)


def run(agent: Agent[Any], work: Coroutine[Any, Any, Any]) -> None:
    """Run a conversation and close the connections of the agent's client."""

    async def closing() -> None:
        async with agent.client.client:
            await work

    asyncio.run(closing())


async def ask(agent: Agent[Any], turns: int, session: AgentSession) -> None:
    for turn in range(turns):
        await agent.run(f"Question {turn}: look it up.", session=session)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
@pytest.mark.parametrize("form", CLIENTS)
def test_an_agent_stays_inside_the_window(provider: StandIn, form: str, *, streaming: bool) -> None:
    foveal = middleware()
    careful, session = agent(provider, foveal, form), AgentSession(session_id="one")

    async def turn(question: str) -> None:
        if streaming:
            stream = careful.run(question, session=session, stream=True)
            assert [update async for update in stream]
            assert (await stream.get_final_response()).text
        else:
            await careful.run(question, session=session)

    async def turns() -> None:
        before: list[Any] = []
        for number in range(TURNS):
            await turn(f"Question {number}: look it up.")
            history = stored(session)
            assert history[: len(before)] == before, "the stored history has changed"
            before = deepcopy(history)

    run(careful, turns())
    check_run(provider, framework_breaks=TURNS - 1)
    assert used(context(foveal, session)) == len(provider.requests)
    contents = [c for m in session.state["in_memory"]["messages"] for c in m.contents]
    queries = {c.call_id: c.parse_arguments()["query"] for c in contents if c.type == "function_call"}
    results = {c.call_id: c.result for c in contents if c.type == "function_result"}
    assert results == {call: search(query) for call, query in queries.items()}


@pytest.mark.parametrize("form", CLIENTS)
def test_the_framework_alone_changes_its_messages_after_each_run(form: str) -> None:
    """It names the author after a run (chat) and gives its calls other ids (responses): see `check_run`."""
    with StandIn(window=1_000_000) as provider:
        careful = agent(provider, middleware(), form, middleware=[])
        run(careful, ask(careful, 4, AgentSession()))
    assert count_breaks(provider.requests) == 3


@pytest.mark.parametrize("on_client", [False, True], ids=["agent", "client"])
def test_the_model_of_the_agent_writes_the_summaries(*, on_client: bool) -> None:
    foveal, session = middleware(summarise="own"), AgentSession(session_id="one")
    with SummarisingStandIn(window=WINDOW) as provider:
        careful = agent(provider, foveal, **({"middleware": []} if on_client else {}))
        if on_client:
            careful.client.chat_middleware.append(foveal)
        run(careful, ask(careful, 8, session))
    assert provider.faults == []
    assert provider.summaries
    written = [event.fact for event in context(foveal, session).log if isinstance(event.fact, Compacted)]
    assert {fact.by for fact in written} == {"gpt-4.1"}


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
def test_an_overflow_of_the_provider_is_recovered(provider: StandIn, *, streaming: bool) -> None:
    careful = agent(provider, FovealChatMiddleware(window=4 * WINDOW, reserve=1_000))
    session = AgentSession()

    async def turns() -> None:
        for turn in range(8):
            question = f"Question {turn}: look it up."
            if streaming:
                await careful.run(question, session=session, stream=True).get_final_response()
            else:
                await careful.run(question, session=session)

    run(careful, turns())
    refused = [request for request in provider.requests if request.faults]
    assert refused
    assert len(provider.requests) - len(refused) == 8 * 5


def test_another_error_of_the_provider_is_raised_once(provider: StandIn) -> None:
    provider.key = "another"
    careful = agent(provider, middleware())
    with pytest.raises(Exception, match="Incorrect API key"):
        run(careful, ask(careful, 1, AgentSession()))
    assert provider.attempts == 1


def test_recall_tools_answer_from_the_conversation_that_calls_them(provider: StandIn) -> None:
    def script(number: int) -> Answer:
        if number == 3:
            return Answer(calls=(("recall_search", {"query": "zebra"}),))
        return Answer(text=f"Answer {number}.")

    provider.script = script
    foveal = middleware()
    careful = agent(provider, foveal, tools=foveal.recall_tools)
    one, two = AgentSession(), AgentSession()

    async def talk() -> None:
        await careful.run("The zebra is called Ann.", session=one)
        await careful.run("The zebra is called Bob.", session=two)
        await careful.run("What is its name?", session=one)

    run(careful, talk())
    contents = [c for m in one.state["in_memory"]["messages"] for c in m.contents]
    (result,) = [str(content.result) for content in contents if content.type == "function_result"]
    assert "called Ann" in result
    assert "called Bob" not in result


def test_context_tools_show_the_model_its_window(provider: StandIn) -> None:
    def script(number: int) -> Answer:
        return Answer(calls=(("context_status", {}),)) if number == 1 else Answer(text=f"Answer {number}.")

    provider.script = script
    foveal, session = middleware(), AgentSession()
    careful = agent(provider, foveal, tools=foveal.context_tools)

    async def talk() -> None:
        await careful.run("What fills your window?", session=session)

    run(careful, talk())
    contents = [c for m in session.state["in_memory"]["messages"] for c in m.contents]
    (result,) = [str(content.result) for content in contents if content.type == "function_result"]
    assert result.startswith("[foveal context: the request has ")


def test_contexts_in_a_store_survive_a_restart(provider: StandIn, tmp_path: Path) -> None:
    session = AgentSession(session_id="one")
    for _ in range(2):
        foveal = middleware(store=str(tmp_path / "contexts.db"))
        careful = agent(provider, foveal)
        run(careful, ask(careful, 6, session))
        foveal.conversations.close()
        session = AgentSession.from_dict(session.to_dict())
    assert provider.faults == []
    at = len(provider.requests) // 2
    before, after = (_unnamed(request.body["messages"]) for request in provider.requests[at - 1 : at + 1])
    assert after[: len(before)] == before
    assert len(after) < len(stored(session)), "nothing was reduced before the restart"


def _unnamed(messages: list[Any]) -> list[Any]:
    return [{name: value for name, value in message.items() if name != "name"} for message in messages]


def test_native_fields_of_shown_messages_are_not_lost(provider: StandIn) -> None:
    given: list[list[Message]] = []
    sent: list[list[Message]] = []

    class Spy(ChatMiddleware):
        def __init__(self, seen: list[list[Message]]) -> None:
            self.seen = seen

        async def process(self, context: Any, call_next: Any) -> None:
            self.seen.append(list(context.messages))
            await call_next()

    long = FunctionTool(name="search", description="Search the sources.", func=long_search)
    layers = [Spy(given), middleware(), Spy(sent)]
    careful = agent(provider, middleware(), tools=[long], middleware=layers)
    run(careful, ask(careful, 2, AgentSession()))
    whole = [message for message in sent[-1] if any(message is own for own in given[-1])]
    reduced = [message for message in sent[-1] if not any(message is own for own in given[-1])]
    assert len(whole) > 5
    assert reduced
    for message in reduced:
        (own,) = [own for own in given[-1] if _call_ids(own) == _call_ids(message)]
        assert (message.role, message.message_id, message.additional_properties) == (
            own.role,
            own.message_id,
            own.additional_properties,
        )
        assert [content.id for content in message.contents] == [content.id for content in own.contents]


def _call_ids(message: Message) -> list[Any]:
    return [(content.type, content.call_id) for content in message.contents]


def test_two_conversations_at_once_do_not_mix(provider: StandIn) -> None:
    provider.script = lambda number: Answer(text=f"Answer {number}.")
    foveal = middleware()
    careful, sessions = agent(provider, foveal), [AgentSession(), AgentSession()]

    async def talk(session: AgentSession, name: str) -> None:
        for turn in range(5):
            await careful.run(f"{name} asks {turn}.", session=session)

    async def both() -> None:
        await asyncio.gather(talk(sessions[0], "Ann"), talk(sessions[1], "Bob"))

    run(careful, both())
    assert provider.faults == []
    for request in provider.requests:
        text = str(request.body["messages"])
        assert not ("Ann asks" in text and "Bob asks" in text)
    assert [used(context(foveal, session)) for session in sessions] == [5, 5]


def test_a_picture_and_reasoning_of_a_reduced_message_are_kept() -> None:
    picture = Content.from_uri("https://example.com/a.png", media_type="image/png")
    message = Message("user", ["A long text.", picture], message_id="m1")
    format = AgentFrameworkFormat()
    (written,) = format.write(message)
    written["content"][0] = {"type": "text", "text": "Short."}
    (shown,) = format.build([Piece(written, 0, whole=False)], message)
    assert [content.text for content in shown.contents] == ["Short.", None]
    assert shown.contents[1] is picture
    assert (shown.message_id, message.contents[0].text) == ("m1", "A long text.")
    thought = Content.from_text_reasoning(text="Hm.", protected_data="signed")
    call = Content.from_function_call("c1", "search", arguments={"query": "long"})
    answer = Message("assistant", [thought, call])
    (written,) = format.write(answer)
    written["tool_calls"][0]["function"]["arguments"] = '{"query": "short"}'
    (shown,) = format.build([Piece(written, 0, whole=False)], answer)
    assert shown.contents[0] is thought
    assert (shown.contents[1].arguments, call.arguments) == ({"query": "short"}, {"query": "long"})
