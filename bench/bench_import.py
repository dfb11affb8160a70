"""Measures `import foveal` in new interpreters: modules loaded, and time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from bench.measure import Row, progress

MAX_MODULES: Final = 100
RUNS: Final = 7
_HIDE_TYPING_EXTENSIONS: Final = "import sys; sys.modules['typing_extensions'] = None"
"""Simulates an installation of foveal and its dependencies only: msgspec loads typing_extensions if present."""
_SCRIPT: Final = """
import sys, time
before = set(sys.modules)
start = time.process_time()
import foveal
imported = time.process_time() - start
modules = len(set(sys.modules) - before)
foveal.Context
used = len(set(sys.modules) - before)
foveal.Context("gpt-4.1")
ready = time.process_time() - start
import json
print(json.dumps({"modules": modules, "used": used, "imported": imported, "ready": ready}))
"""


def rows() -> Iterator[Row]:
    progress("import: fresh interpreters …")
    runs = [_run() for _ in range(RUNS)]
    yield Row(
        "import foveal: modules it loads", runs[0]["modules"], "modules", MAX_MODULES, "including its own"
    )
    note = f"no target; {_run(_HIDE_TYPING_EXTENSIONS)['used']} where typing_extensions is not installed"
    yield Row("foveal.Context looked up: modules", runs[0]["used"], "modules", note=note)
    yield Row("import foveal: time", min(run["imported"] for run in runs), note=f"best of {RUNS}, compiled")
    ready = min(run["ready"] for run in runs)
    yield Row("import and the first Context", ready, note="with the model table and the vocabulary")


def _run(before: str = "") -> dict[str, Any]:
    command = [sys.executable, "-c", before + _SCRIPT]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    run: dict[str, Any] = json.loads(result.stdout)
    return run
