"""What fills the window and why, as data; `text` draws it for a terminal.

1. The parts add up: the totals of all categories, with reserve, margin and free, are the window.
2. What triggers and what is shown are the same number.
3. Each number says whether it was measured (calibrated by what the provider reported) or estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from foveal.core.compaction.health import CompactionMeasures, measures
from foveal.core.engine.engine import Engine
from foveal.core.log.events import (
    AnyFact,
    Compacted,
    Event,
    Instructed,
    ModelSaid,
    Pinned,
    ToolReturned,
    UserSaid,
    handle,
    kind,
    text_of,
)
from foveal.core.models.budget import Budget
from foveal.core.tokens.message_tokens import PER_MESSAGE
from foveal.core.view.fold import effective
from foveal.core.view.steps import NO_RESULT, Level, Shown, Step
from foveal.core.view.view import View
from foveal.core.wire.safe_print import one_line

CATEGORIES: Final = (
    "system",
    "instructions",
    "tools",
    "pinned",
    "summaries",
    "user",
    "assistant",
    "results",
    "placeholders",
    "overhead",
    "reserve",
    "margin",
    "free",
)
RECENT_TURNS: Final = 5
"""How many turns the estimate of turns left looks back on."""


class EventStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of the log, as the next request will or will not show it."""

    handle: str
    kind: str
    level: Level | str
    """A level of detail, or "-" for what is never sent."""
    tokens: int = 0
    rule: str = ""
    """Which rule put it there; "" for what is shown as it was said."""
    by: str = ""
    """The event that says so."""


class Break(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request whose beginning differed from the request before, so that the provider had to read again."""

    call: int
    """Which request, counted from 1."""
    at: str
    """The first event that was shown differently; "" when it was what stands in front of all messages."""
    tokens: int
    """How many tokens lay behind that place."""
    cause: str = ""
    """The event that moved the prefix."""
    why: str = ""


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """Something that no provider would have accepted, and what was done about it."""

    handle: str
    problem: str
    done: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """How one summary came about, and what it did."""

    handle: str
    first: str
    last: str
    """The range it stands for, by handles."""
    by: str
    reason: str
    measures: CompactionMeasures


class Report(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    window: int
    window_source: str
    counted_by: str
    """Which counter, and the ratio that was learned."""
    measured: bool
    totals: dict[str, int]
    used: int
    """Tokens of the next request."""
    limit: int
    """Tokens that it may have at the most."""
    warn: int
    act: int
    state: str
    """`ok`, `warn`, `act` or `over`."""
    policy: str
    calls: int
    cached_share: float | None
    """The part of the last reported prompt that came from the cache."""
    turns: int
    turns_left: int | None
    spent: float | None
    """Dollars, by the model's prices."""
    saved: float | None
    """Dollars against sending everything each time, with an ideal cache."""
    question: str
    """What to ask the user when nothing is summarised without consent; "" when there is nothing to ask."""
    summaries: tuple[Summary, ...]
    """Those in view, oldest first."""
    breaks: tuple[Break, ...]
    repairs: tuple[Repair, ...]
    events: tuple[EventStatus, ...]

    def json(self) -> str:
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        return text(self)


def report(engine: Engine, *, calls: int, breaks: Sequence[Break]) -> Report:
    budget = engine.budget()
    calibration = engine.calibration
    view = engine.view
    shared = _totals(engine, budget)
    accounts = engine.accounts
    limit = engine.available(budget)
    state = "over" if view.units > budget.hard else "act" if view.units > budget.act else "ok"
    if state == "ok" and view.units > budget.warn:
        state = "warn"
    return Report(
        model=engine.model.name,
        window=budget.window,
        window_source=engine.model.sources.get("window", ""),
        counted_by=f"{view.meter.counter.name} × {calibration.ratio:.3f}",
        measured=calibration.measured,
        totals=shared,
        used=calibration.tokens(engine.total_units),
        limit=limit,
        warn=min(limit, calibration.tokens(budget.warn + budget.fixed)),
        act=min(limit, calibration.tokens(budget.act + budget.fixed)),
        state=state,
        policy=engine.policy.name,
        calls=calls,
        cached_share=accounts.cached_share,
        turns=view.turns,
        turns_left=_turns_left(view, budget),
        spent=accounts.spent,
        saved=accounts.saved,
        question=_question(engine, state),
        summaries=tuple(_summaries(engine)),
        breaks=tuple(breaks),
        repairs=tuple(_repairs(view)),
        events=tuple(_lines(engine)),
    )


def _question(engine: Engine, state: str) -> str:
    if engine.policy.mode != "confirm" or state not in ("act", "over"):
        return ""
    used, limit = engine.calibration.tokens(engine.total_units), engine.available(engine.budget())
    share = used / max(1, limit) * 100
    return f"Context usage at {share:.0f} % ({used:,}/{limit:,} tokens). Compact conversation? [y/N]"


def _summaries(engine: Engine) -> Iterable[Summary]:
    shown = {step.said.seq for step in engine.view.summaries}
    for event in engine.log:
        fact = event.fact
        if event.seq in shown and isinstance(fact, Compacted):
            yield Summary(
                handle=event.handle,
                first=handle(fact.first),
                last=handle(fact.last),
                by=fact.by,
                reason=fact.reason,
                measures=measures(fact),
            )


# ── totals ───────────────────────────────────────────────────────────────────────────────────────────────


def _totals(engine: Engine, budget: Budget) -> dict[str, int]:
    """Tokens by category. Units become tokens by the learned ratio; what the provider counts beyond them
    (templates, hidden prompts) is `overhead`, and rounding goes to the largest part."""
    units = dict.fromkeys(CATEGORIES, 0)
    for category, amount in _parts(engine.view):
        units[category] += amount
    total = engine.calibration.tokens(engine.total_units)
    counted = sum(units.values())
    ratio = min(engine.calibration.ratio, total / counted) if counted else 0.0
    tokens = {name: int(amount * ratio) for name, amount in units.items()}
    rest = total - sum(tokens.values())
    if engine.calibration.measured and rest > len(CATEGORIES):
        tokens["overhead"] = rest
    elif counted:
        tokens[max(tokens, key=tokens.__getitem__)] += rest
    limit = engine.available(budget)
    tokens["reserve"] = budget.reserve
    rest = budget.window - budget.reserve - total  # below 0 when the request is too large
    tokens["margin"] = max(0, rest - max(0, limit - total))
    tokens["free"] = rest - tokens["margin"]
    return tokens


def _parts(view: View) -> Iterable[tuple[str, int]]:
    meter = view.meter
    for shown in view.asides.values():
        yield _instruction_category(shown.fact), shown.units(meter)
    yield "tools", view.tool_units
    for step in view.steps:
        yield _category(step), step.said.units(meter)
        for slot in step.slots:
            if slot.result is None:
                yield "placeholders", PER_MESSAGE + meter.text(-1, -1, -1, NO_RESULT)
            else:
                yield "placeholders" if slot.result.masked else "results", slot.result.units(meter)


def _category(step: Step) -> str:
    match step.kind:
        case "instructed":
            return _instruction_category(step.said.fact)
        case "model":
            return "assistant"
        case "summary":
            return "summaries"
        case "notice":
            return "placeholders"
        case "user" | "pinned":
            return step.kind


def _instruction_category(fact: AnyFact) -> str:
    return "instructions" if isinstance(fact, Instructed) and fact.source else "system"


def _turns_left(view: View, budget: Budget) -> int | None:
    """How many more turns fit before something must be reduced, if they are like the latest ones."""
    turns: list[int] = []
    for step in reversed(view.steps):
        if step.kind in ("user", "model"):
            if not turns:
                turns.append(0)
            turns[-1] += view.units_of(step)
            if step.kind == "user":
                if len(turns) == RECENT_TURNS:
                    break
                turns.append(0)
    sizes = [size for size in turns if size]
    if not sizes:
        return None
    return max(0, budget.act - view.units) * len(sizes) // sum(sizes)


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────


def _repairs(view: View) -> Iterable[Repair]:
    for seq in view.orphans:
        problem = "a result that no call waits for"
        yield Repair(handle=handle(seq), problem=problem, done="kept out of the request")
    for step in view.steps:
        for slot in step.slots:
            if slot.result is None:
                problem = one_line(f"call {slot.call.id} ({slot.call.name}) has no result", width=120)
                yield Repair(handle=handle(step.seq), problem=problem, done="a synthetic result is shown")


def _lines(engine: Engine) -> Iterable[EventStatus]:
    counting = {event.seq for event in effective(engine.log)}
    for event in engine.log:
        yield event_status(engine, event, counts=event.seq in counting)


def event_status(engine: Engine, event: Event, *, counts: bool) -> EventStatus:
    """How one event stands now."""
    view, fact = engine.view, event.fact
    sent = isinstance(fact, UserSaid | ModelSaid | ToolReturned | Instructed | Pinned | Compacted)
    if not sent or (isinstance(fact, Pinned) and not fact.text):
        return EventStatus(handle=event.handle, kind=kind(fact), level="-")
    if not counts:
        return EventStatus(handle=event.handle, kind=kind(fact), level="-", rule="rewound or reverted")
    found = view.find(event.seq)
    shown = found[1] if found is not None else _aside(view, event.seq)
    if shown is not None:
        tokens = round(shown.units(view.meter) * engine.calibration.ratio)
        by = next((handle(o.owner) for o in shown.overlays.values()), "") if shown.overlays else ""
        rule = shown.rule
        if found is not None and (brought := _expanded(view, found[0])):
            by, rule = brought, "expanded until the user speaks"
        return EventStatus(
            handle=event.handle, kind=kind(fact), level=shown.level, tokens=tokens, rule=rule, by=by
        )
    return _hidden(view, event)


def _expanded(view: View, step: Step) -> str:
    """The event that brought a step back for this turn, by its handle."""
    return next((event.handle for event in view.expanded if event.seq == step.pin), "")


def _aside(view: View, seq: int) -> Shown | None:
    return next((shown for shown in view.asides.values() if shown.seq == seq), None)


def _hidden(view: View, event: Event) -> EventStatus:
    if event.seq in view.orphans:
        rule = "repair: a result that no call waits for"
        return EventStatus(handle=event.handle, kind=kind(event.fact), level="dropped", rule=rule)
    cover = view.cover_of(event.seq)
    if cover is None and isinstance(event.fact, ToolReturned):
        rule = "its call is not shown"
        return EventStatus(handle=event.handle, kind=kind(event.fact), level="dropped", rule=rule)
    if isinstance(event.fact, Compacted):
        rule = "what it stood for is shown again" if view.expanded else "a newer summary stands in its place"
        return EventStatus(handle=event.handle, kind=kind(event.fact), level="-", rule=rule)
    if cover is None:
        return EventStatus(
            handle=event.handle, kind=kind(event.fact), level="-", rule="replaced by a newer one"
        )
    return EventStatus(
        handle=event.handle, kind=kind(event.fact), level=cover.level, rule=cover.rule, by=handle(cover.owner)
    )


# ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────


def text(report: Report) -> str:
    """The usage card."""
    return "\n".join([usage_line(report), *_card(report)])


def usage_line(report: Report) -> str:
    """One line: how full it is, how much of the last prompt was cached, what is left, what it cost."""
    share = report.used / report.window if report.window else 1.0
    filled = min(20, round(share * 20))
    parts = [
        f"ctx {report.used:,}/{report.window:,} {share * 100:.1f} % ▕{'█' * filled}{'·' * (20 - filled)}▏"
    ]
    if report.cached_share is not None:
        parts.append(f"cache {report.cached_share * 100:.0f} %")
    if report.turns_left is not None:
        parts.append(_turns(report.turns_left))
    if report.spent is not None and report.spent > 0:
        parts.append(f"${report.spent:.4f}")
    return " · ".join(parts)


def _turns(left: int) -> str:
    if left == 0:
        return "next cut within a turn"
    return f"~{left:,} turn{'s' if left != 1 else ''} left"


def _card(report: Report) -> Iterable[str]:
    how = "measured" if report.measured else "estimated"
    yield f"  {report.model} (window: {report.window_source}) · policy {report.policy}"
    yield f"  counted with {report.counted_by} ({how})"
    for name, tokens in report.totals.items():
        if tokens:
            yield f"  {name:<13}{tokens:>11,}  {tokens / max(1, report.window) * 100:>6.1f} %"
    marks = f"warn {report.warn:,} · act {report.act:,} · limit {report.limit:,}"
    yield f"  {'window':<13}{report.window:>11,}  {marks}"
    levels: dict[str, int] = {}
    for event in report.events:
        if event.level not in ("-", "full"):
            levels[event.level] = levels.get(event.level, 0) + 1
    if levels:
        yield "  " + ", ".join(f"{count:,} {level}" for level, count in levels.items())
    for made in report.summaries:
        sizes = f"{made.measures.before:,} → {made.measures.after:,} tokens" if made.measures.before else ""
        told = ", ".join(
            filter(None, (sizes, f"by {made.by}" if made.by else "", f"set off by {made.reason}"))
        )
        yield f"  summary {made.handle} of {made.first}–{made.last}: {one_line(told, width=100)}"
    if report.breaks:
        last = report.breaks[-1]
        many = "s" if len(report.breaks) != 1 else ""
        count = f"{len(report.breaks)} prefix break{many} in {report.calls} calls"
        yield f"  {count}, the last by {last.cause}: {last.why}"
    if report.saved is not None and report.saved:
        yield f"  spent ${report.spent or 0:.4f}, saved ${report.saved:.4f} against sending everything"
    for repair in report.repairs:
        yield f"  repaired {repair.handle}: {repair.problem}; {repair.done}"


def preview(fact: AnyFact, *, characters: int = 60) -> str:
    """The beginning of what was said, on one line."""
    content = getattr(fact, "content", None)
    words = " ".join(text_of(content).split()) if content is not None else ""
    return words if len(words) <= characters else words[: characters - 1] + "…"
