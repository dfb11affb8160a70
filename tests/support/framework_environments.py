"""Environments of the frameworks that do not fit into the environment of the tests.

1. Each is in `.venv/adapters/NAME`, made when it is first used, with the versions of
   `tests/adapters/isolated/constraints/NAME.txt`. A change of these versions makes it anew.
2. The tests in `tests/adapters/isolated` run in the environment of their framework, in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
ISOLATED: Final = ROOT / "tests" / "adapters" / "isolated"
PACKAGES: Final = {
    "litellm": ("litellm[proxy]",),
    "smolagents": ("smolagents[openai]",),
    "crewai": ("crewai",),
    "llama_index": ("llama-index-core", "llama-index-llms-openai"),
    "autogen": ("autogen-agentchat", "autogen-ext[openai]"),
    "haystack": ("haystack-ai",),
    "dspy": ("dspy", "litellm", "mcp"),
    "ag2": ("ag2[openai]",),
    "strands": ("strands-agents[openai]",),
    "google_adk": ("google-adk",),
    "deepagents": ("deepagents", "langchain-openai"),
}
"""What is installed in each environment, beside Foveal and the tools of its tests."""
TEST_TOOLS: Final = ("pytest", "pytest-xdist", "hypothesis")
QUIET_FRAMEWORKS: Final = {
    "NO_PROXY": "127.0.0.1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
}
"""Keeps frameworks from looking for updates and from reporting to their makers."""


def other_environments() -> list[str]:
    """Return the frameworks whose environment is not the running one."""
    return [name for name in PACKAGES if Path(sys.prefix).name != name]


def framework_tests(name: str) -> list[Path]:
    """Return the test files of a framework: `test_NAME.py`, and `test_NAME_….py` for its parts."""
    return [ISOLATED / f"test_{name}.py", *sorted(ISOLATED.glob(f"test_{name}_*.py"))]


def framework_python(name: str) -> Path:
    """Return the Python of an environment, which is made if it is missing or has other versions."""
    folder = ROOT / ".venv" / "adapters" / name
    python = folder / "bin" / "python"
    versions = (ISOLATED / "constraints" / f"{name}.txt").read_text()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        made = folder / ".made"
        if not made.exists() or made.read_text() != versions:
            venv.create(folder, with_pip=True, clear=True)
            _install(python, name)
            made.write_text(versions)
    return python


def _install(python: Path, name: str) -> None:
    constraints = ISOLATED / "constraints" / f"{name}.txt"
    command = [python, "-m", "pip", "-q", "--disable-pip-version-check", "install", "-c", constraints]
    subprocess.run([*command, "-e", f"{ROOT}[exact]", *TEST_TOOLS, *PACKAGES[name]], check=True)


def run_isolated_tests(name: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a framework in its environment. Only Foveal's warnings are errors."""
    warnings = "filterwarnings=ignore\nerror:::foveal"
    command = [
        framework_python(name),
        "-m",
        "pytest",
        "-n",
        "0",
        "-o",
        warnings,
        *framework_tests(name),
    ]
    return subprocess.run(
        command, cwd=ROOT, env=framework_variables(name), capture_output=True, text=True, check=False
    )


def framework_variables(name: str) -> dict[str, str]:
    """Return the environment variables for a program that uses a framework. Frameworks keep their files in the
    folder of their environment, not in those of the user."""
    user = ROOT / ".venv" / "adapters" / name / "user"
    folders = {variable: str(user) for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    return {**os.environ, **QUIET_FRAMEWORKS, **folders}
