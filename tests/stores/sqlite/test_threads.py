"""Calls of several files in shared threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

from foveal.stores.sqlite.threads import CallQueue, WorkerThreads


def test_a_queue_runs_its_calls_in_order_and_never_more_at_once_than_allowed() -> None:
    threads = WorkerThreads("test", threads=4)
    queues = [CallQueue(threads, at_once=at_once) for at_once in (1, 2, 3)]
    lock, running, most = threading.Lock(), Counter[int](), Counter[int]()
    begun: dict[int, list[int]] = {number: [] for number in range(3)}

    def call(queue: int, number: int) -> int:
        with lock:
            begun[queue].append(number)
            running[queue] += 1
            most[queue] = max(most[queue], running[queue])
        time.sleep(0.0002)
        with lock:
            running[queue] -= 1
        return number

    async def work() -> list[list[int]]:
        return await asyncio.gather(
            *(
                asyncio.gather(*(queue.run(lambda n=n, q=q: call(q, n)) for n in range(200)))  # type: ignore[misc]
                for q, queue in enumerate(queues)
            )
        )

    assert asyncio.run(work()) == [list(range(200))] * 3
    for queue in queues:
        queue.wait_until_empty()
    threads.stop()
    assert begun[0] == list(range(200))
    assert all(most[number] <= number + 1 for number in range(3))


def test_a_blocked_queue_does_not_stop_the_others() -> None:
    threads = WorkerThreads("test", threads=2)
    locked, other = CallQueue(threads), CallQueue(threads)
    release = threading.Event()

    async def work() -> None:
        blocked = [asyncio.create_task(locked.run(lambda: release.wait(10))) for _ in range(20)]
        assert [await asyncio.wait_for(other.run(lambda n=n: n), 5) for n in range(20)] == list(range(20))  # type: ignore[misc]
        release.set()
        assert all(await asyncio.gather(*blocked))

    asyncio.run(work())
    threads.stop()


def test_a_call_that_is_queued_while_the_threads_stop_runs_and_they_end() -> None:
    threads = WorkerThreads("test", threads=2)
    queue, gate, ran = CallQueue(threads), threading.Event(), list[str]()
    queue.submit(gate.wait)
    queue.submit(lambda: ran.append("second"))
    stopping = threading.Thread(target=threads.stop, daemon=True)
    with queue._changed:  # the first call ends, and its thread cannot queue the second one yet
        gate.set()
        stopping.start()
        stopping.join(0.1)
    stopping.join(10)
    assert (stopping.is_alive(), ran) == (False, ["second"])
