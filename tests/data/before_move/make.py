"""Writes the fixtures of `test_before_move.py`.

This script wrote the files in this folder with the code of commit cd11eb43be72c0522681fde8e7befa22ee93aa66, the
last one before all modules moved. It imports modules by the names that they had there, so it runs against that
commit only, and a rename of modules leaves this file as it is:

    git worktree add ../before cd11eb43be72c0522681fde8e7befa22ee93aa66
    PYTHONPATH=../before/src:../before/tests python tests/data/before_move/make.py

Without arguments it writes everything; `config`, `server`, `sessions` and `contexts` choose. Times and ids are
fixed, so a second run writes the same bytes, except for the times in the worker's own file and the order of
concurrent work in the server's folder.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import random
import shutil
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import histories  # noqa: E402
import httpx  # noqa: E402
import observed  # noqa: E402
import serving  # noqa: E402
import upstream  # noqa: E402
from observed import Clock, Json  # noqa: E402
from standin import Answer, StandIn  # noqa: E402

import foveal  # noqa: E402
from foveal import context as context_module  # noqa: E402
from foveal import session as session_module  # noqa: E402
from foveal.codec import encode  # noqa: E402
from foveal.compaction.asking import Draft  # noqa: E402
from foveal.config import load  # noqa: E402
from foveal.config.keys import KEYS, find  # noqa: E402
from foveal.events import (  # noqa: E402
    Call,
    Instructed,
    Mark,
    Marked,
    Masked,
    ModelSaid,
    Noted,
    Text,
    ToolReturned,
    Unknown,
    UserSaid,
    raw,
)
from foveal.service import Service  # noqa: E402
from foveal.service.chats import Chats, Message  # noqa: E402
from foveal.service.errands import errand  # noqa: E402
from foveal.service.pairing import Pairing  # noqa: E402
from foveal.service.schedules import Schedule  # noqa: E402
from foveal.service.timetable import Timetable  # noqa: E402
from foveal.service.tokens import Tokens  # noqa: E402
from foveal.service.work import Pace, Work  # noqa: E402
from foveal.stores import SqliteStore, open_store  # noqa: E402


def write_json(name: str, value: Any) -> None:
    write(f"{name}.json", json.dumps(value, ensure_ascii=True).encode())


def write(name: str, data: bytes) -> None:
    """A file of this folder, compressed; without a time, so that the same data is the same file."""
    path = HERE / f"{name}.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 9, mtime=0))
    sys.stdout.write(f"{path.name}: {path.stat().st_size:,} bytes\n")


# ── contexts ─────────────────────────────────────────────────────────────────────────────────────────────

WINDOWS = {"recent": 7_000, "off": 60_000}
ACTS: dict[str, list[str]] = {
    "2": ["pin", "snapshot"], "3": ["mark"], "4": ["edit"], "6": ["compact"], "7": ["pin event", "undo"],
    "9": ["expand"], "17": ["undo"],
}  # fmt: skip
WRITERS = ("", "steady", "unsteady", "failing")


def _last_acts(calls: int, preset: str) -> dict[str, list[str]]:
    """A smaller model, and at the end a provider that refuses the request; without reductions that would be all."""
    return {} if preset == "off" else {f"{calls - 5}": ["switch"], f"{calls - 2}": ["refused"]}


async def _as_session(log: Any, case: Json) -> Json:
    with tempfile.TemporaryDirectory() as folder:
        async with open_store(Path(folder) / "log.db") as store:
            return await observed.log_seen(store, log, case)


def contexts() -> None:
    cases = []
    for at, preset in enumerate(foveal.PRESETS):
        for place, dialect in enumerate(histories.DIALECTS):
            seed = 1_000 + 10 * at + place
            told = histories.told(histories.tale(seed, 9, 5, 30), dialect)
            case = {
                "name": f"{preset}-{dialect}",
                "policy": preset,
                "dialect": dialect,
                "window": WINDOWS.get(preset, 9_000),
                "writer": WRITERS[(at + place) % len(WRITERS)],
                "messages": told.messages,
                "calls": told.calls,
                "acts": ACTS | (_last_acts(len(told.calls), preset) if place == at % 3 else {}),
            }
            case = json.loads(json.dumps(case))  # as the test has it: equal strings are not the same object
            context, fits = observed.run_context(case)
            lines = b"".join(encode(event) + b"\n" for event in context.log)
            write(f"contexts/{case['name']}.jsonl", lines)
            case |= {"fits": [observed.digest(fit) for fit in fits], "last": fits[-1]}
            case |= {"seen": observed.context_seen(context)}
            case |= {"session": asyncio.run(_as_session(context.log, case))}
            cases.append(case)
    write_json("contexts", cases)


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────

SESSIONS: dict[str, Json] = {
    "work": {"window": 6_000, "policy": {"preset": "economy", "clip": {"strategy": "smart", "tokens": 500}}},
    "work-forked": {
        "window": 6_000,
        "policy": {"preset": "economy", "clip": {"strategy": "smart", "tokens": 500}},
    },
    "work-continued": {"window": 6_000, "policy": "economy"},
    "summarised": {"window": 8_000, "policy": "handoff"},
    "prepared": {"window": 5_000, "policy": "recent-summary"},
    "media": {
        "window": 5_000,
        "policy": {"preset": "rolling", "keep_first": 1, "keep_last": 1},
        "more": {"max_images": 3},
    },
    "dropping": {"window": 2_000, "policy": "recent"},
    "expanded": {"window": 4_000, "policy": "economy"},
    "asking": {"window": 2_000, "policy": "confirm"},
    "erased": {"window": 4_000, "policy": "economy"},
}
"""The settings of each session of the store."""


class Writer:
    """Writes summaries: as it is told, and when it is told."""

    def __init__(self) -> None:
        self.fails = False
        self.gate: asyncio.Event | None = None

    async def __call__(self, request: Any) -> Draft:
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            raise RuntimeError("the model does not answer")
        return Draft(text=observed.SUMMARY, stop="end", input=900, cache_read=400, output=80, seconds=1.5)


async def begun(store: SqliteStore, id: str, clock: Clock, writer: Any = None) -> foveal.Session:
    how = SESSIONS[id]
    return await foveal.Session.open(
        store,
        id,
        model=observed.model(how["window"]),
        policy=how["policy"],
        reserve=how["window"] // 10,
        tokenizer="estimate",
        summarise=writer,
        clock=clock,
        **how.get("more", {}),
    )


def body(name: str, lines: int) -> str:
    """A file as a tool shows it: the same lines each time, with some that matter."""
    text = [
        f"{n}: {name} sets parser_{n} to {n * 37 % 101} and reads /srv/{name}/part_{n}.txt"
        for n in range(lines)
    ]
    text[lines // 2] = f"ERROR in {name}: expected 17 fields, found {lines}"
    return "\n".join(text)


async def turn(
    session: foveal.Session, clock: Clock, number: int, *, lines: int = 30, name: str = ""
) -> None:
    """A request, a call with its result, an answer; fitted before each utterance, with reported usage."""
    name = name or f"module_{number}.py"
    clock.now += 11
    await session.append(UserSaid(content=f"Request {number}: check the parser in file {name}."))
    await session.fit()
    call = Call(id=f"call_{number}", name="bash", arguments=json.dumps({"command": f"cat {name}"}))
    await session.append(ModelSaid(content=(Text(text="I read it."), call)))
    await session.append(ToolReturned(call_id=f"call_{number}", name="bash", content=body(name, lines)))
    fitted = await session.fit()
    cached = fitted.tokens // 2 if number % 2 else 0
    await session.observe(
        {"input_tokens": fitted.tokens - cached, "cache_read_input_tokens": cached,
         "cache_creation_input_tokens": 12, "output_tokens": 25}
    )  # fmt: skip
    await session.append(ModelSaid(content=f"The parser in {name} is fine."))


async def work(store: SqliteStore, clock: Clock) -> None:
    """Every kind of event that an application can add, and reductions taken back."""
    writer = Writer()
    session = await begun(store, "work", clock, writer)
    await session.append(
        Instructed(content="You check modules."),
        Instructed(content="Run the tests before you answer.", source="/project/AGENTS.md"),
        Instructed(content="Beside the messages: be brief.", aside=True, source="preferences.md"),
        Instructed(content="Tools are slow today.", role="developer"),
    )
    await session.equip(
        [{"name": "bash", "description": "Runs a command.", "parameters": {"type": "object"}}]
    )
    await session.pin("Never change the tests.")
    await session.snapshot({"commit": "0123abc", "files": [1, 2]}, label="git")
    for number in range(4):
        await turn(session, clock, number)
    await turn(session, clock, 4, name="module_3.py")  # lines that are shown above
    await session.append(
        Instructed(content="Run all tests before you answer.", source="/project/AGENTS.md", replaces=2),
        Noted(text="The user went for lunch.", topic="remark"),
        Unknown(kind="dreamt", raw=raw({"kind": "dreamt", "of": "a later version"}), version=2),
    )
    await session.pin(event=[e.seq for e in await session.events() if isinstance(e.fact, UserSaid)][-1])
    await turn(session, clock, 5, lines=90)
    clock.now += 5_000  # the cache is cold
    for number in range(6, 11):
        await turn(session, clock, number)
    await session.undo()
    await turn(session, clock, 11)
    await session.compact("the parser")
    await turn(session, clock, 12)
    await _failed(session, clock, writer)
    await session.overflowed(
        "This model's maximum context length is 5600 tokens. However, your messages resulted in 5800 tokens."
    )
    await turn(session, clock, 13)
    marker = (await session.events())[-1].seq
    await turn(session, clock, 14)
    await session.rewind(marker)
    await turn(session, clock, 15)
    await session.rename("Checking of modules")
    forked = await session.fork("work-forked", at=marker)
    clock.now += 60
    await forked.append(UserSaid(content="In the fork: start again."))
    await forked.fit()
    continued = await foveal.Session.continue_from(
        store, "work", "work-continued", model=observed.model(6_000), policy="economy", reserve=600,
        tokenizer="estimate",
    )  # fmt: skip
    await continued.append(UserSaid(content="Go on where we were."))
    await continued.fit()
    await session.close()


async def _failed(session: foveal.Session, clock: Clock, writer: Writer) -> None:
    """A compaction that comes to nothing: its range changes while the model writes."""
    writer.gate = asyncio.Event()
    for number in (40, 41, 42):
        await turn(session, clock, number, lines=12)
    (early,) = [e.seq for e in await session.events() if text(e.fact).startswith("Request 40")]
    task = asyncio.create_task(session.compact())
    await asyncio.sleep(0.05)
    await session.rewind(early - 1)
    writer.gate.set()
    with suppress(foveal.NotCompacted):
        await task
    writer.gate = None


def text(fact: Any) -> str:
    return fact.content if isinstance(fact, UserSaid) and isinstance(fact.content, str) else ""


async def summarised(store: SqliteStore, clock: Clock) -> None:
    """Anthropic's dialect: thinking, cache marks, an image; summaries by a model and by the ledger."""
    writer = Writer()
    session = await begun(store, "summarised", clock, writer)
    await session.append(Instructed(content=observed.SYSTEM, aside=True, dialect="anthropic"))
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": observed.PIXEL}}
    mark = {"cache_control": {"type": "ephemeral"}}
    for number in range(14):
        clock.now += 30
        writer.fails = number > 8
        said = {"type": "text", "text": f"Request {number}: check the parser in file part_{number}.py."}
        content = [said, image] if number % 5 == 0 else [said]
        call = {
            "type": "tool_use",
            "id": f"toolu_{number}",
            "name": "bash",
            "input": {"command": f"cat part_{number}.py"},
        }
        thought = {"type": "thinking", "thinking": f"Part {number}.", "signature": "c2lnbmVk"}
        (event,) = await session.take({"role": "user", "content": content}, dialect="anthropic")
        if number == 2:
            await session.append(Marked(target=event.seq, marks=(Mark(part=0, extra=raw(mark)),)))
        await session.fit()
        result = {
            "type": "tool_result",
            "tool_use_id": f"toolu_{number}",
            "content": body(f"part_{number}.py", 25),
        }
        await session.take(
            {"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, call]},
            {"role": "user", "content": [result | ({"is_error": True} if number == 3 else {})]},
            dialect="anthropic",
        )
        fitted = await session.fit()
        await session.observe(
            {"input_tokens": fitted.tokens - 300, "cache_read_input_tokens": 300, "output_tokens": 50}
        )
        await session.take(
            {"role": "assistant", "content": [{"type": "text", "text": "It is fine."}]}, dialect="anthropic"
        )
    await session.close()


async def prepared(store: SqliteStore, clock: Clock) -> None:
    """Responses: reasoning items; a summary that was written in the background before it was needed."""
    session = await begun(store, "prepared", clock, Writer())
    for number in range(12):
        clock.now += 30
        await session.take(
            {"role": "user", "content": f"Request {number}: check file item_{number}.py."},
            dialect="openai_responses",
        )
        await session.fit()
        await asyncio.sleep(0.02)  # what is written in the background ends here, not somewhere
        await session.take(
            {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "gAAA"},
            {
                "type": "function_call",
                "call_id": f"fc_{number}",
                "name": "bash",
                "arguments": '{"command": "ls"}',
            },
            {
                "type": "function_call_output",
                "call_id": f"fc_{number}",
                "output": body(f"item_{number}.py", 14),
            },
            dialect="openai_responses",
        )
        await session.fit()
        await asyncio.sleep(0.02)
        await session.take(
            {"role": "assistant", "content": [{"type": "output_text", "text": "Fine.", "annotations": []}]},
            dialect="openai_responses",
        )
    if await session.due():
        await session.prepare()
    await session.close()


async def media(store: SqliteStore, clock: Clock) -> None:
    """OpenAI chat: images in requests, masked results, a call without a result, a result without a call."""
    session = await begun(store, "media", clock)
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{observed.PIXEL}"}}
    for number in range(8):
        clock.now += 30
        await session.take(
            {"role": "user", "content": [{"type": "text", "text": f"What is in picture {number}?"}, picture]}
        )
        await turn(session, clock, number, lines=20)
    await session.append(ToolReturned(call_id="unknown", content="A result that no call waits for."))
    call = Call(id="open", name="bash", arguments='{"command": "sleep 1"}')
    await session.append(ModelSaid(content=(call,)))
    await session.fit()


async def dropping(store: SqliteStore, clock: Clock) -> None:
    session = await begun(store, "dropping", clock)
    for number in range(9):
        await turn(session, clock, number, lines=9)


async def expanded(store: SqliteStore, clock: Clock) -> None:
    """A masked or summarised step that is shown whole at the end."""
    session = await begun(store, "expanded", clock)
    for number in range(8):
        await turn(session, clock, number, lines=22)
    masked = [e.fact for e in await session.events() if isinstance(e.fact, Masked)]
    for fact in reversed(masked):
        with suppress(
            foveal.FovealError
        ):  # a summary stands for some of them, and there is no room for all of that
            await session.expand(fact.masks[-1].target)
            break
    await session.fit()


async def asking(store: SqliteStore, clock: Clock) -> None:
    session = await begun(store, "asking", clock)
    for number in range(4):
        await turn(session, clock, number, lines=12)


async def erased(store: SqliteStore, clock: Clock) -> None:
    session = await begun(store, "erased", clock)
    await turn(session, clock, 0)
    await session.delete()


async def sessions() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, clock = Path(folder) / "sessions.db", Clock()
        # The time that a summariser takes is part of the log.
        session_module.time = SimpleNamespace(time=clock, monotonic=lambda: 0.0)
        async with SqliteStore(path, clock=clock) as store:
            for write_session in (work, summarised, prepared, media, dropping, expanded, asking, erased):
                await write_session(store, clock)
        assert [file.name for file in Path(folder).iterdir()] == ["sessions.db"]
        write("sessions.db", path.read_bytes())
        async with open_store(path) as store:
            seen = {id: await observed.session_seen(store, id, how) for id, how in SESSIONS.items()}
        write_json("sessions", {"settings": SESSIONS, "seen": seen})


# ── a server ─────────────────────────────────────────────────────────────────────────────────────────────

SETTINGS = {"tokenizer": "estimate", "window": 6_000, "server.rate": 0, "compaction.threshold": 0.6}
DIALECTS: dict[str, tuple[str, str]] = {
    "openai_chat": ("/v1/chat/completions", "messages"),
    "openai_responses": ("/v1/responses", "input"),
    "anthropic": ("/v1/messages", "messages"),
}


def fixed_ids() -> None:
    """Let random bytes come from a seed."""
    dice = random.Random(12)
    os.urandom = random._urandom = dice.randbytes


async def rooms(service: Service, clock: Clock) -> None:
    """Sessions that the server answers itself: one that was reduced, one that failed, one that was erased."""
    tenant = service.tenant("default")
    talk = await tenant.create("talk", title="A talk", system="You check modules.")
    for number in range(9):
        clock.now += 20
        padding = body(f"talk_{number}.py", 14)
        turn = await talk.say(f"Request {number} of the parser.\n{padding}", key=f"talk-{number}")
        assert (await turn.outcome()).why == "answered", await turn.outcome()
    await talk.pin("Never change the tests.")
    await tenant.fork("talk", "talk-forked", at=9)
    failing = await tenant.create("failed")
    assert (await (await failing.say("fail: check the file", key="f")).outcome()).why == "failed"
    gone = await tenant.create("gone")
    await (await gone.say("Forget this.", key="g")).outcome()
    await tenant.delete("gone")
    other = await service.tenant("second").create("talk", model="scripted/other")
    await (await other.say("Who else is here?", key="talk-1")).outcome()


async def desk(service: Service, clock: Clock) -> None:
    """Unanswered messages: one that waits, and one that a process had taken when it was killed."""
    for name, taken in (("inbox", False), ("inbox-taken", True)):
        await service.tenant("default").create(name)
        kept = service.ground.desk
        await kept.put("default", name, key="k", content="Check the parser, please.", dialect="", now=clock())
        if taken:
            await kept.take("default", name, last=1)


async def tables(service: Service, clock: Clock) -> Json:
    """Tokens, pairings, chats and schedules."""
    cabinet = service.ground.cabinet
    tokens, pairing, chats = Tokens(cabinet), Pairing(cabinet), Chats(cabinet)
    made = {
        name: await tokens.create(name, label=f"of {name}", now=clock()) for name in ("default", "second")
    }
    made["revoked"] = await tokens.create("second", label="old", now=clock())
    await tokens.revoke(made["revoked"][0], now=clock() + 1)
    code = await pairing.offer("telegram", now=clock())
    assert await pairing.claim("telegram", code, 42, now=clock())
    for _ in range(5):
        assert not await pairing.claim("discord", "WRONG", 77, now=clock())
    open_code = await pairing.offer("discord", now=clock())
    await chats.leave("telegram", 42, session="telegram-42")
    for key in ("m1", "m2"):
        await chats.begin("telegram", Message(key=key, chat=42, session="telegram-42-2"), now=clock())
    await chats.end("telegram", "m1", now=clock())
    assert await chats.once("discord", "c1", chat=77, now=clock())
    timetable = Timetable(cabinet)
    schedules = (
        Schedule(
            name="yearly",
            session="talk",
            cron="0 0 1 1 *",
            prompt="A new year.",
            zone="Europe/Berlin",
            missed="skip",
        ),
        Schedule(name="paused", session="talk", cron="*/5 * * * *", prompt="Still there?", enabled=False),
        Schedule(
            name="theirs", session="talk", cron="0 0 29 2 *", prompt="Leap.", missed="skip", tenant="second"
        ),
    )
    for schedule in schedules:
        await timetable.create(schedule, now=clock())
    secrets = {name: secret for name, (_, secret) in made.items()}
    return {"tokens": secrets, "codes": {"discord": open_code}}


async def background(service: Service, work: Work) -> None:
    """Work that is done, work that a worker has begun, and work that no worker has seen."""
    await work.run("default", "job-done", "Check the parser.", key="j1")
    while await work.errands.count():
        await asyncio.sleep(0.05)
    await work.run("default", "job-begun", "wait: check the file", key="j2")
    while True:
        with suppress(foveal.UnknownSession):
            events = await service.tenant("default").store.read("job-begun")
            if isinstance(events[-1].fact, UserSaid):
                break
        await asyncio.sleep(0.05)
    new = errand("default", "job-new", key="j3", kind="run", prompt="Check the file.", now=work._clock())
    await work.errands.add(new)


def drop_in(front: Any, tokens: dict[str, str]) -> list[Json]:
    """Conversations of clients that resend their history; the next request of each."""
    nexts = []
    with httpx.Client(base_url=front.url, timeout=60, trust_env=False, verify=False) as client:
        client.headers.update(
            {"Authorization": f"Bearer {tokens['default']}", "X-Api-Key": "sk-of-a-made-up-client"}
        )
        for dialect, (path, field) in DIALECTS.items():
            messages: list[Json] = (
                [] if dialect == "anthropic" else [{"role": "system", "content": "Be brief."}]
            )
            for number in range(13):
                messages.append(
                    {
                        "role": "user",
                        "content": f"Request {number}: "
                        + body(f"{dialect}_{number}.py", 12).replace("\n", "; "),
                    }
                )
                told = {
                    "model": "claude-sonnet-4-5" if dialect == "anthropic" else "gpt-4.1",
                    field: messages,
                }
                told |= {"system": "Be brief."} if dialect == "anthropic" else {}
                told |= {} if dialect == "openai_responses" else {"max_tokens": 300}
                if number == 12:
                    nexts.append({"path": path, "field": field, "body": told})
                    break
                answer = client.post(path, json=told)
                assert answer.status_code == 200, answer.text
                messages += _said(dialect, answer.json())
    return nexts


def _said(dialect: str, answer: Json) -> list[Json]:
    if dialect == "openai_chat":
        return [answer["choices"][0]["message"]]
    if dialect == "openai_responses":
        return list(answer["output"])
    return [{"role": "assistant", "content": answer["content"]}]


def script(number: int) -> Answer:
    return Answer(text=f"Answer {number}: the parser is fine.", thought=f"Thought {number}.")


def server() -> None:
    clock = Clock()
    SqliteStore.__init__.__kwdefaults__["clock"] = clock
    upstream.Service = SimpleNamespace(open=partial(Service.open, clock=clock))
    environment = {"FOVEAL_PROVIDER": "observed:provider"}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        observed.HOLDS.append(True)
        with (
            StandIn(script=script) as standin,
            upstream.Front(
                folder, openai=standin.openai, anthropic=standin.anthropic, environment=environment,
                **{name.replace(".", "__"): value for name, value in SETTINGS.items()},
            ) as front,
        ):  # fmt: skip
            front.do(rooms(front.service, clock))
            old = front.do(tables(front.service, clock))
            old["drop-in"] = drop_in(front, old["tokens"])
            front.do(desk(front.service, clock))
            front.do(crashed(front.service, folder))
            observed.HOLDS.clear()
        left = folder / "crashed"
        files = sorted(path for path in left.rglob("*") if path.is_file())
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for path in files:
                info = tarfile.TarInfo(str(path.relative_to(left)))
                info.size = path.stat().st_size
                tar.addfile(info, path.open("rb"))
        write("server.tar", packed.getvalue())
        with StandIn(script=script) as standin, started(left, standin) as running:
            seen = observed.server_seen(running.url, old["tokens"], old, standin.requests)
        write_json("server", {"settings": SETTINGS, "old": old, "seen": seen})


async def crashed(service: Service, folder: Path) -> None:
    """Copy the files while a job runs, as a process that is killed leaves them. The worker looks only when it is
    nudged, so that it does not see the last errand."""
    async with Work.open(service, pace=Pace(look=600, poll=0.05)) as work:
        await background(service, work)
        shutil.copytree(folder / "server", folder / "crashed", ignore=shutil.ignore_patterns("*-shm"))
        observed.HOLDS.clear()


def started(folder: Path, standin: StandIn) -> Any:
    """`foveal serve` in a folder that there is."""
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(HERE)])
    addresses = {"server.openai_url": standin.openai, "server.anthropic_url": standin.anthropic}
    return serving.serving(
        folder=folder,
        settings=SETTINGS | addresses,
        environment={"PYTHONPATH": path},
        provider="observed:provider",
    )


# ── configuration ────────────────────────────────────────────────────────────────────────────────────────


def config() -> None:
    with tempfile.TemporaryDirectory() as folder:
        loaded = load(folder, environ={}, user_folder=HERE)
    missing = [key.path for key in KEYS if not any(find(path) is key for path in loaded.values)]
    assert not missing, missing
    write_json("config", observed.config_seen(loaded))


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["config", "server", "sessions", "contexts"]
    if "config" in wanted:
        config()
    if "server" in wanted:
        fixed_ids()
        server()
    if "sessions" in wanted:
        asyncio.run(sessions())
    if "contexts" in wanted:
        context_module.time = SimpleNamespace(time=time.time, monotonic=lambda: 0.0)
        contexts()
