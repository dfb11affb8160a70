"""Requests that a provider refuses as too large, or cuts: the learned limits, and smaller retries."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from itertools import pairwise, product
from typing import Any, Final, NamedTuple

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from foveal import Context, ContextOverflow
from foveal.core.compaction import SummaryRequest
from foveal.core.engine import Engine, resolve_settings
from foveal.core.engine.overflow import MAX_RESENDS, ProviderLimits
from foveal.core.log import (
    Call,
    Compacted,
    Dropped,
    Instructed,
    Masked,
    ModelSaid,
    Opened,
    Overflowed,
    ToolReturned,
    Used,
    UserSaid,
)
from foveal.core.tokens.counter import FunctionCounter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import fold
from foveal.sessions import Session
from foveal.stores.memory import MemoryStore
from support.effort import examples, rest_in_soak
from support.histories import (
    CHECKS,
    ESTIMATE,
    PIXEL,
    Json,
    call_message,
    context,
    encode_and_decode,
    events_of,
    plain_model,
    recount,
    render_log,
    result_message,
    user,
    wire_bytes,
)
from support.provider_stand_in import StandIn, looping

GOOD: Final = (
    "<summary>\n## Goal\nIt.\n## Decisions\n-\n## State\nHalf.\n## Next\n-\n## Dead ends\n-\n</summary>"
)
PRESETS: Final = ("economy", "handoff", "sliding-summary", "recent-summary", "confirm", "rolling", "recent")
presets = st.sampled_from(PRESETS)


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), timeout=240))

    return wrapped


def conversation(turns: int, *, lines: int = 15) -> list[Json]:
    messages: list[Json] = [{"role": "system", "content": "You are careful."}]
    for turn in range(turns):
        messages.append(user(f"request {turn}: look at file_{turn}.py"))
        body = "\n".join(f"line {n} of src/file_{turn}_{n}.py" for n in range(lines))
        messages += [call_message(f"c{turn}"), result_message(f"c{turn}", body)]
        messages.append({"role": "assistant", "content": f"file_{turn}.py is fine"})
    return [*messages, user("and now?")]


def roomy(window: int, preset: Any, **how: Any) -> Context:
    """A context with a small reserve."""
    return context(window, preset, reserve=100, **how)


def too_long(limit: int, needed: int) -> dict[str, Any]:
    message = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {needed} "
        "tokens. Please reduce the length of the messages."
    )
    return {"error": {"message": message, "code": "context_length_exceeded"}}


def too_much_output(limit: int, needed: int, output: int) -> str:
    return f"input length and `max_tokens` exceed context limit: {needed} + {output} > {limit}, decrease them"


def overflows(ctx: Context) -> list[Overflowed]:
    return [e.fact for e in ctx.log if isinstance(e.fact, Overflowed)]


class Sent(NamedTuple):
    tokens: int
    max_tokens: int


class Provider:
    """A provider with its own limit and token count; `wording` decides how much its error states."""

    def __init__(self, limit: int, *, ratio: float = 1.0, wording: str = "both") -> None:
        self.limit, self.ratio, self.wording = limit, ratio, wording
        self.sent: list[Sent] = []

    def error(self, request: list[Json], max_tokens: int) -> object | None:
        needed = round(recount(request) * self.ratio)
        self.sent.append(Sent(recount(request), max_tokens))
        if needed + max_tokens <= self.limit:
            return None
        if needed < self.limit:
            return too_much_output(self.limit, needed, max_tokens)
        match self.wording:
            case "both":
                return too_long(self.limit, needed)
            case "limit":
                return f"input is too long: maximum prompt length is {self.limit}"
            case "over":
                return f"prompt too long; exceeded max context length by {needed - self.limit} tokens"
            case _:
                return {"error": {"code": "context_length_exceeded", "message": "too long"}}


def send_until_accepted(ctx: Context, messages: list[Json], provider: Provider) -> list[Json]:
    """Send until the request is accepted, as an agent loop does. Raises `ContextOverflow`."""
    while True:
        request = ctx.fit(messages)
        error = provider.error(request, ctx.max_tokens)
        if error is None:
            return request
        assert ctx.overflowed(error)


def final_error(send: Callable[[], object]) -> ContextOverflow:
    """Return the error that ends the retries."""
    for _ in range(60):
        try:
            send()
        except ContextOverflow as problem:
            return problem
    raise AssertionError("it goes on for ever")


# ── Retries are smaller ──────────────────────────────────────────────────────────────────────────────────────


def check_never_unchanged(sent: list[Sent]) -> None:
    for before, after in pairwise(sent):
        assert after.tokens < before.tokens or after.max_tokens < before.max_tokens
    assert len(sent) <= MAX_RESENDS + 1


@examples(20)
@given(
    presets,
    st.integers(2, 25),
    st.integers(600, 8_000),
    st.sampled_from((0.7, 1.0, 1.3, 1.7)),
    st.sampled_from(("both", "limit", "over", "nothing")),
)
def test_each_retry_after_a_refusal_is_smaller(
    preset: str, turns: int, limit: int, ratio: float, wording: str
) -> None:
    ctx = context(8_000, preset)
    ctx.pin("never delete the archive")
    messages, provider = conversation(turns), Provider(limit, ratio=ratio, wording=wording)
    try:
        request = send_until_accepted(ctx, messages, provider)
    except ContextOverflow:
        pass
    else:
        assert CHECKS["openai_chat"](request) == []
        assert "never delete the archive" in str(request)
        assert request[-1] == messages[-1]
    check_never_unchanged(provider.sent)


ALWAYS: Final[dict[str, Any]] = {
    "both numbers": lambda tokens: too_long(tokens // 2, tokens),
    "a limit above what was sent": lambda tokens: too_long(tokens * 3, tokens * 4),
    "a limit that is what was sent": lambda tokens: f"maximum prompt length is {tokens}",
    "only a code": lambda tokens: {"error": {"code": "context_length_exceeded"}},
    "by how much": lambda tokens: "prompt too long; exceeded max context length by 9 tokens",
    "a limit of one token": lambda tokens: too_long(1, tokens),
    "an absurd limit": lambda tokens: too_long(10**9, 10**9 + 1),
    "the output without its numbers": lambda tokens: "input length and `max_tokens` exceed context limit",
    "bytes": lambda tokens: "413 request entity too large",
}


@pytest.mark.parametrize(("preset", "wording"), rest_in_soak(product(PRESETS, sorted(ALWAYS)), every=4))
def test_after_five_refused_requests_an_error_is_raised(preset: str, wording: str) -> None:
    ctx, messages = roomy(20_000, preset), conversation(30)
    sent: list[Sent] = []

    def send() -> None:
        request = ctx.fit(messages)
        sent.append(Sent(recount(request), ctx.max_tokens))
        assert ctx.overflowed(ALWAYS[wording](sent[-1].tokens))

    problem = final_error(send)
    check_never_unchanged(sent)
    assert "refused 5 requests in a row" in str(problem) or len(sent) < MAX_RESENDS + 1


def test_a_caller_that_ignores_max_tokens_never_sends_the_same_three_times() -> None:
    ctx, messages = roomy(20_000, "handoff"), conversation(30)
    sent: list[int] = []
    while not sent or sent[-1] + 5_000 > 6_700:
        sent.append(recount(ctx.fit(messages)))
        if sent[-1] + 5_000 > 6_700:
            assert ctx.overflowed(too_much_output(6_700, sent[-1], 5_000))
    assert sent[0] == sent[1], "first max_tokens shrinks"
    assert all(after < before for before, after in pairwise(sent[1:]))


def test_the_error_after_the_last_retry_quotes_the_provider_and_advises() -> None:
    ctx, messages = roomy(20_000, "recent"), conversation(60)
    for _ in range(MAX_RESENDS):
        ctx.fit(messages)
        assert ctx.overflowed("prompt is too long")
    ctx.fit(messages)
    log = ctx.log
    with pytest.raises(ContextOverflow, match="refused 5 requests in a row") as problem:
        ctx.overflowed("prompt is too long")
    assert "prompt is too long" in str(problem.value)
    assert "max_tokens" in str(problem.value)
    assert ctx.log == log


def test_an_error_about_something_else_is_not_an_overflow() -> None:
    ctx = context(20_000, "handoff")
    ctx.fit(conversation(3))
    log = ctx.log
    for error in (
        ValueError("no"),
        "rate limit reached",
        {"error": {"code": "insufficient_quota"}},
        None,
        17,
    ):
        assert ctx.overflowed(error) is False
    assert ctx.log == log


def test_a_reply_resets_the_count_of_refusals() -> None:
    ctx, messages = roomy(90_000, "recent"), conversation(250)
    for _ in range(2):
        for _ in range(MAX_RESENDS - 1):
            ctx.fit(messages)
            used = ctx.report().used
            assert ctx.overflowed(too_long(used - 1, used))
        ctx.fit(messages)
        ctx.observe({"prompt_tokens": ctx.report().used, "completion_tokens": 5})
        messages = [*messages, {"role": "assistant", "content": "yes"}, user("go on")]


def test_a_refusal_without_an_own_request_uses_the_current_size() -> None:
    ctx = roomy(20_000, "recent")
    ctx.append(*conversation(30))
    assert ctx.overflowed("prompt is too long")
    assert 3_000 < recount(ctx.fit()) < recount(conversation(30))


def test_a_refusal_of_an_empty_request_changes_no_limit() -> None:
    ctx = context(20_000, "handoff")
    assert ctx.overflowed("prompt is too long")
    assert ctx.fit(conversation(3))


@pytest.mark.parametrize("stated", [True, False])
def test_a_large_reserve_does_not_use_up_a_learned_limit(stated: bool) -> None:
    ctx, messages = context(100_000, "recent", reserve=10_000), conversation(40)
    before = recount(ctx.fit(messages))
    assert before < 9_500
    assert ctx.overflowed(too_long(before - 500, before) if stated else "context_length_exceeded")
    assert before // 2 < recount(ctx.fit(messages)) < before


# ── Limits that the error states ────────────────────────────────────────────────────────────────


@examples(15)
@given(presets, st.integers(1_500, 7_000), st.floats(0.6, 1.9))
def test_when_the_error_states_both_numbers_the_second_request_is_accepted(
    preset: str, limit: int, ratio: float
) -> None:
    ctx = context(8_000, preset, reserve=0)
    ctx._engine.model = replace(ctx._engine.model, max_output=1)
    provider = Provider(limit, ratio=ratio)
    try:
        send_until_accepted(ctx, conversation(40), provider)
    except ContextOverflow:
        return
    assert len(provider.sent) <= 2


def test_no_more_is_removed_than_the_error_requires() -> None:
    ctx, messages = roomy(20_000, "recent"), conversation(40)
    before = recount(ctx.fit(messages))
    assert ctx.overflowed(too_long(before - 50, before))
    after = recount(ctx.fit(messages))
    assert before * 0.55 < after < before


@pytest.mark.parametrize(
    ("limit", "needed", "window", "most"),
    [
        (8_000, 10_000, 4_000, None),  # the provider counts twice as many
        (4_800, 4_900, 4_800, None),
        (3_000, 0, 3_000, None),
        (0, 0, None, 4_500),  # no number is stated
        (6_000, 0, None, 4_500),  # the stated limit cannot be right
    ],
)
def test_a_limit_is_learned_in_tokens_as_foveal_counts_them(
    limit: int, needed: int, window: int | None, most: int | None
) -> None:
    limits = ProviderLimits().after(Overflowed(model="m", limit=limit, needed=needed, sent=5_000))
    assert (limits.windows.get("m"), limits.inputs.get("m")) == (window, most)


# ── The ladder after refusals
# ─────────────────────────────────────────────────────────────────────────────────────────


def test_first_max_tokens_shrinks_and_the_messages_stay() -> None:
    ctx, messages = context(20_000, "economy"), conversation(20)
    request = ctx.fit(messages)
    whole = ctx.max_tokens
    needed = recount(request)
    assert ctx.overflowed(too_much_output(needed + 300, needed, whole))
    assert ctx.fit(messages) == request
    assert ctx.max_tokens == 300 < whole
    ctx.observe({"prompt_tokens": needed, "completion_tokens": 5})
    assert ctx.report().window == needed + 300, "the request succeeded, so the stated window is learned"


@pytest.mark.parametrize("preset", ["handoff", "recent-summary"])
def test_refusals_mask_then_summarise_then_raise(
    preset: str,
) -> None:
    ctx, messages = context(20_000, preset, reserve=100), conversation(20, lines=40)
    order: dict[type, None] = {}

    def send() -> None:
        ctx.fit(messages)
        before, used = len(ctx.log), ctx.report().used
        assert ctx.overflowed(too_long(int(used * 0.95), used))
        ctx.fit(messages)
        new = [type(e.fact) for e in ctx.log[before:] if isinstance(e.fact, Masked | Compacted | Dropped)]
        order.update(dict.fromkeys(new))
        ctx.observe({"prompt_tokens": ctx.report().used, "completion_tokens": 1})

    problem = final_error(send)
    assert problem.needed > problem.available
    assert list(order)[:2] == [Masked, Compacted]
    reasons = {e.fact.reason for e in events_of(ctx.log, Masked)}  # type: ignore[union-attr]
    assert "overflow" in reasons
    assert {e.fact.reason for e in events_of(ctx.log, Compacted)} <= {"overflow", "tokens", "room"}  # type: ignore[union-attr]


def test_units_are_right_after_a_request_that_did_not_fit() -> None:
    ctx, messages = context(6_000, "economy"), conversation(20, lines=40)
    ctx.fit(messages)
    for _ in range(3):  # the reductions of each attempt are discarded, and other events get their seqs
        messages += [{"role": "user", "content": "far too long " * 4_000}]
        with pytest.raises(ContextOverflow):
            ctx.fit(messages)
        messages += [{"role": "assistant", "content": "no"}, {"role": "user", "content": "shorter"}]
        ctx.fit(messages)
        view = fold(ctx.log, MessageTokens(ESTIMATE))
        assert ctx.report().used == view.units


@pytest.mark.parametrize("preset", ["economy", "handoff", "recent-summary"])
def test_a_request_that_no_reduction_can_fit_is_refused_before_any_is_tried(preset: str) -> None:
    """A client that continues after the error would otherwise have its whole history reduced again each time."""
    counted: list[str] = []

    def measure(text: str) -> int:
        counted.append(text)
        return ESTIMATE.count(text)

    ctx = context(6_000, preset, tokenizer=FunctionCounter("counted", measure, exact=False, limit=100_000))
    messages = [*conversation(20, lines=40), user("far too long " * 4_000)]
    with pytest.raises(ContextOverflow, match="the latest message alone takes"):
        ctx.fit(messages)
    counted.clear()
    messages.append(call_message("c1"))
    with pytest.raises(ContextOverflow, match="the latest message alone takes"):
        ctx.fit(messages)
    assert sum(map(len, counted)) < 1_000


def test_each_refusal_is_recorded_with_the_error_text() -> None:
    ctx, messages = context(20_000, "handoff"), conversation(20)
    ctx.fit(messages)
    sent = ctx.report().used
    assert ctx.overflowed(too_long(3_000, 6_000))
    (fact,) = overflows(ctx)
    assert (fact.model, fact.limit, fact.needed, fact.limit_kind) == (
        "somebody/unheard-of",
        3_000,
        6_000,
        "tokens",
    )
    assert fact.sent == sent
    assert "maximum context length is 3000 tokens" in fact.problem


def test_with_policy_off_a_refusal_raises_an_error() -> None:
    ctx, messages = context(20_000, "off"), conversation(20)
    needed = recount(ctx.fit(messages))
    assert ctx.overflowed(too_long(needed // 2, needed))
    with pytest.raises(ContextOverflow, match="reduces nothing"):
        ctx.fit(messages)


def test_a_summariser_is_called_when_masks_are_not_enough() -> None:
    seen: list[SummaryRequest] = []

    def write(request: SummaryRequest) -> str:
        seen.append(request)
        return GOOD

    ctx = roomy(20_000, "economy", summarise=write)
    messages: list[Json] = []
    for n in range(40):
        messages += [
            user(f"request {n} " + "with words " * 20),
            {"role": "assistant", "content": "and " * 60},
        ]
    messages.append(user("and now?"))
    needed = recount(ctx.fit(messages))
    assert ctx.overflowed(too_long(needed // 2, needed))
    assert recount(ctx.fit(messages)) < needed // 2
    (made,) = events_of(ctx.log, Compacted)
    assert isinstance(made.fact, Compacted)
    assert made.fact.reason == "overflow"
    assert seen


# ── Persistence ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_learned_limit_survives_a_reload_of_the_log() -> None:
    ctx, messages = roomy(20_000, "recent-summary"), conversation(20)
    needed = recount(ctx.fit(messages))
    assert ctx.overflowed(too_long(needed // 2, needed))
    request = ctx.fit(messages)
    log = encode_and_decode(ctx.log)
    assert wire_bytes(render_log(log, "openai_chat")) == wire_bytes(request)
    made = resolve_settings(plain_model(20_000), policy="recent-summary", tokenizer=ESTIMATE, reserve=100)
    again = Engine(made, log=log)
    assert again.budget() == ctx._engine.budget()
    assert again.model.window == ctx.report().window == needed // 2
    assert "learned" in ctx.report().window_source


@run
async def test_a_reopened_session_keeps_the_learned_limit() -> None:
    store = MemoryStore()
    how: dict[str, Any] = {"model": plain_model(20_000), "policy": "handoff", "tokenizer": "estimate"}
    session = await Session.open(store, "demo", **how)
    for n in range(30):
        call = Call(id=f"c{n}", name="read", arguments="{}")
        body = "\n".join(f"line {k} of f_{n}.py" for k in range(25))
        said = (
            UserSaid(content=f"request {n}"),
            ModelSaid(content=(call,)),
            ToolReturned(call_id=call.id, content=body),
        )
        await session.append(*said)
    sent = [(await session.fit()).tokens]
    most = await session.max_tokens()
    assert await session.overflowed(too_long(sent[0] // 2, sent[0]))
    sent.append((await session.fit()).tokens)
    assert sent[1] < sent[0] // 2
    assert await session.max_tokens() < most
    again = await Session.open(store, "demo", **how)
    assert (await again.report()).window == sent[0] // 2
    assert (await again.fit()).tokens == sent[1]
    assert await again.overflowed("rate limit reached") is False
    larger = await Session.open(
        store, "demo", **{**how, "model": replace(plain_model(60_000), name="another")}
    )
    assert (await larger.report()).window == 60_000, "another model has its own limit"
    back = await Session.open(store, "demo", **how)
    assert (await back.report()).window == sent[0] // 2


@run
async def test_a_session_raises_after_five_refusals() -> None:
    session = await Session.open(
        MemoryStore(), "demo", model=plain_model(20_000), policy="handoff", tokenizer="estimate"
    )
    for n in range(60):
        await session.append(UserSaid(content=f"request {n} " + "words " * 60), ModelSaid(content="so " * 60))
    sent: list[Sent] = []
    with suppress(ContextOverflow):
        while len(sent) < 10:
            sent.append(Sent((await session.fit()).tokens, await session.max_tokens()))
            assert await session.overflowed("prompt is too long")
    check_never_unchanged(sent)
    assert len([e for e in await session.events() if isinstance(e.fact, Overflowed)]) <= MAX_RESENDS


def test_limits_folded_from_the_log_equal_the_live_ones() -> None:
    ctx, messages = roomy(20_000, "handoff"), conversation(25)
    for limit in (6_000, 3_000):
        assert ctx.overflowed(too_long(limit, recount(ctx.fit(messages))))
    limits = ProviderLimits()
    for event in ctx.log:
        limits = limits.after(event.fact)
    assert limits == ctx._engine.provider_limits


# ── Silent overflows ───────────────────────────────────────────────────────────────────────────────────────


def test_after_two_silently_cut_prompts_the_next_request_is_smaller() -> None:
    ctx, messages = roomy(40_000, "handoff"), conversation(60)
    first = recount(ctx.fit(messages[:8]))
    ctx.observe({"prompt_tokens": first, "completion_tokens": 5})
    sizes = []
    for end in (-4, None):
        sizes.append(recount(ctx.fit(messages[:end])))
        assert overflows(ctx) == [], "one report is no proof"
        ctx.observe({"prompt_tokens": 4_096, "completion_tokens": 5})
    assert sizes[0] > 8_000
    (fact,) = overflows(ctx)
    assert (fact.limit_kind, fact.limit) == ("silent", 4_096)
    assert re.fullmatch(
        r"the provider counted 4,096 tokens of about [\d,]+, then 4,096 of about [\d,]+: it has cut both requests",
        fact.problem,
    )
    after = [*messages, {"role": "assistant", "content": "hm"}, user("go on")]
    assert recount(ctx.fit(after)) < 4_096
    report = ctx.report()
    assert (report.window, report.window_source) == (4_096, "learned from reported usage")
    assert context(40_000, "handoff", reserve=500, log=ctx.log).report().window == 4_096


@pytest.mark.parametrize("reported", rest_in_soak([1, 10, 500, 512, 1_000, 2_048, 4_096, 10_000], every=3))
@pytest.mark.parametrize("start", [2, 60])
def test_a_usage_that_never_changes_is_no_cut(reported: int, start: int) -> None:
    ctx, messages = roomy(40_000, "handoff"), conversation(80)
    for end in range(start, 80, 2):
        assert ctx.fit(messages[:end]) == messages[:end]
        ctx.observe({"prompt_tokens": reported, "completion_tokens": 5})
    assert overflows(ctx) == []
    assert ctx.report().window == 40_000


def test_the_same_short_report_for_the_same_request_is_one_report() -> None:
    ctx, messages = roomy(40_000, "handoff"), conversation(60)
    ctx.observe({"prompt_tokens": recount(ctx.fit(messages[:8])), "completion_tokens": 5})
    for _ in range(3):
        ctx.fit(messages)
        ctx.observe({"prompt_tokens": 4_096, "completion_tokens": 5})
    assert overflows(ctx) == []


@pytest.mark.parametrize(
    "reply",
    [
        {
            "stop_reason": "model_context_window_exceeded",
            "usage": {"input_tokens": 7_000, "output_tokens": 9},
        },
        {
            "choices": [{"finish_reason": "model_length", "message": {"role": "assistant", "content": ""}}],
            "usage": {"prompt_tokens": 7_000, "completion_tokens": 9},
        },
    ],
)
def test_a_stop_for_a_full_window_teaches_the_limit(reply: Json) -> None:
    ctx, messages = roomy(40_000, "handoff"), conversation(50)
    before = recount(ctx.fit(messages))
    ctx.observe(reply)
    (fact,) = overflows(ctx)
    assert fact.limit_kind == "silent"
    assert "window was full" in fact.problem
    assert len(events_of(ctx.log, Used)) == 1
    request = ctx.fit([*messages, {"role": "assistant", "content": "hm"}, user("go on")])
    assert recount(request) < before


def test_an_ordinary_usage_report_is_not_an_overflow() -> None:
    ctx, messages = roomy(40_000, "handoff"), conversation(50)
    before = recount(ctx.fit(messages))
    ctx.observe({"prompt_tokens": int(before * 1.1), "completion_tokens": 5})
    assert overflows(ctx) == []
    assert ctx.fit(messages) == ctx.fit(messages)


# ── Bytes ────────────────────────────────────────────────────────────────────────────────────────────────


def pictures(count: int) -> list[Json]:
    messages: list[Json] = []
    for n in range(count):
        url = f"data:image/png;base64,{PIXEL}{'A' * 4_000}"
        part = {"type": "image_url", "image_url": {"url": url}}
        messages += [
            user([{"type": "text", "text": f"picture {n}"}, part]),
            {"role": "assistant", "content": "ok"},
        ]
    return [*messages, user("and now?")]


def test_a_request_with_too_many_bytes_loses_images_first() -> None:
    ctx, messages = context(100_000, "handoff"), pictures(12)
    sizes = [len(str(ctx.fit(messages)))]
    for _ in range(3):
        assert ctx.overflowed(
            {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}
        )
        request = ctx.fit(messages)
        sizes.append(len(str(request)))
        assert CHECKS["openai_chat"](request) == []
        assert [f"picture {n}" for n in range(12) if f"picture {n}'" in str(request)] == [
            f"picture {n}" for n in range(12)
        ]
    assert all(after < before * 0.7 for before, after in pairwise(sizes))
    assert {fact.limit_kind for fact in overflows(ctx)} == {"bytes"}
    assert events_of(ctx.log, Compacted, Dropped) == []


def test_a_request_with_too_many_bytes_and_no_images_loses_text() -> None:
    ctx, messages = roomy(100_000, "handoff"), conversation(40)
    before = recount(ctx.fit(messages))
    assert ctx.overflowed("413 request entity too large")
    assert recount(ctx.fit(messages)) < before


def test_a_latest_message_with_too_many_bytes_raises_an_error() -> None:
    ctx = context(100_000, "handoff")
    messages = pictures(3)[:-1]
    last = messages.pop(-2)
    messages = [*messages[:-1], last]
    ctx.fit(messages)

    def send() -> None:
        assert ctx.overflowed("413 request entity too large")
        ctx.fit(messages)

    assert "images" in str(final_error(send))


# ── Another model ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("preset", ["handoff", "recent-summary"])
def test_a_switch_to_a_smaller_model_reduces_before_the_next_call(preset: str) -> None:
    ctx, messages = context(40_000, preset, reserve=500), conversation(60)
    assert ctx.fit(messages) == messages
    ctx.use(replace(plain_model(5_000), name="somebody/small"))
    request = ctx.fit(messages)
    assert recount(request) < 5_000
    assert ctx.report().window == 5_000
    reductions = [e for e in ctx.log if isinstance(e.fact, Masked | Compacted | Dropped)]
    opened = events_of(ctx.log, Opened)[-1]
    assert reductions
    assert all(event.seq > opened.seq for event in reductions)
    assert CHECKS["openai_chat"](request) == []
    if preset == "handoff":
        (made,) = events_of(ctx.log, Compacted)
        assert isinstance(made.fact, Compacted)
        assert made.fact.reason == "model"


def test_a_limit_learned_for_one_model_does_not_apply_to_another() -> None:
    ctx, messages = roomy(40_000, "handoff"), conversation(30)
    needed = recount(ctx.fit(messages))
    assert ctx.overflowed(too_long(needed // 2, needed))
    ctx.fit(messages)
    ctx.use(replace(plain_model(40_000), name="somebody/else"))
    assert ctx.report().window == 40_000
    ctx.use(plain_model(40_000))
    assert ctx.report().window == needed // 2


# ── Real clients ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def provider() -> Iterator[StandIn]:
    with StandIn(window=5_000, script=looping(steps=1_000)) as standin:
        yield standin


def results(number: int) -> str:
    return "\n".join(
        f"{number}: src/module_{number}_{line}.py has value {number * line}" for line in range(14)
    )


def refused(provider: StandIn) -> list[Any]:
    return [request for request in provider.requests if request.faults]


CALLS: Final = 40


def check_requests(provider: StandIn, ctx: Context, *, calls: int) -> None:
    assert len(provider.requests) - len(refused(provider)) == calls
    wrong = [
        fault for request in provider.requests for fault in request.faults if "in a window of" not in fault
    ]
    assert wrong == [], "nothing else was ever refused"
    assert 1 <= len(refused(provider)) <= 4
    assert len(overflows(ctx)) == len(refused(provider))
    last = provider.requests[-20:]
    assert not any(request.faults for request in last), "the learned limit still applies"


def test_an_openai_client_continues_after_a_refusal(provider: StandIn) -> None:
    ctx = Context(
        "gpt-4.1", window=9_000, max_output_tokens=300, policy="recent-summary", tokenizer="estimate"
    )
    messages: list[Any] = [user("Find the number.")]
    done = 0
    with openai.OpenAI(base_url=provider.openai, api_key="none", max_retries=0) as client:
        while done < CALLS:
            try:
                reply = client.chat.completions.create(
                    model="gpt-4.1", messages=ctx.fit(messages), max_tokens=min(300, ctx.max_tokens)
                )
            except openai.BadRequestError as error:
                if not ctx.overflowed(error):
                    raise
                continue
            done += 1
            ctx.observe(reply.usage)
            message = reply.choices[0].message
            messages.append(message)
            for call in message.tool_calls or []:
                messages.append(result_message(call.id, results(done)))
    check_requests(provider, ctx, calls=CALLS)


def test_an_anthropic_client_continues_after_a_refusal(provider: StandIn) -> None:
    ctx = Context(
        "claude-sonnet-4-6", window=9_000, max_output_tokens=300, policy="handoff", tokenizer="estimate"
    )
    messages: list[Any] = [user("Find the number.")]
    done = 0
    with anthropic.Anthropic(base_url=provider.anthropic, api_key="none", max_retries=0) as client:
        while done < CALLS:
            try:
                reply = client.messages.create(
                    model="claude-sonnet-4-6",
                    messages=ctx.fit(messages),  # type: ignore[arg-type]
                    max_tokens=min(300, ctx.max_tokens),
                )
            except anthropic.BadRequestError as error:
                if not ctx.overflowed(error):
                    raise
                continue
            done += 1
            ctx.observe(reply)
            messages.append({"role": "assistant", "content": reply.content})
            blocks = [
                {"type": "tool_result", "tool_use_id": block.id, "content": results(done)}
                for block in reply.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": blocks})
    check_requests(provider, ctx, calls=CALLS)


# ── Instructions ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_advice_names_the_instructions_that_take_the_room() -> None:
    async def attempt() -> None:
        session = await Session.open(MemoryStore(), "s", model=plain_model(4_000), tokenizer="estimate")
        await session.append(
            Instructed(content="Be careful. " * 20),
            Instructed(content="A rule. " * 300, source="/p/a/AGENTS.md"),
            Instructed(content="A rule. " * 1_500, source="/p/AGENTS.md"),
            UserSaid(content="Hello."),
        )
        advice = r"instructions alone take [\d,]+, of which /p/AGENTS.md takes [\d,]+: shorten that file"
        with pytest.raises(ContextOverflow, match=advice):
            await session.fit()

    asyncio.run(attempt())


@pytest.mark.parametrize("ratio", [0.5, 0.85, 1.15, 1.3, 2.0])
def test_a_doubt_about_the_size_leaves_the_answer_at_least_the_reserve(ratio: float) -> None:
    context = Context("claude-sonnet-4-6", window=200_000)
    messages: list[dict[str, str]] = [{"role": "user", "content": "Hello."}]
    for said in ("word " * 60_000, "next", "and another one"):
        context.fit(messages)
        report = context.report()
        context.observe({"input_tokens": round(report.used * ratio), "output_tokens": 5})
        messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": said}]
        context.fit(messages)
        report = context.report()
        assert report.used + report.totals["reserve"] <= report.window
        assert context.max_tokens >= report.totals["reserve"]
