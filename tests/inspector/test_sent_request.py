"""The inspector's request equals what was sent: by a context, a session, and the drop-in server."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from foveal import Context, ContextOverflow, Session
from foveal.agent.loop import Agent
from foveal.agent.tools import Tool, Toolbox, ToolOutput
from foveal.core.log import (
    AnyFact,
    Call,
    Compacted,
    Dialect,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Masked,
    ModelSaid,
    Opened,
    Text,
    ToolReturned,
    UserSaid,
    raw,
)
from foveal.core.view.request import Fitted
from foveal.errors import BadSetting, FovealError, UnknownHandle
from foveal.inspector.timeline.request_content import request_content
from foveal.inspector.timeline.sent_request import InspectedRequest, curl_command, sent_request
from foveal.providers.openai_responses import with_item_type
from foveal.providers.selection import provider
from foveal.stores import MemoryStore
from support.effort import rest_in_soak
from support.histories import (
    DIALECTS,
    ESTIMATE,
    POLICIES,
    TOOLS,
    InputMessage,
    Json,
    ManualClock,
    context,
    make_script,
    plain_model,
    write_script,
)
from support.provider_stand_in import Answer, StandIn, looping
from support.upstream import ProxyServer, RawUpstream, answer, until


def messages_of(request: InspectedRequest) -> list[Json]:
    return [json.loads(message.json) for message in request.messages]


def as_json(value: Any) -> Any:
    """Return messages as they are in the JSON of a request: boto3's bytes are base64."""
    return msgspec.json.decode(msgspec.json.encode(value))


def history(dialect: Dialect, seed: int) -> tuple[list[Json], list[int]]:
    """Return a conversation whose system text, if any, is in the place that the dialect has for it."""
    script = make_script(seed, 6, 4, 60)
    if dialect not in ("openai_chat", "openai_responses"):
        script = [m for m in script if not (isinstance(m, InputMessage) and m.who == "system")]
    written = write_script(script, dialect)
    return written.messages, written.calls


def play(ctx: Context, dialect: Dialect, seed: int, **beside: Any) -> list[tuple[int, list[Json]]]:
    """Run a conversation with undo, pins, an edited history and late tools; return each request and its place."""
    messages, calls = history(dialect, seed)
    sent: list[tuple[int, list[Json]]] = []
    for number, taken in enumerate(calls):
        try:
            sent.append((-1, ctx.fit(messages[:taken], **beside)))
            sent[-1] = (ctx.log[-1].seq, sent[-1][1])
        except ContextOverflow:
            continue
        if number == 2:
            ctx.pin("Never push to main.")
        if number % 4 == 3 and any(event.fact.__class__.__name__ == "Masked" for event in ctx.log):
            with suppress(FovealError):  # there is no room for what it hides
                ctx.undo()
    if len(calls) > 3:
        edited = [
            *messages[: calls[1]],
            *write_script([InputMessage("user", "start again")], dialect).messages,
        ]
        try:
            request = ctx.fit(edited, **beside)
            sent.append((ctx.log[-1].seq, request))
        except ContextOverflow:
            pass
    return sent


@pytest.mark.filterwarnings("ignore::foveal.errors.HistoryDiverged")
@pytest.mark.parametrize(
    ("window", "seed", "dialect"), rest_in_soak(product([1_500, 4_000], range(6), DIALECTS), every=7)
)
def test_every_request_of_a_context_is_rebuilt(dialect: Dialect, seed: int, window: int) -> None:
    ctx = context(window, POLICIES[seed % 4])
    beside: dict[str, Any] = {"tools": TOOLS[dialect]}
    if dialect != "openai_chat" and seed % 2:
        beside["system"] = "You are careful."
    sent = play(ctx, dialect, seed, **beside)
    assert sent
    for at, messages in sent:
        request = sent_request(ctx.log, at=at)
        assert (request.dialect, messages_of(request)) == (dialect, as_json(messages))
        assert request.system == beside.get("system", "")
        assert json.loads(request.tools) == TOOLS[dialect]
        assert all(
            message.keys or "Continue" in message.json or message.role == "user"
            for message in request.messages
        )


def test_moved_cache_marks_are_in_the_request_that_had_them() -> None:
    ctx = context(8_000)

    def marked(text: str, *, mark: bool) -> Json:
        block: Json = {"type": "text", "text": text}
        return {
            "role": "user",
            "content": [{**block, "cache_control": {"type": "ephemeral"}} if mark else block],
        }

    sent = []
    one = [marked("first", mark=True)]
    two = [
        marked("first", mark=False),
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
        marked("second", mark=True),
    ]
    for messages in (one, two):
        sent.append((ctx.fit(messages, tools=TOOLS["anthropic"], system="Careful."), ctx.log[-1].seq))
    for messages, at in sent:
        assert messages_of(sent_request(ctx.log, at=at)) == messages
    assert [m["content"][0].get("cache_control") for m in sent[1][0]] == [None, None, {"type": "ephemeral"}]


def write(fitted: Fitted, dialect: Dialect) -> list[Json]:
    return {
        "openai_chat": fitted.to_openai,
        "openai_responses": fitted.to_responses,
        "anthropic": fitted.to_anthropic,
        "gemini": fitted.to_gemini,
        "bedrock": fitted.to_bedrock,
    }[dialect]()


async def session_of(policy: Any = "economy", **how: Any) -> Session:
    return await Session.open(
        MemoryStore(), "s", model=plain_model(2_500), policy=policy, reserve=250, tokenizer=ESTIMATE,
        clock=ManualClock(), **how,
    )  # fmt: skip


@pytest.mark.parametrize("policy", rest_in_soak(["economy", "rolling", "recent"]))
def test_every_request_of_a_session_is_rebuilt_in_every_dialect(policy: str) -> None:
    asyncio.run(check_session(policy))


async def check_session(policy: str) -> None:
    session = await session_of(policy, folder="here")
    tool = {"name": "bash", "description": "run", "parameters": {"type": "object"}}
    await session.append(Instructed(content="You are careful."))
    await session.append(Instructed(content="Project rules.", source="AGENTS.md"))
    await session.equip([tool])
    sent: list[tuple[int, Fitted]] = []
    for turn in range(12):
        await session.append(UserSaid(content=f"question {turn}"))
        for step in range(2):
            sent.append((-1, await session.fit()))
            sent[-1] = (session.last, sent[-1][1])
            call = Call(
                id=f"c{turn}.{step}", name="bash", arguments=json.dumps({"command": f"cat {turn}.py"})
            )
            await session.append(
                ModelSaid(content=(Text(text="Let me look."), call)),
                ToolReturned(call_id=call.id, content=f"line of {turn}.{step}\n" * 60, name="bash"),
            )
        if turn == 4:
            await session.pin("Never push.")
        if turn == 8 and policy == "rolling":
            masked = [e.handle for e in await session.events() if isinstance(e.fact, Masked)]
            await session.undo(masked[-1])
        sent.append((-1, await session.fit()))
        sent[-1] = (session.last, sent[-1][1])
        await session.append(ModelSaid(content=f"answer {turn}"))
    log = await session.events()
    assert any(type(event.fact).__name__ in ("Masked", "Compacted", "Dropped") for event in log)
    for at, fitted in sent:
        for dialect in DIALECTS:
            content = request_content(log, at=at, dialect=dialect)
            given = write(fitted, dialect)
            if dialect == "anthropic":  # the client's cache breakpoints are the only difference
                assert without_marks(content.messages) == without_marks(given)
            elif dialect == "openai_responses":  # the client names the type of every item
                assert content.messages == [with_item_type(item) for item in given]
            else:
                assert content.messages == given
            system = (
                content.system
                if isinstance(content.system, str)
                else (content.system or [{"text": ""}])[0]["text"]
            )
            inside = dialect in ("openai_chat", "openai_responses")
            assert (system or "") == ("" if inside else fitted.system)


def without_marks(value: Any) -> Any:
    """Return messages without cache marks, each content as blocks."""
    found = []
    for message in value:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found.append(
            {**message, "content": [{k: v for k, v in b.items() if k != "cache_control"} for b in blocks]}
        )
    return found


def agents_log(model: str = "anthropic/claude-sonnet-4-6") -> list[Event]:
    tool = {"name": "bash", "description": "run", "parameters": {"type": "object"}}
    call = Call(id="c1", name="bash", arguments='{"command": "ls"}')
    facts: list[AnyFact] = [
        Opened(model=model, policy="economy", settings=raw({"folder": "here"})),
        Instructed(content="You are careful."),
        Equipped(tools=raw([tool])),
        UserSaid(content="look"),
        ModelSaid(content=(Text(text="Yes."), call)),
        ToolReturned(call_id="c1", content="a.py\nb.py", name="bash"),
    ]
    return [Event(seq, fact, 1.0 + seq) for seq, fact in enumerate(facts)]


def test_the_agent_s_request_has_the_form_and_the_cache_breakpoints_of_its_provider() -> None:
    request = sent_request(agents_log(), at=5)
    mark = {"type": "ephemeral"}
    assert (request.dialect, request.system, request.at) == ("anthropic", "You are careful.", 5)
    assert json.loads(request.tools) == [
        {"name": "bash", "description": "run", "input_schema": {"type": "object"}}
    ]
    assert messages_of(request) == [
        {"role": "user", "content": [{"type": "text", "text": "look", "cache_control": mark}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Yes."},
                {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "a.py\nb.py", "cache_control": mark}
            ],
        },
    ]
    assert [message.keys for message in request.messages] == [("e3",), ("e4",), ("e5",)]
    assert "breakpoints" in request.note


@pytest.mark.parametrize(
    ("model", "dialect"),
    [
        ("openai/gpt-5.1", "openai_chat"),
        ("responses/gpt-5.1", "openai_responses"),
        ("ollama/qwen3", "openai_chat"),
    ],
)
def test_the_agent_s_model_names_the_dialect(model: str, dialect: str) -> None:
    assert sent_request(agents_log(model), at=5).dialect == dialect


def test_a_call_without_a_result_is_named_by_its_place() -> None:
    log = agents_log()[:5]
    log.append(Event(5, UserSaid(content="never mind"), 9.0))
    request = sent_request(log, at=5, dialect="openai_chat")
    assert [message.keys for message in request.messages] == [("e1",), ("e3",), ("e4",), ("m4.0",), ("e5",)]


def test_an_unknown_event_or_dialect_is_refused() -> None:
    log = agents_log()
    with pytest.raises(UnknownHandle):
        sent_request(log, at=6)
    with pytest.raises(UnknownHandle):
        sent_request([], at=0)
    with pytest.raises(BadSetting):
        sent_request(log, at=5, dialect="morse")


# ── The drop-in server ────────────────────────────────────────────────────────────────────────────


def test_the_upstream_gets_the_messages_that_the_inspector_shows(tmp_path: Path) -> None:
    with (
        StandIn(window=6_000, script=lambda _: Answer(text="Done.")) as provider,
        ProxyServer(tmp_path, openai=provider.openai, window=2_000, reserve=200) as proxy,
        openai.OpenAI(base_url=proxy.openai, api_key="sk-of-the-client", max_retries=0) as client,
    ):
        messages: list[Any] = [{"role": "system", "content": "You are careful."}]
        for turn in range(10):
            messages.append({"role": "user", "content": f"question {turn}: " + f"word{turn} " * 150})
            reply = client.chat.completions.create(
                model="gpt-4.1", messages=messages, tools=TOOLS["openai_chat"]
            )  # type: ignore[arg-type]
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
        (session,) = proxy.sessions()
        until(lambda: sum(isinstance(e.fact, ModelSaid) for e in proxy.events(session)) == 10)
        log = proxy.events(session)
        bodies = [request.body["messages"] for request in provider.requests]
        sent = [body for body in bodies if "<summary>" not in body[-1]["content"]]
    answers = [event.seq for event in log if isinstance(event.fact, ModelSaid)]
    assert len(answers) == len(sent) == 10
    assert any(isinstance(event.fact, Compacted | Dropped) for event in log)
    for body, answered in zip(sent, answers, strict=True):
        assert messages_of(sent_request(log, at=answered - 1)) == body


# ── curl ──────────────────────────────────────────────────────────────────────────────────────────

HOSTILE = (
    "'; touch owned; $(touch owned) `touch owned` \\ \"\nFOVEAL_REQUEST\nEOF\n"
    "\x7f\x1b]0;t\x07 \u202e\u0000 é 😀 ${HOME}"
)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_curl_command_sends_the_request_whatever_its_texts(dialect: Dialect, tmp_path: Path) -> None:
    log = agents_log(f"anthropic/{HOSTILE}")
    log[3] = Event(3, UserSaid(content=HOSTILE), 1.0)
    log[5] = Event(5, ToolReturned(call_id="c1", content=HOSTILE, name=HOSTILE), 1.0)
    content = request_content(log, at=5, dialect=dialect)
    ok = answer(b'{"ok": true}')
    with RawUpstream(lambda seen, number: [ok]) as upstream:
        command = curl_command(content, content.body(), url=f"{upstream.anthropic}/v1")
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": "/nowhere",
            "ANTHROPIC_API_KEY": "k",
            "OPENAI_API_KEY": "k",
        }
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            cwd=tmp_path,
            env=environment,
            timeout=30,
            check=True,
        )
        (seen,) = upstream.seen
    assert (done.stdout, done.stderr, list(tmp_path.iterdir())) == (b'{"ok": true}', b"", [])
    extra = {"max_tokens": 4_096} if dialect == "anthropic" else {}
    assert json.loads(seen.body) == {**content.body(), **extra}
    assert seen.headers["content-type"] == "application/json"
    assert command.isascii()
    assert not {"\x1b", "\x7f"} & set(command)


def test_the_address_of_the_command_is_the_provider_s() -> None:
    first = {d: sent_request(agents_log("gpt-5.1"), at=5, dialect=d).curl.split("\n")[0] for d in DIALECTS}
    assert first == {
        "openai_chat": "curl -sS https://api.openai.com/v1/chat/completions \\",
        "openai_responses": "curl -sS https://api.openai.com/v1/responses \\",
        "anthropic": "curl -sS https://api.anthropic.com/v1/messages \\",
        "gemini": "curl -sS https://generativelanguage.googleapis.com/v1beta/models/gpt-5.1:generateContent \\",
        "bedrock": "curl -sS https://bedrock-runtime.us-east-1.amazonaws.com/model/gpt-5.1/converse \\",
    }


# ── Foveal's own agent ────────────────────────────────────────────────────────────────────────────


async def long_result(given: Mapping[str, Any]) -> ToolOutput:
    return ToolOutput(content="\n".join(f"src/file_{line}.py of {dict(given)}" for line in range(30)))


@pytest.mark.parametrize(
    ("service", "field"),
    rest_in_soak([("anthropic", "messages"), ("openai", "messages"), ("responses", "input")]),
)
def test_the_provider_gets_what_the_inspector_shows_of_the_agent_s_session(service: str, field: str) -> None:
    async def run() -> tuple[list[Event], list[Json]]:
        with StandIn(window=5_000, script=looping("search", steps=3)) as standin:
            url = standin.anthropic if service == "anthropic" else standin.openai
            keys = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}
            chosen = provider(f"{service}/some-model@{url}", environment=keys, window=5_000)
            session = await Session.open(MemoryStore(), "s", model=chosen.model, folder="here")
            await session.append(Instructed(content="You are careful."))
            search = Tool(
                name="search",
                description="search",
                parameters={"type": "object"},
                run=long_result,
                describe=lambda _: "search",
            )
            agent = Agent(session, chosen, Toolbox([search]))
            for turn in range(6):
                async for _ in agent.run(f"Task {turn}"):
                    pass
            log = await session.events()
            await session.close()
            await chosen.close()
            return log, [request.body for request in standin.requests]

    log, bodies = asyncio.run(run())
    answers = [event.seq for event in log if isinstance(event.fact, ModelSaid)]
    assert len(answers) == len(bodies) > 20
    assert any(isinstance(event.fact, Compacted | Dropped | Masked) for event in log)
    for body, answered in zip(bodies, answers, strict=True):
        content = request_content(log, at=answered - 1)
        own = content.body()
        assert own[field] == body[field]
        assert (own.get("system"), own["tools"]) == (body.get("system"), body["tools"])
