"""Names and lines of old results that are likely to be needed again.

What an agent quoted once, it quotes again: of the names in old results those that stand in its own calls come back
ten times as often as the others, and so do lines. Then those that stand in several results, those that the model
spoke of in its texts, and the newer ones. Plain words, numbers, and paths that nobody touched come back least. The
weights below are the logarithms of how much more often, rounded, in conversations of one agent;
`bench/bench_ledger.py` measures what comes of them there and with another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, islice
from math import log
from typing import Final, NamedTuple

from foveal.core.compaction.ledger.sections import QUOTE, Section, verbatim
from foveal.core.compaction.ledger.tool_calls import ToolAction
from foveal.core.log.events import Content, Event, ModelSaid, ToolReturned, text_of

LINE: Final = (24, 160)
"""Characters of a line that is worth quoting, from and to."""
LEAST: Final = (-0.7, 0.1)
"""Names and lines of less value than this are not worth any room."""
MOST: Final = 400
"""Of each sort of names and lines so many are judged: the newest."""
_ONE: Final = 2_500
"""Characters of one text that are read, at its two ends, …"""
_RESULTS: Final = 32_000
"""… of all results, newest first, …"""
_CALLS: Final = 20_000
"""… of the arguments of all calls, …"""
_TEXTS: Final = 4_000
"""… and of all that the model said."""

_NAME: Final = re.compile(r"[A-Za-z0-9_./:@#\-]{5,200}")
_TELLING: Final = re.compile(r"[\d_./:@#\-]|[a-z][A-Z]|[A-Za-z]{9}")
_NUMBERED: Final = re.compile(r"\d+[:\t|-]\s*|[+-](?=\s)")
_NUMBER: Final = re.compile(r"[\d.:\-]+\Z")
_DEFINES: Final = re.compile(
    r"(?:export |async |public |static )*(?:def|class|function|func|fn|const|interface|type)\b"
)


class SeenText(NamedTuple):
    """Things in texts, newest first: in how many texts each stands, and how many are newer than all of them."""

    times: Mapping[str, int]
    ages: Mapping[str, int]

    def newest(self, but: Collection[str]) -> Iterator[str]:
        return islice((thing for thing in self.times if thing not in but), MOST)


def seen(texts: Sequence[Iterable[str]]) -> SeenText:
    """The things in these texts, newest first. (No sets: they have another order in another process.)"""
    ages: dict[str, int] = {}
    for age in range(len(texts) - 1, -1, -1):
        ages.update(dict.fromkeys(texts[age], age))
    return SeenText(Counter(chain.from_iterable(texts)), ages)


def named(tokens: SeenText) -> SeenText:
    """The names among tokens. Most of an output repeats, so it is cheaper to look at each of its tokens once."""
    times: dict[str, int] = {}
    ages: dict[str, int] = {}
    for token, number in tokens.times.items():
        name = token.lstrip(":-#@").rstrip(".:-#/@")
        if name in times:
            times[name] += number
        elif len(name) >= 5 and _TELLING.search(name):
            times[name] = number
            ages[name] = tokens.ages[token]  # the first is the newest
    return SeenText(times, ages)


class ReuseSigns:
    """What the newest part of a range says about names and lines."""

    def __init__(self, events: Sequence[Event], done: Sequence[ToolAction]) -> None:
        facts = [event.fact for event in reversed(events)]
        results = _newest((fact.content for fact in facts if isinstance(fact, ToolReturned)), _RESULTS)
        calls = _newest(("\n".join(text[:_ONE] for text in one.texts) for one in done), _CALLS)
        texts = _newest((fact.content for fact in facts if isinstance(fact, ModelSaid)), _TEXTS)
        self.results, self.lines = _names(results), seen([_lines(text) for text in results])
        self.calls, self.written = _names(calls), seen([_lines(text) for text in calls])
        self.texts = _names(texts)

    def names(self) -> Iterator[tuple[float, str]]:
        """How likely each name is to be needed again, as a logarithm."""
        results, calls, texts = self.results, self.calls, self.texts
        for name in calls.newest(but=()):
            returned = results.times.get(name, 0)
            age = min(calls.ages[name], results.ages.get(name, 1_000))
            value = 2.3 + 0.3 * (calls.times[name] > 1) + _repeated(returned) - 0.25 * log(1 + age)
            yield value + _shape(name), name
        for name in results.newest(but=calls.times):
            value = _repeated(results.times[name]) - 0.25 * log(1 + results.ages[name])
            value += 1.2 * (name in texts.times) - 0.7 * ("/" in name)
            yield value + _shape(name), name

    def likely_lines(self) -> Iterator[tuple[float, str]]:
        """The same for lines of results."""
        times, ages = self.lines
        both = times.keys() & self.written.times.keys()
        for own, lines in ((2.5, both), (0.0, self.lines.newest(but=both))):
            for line in lines:
                value = own + 0.6 * (times[line] > 1) + 0.6 * bool(_DEFINES.match(line))
                yield value - 0.25 * log(1 + ages[line]), line


def _newest(contents: Iterable[Content], room: int) -> list[str]:
    """These texts, the long ones by their two ends, until the room is used up."""
    texts: list[str] = []
    for content in contents:
        part = text_of(content)
        if len(part) > _ONE:
            head, tail = part[: _ONE * 3 // 4], part[-_ONE // 4 :]  # in whole lines
            part = f"{head.rpartition(chr(10))[0] or head}\n{tail.partition(chr(10))[2] or tail}"
        texts.append(part)
        room -= len(part)
        if room <= 0:
            break
    return texts


def _names(texts: Iterable[str]) -> SeenText:
    return named(seen([dict.fromkeys(_NAME.findall(text)) for text in texts]))


def _lines(text: str) -> dict[str, None]:
    """The lines that are long enough, without indents and line numbers."""
    least, most = LINE
    bare = (_unnumbered(line.strip()) for line in text.split("\n") if len(line) >= least)
    return {line: None for line in bare if least <= len(line) <= most and " " in line}


def _unnumbered(line: str) -> str:
    return _NUMBERED.sub("", line, count=1) if line[:1] in "0123456789+-" else line


def _repeated(returned: int) -> float:
    """In how many results a name stands; in none means that the agent made it up."""
    if returned > 1:
        return 0.9 if returned > 2 else 0.7
    return 0.0 if returned else -3.0


def _shape(name: str) -> float:
    if name.isalpha() and (name[1:].islower() or name.isupper()):
        return -0.8
    return -1.5 if _NUMBER.match(name) else 0.0


def name_section(signs: ReuseSigns, *, elsewhere: Set[str]) -> Section:
    """Names, the most likely for their length first."""
    likely = ((value, name) for value, name in signs.names() if value > LEAST[0] and name not in elsewhere)
    return Section("Names:", 6.0, _ranked(likely), joined=True)


def line_section(signs: ReuseSigns) -> Section:
    """Lines of results, the same way."""
    likely = ((value, line) for value, line in signs.likely_lines() if value > LEAST[1])
    return Section("Lines:", 2.5, (QUOTE + verbatim(line) for line in _ranked(likely)))


def _ranked(valued: Iterable[tuple[float, str]]) -> Iterator[str]:
    """The most valuable first, for what they cost; those of equal value in the order of their letters."""
    for _, text in sorted((0.7 * log(6 + len(text)) - value, text) for value, text in valued):
        yield text
