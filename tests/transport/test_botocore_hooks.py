"""A boto3 client for Bedrock with the hooks, against a local endpoint with botocore's own signing."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from binascii import crc32
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from threading import Thread
from typing import Any

import pytest

import foveal.transport
from foveal.core.log import Used
from foveal.core.tokens.counter import counter
from foveal.core.wire.legality import request_faults
from foveal.errors import BadSetting, ConversationIdMissing
from foveal.transport import ConversationPool
from support.effort import rest_in_soak

session = pytest.importorskip("botocore.session")

Json = dict[str, Any]
SOAK = bool(os.environ.get("FOVEAL_SOAK"))
WINDOW = 16_000 if SOAK else 9_000
ANSWER = 1_000
TURNS = 8 if SOAK else 4
MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"

BESIDE: Json = {
    "system": [{"text": "Never delete anything."}],
    "inferenceConfig": {"maxTokens": ANSWER},
    "toolConfig": {"tools": [{"toolSpec": {"name": "search", "inputSchema": {"json": {"type": "object"}}}}]},
}


class Bedrock:
    """A local endpoint that refuses illegal requests, those above the window, and those that are not signed."""

    def __init__(self, window: int = WINDOW) -> None:
        self.window = window
        self.bodies: list[Json] = []
        self.prompts: list[int] = []
        self.faults: list[str] = []

    def __enter__(self) -> Bedrock:
        bedrock = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if not (self.headers.get("authorization") or "").startswith("AWS4-HMAC-SHA256"):
                    bedrock.faults.append("the request is not signed")
                status, reply = bedrock.reply(body)
                is_stream = status == 200 and self.path.endswith("/converse-stream")
                data = _event_stream(reply) if is_stream else json.dumps(reply).encode()
                kind = "application/vnd.amazon.eventstream" if is_stream else "application/json"
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                if status != 200:
                    self.send_header("x-amzn-errortype", "ValidationException")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def reply(self, body: Json) -> tuple[int, Json]:
        prompt = 50 + round(1.1 * counter().count(json.dumps([body["messages"], body.get("toolConfig")])))
        faults = request_faults("bedrock", body["messages"], system=body.get("system"))
        self.faults += faults
        if prompt + body["inferenceConfig"]["maxTokens"] > self.window:
            self.faults.append("too long")
            return 400, {"message": "Input is too long for requested model."}
        self.bodies.append(body)
        self.prompts.append(prompt)
        number = len(self.bodies)
        use = {"toolUseId": f"tool_{number}", "name": "search", "input": {"query": f"part {number}"}}
        is_done = number % 5 == 0
        block = {"text": f"Turn {number} is done."} if is_done else {"toolUse": use}
        return 200, {
            "output": {"message": {"role": "assistant", "content": [block]}},
            "stopReason": "end_turn" if is_done else "tool_use",
            "usage": {"inputTokens": prompt, "outputTokens": 9, "totalTokens": prompt + 9},
        }


def _event_stream(reply: Json) -> bytes:
    [block] = reply["output"]["message"]["content"]
    begins: Json = {"contentBlockIndex": 0, "start": {}}
    delta: Json = {"text": block.get("text")}
    if "toolUse" in block:
        use = block["toolUse"]
        begins["start"] = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
        delta = {"toolUse": {"input": json.dumps(use["input"])}}
    events = [
        ("messageStart", {"role": "assistant"}),
        *([("contentBlockStart", begins)] if "toolUse" in block else []),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta}),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("messageStop", {"stopReason": reply["stopReason"]}),
        ("metadata", {"usage": reply["usage"], "metrics": {"latencyMs": 1}}),
    ]
    return b"".join(_event(name, json.dumps(payload).encode()) for name, payload in events)


def _event(name: str, payload: bytes) -> bytes:
    """Return one event in the binary format of AWS."""
    headers = b""
    for key, value in (
        (":event-type", name),
        (":content-type", "application/json"),
        (":message-type", "event"),
    ):
        headers += bytes([len(key)]) + key.encode() + b"\x07" + len(value).to_bytes(2, "big") + value.encode()
    prelude = (16 + len(headers) + len(payload)).to_bytes(4, "big") + len(headers).to_bytes(4, "big")
    message = prelude + crc32(prelude).to_bytes(4, "big") + headers + payload
    return message + crc32(message).to_bytes(4, "big")


@pytest.fixture
def bedrock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bedrock]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Bedrock() as server:
        yield server


def client_for(bedrock: Bedrock, conversations: ConversationPool) -> Any:
    client = session.get_session().create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=bedrock.url,
        aws_access_key_id="none",
        aws_secret_access_key="none",
    )
    return foveal.transport.botocore(client, conversations)


def ask(client: Any, messages: list[Json], *, stream: bool) -> Json:
    """Send a request, and return the message of the reply."""
    given: Json = {
        "modelId": MODEL,
        "messages": messages,
        **BESIDE,
    }
    if not stream:
        found: Json = client.converse(**given)["output"]["message"]
        return found
    block: Json = {"text": ""}
    for event in client.converse_stream(**given)["stream"]:
        if use := event.get("contentBlockStart", {}).get("start", {}).get("toolUse"):
            block = {"toolUse": {**use, "input": {}}}
        delta = event.get("contentBlockDelta", {}).get("delta", {})
        if "text" in delta:
            block["text"] += delta["text"]
        elif "toolUse" in delta:
            block["toolUse"]["input"] = json.loads(delta["toolUse"]["input"])
    return {"role": "assistant", "content": [block]}


def _result(use: Json) -> Json:
    number = sum(map(ord, use["input"]["query"]))
    lines = 3_000 if number % 17 == 0 else 12 + number % 13
    found = "\n".join(f"src/module_{number}_{at}.py:{at}: value = {number * at}" for at in range(lines))
    return {"toolResult": {"toolUseId": use["toolUseId"], "content": [{"text": found}]}}


@pytest.mark.parametrize(
    "stream", [pytest.param(False, marks=pytest.mark.soak, id="whole"), pytest.param(True, id="streamed")]
)
def test_a_long_loop_stays_inside_the_window(bedrock: Bedrock, stream: bool) -> None:
    conversations = ConversationPool(window=WINDOW)
    client = client_for(bedrock, conversations)
    messages: list[Json] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": [{"text": f"Task {turn}: find the number {turn}."}]})
        while True:
            messages.append(ask(client, messages, stream=stream))
            uses = [block["toolUse"] for block in messages[-1]["content"] if "toolUse" in block]
            if not uses:
                break
            messages.append({"role": "user", "content": [_result(use) for use in uses]})
    client.close()
    assert bedrock.faults == []
    assert len(bedrock.bodies) == 5 * TURNS
    [context] = conversations.contexts
    used = [event.fact.prompt for event in context.log if isinstance(event.fact, Used)]
    assert used == bedrock.prompts
    sent = [body["messages"] for body in bedrock.bodies]
    assert sum(after[: len(one)] != one for one, after in pairwise(sent)) <= len(sent) / 10


@pytest.mark.parametrize("stream", rest_in_soak([False, True]))
def test_an_overflow_is_answered_with_a_smaller_request(bedrock: Bedrock, stream: bool) -> None:
    client = client_for(bedrock, ConversationPool(window=200_000))
    history: list[Json] = []
    for turn in range(40):
        history.append({"role": "user", "content": [{"text": f"Question {turn}: " + "what is it? " * 200}]})
        history.append({"role": "assistant", "content": [{"text": "Yes."}]})
    reply = ask(client, [*history, {"role": "user", "content": [{"text": "Now?"}]}], stream=stream)
    client.close()
    assert reply["role"] == "assistant"
    assert set(bedrock.faults) == {"too long"}
    assert len(bedrock.bodies) == 1


def test_an_image_is_sent_as_it_is_when_other_messages_are_reduced(bedrock: Bedrock) -> None:
    conversations = ConversationPool(window=6_000)
    client = client_for(bedrock, conversations)
    history: list[Json] = []
    for turn in range(30):
        history.append({"role": "user", "content": [{"text": f"Question {turn}: " + "what is it? " * 200}]})
        history.append({"role": "assistant", "content": [{"text": "Yes."}]})
    data = b"\x89PNG\r\n\x1a\n" + bytes(40)
    picture = {"image": {"format": "png", "source": {"bytes": data}}}
    ask(client, [*history, {"role": "user", "content": [{"text": "This?"}, picture]}], stream=False)
    client.close()
    [body] = bedrock.bodies
    assert bedrock.faults == []
    assert len(json.dumps(body)) < 30_000
    assert body["messages"][-1]["content"][-1]["image"]["source"] == {"bytes": b64encode(data).decode()}


def test_only_a_bedrock_runtime_client_gets_hooks() -> None:
    other = session.get_session().create_client("s3", region_name="eu-west-1")
    for wrong in (None, other, "bedrock-runtime"):
        with pytest.raises(BadSetting, match="a `bedrock-runtime` client"):
            foveal.transport.botocore(wrong)
    other.close()


def test_settings_in_place_of_a_pool_are_refused_with_a_hint(bedrock: Bedrock) -> None:
    client = client_for(bedrock, ConversationPool())
    with pytest.raises(BadSetting, match=r"ConversationPool\("):
        foveal.transport.botocore(client, "gpt-4.1")  # type: ignore[arg-type]
    client.close()


def test_request_metadata_names_the_conversation_and_strict_ids_needs_it(bedrock: Bedrock) -> None:
    pool = ConversationPool(strict_ids=True)
    client = client_for(bedrock, pool)
    given: Json = {"modelId": MODEL, "messages": [{"role": "user", "content": [{"text": "Hi"}]}], **BESIDE}
    with pytest.raises(ConversationIdMissing, match="requestMetadata"):
        client.converse(**given)
    client.converse(**given, requestMetadata={"X-Foveal-Session": "a", "team": "search"})
    assert pool.context("a") is not None
    assert [sent["requestMetadata"] for sent in bedrock.bodies] == [{"team": "search"}]
