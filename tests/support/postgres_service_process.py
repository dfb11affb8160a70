"""A process with a service on PostgreSQL: it sends one message and takes a minute to answer it itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from foveal.config import load
from foveal.ports import Reply, ReplyPiece
from foveal.server import Service
from foveal.server.postgres_storage import PostgresStorage
from foveal.server.runtime import Runtime
from foveal.stores.postgres.leases import LeaseTimes
from support.provided import provided
from support.service_process import Echo


class SlowEcho(Echo):
    async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        sys.stdout.write("asked\n")
        sys.stdout.flush()
        await asyncio.sleep(60)
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece


async def main(url: str, name: str) -> None:
    config = load(Path("/nowhere"), environ={}, user_folder=Path("/nowhere"))
    times = LeaseTimes(lease=4.0, renew=0.5, give_up=3.2, poll=0.3)
    storage, provider = PostgresStorage(url, times=times), provided(SlowEcho())
    service = Service(Runtime(config, storage, environment={}, make_provider=provider))
    live = await service.tenant("default").ensure("demo")
    outcome = await (await live.submit(f"first of {name}", key=name)).outcome()
    sys.stdout.write(f"{outcome.why}: {outcome.text}\n")
    sys.stdout.flush()
    await service.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
