"""The report: what fills the window and why, as data and as text.

1. The parts add up: the totals of all categories, with reserve, margin and free, are the window.
2. The number that triggers a reduction is the number that is shown. Every percentage is of the window, also those
   of thresholds.
3. The report says whether its numbers are measured (calibrated by what the provider reported) or estimated.
4. The question and the notices of mode `confirm` name methods in backquotes, such as `compact()`; an application
   replaces them by its commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from foveal.core.compaction.health import CompactionMetrics, read_metrics
from foveal.core.compaction.plan import NoPlan
from foveal.core.engine.engine import Engine
from foveal.core.engine.event_status import EventStatus, RequestPart, event_statuses, request_parts
from foveal.core.engine.prefix import PrefixBreak
from foveal.core.engine.unreadable_summaries import unreadable_text
from foveal.core.engine.user_statements import UserStatement, statement_lines, unseen_warning
from foveal.core.log.events import (
    Compacted,
    Used,
    handle,
    unraw,
)
from foveal.core.models.budget import Budget, apportion, window_percent, window_share
from foveal.core.models.cost import cost_text
from foveal.core.models.spending import BudgetStatus
from foveal.core.policies import Policy
from foveal.core.policies.ladder.cut import has_enough_turns, turns_since_summary
from foveal.core.view.request import ReducedCounts
from foveal.core.view.view import View
from foveal.core.wire.common import json_text
from foveal.core.wire.safe_print import counted, one_line
from foveal.core.wire.tool_schemas import each_tool, neutral_form

PART_NAMES: Final = {
    "system": "system texts",
    "instructions": "instructions",
    "tools": "tools",
    "pinned": "pinned messages",
    "summaries": "summaries",
    "user": "your messages",
    "assistant": "answers",
    "results": "tool results",
    "placeholders": "placeholders",
    "overhead": "texts that the provider adds",
}
"""What the categories of the report are called in a sentence; without those that no request contains."""


def compaction_question(engine: Engine, state: str) -> str:
    """Return the question whether to compact; "" when there is nothing to ask."""
    if not engine.policy.asks:
        return ""
    if state not in ("act", "over"):
        turns = turns_since_summary(engine.view) if has_enough_turns(engine.view, engine.policy) else 0
        are = f"{counted(turns, 'turn')} {'is' if turns == 1 else 'are'}"
        return f"{are} not summarised yet. Compact conversation? [y/N]" if turns else ""
    used, window = engine.calibration.tokens(engine.total_units), engine.model.window
    usage = f"{window_percent(used, window)} of the window ({used:,}/{window:,} tokens)"
    return f"Context usage at {usage}. Compact conversation? [y/N]"


def limit_notice(engine: Engine, totals: Mapping[str, int], needed: int, *, left: int, seen: int) -> str:
    """Return what to tell the user if the next turn of about `needed` tokens, as `seen` turns took, will probably
    not fit; else ""."""
    if needed <= left:
        return ""
    if isinstance(engine.plan_summary(reason="hand"), NoPlan):
        advice = f"No turn is left to summarise, only long texts can be clipped: {largest_part(totals)}."
    else:
        advice = "`compact()` with your words decides what is kept."
    turn = "The next turn" if seen > 1 else "Another turn like this one"
    return (
        f"{turn} needs about {needed:,} tokens and {max(0, left):,} are left: what does not fit is reduced then, "
        f"also without a yes. {advice}"
    )


def over_limit_notice(needed: int, available: int) -> str:
    """Return what to tell the user right before a reduction without consent. The reductions are listed after it,
    each with its handle."""
    return (
        f"The next request needs {needed:,} tokens and at most {available:,} fit: older turns are reduced now. "
        "You are told what was reduced, and how to undo it."
    )


def largest_part(totals: Mapping[str, int]) -> str:
    """Return what takes most of the request, such as "answers take the most (3,450 tokens)"."""
    category = max(PART_NAMES, key=lambda name: totals.get(name, 0))
    return f"{PART_NAMES[category]} take the most ({totals.get(category, 0):,} tokens)"


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
MAX_CARD_STATEMENTS: Final = 5
"""Statements of the user that the printed report lists."""
MAX_CARD_PRIORITIES: Final = 5
"""Messages of each priority that the printed report names."""
MAX_ESTIMATED_SHARE: Final = 0.25
"""Share of the next request that may be new since the newest report when its size counts as measured."""


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a provider would not have accepted, and how it was repaired.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        ctx.fit([{"role": "user", "content": "Why is CI red?"}])
        assert ctx.report().repairs == ()
        ```
    """

    handle: str
    """The event that was repaired."""
    problem: str
    """What was wrong."""
    done: str
    """What the request shows instead."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One shown summary: its range, its author and its trigger.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        for part in range(4):
            ctx.append({"role": "user", "content": f"Look at part {part}."})
            ctx.append({"role": "assistant", "content": f"Part {part} has a bound that is wrong. " * 60})
        ctx.compact()
        (summary,) = ctx.report().summaries
        assert summary.by == "ledger"
        ```
    """

    handle: str
    """The event that records the summary."""
    first: str
    """The handle of the first event that it replaces."""
    last: str
    """The handle of the last event that it replaces."""
    by: str
    """The summariser, or `ledger`."""
    reason: str
    """What triggered it."""
    measures: CompactionMetrics
    """How the compaction went."""


class ToolSize(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model has or can load, and its size.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        tools = foveal.recall.tools("openai_chat")
        ctx.fit([{"role": "user", "content": "Why is CI red?"}], tools=tools)
        assert [tool.name for tool in ctx.report().tools] == ["recall_search", "recall_read"]
        ```
    """

    name: str
    """The name; the kind of a tool without one, which the provider runs."""
    tokens: int
    """Tokens of its schema. Those of the tools that are not deferred add up to `totals["tools"]`."""
    calls: int
    """How often the model has called it."""
    deferred: bool
    """Whether requests have no schema of it, because the model has not loaded it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the context before the next request.

    `print` shows it as a table.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        ctx.fit([{"role": "user", "content": "Why is CI red?"}])
        report = ctx.report()
        assert sum(report.totals.values()) == report.window
        ```
    """

    model: str
    """The name of the model."""
    window: int
    """Tokens of the model's window."""
    window_source: str
    """Where that number comes from, as in `Model.sources`."""
    counted_by: str
    """The counter, and the learned ratio of the provider's tokens to its own."""
    measured: bool
    """Whether the provider has reported a request of this conversation."""
    estimated: int
    """Tokens of the next request that were in no reported request."""
    totals: dict[str, int]
    """Tokens by category; they add up to the window."""
    used: int
    """Tokens of the next request."""
    limit: int
    """Most tokens that it may take."""
    warn: int
    """Tokens from which on `state` is `warn`."""
    act: int
    """Tokens from which on reductions are made."""
    state: str
    """`ok`, `warn`, `act` or `over`."""
    policy: str
    """The name of the policy."""
    mode: str
    """`auto`, `confirm` or `off`: whether the policy reduces by itself."""
    calls: int
    """Requests to the model that were answered, or whose usage was reported, also by earlier processes; without
    those for summaries."""
    fitted: int
    """Requests that this process has fitted; `breaks` are among them."""
    cached_share: float | None
    """The share of the last reported prompt that came from the cache."""
    dropped_thinking: int
    """Thinking blocks that the provider left out of the last request (`input_transformations` of Anthropic)."""
    cache_miss: str
    """The provider's reason why its cache did not hold the last prompt, with the tokens; "" if it gave none."""
    turns: int
    """Turns of the user in view."""
    turns_left: int | None
    """Estimated turns until something must be reduced, or until the user is asked in mode `confirm`; 0 if that
    is in the next turn. It is the first of these: the limit `act`, and the summary after `every_turns`. With the
    policy `off`, it is the limit. `economy` can cut earlier where the cut costs little, for example after a
    pause in which the cache is lost; clips and references of new results, and the masks of `rolling`, are not
    counted. None before the first answered turn, and while it is above 10 for each of the latest turns that are
    known, at most 5: a few turns say little about hundreds.
    """
    turn_tokens: int | None
    """Tokens that a typical turn adds: the median of the latest ones, also of those that were reduced since. None
    before the first answered turn."""
    spent: float | None
    """Dollars of the calls whose price is known; None if it is known of none."""
    unknown_calls: int
    """Calls that are not part of `spent`: no usage was reported, or the model has no price. Those for summaries
    count too."""
    saved: float | None
    """Estimate of the dollars saved compared with sending everything each time with an ideal cache, also if the
    provider reports no cached tokens; below 0 if this conversation cost more. 0 as long as nothing was left out,
    None if it is known of no call."""
    budgets: tuple[BudgetStatus, ...]
    """The spending limits and what is left of each, the one with the least left first."""
    question: str
    """The question to ask the user in mode `confirm`; "" when there is nothing to ask."""
    notice: str
    """What to tell the user with the question if the next turn will probably not fit, and so be reduced without a
    yes; "" otherwise."""
    warnings: tuple[str, ...]
    """What the user may want to know: a summary that the model cannot read, and what is shown instead; a cut that
    nothing forced, with what it saves and how to undo it; statements of the user that are shown nowhere."""
    tools: tuple[ToolSize, ...]
    """The tools that the model has or can load, in the order of the request."""
    summaries: tuple[Summary, ...]
    """The shown summaries, oldest first."""
    reduced: ReducedCounts
    """How many messages are not shown as they were said, by level."""
    statements: tuple[UserStatement, ...]
    """What the user said that still holds, oldest first, and where it is shown; in a session only if asked for."""
    breaks: tuple[PrefixBreak, ...]
    """The requests whose prefix moved."""
    repairs: tuple[Repair, ...]
    """What had to be repaired so that the provider accepts the request."""
    events: tuple[EventStatus, ...]
    """The events in memory: the whole log, or in a session those that the view needs."""

    @property
    def budget(self) -> BudgetStatus | None:
        """The spending limit of which the least is left; None without a limit."""
        return self.budgets[0] if self.budgets else None

    @property
    def used_share(self) -> float:
        """The share of the window that the next request takes."""
        return window_share(self.used, self.window)

    @property
    def accuracy(self) -> str:
        """Whether `used` is measured or estimated, in words."""
        if not self.measured:
            return "estimated"
        is_measured = self.estimated <= MAX_ESTIMATED_SHARE * self.used
        return "measured" if is_measured else f"{self.estimated:,} tokens estimated"

    @property
    def shown_totals(self) -> list[tuple[str, int]]:
        """The categories with tokens; `over` is what a request has above the window."""
        shown = [(name, tokens) for name, tokens in self.totals.items() if tokens > 0]
        free = self.totals.get("free", 0)
        return [*shown, ("over", -free)] if free < 0 else shown

    def percent(self, tokens: int) -> str:
        """Return tokens in percent of the window, such as `67.2 %`.

        Args:
            tokens: A number of tokens.
        """
        return window_percent(tokens, self.window)

    def json(self) -> str:
        """Return the report as JSON."""
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        return usage_card(self)


def report(
    engine: Engine,
    *,
    fitted: int,
    breaks: Sequence[PrefixBreak],
    statements: Sequence[UserStatement] = (),
    with_events: bool = True,
    at: float | None = None,
) -> Report:
    """Return the report of a conversation at the time `at`; `fitted` and `breaks` are those of its
    `SentRequests`."""
    budget, calibration = engine.budget(), engine.calibration
    view, usage = engine.view, engine.usage_totals
    parts = request_parts(engine)
    limit, used = engine.available_tokens(budget), calibration.tokens(engine.total_units)
    state = "over" if view.units > budget.hard else "act" if view.units > budget.act else "ok"
    if state == "ok" and view.units > budget.warn:
        state = "warn"
    turn = engine.past_calls.typical_turn
    turn_tokens = None if turn is None else round(turn * calibration.ratio)
    seen = len(engine.past_calls.recent_turns)
    question = compaction_question(engine, state)
    totals = _totals(engine, budget, parts)
    summaries = tuple(_summaries(engine))
    return Report(
        model=engine.model.name,
        window=budget.window,
        window_source=engine.model.sources.get("window", ""),
        counted_by=f"{view.meter.counter.name} × {calibration.ratio:.3f}",
        measured=calibration.measured,
        estimated=max(0, used - calibration.at_tokens),
        totals=totals,
        used=used,
        limit=limit,
        warn=min(limit, calibration.tokens(budget.warn + budget.fixed)),
        act=min(limit, calibration.tokens(budget.act + budget.fixed)),
        state=state,
        policy=engine.policy.name,
        mode=engine.policy.mode,
        calls=usage.calls,
        fitted=fitted,
        cached_share=usage.cached_share,
        dropped_thinking=0 if usage.last is None else usage.last.dropped_thinking,
        cache_miss=_cache_miss(usage.last),
        turns=view.turn_count,
        turns_left=None if turn is None else _turns_left(view, budget, engine.policy, turn=turn, seen=seen),
        turn_tokens=turn_tokens,
        spent=usage.spent,
        unknown_calls=usage.unknown_calls,
        saved=usage.saved,
        budgets=engine.spending(at=at),
        question=question,
        notice=limit_notice(engine, totals, turn_tokens or 0, left=limit - used, seen=seen)
        if question
        else "",
        warnings=tuple(_warnings(engine, summaries, statements)),
        tools=tuple(_tool_sizes(engine, totals["tools"])) if with_events else (),
        summaries=summaries,
        reduced=ReducedCounts.of(view),
        statements=tuple(statements),
        breaks=tuple(breaks),
        repairs=tuple(_repairs(view)),
        events=tuple(event_statuses(engine, parts)) if with_events else (),
    )


_FORETOLD_TURNS: Final = 10
"""Turns ahead about which each turn that was seen says something."""


def _turns_left(view: View, budget: Budget, policy: Policy, *, turn: int, seen: int) -> int | None:
    """Return how many turns of this many units fit before the one in which the policy must reduce or ask; None if
    that is too far ahead for the number of turns seen. What a policy reduces earlier because it is cheap just then,
    a change of tools or model, and limits on images cannot be foreseen."""
    left = max(0, budget.act - view.units) // max(1, turn)
    if policy.mode != "off" and policy.every_turns:
        left = min(left, max(0, policy.every_turns - turns_since_summary(view)))
    return left if left <= seen * _FORETOLD_TURNS else None


def _tool_sizes(engine: Engine, total: int) -> Iterable[ToolSize]:
    """Yield the tools. The sizes of those that requests have add up to `total`: a list of tools takes a little more
    or less than its tools alone, and a provider counts in its own way."""
    view, ratio = engine.view, engine.calibration.ratio
    if view.tools is None:
        return
    seq, equipped = view.tools
    loaded = {name for entry in view.tool_use.loaded for name in entry.schemas}
    listed = dict(equipped.deferred)
    for place, tool in enumerate(each_tool(unraw(equipped.tools))):
        form = neutral_form(tool) or {"name": str(tool.get("name") or tool.get("type") or "tool")}
        if form["name"] not in equipped.deferred:
            listed[form["name"]] = view.meter.text(seq, seq, place, json_text(tool))
    sent = {name: units for name, units in listed.items() if name in loaded or name not in equipped.deferred}
    exact = apportion(sent, total)
    for name in sorted(listed, key=lambda name: name in equipped.deferred):
        tokens, calls = exact.get(name, round(listed[name] * ratio)), view.tool_use.calls[name]
        yield ToolSize(name=name, tokens=tokens, calls=calls, deferred=name not in sent)


def _summaries(engine: Engine) -> Iterable[Summary]:
    shown = {step.utterance.seq for step in engine.view.summaries}
    for event in engine.log:
        fact = event.fact
        if event.seq in shown and isinstance(fact, Compacted):
            yield Summary(
                handle=event.handle,
                first=handle(fact.first),
                last=handle(fact.last),
                by=fact.by,
                reason=fact.reason,
                measures=read_metrics(fact),
            )


def _warnings(
    engine: Engine, summaries: Iterable[Summary], statements: Sequence[UserStatement]
) -> Iterable[str]:
    taken_back = frozenset(engine.view.unreadable)
    yield from (unreadable_text(event) for event in engine.log if event.seq in taken_back)
    yield from map(_early_cut_text, filter(_is_early, summaries))
    if unseen := unseen_warning(statements):
        yield unseen


def _is_early(summary: Summary) -> bool:
    return summary.reason == "price"


def _early_cut_text(summary: Summary) -> str:
    """Return what a cut that nothing forced has saved, and how to do without it."""
    saved = summary.measures.before - summary.measures.after
    return (
        f"{summary.handle} is an early cut: nothing forced it, and it saves {saved:,} tokens in every call; "
        f'`undo("{summary.handle}")` takes it back, and `early=False` in the policy makes no more of them'
    )


# ── Totals ───────────────────────────────────────────────────────────────────────────────────────────────


def _totals(engine: Engine, budget: Budget, parts: Sequence[RequestPart]) -> dict[str, int]:
    """Return the tokens by category. What the provider counts beyond the parts (templates, hidden prompts) is
    `overhead`. A rounding difference goes to the tools, which are no event, or to the largest category."""
    tokens = dict.fromkeys(CATEGORIES, 0)
    for part in parts:
        tokens[part.category] += part.tokens
    total = engine.calibration.tokens(engine.total_units)
    rest = total - sum(tokens.values())
    if engine.calibration.measured and rest > 0:
        tokens["overhead"] = rest
    else:
        tokens["tools" if tokens["tools"] > max(0, -rest) else max(tokens, key=tokens.__getitem__)] += rest
    limit = engine.available_tokens(budget)
    # A request above its limit takes from the reserve; the rest is below 0 when it is larger than the window.
    tokens["reserve"] = min(budget.reserve, max(0, budget.window - total))
    rest = budget.window - tokens["reserve"] - total
    tokens["margin"] = max(0, rest - max(0, limit - total))
    tokens["free"] = rest - tokens["margin"]
    return tokens


# ── Repairs ──────────────────────────────────────────────────────────────────────────────────────────────


def _repairs(view: View) -> Iterable[Repair]:
    for seq in view.orphan_results:
        problem = "a result that no call waits for"
        yield Repair(handle=handle(seq), problem=problem, done="kept out of the request")
    for step in view.steps:
        for slot in step.slots:
            if slot.result is None and slot.call.needs_result:
                problem = one_line(f"call {slot.call.id} ({slot.call.name}) has no result", width=120)
                yield Repair(handle=handle(step.seq), problem=problem, done="a synthetic result is shown")


def _cache_miss(used: Used | None) -> str:
    if used is None or not used.cache_miss:
        return ""
    return f"{used.cache_miss} ({used.cache_missed:,} tokens)" if used.cache_missed else used.cache_miss


# ── Text ──────────────────────────────────────────────────────────────────────────────────────────────


def usage_card(report: Report) -> str:
    """Return the usage card: the usage line and one line for each part."""
    return "\n".join([usage_line(report), *_card_lines(report)])


def usage_line(report: Report) -> str:
    """Return one line: how full the window is, the cached share of the last prompt, turns left, and the cost."""
    filled = min(20, round(report.used_share * 20))
    bar = f"▕{'█' * filled}{'·' * (20 - filled)}▏"
    parts = [f"ctx {report.used:,}/{report.window:,} {report.percent(report.used)} {bar}"]
    if report.cached_share is not None:
        parts.append(f"cache {report.cached_share * 100:.0f} %")
    if report.turns_left is not None:
        parts.append(turns_text(report))
    if report.spent:
        parts.append(f"{'≥ ' * bool(report.unknown_calls)}${report.spent:.4f}")
    return " · ".join(parts)


def thresholds_text(report: Report) -> str:
    """Return the thresholds as tokens and in percent of the window, as the usage line shows what is used."""
    marks = (("warn", report.warn), ("act", report.act), ("limit", report.limit))
    return " · ".join(f"{name} {tokens:,} ({report.percent(tokens)})" for name, tokens in marks)


def reduced_texts(report: Report) -> list[str]:
    """Return how many messages are at each level other than `full`, such as `3 masked`."""
    counts = msgspec.structs.asdict(report.reduced)
    return [f"{count:,} {level}" for level, count in counts.items() if count]


def priorities_line(report: Report) -> str:
    """Return which messages have a priority, such as `high priority: e3 · low priority: e9`; "" if none has."""
    named: list[str] = []
    for priority in ("high", "low"):
        found = [event.handle for event in report.events if event.priority == priority]
        more = f" and {len(found) - MAX_CARD_PRIORITIES:,} more" if len(found) > MAX_CARD_PRIORITIES else ""
        if found:
            named.append(f"{priority} priority: {', '.join(found[:MAX_CARD_PRIORITIES])}{more}")
    return " · ".join(named)


def breaks_text(report: Report) -> str:
    """Return how many requests began differently from the one before, and what moved the last one's prefix."""
    count, fitted = len(report.breaks), report.fitted
    text = f"{count:,} prefix break{'s' * (count != 1)} in {fitted:,} request{'s' * (fitted != 1)}"
    last = report.breaks[-1] if report.breaks else None
    return f"{text}, the last by {last.cause}: {last.why}" if last is not None and last.cause else text


def tools_line(report: Report) -> str:
    """Return how many tools there are, what they take, how many were used and how many are deferred."""
    tools, deferred = report.tools, [tool for tool in report.tools if tool.deferred]
    used = sum(tool.calls > 0 for tool in tools)
    text = f"{len(tools):,} tool{'s' * (len(tools) != 1)}, {report.totals['tools']:,} tokens, {used:,} used"
    saved = sum(tool.tokens for tool in deferred)
    return f"{text}; {len(deferred):,} deferred, which would take {saved:,}" if deferred else text


def turns_text(report: Report) -> str:
    """Return in words how many turns fit before the next reduction or question; "" if that is not known."""
    left = report.turns_left
    if left is None:
        return ""
    if left == 0:
        return "asks within a turn" if report.mode == "confirm" else "next cut within a turn"
    return f"~{left:,} turn{'s' if left != 1 else ''} left"


def _card_lines(report: Report) -> Iterable[str]:
    yield f"  {report.model} (window: {report.window_source}) · policy {report.policy}"
    yield f"  counted with {report.counted_by} ({report.accuracy})"
    for name, tokens in report.shown_totals:
        yield f"  {name:<13}{tokens:>11,}  {report.percent(tokens):>8}"
    yield f"  {'window':<13}{report.window:>11,}  {report.percent(report.window):>8}"
    yield f"  {thresholds_text(report)}"
    if report.tools:
        yield f"  {tools_line(report)}"
    if report.reduced:
        yield f"  {', '.join(reduced_texts(report))}"
    if line := priorities_line(report):
        yield f"  {line}"
    for summary in report.summaries:
        sizes = (
            f"{summary.measures.before:,} → {summary.measures.after:,} tokens"
            if summary.measures.before
            else ""
        )
        details = ", ".join(
            filter(None, (sizes, f"by {summary.by}" if summary.by else "", f"triggered by {summary.reason}"))
        )
        yield f"  summary {summary.handle} of {summary.first}–{summary.last}: {one_line(details, width=100)}"
    yield from (f"  {line}" for line in statement_lines(report.statements, most=MAX_CARD_STATEMENTS))
    yield from (f"  {warning}" for warning in report.warnings)
    if report.breaks:
        yield f"  {breaks_text(report)}"
    if report.dropped_thinking:
        yield f"  thinking blocks that the provider left out of the last call: {report.dropped_thinking:,}"
    if report.cache_miss:
        yield f"  cache miss in the last call, says the provider: {report.cache_miss}"
    yield from (f"  budget: {budget}" for budget in report.budgets)
    if report.spent or report.saved:
        yield f"  cost: {cost_text(report.spent, report.unknown_calls, report.saved)}"
    for repair in report.repairs:
        yield f"  repaired {repair.handle}: {repair.problem}; {repair.done}"
