"""Summarisers: your callables that write summaries, and the run of a dialogue with them.

    def write(request):
        return client.chat.completions.create(model="gpt-4.1-mini", **request.arguments())

    foveal.Context(model="gpt-4.1", summarise=write)

A callable may return a text, a provider's reply, an iterable of stream chunks or, where there is an event loop, an
awaitable or an async iterable. An exception counts as a reply: the next summariser in the chain is called, and
after the last one the ledger writes the summary. Only exceptions that end the program or the task
(KeyboardInterrupt, CancelledError) propagate, and then nothing is recorded.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, TypeAlias, cast

import msgspec

from foveal.core import wire
from foveal.core.compaction.health import CompactionOutcome
from foveal.core.compaction.summariser_protocol import (
    Dialogue,
    Draft,
    DraftFailure,
    DraftRequest,
    SummaryForm,
    failure_from_error,
    read_reply,
    read_stream_chunk,
)
from foveal.core.log.events import Dialect, DialectName, Instructed, UserSaid
from foveal.core.models.model import Model, model
from foveal.core.view.request import Fitted
from foveal.core.wire.cache_marks import MAX_CACHE_MARKS, count_cache_marks, limit_cache_marks
from foveal.core.wire.common import Json
from foveal.core.wire.dialects import checked_dialect
from foveal.core.wire.native_compaction import (
    COMPACTION_BETA,
    COMPACTION_FIELD,
    COMPACTION_TRIGGER,
    cannot_compact,
    compaction_field,
)
from foveal.errors import BadSetting, ProviderError


class SummaryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a summary that is being written.

    Examples:
        ```python
        import foveal
        from foveal.core.compaction.summariser import SummaryProgress


        def show(progress: SummaryProgress) -> None:
            print(progress.stage, progress.tokens)


        ctx = foveal.Context("gpt-4.1", summarise=lambda request: "…", progress=show)
        ```
    """

    stage: str
    """What the current request is for: the summary, a part of it, or the merge of parts."""
    asked: int
    """Number of the current request, counted from 1."""
    tokens: int = 0
    """Approximate tokens written so far."""


class SummaryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request to send to a model, in the conversation's dialect.

    Examples:
        ```python
        import foveal


        def write(request: foveal.SummaryRequest) -> str:
            reply = client.chat.completions.create(
                model="gpt-4.1-mini", messages=request.messages, max_tokens=request.max_tokens
            )
            return reply.choices[0].message.content or ""


        ctx = foveal.Context("gpt-4.1", summarise=write)
        ```
    """

    messages: list[Any]
    """All messages, with the system text among them unless the dialect takes it beside them."""
    system: Any = ""
    """The system text for Anthropic and Bedrock, sent beside the messages."""
    tools: list[Any] = []
    """Sent only so that the cached prefix stays the same; the prompt says to call none."""
    max_tokens: int
    """Most tokens that the summary may take."""
    form: SummaryForm
    """`shared`: the conversation itself and one more message. `cold`: the conversation quoted in one message.
    `native`: the conversation itself, for the provider's own compaction."""
    stage: str = ""
    """What the request is for: the summary, a part of it, or the merge of parts."""
    dialect: Dialect = "openai_chat"
    """The dialect of the messages."""
    prefix: Fitted | None = None
    """For `shared`: the conversation that the messages begin with."""
    instruction: str = ""
    """For `shared`: the text of the last message, which asks for the summary. For `native`: instructions to the
    provider."""

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for a client of the dialect, without the model's name.

        They are those of `generate_content` for Gemini, of `converse` for Bedrock, and for the form `native` of
        Anthropic those of `beta.messages.create`.

        Examples:
            ```py
            def write(request):
                return client.chat.completions.create(model="gpt-4.1-mini", **request.arguments())
            ```
        """
        match self.dialect:
            case "openai_responses":
                beside = self._beside("system", "tools")
                return {"input": self.messages, "max_output_tokens": self.max_tokens, **beside}
            case "anthropic" if self.form == "native":
                beside = self._beside("system", "tools")
                field = {COMPACTION_FIELD: compaction_field(self.instruction), "betas": [COMPACTION_BETA]}
                return {"messages": self.messages, "max_tokens": self.max_tokens, **beside, **field}
            case "gemini":
                beside = self._beside("system_instruction", "tools")
                return {
                    "contents": self.messages,
                    "config": {"max_output_tokens": self.max_tokens, **beside},
                }
            case "bedrock":
                beside = self._beside("system", "toolConfig")
                if "system" in beside:
                    beside["system"] = [{"text": self.system}]
                if "toolConfig" in beside:
                    beside["toolConfig"] = {"tools": self.tools}
                return {
                    "messages": self.messages,
                    "inferenceConfig": {"maxTokens": self.max_tokens},
                    **beside,
                }
            case _:
                beside = self._beside("system", "tools")
                return {"messages": self.messages, "max_tokens": self.max_tokens, **beside}

    def _beside(self, system: str, tools: str) -> dict[str, Any]:
        """Return the system text and the tools under these names, as far as there are any."""
        given = {system: self.system, tools: self.tools}
        return {name: value for name, value in given.items() if value}

    @classmethod
    def cold(cls, request: DraftRequest, dialect: Dialect) -> SummaryRequest:
        """Build a request of its own, in which the conversation is quoted data.

        Args:
            request: What the summary needs.
            dialect: The dialect of the messages.
        """
        writer = wire.wire_for(dialect)
        text = writer.write(UserSaid(content=request.text))
        if writer.has_system_beside:
            return cls._build(request, dialect, messages=writer.join([text]), system=request.system)
        system = writer.write(Instructed(content=request.system)) if request.system else []
        return cls._build(request, dialect, messages=writer.join([system, text]))

    @classmethod
    def shared(
        cls,
        request: DraftRequest,
        dialect: Dialect,
        *,
        messages: list[Json],
        system: Any,
        tools: list[Any],
        binds_thinking: bool = False,
    ) -> SummaryRequest:
        """Build the conversation's own request with one more message at its end.

        Args:
            request: What the summary needs.
            dialect: The dialect of the messages.
            messages: The messages of the conversation's request.
            system: The system text beside them.
            tools: The tools of the conversation's request.
            binds_thinking: Whether thinking in the messages is bound to those before it.
        """
        writer = wire.wire_for(dialect).for_thinking(is_bound=binds_thinking)
        joined = writer.join([messages, writer.write(UserSaid(content=request.text))])
        if dialect in ("anthropic", "bedrock"):
            # Old messages keep the marks that they had when they were new, so there may be too many.
            beside = count_cache_marks(tools) + count_cache_marks(system)
            joined = limit_cache_marks(joined, MAX_CACHE_MARKS - beside)
        return cls._build(request, dialect, messages=joined, system=system, tools=tools)

    @classmethod
    def native(
        cls, request: DraftRequest, dialect: Dialect, *, messages: list[Json], system: Any, tools: list[Any]
    ) -> SummaryRequest:
        """Build the conversation's own request, for the provider's own compaction.

        Args:
            request: What the summary needs.
            dialect: The dialect of the messages.
            messages: The messages of the conversation's request.
            system: The system text beside them.
            tools: The tools of the conversation's request.

        Raises:
            ProviderError: The provider would refuse to compact these messages, or cannot compact any.
        """
        if problem := cannot_compact(dialect, messages):
            raise ProviderError(problem, code="refused")
        if dialect == "openai_responses":
            messages = [*messages, COMPACTION_TRIGGER]
        return cls._build(request, dialect, messages=messages, system=system, tools=tools)

    @classmethod
    def _build(
        cls,
        request: DraftRequest,
        dialect: Dialect,
        *,
        messages: list[Json],
        system: Any = "",
        tools: Sequence[Any] = (),
    ) -> SummaryRequest:
        return cls(
            messages=messages,
            system=system,
            tools=list(tools),
            max_tokens=request.max_tokens,
            form=request.form,
            stage=request.stage,
            dialect=dialect or "openai_chat",
        )


class Summariser:
    """A callable that writes summaries, with its model.

    Args:
        call: Takes a `SummaryRequest` and returns a text, a reply of a provider, or a stream. It may be async
            where there is an event loop.
        model: The model that it calls, for limits and prices. None is the conversation's own model.
        name: The name in reports. `""` uses the name of the model.
        native: Whether it asks the provider for its own compaction, and returns its reply. Only the conversation's
            own model can do that. By default it writes a text.
        dialect: The dialect of the requests that it takes. `""` is that of the conversation.

    Raises:
        BadSetting: `call` is not callable, or the dialect is unknown.

    Examples:
        ```python
        import foveal


        def write(request: foveal.SummaryRequest) -> str:
            reply = client.chat.completions.create(
                model="gpt-4.1-mini", messages=request.messages, max_tokens=request.max_tokens
            )
            return reply.choices[0].message.content or ""


        small = foveal.Summariser(write, model="gpt-4.1-mini")
        ctx = foveal.Context("gpt-4.1", summarise=[small, write])
        ```
    """

    def __init__(
        self,
        call: Callable[[SummaryRequest], Any],
        *,
        model: str | Model | None = None,
        name: str = "",
        native: bool = False,
        dialect: DialectName = "",
    ) -> None:
        if not callable(call):
            raise BadSetting("summarise", call, "a callable that takes a request")
        if native and model is not None:
            raise BadSetting(
                "model", model, "None with `native=True`: a provider compacts its own conversation"
            )
        self.call: Callable[[SummaryRequest], Any] = call
        """The callable."""
        self.model: Model | None = _resolve_model(model)
        """The model that it calls; None is the conversation's own."""
        self.name: str = name or (self.model.name if self.model is not None else "")
        """The name in reports."""
        self.native: bool = native
        """Whether it asks the provider for its own compaction."""
        self.dialect: Dialect = checked_dialect(dialect)
        """The dialect of the requests that it takes; "" is that of the conversation."""

    def __repr__(self) -> str:
        return f"Summariser({self.name or self.call!r})"


def _resolve_model(given: str | Model | None) -> Model | None:
    return model(given) if isinstance(given, str) else given


EMPTY_COMPACTION: Final = "the provider's compaction is empty"
NATIVE: Final = "native"
"""The setting of the agent and the server for summaries by the provider's own API."""
Summarise: TypeAlias = Callable[[SummaryRequest], Any] | Summariser
"""What `summarise` takes: a callable, or a `Summariser`."""


def summariser_chain(given: Summarise | Sequence[Summarise] | None) -> tuple[Summariser, ...]:
    """Return the summarisers to call, one after the other."""
    if given is None:
        return ()
    if isinstance(given, Summariser):
        return (given,)
    if callable(given):
        return (Summariser(given),)
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        needed = "a callable, a `Summariser`, or a list of them"
        if cast("object", given) == NATIVE:
            needed = "`foveal.Summariser(write, native=True)`, where `write` sends the request"
        raise BadSetting("summarise", given, needed)
    return tuple(item if isinstance(item, Summariser) else Summariser(item) for item in given)


# ── Running a dialogue ───────────────────────────────────────────────────────────────────────────────────


def run_dialogue(run: DialogueRun) -> CompactionOutcome:
    """Run a dialogue to its outcome without an event loop."""
    with closing(run):
        for request in run.requests():
            with run.errors_as_failures():
                call, summary_request = run.prepare(request)
                run.accept(_collect_draft(call(summary_request), run))
    return run.outcome


class DialogueRun:
    """A dialogue with its summarisers: which request is next, how long it takes, and what its reply is.

    It never waits, so one driver without an event loop (`run_dialogue`) and one with it
    (`sessions.background_compaction`) share it; a driver only calls the summariser and collects the reply."""

    outcome: CompactionOutcome
    """Set when `requests` is exhausted."""

    def __init__(
        self,
        dialogue: Dialogue[CompactionOutcome],
        summarisers: Sequence[Summariser],
        *,
        build_request: Callable[[DraftRequest], SummaryRequest],
        clock: Callable[[], float],
        progress: Callable[[SummaryProgress], None] | None = None,
        wait: Callable[[Awaitable[Any]], Any] | None = None,
    ) -> None:
        """`wait` returns the result of what an async summariser returned, for a driver without an event loop."""
        self.wait = wait
        self._dialogue, self._summarisers, self._build_request = dialogue, summarisers, build_request
        self._clock, self._progress = clock, progress
        self._asked, self._stage, self._started = 0, "", 0.0
        self._form: SummaryForm = "cold"
        self._reply: Draft | DraftFailure = DraftFailure(problem="no reply")
        self.errors: list[Exception] = []
        """What the summarisers have raised."""

    def close(self) -> None:
        self._dialogue.close()

    def requests(self) -> Iterator[DraftRequest]:
        """Yield each request; its reply must be accepted before the next one is taken."""
        try:
            request = next(self._dialogue)
            while True:
                self._asked, self._stage, self._started = self._asked + 1, request.stage, self._clock()
                self._form = request.form
                self._report(0)
                yield request
                request = self._dialogue.send(self._reply)
        except StopIteration as done:
            self.outcome = done.value

    def prepare(self, request: DraftRequest) -> tuple[Callable[[SummaryRequest], Any], SummaryRequest]:
        """Return the callable for a request, and the request in the conversation's dialect."""
        return self._summarisers[request.writer].call, self._build_request(request)

    def accept(self, draft: Draft) -> None:
        """Take a draft as the reply to the current request."""
        if self._form == "native" and draft.native is None:
            self.errors.append(ProviderError(EMPTY_COMPACTION, code="refused"))
        self._reply = draft if draft.seconds else msgspec.structs.replace(draft, seconds=self._seconds)

    @contextmanager
    def errors_as_failures(self) -> Iterator[None]:
        """Take an exception as the reply to the current request."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a summariser may raise anything, and the next one is called
            self.errors.append(error)
            self._reply = failure_from_error(error, seconds=self._seconds)

    def append_chunk(self, text: str, chunk: object) -> str:
        """Return the text with the text of one more stream chunk, and report the progress."""
        added = read_stream_chunk(chunk)
        if added is None:
            raise TypeError(f"a stream of {type(chunk).__name__} cannot be read")
        if added:
            text += added
            self._report(len(text))
        return text

    @property
    def _seconds(self) -> float:
        return max(0.0, self._clock() - self._started)

    def _report(self, characters: int) -> None:
        if self._progress is not None:
            with suppress(Exception):  # an error of the observer must not cost the summary
                self._progress(SummaryProgress(stage=self._stage, asked=self._asked, tokens=characters // 4))


# ── Replies of callables ─────────────────────────────────────────────────────────────────────────────────


def read_complete(reply: object) -> Draft | None:
    """Return the draft in a complete reply, None for a stream or an awaitable."""
    if isinstance(reply, Draft):
        return reply
    if isinstance(reply, str):
        return Draft(text=reply)
    draft = read_reply(reply)
    if draft is None and not isinstance(reply, Iterable | AsyncIterable | Awaitable):
        raise TypeError(f"a summariser gave {type(reply).__name__}: text, a reply or a stream is needed")
    return draft


def _collect_draft(reply: object, run: DialogueRun) -> Draft:
    if run.wait is not None and isinstance(reply, Awaitable):
        reply = run.wait(reply)
    draft = read_complete(reply)
    if draft is not None:
        return draft
    if run.wait is not None and isinstance(reply, AsyncIterable):
        reply = _iterate(reply, run.wait)
    if not isinstance(reply, Iterable):
        if hasattr(reply, "close"):
            reply.close()  # a coroutine that is never awaited would warn
        raise TypeError(
            "an async summariser needs an event loop: use `await context.afit(…)`, or a `Session`"
        )
    text = ""
    for chunk in reply:
        text = run.append_chunk(text, chunk)
    return Draft(text=text)


def _iterate(stream: AsyncIterable[object], wait: Callable[[Awaitable[Any]], Any]) -> Iterator[object]:
    """Yield the chunks of an async stream, waiting for each of them."""
    chunks = aiter(stream)
    with suppress(StopAsyncIteration):
        while True:
            yield wait(anext(chunks))
