"""Continuing a session in a new one: what the new session takes over.

1. Pinned rules are pinned again. All else is one user message, the record (`core.compaction.carried_record`), never
   system text: it quotes what tools returned.
2. `carry` chooses what the record has: `"record"` (rules, first request, summaries in view, newest messages),
   `"summary"` (rules and summaries, or the ledger if there are none), `"rules"`, or the events of a list of
   handles, verbatim, after the rules.
3. The record takes at most a share of the new model's room, a larger one for many rules. Rules come first, and a
   line says what is left out of each section.
4. If the session itself began with a record, the parts of that one are carried on.
5. The log is read in parts, and only what is needed stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace

from foveal.core.compaction.carried_record import (
    RecordPart,
    RecordSection,
    fit_record,
    is_carried_record,
    read_record,
    record_units,
    session_label,
    without_summary_frame,
)
from foveal.core.compaction.kept_messages import MAX_TASK_SHARE
from foveal.core.compaction.ledger.ledger import Ledger
from foveal.core.engine.engine import Engine
from foveal.core.engine.operations import seq_of
from foveal.core.engine.settings import EngineSettings
from foveal.core.engine.user_statements import list_statements
from foveal.core.log.events import (
    AnyFact,
    Equipped,
    Event,
    Instructed,
    Noted,
    Pinned,
    Reverted,
    Rewound,
    UserSaid,
    handle,
    text_of,
)
from foveal.core.tokens.counter import Counter
from foveal.core.tokens.message_tokens import PER_MESSAGE
from foveal.core.view.fold import effective_events
from foveal.core.view.steps import Step
from foveal.core.wire.event_text import readable_text, speaker
from foveal.errors import BadSetting
from foveal.ports import Store
from foveal.sessions.event_writer import EventWriter
from foveal.sessions.log_reader import read_slices
from foveal.sessions.offload import offload

Carry: TypeAlias = Literal["record", "summary", "rules"] | Sequence[str | int]
"""What `Session.continue_from` takes over beside pinned rules."""
CARRY_CHOICES: Final = ("record", "summary", "rules")
CONTINUATION_TOPIC: Final = "continuation"
"""Topic of the note before a record, by which a record differs from a user message that imitates one."""

MIN_ROOM_SHARE: Final = 0.25
"""Share of the room from which budgets are taken at least, however much tools and instructions need: rules must not
be lost because of them."""
RECORD_SHARE: Final = 0.25
"""Share of the room that the record may take without its rules."""
MAX_RECORD_SHARE: Final = MAX_TASK_SHARE
"""Share of the room that the record may take with its rules: the record is the first user message, and no reduction
cuts that one below this share."""
RULES_ONLY_SHARE: Final = 0.5
"""Share of the room that a record of nothing but rules may take."""
MAX_RECORD_TOKENS: Final = 15_000
CHOSEN_SHARE: Final = 0.5
"""Share of the room that chosen events may take; they are refused rather than cut."""
PINS_SHARE: Final = 0.25
"""Share of the room for pinned rules; those beyond it, the oldest, are in the record."""
LEDGER_SHARE: Final = 0.25
"""Share of the record for a ledger of messages that no summary covers."""
NEWEST_STEPS: Final = 4
"""Steps that the ledger leaves to the newest messages."""
MAX_USER_TEXT_CHARS: Final = 200_000
"""Characters of a user message that are searched for rules."""
MAX_WHOLE_RULE_CHARS: Final = 800
"""A longer message is carried as a rule with only the sentences that state one."""
_OLD_RECORD_PREFIX: Final = "session "
"""Start of the source of system text with which earlier versions continued a session."""


async def carried_facts(
    store: Store,
    origin: str,
    settings: EngineSettings,
    *,
    carry: Carry = "record",
    begin: Sequence[AnyFact] = (),
) -> list[AnyFact]:
    """Return the facts that a new session with these settings takes over from session `origin`.

    `begin` are the facts before them, whose room is taken. Raises `UnknownSession`, `BadSetting` and
    `UnknownHandle`."""
    check_carry(carry)
    count = (await store.end(origin)).next_seq
    engine = await EventWriter(store, origin, settings, lambda: 0.0, max_events_in_memory=count + 1).load()
    said = await _user_events(store, origin, count)
    picked: list[Event] | None = None
    if not isinstance(carry, str):
        picked = await store.pick(origin, sorted({seq_of(name, count=count) for name in carry}))
    source = _OldSession(session_label(origin), engine, said)
    return await offload(
        partial(_select_facts, source, settings, carry=carry, begin=begin, picked=picked), events=count
    )


def _select_facts(
    source: _OldSession,
    settings: EngineSettings,
    *,
    carry: Carry,
    begin: Sequence[AnyFact],
    picked: Sequence[Event] | None,
) -> list[AnyFact]:
    """Return the facts of a source that fit; `picked` are the events of a list of handles."""
    counter = settings.counter
    new = Engine(settings)
    hard = new.budget().hard
    room = max(hard - _units(begin, counter), int(hard * MIN_ROOM_SHARE))
    pins, left_pins = _pins(source.engine, int(room * PINS_SHARE), counter)
    parts = [*source.rules(left_pins, {pin.text for pin in pins})]
    most = new.calibration.units(MAX_RECORD_TOKENS)
    max_units = min(most, _record_units(room, record_units(parts, counter), carry=carry))
    chosen: list[RecordPart] = []
    if isinstance(carry, str):
        parts += source.parts(carry, max_units, counter)
    else:
        chosen = source.chosen(picked or ())
        max_units += _chosen_units(chosen, int(room * CHOSEN_SHARE), new)
    record = fit_record(parts, label=source.label, max_units=max_units, counter=counter, whole=chosen)
    if not record:
        return [*pins]
    note = Noted(text=f"The next message is the record of session {source.label}.", topic=CONTINUATION_TOPIC)
    return [*pins, note, UserSaid(content=record)]


def _record_units(room: int, rules: int, *, carry: Carry) -> int:
    """Return the units that a record with that many units of rules may take."""
    if carry == "rules":
        return int(room * RULES_ONLY_SHARE)
    return min(int(room * MAX_RECORD_SHARE), int(room * RECORD_SHARE) + rules)


def check_carry(carry: object) -> None:
    """Raise `BadSetting` unless `carry` is one of the choices or a list of handles."""
    if isinstance(carry, str):
        is_valid = carry in CARRY_CHOICES
    else:
        is_valid = (
            isinstance(carry, Sequence)
            and bool(carry)
            and all(isinstance(name, str | int) and not isinstance(name, bool) for name in carry)
        )
    if not is_valid:
        raise BadSetting(
            "carry", carry, '"record", "summary", "rules", or a list of handles such as ["e3", "e9"]'
        )


# ── Reading the origin ───────────────────────────────────────────────────────────────────────────────────


async def _user_events(store: Store, origin: str, count: int) -> list[Event]:
    """Return the effective user messages, the notes before records, and records of earlier versions."""
    kept: list[Event] = []
    async for events in read_slices(store, origin, end=count):
        for event in events:
            fact = event.fact
            if isinstance(fact, UserSaid):
                text = readable_text(fact)[:MAX_USER_TEXT_CHARS]
                kept.append(Event(event.seq, replace(fact, content=text), event.at))
            elif isinstance(fact, Rewound | Reverted) or _starts_record(fact) or _is_old_record(fact):
                kept.append(event)
    return effective_events(kept)


def _starts_record(fact: AnyFact) -> bool:
    return isinstance(fact, Noted) and fact.topic == CONTINUATION_TOPIC


def _is_old_record(fact: AnyFact) -> bool:
    return isinstance(fact, Instructed) and fact.source.startswith(_OLD_RECORD_PREFIX)


def _pins(engine: Engine, room: int, counter: Counter) -> tuple[list[Pinned], list[Event]]:
    """Return the pinned rules to pin again, the newest that fit, and the events of the others."""
    shown = {step.seq for step in engine.view.permanent_steps if step.kind == "pinned"}
    shown -= engine.view.superseded.keys()  # what no longer holds is no rule of another session
    events = [e for e in engine.log if e.seq in shown and isinstance(e.fact, Pinned) and e.fact.text]
    kept: list[Pinned] = []
    left: list[Event] = []
    for event in reversed(events):
        assert isinstance(event.fact, Pinned)
        room -= counter.count(event.fact.text) + 8
        if room < 0:
            left.append(event)
        else:
            kept.append(Pinned(text=event.fact.text))
    return kept[::-1], left[::-1]


def _units(facts: Sequence[AnyFact], counter: Counter) -> int:
    """Return about how much facts take in a request."""
    texts = (
        bytes(fact.tools).decode() if isinstance(fact, Equipped) else readable_text(fact)
        for fact in facts
        if not isinstance(fact, Noted)
    )
    return sum(counter.count(text) + PER_MESSAGE for text in texts)


# ── Parts of the record ──────────────────────────────────────────────────────────────────────────────────


class _OldSession:
    """The session that is continued."""

    def __init__(self, label: str, engine: Engine, said: Sequence[Event]) -> None:
        self.label = label
        self.engine = engine
        records = {event.seq + 1 for event in said if _starts_record(event.fact)}
        texts = {e.seq: text_of(e.fact.content) for e in said if isinstance(e.fact, UserSaid | Instructed)}
        self._old_records = {e.seq: texts[e.seq] for e in said if _is_old_record(e.fact)}
        self._records = {
            seq: text for seq, text in texts.items() if seq in records and is_carried_record(text)
        }
        own = texts.keys() - self._records.keys() - self._old_records.keys()
        self._said = {seq: text for seq, text in texts.items() if seq in own and text.strip()}
        """The user's own messages, by seq."""
        self._earlier = [part for text in self._records.values() for part in read_record(text)]
        """What the session itself took over."""
        self._first = min(self._said, default=-1)
        self._quoted: set[int] = set()
        """Messages whose whole text is among the rules or requests."""

    def rules(self, pinned: Sequence[Event], pins: set[str]) -> Iterator[RecordPart]:
        """Yield the rules, oldest first: those of earlier sessions, pinned ones without room, standing ones."""
        seen = set(pins)
        for part in self._earlier:
            if part.section == "rule" and (not part.text or part.text not in seen):
                seen.add(part.text)
                yield part
        for event in pinned:
            yield self._part("rule", event.seq, "pinned rule", readable_text(event.fact))
        holding = self._binding_statements()
        for seq, text in self._said.items():
            if handle(seq) not in holding:
                continue
            is_short = len(text) <= MAX_WHOLE_RULE_CHARS
            found = text if is_short else "\n".join(holding[handle(seq)])
            if found in seen:
                continue
            seen.add(found)
            if is_short:
                self._quoted.add(seq)
            yield self._part("rule", seq, "" if is_short else "in part", found)

    def _binding_statements(self) -> dict[str, list[str]]:
        """Return the rules and corrections that hold, by the handle of their message."""
        said = [Event(seq, UserSaid(content=text)) for seq, text in self._said.items()]
        found: dict[str, list[str]] = {}
        for one in list_statements(said, self.engine.view):
            if one.kind != "fact" and not one.replaced_by:
                found.setdefault(one.handle, []).append(one.text)
        return found

    def parts(self, carry: str, max_units: int, counter: Counter) -> Iterator[RecordPart]:
        """Yield what follows the rules, for a named choice."""
        if carry == "rules":
            return
        if carry == "record":
            yield from (part for part in self._earlier if part.section == "request")
            if self._first in self._said and self._first not in self._quoted:
                yield self._part("request", self._first, "", self._said[self._first])
                self._quoted.add(self._first)
        summaries = [*self._summaries()]
        yield from summaries
        if carry == "record":
            yield from self._ledger(int(max_units * LEDGER_SHARE), counter, skip=NEWEST_STEPS)
            yield from (part for part in self._earlier if part.section in ("message", "event"))
            yield from self._messages()
        elif not summaries:
            yield from self._ledger(max_units, counter, skip=0)

    def chosen(self, events: Sequence[Event]) -> list[RecordPart]:
        """Return chosen events verbatim; raises `BadSetting` for one without text."""
        for event in events:
            if not readable_text(event.fact):
                raise BadSetting("carry", event.handle, "handles of events with text, such as messages")
        return [
            self._part("event", event.seq, speaker(event.fact), readable_text(event.fact)) for event in events
        ]

    def _summaries(self) -> Iterator[RecordPart]:
        yield from (part for part in self._earlier if part.section == "summary")
        for seq, text in self._old_records.items():
            yield self._part("summary", seq, "taken over from an earlier session", text)
        for step in self.engine.view.summaries:
            # A cut that only shortens messages covers none: its record stands at the last of them.
            covers = step.covers or ((step.seq, step.seq),)
            first, last = min(low for low, _ in covers), max(high for _, high in covers)
            text = without_summary_frame(readable_text(step.utterance.as_shown()))
            yield self._part("summary", step.utterance.seq, f"of {handle(first)}–{handle(last)}", text)

    def _ledger(self, room: int, counter: Counter, *, skip: int) -> Iterator[RecordPart]:
        """Yield a ledger of the messages in view that no summary covers, without the newest `skip` steps, which the
        record shows. None if all of them fit as they are."""
        view = self.engine.view
        if skip and (view.units <= room / LEDGER_SHARE or len(view.steps) <= skip):
            return
        events = [e for e in self.engine.log if view.find(e.seq) and e.seq not in self._records]
        end = view.steps[-skip].seq if skip else self.engine.next_seq
        covered = [event for event in events if event.seq < end]
        after = [event for event in events if event.seq >= end]
        text = Ledger(covered, counter, keep=frozenset(self._quoted), after=after).write(room=room)
        if text:
            title = f"{covered[0].handle}–{covered[-1].handle}, written without a model"
            yield RecordPart("summary", self.label, title, without_summary_frame(text))

    def _messages(self) -> Iterator[RecordPart]:
        for step in self.engine.view.steps:
            if step.kind == "notice":
                yield RecordPart("message", self.label, "not shown there", readable_text(step.utterance.fact))
            elif step.kind in ("user", "model"):
                yield from self._step_messages(step)

    def _step_messages(self, step: Step) -> Iterator[RecordPart]:
        for shown in step.shown_messages():
            fact = shown.as_shown()
            text = readable_text(fact)
            if shown.seq not in self._records and text.strip():
                yield self._part("message", shown.seq, speaker(fact), text)

    def _part(self, section: RecordSection, seq: int, about: str, text: str) -> RecordPart:
        return RecordPart(section, self.label, f"{handle(seq)} {about}".strip(), text)


def _chosen_units(chosen: Sequence[RecordPart], most: int, engine: Engine) -> int:
    """Return the units of chosen events; raises `BadSetting` if they take more than `most`."""
    units = record_units(chosen, engine.view.meter.counter)
    if units > most:
        tokens = engine.calibration.tokens
        names = [part.title.partition(" ")[0] for part in chosen]
        allowed = f"events that take at most {tokens(most):,} tokens together; these take {tokens(units):,}"
        raise BadSetting("carry", names, f"{allowed}: name fewer, or carry a record")
    return units
