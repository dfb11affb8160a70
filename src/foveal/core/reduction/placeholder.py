"""What a masked text must still show: the things that agents come back for.

A placeholder says what was left out and how to bring it back, then keeps, as far as its room allows: the exit
status, the lines that tell of errors and verdicts, and the identifiers and paths that stand nowhere else in the
view. It is written once, when the mask is made, and recorded; nothing computes it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

from foveal.core.log.events import Call
from foveal.core.reduction import important_lines

_NAME: Final = re.compile(r"[A-Za-z0-9_./:@#\-]{5,200}")
_BEFORE: Final = ":-#@"
_AFTER: Final = ".:-#/@"
_TELLING: Final = re.compile(r"[\d_./:@#\-]|[a-z][A-Z]|[A-Za-z]{9}")
_EXIT: Final = re.compile(
    r"(?:exit(?:ed)?[ _]?(?:with[ _]?)?(?:code|status)?|return[ _]?code|status)\W{1,4}(-?\d{1,3})\b",
    re.IGNORECASE,
)
_FAILED: Final = re.compile(
    r"Traceback \(most recent call last\)|^(?:[\w.]*(?:Error|Exception)|fatal|error|ERROR)\b ?:|command not found"
    r"|No such file or directory|Permission denied|^FAILED\b|\b\d+ failed\b|panicked at|^make(?:\[\d+\])?: \*\*\* ",
    re.MULTILINE,
)
_EDGE: Final = 2_000
"""Characters at each end of a result that are searched for its outcome."""
LINE: Final = 160
"""A salient line is shown up to this many characters."""
_NUMBER: Final = re.compile(r"\d+[\t:|-]\s*")
_NO_BRACKETS: Final = str.maketrans("[]", "()")
SUBJECT: Final = 80
"""Of a command or a path, so many characters name the call."""


def names(text: str) -> Iterator[str]:
    """The identifiers, paths and numbers of a text in their order, repeats included."""
    for match in _NAME.finditer(text):
        name = match.group().lstrip(_BEFORE).rstrip(_AFTER)
        if len(name) >= 5 and _TELLING.search(name):
            yield name


def exit_status(text: str) -> int | None:
    """The exit status that a result reports about itself at its beginning or end."""
    for region in (text[:200], text[-200:]):
        found = _EXIT.search(region)
        if found:
            return int(found.group(1))
    return None


def failed(text: str) -> bool:
    """A result that tells of a failure, as far as its ends show."""
    status = exit_status(text)
    if status is not None:
        return status != 0
    return bool(_FAILED.search(text[:_EDGE]) or _FAILED.search(text[-_EDGE:]))


def subject(call: Call) -> str:
    """What a call is about: its command, its path, or the beginning of its arguments."""
    values: object
    try:
        values = json.loads(call.arguments)
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, dict):
        texts = [value for value in values.values() if isinstance(value, str) and value.strip()]
        line = texts[0] if texts else call.arguments
    else:
        line = call.arguments
    line = " ".join(line.split()).translate(_NO_BRACKETS)  # so that it cannot close ours
    return line if len(line) <= SUBJECT else line[: SUBJECT - 1] + "…"


def bare(line: str) -> str:
    """A line without the blanks around it and without the number that a listing puts in front of it."""
    line = line.strip()
    return _NUMBER.sub("", line, count=1) if line[:1].isdigit() else line


def leaves(arguments: str) -> list[str]:
    """The texts among the arguments of a call, decoded; the arguments themselves when they are no JSON."""
    try:
        return list(_leaves(json.loads(arguments)))
    except (ValueError, RecursionError):
        return [arguments]


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)


def placeholder(
    text: str,
    *,
    what: str,
    handle: str,
    tokens: int,
    room: int,
    elsewhere: Set[str] = frozenset(),
    lines: Sequence[str] = (),
    counts: Mapping[str, int] | None = None,
) -> str:
    """The text that stands for `text`: a first line that is always there, the `lines` to keep, then a skeleton of
    at most `room` characters. Names found in `elsewhere`, what the view shows anyway, are not repeated;
    `counts` are those of the text, where somebody has counted them."""
    total = text.count("\n") + 1
    first = f"[foveal: masked {what}; {tokens:,} tokens, {total:,} lines; whole text: {handle}]"
    shown = set(elsewhere).union(*map(names, lines)) if lines else elsewhere
    return "\n".join([first, *lines, *_skeleton(text, room, shown, counts)])


def _skeleton(text: str, room: int, elsewhere: Set[str], counts: Mapping[str, int] | None) -> Iterator[str]:
    status = exit_status(text)
    if status is not None and room >= 20:
        yield f"exit status {status}"
        room -= 20
    told: list[str] = []
    for line in _salient_lines(text, room // 3):
        told.append(line)
        room -= len(line) + 1
    yield from told
    mentioned = set(elsewhere).union(*(names(line) for line in told)) if told else elsewhere
    listed = ", ".join(_fitting(rarest(counts or counted([text]), mentioned), room - len("names: ")))
    if listed:
        yield "names: " + listed


def _salient_lines(text: str, room: int) -> list[str]:
    """Lines that tell of errors and verdicts, in the order of the text."""
    if room < 24:
        return []
    chosen: list[tuple[int, str]] = []
    for line in important_lines.important_lines(text, 0, len(text), enough=4):
        if line.rank > important_lines.ITEM:
            continue
        words = text[line.start : line.end].strip()[:LINE]
        if words and len(words) + 1 <= room:
            chosen.append((line.start, words))
            room -= len(words) + 1
    return [words for _, words in sorted(chosen)]


def counted(texts: Iterable[str]) -> dict[str, int]:
    """The names of texts in their order, and how often they have them."""
    counts: dict[str, int] = {}
    for name in (name for text in texts for name in names(text)):
        counts[name] = counts.get(name, 0) + 1
    return counts


def rarest(counts: Mapping[str, int], elsewhere: Set[str]) -> list[str]:
    """The names of a text that stand nowhere else: those it speaks of most first, then in their order."""
    fresh = [name for name in counts if name not in elsewhere]
    return sorted(fresh, key=lambda name: -min(counts[name], 3))


def _fitting(words: Iterable[str], room: int) -> Iterator[str]:
    for word in words:
        if len(word) + 2 > room:
            return
        room -= len(word) + 2
        yield word


def arguments(call: Call, *, handle: str, tokens: int, room: int, elsewhere: Set[str] = frozenset()) -> str:
    """The arguments of an old call with their long values masked: still JSON, still the same keys."""
    try:
        values = json.loads(call.arguments)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        values = {"arguments": call.arguments}
    longest = max((len(value) for value in values.values() if isinstance(value, str)), default=0)
    shown: dict[str, object] = {}
    for key, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text) <= 200 and len(text) < longest:
            shown[key] = value
        else:
            part = max(0, room * len(text) // max(1, len(call.arguments)))
            shown[key] = placeholder(
                text, what=key, handle=handle, tokens=tokens, room=part, elsewhere=elsewhere
            )
    return json.dumps(shown, ensure_ascii=False)
