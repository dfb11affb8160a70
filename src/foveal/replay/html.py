"""Results of a replay as a self-contained HTML page.

The page has no scripts, loads nothing and has a light and a dark style.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Final

from foveal.replay.play import EVERYTHING_LABEL, ReplaySetting, Trace, input_limit, replay_model
from foveal.replay.plots import colour, cost_recall, escape_text, is_bound, shorten_escaped, sizes
from foveal.replay.statistics import HiddenResult, PolicyStatistics, worst_losses
from foveal.replay.table import COST_COLUMNS, DETAIL_COLUMNS, Column, short_count

MAX_DRAWN_CONVERSATIONS: Final = 48
"""Most conversations that are drawn: those with the largest requests."""
CONTENT_SECURITY_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""The page may load nothing."""


def html_page(rows: Sequence[PolicyStatistics], *, setting: ReplaySetting, losses: int = 15) -> str:
    """Return the HTML document."""
    css = files("foveal.replay").joinpath("page.css").read_text("utf-8")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">',
        f"<title>Foveal replay</title><style>{css}</style></head><body>",
        *_heading(rows, setting),
        *_plots(rows),
        *_tables(rows),
        *_conversations(rows, setting),
        *_losses(worst_losses(rows, limit=losses), [row.policy for row in rows]),
        "</body></html>",
    ]
    return "\n".join(parts)


def _heading(rows: Sequence[PolicyStatistics], setting: ReplaySetting) -> Iterator[str]:
    model = replay_model(setting)
    counts = f"{rows[0].conversations:,} conversations, {rows[0].calls:,} calls" if rows else "nothing"
    yield f"<h1>Replay of {counts}</h1>"
    limit = input_limit(model, setting)
    model_text = f"Model {setting.model}, window {model.window:,} tokens, {limit:,} of them for input."
    rest = "No model was called: each request is what the policy would have sent."
    yield f'<p class="soft">{escape_text(model_text)} {rest}</p>'


def _plots(rows: Sequence[PolicyStatistics]) -> Iterator[str]:
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


def _dot(policy: str, policies: Sequence[str]) -> str:
    return f'<span class="dot" style="background:{colour(policy, policies)}"></span>'


# ── Conversations ────────────────────────────────────────────────────────────────────────────────────────


def _conversations(rows: Sequence[PolicyStatistics], setting: ReplaySetting) -> Iterator[str]:
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
    model = replay_model(setting)
    window = input_limit(model, setting) / model.token_ratio
    for traces in largest:
        yield _conversation(traces, window, policies)
    yield "</div>"


def _conversation(traces: Sequence[Trace], window: float, policies: Sequence[str]) -> str:
    first = traces[0]
    name = first.conversation.rstrip("/").rpartition("/")[2]
    over = ", ".join(
        f"{trace.policy} {len(trace.over)}"
        for trace in traces
        if trace.over and trace.policy != EVERYTHING_LABEL
    )
    title = escape_text(f"{first.conversation}{f'; over the window: {over}' if over else ''}")
    size = short_count(max(first.sizes, default=0))
    return (
        f'<figure class="card" title="{title}"><figcaption><b>{shorten_escaped(name, 32)}</b> {size}</figcaption>'
        f"{sizes(traces, window=window, policies=policies)}</figure>"
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
