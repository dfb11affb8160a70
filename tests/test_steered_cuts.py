"""Laws of cuts that a hook, priorities or the model steer, over generated conversations in small windows.

1. A request fits, or a typed error says why; what it has is legal; the log renders the same bytes after a reload.
2. What a hook asked for is kept, or the log says why not. A veto changes nothing while the request fits.
3. What has low priority goes with the first cut that hides others; what is high stays while the request fits.
4. A cut that the model asks for frees a fifth, and leaves half of the request or a line of each hidden result.
"""

from __future__ import annotations

import asyncio
import warnings
from random import Random
from typing import Any, Final, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveal
from foveal import Context, ContextOverflow, ProposedCut, Steering
from foveal.core.engine.reviews import NO_ROOM
from foveal.core.log import REDUCTIONS, Compacted, Event, Masked, Noted, Prioritised, Steered, UserSaid
from foveal.core.policies.ladder.priorities import step_priority
from foveal.core.policies.presets import PresetName
from foveal.errors import ReductionHookFailed
from foveal.policies import Budget, Decision, Moment, PolicyView
from support.effort import examples
from support.histories import (
    CHECKS,
    TOOLS,
    ScriptedHistory,
    call_message,
    context,
    encode_and_decode,
    events_of,
    plain_model,
    recount,
    render_log,
    result_message,
    scripted_histories,
    session,
    user,
    wire_bytes,
)

T = TypeVar("T")


class HidesResults(foveal.Policy, frozen=True):
    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        return view.hide(view.results) if view.units > budget.act / 2 else None


class SummarisesOld(foveal.Policy, frozen=True):
    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        is_due = view.units > budget.act / 2 and not moment.cutting
        return view.summarise(view.steps[:-8]) if is_due else None


PRESETS_THAT_CUT: Final[tuple[PresetName, ...]] = (
    "economy",
    "handoff",
    "recent-summary",
    "rolling",
    "recent",
)
POLICIES: Final[tuple[foveal.Policy, ...]] = (
    *map(foveal.policy, PRESETS_THAT_CUT),
    foveal.policy("plain", cut_at=5_000),
    HidesResults(),
    SummarisesOld(),
    foveal.policy("confirm"),
)
few = examples(25)
stories = scripted_histories(turns=4, steps=6, max_lines=60)
policies, windows = st.sampled_from(POLICIES), st.sampled_from((1_500, 3_000, 8_000))


def named(policy: foveal.Policy) -> str:
    return policy.name


def facts_of(ctx: Context, kind: type[T]) -> list[T]:
    return [event.fact for event in ctx.log if isinstance(event.fact, kind)]


def reductions(ctx: Context) -> list[Event]:
    return events_of(ctx.log, *REDUCTIONS)


class RandomHook:
    """Keeps, focuses, vetoes, fails, or says nothing."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.seen: list[ProposedCut] = []

    def __call__(self, cut: ProposedCut) -> Steering | None:
        self.seen.append(cut)
        handles = [event.handle for event in cut.events]
        match self._rng.randrange(6):
            case 0 if handles:
                return {"keep": self._rng.sample(handles, min(3, len(handles)))}
            case 1:
                return {"focus": "the parser", "keep": handles[:1]}
            case 2:
                return {"veto": True}
            case 3:
                raise ValueError("no such list")
            case _:
                return None


def steer(ctx: Context, rng: Random) -> None:
    """Mark a message, set a focus or ask for a cut, as users and models do."""
    messages = [event for event in ctx.log if event.seq and ctx.why(event.seq).level not in ("-",)]
    if messages and rng.random() < 0.6:
        name = rng.choice(messages).handle
        try:
            marked = ctx.mark(name, priority=rng.choice(("low", "high", "normal")))
        except foveal.UnknownHandle:
            return
        if rng.random() < 0.2:
            ctx.undo(marked)
    if rng.random() < 0.2:
        ctx.focus_next(rng.choice(("the parser", "")))
    if rng.random() < 0.5:
        ctx.recall("context_cut", {"why": "done", "keep": ["e1"]})


@few
@given(stories, policies, windows, st.randoms(use_true_random=False))
def test_steered_cuts_obey_the_laws(
    story: ScriptedHistory, policy: foveal.Policy, window: int, rng: Random
) -> None:
    hook = RandomHook(rng)
    ctx = context(window, policy, on_reduction=hook)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for taken in story.calls:
            try:
                fitted = ctx.fit(story.messages[:taken], tools=TOOLS[story.dialect])
            except ContextOverflow:
                continue
            assert CHECKS[story.dialect](fitted) == []
            assert recount(fitted) <= ctx.report().limit
            assert ctx.fit(story.messages[:taken], tools=TOOLS[story.dialect]) == fitted
            rendered = {
                wire_bytes(render_log(log, story.dialect)) for log in (ctx.log, encode_and_decode(ctx.log))
            }
            assert len(rendered) == 1
            steer(ctx, rng)
    assert all(cut.freed >= 0 and cut.events for cut in hook.seen)
    for fact in (event.fact for event in ctx.log):
        if isinstance(fact, Steered) and fact.by == "hook" and fact.refused:
            assert fact.refused == NO_ROOM


@few
@given(stories, st.sampled_from(POLICIES), windows)
def test_marks_that_no_cut_follows_change_no_byte(
    story: ScriptedHistory, policy: foveal.Policy, window: int
) -> None:
    ctx = context(window, policy)
    for taken in story.calls[:6]:
        try:
            fitted = ctx.fit(story.messages[:taken], tools=TOOLS[story.dialect])
        except ContextOverflow:
            continue
        for event in ctx.log:
            if isinstance(event.fact, UserSaid) and ctx.why(event.seq).level == "full":
                ctx.mark(event.seq, priority="high")
        assert wire_bytes(render_log(ctx.log, story.dialect)) == wire_bytes(
            render_log(ctx.log[:-1], story.dialect)
        )
        assert ctx.fit(story.messages[:taken], tools=TOOLS[story.dialect]) == fitted


# ── Hooks ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", POLICIES[:-1], ids=named)
def test_what_a_hook_keeps_is_shown_in_full(policy: foveal.Policy) -> None:
    ctx = context(6_000, policy, on_reduction=lambda cut: {"keep": ["e4"]})
    ctx.fit(session(40))
    assert ctx.why("e4").level == "full"
    (steered,) = facts_of(ctx, Steered)
    assert steered.keep == (4,)
    assert steered.refused == ""


def test_a_hook_and_the_function_of_fit_read_messages_to_their_end() -> None:
    log, seen = "line of the log\n" * 200 + "FAILED", dict[str, str]()

    def read(cut: ProposedCut) -> None:
        seen.update((event.handle, event.text) for event in cut.events)

    story = [user("Look."), call_message("c0"), result_message("c0", log), *session(40)]
    ctx = context(3_000, on_reduction=read)
    ctx.fit(story, priority=lambda message: "low" if message.text.endswith("FAILED") else None)
    assert seen["e3"] == log
    assert ctx.why("e3").priority == "low"


def test_what_does_not_fit_is_not_kept_and_the_log_says_so() -> None:
    every = lambda cut: {"keep": [event.handle for event in cut.events]}  # noqa: E731
    ctx = context(3_000, on_reduction=every)
    ctx.fit(session(40))
    assert ctx.report().used <= ctx.report().limit
    refused = [fact for fact in facts_of(ctx, Steered) if fact.refused]
    assert refused
    assert {fact.refused for fact in refused} == {NO_ROOM}


def test_a_veto_is_followed_while_the_request_fits_and_refused_when_it_does_not() -> None:
    story, seen = session(60), list[ProposedCut]()

    def veto(cut: ProposedCut) -> Steering:
        seen.append(cut)
        return {"veto": True}

    ctx = context(200_000, {"preset": "economy", "early_tokens": 500}, on_reduction=veto)
    for taken in range(1, len(story) + 1, 2):
        ctx.fit(story[:taken])
    assert seen
    assert not any(cut.is_forced for cut in seen)
    assert not reductions(ctx)
    forced = context(3_000, on_reduction=veto)
    forced.fit(story)
    assert reductions(forced)
    assert facts_of(forced, Steered)[0] == Steered(
        by="hook", veto=True, refused=NO_ROOM, reason=seen[-1].reason
    )


@pytest.mark.parametrize("answer", [{"keep": ["e9999"]}, {"kept": []}, {"focus": 3}, {"veto": "yes"}, 7])
def test_an_answer_that_cannot_be_read_is_said_and_the_cut_is_made(answer: Any) -> None:
    ctx, plain = context(3_000, on_reduction=lambda cut: answer), context(3_000)
    with pytest.warns(ReductionHookFailed):
        fitted = ctx.fit(session(30))
    assert [message["role"] for message in fitted] == [m["role"] for m in plain.fit(session(30))]
    assert facts_of(ctx, Noted)[0].topic == "hook"


def test_an_async_hook_works_with_afit_and_fails_loudly_with_fit() -> None:
    async def keep(cut: ProposedCut) -> Steering:
        await asyncio.sleep(0)
        return {"keep": ["e4"]}

    ctx = context(6_000, on_reduction=keep)
    asyncio.run(ctx.afit(session(40)))
    assert ctx.why("e4").level == "full"
    with pytest.warns(ReductionHookFailed, match="afit"):
        context(6_000, on_reduction=keep).fit(session(40))


def test_the_warning_of_a_hook_has_the_end_of_a_long_error() -> None:
    def fail(cut: ProposedCut) -> None:
        raise ValueError("the list of names " + "is not complete, " * 15 + "read it again")

    with pytest.warns(ReductionHookFailed, match="read it again") as told:
        context(3_000, on_reduction=fail).fit(session(30))
    assert told[0].filename == __file__


def test_the_warning_of_a_failed_priority_is_of_the_line_that_fits() -> None:
    def fail(message: foveal.EventBrief) -> None:
        raise ValueError("no list")

    with pytest.warns(ReductionHookFailed, match="priority") as told:
        context(8_000).fit([user("Look.")], priority=fail)
    assert told[0].filename == __file__


def test_a_hook_that_changes_the_context_is_refused_and_loses_no_request() -> None:
    held = list[Context]()

    def pin(cut: ProposedCut) -> None:
        held[0].pin("Never.")

    ctx = context(3_000, on_reduction=pin)
    held.append(ctx)
    with pytest.warns(ReductionHookFailed, match="Busy: the hook `on_reduction` of this context") as told:
        assert ctx.fit(session(30))
    assert told[0].filename == __file__


@pytest.mark.anyio
async def test_a_session_asks_its_hook_and_stores_the_answer() -> None:
    async def keep(cut: ProposedCut) -> Steering:
        return {"keep": ["e4"], "focus": "the parser"}

    async with foveal.stores.MemoryStore() as store:
        one = await foveal.Session.open(store, "s", model=plain_model(6_000), on_reduction=keep)
        await one.take(*session(40))
        fitted = await one.fit()
        assert (await one.why("e4")).level == "full"
        again = await foveal.Session.open(store, "s", model=plain_model(6_000))
        assert (await again.fit()).facts == fitted.facts
        steered = [event.fact for event in await again.events() if isinstance(event.fact, Steered)]
        assert [fact.focus for fact in steered] == ["the parser"]


@pytest.mark.anyio
async def test_a_hook_that_uses_its_session_is_refused_and_does_not_wait_for_itself() -> None:
    held = list[foveal.Session]()

    async def pin(cut: ProposedCut) -> None:
        await asyncio.gather(held[0].pin("Never."))

    async with foveal.stores.MemoryStore() as store:
        one = await foveal.Session.open(store, "s", model=plain_model(6_000), on_reduction=pin)
        held.append(one)
        await one.take(*session(40))
        with pytest.warns(ReductionHookFailed, match="Busy: the hook `on_reduction` of this session"):
            await asyncio.wait_for(one.fit(), 5)
        await one.pin("Answer in French.")
        assert "Answer in French." in str((await one.fit()).facts)


# ── Focus ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_next_record_quotes_what_is_about_the_focus_and_no_later_one() -> None:
    story = session(30)
    story[6]["content"] = f"{story[6]['content']}\nthe migration adds a column to invoices\n"
    ctx = context(6_000)
    ctx.focus_next("the migration of invoices")
    ctx.fit(story)
    (cut,) = facts_of(ctx, Compacted)
    assert "On what was to be kept above all" in cut.summary
    assert "the migration adds a column to invoices" in cut.summary
    ctx.append(*session(30)[1:])
    ctx.fit()
    assert "On what was to be kept" not in facts_of(ctx, Compacted)[-1].summary


# ── Priorities ───────────────────────────────────────────────────────────────────────────────────────────


def two_tools(count: int) -> list[Any]:
    story = session(count)
    for place, message in enumerate(story):
        if message.get("tool_calls") and (place // 2) % 3 == 0:
            message["tool_calls"][0]["function"]["name"] = "logs"
    return story


@pytest.mark.parametrize("policy", POLICIES[:-1], ids=named)
def test_low_goes_with_the_first_cut_and_high_stays(policy: foveal.Policy) -> None:
    mine = foveal.policy(policy, tool_priorities={"logs": "low"})
    ctx = context(8_000, mine)
    story = two_tools(36)
    ctx.append(*story[:6])
    ctx.mark("e3", priority="high")
    ctx.fit(story)
    assert reductions(ctx)
    assert ctx.why("e3").level == "full"
    assert (ctx.why("e3").priority, ctx.why("e3").priority_since) == (
        "high",
        events_of(ctx.log, Prioritised)[0].handle,
    )
    view = ctx._engine.view
    shown = [
        step
        for step in view.steps[:-1]
        if step.slots and step_priority(view, step, ctx._engine.policy) == "low"
    ]
    whole = [step for step in shown if any(slot.result and not slot.result.is_masked for slot in step.slots)]
    assert whole == []


def test_low_results_go_alone_if_they_are_a_fifth_of_the_request() -> None:
    ctx = context(8_000, foveal.policy("economy", tool_priorities={"logs": "low"}))
    ctx.fit(two_tools(20))
    (reduction,) = facts_of(ctx, Masked)
    names = {ctx.why(f"e{mask.target}").priority for mask in reduction.masks}
    assert (len(reductions(ctx)), reduction.reason, names) == (1, "priority", {"low"})


def test_a_mark_is_undone_and_priority_of_fit_marks_new_messages_once() -> None:
    ctx, asked = context(8_000), list[str]()

    def priority(message: foveal.EventBrief) -> Any:
        asked.append(message.handle)
        return "low" if message.tool == "bash" else None

    story = [user("Look."), call_message("c0"), result_message("c0", "2 failed")]
    ctx.fit(story[:1], priority=priority)
    ctx.fit(story, priority=priority)
    assert asked == ["e1", "e2", "e3"]
    (marked,) = events_of(ctx.log, Prioritised)
    assert ctx.why("e3").priority == "low"
    ctx.undo(marked.handle)
    assert ctx.why("e3").priority == ""
    with pytest.raises(foveal.BadSetting, match="priority"):
        ctx.mark("e1", priority="urgent")  # type: ignore[arg-type]
    with pytest.raises(foveal.UnknownHandle, match="no message"):
        ctx.mark("e0", priority="low")


# ── Cuts that the model asks for ─────────────────────────────────────────────────────────────────────────


@few
@given(stories, st.sampled_from(POLICIES), st.sampled_from((3_000, 8_000, 64_000)))
def test_a_cut_that_is_asked_for_frees_a_fifth_or_is_refused(
    story: ScriptedHistory, policy: foveal.Policy, window: int
) -> None:
    ctx = context(window, policy)
    for taken in story.calls:
        try:
            ctx.fit(story.messages[:taken], tools=TOOLS[story.dialect])
        except ContextOverflow:
            continue
        before, seen = ctx._engine.total_units, len(ctx.log)
        answer = ctx.recall("context_cut", '{"why": "the search is done"}')
        if "refused" in answer:
            assert len(ctx.log) == seen
            continue
        assert ctx._engine.total_units <= before * 0.8
        steered, cut = (event.fact for event in ctx.log[seen:])
        assert steered == Steered(by="model", reason="the search is done")
        assert isinstance(cut, Compacted)
        assert cut.reason == "asked"
        assert "refused" in ctx.recall("context_cut", '{"why": "again"}')


def asked_context() -> Context:
    ctx, story = context(120_000), session(80, words=60)
    for taken in range(1, len(story) + 1, 2):
        ctx.fit(story[:taken])
    return ctx


def test_the_model_sees_its_window_in_five_lines_and_a_kept_result_stays() -> None:
    ctx = asked_context()
    assert ctx.recall("context_status", {}).count("\n") == 4
    assert "a cut now hides" in ctx.recall("context_status", {})
    assert "the cut is made" in ctx.recall("context_cut", {"why": "done", "keep": "e3, e5"})
    assert {ctx.why(name).level for name in ("e3", "e5")} == {"full"}
    name = f"e{facts_of(ctx, Compacted)[-1].masks[-1].target}"
    assert ctx.why(name).level == "masked"
    ctx.undo()
    assert ctx.why(name).level == "full"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [({"keep": ["x"]}, "no event has the handle x"), ("{", "JSON"), ({"keep": 3}, "a list of handles")],
)
def test_a_wrong_call_of_a_context_tool_is_answered(arguments: Any, problem: str) -> None:
    assert problem in asked_context().recall("context_cut", arguments)


@pytest.mark.anyio
async def test_a_session_answers_the_context_tools() -> None:
    async with foveal.stores.MemoryStore() as store:
        one = await foveal.Session.open(store, "s", model=plain_model(120_000))
        story = session(80, words=60)
        for message in story:
            await one.take(message)
        assert (await one.manage("context_status", "{}")).count("\n") == 4
        assert "the cut is made" in await one.manage("context_cut", {"why": "done"})
        assert "refused" in await one.manage("context_cut", {"why": "again"})
