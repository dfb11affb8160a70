"""Placeholders for masked tool results and call arguments.

A placeholder says what was left out and how to bring it back. Then it keeps, as far as its room allows, what agents
come back for (the skeleton): the exit status, the lines that report errors and verdicts, and the identifiers and
paths that occur nowhere else in the view. It is written once, when the mask is made, and recorded in the log;
nothing computes it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final

from foveal.core.log.events import Call
from foveal.core.reduction.important_lines import ITEM, find_important_lines
from foveal.core.reduction.result_digest import digest_lines
from foveal.core.view.text_facts import count_names, exit_status, find_names, parse_json

MAX_IMPORTANT_LINE_CHARS: Final = 160
"""Characters of an important line that a skeleton shows."""
MAX_SUBJECT_CHARS: Final = 80
"""Characters of a command or a path that name the call."""
_EXIT_STATUS_CHARS: Final = 20
_MIN_IMPORTANT_LINES_CHARS: Final = 24
_MIN_DIGEST_LINE_CHARS: Final = 24
_MAX_WHOLE_VALUE_CHARS: Final = 200
"""Argument values up to this length stay whole, unless they are the longest."""
_MAX_NAME_WEIGHT: Final = 3
"""More occurrences of a name than this do not move it further to the front."""
_NO_BRACKETS: Final = str.maketrans("[]", "()")


def call_subject(call: Call) -> str:
    """Return what a call is about: its command, its path, or the beginning of its arguments."""
    values = _parse_arguments(call.arguments)
    line = call.arguments
    if isinstance(values, dict):
        texts = [value for value in values.values() if isinstance(value, str) and value.strip()]
        line = texts[0] if texts else line
    # Brackets would close the placeholder's own.
    line = " ".join(line.split()).translate(_NO_BRACKETS)
    return line if len(line) <= MAX_SUBJECT_CHARS else line[: MAX_SUBJECT_CHARS - 1] + "…"


def _parse_arguments(arguments: str) -> object:
    try:
        return parse_json(arguments)
    except (ValueError, RecursionError):
        return None


def placeholder(text: str, *, what: str, handle: str, tokens: int, skeleton: Iterable[str] = ()) -> str:
    """Return the text that stands for `text`: a first line that is always there, then the lines of a skeleton."""
    total = text.count("\n") + 1
    first = f"[foveal: masked {what}; {tokens:,} tokens, {total:,} lines; whole text: {handle}]"
    return "\n".join([first, *skeleton])


def skeleton(
    text: str, room: int, *, elsewhere: Set[str] = frozenset(), counts: Mapping[str, int] | None = None
) -> Iterator[str]:
    """Yield what a placeholder keeps of `text` in `room` characters.

    It does not repeat names in `elsewhere`, which the view shows anyway. `counts` are the name counts of `text`,
    where the caller has them.
    """
    status = exit_status(text)
    if status is not None and room >= _EXIT_STATUS_CHARS:
        yield f"exit status {status}"
        room -= _EXIT_STATUS_CHARS
    lines = _important_lines(text, room // 3)
    room -= sum(len(line) + 1 for line in lines)
    yield from lines
    known = set(elsewhere).union(*map(find_names, lines)) if lines else elsewhere
    names = _rarest_names(counts or count_names([text]), known)
    listed = ", ".join(_fitting(names, room - len("names: ")))
    if listed:
        yield "names: " + listed


def _important_lines(text: str, room: int) -> list[str]:
    """Return the lines that report errors and verdicts, in the order of the text."""
    if room < _MIN_IMPORTANT_LINES_CHARS:
        return []
    chosen: list[tuple[int, str]] = []
    for line in find_important_lines(text, 0, len(text), enough=4):
        if line.rank > ITEM:
            continue
        words = text[line.start : line.end].strip()[:MAX_IMPORTANT_LINE_CHARS]
        if words and len(words) + 1 <= room:
            chosen.append((line.start, words))
            room -= len(words) + 1
    return [words for _, words in sorted(chosen)]


def _rarest_names(counts: Mapping[str, int], elsewhere: Set[str]) -> list[str]:
    """Return the names that occur nowhere else: the most frequent in the text first, then in their order."""
    unique = [name for name in counts if name not in elsewhere]
    return sorted(unique, key=lambda name: -min(counts[name], _MAX_NAME_WEIGHT))


def _fitting(words: Iterable[str], room: int) -> Iterator[str]:
    for word in words:
        if len(word) + 2 > room:
            return
        room -= len(word) + 2
        yield word


def short_placeholder(text: str, *, handle: str, tokens: int, room: int) -> str:
    """Return the text that stands for a result behind its call, and says in `room` characters what it held."""
    first = f"[foveal: {tokens:,} tokens hidden; whole: {handle}]"
    return "\n".join([first, *_digest(text, room)])


def _digest(text: str, room: int) -> Iterator[str]:
    for line in digest_lines(text) if room else ():
        if len(line) >= room:
            if room >= _MIN_DIGEST_LINE_CHARS:
                yield line[: room - 1] + "…"
            return
        yield line
        room -= len(line) + 1


def shortened(text: str, chars: int, handle: str) -> str:
    """Return the beginning and the end of a text, with a mark between them."""
    if len(text) <= chars:
        return text
    head, tail = text[: chars * 2 // 3], text[-chars // 3 :]
    head = head.rpartition("\n")[0] or head
    tail = tail.partition("\n")[2] or tail
    return f"{head}\n[foveal: {len(text) - len(head) - len(tail):,} characters; whole: {handle}]\n{tail}"


def shortened_arguments(call: Call, *, handle: str, chars: int) -> str:
    """Return the arguments of a call with long strings shortened: valid JSON with the same keys."""
    values = _parse_arguments(call.arguments)
    if not isinstance(values, dict):
        return shortened(call.arguments, chars, handle)
    longest = sum(len(v) for v in values.values() if isinstance(v, str) and len(v) > _MAX_WHOLE_VALUE_CHARS)

    def short(value: object) -> object:
        if isinstance(value, str) and len(value) > _MAX_WHOLE_VALUE_CHARS:
            return shortened(
                value, max(_MAX_WHOLE_VALUE_CHARS, chars * len(value) // max(1, longest)), handle
            )
        if isinstance(value, list):
            return [short(v) for v in value]
        if isinstance(value, dict):
            return {k: short(v) for k, v in value.items()}
        return value

    return json.dumps({key: short(value) for key, value in values.items()}, ensure_ascii=False)


def arguments_placeholder(call: Call, *, handle: str, tokens: int) -> str:
    """Return the arguments of an old call with their long values masked: still JSON, still the same keys."""
    values = _parse_arguments(call.arguments)
    if not isinstance(values, dict):
        values = {"arguments": call.arguments}
    longest = max((len(value) for value in values.values() if isinstance(value, str)), default=0)
    shown: dict[str, object] = {}
    for key, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text) <= _MAX_WHOLE_VALUE_CHARS and len(text) < longest:
            shown[key] = value
        else:
            shown[key] = placeholder(text, what=key, handle=handle, tokens=tokens)
    return json.dumps(shown, ensure_ascii=False)
