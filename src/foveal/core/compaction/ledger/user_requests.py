"""Ledger section of the user's requests.

1. Requests are quoted verbatim; those that state a standing rule come first, then the others, each newest first.
2. A request is *answered* when a later model message without calls ended its turn, else it is *open*. An empty
   model message, which an abort leaves behind, ends no turn. A request with a standing rule is *standing* and never
   *answered*: its rule stays in force.
3. A long request is reduced to its beginning, its rules and its end, with the number of characters left out.
4. Requests that stay visible beside the ledger are not repeated; one line tells their state.
5. One line names the handles of requests that are neither quoted nor visible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from functools import cached_property
from itertools import chain
from typing import Final

from foveal.core.compaction.ledger.allocation import Item, Section
from foveal.core.compaction.ledger.sections import GAP_LINE, ITEM_PREFIX, REQUESTS_HEADING, quote_user
from foveal.core.compaction.ledger.standing_rules import find_rules
from foveal.core.log.events import Event, Media, ModelSaid, UserSaid, calls_of, parts, text_of
from foveal.core.tokens.counter import Counter

MAX_REQUEST_UNITS: Final = 20_000
"""Limit of all requests together."""
_MAX_REQUEST_SHARE: Final = 0.5
"""Share of the room for one request; a longer one is reduced."""
_NEEDED_SHARE: Final = 0.3
"""Share of the room for open and standing requests before files and errors have had theirs."""
_SHORT_REQUEST_UNITS: Final = 80
"""Units of an open or standing request that come before files and errors."""
_MIN_HANDLES, _MAX_HANDLES = 6, 40
_UNITS_PER_HANDLE: Final = 15
"""The line about requests left out names one more handle for this much more room."""
_MAX_STATES: Final = 12
"""Visible requests whose state is told, for each state."""


class Request:
    """One request of the user in the range."""

    def __init__(self, event: Event, text: str, *, is_open: bool) -> None:
        self.event = event
        self.text = text
        self.is_open = is_open
        self._found = find_rules(text)
        self._first = next(self._found, None)

    @property
    def is_standing(self) -> bool:
        return self._first is not None

    @cached_property
    def rules(self) -> list[tuple[int, int]]:
        """Start and end of the sentences that state a rule; read only when the request is reduced."""
        return [] if self._first is None else [self._first, *self._found]

    @property
    def state(self) -> str:
        if self.is_standing:
            return "standing, open" if self.is_open else "standing"
        return "open" if self.is_open else "answered"


def collect_requests(events: Sequence[Event], *, after: Sequence[Event] = ()) -> list[Request]:
    """Return the requests, newest first; the events `after` the range may have answered the last of them."""
    is_answered = any(isinstance(event.fact, ModelSaid) and _ends_turn(event.fact) for event in after)
    requests: list[Request] = []
    for event in reversed(events):
        fact = event.fact
        if isinstance(fact, ModelSaid):
            is_answered = is_answered or _ends_turn(fact)
        elif isinstance(fact, UserSaid):
            requests.append(Request(event, text_of(fact.content).strip(), is_open=not is_answered))
    return requests


def _ends_turn(fact: ModelSaid) -> bool:
    return not calls_of(fact.content) and bool(text_of(fact.content).strip())


def requests_section(requests: Sequence[Request], *, keep: Set[int], room: int, counter: Counter) -> Section:
    """Return the section of requests."""
    visible = [request for request in requests if request.event.seq in keep]
    hidden = [request for request in requests if request.event.seq not in keep]
    hidden.sort(key=lambda request: not request.is_standing)
    limit = min(MAX_REQUEST_UNITS, room)
    short = max(1, min(_SHORT_REQUEST_UNITS, room // 4))
    newest = sorted(range(len(hidden)), key=lambda slot: -hidden[slot].event.seq)
    urgent = [slot for slot, request in enumerate(hidden) if request.is_open or request.is_standing]
    urgent.sort(key=lambda slot: not hidden[slot].is_open)
    return Section(
        REQUESTS_HEADING,
        chain(
            _quotes(hidden, newest, int(limit * _MAX_REQUEST_SHARE), counter),
            _quotes(hidden, newest, short, counter),
        ),
        4.0,
        needed=chain(_quotes(hidden, urgent, short, counter), _states(visible, slot=len(hidden))),
        needed_share=_NEEDED_SHARE,
        max_units=limit,
        left_out=lambda shown: _left_out(hidden, shown, room),
        told_when_empty=True,
    )


def _quotes(
    requests: Sequence[Request], slots: Collection[int], max_units: int, counter: Counter
) -> Iterator[Item]:
    for slot in slots:
        yield Item(slot, _quote(requests[slot], max_units, counter))


def _states(visible: Sequence[Request], *, slot: int) -> Iterator[Item]:
    """Yield one line about the requests that stay visible beside the ledger."""
    standing = [request.event.handle for request in visible if request.is_standing]
    pending = [request.event.handle for request in visible if request.is_open]
    told = [
        f"{state} {', '.join(handles[:_MAX_STATES])}{' …' * (len(handles) > _MAX_STATES)}"
        for state, handles in (("open", pending), ("standing", standing))
        if handles
    ]
    if len({*standing, *pending}) < len(visible):
        told.append("the others answered" if told else "all answered")
    if told:
        yield Item(slot, f"{ITEM_PREFIX}shown in full beside this record: {'; '.join(told)}")


def _left_out(requests: Sequence[Request], shown: Collection[int], room: int) -> str:
    hidden = sorted(request.event.seq for slot, request in enumerate(requests) if slot not in shown)
    if not hidden:
        return ""
    limit = max(_MIN_HANDLES, min(_MAX_HANDLES, room // _UNITS_PER_HANDLE))
    # The newest are named one by one, since they are the most likely to be asked for.
    named = hidden if len(hidden) <= limit else hidden[-limit:]
    older = hidden[: len(hidden) - len(named)]
    beyond = f" and {len(older)} more between e{older[0]} and e{older[-1]}" if older else ""
    listed = ", ".join(f"e{seq}" for seq in named)
    return f"+ {len(hidden)} more user message{'s' * (len(hidden) > 1)}: {listed}{beyond}"


# ── Text of one request ──────────────────────────────────────────────────────────────────────────────────


def _quote(request: Request, max_units: int, counter: Counter) -> str:
    fact = request.event.fact
    files = sum(isinstance(part, Media) for part in parts(fact.content)) if isinstance(fact, UserSaid) else 0
    beside = f", with {files} file{'s' * (files > 1)}" if files else ""
    title = f"{ITEM_PREFIX}{request.event.handle}, {request.state}{beside}"
    if not request.text:
        return title
    shown, omitted = _quote_bounded(request, max_units, counter)
    cut = f", {omitted:,} characters left out" if omitted else ""
    return f"{title}{cut}:\n{shown}"


def _quote_bounded(request: Request, max_units: int, counter: Counter) -> tuple[str, int]:
    """Return the text quoted, whole or its most important parts, and how many characters are left out."""
    text = request.text
    part = text[: 8 * max_units + 1]
    units = counter.count(part)
    if len(part) == len(text) and units + text.count("\n") * 3 <= max_units:
        return quote_user(text), 0
    size = max(1, int(0.8 * max_units * len(part) / max(1, units)))
    spans = _important_spans(text, request.rules, size)
    omitted = len(text) - sum(end - start for start, end in spans)
    if omitted <= 0:
        return quote_user(text), 0
    quoted = [quote_user(text[start:end].strip()) for start, end in spans]
    return f"\n{GAP_LINE}\n".join(quoted), omitted


def _important_spans(text: str, rules: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the beginning, sentences with rules, and the end of a text: about `size` characters in all."""
    head, tail = (size // 3, size // 6) if rules else (size * 3 // 4, size // 4)
    spans = [(0, head), (max(head, len(text) - tail), len(text))]
    left = size - head - tail
    for start, end in rules:
        outside = start >= head and end <= len(text) - tail
        if outside and end - start <= left:
            spans.append((start, end))
            left -= end - start
    if rules and left > 0:  # what the rules leave goes to the beginning
        spans[0] = (0, min(head + left, min([start for start, _ in spans[1:]])))
    return _joined(sorted(spans))


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans without empty ones; spans that touch become one."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if end <= start:
            continue
        if joined and start <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
