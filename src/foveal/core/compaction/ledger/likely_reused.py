"""Ledger block of lines and names that may be needed again.

What an agent has quoted, it quotes again, and it works on the files that its calls name most often. So two thirds
of the block are for lines: first those that occur in a call and in a result, newest first; then imports; then the
texts of the files that most calls name, each in at most half of the room that is left; then other lines of the
newest results. The rest is for names of results, by

    (0.2 · min(results, 3) + 1.5 · ln(1 + calls)) · [1.3 with one of / . _] / (1 + age / 30,000 tokens)

with the number of results and of messages with calls that contain the name. The formula and the shares were chosen
on one half of the recorded conversations; `bench/bench_ledger.py` measures the result. Only the newest part of a
range is read, which loses next to nothing, since age outweighs the rest.

Each line stands under the file or call that it comes from. So do names, if several come from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from functools import cached_property
from itertools import chain, filterfalse
from math import log
from typing import Final, NamedTuple, TypeAlias

from foveal.core.compaction.ledger.allocation import (
    EXCERPTS_HEADING,
    ITEM_PREFIX,
    MAX_QUOTED_LINE_CHARS,
    OUTPUT_PREFIX,
    inline,
    quote_line,
)
from foveal.core.compaction.ledger.event_facts import (
    MIN_LEDGER_LINE_CHARS,
    EventWords,
    ModelFacts,
    ToolCallFacts,
    first_quotable_lines,
    quotable_lines,
    quotable_text,
)
from foveal.core.compaction.ledger.range_facts import MAX_EVENTS_QUOTED, LedgerIndex, RangeFacts
from foveal.core.log.events import Event, ModelSaid, ToolReturned, handle, text_of
from foveal.core.tokens.counter import Counter as TokenCounter
from foveal.core.view.text_facts import name_candidates, string_values

MAX_NAMES_READ: Final = 2_000
"""Names in results, repeats included, that are read: those of the newest results."""
LINES_SHARE: Final = 0.5
"""Share of the block for lines; more if there are few names."""
FILE_SHARE: Final = 0.5
"""Share of the room for lines, of what files before it have left, that a file may take until others had theirs."""
AGE_UNITS: Final = 30_000
"""Age, in tokens of the dropped text, at which a name is worth half as much."""
_CHARS_PER_UNIT: Final = 4
_MAX_RESULTS_QUOTED: Final = 20
"""Results whose lines are quoted although no call contains them: the newest."""
_MIN_NAMES_TOGETHER: Final = 4
"""Names from one file or call that have a title of their own; fewer stand in a list of other names."""
_TITLES_SHARE: Final = 0.1
"""Share of the room for names that their titles may use."""
_MAX_HANDLES: Final = 3
"""Events that a title names: the newest."""
_MIN_UNITS_PER_NAME: Final = 3
_SPARE_NAMES: Final = 2
"""Names without a mention that are rated for each one that fits."""
_MAX_MISSES: Final = 5
"""Quoting ends after this many lines in a row that did not fit."""
_TITLE_CHARS: Final = 60
_MAX_FAMILY: Final = 3
"""Names that differ only in their digits: of those that no call contains, this many are shown."""
_OTHER_NAMES: Final = "other names"
_OTHERS_UNITS: Final = 6
"""Units of the frame of the list of other names."""
_TITLE_UNITS: Final = 15
"""Units of the title of a source, about."""
_TO_ZERO: Final = str.maketrans("123456789", "0" * 9)
_RESULT_VALUES: Final = (0.0, 0.2, 0.4, 0.6)
"""What results add to the value of a name, by their number."""
_MAX_RESULTS_COUNTED: Final = len(_RESULT_VALUES) - 1
_JOINED_FACTOR: Final = 1.3
_UNMENTIONED_VALUES: Final = (_RESULT_VALUES, tuple(value * _JOINED_FACTOR for value in _RESULT_VALUES))
"""Values of names that no call contains: of plain words, and of those with one of / . _"""


class _QuoteOrigin(NamedTuple):
    """Where a line or a name comes from."""

    source: str
    """The file or call."""
    handle: str


_FoundName: TypeAlias = tuple[str, int]
"""A name, and the seq of the newest result that contains it."""


class ReuseSigns:
    """The names and lines in the newest part of a range, without the events that stay visible."""

    def __init__(
        self,
        facts: RangeFacts,
        index: LedgerIndex,
        *,
        later: RangeFacts,
        keep: Set[int],
        shortened: Set[int] = frozenset(),
    ) -> None:
        """`later` are the facts about what follows the range; of the events in `keep`, those that are `shortened`
        miss lines."""
        self._facts = facts
        self._later = later
        self._index = index
        self._keep = keep
        self._whole: Set[int] = keep - shortened
        self.results: list[tuple[Event, EventWords]] = []
        """Newest first."""
        self.calls: list[tuple[Event, EventWords]] = []
        """Messages with calls, newest first."""
        self._ages: dict[int, float] = {}
        """Divisors of the value of a name, by the seq of its event."""
        self._sources: dict[int, str] = {}
        self._collect()

    def _collect(self) -> None:
        words_of = self._index.words_of
        chars = names = 0
        for event in reversed(self._facts.events):
            fact = event.fact
            if isinstance(fact, ToolReturned):
                if event.seq in self._keep:
                    continue
                if names >= MAX_NAMES_READ or len(self.results) >= MAX_EVENTS_QUOTED:
                    break
                words = words_of(event)
                names += words.names.count("\n") + 1
                chars += len(text_of(fact.content))
                self.results.append((event, words))
            elif isinstance(fact, ModelSaid) and len(self.calls) < MAX_EVENTS_QUOTED:
                self.calls.append((event, words_of(event)))
            else:
                continue
            self._ages[event.seq] = 1 + chars / _CHARS_PER_UNIT / AGE_UNITS

    @cached_property
    def _names(self) -> list[tuple[int, list[str]]]:
        """The names of each result with its seq, newest first."""
        return [(event.seq, words.split_names()) for event, words in self.results]

    @cached_property
    def _times(self) -> Counter[str]:
        """In how many results each name occurs."""
        return Counter(chain.from_iterable(names for _, names in self._names))

    @cached_property
    def shown_lines(self) -> frozenset[int]:
        """Hash values of the lines in calls that stay visible."""
        calls = (words.line_hashes() for event, words in self.calls if event.seq in self._whole)
        return frozenset(chain.from_iterable(calls))

    # ── Lines ──

    def lines(self, *, room: int) -> Iterator[tuple[_QuoteOrigin, str]]:
        """Yield the lines, the most valuable first; some of them twice. About `room` units of them are shown."""
        yield from self._written_lines()
        newest = self.results[:_MAX_RESULTS_QUOTED]
        for event, words in newest:
            for line in words.imports:
                yield self._origin(event), line
        yield from self._digests()
        yield from self._lines_of_files(room * _CHARS_PER_UNIT)
        for event, _ in newest:
            yield from self._lines_of(event)

    def _digests(self) -> Iterator[tuple[_QuoteOrigin, str]]:
        """Yield what each result of a step that goes held. Where the step stays, its placeholder says it; where it
        is about a file, its lines do."""
        for event, _ in self.results:
            action = self._facts.by_result.get(event.seq)
            if action is None or not (action.touched or action.seq in self._keep):
                line = self._index.digest_of(event)
                if len(line) >= MIN_LEDGER_LINE_CHARS:
                    yield self._origin(event), line

    def _written_lines(self) -> Iterator[tuple[_QuoteOrigin, str]]:
        """Yield the lines that occur in a call and in a result."""
        returned = set[int]().union(*(words.line_hashes() for _, words in self.results))
        for event, words in self.calls:
            if event.seq in self._whole:
                continue
            both = returned.intersection(words.line_hashes()) if words.lines else ()
            for call in self._calls_of(event) if both else ():
                origin = _QuoteOrigin(_source_of_call(call), event.handle)
                for value in string_values(call.call.arguments):
                    for line in quotable_lines(value):
                        if hash(line) in both:
                            yield origin, line

    def _lines_of_files(self, chars: int) -> Iterator[tuple[_QuoteOrigin, str]]:
        """Yield the lines of files that are worked on, the newest text of a file first; then what is left of files
        that have more than their share of `chars`."""
        results = self._facts.newest_results(keep=self._keep)
        left, seen, known = chars, set[int](), set[int]()  # hash values of lines
        rests: list[Iterator[tuple[_QuoteOrigin, str]]] = []
        for file in self._facts.files.worked_on(later=self._later.files):
            allowed = left * FILE_SHARE
            texts = [results[seq] for seq in reversed(file.texts) if seq in results]
            lines = chain.from_iterable(map(self._lines_of, texts))
            while allowed > 0 and (found := next(lines, None)) is not None:
                key = hash(found[1])
                if key in seen or key in known:
                    continue
                seen.add(key)
                size = len(OUTPUT_PREFIX) + len(found[1])
                allowed -= size
                left -= size
                yield found
            if allowed > 0:
                continue
            # What is left of a file is seldom quoted, so it is not read yet. The hash values of its lines, which
            # the index has, tell other files which lines come from here.
            rests.append(lines)
            if left > 0:
                known.update(*(self._index.words_of(text).line_hashes() for text in texts))
        for found in chain.from_iterable(rests):
            if (key := hash(found[1])) not in seen:
                seen.add(key)
                yield found

    def _lines_of(self, event: Event) -> Iterator[tuple[_QuoteOrigin, str]]:
        """Yield the lines of a result."""
        origin = self._origin(event)
        for line in first_quotable_lines(quotable_text(event)):
            yield origin, line

    # ── Names ──

    def names(self, *, limit: int, shown: Set[str]) -> list[_FoundName]:
        """Return the names of results that are not `shown`, each with the seq of its newest result.

        The most valuable come first, those of equal value in alphabetical order."""
        by_value: dict[float, list[_FoundName]] = {}
        self._rate_mentioned(by_value, shown)
        self._rate_unmentioned(by_value, limit * _SPARE_NAMES, shown)
        # There are few values, and about half of the names are returned: only these are sorted.
        best: list[_FoundName] = []
        for value in sorted(by_value, reverse=True):
            best += sorted(by_value[value])
            if len(best) >= limit:
                break
        return best[:limit]

    @cached_property
    def _called(self) -> list[tuple[int, list[str]]]:
        """The names of each message with calls with its seq, newest first."""
        return [(event.seq, words.split_names()) for event, words in self.calls]

    @cached_property
    def _mentions(self) -> Counter[str]:
        """How many messages with calls contain each name that a result contains too."""
        mentions = Counter(chain.from_iterable(names for _, names in self._called))
        return Counter({name: mentions[name] for name in mentions.keys() & self._times.keys()})

    def _rate_mentioned(self, by_value: dict[float, list[_FoundName]], shown: Set[str]) -> None:
        """Add the names that calls contain."""
        wanted = {name for name in self._mentions if name not in shown}
        returned, used = _newest_seqs(self._names, wanted), _newest_seqs(self._called, wanted)
        for name in wanted:
            value = _value(self._times[name], self._mentions[name], name)
            value /= self._ages[max(returned[name], used[name])]
            by_value.setdefault(value, []).append((name, returned[name]))

    def _rate_unmentioned(self, by_value: dict[float, list[_FoundName]], limit: int, shown: Set[str]) -> None:
        """Add the newest of the other names, `limit` of them or a few more."""
        newest = self._newest_unmentioned(limit, shown)
        names = [name for _, fresh in newest for name in fresh]
        families = iter(_families(names))
        counted: dict[str, int] = {}
        times = self._times
        for seq, fresh in newest:
            # Only the number of results and the form of a name count here, so there are few values for each age.
            age = self._ages[seq]
            plain, joined = (
                [by_value.setdefault(value / age, []) for value in values] for values in _UNMENTIONED_VALUES
            )
            for name, family in zip(fresh, families, strict=False):
                if "0" in family:
                    counted[family] = known = counted.get(family, 0) + 1
                    if known > _MAX_FAMILY:
                        continue
                found = times[name]
                groups = joined if "_" in name or "." in name or "/" in name else plain
                groups[found if found < _MAX_RESULTS_COUNTED else _MAX_RESULTS_COUNTED].append((name, seq))

    def _newest_unmentioned(self, limit: int, shown: Set[str]) -> list[tuple[int, list[str]]]:
        """Return the names that no call contains and that are not `shown`, each at the newest result that has it,
        until there are `limit` of them."""
        newest: list[tuple[int, list[str]]] = []
        done = {*shown, *self._mentions}
        found = 0
        for seq, names in self._names:
            fresh = list(filterfalse(done.__contains__, names))
            done.update(fresh)
            newest.append((seq, fresh))
            found += len(fresh)
            if found >= limit:
                break
        return newest

    # ── Origins ──

    def _origin(self, event: Event) -> _QuoteOrigin:
        return _QuoteOrigin(self.source(event.seq), event.handle)

    def source(self, seq: int) -> str:
        """Return the file or call that a result comes from."""
        if seq not in self._sources:
            action = self._facts.by_result.get(seq)
            self._sources[seq] = _source_of_call(action.facts) if action else "a tool"
        return self._sources[seq]

    def _calls_of(self, event: Event) -> Sequence[ToolCallFacts]:
        facts = self._index.of(event)
        return facts.calls if isinstance(facts, ModelFacts) else ()


def _newest_seqs(names: Sequence[tuple[int, Sequence[str]]], wanted: set[str]) -> dict[str, int]:
    """Return each wanted name with the seq of the newest event that has it; the events are newest first."""
    newest: dict[str, int] = {}
    for seq, some in reversed(names):
        newest.update(dict.fromkeys(wanted.intersection(some), seq))
    return newest


def _value(results: int, mentions: int, name: str) -> float:
    """Return how likely a name is to be needed again, apart from its age."""
    value = _RESULT_VALUES[min(results, _MAX_RESULTS_COUNTED)] + 1.5 * log(1 + mentions)
    return value * _JOINED_FACTOR if _is_joined(name) else value


def _is_joined(name: str) -> bool:
    return "_" in name or "." in name or "/" in name


def _families(names: Sequence[str]) -> list[str]:
    """Return the names with one 0 in place of each number."""
    text = "\n".join(names).translate(_TO_ZERO)
    while "00" in text:
        text = text.replace("00", "0")
    return text.split("\n") if names else []


def _source_of_call(call: ToolCallFacts) -> str:
    """Return the file that a call is about, or the call."""
    only_files = call.command is None or not call.command.runs_program
    if call.touched and only_files:
        return inline("/".join(call.touched[0][0].split("/")[-2:]), _TITLE_CHARS)
    return call.title(_TITLE_CHARS)


# ── The text of the block ────────────────────────────────────────────────────────────────────────────────


class _SourceExcerpt:
    """Lines and names that come from one file or call."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.handles: list[str] = []
        self.lines: list[str] = []
        self.names: list[str] = []

    def growth(self, place: str) -> str:
        """Return the title, or what it has more with the handle of one more event."""
        if not self.handles:
            return f"{ITEM_PREFIX}{self.source}, {place}:\n"
        return "" if place in self.handles or len(self.handles) >= _MAX_HANDLES else f", {place}"

    def note_place(self, place: str) -> None:
        if place not in self.handles and len(self.handles) < _MAX_HANDLES:
            self.handles.append(place)

    def text(self) -> str:
        title = ", ".join((self.source, *self.handles))
        names = f"{ITEM_PREFIX}{title}: {', '.join(self.names)}".rstrip()
        return "\n".join([names, *(OUTPUT_PREFIX + line for line in self.lines)])


class _Block:
    """The block while lines and names are being added."""

    def __init__(
        self,
        signs: ReuseSigns,
        counter: TokenCounter,
        *,
        text: str,
        lines_room: int,
    ) -> None:
        """What is in `text` is not quoted."""
        self._signs = signs
        self._counter = counter
        self._text = text
        self._words = frozenset(text.split())
        self._excerpts: dict[str, _SourceExcerpt] = {}
        self._waiting: Iterator[tuple[_QuoteOrigin, str]] = signs.lines(room=lines_room)
        """Lines that are not added yet, the most valuable first."""
        self._seen: set[str] = set()

    def text(self) -> str:
        texts = (excerpt.text() for excerpt in self._excerpts.values())
        return "\n".join((EXCERPTS_HEADING, *texts)) if self._excerpts else ""

    def lines(self) -> str:
        """Return the quoted lines."""
        return "\n".join(line for excerpt in self._excerpts.values() for line in excerpt.lines)

    def _is_shown(self, line: str) -> bool:
        """Return whether a line is shown already."""
        if hash(line) in self._signs.shown_lines:
            return True
        # A text that contains the line has each word inside of it. Looking up words takes a fraction of the search.
        return self._words.issuperset(line.split()[1:-1]) and line in self._text

    def add_lines(self, *, room: int) -> int:
        """Add lines that fit and were not added before, and return their units."""
        left, missed = room, list[tuple[_QuoteOrigin, str]]()
        for origin, line in self._waiting:
            if line in self._seen or len(line) > MAX_QUOTED_LINE_CHARS:
                continue
            self._seen.add(line)
            if self._is_shown(line):
                continue
            quoted = quote_line(line)
            excerpt = self._excerpts.get(origin.source) or _SourceExcerpt(origin.source)
            cost = self._counter.count(f"{excerpt.growth(origin.handle)}{OUTPUT_PREFIX}{quoted}\n")
            if cost > left:
                missed.append((origin, line))
                if len(missed) > _MAX_MISSES:
                    break
                continue
            left -= cost
            self._excerpts[origin.source] = excerpt
            excerpt.note_place(origin.handle)
            excerpt.lines.append(quoted)
        self._seen.difference_update(line for _, line in missed)
        self._waiting = chain(missed, self._waiting)
        return room - left

    def add_names(self, candidates: Sequence[_FoundName], *, room: int) -> None:
        """Add the names that fit, several of one source under its title."""
        for_names = max(0, int(room * (1 - _TITLES_SHARE)) - _OTHERS_UNITS)
        listed = ", ".join([name for name, _ in candidates[: for_names // _MIN_UNITS_PER_NAME + 1]])
        end = self._counter.head(listed, for_names)
        fitting = candidates[: listed.count(", ", 0, end) + (end == len(listed) > 0)]
        # Where all names fit, each stands under its title as long as there is room for titles.
        all_fit = len(fitting) == len(candidates)
        left = room - (self._counter.count(listed) if all_fit else for_names) - _OTHERS_UNITS
        by_source: dict[str, list[_FoundName]] = {}
        for found in fitting:
            by_source.setdefault(self._signs.source(found[1]), []).append(found)
        others: list[str] = []
        for source, together in sorted(by_source.items(), key=lambda one: -len(one[1])):
            names = [name for name, _ in together]
            excerpt = self._excerpts.get(source) or _SourceExcerpt(source)
            if not excerpt.handles:
                place = handle(max(seq for _, seq in together))
                has_title = all_fit or len(names) >= _MIN_NAMES_TOGETHER
                cost = self._counter.count(excerpt.growth(place)) + 1 if has_title else 0
                if not has_title or cost > left:
                    others += names
                    continue
                left -= cost
                excerpt.note_place(place)
                self._excerpts[source] = excerpt
            excerpt.names.extend(names)
        if others:
            self._excerpts.setdefault(_OTHER_NAMES, _SourceExcerpt(_OTHER_NAMES)).names.extend(others)


def write_excerpts(
    signs: ReuseSigns,
    *,
    text: str,
    elsewhere: Set[str],
    room: int,
    counter: TokenCounter,
) -> str:
    """Return the block of lines and names in about `room` units of `counter`.

    What is in `text`, the ledger above the block, or elsewhere is not repeated."""
    left = room - counter.count(EXCERPTS_HEADING) - 1
    if left <= 0:
        return ""
    for_lines = int(left * LINES_SHARE)
    block = _Block(signs, counter, text=text, lines_room=for_lines)
    left -= block.add_lines(room=for_lines)
    shown = elsewhere | name_candidates(f"{text}\n{block.lines()}")
    names = signs.names(limit=left // _MIN_UNITS_PER_NAME + 1, shown=shown)
    # Where there are few names, more lines take their room.
    for_names = _units_with_titles(names, counter)
    if for_names < left:
        left -= block.add_lines(room=left - for_names)
        quoted = name_candidates(block.lines())
        names = [found for found in names if found[0] not in quoted]
    block.add_names(names, room=left)
    return block.text()


def _units_with_titles(names: Sequence[_FoundName], counter: TokenCounter) -> int:
    """Return the units of the names, with a title for each source."""
    listed = counter.count(", ".join([name for name, _ in names]))
    return int(listed / (1 - _TITLES_SHARE)) + _OTHERS_UNITS + _TITLE_UNITS * len({seq for _, seq in names})
