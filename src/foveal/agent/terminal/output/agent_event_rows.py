"""Agent events as rows: tool calls, results, reductions, with their handles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from foveal.agent.events import (
    AgentEvent,
    ContextReduced,
    HookFailed,
    LimitReached,
    ModelAnswered,
    RequestRefused,
    RetryScheduled,
    ToolCalling,
    ToolFinished,
    TurnFinished,
)
from foveal.agent.terminal.output.styled_text import Row, Span, Style, dim, row
from foveal.core.compaction.health import CompactionMetrics, cut_text, read_metrics
from foveal.core.engine.report import over_limit_notice
from foveal.core.engine.unreadable_summaries import instead_text
from foveal.core.log.events import Clipped, Compacted, CompactionFailed, Dropped, Event, Masked, Noted, handle
from foveal.core.models.cost import dollars
from foveal.core.policies.ladder.mask import REFUSED_MEDIA
from foveal.core.wire.safe_print import counted, one_line

MAX_PREVIEW_LINES: Final = 3
"""Lines of a tool result that are shown."""
MAX_NAMED_HANDLES: Final = 6
"""Handles that are listed; the rest is counted."""
MAX_PREVIEW_LINE_CHARS: Final = 4_000
"""A longer line of a result is cut before it is formatted."""
MAX_RESULT_NOTES: Final = 4
"""Notes below the first lines of a result that are shown."""
_NOTE_START: Final = "[foveal: "
_MAX_NOTES_CHARS: Final = 4_000
"""Characters at the end of a result among which its notes are."""


def agent_event_rows(event: AgentEvent) -> list[Row]:
    """Return an event as rows; no rows for events that the interface shows in another way."""
    match event:
        case ToolCalling():
            return [row(Span("● ", "accent"), event.what)]
        case ToolFinished():
            return list(_result_rows(event))
        case LimitReached():
            return [note(over_limit_notice(event.needed, event.available), "fair")]
        case ContextReduced():
            return reduction_rows(event.events, event.before, event.after)
        case ModelAnswered(max_tokens=limit) if limit:
            return [
                note(
                    f"the answer has reached its limit of {limit:,} tokens. Say “go on” to continue.", "fair"
                )
            ]
        case RetryScheduled(wait=wait):
            seconds = f"in {wait.seconds:.0f} s" if wait.seconds >= 1 else "now"
            return [note(f"{wait.reason}: next try {seconds}, {wait.attempt} of {wait.attempts}", "fair")]
        case RequestRefused():
            problem = one_line(event.problem, width=200)
            return [
                note(
                    f"the provider refused the request as too large, a smaller one follows: {problem}", "fair"
                )
            ]
        case HookFailed():
            problem = one_line(event.problem, width=200)
            return [
                note(
                    f"the hook {event.hook} failed at {event.at} and was skipped: {problem}",
                    "bad",
                )
            ]
        case TurnFinished(why="steps"):
            return [note(f"the turn has ended: {event.problem}. Say “go on” to continue.", "fair")]
        case _:
            return []


def note(text: str, style: Style = "dim") -> Row:
    """Return a notice of Foveal, marked so that it differs from the model's text."""
    return row(Span(f"▪ {text}", style))


# ── Results ──────────────────────────────────────────────────────────────────────────────────────────────


def _result_rows(finished: ToolFinished) -> Iterator[Row]:
    text = finished.text.rstrip("\n")
    count = text.count("\n") + 1 if text else 0
    shown = [line for line in _first_lines(text, MAX_PREVIEW_LINES) if line.strip()]
    style: Style = "bad" if finished.error else "dim"
    for line in shown:
        yield row(Span(f"  │ {line}", style))
    notes = _hidden_notes(text, shown)
    for line in notes:
        yield row(Span(f"  │ {line}", "fair"))
    rest = count - len(shown) - len(notes)
    size = f"… {counted(rest, 'more line')}, {counted(len(text), 'character')}" if rest > 0 else ""
    words = [size or ("" if text else "no output"), duration(finished.seconds), f"/expand {finished.handle}"]
    yield row(dim(f"  └ {' · '.join(filter(None, words))}"))


def _hidden_notes(text: str, shown: Sequence[str]) -> list[str]:
    """Return what Foveal says at the end of a result, such as which hooks did not run, if it is not among the lines
    that are shown."""
    lines = text[-_MAX_NOTES_CHARS:].split("\n")[-2 * MAX_RESULT_NOTES :]
    return [line for line in lines if line.startswith(_NOTE_START) and line not in shown][-MAX_RESULT_NOTES:]


def _first_lines(text: str, most: int) -> list[str]:
    """Return the first lines without splitting the whole of a long text."""
    lines = text[: most * MAX_PREVIEW_LINE_CHARS].split("\n", most)[:most]
    return [line[:MAX_PREVIEW_LINE_CHARS] for line in lines]


def duration(seconds: float) -> str:
    """Return a duration in words; "" below a tenth of a second."""
    if seconds < 0.1:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


# ── Reductions ───────────────────────────────────────────────────────────────────────────────────────────


def reduction_rows(events: Iterable[Event], before: int, after: int) -> list[Row]:
    """Return each reduction with the command that undoes or expands it."""
    rows = [note(text, style) for event in events for text, style in _reduction_notes(event)]
    if rows and before > after:
        rows.append(note(f"the request has {after:,} tokens instead of {before:,}"))
    return rows


def _reduction_notes(event: Event) -> Iterator[tuple[str, Style]]:
    fact = event.fact
    match fact:
        case Clipped() if fact.shows_all:
            pass
        case Clipped():
            target = handle(fact.target)
            yield (
                f"clipped {target}: the model sees {clip_size(fact)} · /expand {target}",
                "dim",
            )
        case Masked() if fact.reason == REFUSED_MEDIA:
            named = _handle_list(list(dict.fromkeys(mask.target for mask in fact.masks)))
            yield (
                f"the model cannot read a file of {named} and answers without it · /undo {event.handle}",
                "fair",
            )
        case Masked():
            seqs = list(dict.fromkeys(mask.target for mask in fact.masks))
            many = "1 old result" if len(seqs) == 1 else f"{len(seqs):,} old results"
            yield (
                f"masked {many} ({_handle_list(seqs)}), replaced by placeholders · /undo {event.handle}",
                "dim",
            )
        case Compacted() if fact.takes_item_back:
            yield f"{fact.rule}: {instead_text(fact)} · /undo {event.handle}", "fair"
        case Compacted():
            yield f"{_compaction_text(fact)} · /expand {event.handle} · /undo {event.handle}", "accent"
            metrics = read_metrics(fact)
            if fact.by == "ledger" and metrics.asked:
                why = f": {one_line(metrics.checks[-1], width=200)}" if metrics.checks else ""
                yield f"no draft of a model could be used{why}{summary_cost(metrics)}", "fair"
            elif metrics.failures:
                last = metrics.failures[-1]
                yield one_line(f"{last.by} wrote no summary: {last.problem}", width=200), "fair"
        case Dropped():
            ranges = ", ".join(
                f"{handle(low)}–{handle(high)}" for low, high in fact.ranges[:MAX_NAMED_HANDLES]
            )
            yield f"dropped {ranges} from view, a notice says so · /undo {event.handle}", "fair"
        case CompactionFailed() if not fact.cause:  # a cause is shown with the summary
            problem, cost = one_line(fact.problem, width=160), summary_cost(read_metrics(fact))
            yield f"no summary of {handle(fact.first)}–{handle(fact.last)}: {problem}{cost}", "fair"
        case Noted():
            yield one_line(fact.text, width=300), "fair"
        case _:
            pass


def clip_size(fact: Clipped) -> str:
    """Return how much of an event a clip keeps, in tokens as they were counted for it."""
    return f"{fact.kept_tokens:,} of its {counted(fact.total_tokens, 'token')}"


def summary_cost(metrics: CompactionMetrics) -> str:
    """Return what a summary has cost as the end of a sentence; "" if that is not known."""
    return f", cost {dollars(metrics.cost)}" if metrics.cost else ""


def _compaction_text(fact: Compacted) -> str:
    why = ", to make further calls cheaper" if fact.reason == "price" else ""
    if fact.masks:
        return f"{cut_text(fact)}{why}"
    sizes = read_metrics(fact)
    size = f", {sizes.before:,} → {sizes.after:,} tokens" if sizes.before else ""
    by = f" by {fact.by}" if fact.by else ""
    return f"summarised {handle(fact.first)}–{handle(fact.last)}{by}{size}{why}"


def _handle_list(seqs: list[int]) -> str:
    named = ", ".join(handle(seq) for seq in seqs[:MAX_NAMED_HANDLES])
    return f"{named} and {len(seqs) - MAX_NAMED_HANDLES:,} more" if len(seqs) > MAX_NAMED_HANDLES else named
