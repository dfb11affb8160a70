"""Runs and describes contexts, sessions, servers and configurations as JSON values.

`make.py` calls these functions with the code of the commit that wrote the fixtures, `test_before_move.py` with the
current code. Both must get the same values. So this module imports only `foveal` and `foveal.testing`, whose names
are the same in both, and asks servers over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

import httpx
import msgspec

import foveal
from foveal.testing import Scripted

Json = dict[str, Any]

START: Final = 1_760_000_000.0
"""The time of the first event."""
SUMMARY: Final = (
    "<summary>\n## Goal\nThe user wants the modules checked one after the other.\n## Decisions\n- keep the parser\n"
    "## State\nsome of the files are read, none is changed\n## Next\n- read the remaining files\n"
    "## Dead ends\n-\n</summary>"
)
TOOLS: Final[dict[str, list[Json]]] = {
    "openai_chat": [{"type": "function", "function": {"name": "bash", "description": "Runs a command."}}],
    "openai_responses": [{"type": "function", "name": "bash", "description": "Runs a command."}],
    "anthropic": [{"name": "bash", "description": "Runs a command.", "input_schema": {"type": "object"}}],
}
PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
)
SYSTEM: Final = "You check modules. Answer briefly."


class Clock:
    """Time that passes only when `now` is set."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def model(window: int) -> foveal.Model:
    """A model with fixed prices and cache rules, so that no table of models matters."""
    return foveal.model(
        "example/model",
        window=window,
        max_input=window,
        max_output=window // 10,
        input_price=3.0,
        cached_price=0.3,
        write_price=3.75,
        output_price=15.0,
        cache_ttl=300,
        cache_minimum=256,
        token_ratio=1.0,
    )


def plain(value: Any) -> Any:
    """A value as JSON has it: structs are dicts, tuples are lists."""
    return json.loads(msgspec.json.encode(value, enc_hook=dict))


def digest(value: Any) -> str:
    return sha256(json.dumps(value, ensure_ascii=True).encode()).hexdigest()


def lines_seen(lines: Sequence[Any], events: Sequence[Any]) -> list[Json]:
    """Lines of a report. Rules that the log does not have are prose, which may be reworded: only their presence
    counts."""
    recorded = {getattr(event.fact, "rule", "") for event in events}
    return [{**line, "rule": line.get("rule", "") if line.get("rule") in recorded else bool(line.get("rule"))}
            for line in map(plain, lines)]  # fmt: skip


def report_seen(report: foveal.Report, events: Sequence[Any]) -> Json:
    """The numbers and names of a report, without its sentences."""
    seen = plain(report)
    seen["question"] = bool(seen["question"])
    seen["events"] = lines_seen(report.events, events)
    seen["breaks"] = [{**one, "why": bool(one.get("why"))} for one in seen["breaks"]]
    seen["repairs"] = [one["handle"] for one in seen["repairs"]]
    return seen


def attempt(act: Callable[[], Any]) -> Any:
    """What a call returns. Of an error, only what no rewording changes: its name and its numbers."""
    try:
        return act()
    except foveal.FovealError as problem:
        return failure(problem)


def failure(problem: foveal.FovealError) -> Json:
    numbers = {name: value for name, value in vars(problem).items() if isinstance(value, int)}
    return {"error": type(problem).__name__, **numbers}


# ── contexts ─────────────────────────────────────────────────────────────────────────────────────────────


def run_context(case: Json) -> tuple[foveal.Context, list[Any]]:
    """Fit a history at each length in `case["calls"]`, with what `case["acts"]` says in between. Returns the
    context and, for each call, the request or the error."""
    clock, asked = Clock(), []

    def summarise(request: Any) -> str:
        asked.append(request)
        if case["writer"] == "failing" or (case["writer"] == "unsteady" and len(asked) % 2):
            raise RuntimeError("the model does not answer")
        return SUMMARY

    context = foveal.Context(
        model(case["window"]),
        policy=case["policy"],
        reserve=case["window"] // 10,
        tokenizer="estimate",
        summarise=summarise if case["writer"] else None,
        clock=clock,
    )
    system = SYSTEM if case["dialect"] == "anthropic" else None
    fits = []
    for number, length in enumerate(case["calls"]):
        clock.now += 4_000 if number % 6 == 5 else 7
        messages = case["messages"][:length]
        for act in case["acts"].get(str(number), ()):
            messages = _act(context, act, messages, case["window"])
        fitted = attempt(
            lambda given=messages: context.fit(given, tools=TOOLS[case["dialect"]], system=system)
        )
        fits.append(fitted)
        if isinstance(fitted, list):
            used = len(json.dumps(fitted)) // 4 + 40
            cached = used // 2 if number % 3 else 0
            details = {"cached_tokens": cached}
            context.observe(
                {"prompt_tokens": used, "completion_tokens": 30, "prompt_tokens_details": details}
            )
    return context, fits


def _act(context: foveal.Context, act: str, messages: list[Json], window: int) -> list[Json]:
    """Do something between two calls. Returns the messages to fit."""
    newest = next((e.handle for e in reversed(context.log) if isinstance(e.fact, foveal.UserSaid)), "e0")
    match act:
        case "pin":
            context.pin("Never change the tests.")
        case "pin event":
            attempt(lambda: context.pin(event=newest))
        case "snapshot":
            context.snapshot({"commit": "0123abc"}, label="git")
        case "compact":
            attempt(lambda: context.compact("the parser"))
        case "undo":
            attempt(context.undo)
        case "expand":
            attempt(lambda: context.expand(newest))
        case "refused":
            context.overflowed(
                f"This model's maximum context length is {window - 500} tokens. However, your messages resulted "
                f"in {window - 100} tokens. Please reduce the length of the messages."
            )
        case "switch":
            context.use(model(window - 1_000))
        case "edit":
            return [*messages[:-1], {**messages[-1], **_edited(messages[-1])}]
        case "mark":
            return [
                _marked(message) if at == len(messages) - 1 else message
                for at, message in enumerate(messages)
            ]
        case _:
            raise ValueError(act)
    return messages


def _edited(message: Json) -> Json:
    field = "output" if "output" in message else "content"
    return {field: "This was edited."} if isinstance(message.get(field), str) else {}


def _marked(message: Json) -> Json:
    content = message.get("content")
    if not isinstance(content, list) or not content or not isinstance(content[-1], dict):
        return message
    return {**message, "content": [*content[:-1], {**content[-1], "cache_control": {"type": "ephemeral"}}]}


def context_seen(context: foveal.Context) -> Json:
    """Everything that a context shows of itself."""
    handles = [event.handle for event in context.log]
    return {
        "report": report_seen(context.report(), context.log),
        "why": lines_seen([context.why(name) for name in handles], context.log),
        "originals": digest([context.original(name) for name in handles]),
        "search": context.recall("recall_search", {"query": "error file", "limit": 5}),
        "read": context.recall("recall_read", {"handle": f"e1-{handles[-1]}", "head": 2}),
        "max_tokens": context.max_tokens,
    }


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────


async def open_session(store: Any, id: str, how: Json, clock: Clock) -> foveal.Session:
    """A session with the settings that it was written with, and no model for summaries."""
    return await foveal.Session.open(
        store,
        id,
        model=model(how["window"]),
        policy=how["policy"],
        reserve=how["window"] // 10,
        tokenizer="estimate",
        clock=clock,
        **how.get("more", {}),
    )


async def session_seen(store: Any, id: str, how: Json) -> Json:
    """Everything that a session shows of itself, then what it becomes when it goes on."""
    clock = Clock(START + 1_000_000)
    before = await store.info(id)
    events = await store.read(id)
    seen: Json = {"info": plain(before), "events": plain(events)}
    if before.erased:
        return seen
    session = await open_session(store, id, how, clock)
    seen["fit"] = await _fitted(session)
    seen["report"] = report_seen(await session.report(), events)
    seen["usage"] = plain(await session.usage())
    handles = [f"e{seq}" for seq in range(before.events)]
    seen["why"] = lines_seen([await session.why(name) for name in handles], events)
    seen["originals"] = [await session.original(name) for name in handles]
    seen["open_calls"] = plain(await session.open_calls())
    seen["max_tokens"] = await session.max_tokens()
    seen["search"] = [hit.seq for hit in await session.search("parser file")]
    recall = foveal.Recall(session)
    seen["recall_search"] = await recall.call("recall_search", {"query": "parser file", "limit": 4})
    seen["recall_read"] = await recall.call("recall_read", {"handle": f"e0-{handles[-1]}", "head": 2})
    seen["continued"] = await _continued(store, id, how)
    seen["later"] = await _later(store, session, clock)
    await session.close()
    return seen


async def _continued(store: Any, id: str, how: Json) -> Json:
    """A new session that continues this one."""
    settings = {"policy": "economy", "tokenizer": "estimate", "reserve": how["window"] // 10}
    window = model(2 * how["window"])
    session = await foveal.Session.continue_from(store, id, f"{id} goes on", model=window, **settings)
    facts = [plain(event.fact) for event in await session.events()]
    return {"facts": facts, "fit": digest(await _fitted(session))}


async def _fitted(session: foveal.Session) -> Json:
    try:
        fitted = await session.fit()
    except foveal.FovealError as problem:
        return failure(problem)
    return {
        "openai_chat": fitted.to_openai(),
        "openai_responses": fitted.to_responses(),
        "anthropic": fitted.to_anthropic(),
        "system": fitted.system,
        "tools": fitted.tools,
        "tokens": [fitted.tokens, fitted.limit, fitted.whole],
        "reduced": plain(fitted.reduced),
    }


async def _later(store: Any, session: foveal.Session, clock: Clock) -> list[Json]:
    """The session goes on: each step's request, as digests, and at the end the events that were added."""
    first = (await store.info(session.id)).events
    steps = []
    for act in ("look", "say", "undo", "compact", "return", "pin", "rewind"):
        clock.now += 400
        try:
            await _go_on(session, act, first)
        except foveal.FovealError as problem:
            steps.append({act: failure(problem)})
        steps.append({act: digest(await _fitted(session))})
    return [*steps, {"added": [plain(event) for event in await store.read(session.id, first=first)]}]


async def _go_on(session: foveal.Session, act: str, first: int) -> None:
    match act:
        case "say":
            await session.append(foveal.UserSaid(content="Please go on with the parser."))
        case "undo":
            await session.undo()
        case "compact":
            await session.compact("the parser")
        case "return":
            call = {"id": "call_later", "type": "function"}
            function = {"name": "bash", "arguments": '{"command": "cat later.py"}'}
            lines = "\n".join(f"later.py line {n}: value_{n} = {n * 7}" for n in range(150))
            await session.take(
                {"role": "assistant", "content": None, "tool_calls": [{**call, "function": function}]},
                {"role": "tool", "tool_call_id": "call_later", "content": lines},
            )
        case "look":
            picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
            text = {"type": "text", "text": "What is in this picture?"}
            await session.take({"role": "user", "content": [text, picture]})
        case "pin":
            await session.pin("Answer in one sentence.")
        case "rewind":
            await session.rewind(first - 1)


async def log_seen(store: Any, events: Sequence[Any], how: Json) -> Json:
    """What a session shows whose log is that of a context."""
    await store.append("log", list(events))
    session = await open_session(store, "log", how, Clock(START + 1_000_000))
    fitted = await _fitted(session)
    for dialect in TOOLS.keys() - {how["dialect"]}:
        if dialect in fitted:
            fitted[dialect] = digest(fitted[dialect])  # one of them is enough to see a difference
    seen = {"fit": fitted, "report": report_seen(await session.report(), events)}
    await session.close()
    return seen


# ── servers ──────────────────────────────────────────────────────────────────────────────────────────────

DEADLINE: Final = 60.0
HOLDS: list[bool] = []
"""While this is not empty, the provider does not answer a message that begins with `wait`."""


class Echo(Scripted):
    """Repeats what the user said last."""

    async def send(self, request: Any, *, max_tokens: int) -> Any:
        said = [message["content"] for message in request.to_openai() if message["role"] == "user"][-1]
        while HOLDS and said.startswith("wait"):
            await asyncio.sleep(0.01)
        summary = "<summary>" in said
        self._answers = [SUMMARY if summary else f"You said: {said[:200]}"]
        if said.startswith("fail") and HOLDS:
            self._answers = [foveal.ProviderError("the provider is out of order", sort="refused")]
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece


def provider(name: str | None, *, environment: Any, window: int | None, progress: Any) -> Echo:
    """For `FOVEAL_PROVIDER=observed:provider`."""
    return Echo(window=window or 0, name=name or "scripted/model")


def server_seen(url: str, tokens: dict[str, str], old: Json, upstream: list[Any]) -> Json:
    """Everything that a server shows of its tenants, then what it answers to requests that go on with old sessions.
    `upstream` are the requests that the stand-in of a provider got."""
    seen: Json = {}
    for name, secret in tokens.items():
        with httpx.Client(base_url=url, timeout=DEADLINE, trust_env=False, verify=False) as client:
            client.headers["Authorization"] = f"Bearer {secret}"
            seen[name] = _tenant_seen(client, "job-new" if name == "default" else "talk")
            if name == "default":
                seen["turns"] = _turns_seen(client)
                seen["drop-in"] = [_drop_in_seen(client, one, upstream) for one in old["drop-in"]]
    return seen


def _tenant_seen(client: httpx.Client, needed: str) -> Json:
    listed = client.get("/api/sessions", params={"limit": 100})
    if listed.status_code != 200:
        return {"status": listed.status_code}
    ids = _ids(client, needed)
    for id in ids:
        _wait(client, id)
    schedules = client.get("/api/schedules").json()["schedules"]
    return {
        "sessions": {id: _room_seen(client, f"/api/sessions/{id}") for id in ids},
        "schedules": [{k: v for k, v in one.items() if k not in ("next", "last")} for one in schedules],
    }


def _ids(client: httpx.Client, needed: str) -> list[str]:
    """The sessions, once a job that was left over has begun its own."""
    end = time.monotonic() + DEADLINE
    while True:
        listed = client.get("/api/sessions", params={"limit": 100}).json()["sessions"]
        ids = sorted(one["id"] for one in listed)
        if needed in ids:
            return ids
        assert time.monotonic() < end, f"there is no session {needed}: {ids}"
        time.sleep(0.05)


def _wait(client: httpx.Client, id: str) -> None:
    """Until every message of a session has been answered: what was left over is taken up when a server starts."""
    end = time.monotonic() + DEADLINE
    while True:
        kinds = [one["kind"] for one in client.get(f"/api/sessions/{id}/events?limit=500").json()["events"]]
        turn = [one for one in kinds if one in ("user_said", "model_said", "used")]
        if turn[-1:] == ["used"] or id == "failed":  # what a call used is the last that is recorded of it
            return
        assert time.monotonic() < end, f"{id} was not answered: {kinds[-6:]}"
        time.sleep(0.05)


def _room_seen(client: httpx.Client, path: str) -> Json:
    events = client.get(f"{path}/events", params={"limit": 500}).json()
    hits = client.get(f"{path}/search", params={"q": "parser file", "limit": 20}).json()["hits"]
    seen = {
        "session": client.get(path).json(),
        "events": events,
        "context": _context_seen(client.get(f"{path}/context").json()),
        "usage": client.get(f"{path}/usage").json(),
        "event": client.get(f"{path}/events/e1").json()["original"],
        "hits": [[hit["handle"], hit["excerpt"]] for hit in hits],
        "exports": {
            to: client.get(f"{path}/export", params={"to": to}).text
            for to in ("openai", "responses", "anthropic")
        },
    }
    seen["session"].pop("bytes")  # new events are written with the time of now, which takes more or less room
    return _without_now(seen)


def _context_seen(report: Json) -> Json:
    """A report without its sentences."""
    report["question"] = bool(report.get("question"))
    report["events"] = [{**line, "rule": bool(line.get("rule"))} for line in report["events"]]
    report["breaks"] = [{**one, "why": bool(one.get("why"))} for one in report["breaks"]]
    report["repairs"] = [one["handle"] for one in report["repairs"]]
    return report


def _without_now(value: Any) -> Any:
    """A value in which times after those of the fixtures are all the same."""
    if isinstance(value, dict):
        return {
            name: "now"
            if name in ("at", "active", "created") and (inner or 0) > START + 2_000_000
            else _without_now(inner)
            for name, inner in value.items()
        }
    return [_without_now(inner) for inner in value] if isinstance(value, list) else value


def _turns_seen(client: httpx.Client) -> list[Any]:
    """A message with the key of an old one is that one; a new one goes on with the old session."""
    seen = []
    for body in ({"text": "Request 1 of the parser.", "key": "talk-1"}, {"text": "And now?", "key": "new"}):
        answer = client.post("/api/sessions/talk/turns", json={**body, "stream": False})
        told = answer.json()
        ended = told.get("outcome", told)
        seen.append([answer.status_code, ended["text"], ended["why"]])
    return seen


def _drop_in_seen(client: httpx.Client, old: Json, upstream: list[Any]) -> Json:
    """The client resends an old history with one more message: the server must find the session that it was in."""
    answer = client.post(old["path"], json=old["body"], headers={"X-Api-Key": "sk-of-a-made-up-client"})
    headers = {name: value for name, value in answer.headers.items() if name.startswith("x-foveal-")}
    newest = old["body"][old["field"]][-1]["content"]
    bodies = [one.body for one in upstream if one.body.get(old["field"])]
    sent = [body for body in bodies if newest in json.dumps(body[old["field"]][-1])]
    return {"status": answer.status_code, "headers": headers, "sent": sent}


# ── configurations ───────────────────────────────────────────────────────────────────────────────────────


def config_seen(config: Any) -> Json:
    """The values of a `Config` that were set, and what they mean for a session."""
    agents = {"": config, **{name: config.agent(name) for name in config.agents}}
    return {
        "values": {".".join(path): plain(value.value) for path, value in config.values.items()},
        "shown": {entry.name: plain(entry.value) for entry in config.entries()},
        "agents": {name: _agent_seen(one) for name, one in agents.items()},
        "servers": [[s.name, s.command, list(s.args), dict(s.env), s.url] for s in config.servers],
        "schedules": [dict(zip(one._fields, one, strict=True)) for one in config.schedules],
    }


def _agent_seen(config: Any) -> Json:
    return {
        "model": config.model,
        "summariser": config.summariser,
        "policy": plain(config.policy(window=50_000).values()),
        "rules": plain(config.rules),
        "session": {
            name: plain(value.values() if name == "policy" else value)
            for name, value in config.session(model(50_000)).items()
        },
        "tools": [list(config.get("tools.allow")), list(config.get("tools.deny"))],
    }
