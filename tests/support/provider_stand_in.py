"""HTTP server that stands in for OpenAI chat, OpenAI Responses and Anthropic messages.

    with StandIn(window=6_000) as provider:
        client = openai.OpenAI(base_url=provider.openai, api_key="none")

1. It refuses what providers refuse, with the provider's own error: illegal histories (checked by
   `support.legality`), requests above the window, and reasoning that was changed.
2. Otherwise it sends the next answer of its script, as a stream if the request asks for one.
3. Usage is counted with a vocabulary of `ratio` times o200k, plus `hidden` tokens; the prefix shared with the
   previous request is cached.
4. With `trouble` it fails as providers do: an error status, a connection that breaks off, a response that is not an
   answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from threading import Lock, Thread
from time import sleep
from typing import Any, Self

from foveal.core.tokens.counter import counter
from foveal.core.wire.bound_thinking import ThinkingCheck, binds_thinking
from foveal.core.wire.legality import request_faults
from support.legality import check_chat, check_responses

Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """The next answer of the model: calls, or the final text of the turn."""

    text: str = ""
    calls: tuple[tuple[str, Json | str], ...] = ()
    """Name and arguments; a string is sent unchanged, even if it is not JSON."""
    thought: str = ""
    is_cut: bool = False
    """The answer has reached its limit of tokens (chat completions only)."""
    compaction: str = ""
    """The provider's own summary of the conversation, in place of an answer (Responses and Anthropic)."""


@dataclass(frozen=True)
class Trouble:
    """A failure of one request."""

    status: int = 0
    """The status of an error response, 0 for none."""
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    """Sent unchanged in place of the answer."""
    kind: str = "application/json"
    """Content type of `body`."""
    drop: int | None = None
    """Number of events after which the connection breaks off."""
    delay: float = 0.0
    """Seconds before each event."""


Script = Callable[[int], Answer]


def looping(tool: str = "search", *, steps: int = 4) -> Script:
    """Return a script of endless turns: `steps` messages with one to three calls each, then an answer."""

    def script(number: int) -> Answer:
        turn, step = divmod(number - 1, steps + 1)
        if step == steps:
            return Answer(text=f"Turn {turn + 1} is done: the answer is {turn * 7 + 3}.")
        calls = tuple((tool, {"query": f"part {number}.{place}"}) for place in range(1 + number % 3))
        return Answer(text="Looking further." if step % 2 else "", calls=calls, thought=f"Thought {number}.")

    return script


@dataclass
class Request:
    """A received request and its result."""

    dialect: str
    body: Json
    prompt: int
    cached: int
    faults: list[str]


@dataclass
class StandIn:
    """The server; a context manager that listens on a free port of the loopback interface."""

    window: int = 128_000
    script: Script = field(default_factory=looping)
    ratio: float = 1.12
    hidden: int = 60
    requests: list[Request] = field(default_factory=list)
    key: str = ""
    """The only key that is accepted; "" accepts all."""
    trouble: Callable[[int], Trouble | None] = lambda number: None
    """Returns the failure of a request by its number; the first is 1."""
    attempts: int = 0
    """Number of received requests, answered or not."""
    keep_alive: bool = True
    """Whether connections stay open. Clients of frameworks that are never closed leave theirs to the collector."""

    def __enter__(self) -> Self:
        self._lock = Lock()
        self.thinking = ThinkingCheck()
        self._before = ""
        self._answered = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def anthropic(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def openai(self) -> str:
        return f"{self.anthropic}/v1"

    @property
    def faults(self) -> list[str]:
        """Reasons of all refusals."""
        return [fault for request in self.requests for fault in request.faults]

    def reply(self, path: str, body: Json) -> tuple[int, Json]:
        """Return the status and body of the response to a request."""
        dialect = self.dialect(path)
        with self._lock:
            prompt = self.hidden + round(self.ratio * sum(map(counter().count, dialect.texts(body))))
            text = json.dumps([body.get(name) for name in ("tools", "system", "instructions")])
            text += json.dumps(body.get("messages") or body.get("input"))
            text = dialect.prefix(text, body)
            shared = _shared_chars(self._before, text) / len(text)
            cached = dialect.cached(int(prompt * shared), body)
            is_bound = dialect.name == "anthropic" and binds_thinking(body["model"])
            beside = {"system": body.get("system"), "tools": body.get("tools")}
            faults = self.request_faults(dialect, body)
            output = (
                body.get("max_tokens")
                or body.get("max_completion_tokens")
                or body.get("max_output_tokens")
                or body.get("inferenceConfig", {}).get("maxTokens")
            )
            error = dialect.error(faults[0], "") if faults else None
            if prompt + (output or 0) > self.window:
                faults.append(f"{prompt:,} + {output or 0:,} tokens in a window of {self.window:,}")
                error = dialect.error(*dialect.too_long(prompt, self.window))
            self.requests.append(Request(dialect.name, body, prompt, cached, faults))
            if error is not None:
                return 400, error
            self._before = text
            self._answered += 1
            answer = self.next_answer(self._answered, body)
            reply = dialect.answer(self._answered, answer, body, prompt, cached)
            if is_bound:
                for block in reply["content"]:
                    if block["type"] == "thinking":  # two blocks with the same text are two
                        block["signature"] += f"-{self._answered}"
                self.thinking.remember("anthropic", body["messages"], [reply], **beside)
            return 200, reply

    def dialect(self, path: str) -> Dialect:
        """Return the dialect of an endpoint; a subclass may have other endpoints."""
        return _DIALECTS[path]

    def request_faults(self, dialect: Dialect, body: Json) -> list[str]:
        """Return why a request is refused; a subclass may know more reasons."""
        is_bound = dialect.name == "anthropic" and binds_thinking(body["model"])
        return anthropic_faults(body, self.thinking) if is_bound else dialect.check(body)

    def is_stream(self, path: str, body: Json) -> bool:
        """Return whether a request asks for a stream."""
        return bool(body.get("stream"))

    def next_answer(self, number: int, body: Json) -> Answer:
        """Return the answer to a legal request; a subclass may choose it by the request."""
        return self.script(number)

    def next_trouble(self, path: str, bearer: str, headers: Any) -> Trouble:
        """Return the failure of the next request; an empty `Trouble` for none."""
        with self._lock:
            self.attempts += 1
            given = bearer.removeprefix("Bearer ") or headers.get("x-api-key") or ""
            if self.key and given != self.key:
                message = f"Incorrect API key provided: {given}. You can find yours in your settings."
                return Trouble(
                    status=401, body=json.dumps(self.dialect(path).error(message, "invalid_api_key"))
                )
            return self.trouble(self.attempts) or Trouble()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        standin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet; two would be delayed by Nagle's algorithm

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                path = self.path.partition("?")[0]
                trouble = standin.next_trouble(path, self.headers.get("authorization") or "", self.headers)
                if trouble.status or trouble.body:
                    self._send(trouble.status or 200, trouble.body.encode(), trouble.kind, trouble.headers)
                    return
                status, reply = standin.reply(path, body)
                if status == 200 and standin.is_stream(path, body):
                    self._stream(standin.dialect(path).stream(reply), trouble)
                else:
                    self._send(status, json.dumps(reply).encode(), "application/json", ())

            def end_headers(self) -> None:
                if not standin.keep_alive:
                    self.send_header("connection", "close")
                super().end_headers()

            def _send(
                self, status: int, payload: bytes, kind: str, headers: Iterable[tuple[str, str]]
            ) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(payload)))
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(payload)

            def _stream(self, events: Iterator[str] | Iterator[bytes], trouble: Trouble) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                with suppress(ConnectionError):  # the client has closed the connection
                    for event in islice(events, trouble.drop):
                        sleep(trouble.delay)
                        data = event if isinstance(event, bytes) else event.encode()
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                        self.wfile.flush()
                    if trouble.drop is None:
                        self.wfile.write(b"0\r\n\r\n")
                self.close_connection = self.close_connection or trouble.drop is not None

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Handler


# ── Shared by the dialects ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Dialect:
    name: str
    texts: Callable[[Json], Iterator[str]]
    check: Callable[[Json], list[str]]
    cached: Callable[[int, Json], int]
    error: Callable[[str, str], Json]
    too_long: Callable[[int, int], tuple[str, str]]
    answer: Callable[[int, Answer, Json, int, int], Json]
    stream: Callable[[Json], Iterator[str] | Iterator[bytes]]
    prefix: Callable[[str, Json], str] = lambda text, body: text
    """The text that is compared with the previous request, to find the cached prefix."""


_NOT_COUNTED = (
    "id",
    "type",
    "role",
    "tool_call_id",
    "call_id",
    "tool_use_id",
    "signature",
    "encrypted_content",
    "status",
)


def model_texts(value: Any, not_counted: Collection[str] = _NOT_COUNTED) -> Iterator[str]:
    """Yield every text in a JSON value that a model reads, and a short text for each object."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from model_texts(item, not_counted)
    elif isinstance(value, dict):
        yield "{}"
        for name, item in value.items():
            if name not in not_counted:
                yield from model_texts(item, not_counted)


def _texts(body: Json) -> Iterator[str]:
    if body.get("tools"):
        yield json.dumps(body["tools"])
    for name in ("system", "instructions", "messages", "input"):
        yield from model_texts(body.get(name) or [])


def _shared_chars(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts. Halving compares slices: a loop over the characters of
    a long history takes most of the time of a request."""
    shared, end = 0, min(len(one), len(other))
    while shared < end:
        middle = (shared + end + 1) // 2
        if one[shared:middle] == other[shared:middle]:
            shared = middle
        else:
            end = middle - 1
    return shared


def _signature(text: str) -> str:
    """Return the signature that a provider adds to thinking, to detect changes."""
    return sha256(text.encode()).hexdigest()


def _arguments_text(arguments: Json | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _event(data: Json, name: str = "") -> str:
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n"


def _output_tokens(answer: Answer) -> int:
    return counter().count(answer.text + answer.thought) + 20 * len(answer.calls) + 4


# ── OpenAI ───────────────────────────────────────────────────────────────────────────────────────────────


def _openai_cached(shared: int, body: Json) -> int:
    return shared // 128 * 128 if shared >= 1024 else 0


def _openai_error(message: str, code: str) -> Json:
    kind = "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": "messages", "code": code or None}}


def _openai_too_long(prompt: int, window: int) -> tuple[str, str]:
    message = (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {prompt} "
        "tokens. Please reduce the length of the messages."
    )
    return message, "context_length_exceeded"


def _chat(number: int, answer: Answer, body: Json, prompt: int, cached: int) -> Json:
    calls = [
        {
            "id": f"call_{number}_{place}",
            "type": "function",
            "function": {"name": name, "arguments": _arguments_text(arguments)},
        }
        for place, (name, arguments) in enumerate(answer.calls)
    ]
    message: Json = {"role": "assistant", "content": answer.text or None, "refusal": None, "annotations": []}
    if calls:
        message["tool_calls"] = calls
    output = _output_tokens(answer)
    reason = "length" if answer.is_cut else "tool_calls" if calls else "stop"
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_760_000_000 + number,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _responses(number: int, answer: Answer, body: Json, prompt: int, cached: int) -> Json:
    items: list[Json] = []
    if answer.compaction:
        sealed = _signature(answer.compaction) + answer.compaction
        items.append({"id": f"cmp_{number}", "type": "compaction", "encrypted_content": sealed})
    if answer.thought:
        thought = {"type": "summary_text", "text": answer.thought}
        sealed = _signature(answer.thought)
        items.append(
            {"id": f"rs_{number}", "type": "reasoning", "summary": [thought], "encrypted_content": sealed}
        )
    if answer.text:
        said = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        frame = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        items.append({**frame, "content": [said]})
    for place, (name, arguments) in enumerate(answer.calls):
        frame = {"id": f"fc_{number}_{place}", "type": "function_call", "status": "completed"}
        called = {"call_id": f"call_{number}_{place}", "name": name, "arguments": _arguments_text(arguments)}
        items.append({**frame, **called, **_namespace(name, body)})
    output = _output_tokens(answer)
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_760_000_000 + number,
        "status": "completed",
        "model": body["model"],
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools", []),
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": counter().count(answer.thought)},
            "total_tokens": prompt + output,
        },
    }


def compacted_response(reply: Json, body: Json) -> Json:
    """Return a reply with a compaction in the form of the endpoint that only compacts."""
    kept = [item for item in body["input"] if item.get("role") == "user"]
    frame = {"id": reply["id"], "object": "response.compaction", "created_at": reply["created_at"]}
    return {**frame, "output": [*kept, *reply["output"]], "usage": reply["usage"]}


def _namespace(tool: str, body: Json) -> Json:
    """Return the field that names the namespace of a tool, if the request offers the tool in one."""
    for offered in body.get("tools") or []:
        if offered.get("type") == "namespace" and tool in [inner["name"] for inner in offered["tools"]]:
            return {"namespace": offered["name"]}
    return {}


def _chat_stream(reply: Json) -> Iterator[str]:
    frame = {name: reply[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    choice = reply["choices"][0]
    message = choice["message"]

    def chunk(delta: Json, reason: str | None = None) -> str:
        return _event(
            {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": None}
        )

    yield chunk({"role": "assistant", "content": ""})
    for half in _halves(message["content"] or ""):
        yield chunk({"content": half})
    for place, call in enumerate(message.get("tool_calls") or []):
        first, second = _halves(call["function"]["arguments"])
        opening = {"name": call["function"]["name"], "arguments": first}
        yield chunk({"tool_calls": [{**call, "index": place, "function": opening}]})
        yield chunk({"tool_calls": [{"index": place, "function": {"arguments": second}}]})
    yield chunk({}, choice["finish_reason"])
    yield _event({**frame, "choices": [], "usage": reply["usage"]})
    yield "data: [DONE]\n\n"


def _responses_stream(reply: Json) -> Iterator[str]:
    number = 0

    def event(kind: str, **fields: Any) -> str:
        nonlocal number
        number += 1
        return _event({"type": kind, "sequence_number": number, **fields}, kind)

    started = {**reply, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=started)
    yield event("response.in_progress", response=started)
    for place, item in enumerate(reply["output"]):
        opened = {**item, **_OPENED_ITEMS[item["type"]]}
        yield event("response.output_item.added", output_index=place, item=opened)
        for kind, fields in _item_deltas(item):
            yield event(f"response.{kind}", output_index=place, item_id=item["id"], **fields)
        yield event("response.output_item.done", output_index=place, item=item)
    yield event("response.completed", response=reply)


_OPENED_ITEMS: dict[str, Json] = {
    "message": {"status": "in_progress", "content": []},
    "function_call": {"status": "in_progress", "arguments": ""},
    "reasoning": {"summary": []},
    "compaction": {},
}


def _item_deltas(item: Json) -> Iterator[tuple[str, Json]]:
    """Yield the events between the beginning and the end of an item, as the real API sends them."""
    match item["type"]:
        case "message":
            part, where = item["content"][0], {"content_index": 0}
            yield "content_part.added", {**where, "part": {**part, "text": ""}}
            for half in _halves(part["text"]):
                yield "output_text.delta", {**where, "delta": half, "logprobs": []}
            yield "output_text.done", {**where, "text": part["text"], "logprobs": []}
            yield "content_part.done", {**where, "part": part}
        case "function_call":
            for half in _halves(item["arguments"]):
                yield "function_call_arguments.delta", {"delta": half}
            yield "function_call_arguments.done", {"arguments": item["arguments"]}
        case "reasoning":
            part, where = item["summary"][0], {"summary_index": 0}
            yield "reasoning_summary_part.added", {**where, "part": {**part, "text": ""}}
            yield "reasoning_summary_text.delta", {**where, "delta": part["text"]}
            yield "reasoning_summary_text.done", {**where, "text": part["text"]}
            yield "reasoning_summary_part.done", {**where, "part": part}


def _check_responses(body: Json) -> list[str]:
    items = body["input"]
    if isinstance(items, str):
        return []
    changed = [
        f"[{index}] reasoning that was changed"
        for index, item in enumerate(items)
        if item.get("type") == "reasoning"
        and item["encrypted_content"] != _signature(item["summary"][0]["text"])
    ]
    return check_responses(items) + changed


# ── Anthropic ────────────────────────────────────────────────────────────────────────────────────────────


def _anthropic_cached(shared: int, body: Json) -> int:
    marked = "cache_control" in json.dumps(body)
    return shared if marked and shared >= 1024 else 0


def _without_marks(value: Any) -> Any:
    """Return a request as the cache compares it: without marks, and a text as a list of one block."""
    if isinstance(value, list):
        return [_without_marks(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {name: _without_marks(item) for name, item in value.items() if name != "cache_control"}
    if "role" in kept and isinstance(kept["content"], str):
        kept["content"] = [{"type": "text", "text": kept["content"]}]
    return kept


def _anthropic_prefix(text: str, body: Json) -> str:
    return json.dumps(_without_marks([body.get(name) for name in ("tools", "system", "messages")]))


def _anthropic_error(message: str, code: str) -> Json:
    return {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": message},
        "request_id": "req_1",
    }


def _anthropic_too_long(prompt: int, window: int) -> tuple[str, str]:
    return f"prompt is too long: {prompt} tokens > {window} maximum", ""


def _anthropic(number: int, answer: Answer, body: Json, prompt: int, cached: int) -> Json:
    blocks: list[Json] = []
    if answer.compaction:
        signature = _signature(answer.compaction)
        blocks.append({"type": "compaction", "content": answer.compaction, "signature": signature})
    if answer.thought:
        is_omitted = (body.get("thinking") or {}).get("display") == "omitted"
        thought = "" if is_omitted else answer.thought
        blocks.append({"type": "thinking", "thinking": thought, "signature": _signature(answer.thought)})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    for place, (name, arguments) in enumerate(answer.calls):
        given = arguments if isinstance(arguments, dict) else {"_written": arguments}
        blocks.append({"type": "tool_use", "id": f"toolu_{number}_{place}", "name": name, "input": given})
    written = prompt - cached if "cache_control" in json.dumps(body) else 0
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": blocks,
        "stop_reason": _stop_reason(answer),
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt - cached - written,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written,
            "output_tokens": _output_tokens(answer),
        },
    }


def _stop_reason(answer: Answer) -> str:
    return "compaction" if answer.compaction else "tool_use" if answer.calls else "end_turn"


_EMPTY: dict[str, Json] = {
    "compaction": {"content": None},
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


def _deltas(block: Json) -> Iterator[Json]:
    if block["type"] == "text":
        yield from ({"type": "text_delta", "text": half} for half in _halves(block["text"]))
    elif block["type"] == "thinking":
        if block["thinking"]:
            yield {"type": "thinking_delta", "thinking": block["thinking"]}
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif block["type"] == "compaction":
        yield {"type": "compaction_delta", "content": block["content"]}
    else:
        written = block["input"].get("_written", json.dumps(block["input"]))
        yield from ({"type": "input_json_delta", "partial_json": half} for half in _halves(written))


def _anthropic_stream(reply: Json) -> Iterator[str]:
    def event(kind: str, **fields: Any) -> str:
        return _event({"type": kind, **fields}, kind)

    opening = {**reply, "content": [], "stop_reason": None, "usage": {**reply["usage"], "output_tokens": 1}}
    yield event("message_start", message=opening)
    yield event("ping")
    for place, block in enumerate(reply["content"]):
        yield event("content_block_start", index=place, content_block={**block, **_EMPTY[block["type"]]})
        for delta in _deltas(block):
            yield event("content_block_delta", index=place, delta=delta)
        yield event("content_block_stop", index=place)
    stopped = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=stopped, usage={"output_tokens": reply["usage"]["output_tokens"]})
    yield event("message_stop")


def anthropic_faults(body: Json, thinking: ThinkingCheck | None = None) -> list[str]:
    """Return why Anthropic refuses a request. With `thinking`, the model binds thinking to what comes before it."""
    changed = [
        f"[{index}] thinking that was changed"
        for index, message in enumerate(body["messages"])
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "thinking" and _is_changed(block)
    ]
    beside = {"system": body.get("system"), "tools": body.get("tools"), "thinking": thinking}
    return request_faults("anthropic", body["messages"], **beside) + changed


def _is_changed(thinking: Json) -> bool:
    """Return whether a text differs from the signed one. An omitted text is empty."""
    return bool(thinking["thinking"]) and thinking["signature"].partition("-")[0] != _signature(
        thinking["thinking"]
    )


def _check_chat(body: Json) -> list[str]:
    return check_chat(body["messages"])


_DIALECTS = {
    "/v1/chat/completions": Dialect(
        "openai_chat",
        _texts,
        _check_chat,
        _openai_cached,
        _openai_error,
        _openai_too_long,
        _chat,
        _chat_stream,
    ),
    "/v1/responses": Dialect(
        "openai_responses",
        _texts,
        _check_responses,
        _openai_cached,
        _openai_error,
        _openai_too_long,
        _responses,
        _responses_stream,
    ),
    "/v1/messages": Dialect(
        "anthropic",
        _texts,
        anthropic_faults,
        _anthropic_cached,
        _anthropic_error,
        _anthropic_too_long,
        _anthropic,
        _anthropic_stream,
        _anthropic_prefix,
    ),
}
