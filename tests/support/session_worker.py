"""Child process for session tests: `python session_worker.py COMMAND PATH …`.

    spawn PATH                 for each line on stdin, fork a child that appends turns until it is killed
    append PATH NAME COUNT     after a line on stdin, append turns to a session that other processes use too

After each append, a child prints the seqs of the events that the session acknowledged. Each fact names its child
and its turn, so that the tests know which process wrote it and what must come before it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Final

from foveal.core.log import AnyFact, Call, ModelSaid, Text, ToolReturned, UserSaid
from foveal.errors import ContextOverflow
from foveal.sessions import Session
from foveal.stores import SqliteStore

SESSION: Final = "test session"
SMALL_WINDOW: Final[dict[str, Any]] = {
    "model": "gpt-4.1",
    "window": 3_000,
    "reserve": 300,
    "tokenizer": "estimate",
}


def turn(name: str, nr: int) -> list[tuple[AnyFact, ...]]:
    """Return the appends of a turn: a request, parallel calls, their results in one append, an answer."""
    ids = [f"{name}-{nr}-{number}" for number in range(1 + nr % 3)]
    calls = tuple(Call(id=id, name="read", arguments=f'{{"path": "{id}.py"}}') for id in ids)
    size = (3, 20, 60)[nr % 3]
    return [
        (UserSaid(content=f"{name} {nr} asks: " + "words " * (nr % 40)),),
        (ModelSaid(content=(Text(text=f"{name} {nr} looks"), *calls)),),
        tuple(ToolReturned(call_id=id, content=_result_text(f"{name} {nr}", id, size)) for id in ids),
        (ModelSaid(content=f"{name} {nr} answers"),),
    ]


def _result_text(start: str, id: str, size: int) -> str:
    return f"{start} returns\n" + "\n".join(f"line {n} of {id} says value_{n}" for n in range(size))


def send(line: object) -> None:
    os.write(1, f"{line}\n".encode())


async def append_turns(path: str, name: str, *, first: int = 0, count: int | None = None) -> None:
    async with SqliteStore(path, durability="normal", timeout=60) as store:
        session = await Session.open(store, SESSION, **SMALL_WINDOW)
        send("open")
        if count is not None:
            sys.stdin.readline()
        nr = first
        while count is None or nr < first + count:
            for facts in turn(name, nr):
                for event in await session.append(*facts):
                    send(event.seq)
                try:
                    await session.fit()
                except ContextOverflow as problem:
                    send(f"overflow {problem}")
            nr += 1


def spawn(path: str) -> None:
    """Fork a child per line of stdin, which is its name; each starts at another turn, to vary the sizes."""
    for nr, line in enumerate(sys.stdin):
        child = os.fork()
        if child == 0:
            send(f"child {os.getpid()}")
            asyncio.run(append_turns(path, line.strip(), first=nr))
        os.waitpid(child, 0)
        send("ended")


def main(command: str, path: str, *rest: str) -> None:
    match command:
        case "spawn":
            spawn(path)
        case "append":
            name, count = rest
            asyncio.run(append_turns(path, name, count=int(count)))


if __name__ == "__main__":
    main(*sys.argv[1:])
