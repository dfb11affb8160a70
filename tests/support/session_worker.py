"""A program for tests of sessions with real processes: `python session_worker.py COMMAND PATH …`.

    nursery PATH           for each line on stdin, fork a child that talks until it is killed
    talk PATH NAME COUNT   after a line on stdin, talk to a session that others talk to as well

A child says what it has been promised: after each append the seqs of its events, with what it had appended. Each
fact names its child and counts, so that whoever finds it can tell whose it is and what must stand before it.
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

SESSION: Final = "talked to"
SMALL: Final[dict[str, Any]] = {
    "model": "gpt-4.1",
    "window": 3_000,
    "reserve": 300,
    "tokenizer": "estimate",
}


def turn(name: str, nr: int) -> list[tuple[AnyFact, ...]]:
    """What is appended in a turn: a request, parallel calls, their results in one go, an answer."""
    ids = [f"{name}-{nr}-{place}" for place in range(1 + nr % 3)]
    calls = tuple(Call(id=id, name="read", arguments=f'{{"path": "{id}.py"}}') for id in ids)
    size = (3, 20, 60)[nr % 3]
    return [
        (UserSaid(content=f"{name} {nr} asks: " + "words " * (nr % 40)),),
        (ModelSaid(content=(Text(text=f"{name} {nr} looks"), *calls)),),
        tuple(ToolReturned(call_id=id, content=_lines(f"{name} {nr}", id, size)) for id in ids),
        (ModelSaid(content=f"{name} {nr} answers"),),
    ]


def _lines(start: str, id: str, size: int) -> str:
    return f"{start} returns\n" + "\n".join(f"line {n} of {id} says value_{n}" for n in range(size))


def say(line: object) -> None:
    os.write(1, f"{line}\n".encode())


async def talk(path: str, name: str, *, first: int = 0, count: int | None = None) -> None:
    async with SqliteStore(path, durability="normal", timeout=60) as store:
        session = await Session.open(store, SESSION, **SMALL)
        say("open")
        if count is not None:
            sys.stdin.readline()
        nr = first
        while count is None or nr < first + count:
            for facts in turn(name, nr):
                for event in await session.append(*facts):
                    say(event.seq)
                try:
                    await session.fit()
                except ContextOverflow as problem:
                    say(f"overflow {problem}")
            nr += 1


def nursery(path: str) -> None:
    """The name of each child is its line; children begin at different turns, so that they differ in size."""
    for nr, line in enumerate(sys.stdin):
        child = os.fork()
        if child == 0:
            say(f"child {os.getpid()}")
            asyncio.run(talk(path, line.strip(), first=nr))
        os.waitpid(child, 0)
        say("ended")


def main(command: str, path: str, *rest: str) -> None:
    match command:
        case "nursery":
            nursery(path)
        case "talk":
            name, count = rest
            asyncio.run(talk(path, name, count=int(count)))


if __name__ == "__main__":
    main(*sys.argv[1:])
