"""The recorded trajectories that Foveal is measured with: one conversation a line, in OpenAI chat messages.

`meta.usage` gives what providers reported, as rows of message index, prompt, cached and completion tokens; each row
becomes a `Used` after its message. Whatever else a line says is kept in one note at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from foveal.events import Used
from foveal.transcripts.lines import Line
from foveal.transcripts.messages import conversation, written
from foveal.transcripts.recording import Builder, Recording, words
from foveal.usage import LARGEST

NAME: Final = "data"


def read(lines: Iterable[Line], path: str, stem: str) -> Iterator[Recording]:
    for line in lines:
        into = Builder(NAME, path)
        held = line.mapping()
        if held is None or not isinstance(held.get("messages"), list):
            into.keep(line.raw)
        else:
            _conversation(into, held)
        yield into.done(f"{stem}:{line.number}")


def _conversation(into: Builder, held: Mapping[str, Any]) -> None:
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
