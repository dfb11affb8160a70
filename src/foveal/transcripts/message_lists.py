"""Lists of messages to facts, message by message: one that no dialect allows does not spoil the others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, Final, TypeAlias

from msgspec import Raw
from msgspec.structs import replace

from foveal.core.log.events import AnyFact, Dialect, Equipped, Event, Instructed, ModelSaid, Noted, Used, raw
from foveal.core.tokens.counter import counter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import fold
from foveal.core.view.request import Renderer, fresh
from foveal.core.wire import Wire, detect, wire
from foveal.core.wire.usage import LARGEST, used
from foveal.errors import MalformedMessage
from foveal.transcripts.jsonl import JsonLine, NotJson
from foveal.transcripts.transcript import (
    UNKNOWN,
    Recorded,
    Transcript,
    TranscriptBuilder,
    as_text,
    headline,
    moment,
    words,
)

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


class MessageFeed:
    """Messages that come one by one. A run of the model's items is one utterance, written when something else
    follows; what happens beside it meanwhile comes after it."""

    def __init__(self, into: TranscriptBuilder, dialect: Wire) -> None:
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
    into: TranscriptBuilder,
    messages: Sequence[object],
    *,
    dialect: Dialect | None = None,
    usage: Usage | None = None,
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


def frame(into: TranscriptBuilder, request: Mapping[str, Any]) -> None:
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


def _system(into: TranscriptBuilder, text: object) -> None:
    """System text that is sent beside the messages."""
    try:
        (chunk,) = wire("anthropic").read(({"role": "system", "content": text},))
        (fact,) = chunk.facts
        assert isinstance(fact, Instructed)
        into.add(Instructed(content=fact.content, aside=True, dialect=fact.dialect, extra=fact.extra))
    except REFUSED:
        into.keep(written(text))


def reported(into: TranscriptBuilder, usage: object) -> tuple[Used, ...]:
    """What a provider reported, if it says anything."""
    fact = used(usage, model=into.model) if isinstance(usage, Mapping) else None
    return () if fact is None else (fact,)


# ── openai ────────────────────────────────────────────────────────────────────────────────────────
# Lists of messages as clients keep them: OpenAI chat, OpenAI Responses, Anthropic.
#
# Read are: a JSON list of messages; an object with `messages` or `input` (a request, a line of a training or a batch
# file), perhaps with `system` or `instructions`, `tools`, `model`, `usage`; a list of such objects; and JSONL with
# one of these, or one message, per line. Messages one a line make one conversation.

MESSAGES_NAME: Final = "openai"
LISTS: Final = ("messages", "input")


def read_messages(lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]:
    loose: list[tuple[JsonLine, Any]] = []  # messages one a line, and lines that are nothing
    told = 0
    for line in lines:
        try:
            held = line.value()
        except NotJson:
            loose.append((line, NotJson))
            continue
        whole = list(conversations(held))
        if not whole:
            loose.append((line, held))
        for one in whole:
            told += 1
            yield _recording(one, path, f"{stem}:{told}" if told > 1 else stem)
    if loose:
        yield _loose(loose, path, stem if not told else f"{stem}:rest")


def conversations(held: Any) -> Iterator[Mapping[str, Any]]:
    """The requests in a JSON value; none when it is a single message, or nothing of the kind."""
    if isinstance(held, list):
        nested = [list(conversations(item)) for item in held]
        if held and all(nested):
            yield from chain.from_iterable(nested)
        elif held and all(isinstance(item, Mapping) for item in held):
            yield {"messages": held}
    elif isinstance(held, Mapping):
        body = held.get("body")
        request = {**held, **body} if isinstance(body, Mapping) else held
        if any(isinstance(request.get(field), list) for field in LISTS):
            yield request


def _recording(request: Mapping[str, Any], path: str, id: str) -> Transcript:
    into = TranscriptBuilder(MESSAGES_NAME, path)
    into.id = words(request.get("id")) or words(request.get("custom_id"))
    frame(into, request)
    for field in (*LISTS, "output"):
        if isinstance(request.get(field), list):
            conversation(into, request[field])
    into.add(*reported(into, request.get("usage")), at=moment(request.get("created")))
    into.title = words(request.get("title")) or headline(into.facts)
    return into.done(id)


def _loose(lines: list[tuple[JsonLine, Any]], path: str, id: str) -> Transcript:
    """Lines of one message each; what is no message is kept in its place."""
    into = TranscriptBuilder(MESSAGES_NAME, path)
    feed = MessageFeed(into, wire(detect([held for _, held in lines if isinstance(held, Mapping)])))
    for line, held in lines:
        if not isinstance(held, Mapping) or not feed.message(held):
            feed.keep(line.raw)
    feed.flush()
    into.title = headline(into.facts)
    return into.done(id)


# ── data ──────────────────────────────────────────────────────────────────────────────────────────
# The recorded trajectories that Foveal is measured with: one conversation a line, in OpenAI chat messages.
#
# `meta.usage` gives what providers reported, as rows of message index, prompt, cached and completion tokens; each row
# becomes a `Used` after its message. Whatever else a line says is kept in one note at the end.

DATASET_NAME: Final = "data"


def read_dataset(lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]:
    for line in lines:
        into = TranscriptBuilder(DATASET_NAME, path)
        held = line.mapping()
        if held is None or not isinstance(held.get("messages"), list):
            into.keep(line.raw)
        else:
            _conversation(into, held)
        yield into.done(f"{stem}:{line.number}")


def _conversation(into: TranscriptBuilder, held: Mapping[str, Any]) -> None:
    told = held.get("meta")
    meta: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    into.id = words(held.get("id"))
    into.title = words(meta.get("task")) or into.id
    into.model = words(meta.get("model"))
    rows = _usage(meta.get("usage"), into.model)
    conversation(into, held["messages"], dialect="openai_chat", usage=rows)
    rest = {name: value for name, value in held.items() if name not in ("messages", "meta")}
    beside = {name: value for name, value in meta.items() if name != "usage" or not rows}
    into.note("data", written({**rest, "meta": beside if isinstance(told, Mapping) else told}))


def _usage(rows: object, model: str) -> dict[int, list[Used]]:
    found: dict[int, list[Used]] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == 4 and all(map(_number, row)):
            index, prompt, cached, output = row
            cached = min(cached, prompt)
            fact = Used(input=prompt - cached, cache_read=cached, output=output, model=model)
            found.setdefault(index, []).append(fact)
    return found


def _number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


# ── writing ───────────────────────────────────────────────────────────────────────────────────────
# Facts as the messages of a provider, for whoever wants to take a conversation elsewhere.


def write_messages(facts: Iterable[AnyFact], dialect: Dialect) -> list[dict[str, Any]]:
    """What the model would see of these facts, counted from 0, as a legal list of messages.

    Reductions and rewinds are in effect and calls without a result are answered, as in every view. System text that
    is sent beside the messages comes first among them.
    """
    view = fold([Event(seq, fact) for seq, fact in enumerate(facts)], MessageTokens(counter("estimate")))
    target = wire(dialect)
    asides = [shown.fact for shown in view.asides.values() if isinstance(shown.fact, Instructed)]
    beside = [message for fact in asides for message in target.write(replace(fact, aside=False))]
    messages, _ = Renderer().render(view, target)
    return [*map(fresh, target.join([beside, messages]))] if beside else messages
