"""Sessions of a coding agent, the same on every run: for tests in the browser, and for the pictures of the docs.

A real `Session` records and reduces them under `economy`; only the model is made up. Its bill is that of a provider
with a prompt cache: it reads what the request before had in common, unless the cache has expired.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from foveal import SummaryRequest, policy
from foveal.core.log.events import Instructed
from foveal.core.view.request import Fitted
from foveal.ports import Store
from foveal.sessions.session import Session
from foveal.stores import open_store
from support.made_once import made_once

if TYPE_CHECKING:
    import pytest

AGENT_MODEL: Final = "claude-sonnet-4-5"
AGENT_WINDOW: Final = 16_000
FIRST_EVENT_AT: Final = 1_773_133_200.0
"""2026-03-10 09:00 UTC."""
CUSTOMER: Final = "CUST-40817"
"""A text of the first turn, which later summaries drop."""
_CACHE_TTL_S: Final = 300.0
_CHARS_PER_TOKEN: Final = 4
_PAUSE_S: Final = 1_140.0
"""A break of the user, after which the cache has expired."""
_TOOL_NAMES: Final = ("read_file", "run", "search", "edit_file")
_MORE_TOOL_NAMES: Final = (*_TOOL_NAMES, "open_pull_request")
_SYSTEM: Final = (
    "You are a careful coding agent. Read a file before you change it, run the tests after each change, and keep "
    "changes small. Answer in one or two sentences."
)
_SUMMARY: Final = """\
<summary>
## Goal
- Fix the faults of the shop that the user names, each with a test (e4).

## Decisions
- The retry in src/shop/shipping.py checks for an existing label before it sends one.
- Files below migrations/ are never changed.

## State
- src/shop/shipping.py and tests/test_shipping.py: changed, tests pass.

## Next
1. The latest request of the user.

## Dead ends
- None so far.
</summary>"""
_NOUNS: Final = [
    "order",
    "invoice",
    "parcel",
    "route",
    "stock",
    "price",
    "refund",
    "label",
    "batch",
    "region",
    "carrier",
    "address",
]
_VERBS: Final = ["load", "store", "match", "split", "round", "check", "merge", "send", "cancel", "count"]


class Task(NamedTuple):
    """What the user asks for, and the calls with which the model does it."""

    text: str
    calls: tuple[tuple[str, str], ...]
    """Tool and argument."""
    answer: str


TASKS: Final = (
    Task(
        f"Orders of {CUSTOMER} are shipped twice. Find out why and fix it.",
        (
            ("search", "def ship_"),
            ("read_file", "src/shop/shipping.py"),
            ("read_file", "src/shop/models.py"),
            ("run", "pytest -q tests/test_shipping.py"),
            ("edit_file", "src/shop/shipping.py"),
            ("run", "pytest -q tests/test_shipping.py"),
        ),
        "The retry did not check for an existing label. It does now, and the tests pass.",
    ),
    Task(
        "Add a test for the retry, please. Never change files below migrations/.",
        (
            ("read_file", "tests/test_shipping.py"),
            ("edit_file", "tests/test_shipping.py"),
            ("run", "pytest -q tests/test_shipping.py"),
        ),
        "Two tests cover the retry: with a label and without one.",
    ),
    Task(
        "The invoice totals are off by one cent in some regions.",
        (
            ("search", "round("),
            ("read_file", "src/shop/invoices.py"),
            ("read_file", "src/shop/regions.py"),
            ("run", "python -m shop.invoices --check 2026-02"),
            ("edit_file", "src/shop/invoices.py"),
            ("run", "pytest -q tests/test_invoices.py"),
        ),
        "Rounding happened per line. It happens once per invoice now; 14 invoices of February change.",
    ),
    Task(
        "Which carriers have no rate for parcels over 20 kg?",
        (
            ("search", "max_weight"),
            ("read_file", "src/shop/carriers.py"),
            ("run", "python -m shop.carriers --rates"),
        ),
        "Two of nine: north-post and cityline.",
    ),
    Task(
        "Make the import of price lists faster. It takes four minutes.",
        (
            ("read_file", "src/shop/price_import.py"),
            ("run", "python -m cProfile -s cumtime -m shop.price_import prices.csv"),
            ("read_file", "src/shop/db/batch.py"),
            ("edit_file", "src/shop/price_import.py"),
            ("run", "pytest -q tests/test_price_import.py"),
            ("run", "time python -m shop.price_import prices.csv"),
        ),
        "Rows are written in batches of 1,000: 4 min 10 s became 21 s.",
    ),
    Task(
        "Refunds of split orders fail with a KeyError. Reproduce it first.",
        (
            ("search", "class Refund"),
            ("read_file", "src/shop/refunds.py"),
            ("run", "pytest -q tests/test_refunds.py -k split"),
            ("edit_file", "src/shop/refunds.py"),
            ("run", "pytest -q tests"),
        ),
        "A split order has several payments, and the refund looked up only the first.",
    ),
    Task(
        "Open a pull request with all of it.",
        (("run", "git diff --stat"), ("run", "git push origin fixes"), ("open_pull_request", "fixes")),
        "Pull request 218 is open. It lists the five fixes and their tests.",
    ),
)


class CachingProvider:
    """What a provider with a prompt cache reports for each request."""

    def __init__(self) -> None:
        self._last: list[str] = []
        self._at = 0.0

    def usage(self, request: Fitted, now: float, *, output: int) -> dict[str, int]:
        """Return the usage of a request at a time, in the form of Anthropic's API."""
        parts = [json.dumps(request.tools, default=str)]
        parts += [json.dumps(message, sort_keys=True) for message in request.to_anthropic()]
        same = 0
        for new, old in zip(parts, self._last, strict=False):
            if new != old or now - self._at > _CACHE_TTL_S:
                break
            same += len(new)
        self._last, self._at = parts, now
        whole = sum(map(len, parts))
        return {
            "input_tokens": 12,
            "cache_read_input_tokens": same // _CHARS_PER_TOKEN,
            "cache_creation_input_tokens": max(0, (whole - same) // _CHARS_PER_TOKEN - 12),
            "output_tokens": output,
        }


class CodingAgent:
    """Runs tasks in a session, with texts from a fixed seed."""

    def __init__(self, session: Session, clock: list[float], *, seed: int = 19) -> None:
        self.session = session
        self._clock = clock
        self._pick = random.Random(seed)
        self._provider = CachingProvider()
        self._calls = 0

    async def run(self, task: Task) -> None:
        """Run one task: the request, its calls with their results, and the answer."""
        await self._wait(20, 90)
        await self.session.take({"role": "user", "content": task.text}, dialect="anthropic")
        for tool, argument in task.calls:
            await self._call(tool, argument)
        await self._answer({"role": "assistant", "content": task.answer})

    async def pause(self) -> None:
        """Let the cache expire."""
        self._clock[0] += _PAUSE_S

    async def _call(self, tool: str, argument: str) -> None:
        self._calls += 1
        id = f"toolu_{self._calls:04d}"
        name = {"run": "command", "search": "pattern", "open_pull_request": "branch"}.get(tool, "path")
        call = {"type": "tool_use", "id": id, "name": tool, "input": {name: argument}}
        await self._answer(
            {"role": "assistant", "content": [{"type": "text", "text": _intent(tool, argument)}, call]}
        )
        await self._wait(1, 9)
        text, is_error = _result(self._pick, tool, argument)
        result = {"type": "tool_result", "tool_use_id": id, "content": text, "is_error": is_error}
        await self.session.take({"role": "user", "content": [result]}, dialect="anthropic")

    async def _answer(self, message: dict[str, Any]) -> None:
        request = await self.session.fit()
        await self._wait(3, 12)
        await self.session.take(message, dialect="anthropic")
        usage = self._provider.usage(request, self._clock[0], output=self._pick.randint(60, 420))
        await self.session.observe(usage)

    async def _wait(self, least: int, most: int) -> None:
        self._clock[0] += self._pick.uniform(least, most)


async def record_session(
    store: Store, id: str, *, title: str, at: float = FIRST_EVENT_AT, **settings: Any
) -> CodingAgent:
    """Create a session without tasks."""
    clock = [at]
    given = {"model": AGENT_MODEL, "window": AGENT_WINDOW, "summarise": write_summary, **settings}
    session = await Session.open(
        store, id, clock=lambda: clock[0], folder="shop", begin=[Instructed(content=_SYSTEM)], **given
    )
    await session.rename(title)
    await session.equip(_schemas(_TOOL_NAMES))
    return CodingAgent(session, clock)


async def record_shop_session(store: Store, id: str = "shop") -> Session:
    """Record the whole session: seven tasks, two breaks, a pinned rule, masks, a summary, and another tool."""
    quiet = policy("economy", mode="off")
    agent = await record_session(store, id, title="Orders are shipped twice", policy=quiet)
    for number, task in enumerate(TASKS):
        if number in (2, 5):
            await agent.pause()
        if number == 2:
            await agent.session.pin("Never change files below migrations/.")
        if number == 5:
            await agent.session.compact("the faults that are fixed")
        if number == 6:
            await agent.session.equip(_schemas(_MORE_TOOL_NAMES))
        await agent.run(task)
    return agent.session


async def record_shop(path: Path) -> None:
    """Write a store with the session, a fork of it, a continuation, and a short one."""
    async with open_store(path) as store:
        session = await record_shop_session(store)
        fork = await session.fork("shop-fork")
        await fork.rename("Orders are shipped twice: another fix")
        await fork.close()
        await session.close()
        later = FIRST_EVENT_AT + 5_400
        for id, title, tasks, origin in (
            ("shop-next", "Price lists for the new region", TASKS[4:6], "shop"),
            ("shop-carriers", "Rates of the carriers", TASKS[3:4], ""),
        ):
            agent = await record_session(store, id, title=title, at=later, origin=origin)
            for task in tasks:
                await agent.run(task)
            await agent.session.close()
            later += 700


def recorded_shop(places: pytest.TempPathFactory) -> Path:
    """Return this store, recorded once for all processes of a test run; a test that serves it takes a copy."""
    return made_once(places, "shop", lambda at: asyncio.run(record_shop(at / "sessions.db"))) / "sessions.db"


async def write_summary(request: SummaryRequest) -> dict[str, Any]:
    """Return the reply of the model that summarises."""
    size = sum(len(str(message)) for message in request.messages) // _CHARS_PER_TOKEN
    return {
        "type": "message",
        "role": "assistant",
        "model": AGENT_MODEL,
        "content": [{"type": "text", "text": _SUMMARY}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 400, "cache_read_input_tokens": size, "output_tokens": 180},
    }


# ── Texts ────────────────────────────────────────────────────────────────────────────────────────────────


def _schemas(names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "description": f"{name.replace('_', ' ').capitalize()} in the project, and return the outcome.",
            "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
        }
        for name in names
    ]


def _intent(tool: str, argument: str) -> str:
    texts = {
        "read_file": f"I read {argument} first.",
        "search": f"I look for `{argument}` in the project.",
        "edit_file": f"I change {argument}.",
        "open_pull_request": "I open the pull request.",
    }
    return texts.get(tool, f"I run `{argument}`.")


def _result(pick: random.Random, tool: str, argument: str) -> tuple[str, bool]:
    """Return the text of a result, and whether the call has failed."""
    match tool:
        case "read_file":
            return _code(pick, argument, lines=pick.randint(90, 190)), False
        case "search":
            return "\n".join(_match(pick) for _ in range(pick.randint(12, 40))), False
        case "edit_file":
            return f"{argument}: 1 place changed (+{pick.randint(4, 30)} −{pick.randint(1, 9)})", False
        case "run":
            return _output(pick, argument)
    return "done", False


def _code(pick: random.Random, path: str, *, lines: int) -> str:
    text = [f'"""{Path(path).stem.replace("_", " ").capitalize()} of the shop."""', ""]
    while len(text) < lines:
        noun, verb, other = pick.choice(_NOUNS), pick.choice(_VERBS), pick.choice(_NOUNS)
        text += [
            "",
            f"def {verb}_{noun}({noun}: {noun.capitalize()}, *, {other}: str = '{pick.randint(100, 999)}') -> int:",
            f'    """{verb.capitalize()} a {noun} by its {other}."""',
            f"    found = {noun}.{other}s.get({other}, {pick.randint(1, 99)})",
            f"    if found > {pick.randint(100, 9_999)}:",
            f"        raise ValueError(f'{noun} has too many {other}s: {{found}}')",
            f"    return found * {pick.randint(2, 40)}",
        ]
    return "\n".join(f"{number:4d}  {line}" for number, line in enumerate(text, 1))


def _match(pick: random.Random) -> str:
    noun, verb = pick.choice(_NOUNS), pick.choice(_VERBS)
    call = f"{verb}_{noun}({noun}, limit={pick.randint(1, 99)})"
    return f"src/shop/{noun}s.py:{pick.randint(10, 400)}:    return {call}"


def _output(pick: random.Random, command: str) -> tuple[str, bool]:
    if not command.startswith("pytest"):
        rows = (
            f"{pick.choice(_NOUNS):<10} {pick.choice(_VERBS):<8} {pick.random() * 900:9.3f} s"
            for _ in range(60)
        )
        return f"$ {command}\n" + "\n".join(rows), False
    is_error = "split" in command
    lines = [
        f"tests/test_{pick.choice(_NOUNS)}s.py::test_{pick.choice(_VERBS)}_{pick.choice(_NOUNS)}_{number} PASSED"
        for number in range(pick.randint(40, 120))
    ]
    end = "E   KeyError: 'payment_2'\n1 failed, 3 passed" if is_error else f"{len(lines)} passed in 2.41s"
    return "\n".join([*lines, end]), is_error
