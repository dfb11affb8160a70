"""A job worker without a server, for tests that kill it: `python job_process.py FOLDER NAME`.

For each line `TENANT SESSION KEY` on stdin it requests a run and prints `stored KEY`; it prints `working` when it
becomes the active worker. Its model names the process that answered. In FOLDER, the file `failing` holds a prompt
for which the model fails with a rate limit, `gate` makes the model wait, and each request adds a line to `asked`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from foveal.config import Config
from foveal.core.log import UserSaid, text_of
from foveal.core.view import Fitted
from foveal.errors import ProviderError
from foveal.ports import Reply, ReplyPiece
from foveal.server import Service
from foveal.server.jobs import JobWorker, WorkerTiming
from foveal.testing import Scripted

QUICK = WorkerTiming(poll_s=0.05, engine_poll_s=0.05, retry_delays_s=(0.05,) * 200)


class Model(Scripted):
    """Answers, waits or fails according to the files in its folder."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(name="scripted/model")
        self._folder = folder
        self._name = name

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        with (self._folder / "asked").open("a") as asked:
            asked.write(f"{self._name}\n")
        while (self._folder / "gate").exists():
            await asyncio.sleep(0.01)
        prompt = [text_of(fact.content) for fact in request.facts if isinstance(fact, UserSaid)][-1]
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


async def main(folder: Path, name: str) -> None:
    environment = {
        "FOVEAL_PROVIDER": "job_process:make",
        "WORK_FOLDER": str(folder),
        "WORK_NAME": name,
    }
    async with (
        Service.open(Config(values={}), folder=folder / "server", environment=environment) as service,
        JobWorker.open(service, timing=QUICK) as work,
    ):
        say("open")
        watching = asyncio.create_task(_say_when_working(work))
        while line := await asyncio.to_thread(sys.stdin.readline):
            tenant, session, key = line.split()
            await work.run(tenant, session, f"do {key}", key=key)
            say(f"stored {key}")
        watching.cancel()


async def _say_when_working(work: JobWorker) -> None:
    while not work.is_active:
        await asyncio.sleep(0.01)
    say("working")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
