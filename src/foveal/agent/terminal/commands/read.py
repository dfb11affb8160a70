"""Slash commands that only read; each returns the rows to show."""

from __future__ import annotations

import time

from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.output.agent_event_rows import clip_size, duration, summary_cost
from foveal.agent.terminal.output.context_card import (
    TurnUsage,
    acts_text,
    context_card,
    thresholds_line,
    tokens_by_file,
    tokens_by_tool,
    turn_usages,
)
from foveal.agent.terminal.output.live_area import todo_row, usage_row
from foveal.agent.terminal.output.styled_text import Row, bold, dim, row, table_lines, text_rows
from foveal.agent.tools.todo import current_todo, todo_count
from foveal.core import wire
from foveal.core.compaction.health import CompactionHealth, read_metrics
from foveal.core.engine.event_status import EventStatus
from foveal.core.engine.report import turns_text
from foveal.core.log.events import Clipped, Compacted, CompactionFailed, Event, Instructed, kind, parse_handle
from foveal.core.models.cost import cost_text, dollars
from foveal.core.view.fold import effective_events
from foveal.core.wire.safe_print import counted, one_line
from foveal.errors import FovealError

MAX_EXPLAINED_EVENTS = 5
"""Events that `/why` explains."""
MAX_LISTED_SESSIONS = 20


async def context(state: ChatState, argument: str) -> list[Row]:
    report = await state.session.report(with_statements=True)
    return context_card(
        report,
        files=await tokens_by_file(state.session, report),
        tools=await tokens_by_tool(state.session, report),
        letters=not (state.ui.colours and state.ui.is_unicode),
        width=state.ui.width,
    )


async def tokens(state: ChatState, argument: str) -> list[Row]:
    report = await state.session.report()
    usages = turn_usages(await state.session.events(), state.provider.model)
    share = report.percent(report.used)
    used = f"{report.used:,} of {report.window:,} tokens, {share}"
    table = [("used", f"{used} ({report.accuracy}, the next request)")]
    if usages:
        table += [
            ("latest turn", _turn_text(usages[-1])),
            ("average turn", _turn_text(_average_turn(usages))),
        ]
    table.append(("turns", ", ".join(filter(None, (f"{report.turns:,} so far", turns_text(report))))))
    table.append(("threshold", thresholds_line(report)))
    table.append(("cost", cost_text(report.spent, report.unknown_calls, report.saved)))
    if (below := state.subagents.used).tokens:
        cost = f", {dollars(below.dollars)}" if below.dollars else ""
        table.append(("sub-agents", f"{counted(below.tokens, 'token')} more{cost}"))
    return [usage_row(report), *(row(f"  {line}") for line in table_lines(table))]


def _turn_text(turn: TurnUsage) -> str:
    cached = f" ({turn.cached / turn.input:.0%} cached)".replace("%", " %") if turn.input else ""
    cost = f", {dollars(turn.cost)}" if turn.cost else ""
    calls = counted(turn.calls, "call")
    return f"{calls}, in {turn.input:,}{cached}, out {turn.output:,}, context {turn.grown:+,}{cost}"


def _average_turn(usages: list[TurnUsage]) -> TurnUsage:
    count = len(usages)
    costs = [turn.cost for turn in usages if turn.cost is not None]
    return TurnUsage(
        calls=round(sum(turn.calls for turn in usages) / count),
        input=sum(turn.input for turn in usages) // count,
        cached=sum(turn.cached for turn in usages) // count,
        output=sum(turn.output for turn in usages) // count,
        cost=sum(costs) / count if len(costs) == count else None,
        grown=usages[-1].size // count,
    )


async def compaction_status(state: ChatState, argument: str) -> list[Row]:
    report = await state.session.report()
    log = await state.session.events()
    policy = state.config.session_settings(state.provider.model)["policy"]
    health = CompactionHealth()
    for event in log:
        health = health.after(event.fact)
    now = "a summary is being written" if state.writers.is_busy else "no summary is being written"
    table = [
        ("policy", f"{policy.name}, mode {policy.mode}"),
        ("now", now),
        (
            "acts at",
            f"{acts_text(report, policy)}; {report.percent(report.used)} ({report.used:,}) are used",
        ),
        ("writers", ", ".join(writer.name for writer in state.writers.summarisers()) + ", then the ledger"),
    ]
    if health.is_broken:
        table.append(
            ("paused", f"no model is called after {health.failures} failures in a row; /compact tries again")
        )
    if health.is_paused:
        table.append(("paused", "until your next message: the window filled up repeatedly within this turn"))
    lines = [text for event in effective_events(log) if (text := _compaction_text(event))]
    return [
        *(row(f"  {line}") for line in table_lines(table)),
        row(),
        *([row(bold("summaries"))] if lines else [row(dim("no summaries yet"))]),
        *(row(f"  {line}") for line in lines),
    ]


def _compaction_text(event: Event) -> str:
    fact = event.fact
    if not isinstance(fact, Compacted | CompactionFailed):
        return ""
    metrics = read_metrics(fact)
    span = f"{event.handle}: e{fact.first}–e{fact.last}"
    if isinstance(fact, CompactionFailed):
        return f"{span} failed: {one_line(fact.problem, width=200)}{summary_cost(metrics)}"
    score = (
        f", {metrics.score:.0%} of the rare names kept".replace("%", " %")
        if metrics.score is not None
        else ""
    )
    cost = f", {dollars(metrics.cost)}" if metrics.cost else ""
    seconds = f", {text}" if (text := duration(metrics.seconds)) else ""
    by = f", by {fact.by}" if fact.by else ""
    return f"{span}, {metrics.before:,} → {metrics.after:,} tokens{by} ({fact.reason}){score}{cost}{seconds}"


# ── Why ──────────────────────────────────────────────────────────────────────────────────────────────────


async def why(state: ChatState, argument: str) -> list[Row]:
    """Say where a text was in the last request, and for each event that has it, its level and rule."""
    if not argument:
        raise FovealError("/why needs a text or a handle such as e12, to look for in the last request")
    places = state.provider.find_text(argument)
    if state.provider.last_request is None:
        rows = [row("nothing has been sent since this session was opened; its events now:")]
    elif places:
        rows = [row(bold("in the last request: "), ", ".join(places[:MAX_EXPLAINED_EVENTS]))]
    else:
        rows = [row(bold("not in the last request"))]
    found = await _find_events(state, argument)
    rows += [text for event in found[:MAX_EXPLAINED_EVENTS] for text in await _status_rows(state, event)]
    if len(found) > MAX_EXPLAINED_EVENTS:
        more = len(found) - MAX_EXPLAINED_EVENTS
        rows.append(row(dim(f"  … and {counted(more, 'more event')} contain{'s' * (more == 1)} it")))
    return rows if found else [*rows, row(dim("  no event of this session contains it"))]


async def _find_events(state: ChatState, argument: str) -> list[Event]:
    """Return the events that contain a text, newest first; for a handle, its event."""
    wanted, events = argument.casefold(), await state.session.events()
    named = [event for event in events if event.handle == argument]
    return named or [
        event
        for event in reversed(events)
        if wanted in wire.original_text(event.fact).casefold() and _is_message(event)
    ]


def _is_message(event: Event) -> bool:
    return kind(event.fact) in (
        "user_said", "model_said", "tool_returned", "instructed", "pinned", "compacted",
    )  # fmt: skip


async def _status_rows(state: ChatState, event: Event) -> list[Row]:
    line = await state.session.why(event.seq)
    level = {"-": "not sent", "full": "shown in full"}.get(line.level, line.level)
    by = f" by {line.by}" if line.by else ""
    rule = f", rule: {line.rule}" if line.rule else ""
    size = await _size_text(state, line)
    if line.priority:
        rule = ", ".join(filter(None, (rule, f"{line.priority} priority")))
    if line.replaced_by:
        rule = f"{rule}, replaced by {line.replaced_by} (on request, since {line.replaced_since})"
    back = "" if line.level in ("full", "-") else f" · /expand {event.handle}"
    return [row(f"  {event.handle} {line.kind}: {level}{by}{rule}{size}{back}")]


async def _size_text(state: ChatState, line: EventStatus) -> str:
    """Return the size of an event in the next request. A clipped one has the size that the notice about the clip
    gave: other sizes follow what the provider reports, so they would differ from it."""
    seq = parse_handle(line.by)
    by = await state.session.pick([seq]) if seq is not None else []
    if by and isinstance(by[0].fact, Clipped):
        return f", {clip_size(by[0].fact)}"
    return f", {counted(line.tokens, 'token')} now" if line.tokens else ""


# ── Files and sessions ───────────────────────────────────────────────────────────────────────────────────


async def instructions(state: ChatState, argument: str) -> list[Row]:
    """List the instructions in force by file; with a part of a path, print the text."""
    report = await state.session.report()
    parts = await tokens_by_file(state.session, report)
    if argument:
        return await _instruction_text(state, argument)
    files = await state.read_instruction_files()
    total = report.totals.get("instructions", 0)
    rows = [
        row(bold(f"instructions, {counted(total, 'token')}" if parts else "no instructions are in force"))
    ]
    table = [(part.name, f"{part.tokens:,}") for part in parts]
    rows += [row(f"  {line}") for line in table_lines(table, right=(1,))]
    known = {part.name for part in parts}
    pending = [file.path for file in files.shown if file.path not in known]
    rows += [row(f"  {path} is read with your next message") for path in pending]
    if not (parts or pending or files.notes):
        rows.append(row(dim(f"  there is no AGENTS.md for {files.root}")))
    return [*rows, *(row(dim(f"  {text}")) for text in files.notes)]


async def _instruction_text(state: ChatState, argument: str) -> list[Row]:
    events = effective_events(await state.session.events())
    for event in reversed(events):
        fact = event.fact
        if isinstance(fact, Instructed) and argument in fact.source:
            return [row(bold(fact.source), dim(f"  {event.handle}")), *text_rows(wire.original_text(fact))]
    raise FovealError(f"no instructions in force have {argument!r} in their path; /instructions lists them")


async def todo(state: ChatState, argument: str) -> list[Row]:
    items = await current_todo(state.session)
    if not items:
        return [row("the model keeps no to-do list in this conversation")]
    return [
        row(bold(f"to-do, {todo_count(items)}")),
        *(todo_row(item, width=state.ui.width) for item in items),
    ]


async def sessions(state: ChatState, argument: str) -> list[Row]:
    listed = await state.store.sessions(limit=MAX_LISTED_SESSIONS + 1, with_erased=False)
    table = [
        (
            "→" if info.id == state.session.id else " ",
            info.id,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(info.active)) if info.active else "-",
            counted(info.events, "event"),
            one_line(info.title, width=40),
        )
        for info in listed[:MAX_LISTED_SESSIONS]
    ]
    more = [row(dim("  … and older ones: `foveal sessions`"))] if len(listed) > MAX_LISTED_SESSIONS else []
    return [*(row(line) for line in table_lines(table, right=(3,))), *more]
