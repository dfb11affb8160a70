"""A client's request: what of it is a conversation, and the same request with other messages in it.

Whatever is not changed goes on as the bytes that came. What cannot be read as a history is not managed: `problem`
says why, and the request goes upstream as it is, so that the provider's own answer comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from foveal.core import wire
from foveal.core.log.events import AnyFact, Dialect, Instructed
from foveal.core.wire import MessageChunk
from foveal.server.proxy.new_messages import ClientHistory, ClientMessages, RequestCache

Json = dict[str, Any]

_MESSAGES: Final[dict[Dialect, str]] = {
    "openai_chat": "messages",
    "openai_responses": "input",
    "anthropic": "messages",
}
_SYSTEM: Final[dict[Dialect, str]] = {"openai_responses": "instructions", "anthropic": "system"}
_OUTPUT: Final[dict[Dialect, tuple[str, ...]]] = {
    "openai_chat": ("max_completion_tokens", "max_tokens"),
    "openai_responses": ("max_output_tokens",),
    "anthropic": ("max_tokens",),
}
_ELSEWHERE: Final = ("previous_response_id", "conversation", "prompt")
"""Fields by which a part of the history is kept at the provider, where nobody can see it."""
_NULL: Final = b"null"


class ClientRequest:
    """One request."""

    def __init__(self, dialect: Dialect, body: bytes, memory: RequestCache | None = None) -> None:
        """`memory` is of requests before this one."""
        self.dialect: Dialect = dialect
        self._memory = memory if memory is not None else RequestCache()
        self.body = body
        self.fields: dict[str, Raw] = {}
        self.model = ""
        self.streamed = False
        self.messages = ClientMessages(())
        self.digests: list[bytes] = []
        """The digest after each message."""
        self.instructed: dict[int, bytes] = {}
        """The places of instructions, and the digest of what each says."""
        self.max_tokens = 0
        """What the answer may take, if the client says so."""
        self.problem = self._read()
        """Why this is not a history that can be managed; "" when it is one."""

    def _read(self) -> str:
        try:
            str(self.body, "utf-8")  # what stays bytes is not looked at otherwise
            self.fields = msgspec.json.decode(self.body, type=dict[str, Raw])
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return "the body is no JSON object"
        model = self._field("model")
        self.streamed = self._field("stream") is True
        if not isinstance(model, str) or not model:
            return "no model is named"
        self.model = model
        output = [self._field(name) for name in _OUTPUT[self.dialect]]
        self.max_tokens = next((value for value in output if type(value) is int and value > 0), 0)
        elsewhere = [name for name in _ELSEWHERE if self._field(name) is not None]
        if self.dialect == "openai_responses" and elsewhere:
            return f"a part of the history is at the provider: {elsewhere[0]}"
        return self._take()

    def _take(self) -> str:
        name = _MESSAGES[self.dialect]
        try:
            history = ClientHistory.read(self.fields.get(name, Raw(b"null")), self.dialect, self._memory)
        except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
            return f"{name} is no list of messages"
        if not history.messages:
            return f"{name} is no list of messages"
        if history.refers:
            return "a part of the history is at the provider: item_reference"
        self.messages, self.digests, self.instructed = history.messages, history.digests, history.instructed
        return ""

    def _field(self, name: str) -> Any:
        value = self.fields.get(name)
        if value is None:
            return None
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None

    # ── what it says ─────────────────────────────────────────────────────────────────────────────────

    def chunks(self, start: int) -> list[MessageChunk]:
        """The facts from message `start` on; raises `MalformedMessage`."""
        return list(wire.wire(self.dialect).read(self.messages, start))

    def instruction(self, at: int) -> Instructed | None:
        """The instruction that stands at this place."""
        facts = next(wire.wire(self.dialect).read(self.messages[at : at + 1])).facts
        fact = facts[0] if len(facts) == 1 else None
        return fact if isinstance(fact, Instructed) else None

    def size(self, at: int, count: int) -> int:
        """Bytes of some messages."""
        return sum(self.messages.size(place) for place in range(at, at + count))

    @property
    def system(self) -> bytes:
        """The bytes of the system text that goes beside the messages."""
        return self._beside(_SYSTEM.get(self.dialect, ""))

    @property
    def tools(self) -> bytes:
        return self._beside("tools")

    def _beside(self, name: str) -> bytes:
        value = bytes(self.fields.get(name, b""))
        return b"" if value in (_NULL, b"[]", b'""') else value

    def aside(self) -> AnyFact:
        """The system text beside the messages as a fact; raises `MalformedMessage`."""
        text = self._field(_SYSTEM.get(self.dialect, "")) or ""
        chunk = next(wire.wire("anthropic").read([{"role": "system", "content": text}]))
        fact = chunk.facts[0]
        assert isinstance(fact, Instructed)
        return msgspec.structs.replace(fact, aside=True)

    def rename(self, model: str) -> None:
        """Ask for the model by the name that its server knows."""
        self.fields["model"] = Raw(msgspec.json.encode(model))
        self.body = msgspec.json.encode(self.fields)

    # ── the same with other messages ─────────────────────────────────────────────────────────────────

    def written(self, messages: list[Json] | None, *, max_tokens: int = 0) -> bytes:
        """The body with these messages (its own, if None) and a smaller limit for the answer (if not 0)."""
        if messages is None and not max_tokens:
            return self.body
        fields: dict[str, Any] = dict(self.fields)
        if messages is not None:
            fields[_MESSAGES[self.dialect]] = messages
        for name in _OUTPUT[self.dialect] if max_tokens else ():
            if name in fields:
                fields[name] = max_tokens
        return msgspec.json.encode(fields)

    def gist(self, keep: Iterable[str]) -> RequestGist:
        """What another request to the same model takes over from this one."""
        names = _OUTPUT[self.dialect]
        return RequestGist(
            dialect=self.dialect,
            model=self.fields["model"].copy(),
            limit=next((name for name in names if name in self.fields), names[-1]),
            fields={name: self.fields[name].copy() for name in keep if name in self.fields},
        )


class RequestGist(NamedTuple):
    """A request without its messages: little enough to be kept while its conversation is open."""

    dialect: Dialect
    model: Raw
    limit: str
    """The field that says how long the answer may be."""
    fields: Mapping[str, Raw]

    def written(self, messages: list[Json], *, max_tokens: int, more: Mapping[str, Any]) -> bytes:
        """Another request, with other messages."""
        asked = {"model": self.model, _MESSAGES[self.dialect]: messages, self.limit: max_tokens}
        return msgspec.json.encode({**more, **asked})
