"""A process with a service: it dies at a chosen point, or sends messages beside another process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from foveal.config import load
from foveal.core.log import UserSaid, text_of
from foveal.ports import Reply, ReplyPiece
from foveal.server import Inbox, Service
from foveal.sessions import Session
from foveal.testing import Scripted
from support.provided import provided

KILL_POINTS = ("stored", "taken", "heard", "asked", "called", "returned", "answered")
"""Where the process can be killed: after the message was stored, after it was taken, …"""


def script() -> Scripted:
    """Return a provider that calls a tool and then answers."""
    return Scripted([("recall_search", {"query": "work"})], "It is done.", "It is done.", "It is done.")


class Echo(Scripted):
    """Repeats the last user message."""

    async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        last = next(fact for fact in reversed(request.facts) if isinstance(fact, UserSaid))
        self._answers = [f"echo of {text_of(last.content)}"]
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(point: str, service: Service, provider: Scripted) -> None:
    """Kill the process at a point, by wrapping the function that is called there."""
    if point == "stored":
        take = Inbox.take

        async def taking(self: Inbox, *given: Any, **more: Any) -> Any:
            die()
            return await take(self, *given, **more)

        Inbox.take = taking  # type: ignore[method-assign]
    elif point == "answered":

        async def done(self: Inbox, id: int, **more: Any) -> None:
            die()

        Inbox.finish = done  # type: ignore[method-assign]
    elif point == "asked":

        async def send(request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
            die()
            yield ReplyPiece(text="")

        provider.send = send  # type: ignore[method-assign]
    else:
        append, count = Session.append, {"taken": 0, "heard": 1, "called": 2, "returned": 2}[point]
        seen = 0

        async def appending(self: Session, *facts: Any) -> Any:
            nonlocal seen
            if seen == count and point != "returned":
                die()
            done = await append(self, *facts)
            if seen == count:
                die()
            seen += 1
            return done

        Session.append = appending  # type: ignore[method-assign]


async def main(folder: Path, what: str, name: str, count: int) -> None:
    config = load(folder, environ={}, user_folder=folder / "empty")
    provider = script() if what == "die" else Echo()
    async with Service.open(
        config, folder=folder / "served", environment={}, make_provider=provided(provider)
    ) as service:
        live = await service.tenant("default").ensure("demo")
        if what == "die":
            kill_at(name, service, provider)
            await (await live.submit("Do the work.", key="k")).outcome()
            return
        for n in range(count):
            outcome = await (await live.submit(f"{name} {n}", key=f"{name}-{n}")).outcome()
            sys.stdout.write(f"{outcome.text}\n")


if __name__ == "__main__":
    asyncio.run(
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 0)
    )
