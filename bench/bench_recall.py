"""Measures recall: the evidence that a search returns, the size of the index, and the times.

Evidence: every dialogue of the longmemeval recordings is a log of its messages. `recall_search` is called with the
bare question, and an evidence message counts as found if the answer contains all of it. One of the 209 evidence
messages has 16,857 tokens, more than any answer may have. Tokens are o200k tokens, including headers and quotation
marks.

    python -m bench recall             print the totals
    python -m bench.bench_recall       print every dialogue
"""

from __future__ import annotations

import asyncio
import calendar
import gzip
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from bench.measure import Row, best_of, progress
from foveal.core.log import Event, ModelSaid, UserSaid
from foveal.core.tokens.counter import counter
from foveal.core.wire import openai_chat, quote_lines
from foveal.recall import InMemoryLibrary, Recall
from foveal.stores.sqlite import FullTextIndex, searchable_text

DATA: Final = Path(__file__).parents[2] / "shared" / "data"
BUDGETS: Final = (2_000, 4_000, 8_000, 16_000)
AGENTS: Final = ("miniswe", "openhands", "pi", "tau2", "moatless", "livemcp")
MIN_EVIDENCE_SHARE: Final = 0.86


class QuestionResult(NamedTuple):
    """The result of one question."""

    dialogue: str
    found: int
    wanted: int
    tokens: int


class Dialogue(NamedTuple):
    id: str
    events: list[Event]
    texts: dict[str, str]
    questions: list[tuple[str, list[str]]]


@cache
def dialogues() -> list[Dialogue]:
    """Return the dialogues as logs with the times of the recordings."""
    read: list[Dialogue] = []
    for row in _rows("longmemeval"):
        events = [
            Event(
                seq,
                (UserSaid if message["role"] == "user" else ModelSaid)(content=message["content"]),
                _parse_time(message["time"]),
            )
            for seq, message in enumerate(row["messages"])
        ]
        texts = {message["id"]: message["content"] for message in row["messages"]}
        read.append(
            Dialogue(row["id"], events, texts, [(qa["question"], qa["evidence"]) for qa in row["qa"]])
        )
    return read


def evidence(tokens: int) -> list[QuestionResult]:
    """Run one search for each question."""
    return [found for dialogue in dialogues() for found in ask_questions(dialogue, tokens)]


def ask_questions(dialogue: Dialogue, tokens: int) -> Iterator[QuestionResult]:
    counting = counter("o200k_base")
    recall = Recall(InMemoryLibrary(dialogue.events), tokens=tokens, counting=counting)
    for question, wanted in dialogue.questions:
        answer = asyncio.run(recall.call("recall_search", {"query": question}))
        held = f"\n{answer}\n"
        found = sum(f"\n{quote_lines(dialogue.texts[message])}\n" in held for message in wanted)
        yield QuestionResult(dialogue.id, found, len(wanted), counting.count(answer))


def share(found: Sequence[QuestionResult]) -> float:
    return sum(one.found for one in found) / sum(one.wanted for one in found)


def rows() -> Iterator[Row]:
    if not DATA.exists():
        yield Row("evidence in the search results", None, note="the recorded conversations are not available")
        return
    for tokens in BUDGETS:
        progress(f"recall: evidence at {tokens:,} …")
        missed = 1 - share(evidence(tokens))
        limit = 1 - MIN_EVIDENCE_SHARE if tokens == BUDGETS[-1] else None
        yield Row(f"evidence missing at {tokens:,} tokens", missed, "×", limit, f"found {1 - missed:.1%}")
    yield from _speed()


def _speed() -> Iterator[Row]:
    """Measure an index over 100,000 events of recorded agents, repeated until there are enough."""
    texts = agent_texts(100_000)
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    index, connection = _index()
    progress("recall: indexing 100,000 events …")
    start = time.process_time()
    with connection:
        index.add(1, enumerate(texts))
    seconds = time.process_time() - start
    yield Row(
        "index one event", seconds / len(texts), note=f"{size / seconds / 1e6:.1f} MB/s in one transaction"
    )
    pages = connection.pragma("page_count") * connection.pragma("page_size")
    yield Row("index size relative to the text", pages / size, "×", 0.25, f"{size / 1e6:.0f} MB of text")
    for query in ("KeyError in separability_matrix", "which file did the test fail in?", "refund policy"):
        yield Row(f"search 100,000 events: {query}", best_of(3, _searching(index, query)), limit=0.25)
    dialogue = dialogues()[0]
    recall = Recall(InMemoryLibrary(dialogue.events), tokens=16_000)
    ask = best_of(5, lambda: asyncio.run(recall.search(dialogue.questions[0][0])))
    yield Row("recall_search, 16,000 tokens of a dialogue of 104k", ask)


def _searching(index: FullTextIndex, query: str) -> Callable[[], object]:
    return lambda: index.search(1, query, 50)


def _index() -> tuple[FullTextIndex, apsw.Connection]:
    connection = apsw.Connection(":memory:")
    index = FullTextIndex(connection)
    index.create()
    return index, connection


def agent_texts(number: int) -> list[str]:
    """Return searchable texts of recorded conversations.

    In the second and later rounds names with underscores are changed, as if new sessions used new names."""
    facts = [fact for name in AGENTS for row in _rows(name) for fact in _facts(row)]
    texts = [text for fact in facts if (text := searchable_text(Event(0, fact)))]
    rounds = range(number // len(texts) + 1)
    return [text.replace("_", f"{n}_") if n else text for n in rounds for text in texts][:number]


def _facts(row: dict[str, Any]) -> list[Any]:
    return [fact for chunk in openai_chat.read(row["messages"]) for fact in chunk.facts]


def _rows(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _parse_time(text: str) -> float:
    """Parse either form of a time: 2023-05-22T04:10:00 or 2023/05/22 (Mon) 04:10."""
    digits = "".join(letter if letter.isdigit() else " " for letter in text).split()
    year, month, day, hour, minute = (int(part) for part in digits[:5])
    return float(calendar.timegm((year, month, day, hour, minute, 0)))


def main() -> None:
    names = [dialogue.id.removeprefix("longmemeval/")[:24] for dialogue in dialogues()]
    print(f"{'tokens':>8} {'all':>7} {'mean of questions':>18} " + " ".join(f"{name:>25}" for name in names))
    for tokens in BUDGETS:
        found = evidence(tokens)
        each = [[one for one in found if one.dialogue == dialogue.id] for dialogue in dialogues()]
        mean = sum(one.found / one.wanted for one in found) / len(found)
        parts = " ".join(f"{share(ones):>25.1%}" for ones in each)
        print(
            f"{tokens:>8,} {share(found):>7.1%} {mean:>18.1%} {parts}  most {max(f.tokens for f in found):,}"
        )


if __name__ == "__main__":
    main()
