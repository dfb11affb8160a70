"""What the agent does, in words: one or a few rows for each happening, with the handles to look back by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from foveal.agent.agent_events import (
    AgentEvent,
    ContextReduced,
    HookFailed,
    RequestRefused,
    ToolCalling,
    ToolFinished,
    TurnFinished,
)
from foveal.apps.cli.chat.output.styled_text import Row, Span, Style, dim, row
from foveal.core.compaction.health import measures
from foveal.core.log.events import Clipped, Compacted, CompactionFailed, Dropped, Event, Masked, Noted, handle
from foveal.core.wire.safe_print import one_line

PREVIEW: Final = 3
"""Lines of a result that are shown."""
NAMED: Final = 6
"""Handles that are named before the rest is counted."""
LONGEST: Final = 4_000
"""Characters of a line that are looked at for a preview."""


def told(happening: AgentEvent) -> list[Row]:
    """A happening as rows; none for what is shown in another way."""
    match happening:
        case ToolCalling():
            return [row(Span("● ", "accent"), happening.what)]
        case ToolFinished():
            return list(_result(happening))
        case ContextReduced():
            return reductions(happening.events, happening.before, happening.after)
        case RequestRefused():
            problem = one_line(happening.problem, width=200)
            return [
                note(f"the provider found the request too large, a smaller one follows: {problem}", "fair")
            ]
        case HookFailed():
            problem = one_line(happening.problem, width=200)
            return [
                note(
                    f"the hook {happening.hook} failed at {happening.at} and was passed over: {problem}",
                    "bad",
                )
            ]
        case TurnFinished(why="steps"):
            return [note("stopped: the most steps of a turn are done. Say “go on” to go on.", "fair")]
        case _:
            return []


def note(text: str, style: Style = "dim") -> Row:
    """A remark of ours, apart from what the model says."""
    return row(Span(f"▪ {text}", style))


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────


def _result(returned: ToolFinished) -> Iterator[Row]:
    text = returned.text.rstrip("\n")
    count = text.count("\n") + 1 if text else 0
    shown = [line for line in _first(text, PREVIEW) if line.strip()]
    style: Style = "bad" if returned.error else "dim"
    for line in shown:
        yield row(Span(f"  │ {line}", style))
    rest = count - len(shown)
    size = f"… {rest:,} more line{'s' * (rest != 1)}, {len(text):,} characters" if rest > 0 else ""
    words = [size or ("" if text else "no output"), took(returned.seconds), f"/expand {returned.handle}"]
    yield row(dim(f"  └ {' · '.join(filter(None, words))}"))


def _first(text: str, most: int) -> list[str]:
    """The first lines, without looking at the whole of a long text."""
    lines = text[: most * LONGEST].split("\n", most)[:most]
    return [line[:LONGEST] for line in lines]


def took(seconds: float) -> str:
    if seconds < 0.1:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


# ── reductions ───────────────────────────────────────────────────────────────────────────────────────────


def reductions(events: Iterable[Event], before: int, after: int) -> list[Row]:
    """What was made smaller, and how to bring it back."""
    rows = [note(text, style) for event in events for text, style in _reduction(event)]
    if rows and before > after:
        rows.append(note(f"the request has {after:,} tokens instead of {before:,}"))
    return rows


def _reduction(event: Event) -> Iterator[tuple[str, Style]]:
    fact = event.fact
    match fact:
        case Clipped():
            kept = f"{fact.kept_tokens:,} of its {fact.total_tokens:,} tokens"
            yield (
                f"clipped {handle(fact.target)}: the model sees {kept} · /expand {handle(fact.target)}",
                "dim",
            )
        case Masked():
            seqs = list(dict.fromkeys(mask.target for mask in fact.masks))
            many = "1 old result" if len(seqs) == 1 else f"{len(seqs):,} old results"
            yield (
                f"masked {many} ({_handles(seqs)}), a placeholder stands for each · /undo {event.handle}",
                "dim",
            )
        case Compacted():
            yield f"{_summarised(fact)} · /expand {event.handle} · /undo {event.handle}", "accent"
        case Dropped():
            ranges = ", ".join(f"{handle(low)}–{handle(high)}" for low, high in fact.ranges[:NAMED])
            yield f"dropped {ranges} from view, a notice says so · /undo {event.handle}", "fair"
        case CompactionFailed():
            problem = one_line(fact.problem, width=160)
            yield f"no summary of {handle(fact.first)}–{handle(fact.last)}: {problem}", "fair"
        case Noted():
            yield one_line(fact.text, width=300), "fair"
        case _:
            pass


def _summarised(fact: Compacted) -> str:
    sizes = measures(fact)
    size = f", {sizes.before:,} → {sizes.after:,} tokens" if sizes.before else ""
    by = f" by {fact.by}" if fact.by else ""
    return f"summarised {handle(fact.first)}–{handle(fact.last)}{by}{size}"


def _handles(seqs: list[int]) -> str:
    named = ", ".join(handle(seq) for seq in seqs[:NAMED])
    return f"{named} and {len(seqs) - NAMED:,} more" if len(seqs) > NAMED else named
