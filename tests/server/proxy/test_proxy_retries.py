"""Retries that join a request in flight, and replies with several choices."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from foveal.core.log import ModelSaid, Noted, text_of
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
CHUNKS = [
    b'data: {"choices": [{"index": 0, "delta": {"content": "one "}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"content": "two"}, "finish_reason": "stop"}]}\n\n',
    b"data: [DONE]\n\n",
]


class Held:
    """An upstream script that sends the first piece of its response and waits until it is let go."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.gate = threading.Event()

    def __call__(self, seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        yield self.pieces[0]
        yield self.gate
        yield from self.pieces[1:]


def completion(*texts: str) -> bytes:
    choices = [
        {"index": at, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for at, text in enumerate(texts)
    ]
    return json.dumps({"choices": choices}).encode()


def post(proxy: ProxyServer, *, stream: bool = False, said: str = "Hello", **headers: str) -> httpx.Response:
    body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": said}], "stream": stream}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
        return http.post(
            f"{proxy.openai}/chat/completions",
            json=body,
            headers={"authorization": f"Bearer {KEY}", **named},
        )


def stored_texts(proxy: ProxyServer) -> list[list[str]]:
    return [
        [text_of(event.fact.content) for event in proxy.events(session) if isinstance(event.fact, ModelSaid)]
        for session in proxy.sessions()
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "sign", [{"x_stainless_retry_count": "1"}, {"idempotency_key": "request-1"}], ids=["count", "key"]
)
def test_a_retry_of_a_request_in_flight_joins_it(
    tmp_path: Path, *, stream: bool, sign: dict[str, str]
) -> None:
    pieces = [stream_head() + CHUNKS[0], *CHUNKS[1:]] if stream else [b"", answer(completion("one two"))]
    script = Held(pieces)
    first_sign = sign if "idempotency_key" in sign else {}
    with (
        RawUpstream(script) as upstream,
        ProxyServer(tmp_path, openai=upstream.openai) as proxy,
        ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(post, proxy, stream=stream, **first_sign)
        until(lambda: upstream.seen)
        retry = pool.submit(post, proxy, stream=stream, **sign)
        until(lambda: proxy.do(_connections(proxy)) == 2)
        script.gate.set()
        replies = [first.result(), retry.result()]
        assert len(upstream.seen) == 1
        assert [reply.status_code for reply in replies] == [200, 200]
        assert (
            replies[0].content
            == replies[1].content
            == (b"".join(CHUNKS) if stream else completion("one two"))
        )
        until(lambda: stored_texts(proxy) == [["one two"]])


async def _connections(proxy: ProxyServer) -> int:
    """Return how many requests have reached the endpoint: the first, and those that wait for its response."""
    return sum(1 + shared.followers for shared in proxy.upstreams.in_flight.responses)


def test_a_retry_after_a_time_out_of_the_client_joins_the_request(tmp_path: Path) -> None:
    script = Held([b"", answer(completion("late"))])
    with RawUpstream(script) as upstream, ProxyServer(tmp_path, openai=upstream.openai) as proxy:
        with (
            openai.OpenAI(base_url=proxy.openai, api_key=KEY, timeout=0.8, max_retries=3) as client,
            ThreadPoolExecutor() as pool,
        ):
            said: Any = [{"role": "user", "content": "Hello"}]
            asked = pool.submit(client.chat.completions.create, model="gpt-4.1", messages=said)
            until(lambda: proxy.do(_connections(proxy)) == 2)
            script.gate.set()
            reply = asked.result()
        assert reply.choices[0].message.content == "late"
        assert len(upstream.seen) == 1
        until(lambda: stored_texts(proxy) == [["late"]])


def test_equal_requests_that_are_no_retries_are_separate(tmp_path: Path) -> None:
    script = Held([b"", answer(completion("one"))])
    with (
        RawUpstream(script) as upstream,
        ProxyServer(tmp_path, openai=upstream.openai) as proxy,
        ThreadPoolExecutor() as pool,
    ):
        sent = [pool.submit(post, proxy) for _ in range(2)]
        until(lambda: len(upstream.seen) == 2)
        script.gate.set()
        assert [one.result().status_code for one in sent] == [200, 200]


def test_a_retry_gets_the_error_of_the_request_that_it_joins(tmp_path: Path) -> None:
    script = Held([b"", answer(b'{"error": {"message": "busy"}}', status="529 Overloaded")])
    with (
        RawUpstream(script) as upstream,
        ProxyServer(tmp_path, openai=upstream.openai) as proxy,
        ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(post, proxy)
        until(lambda: upstream.seen)
        retry = pool.submit(post, proxy, x_stainless_retry_count="1")
        until(lambda: proxy.do(_connections(proxy)) == 2)
        script.gate.set()
        assert [first.result().status_code, retry.result().status_code] == [529, 529]
        assert len(upstream.seen) == 1


# ── Several choices ──────────────────────────────────────────────────────────────────────────────────────


def choice_chunk(index: int, text: str, reason: str | None = None) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


@pytest.mark.parametrize("stream", [False, True])
def test_all_choices_are_stored_and_the_continued_one_is_shown(tmp_path: Path, *, stream: bool) -> None:
    def script(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        if not stream or number > 1:
            yield answer(completion("red apple", "green pear") if number == 1 else completion("Yes."))
            return
        yield stream_head()
        yield from (choice_chunk(0, "red "), choice_chunk(1, "green "), choice_chunk(1, "pear", "stop"))
        yield from (choice_chunk(0, "apple", "stop"), b"data: [DONE]\n\n")

    with RawUpstream(script) as upstream, ProxyServer(tmp_path, openai=upstream.openai) as proxy:
        question = {"role": "user", "content": "Name a fruit."}
        history = [
            question,
            {"role": "assistant", "content": "green pear"},
            {"role": "user", "content": "Is it sweet?"},
        ]
        with httpx.Client(
            trust_env=False, timeout=DEADLINE, headers={"authorization": f"Bearer {KEY}"}
        ) as http:
            url, body = f"{proxy.openai}/chat/completions", {"model": "gpt-4.1", "n": 2, "stream": stream}
            assert http.post(url, json={**body, "messages": [question]}).status_code == 200
            until(lambda: stored_texts(proxy) == [["red apple"]])
            (session,) = proxy.sessions()
            notes = [event.fact for event in proxy.events(session) if isinstance(event.fact, Noted)]
            assert notes == [Noted(topic="choice 2", text='{"role":"assistant","content":"green pear"}')]
            assert http.post(url, json={**body, "stream": False, "messages": history}).status_code == 200
        until(lambda: stored_texts(proxy) == [["red apple", "green pear", "Yes."]])
        assert shown_texts(proxy, session) == ["green pear", "Yes."]


def shown_texts(proxy: ProxyServer, session: str) -> list[str]:
    """Return the texts of the model that the view of a session shows."""
    live = proxy.do(proxy.service.tenant("default").session(session))
    messages = proxy.do(live.session.fit()).to_openai()
    return [message["content"] for message in messages if message["role"] == "assistant"]
