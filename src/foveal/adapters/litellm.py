"""Functions and callback for litellm: `completion`, `acompletion`, the Router, the proxy.

    from foveal.adapters.litellm import FovealCallback

    fitted = FovealCallback()
    reply = fitted.completion("openai/gpt-4.1", messages, tools=tools)

1. `completion` and `acompletion` take what litellm's functions take, send what fits, and send less after the
   provider has refused a request as too large.
2. As one of `litellm.callbacks`, it fits every `litellm.acompletion`, also those of a Router and of the proxy.
   litellm has no such hook for its sync `completion`.
3. A conversation is found by `litellm_session_id` or `metadata["session_id"]`; otherwise by its messages, among
   those of the same `user`. In the proxy, every API key has conversations of its own.
4. Once a conversation was reduced, a provider that binds thinking is asked to leave out what it would refuse
   (`core.wire.bound_thinking`), as far as the call turns thinking on.
5. With `summarise="own"`, the model of the call writes the summaries.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from time import monotonic
from typing import Any, Final, Unpack

import litellm
from litellm.integrations.custom_logger import CustomLogger

from foveal.adapters.conversations import AdapterArguments, Conversations, checked_function, own_model
from foveal.adapters.native_context import (
    UNKNOWN_CONVERSATION,
    NativeContext,
    Piece,
    WireMessage,
    offered_tools,
    with_own_fields,
)
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.log.events import Dialect
from foveal.core.models.model import Model
from foveal.core.wire.bound_thinking import BETA_HEADER, with_beta, with_dropped_blocks
from foveal.core.wire.overflow_errors import refuses_controls

Options = Mapping[str, Any]
"""The keyword arguments of a litellm call."""

MAX_UNFINISHED_CALLS: Final = 10_000
"""Calls whose usage is expected; the oldest are forgotten."""
MAX_USAGE_WAIT_S: Final = 0.25
"""How long a call waits for the usage of the stream before it."""
_HOW: Final = 'pass `metadata={"session_id": …}` with each call, or set `conversation`'
API_KEY_FIELD: Final = "foveal_api_key"
"""Where the metadata of a call in the proxy names its API key."""

_calls_itself: ContextVar[bool] = ContextVar("foveal_litellm_calls_itself", default=False)
"""Whether the running call was fitted, or writes a summary: the callback leaves it alone."""


class LiteLLMFormat:
    """Converts litellm's messages: dicts, or objects with `model_dump`."""

    dialect: Dialect = "openai_chat"

    def write(self, message: Any) -> Sequence[WireMessage]:
        return [_plain(message)]

    def build(self, pieces: Sequence[Piece], original: Any) -> Sequence[Any]:
        if original is None or len(pieces) != 1:
            return [piece.message for piece in pieces]
        return [with_own_fields(pieces[0].message, _plain(original))]


def _plain(message: Any) -> WireMessage:
    if isinstance(message, dict):
        return message
    plain: WireMessage = message.model_dump(exclude_none=True)
    plain.setdefault("content", None)
    return plain


class FovealCallback(CustomLogger):  # type: ignore[misc, unused-ignore]
    """Keeps the calls of litellm inside the model's window.

    Args:
        model: The name by which Foveal knows the model, if it differs from litellm's. `""` takes the name in
            each request.
        recall_tools: Whether the model gets tools to search and read what is no longer shown.
        context_tools: Whether the model gets tools to see what fills its window and to ask for a cut.
        conversation: Returns the id of a call's conversation from its keyword arguments. None uses
            `litellm_session_id`, `metadata["session_id"]` or the messages.
        **settings: The settings of every adapter, as in `AdapterArguments`: `window`, `policy`, `summarise`,
            `store` and others.

    Raises:
        BadSetting: A setting is unknown or outside its range.

    Examples:
        ```py
        from foveal.adapters.litellm import FovealCallback

        fitted = FovealCallback(window=32_000)
        messages = [{"role": "user", "content": "Why is CI red?"}]
        reply = fitted.completion("openai/gpt-4.1", messages)
        ```
    """

    def __init__(
        self,
        model: str | Model = "",
        *,
        recall_tools: bool = False,
        context_tools: bool = False,
        conversation: Callable[[Options], str] | None = None,
        **settings: Unpack[AdapterArguments],
    ) -> None:
        super().__init__()
        self.conversations: Conversations[Any] = Conversations(
            LiteLLMFormat(), model, has_own_model=True, **settings
        )
        """The contexts of the conversations."""
        self.recall_tools: list[dict[str, Any]] = offered_tools("openai_chat", recall=recall_tools)
        """Schemas of the tools that `recall` answers; they are added to the tools of every call."""
        self.context_tools: list[dict[str, Any]] = offered_tools("openai_chat", context=context_tools)
        """Schemas of `context_status` and `context_cut`, which `recall` answers too; they are added likewise."""
        self._conversation = checked_function(conversation)
        self._has_reserve = settings.get("reserve") is not None
        self._calls: OrderedDict[str, tuple[str, NativeContext[Any]]] = OrderedDict()
        """The ids and contexts of the calls between two hooks, by litellm's id of the call."""
        self._without_controls: set[str] = set()
        """Models whose provider refuses the field `block_binding`."""

    # ── In place of litellm's functions ──────────────────────────────────────────────────────────────────

    def completion(self, model: str, messages: Sequence[Any], **options: Any) -> Any:
        """Do what `litellm.completion` does, with the messages that fit.

        Args:
            model: The name of the model, as litellm knows it.
            messages: The whole history.
            **options: The other arguments of litellm's function.
        """
        found = self.conversations.get(self._id(messages, options), model=model)
        options = self._prepare(found, options)
        with own_model(partial(_summarise, model, options)):
            call = partial(self._complete, found, model, options, messages)
            reply = found.send(messages, call, tools=_tools(options))
        if options.get("stream"):
            return ObservedStream(reply, found)
        found.observe(reply.usage)
        return reply

    async def acompletion(self, model: str, messages: Sequence[Any], **options: Any) -> Any:
        """Do what `litellm.acompletion` does, with the messages that fit.

        Args:
            model: The name of the model, as litellm knows it.
            messages: The whole history.
            **options: The other arguments of litellm's function.
        """
        found = await self.conversations.aget(self._id(messages, options), model=model)
        options = self._prepare(found, options)
        with own_model(partial(_summarise_async, model, options)):
            call = partial(self._complete_async, found, model, options, messages)
            reply = await found.asend(messages, call, tools=_tools(options))
        if options.get("stream"):
            return ObservedStream(reply, found)
        found.observe(reply.usage)
        return reply

    def recall(
        self, name: str, arguments: str | Mapping[str, Any], messages: Sequence[Any], **options: Any
    ) -> str:
        """Answer a call of a recall tool.

        Args:
            name: The name of the tool.
            arguments: The arguments of the call.
            messages: The history of the conversation.
            **options: The options of its calls, as far as they name the conversation.
        """
        id, scope, run = self._named(messages, options)
        known = self.conversations
        found = known.find(id) if id else known.recognised(messages, scope=scope, run=run)
        return UNKNOWN_CONVERSATION if found is None else found.recall(name, arguments)

    # ── Hooks of litellm ─────────────────────────────────────────────────────────────────────────────────

    async def async_pre_call_deployment_hook(
        self, kwargs: dict[str, Any], call_type: Any
    ) -> dict[str, Any] | None:
        """Fit the messages of a call."""
        if _calls_itself.get() or getattr(call_type, "value", call_type) != "acompletion":
            return None
        messages = kwargs.get("messages")
        if not isinstance(messages, list) or not kwargs.get("model"):
            warnings.warn(
                "litellm passes only keyword arguments to its callbacks: this call is not fitted; write "
                "acompletion(model=…, messages=…)",
                stacklevel=2,
            )
            return None
        id = self._id(messages, kwargs)
        found = await self.conversations.aget(id, model=kwargs["model"])
        await self._wait_for_usage(found)
        prepared = self._prepare(found, kwargs)
        with own_model(partial(_summarise_async, kwargs["model"], prepared)):
            fitted = await found.afit(messages, tools=_tools(prepared))
        self._calls[str(kwargs.get("litellm_call_id"))] = id, found
        if len(self._calls) > MAX_UNFINISHED_CALLS:
            self._calls.popitem(last=False)
        controls = self._controls(found, kwargs["model"], kwargs, is_changed=_differs(fitted, messages))
        return {**prepared, **controls, "messages": fitted}

    async def async_post_call_success_deployment_hook(
        self, request_data: dict[str, Any], response: Any, call_type: Any
    ) -> None:
        """Read the usage of a reply."""
        self._observe(request_data, response)

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Read the usage of a stream: litellm has put its chunks together."""
        self._observe(kwargs, response_obj)

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Learn the limit of a provider that has refused a request as too large, for the next request."""
        id, found = self._calls.pop(str(kwargs.get("litellm_call_id")), ("", None))
        error = kwargs.get("exception")
        if found is not None and isinstance(error, Exception):
            self.conversations.expect_retry(id)
            if refuses_controls(error):
                self._without_controls.add(str(kwargs.get("model")))
            found.context.overflowed(error)

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: Any
    ) -> dict[str, Any]:
        """Note the API key of a request to the proxy, so that keys have conversations of their own."""
        key = str(getattr(user_api_key_dict, "api_key", None) or "")
        # Set in any case: a client could send the field itself.
        return {**data, "metadata": {**(data.get("metadata") or {}), API_KEY_FIELD: key}}

    # ── Shared ───────────────────────────────────────────────────────────────────────────────────────────

    def _id(self, messages: Sequence[Any], options: Options) -> str:
        id, scope, run = self._named(messages, options)
        return id or self.conversations.recognise(messages, how=_HOW, scope=scope, run=run)

    def _named(self, messages: Sequence[Any], options: Options) -> tuple[str, str, str]:
        """Return the id that a call names, or "" with the user and the run that it belongs to."""
        if self._conversation is not None:
            return self._conversation({**options, "messages": messages}), "", ""
        metadata = options.get("metadata") or {}
        key = metadata.get(API_KEY_FIELD) or ""
        session = options.get("litellm_session_id") or metadata.get("session_id")
        if session:
            return (f"{key}/{session}" if key else str(session)), "", ""
        scope = f"{key}/{options.get('user') or ''}/"
        run = str(options.get("litellm_trace_id") or options.get("litellm_call_id") or "")
        return "", scope, run and scope + run

    def _prepare(self, found: NativeContext[Any], options: Options) -> dict[str, Any]:
        """Return the options of a call with the recall tools and a report of the usage."""
        limit = options.get("max_completion_tokens") or options.get("max_tokens")
        if limit and not self._has_reserve:
            found.context.set_reserve(int(limit))
        prepared = dict(options)
        if offered := [*self.recall_tools, *self.context_tools]:
            prepared["tools"] = [*_tools(options), *offered]
        if options.get("stream"):
            prepared["stream_options"] = {"include_usage": True, **(options.get("stream_options") or {})}
        return prepared

    def _complete(
        self,
        found: NativeContext[Any],
        model: str,
        options: Options,
        given: Sequence[Any],
        fitted: list[Any],
    ) -> Any:
        controls = self._controls(found, model, options, is_changed=_differs(fitted, given))
        try:
            return _complete(model, {**options, **controls}, fitted)
        except Exception as error:
            if not controls or not refuses_controls(error):
                raise
            self._without_controls.add(model)
        return _complete(model, options, fitted)

    async def _complete_async(
        self,
        found: NativeContext[Any],
        model: str,
        options: Options,
        given: Sequence[Any],
        fitted: list[Any],
    ) -> Any:
        controls = self._controls(found, model, options, is_changed=_differs(fitted, given))
        try:
            return await _complete_async(model, {**options, **controls}, fitted)
        except Exception as error:
            if not controls or not refuses_controls(error):
                raise
            self._without_controls.add(model)
        return await _complete_async(model, options, fitted)

    def _controls(
        self, found: NativeContext[Any], model: str, options: Options, *, is_changed: bool
    ) -> dict[str, Any]:
        """Return the options that have a provider which binds thinking leave out what it would refuse."""
        if not is_changed or model in self._without_controls or not found.context.binds_thinking:
            return {}
        thinking = with_dropped_blocks(options.get("thinking"))
        if thinking is None:
            return {}
        headers = options.get("extra_headers") or {}
        return {
            "thinking": thinking,
            "extra_headers": {**headers, BETA_HEADER: with_beta(headers.get(BETA_HEADER, ""))},
        }

    async def _wait_for_usage(self, found: NativeContext[Any]) -> None:
        """Wait until litellm has reported the stream before this call, which it does in a task of its own. A report
        that comes later is ignored, because the context would take it for that of this call."""
        deadline = monotonic() + MAX_USAGE_WAIT_S
        while pending := [id for id, (_, other) in self._calls.items() if other is found]:
            if monotonic() > deadline:
                for id in pending:
                    self._calls.pop(id, None)
            await asyncio.sleep(0.001)

    def _observe(self, options: Options, reply: Any) -> None:
        _, found = self._calls.pop(str(options.get("litellm_call_id")), ("", None))
        if found is not None:
            found.observe(getattr(reply, "usage", None))


class ObservedStream:
    """The chunks of a stream as litellm returns them; the usage in the last one is observed."""

    def __init__(self, stream: Any, found: NativeContext[Any]) -> None:
        self._stream, self._found = stream, found

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._observe(next(self._stream))

    def __aiter__(self) -> ObservedStream:
        return self

    async def __anext__(self) -> Any:
        return self._observe(await anext(self._stream))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _observe(self, chunk: Any) -> Any:
        usage = getattr(chunk, "usage", None)
        if usage is not None:
            self._found.observe(usage)
        return chunk


def _differs(fitted: Sequence[Any], given: Sequence[Any]) -> bool:
    return len(fitted) != len(given) or any(
        one is not other for one, other in zip(fitted, given, strict=True)
    )


def _tools(options: Options) -> Sequence[Any]:
    return options.get("tools") or ()


@contextmanager
def _own_call() -> Iterator[None]:
    token = _calls_itself.set(True)
    try:
        yield
    finally:
        _calls_itself.reset(token)


def _complete(model: str, options: Options, messages: list[Any]) -> Any:
    with _own_call():
        return litellm.completion(model=model, messages=messages, **options)


async def _complete_async(model: str, options: Options, messages: list[Any]) -> Any:
    with _own_call():
        return await litellm.acompletion(model=model, messages=messages, **options)


# ── Summaries by the call's own model ────────────────────────────────────────────────────────────────────

_SHAPES_ANSWER: Final = frozenset(
    (
        "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "n",
        "stream", "stream_options", "stop", "max_tokens", "max_completion_tokens", "response_format", "modalities",
        "audio", "prediction", "logprobs", "top_logprobs", "web_search_options",
    )
)  # fmt: skip
"""Options of a call that a summary is written without."""


def _summarise(model: str, options: Options, request: SummaryRequest) -> Any:
    return _complete(model, _summary_options(options, request), request.messages)


async def _summarise_async(model: str, options: Options, request: SummaryRequest) -> Any:
    return await _complete_async(model, _summary_options(options, request), request.messages)


def _summary_options(options: Options, request: SummaryRequest) -> dict[str, Any]:
    """Return the options of a call that reach the same model, without those that shape its answer."""
    reaching = {
        name: value
        for name, value in options.items()
        if name not in _SHAPES_ANSWER and not name.startswith("litellm_")
    }
    return {**reaching, **{name: value for name, value in request.arguments().items() if name != "messages"}}
