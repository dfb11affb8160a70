"""Token accounting: acceptance cases 31 to 38 for usage, report and engine. Images: see test_media."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import foveal
from foveal.core.engine import Engine
from foveal.core.engine.settings import EngineSettings
from foveal.core.log import Event, ModelSaid, Opened, Used, UserSaid
from foveal.core.log.events import AnyFact
from foveal.core.models import Caps
from foveal.core.models.cost import UsageTotals, cost_text
from foveal.core.policies import policy
from foveal.core.tokens.counter import counter
from foveal.core.wire.usage import read_usage
from foveal.errors import UsageMissing
from foveal.inspector.sessions.rows import SessionFigures
from foveal.inspector.sessions.source import SessionRow
from foveal.inspector.timeline.builder import InspectedSettings, TimelineBuilder
from foveal.server.api.schemas import usage_to_api
from support.histories import ESTIMATE, context, encode_and_decode, events_of, plain_model, session, user

CHAT = {
    "prompt_tokens": 1_000,
    "completion_tokens": 200,
    "total_tokens": 1_200,
    "prompt_tokens_details": {"cached_tokens": 600},
    "completion_tokens_details": {"reasoning_tokens": 150},
}
RESPONSES = {
    "input_tokens": 1_000,
    "input_tokens_details": {"cached_tokens": 600},
    "output_tokens": 200,
    "output_tokens_details": {"reasoning_tokens": 150},
    "total_tokens": 1_200,
}
ANTHROPIC = {
    "input_tokens": 300,
    "cache_read_input_tokens": 600,
    "cache_creation_input_tokens": 100,
    "output_tokens": 200,
}

SOURCE = Path(foveal.__file__).parent
SAVED = "; saved about $0.96 against sending everything with an ideal cache"


@pytest.mark.parametrize("report", [CHAT, RESPONSES])
def test_openai_counts_cached_tokens_inside_the_prompt(report: dict[str, Any]) -> None:
    fact = read_usage(report)
    assert fact == Used(input=400, cache_read=600, output=200, reasoning=150)
    assert fact is not None
    assert fact.prompt == 1_000


def test_anthropic_counts_cached_tokens_beside_the_input() -> None:
    fact = read_usage(ANTHROPIC)
    assert fact == Used(input=300, cache_read=600, cache_write=100, output=200)
    assert fact is not None
    assert fact.prompt == 1_000


def test_cache_writes_inside_the_prompt_are_not_counted_twice() -> None:
    report = {
        "prompt_tokens": 1_000,
        "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 300},
    }
    assert read_usage(report) == Used(input=100, cache_read=600, cache_write=300)


def test_more_cached_tokens_than_prompt_tokens_are_cut_to_the_prompt() -> None:
    assert read_usage({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 99}}) == Used(
        input=0, cache_read=10
    )


def test_reasoning_is_a_part_of_the_output_and_not_added_to_it() -> None:
    model = foveal.model("test", window=10_000, input_price=1.0, output_price=10.0)
    ctx = foveal.Context(model, tokenizer=ESTIMATE)
    ctx.fit([user("hi")])
    ctx.observe({"prompt_tokens": 0, **CHAT, "prompt_tokens_details": None})
    assert ctx.report().spent == pytest.approx((1_000 * 1.0 + 200 * 10.0) / 1e6)


@pytest.mark.parametrize("shape", ["dict", "object", "reply", "nested", "pydantic"])
def test_usage_is_read_from_dicts_objects_and_whole_replies(shape: str) -> None:
    given: Any = CHAT
    if shape in ("object", "nested"):
        details = SimpleNamespace(cached_tokens=600) if shape == "nested" else {"cached_tokens": 600}
        given = SimpleNamespace(
            **CHAT
            | {"prompt_tokens_details": details, "completion_tokens_details": {"reasoning_tokens": 150}}
        )
    if shape == "reply":
        given = {"id": "r", "usage": CHAT}
    if shape == "pydantic":
        from openai.types import CompletionUsage

        given = CompletionUsage.model_validate(CHAT)
    assert read_usage(given) == Used(input=400, cache_read=600, output=200, reasoning=150)


@pytest.mark.parametrize("bad", [-5, None, "many", float("nan"), float("inf"), True, 10**30, [], {}])
def test_negative_and_malformed_counts_beside_the_prompt_are_ignored(bad: Any) -> None:
    fact = read_usage(
        {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": bad}, "completion_tokens": bad}
    )
    assert fact == Used(input=100)


@pytest.mark.parametrize("nothing", [{"prompt_tokens": 0}, {"usage": {"output_tokens": 7}}])
def test_an_aborted_reply_has_no_prompt_tokens_and_changes_nothing(nothing: Any) -> None:
    ctx = context()
    ctx.fit([user("hi")])
    before = ctx.report()
    ctx.observe(nothing)
    assert ctx.report() == before
    assert events_of(ctx.log, Used) == []


@pytest.mark.parametrize("unknown", [{}, SimpleNamespace(), {"tokens": 5}, "usage"])
def test_a_report_that_is_not_understood_raises(unknown: Any) -> None:
    ctx = context()
    ctx.fit([user("hi")])
    with pytest.raises(foveal.errors.BadSetting, match="is not allowed: the usage that one reply reports"):
        ctx.observe(unknown)
    assert events_of(ctx.log, Used) == []


def test_a_reply_without_usage_warns_once_and_says_what_to_do() -> None:
    ctx = context()
    ctx.fit([user("hi")])
    with pytest.warns(UsageMissing, match="include_usage") as caught:
        ctx.observe(None)
    assert caught[0].filename == __file__
    ctx.observe({"usage": None})  # the suite turns warnings into errors


def test_hour_writes_cost_twice_the_input_price() -> None:
    model = foveal.model("test", window=10_000, input_price=10.0, cached_price=1.0, write_price=12.5)
    ctx = foveal.Context(model, tokenizer=ESTIMATE)
    ctx.fit([user("hi")])
    lifetimes = {"ephemeral_1h_input_tokens": 300, "ephemeral_5m_input_tokens": 100}
    ctx.observe({"input_tokens": 5, "cache_creation_input_tokens": 400, "cache_creation": lifetimes})
    assert ctx.report().spent == pytest.approx((5 * 10 + 100 * 12.5 + 300 * 20) / 1e6)


def test_12_hour_writes_cost_the_write_price() -> None:
    model = foveal.model("test", window=10_000, input_price=10.0, cached_price=1.0, write_price=12.5)
    ctx = foveal.Context(model, tokenizer=ESTIMATE)
    ctx.fit([user("hi")])
    split = {"ttl_12h_tokens": 300, "ttl_30m_tokens": 100}
    ctx.observe({"input_tokens": 405, "input_tokens_details": {"cache_write_tokens_details": split}})
    assert ctx.report().spent == pytest.approx((5 * 10 + 400 * 12.5) / 1e6)


def test_the_report_names_the_providers_reason_for_a_cache_miss() -> None:
    ctx = context()
    ctx.fit([user("hi")])
    reason = {"type": "tools_changed", "cache_missed_input_tokens": 8_000}
    ctx.observe({"usage": {"input_tokens": 9}, "diagnostics": {"cache_miss_reason": reason}})
    assert ctx.report().cache_miss == "tools_changed (8,000 tokens)"
    assert "cache miss in the last call, says the provider: tools_changed" in str(ctx.report())
    ctx.observe({"usage": {"input_tokens": 9}})
    assert ctx.report().cache_miss == ""
    missed = {"type": "cache_miss", "reason": "input_changed", "cache_missed_tokens": 700}
    ctx.observe({"usage": {"input_tokens": 9}, "prompt_cache_diagnostics": missed})
    assert ctx.report().cache_miss == "input_changed (700 tokens)"


def test_the_report_is_about_the_last_call_not_the_sum_of_all() -> None:
    ctx = context(20_000)
    ctx.fit([user("hi")])
    for cached in (0, 50, 75):
        ctx.observe({"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": cached}})
    report = ctx.report()
    assert report.cached_share == 0.75
    assert report.used < 200


def test_a_cumulative_figure_is_not_the_size_of_one_request() -> None:
    ctx = context(100_000)
    history = session(10)
    ctx.fit(history)
    ctx.observe({"prompt_tokens": ctx.report().used})
    before = ctx.report().used
    ctx.fit(history)
    ctx.observe({"prompt_tokens": 90_000})
    assert ctx.report().used == before


def test_usage_from_before_a_reduction_is_not_used_after_it() -> None:
    ctx = context(6_000)
    history = session(10)
    ctx.fit(history)
    ctx.observe({"prompt_tokens": ctx.report().used})
    full = ctx.report().used
    ctx.fit([*history, *session(30)[22:]])
    assert ctx.report().used <= ctx.report().limit
    assert ctx.report().totals["placeholders"] + ctx.report().totals["summaries"] > 0
    assert full > 0


def test_messages_after_the_last_call_are_added_to_its_usage() -> None:
    ctx = context(50_000)
    history = session(5)
    ctx.fit(history)
    ctx.observe({"prompt_tokens": 1_600})
    assert ctx.report().used == 1_600
    ctx.append(user("word " * 400))
    grown = ctx.report().used
    assert 1_600 + 300 < grown < 1_600 + 800


def test_without_new_messages_the_size_stays_the_same() -> None:
    ctx = context(50_000)
    ctx.fit(session(5))
    ctx.observe({"prompt_tokens": 1_600})
    ctx.fit(session(5))
    assert ctx.report().used == 1_600


def test_the_estimate_covers_the_request_and_only_offered_tools() -> None:
    ctx = context()
    ctx.fit([user("hi")])
    without = ctx.report()
    assert without.totals["tools"] == 0
    tools = [{"type": "function", "function": {"name": "f", "description": "word " * 100}}]
    ctx.fit([user("hi")], tools=tools)
    with_tools = ctx.report()
    assert with_tools.totals["tools"] > 80
    assert with_tools.used == without.used + with_tools.totals["tools"]
    ctx.fit([user("hi")])
    assert ctx.report().used <= without.used + 2


def test_what_the_provider_counts_beyond_units_is_overhead() -> None:
    ctx = context(50_000)
    ctx.fit(session(5))
    own = ctx.report().used
    ctx.observe({"prompt_tokens": own + 900})
    report = ctx.report()
    assert report.used == own + 900
    assert 800 <= report.totals["overhead"] <= 1_000
    assert sum(report.totals.values()) == report.window


def test_numbers_are_estimated_until_a_usage_report_is_accepted() -> None:
    ctx = context()
    assert not ctx.report().measured
    ctx.fit([user("hi")])
    assert "(estimated)" in str(ctx.report())
    ctx.observe({"prompt_tokens": 12})
    assert ctx.report().measured
    assert "(measured)" in str(ctx.report())


def test_a_usage_report_before_any_request_changes_nothing() -> None:
    ctx = context()
    ctx.observe({"prompt_tokens": 5_000})
    assert not ctx.report().measured


def test_cost_by_token_kind_and_savings_against_sending_everything() -> None:
    model = foveal.model(
        "test", window=6_000, input_price=10.0, cached_price=1.0, write_price=10.0, output_price=30.0
    )
    ctx = foveal.Context(model, tokenizer=ESTIMATE, clock=lambda: 0.0)
    ctx.fit([user("hi")])
    ctx.observe(
        {"prompt_tokens": 1_000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 400}}
    )
    assert ctx.report().spent == pytest.approx((600 * 10 + 400 * 1 + 10 * 30) / 1e6)


def sent_in_small_window(cached: Callable[[list[Any], list[Any], int], dict[str, Any]]) -> tuple[Any, float]:
    """Send a conversation that does not fit, with the usage that `cached` returns for the last two requests; return
    the report, and the price of sending everything with an ideal cache."""
    prices = {"input_price": 2.0, "cached_price": 0.5, "output_price": 8.0}
    ctx = foveal.Context(foveal.model("m", window=8_000, **prices), tokenizer=ESTIMATE, clock=lambda: 0.0)
    whole = foveal.Context(foveal.model("m", window=10**7), policy="off", tokenizer=ESTIMATE)
    before, size, ideal = [], 0, 0.0
    for steps in range(2, 32):
        history = session(steps)
        request, last = ctx.fit(history), size
        used = ctx.report().used
        ctx.observe({"prompt_tokens": used, "completion_tokens": 0, **cached(before, request, used)})
        whole.fit(history)
        before, size = request, whole.report().used
        ideal += (0.5 * last + 2.0 * (size - last)) / 1e6
    return ctx.report(), ideal


def true_prefix(before: list[Any], request: list[Any], tokens: int) -> dict[str, Any]:
    same = sum(
        len(str(message))
        for message, _ in takewhile(lambda pair: pair[0] == pair[1], zip(request, before, strict=False))
    )
    whole = sum(len(str(message)) for message in request)
    return {"prompt_tokens_details": {"cached_tokens": tokens * same // whole}}


@pytest.mark.parametrize("cached", [true_prefix, lambda *_: {}], ids=["cached", "without-cache"])
def test_savings_are_against_an_ideal_cache_whatever_the_provider_reports(cached: Any) -> None:
    report, ideal = sent_in_small_window(cached)
    assert report.reduced
    assert report.saved == pytest.approx(ideal - report.spent, rel=0.02, abs=0.0005)
    assert (report.saved > 0) == (cached is true_prefix)


def test_what_a_summary_costs_is_not_saved() -> None:
    cut = Used(input=1_000, units=1_000, unreduced=2_000)
    totals = UsageTotals().after(Event(0, cut), foveal.model("gpt-4.1"))
    assert totals.saved is not None
    assert totals.with_summary(0.25, asked=1).saved == pytest.approx(totals.saved - 0.25)


def test_cost_is_unknown_when_prices_are_unknown() -> None:
    ctx = context()
    ctx.fit([user("hi")])
    ctx.observe({"prompt_tokens": 1_000})
    assert (ctx.report().spent, ctx.report().saved) == (None, None)


def test_a_resumed_conversation_keeps_its_calibration() -> None:
    ctx = context(50_000)
    history = session(3)
    for more in (4, 6, 9):
        ctx.fit(history)
        ctx.observe({"prompt_tokens": int(ctx.report().used * 1.3)})
        history = session(more)
    live = ctx._engine
    again = Engine(
        EngineSettings(plain_model(50_000), policy("economy"), Caps(reserve=5_000), ESTIMATE),
        log=encode_and_decode(ctx.log),
    )
    assert again.calibration == live.calibration
    assert again.budget() == live.budget()


def test_no_text_is_counted_twice() -> None:
    seen: dict[str, int] = {}

    class Counting(type(ESTIMATE)):  # type: ignore[misc]
        def count(self, text: str) -> int:
            seen[text] = seen.get(text, 0) + 1
            return super().count(text)

    ctx = context(50_000, "off", tokenizer=Counting())
    history = session(20)
    for cut in range(2, len(history) + 1, 2):
        ctx.fit(history[:cut])
        ctx.report()
    long = {text: times for text, times in seen.items() if len(text) > 200}
    assert long
    assert set(long.values()) == {1}


def test_sizes_stay_right_through_many_summaries_between_turns() -> None:
    """The provider counts 12 % more than the local vocabulary, and 60 hidden tokens."""

    def tokens(*texts: str) -> float:
        return 1.12 * sum(counter().count(text) + 4 for text in texts)

    ctx = foveal.Context("gpt-4.1", window=6_000, policy=policy("economy", mode="confirm"))
    predicted, errors = 0, list[float]()
    for turn in range(40):
        question = f"Part {turn}. " + "Look at the next part, please. " * 8
        ctx.append({"role": "user", "content": question})
        prompt = 60 + round(tokens(*(message["content"] for message in ctx.fit())))
        if predicted:
            errors.append(abs(predicted / (prompt - tokens(question)) - 1))
        ctx.observe({"prompt_tokens": prompt, "completion_tokens": 235})
        ctx.append({"role": "assistant", "content": "Yes." + " This part has a wrong bound." * 30})
        predicted = ctx.report().used if ctx.report().used > 4_000 and ctx.compact() else 0
    assert len(errors) > 8
    assert max(errors) < 0.02, errors


def test_what_a_call_has_cost_is_known_unknown_or_an_estimate() -> None:
    """The cost of a call without usage or price is never counted as zero."""
    model = foveal.model("m", window=8_000, input_price=1.0, output_price=10.0)
    ctx = foveal.Context(model, tokenizer=ESTIMATE, clock=lambda: 0.0)
    messages: list[Any] = [user("hi"), {"role": "assistant", "content": "hello"}, user("more")]
    ctx.fit(messages)
    assert (ctx.report().spent, ctx.report().saved, ctx.report().unknown_calls) == (None, None, 1)
    ctx.observe({"prompt_tokens": 1_000, "completion_tokens": 200})
    ctx.fit([*messages, {"role": "assistant", "content": "yes"}, user("and?")])
    report = ctx.report()
    assert (report.spent, report.unknown_calls) == (pytest.approx(0.003), 1)
    assert "≥ $0.0030" in str(report)
    assert "cost: $0.0030, and 1 call without usage or price" in str(report)
    ctx.use("unpriced-model", window=8_000)
    messages += [{"role": "assistant", "content": "yes"}, user("and?")]
    ctx.fit(messages)
    ctx.observe({"prompt_tokens": 1_000})
    ctx.fit([*messages, {"role": "assistant", "content": "no"}, user("why?")])
    assert (ctx.report().spent, ctx.report().unknown_calls) == (pytest.approx(0.003), 2)


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        ((None, 0, None), "not known: this model has no price"),
        ((None, 3, None), "not known: 3 calls without usage or price"),
        ((0.0, 1, 0.0), "not known: 1 call without usage or price"),
        ((0.0, 0, 0.0), "$0.00"),
        ((0.5, 0, None), "$0.50"),
        (
            (0.005, 2, 0.9589),
            f"$0.0050, and 2 calls without usage or price{SAVED}",
        ),
        (
            (None, 2, 0.9589),
            f"not known: 2 calls without usage or price{SAVED}",
        ),
    ],
)
def test_a_cost_is_one_sentence(cost: tuple[float | None, int, float | None], text: str) -> None:
    assert cost_text(*cost) == text


def test_no_page_or_text_shows_an_unknown_amount_as_zero() -> None:
    """`None` in place of an amount is shown as such: nothing that is formatted falls back to 0."""
    fallback = re.compile(r"\b(spent|saved|cost|price)\)?\s*(or 0|\?\? 0)")
    sources = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.js")]
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in sources
        for line in path.read_text("utf-8").splitlines()
        if fallback.search(line)
    ]
    assert found == []


def test_a_call_without_usage_is_counted_before_the_answer_of_the_next_is_known() -> None:
    context = foveal.Context("gpt-4.1")
    messages = [{"role": "user", "content": "q0"}]
    context.fit(messages)
    messages += [{"role": "assistant", "content": "r0"}, {"role": "user", "content": "q1"}]
    context.fit(messages)
    context.observe({"prompt_tokens": 1_000, "completion_tokens": 100})
    assert context.report().unknown_calls == 1
    messages += [{"role": "assistant", "content": "r1"}, {"role": "user", "content": "q2"}]
    context.fit(messages)
    assert context.report().unknown_calls == 1


USED = Used(input=1_000, output=100)
CALL_LOGS: dict[str, tuple[list[AnyFact], tuple[int, int]]] = {
    "a request without an answer": ([UserSaid(content="q")], (0, 0)),
    "an answer and its usage": ([UserSaid(content="q"), ModelSaid(content="r"), USED], (1, 0)),
    "usage before its answer": (
        [UserSaid(content="q"), replace(USED, until=2), ModelSaid(content="r")],
        (1, 0),
    ),
    "usage of a lost answer, and an answer without usage": (
        [UserSaid(content="q"), replace(USED, until=2), UserSaid(content="again"), ModelSaid(content="r")],
        (2, 1),
    ),
    "imported answers": (
        [UserSaid(content="q"), ModelSaid(content="r", imported=True), UserSaid(content="go on")],
        (0, 0),
    ),
    "an imported answer and a call": (
        [ModelSaid(content="r", imported=True), UserSaid(content="q"), ModelSaid(content="s"), USED],
        (1, 0),
    ),
    "an answer without a price": (
        [UserSaid(content="q"), ModelSaid(content="r"), Opened(model="m"), USED],
        (1, 1),
    ),
}


@pytest.mark.parametrize("name", CALL_LOGS)
def test_calls_are_counted_alike_everywhere(name: str) -> None:
    said, expected = CALL_LOGS[name]
    facts = [Opened(model="gpt-4.1"), *said]
    log = [Event(seq, fact, float(seq)) for seq, fact in enumerate(facts)]

    async def counts() -> dict[str, tuple[int, int]]:
        async with foveal.stores.MemoryStore() as store:
            await store.append("s", log)
            model = "m" if "price" in name else "gpt-4.1"
            session = await foveal.Session.open(store, "s", model=model)
            report, usage = await session.report(), usage_to_api(await session.usage())
            loaded = foveal.Context(model, log=log).report()
        figures = SessionFigures()
        builder = TimelineBuilder(InspectedSettings(id="s"))
        for event in log:
            figures.add(event)
            builder.add((event,))
        row = figures.fill(SessionRow(key="s"), is_partial=False)
        return {
            "session": (report.calls, report.unknown_calls),
            "usage": (usage.calls, usage.unknown_calls),
            "loaded": (loaded.calls, loaded.unknown_calls),
            "row": (row.requests, row.unknown_calls),
            "timeline": (len(builder.document().requests), expected[1]),
        }

    found = asyncio.run(counts())
    assert found == dict.fromkeys(found, expected)


def test_a_checkpoint_of_an_earlier_version_keeps_its_calls() -> None:
    old = msgspec.json.decode(b'{"calls": 3, "answers": 5, "answered": 9}', type=UsageTotals)
    assert (old.calls, old.reported, old.unknown_calls) == (5, 3, 2)
    assert msgspec.json.decode(msgspec.json.encode(old), type=UsageTotals) == old
    new = old.after(Event(12, ModelSaid(content="r")), foveal.model("gpt-4.1"))
    assert (new.calls, new.unknown_calls) == (6, 3)


def test_a_loaded_context_has_the_calls_of_the_saved_one() -> None:
    ctx = foveal.Context("gpt-4.1")
    messages: list[Any] = [user("q")]
    ctx.fit(messages)
    ctx.observe({"prompt_tokens": 1_000, "completion_tokens": 100})
    ctx.fit([*messages, {"role": "assistant", "content": "r"}, user("more")])
    loaded = foveal.Context.load(ctx.save()).report()
    assert (loaded.calls, loaded.unknown_calls, loaded.spent) == (1, 0, ctx.report().spent)
    assert (ctx.report().calls, ctx.report().fitted, loaded.fitted) == (1, 2, 0)
