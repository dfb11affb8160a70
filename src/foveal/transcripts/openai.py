"""Lists of messages as clients keep them: OpenAI chat, OpenAI Responses, Anthropic.

Read are: a JSON list of messages; an object with `messages` or `input` (a request, a line of a training or a batch
file), perhaps with `system` or `instructions`, `tools`, `model`, `usage`; a list of such objects; and JSONL with
one of these, or one message, per line. Messages one a line make one conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from foveal.transcripts.lines import Line, NotJson
from foveal.transcripts.messages import Feed, conversation, frame, reported
from foveal.transcripts.recording import Builder, Recording, headline, moment, words
from foveal.wire import detect, wire

NAME: Final = "openai"
LISTS: Final = ("messages", "input")


def read(lines: Iterable[Line], path: str, stem: str) -> Iterator[Recording]:
    loose: list[tuple[Line, Any]] = []  # messages one a line, and lines that are nothing
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


def _recording(request: Mapping[str, Any], path: str, id: str) -> Recording:
    into = Builder(NAME, path)
    into.id = words(request.get("id")) or words(request.get("custom_id"))
    frame(into, request)
    for field in (*LISTS, "output"):
        if isinstance(request.get(field), list):
            conversation(into, request[field])
    into.add(*reported(into, request.get("usage")), at=moment(request.get("created")))
    into.title = words(request.get("title")) or headline(into.facts)
    return into.done(id)


def _loose(lines: list[tuple[Line, Any]], path: str, id: str) -> Recording:
    """Lines of one message each; what is no message is kept in its place."""
    into = Builder(NAME, path)
    feed = Feed(into, wire(detect([held for _, held in lines if isinstance(held, Mapping)])))
    for line, held in lines:
        if not isinstance(held, Mapping) or not feed.message(held):
            feed.keep(line.raw)
    feed.flush()
    into.title = headline(into.facts)
    return into.done(id)
