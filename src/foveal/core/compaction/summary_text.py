"""Text of a summary: header line, ledger, sections by a model, end line.

The header names the range. The end line says that the actions in the record were carried out, so that a model does
not repeat them, and that standing requests and pins stay in force. Sections by a model are marked as such. They
speak about work: no summary has them without the ledger's section of what the user said, if the user said anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import Final, NamedTuple

from foveal.core.compaction.ledger.ledger import Ledger
from foveal.core.compaction.ledger.range_facts import LedgerIndex
from foveal.core.compaction.ledger.sections import REQUESTS_HEADING
from foveal.core.compaction.plan import Plan
from foveal.core.log.events import Compacted, Event, UserSaid, handle
from foveal.core.tokens.counter import Counter
from foveal.core.tokens.message_tokens import PER_MESSAGE
from foveal.core.view.text_facts import find_names

LEDGER_AUTHOR: Final = "ledger"
"""Author of a summary that no model wrote."""
END_LINE: Final = (
    "[foveal: end of the record. Its actions were carried out: do not repeat them. Standing requests and pins stay "
    "in force. Of two statements of the user the later one counts, wherever it is shown. Go on with the latest "
    "open request.]"
)
_NEEDED_LEDGER_SHARE: Final = 0.4
"""Share of the text that requests, changed files and errors in the ledger may take from a model's sections."""
_NO_SPAN: Final = (0, -1)
_NEXT_SECTION: Final = re.compile(r"^#{1,6}[ \t]*Next[ \t]*$.*?(?=^#{1,6}[ \t]|\Z)", re.MULTILINE | re.DOTALL)


class SummaryPart(NamedTuple):
    """The text about some of the events."""

    last: int
    """Seq of the newest of them, by which parts are ordered."""
    seqs: frozenset[int]
    text: str
    model: bool = True
    """Whether a model wrote it; otherwise it is a ledger."""


def reuse_parts(plan: Plan, events: Sequence[Event], earlier: Sequence[Compacted]) -> list[SummaryPart]:
    """Return what models wrote for earlier summaries inside the range; of nested summaries only the outermost."""
    inside = [fact for fact in earlier if fact.chunks and plan.first <= fact.first <= fact.last <= plan.last]
    parts: list[SummaryPart] = []
    covered: set[int] = set()
    for fact in sorted(inside, key=lambda fact: fact.first - fact.last):
        seqs = {event.seq for event in events if fact.first <= event.seq <= fact.last}
        if covered & seqs or any(fact.first <= part.last <= fact.last for part in parts):
            continue
        covered |= seqs
        own = frozenset(seqs - (set(fact.keep) - set(plan.keep)))
        parts += [SummaryPart(fact.last, own, text) for text in fact.chunks]
    return sorted(parts, key=lambda part: part.last)


def header_line(plan: Plan, by: str) -> str:
    turns = f"{plan.turns} turn{'s' * (plan.turns != 1)}, " if plan.turns else ""
    author = "without a model" if by == LEDGER_AUTHOR else "from the log"
    return (
        f"[foveal: record of {handle(plan.first)}–{handle(plan.last)}, {turns}{plan.events} events, "
        f"written {author}. Recall tools, where there are any, read the originals by handle.]"
    )


def author_line(by: str) -> str:
    """Return the line above a model's sections, or above a record of messages that are in no range of the log."""
    if by == LEDGER_AUTHOR:
        return "[foveal: from here on a record of what came before, written without a model.]"
    return f"[foveal: from here on by {' '.join(by.split())}, unverified beyond the names in it.]"


def max_text_units(plan: Plan) -> int:
    """Return the units that the text may take: its room, and less than what it replaces."""
    return min(plan.room, plan.before - 1) - PER_MESSAGE


def compose(
    plan: Plan,
    events: Sequence[Event],
    *,
    by: str,
    sections: str,
    counter: Counter,
    elsewhere: Set[str] = frozenset(),
    after: Sequence[Event] = (),
    index: LedgerIndex | None = None,
) -> str:
    """Return the summary with a model's sections (or none); "" when it cannot be made small enough, or when the
    sections leave no room for what the user said.

    Requests, changed files and unresolved errors have a share of the text; sections that leave less are cut. Names
    in `elsewhere` are shown outside of the range."""
    max_units = max_text_units(plan)
    header = header_line(plan, by)
    ledger = Ledger(
        events, keep=frozenset(plan.keep), shortened=frozenset(plan.shortened), after=after, index=index
    )

    def ledger_of(room: int, *, only_needed: bool = False) -> str:
        known = elsewhere | set(find_names(sections)) if sections else elsewhere
        return ledger.write(
            room=room,
            counter=counter,
            elsewhere=known,
            span=_NO_SPAN,
            only_needed=only_needed,
        )

    if sections:
        fixed = sum(counter.count_all([header, author_line(by), END_LINE])) + 8
        needed = counter.count(ledger_of(int(max_units * _NEEDED_LEDGER_SHARE), only_needed=True))
        short = cut_lines(sections, max_units - fixed - needed, counter)
        sections = f"{author_line(by)}\n{short}" if short else ""
    room = max_units - sum(counter.count_all([header, sections, END_LINE])) - 6
    # The parts are counted apart, so their sum is an estimate: the ledger gives up what the whole text exceeds.
    for _ in range(3):
        record = ledger_of(room)
        text = "\n\n".join(filter(None, (header, record, sections, END_LINE)))
        excess = counter.count(text) - max_units
        if excess <= 0:
            return text if record and (not sections or _quotes_user(record, events)) else ""
        room -= excess + 8
    return ""


def _quotes_user(record: str, events: Sequence[Event]) -> bool:
    """Return whether a ledger has the section of what the user said, or the user said nothing."""
    return REQUESTS_HEADING in record or not any(isinstance(event.fact, UserSaid) for event in events)


def compose_ledger_only(
    plan: Plan,
    events: Sequence[Event],
    *,
    counter: Counter,
    after: Sequence[Event] = (),
    index: LedgerIndex | None = None,
) -> str:
    """Return the ledger with a short header and no end line, for a small room; "" when even that does not fit."""
    max_units = max_text_units(plan)
    header = f"[foveal: record of {handle(plan.first)}–{handle(plan.last)}, of what has happened]"
    room = max_units - counter.count(header) - 2
    ledger = Ledger(
        events, keep=frozenset(plan.keep), shortened=frozenset(plan.shortened), after=after, index=index
    )
    text = "\n".join(filter(None, (header, ledger.write(room=room, counter=counter, span=_NO_SPAN))))
    return text if counter.count(text) <= max_units else ""


def join_parts(parts: Sequence[SummaryPart], *, max_units: int, counter: Counter) -> str:
    """Join what models wrote about consecutive ranges, each text cut to its share where needed."""
    written = [part for part in parts if part.model]
    if len(written) == 1:
        return cut_lines(written[0].text, max_units, counter)
    # Only the newest part says what comes next.
    older = [_NEXT_SECTION.sub("", part.text).strip() for part in written[:-1]]
    texts = older + [part.text for part in written[-1:]]
    titles = [f"# Part {number} of {len(written)}" for number in range(1, len(written) + 1)]
    if written:
        titles[-1] += " (the newest: where parts disagree, it is right)"
    room = max(0, max_units - sum(counter.count_all(titles)) - 4 * len(titles))
    short = shorten_texts(texts, room=room, counter=counter)
    return "\n\n".join(f"{title}\n{text}" for title, text in zip(titles, short, strict=True) if text)


def shorten_texts(texts: Sequence[str], *, room: int, counter: Counter) -> list[str]:
    """Return the texts unchanged if the room holds them, else each cut to its share."""
    sizes = counter.count_all(texts)
    if sum(sizes) <= room:
        return list(texts)
    return [
        cut_lines(text, size * room // sum(sizes), counter) for text, size in zip(texts, sizes, strict=True)
    ]


def cut_lines(text: str, max_units: int, counter: Counter) -> str:
    """Return the beginning of a text in whole lines, with a mark where it was cut."""
    if counter.count(text) <= max_units:
        return text
    short = text[: counter.head(text, max(0, max_units - 4))].rpartition("\n")[0].rstrip()
    return f"{short}\n[…]" if short else ""
