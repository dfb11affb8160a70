"""Processes of the server's benchmarks: `foveal serve`, a fake upstream, and a PostgreSQL server.

Each function is a context manager that ends what it has started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple

CHECKOUT: Final = Path(__file__).parents[1]
MAX_STOP_S: Final = 60


class ServerProcess(NamedTuple):
    """A running `foveal serve`."""

    process: subprocess.Popen[str]
    port: int

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, of all its threads."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(
    *, settings: Sequence[str] = (), folder: str | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    """Start a server on a free port, in a new folder if none is given; `settings` are `key=value`. The model of its
    sessions is `bench.slow_model`, unless `environment` names another."""
    with tempfile.TemporaryDirectory(prefix="foveal-bench-") as place:
        command = [sys.executable, "-m", "foveal.cli", "serve", "--port", "0"]
        if not any(setting.startswith("server.database=") for setting in settings):  # it takes one of them
            command += ["--folder", folder or place]
        command += [part for setting in ("server.rate=0", *settings) for part in ("--set", setting)]
        variables = {**_own_environment(place), **(environment or {})}
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=variables, cwd=CHECKOUT
        ) as process:
            drain = Thread(target=lambda: process.stderr and process.stderr.read(), daemon=True)
            try:
                port = _listening_port(process)
                drain.start()
                yield ServerProcess(process, port)
            finally:
                _stop(process)
                if drain.ident is not None:
                    drain.join()


def _own_environment(home: str) -> dict[str, str]:
    """Return the environment without the user's configuration, database and bots."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FOVEAL_", "XDG_")) and not name.endswith(("_API_KEY", "_BOT_TOKEN"))
    }
    return {**kept, "HOME": home, "FOVEAL_PROVIDER": "bench.slow_model:provider"}


def _listening_port(process: subprocess.Popen[str]) -> int:
    """Read the log until the server listens."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        if '"listening"' in line:
            return int(json.loads(line)["url"].rpartition(":")[2])
        lines.append(line)
    raise RuntimeError(f"the server did not start: {''.join(lines[-5:])}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(MAX_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def upstream() -> Iterator[int]:
    """Start the provider of `bench.loopback`; yield its port."""
    with _loopback() as running:
        yield running.port


@contextmanager
def relay(to: int) -> Iterator[ServerProcess]:
    """Start the bare relay of `bench.loopback` to a port."""
    with _loopback(str(to)) as running:
        yield running


@contextmanager
def _loopback(*arguments: str) -> Iterator[ServerProcess]:
    command = [sys.executable, "-m", "bench.loopback", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
    ) as process:
        assert process.stdout is not None
        try:
            yield ServerProcess(process, int(process.stdout.readline()))
        finally:
            process.communicate("")  # it ends with its standard input


class PostgresMissing(Exception):
    """No PostgreSQL server can run here."""


@contextmanager
def postgres_database() -> Iterator[str]:
    """Yield the URL of an empty database; raises `PostgresMissing`, or `ImportError` without psycopg.

    The server is that of the tests, but it writes to the disk at each commit as SQLite does."""
    tests = import_from_tests("support.postgres_server")
    if problem := tests.why_not():
        raise PostgresMissing(problem)
    if os.environ.get("FOVEAL_TEST_POSTGRES"):
        url = tests.fresh_database()
        try:
            yield url
        finally:
            tests.drop_database(url)
    else:
        with tests.own_server() as own:
            yield own.url


def import_from_tests(name: str) -> Any:
    """Return a module of the tests, which are no package of the project."""
    folder = str(CHECKOUT / "tests")
    sys.path.append(folder)
    try:
        return import_module(name)
    finally:
        sys.path.remove(folder)
