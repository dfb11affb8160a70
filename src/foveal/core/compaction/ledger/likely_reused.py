"""Ledger block of lines and names in tool output that may be needed again.

What an agent has quoted, it quotes again: of the names in old results, those that also occur in the agent's own
calls come back ten times as often as others, and the same holds for lines. Next come names that occur in several
results, names that the model used in its texts, and newer names. Plain words, numbers, and paths that were never
touched come back least. The weights below are the rounded logarithms of these frequencies in the conversations of
one agent; `bench/bench_ledger.py` measures their effect there and with another agent.

Names that look generated and names of one long enumerated family are left out, unless the agent used them: they
would fill the block. Each line and name stands under the file or command that it comes from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, islice
from math import log
from typing import Final, NamedTuple

from foveal.core.compaction.ledger.call_reader import ToolAction
from foveal.core.compaction.ledger.sections import (
    EXCERPTS_HEADING,
    ITEM_PREFIX,
    OUTPUT_PREFIX,
    inline,
    quote_line,
)
from foveal.core.compaction.ledger.unresolved_errors import call_title
from foveal.core.log.events import Event, ModelSaid, ToolReturned, handle, text_of
from foveal.core.tokens.counter import Counter as TokenCounter
from foveal.core.view.text_facts import find_names

LINE_CHARS: Final = (24, 160)
"""Length of a line that is worth quoting, from and to."""
MIN_NAME_VALUE: Final = -0.7
MIN_LINE_VALUE: Final = 0.1
"""Names and lines of less value are left out."""
MAX_CANDIDATES: Final = 400
"""Names or lines of one source that are rated: the newest."""
_TEXT_CHARS: Final = 2_500
"""Characters of one text that are read, at its two ends."""
_RESULTS_CHARS: Final = 32_000
"""Characters of all results that are read, newest first."""
_CALLS_CHARS: Final = 20_000
"""Characters of the arguments of all calls that are read."""
_MODEL_CHARS: Final = 4_000
"""Characters of all model texts that are read."""

_TITLE_CHARS: Final = 60
_MAX_MISSES: Final = 5
"""The block is closed after this many items in a row that did not fit."""
_MAX_FAMILY: Final = 3
"""Names that differ only in their digits: of more than this many, none is shown that the agent did not use."""
_LINE_BONUS: Final = 0.6
"""How much more a line is worth than a name of the same value and length: it says more."""

_NAME: Final = re.compile(r"[A-Za-z0-9_./:@#\-]{5,200}")
_DISTINCTIVE: Final = re.compile(r"[\d_./:@#\-]|[a-z][A-Z]|[A-Za-z]{9}")
_LINE_PREFIX: Final = re.compile(r"\d+[:\t|-]\s*|[+-](?=\s)")
_DIGITS: Final = re.compile(r"\d+")
_GENERATED: Final = re.compile(
    r"(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}|\d{6}|0x[0-9a-f]{4}", re.IGNORECASE
)
_NUMBER: Final = re.compile(r"[\d.:\-]+\Z")
_DEFINITION: Final = re.compile(
    r"(?:export |async |public |static )*(?:def|class|function|func|fn|const|interface|type)\b"
)


class SeenText(NamedTuple):
    """Items found in texts, newest first: in how many texts each occurs, and how many texts are newer."""

    times: Mapping[str, int]
    ages: Mapping[str, int]

    def newest(self, *, excluding: Collection[str]) -> Iterator[str]:
        return islice((item for item in self.times if item not in excluding), MAX_CANDIDATES)


def count_seen(texts: Sequence[Iterable[str]]) -> SeenText:
    """Return the items in these texts, newest first. (Sets would differ in order between processes.)"""
    ages: dict[str, int] = {}
    for age in range(len(texts) - 1, -1, -1):
        ages.update(dict.fromkeys(texts[age], age))
    return SeenText(Counter(chain.from_iterable(texts)), ages)


def names_among(tokens: SeenText) -> SeenText:
    """Return the names among tokens. Most tokens repeat, so it is cheaper to look at each distinct one once."""
    times: dict[str, int] = {}
    ages: dict[str, int] = {}
    for token, count in tokens.times.items():
        name = token.lstrip(":-#@").rstrip(".:-#/@")
        if name in times:
            times[name] += count
        elif len(name) >= 5 and _DISTINCTIVE.search(name):
            times[name] = count
            ages[name] = tokens.ages[token]  # the first occurrence is the newest
    return SeenText(times, ages)


def names_in(text: str) -> Set[str]:
    """Return the names in a text, among other words."""
    return {token.lstrip(":-#@").rstrip(".:-#/@") for token in set(_NAME.findall(text))}


class ReuseSigns:
    """How often names and lines occur in the newest part of a range."""

    def __init__(self, events: Sequence[Event], actions: Sequence[ToolAction]) -> None:
        returned = [event for event in reversed(events) if isinstance(event.fact, ToolReturned)]
        said = (event.fact.content for event in reversed(events) if isinstance(event.fact, ModelSaid))
        results = _newest((text_of(event.fact.content) for event in returned), _RESULTS_CHARS)  # type: ignore[union-attr]
        calls = _newest(
            ("\n".join(text[:_TEXT_CHARS] for _, text in action.fields) for action in actions), _CALLS_CHARS
        )
        texts = _newest(map(text_of, said), _MODEL_CHARS)
        self.sources = [event.seq for event in returned[: len(results)]]
        """Seqs of the results that were read, newest first: an age is an index of this list."""
        self.results, self.lines = _names(results), count_seen([_lines(text) for text in results])
        self.calls, self.written = _names(calls), count_seen([_lines(text) for text in calls])
        self.texts = _names(texts)
        self.families = Counter(map(_family, filter(_DIGITS.search, self.results.times)))
        """How many names differ only in their digits, of those that have any."""

    def likely_names(self) -> Iterator[tuple[float, str]]:
        """Yield each name with the logarithm of how likely it is to be needed again."""
        results, calls, texts = self.results, self.calls, self.texts
        for name in calls.newest(excluding=()):
            returned = results.times.get(name, 0)
            age = min(calls.ages[name], results.ages.get(name, 1_000))
            value = 2.3 + 0.3 * (calls.times[name] > 1) + _repetition_value(returned) - 0.25 * log(1 + age)
            yield value + _shape_value(name), name
        for name in results.newest(excluding=calls.times):
            if _is_word(name) or (results.times[name] == 1 and name not in texts.times):
                continue
            if _DIGITS.search(name) and (
                self.families[_family(name)] > _MAX_FAMILY or _GENERATED.search(name)
            ):
                continue
            value = _repetition_value(results.times[name]) - 0.25 * log(1 + results.ages[name])
            value += 1.2 * (name in texts.times) - 0.7 * ("/" in name)
            yield value + _shape_value(name), name

    def likely_lines(self) -> Iterator[tuple[float, str]]:
        """Yield the same for lines of results."""
        times, ages = self.lines
        both = times.keys() & self.written.times.keys()
        for bonus, lines in ((2.5, both), (0.0, self.lines.newest(excluding=both))):
            for line in lines:
                value = bonus + 0.6 * (times[line] > 1) + 0.6 * bool(_DEFINITION.match(line))
                yield value - 0.25 * log(1 + ages[line]), line

    def most_likely(self) -> Iterator[tuple[bool, int, str]]:
        """Yield lines and names with the age of their result, those with the most value for their length first.

        Of equal value, they come in alphabetical order."""
        lines = (
            (-_per_length(value + _LINE_BONUS, line), True, self.lines.ages[line], line)
            for value, line in self.likely_lines()
            if value > MIN_LINE_VALUE
        )
        names = (
            (-_per_length(value, name), False, self.results.ages[name], name)
            for value, name in self.likely_names()
            if value > MIN_NAME_VALUE and name in self.results.ages
        )
        for _, is_line, age, text in sorted(chain(lines, names), key=lambda one: (one[0], one[3])):
            yield is_line, age, text


def _family(name: str) -> str:
    return _DIGITS.sub("0", name)


def _per_length(value: float, text: str) -> float:
    return value - 0.7 * log(6 + len(text))


def _newest(contents: Iterable[str], room: int) -> list[str]:
    """Return these texts, long ones reduced to their two ends, until the room is used up."""
    texts: list[str] = []
    for part in contents:
        if len(part) > _TEXT_CHARS:
            head, tail = part[: _TEXT_CHARS * 3 // 4], part[-_TEXT_CHARS // 4 :]  # in whole lines
            part = f"{head.rpartition(chr(10))[0] or head}\n{tail.partition(chr(10))[2] or tail}"
        texts.append(part)
        room -= len(part)
        if room <= 0:
            break
    return texts


def _names(texts: Iterable[str]) -> SeenText:
    return names_among(count_seen([dict.fromkeys(_NAME.findall(text)) for text in texts]))


def _lines(text: str) -> dict[str, None]:
    """Return the lines of suitable length, without indents and line numbers."""
    shortest, longest = LINE_CHARS
    lines: dict[str, None] = {}
    for line in text.split("\n"):
        if len(line) < shortest:
            continue
        line = line.strip()
        if line[:1] in "0123456789+-":
            line = _LINE_PREFIX.sub("", line, count=1)
        if shortest <= len(line) <= longest and " " in line:
            lines[line] = None
    return lines


def _repetition_value(returned: int) -> float:
    """Rate in how many results a name occurs; a name that is in none was chosen by the agent."""
    if returned > 1:
        return 0.9 if returned > 2 else 0.7
    return 0.0 if returned else -3.0


def _is_word(name: str) -> bool:
    """Return whether a name may be a plain word: hyphens join words, capitals inside make it a name."""
    return name.replace("-", "").isalpha() and (name[1:].islower() or name.isupper())


def _shape_value(name: str) -> float:
    if _is_word(name):
        return -0.8
    return -1.5 if _NUMBER.match(name) else 0.0


class _OutputExcerpt:
    """Lines and names of the results that come from one file or command."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.handles: list[str] = []
        self.lines: list[str] = []
        self.names: list[str] = []

    def cost(self, quoted: str, place: str, *, is_line: bool, counter: TokenCounter) -> int:
        """Return the units of one more line or name, with what it adds to the title."""
        units = counter.count(f"{OUTPUT_PREFIX}{quoted}\n" if is_line else f" {quoted},")
        if not self.handles:
            units += counter.count(f"{ITEM_PREFIX}{self.source}:\n") + 1
        return units if place in self.handles else units + counter.count(f", {place}")

    def add(self, quoted: str, place: str, *, is_line: bool) -> None:
        if place not in self.handles:
            self.handles.append(place)
        (self.lines if is_line else self.names).append(quoted)

    def text(self) -> str:
        title = f"{ITEM_PREFIX}{self.source}, {', '.join(self.handles)}: {', '.join(self.names)}".rstrip()
        return "\n".join([title, *(OUTPUT_PREFIX + line for line in self.lines)])


def write_excerpts(
    signs: ReuseSigns, actions: Sequence[ToolAction], *, known: Set[str], room: int, counter: TokenCounter
) -> str:
    """Return the block of lines and names, the most likely for their length first.

    Names in `known` are shown anyway."""
    by_result = {action.result_seq: action for action in actions}
    left = room - counter.count(EXCERPTS_HEADING) - 1
    shown = set(known)
    excerpts: dict[str, _OutputExcerpt] = {}
    misses = 0
    for is_line, age, text in signs.most_likely():
        if misses >= _MAX_MISSES or left <= 0:
            break
        if not is_line and text in shown:
            continue
        seq = signs.sources[age]
        source = _source(by_result.get(seq))
        excerpt = excerpts.get(source) or _OutputExcerpt(source)
        quoted = quote_line(text) if is_line else text
        cost = excerpt.cost(quoted, handle(seq), is_line=is_line, counter=counter)
        if cost > left:
            misses += 1
            continue
        left -= cost
        excerpts[source] = excerpt
        excerpt.add(quoted, handle(seq), is_line=is_line)
        shown.update(find_names(text))
    return "\n".join([EXCERPTS_HEADING, *(one.text() for one in excerpts.values())]) if excerpts else ""


def _source(action: ToolAction | None) -> str:
    """Return the file that a call read, or the call."""
    if action is None:
        return "a tool"
    only_reads = action.command is None or action.command.is_read_only
    paths = [path for path, verb in action.touched if verb == "read"] if only_reads else []
    return (
        inline("/".join(paths[0].split("/")[-2:]), _TITLE_CHARS)
        if paths
        else call_title(action, _TITLE_CHARS)
    )
