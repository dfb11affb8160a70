"""Checks what one request still shows of the log that it was made from.

The checks read only the log, the text of the request and the report, so they judge any implementation.

1. `Coverage` finds the events that a request shows word for word. What is left of the request was written by
   Foveal: placeholders, clip markers, summaries and notices. Only there do handles (`e12`) and ranges (`e3–e25`)
   count as named, so a handle inside a tool result accounts for nothing.
2. `unaccounted` lists the events of the conversation that are neither shown nor named (law 10).
3. `kept_faults` lists where the promise about the user's messages is broken (law 9).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

from foveal import Event, ModelSaid, Report, ToolReturned, UserSaid
from foveal.core.log import AnyFact, Call, Dialect, Instructed, Pinned, Text, parts
from foveal.core.wire import wire_for

KEPT_SHARE: Final = 4
"""User messages stay verbatim while they take at most this fraction (1/4) of the room."""
KEPT_TOKENS: Final = 20_000
"""And at most this many tokens."""
FLOOR_SHARE: Final = 0.6
"""Nothing is promised where the messages that cannot be reduced take more than this share of the room."""
MESSAGE_TOKENS: Final = 4
"""Tokens that a message takes beside its text."""
SHORT_CHARS: Final = 16
"""A shorter message occurs in other texts by chance, so a quotation of it must stand beside its handle."""
HEAD_CHARS: Final = 40
"""Characters of the start of a message by which a clipped one is recognised."""

_RANGE: Final = re.compile(r"\be(\d+)\s*(?:–|—|-|\.\.|to)\s*e?(\d+)\b")
_HANDLE: Final = re.compile(r"\be(\d+)\b")
_BETWEEN: Final = re.compile(r"\bmore\b[^.\n]{0,40}?\be(\d+)\s*(?:and|to|–|—|-)\s*e?(\d+)\b")
_QUOTE_MARK: Final = re.compile(r"^> ?", re.MULTILINE)
_NO_CALL: Final = "no call waits"

Piece = tuple[str, str, str]
"""Kind, text, and the id of the call if there is one."""
UserState = Literal["verbatim", "clipped", "named", "in a range", "lost"]
Share = Literal["within", "beyond", "tight"]
"""Whether all user messages must stay, some may go, or what cannot be reduced leaves too little room to tell."""


def pieces(fact: AnyFact) -> list[Piece]:
    """Return the texts and calls of a fact that a request can show; thinking and media are left out."""
    match fact:
        case UserSaid() | Instructed():
            return [("input", part.text, "") for part in parts(fact.content) if _has_text(part)]
        case ModelSaid():
            return list(_said(fact))
        case ToolReturned():
            return [("result", part.text, fact.call_id) for part in parts(fact.content) if _has_text(part)]
        case Pinned() if fact.text.strip():
            return [("input", fact.text, "")]
        case _:
            return []


def _said(fact: ModelSaid) -> Iterator[Piece]:
    for part in parts(fact.content):
        if isinstance(part, Call):
            yield "call", _arguments(part.arguments), part.id
        elif _has_text(part):
            yield "model", part.text, ""


def _has_text(part: Any) -> bool:
    return isinstance(part, Text) and bool(part.text.strip())


def _arguments(text: str) -> str:
    """Return arguments in one form, because some dialects send them as an object."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


class Coverage:
    """Which events of a log one request shows, and which it names."""

    def __init__(
        self, log: Sequence[Event], request: Sequence[Any], dialect: Dialect = "openai_chat"
    ) -> None:
        facts = (fact for chunk in wire_for(dialect).read(request) for fact in chunk.facts)
        left = Counter(piece for fact in facts for piece in pieces(fact))
        wanted = {event.seq: Counter(pieces(event.fact)) for event in log}
        # An event that is shown whole chooses first, or a hidden one with the same words would take its words. Of
        # two equal ones, the request may show only the newer. Ids tell calls and results apart, so events with ids
        # choose before those that are only a text.
        by_ids = sorted(log, key=lambda event: (not any(id for _, _, id in wanted[event.seq]), -event.seq))
        for event in by_ids:
            if wanted[event.seq] <= left:
                _take(wanted[event.seq], left)
        for event in by_ids:
            _take(wanted[event.seq], left)
        without_ids = Counter[Piece]()
        for (kind, text, _), number in left.items():
            without_ids[kind, text, ""] += number
        for event in by_ids:  # some dialects change ids
            _take_without_ids(wanted[event.seq], without_ids)
        self.shown = {event.seq for event in log if not wanted[event.seq].total()}
        """Events of which every piece is in the request."""
        said = [event for event in log if isinstance(event.fact, UserSaid | ModelSaid | ToolReturned)]
        self.missing = [event for event in said if event.seq not in self.shown]
        """Events of the conversation, oldest first, of which a piece is not."""
        self.own_text = "\n".join(text for (_, text, _), number in without_ids.items() if number > 0)
        """All that Foveal wrote into the request, and the remains of clipped messages."""
        self.handles = {int(seq) for seq in _HANDLE.findall(self.own_text)}
        self.ranges = [(int(first), int(last)) for first, last in _RANGE.findall(self.own_text)]
        self.lists = [(int(first), int(last)) for first, last in _BETWEEN.findall(self.own_text)]

    def names(self, seq: int) -> bool:
        """Return whether a handle or a range names the event."""
        return seq in self.handles or _within(seq, self.ranges) or _within(seq, self.lists)

    def user_state(self, event: Event) -> UserState:
        if event.seq in self.shown:
            return "verbatim"
        texts = [text for _, text, _ in pieces(event.fact)]
        if all(self._quotes(event, text) for text in texts):
            return "verbatim"
        if event.seq in self.handles and any(text.strip()[:HEAD_CHARS] in self.own_text for text in texts):
            return "clipped"
        if event.seq in self.handles or _within(event.seq, self.lists):
            return "named"
        return "in a range" if _within(event.seq, self.ranges) else "lost"

    def _quotes(self, event: Event, text: str) -> bool:
        if len(text.strip()) < SHORT_CHARS:
            lines = self.own_text.splitlines()
            return any(text.strip() in line and re.search(rf"\b{event.handle}\b", line) for line in lines)
        own = self.own_text
        return text.strip() in own or text.strip() in _QUOTE_MARK.sub("", own)


def _take(wanted: Counter[Piece], left: Counter[Piece]) -> None:
    """Move pieces that both have out of both."""
    for piece in list(wanted):
        number = min(wanted[piece], left[piece])
        wanted[piece] -= number
        left[piece] -= number


def _take_without_ids(wanted: Counter[Piece], left: Counter[Piece]) -> None:
    for kind, text, id in list(wanted):
        number = min(wanted[kind, text, id], left[kind, text, ""])
        wanted[kind, text, id] -= number
        left[kind, text, ""] -= number


def _within(seq: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= seq <= last for first, last in ranges)


# ── Law 10 ───────────────────────────────────────────────────────────────────────────────────────────────


class Ignored(NamedTuple):
    """Events that no request has to account for."""

    taken_back: frozenset[int]
    """Events that a rewind or an undo took back."""
    orphans: frozenset[int]
    """Results that no call waits for."""


def ignored(report: Report) -> Ignored:
    back = frozenset(int(line.handle[1:]) for line in report.events if line.level == "-")
    orphans = frozenset(int(one.handle[1:]) for one in report.repairs if _NO_CALL in one.problem)
    return Ignored(back, orphans)


def unaccounted(coverage: Coverage, report: Callable[[], Report]) -> list[Event]:
    """Return the events that are neither shown nor named; `report` is called only if there seem to be some."""
    suspects = [event for event in coverage.missing if not coverage.names(event.seq)]
    if not suspects:
        return []
    back, orphans = ignored(report())
    return [event for event in suspects if event.seq not in back | orphans]


# ── Law 9 ────────────────────────────────────────────────────────────────────────────────────────────────


def user_events(log: Sequence[Event]) -> list[Event]:
    """Return the user's messages. A blank one can be the first or the latest, too."""
    return [event for event in log if isinstance(event.fact, UserSaid)]


def room_of(report: Report) -> int:
    """Return the tokens that messages may take, where no system text is sent beside them."""
    return report.limit - report.totals["tools"]


def share_of(log: Sequence[Event], *, room: int, count: Callable[[str], int]) -> Share:
    """Return what is promised about the user messages of a log. Instructions, the latest user message and the
    latest utterance cannot be reduced; where they leave too little room, nothing more is promised. Nor is it
    afterwards, because what had to go stays away."""
    limit = min(room // KEPT_SHARE, KEPT_TOKENS)
    fixed = users = newest_user = newest_utterance = 0
    is_tight = False
    for event in log:
        said = pieces(event.fact)
        units = MESSAGE_TOKENS + sum(count(text) for _, text, _ in said)
        match event.fact:
            case Instructed() | Pinned():
                fixed += units
            case UserSaid() if said:
                users += units
                newest_user = units
            case ModelSaid():
                newest_utterance = units
            case _:
                continue
        held = users if users <= limit else newest_user
        is_tight = is_tight or fixed + newest_utterance + held > room * FLOOR_SHARE
    if is_tight:
        return "tight"
    return "within" if users <= limit else "beyond"


def kept_faults(coverage: Coverage, users: Sequence[Event], share: Share) -> list[str]:
    """Return each broken promise as `e12 lost` or the like."""
    states = [(event, coverage.user_state(event) if pieces(event.fact) else "verbatim") for event in users]
    if share == "within":
        return [f"{event.handle} {state}" for event, state in states if state != "verbatim"]
    faults = [f"{event.handle} {state}, the latest" for event, state in states[-1:] if state != "verbatim"]
    allowed = ("verbatim", "clipped", "named", "in a range") if share == "tight" else ("verbatim", "clipped")
    faults += [f"{event.handle} {state}, the first" for event, state in states[:1] if state not in allowed]
    allowed = ("verbatim", "clipped", "named", *(("in a range",) if share == "tight" else ()))
    return faults + [f"{event.handle} {state}" for event, state in states[1:-1] if state not in allowed]
