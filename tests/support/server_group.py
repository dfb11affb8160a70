"""Three `foveal serve` processes on one database, each through its own proxy, and their faults.

A fault is a method that returns when it has begun and ended. A server that was ended is started again on its port
with its folder. `later_release` makes servers that start from then on run a copy of the source with another version
and one more migration, as in a rolling restart.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import psycopg

import foveal
from foveal.core.log.events import Event
from foveal.stores.postgres.connection import PostgresPool
from foveal.stores.postgres.store import PostgresStore
from support.cutting_proxy import CuttingProxy
from support.group_client import ClientLine, ClientOrder
from support.postgres_server import OwnServer, own_server
from support.serve_process import HERE, HttpReply, ask, environment_of

SERVERS: Final = 3
STEP_LIMIT_S: Final = 60.0
"""Seconds that any step may take on a busy machine."""
POLL_S: Final = 0.1
"""Seconds between two looks; each asks the database, over a new connection."""
MAX_STARTS: Final = 4
LATER_VERSION: Final = "99.0.0"
_MAIN: Final = """
import runpy, sys, time
shift, real = float(sys.argv.pop(1)), time.time
time.time = lambda: real() + shift
runpy.run_module("support.grouped_server", run_name="__main__")
"""
"""Moves the clock of a server before it imports anything. libfaketime 0.9.10 would break `time.sleep`."""
_LATER_MIGRATION: Final = """
SERVICE_MIGRATIONS = (
    *SERVICE_MIGRATIONS,
    Migration(SERVICE_MIGRATIONS[-1].version + 1, ("ALTER TABLE foveal.inbox ADD COLUMN later text",)),
)
"""


def free_port(random: Random) -> int:
    """Return a port that no connection gets from the system, so that a server that restarts finds it free."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class GroupMember:
    """One server: its port, folder and proxy stay the same over its restarts."""

    def __init__(
        self, name: str, folder: Path, proxy: CuttingProxy, environment: dict[str, str], *, clock_s: float
    ) -> None:
        """`clock_s`: how many seconds its clock is ahead."""
        self.name = name
        self._clock_s = clock_s
        self.proxy = proxy
        self.url = f"http://127.0.0.1:{free_port(Random())}"
        self._folder = folder
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    @property
    def log(self) -> str:
        """What the server has written to its standard error output, over all starts."""
        return (self._folder / "log").read_text("utf-8", "replace")

    def start(self, source: Path | None) -> None:
        """Start the process; `source` is the folder of another release."""
        environment = dict(self._environment)
        if source is not None:
            environment["PYTHONPATH"] = os.pathsep.join([str(source), environment["PYTHONPATH"]])
        port = self.url.rpartition(":")[2]
        command = [sys.executable, "-c", _MAIN, str(self._clock_s), f"--port={port}"]
        command += ["--set", "tokenizer=estimate", "--set", "server.grace=1"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_until_ready(self) -> bool:
        """Wait until the server answers requests; return False if it has ended."""
        until = time.monotonic() + STEP_LIMIT_S
        while time.monotonic() < until:
            try:
                if ask(self.url, "/healthz").status:
                    return True
            except OSError:
                time.sleep(0.05)
            if not self.is_running:
                return False
        raise AssertionError(f"{self.name} does not answer:\n{self.log[-3000:]}")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends the process, and wait for that."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        self._process.wait(STEP_LIMIT_S)


class ServerGroup:
    """The servers, their database, and what happens to them."""

    def __init__(self, folder: Path, database: OwnServer, members: list[GroupMember], random: Random) -> None:
        self.members = members
        self.happened: list[tuple[float, str]] = []
        """Faults with the monotonic times at which they began."""
        self._folder = folder
        self._database = database
        self._random = random
        self._release: Path | None = None

    @property
    def asked(self) -> list[tuple[str, str]]:
        """The name of the server and the message, for each request to the model."""
        lines = (self._folder / "asked").read_text("utf-8").splitlines()
        return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]

    def any_member(self) -> int:
        return self._random.randrange(len(self.members))

    def history(self) -> str:
        """Return the faults, each with the second at which it began."""
        began = self.happened[0][0]
        return "; ".join(f"{at - began:.0f} s {what}" for at, what in self.happened)

    def ask(self, member: int, path: str, **how: Any) -> HttpReply:
        return ask(self.members[member].url, path, **how)

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect to the database directly."""
        return psycopg.connect(self._database.url, autocommit=True)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Ask the database directly."""
        with self.connect() as connection:
            return connection.execute(sql.encode()).fetchall()

    def logs(self) -> dict[str, list[Event]]:
        """Return the events of all sessions."""

        async def read() -> dict[str, list[Event]]:
            async with PostgresPool(self._database.url) as pool:
                store = PostgresStore(pool)
                return {info.id: await store.read(info.id) for info in await store.sessions()}

        return asyncio.run(read())

    def wait(self, met: Callable[[], bool], what: str, *, seconds: float = STEP_LIMIT_S) -> float:
        """Wait until a condition is true; return the seconds that it took."""
        began = time.monotonic()
        while not met():
            passed = time.monotonic() - began
            assert passed < seconds, f"{what}: not within {seconds} s; {self.happened}"
            time.sleep(POLL_S)
        return time.monotonic() - began

    def is_all_answered(self) -> bool:
        sql = """SELECT (SELECT count(*) FROM foveal.inbox WHERE state <> 'done')
            + (SELECT count(*) FROM foveal.errands WHERE kind = 'run')"""
        return self.rows(sql) == [(0,)]

    # ── Faults of a server ───────────────────────────────────────────────────────────────────────────────

    def kill(self, member: int) -> None:
        """End a server as `kill -9` does, and start it again after a moment."""
        self._note(f"kill {member}")
        self.members[member].end(signal.SIGKILL)
        time.sleep(self._random.uniform(0.0, 0.5))
        self.start(member)

    def start(self, member: int) -> None:
        """Start a server; as a service manager does, again if it could not reach its database."""
        for _ in range(MAX_STARTS):
            self.members[member].start(self._release)
            if self.members[member].wait_until_ready():
                return
            self._note(f"{member} did not start")
        raise AssertionError(self.members[member].log[-3000:])

    def pause(self, member: int, seconds: float) -> None:
        """Stop a server for longer than its leases, and let it go on."""
        self._note(f"pause {member}")
        self.members[member].signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            self.members[member].signal(signal.SIGCONT)

    def restart(self, member: int) -> None:
        """Stop a server as a service manager does, and start it again."""
        self._note(f"restart {member}")
        self.members[member].end(signal.SIGTERM)
        self.start(member)

    def later_release(self) -> None:
        """Let servers that start from now on run another release."""
        self._note("later release")
        source = self._folder / "later"
        package = Path(foveal.__file__).parent
        shutil.copytree(package, source / "foveal")  # with the compiled files: the server starts sooner
        face = source / "foveal" / "__init__.py"
        text, count = re.subn(
            r'__version__ = "[^"]+"', f'__version__ = "{LATER_VERSION}"', face.read_text("utf-8")
        )
        assert count == 1
        face.write_text(text, "utf-8")
        schema = source / "foveal" / "server" / "databases" / "postgres_database.py"
        schema.write_text(schema.read_text("utf-8") + _LATER_MIGRATION, "utf-8")
        self._release = source

    # ── Faults of the network ────────────────────────────────────────────────────────────────────────────

    def disturb(self, member: int, fault: str, seconds: float) -> None:
        """Let the connections of a server fail for a time: `fault` is a method of the proxy without arguments."""
        self._note(f"{fault} {member}")
        proxy = self.members[member].proxy
        getattr(proxy, fault)()
        try:
            time.sleep(seconds)
        finally:
            proxy.restore()

    def cut_commits(self, member: int, *, times: int = 2) -> None:
        """Break connections before, during or after COMMIT."""
        self._note(f"cut commits {member}")
        proxy = self.members[member].proxy
        for fault in self._random.sample(("reply_lost", "never_arrives", "arrives_late"), 3):
            proxy.cut_next_commit(fault, times=times)  # type: ignore[arg-type]
        self._wait_quietly(lambda: not proxy.commit_faults, seconds=5)
        proxy.restore()

    # ── Faults of the database ───────────────────────────────────────────────────────────────────────────

    def stop_database(self, seconds: float) -> None:
        """End the database as a crash does, and start it again."""
        self._note("stop the database")
        self._database.stop("immediate")
        time.sleep(seconds)
        self._database.start()

    def _note(self, what: str) -> None:
        self.happened.append((time.monotonic(), what))

    def _wait_quietly(self, met: Callable[[], bool], *, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not met() and time.monotonic() < until:
            time.sleep(POLL_S)


class LeaseWatch:
    """Reads the leases all the time; `faults` has each epoch that fell or that two owners had."""

    def __init__(self, group: ServerGroup) -> None:
        self.faults: list[str] = []
        self.epochs: dict[tuple[str, str], tuple[int, str | None]] = {}
        self._group = group
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> LeaseWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ending.is_set():
            with suppress(psycopg.Error), self._group.connect() as connection:  # the database may be stopped
                while not self._ending.wait(0.05):
                    self._read_leases(connection)
            self._ending.wait(0.05)

    def _read_leases(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        rows = connection.execute("SELECT tenant, name, epoch, owner FROM foveal.lease").fetchall()
        for tenant, name, epoch, owner in rows:
            before, holder = self.epochs.get((tenant, name), (0, None))
            has_two = epoch == before and owner and holder and owner != holder
            if epoch < before or has_two:
                self.faults.append(f"{name}: {before} of {holder}, then {epoch} of {owner}")
            kept = holder if epoch == before and owner is None else owner
            self.epochs[tenant, name] = epoch, kept


@contextmanager
def server_group(folder: Path, random: Random, *, is_short: bool) -> Iterator[ServerGroup]:
    """Run a group. The last server gets no notifications, and the clocks of two servers are an hour off."""
    with own_server() as database, ExitStack() as stack:
        members = []
        for number in range(SERVERS):
            proxy = stack.enter_context(CuttingProxy(database.url))
            home = folder / f"home{number}"
            home.mkdir()
            environment = environment_of(
                home,
                FOVEAL_PROVIDER="support.grouped_server:number_model",
                FOVEAL_DATABASE=proxy.url,
                GROUP_NAME=f"server{number}",
                GROUP_ASKED=str(folder / "asked"),
                GROUP_TIMES="short" if is_short else "",
                GROUP_LISTENS="no" if number == SERVERS - 1 else "yes",
            )
            place = folder / f"server{number}"
            members.append(GroupMember(place.name, place, proxy, environment, clock_s=3600.0 * (1 - number)))
        group = ServerGroup(folder, database, members, random)
        (folder / "asked").touch()
        try:
            for member in members:
                member.start(None)
            for member in members:
                assert member.wait_until_ready(), member.log
            yield group
        finally:
            for member in members:
                if member.is_running:
                    member.end(signal.SIGKILL)


class ClientProcess:
    """A process with the clients of a group."""

    def __init__(self, folder: Path, order: ClientOrder) -> None:
        self._order = order
        self._log = folder / "clients.log"
        (folder / "order.json").write_bytes(msgspec.json.encode(order))
        environment = environment_of(folder)
        script = HERE / "support" / "group_client.py"
        self._errors = (folder / "clients.err").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(folder / "order.json"), str(self._log)],
            env=environment, stdin=subprocess.DEVNULL, stdout=self._errors, stderr=self._errors,
        )  # fmt: skip

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(STEP_LIMIT_S)
        self._errors.close()

    def lines(self) -> list[ClientLine]:
        """Return what the clients have logged so far."""
        text = self._log.read_bytes() if self._log.exists() else b""
        return [msgspec.json.decode(line, type=ClientLine) for line in text.split(b"\n")[:-1]]

    @property
    def has_begun(self) -> bool:
        return self._log.exists() and self._log.stat().st_size > 0

    def end(self) -> list[ClientLine]:
        """Let the clients finish what they have begun; return their log."""
        Path(self._order.stop).touch()
        code = self._process.wait(self._order.deadline_s + STEP_LIMIT_S)
        assert code == 0, Path(self._errors.name).read_text("utf-8")
        return self.lines()
