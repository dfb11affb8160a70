"""Laws 9 and 10: the user's words stay, summaries stay, and every event that is not shown is named.

The first part holds the cases that were found with loops, the second the two laws over generated and recorded
conversations. `bench.survival_checks` reads requests without the code under test.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise, product
from typing import Any, Final
from zlib import crc32

import pytest
from bench.survival_cases import (
    ERROR_LINE,
    RULE,
    SHAPES,
    chat_turns,
    one_long_request,
    parallel_step,
    short_turns,
    tool_turns,
    user,
    with_rule,
)
from bench.survival_checks import Coverage, kept_faults, room_of, share_of, unaccounted, user_events
from bench.survival_writer import MarkedWriter, account_for_summaries, shown_summaries
from hypothesis import given
from hypothesis import strategies as st

from foveal import Context, ContextOverflow
from foveal.core.log import Clipped, Compacted, Dropped, Event, UserSaid
from foveal.core.log.events import text_of
from support.effort import examples, rest_in_soak, some_cases
from support.histories import (
    ESTIMATE,
    TOOLS,
    Json,
    ScriptedHistory,
    context,
    events_of,
    scripted_histories,
    strings,
)
from support.paths import RECORDED
from support.report_checks import figures

SOAK: Final = bool(os.environ.get("FOVEAL_SOAK"))
KEEPING: Final = ("economy", "sliding-summary", "recent-summary", "handoff")
"""Presets that keep the user's words without asking anyone."""
WINDOWS: Final = (8_000, 16_000, 32_000)


# ── Conversations ────────────────────────────────────────────────────────────────────────────────────────


def requests_of(ctx: Context, turns: list[list[Json]]) -> Iterator[list[Json]]:
    """Run an agent's loop: append each message, and fit before each message of the model."""
    for turn in turns:
        for message in turn:
            if message["role"] == "assistant":
                yield ctx.fit()
            ctx.append(message)
    yield ctx.fit()


def text_of_request(request: list[Json]) -> str:
    return "\n".join(strings(request))


# ── 1. The user's words ──────────────────────────────────────────────────────────────────────────────────


RULE_CASES: Final = [
    pytest.param(
        shape, window, preset, asking, id=f"{preset}-{window}-{shape}-{'model' if asking else 'ledger'}"
    )
    for first, (shape, asking) in enumerate(product(SHAPES, (False, True)))
    for number, preset in enumerate(KEEPING)
    for window in (WINDOWS if SOAK else (WINDOWS[(first + number) % len(WINDOWS)],))
]


@pytest.mark.parametrize(("shape", "window", "preset", "asking"), some_cases(RULE_CASES, every=5))
def test_an_early_rule_is_verbatim_in_every_request(
    shape: str, window: int, preset: str, asking: bool
) -> None:
    ctx = context(window, preset, summarise=MarkedWriter() if asking else None)
    requests = list(requests_of(ctx, with_rule(SHAPES[shape](60 if SOAK else 36))))
    lost = [number for number, request in enumerate(requests[2:]) if RULE not in text_of_request(request)]
    assert lost == []


@pytest.mark.parametrize("asking", rest_in_soak([False, True]), ids=["ledger", "model"])
def test_an_early_rule_survives_260_turns_in_a_large_window(asking: bool) -> None:
    ctx = context(128_000, "economy", summarise=MarkedWriter() if asking else None)
    turns = with_rule(chat_turns(260, words=28))
    for turn in turns:
        for message in turn:
            ctx.append(message)
        if turn is not turns[0]:
            assert RULE in text_of_request(ctx.fit())
    assert events_of(ctx.log, Compacted, Dropped)


# ── 2. Summaries ─────────────────────────────────────────────────────────────────────────────────────────


PAID_SIZES: Final = (
    (16_000, 6_000, 2_000),
    (8_000, 4_500, 3_000),
    (16_000, 7_500, 3_000),
    (8_000, 4_500, 2_000),
)
"""Window, tokens of one request, and characters of a result."""
PAID_CASES: Final = [
    pytest.param(preset, *sizes, id="-".join(map(str, (preset, *sizes))))
    for number, preset in enumerate(KEEPING)
    for place, sizes in enumerate(PAID_SIZES)
    if SOAK or place // 2 == number % 2
]


@pytest.mark.parametrize(("preset", "window", "tokens", "chars"), some_cases(PAID_CASES, every=8))
def test_a_summary_that_was_paid_for_is_shown(preset: str, window: int, tokens: int, chars: int) -> None:
    writer = MarkedWriter()
    ctx = context(window, preset, summarise=writer)
    seen: list[frozenset[int]] = []
    for request in requests_of(ctx, [one_long_request(tokens, chars)]):
        log = ctx.log
        seen.append(shown_summaries(log, Coverage(log, request).own_text))
    paid = account_for_summaries(writer, ctx.log, seen)
    assert paid.unread == 0
    assert paid.in_view == paid.written
    assert seen[-1], "the last request has no summary"
    assert hidden_by_drops(ctx.log) == []


@pytest.mark.long
def test_a_request_that_leaves_hardly_any_room_wastes_no_summary() -> None:
    writer = MarkedWriter()
    ctx = context(8_000, "handoff", summarise=writer, reserve=200)
    seen: list[frozenset[int]] = []
    for request in requests_of(ctx, [one_long_request(6_000, 2_000)]):
        coverage = Coverage(ctx.log, request)
        seen.append(shown_summaries(ctx.log, coverage.own_text))
        assert unaccounted(coverage, ctx.report) == []
    paid = account_for_summaries(writer, ctx.log, seen)
    assert (paid.unread, paid.in_view) == (0, paid.written)


def hidden_by_drops(log: tuple[Event, ...]) -> list[str]:
    """Return the summaries that lie in a dropped range."""
    ranges = [pair for event in events_of(log, Dropped) for pair in event.fact.ranges]
    summaries = events_of(log, Compacted)
    return [event.handle for event in summaries for first, last in ranges if first <= event.seq <= last]


# ── 3. Results of one step ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("preset", KEEPING)
def test_results_of_one_step_are_clipped_before_anything_older_is_dropped(preset: str) -> None:
    ctx = context(16_000, preset, summarise=MarkedWriter())
    ctx.append(*short_turns(11), user("Now read all three files."))
    ctx.compact()
    ctx.fit()
    before = len(ctx.log)
    ctx.append(*parallel_step(3, 8_000))
    request = ctx.fit()
    added = ctx.log[before:]
    assert events_of(added, Dropped) == []
    results = [text_of_request([message]) for message in request if message["role"] == "tool"]
    sizes = [ESTIMATE.count(text) for text in results]
    assert len(sizes) == 3
    assert max(sizes) <= 1.5 * min(sizes), "the results do not share the room"
    for number, text in enumerate(results):
        assert ERROR_LINE.format(900 + number) in text
    assert {event.fact.target for event in events_of(added, Clipped)}
    report = ctx.report()
    assert report.summaries
    assert report.used >= 0.3 * report.limit, "more was cut than necessary"


# ── 4. The notice of a drop ──────────────────────────────────────────────────────────────────────────────


def test_the_notice_of_a_drop_names_ranges_that_recall_reads() -> None:
    ctx = context(8_000, "recent")
    request = list(requests_of(ctx, tool_turns(30)))[-1]
    notice = next(text for text in strings(request) if "not shown" in text)
    ranges = [(int(first), int(last)) for first, last in re.findall(r"e(\d+)–e(\d+)", notice)]
    assert ranges
    first, last = ranges[0]
    answer = ctx.recall("recall_read", {"handle": f"e{first}-e{last}"})
    assert "Question 0: what about part 0?" in answer
    assert unaccounted(Coverage(ctx.log, request), ctx.report) == []


# ── What the checks read ─────────────────────────────────────────────────────────────────────────────────


def test_a_hidden_message_does_not_take_the_words_of_a_shown_one() -> None:
    steps = [
        [
            {"role": "assistant", "content": "Let me look.", "tool_calls": [chat_call(f"c{nr}")]},
            {"role": "tool", "tool_call_id": f"c{nr}", "content": f"result {nr}"},
        ]
        for nr in range(3)
    ]
    history = [user("Why?"), *(message for step in steps for message in step)]
    ctx = Context("gpt-4.1")
    ctx.fit(history)
    coverage = Coverage(ctx.log, [history[0], *steps[0]])
    shown = [
        event.handle for event in ctx.log if event.seq in coverage.shown and event not in coverage.missing
    ]
    assert shown[-3:] == ["e1", "e2", "e3"]
    assert [event.handle for event in coverage.missing] == ["e4", "e5", "e6", "e7"]


def test_what_had_to_go_for_a_long_utterance_is_not_promised_afterwards() -> None:
    ctx = Context("gpt-4.1")
    ctx.append(user("Why is it red?"), {"role": "assistant", "content": "word " * 700}, user("Go on."))
    assert share_of(ctx.log, room=1_000, count=ESTIMATE.count) == "tight"
    ctx.append({"role": "assistant", "content": "It is paint."}, user("Thanks."))
    assert share_of(ctx.log, room=1_000, count=ESTIMATE.count) == "tight"
    assert share_of(ctx.log, room=8_000, count=ESTIMATE.count) == "within"


def chat_call(name: str) -> Json:
    return {"id": name, "type": "function", "function": {"name": "bash", "arguments": "{}"}}


# ── 9. Kept ──────────────────────────────────────────────────────────────────────────────────────────────

some = examples(30)
kept_presets = st.sampled_from((*KEEPING, "confirm"))
accounting_presets = st.sampled_from((*KEEPING, "confirm", "rolling", "recent"))
windows = st.sampled_from((2_000, 4_000, 8_000, 16_000))
long_stories = scripted_histories(turns=10, steps=5, max_lines=80)


def fitted(ctx: Context, story: ScriptedHistory) -> Iterator[list[Json]]:
    """Yield each request of a conversation that fits."""
    for taken in story.calls:
        try:
            yield ctx.fit(story.messages[:taken], tools=TOOLS[story.dialect])
        except ContextOverflow:
            continue


def kept_problems(ctx: Context, request: list[Json], dialect: Any = "openai_chat") -> list[str]:
    log = ctx.log
    share = share_of(log, room=room_of(figures(ctx)), count=ESTIMATE.count)
    return kept_faults(Coverage(log, request, dialect), user_events(log), share)


def lost_events(ctx: Context, request: list[Json], dialect: Any = "openai_chat") -> list[Event]:
    return unaccounted(Coverage(ctx.log, request, dialect), ctx.report)


@some
@given(long_stories, kept_presets, windows, st.booleans())
def test_user_messages_stay_while_their_share_allows(
    story: ScriptedHistory, preset: str, window: int, asking: bool
) -> None:
    ctx = context(window, preset, summarise=MarkedWriter() if asking else None)
    for request in fitted(ctx, story):
        assert kept_problems(ctx, request, story.dialect) == []


# ── 10. Accounted for ────────────────────────────────────────────────────────────────────────────────────


@some
@given(long_stories, accounting_presets, windows, st.booleans())
def test_every_event_is_shown_or_named(
    story: ScriptedHistory, preset: str, window: int, asking: bool
) -> None:
    ctx = context(window, preset, summarise=MarkedWriter() if asking else None)
    for request in fitted(ctx, story):
        assert lost_events(ctx, request, story.dialect) == []


# ── Both, on recorded conversations ──────────────────────────────────────────────────────────────────────

FILES: Final = ("pi", "openhands", "miniswe", "claude_code", "tau2", "roo", "longmemeval")
MAX_MESSAGES: Final = 90
"""Messages of a recorded conversation that run without FOVEAL_SOAK."""
DATA: Final = [name for name in FILES if (RECORDED / f"{name}.jsonl.gz").exists()]


@cache
def recorded(name: str) -> list[Json]:
    """Return a conversation of a file: the middle one by size of those with an even checksum, or of all."""
    with gzip.open(RECORDED / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    even = [row for row in rows if crc32(row["id"].encode()) % 2 == 0] or rows
    middle = sorted(even, key=lambda row: len(json.dumps(row)))[len(even) // 2]["messages"]
    return middle if SOAK else middle[:MAX_MESSAGES]


RECORDED_CASES: Final = [
    pytest.param(name, preset, window, id=f"{name}-{preset}-{window // 1_000}k")
    for place, name in enumerate(DATA)
    for number, preset in enumerate(KEEPING)
    for window in ((8_000, 16_000) if SOAK else ((8_000, 16_000)[(place + number) % 2],))
]


@pytest.mark.data
@pytest.mark.skipif(not DATA, reason="the recorded conversations are not beside this checkout")
@pytest.mark.parametrize(("name", "preset", "window"), some_cases(RECORDED_CASES, every=9))
def test_recorded_conversations_keep_both_laws(name: str, preset: str, window: int) -> None:
    ctx = context(window, preset, summarise=MarkedWriter())
    messages = recorded(name)
    points = [at for at, message in enumerate(messages) if at and message["role"] == "assistant"]
    every = max(1, len(points) // (60 if SOAK else 12))
    for number, taken in enumerate([*points, len(messages)]):
        try:
            request = ctx.fit(messages[:taken])
        except ContextOverflow:
            continue
        if number % every == 0 or taken == len(messages):
            assert kept_problems(ctx, request) == []
            assert lost_events(ctx, request) == []
            assert out_of_order(ctx, request) == []


QUOTED_HANDLE: Final = re.compile(r"^- e(\d+), (?:standing|open|answered|replaced)", re.MULTILINE)


def out_of_order(ctx: Context, request: list[Json]) -> list[str]:
    """Return what stands before something that the user said earlier: messages, and quotes of a record. Of a text
    that was said twice, nobody knows which one a message is."""
    said: dict[str, list[int]] = {}
    for event in ctx.log:
        if isinstance(event.fact, UserSaid):
            said.setdefault(text_of(event.fact.content), []).append(event.seq)
    found = [said.get(text, []) for message in request for text in strings(message)]
    shown = [seqs[0] for seqs in found if len(seqs) == 1]
    faults = [f"e{later} before e{earlier}" for later, earlier in pairwise(shown) if later > earlier]
    for text in strings(request):
        for section in text.split("The user said, in this order")[1:]:
            handles = [int(number) for number in QUOTED_HANDLE.findall(section)]
            faults += [f"e{a} is quoted before e{b}" for a, b in pairwise(handles) if a > b]
    return faults


# ── Rules in long messages ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("preset", rest_in_soak(KEEPING, every=2))
def test_a_rule_in_the_middle_of_a_long_message_stays_when_it_is_clipped(preset: str) -> None:
    filler = "\n".join(f"Line {n} of the report tells of part {n} and of its colour." for n in range(400))
    half = len(filler) // 2
    pasted = f"{filler[:half]}\nNever publish without a tag.\n{filler[half:]}"
    ctx = context(16_000, preset)
    ctx.append(user("Look at the report."), user(pasted), *short_turns(4))
    for request in requests_of(ctx, tool_turns(40)):
        assert "Never publish without a tag." in text_of_request(request)
    assert "Line 150 of the report" not in text_of_request(ctx.fit())
