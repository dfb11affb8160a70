"""Requests of a session, and what each one read from the provider's cache.

1. `core.log.logged_requests` finds the requests.
2. The prefix that a request shares with the one before ends at the first message that an event in between changed.
3. A miss is what the cache would have held otherwise: by the reported tokens, or without a report by the prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from foveal.core.log.events import (
    AnyFact,
    Clipped,
    Compacted,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Masked,
    ModelSaid,
    Opened,
    Reverted,
    Rewound,
    ToolReturned,
    Used,
    UserSaid,
    handle,
)
from foveal.core.log.logged_requests import FoundRequest, RequestFinder
from foveal.core.models.cost import usage_cost
from foveal.core.models.model import Model
from foveal.core.wire.safe_print import one_line
from foveal.inspector.timeline.event_sentences import event_sentence
from foveal.inspector.timeline.timeline import CacheMiss, MissCause, RequestRow, ViewChange

MIN_MISS_TOKENS: Final = 1_280
"""A smaller gap is no miss: providers cache whole blocks, and only prefixes above about 1,000 tokens."""
MIN_MISS_SHARE: Final = 0.03
_IN_REQUEST: Final = ("full", "clipped", "masked")
_AUTOMATIC_MARKS: Final = ("anthropic/", "claude")
"""Models to which Foveal's own agent sends requests with cache marks."""


class RequestSize(NamedTuple):
    """Size of the request after an event, as far as it is known then."""

    units: int
    tool_units: int
    tokens: int
    """Expected tokens."""
    ratio: float
    tools: str = ""
    """How many tools there are, and how many were used."""


class _SentItem(NamedTuple):
    """A message in the last request."""

    place: int
    units: int


class RequestRows:
    """The rows of the requests in a growing log."""

    def __init__(self) -> None:
        self._rows: list[RequestRow] = []
        self._finder = RequestFinder()
        self._model: Model | None = None
        """The model of the newest request."""
        self._marked: tuple[str, ...] = ()
        """What the client marked in it."""
        self._items: dict[str, _SentItem] = {}
        """What the last closed request contained."""
        self._units = 0
        """Units of these messages."""
        self._last = ""
        """The key of the last of them; "" if there is none."""
        self._changes: list[ViewChange] = []
        """The changes since then."""
        self._sizes: dict[int, RequestSize] = {}
        self._between: dict[int, AnyFact] = {}
        """What happened since then, by seq."""
        self._has_cache = False

    def add(
        self,
        event: Event,
        changes: Sequence[ViewChange],
        size: RequestSize,
        *,
        model: Model,
        marked: Iterable[str] = (),
    ) -> None:
        """Take over an event, what it changed, and the request after it."""
        fact = event.fact
        if isinstance(fact, Used):
            self._has_cache = self._has_cache or bool(fact.cache_read or fact.cache_write)
        closed = self._finder.add(event)
        if closed is not None:
            self._close(closed)
        if isinstance(fact, ModelSaid):
            self._model, self._marked = model, tuple(marked)
        elif isinstance(fact, Used):
            self._model = model
            self._marked = self._marked if closed is None else ()
        self._changes += changes
        self._sizes[event.seq] = size
        self._between[event.seq] = fact

    def rows(self) -> list[RequestRow]:
        """Return the requests so far."""
        sent = self._finder.open
        return list(self._rows) if sent is None else [*self._rows, self._row(sent)]

    def _close(self, sent: FoundRequest) -> None:
        """Finish a request: from here on, changes count from it."""
        self._rows.append(self._row(sent))
        for change in self._changes:
            if change.at <= sent.at:
                self._apply(change)
        self._changes = [change for change in self._changes if change.at > sent.at]
        self._sizes = {seq: size for seq, size in self._sizes.items() if seq >= sent.at}
        self._between = {seq: fact for seq, fact in self._between.items() if seq >= sent.at}

    def _apply(self, change: ViewChange) -> None:
        before = self._items.pop(change.key, None)
        self._units -= before.units if before is not None else 0
        if change.level in _IN_REQUEST:
            item = self._items[change.key] = _item(change)
            self._units += item.units
            if item.place >= self._end:
                self._last = change.key
        elif change.key == self._last:
            self._last = max(self._items, key=self._order, default="")

    @property
    def _end(self) -> int:
        """The place of the last message of the last closed request; -1 if there is none."""
        return self._items[self._last].place if self._last in self._items else -1

    # ── One request ──────────────────────────────────────────────────────────────────────────────────

    def _row(self, sent: FoundRequest) -> RequestRow:
        assert self._model is not None  # known since the event that showed the request
        size = self._sizes.get(sent.at, RequestSize(0, 0, 0, 1.0))
        used, model = sent.used, self._model
        tokens = used.prompt if used is not None else size.tokens
        ratio = min(size.ratio, tokens / size.units) if size.units else size.ratio
        moved = self._first_moved(sent.at)
        prefix_units = self._units_before(moved)
        prefix = min(tokens, round(prefix_units * ratio))
        return RequestRow(
            number=len(self._rows) + 1,
            at=sent.at,
            answer=sent.answer,
            used=sent.used_seq,
            time=sent.time,
            model=model.name,
            window=model.window,
            units=size.units,
            tools=size.tool_units,
            tool_text=size.tools,
            tokens=tokens,
            predicted=used.predicted if used is not None else 0,
            ratio=ratio,
            overhead=max(0, tokens - round(size.units * ratio)),
            read=used.cache_read if used is not None else 0,
            written=used.cache_write if used is not None else 0,
            uncached=used.input if used is not None else 0,
            output=used.output if used is not None else 0,
            cost=None if used is None else usage_cost(used, model),
            prefix=prefix,
            breakpoints=self._marked or self._own_marks(sent, model, moved),
            miss=self._miss(sent, model, tokens=tokens, prefix=prefix, moved=moved),
        )

    def _first_moved(self, at: int) -> ViewChange | None:
        """Return the change since the last request that is first in the order of the request."""
        end = self._end
        moved = (
            change
            for change in self._changes
            if change.at <= at
            and (change.key in self._items or (change.level in _IN_REQUEST and _item(change).place < end))
        )
        return min(moved, key=self._place_of, default=None)

    def _place_of(self, change: ViewChange) -> int:
        known = self._items.get(change.key)
        return known.place if known is not None else _item(change).place

    def _units_before(self, moved: ViewChange | None) -> int:
        if moved is None:
            return self._units
        place = self._place_of(moved)
        return sum(item.units for item in self._items.values() if item.place < place)

    def _own_marks(self, sent: FoundRequest, model: Model, moved: ViewChange | None) -> tuple[str, ...]:
        """Return where Foveal's own agent marks a request: at the end of what it shares with the one before, and
        at its own end."""
        if not model.name.startswith(_AUTOMATIC_MARKS):
            return ()
        shared = "" if moved is not None else self._last
        new = [change.key for change in self._changes if change.at <= sent.at and change.level in _IN_REQUEST]
        return tuple(dict.fromkeys(filter(None, (shared, *new[-1:]))))

    def _order(self, key: str) -> int:
        return self._items[key].place

    # ── Misses ───────────────────────────────────────────────────────────────────────────────────────

    def _miss(
        self, sent: FoundRequest, model: Model, *, tokens: int, prefix: int, moved: ViewChange | None
    ) -> CacheMiss | None:
        before = self._rows[-1] if self._rows else None
        if before is None:
            return None
        expected = min(before.tokens, tokens)
        used = sent.used
        has_cache = self._has_cache or model.cached_price is not None
        read = used.cache_read if used is not None else prefix
        gap = expected - read
        is_expired = self._idle(sent, before) > model.cache_ttl
        if used is None and is_expired:
            gap = expected
        if not has_cache or gap < max(MIN_MISS_TOKENS, MIN_MISS_SHARE * expected):
            return None
        cause, by, text = self._cause(sent, model, before, moved, is_expired=is_expired)
        key = moved.key if moved is not None and cause in ("reduction", "edit") else ""
        return CacheMiss(
            cause=cause,
            text=text,
            by=by,
            key=key,
            tokens=gap,
            lost=_lost(gap, model, is_written=used is None or used.cache_write > 0),
            provider=one_line(used.cache_miss) if used is not None else "",
        )

    def _idle(self, sent: FoundRequest, before: RequestRow) -> float:
        if sent.time is None or before.time is None:
            return 0.0
        return max(0.0, sent.time - before.time)

    def _cause(
        self,
        sent: FoundRequest,
        model: Model,
        before: RequestRow,
        moved: ViewChange | None,
        *,
        is_expired: bool,
    ) -> tuple[MissCause, int, str]:
        """Return the cause of a miss, the event behind it, and a sentence."""
        between = [(seq, fact) for seq, fact in self._between.items() if before.at < seq <= sent.at]
        if model.name != before.model:
            by = next((seq for seq, fact in between if isinstance(fact, Opened)), -1)
            return "model", by, f"the model changed from {before.model} to {model.name}"
        for seq, fact in between:
            if isinstance(fact, Equipped):
                return "tools", seq, f"{handle(seq)} changed the tool list: {event_sentence(fact)}"
        for seq, fact in between:
            if isinstance(fact, Instructed) and fact.aside:
                return "system", seq, f"{handle(seq)} changed the system text"
        if moved is not None:
            return _moved_cause(moved.at, self._between.get(moved.at))
        if is_expired:
            idle = self._idle(sent, before)
            return (
                "expired",
                -1,
                f"{_duration(idle)} since the last request; the provider keeps a prefix for"
                f" {_duration(model.cache_ttl)}",
            )
        if sent.used is not None and sent.used.cache_miss:
            return "provider", -1, f"the provider says: {one_line(sent.used.cache_miss)}"
        return "unknown", -1, "the request begins as the one before; the provider gave no reason"


def _moved_cause(seq: int, fact: AnyFact | None) -> tuple[MissCause, int, str]:
    if isinstance(fact, Rewound):
        return "edit", seq, f"{handle(seq)}: the client changed its history"
    if isinstance(fact, ToolReturned):
        return "edit", seq, f"{handle(seq)}: a result came after later messages"
    if isinstance(fact, UserSaid):
        return "reduction", seq, f"{handle(seq)}: an expansion ended with the user's message"
    sentence = "" if fact is None else event_sentence(fact)
    names_itself = isinstance(fact, Clipped | Masked | Dropped | Compacted | Reverted)
    return "reduction", seq, f"{handle(seq)}{'' if names_itself else ':'} {sentence}"


def _item(change: ViewChange) -> _SentItem:
    """Return where a message stands in the request, and its size."""
    return _SentItem(change.place if change.place >= 0 else key_seq(change.key), change.units)


def key_seq(key: str) -> int:
    """Return the event that a key names: `e12`, `n40` and `m12.0`."""
    return int(key[1:].partition(".")[0])


def _lost(tokens: int, model: Model, *, is_written: bool) -> float | None:
    """Return what tokens cost more than from the cache."""
    paid = model.cost(cache_write=tokens) if is_written else model.cost(input=tokens)
    if paid is None:
        paid = model.cost(input=tokens)
    cheap = model.cost(cache_read=tokens)
    return None if paid is None or cheap is None else max(0.0, paid - cheap)


def _duration(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
