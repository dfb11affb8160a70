"""Commands that look: each prints what it is asked for and changes nothing."""

from __future__ import annotations

import time

from foveal.apps.cli.chat.chat_state import ChatState
from foveal.apps.cli.chat.output import context_card as figures
from foveal.apps.cli.chat.output.context_card import TurnUsage, context_card, usage
from foveal.apps.cli.chat.output.event_text_rows import took
from foveal.apps.cli.chat.output.live_area import dollars, turns
from foveal.apps.cli.chat.output.styled_text import Row, bold, columns, dim, row, text_rows
from foveal.core import wire
from foveal.core.compaction.health import CompactionHealth, measures
from foveal.core.log.events import Compacted, CompactionFailed, Event, Instructed, kind
from foveal.core.view.fold import effective
from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError

FOUND = 5
"""Places that are explained."""


async def context(desk: ChatState, argument: str) -> list[Row]:
    report = await desk.session.report()
    return context_card(
        report,
        files=await figures.by_file(desk.session, report),
        tools=await figures.by_tool(desk.session, report, desk.box.offered),
        colours=desk.front.colours,
        width=desk.front.width,
    )


async def tokens(desk: ChatState, argument: str) -> list[Row]:
    report = await desk.session.report()
    made = figures.turn_usages(await desk.session.events(), desk.provider.model)
    how = "measured" if report.measured else "estimated"
    table = [("used", f"{report.used:,} of {report.window:,} tokens ({how}, the next request)")]
    table += [("latest turn", _turn(made[-1])), ("average turn", _turn(_average(made)))] if made else []
    left = "not known before the first turn" if report.turns_left is None else turns(report.turns_left)
    table.append(("turns", f"{report.turns:,} so far, {left}"))
    table.append(
        ("threshold", f"acts at {report.act:,} tokens, warns at {report.warn:,}, at most {report.limit:,}")
    )
    spent = "not known: this model has no price" if report.spent is None else dollars(report.spent)
    saved = f", saved {dollars(report.saved)} against sending everything" if report.saved else ""
    table.append(("cost", f"{spent} in this session{saved}"))
    return [usage(report), *(row(f"  {line}") for line in columns(table))]


def _turn(turn: TurnUsage) -> str:
    cached = f" ({turn.cached / turn.input:.0%} cached)".replace("%", " %") if turn.input else ""
    cost = f", {dollars(turn.cost)}" if turn.cost else ""
    calls = f"{turn.calls:,} call{'s' * (turn.calls != 1)}"
    return f"{calls}, in {turn.input:,}{cached}, out {turn.output:,}, context {turn.grown:+,}{cost}"


def _average(made: list[TurnUsage]) -> TurnUsage:
    count = len(made)
    costs = [turn.cost for turn in made if turn.cost is not None]
    return TurnUsage(
        calls=round(sum(turn.calls for turn in made) / count),
        input=sum(turn.input for turn in made) // count,
        cached=sum(turn.cached for turn in made) // count,
        output=sum(turn.output for turn in made) // count,
        cost=sum(costs) / count if len(costs) == count else None,
        grown=made[-1].size // count,
    )


async def compaction_status(desk: ChatState, argument: str) -> list[Row]:
    report = await desk.session.report()
    log = await desk.session.events()
    settings = desk.choice.settings(desk.provider.model)["policy"]
    record = CompactionHealth()
    for event in log:
        record = record.after(event.fact)
    now = "a summary is being written" if desk.writing.busy else "nothing is being written"
    table = [
        ("policy", f"{settings.name}, mode {settings.mode}"),
        ("now", now),
        ("acts at", f"{report.act:,} tokens; {report.used:,} are used"),
        ("writers", ", ".join(writer.name for writer in desk.writing.summarisers()) + ", then the ledger"),
    ]
    if record.broken:
        table.append(
            ("paused", f"no model is asked after {record.failures} failures in a row; /compact tries again")
        )
    if record.paused:
        table.append(("paused", "until you speak: the window filled up again and again within this turn"))
    lines = [text for event in effective(log) if (text := _summary(event))]
    return [
        *(row(f"  {line}") for line in columns(table)),
        row(),
        *([row(bold("summaries"))] if lines else [row(dim("no summaries yet"))]),
        *(row(f"  {line}") for line in lines),
    ]


def _summary(event: Event) -> str:
    fact = event.fact
    if not isinstance(fact, Compacted | CompactionFailed):
        return ""
    made = measures(fact)
    span = f"{event.handle}: e{fact.first}–e{fact.last}"
    if isinstance(fact, CompactionFailed):
        return f"{span} came to nothing: {one_line(fact.problem, width=200)}"
    score = f", {made.score:.0%} of the rare names kept".replace("%", " %") if made.score is not None else ""
    cost = f", {dollars(made.cost)}" if made.cost else ""
    seconds = f", {time_taken}" if (time_taken := took(made.seconds)) else ""
    by = f", by {fact.by}" if fact.by else ""
    return f"{span}, {made.before:,} → {made.after:,} tokens{by} ({fact.reason}){score}{cost}{seconds}"


# ── why ──────────────────────────────────────────────────────────────────────────────────────────────────


async def why(desk: ChatState, argument: str) -> list[Row]:
    """Was this text in the last request? Where, at which level, and which rule hid it?"""
    if not argument:
        raise FovealError(
            "/why needs some words, or a handle such as e12: what should have been in the request?"
        )
    places = desk.provider.places(argument)
    if desk.provider.last is None:
        rows = [row("nothing has been sent since this session was opened; this is how it stands now:")]
    elif places:
        rows = [row(bold("in the last request: "), ", ".join(places[:FOUND]))]
    else:
        rows = [row(bold("not in the last request"))]
    found = await _having(desk, argument)
    rows += [text for event in found[:FOUND] for text in await _standing(desk, event)]
    if len(found) > FOUND:
        rows.append(row(dim(f"  … and {len(found) - FOUND:,} events more have it")))
    return rows if found else [*rows, row(dim("  no event of this session has it"))]


async def _having(desk: ChatState, argument: str) -> list[Event]:
    """The newest events first whose text has these words; a handle means its own event."""
    wanted, events = argument.casefold(), await desk.session.events()
    named = [event for event in events if event.handle == argument]
    return named or [
        event for event in reversed(events) if wanted in wire.original(event.fact).casefold() and _said(event)
    ]


def _said(event: Event) -> bool:
    return kind(event.fact) in (
        "user_said", "model_said", "tool_returned", "instructed", "pinned", "compacted",
    )  # fmt: skip


async def _standing(desk: ChatState, event: Event) -> list[Row]:
    line = await desk.session.why(event.seq)
    level = {"-": "not sent", "full": "shown as it was said"}.get(line.level, line.level)
    by = f" by {line.by}" if line.by else ""
    rule = f", rule: {line.rule}" if line.rule else ""
    size = f", {line.tokens:,} tokens now" if line.tokens else ""
    back = "" if line.level in ("full", "-") else f" · /expand {event.handle}"
    return [row(f"  {event.handle} {line.kind}: {level}{by}{rule}{size}{back}")]


# ── files and sessions ───────────────────────────────────────────────────────────────────────────────────


async def instructions(desk: ChatState, argument: str) -> list[Row]:
    """The instructions in force, file by file; with a path or a part of it, the text."""
    report = await desk.session.report()
    parts = await figures.by_file(desk.session, report)
    if argument:
        return await _instruction(desk, argument)
    rows = [row(bold(f"instructions, {report.totals.get('instructions', 0):,} tokens"))]
    table = [(part.name, f"{part.tokens:,}") for part in parts]
    rows += [row(f"  {line}") for line in columns(table, right=(1,))] if table else []
    if not table:
        rows = [
            row(
                f"no instructions are in force; AGENTS.md in {desk.files.root} would be read with your next message"
            )
        ]
    return [*rows, *(row(dim(f"  {text}")) for text in desk.files.notes)]


async def _instruction(desk: ChatState, argument: str) -> list[Row]:
    events = effective(await desk.session.events())
    for event in reversed(events):
        fact = event.fact
        if isinstance(fact, Instructed) and argument in fact.source:
            return [row(bold(fact.source), dim(f"  {event.handle}")), *text_rows(wire.original(fact))]
    raise FovealError(f"no instructions in force have {argument!r} in their path; /instructions lists them")


async def sessions(desk: ChatState, argument: str) -> list[Row]:
    listed = [info for info in await desk.store.sessions() if not info.erased]
    table = [
        (
            "→" if info.id == desk.session.id else " ",
            info.id,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(info.active)) if info.active else "-",
            f"{info.events:,} events",
            one_line(info.title, width=40),
        )
        for info in listed[:20]
    ]
    more = (
        [row(dim(f"  … and {len(listed) - 20:,} older ones: `foveal sessions`"))] if len(listed) > 20 else []
    )
    return [*(row(line) for line in columns(table, right=(3,))), *more]
