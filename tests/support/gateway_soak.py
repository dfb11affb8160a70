"""Soak of a chat bot: many messages to `foveal serve` under kills and outages.

1. `soak_plan` makes a plan from a seed: who writes where, and what goes wrong after which message.
2. `run_soak` carries it out with a server process and the stand-in of a chat app (`gateway_soak_apps`).
3. `check_soak` compares the stand-in's records and the server's database with the plan: each part of each answer
   was sent once, in order and in the place of its message, and no answer is owed.

An answer whose acceptance the bot did not see is sent again, unless the chat app recognises it. The check allows
and counts such duplicates: the connection was cut, or the server killed, right after the acceptance.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from foveal.config import load
from foveal.core.log import UserSaid, text_of
from foveal.ports import Reply, ReplyPiece
from foveal.server import Chats, Service
from foveal.testing import Scripted
from support.serve_process import Server, serving

SOAK_PROVIDER: Final = "support.gateway_soak:soak_model"
KILL_GAP_S: Final = 3.0
"""Time before a kill in which the server may not have recorded yet what it received and what was accepted."""
LONG_ANSWER_CHARS: Final = 6_000
"""Length of a long answer."""
PASTED_CHARS: Final = 5_000
"""Length of a pasted text, which a client may split into several messages."""
_NUMBER: Final = re.compile(r"\bm\d{4}[lp]?\b")
"""The number of a message in its text; `l` asks for a long answer, `p` is followed by a pasted text."""
_PART: Final = re.compile(r"\bm\d{4}[lp]?-\d\b")
"""The first or the last part of the answer to a message."""

# ── the model ────────────────────────────────────────────────────────────────────────────────────────────


class SoakModel(Scripted):
    """Answers with the numbers of the messages, after a pause that depends on them."""

    async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        said = str([message["content"] for message in request.to_openai() if message["role"] == "user"][-1])
        numbers = _NUMBER.findall(said)
        await asyncio.sleep(sum(int(number[1:5]) * 7 % 50 for number in numbers) / 1_000)
        self._answers = ["\n\n".join(answer_to(number) for number in numbers)]
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece


def soak_model(name: str | None, **_: Any) -> Scripted:
    """Create the provider, for `FOVEAL_PROVIDER`."""
    return SoakModel()


def answer_to(number: str) -> str:
    """Return the answer to a message: `m0007-1`, or for `m0009l` a long text between `m0009l-1` and `m0009l-2`."""
    if not number.endswith("l"):
        return f"{number}-1"
    return f"{number}-1 " + "word " * (LONG_ANSWER_CHARS // 5) + f"{number}-2"


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────────────


class SoakPlace(NamedTuple):
    """A conversation: a private chat, a group, or a topic of a forum."""

    chat: int
    topic: int | None
    user: int


class SoakMessage(NamedTuple):
    place: SoakPlace
    number: str
    pause_s: float
    """Time until the next message."""


class SoakFault(NamedTuple):
    after: int
    """How many messages were sent when it begins."""
    kind: str
    """`kill`, `kill after acceptance`, or a kind of the chat app."""
    seconds: float


class SoakPlan(NamedTuple):
    messages: Sequence[SoakMessage]
    faults: Sequence[SoakFault]


_KINDS: Final = {4: "p", 9: "l"}
"""The kinds of every tenth message."""


def soak_plan(
    seed: int,
    *,
    messages: int,
    places: Sequence[SoakPlace],
    faults: Mapping[str, int],
    fault_s: float,
    pause_s: float,
) -> SoakPlan:
    """Return a plan; `faults` says how many of each kind, `fault_s` and `pause_s` how long they last at most."""
    dice = random.Random(seed)
    sent = [
        SoakMessage(dice.choice(places), f"m{n:04}{_KINDS.get(n % 10, '')}", dice.uniform(0, pause_s))
        for n in range(messages)
    ]
    kinds = [kind for kind, count in faults.items() for _ in range(count)]
    dice.shuffle(kinds)
    moments = sorted(dice.sample(range(1, messages * 9 // 10), len(kinds)))
    # The cube makes most of them short.
    planned = [
        SoakFault(after, kind, fault_s * dice.random() ** 3)
        for after, kind in zip(moments, kinds, strict=True)
    ]
    return SoakPlan(sent, planned)


# ── the run ──────────────────────────────────────────────────────────────────────────────────────────────


class SoakAnswer(NamedTuple):
    """A message of the bot that the chat app has accepted."""

    place: tuple[int, int | None]
    text: str
    at: float
    """When it was accepted, in the time of `time.monotonic`."""
    is_reply_lost: bool
    """The bot got no answer to its request."""


class SoakApp(Protocol):
    """The stand-in of a chat app, as the soak uses it."""

    platform: str
    keeps_messages: bool
    """Whether the chat app keeps messages for a bot that was killed."""

    def settings(self) -> dict[str, Any]:
        """Return the server's configuration, without the users."""
        ...

    def environment(self) -> dict[str, str]: ...

    async def hear(self, place: SoakPlace, text: str) -> None:
        """Send a message to the bot."""
        ...

    async def cause(self, fault: SoakFault) -> None:
        """Let requests of the bot fail."""
        ...

    def server_killed(self) -> None: ...

    def delivered_at(self, number: str) -> float | None:
        """Return when a message was sent to the bot, in the time of `time.monotonic`; None if it was not."""
        ...

    def answers(self, start: int = 0) -> list[SoakAnswer]:
        """Return the messages of the bot from a number on."""
        ...


@dataclass
class SoakRun:
    """A run of a plan, and what it has recorded."""

    plan: SoakPlan
    folder: Path
    app: SoakApp
    kills: list[float] = field(default_factory=list)
    """When the server was killed, in the time of `time.monotonic`."""
    logs: list[str] = field(default_factory=list)
    """The output of each server."""

    async def start(self) -> None:
        users = sorted({message.place.user for message in self.plan.messages})
        self._context: AbstractContextManager[Server] = serving(
            folder=self.folder,
            settings={f"{self.app.platform}.allowed": users, **self.app.settings()},
            environment=self.app.environment(),
            provider=SOAK_PROVIDER,
        )
        self.server = await asyncio.to_thread(self._context.__enter__)

    async def stop(self) -> None:
        """Stop the server as a service manager does."""
        await asyncio.to_thread(self.server.stop)
        await self._end()

    async def kill(self) -> None:
        """Kill the server, and start another one."""
        self.app.server_killed()
        self.kills.append(time.monotonic())
        self.server.kill()
        await self._end()
        await self.start()

    async def _end(self) -> None:
        self.logs.append(self.server.output)
        await asyncio.to_thread(self._context.__exit__, None, None, None)

    async def send_all(self) -> None:
        """Send the messages, while the faults of the plan happen one after the other."""
        faults = list(self.plan.faults)
        current: asyncio.Task[None] | None = None
        for count, message in enumerate(self.plan.messages, 1):
            await self.app.hear(message.place, message.number)
            await asyncio.sleep(message.pause_s)
            if faults and faults[0].after <= count:
                if current is not None:
                    await current
                current = asyncio.create_task(self._cause(faults.pop(0)))
        if current is not None:
            await current

    async def _cause(self, fault: SoakFault) -> None:
        if fault.kind == "kill":
            await asyncio.sleep(fault.seconds)
            await self.kill()
        elif fault.kind == "kill after acceptance":
            before = len(self.app.answers())
            await self._until(lambda: bool(self.app.answers(before)), seconds=10)
            await self.kill()
        else:
            await self.app.cause(fault)

    async def wait_answered(self, *, quiet_s: float, seconds: float) -> None:
        """Wait until every message was answered; the check reports what is missing when the time is over.

        If the chat app keeps no messages for a killed bot, some have no answer: then the wait ends after `quiet_s`
        without an answer, if a kill explains each that is missing.
        """
        missing = {
            part: message.number
            for message in self.plan.messages
            for part in _PART.findall(answer_to(message.number))
        }
        seen, news_at = 0, time.monotonic()

        def is_complete() -> bool:
            nonlocal seen, news_at
            for answer in self.app.answers(seen):
                for part in _PART.findall(answer.text):
                    missing.pop(part, None)
                seen, news_at = seen + 1, time.monotonic()
            if not missing or self.app.keeps_messages:
                return not missing
            is_quiet = time.monotonic() > news_at + quiet_s
            return is_quiet and all(_is_lost_by_kill(self, number) for number in missing.values())

        await self._until(is_complete, seconds=seconds)

    async def _until(self, true: Callable[[], bool], *, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not true():
                    await asyncio.sleep(0.01)


async def run_soak(
    plan: SoakPlan, folder: Path, app: SoakApp, *, wait_s: float, quiet_s: float = 5.0
) -> SoakRun:
    """Run a plan; `wait_s` is how long the last answers may take; for `quiet_s` see `wait_answered`."""
    run = SoakRun(plan, folder, app)
    await run.start()
    try:
        await run.send_all()
        await run.wait_answered(quiet_s=quiet_s, seconds=wait_s)
    finally:
        await run.stop()
    return run


# ── the check ────────────────────────────────────────────────────────────────────────────────────────────


class SoakFigures(NamedTuple):
    """What a check has counted."""

    answered: int
    """Messages that were answered."""
    lost_by_kills: int
    """Messages that the chat app sent to a server that was killed, and did not keep."""
    kills: int
    duplicates_after_cuts: int
    duplicates_after_kills: int


async def check_soak(run: SoakRun) -> SoakFigures:
    """Raise `AssertionError` with everything that went wrong."""
    stored, problems = await _read_database(run)
    found = {number for numbers in stored for number in numbers}
    sent: dict[tuple[int, int | None], list[str]] = defaultdict(list)
    lost = []
    for message in run.plan.messages:
        if message.number in found or run.app.keeps_messages:
            sent[message.place.chat, message.place.topic].append(message.number)
        else:
            lost.append(message.number)
    problems += [f"{number} was lost" for number in lost if not _is_lost_by_kill(run, number)]
    if sorted(stored) != sorted(sent.values()):
        wrong = [numbers for numbers in stored if numbers not in sent.values()]
        problems.append(f"stored messages differ from those sent: {wrong}")
    duplicates = Counter[str]()
    problems += check_answers(run, sent, duplicates)
    assert not problems, "\n".join(problems)
    answered = sum(map(len, sent.values()))
    return SoakFigures(answered, len(lost), len(run.kills), duplicates["cut"], duplicates["kill"])


def check_answers(
    run: SoakRun, sent: Mapping[tuple[int, int | None], list[str]], duplicates: Counter[str]
) -> list[str]:
    """Return what is wrong with the answers, and count the duplicates that have a cause."""
    problems: list[str] = []
    seen: dict[tuple[int, int | None], list[str]] = defaultdict(list)
    holders: dict[str, SoakAnswer] = {}
    """The newest answer that holds a part."""
    for answer in run.app.answers():
        parts = _PART.findall(answer.text)
        if not parts and "word word" not in answer.text:
            problems.append(f"{answer.place}: unexpected message {answer.text[:200]!r}")
        for part in parts:
            if part not in holders:
                seen[answer.place].append(part)
            elif cause := _cause_of_duplicate(run, holders[part]):
                duplicates[cause] += 1
            else:
                problems.append(f"{answer.place}: {part} was sent again without a cause")
            holders[part] = answer
    for place, numbers in sent.items():
        expected = [part for number in numbers for part in _PART.findall(answer_to(number))]
        problems += _differences(place, expected, seen.pop(place, []))
    return problems + [f"{place}: parts of other places: {parts}" for place, parts in seen.items()]


def _cause_of_duplicate(run: SoakRun, first: SoakAnswer) -> str:
    """Return why the bot could not know that a message was accepted: "cut", "kill", or "" if it could."""
    if first.is_reply_lost:
        return "cut"
    return "kill" if _is_before_kill(run, first.at) else ""


def _is_lost_by_kill(run: SoakRun, number: str) -> bool:
    delivered = run.app.delivered_at(number)
    return delivered is None or _is_before_kill(run, delivered)


def _is_before_kill(run: SoakRun, moment: float) -> bool:
    # The process may work for a moment longer.
    return any(-0.2 <= kill - moment <= KILL_GAP_S for kill in run.kills)


def _differences(place: object, expected: list[str], seen: list[str]) -> list[str]:
    if expected == seen:
        return []
    if missing := [part for part in expected if part not in seen]:
        return [f"{place}: not answered: {missing}"]
    return [f"{place}: not in order: {seen}"]


async def _read_database(run: SoakRun) -> tuple[list[list[str]], list[str]]:
    """Return the stored messages of each session, and a problem for each answer that is owed."""
    config = load(run.folder.parent, flags={}, environ={}, user_folder=run.folder.parent / "no-config")
    stored = []
    async with Service.open(config, folder=run.folder, environment={}) as service:
        owed = await Chats(service.runtime.database).undelivered(run.app.platform, now=time.time())
        tenant = service.tenant(run.app.platform)
        for info in await tenant.sessions():
            events = await (await tenant.session(info.id)).events()
            said = [text_of(event.fact.content) for event in events if isinstance(event.fact, UserSaid)]
            stored.append([number for text in said for number in _NUMBER.findall(text)])
    return stored, [f"an answer is owed: {message}" for message in owed]
