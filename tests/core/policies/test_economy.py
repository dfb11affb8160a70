"""The policy `economy`: references, when it cuts, what a cut keeps, and what a conversation costs."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal import Context
from foveal.core.compaction.standing import statements as standing_statements
from foveal.core.compaction.standing.rules import find_rules
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.engine import Engine
from foveal.core.engine.settings import EngineSettings
from foveal.core.log import (
    Clipped,
    Compacted,
    Dropped,
    Event,
    Mask,
    Masked,
    ModelSaid,
    Reverted,
    UserSaid,
    text_of,
)
from foveal.core.models.budget import Caps
from foveal.core.policies import Moment, foresee, policy
from foveal.core.policies.economy import MAX_CUT_COST_SHARE
from foveal.core.policies.ladder.cut import SLACK_SHARE
from foveal.core.tokens import MessageTokens
from foveal.core.tokens.counter import Estimate
from foveal.core.view import line_index
from foveal.core.view.fold import effective_events, fold
from foveal.core.view.line_index import indexed_lines
from foveal.core.view.view import View
from foveal.core.wire.request_text import RequestReader
from foveal.replay.cache_cost import DEFAULT_PRICES, PromptCache
from support.effort import examples, rest_in_soak, some_cases
from support.histories import (
    ESTIMATE,
    Json,
    ManualClock,
    call_message,
    context,
    describe_view,
    encode_and_decode,
    events_of,
    plain_model,
    recount,
    result_message,
    user,
    wire_bytes,
)
from support.report_checks import figures
from support.rereading import code_lines, rereading_history, tool_step


def file_read_twice(between: int = 0) -> list[Json]:
    history = [
        user("Mend the parser."),
        *tool_step(0, "cat src/parser.py", f"# one\n{code_lines('alpha')}\n# end"),
    ]
    for nr in range(between):
        history += tool_step(nr + 1, f"ls {nr}", f"nothing of note {nr}")
    return [
        *history,
        *tool_step(99, "cat src/parser.py | head", f"# two\n{code_lines('alpha')}\n# other end"),
    ]


def results(request: list[Json]) -> list[str]:
    return [message["content"] for message in request if message["role"] == "tool"]


# ── References ───────────────────────────────────────────────────────────────────────────────────────────


def test_repeated_lines_become_one_reference_with_their_first_and_last() -> None:
    ctx = context(50_000)
    first, second = results(ctx.fit(file_read_twice()))
    assert first == f"# one\n{code_lines('alpha')}\n# end"
    lines = code_lines("alpha").split("\n")
    where = "the result of bash cat src/parser.py"
    text = f"[foveal: 40 lines as above, from `{lines[0].strip()}` to `{lines[-1].strip()}`, in {where}; whole: e5]"
    assert second == f"# two\n{text}\n# other end"
    assert ctx.original("e5") == f"# two\n{code_lines('alpha')}\n# other end"


def test_a_reference_breaks_no_prefix_and_fitting_again_changes_nothing() -> None:
    ctx = context(50_000)
    history = file_read_twice(3)
    for size in range(1, len(history) + 1, 2):
        once = wire_bytes(ctx.fit(history[:size]))
        assert wire_bytes(ctx.fit(history[:size])) == once
    assert ctx.report().breaks == ()
    assert len(events_of(ctx.log, Clipped)) == 1


def test_short_runs_and_other_policies_are_left_as_they_are() -> None:
    history = [
        user("go"),
        *tool_step(0, "cat a.py", code_lines("a", 4)),
        *tool_step(1, "cat a.py", code_lines("a", 4)),
    ]
    assert context(50_000).fit(history) == history
    for preset in ("rolling", "handoff", "recent"):
        assert context(50_000, preset).fit(file_read_twice()) == file_read_twice()


def test_a_reference_to_what_the_model_wrote_names_the_arguments() -> None:
    history = [
        user("go"),
        call_message("w", path="a.py", text=code_lines("new")),
        result_message("w", "written"),
    ]
    shown = results(context(50_000).fit([*history, *tool_step(1, "cat a.py", code_lines("new"))]))
    assert "in the arguments of a call; whole: e" in shown[1]


def test_no_reference_points_to_another_reference() -> None:
    ctx = context(50_000)
    ctx.fit([*file_read_twice(), *tool_step(100, "cat src/parser.py", f"# three\n{code_lines('alpha')}")])
    assert [event.fact.sources for event in events_of(ctx.log, Clipped)] == [(3,), (3,)]  # type: ignore[union-attr]


def test_a_reference_is_whole_again_when_what_it_points_to_is_masked() -> None:
    ctx = context(50_000)
    ctx.fit(file_read_twice())
    engine: Engine = ctx._engine
    engine.append(Masked(masks=(Mask(target=3, text="[masked; whole: e3]"),)))
    assert list(engine.view.references.dangling()) == [(5, -1)]
    assert results(ctx.fit(file_read_twice()))[1] == f"# two\n{code_lines('alpha')}\n# other end"
    assert ctx.why("e5").level == "full"
    assert not engine.view.references


def test_a_result_that_is_whole_again_can_be_referred_to() -> None:
    ctx = context(50_000)
    ctx.fit(file_read_twice())
    ctx._engine.append(Masked(masks=(Mask(target=3, text="[masked; whole: e3]"),)))
    ctx.fit(file_read_twice())
    shown = results(
        ctx.fit([*file_read_twice(), *tool_step(100, "cat b.py", f"# three\n{code_lines('alpha')}")])
    )
    assert shown[1] == f"# two\n{code_lines('alpha')}\n# other end"
    assert "in the result of bash cat src/parser.py | head; whole: e" in shown[2]


def references_in(view: View) -> list[tuple[str, set[str]]]:
    """Return for each line that a reference leaves out the lines that its sources show."""
    found: list[tuple[str, set[str]]] = []
    for slot in view.unmasked_results.values():
        shown = slot.result
        for overlay in (shown.overlays or {}).values() if shown is not None else ():
            if shown is None or not overlay.sources:
                continue
            there: set[str] = set()
            for seq in overlay.sources:
                place = view.find(seq)
                assert place is not None, "the source is gone"
                texts = place[1].verbatim_texts()
                there |= {line.strip() for text in texts for line in text.split("\n")}
            kept = set(map(str.strip, overlay.text.split("\n")))
            left_out = set(map(str.strip, text_of(shown.fact.content).split("\n"))) - kept
            found.extend((line, there) for line in left_out)
    return found


@given(seed=st.integers(0, 10_000), window=st.sampled_from([3_000, 6_000, 12_000, 40_000]))
@examples(15)
def test_every_reference_points_to_lines_that_are_shown(seed: int, window: int) -> None:
    ctx = context(window, {"preset": "economy", "keep_last": 1})
    history = rereading_history(seed, 40)
    for size in range(1, len(history) + 1, 2):
        sent = ctx.fit(history[:size])
        for line, there in references_in(ctx._engine.view):
            assert line in there
        assert wire_bytes(ctx.fit(history[:size])) == wire_bytes(sent)
    again = fold(encode_and_decode(ctx.log), MessageTokens(ESTIMATE))
    assert describe_view(again) == describe_view(ctx._engine.view)


@pytest.mark.parametrize("other", ["rolling", "recent", "handoff", "recent-summary"])
@pytest.mark.parametrize("window", [6_000, 9_000])
def test_no_reference_dangles_after_a_change_of_policy(other: str, window: int) -> None:
    for seed in some_cases(range(12), every=6):
        ctx = context(40_000, {"preset": "economy", "keep_last": 1})
        history = rereading_history(seed, 40)
        ctx.fit(history)
        ctx._engine.policy = policy(other)
        ctx.use("unknown/small", window=window)
        ctx.fit(history)
        for line, there in references_in(ctx._engine.view):
            assert line in there


# ── When it cuts ─────────────────────────────────────────────────────────────────────────────────────────

EARLY: dict[str, Any] = {"preset": "economy", "early_tokens": 2_000}
"""Cuts before it must, in conversations of a few thousand tokens."""


def agent_history(seed: int, steps: int, *, lines: int = 40) -> list[Json]:
    """Return one task and many results that have nothing in common."""
    dice = Random(seed)
    history = [user("Find out why the build fails, and mend it.")]
    for nr in range(steps):
        history += tool_step(nr, f"cat part_{nr}.py", code_lines(f"part{nr}", dice.randint(1, lines)))
    return history


def grown(history: list[Json]) -> Iterator[list[Json]]:
    """Yield the history as an agent sends it: before each answer of the model."""
    for size in range(1, len(history) + 1, 2):
        yield history[:size]


def run(ctx: Context, history: list[Json]) -> list[list[Json]]:
    return [ctx.fit(request) for request in grown(history)]


def cuts(ctx: Context) -> list[Compacted]:
    return [event.fact for event in events_of(ctx.log, Compacted) if isinstance(event.fact, Compacted)]


def bill(requests: Iterable[list[Json]]) -> float:
    reader = RequestReader("openai_chat", ESTIMATE)
    cache = PromptCache(reader, ttl=300.0)
    billed = (cache.send(reader.request(sent, system=None, tools=()), now=0.0) for sent in requests)
    return sum(DEFAULT_PRICES.bill(one.tokens, one.cached) for one in billed)


def test_a_new_result_is_shown_whole_while_it_fits() -> None:
    history = agent_history(1, 3)
    for lines in (50, 150, 250):
        large = [*history, *tool_step(9, "make", code_lines("large", lines))]
        assert context(8_000).fit(large) == large


@given(seed=st.integers(0, 10_000), steps=st.integers(1, 60))
@examples(15)
def test_a_conversation_that_fits_costs_at_most_the_price_of_a_cut_more_than_sending_all_of_it(
    seed: int, steps: int
) -> None:
    for history in (agent_history(seed, steps), rereading_history(seed, steps)):
        requests = list(grown(history))
        assert bill(run(context(200_000, EARLY), history)) <= bill(requests) * (1 + MAX_CUT_COST_SHARE)


def test_a_long_conversation_that_fits_is_cut_for_its_price_and_costs_less() -> None:
    ctx, history = context(200_000, EARLY), agent_history(1, 160)
    sent = run(ctx, history)
    assert {cut.reason for cut in cuts(ctx)} == {"price"}
    assert bill(sent) < 0.65 * bill(grown(history))


def test_a_short_conversation_is_not_cut_for_its_price() -> None:
    ctx, history = context(200_000), agent_history(1, 60)
    assert run(ctx, history) == list(grown(history))


def test_a_cut_for_its_price_removes_at_least_a_third() -> None:
    ctx = context(200_000, EARLY)
    before = 0
    for request in grown(agent_history(1, 80)):
        known = len(ctx.log)
        size = recount(ctx.fit(request))
        if events_of(ctx.log[known:], Compacted):
            assert size < before * 2 / 3
        before = size


def test_a_cut_hides_results_and_leaves_every_call_as_it_was() -> None:
    ctx, history = context(16_000), agent_history(1, 60)
    for request in grown(history):
        known = len(ctx.log)
        sent = ctx.fit(request)
        if events_of(ctx.log[known:], Compacted):
            calls = [message["tool_calls"] for message in request if "tool_calls" in message]
            assert [message["tool_calls"] for message in sent if "tool_calls" in message] == calls
            assert sent[0] == history[0]
            assert sent[-2:] == request[-2:], "the newest result is whole"
            break
    assert [step.kind for step in ctx._engine.view.steps].count("summary") == 1
    assert events_of(ctx.log, Masked, Dropped) == []


def test_when_hiding_results_is_not_enough_the_oldest_steps_go_down_to_the_target() -> None:
    ctx, history = context(8_000), agent_history(1, 110)
    deep = 0
    for request in grown(history):
        known = len(ctx.log)
        sent = ctx.fit(request)
        if events_of(ctx.log[known:], Compacted):
            report = ctx.report()
            assert report.used <= report.act * (0.45 + SLACK_SHARE) + 100
            shown = [message["tool_calls"] for message in sent if "tool_calls" in message]
            assert shown == [m["tool_calls"] for m in request if "tool_calls" in m][-len(shown) :]
            deep += len(shown) < len(request) // 4
    assert deep > 1
    assert [step.kind for step in ctx._engine.view.steps].count("summary") == 1
    assert events_of(ctx.log, Masked, Dropped) == []


def test_all_that_a_cut_hides_comes_back_with_one_undo() -> None:
    ctx, history = context(8_000), agent_history(1, 110)
    for request in grown(history):
        known = len(ctx.log)
        ctx.fit(request)
        for cut in events_of(ctx.log[known:], Compacted):
            undone = [*ctx.log, Event(len(ctx.log), Reverted(target=cut.seq))]
            views = (fold(log, MessageTokens(ESTIMATE)) for log in (ctx.log[: cut.seq], undone))
            before, after = ([list(step.facts()) for step in view.steps] for view in views)
            assert after == before
    assert len(cuts(ctx)) > 3


@pytest.mark.long
def test_a_cut_is_made_one_unit_above_the_threshold_and_not_at_it() -> None:
    history = agent_history(1, 12)
    probe = context(100_000)
    probe.fit(history)
    units, found = probe._engine.view.units, {}
    first = bisect_left(
        range(units, units * 2), units - 2, key=lambda window: context(window)._engine.budget().act
    )
    for window in range(units + first, units * 2):
        ctx = context(window)
        act = ctx._engine.budget().act
        if act > units + 2:
            break
        ctx.fit(history)
        found[act - units] = bool(cuts(ctx))
    assert found == {-2: True, -1: True, 0: False, 1: False, 2: False}


@given(seed=st.integers(0, 10_000), window=st.sampled_from([4_000, 8_000, 16_000]))
@examples(10)
def test_the_newest_result_and_the_latest_message_are_whole_while_they_fit(seed: int, window: int) -> None:
    ctx = context(window)
    for request in grown(agent_history(seed, 40)):
        sent = ctx.fit(request)
        assert sent[-len(request[1:][-2:]) :] == request[1:][-2:] or len(request) == 1
        assert sent[0] == request[0]


@pytest.mark.parametrize("calls", [1, 3])
def test_results_larger_than_the_room_are_clipped_and_not_dropped(calls: int) -> None:
    history = agent_history(1, 10)
    functions = [call_message(f"n{nr}", command=f"make {nr}")["tool_calls"][0] for nr in range(calls)]
    history.append({"role": "assistant", "content": None, "tool_calls": functions})
    history += [result_message(f"n{nr}", code_lines(f"large{nr}", 1_500)) for nr in range(calls)]
    ctx = context(8_000)
    shown = results(ctx.fit(history))[-calls:]
    for nr, text in enumerate(shown):
        assert text.split("\n")[0] == code_lines(f"large{nr}", 1)
        assert "[foveal: " in text
        assert ESTIMATE.count(text) > 0.3 * ctx.report().limit / calls
    assert events_of(ctx.log, Dropped) == []


@pytest.mark.long
@pytest.mark.parametrize("window", rest_in_soak([8_000, 16_000, 32_000]))
def test_one_cut_makes_room_for_the_next_result_whatever_its_size(window: int) -> None:
    dice = Random(window)
    ctx, history = context(window), [user("Find out why the build fails, and mend it.")]
    for nr in range(75):
        known = len(ctx.log)
        ctx.fit(history)
        assert len(events_of(ctx.log[known:], Compacted)) <= 1
        history += tool_step(
            nr, f"cat part_{nr}.py", code_lines(f"part{nr}", dice.choice((5, 40, window // 25)))
        )
        if nr % 5 == 0:
            history += [
                {"role": "assistant", "content": f"Part {nr} is done."},
                user(f"Next, {'please ' * 40}"),
            ]
    assert len(cuts(ctx)) > 4


@pytest.mark.long
@given(seed=st.integers(0, 10_000), window=st.sampled_from([2_000, 4_000, 8_000]))
@examples(6)
def test_no_request_is_larger_than_the_limit(seed: int, window: int) -> None:
    for changes in ({}, {"mode": "confirm"}, {"mode": "off"}, {"compact": False}):
        ctx = context(window, {"preset": "economy", **changes})
        for request in grown(agent_history(seed, 20)):
            sent = ctx.fit(request)
            report = figures(ctx)
            assert recount(sent) <= report.used <= report.limit
            assert sent[0] == request[0]


def test_without_summaries_old_results_are_masked() -> None:
    for changes in ({"mode": "off"}, {"compact": False}):
        ctx = context(8_000, {"preset": "economy", **changes})
        run(ctx, agent_history(1, 60))
        assert cuts(ctx) == []
        assert {fact.reason for fact in (event.fact for event in events_of(ctx.log, Masked))} == {"budget"}  # type: ignore[union-attr]


def test_the_words_of_the_user_stay_through_all_cuts() -> None:
    ctx, history = context(8_000), list[Json]()
    for turn in range(12):
        history.append(user(f"Request {turn}: keep the port at {8_000 + turn}."))
        history += [
            message
            for nr in range(6)
            for message in tool_step(turn * 6 + nr, f"cat {turn}_{nr}.py", code_lines(f"p{turn}_{nr}", 25))
        ]
        history.append({"role": "assistant", "content": f"Done with {turn}."})
        sent = ctx.fit([*history, user("Go on.")])
    assert len(cuts(ctx)) > 1
    assert [message for message in sent if message["role"] == "user" and "Request" in message["content"]][
        -12:
    ] == [message for message in history if message["role"] == "user"]


@pytest.mark.long
@pytest.mark.parametrize(("window", "results"), some_cases(product((8_000, 16_000, 32_000), (0, 2)), every=3))
def test_rules_inside_long_user_messages_are_in_every_request(window: int, results: int) -> None:
    rules = {
        3: ["Never push to the branch rel0"],
        8: ["Always run the checks of the release branch, the linter included, before it is tagged as rel8"],
        11: [
            f"never touch the table named t{n}_archive of the old reporting database"
            for n in range(4 if window > 8_000 else 1)
        ],
    }
    random = Random(5)
    history: list[Json] = []
    stated: list[str] = []
    ctx = context(window)
    for nr in range(40):
        words = random.choices(["table", "river", "looks", "fine", "quick", "garden"], k=700)
        for n, rule in enumerate(rules.get(nr, [])):
            words.insert(100 + 120 * n, f"{rule}." if n % 2 else rule)
            stated.append(rule)
        history.append(user(" ".join(words)))
        for call in range(results):
            lines = random.randint(20, 150)
            history += tool_step(
                nr * results + call, f"cat {nr}_{call}.py", code_lines(f"p{nr}_{call}", lines)
            )
            request = str(ctx.fit(history))
            assert [rule for rule in stated if rule not in request] == [], nr
        request = str(ctx.fit(history))
        assert [rule for rule in stated if rule not in request] == [], nr
        history.append({"role": "assistant", "content": f"Answer {nr}: {' '.join(words[:80])}"})


def test_a_conversation_without_tools_keeps_several_of_the_newest_answers_whole() -> None:
    """A summary has no results to quote there, so it takes little, and the newest messages take the rest."""
    ctx, history = context(8_000, reserve=1_000), list[Json]()
    for turn in range(60):
        history.append(user(f"Question {turn}?"))
        sent = ctx.fit(history)
        answers = [message for message in sent if message["role"] == "assistant"]
        assert answers[-4:] == [message for message in history if message["role"] == "assistant"][-4:]
        history.append(
            {"role": "assistant", "content": f"Answer {turn}: " + "something is said about it. " * 40}
        )
    assert len(cuts(ctx)) > 1


def test_a_cut_keeps_the_answer_that_the_user_has_just_read_and_the_newest_results() -> None:
    ctx, history = context(32_000, tokenizer="o200k_base"), list[Json]()
    for turn in range(10):
        history.append(user(f"Write part {turn} of the guide."))
        for number in range(6):
            history += tool_step(
                6 * turn + number, f"cat part_{turn}_{number}.py", code_lines(f"p{turn}_{number}", 90)
            )
        answer = {"role": "assistant", "content": f"Part {turn}: " + "it is described in a sentence. " * 290}
        history += [answer, user("Change its third paragraph.")]
        sent = ctx.fit(history)
        assert answer in sent
        assert [message for message in sent if message["role"] == "tool"][-2:] == [
            message for message in history if message["role"] == "tool"
        ][-2:]
        history.append({"role": "assistant", "content": "Changed."})
    assert len(cuts(ctx)) > 1


def test_the_newest_results_stay_although_short_texts_are_between_them() -> None:
    ctx, history = context(128_000, {"preset": "economy", "keep_last": 5}), list[Json]()
    for turn in range(50):
        history += [
            user(f"Read part {turn}."),
            *tool_step(turn, f"cat part_{turn}.py", code_lines(f"p{turn}", 60)),
        ]
        sent = ctx.fit(history)
        results = [message for message in history if message["role"] == "tool"][-5:]
        assert [message for message in sent if message["role"] == "tool"][-len(results) :] == results
        history.append({"role": "assistant", "content": f"Part {turn} is read."})
    assert len(cuts(ctx)) > 0


# ── Undo, free breaks, and models ────────────────────────────────────────────────────────────────────────


def test_a_cut_that_was_undone_is_not_repeated_until_it_must_be() -> None:
    ctx, history = context(200_000, EARLY, reserve=800), agent_history(1, 100)
    run(ctx, history[:-60])
    (cut,) = events_of(ctx.log, Compacted)
    ctx.undo(cut.handle)
    for size in range(len(history) - 58, len(history) + 1, 2):
        assert ctx.fit(history[:size]) == history[:size]
    ctx.use(plain_model(8_000))
    assert recount(ctx.fit(history)) <= ctx.report().limit
    assert [fact.reason for fact in cuts(ctx)] == ["price", "tokens"]


@pytest.mark.parametrize("free", ["cold cache", "changed tools"])
def test_a_break_that_is_free_anyway_is_used_for_a_cut(free: str) -> None:
    def tools(name: str) -> list[Json]:
        return [{"type": "function", "function": {"name": name}}]

    for is_free in (False, True):
        clock = ManualClock()
        ctx, history = context(8_000, clock=clock), agent_history(3, 10)
        ctx.fit(history, tools=tools("a"))
        steps = (tool_step(99, "make", code_lines("last", lines)) for lines in range(300))
        history += next(step for step in steps if recount(history + step) > 5_800)
        if is_free and free == "cold cache":
            clock.now += 100_000
        ctx.fit(history, tools=tools("b" if is_free and free == "changed tools" else "a"))
        assert len(cuts(ctx)) == is_free


def test_a_model_is_asked_only_when_the_window_is_the_limit() -> None:
    asked: list[str] = []

    def write(request: SummaryRequest) -> str:
        asked.append("")
        return "no summary"

    early = context(200_000, EARLY, summarise=write)
    run(early, agent_history(1, 80))
    assert cuts(early)
    assert asked == []
    full = context(8_000, summarise=write)
    run(full, agent_history(1, 80))
    assert cuts(full)
    assert asked != []


def test_an_old_chat_without_results_is_summarised_by_the_model() -> None:
    asked: list[str] = []

    def write(request: SummaryRequest) -> str:
        asked.append("")
        return "no summary"

    ctx, history = context(8_000, summarise=write), list[Json]()
    for nr in range(60):
        history += [user(f"Question {nr}?"), {"role": "assistant", "content": code_lines(f"answer{nr}", 12)}]
        ctx.fit([*history, user("And?")])
    assert cuts(ctx)
    assert asked != []
    assert {cut.reason for cut in cuts(ctx)} <= {"price", "tokens"}


@pytest.mark.parametrize("window", rest_in_soak([4_000, 8_000, 16_000]))
def test_every_request_fits_and_contains_the_task(window: int) -> None:
    ctx = context(window)
    for request in grown(rereading_history(5, 90)):
        sent = ctx.fit(request)
        size = figures(ctx)
        assert size.used <= size.limit
        assert sent[0] == request[0]


# ── Work ─────────────────────────────────────────────────────────────────────────────────────────────────


class CountingCounter(Estimate):
    """An estimate that notes how many characters it has counted."""

    chars = 0

    def count(self, text: str) -> int:
        self.chars += len(text)
        return super().count(text)

    def count_all(self, texts: Sequence[str]) -> list[int]:
        return [self.count(text) for text in texts]


def chars_of(history: list[Json]) -> int:
    return sum(len(str(message)) for message in history)


@pytest.mark.long
@pytest.mark.parametrize("window", [8_000, 1_000_000])
def test_a_first_fit_counts_every_text_once_and_what_it_sends_once_more(window: int) -> None:
    for steps in (100, 200):
        counter = CountingCounter()
        history = agent_history(1, steps)
        sent = context(window, tokenizer=counter).fit(history)
        assert counter.chars <= 1.2 * (chars_of(history) + chars_of(sent))


def test_a_turn_counts_and_reads_only_its_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted_lines(lines: Sequence[str]) -> list[tuple[int, int]]:
        read.append(sum(map(len, lines)))
        return indexed_lines(lines)

    monkeypatch.setattr(line_index, "indexed_lines", counted_lines)
    counter = CountingCounter()
    ctx = context(1_000_000, {"preset": "economy", "early_tokens": 1_000_000}, tokenizer=counter)
    history = agent_history(1, 1_000)
    ctx.fit(history[:-40])
    ctx.fit(history[:-38])
    read.clear()
    for size in range(len(history) - 36, len(history) + 1, 2):
        counter.chars = 0
        ctx.fit(history[:size])
        assert counter.chars <= chars_of(history[size - 2 : size])
    assert sum(read) <= chars_of(history[-40:])


def test_every_message_of_a_user_is_read_once_for_its_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()

    def counted_rules(text: str) -> Iterator[tuple[int, int]]:
        read[text] += 1
        return find_rules(text)

    def answer(number: int) -> Json:
        return {"role": "assistant", "content": f"Noted: service {number}."}

    monkeypatch.setattr(standing_statements, "find_rules", counted_rules)
    ctx = context(8_000)
    history = [
        message
        for number in range(400)
        for message in (user(f"The port of service {number} is {3_000 + number}."), answer(number))
    ]
    for size in (600, 640, 680, 720, 760, 800):
        ctx.fit(history[:size])
    assert events_of(ctx.log, Compacted)
    assert len(read) > 200
    assert max(read.values()) == 1


def test_the_effective_log_is_kept_up_to_date_by_cuts_rewinds_and_undo() -> None:
    ctx, history = context(8_000), agent_history(1, 60)
    for request in (history[:61], history[:81], history[:41], history):  # the third one takes messages back
        ctx.fit(request)
        assert ctx._engine.effective_log == effective_events(ctx.log)
    ctx.undo(events_of(ctx.log, Compacted)[-1].handle)
    assert ctx._engine.effective_log == effective_events(ctx.log)


@pytest.mark.parametrize(("answer", "is_planned"), [("Yes.", False), ("word " * 300, True)])
def test_a_summary_in_advance_must_make_the_request_smaller(answer: str, is_planned: bool) -> None:
    engine = Engine(EngineSettings(plain_model(16_000), policy("economy"), Caps(), ESTIMATE))
    # The long messages of the user stay, so a summary would replace little but the answers.
    for words in (3_300, 1_040, 1_250, 1_250, *(20,) * 12, 5_300, 40, 60):
        engine.append(UserSaid(content="text " * words))
        engine.append(ModelSaid(content=answer))
    planned = foresee(engine.view, engine.budget(), Moment(), engine.policy)
    assert (planned is not None) == is_planned
