"""Tests of three servers on one PostgreSQL under faults: each acknowledged message is answered once, in order.

The seed of the faults is printed; FOVEAL_SEED repeats a run. FOVEAL_SOAK=1 sends 1,000 messages with the times of a
server, and measures how soon another server takes over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from support.group_checker import CheckedRun, check_group
from support.group_client import ClientOrder
from support.server_group import (
    SERVERS,
    ClientProcess,
    LeaseWatch,
    ServerGroup,
    server_group,
)

SOAK: Final = bool(os.environ.get("FOVEAL_SOAK"))


def seed() -> int:
    given = os.environ.get("FOVEAL_SEED")
    return int(given) if given else time.time_ns() % 1_000_000


def order(folder: Path, group: ServerGroup, seed: int, *, is_short: bool) -> ClientOrder:
    return ClientOrder(
        urls=[member.url for member in group.members],
        sessions=[f"room{number}" for number in range(4 if is_short else 10)],
        writers=2 if is_short else 4,
        messages=8 if is_short else 25,
        pause_s=0.8 if is_short else 6.0,
        reply_s=5.0 if is_short else 20.0,
        deadline_s=90.0 if is_short else 1_200.0,
        background_share=0.15,
        seed=seed,
        stop=str(folder / "stop"),
    )


def faults(group: ServerGroup, random: Random, *, is_short: bool) -> list[Callable[[], None]]:
    """Return the faults in a random order, ended by a rolling restart with another release."""
    outage_s, lease_s = (1.0, 3.0) if is_short else (16.0, 15.0)

    def member() -> int:
        return random.randrange(SERVERS)

    found: list[Callable[[], None]] = []
    for _ in range(1 if is_short else 3):
        found += [
            partial(group.kill, member()),
            partial(group.disturb, member(), "refuse", outage_s / 2),
            partial(group.disturb, member(), "reset_all", 0.1),
            partial(group.cut_commits, member()),
            partial(group.stop_database, random.uniform(0.2, outage_s / 4)),
        ]
    found += [
        partial(group.pause, member(), lease_s + 1),
        partial(group.disturb, member(), "swallow", outage_s),
        partial(group.disturb, member(), "drop_replies", outage_s),
        partial(group.disturb, member(), "drop_requests", outage_s),
    ]
    random.shuffle(found)
    members = random.sample(range(SERVERS), SERVERS)
    return [*found, group.later_release, *(partial(group.restart, one) for one in members)]


def run_faults(folder: Path, group: ServerGroup, random: Random, seed: int, *, is_short: bool) -> CheckedRun:
    given = order(folder, group, seed, is_short=is_short)
    for number, session in enumerate(given.sessions):
        assert group.ask(number % SERVERS, "/api/sessions", body={"id": session}).status == 201
    with LeaseWatch(group) as watch, ClientProcess(folder, given) as clients:
        group.wait(lambda: clients.has_begun, "the clients begin")
        for fault in faults(group, random, is_short=is_short):
            time.sleep(random.uniform(0.1, 0.6) if is_short else random.uniform(1.0, 4.0))
            fault()
        lines = clients.end()
        group.wait(group.is_all_answered, "all messages are answered")
    assert watch.faults == []
    return check_group(group, lines)


def test_messages_are_answered_once_and_in_order_under_faults(tmp_path: Path) -> None:
    number = seed()
    random = Random(number)
    with server_group(tmp_path, random, is_short=True) as group:
        try:
            run = run_faults(tmp_path, group, random, number, is_short=True)
        finally:
            print(f"FOVEAL_SEED={number}", *(f"{what};" for _, what in group.happened))  # noqa: T201
    assert run.acknowledged >= 60
