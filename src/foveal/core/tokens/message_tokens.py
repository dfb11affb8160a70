"""Units of each message in a request, counted once and cached by seq.

Units are what the counter counts (o200k tokens, or an estimate of them). `calibration` turns them into the
tokens that the provider reports.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from msgspec import UNSET, Raw, UnsetType

from foveal.core.log.events import (
    DIALOGUE_TYPES,
    AnyPart,
    Call,
    Content,
    ForeignSummary,
    Instructed,
    Media,
    ModelSaid,
    Opaque,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    parts,
    unraw,
)
from foveal.core.tokens.counter import Counter

PER_MESSAGE: Final = 4
"""Units of role and separators, which every chat template adds to a message."""
PER_CALL: Final = 6
"""Units of the frame of a call: its id, type and brackets."""
UNCOUNTED_EXTRA_BYTES: Final = 200
"""Bytes of extra fields (ids, cache marks) that no provider is known to count."""

CountedFact = Instructed | UserSaid | ModelSaid | ToolReturned | ForeignSummary
COUNTED_TYPES: Final = DIALOGUE_TYPES | {Instructed, ForeignSummary}
"""The types of `CountedFact`."""


class MessageTokens:
    """Counts facts with one counter. The cache key is the seq, so no event is counted twice."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self._facts: dict[int, int] = {}
        self._texts: dict[tuple[int, int, int], int] = {}

    def message(self, seq: int, fact: CountedFact) -> int:
        """Return the units of a message in full."""
        if seq < 0:
            # The notice of dropped messages is no event: after a revert, the same drop shows other numbers.
            return self._measure(fact)
        known = self._facts.get(seq)
        if known is None:
            known = self._facts[seq] = self._measure(fact)
        return known

    def text(self, owner: int, target: int, part: int, text: str) -> int:
        """Return the units of a text that event `owner` shows in place of a part of event `target`."""
        key = (owner, target, part)
        known = self._texts.get(key)
        if known is None:
            known = self._texts[key] = self.counter.count(text)
        return known

    def replaceable_units(self, seq: int, place: int, content: Content) -> int:
        """Return the units that an overlay on one part replaces: the arguments of a call, or the whole part."""
        key = (seq, seq, place)
        known = self._texts.get(key)
        if known is None:
            part = parts(content)[place]
            units = self.counter.count(part.arguments) if isinstance(part, Call) else self._part(part)
            known = self._texts[key] = units
        return known

    def keep_only(self, seqs: Set[int]) -> None:
        """Keep only the counts of these events."""
        self._facts = {seq: units for seq, units in self._facts.items() if seq in seqs}
        self._texts = {key: units for key, units in self._texts.items() if key[1] in seqs or key[1] < 0}

    def forget_from(self, seq: int) -> None:
        """Drop the counts of events from `seq` on, because other events will get these seqs."""
        self._facts = {key: units for key, units in self._facts.items() if key < seq}
        self._texts = {key: units for key, units in self._texts.items() if key[0] < seq}

    def _measure(self, fact: CountedFact) -> int:
        if isinstance(fact, ForeignSummary):  # what an opaque one takes is not known: as for opaque thinking
            text = unraw(fact.native).get("content")
            readable = self.counter.count(text) if isinstance(text, str) else 0
            return PER_MESSAGE + (readable or len(bytes(fact.native)) // 4)
        return PER_MESSAGE + self._content(fact.content) + self.extra_units(fact.extra)

    def extra_units(self, extra: Raw | UnsetType) -> int:
        """Return the units of the extra fields of a message or a part."""
        if extra is UNSET or len(fields := bytes(extra)) <= UNCOUNTED_EXTRA_BYTES:
            return 0
        return self.counter.count(fields.decode("utf-8", "replace"))

    def _content(self, content: Content) -> int:
        if isinstance(content, str):
            return self.counter.count(content)
        return sum(map(self._part, content))

    def _part(self, part: AnyPart) -> int:
        match part:
            case Text():
                return self.counter.count(part.text) + self.extra_units(part.extra)
            case Call():
                units = PER_CALL + self.counter.count(part.name) + self.counter.count(part.arguments)
                return units + self.extra_units(part.extra) if part.replaceable else units
            case Thinking():
                return self.counter.count(part.text) if part.text else len(bytes(part.native)) // 4
            case Media():
                return part.units
            case Opaque():
                return self.counter.count(bytes(part.native).decode("utf-8", "replace"))
