"""Measures the policies beside other packages, and writes the tables of the documentation.

    python -m bench.peer_tables                 run `surprise` and `peer_recall`, and write the tables
    python -m bench.peer_tables --stored        write them again from the results of the last run

A table is what follows `<!-- measured: name -->` up to the next empty line but one: a sentence that says how it was
made, and the table.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.__main__ import RESULTS
from bench.bench_peer_recall import percent, recall_text, replay_beside_peers
from bench.bench_surprise import replay_options
from bench.surprise_replay import DEFAULT_LIMIT, HALVES, TARGETS
from bench.work import Json
from foveal import __version__
from foveal.replay.strata import STRATA

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = (ROOT / "docs" / "comparison.md", ROOT / "docs" / "measure" / "benchmarks.md")
WINDOWS: Final = (32_000, 128_000)
MARKED: Final = re.compile(r"(<!-- measured: (\w+) -->\n)(.*?\n\n.*?)(?=\n\n)", re.DOTALL)
SHOWN_HALF: Final = "B"
"""The settings of `economy` were chosen on the other half."""
NAMES: Final = (
    (re.compile(r"^foveal, (\w+), ledger"), r"Foveal, `\1`"),
    (re.compile(r"^foveal, (\w+), fixed text"), r"Foveal, `\1`, with a model"),
    (re.compile(r"^pydantic-ai-harness [\d.]+"), "pydantic-ai-harness"),
    (re.compile(r"^langchain [\d.]+, summarisation middleware"), "LangChain, summarisation"),
    (re.compile(r"^strands-agents [\d.]+"), "Strands"),
    (re.compile(r"^(Strands, )auto\b"), r"\1`auto`"),
    (re.compile(r"^([a-z-]+)$"), r"`\1`"),
    (re.compile(r"^(half cut|rolling in batches), target 0\.5$"), r"\1"),
    (re.compile(r", target [\d.]+$"), ""),
)


# ── Measuring ────────────────────────────────────────────────────────────────────────────────────────────


def stored(group: str) -> Path:
    """Return the file with the results of a group."""
    return RESULTS.with_name(f"{group}.jsonl")


def measure(limit: int, windows: Sequence[int], minutes: float | None) -> None:
    """Run both groups and store their results."""
    RESULTS.parent.mkdir(exist_ok=True)
    for group, module, given in (
        ("surprise", "bench.surprise_replay", replay_options(limit, minutes, windows)),
        ("peer_recall", "bench.peer_replay", ["--limit", str(limit)]),
    ):
        found = [
            {
                "command": f"python -m bench {group} {' '.join(given)}",
                "day": time.strftime("%Y-%m-%d"),
                "version": __version__,
            },
            *replay_beside_peers(module, *given),
        ]
        stored(group).write_text("".join(json.dumps(each) + "\n" for each in found))


def results(group: str) -> list[Json]:
    """Return the stored results of a group, each with the command, the day and the version that made it."""
    first, *lines = stored(group).read_text().splitlines()
    return [{**json.loads(first), **json.loads(line)} for line in lines if '"missing"' not in line]


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────────────


def surprise_short() -> str:
    """Return surprise at the bill by pressure, of half B."""
    found = [each for each in _surprise("pressure") if each["half"] == SHOWN_HALF and each["is_default"]]
    return f"{_made_by(found)}\n\n{_pressure_table(found)}"


def surprise_halves() -> str:
    """Return surprise at the bill by pressure and by window, of both halves."""
    found = [each for each in _surprise("pressure", "window") if each["is_default"]]
    columns = [*_strata(found), *_windows(found)]
    cells = {(each["half"], each["label"], each["name"]): each for each in found}
    rows = []
    for half in HALVES:
        labels = dict.fromkeys(each["label"] for each in found if each["half"] == half)
        for number, label in enumerate(labels):
            shown = (_at_bill(cells.get((half, label, column))) for column in columns)
            rows.append(["" if number else half, _name(label), *shown])
    heads = (column if column in dict(STRATA) else f"window {column}" for column in columns)
    return f"{_made_by(found)}\n\n{_table(['half', '', *heads], rows, labels=2)}"


def frontier() -> str:
    """Return surprise at the bill of each family by target, of half B."""
    found = [each for each in _surprise("pressure") if each["half"] == SHOWN_HALF]
    cells = {(each["name"], each["family"], each["target"]): each for each in found}
    families = dict.fromkeys(each["family"] for each in found if each["target"] is not None)
    rows = []
    for stratum in _strata(found):
        for number, family in enumerate(families):
            shown = (_at_bill(cells.get((stratum, family, target))) for target in (*TARGETS, None))
            rows.append(["" if number else stratum, _name(family), *shown])
    heads = ("pressure", "", *(f"to {100 * target:.0f} %" for target in TARGETS), "own target")
    return f"{_made_by(found)}\n\n{_table(heads, rows, labels=2)}"


def recall_short() -> str:
    """Return the bill and the recall of far names and lines by pressure."""
    found = results("peer_recall")
    strata = _strata(found)
    cells = {(_name(each["reducer"]), each["name"]): each for each in found}
    rows = []
    for name in dict.fromkeys(_name(each["reducer"]) for each in found):
        own = [cells[name, stratum] for stratum in strata]
        calls = sum(each["calls"] for each in own)
        task = sum(each["task"] * each["calls"] for each in own) / calls
        figures = (cell for each in own for cell in (percent(each["bill"]["pooled"]), _far(each)))
        rows.append([name, *figures, percent(task), f"{sum(each['over'] for each in own):,}"])
    heads = [head for stratum in strata for head in (f"bill, {stratum}", "far")]
    return f"{_made_by(found)}\n\n{_table(['', *heads, 'task', 'over'], rows)}"


def recall_full() -> str:
    """Return all figures of the reducers by pressure."""
    found = results("peer_recall")
    rows = []
    for stratum in _strata(found):
        for number, each in enumerate(each for each in found if each["name"] == stratum):
            rows.append(
                [
                    "" if number else stratum,
                    _name(each["reducer"]),
                    percent(each["bill"]["pooled"]),
                    percent(each["bill_without_summaries"]),
                    percent(each["bill_highest"]),
                    *(
                        recall_text(each, kind).replace("far ", "").replace(" %", "")
                        for kind in ("ident", "line")
                    ),
                    percent(each["task"]),
                    f"{each['breaks']['pooled']:.1f}",
                    f"{each['over']:,}",
                ]
            )
    heads = (
        "pressure", "reducer", "bill", "without summaries", "highest bill", "names / far", "lines / far", "task",
        "breaks per 100", "over",
    )  # fmt: skip
    return f"{_made_by(found)}\n\n{_table(heads, rows, labels=2)}"


TABLES: Final[dict[str, Callable[[], str]]] = {
    "surprise_short": surprise_short,
    "surprise_halves": surprise_halves,
    "frontier": frontier,
    "recall_short": recall_short,
    "recall_full": recall_full,
}


def _surprise(*kinds: str) -> list[Json]:
    return [each for each in results("surprise") if each["by"] in kinds]


def _pressure_table(found: Sequence[Json]) -> str:
    strata = _strata(found)
    cells = {(_name(each["label"]), each["name"]): each for each in found}
    rows = (
        [name, *(_at_bill(cells.get((name, stratum))) for stratum in strata)]
        for name in dict.fromkeys(_name(each["label"]) for each in found)
    )
    return _table(["", *(f"pressure {stratum}" for stratum in strata)], rows)


def _strata(found: Sequence[Json]) -> list[str]:
    there = {each["name"] for each in found}
    return [name for name, _ in STRATA if name in there]


def _windows(found: Sequence[Json]) -> list[str]:
    return list(dict.fromkeys(each["name"] for each in found if each["by"] == "window"))


def _made_by(found: Sequence[Json]) -> str:
    """Return how the rows were made, and the size of the sample, which is the same for all of them."""
    label = "label" if "label" in found[0] else "reducer"
    one = [each for each in found if each[label] == found[0][label] and each.get("by") != "window"]
    sizes = (
        f"{half}{each['name']}: {each['conversations']}, with {each['calls']:,} calls{_measured_steps(each)}"
        for each in one
        for half in [f"half {each['half']}, " if "half" in each else ""]
    )
    made = "Made on {day} with Foveal {version} by `{command}`.".format_map(found[0])
    return f"{made} Conversations, once for each window: {'; '.join(sizes)}."


def _measured_steps(each: Json) -> str:
    return f" and {each['samples']:,} steps" if each["samples"] else ""


def _name(label: str) -> str:
    for pattern, shown in NAMES:
        label = pattern.sub(shown, label)
    return label


def _at_bill(each: Json | None) -> str:
    if each is None or each["surprise"]["pooled"] is None:
        return "–"
    over = f", {each['over']} over" if each["over"] else ""
    surprise = f"{round(each['surprise']['pooled'], 3) + 0.0:.3f}".replace("-", "−")
    return f"{surprise} at {percent(each['bill']['pooled'])}{over}"


def _far(each: Json) -> str:
    return " / ".join(percent(each[kind]["pooled"]).replace(" %", "") for kind in ("ident_far", "line_far"))


def _table(heads: Sequence[str], rows: Iterator[list[str]] | list[list[str]], *, labels: int = 1) -> str:
    rule = "---|" * labels + "--:|" * (len(heads) - labels)
    first, *others = (f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (heads, *rows))
    return "\n".join([first, f"|{rule}", *others])


# ── Pages ────────────────────────────────────────────────────────────────────────────────────────────────


def write_tables() -> None:
    """Write every table into its page."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(MARKED.sub(lambda found: found[1] + TABLES[found[2]](), text), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peer_tables")
    parser.add_argument("--stored", action="store_true", help="write the tables from the last run")
    parser.add_argument("--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help="conversations at most")
    parser.add_argument("--minutes", type=float, metavar="N", help="of surprise: begin none after this time")
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS, metavar="TOKENS")
    given = parser.parse_args()
    if not given.stored:
        measure(given.limit, given.windows, given.minutes)
    write_tables()


if __name__ == "__main__":
    main()
