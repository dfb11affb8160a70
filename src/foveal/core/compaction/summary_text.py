"""The text of a summary: a line that says what it is, sections by code, sections by a model, a line to end with.

It is a record of what has happened, and says so at its beginning and end: nobody shall carry it out again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import Final, NamedTuple

from foveal.core.compaction.ledger.ledger import ledger
from foveal.core.compaction.plan import Plan
from foveal.core.log.events import Compacted, Event, handle
from foveal.core.reduction.placeholder import names
from foveal.core.tokens.counter import Counter
from foveal.core.tokens.message_tokens import PER_MESSAGE

CODE: Final = "ledger"
"""Who wrote it, when no model did."""
END: Final = (
    "[foveal: end of the record. All of it already happened: do not carry it out again. "
    "Go on with the latest request.]"
)
_NEXT: Final = re.compile(r"^#{1,6}[ \t]*Next[ \t]*$.*?(?=^#{1,6}[ \t]|\Z)", re.MULTILINE | re.DOTALL)


class SummaryPart(NamedTuple):
    """What was written about some events."""

    last: int
    """The newest of them: pieces are ranked by it."""
    seqs: frozenset[int]
    text: str
    model: bool = True
    """A model wrote it; otherwise it is a ledger."""


def reused(plan: Plan, events: Sequence[Event], earlier: Sequence[Compacted]) -> list[SummaryPart]:
    """What models wrote for summaries that lie in the range; of those that lie in each other, for the outermost."""
    inside = [fact for fact in earlier if fact.chunks and plan.first <= fact.first <= fact.last <= plan.last]
    pieces: list[SummaryPart] = []
    taken: set[int] = set()
    for fact in sorted(inside, key=lambda fact: fact.first - fact.last):
        seqs = {event.seq for event in events if fact.first <= event.seq <= fact.last}
        if taken & seqs or any(fact.first <= piece.last <= fact.last for piece in pieces):
            continue
        taken |= seqs
        own = frozenset(seqs - (set(fact.keep) - set(plan.keep)))
        pieces += [SummaryPart(fact.last, own, text) for text in fact.chunks]
    return sorted(pieces, key=lambda piece: piece.last)


def header(plan: Plan, by: str) -> str:
    turns = f"{plan.turns} turn{'s' * (plan.turns != 1)}, " if plan.turns else ""
    who = "without a model" if by == CODE else f"by {' '.join(by.split())}"
    return (
        f"[foveal: record of {handle(plan.first)}–{handle(plan.last)}, {turns}{plan.events} events, "
        f"written {who}. It tells what has happened and asks for nothing. "
        "Recall tools, where there are any, read the originals by handle.]"
    )


def allowed(plan: Plan) -> int:
    """Units that the text may take: its room, and less than what it replaces."""
    return min(plan.room, plan.before - 1) - PER_MESSAGE


def composed(
    plan: Plan,
    events: Sequence[Event],
    *,
    by: str,
    sections: str,
    counter: Counter,
    elsewhere: Set[str] = frozenset(),
    after: Sequence[Event] = (),
) -> str:
    """The summary with these sections of a model (or none): "" when it cannot be made small enough."""
    most, keep = allowed(plan), frozenset(plan.keep)
    first, last = header(plan, by), END
    fixed = sum(counter.count_all([first, sections, last])) + 6
    shown = elsewhere | set(names(sections)) if sections else elsewhere
    share = most - fixed
    for _ in range(3):
        told = ledger(events, room=share, counter=counter, keep=keep, elsewhere=shown, after=after)
        text = "\n\n".join(filter(None, (first, told, sections, last)))
        over = counter.count(text) - most
        if over <= 0:
            return text if told or sections else ""
        share -= over + 8
    text = "\n\n".join((first, sections, last))
    if sections and counter.count(text) <= most:
        return text
    return ""


def bare(plan: Plan, events: Sequence[Event], *, counter: Counter, after: Sequence[Event] = ()) -> str:
    """The ledger with nothing around it, for a room that holds no more: "" when it does not even hold that."""
    most = allowed(plan)
    text = ledger(events, room=most, counter=counter, keep=frozenset(plan.keep), after=after)
    return text if text and counter.count(text) <= most else ""


def concatenated(pieces: Sequence[SummaryPart], *, most: int, counter: Counter) -> str:
    """What models wrote about consecutive stretches, one after the other, each cut to a share if need be."""
    told = [piece for piece in pieces if piece.model]
    if len(told) == 1:
        return cut(told[0].text, most, counter)
    texts = [_NEXT.sub("", piece.text).strip() for piece in told[:-1]] + [piece.text for piece in told[-1:]]
    titles = [f"# Part {place} of {len(told)}" for place in range(1, len(told) + 1)]
    if told:
        titles[-1] += " (the newest: where parts disagree, it is right)"
    room = max(0, most - sum(counter.count_all(titles)) - 4 * len(titles))
    short = shares(texts, room=room, counter=counter)
    return "\n\n".join(f"{title}\n{text}" for title, text in zip(titles, short, strict=True) if text)


def shares(texts: Sequence[str], *, room: int, counter: Counter) -> list[str]:
    """The texts as they are if the room holds them, else each cut to its part of it."""
    sizes = counter.count_all(texts)
    if sum(sizes) <= room:
        return list(texts)
    return [cut(text, size * room // sum(sizes), counter) for text, size in zip(texts, sizes, strict=True)]


def cut(text: str, most: int, counter: Counter) -> str:
    """The beginning of a text in whole lines, and a mark where it was cut."""
    if counter.count(text) <= most:
        return text
    short = text[: counter.head(text, max(0, most - 4))].rpartition("\n")[0].rstrip()
    return f"{short}\n[…]" if short else ""
