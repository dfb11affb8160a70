"""Steps: what the view is made of.

A step is one utterance with *all* of its results, so nothing can split a call from its answer. Each message of
a step is `Shown`: the fact of the log, and overlays that say what stands in the place of which part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from foveal.core.log.events import Call, Content, Mark, Text, ToolReturned, parts
from foveal.core.log.ranges import Ranges
from foveal.core.tokens.message_tokens import PER_MESSAGE, Message, MessageTokens

Level = Literal["full", "clipped", "masked", "summarised", "dropped"]
Kind = Literal["instructed", "user", "model", "pinned", "summary", "notice"]

NO_RESULT: Final = "[foveal: this call has no recorded result; it was interrupted]"


class Overlay:
    """What is shown instead of a part of a message, and the event that says so."""

    __slots__ = ("level", "owner", "rule", "sources", "text")

    def __init__(self, text: str, level: Level, owner: int, rule: str, sources: tuple[int, ...] = ()) -> None:
        self.text = text
        self.level: Level = level
        self.owner = owner
        self.rule = rule
        self.sources = sources
        """The events that the text refers to: it holds as long as they are shown as they were then."""


class Shown:
    """A message of the log as it is shown: the fact, and overlays on its parts (-1 for all of it)."""

    __slots__ = ("fact", "failed", "incompressible", "lines", "marked", "names", "overlays", "seq")

    def __init__(self, seq: int, fact: Message) -> None:
        self.seq = seq
        self.fact = fact
        self.overlays: dict[int, Overlay] | None = None
        self.names: dict[str, int] | None = None
        """The names in it as it is shown and how often it has them, kept by whoever asks for them; None when it
        changed since."""
        self.lines: frozenset[str] | None = None
        """Its lines that are shown as they were said, kept likewise."""
        self.failed: bool | None = None
        """Whether it tells of a failure, once somebody has looked."""
        self.marked = -1
        """The event that gave it its newest marks."""
        self.incompressible = False
        """Somebody found that a placeholder would not be smaller."""

    @property
    def level(self) -> Level:
        if not self.overlays:
            return "full"
        return "masked" if any(o.level == "masked" for o in self.overlays.values()) else "clipped"

    @property
    def rule(self) -> str:
        return next(iter(self.overlays.values())).rule if self.overlays else ""

    @property
    def masked(self) -> bool:
        """All of it is a placeholder."""
        whole = self.overlays.get(-1) if self.overlays else None
        return whole is not None and whole.level == "masked"

    def mark(self, seq: int, marks: Iterable[Mark]) -> None:
        """Take on other fields: cache marks that moved."""
        extras = {mark.part: mark.extra for mark in marks}
        content: Content = tuple(
            replace(part, extra=extras.get(place, UNSET)) if isinstance(part, Text | Call) else part
            for place, part in enumerate(parts(self.fact.content))
        )
        if isinstance(self.fact.content, str) and content == parts(self.fact.content):
            content = self.fact.content
        self.fact = replace(self.fact, content=content, extra=extras.get(-1, UNSET))
        self.marked = seq

    def overlay(self, part: int, overlay: Overlay) -> None:
        if self.overlays is None:
            self.overlays = {}
        self.overlays[part] = overlay
        self.names = self.lines = None

    def uncover(self, part: int) -> None:
        """Show a part as it was said again."""
        if self.overlays and self.overlays.pop(part, None):
            self.names = self.lines = None

    def said(self, part: int) -> str | None:
        """The words of a part as they were said; None when it has none."""
        content = self.fact.content
        if isinstance(content, str):
            return content
        found = content[part] if 0 <= part < len(content) else None
        return found.text if isinstance(found, Text) else None

    def as_shown(self) -> Message:
        """The fact with its overlays in place: what the wire writes."""
        if not self.overlays:
            return self.fact
        return replace(self.fact, content=self._content(self.overlays))

    def _content(self, overlays: dict[int, Overlay]) -> Content:
        whole = overlays.get(-1)
        if whole is not None or isinstance(self.fact.content, str):
            return whole.text if whole is not None else self.fact.content
        shown = list(self.fact.content)
        for place, overlay in overlays.items():
            part = shown[place]
            if isinstance(part, Call):
                shown[place] = replace(part, arguments=overlay.text)
            else:
                shown[place] = Text(text=overlay.text)
        return tuple(shown)

    def units(self, meter: MessageTokens) -> int:
        overlays = self.overlays
        if not overlays:
            return meter.message(self.seq, self.fact)
        whole = overlays.get(-1)
        if whole is not None:
            return (
                PER_MESSAGE
                + meter.text(whole.owner, self.seq, -1, whole.text)
                + meter.beside(self.fact.extra)
            )
        units = meter.message(self.seq, self.fact)
        for place, overlay in overlays.items():
            units += meter.text(overlay.owner, self.seq, place, overlay.text)
            units -= meter.replaceable(self.seq, place, self.fact.content)
        return units


class Slot:
    """A call's place for its answer."""

    __slots__ = ("call", "ordinal", "place", "result", "step")

    def __init__(self, step: Step, place: int, call: Call) -> None:
        self.step = step
        self.place = place
        self.call = call
        self.result: Shown | None = None
        self.ordinal = -1
        """How many non-empty results came before this one; -1 while there is none."""

    def as_shown(self) -> ToolReturned:
        if self.result is not None:
            shown = self.result.as_shown()
            assert isinstance(shown, ToolReturned)
            return shown
        return ToolReturned(
            call_id=self.call.id, content=NO_RESULT, name=self.call.name, variety=self.call.variety
        )


class WrittenCall(NamedTuple):
    """What the calls of a step say, whatever is shown of them; kept by whoever asks for it."""

    about: tuple[frozenset[str], ...]
    """For each call the things that it is about."""
    mentioned: frozenset[str]
    """All things that the step names."""
    lines: frozenset[str]
    """The lines that its calls write."""


class Step:
    """The smallest thing that can be hidden: an utterance and all that answers it."""

    __slots__ = ("covers", "kind", "messages", "native", "pin", "said", "seq", "slots", "units", "wrote")

    def __init__(self, seq: int, kind: Kind, fact: Message) -> None:
        self.seq = seq
        self.kind: Kind = kind
        self.said = Shown(seq, fact)
        self.slots: list[Slot] = []
        self.pin = -1
        """The event that pinned it; -1 when none did."""
        self.covers: Ranges = ()
        """For a summary: the ranges of seq that it stands for."""
        self.messages = 1
        """How many messages this step is in the log."""
        self.units: int | None = None
        self.wrote: WrittenCall | None = None
        self.native: list[dict[str, object]] | None = None
        """The step in the provider's language, kept by whoever renders; None when it changed since."""

    @property
    def pinned(self) -> bool:
        return self.pin >= 0

    @property
    def open(self) -> bool:
        """A call still waits for its result."""
        return any(slot.result is None for slot in self.slots)

    def shown(self) -> Iterator[Shown]:
        """The messages of this step that stand in the log."""
        yield self.said
        for slot in self.slots:
            if slot.result is not None:
                yield slot.result

    def facts(self) -> Iterator[Message]:
        """The step as facts, reductions applied, every call answered."""
        yield self.said.as_shown()
        for slot in self.slots:
            yield slot.as_shown()

    def count(self, meter: MessageTokens) -> int:
        units = self.said.units(meter)
        for slot in self.slots:
            if slot.result is not None:
                units += slot.result.units(meter)
            else:
                units += PER_MESSAGE + meter.text(-1, -1, -1, NO_RESULT)
        return units
