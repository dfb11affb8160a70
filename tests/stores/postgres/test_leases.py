"""Tests of leases and wake-ups on a real PostgreSQL server, with short times."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from foveal.errors import LeaseLost
from foveal.stores.postgres.connection import PostgresPool, SqlStatement
from foveal.stores.postgres.leases import LeaseTimes, PostgresWakeups, SessionLeases, lease_topic
from support.gated_provider import run
from support.waiting import DEADLINE_S, until

SHORT = LeaseTimes(lease=1.0, renew=0.2, give_up=0.6, poll=0.3)
NEVER_S = 10_000.0
"""Longer than any test."""
SOAK = bool(os.environ.get("FOVEAL_SOAK"))
INCREMENTS = 24 if SOAK else 10
"""A fifth of them is paused for longer than a lease."""
LONG = LeaseTimes(lease=30.0, renew=5.0, give_up=20.0, poll=0.5)


class Member:
    """What one process of a cluster has: a pool, wake-ups and leases."""

    def __init__(self, url: str, times: LeaseTimes, *, listens: bool) -> None:
        self.pool = PostgresPool(url, connections=4)
        self.wakeups = PostgresWakeups(self.pool, url, listens=listens)
        self.leases = SessionLeases(self.pool, self.wakeups, times=times)

    async def fenced(self, session: str, act: Callable[[Any], Any]) -> None:
        """Write as the store does: compare the epoch in the transaction of the write."""
        async with self.pool.transaction("t") as connection:
            epoch = self.leases.epoch("t", session)
            sql = "SELECT 1 FROM foveal.lease WHERE tenant = 't' AND name = %s AND epoch = %s FOR SHARE"
            if not await (await connection.execute(sql, (session, epoch))).fetchall():
                raise LeaseLost(session)
            await act(connection)

    async def close(self) -> None:
        await self.leases.close()
        await self.wakeups.close()
        await self.pool.close()


@asynccontextmanager
async def cluster(
    url: str, size: int = 2, *, times: LeaseTimes = SHORT, listens: bool = True
) -> AsyncIterator[list[Member]]:
    async with AsyncExitStack() as stack:
        members = [Member(url, times, listens=listens) for _ in range(size)]
        for member in members:
            stack.push_async_callback(member.close)
        yield members


def pause(leases: SessionLeases) -> None:
    """Stop the renewals, as if the process were paused; its block goes on."""
    assert leases._heartbeat is not None
    leases._heartbeat.cancel()


@run
async def test_a_lease_has_one_holder_and_epochs_rise(store_url: str) -> None:
    async with cluster(store_url) as (one, other):
        epochs = []
        for member in (one, other, one):
            async with member.leases.lock("t", "s"):
                epochs.append(member.leases.epoch("t", "s"))
                assert await one.leases.try_lock("t", "s") is None
                assert await other.leases.try_lock("t", "s") is None
                free = await other.leases.try_lock("t", "another")
                assert free is not None
                free.release()
                free.release()
            assert member.leases.epoch("t", "s") is None
        assert epochs == sorted(set(epochs))


@run
async def test_tasks_of_one_process_and_of_others_hold_a_lease_one_after_the_other(store_url: str) -> None:
    async with cluster(store_url, 3, times=LONG) as members:
        inside = most = 0

        async def critical_section(member: Member) -> None:
            nonlocal inside, most
            async with member.leases.lock("t", "s"):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1

        await asyncio.gather(*(critical_section(members[n % 3]) for n in range(30)))
        assert (inside, most) == (0, 1)


@run
async def test_a_held_lease_is_renewed_and_outlasts_its_time(store_url: str) -> None:
    async with cluster(store_url) as (one, other), one.leases.lock("t", "s"):
        await asyncio.sleep(SHORT.lease * 2)
        assert await other.leases.try_lock("t", "s") is None
        await one.fenced("s", lambda connection: connection.execute("SELECT 1"))


@run
async def test_a_paused_holder_is_taken_over_and_cannot_write(store_url: str) -> None:
    async with cluster(store_url, times=SHORT._replace(poll=NEVER_S)) as (paused, other):

        async def write_late() -> None:
            async with paused.leases.lock("t", "s"):
                pause(paused.leases)
                async with other.leases.lock("t", "s"):  # when the lease ends, and not with the next poll
                    await other.fenced("s", lambda connection: connection.execute("SELECT 1"))
                    assert paused.leases.epoch("t", "s") is not None, "so that a write is refused"
                    await paused.fenced("s", lambda connection: connection.execute("SELECT 1"))

        with pytest.raises(LeaseLost):
            await write_late()


@run
async def test_the_block_is_cancelled_when_its_lease_is_lost(store_url: str) -> None:
    async with cluster(store_url) as (one, _):

        async def lose() -> None:
            async with one.leases.lock("t", "s"):
                await one.pool.run(None, SqlStatement("UPDATE foveal.lease SET epoch = epoch + 1"))
                await asyncio.sleep(60)

        with pytest.raises(LeaseLost):
            await lose()
        await asyncio.sleep(0)  # nothing of the cancellation is left
        async with one.leases.lock("t", "s"):
            pass


@run
async def test_a_block_that_ends_just_as_its_lease_is_lost_is_not_cancelled(store_url: str) -> None:
    async with cluster(store_url) as (one, _):

        async def end(problem: Exception | None) -> None:
            async with one.leases.lock("t", "s"):
                one.leases._held["t", "s"].lose()
                if problem is not None:
                    raise problem

        await end(None)
        await asyncio.sleep(0.01)
        with pytest.raises(ValueError, match="own"):
            await end(ValueError("own"))
        await asyncio.sleep(0.01)


@run
async def test_a_blocked_event_loop_keeps_a_lease_that_was_not_taken_over(store_url: str) -> None:
    times = LeaseTimes(lease=0.4, renew=0.1, give_up=0.3, poll=0.3)
    async with cluster(store_url, times=times) as (one, _), one.leases.lock("t", "s"):
        for _ in range(2):
            time.sleep(times.lease * 1.2)
            await asyncio.sleep(times.renew)
        await one.fenced("s", lambda connection: connection.execute("SELECT 1"))


@run
async def test_an_outside_cancellation_stays_one(store_url: str) -> None:
    async with cluster(store_url, times=LONG) as (one, other):
        entered = asyncio.Event()

        async def hold() -> None:
            async with one.leases.lock("t", "s"):
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(hold())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(DEADLINE_S), other.leases.lock("t", "s"):
            pass


@run
async def test_a_cancelled_wait_leaves_no_lease_behind(store_url: str) -> None:
    async with cluster(store_url, times=LONG) as (one, other):
        for delay in (0.0, 0.0005, 0.001, 0.002, 0.004):

            async def hold() -> None:
                async with one.leases.lock("t", "s"):
                    await asyncio.sleep(60)

            task = asyncio.create_task(hold())
            await asyncio.sleep(delay)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            async with asyncio.timeout(DEADLINE_S), other.leases.lock("t", "s"):
                pass


@run
async def test_several_hundred_leases_are_renewed_in_one_statement(store_url: str) -> None:
    async with cluster(store_url) as (one, other), AsyncExitStack() as stack:
        held = [await one.leases.try_lock("t", f"s{n}") for n in range(300)]
        for lease in held:
            assert lease is not None
            stack.callback(lease.release)
        calls: list[Any] = []
        send = one.pool.run

        async def counted(*arguments: Any, **options: Any) -> Any:
            calls.append(arguments)
            return await send(*arguments, **options)

        one.pool.run = counted  # type: ignore[method-assign]
        await until(lambda: len(calls) >= 3)
        one.pool.run = send  # type: ignore[method-assign]
        assert len(calls) <= 10
        assert await other.leases.try_lock("t", "s299") is None
        assert not any(held.is_lost for held in one.leases._held.values())


@run
async def test_increments_under_a_lease_are_neither_lost_nor_doubled(postgres_url: str) -> None:
    """Whatever is paused and taken over, each successful write saw the one before it."""
    chance = random.Random(16)
    async with cluster(postgres_url, 3) as members:
        async with members[0].leases.lock("t", "s"):
            pass
        await members[0].pool.run(None, SqlStatement("CREATE TABLE foveal.counter AS SELECT 0 AS n"))
        written = lost = 0

        async def increment(member: Member) -> None:
            nonlocal written, lost
            with suppress(LeaseLost):
                async with member.leases.lock("t", "s"):
                    ((n,),) = (await member.pool.run("t", SqlStatement("SELECT n FROM foveal.counter")))[0]
                    if chance.random() < 0.2:
                        pause(member.leases)
                        await asyncio.shield(asyncio.create_task(asyncio.sleep(SHORT.lease * 1.3)))
                    else:
                        await asyncio.sleep(chance.random() * 0.01)
                    sql = "UPDATE foveal.counter SET n = %s"
                    await member.fenced("s", lambda connection: connection.execute(sql, (n + 1,)))
                    written += 1
                return
            lost += 1

        await asyncio.gather(*(increment(members[n % 3]) for n in range(INCREMENTS)))
        ((n,),) = (await members[0].pool.run("t", SqlStatement("SELECT n FROM foveal.counter")))[0]
        assert n == written
        assert lost > 0
        assert written + lost == INCREMENTS


# ── Removing rows ────────────────────────────────────────────────────────────────────────────────────────


async def rows(member: Member) -> set[str]:
    (found,) = await member.pool.run(None, SqlStatement("SELECT name FROM foveal.lease"))
    return {name for (name,) in found}


async def all_epochs_are_old(member: Member) -> None:
    """Wait until no transaction runs that is as old as an epoch: the other tests of the server have their own."""
    sql = "SELECT bool_and(epoch < pg_snapshot_xmin(pg_current_snapshot())::text::bigint) FROM foveal.lease"
    while (await member.pool.run(None, SqlStatement(sql)))[0] == [(False,)]:
        await asyncio.sleep(0.01)


@run
async def test_only_leases_that_were_not_used_for_long_are_removed(store_url: str) -> None:
    times = LONG._replace(idle=60.0)
    async with cluster(store_url, times=times) as (one, other), one.leases.lock("t", "held"):
        for name in ("recent", "released", "ended", "of an earlier version"):
            async with one.leases.lock("t", name):
                pass
        await one.leases.close()
        for change, name in (
            ("until = until - interval '61 s'", "released"),
            ("until = until - interval '61 s', owner = 'killed'", "ended"),
            ("until = NULL", "of an earlier version"),
        ):
            await one.pool.run(
                None, SqlStatement(f"UPDATE foveal.lease SET {change} WHERE name = %s", (name,))
            )
        await all_epochs_are_old(one)
        await asyncio.gather(one.leases.remove_idle(), other.leases.remove_idle())
        assert await rows(one) == {"held", "recent"}


@run
async def test_a_process_that_was_paused_until_its_row_was_removed_cannot_write(store_url: str) -> None:
    times = SHORT._replace(poll=NEVER_S, idle=0.0)
    async with cluster(store_url, times=times) as (paused, other):

        async def write_late() -> None:
            async with paused.leases.lock("t", "s"):
                before = paused.leases.epoch("t", "s")
                pause(paused.leases)
                await asyncio.sleep(SHORT.lease * 1.1)
                await all_epochs_are_old(other)
                await other.leases.remove_idle()
                assert not await rows(other)
                async with other.leases.lock("t", "s"):
                    assert other.leases.epoch("t", "s") > before  # type: ignore[operator]
                    await other.fenced("s", lambda connection: connection.execute("SELECT 1"))
                    await paused.fenced("s", lambda connection: connection.execute("SELECT 1"))

        with pytest.raises(LeaseLost):
            await write_late()


@run
async def test_a_row_with_an_epoch_that_could_return_is_not_removed(store_url: str) -> None:
    async with cluster(store_url, times=LONG._replace(idle=0.0)) as (one, _):
        async with one.leases.lock("t", "s"):
            pass
        await one.leases.close()
        later = "UPDATE foveal.lease SET epoch = pg_current_xact_id()::text::bigint + 1000"
        await one.pool.run(None, SqlStatement(later))
        await one.leases.remove_idle()
        assert await rows(one) == {"s"}


@run
async def test_leases_are_free_while_their_rows_are_removed(store_url: str) -> None:
    """Each process takes sessions that no other has, while all remove every row that is not held."""
    async with cluster(store_url, 3, times=LONG._replace(idle=0.0)) as members:
        taking = True

        async def take(member: Member, name: str) -> None:
            for _ in range(40 if SOAK else 15):
                lease = await member.leases.try_lock("t", name)
                assert lease is not None
                assert member.leases.epoch("t", name) is not None
                await member.fenced(name, lambda connection: connection.execute("SELECT 1"))
                lease.release()

        async def remove(member: Member) -> None:
            while taking:
                await member.leases.remove_idle()

        removing = [asyncio.create_task(remove(member)) for member in members]
        await asyncio.gather(*(take(member, f"s{n}") for n, member in enumerate(members)))
        taking = False
        await asyncio.gather(*removing)


@run
async def test_a_process_with_leases_removes_idle_ones_by_itself(store_url: str) -> None:
    async with cluster(store_url, times=SHORT._replace(idle=0.2)) as (one, _):
        async with one.leases.lock("t", "idle"):
            pass
        async with one.leases.lock("t", "held"), asyncio.timeout(DEADLINE_S):
            while await rows(one) != {"held"}:
                await asyncio.sleep(0.05)


# ── Wake-ups ─────────────────────────────────────────────────────────────────────────────────────────────


async def _hand_over(url: str, rounds: int, *, poll_s: float, listens: bool) -> None:
    """Release a lease that another process waits for, and wait until that has it."""
    times = LeaseTimes(lease=NEVER_S, renew=NEVER_S / 3, give_up=NEVER_S / 2, poll=poll_s)
    async with cluster(url, times=times, listens=listens) as (one, other):
        for _ in range(rounds):
            async with one.leases.lock("t", "s"):
                waiting = asyncio.create_task(_take(other))
                await asyncio.sleep(0.1)
            await asyncio.wait_for(waiting, DEADLINE_S)


async def _take(member: Member) -> None:
    async with member.leases.lock("t", "s"):
        pass


@run
async def test_a_waiting_process_is_woken_by_the_release(store_url: str) -> None:
    await _hand_over(store_url, 10 if SOAK else 4, poll_s=NEVER_S, listens=True)


@run
async def test_the_release_of_a_lease_that_nothing_waits_for_wakes_none(store_url: str) -> None:
    async with cluster(store_url) as (one, other):
        tried, locked = asyncio.Event(), asyncio.Event()
        other.wakeups.subscribe(lease_topic("t", "tried"), tried.set)
        other.wakeups.subscribe(lease_topic("t", "locked"), locked.set)
        await asyncio.wait_for(locked.wait(), DEADLINE_S)  # all are called when it begins to listen
        tried.clear()
        locked.clear()
        lease = await one.leases.try_lock("t", "tried")
        assert lease is not None
        lease.release()
        async with one.leases.lock("t", "locked"):
            pass
        await asyncio.wait_for(locked.wait(), DEADLINE_S)
        assert not tried.is_set()


@run
async def test_without_notifications_a_waiting_process_polls(store_url: str) -> None:
    await _hand_over(store_url, 2, poll_s=0.3, listens=False)


@run
async def test_a_wake_up_reaches_all_processes_and_only_subscribers_of_its_topic(store_url: str) -> None:
    async with cluster(store_url, 3) as members:
        woken: list[tuple[int, str]] = []
        ends = [
            member.wakeups.subscribe(topic, lambda n=n, topic=topic: woken.append((n, topic)))
            for n, member in enumerate(members)
            for topic in ("inbox", "jobs")
        ]
        await until(lambda: len(woken) == len(ends))  # each is called when its process begins to listen
        woken.clear()
        await members[1].wakeups.notify("inbox")
        await until(lambda: len(woken) >= 3)
        await asyncio.sleep(0.05)
        assert sorted(woken) == [(n, "inbox") for n in range(3)]
        for end in ends:
            end()
        await members[1].wakeups.notify("inbox")
        await asyncio.sleep(0.05)
        assert len(woken) == 3


@run
async def test_a_lost_connection_is_replaced_and_subscribers_are_called(store_url: str) -> None:
    async with cluster(store_url) as (one, other):
        woken = asyncio.Event()
        one.wakeups.subscribe("inbox", woken.set)
        await asyncio.wait_for(woken.wait(), DEADLINE_S)  # it is called when its process begins to listen
        woken.clear()
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'foveal wake-ups'"
        await other.pool.run(None, SqlStatement(kill))
        await asyncio.wait_for(woken.wait(), DEADLINE_S)
        woken.clear()
        await other.wakeups.notify("inbox")
        await asyncio.wait_for(woken.wait(), DEADLINE_S)
