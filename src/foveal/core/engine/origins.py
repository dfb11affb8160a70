"""Origins: which given message each message of a request stands for.

1. A message that shows one given message as it was said is `whole`: an adapter returns the framework's own object.
2. A message that Foveal wrote (a summary, a notice, a pinned rule) has no inputs, but the event behind it.
3. A message that a dialect joined from several has the inputs of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from foveal.core.log.events import handle
from foveal.core.view.steps import ProviderMessage, ShownMessage, Step
from foveal.core.view.view import View
from foveal.core.wire import Wire, is_same_message


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one message of a request comes from.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        _, (origin,) = ctx.fit_with_origins([{"role": "user", "content": "Why is CI red?"}])
        assert origin.whole
        ```
    """

    inputs: tuple[int, ...] = ()
    """Indexes of the given messages that it shows, whole or reduced; none if Foveal wrote it."""
    whole: bool = False
    """Whether it shows exactly one given message, unchanged."""
    events: tuple[str, ...] = ()
    """Handles of the events that wrote or reduced it."""

    @property
    def input(self) -> int | None:
        """Index of the given message that can be sent in its own form; None if there is no such message."""
        return self.inputs[0] if self.whole else None


class GivenMessages(Protocol):
    """The given messages by index."""

    def __getitem__(self, index: int, /) -> Any: ...


class InputRange(NamedTuple):
    """The given messages that were read together with an event."""

    first: int
    end: int
    """Indexes; the end is excluded."""
    facts: int
    """Message facts that were read from them."""


MIN_KEPT_STEPS: Final = 100
"""Steps beyond twice those in view whose origins are kept."""
_MODEL_ROLES: Final = frozenset({"assistant", "model"})
FindInputs: TypeAlias = Callable[[int], InputRange | None]
"""Returns the given messages behind an event; None if it is no event of a given message."""


class _Written(NamedTuple):
    """One message that a step was written as, before the dialect joined it with its neighbours."""

    message: ProviderMessage
    shown: ShownMessage | None
    """What it shows; None for the stand-in of a missing result."""
    inputs: tuple[int, ...]
    facts: int
    """Facts of the inputs; 0 if it has none."""
    is_whole: bool
    events: tuple[str, ...]


_TracedRuns: TypeAlias = dict[tuple[int, ...], tuple[list[_Written], Origin]]
"""By the identities of what was joined to one message; the list keeps the identities in use."""


class OriginTracer:
    """Traces the messages of requests to the given ones. What has not changed since the last request is kept."""

    def __init__(self, find_inputs: FindInputs, given: GivenMessages) -> None:
        """`given` are the messages that `find_inputs` refers to."""
        self._find_inputs = find_inputs
        self._given = given
        self._steps: dict[int, tuple[Sequence[ProviderMessage], tuple[_Written, ...]]] = {}
        """By the seq of a step: the messages that it was rendered as, and where they come from."""
        self._origins: _TracedRuns = {}
        """The messages of the last request."""

    def clear(self) -> None:
        """Forget everything: given messages were edited, left out or read again."""
        self._steps.clear()
        self._origins.clear()

    def trace(self, view: View, wire: Wire, joined: Sequence[ProviderMessage]) -> list[Origin]:
        """Return the origin of each message of the request that a view was rendered as."""
        wire = wire.for_thinking(is_bound=view.thinking.is_bound)
        written = [message for step in view.steps for message in self._written(step, wire)]
        runs = wire.runs(written, attrgetter("message"))
        if len(joined) > len(runs):  # an opening in front of an answer that nothing came before
            roles = (run[0].message["role"] for run in runs)
            runs.insert(next(at for at, role in enumerate(roles) if role in _MODEL_ROLES), [])
        if len(self._steps) > 2 * len(view.steps) + MIN_KEPT_STEPS:
            self._steps.clear()
        known, self._origins = self._origins, {}  # a message that grows by joining is another one each time
        return [self._origin(message, run, known) for message, run in zip(joined, runs, strict=True)]

    def _written(self, step: Step, wire: Wire) -> tuple[_Written, ...]:
        messages = step.render(wire)
        known = self._steps.get(step.seq)
        if known is None or known[0] is not messages:
            known = (messages, tuple(_written(step, wire, self._find_inputs, self._given)))
            self._steps[step.seq] = known
        return known[1]

    def _origin(self, message: ProviderMessage, run: list[_Written], known: _TracedRuns) -> Origin:
        key = tuple(map(id, run))
        found = known.get(key) or (run, _origin(message, run, self._given))
        self._origins[key] = found
        return found[1]


def _origin(message: ProviderMessage, run: list[_Written], given: GivenMessages) -> Origin:
    inputs = tuple(dict.fromkeys(index for written in run for index in written.inputs))
    events = tuple(dict.fromkeys(name for written in run for name in written.events))
    is_whole = len(inputs) == 1 and all(written.is_whole for written in run) and len(run) == run[0].facts
    # A repair may have changed a message that nothing has reduced.
    return Origin(inputs=inputs, whole=is_whole and is_same_message(given[inputs[0]], message), events=events)


def _written(step: Step, wire: Wire, find_inputs: FindInputs, given: GivenMessages) -> Iterator[_Written]:
    shown: list[ShownMessage | None] = [step.utterance, *(slot.result for slot in step.all_slots)]
    counts = [1] * len(shown)
    messages = step.render(wire)
    if len(messages) != len(shown):
        counts = [len(wire.write(fact)) for fact in step.facts()]
    place = 0
    for message, count in zip(shown, counts, strict=True):
        yield from _written_as(step, message, messages[place : place + count], find_inputs, given)
        place += count


def _written_as(
    step: Step,
    shown: ShownMessage | None,
    messages: Sequence[ProviderMessage],
    find_inputs: FindInputs,
    given: GivenMessages,
) -> Iterator[_Written]:
    """Yield what one fact was written as."""
    source = find_inputs(shown.seq) if shown is not None else None
    if shown is None or source is None:
        for message in messages:
            yield _Written(message, shown, (), 0, is_whole=False, events=_writers(step, shown))
        return
    indexes = range(source.first, source.end)
    events = () if shown.is_as_said else tuple(_changers(shown))
    if len(messages) == 1 == len(indexes):
        yield _Written(messages[0], shown, tuple(indexes), source.facts, shown.is_as_said, events)
        return
    # Several items of the Responses API make one utterance: each is looked up by its content.
    for place, message in enumerate(messages):
        found = [index for index in indexes if given[index] == message]
        if not found and shown.is_as_said and len(messages) == len(indexes):
            found = [indexes[place]]
        inputs = tuple(found[:1]) or tuple(indexes)
        yield _Written(message, shown, inputs, 1, is_whole=bool(found), events=() if found else events)


def _changers(shown: ShownMessage) -> Iterator[str]:
    """Yield the events because of which a message is not shown as it was said."""
    yield from (handle(overlay.owner) for overlay in (shown.overlays or {}).values())
    if shown.again >= 0:
        yield handle(shown.again_since)
    if shown.superseded_by >= 0:
        yield handle(shown.superseded_since)


def _writers(step: Step, shown: ShownMessage | None) -> tuple[str, ...]:
    """Return the event that made Foveal write a message; a notice has the negated seq of it."""
    if shown is None:
        return ()
    seq = step.pin_seq if step.kind == "pinned" else shown.seq
    return (handle(-1 - seq if seq < 0 else seq),)
