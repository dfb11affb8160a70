"""Spending limits of the library: no request is sent that would exceed one, and what is left is reported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

import foveal
from foveal.core.models.cost import PERIODS, Period, period_start
from foveal.core.models.spending import period_end, read_limits
from foveal.errors import SettingsChanged

PRICED: Final = foveal.model("priced", window=200_000, input_price=1.0, cached_price=0.1, output_price=10.0)
UNPRICED: Final = foveal.model("my-finetune", window=64_000)
NOON: Final = 1_795_003_200.0 - 1_795_003_200.0 % 86_400 + 12 * 3_600
Json = dict[str, Any]


def said(*texts: str) -> list[Json]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


def used(prompt: int, output: int = 0) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": output}


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("5 USD", ["5 USD"]),
        ("$5", ["5 USD"]),
        (0.5, ["0.5 USD"]),
        ("2M tokens per day", ["2,000,000 tokens per day"]),
        ("soft 4 USD/hour", ["soft 4 USD per hour"]),
        (["1,500 USD per month", "500k tokens"], ["1,500 USD per month", "500,000 tokens"]),
    ],
)
def test_limits_are_read_and_shown(given: Any, shown: list[str]) -> None:
    limits = read_limits(given)
    assert list(map(str, limits)) == shown
    assert read_limits(list(map(str, limits))) == limits


@pytest.mark.parametrize(
    "given", ["5 EUR", "5", "", "$5 USD", "0 USD", "-1 USD", True, "5 USD per week", 0, float("nan"), {}]
)
def test_what_is_no_limit_is_refused(given: Any) -> None:
    with pytest.raises(foveal.BadSetting, match="limit"):
        foveal.Context("gpt-4.1", limit=given)


def test_periods_follow_one_another() -> None:
    """A period begins where the one before it ends, also at the end of a month and of a year."""
    for per in PERIODS:
        at = 1_798_700_000.0  # in the last days of 2026
        for _ in range(40):
            end = period_end(at, per)
            assert end is not None
            assert period_start(at, per) <= at < end
            assert period_start(end, per) == end
            at = end + 1.0
    total: Period = ""
    assert period_end(NOON, total) is None


def test_a_request_that_would_exceed_the_limit_is_not_sent() -> None:
    ctx = foveal.Context(PRICED, limit="0.50 USD")
    messages = said("Why is CI red?")
    ctx.fit(messages)
    ctx.observe(used(100_000, 39_500))
    assert ctx.report().spent == pytest.approx(0.495)
    messages += said("", "Because of the clock.", "And now?")[1:]
    with pytest.raises(foveal.BudgetExceeded) as raised:
        ctx.fit(messages)
    error = raised.value
    assert (error.limit, error.unit, error.until) == ("0.5 USD", "USD", None)
    assert error.spent == pytest.approx(0.495)
    assert error.left == pytest.approx(0.005)
    assert error.estimate is not None
    assert error.estimate > error.left
    assert "0.5 USD" in str(error)
    assert str(error).endswith("; raise it with `set_limit` or send a smaller request")
    ctx.set_limit("5 USD")
    assert ctx.fit(messages) == messages


def test_the_report_says_what_is_left() -> None:
    ctx = foveal.Context(PRICED, limit=["10 USD", "200k tokens"])
    ctx.fit(said("Why is CI red?"))
    ctx.observe(used(100_000, 50_000))
    report = ctx.report()
    assert [(one.limit, one.spent, one.left) for one in report.budgets] == [
        ("200,000 tokens", 150_000, 50_000),
        ("10 USD", pytest.approx(0.6), pytest.approx(9.4)),
    ]
    assert report.budget == report.budgets[0]
    assert "150,000 tokens of 200,000 tokens spent" in str(report)
    assert foveal.Context(PRICED).report().budget is None


def test_a_limit_in_dollars_needs_a_price() -> None:
    """A limit that could not be kept is an error, not a limit without effect."""
    ctx = foveal.Context(UNPRICED, limit="5 USD")
    with pytest.raises(foveal.BudgetExceeded, match="price of my-finetune is not known") as raised:
        ctx.fit(said("Why is CI red?"))
    assert raised.value.estimate is None
    ctx.set_limit("1M tokens")
    assert ctx.fit(said("Why is CI red?"))


def test_a_call_without_usage_counts_as_estimated() -> None:
    ctx = foveal.Context(PRICED, limit="5 USD")
    messages = said("Why is CI red?", "Because of the clock.", "And now?", "Still.", "And now?")
    ctx.fit(messages[:1])
    ctx.fit(messages[:3])
    ctx.fit(messages)
    budget = ctx.report().budget
    assert budget is not None
    assert budget.estimate is not None
    assert budget.spent == pytest.approx(2 * budget.estimate)


def test_a_cached_prompt_is_estimated_at_its_price() -> None:
    ctx = foveal.Context(PRICED, limit="5 USD")
    ctx.fit(said("word " * 50_000))
    (fresh,) = ctx.report().budgets
    ctx.observe(
        {"prompt_tokens": 50_007, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 50_000}}
    )
    (warm,) = ctx.report().budgets
    assert fresh.estimate is not None
    assert warm.estimate is not None
    assert fresh.estimate > 0.05 > 0.006 > warm.estimate


def test_undo_and_rewind_give_nothing_back() -> None:
    ctx = foveal.Context(PRICED, limit="0.20 USD")
    ctx.fit(said("Why is CI red?"))
    ctx.observe(used(14, 19_000))
    with pytest.raises(foveal.BudgetExceeded):
        ctx.fit(said("Another first message."))  # a rewind to the beginning
    budget = ctx.report().budget
    assert budget is not None
    assert budget.spent == pytest.approx(0.190014)


def test_a_loaded_context_has_spent_what_it_spent() -> None:
    ctx = foveal.Context(PRICED, limit="0.20 USD")
    ctx.fit(said("Why is CI red?"))
    ctx.observe(used(14, 19_500))
    again = foveal.Context.load(ctx.save(), PRICED)
    with pytest.raises(foveal.BudgetExceeded):
        again.fit(said("Why is CI red?", "The clock.", "And now?"))
    with pytest.warns(SettingsChanged, match=r"limit: 0\.2 USD → 1 USD"):
        richer = foveal.Context.load(ctx.save(), PRICED, limit=1)
    assert richer.fit(said("Why is CI red?", "The clock.", "And now?"))


@pytest.mark.parametrize("per", ["hour", "day", "month"])
def test_a_new_period_begins_with_nothing_spent(per: Period) -> None:
    clock = Clock()
    ctx = foveal.Context(PRICED, limit=f"0.10 USD per {per}", clock=clock)
    ctx.fit(said("Why is CI red?"))
    ctx.observe(used(14, 6_000))
    later = said("Why is CI red?", "The clock.", "And now?")
    with pytest.raises(foveal.BudgetExceeded) as raised:
        ctx.fit(later)
    assert raised.value.until == period_end(NOON, per)
    assert str(raised.value).endswith("a smaller request, or wait for the next period")
    clock.now = period_end(NOON, per) or 0.0
    assert ctx.fit(later) == later
    budget = ctx.report().budget
    assert budget is not None
    assert budget.spent == 0.0


def test_a_soft_limit_refuses_nothing() -> None:
    ctx = foveal.Context(PRICED, limit="soft 0.10 USD")
    ctx.fit(said("Why is CI red?"))
    ctx.observe(used(150_000))
    assert ctx.fit(said("Why is CI red?", "The clock.", "And now?"))
    budget = ctx.report().budget
    assert budget is not None
    assert budget.soft
    assert budget.left == pytest.approx(-0.05)


@pytest.mark.parametrize("dialect", ["openai_chat", "anthropic", "openai_responses"])
def test_the_model_is_told_in_steps_and_the_prefix_stays(dialect: Any) -> None:
    """Each request begins with the one before it: what was told stays where it was told."""
    ctx = foveal.Context(PRICED, limit="1 USD", tell_budget=True, dialect=dialect)
    history, before, told = said("Why is CI red?"), "", list[int]()
    for number in range(9):
        sent = json.dumps(ctx.fit(history))
        assert sent == json.dumps(ctx.fit(history))
        if dialect == "openai_chat":
            assert sent.startswith(before.removesuffix("]"))
        before = sent
        told.append(sent.count("[foveal: "))
        ctx.observe(used(40, 10_000))
        history += said("", f"Answer {number}.", "And now?")[1:]
    assert told == [
        1,
        1,
        1,
        1,
        1,
        2,
        2,
        2,
        3,
    ]  # a tenth of a dollar each: the half and the quarter are passed
    assert "less than 25% of the budget (1 USD) is left" in before
    assert "[foveal: " not in json.dumps(foveal.Context(PRICED, limit="1 USD").fit(said("Hello.")))


def test_no_summary_is_paid_for_when_nothing_is_left() -> None:
    asked: list[object] = []

    def summarise(request: foveal.SummaryRequest) -> str:
        asked.append(request)
        return "A summary."

    ctx = foveal.Context("gpt-4.1", window=8_000, limit="0.10 USD", summarise=summarise)
    ctx.fit(said("Why is CI red?"))
    ctx.observe(used(50_000))
    texts = [f"Message {number}. " + "word " * 900 for number in range(15)]
    with pytest.raises(foveal.BudgetExceeded):
        ctx.fit(said("Why is CI red?", *texts, "And now?"))
    assert asked == []


def test_a_client_with_a_limit_sends_nothing_beyond_it() -> None:
    """The transport raises: a request that cannot be managed is otherwise sent as it is."""
    sent: list[bytes] = []

    def provider(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.content)
        answer = {"role": "assistant", "content": "The clock."}
        choice = {"index": 0, "message": answer, "finish_reason": "stop"}
        usage = used(14, 1_000_000)
        return httpx2.Response(200, json={"object": "chat.completion", "choices": [choice], "usage": usage})

    limited = foveal.transport.ConversationPool(limit="5 USD")
    with httpx2.Client(transport=foveal.transport.wrap(httpx2.MockTransport(provider), limited)) as client:
        messages = said("Why is CI red?")
        address, body = (
            "https://api.openai.com/v1/chat/completions",
            {"model": "gpt-4.1", "messages": messages},
        )
        assert client.post(address, json=body).status_code == 200
        messages += said("", "The clock.", "And now?")[1:]
        with pytest.raises(foveal.BudgetExceeded):
            client.post(address, json=body)
    assert len(sent) == 1


# ── Sessions ──────────────────────────────────────────────────────────────────────────────────────


async def spend(session: foveal.Session, tokens: int) -> None:
    await session.append(foveal.UserSaid(content="Why is CI red?"))
    await session.fit()
    await session.append(foveal.ModelSaid(content="The clock."))
    await session.observe(used(14, tokens))


def in_store(test: Callable[[foveal.ports.Store], Awaitable[None]]) -> Callable[[Path], None]:
    """Run an async test with a store of its own."""

    async def run(path: Path) -> None:
        async with foveal.open_store(path) as store:
            await test(store)

    def sync(tmp_path: Path) -> None:
        asyncio.run(run(tmp_path / "chats.db"))

    return sync


@in_store
async def test_a_session_keeps_its_limit_over_restarts(store: foveal.ports.Store) -> None:
    session = await foveal.Session.open(store, "demo", model=PRICED, limit="0.20 USD")
    await spend(session, 19_500)
    session = await foveal.Session.open(store, "demo", model=PRICED, limit="0.20 USD")
    await session.append(foveal.UserSaid(content="And now?"))
    with pytest.raises(foveal.BudgetExceeded):
        await session.fit()
    await session.set_limit("1 USD")
    assert (await session.fit()).tokens
    budget = (await session.report()).budget
    assert budget is not None
    assert budget.spent == pytest.approx(0.195014)


@in_store
async def test_a_rewound_session_has_spent_what_it_spent(store: foveal.ports.Store) -> None:
    session = await foveal.Session.open(store, "demo", model=PRICED, limit="0.20 USD")
    await spend(session, 19_500)
    await session.rewind(0)
    for opened in (session, await foveal.Session.open(store, "demo", model=PRICED, limit="0.20 USD")):
        await opened.append(foveal.UserSaid(content="And now?"))
        with pytest.raises(foveal.BudgetExceeded):
            await opened.fit()


@in_store
async def test_the_period_of_a_session_survives_a_checkpoint(store: foveal.ports.Store) -> None:
    clock = Clock()
    arguments: Json = {"model": PRICED, "limit": "0.20 USD per hour", "clock": clock}
    session = await foveal.Session.open(store, "demo", **arguments)
    for _ in range(30):  # more events than there are between two checkpoints
        await spend(session, 600)
    session = await foveal.Session.open(store, "demo", **arguments)
    budget = (await session.report()).budget
    assert budget is not None
    assert budget.spent == pytest.approx(0.18042)
    clock.now += 3_600
    budget = (await session.report()).budget
    assert budget is not None
    assert budget.spent == 0.0


def test_a_report_with_limits_is_json() -> None:
    report = foveal.Context(PRICED, limit="5 USD").report()
    assert json.loads(report.json())["budgets"][0]["limit"] == "5 USD"
