"""Results of a replay as text tables and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from foveal.core.wire.safe_print import counted, one_line
from foveal.replay.choice import SourceValidation, leave_one_source_out
from foveal.replay.conclusion import Conclusion, conclude, conclusion_sentences
from foveal.replay.play import DEFAULT_REPLAY_SETTING, ReplaySetting
from foveal.replay.statistics import (
    HiddenResult,
    PolicyStatistics,
    SurprisingCall,
    dollars_text,
    most_surprising_calls,
    worst_losses,
)
from foveal.replay.strata import FigureSpread, GroupStatistics
from foveal.replay.surprise import GoneQuote
from foveal.replay.upper_bound import short_policy_name

Column = tuple[str, Callable[[PolicyStatistics], str]]


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share in percent."""
    return "–" if share is None else f"{100 * share:.{digits}f}"


def recall_pair(all_needs: float | None, far: float | None) -> str:
    """Return the recall of all needs and of far ones."""
    return f"{percent(all_needs)} / {percent(far)}"


def bits_per_byte(surprise: float | None) -> str:
    """Return a surprise."""
    return "–" if surprise is None else f"{surprise:.3f}"


def _bill(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def short_count(count: int) -> str:
    """Return a number of tokens, rounded."""
    if count >= 1_000_000:
        return f"{count / 1_000_000:,.1f}M"
    return f"{count / 1_000:,.1f}k" if count >= 1_000 else str(count)


COST_COLUMNS: Final[tuple[Column, ...]] = (
    ("bill", lambda row: _bill(row.bill)),
    ("surprise", lambda row: bits_per_byte(row.surprise)),
    ("own prices", lambda row: _bill(row.bill_model)),
    ("cached", lambda row: _bill(row.cached)),
    ("breaks/100", lambda row: "–" if row.breaks is None else f"{row.breaks:.1f}"),
    ("over", lambda row: f"{row.over:,}"),
    ("peak", lambda row: short_count(row.peak)),
    ("ident / far", lambda row: recall_pair(row.ident, row.ident_far)),
    ("line / far", lambda row: recall_pair(row.line, row.line_far)),
    ("task", lambda row: percent(row.task)),
    ("latest", lambda row: percent(row.latest)),
)
DETAIL_COLUMNS: Final[tuple[Column, ...]] = (
    ("calls", lambda row: f"{row.calls:,}"),
    ("input", lambda row: short_count(row.tokens)),
    ("dollars", lambda row: "–" if row.dollars is None else dollars_text(row.dollars)),
    ("mean bill", lambda row: _bill(row.bill_mean)),
    ("mean ident / far", lambda row: recall_pair(row.ident_mean, row.ident_far_mean)),
    ("mean line / far", lambda row: recall_pair(row.line_mean, row.line_far_mean)),
    ("surprise of worst calls", lambda row: bits_per_byte(row.surprise_worst)),
    ("samples", lambda row: f"{row.samples:,}"),
    ("own ms p50 / p99", lambda row: f"{row.own_median:.2f} / {row.own_p99:.2f}"),
    ("reductions", lambda row: ", ".join(f"{n:,} {kind}" for kind, n in row.reductions.items()) or "–"),
)


class GroupColumn(NamedTuple):
    """A column of a table of groups."""

    head: str
    """What it and the columns after it are, "" for the same as before."""
    name: str
    show: Callable[[GroupStatistics], str]


def _figure_columns(head: str, value: Callable[[FigureSpread], float | None]) -> tuple[GroupColumn, ...]:
    """Return the columns of one kind of value: pooled, mean or worst."""

    def pair(all_needs: FigureSpread, far: FigureSpread) -> str:
        return f"{percent(value(all_needs))}/{percent(value(far))}"

    def breaks(group: GroupStatistics) -> str:
        found = value(group.breaks)
        return "–" if found is None else f"{found:.1f}"

    return (
        GroupColumn(head, "bill", lambda group: percent(value(group.bill))),
        GroupColumn("", "surprise", lambda group: bits_per_byte(value(group.surprise))),
        GroupColumn("", "ident/far", lambda group: pair(group.ident, group.ident_far)),
        GroupColumn("", "line/far", lambda group: pair(group.line, group.line_far)),
        GroupColumn("", "breaks", breaks),
    )


GROUP_COLUMNS: Final[tuple[GroupColumn, ...]] = (
    *_figure_columns("all together", lambda figure: figure.pooled),
    GroupColumn("", "over", lambda group: f"{group.over:,}"),
    *_figure_columns("mean over conversations", lambda figure: figure.mean),
    *_figure_columns("worst tenth", lambda figure: figure.worst),
    GroupColumn("", "highest bill", lambda group: percent(group.bill_highest)),
)


class GroupTable(NamedTuple):
    """The groups of one kind."""

    title: str
    groups: Callable[[PolicyStatistics], Sequence[GroupStatistics]]

    def sections(self, rows: Sequence[PolicyStatistics]) -> Iterator[tuple[str, list[GroupStatistics]]]:
        """Yield for each group its heading, and its statistics under each policy."""
        for groups in zip(*map(self.groups, rows), strict=True):
            yield f"{self.title} {groups[0].name}: {group_size(groups[0])}", list(groups)


def group_size(group: GroupStatistics) -> str:
    """Return the number of conversations and calls of a group, and at how many calls surprise was measured."""
    size = f"{counted(group.conversations, 'conversation')}, {counted(group.calls, 'call')}"
    return f"{size}, surprise of {group.samples:,}"


def group_tables(rows: Sequence[PolicyStatistics], *, sources: bool = False) -> list[GroupTable]:
    """Return the tables of groups that a result has: by pressure, by window if there are several, by source."""
    found = [GroupTable("pressure", lambda row: row.strata)]
    if rows and len(rows[0].windows) > 1:
        found.append(GroupTable("window", lambda row: row.windows))
    if sources:
        found.append(GroupTable("source", lambda row: row.sources))
    return found


def table(
    rows: Sequence[PolicyStatistics],
    *,
    losses: int = 5,
    sources: bool = False,
    setting: ReplaySetting = DEFAULT_REPLAY_SETTING,
) -> str:
    """Return the tables, the worst losses and the conclusion as plain text.

    Args:
        rows: The rows that `run` returned.
        losses: Losses, and surprising calls, that are listed for each policy.
        sources: Whether there is a table by source, and one of leaving out each source.
        setting: The settings of the replay, for the conclusion.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        print(replay.table(rows))
        ```
    """
    if not rows:
        return "nothing was replayed"
    parts = [
        _draw_table(rows, COST_COLUMNS),
        _draw_table(rows, DETAIL_COLUMNS),
        *(_draw_groups(rows, each) for each in group_tables(rows, sources=sources)),
        *(_draw_left_out(leave_one_source_out(rows, setting=setting)) if sources else ()),
        LEGEND,
        *_losses(worst_losses(rows, limit=losses)),
        *_surprising_calls(most_surprising_calls(rows, limit=losses)),
        *_conclusion(conclude(rows, setting=setting)),
    ]
    return "\n".join(parts)


LEGEND: Final = """\
bill: relative to sending everything with an ideal cache, at read 0.1 and write 1.0, and at the model's own prices
ident, line: the share of what calls quoted from earlier results that was still in their requests, in percent
surprise: bits per byte to write the next step after the request, minus those after the whole history; sampled
over: calls that did not fit the window; task, latest: requests with the first and the latest user message
pressure: the largest request if everything is sent, relative to window − reserve
worst tenth: mean over the tenth of the conversations with the highest bill or surprise, or the lowest recall
oracle: the upper bounds, which know the future"""


def _draw_table(rows: Sequence[PolicyStatistics], columns: Sequence[Column]) -> str:
    header = ["policy", *(name for name, _ in columns)]
    cells = [header, *([one_line(row.policy, width=60), *(show(row) for _, show in columns)] for row in rows)]
    lines = _align(cells)
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:], ""])


def _align(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines, the first column aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in cells
    ]


def _draw_groups(rows: Sequence[PolicyStatistics], table: GroupTable) -> str:
    """Return one table with a section for each group."""
    names = [short_policy_name(row.policy) for row in rows]
    sections = list(table.sections(rows))
    named = [pair for _, groups in sections for pair in zip(names, groups, strict=True)]
    head, lines = _group_lines("policy", named)
    for number, (heading, _) in enumerate(sections):
        head += [one_line(heading, width=100), *lines[number * len(rows) : (number + 1) * len(rows)]]
    return "\n".join([*head, ""])


def _draw_left_out(found: SourceValidation | None) -> list[str]:
    """Return a table with the chosen policy for each source that was left out; none if nothing was chosen."""
    if found is None:
        return []
    named = [(f"{each.source}: {each.policy}", each.statistics) for each in found.sources]
    head, lines = _group_lines("source left out: best on others", [*named, ("together", found.together)])
    return ["\n".join([*head, *lines, ""])]


def _group_lines(first: str, named: Sequence[tuple[str, GroupStatistics]]) -> tuple[list[str], list[str]]:
    """Return the header of a table of groups, and its lines."""
    cells = [[first, *(column.name for column in GROUP_COLUMNS)]]
    for name, group in named:
        cells.append([one_line(name, width=60), *(column.show(group) for column in GROUP_COLUMNS)])
    header, *lines = _align(cells)
    return [_group_heads(header), header, "─" * len(header)], lines


def _group_heads(header: str) -> str:
    """Return the line above the header, each head where its first column begins."""
    line, at = "", header.index("  ")
    for column in GROUP_COLUMNS:
        at = header.index(column.name, at)
        line = line.ljust(at) + column.head if column.head else line
        at += len(column.name)
    return line


def _losses(found: Sequence[HiddenResult]) -> list[str]:
    lines: list[str] = []
    policy = ""
    for hidden in found:
        if hidden.policy != policy:
            policy = hidden.policy
            lines.append(f"\nworst losses of {one_line(policy, width=60)}:")
        lines.append(_loss_lines_of(hidden))
    return lines


def _loss_lines_of(hidden: HiddenResult) -> str:
    where = f"{one_line(hidden.conversation, width=50)} {hidden.handle} {one_line(hidden.tool, width=20)}".rstrip()
    needs = f"{hidden.needs} need{'s' if hidden.needs != 1 else ''} from call {hidden.calls[0]} on"
    cause = f"{hidden.level} by {hidden.by or 'nothing'}, rule {hidden.rule or '–'}"
    return f"  {where}: {needs}, {cause}\n      {one_line(hidden.examples[0], width=100)}"


def _surprising_calls(found: Sequence[SurprisingCall]) -> list[str]:
    lines: list[str] = []
    policy = ""
    for call in found:
        if call.policy != policy:
            policy = call.policy
            lines.append(f"\nmost surprising calls of {one_line(policy, width=60)}, and what they quote:")
        where = (
            f"{one_line(call.conversation, width=50)} call {call.surprise.call} in {short_count(call.window)}"
        )
        lines.append(f"  {where}: {bits_per_byte(call.surprise.bits)} bits per byte")
        lines += [f"      {_gone_line(quote)}" for quote in call.surprise.gone] or [f"      {NOTHING_GONE}"]
    return lines


NOTHING_GONE: Final = "no name, line or phrase of the history"


def _gone_line(quote: GoneQuote) -> str:
    return f"{one_line(quote.text, width=70)}{f'  ({cause})' if (cause := hidden_by(quote)) else ''}"


def hidden_by(quote: GoneQuote) -> str:
    """Return where a gone quote was and what hid it; "" if that is not known."""
    if not quote.handle:
        return ""
    return f"{quote.handle} {quote.level} by {quote.by or 'nothing'}, rule {quote.rule or '–'}"


def _conclusion(found: Conclusion) -> list[str]:
    lines = ["\nconclusion", *(f"  {one_line(each, width=200)}" for each in conclusion_sentences(found))]
    if found.config:
        lines.append("  Lines for foveal.toml:\n")
        lines += [f"    {line}".rstrip() for line in found.config.splitlines()]
    return lines


def as_json(
    rows: Sequence[PolicyStatistics], *, losses: int = 20, setting: ReplaySetting = DEFAULT_REPLAY_SETTING
) -> str:
    """Return all results except those of the single calls as JSON.

    Args:
        rows: The rows that `run` returned.
        losses: Losses, and surprising calls, that are listed for each policy.
        setting: The settings of the replay, for the conclusion.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        text = replay.as_json(rows)
        ```
    """
    value = {
        "conclusion": conclude(rows, setting=setting),
        "policies": [row.values() for row in rows],
        "leave_one_source_out": leave_one_source_out(rows, setting=setting),
        "losses": [msgspec.to_builtins(hidden) for hidden in worst_losses(rows, limit=losses)],
        "surprising_calls": msgspec.to_builtins(most_surprising_calls(rows, limit=losses)),
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
