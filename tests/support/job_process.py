"""A job worker without a server, for tests that kill it: `python job_process.py FOLDER NAME [URL]`.

For each line `TENANT SESSION KEY` on stdin it requests a run and prints `stored KEY`; a line `stop` ends it as
SIGTERM ends a server. It prints `working` when it becomes an executor. Its model names the process that answered.
With the URL of a database, the process shares it with others. Files in FOLDER:

    asked      each request to the model adds a line `NAME PROMPT`
    gate       while it exists, the model waits
    failing    a prompt for which the model fails with a rate limit
    schedules  a time, and names of schedules that are due each minute; from that time on a second counts as one

`JOB_TIMING=production` uses the times of a server. `JOB_RELEASE` gives the engine other code than the one before.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from foveal.config import Config, load
from foveal.core.log import UserSaid, text_of
from foveal.core.view.request import Fitted
from foveal.errors import ProviderError
from foveal.ports import Reply, ReplyPiece
from foveal.server import Service
from foveal.server.jobs import JobWorker
from foveal.server.jobs.worker import DEFAULT_TIMING, ExecutorTiming, WorkerTiming
from foveal.server.runtime import Runtime
from foveal.testing import Scripted
from support.prompt_dbos import shorten_pauses

QUICK = WorkerTiming(
    poll_s=0.1,
    engine_poll_s=0.2,
    retry_delays_s=(0.05,) * 200,
    recovery_interval_s=0.3,
    executor=ExecutorTiming(heartbeat_s=0.4, silent_s=2.0),
)
CLOCK_SPEED = 60.0


class Model(Scripted):
    """Answers, waits or fails according to the files in its folder."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(name="scripted/model")
        self._folder = folder
        self._name = name

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        prompt = [text_of(fact.content) for fact in request.facts if isinstance(fact, UserSaid)][-1]
        with (self._folder / "asked").open("a") as asked:
            asked.write(f"{self._name} {prompt}\n")
        while (self._folder / "gate").exists():
            await asyncio.sleep(0.01)
        failing = self._folder / "failing"
        self._answers = [
            ProviderError("too many requests", code="rate")
            if failing.exists() and failing.read_text() == prompt
            else f"answered by {self._name}"
        ]
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece


def make(name: str | None, *, environment: dict[str, str], **_: Any) -> Model:
    return Model(Path(environment["WORK_FOLDER"]), environment["WORK_NAME"])


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def schedules_of(folder: Path) -> tuple[Config, Callable[[], float]]:
    """Return a configuration with the schedules of the folder, and the clock that they follow."""
    if not (folder / "schedules").exists():
        return Config(values={}), time.time
    begin, *names = (folder / "schedules").read_text().split()
    tables = [{"name": name, "session": name, "cron": "* * * * *", "prompt": f"do {name}"} for name in names]
    config = load(folder, flags={"schedule": tables}, environ={}, user_folder=folder)
    return config, lambda: float(begin) + (time.time() - float(begin)) * CLOCK_SPEED


@asynccontextmanager
async def opened_service(folder: Path, name: str, url: str) -> AsyncIterator[Service]:
    environment = {
        "FOVEAL_PROVIDER": "job_process:make",
        "WORK_FOLDER": str(folder),
        "WORK_NAME": name,
    }
    if not url:
        async with Service.open(
            Config(values={}), folder=folder / "server", environment=environment
        ) as service:
            yield service
        return
    # Opened in its parts, to have leases that end as soon as the executors of these tests count as dead.
    from foveal.server.postgres_storage import PostgresStorage
    from foveal.stores.postgres.leases import LEASE_TIMES, LeaseTimes

    is_quick = os.environ.get("JOB_TIMING") != "production"
    times = LeaseTimes(lease=1.5, renew=0.3, give_up=1.2, poll=0.1) if is_quick else LEASE_TIMES
    config, clock = schedules_of(folder)
    service = Service(
        Runtime(config, PostgresStorage(url, times=times), environment=environment, clock=clock)
    )
    try:
        yield service
    finally:
        await service.close()


def change_release(name: str) -> None:
    """Register another workflow: DBOS computes the version of an application from the code of its workflows."""
    from dbos import DBOS

    @DBOS.workflow(name=name)
    def other() -> str:
        return name


async def main(folder: Path, name: str, url: str) -> None:
    if release := os.environ.get("JOB_RELEASE"):
        change_release(release)
    timing = DEFAULT_TIMING if os.environ.get("JOB_TIMING") == "production" else QUICK
    if timing is QUICK:
        shorten_pauses(longest_s=0.5)
    async with opened_service(folder, name, url) as service, JobWorker.open(service, timing=timing) as work:
        say("open")
        watching = asyncio.create_task(_say_when_working(work))
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line.strip() == "stop":
                await service.end_turns(grace=0.0)
                break
            tenant, session, key = line.split()
            await work.run(tenant, session, f"do {key}", key=key)
            say(f"stored {key}")
        watching.cancel()


async def _say_when_working(work: JobWorker) -> None:
    while not work.is_active:
        await asyncio.sleep(0.01)
    say("working")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""))
