"""Tests of three servers on one PostgreSQL under faults: each acknowledged message is answered once, in order.

The seed of the faults is printed; FOVEAL_SEED repeats a run. FOVEAL_SOAK=1 sends 1,000 messages with the times of a
server, and measures how soon another server takes over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from statistics import median, quantiles
from threading import Event, Thread
from typing import Any, Final

import pytest

from foveal.core.log import ModelSaid, Noted, UserSaid
from foveal.core.log.events import AnyFact
from foveal.core.log.events import Event as LogEvent
from foveal.server.turns import TURN_NOTE_TOPIC
from support.group_checker import CheckedRun, check_clients, check_group, check_log
from support.group_client import ClientLine, ClientOrder
from support.grouped_server import expected_answer, message_text
from support.server_group import (
    SERVERS,
    ClientProcess,
    LeaseWatch,
    ServerGroup,
    server_group,
)

MAX_TAKEOVER_S: Final = 17.0
MAX_JOB_RECOVERY_S: Final = 45.0
MAX_WAKE_S: Final = 0.15
MAX_POLLED_WAKE_S: Final = 1.5
TAKEN_OVER: Final = "was taken over by another process"


def chosen_seed() -> int:
    given = os.environ.get("FOVEAL_SEED")
    return int(given) if given else time.time_ns() % 1_000_000


@contextmanager
def under_load(folder: Path, group: ServerGroup, order: ClientOrder) -> Iterator[None]:
    """Run clients during the block, then check what they and the database have recorded."""
    for number, session in enumerate(order.sessions):
        assert group.ask(number % SERVERS, "/api/sessions", body={"id": session}).status == 201
    with LeaseWatch(group) as watch, ClientProcess(folder, order) as clients:
        group.wait(lambda: clients.has_begun, "the clients begin")
        yield
        lines = clients.end()
        group.wait(group.is_all_answered, "all messages are answered")
    assert watch.faults == []
    run = check_group(group, lines)
    say(
        f"{run.acknowledged} acknowledged, {run.attempts} sent, the slowest answer after {run.slowest_s:.1f} s"
    )
    assert_enough(order, run)


def assert_enough(order: ClientOrder, run: CheckedRun) -> None:
    assert run.acknowledged >= order.messages * order.writers * len(order.sessions)


def say(text: str) -> None:
    print(f"several machines: {text}", flush=True)  # noqa: T201 (pytest shows it when the test fails)


# ── Faults in the middle of a turn ───────────────────────────────────────────────────────────────────────


class SlowTurn:
    """A message that one server of a group is answering; another server is asked for the same answer."""

    def __init__(self, group: ServerGroup, session: str, *, slow_s: float, background: bool = False) -> None:
        first = group.any_member()
        self.group = group
        self.session = session
        self._text = message_text(f"{session}-slow", 7, slow_s=slow_s)
        self._body = {"text": self._text, "key": f"{session}-slow", "stream": False}
        while group.ask(first, "/api/sessions", body={"id": session}).status not in (201, 409):
            time.sleep(0.2)  # 409: an earlier request has created it, and its response was an error
        if background:
            assert group.ask(first, self._path, body={**self._body, "background": True}).status == 202
        else:
            Thread(target=self._post, args=(first,), daemon=True).start()
        group.wait(lambda: self._holders() != [], "the model is asked")
        self.holder = int(self._holders()[0].removeprefix("server"))
        self.other = (self.holder + 1) % SERVERS

    def wait_for_answer(self) -> None:
        """Ask the other server until it has the answer."""
        answers: list[str] = []
        while not answers:
            answers += self._post(self.other)
        assert answers == [expected_answer(self._text)]

    @property
    def _path(self) -> str:
        return f"/api/sessions/{self.session}/turns"

    def _holders(self) -> list[str]:
        return [name for name, text in self.group.asked if text == self._text]

    def _post(self, member: int) -> list[str]:
        """Send the message; return the answer, if there is one."""
        try:
            reply = self.group.ask(member, self._path, body=self._body)
        except OSError:
            return []
        return [reply.json["outcome"]["text"]] if reply.status == 200 else []


def take_over(group: ServerGroup, session: str, *, slow_s: float) -> float:
    """Kill a server in the middle of a turn; return the seconds until another one has answered."""
    turn = SlowTurn(group, session, slow_s=slow_s)
    killing = Thread(target=group.kill, args=(turn.holder,))
    began = time.monotonic()
    killing.start()
    turn.wait_for_answer()
    seconds = time.monotonic() - began - slow_s
    killing.join()
    say(f"another server had answered {seconds:.1f} s after kill -9")
    return seconds


def restart_in_turn(group: ServerGroup, session: str) -> None:
    """Stop a server in the middle of a turn that takes longer than `server.grace`; another one must answer."""
    turn = SlowTurn(group, session, slow_s=2.5)
    restarting = Thread(target=group.restart, args=(turn.holder,))
    restarting.start()
    turn.wait_for_answer()
    restarting.join()


def pause_beyond_lease(group: ServerGroup, session: str, *, lease_s: float) -> None:
    """Pause a server in the middle of a turn until another one has answered; its next write must be refused."""
    turn = SlowTurn(group, session, slow_s=1.0)
    holder = group.members[turn.holder]
    before = holder.log.count(TAKEN_OVER)
    pausing = Thread(target=group.pause, args=(turn.holder, lease_s + 3.0))
    pausing.start()
    turn.wait_for_answer()
    pausing.join()
    group.wait(lambda: holder.log.count(TAKEN_OVER) > before, "the paused server is refused")


def recover_job(group: ServerGroup, session: str) -> float:
    """Kill the server that runs a job; return the seconds until the job has ended."""
    turn = SlowTurn(group, session, slow_s=2.0, background=True)
    killing = Thread(target=group.kill, args=(turn.holder,))
    began = time.monotonic()
    killing.start()
    group.wait(group.is_all_answered, "the job ends", seconds=90.0)
    seconds = time.monotonic() - began
    killing.join()
    say(f"the job of a killed server had ended after {seconds:.1f} s")
    return seconds


def typical_wake(group: ServerGroup, session: str, members: tuple[int, int], *, times: int) -> float:
    """Send messages to two servers at once; return the median of the seconds between their two answers. The p95 is
    printed only: on a busy machine it says how busy it is."""
    assert group.ask(members[0], "/api/sessions", body={"id": session}).status == 201
    gaps = []
    for number in range(times):
        answered: list[float] = []

        def post(member: int, number: int = number, answered: list[float] = answered) -> None:
            body = {"text": message_text(f"{session}-{number}", number), "key": f"{session}-{number}"}
            reply = group.ask(member, f"/api/sessions/{session}/turns", body={**body, "stream": False})
            assert reply.status == 200
            answered.append(time.monotonic())

        both = [Thread(target=post, args=(member,)) for member in members]
        for one in both:
            one.start()
        for one in both:
            one.join()
        gaps.append(max(answered) - min(answered))
    p95 = quantiles(gaps, n=20)[-1]
    say(f"servers {members}: woken after {median(gaps):.3f} s (median), {p95:.3f} s (p95 of {times})")
    return median(gaps)


# ── Short ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.soak
def test_messages_are_answered_once_and_in_order_under_faults(tmp_path: Path) -> None:
    seed = chosen_seed()
    random = Random(seed)
    say(f"FOVEAL_SEED={seed}")
    with server_group(tmp_path, random, is_short=True) as group:
        order = ClientOrder(
            urls=[member.url for member in group.members],
            sessions=["north", "south", "west"],
            writers=2,
            messages=10,
            pause_s=0.7,
            reply_s=4.0,
            deadline_s=240.0,
            seed=seed,
            stop=str(tmp_path / "stop"),
        )
        with under_load(tmp_path, group, order):
            for fault in short_faults(group, random):
                time.sleep(random.uniform(0.1, 0.5))
                fault()
    say(group.history())


def short_faults(group: ServerGroup, random: Random) -> list[Callable[[], object]]:
    """Return one fault of each kind in a random order, ended by a second release beside the first."""

    def member() -> int:
        return random.randrange(SERVERS)

    faults: list[Callable[[], object]] = [
        partial(take_over, group, "killed", slow_s=0.5),
        partial(pause_beyond_lease, group, "paused", lease_s=3.0),
        partial(group.cut_commits, member()),
        partial(group.stop_database, 0.3),
        partial(group.disturb, member(), "reset_all", 0.1),
        *(
            partial(group.disturb, member(), fault, 0.7)
            for fault in ("refuse", "swallow", "drop_replies", "drop_requests")
        ),
    ]
    random.shuffle(faults)
    return [*faults, group.later_release, partial(restart_in_turn, group, "restarted")]


# ── Long ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.soak
def test_1000_messages_are_answered_once_and_in_order_with_the_times_of_a_server(tmp_path: Path) -> None:
    seed = chosen_seed()
    random = Random(seed)
    say(f"FOVEAL_SEED={seed}")
    with server_group(tmp_path, random, is_short=False) as group:
        order = ClientOrder(
            urls=[member.url for member in group.members],
            sessions=[f"room{number}" for number in range(10)],
            writers=4,
            messages=25,
            pause_s=6.0,
            reply_s=20.0,
            deadline_s=1_200.0,
            seed=seed,
            stop=str(tmp_path / "stop"),
        )
        with under_load(tmp_path, group, order):
            run_long_faults(group, random)
        takeovers = [take_over(group, f"taken{number}", slow_s=1.0) for number in range(3)]
        recoveries = [recover_job(group, f"job{number}") for number in range(2)]
        woken = typical_wake(group, "woken", (0, 1), times=100)
        polled = typical_wake(group, "polled", (0, 2), times=40)
    say(group.history())
    assert max(takeovers) <= MAX_TAKEOVER_S
    assert max(recoveries) <= MAX_JOB_RECOVERY_S
    assert woken <= MAX_WAKE_S
    assert polled <= MAX_POLLED_WAKE_S


def run_long_faults(group: ServerGroup, random: Random) -> None:
    """Run several faults of each kind, and then a rolling restart with a later release."""

    def member() -> int:
        return random.randrange(SERVERS)

    faults: list[Callable[[], object]] = []
    for number in range(3):
        faults += [
            partial(take_over, group, f"killed{number}", slow_s=2.0),
            partial(group.kill, member()),
            partial(group.cut_commits, member(), times=4),
            partial(group.stop_database, random.uniform(0.2, 5.0)),
            partial(group.disturb, member(), "refuse", random.uniform(1.0, 15.0)),
        ]
    for fault in ("swallow", "drop_replies", "drop_requests"):
        faults += [partial(group.disturb, member(), fault, seconds) for seconds in (2.0, 18.0)]
    faults += [partial(pause_beyond_lease, group, f"paused{number}", lease_s=15.0) for number in range(2)]
    random.shuffle(faults)
    with small_faults(group, random):
        for fault in faults:
            time.sleep(random.uniform(0.5, 3.0))
            fault()
        group.later_release()
        restart_in_turn(group, "restarted")
        for one in random.sample(range(SERVERS), SERVERS):
            group.restart(one)
            time.sleep(random.uniform(1.0, 5.0))


@contextmanager
def small_faults(group: ServerGroup, random: Random) -> Iterator[None]:
    """Reset connections and cut commits every few seconds during the block."""
    ending, own = Event(), Random(random.random())

    def disturb() -> None:
        while not ending.wait(own.uniform(1.0, 4.0)):
            proxy = own.choice(group.members).proxy
            if own.random() < 0.3:
                proxy.reset_all()
            else:
                proxy.cut_next_commit(own.choice(["reply_lost", "never_arrives", "arrives_late"]))

    thread = Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


# ── The checker itself ───────────────────────────────────────────────────────────────────────────────────

ONE, TWO = message_text("one", 1), message_text("two", 2)


def log_of(*facts: AnyFact) -> list[LogEvent]:
    return [LogEvent(seq, fact) for seq, fact in enumerate(facts)]


def note(turn: str) -> Noted:
    return Noted(text=turn, topic=TURN_NOTE_TOPIC)


def asked(text: str) -> UserSaid:
    return UserSaid(content=text)


def answered(text: str) -> ModelSaid:
    return ModelSaid(content=expected_answer(text))


def test_the_checker_accepts_a_log_with_one_answer_per_message() -> None:
    assert check_log("s", log_of(asked(ONE), answered(ONE), asked(TWO), answered(TWO))) == [ONE, TWO]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(log_of(asked(ONE), answered(ONE), answered(ONE)), id="answered twice"),
        pytest.param(log_of(asked(ONE), asked(TWO), answered(TWO)), id="not answered"),
        pytest.param(log_of(asked(ONE), answered(TWO)), id="another answer"),
        pytest.param(log_of(asked(ONE), answered(ONE), asked(ONE), answered(ONE)), id="stored twice"),
        pytest.param([LogEvent(0, asked(ONE)), LogEvent(2, answered(ONE))], id="a gap"),
        pytest.param(log_of(note("a"), asked(ONE), answered(ONE), note("a")), id="a turn twice"),
    ],
)
def test_the_checker_refuses_a_log(events: list[LogEvent]) -> None:
    with pytest.raises(AssertionError):
        check_log("s", events)


def line(at: float, what: Any, text: str, key: str = "") -> ClientLine:
    return ClientLine(at=at, what=what, session="s", key=key or text.split()[1], server=0, text=text)


ONE_THEN_TWO: Final = [
    line(1, "sent", ONE),
    line(2, "acknowledged", ONE),
    line(3, "answered", expected_answer(ONE), "one"),
    line(4, "sent", TWO),
    line(5, "acknowledged", TWO),
    line(6, "answered", expected_answer(TWO), "two"),
]


def test_the_checker_accepts_clients_whose_messages_are_stored_in_order() -> None:
    check_clients("s", ONE_THEN_TWO, [ONE, TWO])


@pytest.mark.parametrize(
    ("lines", "stored"),
    [
        pytest.param(ONE_THEN_TWO, [TWO, ONE], id="another order"),
        pytest.param(ONE_THEN_TWO, [ONE], id="an acknowledged message lost"),
        pytest.param(ONE_THEN_TWO[:4], [ONE, TWO], id="a message without acknowledgement"),
        pytest.param([*ONE_THEN_TWO[:3], ONE_THEN_TWO[2]], [ONE], id="two answers"),
        pytest.param([*ONE_THEN_TWO[:2], line(3, "answered", "answer 5", "one")], [ONE], id="another answer"),
        pytest.param([*ONE_THEN_TWO[:3], line(9, "gave up", ONE)], [ONE], id="a client that gave up"),
    ],
)
def test_the_checker_refuses_what_clients_saw(lines: list[ClientLine], stored: list[str]) -> None:
    with pytest.raises(AssertionError):
        check_clients("s", lines, stored)
