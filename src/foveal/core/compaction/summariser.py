"""Those who write summaries: your callables, asked with and without an event loop.

    def write(request):
        return client.chat.completions.create(model="gpt-4.1-mini", **request.arguments())

    foveal.Context(model="gpt-4.1", summarise=write)

A callable may give back a text, a provider's reply, the pieces of a stream, or, where there is an event loop,
something to wait for. Whatever it raises is an answer like any other: the next in the chain is asked, and at last
the ledger writes. Only what ends the program or the task (KeyboardInterrupt, CancelledError) goes through, and
leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import msgspec

from foveal.core import wire
from foveal.core.compaction import protocol
from foveal.core.compaction.protocol import Ask, Draft, Failure
from foveal.core.compaction.writing import CompactionOutcome
from foveal.core.log.events import Dialect, Instructed, UserSaid
from foveal.core.models import model as models
from foveal.core.models.model import Model
from foveal.errors import BadSetting

Json: TypeAlias = dict[str, Any]
Talk: TypeAlias = Generator[Ask, Draft | Failure, CompactionOutcome]


class SummaryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a summary is."""

    stage: str
    """What is being asked: the summary, a part of it, or the merging of parts."""
    asked: int
    """Which request this is, counted from 1."""
    tokens: int = 0
    """What has been written so far, about."""


class SummaryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to send to a model, in the conversation's dialect."""

    messages: list[Json]
    """All of them; the system text is among them, except in Anthropic's dialect."""
    system: Any = ""
    """For Anthropic: what goes beside the messages."""
    tools: list[Any] = []
    """Only there to keep the cached beginning as it was; the model is told to call none."""
    max_tokens: int
    form: Literal["shared", "cold"]
    """`shared`: the conversation itself and one message more. `cold`: the conversation quoted in one message."""
    stage: str = ""
    dialect: Dialect = "openai_chat"

    def arguments(self) -> dict[str, Any]:
        """What to give to a client of the dialect, beside the model's name."""
        if self.dialect == "openai_responses":
            said: dict[str, Any] = {"input": self.messages, "max_output_tokens": self.max_tokens}
        else:
            said = {"messages": self.messages, "max_tokens": self.max_tokens}
        if self.system:
            said["system"] = self.system
        if self.tools:
            said["tools"] = self.tools
        return said

    @classmethod
    def cold(cls, ask: Ask, dialect: Dialect) -> SummaryRequest:
        """The conversation as quoted data in a request of its own."""
        writer = wire.wire(dialect)
        said = writer.write(UserSaid(content=ask.text))
        if dialect == "anthropic":
            return cls._of(ask, dialect, messages=writer.join([said]), system=ask.system)
        system = writer.write(Instructed(content=ask.system)) if ask.system else []
        return cls._of(ask, dialect, messages=writer.join([system, said]))

    @classmethod
    def shared(
        cls, ask: Ask, dialect: Dialect, *, messages: list[Json], system: Any, tools: list[Any]
    ) -> SummaryRequest:
        """The conversation as it stands, with one message more at its end."""
        writer = wire.wire(dialect)
        joined = writer.join([messages, writer.write(UserSaid(content=ask.text))])
        return cls._of(ask, dialect, messages=joined, system=system, tools=tools)

    @classmethod
    def _of(
        cls, ask: Ask, dialect: Dialect, *, messages: list[Json], system: Any = "", tools: Sequence[Any] = ()
    ) -> SummaryRequest:
        return cls(
            messages=messages,
            system=system,
            tools=list(tools),
            max_tokens=ask.max_tokens,
            form=ask.form,
            stage=ask.stage,
            dialect=dialect or "openai_chat",
        )


class Summariser:
    """A callable that writes summaries, and the model behind it: the conversation's own unless you name one."""

    def __init__(
        self, call: Callable[[SummaryRequest], Any], *, model: str | Model | None = None, name: str = ""
    ) -> None:
        if not callable(call):
            raise BadSetting("summarise", call, "a callable that takes a request")
        self.call = call
        self.model = models.model(model) if isinstance(model, str) else model
        self.name = name or (self.model.name if self.model is not None else "")

    def __repr__(self) -> str:
        return f"Summariser({self.name or self.call!r})"


Summarise: TypeAlias = Callable[[SummaryRequest], Any] | Summariser


def chain(given: Summarise | Sequence[Summarise] | None) -> tuple[Summariser, ...]:
    """Who is asked, one after the other."""
    if given is None:
        return ()
    if isinstance(given, Summariser):
        return (given,)
    if callable(given):
        return (Summariser(given),)
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise BadSetting("summarise", given, "a callable, a `Summariser`, or a list of them")
    return tuple(one if isinstance(one, Summariser) else Summariser(one) for one in given)


# ── asking ───────────────────────────────────────────────────────────────────────────────────────────────


def write(
    work: Talk,
    summarisers: Sequence[Summariser],
    *,
    requests: Callable[[Ask], SummaryRequest],
    clock: Callable[[], float],
    progress: Callable[[SummaryProgress], None] | None = None,
) -> CompactionOutcome:
    """Run a dialogue to its end, without an event loop."""
    watch = _ProgressWatch(clock, progress)
    try:
        ask = next(work)
        while True:
            watch.begin(ask)
            answer: Draft | Failure
            try:
                answer = _answer(summarisers[ask.writer].call(requests(ask)), watch)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one is asked
                answer = protocol.failure(error, seconds=watch.seconds)
            ask = work.send(answer)
    except StopIteration as done:
        outcome: CompactionOutcome = done.value
        return outcome
    finally:
        work.close()


async def awrite(
    work: Talk,
    summarisers: Sequence[Summariser],
    *,
    requests: Callable[[Ask], SummaryRequest],
    clock: Callable[[], float],
    progress: Callable[[SummaryProgress], None] | None = None,
) -> CompactionOutcome:
    """Run a dialogue to its end in an event loop; callables that are not async run in threads."""
    watch = _ProgressWatch(clock, progress)
    try:
        ask = next(work)
        while True:
            watch.begin(ask)
            answer: Draft | Failure
            try:
                answer = await _awaited(summarisers[ask.writer].call, requests(ask), watch)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one is asked
                answer = protocol.failure(error, seconds=watch.seconds)
            ask = work.send(answer)
    except StopIteration as done:
        outcome: CompactionOutcome = done.value
        return outcome
    finally:
        work.close()


class _ProgressWatch:
    """The time that a request takes, and somebody who is told how it grows."""

    def __init__(
        self, clock: Callable[[], float], progress: Callable[[SummaryProgress], None] | None
    ) -> None:
        self._clock, self._progress = clock, progress
        self._asked, self._stage, self._began = 0, "", 0.0

    @property
    def seconds(self) -> float:
        return max(0.0, self._clock() - self._began)

    def begin(self, ask: Ask) -> None:
        self._asked, self._stage, self._began = self._asked + 1, ask.stage, self._clock()
        self.tell(0)

    def tell(self, characters: int) -> None:
        if self._progress is not None:
            with suppress(Exception):  # who watches must not spoil the work
                self._progress(SummaryProgress(stage=self._stage, asked=self._asked, tokens=characters // 4))

    def add(self, text: str, chunk: object) -> str:
        """A text with one more piece of a stream."""
        words = protocol.piece(chunk)
        if words is None:
            raise TypeError(f"a stream of {type(chunk).__name__} cannot be read")
        if words:
            text += words
            self.tell(len(text))
        return text


def _finished(given: object, watch: _ProgressWatch) -> Draft | None:
    """What needs no more waiting as a draft; None for a stream."""
    if isinstance(given, Draft):
        return given if given.seconds else msgspec.structs.replace(given, seconds=watch.seconds)
    if isinstance(given, str):
        return Draft(text=given, seconds=watch.seconds)
    read = protocol.draft(given, seconds=watch.seconds)
    if read is None and not isinstance(given, Iterable | AsyncIterable | Awaitable):
        raise TypeError(f"a summariser gave {type(given).__name__}: text, a reply or a stream is needed")
    return read


def _answer(given: object, watch: _ProgressWatch) -> Draft:
    draft = _finished(given, watch)
    if draft is not None:
        return draft
    if not isinstance(given, Iterable):
        if hasattr(given, "close"):
            given.close()  # a coroutine that nobody will wait for
        raise TypeError("an async summariser needs an event loop: use it with a `Session`")
    text = ""
    for chunk in given:
        text = watch.add(text, chunk)
    return Draft(text=text, seconds=watch.seconds)


async def _awaited(
    call: Callable[[SummaryRequest], Any], request: SummaryRequest, watch: _ProgressWatch
) -> Draft:
    import asyncio  # who has no loop does not load it
    import inspect

    own = (call, getattr(call, "__call__", call))  # noqa: B004 - an object may be called, too
    waits = any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in own)
    given = call(request) if waits else await asyncio.to_thread(_called, call, request)
    if isinstance(given, Awaitable):
        given = await given
    draft = _finished(given, watch)
    if draft is not None:
        return draft
    text = ""
    async for chunk in given if isinstance(given, AsyncIterable) else _pulled(iter(given)):
        text = watch.add(text, chunk)
    return Draft(text=text, seconds=watch.seconds)


def _called(call: Callable[[SummaryRequest], Any], request: SummaryRequest) -> Any:
    try:
        return call(request)
    except StopIteration as stop:  # which no future can carry: whoever waits would wait for ever
        raise RuntimeError("it raised StopIteration") from stop


async def _pulled(stream: Iterator[object]) -> AsyncIterator[object]:
    """A stream that blocks, read in threads."""
    import asyncio

    end = object()
    while (chunk := await asyncio.to_thread(next, stream, end)) is not end:
        yield chunk
