"""Lists of messages to facts, message by message: one that no dialect allows does not spoil the others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

from msgspec import Raw

from foveal.errors import MalformedMessage
from foveal.events import AnyFact, Dialect, Equipped, Instructed, ModelSaid, Noted, Used, raw
from foveal.transcripts.recording import UNKNOWN, Builder, Recorded, as_text, words
from foveal.usage import used
from foveal.wire import Wire, detect, wire

REFUSED: Final = (MalformedMessage, ValueError, TypeError, OverflowError, RecursionError)
"""What reading a message that is not one can raise."""


def written(value: object) -> str:
    """A JSON value as text again."""
    try:
        return bytes(raw(value)).decode()
    except (ValueError, TypeError, OverflowError, RecursionError):
        try:
            return json.dumps(value)
        except (ValueError, TypeError, RecursionError):
            return repr(value)[:10_000]


def opaque(value: object) -> Raw | None:
    """A JSON value as bytes, None when it cannot be written."""
    try:
        return raw(value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def gather(dialect: Wire, messages: Sequence[object]) -> Iterator[tuple[int, tuple[AnyFact, ...] | None]]:
    """For each run of messages how many they are and their facts; None for one that cannot be read."""
    try:
        whole = [(chunk.messages, chunk.facts) for chunk in dialect.read(messages)]
    except REFUSED:
        whole = []
    if whole or not messages:
        yield from whole
        return
    for good, run in groupby(messages, lambda message: readable(dialect, message)):
        if good:
            yield from ((chunk.messages, chunk.facts) for chunk in dialect.read(list(run)))
        else:
            yield from ((1, None) for _ in run)


def readable(dialect: Wire, message: object) -> bool:
    try:
        return all(chunk.facts for chunk in dialect.read((message,)))
    except REFUSED:
        return False


class Feed:
    """Messages that come one by one. A run of the model's items is one utterance, written when something else
    follows; what happens beside it meanwhile comes after it."""

    def __init__(self, into: Builder, dialect: Wire) -> None:
        self.into = into
        self.dialect = dialect
        self._run: list[object] = []
        self._at: float | None = None
        self._beside: list[Recorded] = []

    def message(self, message: object, *, at: float | None = None) -> bool:
        """The next message; False when it is none."""
        facts = self._facts((message,))
        if facts is None:
            return False
        if self.dialect.dialect == "openai_responses" and isinstance(facts[0], ModelSaid):
            self._at = at if not self._run else self._at
            self._run.append(message)
        else:
            self.flush()
            self.into.add(*facts, at=at)
        return True

    def beside(self, *facts: AnyFact, at: float | None = None) -> None:
        """Something that is no message; it does not end an utterance."""
        (self._beside if self._run else self.into.facts).extend((fact, at) for fact in facts)

    def keep(self, line: bytes | str) -> None:
        self.into.unknown += 1
        self.beside(Noted(topic=UNKNOWN, text=as_text(line)))

    def flush(self) -> None:
        if self._run:
            run, self._run = self._run, []
            self.into.add(*(self._facts(run) or ()), at=self._at)
        self.into.facts += self._beside
        self._beside = []

    def _facts(self, messages: Sequence[object]) -> tuple[AnyFact, ...] | None:
        try:
            return tuple(fact for chunk in self.dialect.read(messages) for fact in chunk.facts) or None
        except REFUSED:
            return None


Usage: TypeAlias = Mapping[int, Sequence[Used]]
"""Reports of usage by the index of the message that they came with."""


def conversation(
    into: Builder, messages: Sequence[object], *, dialect: Dialect | None = None, usage: Usage | None = None
) -> None:
    """Add the facts of a whole list of messages, each report of usage after the utterance that it is about."""
    chosen = wire(detect(messages) if dialect is None else dialect)
    index = 0
    for count, facts in gather(chosen, messages):
        if facts is None:
            into.keep(written(messages[index]))
        else:
            into.add(*facts)
        for place in range(index, index + count):
            into.add(*(usage or {}).get(place, ()))
        index += count


def frame(into: Builder, request: Mapping[str, Any]) -> None:
    """What stands beside the messages of a request: the model, the system text, the tools."""
    into.model = words(request.get("model")) or into.model
    for field in ("system", "instructions"):
        if request.get(field):
            _system(into, request[field])
    tools = request.get("tools")
    if isinstance(tools, list) and tools:
        held = opaque(tools)
        if held is None:
            into.keep(written(tools))
        else:
            into.add(Equipped(tools=held))


def _system(into: Builder, text: object) -> None:
    """System text that is sent beside the messages."""
    try:
        (chunk,) = wire("anthropic").read(({"role": "system", "content": text},))
        (fact,) = chunk.facts
        assert isinstance(fact, Instructed)
        into.add(Instructed(content=fact.content, aside=True, dialect=fact.dialect, extra=fact.extra))
    except REFUSED:
        into.keep(written(text))


def reported(into: Builder, usage: object) -> tuple[Used, ...]:
    """What a provider reported, if it says anything."""
    fact = used(usage, model=into.model) if isinstance(usage, Mapping) else None
    return () if fact is None else (fact,)
