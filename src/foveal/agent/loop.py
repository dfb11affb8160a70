"""The agent: a loop of model and tool calls on a durable session.

1. Everything is stored before it is used: the user message before the model is called, the whole result of a call
   before it is truncated. After any interruption the session is legal and can continue.
2. A request that the provider refuses as too large is reduced and sent again; the user does not notice. One that
   it refuses because of an image or a file is sent again with a placeholder in its place (`RefusedMedia`).
3. Hooks are called in list order, at six points, with one signature; one that fails is reported, with no effect.
   `HookOccasion` says where a hook is called, `HookVerdict` what it changes.
4. Cancelling (Ctrl-C) ends the turn: the text so far is stored, and calls without a result get one that says so.
   The output so far of a running call is its result, which is reported before the turn ends.
5. The agent reports its work as `AgentEvent`s; the caller decides what to show of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import takewhile
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from foveal.agent.events import (
    AgentEvent,
    ContextReduced,
    HookFailed,
    LimitReached,
    ModelAnswered,
    PromptReading,
    RequestRefused,
    RetryScheduled,
    TextStreamed,
    ToolCalling,
    ToolFinished,
    ToolOutputStreamed,
    TurnFinished,
    UserMessageStored,
)
from foveal.agent.tool import (
    RunningCall,
    Toolbox,
    ToolInterrupted,
    ToolOutput,
    cancel_and_wait,
    media_dialect,
)
from foveal.config.instructions.rules import paths_in
from foveal.config.keys import MAX_TOOL_ITERATIONS
from foveal.core.engine.tool_deferral import ToolDeferral
from foveal.core.log.events import (
    REDUCTIONS,
    AnyFact,
    Call,
    CompactionFailed,
    Content,
    Dialect,
    Event,
    ModelSaid,
    Noted,
    Overflowed,
    Reverted,
    ToolReturned,
    UserSaid,
    calls_of,
    text_of,
)
from foveal.core.wire.safe_print import one_line
from foveal.errors import BadSetting, BudgetExceeded, FovealError, ProviderError, StoreUnusable
from foveal.ports import PromptProgress, Provider, Reply, RetryWait
from foveal.providers.summariser import TRUNCATED_STOPS
from foveal.sessions.session import Session

HookPoint = Literal["before_model", "after_model", "before_tool", "after_tool", "on_reduction", "on_overflow"]


class HookOccasion(msgspec.Struct, frozen=True, kw_only=True):
    """The point at which a hook is called, and what happened there."""

    at: HookPoint
    session: Session
    call: Call | None = None
    """Set before and after a tool."""
    output: ToolOutput | None = None
    """Set after a tool."""
    reply: Reply | None = None
    """Set after the model."""
    events: tuple[Event, ...] = ()
    """The recorded events of a reduction or an overflow."""


class HookVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A change that a hook requests; a hook that returns None requests none."""

    deny: str = ""
    """Before a tool: the result that the model gets instead of the call being run."""
    output: ToolOutput | None = None
    """After a tool: replaces its result. The original is not stored."""


Hook = Callable[[HookOccasion], Awaitable[HookVerdict | None]]


class RefusedMedia:
    """Hides the media of one request until the provider accepts it.

    Providers do not say reliably what they refuse, so this is a trial: what was hidden in vain is shown again.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._hidden: list[Event] = []

    async def hide(self, problem: ProviderError) -> bool:
        """Return whether media were hidden because of this error, and the request may be sent again."""
        hidden = await self._session.hide_refused_media() if problem.code == "refused" else None
        if hidden is not None:
            self._hidden.append(hidden)
            return True
        await self._session.append(*(Reverted(target=event.seq) for event in reversed(self._hidden)))
        return False


_LOG: Final = logging.getLogger("foveal.agent")
INTERRUPTED: Final = "interrupted by the user"
MAX_REASON_CHARS: Final = 200
"""Characters of a reason in the result of a call that it left without one."""
_LIVE_INTERVAL_S: Final = 0.1
"""Seconds between two looks at the output of a running tool."""
DENIED_RESULT: Final = "The user did not allow this call. Ask before trying it in another way."
UNATTENDED_DENIAL: Final = (
    "This call needs permission, and there is no user to ask. "
    "Do what you can without it, and say what is not done."
)  # ── Approval and guidance ─────────────────────────────────────────────────────────────────────────

Approve = Callable[[Call, str], Awaitable[bool]]
"""Asks the user about a call, given its description."""


class AgentGuidance(Protocol):
    """Source of instructions: files that may change during the session."""

    async def refresh(self, session: Session) -> Sequence[AnyFact]:
        """Return the instructions that have changed since the last turn."""
        ...

    async def instructions_for(self, session: Session, paths: Sequence[str]) -> Sequence[AnyFact]:
        """Return the instructions for paths that were touched for the first time."""
        ...


async def _always_approve(call: Call, description: str) -> bool:
    return True


# ── The agent ─────────────────────────────────────────────────────────────────────────────────────


class Agent:
    """An agent with a session, a model and tools."""

    def __init__(
        self,
        session: Session,
        provider: Provider,
        tools: Toolbox,
        *,
        hooks: Sequence[Hook] = (),
        approve: Approve = _always_approve,
        guidance: AgentGuidance | None = None,
        recall_tools: Toolbox | None = None,
        deferral: ToolDeferral | None = None,
        max_tool_iterations: int = MAX_TOOL_ITERATIONS,
        denied_result: str = DENIED_RESULT,
    ) -> None:
        """`recall_tools` replaces `tools` from the first reduction on. Before it there is nothing to recall, and
        small models call any tool that they are given; the reduction changes the prompt's prefix anyway.
        `deferral` decides which of the tools requests offer; without it, all. A turn ends after
        `max_tool_iterations` requests whose answers called tools. `denied_result` is the result of a call that
        `approve` denies."""
        self.session = session
        self.provider = provider
        self.tools: Toolbox = tools
        self.hooks: tuple[Hook, ...] = tuple(hooks)
        self.guidance = guidance
        self._recall_tools = recall_tools
        self._deferral = deferral
        self._first_tools = tools
        """What `tools` is until the first reduction."""
        self._has_sent_tools = False
        """Whether a request has offered the recall tools."""
        self.approve: Approve = approve
        """Asks the user about a call; what runs a turn may set another one for it."""
        self._max_tool_iterations = max_tool_iterations
        self._denied_result = denied_result
        self._open_calls: list[Call] = []
        """Calls of the newest reply that have no result yet."""
        self._partial_text = ""
        """The text so far of a reply that is not yet stored."""
        self._leaves_log = False
        """Whether an interrupted turn stores nothing more: its answer is stored, or it runs again."""
        self._interruption = INTERRUPTED
        """Why the turn is interrupted, if it is."""
        self._reported = -1
        """Reductions up to this event have been reported."""

    async def run(self, content: Content, *, dialect: Dialect = "") -> AsyncGenerator[AgentEvent, None]:
        """Run a turn, from the user message, with the dialect of media in it, to the model's final answer."""
        yield await self.receive(content, dialect=dialect)
        async with aclosing(self.answer()) as events:
            async for event in events:
                yield event

    async def receive(self, content: Content, *facts: AnyFact, dialect: Dialect = "") -> UserMessageStored:
        """Store a user message together with facts that belong to it, in one transaction."""
        await self._prepare()
        self._reported = self.session.last
        stored = await self.session.append(*facts, UserSaid(content=content, dialect=dialect))
        return UserMessageStored(handle=stored[-1].handle)

    async def resume(self, *, runs_later: Callable[[Call], Awaitable[bool]] | None = None) -> None:
        """Continue where another process ended: calls that it left without a result get one that says so, apart
        from those that `runs_later`, because they have not begun; `answer` runs them."""
        await self._prepare()
        self._reported = self.session.last
        left = [] if runs_later is None else await self.session.open_calls()
        waiting = [call for call in left if runs_later is not None and await runs_later(call)]
        await self._close_calls("the process ended", besides=waiting)
        self._open_calls = waiting

    async def answer(self) -> AsyncGenerator[AgentEvent, None]:
        """Run the rest of a turn whose user message is stored; the session is legal however it ends."""
        why: Literal["answered", "steps"] = "steps"
        self._leaves_log, self._interruption = False, INTERRUPTED
        try:
            for _ in range(self._max_tool_iterations):
                if not self._open_calls:  # else the first ones waited for the user when another process ended
                    async for event in self._step():
                        yield event
                if not self._open_calls:
                    why = "answered"
                    break
                # Closed here, because a command may be running when the caller stops reading.
                async with aclosing(self._run_tools()) as events:
                    async for event in events:
                        yield event
            else:
                await self._end_early(self._limit_text)
        except (asyncio.CancelledError, GeneratorExit):
            if not self._leaves_log:
                await asyncio.shield(self._end_early(self._interruption))
            raise
        except StoreUnusable as problem:
            await self._close_calls(str(problem))
            raise
        except FovealError as problem:
            await self._end_early(str(problem), partial=getattr(problem, "partial", ""))
            raise
        missing = "" if why == "answered" else self._limit_text
        yield TurnFinished(why=why, report=await self.session.report(), problem=missing)

    @property
    def _limit_text(self) -> str:
        most = self._max_tool_iterations
        rounds = "1 round" if most == 1 else f"{most:,} rounds"
        return f"it has reached its limit of {rounds} of tool calls (max_tool_iterations)"

    def postpone(self) -> None:
        """Store nothing more if the turn is interrupted from now on: another process runs it again."""
        self._leaves_log = True

    def explain_interruption(self, why: str) -> None:
        """Set what the log says if the turn is interrupted now, and not by its user."""
        self._interruption = why

    async def _prepare(self) -> None:
        if self.guidance is not None:
            facts = await self.guidance.refresh(self.session)
            if facts:
                await self.session.append(*facts)
        await self.equip()

    async def equip(self) -> None:
        """Offer the tools from now on, with the recall tools if something is reduced; they count in the report."""
        if self._recall_tools is not None and await self.session.needs_recall_tools():
            self.tools, self._recall_tools = self._recall_tools, None
        await self._offer_tools()

    async def _offer_tools(self) -> bool:
        """Offer the tools, without those that the model has yet to load. Return whether they are others."""
        dialect = self.provider.dialect
        return await self.session.equip(self.tools.schemas, deferral=self._deferral, dialect=dialect)

    async def withdraw_recall_tools(self) -> None:
        """Offer the first tools again after an undo, if nothing is reduced and no request had the recall tools."""
        if self.tools is self._first_tools or self._has_sent_tools:
            return
        if not (await self.session.report(with_events=False)).reduced:
            self.tools, self._recall_tools = self._first_tools, self.tools
            await self._offer_tools()

    # ── Model ─────────────────────────────────────────────────────────────────────────────────────

    async def _step(self) -> AsyncIterator[AgentEvent]:
        """Send requests, smaller after each overflow, until the model replies; store the reply."""
        async for event in self._run_hooks(HookOccasion(at="before_model", session=self.session)):
            yield event
        refused = RefusedMedia(self.session)
        while True:
            first, report = self._reported + 1, await self.session.report(with_events=False)
            if report.question and report.state == "over":
                yield LimitReached(needed=report.used, available=report.limit)
            if self._deferral is not None:  # the newest calls may have loaded tools
                await self._offer_tools()
            fitted = await self.session.fit()
            if self._recall_tools is not None and fitted.reduced:
                await self.equip()
                fitted = await self.session.fit()
            elif (
                self._deferral is not None and await self._offer_tools()
            ):  # a reduction hid where some were loaded
                fitted = await self.session.fit()
            async for event in self._report_reductions(first, report.used, fitted.tokens):
                yield event
            max_tokens = await self.session.max_tokens()
            self._has_sent_tools = self.tools is not self._first_tools
            try:
                reply: Reply | None = None
                async for piece in self.provider.send(fitted, max_tokens=max_tokens):
                    if isinstance(piece, Reply):
                        reply = piece
                    elif isinstance(piece, RetryWait):
                        yield RetryScheduled(wait=piece)
                    elif isinstance(piece, PromptProgress):
                        yield PromptReading(progress=piece)
                    else:
                        self._partial_text += piece.text if piece.kind == "text" else ""
                        yield TextStreamed(piece=piece)
                break
            except BudgetExceeded:  # nothing was sent
                raise
            except ProviderError as problem:
                if self._partial_text or not await refused.hide(problem):
                    raise
            except Exception as error:  # an error of the client library: an overflow, or an unknown one
                if not await self.session.overflowed(error):
                    raise ProviderError(f"{self.provider.name}: {error}", code="refused") from error
                self._partial_text = ""
                async for event in self._report_overflow():
                    yield event
        if reply is None:
            raise ProviderError(f"{self.provider.name} ended without an answer", code="interrupted")
        async for event in self._store_reply(reply, max_tokens):
            yield event

    async def _observe(self, reply: Reply) -> None:
        """Record the reported usage; the turn goes on without a report that is not understood."""
        if reply.usage is None:
            return
        try:
            await self.session.observe(reply.usage)
        except BadSetting as problem:
            _LOG.warning("%s: the usage of a reply was ignored: %s", self.provider.name, problem)

    async def _store_reply(self, reply: Reply, max_tokens: int) -> AsyncIterator[AgentEvent]:
        events = await self.session.take(*reply.messages, dialect=self.provider.dialect)
        self._partial_text = ""
        said = [(event.handle, event.fact.content) for event in events if isinstance(event.fact, ModelSaid)]
        self._open_calls = [call for _, content in said for _, call in calls_of(content)]
        self._leaves_log |= not self._open_calls
        await self._observe(reply)
        text = "\n".join(text_of(content) for _, content in said)
        yield ModelAnswered(
            text=text,
            calls=len(self._open_calls),
            handle=said[-1][0] if said else "",
            max_tokens=max_tokens if reply.stop in TRUNCATED_STOPS else 0,
        )
        async for event in self._run_hooks(HookOccasion(at="after_model", session=self.session, reply=reply)):
            yield event

    async def _report_reductions(self, first: int, before: int, after: int) -> AsyncIterator[AgentEvent]:
        """Report truncations since the last request and reductions for this one."""
        recorded = await self.session.events(first=first)
        self._reported = self.session.last
        events = tuple(event for event in recorded if _is_reduction(event.fact))
        if not events:
            return
        yield ContextReduced(events=events, before=before, after=after)
        async for event in self._run_hooks(
            HookOccasion(at="on_reduction", session=self.session, events=events)
        ):
            yield event

    async def _report_overflow(self) -> AsyncIterator[AgentEvent]:
        newest = await self.session.events(first=self.session.last)
        refused = tuple(event for event in newest if isinstance(event.fact, Overflowed))
        problem = next((e.fact.problem for e in refused if isinstance(e.fact, Overflowed)), "")
        yield RequestRefused(problem=problem)
        async for event in self._run_hooks(
            HookOccasion(at="on_overflow", session=self.session, events=refused)
        ):
            yield event

    # ── Tools ─────────────────────────────────────────────────────────────────────────────────────

    async def _run_tools(self) -> AsyncGenerator[AgentEvent, None]:
        """Run the calls of the newest reply, one after the other or those of a parallel tool together."""
        touched: dict[str, None] = {}
        while self._open_calls:
            first, *rest = self._open_calls
            together = takewhile(self._is_parallel, rest) if self._is_parallel(first) else ()
            async with aclosing(self._run_together([first, *together], touched)) as events:
                async for event in events:
                    yield event
        # After the last result, because nothing may be between the results of one reply.
        await self._add_instructions(tuple(touched))

    def _is_parallel(self, call: Call) -> bool:
        tool = self.tools.get(call.name)
        return tool is not None and tool.is_parallel

    async def _run_together(
        self, calls: Sequence[Call], touched: dict[str, None]
    ) -> AsyncGenerator[AgentEvent, None]:
        """Run calls at the same time; store each result at once. `touched` gets the paths that they used."""
        waiting: dict[asyncio.Future[ToolOutput], _StartedCall] = {}
        try:
            for call in calls:
                what = self.tools.describe(call.name, call.arguments)
                yield ToolCalling(call=call, what=what)
                started = _StartedCall(call, RunningCall(), [])
                task = asyncio.ensure_future(self._run_call(call, what, started.running, started.reports))
                waiting[task] = started
            while waiting:
                done, _ = await asyncio.wait(
                    waiting, timeout=_LIVE_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
                )
                finished = [(waiting.pop(task), task.result()) for task in done]
                for (call, running, reports), output in finished:
                    touched |= dict.fromkeys((*output.touched, *paths_in(call.arguments)))
                    reports.append(await self._store_result(call, output, running))
                for started, _ in finished:
                    for report in started.reports:
                        yield report
                for call, running, _ in waiting.values():
                    if self.tools.reports_output(call.name) and running.take_news():
                        yield ToolOutputStreamed(
                            call=call, lines=running.last_lines(), seconds=running.seconds
                        )
        except asyncio.CancelledError:
            await cancel_and_wait(*waiting)
            for started in waiting.values():
                for report in started.reports:
                    yield report
            raise
        finally:
            await cancel_and_wait(*waiting)

    async def _store_result(self, call: Call, output: ToolOutput, running: RunningCall) -> ToolFinished:
        """Store the whole result of a call and return the report of it."""
        result = ToolReturned(
            call_id=call.id,
            content=output.content,
            name=call.name,
            error=output.error,
            variety=call.variety,
            dialect=media_dialect(output.content),
        )
        self._open_calls = [other for other in self._open_calls if other is not call]
        stored = (await self.session.append(result))[0]
        return ToolFinished(
            call=call,
            text=text_of(output.content),
            error=output.error,
            seconds=running.seconds,
            handle=stored.handle,
        )

    async def _run_call(
        self, call: Call, description: str, running: RunningCall, reports: list[AgentEvent]
    ) -> ToolOutput:
        """Return the result of a call: run the hooks before it, ask for approval if needed, and run the hooks
        after it. `reports` gets what else is reported: hooks that fail, and a call that is stopped."""
        occasion = HookOccasion(at="before_tool", session=self.session, call=call)
        for verdict in await self._verdicts(occasion, reports):
            if verdict.deny:
                return ToolOutput(content=verdict.deny, error=True)
        tool = self.tools.get(call.name)
        if tool is not None and tool.needs_approval:
            if (problem := self.tools.find_problem(call.name, call.arguments)) is not None:
                return problem
            if not await self.approve(call, description):
                return ToolOutput(content=self._denied_result, error=True)
        running.start()
        try:
            output = await self.tools.call(call.name, call.arguments, on_output=running.add_output)
        except ToolInterrupted as stopped:
            reports.append(await asyncio.shield(self._store_result(call, stopped.output, running)))
            raise
        finally:
            running.end()
        occasion = HookOccasion(at="after_tool", session=self.session, call=call, output=output)
        for verdict in await self._verdicts(occasion, reports):
            output = verdict.output if verdict.output is not None else output
        return output

    async def _add_instructions(self, paths: Sequence[str]) -> None:
        if self.guidance is not None and paths:
            facts = await self.guidance.instructions_for(self.session, paths)
            if facts:
                await self.session.append(*facts)

    # ── Hooks and early end ───────────────────────────────────────────────────────────────────────

    async def _run_hooks(self, occasion: HookOccasion) -> AsyncIterator[AgentEvent]:
        failures: list[AgentEvent] = []
        await self._verdicts(occasion, failures)
        for failure in failures:
            yield failure

    async def _verdicts(self, occasion: HookOccasion, failures: list[AgentEvent]) -> list[HookVerdict]:
        """Call the hooks in their order and return their verdicts; a hook that fails adds to `failures`."""
        verdicts: list[HookVerdict] = []
        for hook in self.hooks:
            try:
                verdict = await hook(occasion)
            except Exception as problem:  # noqa: BLE001 - a hook may fail in any way
                name = getattr(hook, "__qualname__", type(hook).__name__)
                error = f"{type(problem).__name__}: {problem}"
                failures.append(HookFailed(hook=name, at=occasion.at, problem=error))
                await self.session.append(
                    Noted(text=f"{name} failed at {occasion.at}: {error}", topic="hook")
                )
                continue
            if verdict is not None:
                verdicts.append(verdict)
        return verdicts

    async def _close_calls(self, why: str, *, besides: Sequence[Call] = ()) -> None:
        """Give the open calls a result, `besides` some of them. They are read from the log: the store may have what
        it did not confirm."""
        left = [call for call in await self.session.open_calls() if call not in besides]
        self._partial_text, self._open_calls = "", left
        if self._open_calls:
            await self._end_early(why)

    async def _end_early(self, why: str, *, partial: str = "") -> None:
        """Leave a session that can continue: store the partial text and give every call a result."""
        facts: list[AnyFact] = []
        text = partial or self._partial_text
        if text:
            facts.append(ModelSaid(content=text))
        facts += [
            ToolReturned(
                call_id=call.id,
                content=missing_result(why),
                name=call.name,
                error=True,
                variety=call.variety,
            )
            for call in self._open_calls
        ]
        facts.append(Noted(text=f"The turn ended early: {why}", topic="turn"))
        self._open_calls, self._partial_text = [], ""
        await self.session.append(*facts)


class _StartedCall(NamedTuple):
    """A call that runs, and what it reports beside its result."""

    call: Call
    running: RunningCall
    reports: list[AgentEvent]


def missing_result(why: str) -> str:
    """Return the result of a call that has none, because the turn ended early."""
    return f"[foveal: {one_line(why, width=MAX_REASON_CHARS)}; this call has no result]"


def _is_reduction(fact: AnyFact) -> bool:
    is_pause_note = isinstance(fact, Noted) and fact.topic == "compaction"
    return is_pause_note or isinstance(fact, (*REDUCTIONS, CompactionFailed))
