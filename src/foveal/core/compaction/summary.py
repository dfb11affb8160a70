"""The summary of a range: what it is written from, its text, and the fact to record.

`ledger_summary` writes one without a model: plan, ledger, record. `summary_dialogue` asks models first, and ends
with the same `record`.

1. A text has a header line, the ledger, the sections by a model if there are any, and an end line.
2. The header names the range. The end line says that the actions in the record were carried out, so that a model
   does not repeat them, and that standing requests and pins stay in force.
3. Sections by a model are marked as such. They speak about work: no summary has them without the ledger's section
   of what the user said, if the user said anything.
4. What models wrote is recorded in parts, each about some of the events, for a later summary of a wider range.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence, Set
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from foveal.core.compaction.health import CompactionMetrics, CompactionOutcome
from foveal.core.compaction.kept_messages import common_size
from foveal.core.compaction.known_names import KnownNames, score_summary
from foveal.core.compaction.ledger.allocation import REQUESTS_HEADING
from foveal.core.compaction.ledger.ledger import Ledger
from foveal.core.compaction.ledger.range_facts import LedgerIndex
from foveal.core.compaction.plan import Plan
from foveal.core.log.events import (
    BRANCH,
    DIALOGUE_TYPES,
    Compacted,
    CompactionFailed,
    Dialect,
    Event,
    UserSaid,
    handle,
    raw,
)
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
SECTIONS_SHARE: Final = 0.5
"""Share of a summary's text that a model is asked for."""
MAX_SECTIONS_SHARE: Final = 0.85
"""Share of a summary's text that a model's sections may take."""
SMALL_PART_UNITS: Final = 400
"""Up to this size the text about one of several chunks may be as large as the chunk."""
_WITHOUT_MODEL: Final = CompactionMetrics(seconds=0.0)
"""What a summary costs that no model was asked for. The log has `seconds` of it: a given value is encoded."""
_NEEDED_LEDGER_SHARE: Final = 0.4
"""Share of the text that requests, changed files and errors in the ledger may take from a model's sections."""
_NO_SPAN: Final = (0, -1)
_NEXT_SECTION: Final = re.compile(r"^#{1,6}[ \t]*Next[ \t]*$.*?(?=^#{1,6}[ \t]|\Z)", re.MULTILINE | re.DOTALL)


class SummarySource(msgspec.Struct, frozen=True, kw_only=True):
    """What the summary of a plan's range is written from."""

    plan: Plan
    events: Sequence[Event]
    """The effective events of the range, oldest first."""
    after: Sequence[Event] = ()
    """Those after it, which may have answered a request or resolved an error inside it."""
    earlier: Sequence[Compacted] = ()
    """Summaries inside the range: what models wrote for them is used again."""
    elsewhere: Set[str] = frozenset()
    """Names that are shown outside of the range."""
    counter: Counter
    ratio: float = 1.0
    """Tokens per unit."""
    index: LedgerIndex | None = None
    """What earlier ledgers have read."""

    # What only a model needs
    before: Sequence[Event] = ()
    """Messages before the range. A draft is in a script of these, of the range, or of what is after it."""
    beside: Sequence[str] = ()
    """Texts that are shown outside of the range (instructions, newer messages): a draft may use their names."""
    shared_total: int = 0
    """Tokens of the conversation's request up to the end of the range."""
    margin: float = 0.0
    """Share of the window by which counts may be too low."""

    @property
    def max_units(self) -> int:
        """Units that the text may take: its room, and less than what it replaces."""
        return min(self.plan.room, self.plan.before - 1) - PER_MESSAGE

    @property
    def sections_units(self) -> int:
        """Units that a model is asked for."""
        return int(self.max_units * SECTIONS_SHARE)

    @property
    def max_sections_units(self) -> int:
        """Units that the sections by a model may take."""
        return int(self.max_units * MAX_SECTIONS_SHARE)

    def ledger(self) -> Ledger:
        """Return the ledger of the range."""
        keep, shortened = frozenset(self.plan.keep), frozenset(self.plan.shortened)
        return Ledger(
            self.events,
            self.counter,
            keep=keep,
            shortened=shortened,
            after=self.after,
            index=self.index,
            focus=self.plan.focus,
        )


class SummaryPart(NamedTuple):
    """The text about some of the events."""

    last: int
    """Seq of the newest of them, by which parts are ordered."""
    seqs: frozenset[int]
    text: str
    model: bool = True
    """Whether a model wrote it; otherwise it is a ledger."""


class NativeSummary(NamedTuple):
    """A summary that the provider made of its own conversation."""

    block: Raw
    by: str
    dialect: Dialect


# ── Plan, ledger, record ─────────────────────────────────────────────────────────────────────────────────


def ledger_summary(source: SummarySource) -> CompactionOutcome:
    """Return the summary of a range without a model: the ledger, and what models wrote for earlier summaries."""
    parts = reuse_parts(source)
    authors = [fact.by for fact in source.earlier if fact.chunks and _is_by_model(fact)] if parts else []
    return record(source, join_parts(source, parts), parts=parts, authors=authors)


def _is_by_model(fact: Compacted) -> bool:
    """Return whether a model wrote a summary: the fold of a branch and the ledger are written from the log."""
    return fact.by not in (BRANCH, LEDGER_AUTHOR)


def record(
    source: SummarySource,
    sections: str,
    *,
    parts: Sequence[SummaryPart],
    authors: Collection[str],
    metrics: CompactionMetrics = _WITHOUT_MODEL,
    native: NativeSummary | None = None,
) -> CompactionOutcome:
    """Return the fact to record: a summary with a model's sections, the ledger alone, or a failure if neither fits.

    `parts` and `authors` are what the `sections` were made of, and `metrics` what they cost."""
    plan = source.plan
    by = ", ".join(dict.fromkeys(authors)) or LEDGER_AUTHOR
    summary = compose(source, by, sections)
    if not summary and (by, sections) != (LEDGER_AUTHOR, ""):
        by, summary = LEDGER_AUTHOR, compose(source, LEDGER_AUTHOR)
    summary = summary or compose_ledger_only(source)
    by = native.by if native is not None else by
    measured = raw(_measure(source, summary, metrics, parts=parts, authors=authors, by=by))
    if not summary:
        before, room = (f"{round(units * source.ratio):,}" for units in (plan.before, plan.room))
        problem = f"the range takes {before} tokens, and no summary of it fits into {room}"
        return CompactionFailed(
            first=plan.first, last=plan.last, problem=problem, by=by, metrics=measured, reason=plan.reason
        )
    return Compacted(
        first=plan.first,
        last=plan.last,
        summary=summary,
        keep=plan.keep,
        masks=plan.masks,
        chunks=_part_texts(source, parts),
        native=UNSET if native is None else native.block,
        dialect="" if native is None else native.dialect,
        by=by,
        metrics=measured,
        reason=plan.reason,
        rule=plan.rule,
    )


def _measure(
    source: SummarySource,
    summary: str,
    metrics: CompactionMetrics,
    *,
    parts: Sequence[SummaryPart],
    authors: Collection[str],
    by: str,
) -> CompactionMetrics:
    plan, ratio = source.plan, source.ratio
    after = source.counter.count(summary) + PER_MESSAGE if summary else 0
    # The score judges a model; the ledger is derived from the log, and a cut has to be fast.
    known = KnownNames(source.events, elsewhere=source.elsewhere) if summary and authors else None
    return replace(
        metrics,
        failures=tuple(one for one in metrics.failures if one.by not in by.split(", ")),
        turns=plan.turns,
        events=plan.events,
        before=round(plan.before * ratio),
        after=round(after * ratio),
        chunks=len(parts),
        score=None if known is None else score_summary(summary, known),
    )


# ── The text ─────────────────────────────────────────────────────────────────────────────────────────────


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


def compose(source: SummarySource, by: str, sections: str = "") -> str:
    """Return the summary with a model's sections (or none); "" when it cannot be made small enough, or when the
    sections leave no room for what the user said.

    Requests, changed files and unresolved errors have a share of the text; sections that leave less are cut."""
    counter, max_units = source.counter, source.max_units
    header, ledger = header_line(source.plan, by), source.ledger()

    def ledger_of(room: int, *, only_needed: bool = False) -> str:
        known = source.elsewhere | set(find_names(sections)) if sections else source.elsewhere
        return ledger.write(room=room, elsewhere=known, span=_NO_SPAN, only_needed=only_needed)

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
            return text if record and (not sections or _quotes_user(record, source.events)) else ""
        room -= excess + 8
    return ""


def _quotes_user(record: str, events: Sequence[Event]) -> bool:
    """Return whether a ledger has the section of what the user said, or the user said nothing."""
    return REQUESTS_HEADING in record or not any(isinstance(event.fact, UserSaid) for event in events)


def compose_ledger_only(source: SummarySource) -> str:
    """Return the ledger with a short header and no end line, for a small room; "" when even that does not fit."""
    counter, plan = source.counter, source.plan
    header = f"[foveal: record of {handle(plan.first)}–{handle(plan.last)}, of what has happened]"
    room = source.max_units - counter.count(header) - 2
    text = "\n".join(filter(None, (header, source.ledger().write(room=room, span=_NO_SPAN))))
    return text if counter.count(text) <= source.max_units else ""


# ── Parts ────────────────────────────────────────────────────────────────────────────────────────────────


def reuse_parts(source: SummarySource) -> list[SummaryPart]:
    """Return what models wrote for earlier summaries inside the range; of nested summaries only the outermost."""
    plan = source.plan
    inside = [
        fact for fact in source.earlier if fact.chunks and plan.first <= fact.first <= fact.last <= plan.last
    ]
    parts: list[SummaryPart] = []
    covered: set[int] = set()
    for fact in sorted(inside, key=lambda fact: fact.first - fact.last):
        seqs = {event.seq for event in source.events if fact.first <= event.seq <= fact.last}
        if covered & seqs or any(fact.first <= part.last <= fact.last for part in parts):
            continue
        covered |= seqs
        own = frozenset(seqs - (set(fact.keep) - set(plan.keep)))
        parts += [SummaryPart(fact.last, own, text) for text in fact.chunks]
    return in_order(parts)


def in_order(parts: Iterable[SummaryPart]) -> list[SummaryPart]:
    """Return parts in the order of the events that they are about."""
    return sorted(parts, key=attrgetter("last"))


def unwritten(source: SummarySource, parts: Iterable[SummaryPart]) -> list[Event]:
    """Return the events of the range that no part is about."""
    done = frozenset[int]().union(*(part.seqs for part in parts))
    return [e for e in source.events if type(e.fact) in DIALOGUE_TYPES and e.seq not in done]


def ledger_part(
    source: SummarySource, events: Sequence[Event], index: LedgerIndex | None = None
) -> SummaryPart:
    """Return a ledger of some of the events, because no model wrote about them. What it reads is kept in the
    `index`, if that is one of this summary alone: the events need not be consecutive."""
    ledger = Ledger(events, source.counter, keep=frozenset(source.plan.keep), index=index)
    text = ledger.write(room=min(SMALL_PART_UNITS, source.sections_units))
    return SummaryPart(events[-1].seq, frozenset(event.seq for event in events), text, model=False)


def _part_texts(source: SummarySource, parts: Sequence[SummaryPart]) -> tuple[str, ...]:
    """Return the texts for a later summary to reuse; none if no model wrote any: it then reads the events."""
    if not any(part.model for part in parts):
        return ()
    rest = unwritten(source, parts)
    complete = in_order([*parts, ledger_part(source, rest)]) if rest else parts
    return tuple(part.text for part in complete if part.text)


def max_joined_units(source: SummarySource, parts: Iterable[SummaryPart]) -> int:
    """Return the units that the joined texts of models may take."""
    return source.sections_units if sum(part.model for part in parts) > 1 else source.max_sections_units


def join_parts(source: SummarySource, parts: Sequence[SummaryPart], max_units: int | None = None) -> str:
    """Join what models wrote about consecutive ranges, each text cut to its share where `max_units` demand it."""
    written, counter = [part for part in parts if part.model], source.counter
    max_units = max_joined_units(source, parts) if max_units is None else max_units
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
    """Return the texts unchanged if the room holds them, else with the longest ones cut to the same size: the
    result of a branch is short, and is worth as much as a long text."""
    sizes = counter.count_all(texts)
    longest = common_size(sorted(sizes, reverse=True), sum(sizes) - room)
    return [
        cut_lines(text, longest, counter) if size > longest else text
        for text, size in zip(texts, sizes, strict=True)
    ]


def cut_lines(text: str, max_units: int, counter: Counter) -> str:
    """Return the beginning of a text in whole lines, with a mark where it was cut."""
    if counter.count(text) <= max_units:
        return text
    short = text[: counter.head(text, max(0, max_units - 4))].rpartition("\n")[0].rstrip()
    return f"{short}\n[…]" if short else ""
