"""Sub-agents: the tool `task`, which gives a task to an agent with a context of its own.

    subagents = SubAgents(session, provider, open_task_session(session, provider, tools))
    box = Toolbox([*tools, subagents.tool()])

1. A sub-agent has a session of its own in the same store. Its first event names the session and the event that
   started it, so lists and the inspector show it below its parent.
2. It has at most the tools of its parent, asks the same user, and its limits are not wider.
3. Several calls of one answer run at the same time, `MAX_PARALLEL_TASKS` at once. Their questions come one by one.
4. Its answer is the result of the call, limited, with the handle of the whole text. Its error is the result of its
   own call and of no other.
5. When the parent is cancelled, all of them are. Their logs are legal however they end.
6. What they take is recorded in the parent's log, whose own usage has only its own requests.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

import msgspec

from foveal.agent.events import ModelAnswered, ToolCalling, TurnFinished
from foveal.agent.loop import Agent, AgentGuidance, Approve, Hook
from foveal.agent.tool import (
    Arguments,
    InvalidArguments,
    OutputListener,
    Tool,
    Toolbox,
    ToolOutput,
    describe_error,
    error_output,
)
from foveal.agent.tools.todo import newest_events
from foveal.config.keys import MAX_TOOL_ITERATIONS
from foveal.core.log.events import Call, Instructed, ModelSaid, SnapshotTaken, calls_of, raw, unraw
from foveal.core.models.cost import dollars
from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError
from foveal.ports import Provider
from foveal.providers.summariser import summariser_for
from foveal.sessions.session import Session

TASK_TOOL: Final = "task"
MAX_TASK_DEPTH: Final = 2
"""Sub-agents below each other: a sub-agent may start one that starts none."""
MAX_PARALLEL_TASKS: Final = 4
"""Sub-agents of one agent that run at the same time; the others wait."""
MAX_TASK_RESULT_CHARS: Final = 12_000
"""Characters of an answer that the parent gets; the whole of it is in the sub-agent's log."""
MAX_TASK_NAME_CHARS: Final = 40
_USAGE_LABEL: Final = "usage of sub-agents"
_TIMEOUT_S: Final = 7_200.0
_MAX_EVENTS_BEFORE_CALL: Final = 200
"""Newest events of the parent among which the answer with the call is looked for."""
_SUB_AGENT_ID: Final = re.compile(r".-task-[0-9a-f]{6}")
_DESCRIPTION: Final = (
    "Give a task to a sub-agent with a context of its own, and get its answer: for a search or a piece of work "
    "whose details you do not need. It knows nothing of this conversation, so say in the prompt all that it needs, "
    "and what to answer. Calls in one answer run at the same time."
)
TASK_INSTRUCTIONS: Final = (
    "You are a sub-agent: another agent has given you one task, and no user reads along. Carry it out, ask "
    "nothing, and end with an answer that has all that was asked for: that agent sees nothing else."
)


class TaskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sub-agent is ended, counted with those that it starts; None for no limit."""

    max_tool_iterations: int = MAX_TOOL_ITERATIONS
    max_tokens: int | None = None
    """Tokens that its requests and answers take together."""
    max_cost: float | None = None
    """Dollars, as far as the price of its model is known."""


class TaskUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What sub-agents have taken, with those that they have started."""

    tokens: int = 0
    dollars: float = 0.0
    """Of the requests whose price is known."""

    def __add__(self, other: TaskUsage) -> TaskUsage:
        return TaskUsage(tokens=self.tokens + other.tokens, dollars=self.dollars + other.dollars)

    def to_fact(self) -> SnapshotTaken:
        return SnapshotTaken(data=raw(msgspec.to_builtins(self)), label=_USAGE_LABEL)


async def recorded_usage(session: Session) -> TaskUsage:
    """Return what the sub-agents of a session have taken so far, as its newest record says."""
    async for event in newest_events(session, with_rewound=True):
        if isinstance(event.fact, SnapshotTaken) and event.fact.label == _USAGE_LABEL:
            with suppress(msgspec.ValidationError, ValueError):
                return msgspec.convert(unraw(event.fact.data), TaskUsage)
    return TaskUsage()


class TaskParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the program that runs the agent makes for one sub-agent."""

    session: Session
    tools: Sequence[Tool]
    """All tools that it may have; the call chooses among those that its parent has too."""
    approve: Callable[[Call, str, Toolbox], Awaitable[bool]]
    """Asks the user about a call of its toolbox; the text names the sub-agent."""
    guidance: AgentGuidance | None = None
    hooks: Sequence[Hook] = ()
    """The hooks of its parent, which bind it too."""


OpenTask = Callable[[str, str], Awaitable[TaskParts]]
"""Opens the session of a sub-agent with this id and this origin."""


def is_subagent_id(id: str) -> bool:
    """Return whether a session has the id of a sub-agent."""
    return _SUB_AGENT_ID.search(id) is not None


def open_task_session(
    parent: Session,
    provider: Provider,
    tools: Sequence[Tool],
    *,
    approve: Approve | None = None,
    **settings: Any,
) -> OpenTask:
    """Return a function that opens sessions in the parent's store, with the same tools and approval; `settings` are
    those of `Session.open`. Without `approve`, calls that need approval are denied."""

    async def ask(call: Call, what: str, _: Toolbox) -> bool:
        return approve is not None and await approve(call, what)

    async def open_task(id: str, origin: str) -> TaskParts:
        summarise = summariser_for(provider)
        session = await Session.open(
            parent.store, id, model=provider.model, origin=origin, summarise=summarise, **settings
        )
        await session.append(Instructed(content=TASK_INSTRUCTIONS))
        return TaskParts(session=session, tools=tools, approve=ask)

    return open_task


class SubAgents:
    """The sub-agents of one agent."""

    def __init__(
        self,
        parent: Session,
        provider: Provider,
        open_task: OpenTask,
        *,
        offered: Sequence[str] | None = None,
        limits: TaskLimits = TaskLimits(),  # noqa: B008 - frozen
        used: TaskUsage = TaskUsage(),  # noqa: B008 - frozen
        depth: int = 0,
        asking: asyncio.Lock | None = None,
    ) -> None:
        """`offered` are the names of the parent's tools, None for all that `open_task` returns; `used` is what the
        parent's log has of earlier ones, `depth` is 0 for an agent that no other has started, and `asking` is held
        during a question."""
        self.used: TaskUsage = used
        """What all of them have taken so far."""
        self._parent = parent
        self._provider = provider
        self._open = open_task
        self._offered = None if offered is None else frozenset(offered)
        self._limits = limits
        self._depth = depth
        self._asking = asking or asyncio.Lock()
        self._slots = asyncio.Semaphore(MAX_PARALLEL_TASKS)

    def tool(self) -> Tool:
        """Return the tool `task`."""
        return Tool(
            name=TASK_TOOL,
            description=_DESCRIPTION,
            parameters={
                "type": "object",
                "properties": {
                    "prompt": {"type": "string", "minLength": 1, "maxLength": 100_000},
                    "tools": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Names of the tools that it gets, among yours; all if not given",
                    },
                    "name": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": MAX_TASK_NAME_CHARS,
                        "description": "A few words that name the task for the user",
                    },
                },
                "required": ["prompt"],
                "additionalProperties": False,
            },
            run=lambda given: self._run(given, lambda _: None),
            run_live=self._run,
            describe=lambda given: one_line(f"{TASK_TOOL} {_name_of(given)}: {given['prompt']}", width=200),
            timeout=_TIMEOUT_S,
            is_parallel=True,
        )

    async def _run(self, given: Arguments, on_output: OutputListener) -> ToolOutput:
        async with self._slots:
            id = f"{self._parent.id}-task-{os.urandom(3).hex()}"
            parts = await self._open(id, f"{self._parent.id}@{await self._calling_event()}")
            try:
                return await self._work(given, parts, on_output)
            except asyncio.CancelledError:  # an answer instead, so that the parent knows the log
                return error_output(f"[foveal: sub-agent “{_name_of(given)}”: no answer; session {id}]")
            except (FovealError, OSError) as problem:
                return error_output(
                    f"The sub-agent failed: {describe_error(problem)}. Its log is session {id}."
                )
            finally:
                await asyncio.shield(parts.session.close())

    async def _work(self, given: Arguments, parts: TaskParts, on_output: OutputListener) -> ToolOutput:
        session, name = parts.session, _name_of(given)
        chosen, may_start = self._chosen_tools(given, parts)
        below = self._below(parts, [tool.name for tool in chosen])
        toolbox = Toolbox([*chosen, below.tool()] if may_start else chosen)
        await session.rename(f"{TASK_TOOL}: {name}")
        agent = Agent(
            session,
            self._provider,
            toolbox,
            hooks=parts.hooks,
            approve=self._approver(name, parts, toolbox),
            guidance=parts.guidance,
            max_tool_iterations=self._limits.max_tool_iterations,
        )
        answer, problem = ModelAnswered(text="", calls=0, handle=""), ""
        try:
            async with aclosing(agent.run(given["prompt"])) as events:
                async for event in events:
                    if isinstance(event, ToolCalling):
                        on_output(f"{name}: {event.what}\n".encode())
                    elif isinstance(event, TurnFinished):
                        problem = event.problem
                    elif isinstance(event, ModelAnswered):
                        answer = event
                        problem = self._exceeded(await _usage_of(session, below)) if event.calls else ""
                        if problem:
                            agent.explain_interruption(problem)
                            break
        finally:
            await asyncio.shield(self._record(session, below))
        return _result(session, name, answer, problem, await _usage_of(session, below))

    async def _record(self, session: Session, below: SubAgents) -> None:
        """Record in the parent's log what a sub-agent has taken."""
        used = await _usage_of(session, below)
        self.used += used
        await self._parent.append(self.used.to_fact())

    def _chosen_tools(self, given: Arguments, parts: TaskParts) -> tuple[list[Tool], bool]:
        """Return the tools of a sub-agent: those that the call names, if its parent has them too; and whether it
        may start others. What it does not get, its own sub-agents do not get either."""
        tools = [tool for tool in parts.tools if self._offered is None or tool.name in self._offered]
        may_start = self._depth + 1 < MAX_TASK_DEPTH
        known = [*(tool.name for tool in tools), *([TASK_TOOL] if may_start else [])]
        wanted = given.get("tools", known)
        if unknown := [name for name in wanted if name not in known]:
            raise InvalidArguments(
                f"task was not run: a sub-agent cannot have {one_line(', '.join(unknown))}. "
                f"The tools are: {', '.join(known)}."
            )
        return [tool for tool in tools if tool.name in wanted], TASK_TOOL in wanted

    def _below(self, parts: TaskParts, offered: Sequence[str]) -> SubAgents:
        return SubAgents(
            parts.session,
            self._provider,
            self._open,
            offered=offered,
            limits=self._limits,
            depth=self._depth + 1,
            asking=self._asking,
        )

    def _approver(self, name: str, parts: TaskParts, toolbox: Toolbox) -> Approve:
        # Without a colon in it: what the question shows above itself follows the first one.
        async def approve(call: Call, what: str) -> bool:
            async with self._asking:
                return await parts.approve(call, f"sub-agent “{name.replace(':', ' ')}” {what}", toolbox)

        return approve

    def _exceeded(self, used: TaskUsage) -> str:
        """Return which limit a sub-agent has reached, "" if none."""
        limits = self._limits
        if limits.max_tokens is not None and used.tokens >= limits.max_tokens:
            return f"it has reached its limit of {limits.max_tokens:,} tokens"
        if limits.max_cost is not None and used.dollars >= limits.max_cost:
            return f"it has reached its limit of {dollars(limits.max_cost)}"
        return ""

    async def _calling_event(self) -> int:
        """Return the seq of the parent's answer that has the call: its newest one with calls."""
        await self._parent.usage()  # waits for a running append: until it is confirmed, the end is not known
        last = self._parent.last
        newest = await self._parent.events(first=max(0, last - _MAX_EVENTS_BEFORE_CALL), last=last)
        said = [
            event.seq
            for event in newest
            if isinstance(event.fact, ModelSaid) and calls_of(event.fact.content)
        ]
        return said[-1] if said else last


def _name_of(given: Arguments) -> str:
    return one_line(given.get("name") or given["prompt"], width=MAX_TASK_NAME_CHARS)


async def _usage_of(session: Session, below: SubAgents) -> TaskUsage:
    """Return what a sub-agent has taken, with those that it has started."""
    used, report = await session.usage(), await session.report(with_events=False)
    tokens = used.input + used.cache_read + used.cache_write + used.output
    return TaskUsage(tokens=tokens, dollars=0.0 if report.spent is None else report.spent) + below.used


def _result(session: Session, name: str, answer: ModelAnswered, problem: str, used: TaskUsage) -> ToolOutput:
    """Return the answer below a line that says what it took and where its log is."""
    text = answer.text.strip()
    if len(text) > MAX_TASK_RESULT_CHARS:
        half = MAX_TASK_RESULT_CHARS // 2
        left_out = f"[{len(text) - 2 * half:,} characters left out; {answer.handle} of that session has them]"
        text = f"{text[:half]}\n{left_out}\n{text[-half:]}"
    cost = f", {dollars(used.dollars)}" if used.dollars else ""
    ended = f" ended early, {problem};" if problem else ""
    head = f"[foveal: sub-agent “{name}”:{ended} {used.tokens:,} tokens{cost}; session {session.id}]"
    return ToolOutput(content=f"{head}\n{text}" if text else head, error=bool(problem))
