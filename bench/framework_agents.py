"""Agents of frameworks on a local provider, alone and with Foveal's adapter, measured per request.

    python -m bench.framework_agents NAME PORT          prints the CPU seconds of its requests as JSON

1. Every agent starts with the same history of `MESSAGES` messages, in the framework's own types, and is asked
   `REQUESTS` short questions. The provider (`bench.loopback`) is another process, whose port is given.
2. A request is measured in CPU time of this process. The agents with and without the adapter are asked by turns,
   in `ROUNDS` conversations, and the fastest time of each request counts.
3. The module needs only the framework that it measures: it runs in the environment of that framework.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final, NamedTuple, TypedDict

from bench.bench_fold import normalise
from bench.work import Json, messages
from foveal.adapters.native_context import MessageFormat, NativeContext, Piece
from foveal.core.log import Dialect
from foveal.core.tokens import MessageTokens
from foveal.core.tokens.counter import counter

MESSAGES: Final = 200
"""Messages of the first request, with the system text and the question."""
SIZES: Final = {"user": (200, 600), "assistant": (200, 600), "result": (3_000, 4_000)}
"""Minimum and maximum characters of a message."""
REQUESTS: Final = 12
ROUNDS: Final = 3
WIDE_WINDOW: Final = 128_000
"""Tokens of a window that holds the whole conversation."""
NARROW_WINDOW: Final = 16_000
"""Tokens of a window that holds a third of the history."""
RESERVE: Final = 1_000
MODEL: Final = "gpt-4.1"
GEMINI: Final = "gemini-3-pro-preview"

Settings = dict[str, Any]
"""The settings of the adapter."""
Ask = Callable[[str], Awaitable[object]]


class FrameworkCase(NamedTuple):
    """A framework whose adapter is measured."""

    package: str
    """Its name at PyPI."""
    module: str
    """What is imported."""
    make: Callable[[str, Settings | None], Awaitable[Ask]]
    """Makes an agent with the history; without settings, it has no adapter. The text is the provider's URL."""


class Measured(TypedDict):
    """What one framework needs, in CPU seconds of each request."""

    version: str
    alone: list[float]
    fitted: list[float]
    """With the adapter, in a window that holds the whole history."""
    fits: list[float]
    """Of that, what the adapter spends on writing, fitting and building messages."""
    narrow_fits: list[float]
    """The same in the narrow window."""


def measure(name: str, port: int) -> Measured:
    """Measure one framework with the provider at a port."""
    return asyncio.run(_measure(CASES[name], f"http://127.0.0.1:{port}"))


async def _measure(case: FrameworkCase, url: str) -> Measured:
    # `recent` reduces nothing before the window is full; `economy` also does when it saves money.
    wide: Settings = {"window": WIDE_WINDOW, "reserve": RESERVE, "policy": "recent"}
    narrow: Settings = {"window": NARROW_WINDOW, "reserve": RESERVE}
    await (await case.make(url, wide))("Warm up.")
    await (await case.make(url, None))("Warm up.")
    alone: list[list[float]] = []
    fitted: list[list[float]] = []
    fits: list[list[float]] = []
    narrow_fits: list[list[float]] = []
    for _ in range(ROUNDS):
        with _fit_seconds() as seconds:
            both = await _request_seconds(await case.make(url, None), await case.make(url, wide))
        fits.append(seconds)
        alone.append([times[0] for times in both])
        fitted.append([times[1] for times in both])
        with _fit_seconds() as seconds:
            await _request_seconds(await case.make(url, narrow))
        narrow_fits.append(seconds)
    return Measured(
        version=version(case.package),
        alone=_fastest(alone),
        fitted=_fastest(fitted),
        fits=_fastest(fits),
        narrow_fits=_fastest(narrow_fits),
    )


async def _request_seconds(*agents: Ask) -> list[list[float]]:
    """Ask the agents by turns; return the seconds of each, for each question."""
    questions = [f"Question {number}: what about this?" for number in range(REQUESTS)]
    return [[await _seconds(ask, question) for ask in agents] for question in questions]


async def _seconds(ask: Ask, question: str) -> float:
    start = time.process_time()
    await ask(question)
    return time.process_time() - start


def _fastest(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [min(times) for times in zip(*rounds, strict=True)]


@contextmanager
def _fit_seconds() -> Iterator[list[float]]:
    """Measure the fits of all adapters: messages written, fitted and built."""
    seconds: list[float] = []
    fit, afit = NativeContext.fit, NativeContext.afit

    def timed_fit(context: NativeContext[Any], *given: Any, **named: Any) -> Any:
        start = time.process_time()
        fitted = fit(context, *given, **named)
        seconds.append(time.process_time() - start)
        return fitted

    async def timed_afit(context: NativeContext[Any], *given: Any, **named: Any) -> Any:
        start = time.process_time()
        fitted = await afit(context, *given, **named)
        seconds.append(time.process_time() - start)
        return fitted

    NativeContext.fit, NativeContext.afit = timed_fit, timed_afit  # type: ignore[assignment, method-assign]
    try:
        yield seconds
    finally:
        NativeContext.fit, NativeContext.afit = fit, afit  # type: ignore[method-assign]


# ── The history ──────────────────────────────────────────────────────────────────────────────────────────


def history(dialect: Dialect = "openai_chat") -> list[Json]:
    """Return the messages before the first question, without the system text."""
    given = messages(MESSAGES - 1, SIZES)[1:]
    return (
        given if dialect == "openai_chat" else normalise(given, dialect, MessageTokens(counter("estimate")))
    )


def system() -> str:
    return str(messages(1)[0]["content"])


def native(format: MessageFormat[Any]) -> list[Any]:
    """Return the history as messages of a framework."""
    return [
        message
        for written in history(format.dialect)
        for message in format.build([Piece(written, None, whole=False)], None)
    ]


def grep(pattern: str, path: str) -> str:
    """Search the files below a path."""
    return f"no line of {path} has {pattern}"


# ── The frameworks ───────────────────────────────────────────────────────────────────────────────────────


async def _langchain(url: str, settings: Settings | None) -> Ask:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    from foveal.adapters.langchain import FovealMiddleware, LangChainFormat

    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=MODEL, max_retries=0)  # type: ignore[arg-type]
    middleware = [] if settings is None else [FovealMiddleware(**settings)]
    agent: Any = create_agent(model, [grep], system_prompt=system(), middleware=middleware)
    state: dict[str, Any] = {"messages": native(LangChainFormat())}

    async def ask(question: str) -> None:
        given = [*state["messages"], {"role": "user", "content": question}]
        state.update(await agent.ainvoke({"messages": given}, {"configurable": {"thread_id": "one"}}))

    return ask


async def _pydantic_ai(url: str, settings: Settings | None) -> Ask:
    from pydantic_ai import Agent, Tool
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from foveal.adapters.pydantic_ai import FovealCapability, PydanticAIFormat

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    capabilities = [] if settings is None else [FovealCapability(**settings)]
    tools = [Tool(grep, takes_ctx=False)]
    agent = Agent(model, instructions=system(), tools=tools, capabilities=capabilities)
    kept = native(PydanticAIFormat())

    async def ask(question: str) -> None:
        done = await agent.run(question, message_history=kept, conversation_id="one")
        kept[:] = done.all_messages()

    return ask


async def _openai_agents(url: str, settings: Settings | None) -> Ask:
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
    from openai import AsyncOpenAI

    from foveal.adapters.openai_agents import FovealModelProvider

    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model: Any = OpenAIChatCompletionsModel(MODEL, openai_client=client)
    if settings is not None:
        model = FovealModelProvider(**settings).wrap(model)
    agent: Any = Agent("finder", instructions=system(), model=model, tools=[function_tool(grep)])
    config = RunConfig(tracing_disabled=True)
    kept: list[Any] = history("openai_responses")

    async def ask(question: str) -> None:
        done = await Runner.run(agent, [*kept, {"role": "user", "content": question}], run_config=config)
        kept[:] = done.to_input_list()

    return ask


async def _google_adk(url: str, settings: Settings | None) -> Ask:
    from google.adk.agents import LlmAgent
    from google.adk.apps import App
    from google.adk.events import Event
    from google.adk.models import Gemini
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    from foveal.adapters.google_adk import ContentFormat, FovealAdkPlugin

    os.environ["GOOGLE_API_KEY"] = "none"
    agent = LlmAgent(
        name="finder", model=Gemini(model=GEMINI, base_url=url), instruction=system(), tools=[grep]
    )
    plugins = [] if settings is None else [FovealAdkPlugin(**settings)]
    runner = InMemoryRunner(app=App(name="bench", root_agent=agent, plugins=plugins))
    session = await runner.session_service.create_session(app_name="bench", user_id="ann", session_id="one")
    for content in native(ContentFormat()):
        is_own = content.role == "model" or content.parts[0].function_response
        event = Event(author="finder" if is_own else "user", content=content, invocation_id="earlier")
        await runner.session_service.append_event(session, event)

    async def ask(question: str) -> None:
        said = types.Content(role="user", parts=[types.Part(text=question)])
        async for _ in runner.run_async(user_id="ann", session_id="one", new_message=said):
            pass

    return ask


async def _strands(url: str, settings: Settings | None) -> Ask:
    from strands import Agent, tool
    from strands.agent.conversation_manager import NullConversationManager
    from strands.models.openai import OpenAIModel

    from foveal.adapters.strands import FovealPlugin

    client = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
    agent = Agent(
        model=OpenAIModel(client_args=client, model_id=MODEL, stream=False),
        system_prompt=system(),
        tools=[tool(grep)],
        messages=history("bedrock"),
        plugins=[] if settings is None else [FovealPlugin(**settings)],
        conversation_manager=NullConversationManager(),
        callback_handler=None,
    )
    return agent.invoke_async  # type: ignore[no-any-return, unused-ignore]


async def _agent_framework(url: str, settings: Settings | None) -> Ask:
    from agent_framework import Agent, AgentSession, FunctionTool
    from agent_framework.openai import OpenAIChatCompletionClient

    from foveal.adapters.agent_framework import AgentFrameworkFormat, FovealChatMiddleware

    session = AgentSession(session_id="one")
    session.state["in_memory"] = {"messages": native(AgentFrameworkFormat())}
    agent: Any = Agent(
        OpenAIChatCompletionClient(model=MODEL, base_url=f"{url}/v1", api_key="none"),
        instructions=system(),
        tools=[FunctionTool(name="grep", description="Search.", func=grep)],
        middleware=[] if settings is None else [FovealChatMiddleware(**settings)],
    )

    async def ask(question: str) -> None:
        await agent.run(question, session=session)

    return ask


async def _litellm(url: str, settings: Settings | None) -> Ask:
    import litellm

    from foveal.adapters.litellm import FovealCallback

    complete = litellm.completion if settings is None else FovealCallback(**settings).completion
    options = {"api_base": f"{url}/v1", "api_key": "none", "metadata": {"session_id": "one"}}
    kept: list[Any] = [{"role": "system", "content": system()}, *history()]

    async def ask(question: str) -> None:
        kept.append({"role": "user", "content": question})
        reply: Any = complete(f"openai/{MODEL}", kept, **options)
        kept.append(reply.choices[0].message)

    return ask


async def _smolagents(url: str, settings: Settings | None) -> Ask:
    from smolagents import OpenAIModel
    from smolagents.models import ChatMessage, MessageRole

    from foveal.adapters.smolagents import FovealModel

    model: Any = OpenAIModel(MODEL, api_base=f"{url}/v1", api_key="none")
    if settings is not None:
        model = FovealModel(model, conversation="one", **settings)

    def said(role: MessageRole, text: str) -> ChatMessage:
        return ChatMessage(role=role, content=[{"type": "text", "text": text}])

    kept = [said(MessageRole.SYSTEM, system())]
    roles = {"tool": MessageRole.TOOL_RESPONSE, "assistant": MessageRole.ASSISTANT, "user": MessageRole.USER}
    for message in history():
        calls = message.get("tool_calls")
        role = MessageRole.TOOL_CALL if calls else roles[message["role"]]
        kept.append(said(role, message["content"] or f"Calling tools: {calls}"))

    async def ask(question: str) -> None:
        kept.append(said(MessageRole.USER, question))
        kept.append(said(MessageRole.ASSISTANT, model.generate(kept).content))

    return ask


async def _crewai(url: str, settings: Settings | None) -> Ask:
    from crewai import LLM

    from foveal.adapters.crewai import FovealLLM

    llm: Any = LLM(f"openai/{MODEL}", base_url=f"{url}/v1", api_key="none")
    if settings is not None:
        llm = FovealLLM(llm, conversation=lambda call: "one", **settings)
    kept: list[Any] = [{"role": "system", "content": system()}, *history()]

    async def ask(question: str) -> None:
        kept.append({"role": "user", "content": question})
        kept.append({"role": "assistant", "content": llm.call(kept)})

    return ask


async def _transport(url: str, settings: Settings | None) -> Ask:
    import openai

    import foveal

    pool = None if settings is None else foveal.transport.ConversationPool(**settings)
    http_client = None if pool is None else foveal.transport.httpx2(pool)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http_client)
    kept: list[Any] = [{"role": "system", "content": system()}, *history()]

    async def ask(question: str) -> None:
        kept.append({"role": "user", "content": question})
        reply = client.chat.completions.create(model=MODEL, messages=kept)
        kept.append(reply.choices[0].message.model_dump(exclude_none=True))

    return ask


CASES: Final[dict[str, FrameworkCase]] = {
    "langchain": FrameworkCase("langchain", "langchain", _langchain),
    "pydantic_ai": FrameworkCase("pydantic-ai-slim", "pydantic_ai", _pydantic_ai),
    "openai_agents": FrameworkCase("openai-agents", "agents", _openai_agents),
    "google_adk": FrameworkCase("google-adk", "google.adk", _google_adk),
    "strands": FrameworkCase("strands-agents", "strands", _strands),
    "agent_framework": FrameworkCase("agent-framework-core", "agent_framework", _agent_framework),
    "litellm": FrameworkCase("litellm", "litellm", _litellm),
    "smolagents": FrameworkCase("smolagents", "smolagents", _smolagents),
    "crewai": FrameworkCase("crewai", "crewai", _crewai),
    "transport": FrameworkCase("openai", "httpx2", _transport),
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
