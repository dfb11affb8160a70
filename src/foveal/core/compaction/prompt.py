"""What a model is told when it is asked for a summary. The words are in `prompt.md`; here they are put together.

A user's own prompt takes the place of the task: what to write and under which headings. How the conversation is
quoted, that nothing in it is an instruction, and how an answer ends stay ours, so that every answer can be checked.
`{words}` and `{focus}` in it are filled in; what it does not mention is added at its end.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Final

from foveal.core.compaction.validation import plain
from foveal.core.log.events import handle

FOCUS: Final = 2_000
"""Characters of what the user wants kept above all."""
WORDS_PER_UNIT: Final = 0.6
"""An English word takes 1.3 tokens; asked for a little less than is allowed, models keep to it."""
LEAST_WORDS: Final = 40

_PART: Final = re.compile(r"^=== ([a-z ]+) ===\n", re.MULTILINE)
_PLACE: Final = re.compile(r"\{(words|focus|range|part|parts|faults)\}")
_HEADING: Final = re.compile(r"^##\s+(\S.*?)\s*$", re.MULTILINE)


@functools.cache
def parts() -> Mapping[str, str]:
    """The default texts by name."""
    from importlib.resources import files  # slow to import, and needed once

    text = files("foveal.core.compaction").joinpath("prompt.md").read_text("utf-8")
    pieces = _PART.split(text)[1:]
    return {name: words.strip() for name, words in zip(pieces[::2], pieces[1::2], strict=True)}


def resolve(prompt: str) -> str:
    """The task in force: the user's, or ours; with the places for what must be filled in."""
    task = prompt.strip() or parts()["task"]
    if "{words}" not in task:
        task += "\n\n" + parts()["limit"]
    if "{focus}" not in task:
        task += "\n\n{focus}"
    if "</summary>" not in task:
        task += "\n\n" + parts()["closing"]
    return task


def sections(task: str) -> tuple[str, ...]:
    """The headings that a task asks for."""
    return tuple(dict.fromkeys(_HEADING.findall(task)))


def words(units: int) -> int:
    """So many words are asked for when so many units are allowed."""
    return max(LEAST_WORDS, int(units * WORDS_PER_UNIT) // 10 * 10)


def task(prompt: str, *, most: int, focus: str = "") -> str:
    """What to write, in at most `most` units."""
    wish = filled("focus", focus=_wish(focus)) if focus.strip() else ""
    return re.sub(r"\n{3,}", "\n\n", _fill(resolve(prompt), words=str(words(most)), focus=wish)).strip()


def cold(prompt: str, *, most: int, focus: str = "") -> str:
    """The system text for a conversation that is quoted in the only message."""
    return f"{task(prompt, most=most, focus=focus)}\n\n{parts()['cold']}"


def merging(prompt: str, *, most: int, focus: str = "") -> str:
    """The system text for summaries that shall become one."""
    return f"{task(prompt, most=most, focus=focus)}\n\n{parts()['merge']}"


def shared(prompt: str, *, most: int, focus: str = "", faults: Sequence[str] = ()) -> str:
    """The message after a conversation that stands there unquoted."""
    asked = [parts()["shared"], task(prompt, most=most, focus=focus), _again(faults)]
    return "\n\n".join(filter(None, asked))


def quoting(
    transcript: str,
    *,
    first: int,
    last: int,
    most: int,
    part: tuple[int, int] = (1, 1),
    kept: bool = False,
    faults: Sequence[str] = (),
) -> str:
    """The message that quotes a conversation."""
    texts = [
        filled("begin", range=f"{handle(first)} to {handle(last)}"),
        filled("part", part=str(part[0]), parts=str(part[1])) if part[1] > 1 else "",
        parts()["kept"] if kept else "",
        transcript,
        filled("end", words=str(words(most))),
        _again(faults),
    ]
    return "\n\n".join(filter(None, texts))


def quoting_records(records: Sequence[str], *, most: int, faults: Sequence[str] = ()) -> str:
    """The message that quotes the summaries of consecutive parts, the oldest first."""
    texts = [
        "\n".join((f"[record {place} of {len(records)}]", *(f"> {line}" for line in record.splitlines())))
        for place, record in enumerate(records, 1)
    ]
    return "\n\n".join(filter(None, [*texts, filled("merge end", words=str(words(most))), _again(faults)]))


def filled(name: str, **values: str) -> str:
    return _fill(parts()[name], **values)


def _fill(text: str, **values: str) -> str:
    """All places at once: what is filled in is not searched for places."""
    return _PLACE.sub(lambda place: values.get(place[1], place[0]), text)


def _wish(focus: str) -> str:
    text = plain(focus.strip())
    cut = text if len(text) <= FOCUS else text[: FOCUS - 1] + "…"
    return "\n".join(f"> {line}" for line in cut.splitlines())


def _again(faults: Sequence[str]) -> str:
    return filled("faults", faults="\n".join(f"- {fault[:900]}" for fault in faults)) if faults else ""
