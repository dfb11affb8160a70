"""The providers with the real client libraries, over HTTP, against a server that refuses illegal requests."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import traceback
from collections.abc import Callable, Coroutine
from itertools import product
from typing import Any

import pytest

import foveal
from foveal import Session, UserSaid
from foveal.core.log import Call, Dialect, ModelSaid, Overflowed, Thinking, ToolReturned, Used, calls_of
from foveal.core.view.request import Fitted
from foveal.errors import ProviderError
from foveal.ports import Provider, Reply, ReplyPiece, RetryWait
from foveal.providers import base, selection
from foveal.providers.anthropic import Anthropic, add_breakpoints
from foveal.providers.base import BaseProvider
from foveal.providers.endpoint import ProviderEndpoint
from foveal.providers.local.model import LocalModel
from foveal.providers.openai_chat import ChatReply, OpenAIChat
from foveal.providers.openai_responses import OpenAIResponses
from foveal.stores import MemoryStore
from support.effort import rest_in_soak
from support.provider_stand_in import Answer, StandIn, Trouble, looping
from support.waiting import DEADLINE_S

SECRET = "sk-standin-4f9a8c71e2"
WINDOW = 6_000
LONG_TURNS = 10 if os.environ.get("FOVEAL_SOAK") else 4
"""Turns of a long session. Four fill the window; the client library takes most of the time of a request."""
DIALECTS: tuple[Dialect, ...] = ("openai_chat", "openai_responses", "anthropic")
PROVIDERS: dict[str, tuple[Callable[..., Provider], str, str]] = {
    "openai_chat": (OpenAIChat, "openai/gpt-4.1", "OPENAI_API_KEY"),
    "openai_responses": (OpenAIResponses, "openai/gpt-5.1", "OPENAI_API_KEY"),
    "anthropic": (Anthropic, "anthropic/claude-sonnet-4-6", "ANTHROPIC_API_KEY"),
}
TOOLS = [
    {
        "name": "search",
        "description": "Search the sources.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    }
]

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
every_library = pytest.mark.parametrize(
    "dialect", rest_in_soak(("openai_chat", "anthropic", "openai_responses"), kept=2)
)
"""For errors that the client libraries raise in the same way for each of their dialects."""


def make_provider(
    dialect: str, url: str, *, key: str = SECRET, window: int = WINDOW, **more: Any
) -> Provider:
    """Return the provider of a dialect for a server at this URL (in the form of Anthropic's library)."""
    kind, name, variable = PROVIDERS[dialect]
    url = url if dialect == "anthropic" else f"{url}/v1"
    return kind(
        ProviderEndpoint("The Stand-in", url=url, key=key, key_variable=variable),
        foveal.model(name, window=window),
        **more,
    )


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def exchange(
    provider: Provider, request: Fitted, max_tokens: int = 300
) -> tuple[list[ReplyPiece], Reply]:
    """Send a request; return the pieces and the reply, which is last."""
    items = [item async for item in provider.send(request, max_tokens=max_tokens)]
    assert isinstance(items[-1], Reply)
    pieces = [item for item in items[:-1] if isinstance(item, ReplyPiece)]
    assert len(pieces) == len(items) - 1 - sum(isinstance(item, RetryWait) for item in items)
    return pieces, items[-1]


async def take(session: Session, provider: Provider, reply: Reply) -> list[Call]:
    """Record a reply as the agent does and return the calls to answer."""
    messages = reply.message if isinstance(reply.message, list) else [reply.message]
    events = await session.take(*messages, dialect=provider.dialect)
    await session.observe(reply.usage)
    said = [event.fact for event in events if isinstance(event.fact, ModelSaid)]
    return [call for fact in said for _, call in calls_of(fact.content)]


async def fitted(*words: str, model: str = "gpt-4.1", tools: bool = False) -> Fitted:
    async with MemoryStore() as store:
        session = await Session.open(store, "one", model=model)
        await session.equip(TOOLS if tools else [])
        await session.append(*(UserSaid(content=text) for text in words))
        return await session.fit()


async def fails(provider: Provider) -> ProviderError:
    """Return the error that a provider raises for a simple request."""
    try:
        with pytest.raises(ProviderError) as caught:
            await exchange(provider, await fitted("Hello?"))
        return caught.value
    finally:
        await provider.close()


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────────────


def script(number: int) -> Answer:
    return Answer(
        text="I look it up.", calls=(("search", {"query": "a"}), ("search", {"query": "b"})), thought="Hm."
    )


@every_dialect
def test_pieces_come_before_the_whole_reply(dialect: Dialect) -> None:
    async def work() -> None:
        with StandIn(script=script) as standin:
            provider = make_provider(dialect, standin.anthropic, key="none")
            pieces, reply = await exchange(provider, await fitted("Find a and b.", tools=True))
            await provider.close()
        assert "".join(piece.text for piece in pieces if piece.kind == "text") == "I look it up."
        assert [piece.text for piece in pieces if piece.kind == "call"] == ["search", "search"]
        thoughts = [piece.text for piece in pieces if piece.kind == "thinking"]
        assert thoughts == ([] if dialect == "openai_chat" else ["Hm."])
        assert reply.stop == {"openai_chat": "tool_calls", "openai_responses": "completed"}.get(
            dialect, "tool_use"
        )
        async with MemoryStore() as store:
            session = await Session.open(store, "one", model=provider.model)
            await session.append(UserSaid(content="Find a and b."))
            await session.fit()
            calls = await take(session, provider, reply)
            assert [(call.name, json.loads(call.arguments)) for call in calls] == [
                ("search", {"query": "a"}),
                ("search", {"query": "b"}),
            ]
            used = [event.fact for event in await session.events() if isinstance(event.fact, Used)]
            assert [fact.prompt for fact in used] == [standin.requests[0].prompt]
            assert used[0].output > 0

    run(work())


@pytest.mark.long
@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS))
def test_a_long_session_is_never_refused_and_mostly_cached(dialect: Dialect) -> None:
    """Turns of five requests in a small window; the stand-in refuses reasoning that was changed."""

    async def work() -> None:
        with StandIn(window=WINDOW, script=looping(steps=4)) as standin:
            provider = make_provider(dialect, standin.anthropic)
            async with MemoryStore() as store:
                session = await Session.open(store, "long", model=provider.model)
                await session.append(foveal.Instructed(content="Never delete anything."))
                await session.equip(TOOLS)
                for turn in range(LONG_TURNS):
                    await session.append(UserSaid(content=f"Task {turn}: find the number {turn}."))
                    while calls := await step(session, provider):
                        await session.append(*(result(call) for call in calls))
                await session.close()
            await provider.close()
        assert standin.faults == []
        assert len(standin.requests) == 5 * LONG_TURNS
        cached = sum(request.cached for request in standin.requests)
        assert cached > 0.5 * sum(request.prompt for request in standin.requests)

    run(work())


async def step(session: Session, provider: Provider) -> list[Call]:
    _, reply = await exchange(provider, await session.fit(), min(700, await session.max_tokens()))
    return await take(session, provider, reply)


def result(call: Call) -> ToolReturned:
    lines = "\n".join(
        f"{call.arguments}: src/module_{line}.py:{line}: value = {line * 7}" for line in range(8)
    )
    return ToolReturned(call_id=call.id, name=call.name, content=lines)


def test_anthropic_thinking_keeps_its_signature() -> None:
    async def work() -> None:
        with StandIn(script=script) as standin:
            provider = make_provider("anthropic", standin.anthropic)
            _, reply = await exchange(provider, await fitted("Find it.", tools=True))
            await provider.close()
        thought = reply.message["content"][0]
        assert (thought["type"], thought["thinking"]) == ("thinking", "Hm.")
        assert len(thought["signature"]) == 64

    run(work())


@every_dialect
def test_tools_have_the_form_of_the_dialect(dialect: Dialect) -> None:
    async def work() -> None:
        with StandIn() as standin:
            provider = make_provider(dialect, standin.anthropic)
            await exchange(provider, await fitted("Find it.", tools=True))
            await provider.close()
        schema = TOOLS[0]["parameters"]
        about = {"name": "search", "description": "Search the sources."}
        sent = standin.requests[0].body["tools"]
        sent[-1].pop("cache_control", None)
        assert (
            sent
            == {
                "openai_chat": [{"type": "function", "function": {**about, "parameters": schema}}],
                "openai_responses": [{"type": "function", **about, "parameters": schema, "strict": False}],
                "anthropic": [{**about, "input_schema": schema}],
            }[dialect]
        )

    run(work())


@every_dialect
def test_arguments_that_are_not_json_stay_text_and_the_session_continues(
    dialect: Dialect,
) -> None:
    broken = '{"query": "unfinished'

    def answers(number: int) -> Answer:
        return Answer(calls=(("search", broken),)) if number == 1 else Answer(text="Sorry.")

    async def work() -> None:
        with StandIn(script=answers) as standin:
            provider = make_provider(dialect, standin.anthropic)
            async with MemoryStore() as store:
                session = await Session.open(store, "one", model=provider.model)
                await session.equip(TOOLS)
                await session.append(UserSaid(content="Find it."))
                calls = await step(session, provider)
                assert [call.arguments for call in calls] == [broken]
                await session.append(
                    ToolReturned(call_id=calls[0].id, content="That is not JSON.", error=True)
                )
                assert await step(session, provider) == []
            await provider.close()
        assert standin.faults == []

    run(work())


# ── Cache breakpoints ────────────────────────────────────────────────────────────────────────


def mark_places(body: Any) -> list[str]:
    """Return where a request has cache marks."""
    found = ["tools" for tool in body.get("tools", []) if "cache_control" in tool]
    system = body.get("system")
    found += ["system" for block in system or [] if isinstance(block, dict) and "cache_control" in block]
    for at, message in enumerate(body["messages"]):
        if isinstance(message["content"], list):
            found += [str(at) for block in message["content"] if "cache_control" in block]
    return found


def test_marks_are_at_the_ends_of_the_stable_parts_and_the_newest_message() -> None:
    async def work() -> None:
        with StandIn(script=looping(steps=3)) as standin:
            provider = make_provider("anthropic", standin.anthropic, window=100_000)
            async with MemoryStore() as store:
                session = await Session.open(store, "one", model=provider.model)
                await session.append(foveal.Instructed(content="Rules."), UserSaid(content="Go."))
                await session.equip(TOOLS)
                while calls := await step(session, provider):
                    await session.append(*(result(call) for call in calls))
            await provider.close()
        assert [mark_places(request.body) for request in standin.requests] == [
            ["system", "0"],
            ["system", "0", "2"],
            ["system", "2", "4"],
            ["system", "4", "6"],
        ]

    run(work())


def test_the_agent_of_a_model_that_binds_thinking_is_never_refused() -> None:
    async def work() -> None:
        with StandIn(script=looping(steps=40)) as standin:
            endpoint = ProviderEndpoint("The Stand-in", url=standin.anthropic, key=SECRET, key_variable="K")
            provider = Anthropic(endpoint, foveal.model("anthropic/claude-opus-5-5", window=6_000))
            async with MemoryStore() as store:
                session = await Session.open(store, "one", model=provider.model)
                await session.append(foveal.Instructed(content="Rules."), UserSaid(content="Go."))
                await session.equip(TOOLS)
                while calls := await step(session, provider):
                    await session.append(*(result(call) for call in calls))
                reduced = (await session.report()).reduced
            await provider.close()
        assert reduced
        assert standin.faults == []
        sent = [request.body for request in standin.requests]
        assert any("block_binding" in str(body.get("thinking")) for body in sent)
        assert any("'type': 'thinking'" in str(body["messages"]) for body in sent[-5:])

    run(work())


def test_a_request_has_at_most_four_marks_and_none_on_thinking() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    marked = [{"type": "text", "text": str(place), **mark} for place in range(3)]
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    messages = [{"role": "user", "content": marked}, {"role": "assistant", "content": [thought]}]
    body = add_breakpoints({"messages": messages, "system": "Rules.", "tools": [{"name": "a"}]}, messages)
    assert mark_places(body) == ["system", "0", "0", "0"]
    bare = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": [thought]}]
    assert mark_places(add_breakpoints({"messages": bare}, [])) == ["0"]
    assert mark_places(add_breakpoints({"messages": bare[:1], "tools": [{"name": "a"}]}, [])) == [
        "tools",
        "0",
    ]
    assert bare[0] == {"role": "user", "content": "Go."}


# ── Errors ──────────────────────────────────────────────────────────────────────────────────────


@every_dialect
def test_an_overflow_is_raised_unchanged_and_the_session_learns_the_limit(
    dialect: Dialect,
) -> None:
    async def work() -> None:
        with StandIn(window=3_000, script=lambda number: Answer(text="Done.")) as standin:
            provider = make_provider(dialect, standin.anthropic, window=20_000)
            async with MemoryStore() as store:
                session = await Session.open(store, "one", model=provider.model)
                for turn in range(30):
                    await session.append(
                        UserSaid(content=f"Task {turn}: " + "word " * 120),
                        ModelSaid(content=f"Answer {turn}."),
                    )
                await session.append(UserSaid(content="Go on."))
                refused = 0
                while (error := await refusal(session, provider)) is not None:
                    assert type(error).__name__ == "BadRequestError"
                    assert await session.overflowed(error)
                    refused += 1
                facts = [event.fact for event in await session.events()]
            await provider.close()
        assert refused > 0
        assert next(fact.limit for fact in facts if isinstance(fact, Overflowed)) == 3_000

    run(work())


async def refusal(session: Session, provider: Provider) -> Exception | None:
    """Send one request; return the library's error, or None if there is a reply."""
    try:
        _, reply = await exchange(provider, await session.fit(), 200)
    except Exception as error:  # noqa: BLE001
        return error
    await take(session, provider, reply)
    return None


@every_dialect
def test_a_wrong_key_is_reported_with_its_variable_and_never_shown(dialect: Dialect) -> None:
    with StandIn(key="another") as standin:
        provider = make_provider(dialect, standin.anthropic)
        assert SECRET not in repr(provider)
        error = run(fails(provider))
        assert standin.attempts == 1
    assert error.code == "key"
    assert f"does not accept the key in {PROVIDERS[dialect][2]} (401)" in str(error)
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
    assert SECRET not in shown
    assert SECRET[:10] not in shown


@pytest.mark.parametrize(
    ("dialect", "status"), rest_in_soak(product(DIALECTS, [429, 500, 503, 529]), every=3)
)
def test_temporary_errors_are_retried(dialect: Dialect, status: int) -> None:
    failing = Trouble(
        status=status, headers=(("retry-after-ms", "10"),), body='{"error": {"message": "busy"}}'
    )

    async def work() -> None:
        with StandIn(trouble=lambda number: failing if number <= 2 else None) as standin:
            provider = make_provider(dialect, standin.anthropic)
            _, reply = await exchange(provider, await fitted("Hello?"))
            await provider.close()
        assert reply.message
        assert (standin.attempts, len(standin.requests)) == (3, 1)

    run(work())


@every_library
def test_a_long_rate_limit_is_reported_with_its_wait_and_not_retried(dialect: Dialect) -> None:
    body = json.dumps({"error": {"type": "rate_limit_error", "message": f"Slow down, {SECRET}!"}})
    busy = Trouble(status=429, headers=(("retry-after", "3600"),), body=body)
    with StandIn(trouble=lambda number: busy) as standin:
        error = run(fails(make_provider(dialect, standin.anthropic)))
        assert standin.attempts == 1
    assert (error.code, "wait 3,600 s and try again" in str(error)) == ("rate", True)
    assert SECRET not in str(error)


@every_library
def test_a_lasting_server_error_is_reported_after_five_tries(dialect: Dialect) -> None:
    broken = Trouble(
        status=503, headers=(("retry-after-ms", "5"),), body='{"error": {"message": "no capacity"}}'
    )
    with StandIn(trouble=lambda number: broken) as standin:
        error = run(fails(make_provider(dialect, standin.anthropic)))
        assert standin.attempts == 5
    assert (error.code, "503: no capacity" in str(error)) == ("server", True)


@every_dialect
def test_a_connection_lost_in_mid_stream_is_reported_with_the_partial_text(dialect: Dialect) -> None:
    drop = {"openai_chat": 2, "openai_responses": 5, "anthropic": 4}[dialect]
    said = Answer(text="The first half and the second.")
    with StandIn(script=lambda number: said, trouble=lambda number: Trouble(drop=drop)) as standin:
        error = run(fails(make_provider(dialect, standin.anthropic)))
    assert error.code == "interrupted"
    assert error.partial == "The first half "
    assert "broke off after 15 characters" in str(error)


@every_dialect
def test_a_stream_that_ends_too_early_is_an_error(dialect: Dialect) -> None:
    """A proxy may end the body properly before the model has finished."""
    with StandIn() as standin:
        empty = Trouble(body=": nothing\n\n", kind="text/event-stream")
        standin.trouble = lambda number: empty
        error = run(fails(make_provider(dialect, standin.anthropic)))
    assert (error.code, error.partial) == ("interrupted", "")


NO_ANSWERS = {
    "html": Trouble(body="<html>Welcome to the router</html>", kind="text/html"),
    "broken json": Trouble(body='event: message_start\ndata: {"broken\n\n', kind="text/event-stream"),
    "other json": Trouble(body='{"hello": "world"}'),
}


@pytest.mark.parametrize(("dialect", "body"), rest_in_soak(product(DIALECTS, NO_ANSWERS), every=4))
def test_a_response_that_is_not_an_answer_is_reported_with_the_address(dialect: Dialect, body: str) -> None:
    with StandIn(trouble=lambda number: NO_ANSWERS[body]) as standin:
        error = run(fails(make_provider(dialect, standin.anthropic)))
        address = standin.anthropic
    assert error.code == "server"
    assert "is not an answer" in str(error)
    assert f"is {address}" in str(error)


@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS))
def test_a_slow_reply_is_awaited_and_a_silent_one_times_out(dialect: Dialect) -> None:
    with StandIn(trouble=lambda number: Trouble(delay=0.1)) as standin:
        provider = make_provider(dialect, standin.anthropic, read_timeout_s=DEADLINE_S)

        async def work() -> Reply:
            _, reply = await exchange(provider, await fitted("Hello?"))
            await provider.close()
            return reply

        assert run(work()).message
        standin.trouble = lambda number: Trouble(delay=1.0)
        error = run(fails(make_provider(dialect, standin.anthropic, read_timeout_s=0.3)))
    assert error.code in ("connection", "interrupted")


@every_library
def test_an_unreachable_server_is_reported_with_its_address(dialect: Dialect, monkeypatch: Any) -> None:
    monkeypatch.setattr("foveal.providers.errors.MAX_RETRIES", 0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    error = run(fails(make_provider(dialect, url.replace("//", "//user:hunter2@"))))
    assert error.code == "connection"
    assert f"cannot be reached at {url}" in str(error)
    assert "is its server running?" in str(error)
    assert "hunter2" not in str(error)


REFUSALS = {
    403: ("key", "may not use it"),
    404: ("refused", "has no model"),
    422: ("refused", "refused the request (422): no such field"),
}


@pytest.mark.parametrize(("dialect", "status"), rest_in_soak(product(DIALECTS, REFUSALS), every=4))
def test_other_refusals_quote_the_provider(dialect: Dialect, status: int) -> None:
    code, words = REFUSALS[status]
    trouble = Trouble(status=status, body='{"error": {"message": "no such field"}}')
    with StandIn(trouble=lambda number: trouble) as standin:
        error = run(fails(make_provider(dialect, standin.anthropic)))
        assert standin.attempts == 1
    assert (error.code, words in str(error)) == (code, True)


def test_an_account_without_credit_gets_no_advice_to_wait() -> None:
    body = json.dumps({"error": {"message": "You exceeded your quota.", "code": "insufficient_quota"}})
    trouble = Trouble(status=429, headers=(("retry-after-ms", "5"),), body=body)
    with StandIn(trouble=lambda number: trouble) as standin:
        error = run(fails(make_provider("openai_chat", standin.anthropic)))
        assert standin.attempts == 1
    assert "has no credit left" in str(error)


def test_errors_in_mid_stream_have_the_code_of_their_status() -> None:
    overloaded = (
        'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}\n\n'
    )
    failed = {"type": "response.failed", "sequence_number": 1}
    failed |= {"response": {"error": {"code": "rate_limit_exceeded", "message": "Slow down"}}}
    for dialect, body, code in (
        ("anthropic", overloaded, "server"),
        ("openai_responses", f"event: response.failed\ndata: {json.dumps(failed)}\n\n", "rate"),
        ("openai_chat", 'data: {"error": {"type": "server_error", "message": "Oops"}}\n\n', "server"),
    ):
        with StandIn() as standin:
            trouble = Trouble(body=body, kind="text/event-stream")
            standin.trouble = lambda number, trouble=trouble: trouble  # type: ignore[misc]
            assert run(fails(make_provider(dialect, standin.anthropic))).code == code


def test_an_overflow_reported_in_the_stream_is_recognised() -> None:
    error = {
        "code": "context_length_exceeded",
        "message": "Your input exceeds the context window of this model.",
    }
    event = {"type": "response.failed", "sequence_number": 1, "response": {"error": error}}
    body = f"event: response.failed\ndata: {json.dumps(event)}\n\n"

    async def work() -> None:
        with StandIn(trouble=lambda number: Trouble(body=body, kind="text/event-stream")) as standin:
            provider = make_provider("openai_responses", standin.anthropic)
            async with MemoryStore() as store:
                session = await Session.open(store, "one", model=provider.model)
                await session.append(UserSaid(content="Go."))
                with pytest.raises(Exception, match="exceeds the context window") as caught:
                    await exchange(provider, await session.fit())
                assert await session.overflowed(caught.value)
            await provider.close()

    run(work())


def test_encrypted_content_that_is_refused_is_left_to_the_session() -> None:
    error = {"code": "invalid_encrypted_content", "message": "The encrypted content could not be verified."}
    item = {"type": "compaction", "encrypted_content": "gAAA"}

    async def work() -> None:
        trouble = Trouble(status=400, body=json.dumps({"error": error}))
        first = lambda number: trouble if number == 1 else None  # noqa: E731
        with StandIn(trouble=first, script=lambda number: Answer(text="Done.")) as standin:
            provider = make_provider("openai_responses", standin.anthropic)
            async with MemoryStore() as store:
                session = await Session.open(store, "one", model=provider.model)
                await session.take({"role": "user", "content": "Go."}, item, dialect="openai_responses")
                refused = await refusal(session, provider)
                assert type(refused).__name__ == "BadRequestError"
                assert await session.overflowed(refused)
                assert item not in (await session.fit()).to_responses()
                assert await refusal(session, provider) is None
            await provider.close()

    run(work())


def test_a_key_that_no_header_can_carry_is_refused_without_quoting_it() -> None:
    for key in ("sk-ключ-1234567", "sk-line\nbreak-123"):
        with pytest.raises(ProviderError, match="the key in OPENAI_API_KEY contains characters") as caught:
            ProviderEndpoint(
                "OpenAI", url="https://api.openai.com/v1", key=key, key_variable="OPENAI_API_KEY"
            )
        assert key not in str(caught.value)


# ── Differences between servers ──────────────────────────────────────────────────────────────────────────


def chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


def test_calls_without_index_and_with_parsed_arguments_are_assembled() -> None:
    reply = ChatReply()
    reply.add(chunk(tool_calls=[{"id": "a", "function": {"name": "one", "arguments": {"x": 1}}}]))
    reply.add(chunk(tool_calls=[{"id": "b", "function": {"name": "two", "arguments": ""}}]))
    reply.add({"choices": [{"delta": {}, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 3}})
    calls = reply.message()["tool_calls"]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        ("a", "one", '{"x": 1}'),
        ("b", "two", "{}"),
    ]
    assert reply.is_complete


def test_extra_fields_are_kept_and_reasoning_only_beside_calls() -> None:
    signature = {"google": {"thought_signature": "abc"}}
    call = {"index": 0, "id": "a", "function": {"name": "one", "arguments": "{}"}, "extra_content": signature}
    thinking, calling = ChatReply(), ChatReply()
    for reply in (thinking, calling):
        assert reply.add(chunk(reasoning_content="Let me ")) == [ReplyPiece(text="Let me ", kind="thinking")]
        reply.add(chunk(reasoning_content="see."))
    thinking.add(chunk(content="Yes."))
    calling.add(chunk(tool_calls=[call]))
    assert thinking.message() == {"role": "assistant", "content": "Yes."}
    message = calling.message()
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", None)
    assert message["tool_calls"][0]["extra_content"] == signature


def test_tools_in_any_form_are_converted_and_provider_tools_passed_on() -> None:
    neutral = base.chat_tools(TOOLS)
    assert base.chat_tools(base.chat_tools(TOOLS)) == neutral
    assert base.chat_tools(base.anthropic_tools(TOOLS)) == neutral
    assert base.anthropic_tools(base.responses_tools(TOOLS)) == base.anthropic_tools(TOOLS)
    (tool,) = TOOLS
    beside = {name: tool[name] for name in ("name", "description")}
    declared = {**beside, "parametersJsonSchema": tool["parameters"]}
    assert base.chat_tools([{"functionDeclarations": [declared]}]) == neutral
    spec = {**beside, "inputSchema": {"json": tool["parameters"]}}
    assert base.chat_tools([{"toolSpec": spec}]) == neutral
    provider_tool = {"type": "web_search_20250305", "name": "web_search"}
    assert base.anthropic_tools([provider_tool]) == [provider_tool]
    assert base.tool_names([*TOOLS, provider_tool]) == {"search"}


# ── Selection ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "environment", "expected", "url"),
    [
        ("anthropic/claude-sonnet-4-6", {"ANTHROPIC_API_KEY": "k"}, Anthropic, "https://api.anthropic.com"),
        ("claude-opus-4-6", {"ANTHROPIC_API_KEY": "k"}, Anthropic, "https://api.anthropic.com"),
        ("openai/gpt-4.1", {"OPENAI_API_KEY": "k"}, OpenAIChat, "https://api.openai.com/v1"),
        ("gpt-4.1", {"OPENAI_API_KEY": "k"}, OpenAIChat, "https://api.openai.com/v1"),
        ("openai/x", {"OPENAI_BASE_URL": "http://10.0.0.7/v1"}, OpenAIChat, "http://10.0.0.7/v1"),
        ("some-model", {"OPENAI_BASE_URL": "http://10.0.0.7/v1"}, OpenAIChat, "http://10.0.0.7/v1"),
        ("responses/gpt-5.1", {"OPENAI_API_KEY": "k"}, OpenAIResponses, "https://api.openai.com/v1"),
        (
            "gemini/gemini-2.5-pro",
            {"GOOGLE_API_KEY": "k"},
            OpenAIChat,
            "https://generativelanguage.googleapis.com",
        ),
        (
            "openrouter/deepseek/deepseek-chat",
            {"OPENROUTER_API_KEY": "k"},
            OpenAIChat,
            "https://openrouter.ai/api/v1",
        ),
        ("ollama/qwen3", {}, OpenAIChat, "http://127.0.0.1:11434/v1"),
        ("ollama/qwen3", {"OLLAMA_HOST": "10.0.0.7:11434"}, OpenAIChat, "http://10.0.0.7:11434/v1"),
        ("vllm/Qwen3-8B@http://10.0.0.7:8000/v1", {}, OpenAIChat, "http://10.0.0.7:8000/v1"),
        ("llamacpp/any", {"LLAMACPP_BASE_URL": "http://h:1/v1"}, OpenAIChat, "http://h:1/v1"),
    ],
)
def test_the_provider_is_found_by_the_model_name(
    name: str, environment: dict[str, str], expected: type, url: str
) -> None:
    found = selection.provider(name, environment=environment, window=9_000)
    assert type(found) is expected
    assert isinstance(found, BaseProvider)
    assert found.endpoint.url.startswith(url)
    assert found.model.window == 9_000
    assert found.model_id == name.partition("@")[0].partition("/")[2] or "/" not in name


def test_without_a_name_the_first_key_decides_else_the_local_model() -> None:
    keys = {"OPENROUTER_API_KEY": "k", "GEMINI_API_KEY": "k", "OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}
    found = []
    while keys:
        found.append(selection.provider(None, environment=keys).name.partition("/")[0])
        keys.popitem()
    assert found == ["anthropic", "openai", "gemini", "openrouter"]
    local = selection.provider(None, environment={"HOME": "/nowhere", "OPENAI_API_KEY": " "})
    assert (local.name, local.model.window) == ("local/qwen2.5-coder-0.5b", 4_096)
    assert local.model.input_price == 0.0
    larger = selection.provider("local/qwen2.5-coder-1.5b", environment={"HOME": "/nowhere"}, window=8_192)
    assert isinstance(larger, LocalModel)
    assert (larger.name, larger.model.window, larger.is_downloaded) == (
        "local/qwen2.5-coder-1.5b",
        8_192,
        False,
    )


def test_a_base_url_counts_as_a_key_and_ollama_gets_its_default_window() -> None:
    own = selection.provider(None, environment={"OPENAI_BASE_URL": "http://h:1/v1", "OPENAI_MODEL": "qwen"})
    assert own.name == "openai/qwen"
    assert selection.provider("ollama/qwen3", environment={}).model.window == 4_096
    assert (
        selection.provider("ollama/qwen3", environment={}).model.window == foveal.model("ollama/qwen3").window
    )
    larger = {"OLLAMA_CONTEXT_LENGTH": "32768"}
    assert selection.provider("ollama/qwen3", environment=larger).model.window == 32_768
    assert selection.provider("ollama/qwen3", environment=larger, window=8_000).model.window == 8_000


def test_openrouter_does_not_truncate_and_caches_for_claude() -> None:
    sent = []
    for name in ("openrouter/deepseek/deepseek-chat", "openrouter/anthropic/claude-sonnet-4.6"):
        provider = selection.provider(name, environment={"OPENROUTER_API_KEY": "k"})
        assert isinstance(provider, OpenAIChat)
        sent.append(provider.options["extra_body"])
    plugins = [{"id": "context-compression", "enabled": False}]
    assert sent == [{"plugins": plugins}, {"plugins": plugins, "cache_control": {"type": "ephemeral"}}]


@pytest.mark.parametrize(
    ("name", "environment", "code", "words"),
    [
        ("anthropic/claude-sonnet-4-6", {}, "key", "Anthropic needs a key: set ANTHROPIC_API_KEY"),
        ("gemini/gemini-2.5-pro", {}, "key", "set GEMINI_API_KEY or GOOGLE_API_KEY"),
        ("openai/gpt-4.1", {"OPENAI_API_KEY": ""}, "key", "set OPENAI_API_KEY"),
        (
            "watsonx/granite",
            {},
            "refused",
            "no provider is known for 'watsonx/granite'; possible are anthropic/MODEL",
        ),
        ("openai/", {"OPENAI_API_KEY": "k"}, "refused", "names no model"),
        ("local/gpt-7", {}, "refused", "possible are"),
        ("local//nowhere/at/all.gguf", {}, "refused", "cannot be read (No such file or directory)"),
        (None, {"FOVEAL_GGUF": __file__}, "refused", "is not a GGUF file"),
        (None, {"OPENAI_BASE_URL": "http://h/v1"}, "refused", "name one, or set OPENAI_MODEL"),
        (
            "antropic/claude-sonnet-4-6",
            {"OPENAI_BASE_URL": "http://h/v1"},
            "refused",
            "there is no provider 'antropic': did you mean anthropic/claude-sonnet-4-6?",
        ),
        ("olama/qwen3", {}, "refused", "did you mean ollama/qwen3?"),
    ],
)
def test_an_impossible_choice_is_reported_with_the_possible_ones(
    name: Any, environment: dict[str, str], code: str, words: str
) -> None:
    with pytest.raises(ProviderError) as caught:
        selection.provider(name, environment=environment)
    assert (caught.value.code, words in str(caught.value)) == (code, True), str(caught.value)


def test_thinking_is_recorded_as_its_own_part() -> None:
    async def work() -> None:
        with StandIn(script=script) as standin:
            provider = make_provider("anthropic", standin.anthropic)
            async with MemoryStore() as store:
                session = await Session.open(store, "one", model=provider.model)
                await session.equip(TOOLS)
                await session.append(UserSaid(content="Find it."))
                await step(session, provider)
                said = [event.fact for event in await session.events() if isinstance(event.fact, ModelSaid)]
            await provider.close()
        assert isinstance(said[0].content[0], Thinking)

    run(work())
