"""What a transport does to single requests and responses, with both libraries."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import httpx2
import openai
import pytest

import foveal.transport
from foveal import Context
from foveal.core.log import Used
from foveal.transport import ConversationPool
from support.provider_stand_in import StandIn, Trouble
from support.waiting import DEADLINE_S, until

LIBRARIES: list[Any] = [httpx, httpx2]
URL = "https://provider.test/v1/chat/completions"
USAGE = {"prompt_tokens": 30, "completion_tokens": 2, "total_tokens": 32}
REPLY = {
    "id": "1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
    "usage": USAGE,
}


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.__name__)
def library(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with StandIn(window=6_000) as standin:
        yield standin


def history(turns: int, *, words: int = 200) -> list[dict[str, Any]]:
    """Return the messages of some finished turns, and a question."""
    said: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(turns):
        said.append({"role": "user", "content": f"Question {turn}: " + "what is it? " * words})
        said.append({"role": "assistant", "content": f"Answer {turn}."})
    return [*said, {"role": "user", "content": "And now?"}]


def body(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"model": "gpt-4.1", "messages": messages, "max_tokens": 100, **fields}


class Upstream:
    """A mock transport that keeps the requests and answers with a function, or with `REPLY`."""

    def __init__(self, library: Any, answer: Callable[[Any], Any] | None = None) -> None:
        self.requests: list[Any] = []
        self._library, self._answer = library, answer
        self.transport = library.MockTransport(self._handle)

    def _handle(self, request: Any) -> Any:
        self.requests.append(request)
        return self._answer(request) if self._answer else self._library.Response(200, json=REPLY)

    def sent(self, at: int = -1) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.requests[at].content)
        return found


def client(library: Any, upstream: Upstream, conversations: ConversationPool | None = None) -> Any:
    fitted = conversations if conversations is not None else ConversationPool(window=6_000)
    return library.Client(transport=foveal.transport.wrap(upstream.transport, fitted))


def usage_of(context: Context) -> list[int]:
    return [event.fact.prompt for event in context.log if isinstance(event.fact, Used)]


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_that_fits_keeps_its_bytes(library: Any) -> None:
    upstream = Upstream(library)
    content = b'{ "model":"gpt-4.1",\n"messages" : [{"role":"user","content":"Hi \\u00e4"}], "x": 1.50 }'
    headers = {"content-type": "application/json", "authorization": "Bearer k", "x-mine": "1"}
    with client(library, upstream) as http:
        reply = http.post(URL, content=content, headers=headers)
    [request] = upstream.requests
    assert request.content == content
    assert request.headers["content-length"] == str(len(content))
    assert (request.headers["authorization"], request.headers["x-mine"]) == ("Bearer k", "1")
    assert reply.json() == REPLY


def test_a_request_that_is_too_long_is_reduced(library: Any) -> None:
    upstream, conversations = Upstream(library), ConversationPool(window=6_000)
    given = history(30)
    with client(library, upstream, conversations) as http:
        http.post(URL, json=body(given, temperature=0.5))
    sent = upstream.sent()
    assert len(upstream.requests[0].content) < len(json.dumps(given)) / 2
    assert upstream.requests[0].headers["content-length"] == str(len(upstream.requests[0].content))
    assert (sent["messages"][0], sent["messages"][-1]) == (given[0], given[-1])
    assert {name: sent[name] for name in sent if name != "messages"} == {
        "model": "gpt-4.1",
        "max_tokens": 100,
        "temperature": 0.5,
    }
    assert usage_of(conversations.contexts[0]) == [30]


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("GET", "/v1/models", b""),
        ("POST", "/v1/messages/count_tokens", b'{"model": "m", "messages": [{"role": "user"}]}'),
        ("POST", "/v1/embeddings", b'{"model": "m", "input": "text"}'),
        ("POST", "/v1/chat/completions", b"{no json"),
        ("POST", "/v1/chat/completions", b'{"messages": [{"role": "user", "content": "Hi"}]}'),
        ("POST", "/v1/chat/completions", b'{"model": "m", "messages": [{"role": "nobody"}]}'),
        ("POST", "/v1/responses", b'{"model": "m", "input": "Hi", "previous_response_id": "r"}'),
    ],
)
def test_every_other_request_passes_untouched(library: Any, method: str, path: str, content: bytes) -> None:
    upstream = Upstream(library)
    headers = {"content-type": "application/json", "accept-encoding": "gzip", "x-foveal-session": "a"}
    with client(library, upstream) as http:
        http.request(method, f"https://provider.test{path}", content=content, headers=headers)
    [request] = upstream.requests
    assert "x-foveal-session" not in request.headers
    assert (request.method, request.url.path, request.content) == (method, path, content)
    assert request.headers["accept-encoding"] == "gzip"


def test_a_conversation_that_cannot_be_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    upstream = Upstream(httpx2)
    with client(httpx2, upstream) as http, caplog.at_level(logging.WARNING, "foveal.transport"):
        http.post(URL, content=b"{", headers={"content-type": "application/json"})
    assert caplog.messages == ["a request is sent as it is: the body is not a JSON object"]


def test_a_compressed_request_is_reduced_and_sent_uncompressed(library: Any) -> None:
    upstream, given = Upstream(library), history(30)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    with client(library, upstream) as http:
        http.post(URL, content=gzip.compress(json.dumps(body(given)).encode()), headers=headers)
    assert "content-encoding" not in upstream.requests[0].headers
    assert upstream.sent()["messages"][-1] == given[-1]
    assert len(upstream.requests[0].content) < len(json.dumps(given)) / 2


def test_a_compressed_request_of_another_kind_passes_untouched(library: Any) -> None:
    upstream = Upstream(library)
    headers = {"content-type": "application/json", "content-encoding": "br"}
    with client(library, upstream) as http:
        http.post(URL, content=b"\x01\x02", headers=headers)
    assert (upstream.requests[0].content, upstream.requests[0].headers["content-encoding"]) == (
        b"\x01\x02",
        "br",
    )


def test_a_streamed_request_body_is_read(library: Any) -> None:
    upstream, given = Upstream(library), history(30)
    data = json.dumps(body(given)).encode()
    with client(library, upstream) as http:
        http.post(URL, content=iter([data[:50], data[50:]]), headers={"content-type": "application/json"})
    assert "transfer-encoding" not in upstream.requests[0].headers
    assert upstream.sent()["messages"][-1] == given[-1]


# ── Responses ────────────────────────────────────────────────────────────────────────────────────────────

STREAM = [
    b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Ye"}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"content": "s."}, "finish_reason": "stop"}]}\n\ndata: {"cho',
    b'ices": [], "usage": %b}\n\ndata: [DO' % json.dumps(USAGE).encode(),
    b"NE]\n\n",
]


def streaming(library: Any, chunks: list[bytes] = STREAM) -> Callable[[Any], Any]:
    kind = {"content-type": "text/event-stream"}
    return lambda request: library.Response(200, headers=kind, content=iter(chunks))


def test_a_stream_passes_chunk_by_chunk_and_its_usage_is_read(library: Any) -> None:
    upstream, conversations = Upstream(library, streaming(library)), ConversationPool()
    with (
        client(library, upstream, conversations) as http,
        http.stream("POST", URL, json=body(history(1), stream=True)) as reply,
    ):
        assert list(reply.iter_raw()) == STREAM
    assert usage_of(conversations.contexts[0]) == [30]


def test_the_usage_is_read_before_the_client_gets_the_last_chunk(library: Any) -> None:
    upstream, conversations = Upstream(library, streaming(library)), ConversationPool()
    with (
        client(library, upstream, conversations) as http,
        http.stream("POST", URL, json=body(history(1), stream=True)) as reply,
    ):
        for chunk in reply.iter_raw():
            if chunk == STREAM[-1]:
                assert usage_of(conversations.contexts[0]) == [30]


def test_a_stream_that_is_closed_early_ends_the_exchange(library: Any) -> None:
    upstream, conversations = Upstream(library, streaming(library)), ConversationPool()
    with client(library, upstream, conversations) as http:
        for _ in range(3):
            with http.stream("POST", URL, json=body(history(1), stream=True)) as reply:
                assert next(reply.iter_raw()) == STREAM[0]
    [context] = conversations.contexts
    assert usage_of(context) == []
    assert context.report().fitted == 1


def test_an_overflow_is_answered_with_a_smaller_request(library: Any) -> None:
    message = (
        "This model's maximum context length is 3000 tokens. However, your messages resulted in 5000 tokens."
    )
    refusal = {"error": {"message": message, "code": "context_length_exceeded"}}

    def answer(request: Any) -> Any:
        is_first = len(upstream.requests) == 1
        return library.Response(400, json=refusal) if is_first else library.Response(200, json=REPLY)

    upstream, conversations = Upstream(library, answer), ConversationPool(window=100_000)
    with client(library, upstream, conversations) as http:
        reply = http.post(URL, json=body(history(10)))
    assert reply.json() == REPLY
    first, second = (len(request.content) for request in upstream.requests)
    assert second < first * 0.8
    assert usage_of(conversations.contexts[0]) == [30]


def test_an_overflow_in_the_first_event_of_a_stream_is_answered_with_a_smaller_request(library: Any) -> None:
    message = "This model's maximum context length is 3000 tokens. However, you requested 5000 tokens"
    error = {"error": {"message": message, "code": 400}}
    refused = [b"data: %b\n\n" % json.dumps(error).encode()]

    def answer(request: Any) -> Any:
        return streaming(library, refused if len(upstream.requests) == 1 else STREAM)(request)

    upstream = Upstream(library, answer)
    with client(library, upstream, ConversationPool(window=100_000)) as http:
        reply = http.post(URL, json=body(history(10), stream=True))
    assert reply.content == b"".join(STREAM)
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_every_other_error_passes_unchanged(library: Any, status: int) -> None:
    content = b'{"error": {"message": "no such tool"}}'
    upstream = Upstream(library, lambda request: library.Response(status, content=content))
    with client(library, upstream) as http:
        reply = http.post(URL, json=body(history(1)))
    assert (reply.status_code, reply.content, len(upstream.requests)) == (status, content, 1)


def test_a_response_that_is_compressed_all_the_same_passes_unchanged(library: Any) -> None:
    packed = gzip.compress(json.dumps(REPLY).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    upstream = Upstream(
        library, lambda request: library.Response(200, headers=headers, content=iter([packed]))
    )
    with client(library, upstream) as http:
        assert http.post(URL, json=body(history(1))).json() == REPLY


def test_a_network_error_frees_the_conversation(library: Any) -> None:
    def fail(request: Any) -> Any:
        raise library.ConnectError("refused")

    upstream, conversations = Upstream(library, fail), ConversationPool()
    with client(library, upstream, conversations) as http:
        for _ in range(3):
            with pytest.raises(library.ConnectError):
                http.post(URL, json=body(history(1)))
    assert len(conversations.contexts) == 1


def test_closing_the_client_closes_the_inner_transport(library: Any) -> None:
    closed = []

    class Inner(library.MockTransport):  # type: ignore[misc]
        def close(self) -> None:
            closed.append("sync")

        async def aclose(self) -> None:
            closed.append("async")

    async def main() -> None:
        inner = Inner(lambda request: library.Response(200, json=REPLY))
        async with library.AsyncClient(transport=foveal.transport.wrap(inner)) as http:
            assert (await http.post(URL, json=body(history(1)))).json() == REPLY

    library.Client(transport=foveal.transport.wrap(Inner(lambda request: None))).close()
    asyncio.run(main())
    assert closed == ["sync", "async"]


# ── ConversationPool ────────────────────────────────────────────────────────────────────────────────────────


def test_the_next_request_continues_the_conversation(library: Any) -> None:
    upstream, conversations = Upstream(library), ConversationPool()
    with client(library, upstream, conversations) as http:
        said = history(1)
        for turn in range(5):
            http.post(URL, json=body(said))
            said += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"Turn {turn}"}]
    [context] = conversations.contexts
    assert context.report().fitted == 5
    assert usage_of(context) == [30] * 5


def test_the_same_request_again_is_the_same_call(library: Any) -> None:
    upstream, conversations = Upstream(library), ConversationPool()
    with client(library, upstream, conversations) as http:
        for retry in range(3):
            http.post(URL, json=body(history(2)), headers={"x-stainless-retry-count": str(retry)})
    [context] = conversations.contexts
    assert context.report().fitted == 1
    assert upstream.requests[0].content == upstream.requests[2].content


def test_an_edited_last_message_begins_another_conversation(library: Any) -> None:
    upstream, conversations = Upstream(library), ConversationPool()
    with client(library, upstream, conversations) as http:
        http.post(URL, json=body(history(2)))
        edited = [*history(2)[:-1], {"role": "user", "content": "And then?"}]
        http.post(URL, json=body(edited))
    assert upstream.sent()["messages"] == edited
    first, second = (context.save() for context in conversations.contexts)
    assert (b"And now?" in first, b"And now?" in second) == (True, False)


def test_an_edited_last_message_rewinds_a_conversation_that_has_a_name(library: Any) -> None:
    upstream, conversations = Upstream(library), ConversationPool()
    with client(library, upstream, conversations) as http:
        edited = [*history(2)[:-1], {"role": "user", "content": "And then?"}]
        for messages in (history(2), edited):
            http.post(URL, json=body(messages), headers={"x-foveal-session": "a"})
    assert len(conversations.contexts) == 1
    assert upstream.sent()["messages"] == edited


def test_a_history_that_differs_early_is_another_conversation(library: Any) -> None:
    upstream, conversations = Upstream(library), ConversationPool()
    with client(library, upstream, conversations) as http:
        http.post(URL, json=body(history(3)))
        http.post(URL, json=body([history(3)[0], {"role": "user", "content": "Another subject."}]))
        http.post(URL, json=body([*history(3), *REPLY_AND_QUESTION]))
    assert [context.report().fitted for context in conversations.contexts] == [1, 2]


REPLY_AND_QUESTION: list[dict[str, Any]] = [
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Why?"},
]


def test_changed_instructions_continue_the_conversation(library: Any) -> None:
    upstream, conversations = Upstream(library), ConversationPool()
    with client(library, upstream, conversations) as http:
        said = history(2)
        http.post(URL, json=body(said))
        said = [{"role": "system", "content": "It is noon."}, *said[1:], *REPLY_AND_QUESTION]
        http.post(URL, json=body(said))
    assert len(conversations.contexts) == 1
    assert upstream.sent()["messages"] == said


def test_a_named_conversation_is_found_by_its_name(library: Any) -> None:
    upstream, conversations = Upstream(library), ConversationPool()
    with client(library, upstream, conversations) as http:
        for name in ("a", "b", "a"):
            http.post(URL, json=body(history(1)), headers={"x-foveal-session": name})
    assert conversations.context("a") is not None
    assert conversations.context("c") is None
    assert len(conversations.contexts) == 2
    assert "x-foveal-session" not in upstream.requests[0].headers


def test_a_loaded_context_continues_under_its_name(library: Any) -> None:
    upstream, before = Upstream(library), ConversationPool(window=6_000)
    with client(library, upstream, before) as http:
        http.post(URL, json=body(history(30)), headers={"x-foveal-session": "a"})
    context = before.context("a")
    assert context is not None
    after = ConversationPool(window=6_000)
    after.add("a", Context.load(context.save(), window=6_000))
    with client(library, upstream, after) as http:
        longer = [*history(30), *REPLY_AND_QUESTION]
        http.post(URL, json=body(longer), headers={"x-foveal-session": "a"})
    first, second = upstream.sent(0)["messages"], upstream.sent(1)["messages"]
    assert second == [*first, *REPLY_AND_QUESTION]


def test_the_least_recently_used_conversations_are_forgotten(library: Any) -> None:
    upstream, conversations = Upstream(library), ConversationPool(max_conversations=3)
    with client(library, upstream, conversations) as http:
        for number in range(6):
            http.post(URL, json=body([{"role": "user", "content": f"Subject {number}"}]))
    assert len(conversations.contexts) == 3
    assert len(conversations._owners) == 3


def test_conversations_whose_responses_are_never_closed_are_forgotten_too(library: Any) -> None:
    class Endless(library.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            while True:
                yield b'data: {"choices": []}\n\n'

    def answer(request: Any) -> Any:
        return library.Response(200, headers={"content-type": "text/event-stream"}, stream=Endless())

    conversations = ConversationPool(window=6_000, max_conversations=3)
    http = client(library, Upstream(library, answer), conversations)
    for number in range(20):
        question = [{"role": "user", "content": f"Question {number}"}]
        http.send(http.build_request("POST", URL, json=body(question, stream=True)), stream=True)
    assert len(conversations.contexts) == 6


def test_a_client_that_leaves_reasoning_out_later_gets_its_own_items(library: Any) -> None:
    upstream, url = Upstream(library), "https://provider.test/v1/responses"
    items: list[dict[str, Any]] = []
    with client(library, upstream) as http:
        for turn in range(4):
            items.append({"role": "user", "content": f"Question {turn}"})
            http.post(url, json={"model": "gpt-5", "input": items})
            assert upstream.sent()["input"] == items
            items.append({"type": "reasoning", "id": f"rs_{turn}", "summary": [], "encrypted_content": "x"})
            text = {"type": "output_text", "text": f"Answer {turn}", "annotations": []}
            items.append({"type": "message", "id": f"m{turn}", "role": "assistant", "content": [text]})
        items = [item for item in items if item.get("type") != "reasoning"]
        items.append({"role": "user", "content": "And now?"})
        http.post(url, json={"model": "gpt-5", "input": items})
    assert upstream.sent()["input"] == items


def test_the_same_question_at_the_same_time_is_asked_in_forks(provider: StandIn) -> None:
    provider.trouble = lambda number: Trouble(delay=0.05)
    conversations = ConversationPool(window=6_000)
    http = foveal.transport.httpx2(conversations)

    def ask(number: int) -> None:
        said: list[Any] = [{"role": "user", "content": "Begin."}]
        for _ in range(3):
            stream = client.chat.completions.create(
                model="gpt-4.1", messages=said, stream=True, max_tokens=100
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            said.extend(
                [{"role": "assistant", "content": f"{number} {text}"}, {"role": "user", "content": "On."}]
            )

    client = openai.OpenAI(base_url=provider.openai, api_key="none", http_client=http)
    with client, ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert provider.faults == []
    sent = [json.dumps(request.body["messages"]) for request in provider.requests]
    assert all(len({number for number in range(8) if f'"{number} ' in text}) <= 1 for text in sent)


def test_a_retry_of_the_client_library_is_not_another_request(provider: StandIn) -> None:
    soon = (("Retry-After-Ms", "1"),)  # the client would wait half a second and more
    provider.trouble = lambda number: Trouble(status=500, body="{}", headers=soon) if number < 3 else None
    conversations = ConversationPool()
    http = foveal.transport.httpx2(conversations)
    with openai.OpenAI(base_url=provider.openai, api_key="none", max_retries=3, http_client=http) as client:
        fast = client.with_options(timeout=60.0)
        fast.chat.completions.create(model="gpt-4.1", messages=[{"role": "user", "content": "Begin."}])
    [context] = conversations.contexts
    assert (provider.attempts, context.report().fitted) == (3, 1)


def test_a_cancelled_task_frees_the_conversation(provider: StandIn) -> None:
    provider.trouble = lambda number: Trouble(delay=1.0)
    conversations = ConversationPool()

    async def read(client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model="gpt-4.1", messages=[{"role": "user", "content": "Begin."}], stream=True
        )
        async for _ in stream:
            pass

    async def main() -> None:
        http = foveal.transport.httpx2_async(conversations)
        async with openai.AsyncOpenAI(base_url=provider.openai, api_key="none", http_client=http) as client:
            for number in (1, 2):
                reading = asyncio.create_task(read(client))
                await until(lambda number=number: provider.attempts == number)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading

    asyncio.run(main())
    assert len(conversations.contexts) == 1


def test_a_task_that_is_cancelled_while_it_is_fitted_frees_the_conversation(library: Any) -> None:
    started, release = threading.Event(), threading.Event()

    def clock() -> float:
        started.set()
        release.wait(30)
        return 0.0

    async def check() -> None:
        conversations = ConversationPool(window=6_000, summarise=lambda request: "no", clock=clock)
        transport = foveal.transport.wrap(Upstream(library).transport, conversations)
        async with library.AsyncClient(transport=transport) as http:
            sending = asyncio.create_task(http.post(URL, json=body(history(1))))
            await asyncio.to_thread(started.wait, 30)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            release.set()
            await http.post(URL, json=body(history(2)))
        while any(one.exchange for one in conversations._open.values()):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(check(), DEADLINE_S))


def test_what_cannot_fit_is_sent_as_it_is(library: Any, caplog: pytest.LogCaptureFixture) -> None:
    upstream = Upstream(library)
    given = [{"role": "user", "content": "word " * 20_000}]
    with client(library, upstream) as http:
        http.post(URL, json=body(given))
    assert upstream.sent()["messages"] == given
    assert "cannot be made to fit" in caplog.text


@pytest.mark.filterwarnings("ignore::foveal.errors.HistoryDiverged")
def test_requests_of_one_name_at_the_same_time_get_their_own_histories(library: Any) -> None:
    upstream = Upstream(library)
    said = history(10, words=100)

    def ask(number: int) -> None:
        longer = [*said[: 3 + 2 * (number % 9)], {"role": "user", "content": f"Question of {number}"}]
        http.post(URL, json=body(longer), headers={"x-foveal-session": "a"})

    with client(library, upstream) as http, ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(40)))
    last = [upstream.sent(at)["messages"][-1]["content"] for at in range(40)]
    assert sorted(last) == sorted(f"Question of {number}" for number in range(40))
    for at in range(40):
        sent = upstream.sent(at)["messages"]
        turns = 1 + int(sent[-1]["content"].rpartition(" ")[2]) % 9
        assert f"Question {turns}:" not in json.dumps(sent)


def test_with_strict_ids_a_request_without_a_name_is_refused_and_not_sent(library: Any) -> None:
    upstream, conversations = Upstream(library), ConversationPool(strict_ids=True)
    with client(library, upstream, conversations) as http:
        refused = http.post(URL, json=body(history(1)))
        assert (refused.status_code, upstream.requests) == (400, [])
        assert "X-Foveal-Session" in refused.json()["error"]["message"]
        http.post(URL, json=body(history(1)), headers={"x-foveal-session": "a"})
    assert conversations.context("a") is not None
    assert upstream.sent()["messages"] == history(1)


def test_the_library_of_openai_says_what_strict_ids_needs(provider: StandIn) -> None:
    http = foveal.transport.httpx2(ConversationPool(strict_ids=True))
    with openai.OpenAI(base_url=provider.openai, api_key="none", http_client=http) as client:
        said: list[Any] = [{"role": "user", "content": "Hi"}]
        with pytest.raises(openai.BadRequestError, match="X-Foveal-Session"):
            client.chat.completions.create(model="gpt-4.1", messages=said)
        named = {"X-Foveal-Session": "a"}
        client.chat.completions.create(model="gpt-4.1", messages=said, extra_headers=named)
    assert len(provider.requests) == 1
