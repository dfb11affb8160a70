"""Reads the log of a session in parts of bounded size.

1. `read_slices` yields the events in slices of about `SLICE_CHARS`, so that a log of any length is processed in
   little memory and other readers of the store are served in between.
2. Later events decide which earlier ones are effective. `find_effective` reads the log once and keeps only what
   decides that; the texts are read in a second pass. Most logs have no event that decides about earlier ones:
   `fold_log` reads those only once.
3. `fold_view` and `fold_log` return the view and the engine of a log, and hold no more of it than the view needs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence, Set
from functools import partial
from typing import Final

from foveal.core.engine.engine import Engine
from foveal.core.engine.settings import EngineSettings
from foveal.core.log.events import Event, Opened, parts
from foveal.core.tokens.counter import counter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.checkpoint import needed_seqs
from foveal.core.view.fold import EffectiveLog, always_refolds, effective_events, left_behind, without_text
from foveal.core.view.view import View
from foveal.ports import Store
from foveal.sessions.offload import offload, short_turns

FIRST_SLICE_EVENTS: Final = 16
MAX_SLICE_EVENTS: Final = 250
SLICE_CHARS: Final = 500_000
"""Characters of text that a slice should have at most; one event can have more."""
LIGHT_PER_FOLDED: Final = 50
"""Events without text that are looked at in the time in which one event is folded, about."""
MIN_PRUNED_EVENTS: Final = 1_000
"""Events in memory from which on those that the view does not need are dropped during a fold."""


async def read_slices(store: Store, id: str, *, first: int = 0, end: int) -> AsyncIterator[list[Event]]:
    """Yield the events from `first` to before `end` in slices."""
    count = FIRST_SLICE_EVENTS
    while first < end:
        with short_turns():  # a thread of the store decodes the events
            events = await store.read(id, first=first, last=min(first + count, end) - 1)
        if not events:
            return
        first = events[-1].seq + 1
        size = sum(map(_chars, events))
        yield events
        wanted = len(events) * SLICE_CHARS // max(1, size)
        count = max(1, min(wanted, 2 * count, MAX_SLICE_EVENTS))


def _chars(event: Event) -> int:
    content = getattr(event.fact, "content", "")
    if isinstance(content, str):
        return len(content) + 1
    return 1 + sum(
        len(getattr(part, "text", "") or getattr(part, "arguments", "")) for part in parts(content)
    )


async def find_effective(
    store: Store, id: str, *, first: int = 0, end: int, ahead: Sequence[Event] = ()
) -> EffectiveLog:
    """Return which events from `first` on are effective, without their texts. The events `ahead`, which are not
    stored, count as the newest ones."""
    light = [
        without_text(event)
        async for events in read_slices(store, id, first=first, end=end)
        for event in events
    ]
    return await offload(partial(EffectiveLog.of, [*light, *ahead]), events=len(light) // LIGHT_PER_FOLDED)


class BranchReader:
    """Which events of a session were left behind; each event is read once."""

    def __init__(self, store: Store, id: str) -> None:
        self._store = store
        self._id = id
        self._light: list[Event] = []
        self._found: tuple[int, frozenset[int]] = (0, frozenset())

    async def left_behind(self, *, end: int) -> frozenset[int]:
        """Return the seqs before `end` that are no part of the conversation any more."""
        seen, found = self._found
        if seen != end:
            async for events in read_slices(self._store, self._id, first=len(self._light), end=end):
                self._light += map(without_text, events)
            found = await offload(
                partial(left_behind, tuple(self._light)), events=len(self._light) // LIGHT_PER_FOLDED
            )
            self._found = (end, found)
        return found


async def last_opened(store: Store, id: str) -> Opened | None:
    """Return what was recorded when the session was last opened with another model or policy."""
    checkpoint = await store.checkpoint(id)
    first = 0 if checkpoint is None else checkpoint.seq + 1
    found = [] if checkpoint is None else [e.fact for e in await store.pick(id, checkpoint.needed)]
    opened = [fact for fact in found if isinstance(fact, Opened)]
    async for events in read_slices(store, id, first=first, end=(await store.end(id)).next_seq):
        opened += [event.fact for event in events if isinstance(event.fact, Opened)]
    return opened[-1] if opened else None


async def effective_slices(store: Store, id: str, *, first: int, end: int) -> AsyncIterator[list[Event]]:
    """Yield the effective events from `first` to before `end` in slices."""
    if end - first <= FIRST_SLICE_EVENTS:
        yield effective_events(await store.read(id, first=first, last=end - 1))
        return
    effective = await find_effective(store, id, first=first, end=end)
    is_whole = len(effective.events) == end - first
    seqs = frozenset[int]() if is_whole else frozenset(event.seq for event in effective.events)
    async for events in read_slices(store, id, first=first, end=end):
        yield events if is_whole else [event for event in events if event.seq in seqs]


async def fold_log(
    store: Store,
    id: str,
    settings: EngineSettings,
    *,
    ahead: Sequence[Event] = (),
    expects_changes: bool = False,
) -> Engine:
    """Return the engine of a stored log, with the events in memory that its view needs.

    The events `ahead` decide, as the newest ones, which stored events are effective; they are not applied. With
    `expects_changes`, the log is likely to have events that change earlier ones."""
    end = (await store.end(id)).next_seq
    engine = Engine(settings, view=View(MessageTokens(settings.counter)))
    if ahead or expects_changes or not await _fold_slices(engine, store, id, end=end, effective=None):
        found = await find_effective(store, id, end=end, ahead=ahead)
        engine = Engine(settings, view=found.empty_view(MessageTokens(settings.counter)))
        effective = frozenset(event.seq for event in found.events)
        await _fold_slices(engine, store, id, end=end, effective=effective)
    engine.forget_prefix_mover()  # the log does not say which of its events moved the prefix since the last request
    engine.budget()
    return engine


async def _fold_slices(
    engine: Engine, store: Store, id: str, *, end: int, effective: Set[int] | None
) -> bool:
    """Apply all events; None stands for a log in which all are effective. Return False, half-way, if one of them
    changes earlier ones nevertheless."""
    prune_at = MIN_PRUNED_EVENTS
    async for events in read_slices(store, id, end=end):
        if effective is None and any(always_refolds(event.fact) for event in events):
            return False
        await offload(partial(_fold_slice, engine, events, effective), events=len(events))
        if len(engine.log) > prune_at:
            await offload(partial(_prune, engine), events=len(engine.log))
            prune_at = max(MIN_PRUNED_EVENTS, 2 * len(engine.log))
    return True


async def fold_view(store: Store, id: str, *, end: int) -> View:
    """Return the view of the events before `end`; its units are estimates."""
    effective = await find_effective(store, id, end=end)
    seqs = frozenset(event.seq for event in effective.events)
    view = effective.empty_view(MessageTokens(counter("estimate")))
    async for events in read_slices(store, id, end=end):
        await offload(partial(_advance, view, [e for e in events if e.seq in seqs]), events=len(events))
    return view


def _advance(view: View, events: Sequence[Event]) -> None:
    for event in events:
        view.advance(event)


def apply_all(engine: Engine, events: Sequence[Event]) -> None:
    """Apply stored events, all of them effective."""
    for event in events:
        engine.apply(event)


def _fold_slice(engine: Engine, events: Sequence[Event], effective: Set[int] | None) -> None:
    for event in events:
        engine.apply(event, is_effective=effective is None or event.seq in effective)


def _prune(engine: Engine) -> None:
    """Keep only what the view needs in memory."""
    engine.keep_in_memory(needed_seqs(engine.view) | {engine.opened_seq})
