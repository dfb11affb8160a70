"""Measures how much worse the agent's next step is predicted after each policy's request, beside its bill.

`surprise_replay` explains the replay. It runs in the environment that `make bench` makes for the peers, on the
recorded conversations in the folder that `FOVEAL_BENCH_DATA` names, or in `shared/data` beside the checkout.

    python -m bench surprise --limit 40       print one row per half, stratum of pressure and candidate
    python -m bench.bench_surprise --limit 40 --windows 32000 128000
                                              print tables in Markdown, with the frontier and the windows
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from bench.bench_peer_recall import data_folder, percent, recall_text, replay_beside_peers
from bench.bench_redaction import DATA_VARIABLE
from bench.measure import Row, progress
from bench.surprise_replay import DEFAULT_LIMIT, HALVES, TARGETS, WINDOWS
from bench.work import Json
from foveal.replay.strata import STRATA


class Goal(NamedTuple):
    """What `economy` should reach in a stratum of pressure, on half B."""

    surprise: float
    bill: float
    recall: tuple[float, float, float, float]
    """Of names, far names, lines and far lines."""
    breaks: float


GOALS: Final = {
    "≤ 1": Goal(0.008, 0.78, (0.995, 0.99, 0.99, 0.985), 5),
    "1–3": Goal(0.012, 0.63, (0.993, 0.99, 0.99, 0.985), 5),
    "3–8": Goal(0.065, 0.34, (0.975, 0.935, 0.96, 0.86), 5),
    "> 8": Goal(0.15, 0.20, (0.91, 0.78, 0.90, 0.70), 15),
}
GOAL_HALF: Final = "B"
"""Constants are chosen on the other half."""
MAX_HIGHEST_BILL: Final = 1.05
"""No conversation should cost more, relative to sending everything."""
RECALLS: Final = (
    ("ident", "names"),
    ("ident_far", "far names"),
    ("line", "lines"),
    ("line_far", "far lines"),
)


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────────────


def rows(
    limit: int = DEFAULT_LIMIT, minutes: float | None = None, windows: Sequence[int] = WINDOWS
) -> Iterator[Row]:
    if not data_folder().exists():
        note = f"there are no recorded conversations; name a folder in {DATA_VARIABLE}"
        yield Row("surprise", None, "bits/byte", note=note)
        return
    progress("surprise: reading the recordings …")
    found = replay_beside_peers("bench.surprise_replay", *replay_options(limit, minutes, windows))
    for missing in (each["missing"] for each in found if "missing" in each):
        yield Row(f"{missing}: not installed", None, note="make bench installs it")
    results = _by_pressure(found)
    if any(each["coder"] != "PPMd" for each in results):
        yield Row("zstandard in place of PPMd", None, note="the environment has no pyppmd")
    for each in results:
        what = f"half {each['half']}, {each['name']}: {each['label']}"
        yield Row(what, each["surprise"]["pooled"], "bits/byte", note=_note(each))
    for each in results:
        if (each["half"], each["label"]) == (GOAL_HALF, "economy"):
            yield from _goal_rows(each)


def replay_options(limit: int, minutes: float | None, windows: Sequence[int]) -> list[str]:
    """Return the options of `bench.surprise_replay`."""
    timed = [] if minutes is None else ["--minutes", str(minutes)]
    return ["--limit", str(limit), *timed, "--windows", *map(str, windows)]


def _by_pressure(found: Sequence[Json]) -> list[Json]:
    """Return the results by half and pressure; within a stratum they keep their order."""
    order = [name for name, _ in STRATA]
    results = [each for each in found if each.get("by") == "pressure"]
    return sorted(results, key=lambda each: (each["half"], order.index(each["name"])))


def _note(each: Json) -> str:
    return (
        f"bill {percent(each['bill']['pooled'])}, highest {percent(each['bill_highest'])}; "
        f"worst tenth {_bits(each['surprise']['worst'])}; "
        f"names {recall_text(each, 'ident')}, lines {recall_text(each, 'line')}; "
        f"{each['breaks']['pooled']:.1f} breaks per 100, {each['over']} over; "
        f"{each['conversations']} conversations, {each['calls']:,} calls, {each['samples']:,} steps"
    )


def _goal_rows(each: Json) -> Iterator[Row]:
    """Yield a row for each goal of `economy` in a stratum."""
    name, goal = each["name"], GOALS[each["name"]]
    what = f"goal of economy at {name}"
    yield Row(f"{what}: surprise", each["surprise"]["pooled"], "bits/byte", goal.surprise)
    yield Row(f"{what}: bill", each["bill"]["pooled"], "%", goal.bill)
    for (field, words), least in zip(RECALLS, goal.recall, strict=True):
        yield Row(f"{what}: {words}", each[field]["pooled"], "%", least, at_least=True)
    yield Row(f"{what}: breaks per request", each["breaks"]["pooled"] / 100, "%", goal.breaks / 100)
    yield Row(f"{what}: over", each["over"], "requests", 0)
    yield Row(f"{what}: highest bill of a conversation", each["bill_highest"], "%", MAX_HIGHEST_BILL)


def _bits(surprise: float | None) -> str:
    return "–" if surprise is None else f"{surprise:.3f}"


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bench_surprise")
    parser.add_argument("--limit", type=int, default=DEFAULT_LIMIT, metavar="N", help="conversations at most")
    parser.add_argument("--minutes", type=float, metavar="N", help="begin no conversation later")
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS, metavar="TOKENS")
    given = parser.parse_args()
    options = replay_options(given.limit, given.minutes, given.windows)
    results = replay_beside_peers("bench.surprise_replay", *options)
    print_tables([each for each in results if "missing" not in each])


def print_tables(found: Sequence[Json]) -> None:
    """Print the results of both halves."""
    strata = [name for name, _ in STRATA]
    for half in HALVES:
        some = [each for each in found if each["half"] == half]
        pressure = [each for each in some if each["by"] == "pressure"]
        default = [each for each in pressure if each["is_default"]]
        _print_table(f"Half {half}, surprise at bill by pressure", default, "label", "name", strata)
        for stratum in strata:
            swept = [each for each in pressure if each["target"] is not None and each["name"] == stratum]
            targets = list(map(str, TARGETS))
            title = f"Half {half}, frontier at pressure {stratum}: surprise at bill by target"
            _print_table(title, swept, "family", "target", targets)
        windows = [each for each in some if each["by"] == "window" and each["is_default"]]
        names = list(dict.fromkeys(each["name"] for each in windows))
        _print_table(f"Half {half}, surprise at bill by window", windows, "label", "name", names)


def _print_table(title: str, found: Sequence[Json], row: str, column: str, columns: Sequence[str]) -> None:
    """Print the surprise at the bill, with one line for each value of `row`."""
    if not found:
        return
    print(f"\n{title}\n\n| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    cells = {(each[row], str(each[column])): each for each in found}
    for name in dict.fromkeys(each[row] for each in found):
        shown = (_cell(cells.get((name, each))) for each in columns)
        print(f"| {name} | {' | '.join(shown)} |")


def _cell(each: Json | None) -> str:
    if each is None:
        return "–"
    over = f", {each['over']} over" if each["over"] else ""
    return f"{_bits(each['surprise']['pooled'])} at {percent(each['bill']['pooled'])}{over}"


if __name__ == "__main__":
    main()
