"""Was this text in the request of call N, and if not, since when and by which rule?

A recording is replayed under a policy up to that call. A log of our own has its reductions in it: without a policy
it is asked as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from foveal.core.engine.engine import Engine
from foveal.core.engine.report import EventStatus, event_status
from foveal.core.engine.settings import engine_settings
from foveal.core.log.events import (
    REDUCTIONS,
    Event,
    Instructed,
    ModelSaid,
    Opened,
    ToolReturned,
    UserSaid,
    kind,
)
from foveal.core.policies import Policy
from foveal.core.tokens.counter import counter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import advance, effective, fold
from foveal.core.view.view import View
from foveal.errors import FovealError
from foveal.replay.play import Player, ReplaySetting, ScoringTable, told
from foveal.replay.recall_score import words
from foveal.replay.recorded_calls import conversation
from foveal.transcripts import Transcript


class TextOccurrence(msgspec.Struct, frozen=True, kw_only=True):
    """A message that has the text, and how the request of the call in question shows it."""

    handle: str
    kind: str
    call: int
    """The first call that could have shown it."""
    level: str
    rule: str
    by: str
    """The event that hid it, with its reason."""


class WhyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    call: int
    calls: int
    shown: bool
    """The text stands in the request."""
    since: int | None = None
    """The first call from which on it did not, if an earlier request had it."""
    fitted: bool = True
    """False when nothing made the request fit."""
    places: tuple[TextOccurrence, ...] = ()
    """The messages before the call that have it, oldest first."""
    later: int | None = None
    """For a text that had not been said by then: the call whose answer, or what followed it, says it."""


class _Look(NamedTuple):
    """What one call sent, and the log behind it."""

    texts: Sequence[str] | None
    log: Sequence[Event]


def why(
    recording: Transcript, *, call: int, text: str, policy: Policy | None, setting: ReplaySetting
) -> WhyAnswer:
    """Raises `FovealError` for a call that there is not, or an empty text."""
    calls = sum(isinstance(event.fact, ModelSaid) for event in effective(list(recording.events())))
    if not 1 <= call <= calls:
        raise FovealError(f"{recording.id} has calls 1 to {calls:,}; there is no call {call}")
    if not text:
        raise FovealError("an empty text is in every request; say which one you are looking for")
    if policy is None:
        asked: _Replayed | _Recorded = _Recorded(recording, setting)
    else:
        asked = _Replayed(recording, policy, setting)
    since, before = None, False
    for number, look in enumerate(asked.looks(call), 1):
        shown = look.texts is not None and any(text in one for one in look.texts)
        since = None if shown else number if before else since
        before = shown
    places = tuple(_places(asked, look, text))
    return WhyAnswer(
        call=call,
        calls=calls,
        shown=shown,
        since=since,
        fitted=look.texts is not None,
        places=places,
        later=None if places else _later(recording, text),
    )


class _Replayed:
    """The requests that a policy would have made."""

    def __init__(self, recording: Transcript, policy: Policy, setting: ReplaySetting) -> None:
        self._table = ScoringTable(conversation(recording), (), setting)
        self._player = Player(self._table, policy, label=policy.name)

    def looks(self, most: int) -> Iterator[_Look]:
        for number, call in enumerate(self._table.conversation.calls[:most]):
            request = self._player.request(number, call)
            texts = None if request is None else [piece.text for piece in request.pieces]
            yield _Look(texts, self._player.context.log)

    def line(self, event: Event) -> EventStatus:
        return self._player.context.why(event.seq)


class _Recorded:
    """The requests that were made, by what the log has recorded."""

    def __init__(self, recording: Transcript, setting: ReplaySetting) -> None:
        self._events = list(recording.events())
        self._setting = setting
        self._engine: Engine | None = None

    def looks(self, most: int) -> Iterator[_Look]:
        counting = {event.seq for event in effective(self._events)}
        log: list[Event] = []
        view = fold(log, MessageTokens(counter("estimate")))
        for event in self._events:
            if isinstance(event.fact, ModelSaid) and event.seq in counting and most:
                most -= 1
                if not most:
                    self._engine = Engine(*engine_settings(_model(log, self._setting)), log=log)
                yield _Look(list(_visible(view)), tuple(log))
            log.append(event)
            view = advance(view, event, log)

    def line(self, event: Event) -> EventStatus:
        assert self._engine is not None
        counts = any(event is other for other in effective(self._engine.log))
        return event_status(self._engine, event, counts=counts)


def _model(log: Iterable[Event], setting: ReplaySetting) -> str:
    models = [event.fact.model for event in log if isinstance(event.fact, Opened)]
    return models[-1] if models and models[-1] else setting.model


def _visible(view: View) -> Iterator[str]:
    yield from (words(shown.fact) for shown in view.asides.values())
    yield from (words(fact) for step in view.steps for fact in step.facts())


def reduced(recording: Transcript) -> bool:
    """The recording has reductions of our own in it."""
    return recording.source in ("foveal", "store") and any(
        isinstance(fact, REDUCTIONS) for fact, _ in recording.facts
    )


def _places(asked: _Replayed | _Recorded, look: _Look, text: str) -> Iterator[TextOccurrence]:
    call = 1
    for event in look.log:
        fact = event.fact
        if isinstance(fact, UserSaid | ModelSaid | ToolReturned | Instructed) and text in words(fact):
            line = asked.line(event)
            by = next((f"{one.handle} {told(one)}" for one in look.log if one.handle == line.by), "")
            yield TextOccurrence(
                handle=event.handle,
                kind=kind(fact),
                call=call + isinstance(fact, ModelSaid),
                level=line.level,
                rule=line.rule,
                by=by,
            )
        call += isinstance(fact, ModelSaid)


def _later(recording: Transcript, text: str) -> int | None:
    call = 0
    for event in effective(list(recording.events())):
        call += isinstance(event.fact, ModelSaid)
        if isinstance(event.fact, UserSaid | ModelSaid | ToolReturned | Instructed) and text in words(
            event.fact
        ):
            return max(1, call)
    return None


def answer_text(given: WhyAnswer) -> str:
    """The answer in words."""
    return "\n".join([_verdict(given), *map(_told, given.places[-5:])])


def _verdict(given: WhyAnswer) -> str:
    if given.shown:
        return f"yes: the text stands in the request of call {given.call} of {given.calls}"
    if not given.places:
        if given.later is None:
            return "no: the text stands nowhere in this conversation; it must be given exactly as it was said"
        return (
            f"no: the text had not been said before call {given.call}; it first comes with call {given.later}"
        )
    if not given.fitted:
        return f"no: nothing made the request of call {given.call} fit, so it could not be sent"
    since = f"since call {given.since}" if given.since is not None else "and in no request before"
    newest = given.places[-1]
    rule = f", {newest.level} by {newest.by or 'nobody'}, rule {newest.rule or '–'}"
    return f"no: the text does not stand in the request of call {given.call}, {since}{rule}"


def _told(place: TextOccurrence) -> str:
    how = f"{place.level} by {place.by} (rule {place.rule})" if place.by else place.level
    return f"  {place.handle} {place.kind}, from call {place.call} on: now {how}"
