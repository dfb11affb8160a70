"""Laws of bound thinking: no request sends thinking back behind anything but what it was produced behind.

A stand-in of the provider's check remembers every request and refuses what the provider would refuse.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import foveal
from foveal import Context, ContextOverflow
from foveal.core.log import ModelSaid, Reverted, Thinking, ThinkingLeftOut
from foveal.core.policies.economy import is_cheap
from foveal.core.policies.ladder import plan_cut
from foveal.core.policies.moment import Moment
from foveal.core.tokens import MessageTokens
from foveal.core.view.checkpoint import ViewCheckpoint, needed_seqs, restore_view, take_checkpoint
from foveal.core.view.fold import effective_events, fold
from foveal.core.wire.bound_thinking import ThinkingCheck, binds_thinking, is_thinking_block
from foveal.core.wire.legality import request_faults
from support.effort import examples
from support.histories import ESTIMATE, Json, long_text, render_log, wire_bytes

BOUND: Final = "claude-fable-5-1"
TOOLS: Final[list[Json]] = [
    {"name": "bash", "description": "Runs a command.", "input_schema": {"type": "object"}}
]
POLICIES: Final = ("economy", "handoff", "recent", "rolling")
REFUSAL: Final = (
    "messages.3.content.0: Invalid `signature` in `thinking` block. The block is bound to a different "
    'conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)
few = examples(25)


class Loop:
    """An agent's loop with a model that thinks before every message."""

    def __init__(
        self, seed: int, policy: Any = "economy", window: int = 6_000, model: str = BOUND, **settings: Any
    ) -> None:
        self.rng = Random(seed)
        self.ctx = Context(model, policy=policy, window=window, reserve=500, tokenizer="estimate", **settings)
        self.check = ThinkingCheck()
        self.messages: list[Json] = []
        self.requests: list[list[Json]] = []
        self.tools, self.system = TOOLS, "You are careful."
        self.calls = 0

    def ask(self, steps: int = 3, *, max_lines: int = 60) -> None:
        """Run one turn: a request of the user, some calls, and an answer."""
        self.messages.append(
            {"role": "user", "content": f"Request {len(self.messages)}: {long_text(self.rng, 3)}"}
        )
        for _ in range(steps):
            id = self.answer(calls=True)
            text = f"result {self.calls}\n{long_text(self.rng, max_lines)}"
            result = {"type": "tool_result", "tool_use_id": id, "content": text}
            self.messages.append({"role": "user", "content": [result]})
        self.answer(calls=False)

    def fit(self) -> list[Json]:
        request = self.ctx.fit(self.messages, tools=self.tools, system=self.system)
        beside: Any = {"system": self.system, "tools": self.tools}
        assert request_faults("anthropic", request, thinking=self.check, **beside) == []
        return request

    def answer(self, *, calls: bool) -> str:
        request = self.fit()
        self.requests.append(request)
        self.calls += 1
        thought = f"thought {self.calls} {long_text(self.rng, 2)}"
        blocks: list[Json] = [{"type": "thinking", "thinking": thought, "signature": f"sig{self.calls}"}]
        id = f"call_{self.calls}"
        if calls:
            arguments = {"command": f"make {long_text(self.rng, 2)}"}
            blocks.append({"type": "tool_use", "id": id, "name": "bash", "input": arguments})
        else:
            blocks.append({"type": "text", "text": f"Done {self.calls}."})
        reply = {"role": "assistant", "content": blocks}
        self.check.remember("anthropic", request, [reply], system=self.system, tools=self.tools)
        self.messages.append(reply)
        return id


def thoughts(request: list[Json]) -> list[str]:
    blocks = (
        block for message in request if isinstance(message["content"], list) for block in message["content"]
    )
    return [block["signature"] for block in blocks if is_thinking_block(block)]


# ── Which models ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("claude-fable-5-1", True),
        ("claude-opus-5", False),
        ("claude-opus-5-20260601", False),
        ("claude-opus-5-5", True),
        ("claude-opus-6", True),
        ("us.anthropic.claude-haiku-5-5-20261001-v1:0", True),
        ("anthropic/claude-sonnet-5.5", True),
        ("openrouter/anthropic/claude-sonnet-5.5", False),
        ("claude-3-5-sonnet-20241022", False),
        ("claude-sonnet-4-5@20250929", False),
        ("gpt-5.6", False),
        ("", False),
    ],
)
def test_the_version_of_a_model_says_whether_it_binds_thinking(model: str, *, expected: bool) -> None:
    assert binds_thinking(model) is expected


def test_a_setting_overrides_the_name() -> None:
    assert foveal.model(BOUND).binds_thinking
    assert not foveal.model(BOUND, binds_thinking=False).binds_thinking
    assert Context("my-claude", binds_thinking=True)._engine.view.thinking.is_bound
    assert not Context(BOUND, binds_thinking=False)._engine.view.thinking.is_bound
    with pytest.raises(foveal.BadSetting):
        Context(BOUND, binds_thinking="yes")  # type: ignore[arg-type]


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(st.integers(0, 2**32), st.sampled_from(POLICIES))
def test_no_request_of_a_long_conversation_is_refused(seed: int, policy: str) -> None:
    loop = Loop(seed, policy)
    for _ in range(6):
        loop.ask()
    assert loop.ctx.report().reduced


def test_all_thinking_stays_while_nothing_is_reduced() -> None:
    loop = Loop(1, window=200_000)
    for _ in range(4):
        loop.ask()
    assert thoughts(loop.fit()) == [f"sig{number}" for number in range(1, loop.calls + 1)]


def test_a_reduction_leaves_out_the_thinking_from_before_it_and_no_later_thinking() -> None:
    loop = Loop(2)
    while not loop.ctx.report().reduced.masked:
        loop.ask()
    kept, all_thoughts = thoughts(loop.fit()), [f"sig{number}" for number in range(1, loop.calls + 1)]
    assert 0 < len(kept) < loop.calls
    assert kept == all_thoughts[-len(kept) :]
    said = [event.fact for event in loop.ctx.log if isinstance(event.fact, ModelSaid)]
    assert all(isinstance(fact.content[0], Thinking) for fact in said)  # the log keeps all of it


@pytest.mark.parametrize("policy", POLICIES)
def test_the_check_refuses_requests_that_keep_all_thinking(policy: str) -> None:
    loop = Loop(2, policy, binds_thinking=False)
    with pytest.raises(AssertionError, match="thinking behind other content"):
        loop.ask(steps=30)


def test_a_model_that_does_not_bind_thinking_keeps_it() -> None:
    loop = Loop(2, model="claude-opus-5")
    loop.check = ThinkingCheck()
    loop.check.remember = lambda *_, **__: None  # type: ignore[method-assign]
    while not loop.ctx.report().reduced.masked:
        loop.ask()
    shown = [step for step in loop.ctx._engine.view.steps if step.kind == "model"]
    assert all(step.has_thinking for step in shown)


def test_thinking_that_is_left_out_does_not_count() -> None:
    loop = Loop(3, window=200_000)
    loop.ask()
    used = loop.ctx.report().used
    loop.system = "Other rules."
    loop.fit()
    assert loop.ctx.report().used < used


Change = Callable[[Loop], object]


def change_tools(loop: Loop) -> None:
    loop.tools = [*loop.tools, {"name": f"tool{loop.calls}", "input_schema": {"type": "object"}}]


def change_system(loop: Loop) -> None:
    loop.system = f"Rules {loop.calls}."


def supersede(loop: Loop) -> None:
    users = [event.handle for event in loop.ctx.log if event.fact.__class__.__name__ == "UserSaid"]
    if len(users) > 1:
        loop.ctx.supersede(users[0], by=users[-1])


def undo(loop: Loop) -> None:
    try:
        loop.ctx.undo()
    except (foveal.UnknownHandle, ContextOverflow):
        return


def expand(loop: Loop) -> None:
    hidden = [entry for entry in loop.ctx.report().events if entry.level in ("masked", "clipped")]
    if hidden:
        try:
            loop.ctx.expand(hidden[-1].handle)
        except (foveal.UnknownHandle, ContextOverflow):
            return


def pin(loop: Loop) -> None:
    loop.ctx.pin(f"Rule {loop.calls}: use tabs.")


def edit(loop: Loop) -> None:
    """Take the last turn back and say something else."""
    users = [at for at, message in enumerate(loop.messages) if isinstance(message["content"], str)]
    if len(users) > 1:
        del loop.messages[users[-1] :]


def save(loop: Loop) -> None:
    loop.ctx = Context.load(
        loop.ctx.save(), policy=loop.ctx._engine.policy, window=6_000, reserve=500, tokenizer="estimate"
    )


CHANGES: Final[tuple[Change, ...]] = (change_tools, change_system, supersede, undo, expand, pin, edit, save)


@examples(60)
@given(
    st.integers(0, 2**32),
    st.sampled_from(POLICIES),
    st.lists(st.sampled_from(CHANGES), min_size=4, max_size=8),
)
def test_every_change_is_one_like_any_other(seed: int, policy: str, changes: list[Change]) -> None:
    loop = Loop(seed, policy)
    for change in changes:
        loop.ask(steps=2)
        change(loop)
    loop.ask(steps=1)


@pytest.mark.parametrize("change", [change_tools, change_system, supersede])
def test_a_change_without_a_reduction_leaves_out_the_thinking_before_it(change: Change) -> None:
    loop = Loop(4, window=200_000)
    loop.ask()
    loop.ask()
    change(loop)
    assert thoughts(loop.fit()) == []
    loop.answer(calls=False)
    assert thoughts(loop.fit()) == [f"sig{loop.calls}"]


def test_a_pinned_rule_and_moved_cache_marks_change_nothing_before_thinking() -> None:
    loop = Loop(5, window=200_000)
    loop.ask()
    before = thoughts(loop.fit())
    loop.ctx.pin("Use tabs.")
    loop.messages[0] = {
        "role": "user",
        "content": [
            {"type": "text", "text": loop.messages[0]["content"], "cache_control": {"type": "ephemeral"}}
        ],
    }
    assert thoughts(loop.fit()) == before != []


def test_another_model_gets_no_thinking_of_the_model_before() -> None:
    loop = Loop(6, window=200_000)
    loop.ask()
    loop.ctx.use("claude-opus-5-5", window=200_000)
    loop.messages.append({"role": "user", "content": "Go on."})
    assert thoughts(loop.fit()) == []


def test_requests_between_changes_extend_each_other() -> None:
    loop = Loop(7)
    for _ in range(5):
        loop.ask()
    breaks = {each.call for each in loop.ctx.report().breaks}
    for number, (before, now) in enumerate(zip(loop.requests, loop.requests[1:], strict=False), 2):
        if number not in breaks:
            assert wire_bytes(now[: len(before)]) == wire_bytes(before)


def test_thinking_at_the_end_of_a_message_stays() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    messages: list[Json] = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, thought]},
        {"role": "user", "content": "And?"},
    ]
    assert Context(BOUND).fit(messages) == messages
    assert Context("claude-opus-5").fit(messages)[1]["content"] == [{"type": "text", "text": "I look."}]


# ── Replay ───────────────────────────────────────────────────────────────────────────────────────────────


@few
@given(st.integers(0, 2**32), st.lists(st.sampled_from(CHANGES[:-1]), min_size=3, max_size=5))
def test_a_fold_and_a_checkpoint_show_the_thinking_of_the_live_view(seed: int, changes: list[Change]) -> None:
    loop = Loop(seed)
    for change in changes:
        loop.ask(steps=2)
        change(loop)
    live, log = loop.ctx._engine.view, list(loop.ctx.log)
    folded = fold(log, MessageTokens(ESTIMATE))
    state = msgspec.json.decode(msgspec.json.encode(take_checkpoint(live)), type=ViewCheckpoint)
    needed = needed_seqs(live)
    events = [event for event in effective_events(log) if event.seq in needed]
    restored = restore_view(events, state, MessageTokens(ESTIMATE))
    for view in (
        (folded,) if live.expansions else (folded, restored)
    ):  # no checkpoint is taken while they last
        assert [list(step.facts()) for step in view.steps] == [list(step.facts()) for step in live.steps]
        assert (view.units, view.thinking.start, view.thinking.is_bound) == (
            live.units,
            live.thinking.start,
            True,
        )


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_refusal_leaves_out_all_thinking_once() -> None:
    loop = Loop(8, window=200_000)
    loop.ask()
    loop.fit()
    error = {"status_code": 400, "body": {"type": "error", "error": {"message": REFUSAL}}}
    assert loop.ctx.overflowed(error)
    assert thoughts(loop.fit()) == []
    assert not loop.ctx.overflowed(error)  # there is nothing left to leave out
    left_out = [event.fact for event in loop.ctx.log if isinstance(event.fact, ThinkingLeftOut)]
    assert left_out == [ThinkingLeftOut(problem=REFUSAL)]
    loop.ask()
    assert thoughts(loop.fit())


def test_a_refusal_teaches_that_a_model_binds_thinking() -> None:
    loop = Loop(9, model="my-claude", window=200_000)
    loop.ask()
    loop.fit()
    loop.ctx.overflowed({"status_code": 400, "body": {"error": {"message": REFUSAL}}})
    loop.ask()
    change_tools(loop)
    assert thoughts(loop.fit()) == []


def test_undo_of_a_cut_brings_no_thinking_back() -> None:
    loop = Loop(10)
    while not loop.ctx.report().reduced.masked:
        loop.ask()
    cut = max(event.seq for event in loop.ctx.log if event.fact.__class__.__name__ == "Compacted")
    log = [*loop.ctx.log]
    log.append(foveal.events.Event(len(log), Reverted(target=cut)))
    assert thoughts(render_log(log, "anthropic")) == []


# ── The price of a cut ───────────────────────────────────────────────────────────────────────────────────


def test_the_price_of_a_cut_counts_the_thinking_that_is_lost() -> None:
    cuts = []
    for binds in (True, False):
        ctx = Context(BOUND, window=200_000, reserve=500, tokenizer="estimate", binds_thinking=binds)
        loop = Loop(11, window=200_000)
        loop.ctx, loop.check = ctx, ThinkingCheck()
        loop.ask(steps=6)
        loop.fit()
        engine = ctx._engine
        policy, budget = engine.policy, engine.budget()
        plan = plan_cut(engine.view, budget, policy, goal=100, said=engine.unreduced_units, reason="price")
        assert plan is not None
        cuts.append(plan)
    bound, free = cuts
    assert (bound.lost_thinking > 0, free.lost_thinking) == (True, 0)
    moment = Moment(calls=5, spent=100 * bound.lost_thinking, write=1.0, read=1.0, output=5.0)
    assert is_cheap(bound.rewritten, bound.lost_thinking, moment)
    expensive = replace(moment, output=20.0)
    assert not is_cheap(bound.rewritten, bound.lost_thinking, expensive)
    assert is_cheap(free.rewritten, free.lost_thinking, expensive)


def test_the_report_says_what_the_provider_left_out() -> None:
    loop = Loop(12, window=200_000)
    loop.ask()
    reason = {"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "prefix_binding_mismatch"}
    usage = {"input_tokens": 500, "output_tokens": 5}
    loop.ctx.observe({"type": "message", "usage": usage, "input_transformations": [reason, reason]})
    assert loop.ctx.report().dropped_thinking == 2
    assert "left out of the last call: 2" in str(loop.ctx.report())


def _edit_user(history: list[Json]) -> None:
    history[2]["content"] = "edited"


def _edit_answer(history: list[Json]) -> None:
    history[3]["content"][1]["text"] = "edited"


def _leave_out_a_block(history: list[Json]) -> None:
    del history[3]["content"][0]


def _insert(history: list[Json]) -> None:
    history.insert(2, {"role": "user", "content": "inserted"})


@pytest.mark.parametrize("edit", [_edit_user, _edit_answer, _leave_out_a_block, _insert])
def test_thinking_behind_an_edit_of_the_caller_is_left_out(edit: Callable[[list[Json]], None]) -> None:
    ctx, check = Context("claude-opus-5-5", dialect="anthropic"), ThinkingCheck()
    history: list[Json] = [{"role": "user", "content": "Begin."}]
    for turn in range(4):
        sent = ctx.fit(history)
        thought = {"type": "thinking", "thinking": f"Hm {turn}.", "signature": f"sig{turn}"}
        answer = {"role": "assistant", "content": [thought, {"type": "text", "text": f"Answer {turn}."}]}
        check.remember("anthropic", sent, [answer])
        history += [answer, {"role": "user", "content": f"Question {turn}."}]
    edited = deepcopy(history)
    edit(edited)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an edit may be another conversation
        sent = ctx.fit(edited)
    assert check.faults("anthropic", sent) == []
    assert request_faults("anthropic", sent, thinking=check) == []
