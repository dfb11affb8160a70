"""Child process for store tests: `python store_worker.py COMMAND PATH …`.

    spawn PATH DURABILITY     for each line on stdin, fork a child that appends until it is killed
    compete PATH NAME COUNT   append COUNT events to a session to which other processes append too
    limited PATH BYTES        append while no file may be larger than BYTES; print the error
    unprivileged PATH         append as a user without permissions; print the error
    hold PATH                 lock the file until stdin is closed
    erase PATH                erase the session, after a line on stdin

What a child appends is a function of the seq, so that the tests know what each event must be.
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

SESSION = "test session"


def event(seq: int) -> Event:
    """Return the event with this seq: most are small, some have a blob, some share one blob."""
    if seq % 7 == 3:
        return Event(seq, ToolReturned(call_id=str(seq), content=f"result {seq} " * 900), float(seq))
    if seq % 7 == 5:
        return Event(seq, ToolReturned(call_id=str(seq), content="the same result " * 900), float(seq))
    return Event(seq, UserSaid(content=f"message {seq}: " + "words " * (seq % 50)), float(seq))


def batch(first: int) -> list[Event]:
    """Return the events that are appended in one call from `first` on."""
    return [event(seq) for seq in range(first, first + 1 + first % 3)]


def send(line: object) -> None:
    os.write(1, f"{line}\n".encode())


async def next_seq(store: SqliteStore) -> int:
    try:
        return (await store.info(SESSION)).events
    except UnknownSession:
        return 0


async def append_until_killed(path: str, durability: str) -> None:
    async with SqliteStore(path, durability=durability) as store:  # type: ignore[arg-type]
        seq = await next_seq(store)
        send("open")
        while True:
            events = batch(seq)
            await store.append(SESSION, events)
            seq += len(events)
            send(seq - 1)


def spawn(path: str, durability: str) -> None:
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            send(f"child {os.getpid()}")
            asyncio.run(append_until_killed(path, durability))
        os.waitpid(child, 0)
        send("ended")


async def compete(path: str, name: str, count: str) -> None:
    async with SqliteStore(path, durability="normal", timeout=60) as store:
        seq = await next_seq(store)
        won = 0
        while won < int(count):
            try:
                await store.append(SESSION, [Event(seq, Noted(text=name), time.time())])
                send(seq)
                won += 1
                seq += 1
            except Conflict as conflict:
                seq = conflict.next_seq


async def append_until_error(path: str, *, upto: int = 3_000) -> None:
    """Append until an error, or up to an event, read all events again, and print the last acknowledged seq and
    the error."""
    acknowledged = -1
    try:
        async with SqliteStore(path, timeout=1) as store:
            try:
                acknowledged = await next_seq(store) - 1
                for seq in range(acknowledged + 1, upto):
                    await store.append(SESSION, [event(seq)])
                    acknowledged = seq
            finally:
                if acknowledged >= 0:
                    assert await store.read(SESSION) == [event(seq) for seq in range(acknowledged + 1)]
    except StoreError as problem:
        send(f"{acknowledged} {type(problem).__name__} {problem}")
    else:
        send(f"{acknowledged} fine")


def run_limited(path: str, size: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
    asyncio.run(append_until_error(path))


def run_unprivileged(path: str) -> None:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    asyncio.run(append_until_error(path, upto=300))


def hold_lock(path: str) -> None:
    connection = apsw.Connection(path)
    connection.execute("BEGIN IMMEDIATE")
    send("held")
    sys.stdin.read()
    connection.execute("ROLLBACK")


async def erase(path: str) -> None:
    async with SqliteStore(path, durability="normal") as store:
        send("ready")
        sys.stdin.readline()
        await store.erase(SESSION)
        send("erased")


def main(command: str, path: str, *rest: str) -> None:
    match command:
        case "spawn":
            spawn(path, *rest)
        case "compete":
            asyncio.run(compete(path, *rest))
        case "limited":
            run_limited(path, *rest)
        case "unprivileged":
            run_unprivileged(path)
        case "hold":
            hold_lock(path)
        case "erase":
            asyncio.run(erase(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
