"""Steps: the units that the view consists of.

A step is one utterance with *all* of its results, so no reduction can split a call from its answer. Each message of
a step is a `ShownMessage`: the fact of the log, and overlays that replace some of its parts.

Every object here changes only through its own methods. `ShownMessage` and `Step` also own the caches of what is
derived from their texts (token counts, names, rendered messages): each is computed on the first call of its
method and dropped by the method that changes the text. Policies only call these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, Literal, TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import replace

from foveal.core.log.events import (
    Call,
    Clipped,
    Compacted,
    Content,
    Dropped,
    ForeignSummary,
    Instructed,
    Mark,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    calls_of,
    handle,
    parts,
    text_of,
)
from foveal.core.log.ranges import Ranges, subtract_ranges
from foveal.core.tokens.message_tokens import PER_MESSAGE, CountedFact, MessageTokens
from foveal.core.view.text_facts import (
    count_names,
    distinct_names,
    reports_failure,
    string_values,
)
from foveal.core.wire import Wire
from foveal.core.wire.bound_thinking import has_thinking, without_thinking
from foveal.core.wire.tool_schemas import tool_references

NO_RESULT: Final = "[foveal: this call has no recorded result; it was interrupted]"


def synthetic_result(call: Call) -> ToolReturned:
    """Return the result that stands for a missing one: providers refuse a call without a result.

    It is always the same, so a request does not change after a reload."""
    return ToolReturned(call_id=call.id, content=NO_RESULT, name=call.name, variety=call.variety)


def synthetic_units(meter: MessageTokens) -> int:
    """Return the units of a synthetic result."""
    return PER_MESSAGE + meter.text(-1, -1, -1, NO_RESULT)


Level = Literal["full", "clipped", "masked", "summarised", "dropped"]
ProviderMessage = dict[str, Any]
"""A message of a dialect: what goes into the JSON request."""
StepKind = Literal["instructed", "user", "model", "pinned", "summary", "notice", "foreign", "passed"]
"""`foreign` is a summary that the provider made. `passed` is what it stands for: the request still has these
messages, in their places, but the provider does not read them, so they are neither counted nor reduced."""
_SAID_KINDS: Final = frozenset({"instructed", "user", "model", "foreign"})

T = TypeVar("T")
PASSED_RULE: Final = "the provider's own summary stands for it"
_LAST_LINE: Final = -2
"""The place under which the meter counts the line after a superseded message."""


class Overlay:
    """A text that is shown instead of a part of a message, and the event that says so."""

    __slots__ = ("level", "owner", "rule", "sources", "text")

    def __init__(self, text: str, level: Level, owner: int, rule: str, sources: tuple[int, ...] = ()) -> None:
        self.text: str = text
        self.level: Level = level
        self.owner: int = owner
        """The seq of the event that recorded the overlay."""
        self.rule: str = rule
        self.sources: tuple[int, ...] = sources
        """The events that the text refers to; it is valid while they are shown as they were then."""


class ShownMessage(Struct, eq=False, gc=False):
    """A message of the log as it is shown: the fact, and overlays on its parts (-1 for all of it)."""

    # `gc=False`: nothing here refers to a step or a view, and a collection need not look at every message.
    seq: int
    fact: CountedFact
    overlays: dict[int, Overlay] | None = None
    marked_by: int = -1
    """The event that gave it its newest cache marks; -1 when none did."""
    superseded_by: int = -1
    """The later message that replaces it; -1 when it still holds."""
    superseded_since: int = -1
    """The event that says so."""
    loads: tuple[str, ...] = ()
    """The tools that the model has from this result on."""
    is_load_answer: bool = False
    """Whether the result only answers the call that asked for these tools: then they replace its text."""
    again: int = -1
    """The earlier result whose text it shows; -1 when it shows its own."""
    again_since: int = -1
    """The event that says so."""
    leaves_out_thinking: bool = False
    """Whether its thinking is not shown: something before it has changed since it was said."""
    _name_counts: dict[str, int] | None = None
    _names: tuple[str, ...] | None = None
    _has_failed: bool | None = None
    _is_incompressible: bool = False
    _written: tuple[tuple[int, int], str, int] | None = None
    """The last placeholder with a key, the key, and its units."""
    _read: dict[Callable[[str], Any], Any] | None = None

    @property
    def level(self) -> Level:
        if not self.overlays:
            return "full"
        return "masked" if any(o.level == "masked" for o in self.overlays.values()) else "clipped"

    @property
    def rule(self) -> str:
        return next(iter(self.overlays.values())).rule if self.overlays else ""

    @property
    def is_masked(self) -> bool:
        """Whether a placeholder replaces the whole message."""
        whole = self.overlays.get(-1) if self.overlays else None
        return whole is not None and whole.level == "masked"

    def original_text(self, part: int) -> str | None:
        """Return the text of a part as it was said; None when the part has none."""
        content = self.fact.content
        if isinstance(content, str):
            return content
        found = content[part] if 0 <= part < len(content) else None
        return found.text if isinstance(found, Text) else None

    def clipped_text(self, fact: Clipped) -> str:
        """Return what a clip of this message shows: the kept spans of the original, and the markers."""
        text = self.original_text(fact.part)
        if text is None:
            text = text_of(self.fact.content)
        return "".join(p if isinstance(p, str) else text[p[0] : p[1]] for p in fact.pieces)

    @property
    def is_as_said(self) -> bool:
        """Whether it is shown as it was said, with nothing replaced, left out or added."""
        is_whole = not self.leaves_out_thinking and not self.loads and self.again < 0
        return is_whole and not self.overlays and self.superseded_by < 0

    def as_shown(self) -> CountedFact:
        """Return the fact with its overlays applied, and the line of a superseded one: what the wire writes."""
        if self.is_as_said:
            return self.fact
        assert not isinstance(self.fact, ForeignSummary)  # the view changes none
        content = self._content(self.overlays) if self.overlays else self.fact.content
        if self.leaves_out_thinking:
            content = without_thinking(content)
        if self.superseded_by >= 0:
            content = _with_last_line(content, superseded_line(self.superseded_by))
        if self.loads:
            content = (*(() if self.is_load_answer else parts(content)), *tool_references(self.loads))
            return replace(self.fact, content=content, dialect="anthropic")
        return replace(self.fact, content=content)

    def _content(self, overlays: dict[int, Overlay]) -> Content:
        whole = overlays.get(-1)
        if whole is not None or isinstance(self.fact.content, str):
            return whole.text if whole is not None else self.fact.content
        shown = list(self.fact.content)
        for place, overlay in overlays.items():
            part = shown[place]
            if isinstance(part, Call):
                shown[place] = replace(part, arguments=overlay.text, is_masked=True)
            else:
                shown[place] = Text(text=overlay.text)
        return tuple(shown)

    @property
    def _counted_as(self) -> int:
        """The seq under which the meter counts it: marks change its fields, and counts are cached by seq."""
        return self.marked_by if self.marked_by >= 0 else self.seq

    def units(self, meter: MessageTokens) -> int:
        """Return the units that the message takes as it is shown."""
        if self.superseded_by < 0:
            return self._text_units(meter)
        return self._text_units(meter) + self._line_units(meter)

    def _line_units(self, meter: MessageTokens) -> int:
        if self.superseded_by < 0:
            return 0
        line = superseded_line(self.superseded_by)
        return meter.text(self.superseded_since, self.seq, _LAST_LINE, f"\n{line}")

    def _text_units(self, meter: MessageTokens) -> int:
        """Return the units without those of the line that is added to a superseded message."""
        overlays = self.overlays
        if not overlays:
            return meter.message(self._counted_as, self.fact) - self._left_out_units(meter)
        whole = overlays.get(-1)
        if whole is not None:
            return (
                PER_MESSAGE
                + meter.text(whole.owner, self.seq, -1, whole.text)
                + meter.extra_units(self.fact.extra)
            )
        units = meter.message(self._counted_as, self.fact) - self._left_out_units(meter)
        for place, overlay in overlays.items():
            units += meter.text(overlay.owner, self.seq, place, overlay.text)
            units -= meter.replaceable_units(self._counted_as, place, self.fact.content)
        return units

    def whole_units(self, meter: MessageTokens) -> int:
        """Return the units of the message with nothing reduced."""
        return meter.message(self._counted_as, self.fact)

    def _left_out_units(self, meter: MessageTokens) -> int:
        return self.thinking_units(meter) if self.leaves_out_thinking else 0

    def thinking_units(self, meter: MessageTokens) -> int:
        """Return the units of the thinking in the message, shown or not."""
        return sum(
            meter.replaceable_units(self._counted_as, place, self.fact.content)
            for place, part in enumerate(parts(self.fact.content))
            if isinstance(part, Thinking)
        )

    def replaceable_units(self, meter: MessageTokens) -> int:
        """Return the units that another text would replace: all but the extra fields and an added line, which
        stay."""
        return self._text_units(meter) - meter.extra_units(self.fact.extra)

    def part_units(self, meter: MessageTokens, place: int) -> int:
        """Return the units of one part as it is shown."""
        overlay = self.overlays.get(place) if self.overlays else None
        if overlay is not None:
            return meter.text(overlay.owner, self.seq, place, overlay.text)
        return meter.replaceable_units(self._counted_as, place, self.fact.content)

    # ── Changes, made by the view ────────────────────────────────────────────────────────────────────

    def mark(self, seq: int, marks: Iterable[Mark]) -> None:
        """Replace the extra fields of the parts: cache marks that moved."""
        extras = {mark.part: mark.extra for mark in marks}
        self.marked_by = seq
        if isinstance(self.fact, ForeignSummary):
            self.fact = replace(self.fact, extra=extras.get(-1, UNSET))
            return
        content: Content = tuple(
            replace(part, extra=extras.get(place, UNSET)) if isinstance(part, Text | Call) else part
            for place, part in enumerate(parts(self.fact.content))
        )
        if isinstance(self.fact.content, str) and content == parts(self.fact.content):
            content = self.fact.content
        self.fact = replace(self.fact, content=content, extra=extras.get(-1, UNSET))

    def supersede(self, seq: int, by: int) -> None:
        """Say that a later message replaces this one, as the event `seq` says."""
        self.superseded_since, self.superseded_by = seq, by
        self._name_counts = self._names = None

    def replace_fact(self, seq: int, fact: CountedFact) -> None:
        """Show another fact since the event `seq`."""
        self.fact, self.marked_by = fact, seq

    def show_again(self, seq: int, fact: Clipped) -> None:
        """Show the text of an earlier result instead of its own, as the event `seq` says. From here on, it is
        reduced like that text."""
        assert isinstance(self.fact, ToolReturned)
        text = "".join(piece for piece in fact.pieces if isinstance(piece, str))
        content = text if isinstance(self.fact.content, str) else (_with_text(self.fact.content, text),)
        self.again, self.again_since = fact.again, seq
        self.replace_fact(seq, replace(self.fact, content=content))
        self._name_counts = self._names = self._has_failed = self._read = None

    @property
    def text_handle(self) -> str:
        """The handle that leads to the text it shows."""
        return handle(self.seq if self.again < 0 else self.again)

    def load_tools(self, names: Iterable[str], *, is_load_answer: bool) -> None:
        """Give the model tools from this result on."""
        self.loads, self.is_load_answer = tuple(names), is_load_answer

    def leave_out_thinking(self) -> None:
        """Do not show the thinking any more."""
        self.leaves_out_thinking = True

    def add_overlay(self, part: int, overlay: Overlay) -> None:
        if self.overlays is None:
            self.overlays = {}
        self.overlays[part] = overlay
        self._name_counts = self._names = None

    def remove_overlay(self, part: int) -> None:
        """Show a part again as it was said."""
        if self.overlays and self.overlays.pop(part, None):
            self._name_counts = self._names = None

    # ── Derived facts, cached ────────────────────────────────────────────────────────────────────────

    def name_counts(self) -> dict[str, int]:
        """Return the names in the message as it is shown, each with the number of its occurrences."""
        if self._name_counts is None:
            content = self.as_shown().content
            texts = [text_of(content), *(call.arguments for _, call in calls_of(content))]
            self._name_counts = count_names(texts)
        return self._name_counts

    def names(self) -> tuple[str, ...]:
        """Return the same names, each once. Without the numbers they take half the time."""
        if self._names is None:
            content = self.as_shown().content
            texts = [text_of(content), *(call.arguments for _, call in calls_of(content))]
            self._names = tuple(dict.fromkeys(chain.from_iterable(map(distinct_names, texts))))
        return self._names

    def verbatim_texts(self) -> list[str]:
        """Return the texts that are shown as they were said, and the strings of such call arguments."""
        overlays = self.overlays or {}
        if -1 in overlays:
            return []
        texts: list[str] = []
        for place, part in enumerate(parts(self.fact.content)):
            if place not in overlays and isinstance(part, Text):
                texts.append(part.text)
            elif place not in overlays and isinstance(part, Call):
                texts.extend(string_values(part.arguments))
        return texts

    def read_text(self, read: Callable[[str], T]) -> T:
        """Return what a pure function says about the text as it was said; it is asked once."""
        if self._read is None:
            self._read = {}
        if read not in self._read:
            self._read[read] = read(text_of(self.fact.content))
        found: T = self._read[read]
        return found

    def has_failed(self) -> bool:
        """Return whether this is a result that reports a failure, whatever is shown of it."""
        if self._has_failed is None:
            fact = self.fact
            self._has_failed = isinstance(fact, ToolReturned) and (
                fact.error or reports_failure(text_of(fact.content))
            )
        return self._has_failed

    def replacement(
        self,
        write: Callable[[], str],
        meter: MessageTokens,
        *,
        min_saving: int,
        key: tuple[int, int] | None = None,
    ) -> tuple[str, int] | None:
        """Return the placeholder from `write` and the units that it saves; None when it saves fewer than
        `min_saving`. One that depends only on the message as it was said and on a `key` is not written again.

        A failed attempt is final: later calls return None without calling `write`. What a placeholder must keep
        depends on the rest of the view, so without this rule an old message whose placeholder becomes a little
        shorter later would break the cached prefix for a few units, and each call would write it again.
        """
        if self._is_incompressible:
            return None
        if key is None:
            text = write()
            units = meter.counter.count(text)
        else:
            if self._written is None or self._written[0] != key:
                self._written = (key, text := write(), meter.counter.count(text))
            _, text, units = self._written
        saved = self.replaceable_units(meter) - units
        self._is_incompressible = saved < min_saving
        return None if self._is_incompressible else (text, saved)


class Slot:
    """A call of a step, and the result that answers it."""

    __slots__ = ("call", "ordinal", "place", "result", "step")

    def __init__(self, step: Step, place: int, call: Call) -> None:
        self.step: Step = step
        self.place: int = place
        """The place of the call among the parts of its utterance."""
        self.call: Call = call
        self.result: ShownMessage | None = None
        self.ordinal: int = -1
        """How many non-empty results came before this one; -1 while there is none."""

    def set_result(self, result: ShownMessage) -> None:
        """Record the result of the call."""
        self.result = result

    def set_ordinal(self, ordinal: int) -> None:
        """Set how many non-empty results came before this one."""
        self.ordinal = ordinal

    def as_shown(self) -> ToolReturned:
        """Return the result with its overlays applied, or the fixed one that stands for a missing result."""
        if self.result is not None:
            shown = self.result.as_shown()
            assert isinstance(shown, ToolReturned)
            return shown
        return synthetic_result(self.call)

    @property
    def has_whole_arguments(self) -> bool:
        """Whether the arguments are shown as the model wrote them, and others may replace them."""
        overlays = self.step.utterance.overlays
        return self.call.replaceable and not (overlays and self.place in overlays)

    def argument_units(self, meter: MessageTokens) -> int:
        """Return the units of the arguments as the model wrote them."""
        step = self.step
        return meter.replaceable_units(step.seq, self.place, step.utterance.fact.content)


class OpenCalls:
    """Finds the call that a result answers. An id can occur several times in a conversation."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[Slot]] = {}

    def __iter__(self) -> Iterator[Slot]:
        for waiting in self._by_id.values():
            yield from waiting

    def add(self, slot: Slot) -> None:
        """Add a call. A call of an earlier step than others with its id goes before these."""
        waiting = self._by_id.setdefault(slot.call.id, [])
        waiting.append(slot)
        if len(waiting) > 1 and waiting[-2].step.seq > slot.step.seq:
            waiting.sort(key=lambda one: one.step.seq)

    def take(self, call_id: str) -> Slot | None:
        """Return the call that a result with this id answers: of the newest step with an open one, the first."""
        waiting = self._by_id.get(call_id)
        if not waiting:
            return None
        newest = waiting[-1].step
        place = next(i for i, slot in enumerate(waiting) if slot.step is newest)
        slot = waiting.pop(place)
        if not waiting:
            del self._by_id[call_id]
        return slot


class Step:
    """The smallest thing that can be hidden: an utterance and everything that answers it."""

    __slots__ = (
        "covers",
        "is_held",
        "is_said",
        "kind",
        "message_count",
        "passed_slots",
        "pin_seq",
        "rendered",
        "rendered_by",
        "seq",
        "slots",
        "units",
        "utterance",
        "version",
    )

    def __init__(
        self,
        seq: int,
        kind: StepKind,
        fact: CountedFact,
        *,
        event_seq: int | None = None,
        message_count: int = 1,
        covers: Ranges = (),
    ) -> None:
        self.seq: int = seq
        """The place of the step in the order of the view."""
        self.kind: StepKind = kind
        self.is_said: bool = kind in _SAID_KINDS
        """Whether the utterance is a message of the log, not a text of Foveal. A passed step keeps what it was."""
        self.utterance: ShownMessage = ShownMessage(seq if event_seq is None else event_seq, fact)
        self.slots: list[Slot] = []
        self.passed_slots: list[Slot] = []
        """For a passed step: its calls, which no reduction may see."""
        self.pin_seq: int = -1
        """The event that pinned it; -1 when none did."""
        self.is_held: bool = False
        """Whether the reduction that is being decided leaves it as it is."""
        self.covers: Ranges = covers
        """For a summary: the ranges of seq that it stands for."""
        self.message_count: int = message_count
        """How many messages of the log this step stands for."""
        self.units: int | None = None
        """The units of the step as the view last counted them; None when it changed since."""
        self.rendered: list[ProviderMessage] | None = None
        """The messages as they were last rendered; None when the step changed since."""
        self.rendered_by: Wire | None = None
        """The dialect of these messages; None when there are none."""
        self.version: int = 0
        """How often the step has changed."""

    @property
    def is_pinned(self) -> bool:
        return self.pin_seq >= 0

    @property
    def is_protected(self) -> bool:
        """Whether a policy leaves it as it is: it is pinned, or held."""
        return self.is_held or self.pin_seq >= 0

    @property
    def is_memory(self) -> bool:
        """Whether it shows what a memory holds."""
        return isinstance(self.utterance.fact, Instructed) and self.utterance.fact.is_memory

    @property
    def is_permanent(self) -> bool:
        """Whether no range of a drop or a compaction hides it."""
        return self.is_pinned or self.kind in ("instructed", "notice", "summary", "foreign")

    @property
    def all_slots(self) -> list[Slot]:
        """The calls, also those of a passed step."""
        return [*self.slots, *self.passed_slots] if self.passed_slots else self.slots

    def is_covered_by(self, fact: ForeignSummary) -> bool:
        """Return whether the provider no longer reads the step in front of its own summary. Anthropic reads nothing
        in front of its block. OpenAI's compaction returns the user's messages beside its item, so they count."""
        kinds = ("model", "summary", "foreign", "user" if fact.dialect == "anthropic" else "")
        return self.kind in kinds and not self.is_pinned

    @property
    def has_thinking(self) -> bool:
        """Whether thinking of the model is shown."""
        return not self.utterance.leaves_out_thinking and self.has_said_thinking

    @property
    def has_said_thinking(self) -> bool:
        """Whether the model has said it with thinking, shown or not."""
        return has_thinking(self.utterance.fact.content)

    @property
    def has_open_call(self) -> bool:
        """Whether a call still waits for its result."""
        return None in [slot.result for slot in self.slots]  # for every step and cut: a generator is slower

    def shown_messages(self) -> Iterator[ShownMessage]:
        """Yield the messages of this step that are in the log."""
        yield self.utterance
        for slot in self.all_slots:
            if slot.result is not None:
                yield slot.result

    def facts(self) -> Iterator[CountedFact]:
        """Yield the step as facts: overlays applied, every call answered."""
        yield self.utterance.as_shown()
        for slot in self.all_slots:
            yield slot.as_shown()

    def count(self, meter: MessageTokens) -> int:
        """Return the units of the step as it is shown; 0 if the provider does not read it."""
        if self.kind == "passed":
            return 0
        units = self.utterance.units(meter)
        for slot in self.slots:
            if slot.result is not None:
                units += slot.result.units(meter)
            else:
                units += synthetic_units(meter)
        return units

    def add_call(self, place: int, call: Call) -> Slot:
        """Add a call of the utterance, which waits for its result."""
        slot = Slot(self, place, call)
        self.slots.append(slot)
        return slot

    def add_result(self, slot: Slot, result: ShownMessage) -> None:
        """Record the result of one of the calls."""
        slot.set_result(result)
        self.message_count += 1

    def pass_by(self) -> None:
        """Note that the provider no longer reads the step, because a summary of its own stands for it."""
        self.kind = "passed"
        self.passed_slots, self.slots = [*self.passed_slots, *self.slots], []
        self.units = 0

    def replace_utterance(self, message: ShownMessage) -> None:
        self.utterance = message

    def pin(self, seq: int) -> None:
        """Protect the step from every reduction, as the event `seq` says."""
        self.pin_seq = seq

    def hold(self) -> None:
        """Protect the step from the reduction that is being decided."""
        self.is_held = True

    def let_go(self) -> None:
        """End what `hold` began."""
        self.is_held = False

    def release(self, ranges: Ranges) -> bool:
        """Take ranges out of what a summary stands for. Return whether it moved back to the end of the rest."""
        self.covers = subtract_ranges(self.covers, ranges)
        if not self.covers or self.covers[-1][1] >= self.seq:
            return False
        self.seq = self.covers[-1][1]
        return True

    def measure(self, meter: MessageTokens) -> int:
        """Count the step and remember its units."""
        self.units = self.count(meter)
        return self.units

    def invalidate(self) -> None:
        """Forget the units and the rendered messages: the step has changed."""
        self.units = None
        self.rendered = self.rendered_by = None
        self.version += 1

    def retire(self) -> None:
        """Set the units to 0, because the step has left the view."""
        self.units = 0
        self.rendered = self.rendered_by = None

    # ── Derived facts, cached ────────────────────────────────────────────────────────────────────────

    def render(self, wire: Wire) -> list[ProviderMessage]:
        """Return the step as messages of a dialect. The caller must not change them."""
        if self.rendered is None or self.rendered_by is not wire:
            if self.all_slots:
                self.rendered = list(chain.from_iterable(map(wire.write, self.facts())))
            else:
                self.rendered = wire.write(self.utterance.as_shown())
            self.rendered_by = wire
        return self.rendered


def shown_summary(fact: Compacted) -> UserSaid | ForeignSummary:
    """Return what a request shows of a compaction: the provider's own summary if it made one."""
    if fact.native is UNSET:
        return UserSaid(content=fact.summary)
    return ForeignSummary(native=fact.native, text=fact.summary, dialect=fact.dialect)


def foreign_summary_seq(steps: Sequence[Step]) -> int:
    """Return the newest summary that the provider made; -1 if there is none."""
    return next((step.seq for step in reversed(steps) if step.kind == "foreign"), -1)


def superseded_line(by: int) -> str:
    """Return the last line of a message that no longer holds, because of the later message `by`."""
    return f"[foveal: replaced by {handle(by)}]"


def _with_text(content: Content, text: str) -> Text:
    """Return a text part with the extra fields that the content has, such as cache marks."""
    extras = (part.extra for part in parts(content) if isinstance(part, Text) and part.extra is not UNSET)
    return Text(text=text, extra=next(extras, UNSET))


def _with_last_line(content: Content, line: str) -> Content:
    if isinstance(content, str):
        return f"{content}\n{line}" if content else line
    return (*content, Text(text=line))


# ── Ranges that reductions hide ────────────────────────────────────────────────────────────────────────


class CoveredRange:
    """Ranges of seq that a drop or a compaction has hidden."""

    __slots__ = ("level", "owner", "ranges", "rule")

    def __init__(self, level: Level, owner: int, ranges: Ranges, rule: str) -> None:
        self.level: Level = level
        self.owner: int = owner
        """The seq of the event that hid them."""
        self.ranges: Ranges = ranges
        self.rule: str = rule


def hidden_ranges(fact: Dropped | Compacted) -> Ranges:
    """Return the ranges of seq that a reduction takes out of the view."""
    if isinstance(fact, Dropped):
        return fact.ranges
    return subtract_ranges(((fact.first, fact.last),), tuple((seq, seq) for seq in fact.keep))
