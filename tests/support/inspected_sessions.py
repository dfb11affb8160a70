"""Sessions for tests of the inspector: written by a real `Session`, with reductions and usage.

As a process, `python inspected_sessions.py PATH SESSION`, it opens a session and appends one turn for each line on
standard input.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final

from foveal.core.log import Call, ModelSaid, ToolReturned, UserSaid
from foveal.ports import Store
from foveal.sessions import Session
from foveal.stores import open_store
from support import warm_start
from support.waiting import DEADLINE_S

INSPECTED_MODEL: Final = "gpt-4.1"
SMALL_SETTINGS: Final[dict[str, Any]] = {
    "model": INSPECTED_MODEL,
    "window": 4_000,
    "reserve": 400,
    "tokenizer": "estimate",
}


async def append_turn(session: Session, number: int) -> None:
    """Append a request, a call with a result of 3 kB, an answer, and the usage of both answers."""
    text = "\n".join(f"line {line} of file_{number}.py" for line in range(120))
    await session.append(UserSaid(content=f"look at file_{number}.py"))
    call = Call(id=f"c{number}", name="read", arguments=f'{{"path": "file_{number}.py"}}')
    for said in (ModelSaid(content=(call,)), ModelSaid(content=f"file_{number}.py is correct")):
        request = await session.fit()
        await session.append(said)
        await session.observe(
            {
                "prompt_tokens": request.tokens,
                "completion_tokens": 20,
                "prompt_tokens_details": {"cached_tokens": request.tokens // 2},
            }
        )
        if said.content == (call,):
            await session.append(ToolReturned(call_id=call.id, content=text))


async def fill_session(store: Store, id: str, *, turns: int) -> Session:
    """Return a session with this many turns in a window that is too small for them."""
    session = await Session.open(store, id, **SMALL_SETTINGS)
    for number in range(turns):
        await append_turn(session, number)
    return session


async def write_store(path: Path, *ids: str, turns: int = 12) -> None:
    """Write a SQLite file with these sessions."""
    async with open_store(path) as store:
        for id in ids:
            await (await fill_session(store, id, turns=turns)).close()


@contextmanager
def writer_process(path: Path, id: str) -> Iterator[Callable[[], int]]:
    """Start a process that has a session open, and yield a function that has it append a turn."""
    process = warm_start.start([__file__, path, id], stdin=PIPE, stdout=PIPE, encoding="utf-8")
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    assert stdout.readline() == "open\n"

    def append() -> int:
        stdin.write("\n")
        stdin.flush()
        return int(stdout.readline())

    try:
        yield append
    finally:
        stdin.close()
        assert process.wait(timeout=DEADLINE_S) == 0
        stdout.close()


def _send(line: object) -> None:
    os.write(1, f"{line}\n".encode())


async def _append_on_request(path: str, id: str) -> None:
    async with open_store(path) as store:
        session = await Session.open(store, id, **SMALL_SETTINGS)
        _send("open")
        number = 1_000
        while await asyncio.to_thread(sys.stdin.readline):
            await append_turn(session, number)
            _send(session.last)
            number += 1
        await session.close()


if __name__ == "__main__":
    asyncio.run(_append_on_request(sys.argv[1], sys.argv[2]))
