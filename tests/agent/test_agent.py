"""The agent's loop on a real session, with a provider that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest

import foveal
from foveal import ContextOverflow, ProviderError, Session
from foveal.agent.events import (
    AgentEvent,
    ContextReduced,
    HookFailed,
    LimitReached,
    RequestRefused,
    TextStreamed,
    TurnFinished,
)
from foveal.agent.loop import (
    DENIED_RESULT,
    INTERRUPTED,
    Agent,
    HookOccasion,
    HookVerdict,
    missing_result,
)
from foveal.agent.tools import Tool, Toolbox, ToolOutput
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.compaction.summariser_protocol import DraftRequest
from foveal.core.log import Call, Clipped, ModelSaid, Noted, Overflowed, ToolReturned, UserSaid
from foveal.core.view.request import Fitted
from foveal.ports import Reply
from foveal.providers.summariser import summariser_for
from foveal.testing import Scripted
from support.legality import check_chat


def run(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def sync(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 240))  # type: ignore[arg-type]

    return sync


def tool(
    name: str, answer: Callable[[Mapping[str, Any]], Awaitable[ToolOutput]], *, needs_approval: bool = False
) -> Tool:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    return Tool(
        name=name,
        description=name,
        parameters=schema,
        run=answer,
        describe=lambda _: name,
        needs_approval=needs_approval,
    )


async def short(given: Mapping[str, Any]) -> ToolOutput:
    return ToolOutput(content=f"result {given.get('n', 0)}")


async def long(given: Mapping[str, Any]) -> ToolOutput:
    return ToolOutput(content="\n".join(f"line {line} of output {given['n']}" for line in range(400)))


STARTED: list[str] = []
"""Calls of `stuck` that have started."""


async def stuck(_: Mapping[str, Any]) -> ToolOutput:
    STARTED.append("stuck")
    await asyncio.sleep(60)
    return ToolOutput(content="too late")


BOX = [
    tool("short", short),
    tool("long", long),
    tool("stuck", stuck),
    tool("change", short, needs_approval=True),
]


class AgentFixture:
    """A session in a file, a provider and an agent."""

    def __init__(self, path: Path, provider: Scripted, *, policy: Any = "economy", **options: Any) -> None:
        self.path, self.provider, self.policy, self.options = path, provider, policy, options

    async def __aenter__(self) -> AgentFixture:
        self.store = foveal.open_store(str(self.path / "a.db"))
        opened = await self.store.__aenter__()
        summarise = summariser_for(self.provider)
        self.session = await Session.open(
            opened, "a", model=self.provider.model, summarise=summarise, policy=self.policy
        )
        self.agent = Agent(self.session, self.provider, Toolbox(BOX), **self.options)
        return self

    async def __aexit__(self, *problem: Any) -> None:
        await self.session.close()
        await self.store.__aexit__(*problem)

    async def turn(self, text: str = "go") -> list[AgentEvent]:
        return [event async for event in self.agent.run(text)]

    async def facts(self, *kinds: type) -> list[Any]:
        return [event.fact for event in await self.session.events() if isinstance(event.fact, kinds)]


@run
async def test_a_turn_ends_with_the_first_answer_that_calls_no_tool(tmp_path: Path) -> None:
    async with AgentFixture(
        tmp_path, Scripted([("short", {"n": 1})], [("short", {"n": 2})], "All done.")
    ) as here:
        events = await here.turn()
        ended = events[-1]
        assert isinstance(ended, TurnFinished)
        assert ended.why == "answered"
        assert [fact.content for fact in await here.facts(ToolReturned)] == ["result 1", "result 2"]
        assert [type(fact).__name__ for fact in await here.facts(UserSaid, ModelSaid, ToolReturned)] == [
            "UserSaid", "ModelSaid", "ToolReturned", "ModelSaid", "ToolReturned", "ModelSaid",
        ]  # fmt: skip


@run
async def test_the_user_message_is_stored_before_the_model_is_called(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, Scripted(ProviderError("no connection", code="connection"))) as here:
        with pytest.raises(ProviderError, match="no connection"):
            await here.turn("remember the milk")
        assert [fact.content for fact in await here.facts(UserSaid)] == ["remember the milk"]


@run
async def test_a_whole_result_is_stored_and_then_truncated(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, Scripted([("long", {"n": 7})], "ok", window=3_000)) as here:
        await here.turn()
        (returned,) = await here.facts(ToolReturned)
        assert returned.content == (await long({"n": 7})).content
        assert await here.facts(Clipped)


@run
async def test_a_turn_of_many_results_never_exceeds_the_real_window(tmp_path: Path) -> None:
    provider = Scripted(*([("long", {"n": number})] for number in range(12)), "done", window=6_000)
    async with AgentFixture(tmp_path, provider) as here:
        await here.session.pin("Never touch the tests.")
        await here.turn("the task")
        sent = provider.requests[-1].to_openai()
        assert check_chat(sent) == []
        assert any("Never touch the tests." in str(message["content"]) for message in sent)
        assert any(message["content"] == "the task" for message in sent)


@run
async def test_in_mode_confirm_the_limit_is_reported_before_each_reduction(tmp_path: Path) -> None:
    provider = Scripted(*([("long", {"n": number})] for number in range(6)), "done", window=6_000)
    async with AgentFixture(tmp_path, provider, policy={"preset": "economy", "mode": "confirm"}) as here:
        told = [event for event in await here.turn() if isinstance(event, LimitReached | ContextReduced)]
        assert told
        for before, after in zip(told[::2], told[1::2], strict=True):
            assert isinstance(before, LimitReached)
            assert isinstance(after, ContextReduced)
            assert before.needed == after.before > before.available >= after.after
            assert all(str(event.fact.rule).endswith(": no consent") for event in after.events)  # type: ignore[union-attr]


@run
async def test_the_policy_off_reports_no_reduction_that_does_not_come(tmp_path: Path) -> None:
    provider = Scripted(*([("long", {"n": number})] for number in range(6)), "done", window=6_000)
    told: list[AgentEvent] = []
    async with AgentFixture(tmp_path, provider, policy={"preset": "off", "mode": "confirm"}) as here:

        async def answer() -> None:
            async for event in here.agent.run("go"):
                told.append(event)

        with pytest.raises(ContextOverflow):
            await answer()
    assert told
    assert not [event for event in told if isinstance(event, LimitReached)]


@run
async def test_a_smaller_window_than_known_is_handled_without_the_user(tmp_path: Path) -> None:
    provider = Scripted(*([("long", {"n": number})] for number in range(6)), "done", window=5_000)
    provider.model = foveal.model("scripted/model", window=32_000)
    async with AgentFixture(tmp_path, provider) as here:
        events = await here.turn()
        assert any(isinstance(event, RequestRefused) for event in events)
        assert isinstance(events[-1], TurnFinished)
        assert await here.facts(Overflowed)


@run
async def test_hooks_are_called_in_order_at_every_point(tmp_path: Path) -> None:
    called: list[str] = []

    def hook(name: str) -> Callable[[HookOccasion], Awaitable[None]]:
        async def note(occasion: HookOccasion) -> None:
            called.append(f"{name} {occasion.at}")

        return note

    provider = Scripted([("short", {})], "done")
    async with AgentFixture(tmp_path, provider, hooks=[hook("a"), hook("b")]) as here:
        await here.turn()
    points = ["before_model", "after_model", "before_tool", "after_tool", "before_model", "after_model"]
    assert called == [f"{name} {point}" for point in points for name in "ab"]


@run
async def test_hooks_are_called_on_reductions_and_overflows(tmp_path: Path) -> None:
    heard: list[str] = []

    async def note(occasion: HookOccasion) -> None:
        heard.append(occasion.at)

    provider = Scripted(*([("long", {"n": number})] for number in range(6)), "done", window=5_000)
    provider.model = foveal.model("scripted/model", window=32_000)
    async with AgentFixture(tmp_path, provider, hooks=[note]) as here:
        await here.turn()
    assert {"on_reduction", "on_overflow"} <= set(heard)


@run
async def test_a_failing_hook_is_reported_and_does_not_lose_the_turn(tmp_path: Path) -> None:
    async def broken(occasion: HookOccasion) -> None:
        raise RuntimeError("I am a bad hook")

    async with AgentFixture(tmp_path, Scripted([("short", {})], "done"), hooks=[broken]) as here:
        events = await here.turn()
        failed = [event for event in events if isinstance(event, HookFailed)]
        assert {failure.at for failure in failed} >= {"before_model", "after_tool"}
        assert "I am a bad hook" in failed[0].problem
        assert isinstance(events[-1], TurnFinished)
        assert any("bad hook" in fact.text for fact in await here.facts(Noted))


@run
async def test_a_hook_can_deny_a_call_and_replace_a_result(tmp_path: Path) -> None:
    async def guard(occasion: HookOccasion) -> HookVerdict | None:
        if occasion.at == "before_tool" and occasion.call is not None and "2" in occasion.call.arguments:
            return HookVerdict(deny="not the second one")
        if occasion.at == "after_tool":
            return HookVerdict(output=ToolOutput(content="something else"))
        return None

    script = Scripted([("short", {"n": 1}), ("short", {"n": 2})], "done")
    async with AgentFixture(tmp_path, script, hooks=[guard]) as here:
        await here.turn()
        assert [fact.content for fact in await here.facts(ToolReturned)] == [
            "something else",
            "not the second one",
        ]


@run
async def test_a_tool_that_needs_approval_runs_only_after_it(tmp_path: Path) -> None:
    asked: list[str] = []

    async def no(call: Any, what: str) -> bool:
        asked.append(what)
        return False

    async with AgentFixture(tmp_path, Scripted([("change", {}), ("short", {})], "done"), approve=no) as here:
        await here.turn()
        assert asked == ["change"]
        assert [fact.content for fact in await here.facts(ToolReturned)] == [DENIED_RESULT, "result 0"]


@run
async def test_a_wrong_call_gets_an_error_result(tmp_path: Path) -> None:
    script = Scripted([("nothing", {}), ("short", "{broken"), ("short", {"n": "one"})], "sorry")
    async with AgentFixture(tmp_path, script) as here:
        await here.turn()
        results = await here.facts(ToolReturned)
        assert all(fact.error for fact in results)
        assert "The tools are: short, long, stuck, change" in results[0].content
        assert isinstance((await here.turn("again"))[-1], TurnFinished)


@run
async def test_a_turn_ends_after_its_limit_of_tool_calls_and_says_so(tmp_path: Path) -> None:
    script = Scripted(*([("short", {})] for _ in range(3)), "Done.")
    async with AgentFixture(tmp_path, script, max_tool_iterations=3) as here:
        ended = (await here.turn())[-1]
        assert isinstance(ended, TurnFinished)
        limit = "it has reached its limit of 3 rounds of tool calls (max_tool_iterations)"
        assert (ended.why, ended.problem) == ("steps", limit)
        assert len(here.provider.requests) == 3
        assert (await here.facts(Noted))[-1] == Noted(text=f"The turn ended early: {limit}", topic="turn")
        assert check_chat((await here.session.fit()).to_openai()) == []
        finished = (await here.turn("Go on."))[-1]
        assert isinstance(finished, TurnFinished)
        assert (finished.why, finished.problem) == ("answered", "")


async def _interrupt(
    here: AgentFixture, *, when: Callable[[AgentEvent], bool], ready: Callable[[], bool] = lambda: True
) -> None:
    """Cancel a turn after a given event, as soon as it is `ready`, as Ctrl-C does."""
    reached = asyncio.Event()

    async def follow(turn: AsyncIterator[AgentEvent]) -> None:
        async for event in turn:
            if when(event):
                reached.set()

    task = asyncio.create_task(follow(here.agent.run("go")))
    await reached.wait()
    while not ready():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@run
async def test_cancelling_during_an_answer_keeps_its_text(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(50))
    async with AgentFixture(tmp_path, Scripted(text, "hello again", delay=0.02)) as here:
        await _interrupt(here, when=lambda event: isinstance(event, TextStreamed))
        (said,) = await here.facts(ModelSaid)
        assert said.content
        assert text.startswith(said.content)
        assert isinstance((await here.turn("and now?"))[-1], TurnFinished)
        assert check_chat((await here.session.fit()).to_openai()) == []


@run
async def test_cancelling_during_parallel_calls_leaves_a_legal_history(tmp_path: Path) -> None:
    script = Scripted([("short", {"n": 1}), ("stuck", {}), ("short", {"n": 3})], "hello again")
    async with AgentFixture(tmp_path, script) as here:
        STARTED.clear()
        await _interrupt(
            here, when=lambda event: getattr(event, "what", "") == "stuck", ready=lambda: bool(STARTED)
        )
        results = [fact.content for fact in await here.facts(ToolReturned)]
        assert results[0] == "result 1"
        assert "stopped" in results[1]
        assert results[2] == missing_result(INTERRUPTED)
        assert check_chat((await here.session.fit()).to_openai()) == []
        assert isinstance((await here.turn("and now?"))[-1], TurnFinished)


@run
async def test_a_connection_lost_during_an_answer_keeps_its_text(tmp_path: Path) -> None:
    broken = ProviderError("the connection broke", code="interrupted", partial="I was about to")
    async with AgentFixture(tmp_path, Scripted(broken, "better now")) as here:
        with pytest.raises(ProviderError):
            await here.turn()
        assert [fact.content for fact in await here.facts(ModelSaid)] == ["I was about to"]
        assert isinstance((await here.turn("go on"))[-1], TurnFinished)


# ── A turn in two parts ──────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_message_is_stored_with_its_facts_and_answered_later(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, Scripted("Yes.")) as here:
        stored = await here.agent.receive("Is it you?", Noted(text="k1", topic="message"))
        assert not here.provider.requests
        events = [event async for event in here.agent.answer()]
        assert isinstance(events[-1], TurnFinished)
        facts = await here.facts(Noted, UserSaid, ModelSaid)
        assert [type(fact).__name__ for fact in facts] == ["Noted", "UserSaid", "ModelSaid"]
        assert await here.session.original(stored.handle) == "Is it you?"


@run
async def test_calls_left_by_a_dead_process_get_a_result_before_the_next_request(
    tmp_path: Path,
) -> None:
    async with AgentFixture(tmp_path, Scripted("Where was I?")) as here:
        calls = (Call(id="c1", name="short", arguments="{}"), Call(id="c2", name="short", arguments="{}"))
        await here.session.append(UserSaid(content="go"), ModelSaid(content=calls))
        assert await here.session.open_calls() == list(calls)
        await here.agent.resume()
        results = [fact.content for fact in await here.facts(ToolReturned)]
        assert results == [missing_result("the process ended")] * 2
        assert await here.session.open_calls() == []
        events = [event async for event in here.agent.answer()]
        assert isinstance(events[-1], TurnFinished)
        assert check_chat(here.provider.requests[-1].to_openai()) == []


@run
async def test_a_request_that_cannot_fit_ends_the_turn_and_the_session_continues(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, Scripted("Fine.", window=4_000)) as here:
        with pytest.raises(ContextOverflow):
            await here.turn("x y " * 20_000)
        assert "The turn ended early" in (await here.facts(Noted))[-1].text


class OddUsage(Scripted):
    """A provider whose usage reports have no known count."""

    async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[Any]:
        async for piece in super().send(request, max_tokens=max_tokens):
            yield msgspec.structs.replace(piece, usage={"tokens": 5}) if isinstance(piece, Reply) else piece


@run
async def test_usage_that_is_not_understood_is_logged_and_the_turn_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AgentFixture(tmp_path, OddUsage("Done.")) as here:
        ended = (await here.turn())[-1]
    assert isinstance(ended, TurnFinished)
    assert ended.why == "answered"
    assert "dict with the fields tokens" in caplog.text


@run
async def test_a_request_for_a_summary_keeps_the_messages_that_thinking_is_bound_to() -> None:
    facts = (UserSaid(content="one"), UserSaid(content="two"), ModelSaid(content="Found."))
    prefix = Fitted(facts=facts, aside=(), tools=[], tokens=0, limit=0, binds_thinking=True)
    draft = DraftRequest(writer=0, form="shared", text="Sum up.", max_tokens=99)
    beside: dict[str, Any] = {"system": "", "tools": [], "binds_thinking": True}
    request = SummaryRequest.shared(draft, "anthropic", messages=prefix.to_anthropic(), **beside)
    provider = Scripted("A summary.")
    await summariser_for(provider).call(msgspec.structs.replace(request, prefix=prefix))
    assert provider.requests[0].to_anthropic()[:3] == prefix.to_anthropic()
