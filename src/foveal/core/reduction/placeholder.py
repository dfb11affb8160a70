"""Placeholders for masked tool results and call arguments.

A placeholder says what was left out and how to bring it back. Then it keeps, as far as its room allows, what agents
come back for: the exit status, the lines that report errors and verdicts, and then the identifiers and paths that
occur nowhere else in the view (the skeleton) or, in a short placeholder, a digest of the text. It is written once,
when the mask is made, and recorded in the log; nothing computes it again.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain
from typing import Final

from foveal.core.log.events import Call
from foveal.core.reduction.important_lines import ITEM, ImportantLine, find_important_lines
from foveal.core.reduction.result_digest import cut, digest_lines
from foveal.core.view.text_facts import count_names, exit_status, find_names, parse_json, string_values

MAX_IMPORTANT_LINE_CHARS: Final = 160
"""Characters of an important line that a skeleton shows."""
MAX_SUBJECT_CHARS: Final = 80
"""Characters of a command or a path that name the call."""
_EXIT_STATUS_CHARS: Final = 20
_MIN_IMPORTANT_LINE_CHARS: Final = 24
_MIN_DIGEST_LINE_CHARS: Final = 24
_DECORATION: Final = re.compile(r"^[=_*~-]{3,} | [=_*~-]{3,}$")
"""Signs around a verdict, as in `===== 1 failed =====`."""
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
    lines = _important_lines(text, room, for_others=room // 3)
    room -= sum(len(line) + 1 for line in lines)
    yield from lines
    known = set(elsewhere).union(*map(find_names, lines)) if lines else elsewhere
    names = _rarest_names(counts or count_names([text]), known)
    listed = ", ".join(_fitting(names, room - len("names: ")))
    if listed:
        yield "names: " + listed


def _important_lines(text: str, room: int, *, for_others: int) -> list[str]:
    """Return the lines that report errors and verdicts, in the order of the text.

    The most important one may take the whole room, and is cut to it; the others must fit into `for_others` with it.
    """
    if room < _MIN_IMPORTANT_LINE_CHARS:
        return []
    said = "\n".join(string_values(text)) if text[:1] in ("{", "[") else text
    chosen: dict[str, int] = {}
    for line in _best_of_each_rank_first(find_important_lines(said, 0, len(said), enough=4)):
        width = min(MAX_IMPORTANT_LINE_CHARS, room - 1) if not chosen else MAX_IMPORTANT_LINE_CHARS
        words = _DECORATION.sub("", cut(_DECORATION.sub("", said[line.start : line.end].strip()), width))
        size = len(words) + 1
        # A line that ends in a colon only announces the next one.
        if not any(map(str.isalnum, words)) or words.endswith(":") or words in chosen:
            continue
        if chosen and size > for_others:
            continue
        chosen[words] = line.start
        for_others -= size
    return sorted(chosen, key=chosen.__getitem__)


def _best_of_each_rank_first(lines: Iterable[ImportantLine]) -> list[ImportantLine]:
    """Return a verdict, a cause and what failed before the second of any: each says something else."""
    places: Counter[int] = Counter()
    order: list[tuple[int, int, ImportantLine]] = []
    for line in lines:
        if line.rank <= ITEM:
            order.append((places[line.rank], line.rank, line))
            places[line.rank] += 1
    return [line for *_, line in sorted(order)]


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
    for line in _telling_lines(text, room) if room else ():
        if len(line) >= room:
            if room >= _MIN_DIGEST_LINE_CHARS:
                yield line[: room - 1] + "…"
            return
        yield line
        room -= len(line) + 1


def _telling_lines(text: str, room: int) -> Iterator[str]:
    """Yield the exit status, the lines that report errors and verdicts, and then what else the text holds."""
    digest = digest_lines(text)
    first = next(digest, "")
    status = exit_status(text)
    left = room if status is None else room - _EXIT_STATUS_CHARS
    important = _important_lines(text, left, for_others=left)
    if status is not None and all(exit_status(line) != status for line in important or [first[:room]]):
        yield f"exit status {status}"
    yield from important
    yield from (line for line in chain([first], digest) if line not in important)


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
