"""Ledger sections of names and lines that the agent is likely to need again.

What an agent has quoted, it quotes again: of the names in old results, those that also occur in the agent's own
calls come back ten times as often as others, and the same holds for lines. Next come names that occur in several
results, names that the model used in its texts, and newer names. Plain words, numbers, and paths that were never
touched come back least. The weights below are the rounded logarithms of these frequencies in the conversations of
one agent; `bench/bench_ledger.py` measures their effect there and with another agent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, islice
from math import log
from typing import Final, NamedTuple

from foveal.core.compaction.ledger.call_reader import ToolAction
from foveal.core.compaction.ledger.sections import QUOTE_PREFIX, Section, quote_line
from foveal.core.log.events import Content, Event, ModelSaid, ToolReturned, text_of

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

_NAME: Final = re.compile(r"[A-Za-z0-9_./:@#\-]{5,200}")
_DISTINCTIVE: Final = re.compile(r"[\d_./:@#\-]|[a-z][A-Z]|[A-Za-z]{9}")
_LINE_PREFIX: Final = re.compile(r"\d+[:\t|-]\s*|[+-](?=\s)")
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


class ReuseSigns:
    """How often names and lines occur in the newest part of a range."""

    def __init__(self, events: Sequence[Event], actions: Sequence[ToolAction]) -> None:
        facts = [event.fact for event in reversed(events)]
        results = _newest((fact.content for fact in facts if isinstance(fact, ToolReturned)), _RESULTS_CHARS)
        calls = _newest(
            ("\n".join(text[:_TEXT_CHARS] for text in action.texts) for action in actions), _CALLS_CHARS
        )
        texts = _newest((fact.content for fact in facts if isinstance(fact, ModelSaid)), _MODEL_CHARS)
        self.results, self.lines = _names(results), count_seen([_lines(text) for text in results])
        self.calls, self.written = _names(calls), count_seen([_lines(text) for text in calls])
        self.texts = _names(texts)

    def likely_names(self) -> Iterator[tuple[float, str]]:
        """Yield each name with the logarithm of how likely it is to be needed again."""
        results, calls, texts = self.results, self.calls, self.texts
        for name in calls.newest(excluding=()):
            returned = results.times.get(name, 0)
            age = min(calls.ages[name], results.ages.get(name, 1_000))
            value = 2.3 + 0.3 * (calls.times[name] > 1) + _repetition_value(returned) - 0.25 * log(1 + age)
            yield value + _shape_value(name), name
        for name in results.newest(excluding=calls.times):
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


def _newest(contents: Iterable[Content], room: int) -> list[str]:
    """Return these texts, long ones reduced to their two ends, until the room is used up."""
    texts: list[str] = []
    for content in contents:
        part = text_of(content)
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
    bare = (_without_line_number(line.strip()) for line in text.split("\n") if len(line) >= shortest)
    return {line: None for line in bare if shortest <= len(line) <= longest and " " in line}


def _without_line_number(line: str) -> str:
    return _LINE_PREFIX.sub("", line, count=1) if line[:1] in "0123456789+-" else line


def _repetition_value(returned: int) -> float:
    """Rate in how many results a name occurs; a name that is in none was chosen by the agent."""
    if returned > 1:
        return 0.9 if returned > 2 else 0.7
    return 0.0 if returned else -3.0


def _shape_value(name: str) -> float:
    if name.isalpha() and (name[1:].islower() or name.isupper()):
        return -0.8
    return -1.5 if _NUMBER.match(name) else 0.0


def name_section(signs: ReuseSigns, *, elsewhere: Set[str]) -> Section:
    """Return the section of names, the most likely for their length first."""
    likely = (
        (value, name)
        for value, name in signs.likely_names()
        if value > MIN_NAME_VALUE and name not in elsewhere
    )
    return Section("Names:", 6.0, _by_value(likely), joined=True)


def line_section(signs: ReuseSigns) -> Section:
    """Return the section of lines, the most likely for their length first."""
    likely = ((value, line) for value, line in signs.likely_lines() if value > MIN_LINE_VALUE)
    return Section("Lines:", 2.5, (QUOTE_PREFIX + quote_line(line) for line in _by_value(likely)))


def _by_value(valued: Iterable[tuple[float, str]]) -> Iterator[str]:
    """Yield the texts with the most value for their length first; texts of equal value in alphabetical order."""
    for _, text in sorted((0.7 * log(6 + len(text)) - value, text) for value, text in valued):
        yield text
