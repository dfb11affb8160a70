"""Policies of the application's own: what they see, what is checked, and what happens around them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

import foveal
from foveal import BadSetting, Context, events
from foveal.core.log.events import Compacted, Dropped, Event, Mask, Masked, Reverted
from foveal.core.policies.own_policy import OWN_REASON
from foveal.errors import BadReduction, SettingsChanged
from foveal.policies import Budget, Decision, Moment, Plan, PolicyView

Json = dict[str, Any]


def history(calls: int, *, tool: str = "read_log") -> list[Json]:
    found: list[Json] = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "Why is CI red?"},
    ]
    for number in range(calls):
        function = {"name": tool, "arguments": f'{{"part": {number}}}'}
        text = "\n".join(f"part_{number} line {line}" for line in range(40))
        found += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": f"c{number}", "content": text},
        ]
    return found


class Raises(foveal.Policy, frozen=True):
    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        raise KeyError("part")


def test_an_exception_of_decide_names_the_policy() -> None:
    with pytest.raises(KeyError) as caught:
        Context("gpt-4.1", policy=Raises()).fit(history(1))
    assert caught.value.__notes__ == ["raised by `decide` of the policy raises"]


def test_a_class_is_no_policy() -> None:
    with pytest.raises(BadSetting, match=r"is not allowed: an instance: Raises\(\)"):
        Context("gpt-4.1", policy=Raises)  # type: ignore[arg-type]


class Returns(foveal.Policy, frozen=True):
    """Returns one decision, whatever it sees."""

    decision: object = None

    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        return None if moment.cutting else self.decision  # type: ignore[return-value]


class HideLogs(foveal.Policy, frozen=True):
    tool: str = "read_log"

    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        return view.hide(result for result in view.results if result.tool == self.tool)


def fitted(policy: foveal.Policy, calls: int = 8, *, window: int = 20_000) -> Context:
    ctx = Context("gpt-4.1", window=window, policy=policy, tokenizer="estimate")
    ctx.fit(history(calls))
    return ctx


def made(ctx: Context) -> list[Event]:
    return [event for event in ctx.log if isinstance(event.fact, Masked | Dropped | Compacted)]


# ── The class ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_class_is_a_policy_with_the_settings_of_economy_and_its_own() -> None:
    economy, mine = foveal.policy("economy"), HideLogs(tool="bash")
    assert (mine.name, mine.tool, mine.is_own, economy.is_own) == ("hide-logs", "bash", True, False)
    shared = [field for field in economy.__struct_fields__ if field != "name"]
    assert [getattr(mine, field) for field in shared] == [getattr(economy, field) for field in shared]
    assert foveal.policy(mine, keep_last=5, tool="grep") == HideLogs(keep_last=5, tool="grep")


def test_a_setting_without_a_type_is_refused_because_it_would_hide_the_field() -> None:
    with pytest.raises(TypeError, match=r"Untyped\.target needs a type"):

        class Untyped(foveal.Policy, frozen=True):
            target = 0.3


def test_a_policy_hides_what_it_chooses() -> None:
    ctx = fitted(HideLogs())
    (event,) = made(ctx)
    assert isinstance(event.fact, Masked)
    assert (event.fact.rule, event.fact.reason, len(event.fact.masks)) == ("hide-logs", OWN_REASON, 5)
    assert ctx.why(4).level == "masked"
    before = len(ctx.log)
    ctx.fit(history(8))
    assert len(ctx.log) == before


def test_a_policy_summarises_steps_that_are_no_neighbours() -> None:
    class Odd(foveal.Policy, frozen=True):
        def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
            return None if moment.cutting else view.summarise(view.steps[2:9:2], focus="the parts")

    ctx = fitted(Odd())
    (event,) = made(ctx)
    assert isinstance(event.fact, Compacted)
    assert [ctx.why(seq).level for seq in (3, 5, 7, 9)] == ["summarised", "full", "summarised", "full"]


def test_what_may_not_go_is_left_out() -> None:
    class All(foveal.Policy, frozen=True):
        retain_user_share: float = 0.0

        def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
            return None if moment.cutting else view.summarise(view.steps)

    ctx = Context("gpt-4.1", window=20_000, policy=All(), tokenizer="estimate")
    ctx.append(*history(4)[:5])
    ctx.pin(event=3)
    ctx.fit(history(4))
    assert [ctx.why(seq).level for seq in (1, 2, 3)] == ["full"] * 3
    assert ctx.why(ctx.log[-2].seq).level == "full"


def test_a_drop_that_nothing_forces_leaves_half_of_the_request() -> None:
    class DropAll(foveal.Policy, frozen=True):
        def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
            return view.drop(view.steps)

    assert made(fitted(DropAll())) == []
    assert [type(event.fact) for event in made(fitted(DropAll(), 30, window=6_000))] == [Dropped]


def test_a_policy_can_do_what_another_one_would() -> None:
    class AsRolling(foveal.Policy, frozen=True):
        name: str = "rolling"

        def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
            return view.by_settings(foveal.policy("rolling"), budget, moment)

    own, preset = (
        fitted(AsRolling(refer=0, keep_last=5, keep_first=2), 12),
        fitted(foveal.policy("rolling"), 12),
    )
    assert [event.fact for event in made(own)] == [event.fact for event in made(preset)]


# ── Around it ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_settings_take_over_where_a_request_would_not_fit() -> None:
    ctx = fitted(Returns(), 40, window=6_000)
    assert ctx.report().used <= ctx.report().limit
    assert made(ctx)


def test_a_second_summary_for_one_request_is_not_made() -> None:
    class Again(foveal.Policy, frozen=True):
        def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
            return view.summarise(view.steps[:4])

    assert len(made(fitted(Again()))) == 1


def test_in_mode_confirm_nothing_is_reduced_before_the_user_agrees() -> None:
    ctx = fitted(HideLogs(mode="confirm", act=0.9))
    assert made(ctx) == []


def test_an_error_of_a_policy_reaches_the_caller_and_nothing_is_recorded() -> None:
    class Raises(foveal.Policy, frozen=True):
        def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
            raise RuntimeError("no embedding")

    ctx = Context("gpt-4.1", policy=Raises(), tokenizer="estimate")
    with pytest.raises(RuntimeError, match="no embedding"):
        ctx.fit(history(3))
    assert made(ctx) == []


def test_a_saved_context_continues_with_the_policy_and_warns_without_it() -> None:
    saved = fitted(HideLogs()).save()
    with pytest.warns(
        SettingsChanged, match=r"hide-logs → economy\).*only the name: .* `policy=HideLogs\(\)`$"
    ):
        Context.load(saved)
    again = Context.load(saved, policy=HideLogs(), tokenizer="estimate")
    assert again.fit(history(8)) == fitted(HideLogs()).fit(history(8))


def test_a_session_uses_it() -> None:
    async def run() -> tuple[str, str]:
        off = fitted(foveal.policy("off"))
        async with foveal.stores.MemoryStore() as store:
            session = await foveal.Session.open(
                store, "demo", model="gpt-4.1", policy=HideLogs(), tokenizer="estimate"
            )
            for event in off.log[1:]:
                await session.append(event.fact)
            await session.fit()
            seen = (await session.report()).policy, (await session.why(4)).level
            await session.close()
            with pytest.warns(SettingsChanged, match=r"policy: hide-logs → economy.*HideLogs\(\)`$") as told:
                await foveal.Session.open(store, "demo", model="gpt-4.1")
            assert told[0].filename == __file__
            return seen

    assert asyncio.run(run()) == ("hide-logs", "masked")


# ── What is refused ──────────────────────────────────────────────────────────────────────────────────────

LONG = "word " * 600
PLAN = Plan(first=2, last=8, turns=1, events=4, before=900, room=100, total=1_000, reason="x", rule="x")


@pytest.mark.parametrize(
    ("decision", "problem"),
    [
        ("hide it", "it is a str: return what a method of the view returns, or None"),
        (Masked(masks=()), "it masks nothing"),
        (Masked(masks=(Mask(target=2, text="e2"),)), "it masks e2, which is no tool result that is shown"),
        (Masked(masks=(Mask(target=18, text="e18"),)), "it masks e18, which may not be hidden: check `can_hide`"),
        (Masked(masks=(Mask(target=4, text="gone"),)), "does not contain e4, so nothing leads back to the text"),
        (Masked(masks=(Mask(target=4, text="see e41"),)), "does not contain e4, so nothing leads back to the text"),
        (Masked(masks=(Mask(target=4, text=f"e4 {LONG}"),)), "the placeholder of e4 takes"),
        (Masked(masks=tuple(Mask(target=n, text=f"e{n}\n") for n in range(4, 14, 2))), "no record of the rest"),
        (Masked(masks=(Mask(target=4, text="e4", part=0),)), "it masks part 0 of e4"),
        (Dropped(ranges=((90, 99),), names_ranges=True), "it drops no step that is shown"),
        (Dropped(ranges=((1, 1),), names_ranges=True), "it drops e1, which is a step that must stay (instructed)"),
        (Dropped(ranges=((2, 2),), names_ranges=True), "it drops e2, which is a step that must stay (user)"),
        (Dropped(ranges=((3, 3),), names_ranges=True), "it drops e3 without its result e4"),
        (Dropped(ranges=((3, 4),)), "its notice names nothing"),
        (Dropped(ranges=((3, 16),), names_ranges=True), "although the request fits, and no record of the rest"),
        (Compacted(first=3, last=8, summary="Done."), "it is a finished summary"),
        (Reverted(target=3), "it takes a reduction back"),
        ((), "a tuple holds `Clipped` facts"),
        (events.Clipped(target=3, pieces=((0, 5), "e3")), "it clips e3, which is no tool result"),
        (events.Clipped(target=4, pieces=((0, 9_999_999), "e4")), "it shows a span of e4 outside of its"),
        (events.Clipped(target=4, pieces=((0, 5), "…")), "no marker in the clip of e4 contains e4"),
        (events.Clipped(target=4, pieces=((0, 5), "see e41")), "no marker in the clip of e4 contains e4"),
        (events.Clipped(target=4, pieces=((0, 5), f"e4 {LONG}")), "the clip of e4 has"),
        (PLAN, "it summarises e2, which is a step that must stay (user): check `can_go`"),
        (replace(PLAN, first=3, last=3), "it summarises e3 without its result e4"),
        (replace(PLAN, first=90, last=99), "it summarises no step that is shown"),
    ],
)  # fmt: skip
def test_a_bad_reduction_is_refused_with_the_policy_and_the_reason(decision: object, problem: str) -> None:
    ctx = Context("gpt-4.1", window=20_000, policy=Returns(decision=decision), tokenizer="estimate")
    with pytest.raises(BadReduction) as caught:
        ctx.fit(history(8))
    assert str(caught.value) == f"the policy returns made a bad reduction: {caught.value.problem}"
    assert problem in caught.value.problem
    assert made(ctx) == []


def test_a_pinned_step_is_not_dropped() -> None:
    drop = Dropped(ranges=((3, 4),), names_ranges=True)
    ctx = Context("gpt-4.1", policy=Returns(decision=drop), tokenizer="estimate")
    ctx.append(*history(1))
    ctx.pin(event=3)
    with pytest.raises(BadReduction, match="it drops e3, which is pinned"):
        ctx.fit(history(8))


@pytest.mark.parametrize(
    "decision",
    [
        Masked(masks=(Mask(target=4, text="[a log of part 0]\nwhole text: e4"),)),
        Dropped(ranges=((3, 4),), names_ranges=True),
        (events.Clipped(target=4, pieces=((0, 20), "[whole text: e4]")),),
    ],
)
def test_a_legal_reduction_of_the_policy_is_recorded_as_it_is(decision: Any) -> None:
    ctx = fitted(Returns(decision=decision))
    expected = decision[0] if isinstance(decision, tuple) else decision
    assert ctx.log[-1].fact == expected


# ── By name ──────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadSetting, match=r"one of economy, handoff, .*, off, mine"):
        foveal.policies.find_policy("other", {"mine": {"preset": "plain"}})
