"""Programs from npm and PyPI, run without a terminal against a local server.

`installed` returns the program of a client. It installs the pinned version on first use, into a folder of the
user's cache with the name and version of the package, and skips the test where it cannot be installed.
The clients can reach this machine only: every other address goes to a proxy that does not exist.
Claude Code and Codex are here, the other coding agents in `coding_clients`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pytest

from foveal.providers.local import download

INSTALL_TIMEOUT_S: Final = 600
CLIENT_TIMEOUT_S: Final = 600
NO_PROXY_PORT: Final = 9
"""The discard port: no proxy listens there."""


class Client(NamedTuple):
    """A package of npm or PyPI, and the program in it."""

    package: str
    version: str
    program: str
    source: Literal["npm", "pypi"] = "npm"

    @property
    def folder_name(self) -> str:
        return f"{self.package.rpartition('/')[2]}-{self.version}"

    @property
    def program_path(self) -> Path:
        """Where the program is, inside of its folder."""
        return Path("node_modules/.bin" if self.source == "npm" else "bin") / self.program


CLAUDE_CODE: Final = Client("@anthropic-ai/claude-code", "2.1.325", "claude")
CODEX: Final = Client("@openai/codex", "0.166.0", "codex")


def clients_folder() -> Path:
    """Return the cache folder of the clients, beside the cache of local models."""
    return download.weights_folder(os.environ).parent / "test-clients"


def is_installed(client: Client) -> bool:
    """Return whether the program of a client is in the cache folder."""
    return (clients_folder() / client.folder_name / client.program_path).exists()


@cache
def installed(client: Client) -> Path:
    """Return the program of a client; skips the test if it cannot be installed."""
    folder = clients_folder() / client.folder_name
    program = folder / client.program_path
    if not is_installed(client):
        folder.parent.mkdir(parents=True, exist_ok=True)
        install = _install_from_npm if client.source == "npm" else _install_from_pypi
        install(client, folder)
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=CLIENT_TIMEOUT_S)
    if client.version not in shown.stdout + shown.stderr:  # pi prints it as an error
        pytest.skip(f"{client.program} {client.version} does not run on this machine")
    return program


def _install_from_npm(client: Client, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        named = f"{client.package}@{client.version}"
        _install([npm, "install", "--no-audit", "--no-fund", "--prefix", unfinished, named], named)
        shutil.copytree(unfinished, folder, symlinks=True, dirs_exist_ok=True)


def _install_from_pypi(client: Client, folder: Path) -> None:
    """Install a package in a virtual environment of its own, which cannot be moved once it is made."""
    venv.create(folder, with_pip=True, clear=True)
    named = f"{client.package}=={client.version}"
    try:
        _install([str(folder / "bin/pip"), "install", "-q", named], named)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _install(command: list[str], named: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip(f"{named} cannot be installed: is its registry reachable?")


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


def run_claude_code(
    home: Path,
    url: str,
    prompt: str,
    *,
    continued: bool,
    model: str = "claude-sonnet-4-5",
    more: dict[str, str] | None = None,
) -> str:
    """Run one turn of Claude Code and return its last answer; `more` is added to its environment."""
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "sk-ant-of-the-client",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "MCP_TIMEOUT": str(CLIENT_TIMEOUT_S * 1_000),
        **(more or {}),
    }
    arguments = ["-p", prompt, "--model", model, "--output-format", "json"]
    arguments += ["--allowedTools", "Bash,Read", *(["--continue"] if continued else [])]
    result: dict[str, Any] = json.loads(run_client(CLAUDE_CODE, arguments, home, environment))
    return str(result["result"])


def run_codex(
    home: Path,
    url: str,
    prompt: str,
    *,
    continued: bool,
    first: str = "",
    more: str = "",
    is_built_in: bool = False,
) -> str:
    """Run one turn of Codex and return its last answer. Its sandbox lets commands read files only. `first` and
    `more` are added at the beginning and at the end of its settings. `is_built_in` uses its own provider."""
    settings = home / ".codex"
    settings.mkdir(exist_ok=True)
    own = built_in_codex_settings(url) if is_built_in else codex_settings(url)
    (settings / "config.toml").write_text(first + own + more, "utf-8")
    environment = {"CODEX_HOME": str(settings), "OPENAI_API_KEY": "sk-of-the-client"}
    start = ["exec", "--skip-git-repo-check", "--sandbox", "read-only"]
    arguments = [*start, "resume", "--last", prompt] if continued else [*start, prompt]
    return run_client(CODEX, arguments, home, environment).strip()


def codex_settings(url: str) -> str:
    """Return the settings of Codex; the provider is the one on its page."""
    return f"""\
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


def built_in_codex_settings(url: str) -> str:
    """Return the settings of Codex for its own provider, which has websockets."""
    return f"""\
model = "gpt-5.1-codex"
openai_base_url = "{url}/v1"
check_for_update_on_startup = false
[analytics]
enabled = false
"""


def run_client(
    client: Client,
    arguments: list[str],
    home: Path,
    environment: dict[str, str],
    *,
    typed: str = "",
    may_fail: bool = False,
) -> str:
    """Run a client in the project folder and return its output; `typed` is its input."""
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
        input=typed,
        capture_output=True,
        encoding="utf-8",
        timeout=CLIENT_TIMEOUT_S,
    )
    assert may_fail or done.returncode == 0, (
        f"{client.program} ended with {done.returncode}: {done.stdout}{done.stderr}"
    )
    return done.stdout
