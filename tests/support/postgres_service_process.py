"""A process with a service on PostgreSQL: it sends one message and takes a minute to answer it itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from foveal.config import load
from foveal.ports import Reply, ReplyPiece
from foveal.server import Service
from foveal.server.postgres_storage import PostgresStorage
from foveal.server.runtime import Runtime
from foveal.stores.postgres.leases import LeaseTimes
from support.provided import provided
from support.service_process import Echo

BRIEF: Final = LeaseTimes(lease=1.5, renew=0.3, give_up=1.2, poll=0.1)
"""For tests that wait until a lease ends."""


class SlowEcho(Echo):
    async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        sys.stdout.write("asked\n")
        sys.stdout.flush()
        await asyncio.sleep(60)
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece


async def main(url: str, name: str) -> None:
    config = load(Path("/nowhere"), environ={}, user_folder=Path("/nowhere"))
    storage, provider = PostgresStorage(url, times=BRIEF), provided(SlowEcho())
    service = Service(Runtime(config, storage, environment={}, make_provider=provider))
    live = await service.tenant("default").ensure("demo")
    outcome = await (await live.submit(f"first of {name}", key=name)).outcome()
    sys.stdout.write(f"{outcome.why}: {outcome.text}\n")
    sys.stdout.flush()
    await service.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
