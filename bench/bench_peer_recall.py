"""Measures what the reducers of other packages cost and forget on recorded conversations, beside Foveal's.

`peer_replay` explains the replay. It runs in the environment that `make bench` makes for the peers, on the recorded
conversations in the folder that `FOVEAL_BENCH_DATA` names, or in `shared/data` beside the checkout.

    python -m bench peer_recall               print one row per stratum of pressure and reducer
    python -m bench.bench_peer_recall         print the same as a table in Markdown
"""

from __future__ import annotations

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


def rows() -> Iterator[Row]:
    folder = _data_folder()
    if not folder.exists():
        yield Row("bill", None, note=f"there are no recorded conversations; name a folder in {DATA_VARIABLE}")
        return
    found = _replay(folder)
    for missing in (each["missing"] for each in found if "missing" in each):
        yield Row(f"{missing}: not installed", None, note="make bench installs it")
    if any(not each["counter"].startswith("Exact") for each in _by_pressure(found)):
        yield Row("tokens are estimated", None, note="the peers' environment has no vocabulary (toktok-rs)")
    for each in _by_pressure(found):
        yield Row(f"{each['name']}: {each['reducer']}", each["bill"]["pooled"], "%", note=_note(each))


def _data_folder() -> Path:
    named = os.environ.get(DATA_VARIABLE)
    return Path(named) if named else DATA


def _replay(folder: Path) -> list[Json]:
    progress("peer_recall: replaying …")
    python = PEERS_PYTHON if PEERS_PYTHON.exists() else sys.executable
    command = [str(python), "-m", "bench.peer_replay", str(folder.resolve())]
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
        f"{_percent(each['bill_without_summaries'])} without summaries, highest {_percent(each['bill_highest'])}; "
        f"names {_recall(each, 'ident')}, lines {_recall(each, 'line')}; task {_percent(each['task'])}; "
        f"{each['breaks']['pooled']:.1f} breaks per 100, {each['over']} over; "
        f"{each['conversations']} conversations, {each['calls']:,} calls"
    )


def _recall(each: Json, kind: str) -> str:
    return f"{_percent(each[kind]['pooled'])} / far {_percent(each[f'{kind}_far']['pooled'])}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def main() -> None:
    heads = (
        "bill | without summaries | highest bill | names / far | lines / far | task | breaks per 100 | over"
    )
    print(f"| pressure | reducer | {heads} |\n|---|---|{'--:|' * 8}")
    for each in _by_pressure(_replay(_data_folder())):
        cells = (
            each["name"],
            each["reducer"],
            _percent(each["bill"]["pooled"]),
            _percent(each["bill_without_summaries"]),
            _percent(each["bill_highest"]),
            *(_recall(each, kind).replace("far ", "").replace(" %", "") for kind in ("ident", "line")),
            _percent(each["task"]),
            f"{each['breaks']['pooled']:.1f}",
            f"{each['over']:,}",
        )
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
