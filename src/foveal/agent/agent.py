"""The agent: a loop of asking a model and running its tools, on a durable session.

1. Everything is stored before it is used: the user's words before the model is asked, a call's whole result before
   it is clipped. Whatever happens in between, the session is legal and goes on from there.
2. A request that the provider refuses as too large is made smaller and sent again; the user does not see it.
3. Hooks are called in the order of their list, at six points, with one signature. One that fails is reported and
   changes nothing.
4. Cancelling (Ctrl-C) ends the turn: what was said so far is stored, calls without a result get one that says so.
5. What the agent tells while it works are `Happening`s; what to show of them is the caller's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Literal, Protocol

import msgspec

from foveal.agent.agent_events import (
    AgentEvent,
    ContextReduced,
    HookFailed,
    ModelAnswered,
    RequestRefused,
    TextStreamed,
    ToolCalling,
    ToolFinished,
    TurnFinished,
    UserMessageHeard,
)
from foveal.core import wire
from foveal.core.compaction.protocol import Draft
from foveal.core.compaction.summariser import Summariser, SummaryRequest
from foveal.core.log.events import (
    REDUCTIONS,
    AnyFact,
    Call,
    CompactionFailed,
    Content,
    Dialect,
    Event,
    Instructed,
    ModelSaid,
    Noted,
    Overflowed,
    ToolReturned,
    UserSaid,
    calls_of,
    text_of,
)
from foveal.core.view.request import Fitted
from foveal.core.wire.usage import used
from foveal.errors import FovealError, ProviderError
from foveal.instructions.rules import paths_in
from foveal.ports import Provider, Reply
from foveal.sessions.session import Session
from foveal.tools.tool import Toolbox, ToolInterrupted, ToolOutput

# ── own model ─────────────────────────────────────────────────────────────────────────────────────
# An agent's own model as the writer of its summaries: a provider as `foveal.core.compaction.summariser` wants it.

CUT_OFF = frozenset({"length", "max_tokens", "max_output_tokens", "incomplete"})


def own_model(provider: Provider) -> Summariser:
    """Summaries by the model that answers in the conversation, so that its cached prefix can be used."""

    async def write(request: SummaryRequest) -> Draft:
        reply = await _reply(provider, _fitted(request), request.max_tokens)
        chunks = wire.wire(provider.dialect).read(reply.messages)
        said = [fact for chunk in chunks for fact in chunk.facts if isinstance(fact, ModelSaid)]
        spent = used(reply.usage) if reply.usage is not None else None
        calling = any(calls_of(fact.content) for fact in said)
        return Draft(
            text="\n".join(text_of(fact.content) for fact in said),
            stop="tools" if calling else "length" if reply.stop in CUT_OFF else "end" if reply.stop else "",
            input=spent.input if spent else 0,
            cache_read=spent.cache_read if spent else 0,
            cache_write=spent.cache_write if spent else 0,
            output=spent.output if spent else 0,
        )

    return Summariser(write, name=provider.name)


async def _reply(provider: Provider, request: Fitted, max_tokens: int) -> Reply:
    async for piece in provider.send(request, max_tokens=max_tokens):
        if isinstance(piece, Reply):
            return piece
    raise ProviderError(f"{provider.name} ended without an answer", code="interrupted")


def _fitted(request: SummaryRequest) -> Fitted:
    chunks = wire.wire(request.dialect).read(request.messages)
    aside = (Instructed(content=request.system, aside=True),) if request.system else ()
    return Fitted(
        facts=tuple(fact for chunk in chunks for fact in chunk.facts),
        aside=aside,
        tools=request.tools,
        tokens=0,
        limit=0,
    )


# ── agent ─────────────────────────────────────────────────────────────────────────────────────────

STEPS: Final = 50
"""Calls of the model in one turn, at the most."""
INTERRUPTED: Final = "[foveal: interrupted by the user; this call has no result]"
DENIED: Final = "The user did not allow this call. Ask before trying it in another way."

# ── what can be hooked ───────────────────────────────────────────────────────────────────────────────────

Point = Literal["before_model", "after_model", "before_tool", "after_tool", "on_reduction", "on_overflow"]
POINTS: Final[tuple[Point, ...]] = (
    "before_model", "after_model", "before_tool", "after_tool", "on_reduction", "on_overflow",
)  # fmt: skip


class HookOccasion(msgspec.Struct, frozen=True, kw_only=True):
    """Where a hook is called, and with what."""

    at: Point
    session: Session
    call: Call | None = None
    """Before and after a tool."""
    output: ToolOutput | None = None
    """After a tool."""
    reply: Reply | None = None
    """After the model."""
    events: tuple[Event, ...] = ()
    """On a reduction, or on an overflow: what was recorded."""


class HookVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook wants changed; None changes nothing."""

    deny: str = ""
    """Before a tool: do not run it, and tell the model this instead."""
    output: ToolOutput | None = None
    """After a tool: this instead of its result. The original is not stored."""


Hook = Callable[[HookOccasion], Awaitable[HookVerdict | None]]
Approve = Callable[[Call, str], Awaitable[bool]]


class AgentGuidance(Protocol):
    """Where instructions come from: files that may change while the session lives."""

    async def refresh(self, session: Session) -> Sequence[AnyFact]:
        """What has changed since the last turn."""
        ...

    async def touched(self, session: Session, paths: Sequence[str]) -> Sequence[AnyFact]:
        """What applies to files that were touched for the first time."""
        ...


async def _allowed(call: Call, what: str) -> bool:
    return True


class Agent:
    """One session, one model, one set of tools."""

    def __init__(
        self,
        session: Session,
        provider: Provider,
        tools: Toolbox,
        *,
        hooks: Sequence[Hook] = (),
        approve: Approve = _allowed,
        guidance: AgentGuidance | None = None,
        looking_back: Toolbox | None = None,
        steps: int = STEPS,
    ) -> None:
        """`looking_back` takes the place of `tools` from the first reduction on, for models that call whatever they
        see: the prompt's beginning changes then anyway."""
        self.session = session
        self.provider = provider
        self.tools = tools
        self.hooks = tuple(hooks)
        self.guidance = guidance
        self._looking_back = looking_back
        self._approve = approve
        self._steps = steps
        self._waiting: list[Call] = []
        """Calls of the newest answer that have no result yet."""
        self._said = ""
        """What the model has said so far in an answer that is not yet stored."""
        self._told = -1
        """Reductions up to this event have been told."""

    async def run(self, content: Content) -> AsyncGenerator[AgentEvent, None]:
        """One turn: from the user's words to the model's last answer."""
        yield await self.hear(content)
        async for happening in self.answer():
            yield happening

    async def hear(self, content: Content, *beside: AnyFact, dialect: Dialect = "") -> UserMessageHeard:
        """Store the user's words, and in the same moment what belongs to them."""
        await self._prepare()
        self._told = self.session.last
        heard = await self.session.append(*beside, UserSaid(content=content, dialect=dialect))
        return UserMessageHeard(handle=heard[-1].handle)

    async def resume(self) -> None:
        """Go on where another process ended: calls that it left without a result get one that says so."""
        await self._prepare()
        self._told = self.session.last
        self._waiting = await self.session.open_calls()
        if self._waiting:
            await self._abandon("the process ended")

    async def answer(self) -> AsyncGenerator[AgentEvent, None]:
        """The rest of a turn, when the user's words are stored. However it ends, the session is legal."""
        why: Literal["answered", "steps"] = "steps"
        try:
            for _ in range(self._steps):
                async for happening in self._step():
                    yield happening
                if not self._waiting:
                    why = "answered"
                    break
                async for happening in self._run_tools():
                    yield happening
        except (asyncio.CancelledError, GeneratorExit):
            await asyncio.shield(self._abandon("interrupted by the user"))
            raise
        except FovealError as problem:
            await self._abandon(str(problem), partial=getattr(problem, "partial", ""))
            raise
        yield TurnFinished(why=why, report=await self.session.report())

    async def _prepare(self) -> None:
        if self.guidance is not None:
            facts = await self.guidance.refresh(self.session)
            if facts:
                await self.session.append(*facts)
        await self._equip()

    async def _equip(self) -> None:
        if self._looking_back is not None and await self.session.looks_back():
            self.tools, self._looking_back = self._looking_back, None
        await self.session.equip(self.tools.offered)

    # ── the model ────────────────────────────────────────────────────────────────────────────────────

    async def _step(self) -> AsyncIterator[AgentEvent]:
        """Ask the model until it answers."""
        async for happening in self._hooked(HookOccasion(at="before_model", session=self.session)):
            yield happening
        while True:
            first, before = self._told + 1, (await self.session.report()).used
            fitted = await self.session.fit()
            if self._looking_back is not None and fitted.reduced:
                await self._equip()
                fitted = await self.session.fit()
            async for happening in self._reduced(first, before, fitted.tokens):
                yield happening
            try:
                reply: Reply | None = None
                async for piece in self.provider.send(fitted, max_tokens=await self.session.max_tokens()):
                    if isinstance(piece, Reply):
                        reply = piece
                    else:
                        self._said += piece.text if piece.kind == "text" else ""
                        yield TextStreamed(piece=piece)
                break
            except ProviderError:
                raise
            except Exception as error:  # a provider's own error: too large, or nothing that we know
                if not await self.session.overflowed(error):
                    raise ProviderError(f"{self.provider.name}: {error}", code="refused") from error
                self._said = ""
                async for happening in self._overflowed():
                    yield happening
        if reply is None:
            raise ProviderError(f"{self.provider.name} ended without an answer", code="interrupted")
        async for happening in self._answered(reply):
            yield happening

    async def _answered(self, reply: Reply) -> AsyncIterator[AgentEvent]:
        events = await self.session.take(*reply.messages, dialect=self.provider.dialect)
        self._said = ""
        said = [event for event in events if isinstance(event.fact, ModelSaid)]
        self._waiting = [call for event in said for _, call in calls_of(_content(event))]
        if reply.usage is not None:
            await self.session.observe(reply.usage)
        text = "\n".join(text_of(_content(event)) for event in said)
        yield ModelAnswered(text=text, calls=len(self._waiting), handle=said[-1].handle if said else "")
        async for happening in self._hooked(
            HookOccasion(at="after_model", session=self.session, reply=reply)
        ):
            yield happening

    async def _reduced(self, first: int, before: int, after: int) -> AsyncIterator[AgentEvent]:
        """What was clipped since the last request, and what was reduced for this one."""
        made = await self.session.events(first=first)
        self._told = self.session.last
        events = tuple(event for event in made if _reduces(event.fact))
        if not events:
            return
        yield ContextReduced(events=events, before=before, after=after)
        async for happening in self._hooked(
            HookOccasion(at="on_reduction", session=self.session, events=events)
        ):
            yield happening

    async def _overflowed(self) -> AsyncIterator[AgentEvent]:
        newest = await self.session.events(first=self.session.last)
        refused = tuple(event for event in newest if isinstance(event.fact, Overflowed))
        problem = next((e.fact.problem for e in refused if isinstance(e.fact, Overflowed)), "")
        yield RequestRefused(problem=problem)
        async for happening in self._hooked(
            HookOccasion(at="on_overflow", session=self.session, events=refused)
        ):
            yield happening

    # ── the tools ────────────────────────────────────────────────────────────────────────────────────

    async def _run_tools(self) -> AsyncIterator[AgentEvent]:
        """Run the calls of the newest answer, one after the other; each result is stored when it is there."""
        touched: dict[str, None] = {}
        while self._waiting:
            call = self._waiting[0]
            what = self.tools.describe(call.name, call.arguments)
            yield ToolCalling(call=call, what=what)
            began = time.monotonic()
            failures: list[AgentEvent] = []
            output = await self._output(call, what, failures)
            for failure in failures:
                yield failure
            handle = await self._returned(call, output)
            touched |= dict.fromkeys((*output.touched, *paths_in(call.arguments)))
            yield ToolFinished(
                call=call,
                text=text_of(output.content),
                error=output.error,
                seconds=time.monotonic() - began,
                handle=handle,
            )
        await self._guide(tuple(touched))  # after the last result: nothing may stand between them

    async def _returned(self, call: Call, output: ToolOutput) -> str:
        """Store a call's whole result; its handle."""
        result = ToolReturned(
            call_id=call.id,
            content=output.content,
            name=call.name,
            error=output.error,
            variety=call.variety,
        )
        self._waiting = [other for other in self._waiting if other is not call]
        return (await self.session.append(result))[0].handle

    async def _output(self, call: Call, what: str, failures: list[AgentEvent]) -> ToolOutput:
        """A call's result: after the hooks before it, the user's consent where it changes something, and the hooks
        after it."""
        occasion = HookOccasion(at="before_tool", session=self.session, call=call)
        for verdict in await self._verdicts(occasion, failures):
            if verdict.deny:
                return ToolOutput(content=verdict.deny, error=True)
        tool = self.tools.get(call.name)
        if tool is not None and tool.changes and not await self._approve(call, what):
            return ToolOutput(content=DENIED, error=True)
        try:
            output = await self.tools.call(call.name, call.arguments)
        except ToolInterrupted as stopped:
            await asyncio.shield(self._returned(call, stopped.output))
            raise
        occasion = HookOccasion(at="after_tool", session=self.session, call=call, output=output)
        for verdict in await self._verdicts(occasion, failures):
            output = verdict.output if verdict.output is not None else output
        return output

    async def _guide(self, paths: Sequence[str]) -> None:
        if self.guidance is not None and paths:
            facts = await self.guidance.touched(self.session, paths)
            if facts:
                await self.session.append(*facts)

    # ── hooks, and the end ───────────────────────────────────────────────────────────────────────────

    async def _hooked(self, occasion: HookOccasion) -> AsyncIterator[AgentEvent]:
        failures: list[AgentEvent] = []
        await self._verdicts(occasion, failures)
        for failure in failures:
            yield failure

    async def _verdicts(self, occasion: HookOccasion, failures: list[AgentEvent]) -> list[HookVerdict]:
        """What the hooks say, in their order; one that fails says nothing."""
        said: list[HookVerdict] = []
        for hook in self.hooks:
            try:
                verdict = await hook(occasion)
            except Exception as problem:  # noqa: BLE001  (a hook may fail in any way)
                name = getattr(hook, "__qualname__", type(hook).__name__)
                told = f"{type(problem).__name__}: {problem}"
                failures.append(HookFailed(hook=name, at=occasion.at, problem=told))
                await self.session.append(Noted(text=f"{name} failed at {occasion.at}: {told}", topic="hook"))
                continue
            if verdict is not None:
                said.append(verdict)
        return said

    async def _abandon(self, why: str, *, partial: str = "") -> None:
        """Leave a session that can go on: what was said is stored, and every call has a result."""
        facts: list[AnyFact] = []
        said = partial or self._said
        if said:
            facts.append(ModelSaid(content=said))
        facts += [
            ToolReturned(
                call_id=call.id, content=INTERRUPTED, name=call.name, error=True, variety=call.variety
            )
            for call in self._waiting
        ]
        facts.append(Noted(text=f"The turn ended early: {why}", topic="turn"))
        self._waiting, self._said = [], ""
        await self.session.append(*facts)


def _reduces(fact: AnyFact) -> bool:
    paused = isinstance(fact, Noted) and fact.topic == "compaction"
    return paused or isinstance(fact, (*REDUCTIONS, CompactionFailed))


def _content(event: Event) -> Content:
    assert isinstance(event.fact, ModelSaid)
    return event.fact.content
