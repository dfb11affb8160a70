"""Whether a text was in the request of a call and, if not, why.

1. Without a policy, a log is examined as recorded, with its own reductions or with none. Its calls are the requests
   that were sent, with the numbers that the inspector gives them, and its handles are those of the session.
2. With a policy, the recording is replayed up to that call. The answer says so first: its requests were never sent,
   and its handles are those of the replay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import msgspec

from foveal.core.engine.engine import Engine
from foveal.core.engine.event_status import EventStatus, event_status
from foveal.core.engine.settings import EngineSettings, resolve_settings, saved_settings
from foveal.core.log.events import (
    Clipped,
    Event,
    Instructed,
    ModelSaid,
    Opened,
    ToolReturned,
    UserSaid,
    handle,
    kind,
)
from foveal.core.log.logged_requests import logged_requests
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
    """A message that contains the text or shows it again, and how the request of the call shows it."""

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
    replay: str = ""
    """The policy, model and window of the replay; "" for a log that was examined as recorded."""


def why(
    recording: Transcript, *, call: int | None, text: str, policy: Policy | None, setting: ReplaySetting
) -> WhyAnswer:
    """Return whether a text was in the request of a call, and why not; the call None is the last one.

    Raises `FovealError` for a call that does not exist, or an empty text.
    """
    if policy is None:
        source: _ReplayedRequests | _RecordedRequests = _RecordedRequests(recording, setting)
    else:
        source = _ReplayedRequests(recording, policy, setting)
    calls = len(source.sent_at)
    call = calls if call is None else call
    if not calls:
        raise FovealError(f"{recording.id} has no calls: no model has answered in it")
    if not 1 <= call <= calls:
        raise FovealError(f"{recording.id} has calls 1 to {calls:,}; there is no call {call}")
    if not text:
        raise FovealError("an empty text is in every request: give the text that you are looking for")
    since, shown, ends = None, False, []
    for number, texts in enumerate(source.requests(call), 1):
        was_shown, shown = shown, texts is not None and any(text in each for each in texts)
        since = None if shown else number if was_shown else since
        ends.append(source.log[-1].seq if source.log else -1)
    places = tuple(_occurrences(source, ends, text))
    return WhyAnswer(
        call=call,
        calls=calls,
        shown=shown,
        since=since,
        fitted=texts is not None,
        places=places,
        later=None if places else _later_call(source, text),
        replay=source.about,
    )


class _ReplayedRequests:
    """The requests under a policy, by replay."""

    def __init__(self, recording: Transcript, policy: Policy, setting: ReplaySetting) -> None:
        self.events: Sequence[Event] = effective_events(list(recording.events()))
        self.sent_at = [event.seq - 1 for event in self.events if isinstance(event.fact, ModelSaid)]
        """The newest event before each call."""
        self.first = 0
        self._case = ReplayCase(recorded_conversation(recording), (), setting)
        self._player = PolicyPlayer(self._case, policy, label=policy.name)
        model = self._case.model
        self.about = f"policy {policy.name}, model {model.name}, window {model.window:,}"

    @property
    def log(self) -> Sequence[Event]:
        """The log of the replay at the last request."""
        return self._player.context.log

    def requests(self, count: int) -> Iterator[Sequence[str] | None]:
        """Yield the texts of the first requests; None for one that could not be made to fit."""
        for number, call in enumerate(self._case.conversation.calls[:count]):
            request = self._player.request(number, call)
            yield None if request is None else [piece.text for piece in request.pieces]

    def status(self, event: Event) -> EventStatus:
        """Return how the last request shows an event."""
        return self._player.context.why(event.seq)


class _RecordedRequests:
    """The requests according to the log, with its reductions."""

    def __init__(self, recording: Transcript, setting: ReplaySetting) -> None:
        self.events: Sequence[Event] = list(recording.events())
        self.sent_at = [request.at for request in logged_requests(self.events, with_imported=True)]
        """The newest event that each request could show."""
        self.log: list[Event] = []
        """The log at the last request."""
        self.first = recording.first
        """The seq in the session of the first event of a log whose beginning is missing; here it is 0."""
        self.about = ""
        self._setting = setting

    def requests(self, count: int) -> Iterator[Sequence[str]]:
        """Yield the texts of the first requests."""
        sent = Counter(self.sent_at[:count])
        view = fold(self.log, MessageTokens(counter("estimate")))
        yield from (_visible_texts(view) for _ in range(sent[-1]))
        for event in self.events[: self.sent_at[count - 1] + 1]:
            self.log.append(event)
            view = advance(view, event, self.log)
            yield from (_visible_texts(view) for _ in range(sent[event.seq]))

    def status(self, event: Event) -> EventStatus:
        """Return how the last request shows an event."""
        return event_status(self._engine, event)

    @cached_property
    def _engine(self) -> Engine:
        return Engine(resolve_settings(_model_name(self.log, self._setting)), log=self.log)


def _model_name(log: Iterable[Event], setting: ReplaySetting) -> str:
    models = [event.fact.model for event in log if isinstance(event.fact, Opened)]
    return models[-1] if models and models[-1] else setting.model


def _visible_texts(view: View) -> list[str]:
    asides = [fact_text(shown.fact) for shown in view.asides.values()]
    return asides + [fact_text(fact) for step in view.steps for fact in step.facts()]


def is_session_log(recording: Transcript) -> bool:
    """Return whether a recording is a log of Foveal.

    Such a log says itself what its requests contained.

    Args:
        recording: The recording.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        assert not replay.is_session_log(recording)
        ```
    """
    return recording.source in ("foveal", "store")


def recorded_settings(recording: Transcript) -> EngineSettings | None:
    """Return the settings that a log was last opened with, as far as it records them; None if it records none."""
    opened = [fact for fact, _ in recording.facts if isinstance(fact, Opened)]
    return resolve_settings(opened[-1].model, **saved_settings(opened[-1])) if opened else None


def _occurrences(
    source: _ReplayedRequests | _RecordedRequests, ends: Sequence[int], text: str
) -> Iterator[TextOccurrence]:
    """Yield the messages that contain a text or show it again; `ends` are the newest events of the requests."""
    reductions = {event.handle: event for event in source.log}
    found = {event.seq for event in source.log if _contains(event, text)}
    clips = (event.fact for event in source.log if isinstance(event.fact, Clipped))
    found |= {fact.target for fact in clips if fact.again in found}
    for event in source.log:
        if event.seq not in found:
            continue
        status = source.status(event)
        by = reductions.get(status.by)
        yield TextOccurrence(
            handle=handle(event.seq + source.first),
            kind=kind(event.fact),
            call=bisect_left(ends, event.seq) + 1,
            level=status.level,
            rule=status.rule,
            by="" if by is None else f"{handle(by.seq + source.first)} {describe_reduction(by)}",
        )


def _later_call(source: _ReplayedRequests | _RecordedRequests, text: str) -> int | None:
    first = next((event for event in source.events if _contains(event, text)), None)
    return None if first is None else max(1, bisect_left(source.sent_at, first.seq))


def _contains(event: Event, text: str) -> bool:
    fact = event.fact
    return isinstance(fact, UserSaid | ModelSaid | ToolReturned | Instructed) and text in fact_text(fact)


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
    lines = [_verdict(given), *map(_occurrence_line, given.places[-5:])]
    if given.replay:
        about = f"replayed with {given.replay}: not what was sent, and handles are those of the replay"
        lines.insert(0, about)
    return "\n".join(lines)


def _verdict(given: WhyAnswer) -> str:
    if given.shown:
        yes = f"yes: the text is in the request of call {given.call} of {given.calls}"
        is_repeated = given.places and all(place.level != "full" for place in given.places)
        return f"{yes}, in what stands there for the messages that have it:" if is_repeated else yes
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
