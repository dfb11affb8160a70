"""Upstreams that are too small, refuse, are slow, silent, dead or lie; clients that disconnect."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import anthropic
import httpx
import openai
import pytest

from foveal.core.log import ModelSaid, Noted, Overflowed, Used, text_of
from foveal.server.runtime import ProxyRequestEnded, UsageNotUnderstood
from support.provider_stand_in import Answer, StandIn
from support.upstream import (
    DEADLINE,
    Piece,
    ProxyServer,
    RawUpstream,
    ReceivedRequest,
    answer,
    stream_head,
    until,
)

Json = dict[str, Any]
KEY = "sk-client-0123456789abcdef"


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def ask(proxy: ProxyServer, *, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEY}"}
    body = {"model": "gpt-4.1", "messages": [user("Hello")], **body}
    with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
        return http.post(f"{proxy.url}{path}", json=body, headers=headers)


def completion(text: str, usage: Json | None = None) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


def stored_texts(proxy: ProxyServer, session: str) -> list[str]:
    return [text_of(e.fact.content) for e in proxy.events(session) if isinstance(e.fact, ModelSaid)]


class Switch:
    """An upstream whose script can be changed between tests."""

    def __init__(self) -> None:
        self.script: Any = None

    def __call__(self, seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        yield from self.script(seen)


@pytest.fixture(scope="module")
def switch() -> Switch:
    return Switch()


@pytest.fixture(scope="module")
def raw(switch: Switch) -> Iterator[RawUpstream]:
    with RawUpstream(switch) as made:
        yield made


@pytest.fixture(scope="module")
def proxy(raw: RawUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    folder = tmp_path_factory.mktemp("proxy")
    with ProxyServer(folder, openai=raw.openai, anthropic=raw.anthropic, server__silence=1) as made:
        yield made


# ── Forwarding ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_response_is_forwarded_byte_for_byte(proxy: ProxyServer, raw: RawUpstream, switch: Switch) -> None:
    choice = b'{"message":{"content":"\\u00fc  ","role":"assistant"},"index":0,"finish_reason":"stop"}'
    odd = b'{ "choices":[' + choice + b'],"own":1.50}\n'
    more = (
        b"x-request-id: req_7\r\nOpenAI-Processing-Ms: 12\r\nset-cookie: a=b\r\nx-foveal-session: forged\r\n"
    )
    switch.script = lambda seen: [answer(odd, more=more)]
    reply = ask(proxy, messages=[user("Odd bytes.")])
    assert reply.content == odd
    assert reply.headers["x-request-id"] == "req_7"
    assert reply.headers["openai-processing-ms"] == "12"
    assert "set-cookie" not in reply.headers
    assert reply.headers.get_list("x-foveal-session") != ["forged"]
    assert reply.headers["x-foveal-reduced"] == "none"
    until(lambda: stored_texts(proxy, reply.headers["x-foveal-session"]) == ["ü  "])


def test_a_request_is_forwarded_byte_for_byte(proxy: ProxyServer, raw: RawUpstream, switch: Switch) -> None:
    switch.script = lambda seen: [answer(completion("Yes."))]
    body = b'{"messages" : [{"role":"user","content":"Spaces \\u00fc."}], "model":"gpt-4.1","n":1,  "x":[ ]}'
    headers = {
        "authorization": f"Bearer {KEY}",
        "content-type": "application/json",
        "cookie": "secret=1",
        "x-foveal-session": "own-bytes",
        "x-forwarded-for": "10.0.0.1",
        "openai-organization": "org-1",
        "connection": "keep-alive, x-hop",
        "x-hop": "1",
    }
    with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
        http.post(f"{proxy.openai}/chat/completions?a=b%20c", content=body, headers=headers)
    seen = raw.seen[-1]
    assert seen.body == body
    assert seen.line == "POST /v1/chat/completions?a=b%20c HTTP/1.1"
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.headers["openai-organization"] == "org-1"
    assert seen.headers["accept-encoding"] == "identity"
    absent = {"cookie", "x-foveal-session", "x-forwarded-for", "x-hop", "x-foveal-token"}
    assert not absent & seen.headers.keys()


@pytest.mark.parametrize(
    "status", ["401 Unauthorized", "404 Not Found", "429 Slow Down", "500 Oops", "529 Overloaded"]
)
def test_an_upstream_error_is_forwarded_unchanged(proxy: ProxyServer, switch: Switch, status: str) -> None:
    body = b'{"error":  {"message": "that is how it is", "type": "x", "code": null}}'
    switch.script = lambda seen: [answer(body, status=status, more=b"retry-after: 7\r\n")]
    for stream in (False, True):
        reply = ask(proxy, messages=[user(f"Error {status} {stream}.")], stream=stream)
        assert (reply.status_code, reply.content) == (int(status[:3]), body)
        assert reply.headers["retry-after"] == "7"


def test_after_an_error_the_same_request_continues_its_session(proxy: ProxyServer, switch: Switch) -> None:
    replies = [answer(b"{}", status="500 Oops"), answer(completion("At last."))]
    switch.script = lambda seen: [replies.pop(0)]
    first, second = (ask(proxy, messages=[user("Try again.")]) for _ in range(2))
    session = second.headers["x-foveal-session"]
    assert first.headers["x-foveal-session"] == session
    assert stored_texts(proxy, session) == ["At last."]
    assert sum(type(e.fact).__name__ == "UserSaid" for e in proxy.events(session)) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_only_fills_the_cache_is_paid_for_and_leaves_no_answer(
    proxy: ProxyServer, switch: Switch, stream: bool
) -> None:
    details = {"cached_tokens": 0, "cache_write_tokens_details": {"ttl_12h_tokens": 900, "ttl_30m_tokens": 0}}
    usage = {"input_tokens": 905, "input_tokens_details": details, "output_tokens": 0}
    warmed: Json = {"status": "completed", "output": [], "usage": usage}
    text = {"type": "output_text", "text": "Warm."}
    answered = {**warmed, "output": [{"type": "message", "role": "assistant", "content": [text]}]}
    replies = [warmed, answered]

    def script(seen: ReceivedRequest) -> list[Piece]:
        reply = replies.pop(0)
        if not stream:
            return [answer(json.dumps(reply).encode())]
        ended = {"type": "response.completed", "response": reply}
        return [stream_head(), b"data: " + json.dumps(ended).encode() + b"\n\n"]

    switch.script = script
    asked: Json = {"messages": None, "input": [user(f"Warm up, {stream}.")], "stream": stream}
    options = {"mode": "implicit", "ttl": "12h", "prewarm": True}
    first = ask(proxy, path="/v1/responses", **asked, prompt_cache_options=options)
    session = first.headers["x-foveal-session"]
    paid = Used(input=5, cache_write=900, cache_write_12h=900)

    def reported() -> list[Used]:
        counts = ("input", "cache_write", "cache_write_12h")
        facts = [event.fact for event in proxy.events(session) if isinstance(event.fact, Used)]
        return [Used(**{name: getattr(fact, name) for name in counts}) for fact in facts]

    until(lambda: reported() == [paid])
    assert stored_texts(proxy, session) == []
    assert ask(proxy, path="/v1/responses", **asked).headers["x-foveal-session"] == session
    until(lambda: stored_texts(proxy, session) == ["Warm."])
    until(lambda: reported() == [paid, paid])


def test_a_stream_is_forwarded_piece_by_piece(proxy: ProxyServer, switch: Switch) -> None:
    gate = threading.Event()
    pieces = [b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n', b"data: [DONE]\n\n"]
    switch.script = lambda seen: [stream_head(), pieces[0], gate, pieces[1]]
    body = {"model": "gpt-4.1", "messages": [user("Stream.")], "stream": True}
    with (
        httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http,
        http.stream("POST", f"{proxy.openai}/chat/completions", json=body) as reply,
    ):
        came = reply.iter_raw()
        assert next(came) == pieces[0]
        gate.set()
        assert b"".join(came) == pieces[1]


def test_redirects_are_not_followed(proxy: ProxyServer, raw: RawUpstream, switch: Switch) -> None:
    switch.script = lambda seen: [answer(b"", status="307 There", more=b"location: http://127.0.0.1:1/x\r\n")]
    before = len(raw.seen)
    assert ask(proxy, messages=[user("Redirect.")]).status_code == 307
    assert len(raw.seen) == before + 1


# ── Overflows ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
def test_an_overflow_is_recovered(tmp_path: Path, dialect: str) -> None:
    """The upstream's window has 3,000 tokens, and the server believes in 128,000 or more."""
    words = [user(f"Message {n}. " + f"word{n} " * 250) for n in range(14)]
    turns = [one for word in words for one in (word, {"role": "assistant", "content": "All right."})][:-1]
    fields: Json = {"model": "gpt-4.1", "messages": turns, "max_tokens": 300}
    if dialect == "responses":
        fields = {"model": "gpt-4.1", "input": turns, "max_output_tokens": 300}
    path = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}[
        dialect
    ]
    with (
        StandIn(window=3_000, script=lambda n: Answer(text="Fine.")) as provider,
        ProxyServer(tmp_path, openai=provider.openai, anthropic=provider.anthropic) as proxy,
        httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http,
    ):
        reply = http.post(f"{proxy.url}{path}", json=fields, headers={"x-api-key": KEY})
        bodies = [json.dumps(request.body) for request in provider.requests]
        facts = [event.fact for event in proxy.events(reply.headers["x-foveal-session"])]
        ended = [one for one in proxy.service_events if type(one).__name__ == "ProxyRequestEnded"]
    assert reply.status_code == 200, reply.text
    assert provider.requests[-1].faults == []
    assert provider.requests[0].faults
    assert len(bodies) == len(set(bodies))
    assert any(isinstance(fact, Overflowed) and fact.limit == 3_000 for fact in facts)
    assert ended[-1].overflow_retries >= 1
    assert reply.headers["x-foveal-reduced"] != "none"


def test_max_tokens_is_lowered_only_if_the_upstream_requires_it(
    proxy: ProxyServer, raw: RawUpstream, switch: Switch
) -> None:
    refusal = {
        "error": {
            "message": "This model's maximum context length is 1000 tokens. However, you requested 1612 tokens "
            "(612 in the messages, 1000 in the completion). Please reduce the length of the messages.",
            "code": "context_length_exceeded",
        }
    }
    replies = [answer(json.dumps(refusal).encode(), status="400 Bad"), answer(completion("Short."))]
    switch.script = lambda seen: [replies.pop(0)]
    reply = ask(proxy, messages=[user("Long answers, please. " * 150)], max_tokens=1_000)
    assert reply.status_code == 200
    sent = [json.loads(seen.body) for seen in raw.seen[-2:]]
    assert sent[0]["max_tokens"] == 1_000
    assert 0 < sent[1]["max_tokens"] <= 388
    assert sent[0]["messages"] == sent[1]["messages"]


def test_an_unrecoverable_overflow_is_forwarded_unchanged(
    proxy: ProxyServer, raw: RawUpstream, switch: Switch
) -> None:
    body = b'{"error":{"message":"too long","code":"context_length_exceeded"}}'
    switch.script = lambda seen: [answer(body, status="400 Bad")]
    before = len(raw.seen)
    reply = ask(proxy, messages=[user("Nothing helps.")])
    assert (reply.status_code, reply.content) == (400, body)
    sent = [seen.body for seen in raw.seen[before:]]
    assert len(sent) == len(set(sent)) <= 4


@pytest.mark.parametrize(
    ("path", "event", "fields"),
    [
        ("chat/completions", {"error": {"message": "too long", "code": "context_length_exceeded"}}, {}),
        (
            "responses",
            {
                "type": "response.failed",
                "response": {"error": {"code": "context_length_exceeded", "message": "too long"}},
            },
            {"input": []},
        ),
        (
            "messages",
            {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}},
            {},
        ),
    ],
)
def test_an_overflow_in_a_stream_is_recovered(
    proxy: ProxyServer, raw: RawUpstream, switch: Switch, path: str, event: Json, fields: Json
) -> None:
    created = b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
    failed = created * (path == "responses") + f"data: {json.dumps(event)}\n\n".encode()
    fine = b'data: {"type":"message_start"}\n\n'
    replies = [[stream_head(), failed], [stream_head(), fine]]
    no_summary = [answer(completion("No."))]
    switch.script = lambda seen: replies.pop(0) if _is_streamed(seen) else no_summary
    turns = [
        one for n in range(9) for one in (user(f"{path} {n} " * 60), {"role": "assistant", "content": "So."})
    ]
    body = {"messages": turns[:-1], "max_tokens": 9} if not fields else {"input": turns[:-1]}
    before = len(raw.seen)
    with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
        reply = http.post(f"{proxy.openai}/{path}", json={"model": "gpt-4.1", "stream": True, **body})
    assert (reply.status_code, reply.content) == (200, fine)
    sent = [seen.body for seen in raw.seen[before:] if _is_streamed(seen)]
    assert len(sent) == len(set(sent)) == 2


def _is_streamed(seen: ReceivedRequest) -> bool:
    """Return whether a request is the client's; Foveal's requests for summaries are not streamed."""
    return json.loads(seen.body).get("stream") is True


def test_a_request_that_cannot_be_reduced_is_sent_as_it_is(
    tmp_path: Path, raw: RawUpstream, switch: Switch
) -> None:
    """The server believes in a window of 2,000 tokens; only the provider knows better."""
    switch.script = lambda seen: [answer(completion("It fits."))]
    with ProxyServer(tmp_path, openai=raw.openai, window=2_000) as proxy:
        long = user("word " * 4_000)
        reply = ask(proxy, messages=[long])
        assert reply.status_code == 200
        assert json.loads(raw.seen[-1].body)["messages"] == [long]
        refusal = b'{"error":{"message":"too long","code":"context_length_exceeded"}}'
        switch.script = lambda seen: [answer(refusal, status="400 Bad")]
        assert (refused := ask(proxy, messages=[user("more " * 4_000)])).status_code == 400
        assert refused.content == refusal


def test_the_reserve_is_what_the_client_asks_for(tmp_path: Path, raw: RawUpstream, switch: Switch) -> None:
    """Of a window of 90,000 tokens, a limit of 32,000 for the answer leaves room for 52,000."""
    switch.script = lambda seen: [answer(completion("Fine."))]
    with ProxyServer(tmp_path, openai=raw.openai, window=90_000, tokenizer="o200k_base") as proxy:
        turns = [
            one for n in range(40) for one in (user(f"{n} " * 650), {"role": "assistant", "content": "So."})
        ]
        for most in (32_000, 31_999, 500):
            reply = ask(proxy, messages=turns[:-1], max_tokens=most)
            assert reply.status_code == 200
            assert int(reply.headers["x-foveal-tokens"]) > 51_000
            assert reply.headers["x-foveal-reduced"] == "none"
        sessions = {json.loads(seen.body)["max_tokens"] for seen in raw.seen[-3:]}
    assert sessions == {32_000, 31_999, 500}


# ── Dead and silent upstreams ──────────────────────────────────────────────────────────────────────────


def test_a_dead_upstream_is_reported_in_the_providers_format(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    with ProxyServer(tmp_path, openai=f"{dead}/v1", anthropic=dead) as proxy:
        chat = ask(proxy)
        claude = ask(proxy, path="/v1/messages", max_tokens=5)
        ended = [one.status for one in proxy.service_events if type(one).__name__ == "ProxyRequestEnded"]
    assert chat.status_code == claude.status_code == 502
    assert ended == [502, 502]
    assert chat.json()["error"]["code"] == "upstream_unreachable"
    assert claude.json()["error"]["type"] == "api_error"
    assert KEY not in chat.text + claude.text


def test_an_upstream_that_disconnects_is_reported(proxy: ProxyServer, switch: Switch) -> None:
    switch.script = lambda seen: [b""]
    assert ask(proxy, messages=[user("Hang up.")]).status_code == 502


def test_a_silent_upstream_times_out(proxy: ProxyServer, switch: Switch) -> None:
    never = threading.Event()
    switch.script = lambda seen: [never]
    reply = ask(proxy, messages=[user("Say something.")])
    never.set()
    assert reply.status_code == 504
    assert reply.json()["error"]["code"] == "upstream_silent"


def test_a_silent_stream_ends_with_an_error_event(proxy: ProxyServer, switch: Switch) -> None:
    never = threading.Event()
    first = b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n'
    switch.script = lambda seen: [stream_head(), first, never]
    asked: Any = [user("Say more.")]
    with openai.OpenAI(base_url=proxy.openai, api_key=KEY, max_retries=0) as client:
        stream = client.chat.completions.create(model="gpt-4.1", messages=asked, stream=True)
        with pytest.raises(openai.APIError, match=r"server\.silence"):
            list(stream)
    never.set()


# ── Malformed responses ────────────────────────────────────────────────────────────────────────────────

MALFORMED_RESPONSES = {
    "garbage": (b"\x00\xff<html>", "application/json"),
    "another object": (b'{"choices": "none", "usage": -1}', "application/json"),
    "deep": (b"[" * 5_000, "application/json"),
    "nothing": (b"", "application/json"),
    "a broken stream": (b"data: {\x00\n\ndata: [DONE]\n\ndata: {}\n\n", "text/event-stream"),
    "a stream of lies": (
        b'data: {"choices":[{"delta":7,"finish_reason":[]}],"usage":"many"}\n\ndata: [DONE]\n\n',
        "text/event-stream",
    ),
    "no stream": (completion("whole"), "text/event-stream"),
    "packed": (gzip.compress(completion("packed")), "application/json"),
}


@pytest.mark.parametrize("lie", MALFORMED_RESPONSES)
def test_malformed_responses_are_forwarded(proxy: ProxyServer, switch: Switch, lie: str) -> None:
    body, kind = MALFORMED_RESPONSES[lie]
    switch.script = lambda seen: [answer(body, kind=kind)]
    reply = ask(proxy, messages=[user(f"Lie: {lie}.")], stream="stream" in kind)
    assert (reply.status_code, reply.content) == (200, body)
    session = reply.headers["x-foveal-session"]
    assert stored_texts(proxy, session) == []
    switch.script = lambda seen: [answer(completion("The truth."))]
    again = ask(
        proxy, messages=[user(f"Lie: {lie}."), {"role": "assistant", "content": "?"}, user("Really?")]
    )
    assert again.headers["x-foveal-session"] == session
    assert stored_texts(proxy, session) == ["?", "The truth."]


def test_impossible_usage_is_ignored(proxy: ProxyServer, switch: Switch) -> None:
    tokens = []
    for number, prompt in enumerate((900_000_000, -5, "many", 1e300, 9)):
        usage = {"prompt_tokens": prompt, "completion_tokens": prompt}
        switch.script = lambda seen, usage=usage: [answer(completion("So.", usage))]
        messages = [
            m for n in range(number) for m in (user(f"Count {n}."), {"role": "assistant", "content": "So."})
        ]
        reply = ask(proxy, messages=[*messages, user(f"Count {number}.")])
        tokens.append(int(reply.headers["x-foveal-tokens"]))
    events = proxy.events(reply.headers["x-foveal-session"])
    assert [event.fact.prompt for event in events if isinstance(event.fact, Used)] == [9]
    assert not any(isinstance(event.fact, Overflowed) for event in events)
    assert tokens == sorted(tokens)
    assert tokens[-1] < 100


def test_usage_that_is_not_understood_is_reported_and_breaks_nothing(
    proxy: ProxyServer, switch: Switch
) -> None:
    switch.script = lambda seen: [answer(completion("So.", {"tokens": 5}))]
    reply = ask(proxy, messages=[user("Count.")])
    session = reply.headers["x-foveal-session"]
    assert stored_texts(proxy, session) == ["So."]
    reported = [event for event in proxy.service_events if isinstance(event, UsageNotUnderstood)]
    assert [(event.dialect, event.fields) for event in reported if event.session == session] == [
        ("openai_chat", "dict with the fields stop_reason, tokens")
    ]


def test_a_truncated_response_is_a_502(proxy: ProxyServer, switch: Switch) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n"
    switch.script = lambda seen: [head + b'{"choices"']
    reply = ask(proxy, messages=[user("Short.")])
    assert reply.status_code == 502
    assert reply.json()["error"]["code"] == "broken_off"


# ── Streams that break off ─────────────────────────────────────────────────────────────────────────────

CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BREAKS: dict[str, Any] = {
    "after an event": lambda events: [stream_head(), *events, "reset"],
    "within an event": lambda events: [stream_head(), *events[:-1], events[-1] + events[-1][:-9], "reset"],
    "without a reset": lambda events: [CHUNKED, *(b"%x\r\n%b\r\n" % (len(one), one) for one in events)],
}


def events_of(*bodies: Json) -> list[bytes]:
    named = (f"event: {body['type']}\n" if "type" in body else "" for body in bodies)
    return [f"{name}data: {json.dumps(body)}\n\n".encode() for name, body in zip(named, bodies, strict=True)]


def notes_of_breaks(proxy: ProxyServer, session: str) -> list[str]:
    notes = [event.fact for event in proxy.events(session) if isinstance(event.fact, Noted)]
    return [note.text for note in notes if note.topic == "broken off"]


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_chat_stream_raises_an_api_error(proxy: ProxyServer, switch: Switch, how: str) -> None:
    bodies = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("Half ", "an ans")]
    switch.script = lambda seen: BREAKS[how](events_of(*bodies))
    session = f"chat-{how.replace(' ', '-')}"
    headers, asked, seen = {"x-foveal-session": session}, cast(Any, [user("Break off.")]), []
    with openai.OpenAI(base_url=proxy.openai, api_key=KEY, max_retries=0) as client:
        stream = client.chat.completions.create(
            model="gpt-4.1", messages=asked, stream=True, extra_headers=headers
        )
        with pytest.raises(openai.APIError, match="broke the stream off") as caught:
            seen.extend(chunk.choices[0].delta.content for chunk in stream)
        assert caught.value.code == "broken_off"
        assert "".join(seen).startswith("Half an ans")
        assert notes_of_breaks(proxy, session) == ["".join(seen)]
        assert stored_texts(proxy, session) == []
        ended = [one for one in proxy.service_events if isinstance(one, ProxyRequestEnded)]
        assert [one.status for one in ended if one.session == session] == [502]
        switch.script = lambda seen: [answer(completion("Whole."))]
        again = client.chat.completions.create(model="gpt-4.1", messages=asked, extra_headers=headers)
    assert again.choices[0].message.content == "Whole."
    until(lambda: stored_texts(proxy, session) == ["Whole."])


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_anthropic_stream_raises_an_api_error(proxy: ProxyServer, switch: Switch, how: str) -> None:
    started = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
    call = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}}
    begun = {"type": "input_json_delta", "partial_json": '{"comm'}
    bodies: list[Json] = [
        {"type": "message_start", "message": {**started, "usage": {"input_tokens": 9, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I look."}},
        {"type": "content_block_start", "index": 1, "content_block": call},
        {"type": "content_block_delta", "index": 1, "delta": begun},
        {"type": "ping"},
    ]
    switch.script = lambda seen: BREAKS[how](events_of(*bodies))
    session = f"claude-{how.replace(' ', '-')}"
    headers, asked, types = {"x-foveal-session": session}, cast(Any, [user("Break off.")]), []
    with anthropic.Anthropic(base_url=proxy.url, api_key=KEY, max_retries=0) as client:
        stream = client.messages.create(
            model="claude-sonnet-4-6", max_tokens=99, messages=asked, stream=True, extra_headers=headers
        )
        with pytest.raises(anthropic.APIStatusError, match="broke the stream off") as caught:
            types.extend(event.type for event in stream)
    assert cast(Any, caught.value.body)["error"]["type"] == "api_error"
    assert types == [body["type"] for body in bodies[:-1]]
    assert notes_of_breaks(proxy, session) == ['I look.\n{"name":"bash","arguments":"{\\"comm"}']


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_responses_stream_raises_an_api_error(proxy: ProxyServer, switch: Switch, how: str) -> None:
    delta = {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0}
    bodies: list[Json] = [
        {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1", "output": []}},
        {**delta, "sequence_number": 1, "delta": "Half "},
        {**delta, "sequence_number": 2, "delta": "an answer"},
    ]
    switch.script = lambda seen: BREAKS[how](events_of(*bodies))
    session = f"responses-{how.replace(' ', '-')}"
    headers, types = {"x-foveal-session": session}, []
    with openai.OpenAI(base_url=proxy.openai, api_key=KEY, max_retries=0) as client:
        stream = client.responses.create(
            model="gpt-4.1", input="Break off.", stream=True, extra_headers=headers
        )
        with pytest.raises(openai.APIError, match="broke the stream off") as caught:
            types.extend(event.type for event in stream)
    assert caught.value.code == "broken_off"
    assert types == [body["type"] for body in bodies]
    assert notes_of_breaks(proxy, session) == ["Half an answer"]
    with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
        sent = {"model": "gpt-4.1", "input": "Break off.", "stream": True}
        body = http.post(f"{proxy.openai}/responses", json=sent, headers={"authorization": f"Bearer {KEY}"})
    last = body.text.rstrip().rpartition("\n\n")[2]
    name, _, data = last.partition("\n")
    assert name == "event: error"
    event = json.loads(data.removeprefix("data: "))
    assert event["type"] == "error"
    assert event["sequence_number"] == 3
    assert "broke the stream off" in event["message"]


def test_a_stream_that_breaks_off_before_its_first_event_is_a_502(proxy: ProxyServer, switch: Switch) -> None:
    switch.script = lambda seen: [CHUNKED + b"5\r\ndata:\r\n"]
    assert ask(proxy, messages=[user("Break off at once.")], stream=True).status_code == 502


def test_events_arrive_whole_however_they_are_cut(proxy: ProxyServer, switch: Switch) -> None:
    for end in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        whole = b"".join(b'data: {"choices":[],"n":%d}%b' % (n, end) for n in range(5)) + b": rest"
        pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
        switch.script = lambda seen, pieces=pieces: [stream_head(), *pieces]
        assert ask(proxy, messages=[user(f"Cut {end!r}.")], stream=True).content == whole


def test_a_response_too_large_to_record_is_forwarded(
    proxy: ProxyServer, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.transport.upstream_reply.MAX_RECORDED_REPLY_BYTES", 100_000)
    huge = completion("large " * 50_000)
    switch.script = lambda seen: [answer(huge)]
    reply = ask(proxy, messages=[user("Huge.")])
    assert reply.content == huge
    events = b"".join(
        b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % n for n in range(5_000)
    )
    switch.script = lambda seen: [stream_head(), events]
    assert ask(proxy, messages=[user("Huge stream.")], stream=True).content == events
    assert stored_texts(proxy, reply.headers["x-foveal-session"]) == []


# ── Clients that disconnect ────────────────────────────────────────────────────────────────────────────


def test_the_answer_is_recorded_after_a_disconnect(proxy: ProxyServer, switch: Switch) -> None:
    gate = threading.Event()
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": stop}]}
        for word, stop in (("one ", None), ("two ", None), ("three", "stop"))
    ]
    events = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
    switch.script = lambda seen: [stream_head(), events[0], gate, *events[1:], b"data: [DONE]\n\n"]
    body = {"model": "gpt-4.1", "messages": [user("I will not wait.")], "stream": True}
    with (
        httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http,
        http.stream("POST", f"{proxy.openai}/chat/completions", json=body) as reply,
    ):
        session = reply.headers["x-foveal-session"]
        next(reply.iter_raw())
    gate.set()  # the client is gone
    until(lambda: stored_texts(proxy, session) == ["one two three"])


def test_the_answer_is_recorded_after_an_early_disconnect(proxy: ProxyServer, switch: Switch) -> None:
    gate, asked = threading.Event(), threading.Event()

    def script(seen: ReceivedRequest) -> Iterator[Piece]:
        asked.set()
        yield gate
        yield answer(completion("Too late for you."))

    switch.script = script
    body = json.dumps({"model": "gpt-4.1", "messages": [user("Bye.")]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
    head += "x-foveal-session: hung-up\r\n\r\n"
    with socket.create_connection(("127.0.0.1", proxy.port)) as line:
        line.sendall(head.encode() + body)
        assert asked.wait(DEADLINE)
    gate.set()
    until(lambda: stored_texts(proxy, "hung-up") == ["Too late for you."])
