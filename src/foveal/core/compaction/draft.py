"""One writer at a desk: what it can read and write, and how a text is got out of it that can be used.

A busy writer is asked once more. An answer that can be improved is asked for again with its faults; a second answer
that is worse leaves the first in force. Names that occur nowhere are then taken out, with their lines. How often
anybody is asked, and what it took, is counted in a `Tally` that all desks share.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from math import ceil
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from foveal.core.compaction import validation
from foveal.core.compaction.health import CompactionMeasures
from foveal.core.compaction.protocol import Ask, Draft, Failure, SummaryWriter
from foveal.core.compaction.validation import DraftReading, KnownNames
from foveal.core.tokens.counter import Counter

T = TypeVar("T")
Talk: TypeAlias = Generator[Ask, Draft | Failure, T]
Make: TypeAlias = Callable[[Sequence[str]], Ask]
"""The request that tells these faults of an earlier answer."""

MOST_ASKS: Final = 40
"""In one compaction, whatever happens."""
SHRINKS: Final = 2
"""So often a request that was too large is made smaller."""
SMALLER: Final = 0.7
"""How much smaller, when nobody says what would fit."""
LEAST_OUTPUT: Final = 128
LEAST_INPUT: Final = 256
"""Tokens and units below which a writer is of no use."""
THOUGHT: Final = 4_000
"""Tokens that an answer may take beyond its text, for what the writer thinks."""
MARGIN: Final = 0.05
"""Share of the window that is left free, because counting is not exact."""
FAULTS: Final = 300
"""Units kept free for the list of faults."""


class WriterCapacity(NamedTuple):
    """What one writer can read and write."""

    most: int
    """Units of the answer that are asked for."""
    max_tokens: int
    room: int
    """Units of what is quoted."""


class DraftRules(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer is held against."""

    evidence: KnownNames
    sections: tuple[str, ...]
    most: int
    """Units that are asked for at most …"""
    hard: int
    """… and those that are taken if a second answer is no smaller."""
    counter: Counter
    ratio: float


class DraftTally:
    """What has been asked so far, and what it took."""

    def __init__(self) -> None:
        self.asked = self.input = self.cached = self.output = 0
        self.seconds = 0.0
        self.cost: float | None = 0.0
        self.form = ""
        self.checks: list[str] = []

    def say(self, writer: SummaryWriter, problem: str) -> None:
        self.checks.append(f"{writer.called}: {problem[:300]}")

    def add(self, writer: SummaryWriter, ask: Ask, answer: Draft | Failure) -> None:
        self.asked += 1
        self.seconds += answer.seconds
        if isinstance(answer, Failure):
            self.say(writer, answer.problem)
            return
        self.form = ask.form
        kinds = {"input": answer.input, "cache_read": answer.cache_read, "cache_write": answer.cache_write}
        self.input += sum(kinds.values())
        self.cached += answer.cache_read
        self.output += answer.output
        cost = writer.model.cost(**kinds, output=answer.output) if sum(kinds.values()) else None
        self.cost = None if cost is None or self.cost is None else self.cost + cost

    def measures(self) -> CompactionMeasures:
        return CompactionMeasures(
            seconds=self.seconds,
            input=self.input,
            cached=self.cached,
            output=self.output,
            cost=self.cost if self.asked else None,
            asked=self.asked,
            form=self.form,
            checks=tuple(self.checks),
        )


class DraftWriter:
    """One writer, and what has been learned of it."""

    def __init__(self, number: int, writer: SummaryWriter, rules: DraftRules, tally: DraftTally) -> None:
        self.number, self.writer, self.rules, self.tally = number, writer, rules, tally
        self.ratio = max(rules.ratio, writer.model.token_ratio)
        self.window = writer.model.window
        self._shrinks = 0
        self._asked: Ask | None = None

    @property
    def name(self) -> str:
        return self.writer.called

    def size(self, around: str) -> WriterCapacity | None:
        """What it can read and write when these words stand around it; None when that is too little."""
        model = self.writer.model
        wanted = ceil(1.5 * self.rules.most * self.ratio) + THOUGHT
        max_tokens = min(wanted, model.max_output, self.window // 3)
        free = min(model.max_input, self.window - max_tokens) - int(self.window * MARGIN)
        room = int(free / self.ratio) - self.rules.counter.count(around) - FAULTS
        if max_tokens < LEAST_OUTPUT or room < LEAST_INPUT:
            self.tally.say(self.writer, f"a window of {self.window:,} tokens is too small for a summary")
            return None
        return WriterCapacity(min(self.rules.most, int(0.8 * max_tokens / self.ratio)), max_tokens, room)

    def narrow(self, failure: Failure) -> bool:
        """Take a refusal for what it says about the window; whether a smaller request is worth sending."""
        if not failure.overflow or self._shrinks >= SHRINKS or self._asked is None:
            return False
        self._shrinks += 1
        texts = self.rules.counter.count_all([self._asked.system, self._asked.text])
        sent = ceil(sum(texts) * self.ratio) + self._asked.max_tokens
        stated = 0 < failure.limit < sent
        self.window = min(self.window, failure.limit if stated else int(sent * SMALLER))
        return True

    def ask(
        self,
        size: WriterCapacity,
        form: Literal["shared", "cold"],
        text: str,
        *,
        system: str = "",
        stage: str,
    ) -> Ask:
        return Ask(
            writer=self.number,
            form=form,
            text=text,
            system=system,
            max_tokens=size.max_tokens,
            stage=stage,
        )

    def asked(self, ask: Ask) -> Talk[Draft | Failure]:
        """One answer; a writer that was busy is asked once more."""
        for _ in range(2):
            if self.tally.asked >= MOST_ASKS:
                return Failure(problem=f"{MOST_ASKS} requests are enough")
            self._asked = ask
            answer = yield ask
            self.tally.add(self.writer, ask, answer)
            if isinstance(answer, Draft) or answer.overflow or not answer.transient:
                break
        if isinstance(answer, Draft) and answer.stop == "refused":
            self.tally.say(self.writer, "It was refused.")
            return Failure(problem="it was refused")
        return answer

    def written(self, make: Make, *, most: int, before: int) -> Talk[DraftReading | Failure | None]:
        """A text that can be used, None when two answers could not be."""
        readings: list[DraftReading] = []
        faults: Sequence[str] = ()
        for _ in range(2):
            ask = make(faults)
            answer = yield from self.asked(ask)
            if isinstance(answer, Failure):
                return _best(readings, self.rules) or answer
            reading = self._read(answer, most, before)
            faults = reading.faults
            if not faults:
                return reading
            self.tally.say(self.writer, " ".join(faults))
            readings.append(reading)
            if ask.form == "shared" and reading.form:
                break  # it does not see where the conversation ends: quoted, it will
        return _best(readings, self.rules)

    def _read(self, draft: Draft, most: int, before: int) -> DraftReading:
        return validation.read(
            draft,
            evidence=self.rules.evidence,
            sections=self.rules.sections,
            most=most,
            before=before,
            counter=self.rules.counter,
        )


def _best(readings: Sequence[DraftReading], rules: DraftRules) -> DraftReading | None:
    """The answer with the fewest unknown names, without the lines that have them."""
    usable = [reading for reading in reversed(readings) if not reading.form and reading.units <= rules.hard]
    for reading in sorted(usable, key=lambda reading: (len(reading.names), bool(reading.large))):
        text = validation.without(reading.text, reading.names)
        whole = all(validation.has_section(text, name) for name in rules.sections)
        if whole and validation.says_something(text) and not any(rules.evidence.unknown(text)):
            return msgspec.structs.replace(reading, text=text, units=rules.counter.count(text), names=())
    return None
