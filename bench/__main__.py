"""Runs the benchmarks, prints one table, and stores it in `bench/results/latest.json`.

python -m bench                   run all groups
python -m bench fit clip          run some of: import clip fold memory fit peers store session recall
                                  compaction ledger dropin survival redaction server adapters inspector peer_recall
                                  surprise coding_agents tools archive user_memory branches
python -m bench surprise --limit 8    replay at most 8 conversations; the same for peer_recall
python -m bench.table             print the stored results as Markdown
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench.measure import Row, progress

GROUPS: Final = (
    "import", "clip", "fold", "memory", "fit", "peers", "store", "session", "recall", "compaction", "ledger",
    "dropin", "survival", "redaction", "server", "adapters", "inspector", "peer_recall",
    "surprise", "coding_agents", "tools", "archive", "user_memory", "branches",
)  # fmt: skip
OPTIONS: Final = {
    "branches": ("limit",),
    "peer_recall": ("limit",),
    "surprise": ("limit", "minutes", "windows"),
}
"""Options of the groups that have some."""
RESULTS: Final = Path(__file__).parent / "results" / "latest.json"


def main(names: list[str], **options: Any) -> None:
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        sys.exit(f"unknown benchmark {unknown[0]!r}; available: {', '.join(GROUPS)}")
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that groups end the processes that they started
    machine = _machine()
    print(f"{machine['python']}, {machine['processor']}, {machine['cores']} cores, load {machine['load']}")
    rows = [(group, row) for group in names or GROUPS for row in _run_group(group, options)]
    RESULTS.parent.mkdir(exist_ok=True)
    results = {"machine": machine, "rows": [{"group": group, **row.plain()} for group, row in rows]}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    verdicts = [row.verdict for _, row in rows]
    print(f"\n{verdicts.count('ok')} of {len(verdicts) - verdicts.count('')} targets met; {RESULTS}")


def _run_group(group: str, options: dict[str, Any]) -> list[Row]:
    """Run one group with the options that it has, and print each row as soon as it is measured."""
    progress(f"{group} …")
    rows: list[Row] = []
    own = {name: options[name] for name in OPTIONS.get(group, ()) if options.get(name) is not None}
    for row in importlib.import_module(f"bench.bench_{group}").rows(**own):
        progress("")
        print(_line(group if not rows else "", row), flush=True)
        rows.append(row)
        progress(f"{group} …")
    progress("")
    return rows


def _line(group: str, row: Row) -> str:
    figures = f"{row.measured:>12} {row.target:>14}  {row.verdict:<6}"
    return f"{group:<7} {row.what:<68} {figures}  {row.note}".rstrip()


def _machine() -> dict[str, Any]:
    return {
        "at": time.strftime("%Y-%m-%d %H:%M"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def _processor() -> str:
    """Return the CPU model on Linux, otherwise the architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, platform.machine())


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="default: all groups")
    parser.add_argument("--limit", type=int, metavar="N", help="conversations of peer_recall and surprise")
    parser.add_argument("--minutes", type=float, metavar="N", help="surprise begins no conversation later")
    parser.add_argument("--windows", type=int, nargs="+", metavar="TOKENS", help="windows of surprise")
    return parser


if __name__ == "__main__":
    given = vars(arguments().parse_args())
    main(given.pop("groups"), **given)
