"""Context managers of pydantic-ai-harness, LangChain and strands-agents, each in an agent loop.

    python -m bench.peer_loops      measure all of them; prints one JSON object per peer, window and length

1. Each peer is called before a model call as its documentation describes, and its change of the history persists.
   `trim_messages` has no state and gets the whole history in every turn.
2. Messages are converted to the peer's own type before timing. Summaries come from a function that returns a fixed
   text. No peer is told the usage of earlier calls, and all count tokens as they do by default, by characters.
3. A peer reduces at `TRIGGER_SHARE` of the window, or where its own default is, and keeps half of that.

The peers are in an environment of their own, because their dependencies conflict with those of Foveal's extras.
"""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from bench.measure import Turns, seconds_of, time_each
from bench.work import Json, coding_session

WINDOWS: Final = (32_000, 100_000, 1_000_000)
SIZES: Final = (1_000, 5_000, 10_000)
WARM_UP_TURNS: Final = 40
TURNS: Final = 160
MAX_STATELESS_TURNS: Final = 20
"""Turns of a peer that reads the whole history in each of them."""
TRIGGER_SHARE: Final = 0.8
TOKENS_PER_MESSAGE: Final = 1_000
"""Average of `coding_session`, for a peer whose window is a number of messages."""
SUMMARY: Final = "The task is in progress; the files that were edited are named above. " * 20


def fixed_summary(_messages: Any) -> str:
    """Return the same text for all messages."""
    return SUMMARY


class PeerLoop(Protocol):
    """An agent loop with a peer's context manager."""

    def convert(self, message: Json) -> Any:
        """Return the message in the peer's own type."""
        ...

    def append(self, converted: Any) -> None:
        """Add a message to the history; not timed."""
        ...

    def reduce(self) -> None:
        """Do what the peer does before a model call."""
        ...

    def shown(self) -> int:
        """Return the number of messages that the next model call gets."""
        ...


class Peer(NamedTuple):
    """A context manager of another package."""

    package: str
    what: str
    loop: Callable[[int], PeerLoop]
    """Makes a loop for a window of so many tokens."""
    stateless: bool = False

    @property
    def installed(self) -> str:
        return installed_version(self.package)


def installed_version(package: str) -> str:
    """Return the installed version of a package, or "" if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class PeerTimes(NamedTuple):
    """What one loop took, in seconds."""

    peer: str
    window: int
    size: int
    first: float
    shown: int
    """Messages that the first reduction left."""
    turns: Turns


# ── pydantic-ai-harness ──────────────────────────────────────────────────────────────────────────────────


class PydanticLoop:
    """Calls the hook `before_model_request` of a compaction capability, as an agent does."""

    def __init__(self, capability: Any) -> None:
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import RunContext
        from pydantic_ai.usage import RunUsage

        self.capability = capability
        self.parameters = ModelRequestParameters()
        self.model = pydantic_model()
        self.context: Any = RunContext(deps=None, model=self.model, usage=RunUsage(), messages=[])
        self.names: dict[str, str] = {}

    def convert(self, message: Json) -> Any:
        from pydantic_ai import messages as own

        content = message["content"]
        if message["role"] == "assistant":
            calls = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
            self.names |= {id_: function["name"] for id_, function in calls}
            parts = [own.ToolCallPart(given["name"], given["arguments"], id_) for id_, given in calls]
            return own.ModelResponse(parts=[own.TextPart(content), *parts], model_name="stub")
        if message["role"] == "tool":
            id_ = message["tool_call_id"]
            return own.ModelRequest(parts=[own.ToolReturnPart(self.names[id_], content, id_)])
        kind = own.SystemPromptPart if message["role"] == "system" else own.UserPromptPart
        return own.ModelRequest(parts=[kind(content)])

    def append(self, converted: Any) -> None:
        from pydantic_ai.models import ModelRequestContext

        self.context.messages.append(converted)
        self.request = ModelRequestContext(
            model=self.model,
            messages=list(self.context.messages),
            model_settings=None,
            model_request_parameters=self.parameters,
        )

    def reduce(self) -> None:
        wait_for(self.capability.before_model_request(self.context, self.request))

    def shown(self) -> int:
        return len(self.context.messages)


def pydantic_model(write: Callable[[Any], str] = fixed_summary) -> Any:
    """Return a model that answers with the text that `write` returns for its messages."""
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    return FunctionModel(lambda messages, _info: ModelResponse(parts=[TextPart(write(messages))]))


def _pydantic_sliding(window: int) -> PeerLoop:
    from pydantic_ai_harness.compaction import SlidingWindowCompaction

    most = trigger_tokens(window)
    return PydanticLoop(SlidingWindowCompaction(max_tokens=most, keep_tokens=most // 2))


def _pydantic_tiered(window: int) -> PeerLoop:
    from pydantic_ai_harness.compaction import (
        ClearToolResults,
        DeduplicateFileReads,
        SummarizingCompaction,
        TieredCompaction,
    )

    def file_key(call: Any) -> str | None:
        return call.args_as_dict().get("path") if call.tool_name == "read_file" else None

    most = trigger_tokens(window)
    tiers = [
        DeduplicateFileReads(file_key=file_key),
        ClearToolResults(max_tokens=1),
        SummarizingCompaction(model=pydantic_model(), max_messages=1, keep_tokens=most // 2),
    ]
    return PydanticLoop(TieredCompaction(tiers=tiers, target_tokens=most))


# ── LangChain ────────────────────────────────────────────────────────────────────────────────────────────


class LangChainLoop:
    """A history of LangChain messages; `act` returns the history after a reduction, or None."""

    def __init__(self, act: Callable[[list[Any]], list[Any] | None], *, persists: bool) -> None:
        self.act = act
        self.persists = persists
        self.messages: list[Any] = []
        self.sent = 0

    def convert(self, message: Json) -> Any:
        from langchain_core.messages import convert_to_messages

        return convert_to_messages([message])[0]

    def append(self, converted: Any) -> None:
        self.messages.append(converted)

    def reduce(self) -> None:
        changed = self.act(self.messages)
        self.sent = len(self.messages if changed is None else changed)
        if changed is not None and self.persists:
            self.messages = changed

    def shown(self) -> int:
        return self.sent


def _langchain_summarising(window: int) -> PeerLoop:
    from langchain.agents.middleware import SummarizationMiddleware
    from langchain_core.language_models import FakeListChatModel

    most = trigger_tokens(window)
    middleware: Any = SummarizationMiddleware(
        FakeListChatModel(responses=[SUMMARY]),
        trigger=("tokens", most),
        keep=("tokens", most // 2),
        summarizer=lambda _messages: SUMMARY,
    )

    def act(messages: list[Any]) -> list[Any] | None:
        changed = middleware.before_model({"messages": messages}, None)
        return None if changed is None else list(changed["messages"][1:])  # the first one removes all others

    return LangChainLoop(act, persists=True)


def _langchain_trimming(window: int) -> PeerLoop:
    from langchain_core.messages import trim_messages

    def act(messages: list[Any]) -> list[Any]:
        return trim_messages(
            messages,
            strategy="last",
            max_tokens=trigger_tokens(window),
            token_counter="approximate",
            start_on=("human", "ai"),
            include_system=True,
        )

    return LangChainLoop(act, persists=False)


# ── strands-agents ───────────────────────────────────────────────────────────────────────────────────────


class StrandsLoop:
    """Calls the hooks of an `Agent` around a model call, as its event loop does."""

    def __init__(self, window: int, *, write: Callable[[Any], str] = fixed_summary, **settings: Any) -> None:
        from strands import Agent

        self.agent: Any = Agent(model=_strands_model(window, write), callback_handler=None, **settings)

    def convert(self, message: Json) -> Any:
        content = {"text": message["content"]}
        if message["role"] == "assistant":
            blocks = [content, *map(_strands_call, message.get("tool_calls", ()))]
            return {"role": "assistant", "content": blocks}
        if message["role"] == "tool":
            result = {"toolUseId": message["tool_call_id"], "status": "success", "content": [content]}
            return {"role": "user", "content": [{"toolResult": result}]}
        return {"role": "user", "content": [content]}

    def append(self, converted: Any) -> None:
        from strands.hooks import MessageAddedEvent

        self.agent.messages.append(converted)
        self.added = MessageAddedEvent(agent=self.agent, message=converted)

    def reduce(self) -> None:
        wait_for(self._before_model_call())

    async def _before_model_call(self) -> None:
        from strands.hooks import BeforeModelCallEvent

        await self.agent.hooks.invoke_callbacks_async(self.added)
        tokens = await self.agent.model.count_tokens(self.agent.messages)
        event = BeforeModelCallEvent(agent=self.agent, projected_input_tokens=tokens)
        await self.agent.hooks.invoke_callbacks_async(event)

    def shown(self) -> int:
        return len(self.agent.messages)


def _strands_call(call: Json) -> Json:
    function = call["function"]
    arguments = json.loads(function["arguments"])
    return {"toolUse": {"toolUseId": call["id"], "name": function["name"], "input": arguments}}


def _strands_model(window: int, write: Callable[[Any], str]) -> Any:
    from strands.models import Model

    class FixedModel(Model):
        """Answers with the text that `write` returns for the messages."""

        def get_config(self) -> Json:
            return {"context_window_limit": window}

        def update_config(self, **_config: Any) -> None: ...

        async def structured_output(self, *_given: Any, **_settings: Any) -> AsyncIterator[Json]:
            yield {}

        async def stream(self, messages: Any, *_given: Any, **_settings: Any) -> AsyncIterator[Json]:
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": write(messages)}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    return FixedModel()


def _strands_sliding(window: int) -> PeerLoop:
    from strands.agent.conversation_manager import SlidingWindowConversationManager

    size = trigger_tokens(window) // TOKENS_PER_MESSAGE
    manager = SlidingWindowConversationManager(window_size=size, per_turn=True)
    return StrandsLoop(window, conversation_manager=manager)


def _strands_summarising(window: int) -> PeerLoop:
    from strands.agent.conversation_manager import SummarizingConversationManager

    manager = SummarizingConversationManager(proactive_compression={"compression_threshold": TRIGGER_SHARE})
    return StrandsLoop(window, conversation_manager=manager)


def _strands_auto(window: int) -> PeerLoop:
    return StrandsLoop(window, context_manager="auto")


# ── Measuring ────────────────────────────────────────────────────────────────────────────────────────────


PEERS: Final = (
    Peer("pydantic-ai-harness", "sliding window", _pydantic_sliding),
    Peer("pydantic-ai-harness", "tiered compaction", _pydantic_tiered),
    Peer("langchain", "summarisation middleware", _langchain_summarising),
    Peer("langchain", "trim_messages", _langchain_trimming, stateless=True),
    Peer("strands-agents", "sliding window", _strands_sliding),
    Peer("strands-agents", "summarising manager", _strands_summarising),
    Peer("strands-agents", "context manager auto", _strands_auto),
)


def measure(peer: Peer, window: int, size: int, stream: list[Json]) -> PeerTimes:
    """Time the first reduction of `size` messages, and the turns that follow."""
    loop = peer.loop(window)
    for converted in map(loop.convert, stream[:size]):
        loop.append(converted)
    first = seconds_of(loop.reduce)
    shown = loop.shown()
    warm_up, turns = (2, MAX_STATELESS_TURNS) if peer.stateless else (WARM_UP_TURNS, TURNS)
    later = map(loop.convert, stream[size:])
    time_each(_acts(loop, islice(later, warm_up)))
    return PeerTimes(
        f"{peer.package} {peer.installed}, {peer.what}",
        window,
        size,
        first,
        shown,
        time_each(_acts(loop, islice(later, turns))),
    )


def _acts(loop: PeerLoop, following: Iterator[Any]) -> Iterator[Callable[[], None]]:
    for converted in following:
        loop.append(converted)
        yield loop.reduce


def trigger_tokens(window: int) -> int:
    """Return the tokens from which a peer reduces, in a window of so many tokens."""
    return int(window * TRIGGER_SHARE)


def wait_for(act: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine of a peer."""
    return _EVENT_LOOP.run_until_complete(act)


_EVENT_LOOP: Final = asyncio.new_event_loop()


def main() -> None:
    warnings.simplefilter("ignore")  # peers warn of experimental parts and of windows that they do not know
    logging.disable(logging.WARNING)
    stream = list(islice(coding_session(), max(SIZES) + WARM_UP_TURNS + TURNS))
    for peer in PEERS:
        if not peer.installed:
            print(json.dumps({"missing": f"{peer.package}, {peer.what}"}), flush=True)
            continue
        for window in WINDOWS:
            for size in SIZES:
                print(json.dumps(measure(peer, window, size, stream)._asdict()), flush=True)


if __name__ == "__main__":
    main()
