"""HTTP server that stands in for the Gemini API.

    with GeminiStandIn(window=16_000) as provider:
        client = genai.Client(api_key="none", http_options={"base_url": provider.gemini})

Beside what `StandIn` refuses, it refuses signatures of thoughts that are missing, changed or in another part, as
Gemini 3 does.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from foveal.core.tokens.counter import counter
from foveal.core.wire.gemini import SKIPPED_SIGNATURE
from foveal.core.wire.legality import request_faults
from support.provider_stand_in import Answer, Dialect, Json, StandIn, model_texts

MIN_CACHED_TOKENS: Final = 2_048
STREAMS: Final = ":streamGenerateContent"
ANSWERS: Final = (":generateContent", STREAMS)
_NOT_READ: Final = frozenset({"thoughtSignature", "id", "role", "mimeType"})


class GeminiStandIn(StandIn):
    """The server; a context manager that listens on a free port of the loopback interface."""

    @property
    def gemini(self) -> str:
        return self.anthropic

    def dialect(self, path: str) -> Dialect:
        return _GEMINI if path.endswith(ANSWERS) else super().dialect(path)

    def is_stream(self, path: str, body: Json) -> bool:
        return path.endswith(STREAMS) or super().is_stream(path, body)


def _texts(body: Json) -> Iterator[str]:
    if body.get("tools"):
        yield json.dumps(body["tools"])
    yield from model_texts(body.get("systemInstruction") or {}, _NOT_READ)
    yield from model_texts(body["contents"], _NOT_READ)


def _check(body: Json) -> list[str]:
    """Return the faults of a request. Every call of the stand-in's script is the first of its content or follows
    one, so each content with calls needs a signature."""
    faults = request_faults("gemini", body["contents"])
    for index, content in enumerate(body["contents"]):
        calls = [part for part in content["parts"] if "functionCall" in part]
        if calls and not _is_signed(calls[0]):
            faults.append(f"[{index}] Function call is missing a thought_signature in functionCall parts")
        if any("thoughtSignature" in part for part in calls[1:]):
            faults.append(f"[{index}] a signature in another part than the one it came in")
    return faults


def _is_signed(part: Json) -> bool:
    expected = (_signature(part["functionCall"]["name"]), SKIPPED_SIGNATURE)
    return part.get("thoughtSignature") in expected


def _signature(text: str) -> str:
    return urlsafe_b64encode(sha256(text.encode()).digest()).decode()


def _cached(shared: int, body: Json) -> int:
    return shared if shared >= MIN_CACHED_TOKENS else 0


def _error(message: str, code: str) -> Json:
    return {"error": {"code": 400, "message": message, "status": code or "INVALID_ARGUMENT"}}


def _too_long(prompt: int, window: int) -> tuple[str, str]:
    message = f"The input token count ({prompt}) exceeds the maximum number of tokens allowed ({window})."
    return message, ""


def _prefix(text: str, body: Json) -> str:
    return json.dumps([body.get(name) for name in ("systemInstruction", "tools", "contents")])


def _answer(number: int, answer: Answer, body: Json, prompt: int, cached: int) -> Json:
    parts: list[Json] = []
    if answer.thought:
        parts.append({"text": answer.thought, "thought": True})
    if answer.text:
        parts.append({"text": answer.text})
    for place, (name, arguments) in enumerate(answer.calls):
        called: Json = {"functionCall": {"name": name, "args": arguments}}
        parts.append(called if place else {**called, "thoughtSignature": _signature(name)})
    thoughts = counter().count(answer.thought)
    output = counter().count(answer.text) + 20 * len(answer.calls) + 4
    usage = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": output,
        "totalTokenCount": prompt + output + thoughts,
        **({"thoughtsTokenCount": thoughts} if thoughts else {}),
        **({"cachedContentTokenCount": cached} if cached else {}),
    }
    reason = "MAX_TOKENS" if answer.is_cut else "STOP"
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": reason, "index": 0}
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": "gemini-3-pro",
        "responseId": f"response-{number}",
    }


def _stream(reply: Json) -> Iterator[str]:
    """Yield one event for each part, texts in halves; only the last event has a reason and the output tokens."""
    (candidate,) = reply["candidates"]
    parts = [half for part in candidate["content"]["parts"] for half in _halves(part)]
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        content = {**candidate["content"], "parts": [part]}
        chunk = {**candidate, "content": content} if last else {"content": content, "index": 0}
        usage = reply["usageMetadata"]
        if not last:
            usage = {name: usage[name] for name in ("promptTokenCount", "totalTokenCount")}
        yield f"data: {json.dumps({**reply, 'candidates': [chunk], 'usageMetadata': usage})}\r\n\r\n"


def _halves(part: Json) -> list[Json]:
    if "text" not in part:
        return [part]
    text = part["text"]
    return [{**part, "text": half} for half in (text[: len(text) // 2], text[len(text) // 2 :])]


_GEMINI: Final = Dialect("gemini", _texts, _check, _cached, _error, _too_long, _answer, _stream, _prefix)
