"""Prints the stored results as the Markdown table of docs/measure/benchmarks.md: `python -m bench.table`."""

from __future__ import annotations

import json

from bench.__main__ import RESULTS
from bench.measure import Row


def table() -> str:
    results = json.loads(RESULTS.read_text())
    lines = ["| | what | measured | target | | note |", "|---|---|--:|--:|---|---|"]
    group = ""
    for plain in results["rows"]:
        row = Row(**{field: plain[field] for field in Row._fields if field in plain})
        verdict = "**missed**" if row.verdict == "missed" else row.verdict
        shown = "" if plain["group"] == group else plain["group"]
        group = plain["group"]
        lines.append(f"| {shown} | {row.what} | {row.measured} | {row.target} | {verdict} | {row.note} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
