"""Measures what the adapters of frameworks and the HTTP transport add to a request.

Each framework runs in a process of its own (`bench.framework_agents`): in the environment that its tests have made
below `.venv/adapters`, or in this one. The provider is another local process that answers at once. A framework that
is not installed is a row without a figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import Final

from bench.framework_agents import CASES, MESSAGES, NARROW_WINDOW, REQUESTS, Measured
from bench.measure import Row, display, progress, quantile
from bench.processes import CHECKOUT, import_from_tests, upstream

TIMEOUT_S: Final = 600


def rows() -> Iterator[Row]:
    with upstream() as port:
        for name, case in CASES.items():
            progress(f"adapters: {name} …")
            python = _python(name)
            if python is None:
                note = "not installed; FOVEAL_SOAK=1 runs its tests, which make its environment"
                yield Row(f"{case.package}: overhead per request", None, note=note)
                continue
            try:
                yield from _framework_rows(case.package, _measured(python, name, port))
            except (subprocess.SubprocessError, ValueError) as error:
                yield Row(f"{case.package}: overhead per request", None, note=_reason(error))


def _framework_rows(package: str, found: Measured) -> Iterator[Row]:
    """Yield the rows of a framework. The first request of a conversation, which reads the whole history, is only in
    the notes."""
    name = f"{package} {found['version']}"
    added = [
        with_adapter - alone for with_adapter, alone in zip(found["fitted"], found["alone"], strict=True)
    ]
    note = f"{MESSAGES} messages, {REQUESTS} requests"
    yield Row(f"{name}: request of the framework alone", mean(found["alone"][1:]), note=note)
    note = f"middle half of the requests {_milliseconds(added[1:])}"
    yield Row(f"{name}: overhead per request", max(median(added[1:]), 0.0), note=note)
    for what, fits in (
        ("the whole history", found["fits"]),
        (f"{NARROW_WINDOW:,} tokens", found["narrow_fits"]),
    ):
        if fits:
            note = f"first request {display(fits[0], 's')}"
            yield Row(f"{name}: its fit, {what}", mean(fits[1:]), note=note)


def _milliseconds(seconds: Sequence[float]) -> str:
    """Return the middle half of some differences, which may be below zero on a machine with other load."""
    low, high = (1_000 * quantile(seconds, share) for share in (0.25, 0.75))
    return f"{low:.1f} to {high:.1f} ms"


def _python(name: str) -> Path | None:
    """Return the interpreter that has a framework installed."""
    own = CHECKOUT / ".venv" / "adapters" / name / "bin" / "python"
    if own.exists():
        return own
    try:
        return Path(sys.executable) if find_spec(CASES[name].module) else None
    except ModuleNotFoundError:  # the package above it is missing
        return None


def _measured(python: Path, name: str, port: int) -> Measured:
    environments = import_from_tests("support.framework_environments")
    command = [str(python), "-m", "bench.framework_agents", name, str(port)]
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env=environments.framework_variables(name),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    measured: Measured = json.loads(done.stdout.splitlines()[-1])
    return measured


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return str(error.stderr).strip().rpartition("\n")[2]
    return str(error)
