"""Recording of LLM requests, as the pieces that a provider's prompt cache compares.

1. The pieces come in the order in which providers read them: model, tools, system text, messages.
2. Two pieces with equal keys read the same cache entry. Cache marks, null fields, empty lists and the order of the
   fields of a message make no difference. In a tool's schema and in arguments the order of the fields counts,
   because the provider writes them into the prompt as they come.
3. A `loose` key also ignores dates, times and ids, so that a message is recognised when only these change.

The digests of `foveal.transport` recognise conversations in another way: they ignore the text of instructions
and the model's thinking, which a cache does not.

While at least one capture is active, the transports of httpx and httpx2 (their own, and those for tests), and those
of requests and botocore if they are imported, tell every active capture the URL and the body of each request. The
transports are restored when the last capture ends. No request is changed. `SentRequests.add` is wrapped in the same
way: it is where a `Context` or a `Session` notes that a reduction moved the prefix.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from threading import Lock
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import unquote

import msgspec

from foveal.core.engine.prefix import PrefixBreak
from foveal.core.engine.sent_requests import SentRequests
from foveal.core.log.events import Dialect
from foveal.core.wire import detect_dialect, plain_json, strip_cache_marks
from foveal.core.wire.cache_marks import CACHE_MARK

Body = dict[str, Any]


@dataclass(frozen=True)
class BodyFields:
    """The names of the fields of a request body, in one dialect."""

    path: re.Pattern[str]
    """The end of the URL's path."""
    messages: str
    system: tuple[str, ...] = ()
    tools: str = "tools"


_BODY_FIELDS: Final[dict[Dialect, BodyFields]] = {
    "openai_chat": BodyFields(re.compile(r"/chat/completions$|/api/chat$"), "messages"),
    "openai_responses": BodyFields(re.compile(r"/responses$"), "input", ("instructions",)),
    "anthropic": BodyFields(re.compile(r"/messages$"), "messages", ("system",)),
    "gemini": BodyFields(
        re.compile(r":(?:stream)?generateContent$", re.IGNORECASE),
        "contents",
        ("systemInstruction", "system_instruction"),
    ),
    "bedrock": BodyFields(re.compile(r"/converse(?:-stream)?$"), "messages", ("system",), "toolConfig"),
}
_MODEL_IN_PATH: Final = re.compile(r"/models?/([^/]+?)(?::\w+|/converse(?:-stream)?)$")
"""Gemini and Bedrock name the model in the path."""
_VERBATIM_FIELDS: Final = frozenset({"parameters", "input_schema", "inputSchema", "input", "args", "schema"})
"""Fields whose inner order of fields is part of the prompt."""
_INSTRUCTION_ROLES: Final = frozenset({"system", "developer"})
_STORED_HISTORY_FIELDS: Final = ("previous_response_id", "conversation", "cachedContent")

_DATE_OR_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?[AaPp]\.?[Mm]\b)?"
    r"|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
    r"|\b(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b,?"
    r"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?\s\d{1,2}(?:st|nd|rd|th)?(?:,?\s\d{4})?"
    r"|\b\d{1,2}\s(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?(?:\s\d{4})?"
    r"|\b1[5-9]\d{8}(?:\.\d+|\d{3})?\b"  # seconds or milliseconds since 1970
)
_ID: Final = re.compile(
    r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
    r"|\b(?:call|toolu|msg|run|req|chatcmpl|fc|rs|resp|session|thread|trace)[-_][A-Za-z0-9_-]{4,}"
    r"|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b"
)
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
CHANGING_TEXT: Final = (("a date or time", _DATE_OR_TIME), ("an id", _ID), ("a number", _NUMBER))
"""Kinds of text that a program often puts into a prompt, and that is different each time."""


@dataclass(frozen=True)
class PromptPiece:
    """The model, the tools, the system text or one message."""

    place: str
    """ "model", "tools", "system" or "messages[3]"."""
    given: Any
    """The piece as it was sent."""
    value: Any
    """The piece as it is compared."""
    key: bytes

    @cached_property
    def loose(self) -> str:
        text = self.key.decode("utf-8", "replace")
        return _ID.sub("<id>", _DATE_OR_TIME.sub("<time>", text))

    @cached_property
    def texts(self) -> list[str]:
        """All strings in the piece, except the names of fields."""
        return list(strings(self.value))

    @property
    def role(self) -> str:
        """The role of a message, or the type of a Responses item; "" for other pieces."""
        if not self.place.startswith("messages") or not isinstance(self.value, Mapping):
            return ""
        return str(self.value.get("role") or self.value.get("type") or "")

    @property
    def is_instruction(self) -> bool:
        """Whether the piece is the system text or a message with one of the roles of instructions."""
        return self.place == "system" or self.role in _INSTRUCTION_ROLES


KnownPieces: TypeAlias = dict[tuple[str, bytes], PromptPiece]


def _piece(place: str, given: Any, known: KnownPieces) -> PromptPiece:
    """Return a piece; one that an earlier request had at the same place is read only once."""
    name = (place, msgspec.json.encode(given))
    if name not in known:
        value = comparable(given)
        known[name] = PromptPiece(place, given, value, msgspec.json.encode(value))
    return known[name]


class CapturedRequest:
    """One captured request, as the pieces that a provider's prompt cache compares.

    Args:
        number: The number of the request, from 1.
        dialect: The dialect of the body.
        model: The name of the model.
        body: The body of the request.
        known: Pieces of earlier requests, which are read only once. None reads all pieces.

    Examples:
        ```python
        from foveal.testing import CapturedRequests

        requests = CapturedRequests()
        requests.record({"model": "gpt-4.1", "messages": [{"role": "user", "content": "Why is CI red?"}]})
        assert requests[0].model == "gpt-4.1"
        ```
    """

    def __init__(
        self, number: int, dialect: Dialect, model: str, body: Body, known: KnownPieces | None = None
    ) -> None:
        fields = _BODY_FIELDS[dialect]
        given = body.get(fields.messages)
        known = {} if known is None else known
        self.number = number
        """Position among the captured requests, from 1."""
        self.dialect: Dialect = dialect
        """The dialect of the body."""
        self.model = model
        """The name of the model."""
        said = given if isinstance(given, list) else [{"role": "user", "content": given}]
        system = next((body[name] for name in fields.system if body.get(name) is not None), None)
        setup = (("model", model), ("tools", body.get(fields.tools) or []), ("system", system))
        self.pieces: list[PromptPiece] = [_piece(place, one, known) for place, one in setup]
        """The model, the tools, the system text and the messages, as a cache compares them."""
        self.pieces += [_piece(f"messages[{at}]", one, known) for at, one in enumerate(said)]
        self.tools, self.system = self.pieces[1].given, self.pieces[2].given
        self.messages = [piece.given for piece in self.pieces[3:]]
        """The messages as they were sent."""
        self.has_stored_history: bool = any(body.get(name) is not None for name in _STORED_HISTORY_FIELDS)
        """Whether the provider holds a part of the history, which cannot be compared."""
        self.cache_mark: Any = body.get(CACHE_MARK)
        """Anthropic's cache mark of the whole request, if it has one."""
        self.keys: tuple[bytes, ...] = tuple(piece.key for piece in self.pieces)
        """For each piece, the bytes that are compared."""
        self.said: list[PromptPiece] = [piece for piece in self.pieces[3:] if not piece.is_instruction]
        """The messages without instructions."""

    @cached_property
    def chain(self) -> list[bytes]:
        """For each piece, a digest of all pieces up to it."""
        digests = accumulate(self.keys, next_digest, initial=self.dialect.encode())
        return list(digests)[1:]

    @cached_property
    def system_text(self) -> str:
        """The text of all instructions before the first other message."""
        texts: list[str] = []
        for piece in self.pieces[2:]:
            if not piece.is_instruction:
                break
            texts += [text for text in piece.texts if text != piece.role]
        return "\n".join(texts)

    @cached_property
    def tool_names(self) -> list[str]:
        """The names of the tools, in their order."""
        return [name for tool in tool_list(self.tools) for name in _tool_names(tool)]

    @cached_property
    def texts(self) -> frozenset[str]:
        """All strings in the messages."""
        return frozenset(text for piece in self.pieces[3:] for text in piece.texts)


def next_digest(last: bytes, key: bytes) -> bytes:
    """Return the digest of a prefix that has one more piece."""
    return blake2b(key, digest_size=16, key=last).digest()


def read_request(
    number: int, url: str, body: bytes | str | Mapping[str, Any], known: KnownPieces | None = None
) -> CapturedRequest | None:
    """Return a request body as a request to a model, or None if it is not one."""
    if not isinstance(body, Mapping):
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
    found = plain_json(body)  # a body that is not sent yet may have objects of a client library in it
    if not isinstance(found, dict):
        return None
    path = url.partition("?")[0]
    dialect = _dialect(path, found)
    if not dialect or not isinstance(found.get(_BODY_FIELDS[dialect].messages), str | list):
        return None
    named = _MODEL_IN_PATH.search(path)
    model = found.get("model") or found.get("modelId") or (unquote(named.group(1)) if named else "")
    return CapturedRequest(number, dialect, str(model), found, known)


def _dialect(path: str, body: Body) -> Dialect:
    """Return the dialect by the path or, without a path, by the fields of the body; "" if it is no such request."""
    for dialect, fields in _BODY_FIELDS.items():
        if path and fields.path.search(path):
            return dialect
    if path:
        return ""
    if "contents" in body:
        return "gemini"
    if "input" in body:
        return "openai_responses"
    if "toolConfig" in body or "inferenceConfig" in body:
        return "bedrock"
    messages, tools = body.get("messages"), body.get("tools")
    listed = messages if isinstance(messages, list) else []
    tools = tools if isinstance(tools, list) else []
    return detect_dialect(listed, tools=tools, system=body.get("system")) or "openai_chat"


def comparable(value: Any) -> Any:
    """Return a JSON value in the form in which a cache compares it."""
    return _comparable(strip_cache_marks(value))


def _comparable(value: Any) -> Any:
    if isinstance(value, list):
        return [_comparable(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        name: inner if name in _VERBATIM_FIELDS else _comparable(_one_text(inner))
        for name, inner in sorted(value.items())
        if inner is not None and inner != []
    }


def _one_text(content: Any) -> Any:
    """Return the text of a list that has one text part, otherwise the value: a cache mark needs the list."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.keys() <= {"type", "text"} and part.get("type", "text") in (
            "text",
            "input_text",
            "output_text",
        ):
            return part.get("text")
    return content


def tool_list(tools: Any) -> list[Any]:
    """Return the tools of a request, of Bedrock's `toolConfig` as well."""
    if isinstance(tools, Mapping):
        tools = tools.get("tools")
    return tools if isinstance(tools, list) else []


def _tool_names(tool: Any) -> Iterator[str]:
    if not isinstance(tool, Mapping):
        return
    declared = tool.get("functionDeclarations") or tool.get("function_declarations")
    inner = next((tool[name] for name in ("function", "custom", "toolSpec") if name in tool), tool)
    for one in declared if isinstance(declared, list) else [inner]:
        if isinstance(one, Mapping):
            yield str(one.get("name") or one.get("type") or "")


def strings(value: Any) -> Iterator[str]:
    """Yield all strings of a JSON value, except the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from strings(inner)


_HTTPX: Final = ("httpx", "httpx2")
_HTTPX_METHODS: Final = (
    ("HTTPTransport", "handle_request"),
    ("AsyncHTTPTransport", "handle_async_request"),
    ("MockTransport", "handle_request"),
    ("MockTransport", "handle_async_request"),
    ("WSGITransport", "handle_request"),
    ("ASGITransport", "handle_async_request"),
)
_OTHER_METHODS: Final = (
    ("requests.adapters", "HTTPAdapter", "send"),
    ("botocore.httpsession", "URLLib3Session", "send"),
)


class RequestRecorder(Protocol):
    """Receives what happens while it is active."""

    def request_sent(self, url: str, body: bytes | str) -> None:
        """A request leaves."""
        ...

    def prefix_break(self, sender: SentRequests, found: PrefixBreak, steps: list[Any]) -> None:
        """Foveal recorded that its next request does not begin like the last; `steps` is what it sends."""
        ...


_lock: Final = Lock()
_active: Final[list[RequestRecorder]] = []
_restore: Final[list[Callable[[], None]]] = []


def start(recorder: RequestRecorder) -> None:
    """Begin to tell a recorder what happens."""
    with _lock:
        if not _active:
            _wrap_all()
        _active.append(recorder)


def stop(recorder: RequestRecorder) -> None:
    """Tell a recorder no more."""
    with _lock:
        _active.remove(recorder)
        while not _active and _restore:
            _restore.pop()()


def _wrap_all() -> None:
    for library in _HTTPX:
        if find_spec(library) is not None:
            module = import_module(library)
            for name, method in _HTTPX_METHODS:
                _wrap(getattr(module, name, None), method, _tell_httpx)
    for library, name, method in _OTHER_METHODS:
        if library in sys.modules:
            _wrap(getattr(sys.modules[library], name, None), method, _tell_prepared)
    _wrap_sent_requests()


def _wrap(owner: Any, method: str, tell: Callable[[Any], None]) -> None:
    original = vars(owner).get(method) if owner is not None else None
    if original is None:
        return

    # An async method needs no wrapper of its own: calling it returns the coroutine to wait for.
    @wraps(original)
    def told(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        tell(request)
        return original(self, request, *args, **options)

    setattr(owner, method, told)
    _restore.append(lambda: setattr(owner, method, original))


def _tell_httpx(request: Any) -> None:
    try:
        body = request.content
    except RuntimeError:  # a streamed body, which only the transport may read
        return
    if request.method == "POST" and body:
        _tell(str(request.url), body)


def _tell_prepared(request: Any) -> None:
    body = request.body
    if request.method == "POST" and isinstance(body, bytes | bytearray | str):
        _tell(str(request.url), bytes(body) if isinstance(body, bytearray) else body)


def _tell(url: str, body: bytes | str) -> None:
    for recorder in _active:
        recorder.request_sent(url, body)


def _wrap_sent_requests() -> None:
    original = SentRequests.add

    @wraps(original)
    def told(self: SentRequests, engine: Any, steps: list[Any]) -> None:
        known = len(self.breaks)
        original(self, engine, steps)
        for found in self.breaks[known:]:
            for recorder in _active:
                recorder.prefix_break(self, found, steps)

    setattr(SentRequests, "add", told)  # noqa: B010  a plain assignment to a method is a type error
    _restore.append(lambda: setattr(SentRequests, "add", original))
