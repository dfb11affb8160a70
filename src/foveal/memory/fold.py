"""The fold of a memory: its log as entries, and the entries as the text that requests show.

1. Folding is pure: the same log gives the same entries. Taking one event over takes O(1), an undo folds again.
2. `version` is the newest event that changed what the entries say. How often entries were used counts from the next
   such change on, so that a use alone changes no request.
3. `memory_text` is a pure function of the entries and of the budget. If not all entries fit, rules and corrections
   come first, then what was used most and last. What is left out is counted in the last line.
4. Its lines stand in the order in which the entries came, so that a later one is behind an earlier one, and a new
   entry changes only the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, assert_never

import msgspec
from msgspec.structs import replace

from foveal.core.log.events import Event
from foveal.core.tokens.counter import Counter
from foveal.memory.facts import (
    Accepted,
    AnyMemoryFact,
    Cleared,
    Edited,
    EntryKind,
    EntryOrigin,
    FileTaken,
    Forgotten,
    Proposed,
    Recalled,
    Rejected,
    Remembered,
    Replaced,
    Undone,
    read_fact,
)

_TARGETING: Final = (Accepted, Rejected, Forgotten, Replaced, Edited)
_UNDOABLE: Final = (Remembered, *_TARGETING)


class MemoryEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One statement of a memory.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            memory = foveal.Memory("ada", store=store)
            entry = await memory.remember("Never push to main.")
            assert (entry.id, entry.kind) == ("m0", "rule")
        ```
    """

    id: str
    """Its name, such as `m12`."""
    kind: EntryKind
    """`preference`, `fact`, `rule` or `procedure`."""
    text: str
    """What it says, on one line."""
    origin: EntryOrigin
    """Where it comes from."""
    at: float | None = None
    """When it was remembered or last changed, in seconds since 1970."""
    replaced_by: str = ""
    """The id of the later entry that counts instead; "" while it counts."""
    forgotten: bool = False
    """Whether the owner forgot it, or said no to it."""
    proposed: bool = False
    """Whether it waits for the owner's yes."""
    corrects: bool = False
    """Whether it counts instead of an earlier entry."""
    uses: int = 0
    """How often it was used."""
    used: int = -1
    """The newest event that used it; -1 if none did."""

    @property
    def seq(self) -> int:
        """The number in its id."""
        return int(self.id[1:])

    @property
    def counts(self) -> bool:
        """Whether requests may show it."""
        return not (self.proposed or self.forgotten or self.replaced_by)

    @property
    def confidence(self) -> float:
        """How sure it is that the owner wants it to be kept, from 0 to 1."""
        return self.origin.confidence


class _DatedFact(NamedTuple):
    seq: int
    fact: AnyMemoryFact
    at: float | None


class MemoryState:
    """The entries of a memory after the events so far."""

    def __init__(self, letter: str = "m") -> None:
        """`letter` is the beginning of the ids."""
        self._letter = letter
        self._steps: list[_DatedFact] = []
        self._uses: dict[int, tuple[int, int]] = {}
        """Uses since the last change: how many, and the newest."""
        self.next_seq = 0
        self.version = -1
        """The newest event that changed what the entries say; -1 in an empty memory."""
        self.begin = ""
        """What tells this log from others: the seq and time of its first event, or of the last erasure."""
        self.entries: dict[int, MemoryEntry] = {}
        """All entries by their numbers, also those that do not count."""

    # ── Queries ──────────────────────────────────────────────────────────────────────────────────────

    def counting(self) -> list[MemoryEntry]:
        """Return the entries that count, oldest first."""
        return [entry for entry in self.entries.values() if entry.counts]

    def proposals(self) -> list[MemoryEntry]:
        """Return the entries that wait for a yes, oldest first."""
        return [entry for entry in self.entries.values() if entry.proposed and not entry.forgotten]

    def ever_said(self) -> set[str]:
        """Return all texts that entries have or had, and the user's words for them, without case."""
        facts = [step.fact for step in self._steps if isinstance(step.fact, Remembered | Proposed | Edited)]
        return {words.casefold() for fact in facts for words in (fact.text, fact.origin.quote)}

    def number(self, id: str) -> int | None:
        """Return the number in an id; None if no entry has it."""
        digits = id.strip().removeprefix(self._letter)
        found = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else -1
        return found if found in self.entries else None

    def name(self, seq: int) -> str:
        """Return the id of an entry."""
        return f"{self._letter}{seq}"

    def newest_change(self, target: int | None = None) -> Sequence[int]:
        """Return the facts of the newest change that can be undone, about one entry or any; none if there is none.
        What an entry replaced belongs to the change that brought the entry, and what was edited in the file at once
        is one change."""
        undone = {step.fact.target for step in self._steps if isinstance(step.fact, Undone)}
        replaced: list[tuple[int, int]] = []
        for step in reversed(self._steps):
            if step.seq in undone or not isinstance(step.fact, _UNDOABLE):
                continue
            about = step.fact.target if isinstance(step.fact, _TARGETING) else step.seq
            if target is None and isinstance(step.fact, Replaced):
                replaced.append((step.seq, step.fact.by))
            elif target is None and (together := self._taken_together(step.seq)):
                return [seq for seq in together if seq not in undone]
            elif target is None or about == target:
                return [step.seq, *(seq for seq, by in replaced if by == about)]
        return []

    def newest_change_at(self) -> float:
        """Return when the newest change was made that can be undone, in seconds since 1970; -1 if there is none."""
        newest = self.newest_change()
        return max((step.at or 0.0 for step in self._steps if step.seq in newest), default=-1.0)

    def _taken_together(self, seq: int) -> Sequence[int]:
        """Return the facts that came with a fact from one edit of the file; none if it came otherwise."""
        for step in self._steps:
            if isinstance(step.fact, FileTaken) and step.seq - step.fact.facts <= seq < step.seq:
                return range(step.seq - step.fact.facts, step.seq)
        return ()

    def undone_file_edits(self, version: int) -> list[AnyMemoryFact]:
        """Return what was taken from the file after the event `version`, and undone since."""
        undone = {step.fact.target for step in self._steps if isinstance(step.fact, Undone)}
        return [
            step.fact
            for step in self._steps
            if step.seq in undone and step.seq > version and self._taken_together(step.seq)
        ]

    def changed_entry(self, seq: int) -> int:
        """Return the number of the entry that a fact changed, or brought."""
        fact = next(step.fact for step in self._steps if step.seq == seq)
        return fact.target if isinstance(fact, _TARGETING) else seq

    def until(self, version: int) -> MemoryState:
        """Return the state after the event `version`."""
        state = MemoryState(self._letter)
        state._fold_again(step for step in self._steps if step.seq <= version)
        return state

    # ── Folding ──────────────────────────────────────────────────────────────────────────────────────

    def advance(self, event: Event) -> None:
        """Take over the next event of the log."""
        self.next_seq = event.seq + 1
        fact = read_fact(event)
        if event.seq == 0 or isinstance(fact, Cleared):
            self.begin = f"{event.seq} {event.at}"
        if fact is None:
            return
        step = _DatedFact(event.seq, fact, event.at)
        self._steps.append(step)
        if isinstance(fact, Undone):
            self._fold_again(self._steps)
            self.version = event.seq
        else:
            self._apply(step)

    def _fold_again(self, steps: Iterable[_DatedFact]) -> None:
        self._steps, self.entries, self._uses = list(steps), {}, {}
        undone: set[int] = set()
        for step in reversed(self._steps):
            if isinstance(step.fact, Undone) and step.seq not in undone:
                undone.add(step.fact.target)
        for step in self._steps:
            if step.seq not in undone:
                self._apply(step)

    def _apply(self, step: _DatedFact) -> None:
        fact = step.fact
        if isinstance(fact, Recalled):
            for target in fact.targets:
                self._uses[target] = self._uses.get(target, (0, 0))[0] + 1, step.seq
            return
        if isinstance(fact, FileTaken):
            return
        self.version = step.seq
        for target, (count, newest) in self._uses.items():
            self._change(target, uses_more=count, used=newest)
        self._uses = {}
        match fact:
            case Remembered() | Proposed():
                self.entries[step.seq] = MemoryEntry(
                    id=self.name(step.seq),
                    kind=fact.entry,
                    text=fact.text,
                    origin=fact.origin,
                    at=step.at,
                    proposed=isinstance(fact, Proposed),
                )
            case Accepted(target=target):
                self._change(target, proposed=False, at=step.at)
            case Rejected(target=target) | Forgotten(target=target):
                self._change(target, forgotten=True)
            case Replaced(target=target, by=by):
                if by in self.entries:  # else that entry was undone
                    self._change(target, replaced_by=self.name(by))
                    self._change(by, corrects=True)
            case Edited(target=target):
                self._change(target, text=fact.text, origin=fact.origin, at=step.at)
            case Cleared():
                self.entries, self._steps = {}, []  # no text of them stays
            case Undone():
                pass
            case _:
                assert_never(fact)

    def _change(self, target: int, *, uses_more: int = 0, **changes: object) -> None:
        entry = self.entries.get(target)
        if entry is not None:
            self.entries[target] = replace(entry, uses=entry.uses + uses_more, **changes)


def fold_memory(events: Iterable[Event], letter: str = "m") -> MemoryState:
    """Return the state of a memory after these events."""
    state = MemoryState(letter)
    for event in events:
        state.advance(event)
    return state


def texts_of(entries: Iterable[MemoryEntry]) -> Iterator[str]:
    """Yield the texts of entries as they are compared: without case."""
    return (entry.text.casefold() for entry in entries)


# ── The text that requests show ──────────────────────────────────────────────────────────────────────────

MAX_SKIPPED_ENTRIES: Final = 50
"""Entries in a row that do not fit after which no further one is tried."""
_HEADING: Final = (
    "# Memory of {title}\n"
    "What the user said in earlier conversations and wants to be known. A later line counts more than an earlier"
    " one; what the user says now counts more than all of them."
)


def memory_text(entries: Sequence[MemoryEntry], *, title: str, budget: int, counter: Counter) -> str:
    """Return the text of the entries that count; "" if there are none."""
    counting = [entry for entry in entries if entry.counts]
    if not counting:
        return ""
    heading = _HEADING.format(title=title)
    room = budget - counter.count(heading) - counter.count(_left_out(len(counting)))
    chosen = _choose(counting, room, counter)
    lines = [heading, *(_line(entry) for entry in counting if entry.seq in chosen)]
    if len(chosen) < len(counting):
        lines.append(_left_out(len(counting) - len(chosen)))
    return "\n".join(lines)


def _choose(entries: Sequence[MemoryEntry], room: int, counter: Counter) -> set[int]:
    """Return the numbers of the entries that fit, the most important first."""
    chosen: set[int] = set()
    skipped = 0
    for entry in sorted(entries, key=_importance, reverse=True):
        cost = counter.count(_line(entry)) + 1
        if cost <= room:
            chosen.add(entry.seq)
            room -= cost
            skipped = 0
        else:
            skipped += 1
            if skipped == MAX_SKIPPED_ENTRIES:
                break
    return chosen


def _importance(entry: MemoryEntry) -> tuple[bool, int, int]:
    return entry.kind == "rule" or entry.corrects, entry.uses, max(entry.seq, entry.used)


def _line(entry: MemoryEntry) -> str:
    return f"- [{entry.id}] {entry.text}"


def _left_out(count: int) -> str:
    return f"({count:,} more {'entry' if count == 1 else 'entries'}: recall_search finds them)"
