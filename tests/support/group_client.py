"""Clients of several servers, in a process of their own: `python group_client.py ORDER LOG`.

ORDER is a JSON file with a `ClientOrder`. Each writer sends its messages one after the other, each to a server that
it picks at random, with a key; it sends a message again until it has the answer. LOG gets a line of JSON for each
message that was sent, acknowledged or answered, with the time of the monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, Literal, TextIO

import aiohttp
import msgspec

from support.grouped_server import message_text


class ClientOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients do."""

    urls: list[str]
    sessions: list[str]
    writers: int
    """Writers per session."""
    messages: int
    """Messages that each writer sends at least; it goes on until the file `stop` exists."""
    pause_s: float
    """Mean pause after a message."""
    reply_s: float
    """Seconds without a byte after which a client asks another server."""
    deadline_s: float
    background_share: float = 0.15
    slow_share: float = 0.1
    """Messages that take the model up to a second, so that a fault often meets a turn."""
    seed: int
    stop: str


class ClientLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log."""

    at: float
    what: Literal["sent", "acknowledged", "answered", "not answered", "gave up"]
    session: str
    key: str
    server: int
    text: str
    """The message, the answer, or the problem."""


class Clients:
    def __init__(self, order: ClientOrder, log: TextIO) -> None:
        self._order = order
        self._log = log
        self._until = time.monotonic() + order.deadline_s

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=3, sock_read=self._order.reply_s)
        async with aiohttp.ClientSession(timeout=timeout) as http, asyncio.TaskGroup() as group:
            for session in self._order.sessions:
                for writer in range(self._order.writers):
                    group.create_task(self._write(http, session, writer))

    async def _write(self, http: aiohttp.ClientSession, session: str, writer: int) -> None:
        order, random = self._order, Random(f"{self._order.seed}/{session}/{writer}")
        number = 0
        while number < order.messages or not Path(order.stop).exists():
            key = f"{session}-{writer}-{number}"
            slow_s = round(random.uniform(0.2, 1.0), 1) if random.random() < order.slow_share else 0.0
            text = message_text(key, random.randrange(1_000_000), slow_s=slow_s)
            in_background = random.random() < order.background_share
            while not await self._try(
                http, session, key, text, random.randrange(len(order.urls)), in_background
            ):
                if time.monotonic() > self._until:
                    self._write_line("gave up", session, key, 0, text)
                    return
                await asyncio.sleep(random.uniform(0.05, 0.3))
            number += 1
            await asyncio.sleep(random.expovariate(1 / order.pause_s))

    async def _try(
        self, http: aiohttp.ClientSession, session: str, key: str, text: str, server: int, in_background: bool
    ) -> bool:
        """Send a message to a server; return whether it was answered, or accepted for the background."""
        self._write_line("sent", session, key, server, text)
        body = {"text": text, "key": key, "background": in_background}
        url = f"{self._order.urls[server]}/api/sessions/{session}/turns"
        try:
            async with http.post(url, json=body) as reply:
                if reply.status not in (200, 202):
                    problem = f"{reply.status} {(await reply.text())[:300]}"
                    self._write_line("not answered", session, key, server, problem)
                    return False
                self._write_line("acknowledged", session, key, server, text)
                outcome = None if in_background else await _read_outcome(reply)
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            self._write_line("not answered", session, key, server, f"{type(problem).__name__}: {problem}")
            return False
        if outcome is None:
            return in_background
        is_answered = outcome["why"] == "answered"
        line = outcome["text"] if is_answered else json.dumps(outcome)[:300]
        self._write_line("answered" if is_answered else "not answered", session, key, server, line)
        return is_answered

    def _write_line(self, what: Any, session: str, key: str, server: int, text: str) -> None:
        line = ClientLine(at=time.monotonic(), what=what, session=session, key=key, server=server, text=text)
        self._log.write(msgspec.json.encode(line).decode() + "\n")
        self._log.flush()


async def _read_outcome(reply: aiohttp.ClientResponse) -> dict[str, Any] | None:
    """Return the outcome at the end of a stream; None if the stream ended without one."""
    event = ""
    async for line in reply.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            event = value
        elif name == "data" and event == "outcome":
            return dict(json.loads(value))
    return None


if __name__ == "__main__":
    with Path(sys.argv[2]).open("w", encoding="utf-8") as log:
        given = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ClientOrder)
        asyncio.run(Clients(given, log).run())
