"""Law 13: a cut that nothing forces does no harm, in loops over results that are not about code.

1. A request that fits loses at most half of its tokens, unless what stays carries the hidden results: a line or a
   value of each, the newest first, as far as the room of the record goes.
2. After cuts that are forced, most questions about old results are answered by the request or by one
   `recall_search`.

FOVEAL_SOAK=1 runs 200 calls of every kind with every model.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveal
from foveal.core.log import Dialect
from support.effort import examples, rest_in_soak
from support.foreign_results import KINDS, ForeignResult, call_id, foreign_result, foreign_step
from support.histories import Json, recount, strings, user

SOAK: Final = bool(os.environ.get("FOVEAL_SOAK"))
CALLS: Final = 200 if SOAK else 110
"""Calls of a loop: 110 take about 50,000 tokens, more than any early cut waits for."""
DIALECTS: Final[dict[str, Dialect]] = {
    "gpt-4.1": "openai_chat",
    "claude-sonnet-4": "anthropic",
    "gpt-5": "openai_chat",
}
LOOPS: Final = [
    (kind, model)
    for at, kind in enumerate(KINDS)
    for place, model in enumerate(DIALECTS)
    if SOAK or at % len(DIALECTS) == place
]
FORCED_SHARE: Final = 0.97
"""Share of the limit above which a cut counts as forced: the test counts tokens a little differently."""
MAX_LINE_TOKENS: Final = 80
"""Tokens that a record needs at most to carry one result."""
MIN_PIECE_CHARS: Final = 6
PIECE_CHARS: Final = 28
"""Characters of a line or sentence by which it is found again."""
QUESTIONS: Final = 10
MIN_ANSWERED: Final = 7


# ── Loops ────────────────────────────────────────────────────────────────────────────────────────────────


class Cut(NamedTuple):
    """A request whose beginning is not that of the request before."""

    calls: int
    """Results of the conversation so far."""
    before: list[Json]
    """The request without the cut."""
    after: list[Json]
    is_forced: bool

    @property
    def kept_share(self) -> float:
        return recount(self.after) / recount(self.before)


class Loop:
    """An agent loop as a user writes it: the history grows by a call and its result, and `fit` follows."""

    def __init__(self, results: Sequence[ForeignResult], model: str, **settings: Any) -> None:
        self.results = results
        self.ctx = foveal.Context(model, **settings)
        self.dialect = DIALECTS[model]
        self.history: list[Json] = [user("Read all of them, then answer my questions about what they say.")]
        self.request: list[Json] = []

    def run(self, *, start: int = 0) -> Iterator[Cut]:
        """Yield the cuts of a loop whose first request comes after `start` results."""
        for number, result in enumerate(self.results, 1):
            step = list(foreign_step(result, number - 1, self.dialect))
            self.history += step
            if number < start:
                continue
            before = [*self.request, *step] if self.request else self.history
            self.request = self.ctx.fit(self.history)
            if self.request[: len(before) - len(step)] != before[: len(before) - len(step)]:
                report = self.ctx.report()
                # A model's tokens are not those of the test; the request after the cut says how they compare.
                tokens = recount(before) * report.used / recount(self.request)
                yield Cut(number, before, self.request, tokens > FORCED_SHARE * report.limit)


def results_of(kind: str, calls: int = CALLS) -> list[ForeignResult]:
    return [foreign_result(kind, number) for number in range(calls)]


def collapse(text: str) -> str:
    return " ".join(text.split())


def text_of_request(messages: list[Json]) -> str:
    return "\n".join(strings(messages))


# ── What a request carries of its results ────────────────────────────────────────────────────────────────


def pieces_of(result: ForeignResult) -> set[str]:
    """Return what a reader knows a result by: beginnings of its lines and sentences, and its figures."""
    plain = re.sub(r"<[^<>]*>", "\n", result.text)
    parts = (collapse(part)[:PIECE_CHARS] for part in re.split(r"\n|(?<=[.;:]) ", plain))
    figures = set(re.findall(r"[\w.,-]*\d[\w.,-]*\w", result.text))
    pieces = {part for part in parts if len(part) >= MIN_PIECE_CHARS} | {
        word for word in figures if len(word) > 4
    }
    return {piece for piece in pieces if piece not in str(result.arguments)}


class CarriedResults:
    """Tells what a request shows of each result: all of it, a part at its place, or a piece that no other has."""

    def __init__(self, results: Sequence[ForeignResult]) -> None:
        self._texts = [collapse(result.text) for result in results]
        self._pieces = [pieces_of(result) for result in results]
        self._owners = Counter(piece for pieces in self._pieces for piece in pieces)

    def hidden(self, calls: int, request: str) -> list[int]:
        """Return the numbers of the results that are not shown whole, the newest first."""
        return [number for number in reversed(range(calls)) if self._texts[number] not in request]

    def is_carried(self, number: int, request: str, places: Mapping[str, str]) -> bool:
        place = places.get(call_id(number), "")
        return any(
            piece in place or (self._owners[piece] == 1 and piece in request)
            for piece in self._pieces[number]
        )


def result_texts(messages: list[Json]) -> dict[str, str]:
    """Return what a request shows as the result of each call."""
    parts = [
        part for message in messages if isinstance(message["content"], list) for part in message["content"]
    ]
    shown = {part["tool_use_id"]: part["content"] for part in parts if part["type"] == "tool_result"}
    shown |= {
        message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"
    }
    return {name: collapse("\n".join(strings(content))) for name, content in shown.items()}


def check_unforced(cut: Cut, carried: CarriedResults, *, record_tokens: int) -> None:
    """Assert that a cut that nothing forced keeps half, or carries what it hides, the newest first."""
    if cut.is_forced or cut.kept_share >= 0.5:
        return
    request, places = collapse(text_of_request(cut.after)), result_texts(cut.after)
    hidden = carried.hidden(cut.calls, request)
    wanted = hidden[: record_tokens // MAX_LINE_TOKENS]
    missing = [number for number in wanted if not carried.is_carried(number, request, places)]
    about = f"{recount(cut.before):,} → {recount(cut.after):,} tokens at call {cut.calls}"
    assert not missing, f"{about}: {len(missing)} of {len(hidden)} hidden results are not carried"


def record_tokens(ctx: foveal.Context) -> int:
    policy = foveal.policy("economy")
    return min(policy.summary_tokens, int(policy.summary_share * ctx.report().limit))


# ── Laws ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("kind", "model"), rest_in_soak(LOOPS, every=3))
def test_a_cut_that_nothing_forces_keeps_half_or_carries_what_it_hides(kind: str, model: str) -> None:
    loop = Loop(results_of(kind), model)
    carried = CarriedResults(loop.results)
    room = record_tokens(loop.ctx)
    for cut in loop.run():
        check_unforced(cut, carried, record_tokens=room)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS if SOAK else ("mail",))
def test_a_history_that_exists_already_follows_the_same_rule(kind: str) -> None:
    for model in DIALECTS if SOAK else ("gpt-4.1",):
        loop = Loop(results_of(kind, 352), model)  # 704 messages and the task, before the newest call
        carried = CarriedResults(loop.results)
        room = record_tokens(loop.ctx)
        for cut in loop.run(start=351):
            check_unforced(cut, carried, record_tokens=room)


def answers(loop: Loop, result: ForeignResult) -> bool:
    """Return whether the request or one search has the answer to the question about a result."""
    found = loop.ctx.recall("recall_search", {"query": result.question})
    return result.answer in text_of_request(loop.request) or result.answer in found


@pytest.mark.parametrize("kind", rest_in_soak(KINDS, every=4))
def test_after_forced_cuts_most_questions_about_old_results_have_an_answer(kind: str) -> None:
    loop = Loop(results_of(kind), "gpt-4.1", window=32_000)
    assert [cut for cut in loop.run() if cut.is_forced or cut.kept_share < 1]
    old = loop.results[: len(loop.results) * 3 // 4]
    asked = old[:: len(old) // QUESTIONS][:QUESTIONS]
    unanswered = [result.question for result in asked if not answers(loop, result)]
    assert len(unanswered) <= QUESTIONS - MIN_ANSWERED, unanswered


@examples(12)
@given(
    kinds=st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4),
    model=st.sampled_from(list(DIALECTS)),
    calls=st.integers(60, 140),
    start=st.integers(1, 140),
    first=st.integers(0, 10_000),
)
def test_mixed_results_follow_the_same_rule(
    kinds: list[str], model: str, calls: int, start: int, first: int
) -> None:
    results = [foreign_result(kinds[number % len(kinds)], first + number) for number in range(calls)]
    loop = Loop(results, model)
    carried = CarriedResults(results)
    room = record_tokens(loop.ctx)
    for cut in loop.run(start=min(start, calls)):
        check_unforced(cut, carried, record_tokens=room)


@pytest.mark.parametrize(("kind", "model"), rest_in_soak(LOOPS, every=3))
def test_without_early_cuts_nothing_is_cut_that_fits(kind: str, model: str) -> None:
    loop = Loop(results_of(kind), model, policy=foveal.policy("economy", early=False))
    assert [cut.calls for cut in loop.run() if not cut.is_forced] == []
