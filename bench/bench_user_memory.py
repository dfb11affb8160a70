"""Measures what a memory adds to search: the evidence that requests show or one search finds.

The dialogues of the longmemeval recordings are cut into their sessions. After each session, the memory hears what
the user asked to remember, and the user says yes to every proposal. Then each question is asked once: an evidence
message counts as known if the memory's text has an entry from it, and as found if the answer of `recall_search`
contains all of it or an entry from it. A question counts if all of its evidence messages do.

    python -m bench user_memory
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import groupby
from typing import Final, NamedTuple

from bench.bench_recall import DATA, Dialogue, dialogues
from bench.measure import Row, progress
from foveal import Memory
from foveal.core.log import Event
from foveal.core.tokens.counter import counter
from foveal.core.wire import quote_lines
from foveal.memory import MemoryEntry
from foveal.recall import InMemoryLibrary, Recall
from foveal.stores import MemoryStore

SEARCH_TOKENS: Final = 16_000
MIN_EVIDENCE_SHARE: Final = 0.93


class KnownEvidence(NamedTuple):
    """The evidence messages of one question, and how many of them are known in each way."""

    wanted: int
    searched: int
    """Found by search without a memory."""
    shown: int
    """In the memory's text."""
    either: int
    """In the memory's text, or found by search with the memory."""


def rows() -> Iterator[Row]:
    few, many = asyncio.run(_change_seconds(1_000)), asyncio.run(_change_seconds(10_000))
    yield Row("a change and a request, 10,000 entries to 1,000", many / few, unit="×", limit=12)
    if not DATA.exists():
        yield Row("evidence in memory", None, note="the recorded conversations are not available")
        return
    found: list[KnownEvidence] = []
    entries = 0
    for dialogue in dialogues():
        progress(f"user_memory: {dialogue.id} …")
        memory, asked = asyncio.run(_measure(dialogue))
        entries += memory
        found += asked
    total = sum(one.wanted for one in found)
    note = f"{entries:,} entries, {len(found)} questions, {total} evidence messages"
    for name in ("searched", "shown", "either"):
        share = sum(getattr(one, name) for one in found) / total
        whole = sum(getattr(one, name) == one.wanted for one in found)
        limit = MIN_EVIDENCE_SHARE if name == "either" else None
        what = {"searched": "search alone", "shown": "memory alone", "either": "memory, or one search"}[name]
        yield Row(
            f"evidence known: {what}", share, "%", limit, f"{whole} whole questions; {note}", at_least=True
        )


async def _measure(dialogue: Dialogue) -> tuple[int, list[KnownEvidence]]:
    """Return the number of entries that a memory learns from a dialogue, and what is known of its questions."""
    counting = counter("o200k_base")
    memory = Memory("user", store=MemoryStore(), counting=counting)
    places = dict(zip(dialogue.texts, dialogue.events, strict=True))
    for session, ids in groupby(dialogue.texts, key=lambda id: id.partition("#")[0]):
        said = [places[id] for id in ids]
        await memory.hear(said, session=session)
        for proposal in await memory.propose(said, session=session):
            await memory.accept(proposal.id)
    library = InMemoryLibrary(dialogue.events)
    alone = Recall(library, tokens=SEARCH_TOKENS, counting=counting)
    with_memory = Recall(library, tokens=SEARCH_TOKENS, counting=counting, memories=[memory])
    entries = await memory.entries()
    asked: list[KnownEvidence] = []
    for question, wanted in dialogue.questions:
        plain = await alone.call("recall_search", {"query": question})
        answer = await with_memory.call("recall_search", {"query": question})
        shown = [_has_entry(memory.text, entries, places[id]) for id in wanted]
        found = [
            _has_message(answer, dialogue.texts[id]) or _has_entry(answer, entries, places[id])
            for id in wanted
        ]
        asked.append(
            KnownEvidence(
                len(wanted),
                sum(_has_message(plain, dialogue.texts[id]) for id in wanted),
                sum(shown),
                sum(one or other for one, other in zip(shown, found, strict=True)),
            )
        )
    return len(entries), asked


def _has_message(answer: str, text: str) -> bool:
    return f"\n{quote_lines(text)}\n" in f"\n{answer}\n"


def _has_entry(text: str, entries: list[MemoryEntry], event: Event) -> bool:
    """Return whether a text has an entry that was said in a message."""
    return any(entry.origin.event == event.handle and entry.text in text for entry in entries)


async def _change_seconds(count: int) -> float:
    """Return the CPU seconds of one more statement and the text of a request, the best of five."""
    memory = Memory("ada", store=MemoryStore(), counting=counter("estimate"))
    line = '{{"id": "m{0}", "kind": "fact", "text": "Box {0} holds part {1}.", "origin": {{}}}}'
    await memory.import_("\n".join(line.format(n, n * 7) for n in range(count)))
    await memory.remember("The first statement reads all of the others.")
    seconds = []
    for number in range(5):
        start = time.process_time()
        await memory.remember(f"New statement number {number} about thing {number}.")
        assert memory.text
        seconds.append(time.process_time() - start)
    return min(seconds)
