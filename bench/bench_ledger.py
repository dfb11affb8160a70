"""Compares the recall of the ledger with summaries written by models, at equal size.

Recorded compactions: at each compaction of the openhands recordings (pi has none on record), the ledger gets
the events that were hidden by then and as many tokens (o200k) as the recorded summary took. Wanted are the
needs of later calls, up to the next compaction, that occur in hidden results and nowhere else: neither in a
kept message nor in a later one (`foveal.replay.recall_score` defines a need). Needs that the agent fetched
again before using them are counted separately: they were wanted too, but some of them would have been fetched
anyway.

Simulated compactions: the same in recordings without compactions. At 40, 60 and 80 % of a conversation, all but
its first two and its newest 30 messages are replaced by a ledger of 400 tokens, and the needs until the end
count. There is no summary to compare with; the baseline is a list of the newest names that fit into as many
tokens.

The ledger's rules for names and lines that are likely to be reused were derived from the simulated compactions.
The shares of its sections, its thresholds and how much it reads were chosen with both tables in view, so
neither table is a test on unseen conversations.

    python -m bench ledger             print the totals
    python -m bench.bench_ledger       print every compaction
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.measure import Row, progress
from foveal.core.compaction.ledger.ledger import Ledger
from foveal.core.log import AnyFact, Event, ModelSaid, ToolReturned, calls_of, text_of
from foveal.core.tokens.counter import counter
from foveal.core.view.text_facts import find_names
from foveal.core.wire.openai_chat import read
from foveal.replay import Need, argument_texts, common_names, contains_word, find_needs

DATA: Final = Path(__file__).parents[2] / "shared" / "data"
AGENTS: Final = ("openhands", "pi", "miniswe", "moatless", "swesmith", "claude_code", "codex", "cline", "roo")
RECORDED_SOURCES: Final = ("openhands", "pi")
SIMULATED_SOURCES: Final = ("miniswe", "pi", "moatless", "claude_code", "codex", "roo")
ROOM_TOKENS: Final = 400
KEPT_MESSAGES: Final = 30
SHARES: Final = (0.4, 0.6, 0.8)
KINDS: Final = ("ident", "line")
O200K: Final = counter("o200k_base")


class Case(NamedTuple):
    """One compaction."""

    id: str
    events: list[Event]
    """The events that it replaces."""
    elsewhere: Set[str]
    """Names in the rest of the view."""
    wanted: list[Need]
    fetched: list[Need]
    """Needs that the agent fetched again before using them."""
    room: int
    summary: str


class Score(NamedTuple):
    """How many needs a text contains, of how many."""

    found: int
    wanted: int

    def __str__(self) -> str:
        return f"{self.found}/{self.wanted}"

    @property
    def share(self) -> float:
        return self.found / self.wanted if self.wanted else 1.0


def score(case: Case, text: str, *, kind: str, far: bool = False, fetched: bool = False) -> Score:
    """Score a text by the wanted needs, with `fetched` also by those that were fetched again."""
    asked = [
        need for need in case.wanted + case.fetched * fetched if need.kind == kind and (need.far or not far)
    ]
    return Score(sum(contains_word(text, need.text) for need in asked), len(asked))


def add_scores(scores: Iterable[Score]) -> Score:
    every = list(scores)
    return Score(sum(one.found for one in every), sum(one.wanted for one in every))


def ledger_of(case: Case) -> str:
    return Ledger(case.events, O200K).write(room=case.room, elsewhere=case.elsewhere)


# ── The compactions ────────────────────────────────────────────────────────────────────────────────────


@cache
def recorded_cases() -> list[Case]:
    return [case for row in rows_of(RECORDED_SOURCES) for case in _recorded_cases_of(row)]


@cache
def simulated_cases() -> list[Case]:
    return [case for row in rows_of(SIMULATED_SOURCES) for case in _simulated_cases_of(row)]


def _recorded_cases_of(row: dict[str, Any]) -> Iterator[Case]:
    """Yield the compactions of one conversation; each replaces everything hidden by then, as its summary
    does."""
    happened = row["meta"].get("condensations") or []
    if not happened:
        return
    facts, places = _facts(row["messages"])
    found = find_needs(facts, common=common())
    gone: set[int] = set()
    until = [places[one["before_message"]] for one in happened[1:]] + [len(facts)]
    for number, (one, end) in enumerate(zip(happened, until, strict=True)):
        gone |= {place for message in one["forgotten"] for place in _facts_of_message(places, message)}
        name = f"{row['id']} {number + 1}"
        start = places[one["before_message"]]
        room = O200K.count(one["summary"])
        yield _case(name, facts, found, gone, start, end, room=room, summary=one["summary"])


def _simulated_cases_of(row: dict[str, Any]) -> Iterator[Case]:
    if row["meta"].get("condensations"):
        return
    facts, _ = _facts(row["messages"])
    found = find_needs(facts, common=common())
    for share in SHARES:
        start = int(len(facts) * share)
        gone = set(range(2, start - KEPT_MESSAGES))
        if len(gone) >= KEPT_MESSAGES:
            yield _case(
                f"{row['id']} {share:.0%}",
                facts,
                found,
                gone,
                start,
                len(facts),
                room=ROOM_TOKENS,
                summary="",
            )


def _case(
    name: str,
    facts: Sequence[AnyFact],
    found: Sequence[Need],
    gone: Set[int],
    start: int,
    end: int,
    *,
    room: int,
    summary: str,
) -> Case:
    utterances = [place for place, fact in enumerate(facts) if isinstance(fact, ModelSaid)]
    texts = [_full_text(fact) for fact in facts]
    results = [texts[place] for place in sorted(gone) if isinstance(facts[place], ToolReturned)]
    kept = [texts[place] for place in range(start) if place not in gone]
    wanted: list[Need] = []
    fetched: list[Need] = []
    for need in found:
        at = utterances[need.call - 1]
        if start <= at < end and _any_contains(results, need) and not _any_contains(kept, need):
            (fetched if _any_contains(texts[start:at], need) else wanted).append(need)
    events = [Event(place, facts[place]) for place in sorted(gone)]
    elsewhere = {one for text in kept for one in find_names(text)}
    return Case(name, events, elsewhere, wanted, fetched, room, summary)


def _any_contains(texts: Iterable[str], need: Need) -> bool:
    return any(contains_word(text, need.text) for text in texts)


def _facts(messages: Sequence[Any]) -> tuple[list[AnyFact], list[int]]:
    """Return the facts and, for each message and the end, the index of its first fact."""
    facts: list[AnyFact] = []
    places: list[int] = []
    for chunk in read(messages):
        places += [len(facts)] * chunk.messages
        facts += chunk.facts
    return facts, [*places, len(facts)]


def _facts_of_message(places: Sequence[int], message: int) -> range:
    return range(places[message], max(places[message] + 1, places[message + 1]))


def _full_text(fact: AnyFact) -> str:
    content = getattr(fact, "content", "")
    called = [text for _, call in calls_of(content) for text in argument_texts(call)]
    return "\n".join([text_of(content), *called])


@cache
def common() -> frozenset[str]:
    return common_names([_facts(row["messages"])[0] for row in rows_of(AGENTS)])


def rows_of(files: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in files:
        with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


# ── The tables ─────────────────────────────────────────────────────────────────────────────────────────


def newest_names(case: Case) -> str:
    """Return the baseline: the newest names in the results, as many as fit."""
    kept: dict[str, None] = {}
    for event in reversed(case.events):
        if isinstance(event.fact, ToolReturned):
            for line in text_of(event.fact.content).splitlines():
                kept |= dict.fromkeys(name for name in find_names(line) if name not in case.elsewhere)
        if len(kept) > case.room:
            break
    text = ", ".join(kept)
    return text[: O200K.head(text, case.room)]


def rows() -> Iterator[Row]:
    if not DATA.exists():
        yield Row("needs that a ledger misses", None, note="the recorded conversations are not available")
        return
    progress("ledger: recorded compactions …")
    cases = recorded_cases()
    texts = [ledger_of(case) for case in cases]
    for kind in KINDS:
        ours = add_scores(score(case, text, kind=kind) for case, text in zip(cases, texts, strict=True))
        theirs = add_scores(score(case, case.summary, kind=kind) for case in cases)
        note = f"ledger {ours}, the recorded summaries {theirs}, at equal size"
        yield Row(f"needs ({kind}) that a ledger misses", 1 - ours.share, "×", 1 - theirs.share, note)
    progress("ledger: simulated compactions …")
    for kind in KINDS:
        ours = add_scores(score(case, ledger_of(case), kind=kind) for case in simulated_cases())
        theirs = add_scores(score(case, newest_names(case), kind=kind) for case in simulated_cases())
        note = f"ledger {ours}, the newest names {theirs}, {ROOM_TOKENS} tokens each"
        yield Row(f"the same, simulated compactions ({kind})", 1 - ours.share, "×", 1 - theirs.share, note)


def main() -> None:
    print(f"{'compaction':<32} {'room':>5} {'used':>5}   ident: ledger  summary   line: ledger  summary")
    fewer = 0
    for case in recorded_cases():
        text = ledger_of(case)
        pairs = [(score(case, text, kind=kind), score(case, case.summary, kind=kind)) for kind in KINDS]
        fewer += any(ours.found < theirs.found for ours, theirs in pairs)
        row = "  ".join(f"{ours!s:>13} {theirs!s:>8}" for ours, theirs in pairs)
        print(f"{case.id:<32} {case.room:>5} {O200K.count(text):>5}   {row}")
    print(f"the ledger finds fewer than the summary in {fewer} of {len(recorded_cases())} compactions")
    summaries = [case.summary for case in recorded_cases()]
    for kind in KINDS:
        _print(f"recorded, {kind}", recorded_cases(), "summaries", summaries, kind=kind)
        _print(f"recorded, {kind}, far", recorded_cases(), "summaries", summaries, kind=kind, far=True)
        _print(
            f"recorded, {kind}, or fetched", recorded_cases(), "summaries", summaries, kind=kind, fetched=True
        )
    for name in SIMULATED_SOURCES:
        cases = [case for case in simulated_cases() if case.id.startswith(name)]
        for kind in KINDS if cases else ():
            what = f"simulated, {name} ({len(cases)}), {kind}"
            _print(what, cases, "newest names", [newest_names(case) for case in cases], kind=kind)


def _print(what: str, cases: Sequence[Case], other: str, others: Sequence[str], **how: Any) -> None:
    ours = add_scores(score(case, ledger_of(case), **how) for case in cases)
    theirs = add_scores(score(case, text, **how) for case, text in zip(cases, others, strict=True))
    print(f"{what:<30} ledger {ours!s:>9} {ours.share:6.1%}   {other} {theirs!s:>9} {theirs.share:6.1%}")


if __name__ == "__main__":
    main()
