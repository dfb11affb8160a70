"""Claude Code and Codex from npm, run without a terminal against a local server.

`installed` returns the folder of a client's programs. It installs the pinned version on first use, into a folder of
the user's cache with the name and version of the package, and skips the test where npm or its registry is missing.
The clients can reach this machine only: every other address goes to a proxy that does not exist.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from foveal.providers.local import download
from support.provider_stand_in import Answer, Json, StandIn

INSTALL_TIMEOUT_S: Final = 600
CLIENT_TIMEOUT_S: Final = 600
NO_PROXY_PORT: Final = 9
"""The discard port: no proxy listens there."""


class Client(NamedTuple):
    """A package of npm, and the program in it."""

    package: str
    version: str
    program: str

    @property
    def folder_name(self) -> str:
        return f"{self.package.rpartition('/')[2]}-{self.version}"


CLAUDE_CODE: Final = Client("@anthropic-ai/claude-code", "2.1.325", "claude")
CODEX: Final = Client("@openai/codex", "0.166.0", "codex")


def clients_folder() -> Path:
    """Return the cache folder of the clients, beside the cache of local models."""
    return download.cache_folder(os.environ).parent / "test-clients"


def installed(client: Client) -> Path:
    """Return the program of a client; skips the test if it cannot be installed."""
    folder = clients_folder() / client.folder_name
    program = folder / "node_modules" / ".bin" / client.program
    if not program.exists():
        _install(client, folder)
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=CLIENT_TIMEOUT_S)
    if client.version not in shown.stdout:
        pytest.skip(f"{client.program} {client.version} does not run on this machine")
    return program


def _install(client: Client, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        named = f"{client.package}@{client.version}"
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", unfinished, named]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            pytest.skip(f"npm cannot install {named}: is its registry reachable?")
        shutil.copytree(unfinished, folder, symlinks=True, dirs_exist_ok=True)


# ── Running a client ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def client_home() -> Iterator[Path]:
    """Yield a new home folder with a project folder `work`. It is not in the folder for temporary files, because
    Codex creates no helper programs for its sandbox there."""
    clients_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=clients_folder(), prefix="home-", ignore_cleanup_errors=True
    ) as made:
        (Path(made) / "work").mkdir()
        yield Path(made)


def run_claude_code(home: Path, url: str, prompt: str, *, continued: bool) -> str:
    """Run one turn of Claude Code and return its last answer."""
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "sk-ant-of-the-client",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "MCP_TIMEOUT": str(CLIENT_TIMEOUT_S * 1_000),
    }
    arguments = ["-p", prompt, "--model", "claude-sonnet-4-5", "--output-format", "json"]
    arguments += ["--allowedTools", "Bash,Read", *(["--continue"] if continued else [])]
    result: dict[str, Any] = json.loads(_run(CLAUDE_CODE, arguments, home, environment))
    return str(result["result"])


def run_codex(home: Path, url: str, prompt: str, *, continued: bool, more: str = "") -> str:
    """Run one turn of Codex and return its last answer. Its sandbox lets commands read files only; `more` is added
    to its settings."""
    settings = home / ".codex"
    settings.mkdir(exist_ok=True)
    (settings / "config.toml").write_text(_CODEX_SETTINGS.format(url=url) + more, "utf-8")
    environment = {"CODEX_HOME": str(settings), "OPENAI_API_KEY": "sk-of-the-client"}
    start = ["exec", "--skip-git-repo-check", "--sandbox", "read-only"]
    arguments = [*start, "resume", "--last", prompt] if continued else [*start, prompt]
    return _run(CODEX, arguments, home, environment).strip()


_CODEX_SETTINGS: Final = """\
model = "gpt-5.1-codex"
model_provider = "local"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.local]
name = "local"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
supports_websockets = false
"""


def _run(client: Client, arguments: list[str], home: Path, environment: dict[str, str]) -> str:
    nowhere = f"http://127.0.0.1:{NO_PROXY_PORT}"
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
        "NO_PROXY": "127.0.0.1,localhost",
    }
    done = subprocess.run(
        [installed(client), *arguments],
        env=own | environment,
        cwd=home / "work",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=CLIENT_TIMEOUT_S,
    )
    assert done.returncode == 0, f"{client.program} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


# ── The upstream of the clients ──────────────────────────────────────────────────────────────────────────


class AgentUpstream(StandIn):
    """Lets a client call its own tools for some steps per turn, and writes valid summaries."""

    steps: int = 10
    """Requests of a turn that are answered with calls; the next one gets the final text."""
    summaries: int = 0
    answered: int = 0
    """Streamed requests that were answered; summaries are not streamed."""

    def next_answer(self, number: int, body: Json) -> Answer:
        if not body.get("stream"):
            self.summaries += 1
            return Answer(text=SUMMARY)
        tools = {tool.get("name") for tool in body.get("tools") or []}
        if not tools & {"Bash", "exec_command"}:
            return Answer(text="A title")
        self.answered += 1
        if self.answered % (self.steps + 1) == 0:
            return Answer(text=f"Turn {self.answered // (self.steps + 1)} is done.")
        calls = tuple(_calls(self.answered, tools))
        return Answer(text="I look further.", calls=calls, thought=f"Step {self.answered}.")


SUMMARY: Final = """\
<summary>
## Goal
The user wants the parts to be found.

## Decisions
-

## State
Some files were read.

## Next
Read further.

## Dead ends
-
</summary>"""


def _calls(number: int, tools: set[Any]) -> Iterator[tuple[str, Json | str]]:
    """Yield one or two calls: a command with an output of changing size, and a file that is read."""
    name, field = ("Bash", "command") if "Bash" in tools else ("exec_command", "cmd")
    yield (
        name,
        {field: f"seq -f 'line %g of part {number}' {number * 10} {number * 10 + 40 + number % 7 * 60}"},
    )
    if number % 3 == 0:
        yield ("Read", {"file_path": "notes.txt"}) if "Read" in tools else (name, {field: "cat notes.txt"})
