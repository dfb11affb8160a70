"""Measures what the reducers of other packages cost and forget on recorded conversations, beside Foveal's.

`peer_replay` explains the replay. It runs in the environment that `make bench` makes for the peers, on the recorded
conversations in the folder that `FOVEAL_BENCH_DATA` names, or in `shared/data` beside the checkout.

    python -m bench peer_recall --limit 20    print one row per stratum of pressure and reducer
    python -m bench.bench_peer_recall         print the same as a table in Markdown
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.bench_fit import PEERS_PYTHON
from bench.bench_ledger import DATA
from bench.bench_redaction import DATA_VARIABLE
from bench.measure import Row, progress
from bench.work import Json


def rows(limit: int | None = None) -> Iterator[Row]:
    if not data_folder().exists():
        yield Row("bill", None, note=f"there are no recorded conversations; name a folder in {DATA_VARIABLE}")
        return
    progress("peer_recall: replaying …")
    found = replay_beside_peers("bench.peer_replay", *_limit_option(limit))
    for missing in (each["missing"] for each in found if "missing" in each):
        yield Row(f"{missing}: not installed", None, note="make bench installs it")
    if any(not each["counter"].startswith("Exact") for each in _by_pressure(found)):
        yield Row("tokens are estimated", None, note="the peers' environment has no vocabulary (toktok-rs)")
    for each in _by_pressure(found):
        yield Row(f"{each['name']}: {each['reducer']}", each["bill"]["pooled"], "%", note=_note(each))


def data_folder() -> Path:
    """Return the folder of the recorded conversations."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named) if named else DATA


def replay_beside_peers(module: str, *arguments: str) -> list[Json]:
    """Run a module in the environment of the peers, and return the JSON objects that it prints."""
    python = PEERS_PYTHON if PEERS_PYTHON.exists() else sys.executable
    command = [str(python), "-m", module, str(data_folder().resolve()), *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1], check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _by_pressure(found: list[Json]) -> list[Json]:
    """Return the results in the order of pressure; within a stratum they keep their order."""
    results = [each for each in found if "missing" not in each]
    order = list(dict.fromkeys(each["name"] for each in results))
    return sorted(results, key=lambda each: order.index(each["name"]))


def _note(each: Json) -> str:
    return (
        f"{percent(each['bill_without_summaries'])} without summaries, highest {percent(each['bill_highest'])}; "
        f"names {recall_text(each, 'ident')}, lines {recall_text(each, 'line')}; task {percent(each['task'])}; "
        f"{each['breaks']['pooled']:.1f} breaks per 100, {each['over']} over; "
        f"{each['conversations']} conversations, {each['calls']:,} calls"
    )


def recall_text(each: Json, kind: str) -> str:
    """Return the recall of all needs of a kind, and of far ones."""
    return f"{percent(each[kind]['pooled'])} / far {percent(each[f'{kind}_far']['pooled'])}"


def percent(share: float | None) -> str:
    """Return a share in percent."""
    return "–" if share is None else f"{100 * share:.1f} %"


def _limit_option(limit: int | None) -> list[str]:
    return [] if limit is None else ["--limit", str(limit)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bench_peer_recall")
    parser.add_argument("--limit", type=int, metavar="N", help="conversations at most; default: all")
    limit = parser.parse_args().limit
    heads = (
        "bill | without summaries | highest bill | names / far | lines / far | task | breaks per 100 | over"
    )
    print(f"| pressure | reducer | {heads} |\n|---|---|{'--:|' * 8}")
    for each in _by_pressure(replay_beside_peers("bench.peer_replay", *_limit_option(limit))):
        cells = (
            each["name"],
            each["reducer"],
            percent(each["bill"]["pooled"]),
            percent(each["bill_without_summaries"]),
            percent(each["bill_highest"]),
            *(recall_text(each, kind).replace("far ", "").replace(" %", "") for kind in ("ident", "line")),
            percent(each["task"]),
            f"{each['breaks']['pooled']:.1f}",
            f"{each['over']:,}",
        )
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
