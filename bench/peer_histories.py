"""Histories of pydantic-ai-harness, LangChain and strands-agents that recorded conversations run through.

1. A history gets what an agent of the package has before a model call: messages in its own types, and the usage
   that the provider reported for earlier answers.
2. `reduce` does what the agent does before a call, and `shrink` what it does after a provider refused the request
   as too long. What the package has changed persists.
3. `messages` is the request as chat messages. The system text is the agent's and stays outside of the history,
   except in Pydantic AI, where it is a part of the first message.
4. A peer reduces at `TRIGGER_SHARE` of the window and keeps half of that, or does what its own default is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from bench.peer_loops import (
    TRIGGER_SHARE,
    PydanticLoop,
    StrandsLoop,
    pydantic_model,
    trigger_tokens,
    wait_for,
)
from bench.work import Json

WriteSummary: TypeAlias = Callable[[str], str]
"""Returns a summary for the text that the peer sends to the model."""


class ReportedUsage(NamedTuple):
    """Tokens that the provider reports for an answer."""

    input: int
    output: int


class PeerHistory(Protocol):
    """The history of an agent of another package."""

    def add_answer(self, message: Json, usage: ReportedUsage | None) -> None:
        """Add a message of the model, with its usage if the provider answered."""
        ...

    def add_input(self, messages: Sequence[Json]) -> None:
        """Add the results and user messages that follow an answer."""
        ...

    def reduce(self) -> None:
        """Do what the agent does before a model call."""
        ...

    def shrink(self) -> bool:
        """Do what the agent does after the provider refused a request; return whether it sends another."""
        ...

    def messages(self) -> Iterator[Json]:
        """Yield the messages of the next request."""
        ...


def text_of_chat(message: Json) -> str:
    """Return the text of a chat message."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)


def _calls(message: Json) -> list[tuple[str, str, str]]:
    """Return the id, name and arguments of each call of a message."""
    calls = message.get("tool_calls") or ()
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


def _chat_answer(text: str, calls: Sequence[tuple[str, str, str]]) -> Json:
    written = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id_, name, arguments in calls
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": written} if written else {})}


def _chat_result(id_: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": id_, "content": text}


# ── pydantic-ai-harness ──────────────────────────────────────────────────────────────────────────────────


class PydanticHistory:
    """A capability of pydantic-ai-harness and the messages of its run."""

    def __init__(self, capability: Any) -> None:
        self._loop = PydanticLoop(capability)
        self._names: dict[str, str] = {}

    def add_answer(self, message: Json, usage: ReportedUsage | None) -> None:
        from pydantic_ai import messages as own
        from pydantic_ai.usage import RequestUsage

        self._names |= {id_: name for id_, name, _ in _calls(message)}
        calls = [own.ToolCallPart(name, arguments, id_) for id_, name, arguments in _calls(message)]
        text = text_of_chat(message)
        reported = RequestUsage(input_tokens=usage.input, output_tokens=usage.output) if usage else None
        self._loop.append(
            own.ModelResponse(
                parts=[*([own.TextPart(text)] if text else []), *calls],
                model_name="stub",
                **({"usage": reported} if reported else {}),
            )
        )

    def add_input(self, messages: Sequence[Json]) -> None:
        from pydantic_ai.messages import ModelRequest

        if messages:
            self._loop.append(ModelRequest(parts=[self._part(message) for message in messages]))

    def _part(self, message: Json) -> Any:
        from pydantic_ai import messages as own

        text = text_of_chat(message)
        if message["role"] == "tool":
            id_ = message["tool_call_id"]
            return own.ToolReturnPart(self._names.get(id_, "tool"), text, id_)
        return own.SystemPromptPart(text) if message["role"] == "system" else own.UserPromptPart(text)

    def reduce(self) -> None:
        self._loop.reduce()

    def shrink(self) -> bool:
        return False

    def messages(self) -> Iterator[Json]:
        for message in self._loop.context.messages:
            if message.kind == "response":
                text = "".join(part.content for part in message.parts if part.part_kind == "text")
                calls = [part for part in message.parts if part.part_kind == "tool-call"]
                yield _chat_answer(text, [(c.tool_call_id, c.tool_name, c.args) for c in calls])
                continue
            for part in message.parts:
                match part.part_kind:
                    case "tool-return":
                        yield _chat_result(part.tool_call_id, part.content)
                    case "system-prompt":
                        yield {"role": "system", "content": part.content}
                    case _:  # a user message, or a summary, which is sent in the user's voice
                        yield {"role": "user", "content": part.content}


# The three functions with `target` reduce to this share of the tokens at which they begin.


def pydantic_sliding(window: int, _write: WriteSummary, *, target: float = 0.5) -> PeerHistory:
    """Return a sliding window by tokens."""
    from pydantic_ai_harness.compaction import SlidingWindowCompaction

    most = trigger_tokens(window)
    return PydanticHistory(SlidingWindowCompaction(max_tokens=most, keep_tokens=int(most * target)))


def pydantic_tiered(window: int, write: WriteSummary, *, target: float = 0.5) -> PeerHistory:
    """Return the tiers of the package's documentation: old results are cleared, then turns are summarised."""
    from pydantic_ai_harness.compaction import ClearToolResults, SummarizingCompaction, TieredCompaction

    most = trigger_tokens(window)
    model = pydantic_model(lambda messages: write(_pydantic_prompt(messages)))
    tiers = [
        ClearToolResults(max_tokens=1),
        SummarizingCompaction(model=model, max_messages=1, keep_tokens=int(most * target)),
    ]
    return PydanticHistory(TieredCompaction(tiers=tiers, target_tokens=most))


def _pydantic_prompt(messages: Sequence[Any]) -> str:
    return "\n".join(
        text
        for message in messages
        for text in (getattr(message, "instructions", None) or "", *(str(p.content) for p in message.parts))
    )


# ── LangChain ────────────────────────────────────────────────────────────────────────────────────────────


class LangChainHistory:
    """The summarisation middleware of LangChain and the messages of an agent's state."""

    def __init__(self, window: int, write: WriteSummary, *, target: float = 0.5) -> None:
        from langchain.agents.middleware import SummarizationMiddleware
        from langchain.agents.middleware.summarization import DEFAULT_SUMMARY_PROMPT
        from langchain_core.language_models import FakeListChatModel
        from langchain_core.messages import get_buffer_string

        def summarise(messages: Any) -> str:
            return write(DEFAULT_SUMMARY_PROMPT.format(messages=get_buffer_string(messages)))

        most = trigger_tokens(window)
        model = FakeListChatModel(responses=[""])
        # Usage counts only if the message and the model name the same provider.
        self._provider = model._get_ls_params()["ls_provider"]
        self._middleware: Any = SummarizationMiddleware(
            model,
            trigger=("tokens", most),
            keep=("tokens", int(most * target)),
            # By default a summary reads up to 4,000 tokens that begin with a user message: in a long loop, none.
            trim_tokens_to_summarize=None,
            summarizer=summarise,
        )
        self._system: list[Json] = []
        self._messages: list[Any] = []

    def add_answer(self, message: Json, usage: ReportedUsage | None) -> None:
        from langchain_core.messages import AIMessage

        calls = [
            {"id": id_, "name": name, "args": json.loads(arguments)}
            for id_, name, arguments in _calls(message)
        ]
        reported = usage and {
            "input_tokens": usage.input,
            "output_tokens": usage.output,
            "total_tokens": sum(usage),
        }
        self._messages.append(
            AIMessage(
                text_of_chat(message),
                tool_calls=calls,
                usage_metadata=reported,
                response_metadata={"model_provider": self._provider},
            )
        )

    def add_input(self, messages: Sequence[Json]) -> None:
        from langchain_core.messages import HumanMessage, ToolMessage

        for message in messages:
            text = text_of_chat(message)
            if message["role"] == "system":
                self._system.append(message)
            elif message["role"] == "tool":
                self._messages.append(ToolMessage(text, tool_call_id=message["tool_call_id"]))
            else:
                self._messages.append(HumanMessage(text))

    def reduce(self) -> None:
        changed = self._middleware.before_model({"messages": self._messages}, None)
        if changed is not None:
            self._messages = list(changed["messages"][1:])  # the first one removes all others

    def shrink(self) -> bool:
        return False

    def messages(self) -> Iterator[Json]:
        yield from self._system
        for message in self._messages:
            match message.type:
                case "ai":
                    calls = [(c["id"], c["name"], json.dumps(c["args"])) for c in message.tool_calls]
                    yield _chat_answer(message.content, calls)
                case "tool":
                    yield _chat_result(message.tool_call_id, message.content)
                case _:
                    yield {"role": "user", "content": message.content}


# ── strands-agents ───────────────────────────────────────────────────────────────────────────────────────


MAX_REFUSED_REQUESTS = 60
"""A history that still does not fit after so many refused requests is given up."""


class StrandsHistory:
    """An `Agent` whose hooks and managers are called as its event loop calls them."""

    def __init__(self, window: int, write: WriteSummary, **settings: Any) -> None:
        self._agent = StrandsLoop(
            window, write=lambda messages: write(_strands_prompt(messages)), **settings
        ).agent
        self._system: list[Json] = []
        self._refused = 0

    def add_answer(self, message: Json, usage: ReportedUsage | None) -> None:
        text = text_of_chat(message)
        blocks: list[Json] = [{"text": text}] if text else []
        for id_, name, arguments in _calls(message):
            blocks.append({"toolUse": {"toolUseId": id_, "name": name, "input": json.loads(arguments)}})
        answer: Json = {"role": "assistant", "content": blocks}
        if usage is not None:
            reported = {"inputTokens": usage.input, "outputTokens": usage.output, "totalTokens": sum(usage)}
            answer["metadata"] = {"usage": reported}
        self._append(answer)

    def add_input(self, messages: Sequence[Json]) -> None:
        results: list[Json] = []
        texts: list[Json] = []
        for message in messages:
            text = {"text": text_of_chat(message)}
            if message["role"] == "system":
                self._system.append(message)
            elif message["role"] == "tool":
                id_ = message["tool_call_id"]
                result = {"toolUseId": id_, "status": "success", "content": [text]}
                results.append({"toolResult": result})
            else:
                texts.append(text)
        if results:
            self._append({"role": "user", "content": results})
        if texts:
            # A user message begins a new invocation; the manager is called at the end of the one before.
            self._agent.conversation_manager.apply_management(self._agent)
            self._append({"role": "user", "content": texts})

    def _append(self, message: Json) -> None:
        from strands.hooks import MessageAddedEvent

        self._agent.messages.append(message)
        event = MessageAddedEvent(agent=self._agent, message=message)
        wait_for(self._agent.hooks.invoke_callbacks_async(event))

    def reduce(self) -> None:
        self._refused = 0
        wait_for(self._before_model_call())

    async def _before_model_call(self) -> None:
        from strands.event_loop.event_loop import _estimate_input_tokens
        from strands.hooks import BeforeModelCallEvent

        tokens = await _estimate_input_tokens(self._agent)
        event = BeforeModelCallEvent(agent=self._agent, projected_input_tokens=tokens)
        await self._agent.hooks.invoke_callbacks_async(event)

    def shrink(self) -> bool:
        from strands.hooks import AfterModelCallEvent
        from strands.types.exceptions import ContextWindowOverflowException

        self._refused += 1
        if self._refused > MAX_REFUSED_REQUESTS:
            return False
        error = ContextWindowOverflowException("the request is too long")
        event = AfterModelCallEvent(agent=self._agent, exception=error)
        wait_for(self._agent.hooks.invoke_callbacks_async(event))
        if event.retry:
            return True
        try:
            self._agent.conversation_manager.reduce_context(self._agent, e=error)
        except ContextWindowOverflowException:
            return False
        wait_for(self._before_model_call())
        return True

    def messages(self) -> Iterator[Json]:
        yield from self._system
        for message in self._agent.messages:
            texts = [block["text"] for block in message["content"] if "text" in block]
            if message["role"] == "assistant":
                used = [block["toolUse"] for block in message["content"] if "toolUse" in block]
                calls = [(use["toolUseId"], use["name"], json.dumps(use["input"])) for use in used]
                yield _chat_answer("\n".join(texts), calls)
                continue
            for block in message["content"]:
                if "toolResult" in block:
                    result = block["toolResult"]
                    shown = [part.get("text", "") for part in result["content"]]
                    yield _chat_result(result["toolUseId"], "\n".join(shown))
            yield from ({"role": "user", "content": text} for text in texts)


def _strands_prompt(messages: Sequence[Json]) -> str:
    return "\n".join(block.get("text", "") for message in messages for block in message["content"])


def strands_sliding(window: int, write: WriteSummary) -> PeerHistory:
    """Return the default manager, a window of 40 messages, which also acts at `TRIGGER_SHARE`."""
    from strands.agent.conversation_manager import SlidingWindowConversationManager

    compression = {"compression_threshold": TRIGGER_SHARE}
    manager = SlidingWindowConversationManager(proactive_compression=compression)
    return StrandsHistory(window, write, conversation_manager=manager)


def strands_auto(window: int, write: WriteSummary) -> PeerHistory:
    """Return the context manager `auto`, which previews long results and summarises at 85 %."""
    return StrandsHistory(window, write, context_manager="auto")
