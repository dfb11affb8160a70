"""The drop-in endpoints with the official clients: long agent loops in small windows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from foveal.core.log import Compacted, Masked, ModelSaid, UserSaid, text_of
from support.effort import rest_in_soak
from support.provider_stand_in import Answer, StandIn
from support.upstream import ProxyServer, RawUpstream, answer, summarising, until

WINDOW = 6_000
ANSWER = 600
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
ABOUT = {"name": "search", "description": "Search the sources."}
REQUESTS = 17 if os.environ.get("FOVEAL_SOAK") else 12


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def provider() -> Iterator[StandIn]:
    with StandIn(window=WINDOW) as standin:
        yield standin


@pytest.fixture(scope="module")
def proxy(provider: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    folder = tmp_path_factory.mktemp("proxy")
    with ProxyServer(
        folder, openai=provider.openai, anthropic=provider.anthropic, window=WINDOW, tokenizer="auto"
    ) as made:
        yield made


def search(query: str) -> str:
    number = sum(map(ord, query))
    lines = 250 if number % 11 == 0 else 8 + number % 13
    return "\n".join(
        f"{query}: src/module_{number}_{line}.py: value = {number * line}" for line in range(lines)
    )


def foveal_headers(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("x-foveal-")}


# ── Agent loops ────────────────────────────────────────────────────────────────────────────────────────


class AgentRun:
    """The headers that an agent received, and the messages of its user."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.headers_seen: list[dict[str, str]] = []
        self.asked: list[str] = []

    def ask(self) -> str:
        self.asked.append(f"{self.name} {len(self.asked)}: find the next part. " + "Why? " * 40)
        return self.asked[-1]


def chat(url: str, run: AgentRun, *, stream: bool = False) -> None:
    tools: Any = [{"type": "function", "function": {**ABOUT, "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "system", "content": "You are careful."}]
    calls: Any = ()
    with openai.OpenAI(base_url=url, api_key="sk-of-the-client", max_retries=0) as client:
        for _ in range(REQUESTS):
            if not calls:
                messages.append({"role": "user", "content": run.ask()})
            given: Any = {"model": "gpt-4.1", "messages": messages, "tools": tools, "max_tokens": ANSWER}
            if stream:
                reply, message = _chat_stream(client, given)
            else:
                reply = client.chat.completions.with_raw_response.create(**given)
                message = reply.parse().choices[0].message
            run.headers_seen.append(foveal_headers(reply.headers))
            messages.append(message)
            plain = message if stream else message.model_dump()
            calls = plain.get("tool_calls") or ()
            for call in calls:
                found = search(json.loads(call["function"]["arguments"])["query"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})


def _chat_stream(client: openai.OpenAI, given: Any) -> tuple[Any, Any]:
    """Return a reply and its message, assembled from a stream with only the needed fields."""
    reply = client.chat.completions.with_raw_response.create(
        **given, stream=True, stream_options={"include_usage": True}
    )
    text, calls = "", dict[int, Any]()
    for chunk in reply.parse():
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                body = {"id": call.id, "type": "function", "function": {"name": "", "arguments": ""}}
                held = calls.setdefault(call.index, body)
                held["function"]["name"] += (call.function and call.function.name) or ""
                held["function"]["arguments"] += (call.function and call.function.arguments) or ""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return reply, {**message, "tool_calls": list(calls.values())} if calls else message


def responses(url: str, run: AgentRun, *, stream: bool = False) -> None:
    tools: Any = [{"type": "function", **ABOUT, "parameters": SCHEMA, "strict": False}]
    items: list[Any] = []
    calls: list[Any] = []
    with openai.OpenAI(base_url=url, api_key="sk-of-the-client", max_retries=0) as client:
        for _ in range(REQUESTS):
            if not calls:
                items.append({"role": "user", "content": run.ask()})
            reply = client.responses.with_raw_response.create(
                model="gpt-5",
                input=items,
                tools=tools,
                instructions="You are careful.",
                max_output_tokens=ANSWER,
                store=False,
                stream=stream,
            )
            run.headers_seen.append(foveal_headers(reply.headers))
            made: Any = reply.parse()
            output = _completed_response(made) if stream else made.output
            items += output
            calls = [item for item in output if item.type == "function_call"]
            for call in calls:
                found = search(json.loads(call.arguments)["query"])
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": found})


def _completed_response(events: Any) -> Any:
    """Read a stream to its end, and return the completed response."""
    return [event.response.output for event in events if event.type == "response.completed"].pop()


def claude(url: str, run: AgentRun, *, stream: bool = False) -> None:
    tools: Any = [{**ABOUT, "input_schema": SCHEMA}]
    messages: list[Any] = []
    results: list[Any] = []
    place = url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=place, api_key="sk-ant-of-the-client", max_retries=0) as client:
        for _ in range(REQUESTS):
            messages.append({"role": "user", "content": results or run.ask()})
            given: Any = {
                "model": "claude-sonnet-4-6",
                "messages": messages,
                "tools": tools,
                "max_tokens": ANSWER,
                "system": "You are careful.",
            }
            if stream:
                with client.messages.stream(**given) as events:
                    message = events.get_final_message()
                    run.headers_seen.append(foveal_headers(events.response.headers))
            else:
                reply = client.messages.with_raw_response.create(**given)
                run.headers_seen.append(foveal_headers(reply.headers))
                message = reply.parse()
            messages.append({"role": "assistant", "content": message.content})
            results = [
                {"type": "tool_result", "tool_use_id": b.id, "content": search(b.input["query"])}
                for b in message.content
                if b.type == "tool_use"
            ]


@pytest.mark.parametrize(
    ("loop", "stream"),
    rest_in_soak(
        [(responses, True), (claude, True), (chat, False), (chat, True), (responses, False), (claude, False)],
        kept=3,
    ),
)
def test_an_official_client_can_run_for_ever_in_a_small_window(
    provider: StandIn, proxy: ProxyServer, loop: Any, stream: bool
) -> None:
    before, run = len(provider.requests), AgentRun(f"{loop.__name__}-{stream}")
    loop(proxy.openai, run, stream=stream)
    made, headers_seen = provider.requests[before:], run.headers_seen
    assert len(headers_seen) == REQUESTS
    assert [request.faults for request in made if request.faults] == []
    assert max(request.prompt for request in made) <= WINDOW - ANSWER
    session = headers_seen[0]["x-foveal-session"]
    assert {one["x-foveal-session"] for one in headers_seen} == {session}
    assert headers_seen[0]["x-foveal-reduced"] == "none"
    assert headers_seen[-1]["x-foveal-reduced"] != "none"
    assert int(headers_seen[-1]["x-foveal-whole"]) > WINDOW > int(headers_seen[-1]["x-foveal-tokens"])
    until(lambda: len(texts_of(proxy, session, ModelSaid)) == REQUESTS)
    assert texts_of(proxy, session, UserSaid) == run.asked
    assert any(isinstance(event.fact, Masked | Compacted) for event in proxy.events(session))


def texts_of(proxy: ProxyServer, session: str, kind: type) -> list[str]:
    return [text_of(event.fact.content) for event in proxy.events(session) if isinstance(event.fact, kind)]  # type: ignore[union-attr]


def test_other_fields_are_forwarded_unchanged_with_reduced_messages(
    provider: StandIn, proxy: ProxyServer
) -> None:
    messages: list[Any] = [{"role": "system", "content": "Ü: be careful."}]
    given: dict[str, Any] = {
        "model": "gpt-4.1",
        "temperature": 0.25,
        "user": "somebody",
        "seed": 7,
        "x_own": [1, None],
    }
    with openai.OpenAI(base_url=proxy.openai, api_key="sk-of-the-client", max_retries=0) as client:
        for number in range(9):
            messages.append({"role": "user", "content": f"Untouched {number}. " + f"word{number} " * 300})
            extra = {"x_own": given["x_own"]}
            fields = {name: value for name, value in given.items() if name != "x_own"}
            reply = client.chat.completions.with_raw_response.create(
                messages=messages, extra_body=extra, max_completion_tokens=ANSWER, **fields
            )
            messages.append({"role": "assistant", "content": "All right."})
    assert reply.headers["x-foveal-reduced"] != "none"
    sent = dict([request.body for request in provider.requests if "seed" in request.body][-1])
    fitted = sent.pop("messages")
    assert sent == {**given, "max_completion_tokens": ANSWER}
    assert fitted[0] == messages[0]
    assert fitted[-1] == messages[-2]
    assert len(fitted) < len(messages)


def test_a_history_of_megabytes_is_recorded_and_continued(provider: StandIn, proxy: ProxyServer) -> None:
    messages: list[Any] = []
    for number in range(60):
        messages.append({"role": "user", "content": f"Long {number}. " + f"word{number} " * 2_000})
        messages.append({"role": "assistant", "content": "So."})
    with openai.OpenAI(base_url=proxy.openai, api_key="sk-of-the-client", max_retries=0) as client:
        sessions = []
        for word in ("first", "second"):
            messages.append({"role": "user", "content": f"And now the {word}?"})
            reply = client.chat.completions.with_raw_response.create(
                model="gpt-4.1", messages=messages, max_tokens=ANSWER
            )
            messages.append(
                {"role": "assistant", "content": reply.parse().choices[0].message.content or "So."}
            )
            sessions.append(reply.headers["x-foveal-session"])
    assert len(set(sessions)) == 1
    assert int(reply.headers["x-foveal-whole"]) > 100_000
    assert len(texts_of(proxy, sessions[0], UserSaid)) == 62


def test_cache_marks_stay_legal_and_move_to_useful_places(provider: StandIn, proxy: ProxyServer) -> None:
    def marked(text: str) -> list[dict[str, Any]]:
        return [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]

    messages: list[Any] = []
    with anthropic.Anthropic(base_url=proxy.url, api_key="sk-ant-of-the-client", max_retries=0) as client:
        for number in range(10):
            text = f"Marked {number}. " + f"word{number} " * 300
            asked: Any = [*messages, {"role": "user", "content": marked(text)}]  # the mark moves on
            reply = client.messages.with_raw_response.create(
                model="claude-sonnet-4-6",
                messages=asked,
                max_tokens=ANSWER,
                system=marked("You are careful."),  # type: ignore[arg-type]
            )
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "All right."}]
    assert reply.headers["x-foveal-reduced"] != "none"
    body = next(r.body for r in reversed(provider.requests) if "You are careful." in str(r.body["system"]))
    assert provider.faults == []
    assert json.dumps(body["system"]).count("cache_control") == 1
    assert 1 <= json.dumps(body["messages"]).count("cache_control") <= 3
    assert "cache_control" in json.dumps(body["messages"][-1])


def test_a_summary_of_a_conversation_with_moving_marks_is_legal(tmp_path: Path) -> None:
    """The client marks its tools, its system text and its two newest messages, as Claude Code does."""
    sections = ("Goal", "Decisions", "State", "Next", "Dead ends")
    words = "<summary>\n" + "".join(f"## {name}\nWords are counted.\n" for name in sections) + "</summary>"
    mark = {"cache_control": {"type": "ephemeral"}}
    tools = [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}, **mark}]
    texts: list[Any] = []
    with (
        StandIn(window=50_000, script=lambda number: Answer(text=words)) as provider,
        ProxyServer(tmp_path, anthropic=provider.anthropic, window=50_000, tokenizer="auto") as proxy,
        anthropic.Anthropic(base_url=proxy.url, api_key="sk-ant-of-the-client", max_retries=0) as client,
    ):
        for number in range(16):
            texts.append(f"Question {number}.")
            messages: list[Any] = []
            for at, text in enumerate(texts):
                marked = mark if at >= len(texts) - 2 else {}
                messages.append({"role": "user", "content": [{"type": "text", "text": text, **marked}]})
                messages.append({"role": "assistant", "content": words + f" word{at}" * 1_800})
            reply = client.messages.with_raw_response.create(
                model="claude-sonnet-4-6",
                messages=messages[:-1],
                max_tokens=ANSWER,
                system=[{"type": "text", "text": "You are careful.", **mark}],  # type: ignore[typeddict-item]
                tools=tools,  # type: ignore[arg-type]
            )
        facts = [event.fact for event in proxy.events(reply.headers["x-foveal-session"])]
        reported = [one for one in proxy.service_events if type(one).__name__ == "IllegalRequestMade"]
        summaries = [one for one in proxy.service_events if type(one).__name__ == "SummaryRequestEnded"]
    assert provider.faults == []
    assert any("<summary>" in str(request.body["messages"][-1]) for request in provider.requests)
    assert any(isinstance(fact, Compacted) and fact.by.startswith("claude") for fact in facts)
    assert reported == []
    assert summaries
    assert {one.status for one in summaries} == {200}


def test_summaries_use_the_clients_model_and_key(tmp_path: Path) -> None:
    sections = ("Goal", "Decisions", "State", "Next", "Dead ends")
    words = "<summary>\n" + "".join(f"## {name}\nWords are counted.\n" for name in sections) + "</summary>"

    def script(number: int) -> Answer:
        return Answer(text=words)

    messages: list[Any] = []
    with (
        StandIn(window=WINDOW, key="sk-of-the-client", script=script) as provider,
        summarising(tmp_path, openai=provider.openai, window=WINDOW, tokenizer="auto") as proxy,
        openai.OpenAI(base_url=proxy.openai, api_key="sk-of-the-client", max_retries=0) as client,
    ):
        for number in range(14):
            messages.append({"role": "user", "content": f"Question {number}."})
            reply = client.chat.completions.with_raw_response.create(
                model="gpt-4.1", messages=messages, max_tokens=ANSWER
            )
            answer = reply.parse().choices[0].message.content or ""
            messages.append({"role": "assistant", "content": answer + f" word{number}" * 250})
        facts = [event.fact for event in proxy.events(reply.headers["x-foveal-session"])]
    written = [fact for fact in facts if isinstance(fact, Compacted) and fact.by.startswith("gpt-4.1")]
    assert provider.faults == []
    assert written
    assert len(provider.requests) > 14
    assert "sk-of-the-client" not in "".join(map(str, facts))


def test_models_and_token_counts_are_passed_through(tmp_path: Path) -> None:
    def script(seen: Any, number: int) -> Iterator[bytes]:
        listed = {"object": "list", "data": [{"id": "gpt-4.1"}, {"id": "o9-secret"}]}
        yield answer(json.dumps(listed if "/models" in seen.line else {"input_tokens": 7}).encode())

    with (
        RawUpstream(script) as raw,
        ProxyServer(
            tmp_path, openai=raw.openai, anthropic=raw.anthropic, server__models=["gpt-*", "claude-*"]
        ) as proxy,
    ):
        with openai.OpenAI(base_url=proxy.openai, api_key="sk-of-the-client", max_retries=0) as client:
            assert [one.id for one in client.models.list()] == ["gpt-4.1"]
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve("o9-secret")
        with anthropic.Anthropic(base_url=proxy.url, api_key="sk-ant-of-the-client", max_retries=0) as claude:
            messages: Any = [{"role": "user", "content": "Hello"}]
            assert claude.messages.count_tokens(model="claude-x", messages=messages).input_tokens == 7
            with pytest.raises(anthropic.PermissionDeniedError, match=r"server\.models"):
                claude.messages.create(model="other", messages=messages, max_tokens=5)
    assert [seen.line.split()[1] for seen in raw.seen] == ["/v1/models", "/v1/messages/count_tokens"]
