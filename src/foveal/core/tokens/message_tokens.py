"""How many units each fact takes in a request: counted once, remembered by its place in the log.

Units are what the counter counts (o200k tokens, or an estimate of them), before `calibration` turns them into
the tokens that this model's provider will report.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from msgspec import UNSET, Raw, UnsetType

from foveal.core.log.events import (
    AnyPart,
    Call,
    Content,
    Instructed,
    Media,
    ModelSaid,
    Opaque,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    parts,
)
from foveal.core.tokens.counter import Counter

PER_MESSAGE: Final = 4
"""Role and separators: what every chat template spends on a message."""
PER_CALL: Final = 6
"""The frame of a call: its id, its type, its brackets."""
FREE: Final = 200
"""Bytes of other fields (ids, marks for the cache) that no provider is known to count."""

Message = Instructed | UserSaid | ModelSaid | ToolReturned


class MessageTokens:
    """Counts facts with one counter; `seq` names the text, so that no text is counted twice."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self._facts: dict[int, int] = {}
        self._texts: dict[tuple[int, int, int], int] = {}

    def message(self, seq: int, fact: Message) -> int:
        """Units of a whole message as it was said."""
        known = self._facts.get(seq)
        if known is None:
            known = self._facts[seq] = self._measure(fact)
        return known

    def text(self, owner: int, target: int, part: int, text: str) -> int:
        """Units of a text that event `owner` put in the place of a part of event `target`."""
        key = (owner, target, part)
        known = self._texts.get(key)
        if known is None:
            known = self._texts[key] = self.counter.count(text)
        return known

    def replaceable(self, seq: int, place: int, content: Content) -> int:
        """Units that an overlay on one part takes away: a call keeps its name, the rest goes whole."""
        key = (seq, seq, place)
        known = self._texts.get(key)
        if known is None:
            part = parts(content)[place]
            units = self.counter.count(part.arguments) if isinstance(part, Call) else self._part(part)
            known = self._texts[key] = units
        return known

    def forget(self, wanted: Set[int]) -> None:
        """Keep only the counts of these events."""
        self._facts = {seq: units for seq, units in self._facts.items() if seq in wanted or seq < 0}
        self._texts = {key: units for key, units in self._texts.items() if key[1] in wanted or key[1] < 0}

    def forget_from(self, seq: int) -> None:
        """Forget the counts of texts that events from `seq` on had put somewhere: others will take their seqs."""
        self._texts = {key: units for key, units in self._texts.items() if key[0] < seq}

    def _measure(self, fact: Message) -> int:
        return PER_MESSAGE + self._content(fact.content) + self.beside(fact.extra)

    def beside(self, extra: Raw | UnsetType) -> int:
        """Units of the other fields of a message or a part."""
        if extra is UNSET or len(fields := bytes(extra)) <= FREE:
            return 0
        return self.counter.count(fields.decode("utf-8", "replace"))

    def _content(self, content: Content) -> int:
        if isinstance(content, str):
            return self.counter.count(content)
        return sum(map(self._part, content))

    def _part(self, part: AnyPart) -> int:
        match part:
            case Text():
                return self.counter.count(part.text) + self.beside(part.extra)
            case Call():
                units = PER_CALL + self.counter.count(part.name) + self.counter.count(part.arguments)
                return units + self.beside(part.extra) if part.replaceable else units
            case Thinking():
                return self.counter.count(part.text) if part.text else len(bytes(part.native)) // 4
            case Media():
                return part.units
            case Opaque():
                return self.counter.count(bytes(part.native).decode("utf-8", "replace"))
