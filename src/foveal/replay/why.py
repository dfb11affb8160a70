"""Whether a text was in the request of a call and, if not, why.

The recording is replayed under a policy up to that call. Without a policy, a Foveal log is examined with its own
recorded reductions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from foveal.core.engine.engine import Engine
from foveal.core.engine.event_status import EventStatus
from foveal.core.engine.report import event_status
from foveal.core.engine.settings import resolve_settings
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
from foveal.core.view.fold import advance, effective_events, fold
from foveal.core.view.view import View
from foveal.core.wire.request_text import fact_text
from foveal.errors import FovealError
from foveal.replay.play import PolicyPlayer, ReplayCase, ReplaySetting, describe_reduction
from foveal.replay.recorded_calls import recorded_conversation
from foveal.transcripts import Transcript


class TextOccurrence(msgspec.Struct, frozen=True, kw_only=True):
    """A message that contains the text, and how the request of the call shows it."""

    handle: str
    kind: str
    call: int
    """The first call whose request could contain it."""
    level: str
    rule: str
    by: str
    """The event that hid it, with its kind and reason."""


class WhyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a request contains the text, and what hid it."""

    call: int
    calls: int
    shown: bool
    """Whether the text is in the request."""
    since: int | None = None
    """The call from which on requests did not contain it, if an earlier one did."""
    fitted: bool = True
    """Whether the request could be made to fit."""
    places: tuple[TextOccurrence, ...] = ()
    """The messages before the call that contain it, oldest first."""
    later: int | None = None
    """For a text that occurs only later: the call whose answer, or what followed it, contains it."""


class _SentRequest(NamedTuple):
    """The request of a call, and the log at that time."""

    texts: Sequence[str] | None
    """None if the request could not be made to fit."""
    log: Sequence[Event]


def why(
    recording: Transcript, *, call: int | None, text: str, policy: Policy | None, setting: ReplaySetting
) -> WhyAnswer:
    """Return whether a text was in the request of a call, and why not; the call None is the last one.

    Raises `FovealError` for a call that does not exist, or an empty text.
    """
    calls = sum(isinstance(event.fact, ModelSaid) for event in effective_events(list(recording.events())))
    call = calls if call is None else call
    if not calls:
        raise FovealError(f"{recording.id} has no calls: no model has answered in it")
    if not 1 <= call <= calls:
        raise FovealError(f"{recording.id} has calls 1 to {calls:,}; there is no call {call}")
    if not text:
        raise FovealError("an empty text is in every request: give the text that you are looking for")
    if policy is None:
        source: _ReplayedRequests | _RecordedRequests = _RecordedRequests(recording, setting)
    else:
        source = _ReplayedRequests(recording, policy, setting)
    since, was_shown = None, False
    for number, request in enumerate(source.requests(call), 1):
        shown = request.texts is not None and any(text in each for each in request.texts)
        since = None if shown else number if was_shown else since
        was_shown = shown
    places = tuple(_occurrences(source, request, text))
    return WhyAnswer(
        call=call,
        calls=calls,
        shown=shown,
        since=since,
        fitted=request.texts is not None,
        places=places,
        later=None if places else _later_call(recording, text),
    )


class _ReplayedRequests:
    """The requests under a policy, by replay."""

    def __init__(self, recording: Transcript, policy: Policy, setting: ReplaySetting) -> None:
        self._case = ReplayCase(recorded_conversation(recording), (), setting)
        self._player = PolicyPlayer(self._case, policy, label=policy.name)

    def requests(self, count: int) -> Iterator[_SentRequest]:
        """Yield the requests of the first calls."""
        for number, call in enumerate(self._case.conversation.calls[:count]):
            request = self._player.request(number, call)
            texts = None if request is None else [piece.text for piece in request.pieces]
            yield _SentRequest(texts, self._player.context.log)

    def status(self, event: Event) -> EventStatus:
        """Return how the last request shows an event."""
        return self._player.context.why(event.seq)


class _RecordedRequests:
    """The requests according to the reductions in the log."""

    def __init__(self, recording: Transcript, setting: ReplaySetting) -> None:
        self._events = list(recording.events())
        self._setting = setting
        self._engine: Engine | None = None

    def requests(self, count: int) -> Iterator[_SentRequest]:
        """Yield the requests of the first calls."""
        effective = {event.seq for event in effective_events(self._events)}
        log: list[Event] = []
        view = fold(log, MessageTokens(counter("estimate")))
        for event in self._events:
            if isinstance(event.fact, ModelSaid) and event.seq in effective and count:
                count -= 1
                if not count:
                    self._engine = Engine(*resolve_settings(_model_name(log, self._setting)), log=log)
                yield _SentRequest(list(_visible_texts(view)), tuple(log))
            log.append(event)
            view = advance(view, event, log)

    def status(self, event: Event) -> EventStatus:
        """Return how the last request shows an event."""
        assert self._engine is not None
        return event_status(self._engine, event)


def _model_name(log: Iterable[Event], setting: ReplaySetting) -> str:
    models = [event.fact.model for event in log if isinstance(event.fact, Opened)]
    return models[-1] if models and models[-1] else setting.model


def _visible_texts(view: View) -> Iterator[str]:
    yield from (fact_text(shown.fact) for shown in view.asides.values())
    yield from (fact_text(fact) for step in view.steps for fact in step.facts())


def has_reductions(recording: Transcript) -> bool:
    """Return whether a recording is a Foveal log that contains reductions.

    Args:
        recording: The recording.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        assert not replay.has_reductions(recording)
        ```
    """
    return recording.source in ("foveal", "store") and any(
        isinstance(fact, REDUCTIONS) for fact, _ in recording.facts
    )


def _occurrences(
    source: _ReplayedRequests | _RecordedRequests, request: _SentRequest, text: str
) -> Iterator[TextOccurrence]:
    call = 1
    for event in request.log:
        fact = event.fact
        if isinstance(fact, UserSaid | ModelSaid | ToolReturned | Instructed) and text in fact_text(fact):
            status = source.status(event)
            by = next(
                (
                    f"{each.handle} {describe_reduction(each)}"
                    for each in request.log
                    if each.handle == status.by
                ),
                "",
            )
            yield TextOccurrence(
                handle=event.handle,
                kind=kind(fact),
                call=call + isinstance(fact, ModelSaid),
                level=status.level,
                rule=status.rule,
                by=by,
            )
        call += isinstance(fact, ModelSaid)


def _later_call(recording: Transcript, text: str) -> int | None:
    call = 0
    for event in effective_events(list(recording.events())):
        call += isinstance(event.fact, ModelSaid)
        if isinstance(event.fact, UserSaid | ModelSaid | ToolReturned | Instructed) and text in fact_text(
            event.fact
        ):
            return max(1, call)
    return None


def answer_text(given: WhyAnswer) -> str:
    """Return the answer of `foveal why` as text.

    Args:
        given: The answer.

    Examples:
        ```python
        from foveal.replay import answer_text
        from foveal.replay.why import WhyAnswer

        print(answer_text(WhyAnswer(call=3, calls=8, shown=True)))
        ```
    """
    return "\n".join([_verdict(given), *map(_occurrence_line, given.places[-5:])])


def _verdict(given: WhyAnswer) -> str:
    if given.shown:
        return f"yes: the text is in the request of call {given.call} of {given.calls}"
    if not given.places:
        if given.later is None:
            return "no: the text is nowhere in this conversation; give it exactly as it was written"
        return (
            f"no: the text does not occur before call {given.call}; it first occurs with call {given.later}"
        )
    if not given.fitted:
        return f"no: the request of call {given.call} could not be made to fit, so it was not sent"
    since = f"since call {given.since}" if given.since is not None else "and in no request before"
    newest = given.places[-1]
    rule = f", {newest.level} by {newest.by or 'nothing'}, rule {newest.rule or '–'}"
    return f"no: the text is not in the request of call {given.call}, {since}{rule}"


def _occurrence_line(place: TextOccurrence) -> str:
    state = f"{place.level} by {place.by} (rule {place.rule})" if place.by else place.level
    return f"  {place.handle} {place.kind}, from call {place.call} on: now {state}"
