"""A Gemini client's requests through a transport, sync and async, streamed and not."""

from __future__ import annotations

import asyncio
import json
import os
from itertools import pairwise
from typing import Any

import httpx2
import pytest

import foveal.transport
from foveal.core.log import Used
from foveal.core.tokens.counter import counter
from foveal.core.wire.legality import request_faults
from foveal.transport import ConversationPool

Json = dict[str, Any]
SOAK = bool(os.environ.get("FOVEAL_SOAK"))
WINDOW = 16_000 if SOAK else 9_000
ANSWER = 1_000
TURNS = 8 if SOAK else 4
BASE = "https://generativelanguage.test/v1beta/models/gemini-2.5-pro"


class Gemini:
    """Answers as the Gemini API does: refuses illegal contents and those above the window."""

    def __init__(self) -> None:
        self.bodies: list[Json] = []
        self.prompts: list[int] = []
        self.faults: list[str] = []
        self.transport = httpx2.MockTransport(self._handle)

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        prompt = 50 + round(1.1 * counter().count(json.dumps([body["contents"], body.get("tools")])))
        self.faults += request_faults("gemini", body["contents"])
        if prompt > WINDOW:
            message = (
                f"The input token count ({prompt}) exceeds the maximum number of tokens allowed ({WINDOW})."
            )
            self.faults.append(message)
            error = {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}
            return httpx2.Response(400, json=error)
        self.bodies.append(body)
        self.prompts.append(prompt)
        number = len(self.bodies)
        call = {"functionCall": {"name": "search", "args": {"query": f"part {number}"}}}
        part = (
            {"text": f"Turn {number} is done."} if number % 5 == 0 else {**call, "thoughtSignature": "c2ln"}
        )
        usage = {"promptTokenCount": prompt, "candidatesTokenCount": 9, "totalTokenCount": prompt + 9}
        content = {"role": "model", "parts": [part]}
        last = {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}
        if request.url.path.endswith(":generateContent"):
            return httpx2.Response(200, json=last)
        first = {"candidates": [{"content": {"role": "model", "parts": []}}]}
        events = [b"data: %b\r\n\r\n" % json.dumps(event).encode() for event in (first, last)]
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=_Chunks(events))


class _Chunks(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Any:
        return iter(self._chunks)

    async def __aiter__(self) -> Any:
        for chunk in self._chunks:
            yield chunk


def loop() -> Any:
    """Yield the requests of an agent, and receive the content of each reply."""
    tools = [{"functionDeclarations": [{"name": "search", "parameters": {"type": "object"}}]}]
    contents: list[Json] = []
    for turn in range(TURNS):
        contents.append({"role": "user", "parts": [{"text": f"Task {turn}: find the number {turn}."}]})
        calls: Any = True
        while calls:
            content = yield {
                "contents": contents,
                "systemInstruction": {"parts": [{"text": "Never delete anything."}]},
                "tools": tools,
                "generationConfig": {"maxOutputTokens": ANSWER},
            }
            contents.append(content)
            calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
            if calls:
                contents.append({"role": "user", "parts": [_result(call) for call in calls]})


def _result(call: Json) -> Json:
    number = sum(map(ord, call["args"]["query"]))
    lines = 3_000 if number % 17 == 0 else 12 + number % 13
    found = "\n".join(f"src/module_{number}_{at}.py:{at}: value = {number * at}" for at in range(lines))
    return {"functionResponse": {"name": call["name"], "response": {"result": found}}}


def content_of(data: bytes, *, stream: bool) -> Json:
    events = [line[6:] for line in data.decode().split("\r\n") if line] if stream else [data.decode()]
    found: Json = json.loads(events[-1])["candidates"][0]["content"]
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("is_async", "stream"),
    [
        pytest.param(False, False, id="sync-whole"),
        pytest.param(False, True, marks=pytest.mark.soak, id="sync-streamed"),
        pytest.param(True, False, marks=pytest.mark.soak, id="async-whole"),
        pytest.param(True, True, id="async-streamed"),
    ],
)
def test_a_long_loop_stays_inside_the_window(stream: bool, is_async: bool) -> None:
    gemini, conversations = Gemini(), ConversationPool(window=WINDOW)
    transport = foveal.transport.wrap(gemini.transport, conversations)
    url = f"{BASE}:streamGenerateContent?alt=sse" if stream else f"{BASE}:generateContent"

    async def main() -> None:
        requests, content = loop(), None
        async with httpx2.AsyncClient(transport=transport) as client:
            while (body := _send(requests, content)) is not None:
                content = content_of((await client.post(url, json=body)).content, stream=stream)

    if is_async:
        asyncio.run(main())
    else:
        requests, content = loop(), None
        with httpx2.Client(transport=transport) as client:
            while (body := _send(requests, content)) is not None:
                content = content_of(client.post(url, json=body).content, stream=stream)
    assert gemini.faults == []
    assert len(gemini.bodies) == 5 * TURNS
    [context] = conversations.contexts
    used = [event.fact.prompt for event in context.log if isinstance(event.fact, Used)]
    assert used == gemini.prompts
    sent = [body["contents"] for body in gemini.bodies]
    breaks = sum(after[: len(one)] != one for one, after in pairwise(sent))
    assert 0 < breaks <= len(sent) / 10


def _send(requests: Any, content: Json | None) -> Json | None:
    try:
        body: Json = requests.send(content)
    except StopIteration:
        return None
    return body
