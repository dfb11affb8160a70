"""HTTP server that stands in for Bedrock's Converse API.

    with BedrockStandIn(window=16_000) as provider:
        client = boto3.client("bedrock-runtime", endpoint_url=provider.bedrock)

Streams are in the binary format of AWS. Beside what `StandIn` refuses, it refuses reasoning that was changed and
tool blocks in a request without `toolConfig`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from struct import pack
from typing import Any, Final
from zlib import crc32

from foveal.core.tokens.counter import counter
from foveal.core.wire.legality import request_faults
from support.provider_stand_in import Answer, Dialect, Json, StandIn, model_texts

MIN_CACHED_TOKENS: Final = 1_024
STREAMS: Final = "/converse-stream"
ANSWERS: Final = ("/converse", STREAMS)
_NOT_READ: Final = frozenset({"toolUseId", "signature", "role", "status", "cachePoint"})
_STRING_HEADER: Final = 7


class BedrockStandIn(StandIn):
    """The server; a context manager that listens on a free port of the loopback interface."""

    @property
    def bedrock(self) -> str:
        return self.anthropic

    def dialect(self, path: str) -> Dialect:
        return _BEDROCK if path.endswith(ANSWERS) else super().dialect(path)

    def is_stream(self, path: str, body: Json) -> bool:
        return path.endswith(STREAMS) or super().is_stream(path, body)


def _texts(body: Json) -> Iterator[str]:
    if body.get("toolConfig"):
        yield json.dumps(body["toolConfig"])
    yield from model_texts(body.get("system") or [], _NOT_READ)
    yield from model_texts(body["messages"], _NOT_READ)


def _check(body: Json) -> list[str]:
    messages, config = body["messages"], body.get("toolConfig") or {}
    faults = request_faults("bedrock", messages, system=body.get("system"), tools=config.get("tools") or ())
    blocks = [
        (index, kind, value)
        for index, message in enumerate(messages)
        for block in message["content"]
        for kind, value in block.items()
    ]
    if not config and any(kind in ("toolUse", "toolResult") for _, kind, _ in blocks):
        faults.append(
            "The toolConfig field must be defined when using toolUse and toolResult content blocks."
        )
    for index, kind, value in blocks:
        thought = value.get("reasoningText") if kind == "reasoningContent" else None
        if thought and thought.get("signature") != _signature(thought["text"]):
            faults.append(f"[{index}] reasoning that was changed")
    if messages and messages[-1]["role"] != "user":
        faults.append("[end] the model speaks last")
    return faults


def _signature(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _has_cache_point(body: Json) -> bool:
    return '"cachePoint"' in json.dumps(body)


def _cached(shared: int, body: Json) -> int:
    return shared if _has_cache_point(body) and shared >= MIN_CACHED_TOKENS else 0


def _error(message: str, code: str) -> Json:
    return {"message": message, "code": code or "ValidationException"}


def _too_long(prompt: int, window: int) -> tuple[str, str]:
    message = f"prompt is too long: {prompt} tokens > {window} maximum"
    return f"The model returned the following errors: {message}", ""


def _prefix(text: str, body: Json) -> str:
    return json.dumps(_without_points([body.get(name) for name in ("toolConfig", "system", "messages")]))


def _without_points(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_points(item) for item in value if not _is_point(item)]
    return {name: _without_points(item) for name, item in value.items()} if isinstance(value, dict) else value


def _is_point(value: Any) -> bool:
    return isinstance(value, dict) and "cachePoint" in value


def _answer(number: int, answer: Answer, body: Json, prompt: int, cached: int) -> Json:
    content: list[Json] = []
    if answer.thought:
        thought = {"text": answer.thought, "signature": _signature(answer.thought)}
        content.append({"reasoningContent": {"reasoningText": thought}})
    if answer.text:
        content.append({"text": answer.text})
    for place, (name, arguments) in enumerate(answer.calls):
        call = {"toolUseId": f"tooluse_{number}_{place}", "name": name, "input": arguments}
        content.append({"toolUse": call})
    output = counter().count(answer.text + answer.thought) + 20 * len(answer.calls) + 4
    written = prompt - cached if _has_cache_point(body) else 0
    reason = "max_tokens" if answer.is_cut else "tool_use" if answer.calls else "end_turn"
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": reason,
        "usage": {
            "inputTokens": prompt - cached - written,
            "outputTokens": output,
            "totalTokens": prompt + output,
            "cacheReadInputTokens": cached,
            "cacheWriteInputTokens": written,
        },
        "metrics": {"latencyMs": 1},
    }


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────────────


def _stream(reply: Json) -> Iterator[bytes]:
    yield _frame("messageStart", {"role": "assistant"})
    for place, block in enumerate(reply["output"]["message"]["content"]):
        ((kind, value),) = block.items()
        if kind == "toolUse":
            start = {name: value[name] for name in ("toolUseId", "name")}
            yield _frame("contentBlockStart", {"start": {"toolUse": start}, "contentBlockIndex": place})
        for delta in _deltas(kind, value):
            yield _frame("contentBlockDelta", {"delta": delta, "contentBlockIndex": place})
        yield _frame("contentBlockStop", {"contentBlockIndex": place})
    yield _frame("messageStop", {"stopReason": reply["stopReason"]})
    yield _frame("metadata", {name: reply[name] for name in ("usage", "metrics")})


def _deltas(kind: str, value: Any) -> Iterator[Json]:
    match kind:
        case "text":
            half = len(value) // 2
            yield from ({"text": text} for text in (value[:half], value[half:]))
        case "toolUse":
            text = json.dumps(value["input"])
            yield from ({"toolUse": {"input": part}} for part in (text[:5], text[5:]))
        case _:
            for name, text in value["reasoningText"].items():
                yield {"reasoningContent": {name: text}}


def _frame(kind: str, payload: Json) -> bytes:
    """Return one message of the stream: lengths, headers and payload, each part with its checksum."""
    body = json.dumps(payload).encode()
    named = {":message-type": "event", ":event-type": kind, ":content-type": "application/json"}
    headers = b"".join(_header(name, value) for name, value in named.items())
    lengths = pack("!II", len(headers) + len(body) + 16, len(headers))
    message = lengths + pack("!I", crc32(lengths)) + headers + body
    return message + pack("!I", crc32(message))


def _header(name: str, value: str) -> bytes:
    return pack("!B", len(name)) + name.encode() + pack("!BH", _STRING_HEADER, len(value)) + value.encode()


_BEDROCK: Final = Dialect("bedrock", _texts, _check, _cached, _error, _too_long, _answer, _stream, _prefix)
