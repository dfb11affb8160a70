"""Model wrapper for crewai: any LLM of crewai, with the messages that fit.

    from foveal.adapters.crewai import FovealLLM

    agent = Agent(role="Reviewer", goal="Find the bug.", backstory="Careful.", llm=FovealLLM(LLM("gpt-4.1")))

1. Each call of the LLM sends what fits; the messages of the executor are not changed. crewai's own summaries,
   which would replace them, are not needed. Its hook `before_llm_call` is not used: it changes these messages.
2. A conversation is found by the role of the agent and by its messages, or named by `conversation`. Agents can
   share an LLM.
3. The usage of a call is the growth of the LLM's counters. A call is not observed if another call of the same LLM
   ends while it runs.
4. With `summarise="own"`, the wrapped LLM writes the summaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, Unpack

from crewai.llms.base_llm import BaseLLM, call_stop_override, call_stream_override
from crewai.llms.cache import CACHE_BREAKPOINT_KEY
from crewai.types.usage_metrics import UsageMetrics
from pydantic import PrivateAttr

from foveal.adapters.conversations import AdapterArguments, Conversations, checked_function, own_model
from foveal.adapters.native_context import NativeContext, Piece, WireMessage, with_own_fields
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.compaction.summariser_protocol import Draft
from foveal.core.log.events import Dialect
from foveal.core.models.model import Model

_HOW: Final = "set `conversation` to a function that returns its id"
_NOT_SENT: Final = frozenset((CACHE_BREAKPOINT_KEY, "files", "raw_tool_call_parts"))
"""Fields of a message that crewai converts or removes before it sends the message."""


class CrewCall(NamedTuple):
    """A call of the LLM, as `conversation` gets it.

    Examples:
        ```py
        from crewai import LLM

        from foveal.adapters.crewai import CrewCall, FovealLLM


        def by_task(call: CrewCall) -> str:
            return str(call.task)


        llm = FovealLLM(LLM("gpt-4.1"), conversation=by_task)
        ```
    """

    messages: list[Any]
    """The messages of the executor."""
    task: Any
    """The task of crewai."""
    agent: Any
    """The agent of crewai."""


class CrewMessageFormat:
    """Converts crewai's messages, which are those of chat completions with fields of its own."""

    dialect: Dialect = "openai_chat"

    def write(self, message: WireMessage) -> Sequence[WireMessage]:
        return [{name: value for name, value in message.items() if name not in _NOT_SENT}]

    def build(self, pieces: Sequence[Piece], original: WireMessage | None) -> Sequence[WireMessage]:
        if original is None or len(pieces) != 1:
            return [piece.message for piece in pieces]
        return [with_own_fields(pieces[0].message, original)]


class FovealLLM(BaseLLM):  # type: ignore[misc, unused-ignore]
    """An LLM of crewai that sends what fits into its window.

    Args:
        llm: The LLM of crewai that answers.
        name: The name by which Foveal knows the model, if it differs from its `model`.
        conversation: Returns the id of a call's conversation, which `store` needs after a restart. None finds
            conversations by their messages.
        **settings: The settings of every adapter, as in `AdapterArguments`: `window`, `policy`, `summarise`,
            `store` and others.

    Raises:
        BadSetting: A setting is unknown or outside its range.

    Examples:
        ```py
        from crewai import LLM, Agent

        from foveal.adapters.crewai import FovealLLM

        llm = FovealLLM(LLM("gpt-4.1"), window=32_000)
        agent = Agent(role="Reviewer", goal="Find the bug.", backstory="Careful.", llm=llm)
        ```
    """

    _llm: BaseLLM = PrivateAttr()
    _conversations: Conversations[WireMessage] = PrivateAttr()
    _conversation: Callable[[CrewCall], str] | None = PrivateAttr()
    _has_reserve: bool = PrivateAttr()

    def __init__(
        self,
        llm: BaseLLM,
        *,
        name: str | Model = "",
        conversation: Callable[[CrewCall], str] | None = None,
        **settings: Unpack[AdapterArguments],
    ) -> None:
        super().__init__(
            model=llm.model,
            provider=llm.provider,
            temperature=llm.temperature,
            stop=llm.stop,
            stream=llm.stream,
        )
        self._llm = llm
        self._conversations = Conversations(
            CrewMessageFormat(), name or llm.model, has_own_model=True, **settings
        )
        self._conversation = checked_function(conversation)
        self._has_reserve = settings.get("reserve") is not None

    @property
    def conversations(self) -> Conversations[WireMessage]:
        """The contexts of the conversations."""
        return self._conversations

    def call(
        self,
        messages: str | list[Any],
        tools: list[Any] | None = None,
        callbacks: list[Any] | None = None,
        available_functions: dict[str, Any] | None = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: Any = None,
    ) -> Any:
        given = _listed(messages)
        found = self._prepare(self._conversations.get(self._id(CrewCall(given, from_task, from_agent))))
        call = partial(
            self._llm.call,
            tools=tools,
            callbacks=callbacks,
            available_functions=available_functions,
            from_task=from_task,
            from_agent=from_agent,
            response_model=response_model,
        )

        def observed(fitted: list[WireMessage]) -> Any:
            with self._observing(found):
                return call(fitted)

        with own_model(partial(_summarise, self._llm)):
            return found.send(given, observed, tools=tools or ())

    async def acall(
        self,
        messages: str | list[Any],
        tools: list[Any] | None = None,
        callbacks: list[Any] | None = None,
        available_functions: dict[str, Any] | None = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: Any = None,
    ) -> Any:
        given = _listed(messages)
        id = self._id(CrewCall(given, from_task, from_agent))
        found = self._prepare(await self._conversations.aget(id))
        call = partial(
            self._llm.acall,
            tools=tools,
            callbacks=callbacks,
            available_functions=available_functions,
            from_task=from_task,
            from_agent=from_agent,
            response_model=response_model,
        )

        async def observed(fitted: list[WireMessage]) -> Any:
            with self._observing(found):
                return await call(fitted)

        with own_model(partial(_summarise_async, self._llm)):
            return await found.asend(given, observed, tools=tools or ())

    def is_context_window_overflowing_threshold(
        self, messages: Any, tools: Any = None, response_model: Any = None
    ) -> bool:
        """Return False: crewai would otherwise replace the messages of the executor with a summary."""
        return False

    # ── What crewai asks of an LLM, answered by the wrapped one ──────────────────────────────────────────

    def supports_function_calling(self) -> bool:
        return bool(getattr(self._llm, "supports_function_calling", lambda: False)())

    def supports_stop_words(self) -> bool:
        return bool(self._llm.supports_stop_words())

    def supports_multimodal(self) -> bool:
        return bool(self._llm.supports_multimodal())

    def format_text_content(self, text: str) -> dict[str, Any]:
        formatted: dict[str, Any] = self._llm.format_text_content(text)
        return formatted

    def get_file_uploader(self) -> Any:
        return self._llm.get_file_uploader()

    def get_context_window_size(self) -> int:
        return int(self._llm.get_context_window_size())

    def get_input_tokens_count(self, messages: Any, tools: Any = None, response_model: Any = None) -> int:
        return int(self._llm.get_input_tokens_count(messages, tools, response_model))

    def get_token_usage_summary(self) -> UsageMetrics:
        return self._llm.get_token_usage_summary()

    def to_config_dict(self) -> dict[str, Any]:
        """Return the settings of the wrapped LLM: a crew that is restored from them has no contexts."""
        config: dict[str, Any] = self._llm.to_config_dict()
        return config

    # ── Shared ───────────────────────────────────────────────────────────────────────────────────────────

    def _id(self, call: CrewCall) -> str:
        if self._conversation is not None:
            return self._conversation(call)
        scope = f"{getattr(call.agent, 'role', '')}/"
        return self._conversations.recognise(call.messages, how=_HOW, scope=scope)

    def _prepare(self, found: NativeContext[WireMessage]) -> NativeContext[WireMessage]:
        limit = getattr(self._llm, "max_completion_tokens", None) or self._llm.max_tokens
        if limit and not self._has_reserve:
            found.context.set_reserve(int(limit))
        return found

    @contextmanager
    def _observing(self, found: NativeContext[WireMessage]) -> Iterator[None]:
        """Pass the stop words and the streaming of this call on, and observe its usage."""
        before = self._llm.get_token_usage_summary()
        # crewai has no public name for the streaming of the current call.
        stream = bool(self._effective_stream())
        with call_stop_override(self._llm, self.stop_sequences), call_stream_override(self._llm, stream):
            yield
        used = self._llm.get_token_usage_summary().delta_since(before)
        if used.successful_requests == 1:  # more: calls of other conversations have ended meanwhile
            found.observe(used)


def _listed(messages: str | list[Any]) -> list[Any]:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


# ── Summaries by the wrapped LLM ─────────────────────────────────────────────────────────────────────────


@contextmanager
def _plain_answer(llm: BaseLLM) -> Iterator[None]:
    """Let a call answer at once and to the end: stop words of the agent may occur in a summary."""
    with call_stop_override(llm, []), call_stream_override(llm, stream=False):
        yield


def _summarise(llm: BaseLLM, request: SummaryRequest) -> Draft:
    before = llm.get_token_usage_summary()
    with _plain_answer(llm):
        return _draft(llm, before, llm.call(request.messages))


async def _summarise_async(llm: BaseLLM, request: SummaryRequest) -> Draft:
    before = llm.get_token_usage_summary()
    with _plain_answer(llm):
        return _draft(llm, before, await llm.acall(request.messages))


def _draft(llm: BaseLLM, before: UsageMetrics, text: Any) -> Draft:
    used = llm.get_token_usage_summary().delta_since(before)
    return Draft(text=str(text), input=used.prompt_tokens, output=used.completion_tokens)
