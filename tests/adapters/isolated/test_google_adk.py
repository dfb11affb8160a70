"""Agents of Google's ADK with the plugin, against a Gemini API that refuses illegal requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk", reason="runs in the environment of the frameworks")

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.models import BaseLlm, Gemini, LlmRequest, LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from google.genai.errors import ClientError, ServerError
from pydantic import Field

from foveal.adapters.google_adk import ContentFormat, FovealAdkPlugin, conversation_id
from foveal.adapters.native_context import Piece
from foveal.core.log import Compacted, Used
from support.adapter_runs import (
    OVERFLOW_TURNS,
    SHORT_TURNS,
    TURNS,
    WINDOW,
    SummarisingStandIn,
    Talk,
    check_memory,
    check_run,
    search,
)
from support.gemini_stand_in import GeminiStandIn
from support.provider_stand_in import Answer, Trouble

MODEL = "gemini-3-pro-preview"
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("GOOGLE_API_KEY", "none")


@pytest.fixture
def provider() -> Iterator[GeminiStandIn]:
    with GeminiStandIn(window=WINDOW) as standin:
        yield standin


def plugin(**more: Any) -> FovealAdkPlugin:
    return FovealAdkPlugin(**{"window": WINDOW, "reserve": 1_000, **more})


def gemini(provider: GeminiStandIn) -> Gemini:
    # ADK never closes the clients that it makes for each event loop, so each connection ends with its request.
    # Each client would load all certificates.
    without_certificates = {"verify": False}
    options = types.HttpOptions(
        headers={"connection": "close"},
        client_args=without_certificates,
        async_client_args=without_certificates,
    )
    return Gemini(model=MODEL, base_url=provider.gemini, client_kwargs={"http_options": options})


def finder(provider: GeminiStandIn | None, **more: Any) -> LlmAgent:
    settings: dict[str, Any] = {
        "name": "finder",
        "model": provider and gemini(provider),
        "instruction": "You are a careful agent. Never delete anything.",
        "tools": [search],
        "generate_content_config": types.GenerateContentConfig(max_output_tokens=1_000),
    }
    return LlmAgent(**{**settings, **more})


class Chat:
    """An app with a plugin, and the sessions that it keeps."""

    def __init__(self, agent: LlmAgent, *plugins: BasePlugin, service: Any = None) -> None:
        self.service = service or InMemorySessionService()
        app = App(name="app", root_agent=agent, plugins=list(plugins))
        self.runner = Runner(app=app, session_service=self.service, auto_create_session=True)

    async def ask(self, text: str, *, session: str = "one", stream: bool = False) -> list[Any]:
        return [event async for event in self.runner.run_async(**_arguments(text, session, stream))]

    def ask_sync(self, text: str, *, session: str = "one", stream: bool = False) -> list[Any]:
        return list(self.runner.run(**_arguments(text, session, stream)))

    async def events(self, session: str = "one") -> list[dict[str, Any]]:
        found = await self.service.get_session(app_name="app", user_id="ann", session_id=session)
        return [event.model_dump() for event in found.events]


def _arguments(text: str, session: str, stream: bool) -> dict[str, Any]:
    return {
        "user_id": "ann",
        "session_id": session,
        "new_message": types.Content(role="user", parts=[types.Part(text=text)]),
        "run_config": RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE),
    }


async def ask_often(chat: Chat, turns: int, *, session: str = "one") -> None:
    for turn in range(turns):
        await chat.ask(f"Question {turn}: look it up.", session=session)


def log(foveal: FovealAdkPlugin, session: str = "one", agent: str = "finder") -> Any:
    return foveal.conversations.get(f"app/ann/{session}/{agent}").context.log


def text_of(events: list[Any]) -> str:
    return "".join(part.text or "" for part in events[-1].content.parts)


def results(events: list[Any], name: str) -> list[str]:
    answers = [response for event in events for response in event.get_function_responses()]
    return [str(answer.response) for answer in answers if answer.name == name]


# ── The window ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("is_async", "stream", "turns"),
    [
        pytest.param(False, False, SHORT_TURNS, id="sync-whole"),
        pytest.param(False, True, SHORT_TURNS, id="sync-streaming"),
        pytest.param(True, False, SHORT_TURNS, id="async-whole"),
        pytest.param(True, True, TURNS, id="async-streaming"),
    ],
)
def test_an_agent_stays_inside_the_window(
    provider: GeminiStandIn, *, is_async: bool, stream: bool, turns: int
) -> None:
    foveal = plugin()
    chat = Chat(finder(provider), foveal)

    async def run() -> list[dict[str, Any]]:
        stored: list[dict[str, Any]] = []
        for turn in range(turns):
            question = f"Question {turn}: look it up."
            if is_async:
                await chat.ask(question, stream=stream)
            else:
                await asyncio.to_thread(chat.ask_sync, question, stream=stream)
            if turn in (turns // 2, turns - 1):
                events = await chat.events()
                assert events[: len(stored)] == stored, "the stored history has changed"
                stored = events
        return stored

    stored = asyncio.run(run())
    check_run(provider, requests=5 * turns)
    used = [event.fact.prompt for event in log(foveal) if isinstance(event.fact, Used)]
    assert used == [request.prompt for request in provider.requests]
    parts = [part for event in stored for part in event["content"]["parts"]]
    calls = [part["function_call"]["args"] for part in parts if part["function_call"]]
    found = [part["function_response"]["response"] for part in parts if part["function_response"]]
    assert found == [{"result": search(**arguments)} for arguments in calls]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])
def test_an_overflow_of_the_provider_is_recovered(provider: GeminiStandIn, *, stream: bool) -> None:
    chat = Chat(finder(provider), plugin(window=4 * WINDOW))

    async def turns() -> list[Any]:
        for turn in range(OVERFLOW_TURNS):
            events = await chat.ask(f"Question {turn}: look it up.", stream=stream)
        return events

    events = asyncio.run(turns())
    refused = [request for request in provider.requests if request.faults]
    assert refused
    assert len(provider.requests) - len(refused) == OVERFLOW_TURNS * 5
    assert text_of(events).startswith(f"Turn {OVERFLOW_TURNS} is done")


def test_another_error_of_the_provider_is_raised(provider: GeminiStandIn) -> None:
    provider.trouble = lambda number: Trouble(
        status=500, body='{"error": {"code": 500, "message": "Internal"}}'
    )
    with pytest.raises(ServerError, match="Internal"):
        asyncio.run(Chat(finder(provider), plugin()).ask("Hello."))
    assert provider.attempts == 1


class CachingModel(BaseLlm):
    """A model that moves the system text and the tools into a cache, as ADK's context cache does."""

    seen: list[tuple[bool, bool, int]] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        config = llm_request.config
        self.seen.append((bool(config.system_instruction), bool(config.tools), len(llm_request.contents)))
        config.system_instruction = config.tools = None
        llm_request.contents = llm_request.contents[-1:]
        if len(self.seen) == 3:
            message = "The input token count (9100) exceeds the maximum number of tokens allowed (8000)."
            raise ClientError(400, {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}})
        content = types.Content(role="model", parts=[types.Part(text="Done.")])
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=900, candidates_token_count=3)
        yield LlmResponse(content=content, usage_metadata=usage, finish_reason=types.FinishReason.STOP)


def test_what_a_context_cache_took_out_is_sent_again_after_an_overflow() -> None:
    model = CachingModel(model=MODEL)
    chat = Chat(finder(None, model=model), plugin())

    async def main() -> list[Any]:
        for number in range(2):
            await chat.ask(f"Question {number}: " + "words " * 3_000)
        return await chat.ask("Question 3: " + "words " * 3_000)

    assert text_of(asyncio.run(main())) == "Done."
    assert [(system, tools) for system, tools, _ in model.seen] == [(True, True)] * 4
    *_, refused, sent = [contents for _, _, contents in model.seen]
    assert sent < refused == 5


# ── Summaries, recall, stores ────────────────────────────────────────────────────────────────────────────


class SummarisingGemini(SummarisingStandIn, GeminiStandIn):
    pass


def test_the_model_of_the_agent_writes_the_summaries() -> None:
    foveal = plugin(summarise="own")
    with SummarisingGemini(window=WINDOW) as provider:
        asyncio.run(ask_often(Chat(finder(provider), foveal), SHORT_TURNS))
    assert provider.faults == []
    assert provider.summaries
    written = [event.fact.by for event in log(foveal) if isinstance(event.fact, Compacted)]
    assert MODEL in written, written


def test_recall_tools_answer_from_the_conversation_that_calls_them(provider: GeminiStandIn) -> None:
    def script(number: int) -> Answer:
        if number == 3:
            return Answer(calls=(("recall_search", {"query": "zebra"}),))
        return Answer(text=f"Answer {number}.")

    provider.script = script
    chat = Chat(finder(provider), plugin(recall_tools=True))

    async def main() -> list[Any]:
        await chat.ask("The zebra is called Ann.")
        await chat.ask("The zebra is called Bob.", session="two")
        return await chat.ask("What is its name?")

    (result,) = results(asyncio.run(main()), "recall_search")
    assert "called Ann" in result
    assert "called Bob" not in result
    declared = provider.requests[0].body["tools"][0]["functionDeclarations"]
    assert [tool["name"] for tool in declared] == ["search", "recall_search", "recall_read"]


def test_context_tools_show_the_model_its_window(provider: GeminiStandIn) -> None:
    def script(number: int) -> Answer:
        return Answer(calls=(("context_status", {}),)) if number == 1 else Answer(text=f"Answer {number}.")

    provider.script = script
    chat = Chat(finder(provider), plugin(context_tools=True))
    (result,) = results(asyncio.run(chat.ask("What fills your window?")), "context_status")
    assert "[foveal context: the request has " in result
    declared = provider.requests[0].body["tools"][0]["functionDeclarations"]
    assert [tool["name"] for tool in declared] == ["search", "context_status", "context_cut"]


def test_contexts_in_a_store_survive_a_restart(provider: GeminiStandIn, tmp_path: Path) -> None:
    service = InMemorySessionService()

    async def run() -> None:
        for _ in range(2):
            chat = Chat(finder(provider), plugin(store=str(tmp_path / "contexts.db")), service=service)
            await ask_often(chat, SHORT_TURNS)
            await chat.runner.close()

    asyncio.run(run())
    assert provider.faults == []
    requests = [request.body["contents"] for request in provider.requests]
    at = len(requests) // 2
    assert requests[at][: len(requests[at - 1])] == requests[at - 1]


# ── Contents ─────────────────────────────────────────────────────────────────────────────────────────────


class Spy(BasePlugin):
    """Keeps the contents of each request."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.seen: list[list[types.Content]] = []

    async def before_model_callback(self, *, callback_context: Any, llm_request: LlmRequest) -> None:
        self.seen.append(list(llm_request.contents))


def test_contents_that_are_shown_whole_are_the_objects_of_adk(provider: GeminiStandIn) -> None:
    given, sent = Spy("given"), Spy("sent")
    asyncio.run(ask_often(Chat(finder(provider), given, plugin(), sent), SHORT_TURNS))
    for before, after in zip(given.seen, sent.seen, strict=True):
        assert after[-1] is before[-1] or after[-1].parts[0] is not before[-1].parts[0]
    own = [set(map(id, contents)) for contents in given.seen]
    shared = [sum(id(content) in ids for content in sent) for ids, sent in zip(own, sent.seen, strict=True)]
    assert sum(shared) > sum(map(len, sent.seen)) / 2
    assert shared[-1] < len(given.seen[-1]), "something is reduced"


def test_a_reduced_content_keeps_what_is_not_reduced() -> None:
    thought = types.Part(text="Thought.", thought=True)
    call = types.FunctionCall(id="c1", name="write", args={"text": "long", "empty": None})
    signed = types.Part(function_call=call, thought_signature=b"\xff")
    original = types.Content(role="model", parts=[thought, signed])
    (written,) = ContentFormat().write(original)
    written["parts"][1]["functionCall"]["args"]["text"] = "l…"
    (built,) = ContentFormat().build([Piece(written, 0, whole=False)], original)
    assert built.parts[0] is thought
    shorter = call.model_copy(update={"args": {"text": "l…", "empty": None}})
    assert built.parts[1] == types.Part(function_call=shorter, thought_signature=b"\xff")
    assert call.args["text"] == "long"


def test_media_in_an_overflowing_request_stay_as_they_were_given(provider: GeminiStandIn) -> None:
    provider.script = lambda number: Answer(text=f"Answer {number}.")
    foveal = plugin(window=4 * WINDOW)
    chat = Chat(finder(provider), foveal)
    table = types.Part(inline_data=types.Blob(data=b"a,b\n" * 20, mime_type="text/csv", display_name="t.csv"))

    async def main() -> None:
        await chat.ask("words " * (WINDOW - 2_000))
        arguments = _arguments("Sum it up. " + "more " * 6_000, "one", stream=False)
        arguments["new_message"].parts.append(table)
        events = [event async for event in chat.runner.run_async(**arguments)]
        assert text_of(events).startswith("Answer")
        before = len(log(foveal))
        await chat.ask("And now?")
        assert [e.fact for e in log(foveal)[before:] if type(e.fact).__name__ == "Rewound"] == []

    asyncio.run(main())
    assert [request for request in provider.requests if request.faults]


# ── Conversations ────────────────────────────────────────────────────────────────────────────────────────


def test_two_conversations_at_once(provider: GeminiStandIn) -> None:
    foveal = plugin()
    chat = Chat(finder(provider), foveal)
    provider.script = lambda number: (
        Answer(calls=(("search", {"query": f"part {number}"}),)) if number % 3 else Answer(text="Done.")
    )

    async def main() -> None:
        await asyncio.gather(*(ask_often(chat, 8, session=name) for name in ("one", "two")))

    asyncio.run(main())
    assert provider.faults == []
    counts = [
        sum(isinstance(event.fact, Used) for event in log(foveal, session)) for session in ("one", "two")
    ]
    assert sum(counts) == len(provider.requests)
    assert min(counts) >= 8


def test_each_agent_of_a_session_has_a_conversation_of_its_own(provider: GeminiStandIn) -> None:
    def script(number: int) -> Answer:
        if number == 1:
            return Answer(calls=(("transfer_to_agent", {"agent_name": "writer"}),))
        return Answer(text=f"Answer {number}.")

    provider.script = script
    foveal = plugin()
    writer = finder(provider, name="writer", description="Writes.", tools=[])
    chat = Chat(finder(provider, sub_agents=[writer]), foveal)
    asyncio.run(ask_often(chat, 3))
    assert provider.faults == []
    used = {
        agent: sum(isinstance(event.fact, Used) for event in log(foveal, agent=agent))
        for agent in ("finder", "writer")
    }
    assert used == {"finder": 1, "writer": 3}


def test_sessions_of_different_users_are_different_conversations(provider: GeminiStandIn) -> None:
    provider.script = lambda number: Answer(text="Hello.")
    seen: list[str] = []

    def conversation(context: Any) -> str:
        seen.append(conversation_id(context))
        return seen[-1]

    chat = Chat(finder(provider), plugin(conversation=conversation))

    async def main() -> None:
        for user, session in (("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c")):
            arguments = {**_arguments("Hello.", session, False), "user_id": user}
            async for _ in chat.runner.run_async(**arguments):
                pass

    asyncio.run(main())
    assert sorted(set(seen)) == ["app/a%252Fb/c/finder", "app/a%2Fb/c/finder", "app/a/b%2Fc/finder"]


def test_a_history_that_the_provider_keeps_is_sent_as_it_is() -> None:
    contents = [types.Content(role="user", parts=[types.Part(text="words " * 20_000)])]
    request = LlmRequest(model=MODEL, contents=contents, previous_interaction_id="i1")
    context: Any = None  # not read for such a request
    asyncio.run(plugin().before_model_callback(callback_context=context, llm_request=request))
    assert request.contents == contents


# ── A memory ─────────────────────────────────────────────────────────────────────────────────────────────


def test_an_agent_shows_a_memory_in_one_place_and_learns(provider: GeminiStandIn, tmp_path: Path) -> None:
    async def run(settings: dict[str, Any], talk: Talk) -> None:
        await talk(Chat(finder(provider), FovealAdkPlugin(**settings)).ask)

    asyncio.run(check_memory(provider, tmp_path / "a.db", run))
