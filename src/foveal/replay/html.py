"""Results of a replay as a self-contained HTML page.

The page has no scripts, loads nothing and has a light and a dark style.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import Final

from foveal.core.wire.safe_print import counted
from foveal.replay.choice import SourceValidation, leave_one_source_out
from foveal.replay.conclusion import Conclusion, conclude, conclusion_sentences
from foveal.replay.play import EVERYTHING_LABEL, ReplaySetting, Trace
from foveal.replay.plots import colour, cost_recall, cost_surprise, escape_text, shorten_escaped, sizes
from foveal.replay.statistics import (
    HiddenResult,
    PolicyStatistics,
    SurprisingCall,
    most_surprising_calls,
    worst_losses,
)
from foveal.replay.strata import GroupStatistics
from foveal.replay.table import (
    COST_COLUMNS,
    DETAIL_COLUMNS,
    GROUP_COLUMNS,
    NOTHING_GONE,
    Column,
    GroupColumn,
    GroupTable,
    bits_per_byte,
    group_tables,
    hidden_by,
    short_count,
)
from foveal.replay.upper_bound import is_bound, short_policy_name

MAX_DRAWN_CONVERSATIONS: Final = 48
"""Most conversations that are drawn: those with the largest requests."""
CONTENT_SECURITY_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""The page may load nothing."""

GROUP_NOTES: Final = {
    "pressure": "Pressure is the largest request if everything is sent, relative to window − reserve. The worst "
    "tenth are the conversations with the highest bill or surprise, or the lowest recall. Bills and recall are in "
    "percent, surprise is in bits per byte, breaks are per 100 calls.",
    "window": "The same by window.",
    "source": "The same by data set, or by format.",
}
"""What the tables of groups show, by their title."""


def html_page(
    rows: Sequence[PolicyStatistics], *, setting: ReplaySetting, losses: int = 15, sources: bool = False
) -> str:
    """Return the results as a self-contained HTML document.

    Args:
        rows: The rows that `run` returned.
        setting: The settings of the replay, for the heading and the conclusion. The windows are those of the rows.
        losses: Losses, and surprising calls, that are listed for each policy.
        sources: Whether there are tables by source.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        page = replay.html_page(rows, setting=replay.ReplaySetting(window=32_000))
        ```
    """
    css = files("foveal.replay").joinpath("page.css").read_text("utf-8")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">',
        f"<title>Foveal replay</title><style>{css}</style></head><body>",
        *_heading(rows, setting),
        *_conclusion(conclude(rows, setting=setting)),
        *_recall_plots(rows),
        *_surprise_plot(rows),
        *_tables(rows),
        *(part for each in group_tables(rows, sources=sources) for part in _groups(rows, each)),
        *(_left_out(leave_one_source_out(rows, setting=setting), rows) if sources else ()),
        *_conversations(rows),
        *_losses(worst_losses(rows, limit=losses), [row.policy for row in rows]),
        *_surprising_calls(most_surprising_calls(rows, limit=losses), [row.policy for row in rows]),
        "</body></html>",
    ]
    return "\n".join(parts)


def _heading(rows: Sequence[PolicyStatistics], setting: ReplaySetting) -> Iterator[str]:
    counts = (
        f"{counted(rows[0].conversations, 'conversation')}, {counted(rows[0].calls, 'call')}"
        if rows
        else "nothing"
    )
    yield f"<h1>Replay of {counts}</h1>"
    windows = dict.fromkeys((trace.window, trace.limit) for row in rows for trace in row.traces)
    texts = [f"window {window:,} tokens, {limit:,} of them for input" for window, limit in windows]
    model_text = f"Model {'; '.join([setting.model, *texts])}."
    rest = "No model was called: each request is what the policy would have sent."
    yield f'<p class="soft">{escape_text(model_text)} {rest}</p>'


def _conclusion(found: Conclusion) -> Iterator[str]:
    yield "<h2>Conclusion</h2>"
    first, *rest = conclusion_sentences(found)
    yield f'<div class="card"><p><b>{escape_text(first)}</b></p>'
    yield from (f"<p>{escape_text(sentence)}</p>" for sentence in rest)
    if found.config:
        yield f"<p>Lines for <code>foveal.toml</code>:</p><pre>{escape_text(found.config)}</pre>"
    yield "</div>"


def _recall_plots(rows: Sequence[PolicyStatistics]) -> Iterator[str]:
    yield "<h2>Cost and recall</h2>"
    yield (
        '<p class="soft">Up and to the left is better. A filled dot is the recall of far needs (six or more '
        "results back), the ring above it that of all needs (strings that calls quoted from results). A diamond is "
        "an upper bound that knows the future.</p>"
    )
    yield '<div class="pair">'
    for kind, words in (("ident", "names, paths and numbers"), ("line", "whole lines")):
        yield f'<figure class="card"><figcaption><b>{words}</b>, percent still in the request</figcaption>'
        yield f"{cost_recall(rows, kind)}</figure>"
    yield "</div>"


def _surprise_plot(rows: Sequence[PolicyStatistics]) -> Iterator[str]:
    if not any(row.samples for row in rows):
        return
    yield "<h2>Cost and surprise</h2>"
    yield (
        '<p class="soft">Down and to the left is better. Surprise is how many bits per byte more it takes to write '
        "the agent's recorded next step after the request than after the whole history, measured at "
        f"{rows[0].samples:,} calls. A diamond is an upper bound of recall; it does not aim at surprise.</p>"
    )
    yield '<div class="pair"><figure class="card"><figcaption><b>surprise</b>, bits per byte</figcaption>'
    yield f"{cost_surprise(rows)}</figure></div>"


def _tables(rows: Sequence[PolicyStatistics]) -> Iterator[str]:
    yield "<h2>Figures</h2>"
    yield (
        '<p class="soft">Bills are relative to sending everything with an ideal cache: at read 0.1 and write 1.0, '
        "and at the model's own prices. Recall is in percent, of all needs and of far ones.</p>"
    )
    for columns in (COST_COLUMNS, DETAIL_COLUMNS):
        yield from _table(rows, columns)


def _table(rows: Sequence[PolicyStatistics], columns: Sequence[Column]) -> Iterator[str]:
    kind = "wrap" if columns is DETAIL_COLUMNS else ""
    yield f'<div class="card scroll figures"><table class="{kind}"><tr><th>policy</th>'
    yield "".join(f"<th>{escape_text(name)}</th>" for name, _ in columns) + "</tr>"
    policies = [row.policy for row in rows]
    for row in rows:
        cells = "".join(f"<td>{escape_text(show(row))}</td>" for _, show in columns)
        yield f"<tr><td>{_dot(row.policy, policies)}{shorten_escaped(row.policy, 60)}</td>{cells}</tr>"
    yield "</table></div>"


def _groups(rows: Sequence[PolicyStatistics], table: GroupTable) -> Iterator[str]:
    """Yield one table with a section for each group."""
    yield f"<h2>By {table.title}</h2>"
    yield f'<p class="soft">{GROUP_NOTES[table.title]}</p>'
    yield from _group_head("policy")
    policies = [row.policy for row in rows]
    for heading, groups in table.sections(rows):
        yield f'<tr class="group"><th colspan="{1 + len(GROUP_COLUMNS)}">{escape_text(heading)}</th></tr>'
        yield from (
            _group_row(name, policies, shorten_escaped(short_policy_name(name), 60), group)
            for name, group in zip(policies, groups, strict=True)
        )
    yield "</table></div>"


def _left_out(found: SourceValidation | None, rows: Sequence[PolicyStatistics]) -> Iterator[str]:
    if found is None:
        return
    yield "<h2>Leaving out one source</h2>"
    yield (
        '<p class="soft">Each source under the policy that was best on all others, chosen as the one of the '
        "conclusion.</p>"
    )
    yield from _group_head("source, and policy chosen without it")
    policies = [row.policy for row in rows]
    for each in found.sources:
        name = f"{shorten_escaped(each.source, 40)}: {shorten_escaped(each.policy, 60)}"
        yield _group_row(each.policy, policies, name, each.statistics)
    yield _group_row("", policies, "together", found.together)
    yield "</table></div>"


def _group_head(first: str) -> Iterator[str]:
    heads = [number for number, column in enumerate(GROUP_COLUMNS) if column.head]
    spans = [end - start for start, end in pairwise([*heads, len(GROUP_COLUMNS)])]
    yield '<div class="card scroll figures"><table class="groups"><tr><th></th>'
    for start, span in zip(heads, spans, strict=True):
        yield f'<th class="head" colspan="{span}">{escape_text(GROUP_COLUMNS[start].head)}</th>'
    yield f"</tr><tr><th>{escape_text(first)}</th>"
    yield "".join(f"<th{_starts(column)}>{escape_text(column.name)}</th>" for column in GROUP_COLUMNS)
    yield "</tr>"


def _group_row(policy: str, policies: Sequence[str], name: str, group: GroupStatistics) -> str:
    """Return the row of a group; `name` is already escaped, and `policy` gives the colour."""
    cells = "".join(
        f"<td{_starts(column)}>{escape_text(column.show(group))}</td>" for column in GROUP_COLUMNS
    )
    dot = _dot(policy, policies) if policy else ""
    return f"<tr><td>{dot}{name}</td>{cells}</tr>"


def _starts(column: GroupColumn) -> str:
    """Return the class of a column that begins a part of the table."""
    return ' class="start"' if column.head else ""


def _dot(policy: str, policies: Sequence[str]) -> str:
    return f'<span class="dot" style="background:{colour(policy, policies)}"></span>'


# ── Conversations ────────────────────────────────────────────────────────────────────────────────────────


def _conversations(rows: Sequence[PolicyStatistics]) -> Iterator[str]:
    if not rows:
        return
    policies = [row.policy for row in rows]
    by_conversation = list(zip(*(row.traces for row in rows), strict=True))
    largest = sorted(by_conversation, key=lambda traces: -max(traces[0].sizes, default=0))[
        :MAX_DRAWN_CONVERSATIONS
    ]
    yield "<h2>Call by call</h2>"
    which = (
        f"The {len(largest)} largest of {len(by_conversation)} conversations"
        if len(by_conversation) > MAX_DRAWN_CONVERSATIONS
        else "Each conversation"
    )
    yield (
        f'<p class="soft">{which}: tokens of each request, and below a tick for each prefix break, after which the '
        "provider had to read the prompt again. The dashed line is the window's limit for input.</p>"
    )
    shown = [policy for policy in policies if not is_bound(policy)]
    keys = (f"<span>{_dot(policy, policies)}{shorten_escaped(policy, 60)}</span>" for policy in shown)
    yield f'<div class="key">{"".join(keys)}</div><div class="many">'
    for traces in largest:
        yield _conversation(traces, policies, with_window=len(rows[0].windows) > 1)
    yield "</div>"


def _conversation(traces: Sequence[Trace], policies: Sequence[str], *, with_window: bool) -> str:
    first = traces[0]
    name = first.conversation.rstrip("/").rpartition("/")[2]
    over = ", ".join(
        f"{trace.policy} {len(trace.over)}"
        for trace in traces
        if trace.over and trace.policy != EVERYTHING_LABEL
    )
    title = escape_text(f"{first.conversation}{f'; over the window: {over}' if over else ''}")
    size = short_count(max(first.sizes, default=0))
    size += f" in {short_count(first.window)}" if with_window else ""
    return (
        f'<figure class="card" title="{title}"><figcaption><b>{shorten_escaped(name, 32)}</b> {size}</figcaption>'
        f"{sizes(traces, window=first.limit / first.ratio, policies=policies)}</figure>"
    )


# ── Losses ───────────────────────────────────────────────────────────────────────────────────────────────


def _losses(found: Sequence[HiddenResult], policies: Sequence[str]) -> Iterator[str]:
    yield "<h2>The worst losses</h2>"
    yield (
        '<p class="soft">Results that calls needed when their requests no longer contained them: where they '
        "are in the log, what was needed, and what hid them.</p>"
    )
    if not found:
        yield "<p>Nothing was lost.</p>"
    for policy in dict.fromkeys(hidden.policy for hidden in found):
        yield f"<h3>{_dot(policy, policies)}{shorten_escaped(policy, 60)}</h3>"
        yield '<div class="card scroll"><table class="losses"><tr><th class="number">needs</th>'
        yield "<th>where it was</th><th>hidden by</th><th>what was needed</th></tr>"
        yield from (_loss_row(hidden) for hidden in found if hidden.policy == policy)
        yield "</table></div>"


def _loss_row(hidden: HiddenResult) -> str:
    calls = ", ".join(map(str, hidden.calls[:6])) + (", …" if len(hidden.calls) > 6 else "")
    examples = "".join(f"<code>{shorten_escaped(example, 110)}</code>" for example in hidden.examples[:3])
    return (
        f'<tr><td class="number">{hidden.needs}</td>'
        f"<td><b>{escape_text(hidden.handle)}</b> {shorten_escaped(hidden.tool, 30)}<br>"
        f'<span class="soft">{shorten_escaped(hidden.conversation, 60)}</span></td>'
        f"<td>{escape_text(hidden.level)} by {escape_text(hidden.by or 'nothing')}<br>"
        f'<span class="soft">rule {escape_text(hidden.rule or "–")}; needed at call {calls}</span></td>'
        f"<td>{examples}</td></tr>"
    )


# ── Surprising calls ─────────────────────────────────────────────────────────────────────────────────────


def _surprising_calls(found: Sequence[SurprisingCall], policies: Sequence[str]) -> Iterator[str]:
    if not found:
        return
    yield "<h2>The most surprising calls</h2>"
    yield (
        '<p class="soft">Calls whose next step was hardest to predict from the request, compared with the whole '
        "history: what the step quotes from the history that was gone, and what hid it.</p>"
    )
    for policy in dict.fromkeys(call.policy for call in found):
        yield f"<h3>{_dot(policy, policies)}{shorten_escaped(policy, 60)}</h3>"
        yield '<div class="card scroll"><table class="losses"><tr><th class="number">surprise</th>'
        yield "<th>call</th><th>what was gone</th></tr>"
        yield from (_surprising_row(call) for call in found if call.policy == policy)
        yield "</table></div>"


def _surprising_row(call: SurprisingCall) -> str:
    gone = "".join(
        f'<code>{shorten_escaped(quote.text, 110)}</code><span class="soft">{escape_text(hidden_by(quote))}</span>'
        for quote in call.surprise.gone
    )
    return (
        f'<tr><td class="number">{bits_per_byte(call.surprise.bits)}</td>'
        f"<td><b>call {call.surprise.call}</b> in {short_count(call.window)}<br>"
        f'<span class="soft">{shorten_escaped(call.conversation, 60)}</span></td>'
        f"<td>{gone or NOTHING_GONE}</td></tr>"
    )
