"""One of several `foveal serve` processes on one database, with the times and the model of a test.

GROUP_TIMES=short      leases and jobs end after seconds; without it the times are those of a server
GROUP_LISTENS=no       the process polls, as behind a pooler that passes no notifications on
GROUP_ASKED=FILE       the model appends a line for each request: name of the server, message
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from foveal.cli.__main__ import main
from foveal.ports import Reply, ReplyPiece
from foveal.server import jobs, postgres_storage
from foveal.server.jobs.worker import ExecutorTiming, WorkerTiming
from foveal.stores.postgres.leases import LEASE_TIMES, LeaseTimes
from foveal.testing import Scripted

SHORT_LEASES: Final = LeaseTimes(lease=3.0, renew=0.5, give_up=2.4, poll=0.3)
SHORT_JOBS: Final = WorkerTiming(
    poll_s=0.3,
    engine_poll_s=0.2,
    retry_delays_s=(0.5,) * 40,
    recovery_interval_s=0.5,
    executor=ExecutorTiming(heartbeat_s=0.5, silent_s=3.0),
)
MESSAGE: Final = re.compile(r"message \S+ of number (\d+)(?:, slowly: (\S+) s)?")


def message_text(key: str, number: int, *, slow_s: float = 0.0) -> str:
    """Return the text of a message; a slow one takes the model `slow_s` seconds."""
    slowly = f", slowly: {slow_s} s" if slow_s else ""
    return f"message {key} of number {number}{slowly}"


def expected_answer(text: str) -> str:
    """Return what the model answers to a message."""
    found = MESSAGE.fullmatch(text)
    assert found is not None, text
    return f"answer {int(found[1]) * 7_919 % 1_000_003}"


class NumberModel(Scripted):
    """Answers with a number that follows from the last user message, after 10 to 50 ms."""

    async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        said = [message["content"] for message in request.to_openai() if message["role"] == "user"][-1]
        found = MESSAGE.fullmatch(said)
        if path := os.environ.get("GROUP_ASKED"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{os.environ['GROUP_NAME']} {said}\n")
        await asyncio.sleep(float(found[2]) if found and found[2] else random.uniform(0.01, 0.05))
        self._answers = [expected_answer(said)]
        self.requests.clear()
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece


def number_model(
    name: str | None, *, environment: Mapping[str, str], window: int | None, progress: Any
) -> Scripted:
    """A provider for `FOVEAL_PROVIDER=support.grouped_server:number_model`."""
    return NumberModel(name=name or "scripted/number")


def run(arguments: list[str]) -> int:
    is_short = os.environ.get("GROUP_TIMES") == "short"
    storage = partial(
        postgres_storage.PostgresStorage,
        times=SHORT_LEASES if is_short else LEASE_TIMES,
        listens=os.environ.get("GROUP_LISTENS") != "no",
    )
    setattr(postgres_storage, "PostgresStorage", storage)  # noqa: B010 (mypy forbids assigning to a class)
    if is_short:
        worker = SimpleNamespace(open=partial(jobs.JobWorker.open, timing=SHORT_JOBS))
        setattr(jobs, "JobWorker", worker)  # noqa: B010
    return main(["serve", *arguments])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
