"""The figures as one self-contained page: no script, nothing loaded from anywhere, readable by day and by night."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Final

from foveal.replay.play import EVERYTHING, ReplaySetting, Trace, chosen, input_limit
from foveal.replay.plots import colour, cost_recall, escaped, is_bound, shortened, sizes
from foveal.replay.statistics import HiddenResult, PolicyStatistics, worst
from foveal.replay.table import COST, MORE, Column, short

SHOWN: Final = 48
"""Conversations that are drawn one by one: those with the largest requests."""
ALONE: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""What the page may load: nothing."""


def page(rows: Sequence[PolicyStatistics], *, setting: ReplaySetting, losses: int = 15) -> str:
    """A whole HTML document."""
    css = files("foveal.replay").joinpath("page.css").read_text("utf-8")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{ALONE}">',
        f"<title>Foveal replay</title><style>{css}</style></head><body>",
        *_head(rows, setting),
        *_plots(rows),
        *_tables(rows),
        *_conversations(rows, setting),
        *_losses(worst(rows, most=losses), [row.policy for row in rows]),
        "</body></html>",
    ]
    return "\n".join(parts)


def _head(rows: Sequence[PolicyStatistics], setting: ReplaySetting) -> Iterator[str]:
    model = chosen(setting)
    many = f"{rows[0].conversations:,} conversations, {rows[0].calls:,} calls" if rows else "nothing"
    yield f"<h1>Replay of {many}</h1>"
    limit = input_limit(model, setting)
    told = f"Model {setting.model}, window {model.window:,} tokens, {limit:,} of them for input."
    rest = "No model was asked: each request is what the policy would have sent."
    yield f'<p class="soft">{escaped(told)} {rest}</p>'


def _plots(rows: Sequence[PolicyStatistics]) -> Iterator[str]:
    yield "<h2>What it costs, and what it remembers</h2>"
    yield (
        '<p class="soft">Up and to the left is better. A filled dot is the recall of what had been read six or '
        "more results ago, the ring above it that of everything that calls quoted from results; a diamond knows "
        "the future.</p>"
    )
    yield '<div class="pair">'
    for kind, words in (("ident", "names, paths and numbers"), ("line", "whole lines")):
        yield f'<figure class="card"><figcaption><b>{words}</b>, percent still in the request</figcaption>'
        yield f"{cost_recall(rows, kind)}</figure>"
    yield "</div>"


def _tables(rows: Sequence[PolicyStatistics]) -> Iterator[str]:
    yield "<h2>Figures</h2>"
    yield (
        '<p class="soft">Bills are against sending everything with an ideal cache: at read 0.1 and write 1.0, and '
        "at the model's own prices. Recall is in percent, of all needs and of far ones.</p>"
    )
    for columns in (COST, MORE):
        yield from _table(rows, columns)


def _table(rows: Sequence[PolicyStatistics], columns: Sequence[Column]) -> Iterator[str]:
    kind = "wrap" if columns is MORE else ""
    yield f'<div class="card scroll figures"><table class="{kind}"><tr><th>policy</th>'
    yield "".join(f"<th>{escaped(name)}</th>" for name, _ in columns) + "</tr>"
    policies = [row.policy for row in rows]
    for row in rows:
        cells = "".join(f"<td>{escaped(show(row))}</td>" for _, show in columns)
        yield f"<tr><td>{_dot(row.policy, policies)}{shortened(row.policy, 60)}</td>{cells}</tr>"
    yield "</table></div>"


def _dot(policy: str, policies: Sequence[str]) -> str:
    return f'<span class="dot" style="background:{colour(policy, policies)}"></span>'


# ── conversations ────────────────────────────────────────────────────────────────────────────────────────


def _conversations(rows: Sequence[PolicyStatistics], setting: ReplaySetting) -> Iterator[str]:
    if not rows:
        return
    policies = [row.policy for row in rows]
    together = list(zip(*(row.traces for row in rows), strict=True))
    largest = sorted(together, key=lambda traces: -max(traces[0].sizes, default=0))[:SHOWN]
    yield "<h2>Call by call</h2>"
    of = (
        f"The {len(largest)} largest of {len(together)} conversations"
        if len(together) > SHOWN
        else "Each one"
    )
    yield (
        f'<p class="soft">{of}: tokens of each request, and below a tick where the beginning of the prompt moved, '
        "so that the provider had to read it again. The dashed line is what fits.</p>"
    )
    shown = [policy for policy in policies if not is_bound(policy)]
    keys = (f"<span>{_dot(policy, policies)}{shortened(policy, 60)}</span>" for policy in shown)
    yield f'<div class="key">{"".join(keys)}</div><div class="many">'
    model = chosen(setting)
    window = input_limit(model, setting) / model.token_ratio
    for traces in largest:
        yield _conversation(traces, window, policies)
    yield "</div>"


def _conversation(traces: Sequence[Trace], window: float, policies: Sequence[str]) -> str:
    first = traces[0]
    name = first.conversation.rstrip("/").rpartition("/")[2]
    over = ", ".join(
        f"{trace.policy} {len(trace.over)}" for trace in traces if trace.over and trace.policy != EVERYTHING
    )
    title = escaped(f"{first.conversation}{f'; over the window: {over}' if over else ''}")
    size = short(max(first.sizes, default=0))
    return (
        f'<figure class="card" title="{title}"><figcaption><b>{shortened(name, 32)}</b> {size}</figcaption>'
        f"{sizes(traces, window=window, policies=policies)}</figure>"
    )


# ── losses ───────────────────────────────────────────────────────────────────────────────────────────────


def _losses(found: Sequence[HiddenResult], policies: Sequence[str]) -> Iterator[str]:
    yield "<h2>The worst losses</h2>"
    yield (
        '<p class="soft">Results whose words were needed again when they no longer stood in the request: where '
        "they are in the log, what was needed, and what hid them.</p>"
    )
    if not found:
        yield "<p>Nothing was lost.</p>"
    for policy in dict.fromkeys(one.policy for one in found):
        yield f"<h3>{_dot(policy, policies)}{shortened(policy, 60)}</h3>"
        yield '<div class="card scroll"><table class="losses"><tr><th class="number">needs</th>'
        yield "<th>where it had been</th><th>hidden by</th><th>what was needed</th></tr>"
        yield from (_lost(one) for one in found if one.policy == policy)
        yield "</table></div>"


def _lost(one: HiddenResult) -> str:
    calls = ", ".join(map(str, one.calls[:6])) + (", …" if len(one.calls) > 6 else "")
    examples = "".join(f"<code>{shortened(example, 110)}</code>" for example in one.examples[:3])
    return (
        f'<tr><td class="number">{one.needs}</td>'
        f"<td><b>{escaped(one.handle)}</b> {shortened(one.tool, 30)}<br>"
        f'<span class="soft">{shortened(one.conversation, 60)}</span></td>'
        f"<td>{escaped(one.level)} by {escaped(one.by or 'nothing')}<br>"
        f'<span class="soft">rule {escaped(one.rule or "–")}; needed at call {calls}</span></td>'
        f"<td>{examples}</td></tr>"
    )
