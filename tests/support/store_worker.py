"""A program for tests of stores with real processes: `python store_worker.py COMMAND PATH …`.

    nursery PATH DURABILITY   for each line on stdin, fork a child that appends until it is killed
    compete PATH NAME COUNT   append COUNT events to a session that others append to as well
    limited PATH BYTES        append while no file may be larger than BYTES; say what went wrong
    somebody PATH             the same as a user without rights, without a limit
    hold PATH                 keep the file locked until stdin is closed
    erase PATH                erase the session, after a line on stdin

What a child appends is a function of the seq, so that whoever finds it can tell what it must be.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time

import apsw

from foveal.core.log import Event, Noted, ToolReturned, UserSaid
from foveal.errors import Conflict, StoreError, UnknownSession
from foveal.stores import SqliteStore

SESSION = "worked on"


def event(seq: int) -> Event:
    """The event with this seq: mostly small, sometimes a blob, sometimes one that was there before."""
    if seq % 7 == 3:
        return Event(seq, ToolReturned(call_id=str(seq), content=f"result {seq} " * 900), float(seq))
    if seq % 7 == 5:
        return Event(seq, ToolReturned(call_id=str(seq), content="the same result " * 900), float(seq))
    return Event(seq, UserSaid(content=f"message {seq}: " + "words " * (seq % 50)), float(seq))


def batch(first: int) -> list[Event]:
    """What is appended at once from there on."""
    return [event(seq) for seq in range(first, first + 1 + first % 3)]


def say(line: object) -> None:
    os.write(1, f"{line}\n".encode())


async def next_seq(store: SqliteStore) -> int:
    try:
        return (await store.info(SESSION)).events
    except UnknownSession:
        return 0


async def append_for_ever(path: str, durability: str) -> None:
    async with SqliteStore(path, durability=durability) as store:  # type: ignore[arg-type]
        seq = await next_seq(store)
        say("open")
        while True:
            events = batch(seq)
            await store.append(SESSION, events)
            seq += len(events)
            say(seq - 1)


def nursery(path: str, durability: str) -> None:
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            say(f"child {os.getpid()}")
            asyncio.run(append_for_ever(path, durability))
        os.waitpid(child, 0)
        say("ended")


async def compete(path: str, name: str, count: str) -> None:
    async with SqliteStore(path, durability="normal", timeout=60) as store:
        seq = await next_seq(store)
        won = 0
        while won < int(count):
            try:
                await store.append(SESSION, [Event(seq, Noted(text=name), time.time())])
                say(seq)
                won += 1
                seq += 1
            except Conflict as conflict:
                seq = conflict.next_seq


async def append_until_it_fails(path: str) -> None:
    """Append more and more, read all of it again whatever happens, and tell how it ended."""
    acknowledged = -1
    try:
        async with SqliteStore(path, timeout=1) as store:
            try:
                acknowledged = await next_seq(store) - 1
                for seq in range(acknowledged + 1, 3_000):
                    await store.append(SESSION, [event(seq)])
                    acknowledged = seq
            finally:
                if acknowledged >= 0:
                    assert await store.read(SESSION) == [event(seq) for seq in range(acknowledged + 1)]
    except StoreError as problem:
        say(f"{acknowledged} {type(problem).__name__} {problem}")
    else:
        say(f"{acknowledged} fine")


def limited(path: str, size: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
    asyncio.run(append_until_it_fails(path))


def somebody(path: str) -> None:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    asyncio.run(append_until_it_fails(path))


def hold(path: str) -> None:
    connection = apsw.Connection(path)
    connection.execute("BEGIN IMMEDIATE")
    say("held")
    sys.stdin.read()
    connection.execute("ROLLBACK")


async def erase(path: str) -> None:
    async with SqliteStore(path, durability="normal") as store:
        say("ready")
        sys.stdin.readline()
        await store.erase(SESSION)
        say("erased")


def main(command: str, path: str, *rest: str) -> None:
    match command:
        case "nursery":
            nursery(path, *rest)
        case "compete":
            asyncio.run(compete(path, *rest))
        case "limited":
            limited(path, *rest)
        case "somebody":
            somebody(path)
        case "hold":
            hold(path)
        case "erase":
            asyncio.run(erase(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
