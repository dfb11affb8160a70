"""Agents of the OpenAI Agents SDK on Foveal's models, against a provider that refuses illegal requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
)
from openai import AsyncOpenAI

from foveal.adapters.openai_agents import FovealModelProvider
from foveal.core.log import Compacted, Used
from foveal.core.log.events import Event
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
from support.effort import rest_in_soak
from support.provider_stand_in import Answer, StandIn

FORMS: dict[str, Any] = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
Work = Callable[[AsyncOpenAI], Awaitable[Any]]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with StandIn(window=WINDOW) as standin:
        yield standin


def run(provider: StandIn, work: Work) -> Any:
    """Run `work` with a client whose connections are closed in the same loop."""

    async def main() -> Any:
        async with client_of(provider) as client:
            return await work(client)

    return asyncio.run(main())


def client_of(provider: StandIn) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=provider.openai, api_key="none", max_retries=0)


def agent(
    models: FovealModelProvider, client: AsyncOpenAI, form: str = "responses", **more: Any
) -> Agent[Any]:
    arguments: dict[str, Any] = {
        "name": "careful",
        "instructions": "You are a careful agent. Never delete anything.",
        "model": models.wrap(FORMS[form]("gpt-4.1", openai_client=client)),
        "model_settings": ModelSettings(max_tokens=1_000),
        "tools": [function_tool(search)],
    }
    return Agent(**{**arguments, **more})


def foveal_models(**more: Any) -> FovealModelProvider:
    return FovealModelProvider(**{"window": WINDOW, "reserve": 1_000, **more})


def config(**more: Any) -> RunConfig:
    return RunConfig(tracing_disabled=True, **more)


async def ask(asked: Agent[Any], question: Any, *, streaming: bool = False, **more: Any) -> Any:
    arguments = {"run_config": config(), **more}
    if not streaming:
        return await Runner.run(asked, question, **arguments)
    result = Runner.run_streamed(asked, question, **arguments)
    kinds = {event.type async for event in result.stream_events()}
    assert "raw_response_event" in kinds
    return result


async def ask_all(asked: Agent[Any], turns: int, **more: Any) -> Any:
    for turn in range(turns):
        result = await ask(asked, f"Question {turn}: look it up.", **more)
    return result


def logs(models: FovealModelProvider) -> list[tuple[Event, ...]]:
    """The logs of all open conversations."""
    return [found.context.log for found in models.conversations._open.values()]


class Stored:
    """Watches the items that a session keeps."""

    def __init__(self) -> None:
        self.session = SQLiteSession("one")
        self.items: list[Any] = []

    async def check(self) -> None:
        items = await self.session.get_items()
        assert items[: len(self.items)] == self.items, "the stored history has changed"
        self.items = items

    def check_results(self) -> None:
        calls = [item for item in self.items if item.get("type") == "function_call"]
        queries = {call["call_id"]: json.loads(call["arguments"])["query"] for call in calls}
        results = [item for item in self.items if item.get("type") == "function_call_output"]
        assert results
        assert all(item["output"] == search(queries[item["call_id"]]) for item in results)
        self.session.close()


def check_all(provider: StandIn, models: FovealModelProvider, stored: Stored, turns: int) -> None:
    stored.check_results()
    (log,) = logs(models)
    assert sum(isinstance(event.fact, Used) for event in log) == len(provider.requests)
    check_run(provider, requests=5 * turns)


@pytest.mark.parametrize(
    ("form", "streaming", "turns"),
    [
        pytest.param("chat", False, TURNS, id="chat-whole"),
        pytest.param("chat", True, SHORT_TURNS, marks=pytest.mark.soak, id="chat-streaming"),
        pytest.param("responses", False, SHORT_TURNS, marks=pytest.mark.soak, id="responses-whole"),
        pytest.param("responses", True, SHORT_TURNS, id="responses-streaming"),
    ],
)
def test_an_agent_stays_inside_the_window(
    provider: StandIn, *, form: str, streaming: bool, turns: int
) -> None:
    models, stored = foveal_models(), Stored()

    async def work(client: AsyncOpenAI) -> None:
        careful = agent(models, client, form)
        for turn in range(turns):
            question = f"Question {turn}: look it up."
            await ask(careful, question, session=stored.session, streaming=streaming)
            await stored.check()

    run(provider, work)
    check_all(provider, models, stored, turns)


# `run_sync` ends the async generators of its loop after each run, and uses the loop again.
@pytest.mark.filterwarnings("ignore:asynchronous generator:ResourceWarning")
def test_an_agent_without_an_event_loop_stays_inside_the_window(provider: StandIn) -> None:
    models, stored, client = foveal_models(), Stored(), client_of(provider)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        careful = agent(models, client, "chat")
        for turn in range(SHORT_TURNS):
            question = f"Question {turn}: look it up."
            Runner.run_sync(careful, question, session=stored.session, run_config=config())
            loop.run_until_complete(stored.check())
        loop.run_until_complete(client.close())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    check_all(provider, models, stored, SHORT_TURNS)


@pytest.mark.parametrize(
    ("form", "streaming"),
    rest_in_soak([("chat", True), ("responses", True), ("responses", False)]),
)
def test_an_overflow_of_the_provider_is_recovered(provider: StandIn, form: str, *, streaming: bool) -> None:
    models = foveal_models(window=4 * WINDOW)

    async def work(client: AsyncOpenAI) -> Any:
        session = SQLiteSession("one")
        careful = agent(models, client, form)
        result = await ask_all(careful, OVERFLOW_TURNS, session=session, streaming=streaming)
        session.close()
        return result

    result = run(provider, work)
    refused = [request for request in provider.requests if request.faults]
    assert refused
    assert len(provider.requests) - len(refused) == OVERFLOW_TURNS * 5
    assert result.final_output


def test_other_errors_of_the_provider_reach_the_runner(provider: StandIn) -> None:
    provider.key = "another"

    async def work(client: AsyncOpenAI) -> None:
        for streaming in (False, True):
            with pytest.raises(Exception, match="Incorrect API key"):
                await ask(agent(foveal_models(), client), "Hello", streaming=streaming)

    run(provider, work)


def test_the_model_of_the_agent_writes_the_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    models = foveal_models(summarise="own")

    async def work(client: AsyncOpenAI) -> None:
        session = SQLiteSession("one")
        await ask_all(agent(models, client), SHORT_TURNS, session=session)
        session.close()

    with SummarisingStandIn(window=WINDOW) as standin:
        run(standin, work)
    assert standin.faults == []
    assert standin.summaries
    written = [event.fact for log in logs(models) for event in log if isinstance(event.fact, Compacted)]
    assert any(fact.by == "gpt-4.1" for fact in written), [fact.by for fact in written]


def test_recall_tools_answer_from_the_conversation_that_calls_them(provider: StandIn) -> None:
    def script(number: int) -> Answer:
        if number == 3:
            return Answer(calls=(("recall_search", {"query": "zebra"}),))
        return Answer(text=f"Answer {number}.")

    provider.script = script
    models = foveal_models()

    async def work(client: AsyncOpenAI) -> Any:
        one, two = SQLiteSession("one"), SQLiteSession("two")
        asked = agent(models, client, tools=models.recall_tools)
        await ask(asked, "The zebra is called Ann.", session=one)
        await ask(asked, "The zebra is called Bob.", session=two)
        await ask(asked, "What is its name?", session=one)
        items = await one.get_items()
        one.close()
        two.close()
        return items

    items = run(provider, work)
    (result,) = [item for item in items if item.get("type") == "function_call_output"]
    assert "called Ann" in result["output"]
    assert "called Bob" not in result["output"]


def test_context_tools_show_the_model_its_window(provider: StandIn) -> None:
    def script(number: int) -> Answer:
        return Answer(calls=(("context_status", {}),)) if number == 1 else Answer(text=f"Answer {number}.")

    provider.script = script
    models = foveal_models()

    async def work(client: AsyncOpenAI) -> Any:
        session = SQLiteSession("one")
        await ask(
            agent(models, client, tools=models.context_tools), "What fills your window?", session=session
        )
        items = await session.get_items()
        session.close()
        return items

    (result,) = [item for item in run(provider, work) if item.get("type") == "function_call_output"]
    assert result["output"].startswith("[foveal context: the request has ")


def test_contexts_in_a_store_survive_a_restart(provider: StandIn, tmp_path: Path) -> None:
    at: list[int] = []

    async def work(client: AsyncOpenAI) -> None:
        session = SQLiteSession("one")
        for turns in (SHORT_TURNS, 1):
            at.append(len(provider.requests))
            models = foveal_models(store=str(tmp_path / "contexts.db"))
            await ask_all(agent(models, client, "chat"), turns, session=session)
            await models.aclose()
        session.close()

    run(provider, work)
    assert provider.faults == []
    before, after = (request.body["messages"] for request in provider.requests[at[1] - 1 : at[1] + 1])
    assert after[: len(before)] == before


def test_the_given_items_are_not_changed_and_sent_as_they_are(provider: StandIn) -> None:
    models = foveal_models()

    async def work(client: AsyncOpenAI) -> Any:
        return (await ask_all(agent(models, client), 1)).to_input_list()

    items = run(provider, work)
    given = deepcopy(items)

    async def again(client: AsyncOpenAI) -> None:
        await ask(agent(models, client), [*items, {"role": "user", "content": "And now?"}])

    before = len(provider.requests)
    run(provider, again)
    assert items == given
    assert provider.requests[before].body["input"][: len(given)] == given


def test_two_conversations_at_once_do_not_meet(provider: StandIn) -> None:
    models = foveal_models()
    provider.script = lambda number: Answer(text=f"Answer {number}.")

    async def talk(client: AsyncOpenAI, name: str) -> None:
        items: list[Any] = []
        for _ in range(5):  # all of them open with the same message
            given = [*items, {"role": "user", "content": "Hello" if not items else f"{name} again"}]
            items = (await ask(agent(models, client), given)).to_input_list()

    async def work(client: AsyncOpenAI) -> None:
        await asyncio.gather(*(talk(client, f"talk {number}") for number in range(4)))

    run(provider, work)
    texts = [json.dumps(request.body["input"]) for request in provider.requests]
    assert provider.faults == []
    assert all(sum(f"talk {number}" in text for number in range(4)) <= 1 for text in texts)
    assert len(logs(models)) == 8, "an opening that four users share belongs to no later request"


def test_a_nested_agent_has_a_conversation_of_its_own(provider: StandIn) -> None:
    def script(number: int) -> Answer:
        if number == 1:
            return Answer(calls=(("helper", {"input": "Find the zebra."}),))
        return Answer(text=f"Answer {number}.")

    provider.script = script
    models = foveal_models()

    async def work(client: AsyncOpenAI) -> None:
        helper = agent(models, client, name="helper").as_tool("helper", "Helps.")
        session = SQLiteSession("one")
        await ask(agent(models, client, tools=[helper]), "Ask the helper.", session=session)
        session.close()

    run(provider, work)
    assert provider.faults == []
    assert [len(request.body["input"]) for request in provider.requests] == [1, 1, 3]
    assert len(logs(models)) == 2


def test_a_handoff_continues_the_conversation(provider: StandIn) -> None:
    def script(number: int) -> Answer:
        if number == 1:
            return Answer(calls=(("transfer_to_expert", {}),))
        return Answer(text=f"Answer {number}.")

    provider.script = script
    models = foveal_models()

    async def work(client: AsyncOpenAI) -> Any:
        expert = agent(models, client, "chat", name="expert", instructions="You are the expert.")
        return await ask(agent(models, client, handoffs=[expert], tools=[]), "I need an expert.")

    result = run(provider, work)
    assert provider.faults == []
    assert [request.dialect for request in provider.requests] == ["openai_responses", "openai_chat"]
    assert provider.requests[1].body["messages"][0]["content"] == "You are the expert."
    assert result.last_agent.name == "expert"
    assert len(logs(models)) == 1


def test_a_history_that_the_server_keeps_is_passed_on(provider: StandIn) -> None:
    provider.script = lambda number: Answer(text=f"Answer {number}.")
    models = foveal_models()

    async def work(client: AsyncOpenAI) -> None:
        for streaming in (False, True):
            await ask(agent(models, client), "Hello", previous_response_id="resp_9", streaming=streaming)

    run(provider, work)
    assert [request.body["previous_response_id"] for request in provider.requests] == ["resp_9"] * 2
    assert logs(models) == []


def test_a_provider_of_models_needs_no_wrapping(provider: StandIn) -> None:
    from agents import OpenAIProvider

    provider.script = lambda number: Answer(text=f"Answer {number}.")

    async def work(client: AsyncOpenAI) -> None:
        models = foveal_models(provider=OpenAIProvider(openai_client=client))
        asked = Agent(name="plain", model="gpt-4.1")
        await ask(asked, "Hello", run_config=config(model_provider=models, group_id="g"))
        (name,) = models.conversations._open
        assert name.startswith("agents-sdk:group:")
        model = models.get_model("gpt-4.1")
        assert models.wrap(model) is model

    run(provider, work)
    assert "prompt_cache_key" not in provider.requests[0].body


def test_the_context_of_a_session_is_found_by_the_session_or_its_id(provider: StandIn) -> None:
    provider.script = lambda number: Answer(text=f"Answer {number}.")
    models, session = foveal_models(), SQLiteSession("ci")
    assert models.context(session) is None

    async def work(client: AsyncOpenAI) -> None:
        await ask(agent(models, client), "Hello", session=session)

    run(provider, work)
    (id,) = models.conversations.ids()
    found = models.conversations.find(id)
    assert found is not None
    assert models.conversation_id(session) == models.conversation_id("ci") == id
    assert models.context(session) is models.context("ci") is found.context
    assert models.context("other") is None


def test_a_provider_in_place_of_the_model_is_refused() -> None:
    from agents import OpenAIProvider

    with pytest.raises(BadSetting, match="pass a provider as `provider=`"):
        FovealModelProvider(OpenAIProvider(api_key="none"))  # type: ignore[arg-type]


def test_with_strict_ids_a_run_without_a_session_is_an_error(provider: StandIn) -> None:
    models = foveal_models(strict_ids=True)
    provider.script = lambda number: Answer(text=f"Answer {number}.")

    async def work(client: AsyncOpenAI) -> None:
        with pytest.raises(ConversationIdMissing, match="session="):
            await ask(agent(models, client), "Hello")
        session = SQLiteSession("one")
        await ask(agent(models, client), "Hello", session=session)
        session.close()

    run(provider, work)
    assert len(provider.requests) == 1
