"""A client's request to the proxy: read its history, encode it with other messages.

Fields that are not changed are forwarded as the bytes that arrived. A body that cannot be read as a history is
not managed: `problem` says why, and the request goes upstream unchanged, so that the client gets the
provider's answer.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from secrets import token_bytes
from struct import Struct
from threading import Lock
from typing import Any, Final, NamedTuple, TypeAlias, overload

import msgspec
from msgspec import Raw

from foveal.core import wire
from foveal.core.log.events import AnyFact, Dialect, ForeignSummary, Instructed, parts
from foveal.core.wire import MessageChunk
from foveal.core.wire.bound_thinking import has_thinking_blocks, with_dropped_blocks
from foveal.core.wire.cache_marks import MAX_CACHE_MARKS, count_cache_marks_in_json, strip_cache_marks
from foveal.core.wire.common import Json, most_values, native_dialect
from foveal.core.wire.native_compaction import COMPACTION_TRIGGER
from foveal.providers.anthropic import add_breakpoints
from foveal.transport.digests import digest_of, empty_history_digest, extend_digests, is_instruction

_MESSAGES_FIELD: Final[dict[Dialect, str]] = {
    "openai_chat": "messages",
    "openai_responses": "input",
    "anthropic": "messages",
    "gemini": "contents",
    "bedrock": "messages",
}
_SYSTEM_FIELD: Final[dict[Dialect, str]] = {
    "openai_responses": "instructions",
    "anthropic": "system",
    "gemini": "systemInstruction",
    "bedrock": "system",
}
_MAX_TOKENS_FIELDS: Final[dict[Dialect, tuple[str, ...]]] = {
    "openai_chat": ("max_completion_tokens", "max_tokens"),
    "openai_responses": ("max_output_tokens",),
    "anthropic": ("max_tokens",),
    "gemini": ("maxOutputTokens",),
    "bedrock": ("maxTokens",),
}
_GENERATION_FIELD: Final = "generationConfig"
"""The field of a Gemini request with the limit for the answer."""
_STORED_HISTORY_FIELDS: Final = ("previous_response_id", "conversation", "prompt")
"""Fields that refer to a part of the history which the provider stores, where the proxy cannot see it."""
COMPACTED_BY_PROVIDER: Final = "the provider compacts this conversation"
"""Why a request that asks for a compaction is forwarded unchanged: the provider must read the conversation, not our
record of it."""
_NULL: Final = b"null"
_decode_fields: Final = msgspec.json.Decoder(dict[str, Raw]).decode
CheckDepth: TypeAlias = Callable[[bytes, int], None]
"""Refuses a part of a body that is nested too deeply; the number is that of the levels around the part."""


CheckValues: TypeAlias = Callable[[bytes, int], None]
"""Refuses a body with too many values; it has at most as many as the number says."""


def _accept(text: bytes, number: int) -> None:
    """Accept all: msgspec refuses what it cannot decode."""


class ClientRequest:
    def __init__(
        self,
        dialect: Dialect,
        body: bytes,
        cache: RequestCache | None = None,
        *,
        model: str = "",
        asks_for_compaction: bool = False,
        owner: str = "",
        check_values: CheckValues = _accept,
        check_depth: CheckDepth = _accept,
    ) -> None:
        """`cache` holds the digests of earlier requests; those of another `owner` are not found. `model` is the
        model of a request that does not name it in its body. A request to an endpoint that compacts
        `asks_for_compaction`. `check_values` is called before anything is decoded, `check_depth` with what no
        earlier request of the cache had."""
        self.dialect: Dialect = dialect
        self._owner, self._check_values, self._check_depth = owner, check_values, check_depth
        self._cache = cache if cache is not None else RequestCache()
        self.body: bytes = body
        self.fields: dict[str, Raw] = {}
        self.model: str = model
        self.is_streamed: bool = False
        self.messages: ClientMessages = ClientMessages(b"", 0, array("Q"))
        self.digests: list[bytes] = []
        """For each message, the digest of the history up to it."""
        self.instructions: dict[int, bytes] = {}
        """For each instruction among the messages: its position and the digest of its text."""
        self.blocks: Sequence[bytes] = ()
        """The keys of the blocks of the messages."""
        self.max_tokens: int = 0
        """The client's limit for the answer; 0 if it sets none."""
        self.asked_max_tokens: int = 0
        """The client's own limit, if a smaller one is sent because the model allows no more; otherwise 0."""
        self.allows_binding_controls: bool = True
        """Whether the upstream is not known to refuse the field `block_binding`."""
        self.asks_for_compaction: bool = asks_for_compaction
        """Whether the provider shall compact the conversation: the request is recorded and goes out unchanged."""
        self._trigger: Sequence[Json] = ()
        """The item that asks for the compaction."""
        self.problem: str = self._read()
        """Why the request cannot be managed; "" if it can."""

    def _read(self) -> str:
        name = _MESSAGES_FIELD[self.dialect]
        try:
            first = first_block_key(self.dialect, self._owner)
            split = SplitBody.read(self.body, name, self._cache, first, self._check_values)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self._check_depth(self.body, 0)
            return "the body is not a JSON object"
        self.fields, self.blocks = split.fields, split.blocks
        beside = (value for field, value in self.fields.items() if field != name)
        self._check_depth(b",".join((*beside, split.new)), 1)
        return self._read_fields() or self._read_history(split)

    def _read_fields(self) -> str:
        """Read the fields beside the messages; return why the request cannot be managed."""
        model = self.model or self._field("model")
        self.is_streamed = self._field("stream") is True
        if not isinstance(model, str) or not model:
            return "no model is named"
        self.model = model
        limits = self._generation() if self.dialect == "gemini" else None
        output = [
            self._field(name) if limits is None else limits.get(name)
            for name in _MAX_TOKENS_FIELDS[self.dialect]
        ]
        self.max_tokens = next((value for value in output if type(value) is int and value > 0), 0)
        if stored := self._stored_history_field():
            return f"a part of the history is at the provider: {stored}"
        return ""

    def _stored_history_field(self) -> str:
        """Return the field that refers to history at the provider; "" if the body has the whole history."""
        if self.dialect == "anthropic":
            thread = self._field("thread")  # one that is created begins with the messages of this request
            return "thread" if isinstance(thread, dict) and thread.get("type") == "continue" else ""
        names = _STORED_HISTORY_FIELDS if self.dialect == "openai_responses" else ()
        return next((name for name in names if self._field(name) is not None), "")

    def _read_history(self, split: SplitBody) -> str:
        name = _MESSAGES_FIELD[self.dialect]
        try:
            history = ClientHistory.read(split, self.dialect, self._cache)
        except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
            return f"{name} is not a list of messages"
        if not history.messages:
            return f"{name} is not a list of messages"
        if history.has_references:
            return "a part of the history is at the provider: item_reference"
        asked = self._field("compaction") if self.dialect == "anthropic" else None
        if isinstance(asked, dict) and asked.get("type") == "summarize":
            self.asks_for_compaction = True
        elif (
            self.dialect == "openai_responses"
            and history.messages[-1].get("type") == COMPACTION_TRIGGER["type"]
        ):
            self.asks_for_compaction = True
            self._trigger = history.messages[-1:]
            history = history.without_last()  # the trigger is no part of the conversation
        self.messages, self.digests, self.instructions = (
            history.messages,
            history.digests,
            history.instructions,
        )
        return "" if self.messages else f"{name} is not a list of messages"

    def _field(self, name: str) -> Any:
        value = self.fields.get(name)
        if value is None:
            return None
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None

    def _generation(self) -> Json:
        value = self._field(_GENERATION_FIELD)
        return value if isinstance(value, dict) else {}

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────────

    def chunks(self, start: int) -> list[MessageChunk]:
        """Return the facts from message `start` on; raises `MalformedMessage`."""
        return list(wire.wire_for(self.dialect).read(self.messages, start))

    def instruction(self, at: int) -> Instructed | None:
        """Return the instruction at this position, or None if the message is not one."""
        facts = next(wire.wire_for(self.dialect).read(self.messages[at : at + 1])).facts
        fact = facts[0] if len(facts) == 1 else None
        return fact if isinstance(fact, Instructed) else None

    def newest_summary(self, start: int) -> ForeignSummary | None:
        """Return the newest summary of the provider among the messages from `start` on; raises
        `MalformedMessage`."""
        places = (
            at for at in range(len(self.messages) - 1, start - 1, -1) if self.messages.mentions_summary(at)
        )
        facts = (fact for at in places for chunk in self._read_one(at) for fact in reversed(chunk.facts))
        return next((fact for fact in facts if isinstance(fact, ForeignSummary)), None)

    def _read_one(self, at: int) -> Iterator[MessageChunk]:
        return wire.wire_for(self.dialect).read(self.messages[at : at + 1])

    def count_same(self, blocks: Sequence[bytes]) -> int:
        """Return how many messages are, byte for byte, those of an earlier request with these blocks."""
        count = min(len(blocks), len(self.blocks))
        while (
            count and blocks[count - 1] != self.blocks[count - 1]
        ):  # the key of a block covers those before it
            count -= 1
        return self.messages.count_within(count * DIGESTED_BLOCK_BYTES)

    def message_bytes(self, at: int, count: int) -> int:
        """Return the size in bytes of `count` messages from position `at` on."""
        return sum(self.messages.message_bytes(place) for place in range(at, at + count))

    @property
    def system(self) -> bytes:
        """The bytes of the system text in a field of its own; b"" if there is none."""
        return self._raw_field(_SYSTEM_FIELD.get(self.dialect, ""))

    @property
    def tools(self) -> bytes:
        return self._raw_field("tools")

    @property
    def answers(self) -> int:
        """How many answers the client asks for."""
        asked = {"openai_chat": self._field("n"), "gemini": self._generation().get("candidateCount")}
        count = asked.get(self.dialect)
        return count if type(count) is int and count > 0 else 1

    @property
    def end_user(self) -> str:
        """The user whom the client names to the provider; "" if it names none."""
        metadata = self._field("metadata") if self.dialect == "anthropic" else None
        named = [_user_of_claude_code(metadata.get("user_id"))] if isinstance(metadata, dict) else []
        if self.dialect in ("openai_chat", "openai_responses"):
            named = [self._field("safety_identifier"), self._field("user")]
        return next((value for value in named if isinstance(value, str) and value), "")

    def system_value(self) -> Any:
        """Return the value of the field with the system text; None if there is none."""
        return self._field(_SYSTEM_FIELD.get(self.dialect, "")) if self.system else None

    def tool_list(self) -> Any:
        """Return the value of the field with the tools; an empty list if there is none."""
        return (self._field("tools") if self.tools else None) or []

    def _raw_field(self, name: str) -> bytes:
        value = bytes(self.fields.get(name, b""))
        return b"" if value in (_NULL, b"[]", b'""') else value

    def system_fact(self) -> AnyFact:
        """Return the system text of that field as a fact; raises `MalformedMessage`."""
        text = self._field(_SYSTEM_FIELD.get(self.dialect, "")) or ""
        chunk = next(wire.wire_for("anthropic").read([{"role": "system", "content": text}]))
        fact = chunk.facts[0]
        assert isinstance(fact, Instructed)
        dialect = native_dialect("anthropic", fact.extra, parts(fact.content))
        return msgspec.structs.replace(fact, aside=True, dialect=dialect)

    def set_model(self, model: str) -> None:
        """Replace the model's name by the one that upstream knows."""
        self.fields["model"] = Raw(msgspec.json.encode(model))
        self.body = msgspec.json.encode(self.fields)

    def limit_output(self, tokens: int) -> bool:
        """Ask for at most `tokens` in the answer, if the client asks for more; return whether it does. 0 is no
        limit. The thinking of an Anthropic model is a part of the answer, and must be smaller."""
        if not 0 < tokens < self.max_tokens or self.dialect in ("gemini", "bedrock"):
            return False
        self.asked_max_tokens = self.asked_max_tokens or self.max_tokens
        self.max_tokens = tokens
        limited: dict[str, Any] = {n: tokens for n in _MAX_TOKENS_FIELDS[self.dialect] if n in self.fields}
        thinking = self._field("thinking") if self.dialect == "anthropic" else None
        if (
            isinstance(thinking, dict)
            and type(budget := thinking.get("budget_tokens")) is int
            and budget >= tokens
        ):
            limited["thinking"] = {**thinking, "budget_tokens": tokens - 1}
        self.fields |= {name: Raw(msgspec.json.encode(value)) for name, value in limited.items()}
        self.body = msgspec.json.encode(self.fields)
        return True

    def refuse_binding_controls(self) -> None:
        """Do not send the field `block_binding`: the upstream refuses it."""
        self.allows_binding_controls = False

    # ── Writing ──────────────────────────────────────────────────────────────────────────────────────

    def dropped_blocks(self) -> Json | None:
        """Return the field `thinking` that has the provider leave out thinking that it would refuse; None if the
        field stays as it is."""
        if self.dialect != "anthropic" or not self.allows_binding_controls:
            return None
        given = self._field("thinking")
        thinks = given is None and any(map(has_thinking_blocks, self.messages))
        return with_dropped_blocks(given, thinks=thinks)

    def encode(
        self,
        messages: Sequence[Json | Raw] | None,
        *,
        max_tokens: int = 0,
        thinking: Json | None = None,
    ) -> bytes:
        """Return the body with these messages (None: its own), this limit for the answer (0: its own) and this
        field `thinking` (None: its own)."""
        if messages is None and not max_tokens:
            return self.body
        fields: dict[str, Any] = dict(self.fields)
        if messages is not None:
            fields[_MESSAGES_FIELD[self.dialect]] = [*messages, *self._trigger]
        if thinking is not None:
            fields["thinking"] = thinking
        if self.dialect == "gemini" and max_tokens:
            fields[_GENERATION_FIELD] = {**self._generation(), "maxOutputTokens": max_tokens}
        for name in _MAX_TOKENS_FIELDS[self.dialect] if max_tokens else ():
            if name in fields:
                fields[name] = max_tokens
        return msgspec.json.encode(fields)

    def template(self, keep: Iterable[str]) -> RequestTemplate:
        """Return what a request for a summary takes over from this one."""
        names = _MAX_TOKENS_FIELDS[self.dialect]
        return RequestTemplate(
            dialect=self.dialect,
            model=self.fields["model"].copy(),
            max_tokens_field=next((name for name in names if name in self.fields), names[-1]),
            fields={name: self.fields[name].copy() for name in keep if name in self.fields},
        )


class RequestTemplate(NamedTuple):
    """A request without its messages, small enough to keep while its conversation is open."""

    dialect: Dialect
    model: Raw
    max_tokens_field: str
    """The field with the limit for the answer."""
    fields: Mapping[str, Raw]

    def decoded(self, name: str) -> Any:
        """Return the value of a field; None if the request has no such field."""
        return msgspec.json.decode(self.fields[name]) if name in self.fields else None

    def encode(self, messages: list[Json], *, max_tokens: int, more: Mapping[str, Any]) -> bytes:
        """Return the body of a request with other messages."""
        own = {
            "model": self.model,
            _MESSAGES_FIELD[self.dialect]: messages,
            self.max_tokens_field: max_tokens,
        }
        return msgspec.json.encode({**more, **own})


# ── Client history ─────────────────────────────────────────────────────────────────────────────────────
# The messages of a request, decoded and digested only where they are new. A client sends the same bytes again
# with a little more at the end, so the bytes of the list are compared in blocks, which needs no JSON decoder. A
# message that ends within the blocks of an earlier request has the same digest there, and is decoded only when it
# is used.
#
# Of an earlier request, no bytes are kept, only a key of 128 bits for each block. No client can make two different
# blocks have one key: it depends on secrets of this process, is never told, and covers all bytes before the block,
# the dialect and the owner.

MAX_CACHED_DIGESTS: Final = 400_000
"""Digests in the cache: of messages and of blocks, of all requests together."""
DIGESTED_BLOCK_BYTES: Final = 4 * 1024
"""Bytes that have one key. What follows the last whole block that an earlier request had is read anew."""
MAX_FIELD_PLACES: Final = 8
"""Places of a body that are tried as the field with the messages: others may be nested, in the schema of a tool."""
_decode_list: Final = msgspec.json.Decoder(list[Raw]).decode
_decode_message: Final = msgspec.json.Decoder(dict[str, Any]).decode
_SPACE: Final = b" \t\r\n"
_BETWEEN_MESSAGES: Final = _SPACE + b","
_REST: Final = "\0"
"""Name under which the end of a list is decoded."""
_REST_HEAD: Final = b'{"\\u0000":['
_SUMMARY_TYPE: Final = b'"compaction'
_SECRET: Final = token_bytes(32)
_HAS_SIPHASH: Final = sys.hash_info.algorithm.startswith("siphash") and sys.hash_info.width == 64
_two_numbers: Final = Struct("qq").pack


class ClientMessages(Sequence[Json]):
    """A sequence of messages, each decoded on first use."""

    def __init__(self, text: bytes, start: int, ends: array[int], dialect: Dialect = "") -> None:
        """`text` contains the messages from `start` on; `ends` says where each ends, counted from there."""
        self._text, self._start, self._ends = text, start, ends
        self._decode = _decode_chat if dialect == "openai_chat" else _decode_message
        self._decoded: dict[int, Json] = {}

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, at: int) -> Json: ...
    @overload
    def __getitem__(self, at: slice) -> list[Json]: ...
    def __getitem__(self, at: int | slice) -> Json | list[Json]:
        if isinstance(at, slice):
            return [self[position] for position in range(*at.indices(len(self)))]
        if at < 0:
            at += len(self)
        if at not in self._decoded:
            self._decoded[at] = self._decode(self.text(at))
        return self._decoded[at]

    def without_last(self) -> ClientMessages:
        """Return all messages but the last."""
        return ClientMessages(self._text, self._start, self._ends[:-1])

    def text(self, at: int) -> bytes:
        """Return a message as it arrived."""
        first, end = self._place(at)
        return self._text[first:end].lstrip(_BETWEEN_MESSAGES)

    def mentions_summary(self, at: int) -> bool:
        """Return whether a message may be a summary of the provider, or contain one."""
        return self._text.find(_SUMMARY_TYPE, *self._place(at)) >= 0

    def message_bytes(self, at: int) -> int:
        """Return the size in bytes of a message as it arrived, with what separates it from the one before."""
        first, end = self._place(at)
        return end - first

    def count_within(self, size: int) -> int:
        """Return how many messages end within so many bytes."""
        return bisect_right(self._ends, size)

    def _place(self, at: int) -> tuple[int, int]:
        if not 0 <= at < len(self._ends):
            raise IndexError(at)
        return self._start + (self._ends[at - 1] if at else 0), self._start + self._ends[at]

    def __iter__(self) -> Iterator[Json]:
        return (self[at] for at in range(len(self)))


class KnownHistory(NamedTuple):
    """The messages of an earlier request, or the first of them."""

    ends: array[int]
    """Where each ends, in bytes from the beginning of the first."""
    digests: list[bytes]
    instructions: dict[int, bytes]
    values: array[int]
    """For each block of the body, how many values it has at most."""

    @classmethod
    def empty(cls) -> KnownHistory:
        return cls(array("Q"), [], {}, array("I"))

    def first(self, blocks: int) -> KnownHistory:
        """Return the messages that end within the first `blocks`."""
        count = bisect_right(self.ends, blocks * DIGESTED_BLOCK_BYTES)
        said = {place: text for place, text in self.instructions.items() if place < count}
        return KnownHistory(self.ends[:count], self.digests[:count], said, self.values[:blocks])

    def with_values(self, body: bytes, start: int, blocks: int) -> KnownHistory:
        """Return the messages with the values of all `blocks` of a body, which are counted where they are new."""
        ends = (start + count * DIGESTED_BLOCK_BYTES for count in range(len(self.values) + 1, blocks + 1))
        new = array("I", [most_values(body[end - DIGESTED_BLOCK_BYTES : end]) for end in ends])
        return self._replace(values=self.values + new)

    @property
    def size(self) -> int:
        """The bytes of all messages."""
        return self.ends[-1] if self.ends else 0


class RequestCache:
    """Histories of earlier requests, found by the keys of their blocks; those that were not continued for the
    longest time are removed first."""

    def __init__(self) -> None:
        self._histories: OrderedDict[bytes, tuple[KnownHistory, list[bytes]]] = OrderedDict()
        """Each with the keys of its blocks, by the last of these."""
        self._last_blocks: dict[bytes, bytes] = {}
        """For each block, the last one of the newest history that has it."""
        self._size = 0
        self._lock = Lock()
        """Clients of a pool may be used by several threads."""

    def find(self, blocks: Sequence[bytes]) -> KnownHistory:
        """Return the messages that a history with these blocks has in common with an earlier one."""
        with self._lock:
            for count in range(len(blocks), 0, -1):
                if (last := self._last_blocks.get(blocks[count - 1])) is not None:
                    known, _ = self._histories[last]
                    return known.first(count)
        return KnownHistory.empty()

    def add(self, blocks: Sequence[bytes], known: KnownHistory) -> None:
        """Add a history, in place of the one that it continues."""
        whole = list(blocks[: known.size // DIGESTED_BLOCK_BYTES])
        if whole:
            with self._lock:
                self._replace(whole, known)

    def _replace(self, whole: list[bytes], known: KnownHistory) -> None:
        for block in whole:
            if self._last_blocks.get(block) == block:
                self._remove(block)
        self._histories[whole[-1]] = known, whole
        self._last_blocks.update(dict.fromkeys(whole, whole[-1]))
        self._size += len(known.digests) + len(whole)
        while self._size > MAX_CACHED_DIGESTS:
            self._remove(next(iter(self._histories)))

    def _remove(self, last: bytes) -> None:
        known, blocks = self._histories.pop(last)
        self._size -= len(known.digests) + len(blocks)
        for block in blocks:
            if self._last_blocks.get(block) == last:
                del self._last_blocks[block]


def first_block_key(dialect: Dialect, owner: str) -> bytes:
    """Return what stands for the key before the first block."""
    return blake2b(f"{dialect} {owner}".encode(), digest_size=16, key=_SECRET).digest()


def block_keys(text: bytes, start: int, last: bytes) -> list[bytes]:
    """Return, for each whole block from `start` on, the key of the bytes up to its end; `last` is that before the
    first. Two SipHashes take half the time of BLAKE2b; `hash` has only 64 bits, and a fixed PYTHONHASHSEED is no
    secret, so each begins with secret bytes."""
    found: list[bytes] = []
    for end in range(start + DIGESTED_BLOCK_BYTES, len(text) + 1, DIGESTED_BLOCK_BYTES):
        block = last + text[end - DIGESTED_BLOCK_BYTES : end]
        if _HAS_SIPHASH:
            last = _two_numbers(hash(block), hash(_SECRET + block))
        else:
            last = blake2b(block, digest_size=16, key=_SECRET).digest()
        found.append(last)
    return found


class SplitBody(NamedTuple):
    """A body without the messages that an earlier request had too."""

    fields: dict[str, Raw]
    """All fields, with the whole list of messages."""
    text: bytes
    """What contains the messages."""
    start: int
    """Where the first message may begin."""
    blocks: list[bytes]
    """The keys of the blocks from there on."""
    known: KnownHistory
    new: Raw
    """The list of the messages that are not known."""
    new_start: int
    """Where the first of them may begin."""

    @classmethod
    def read(
        cls, body: bytes, name: str, cache: RequestCache, first_key: bytes, check_values: CheckValues
    ) -> SplitBody:
        """Split a body whose messages are in the field `name`; raises the decoder's errors, and those of
        `check_values`."""
        places = re.finditer(rb'"%b"\s*:\s*\[' % name.encode(), body)
        values_before = counted = 0
        for start in (place.end() for place in islice(places, MAX_FIELD_PLACES)):
            values_before, counted = values_before + most_values(body[counted:start]), start
            check_values(body, values_before)
            with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
                before = _decode_fields(body[: start - 1] + b"0}")
                if next(reversed(before)) == name:  # otherwise the place is nested
                    blocks = block_keys(body, start, first_key)
                    known = cache.find(blocks).with_values(body, start, len(blocks))
                    values_after = most_values(body[start + len(blocks) * DIGESTED_BLOCK_BYTES :])
                    check_values(body, values_before + sum(known.values) + values_after)
                    return cls._at(body, start, before, blocks, known)
        check_values(body, values_before + most_values(body[counted:]))
        return cls._whole(body, name)

    @classmethod
    def _whole(cls, body: bytes, name: str) -> SplitBody:
        str(body, "utf-8")  # msgspec does not check fields that stay raw bytes
        fields = _decode_fields(body)
        raw = fields.get(name, Raw(_NULL))
        return cls(fields, bytes(raw), 1, [], KnownHistory.empty(), raw, 1)

    @classmethod
    def _at(
        cls, body: bytes, start: int, before: dict[str, Raw], blocks: list[bytes], known: KnownHistory
    ) -> SplitBody:
        """Split a body before whose list of messages are these fields, the last of which is its own. The rest of
        the list is decoded as one of another name, so that a second field of the same name is noticed."""
        name = next(reversed(before))
        rest = body[start + known.size :].lstrip(_SPACE)
        has_more = bool(known.ends) and rest.startswith(b",")
        rest = rest[has_more:]
        str(body[:start], "utf-8")
        str(rest, "utf-8")
        after = _decode_fields(_REST_HEAD + rest)
        new = after.pop(_REST)
        listed = bytes(new)
        is_own = listed.startswith(b"[") and rest.startswith(listed[1:]) and name not in after
        if not is_own or (has_more and not listed[1:-1].strip(_SPACE)):
            return cls._whole(body, name)
        new_start = len(body) - len(rest)
        field = memoryview(body)[start - 1 : new_start + len(listed) - 1]
        return cls({**before, name: Raw(field), **after}, body, start, blocks, known, new, new_start)


class ClientHistory(NamedTuple):
    messages: ClientMessages
    digests: list[bytes]
    instructions: dict[int, bytes]
    has_references: bool
    """A message refers to something that only the provider has."""

    def without_last(self) -> ClientHistory:
        """Return the history without its last message."""
        return self._replace(messages=self.messages.without_last(), digests=self.digests[:-1])

    @classmethod
    def read(cls, split: SplitBody, dialect: Dialect, cache: RequestCache) -> ClientHistory:
        """Read the messages of a body; raises the decoder's errors if they are no list of messages."""
        if dialect == "openai_responses" and split.text.startswith(b'"'):
            said = msgspec.json.encode([{"role": "user", "content": msgspec.json.decode(split.new)}])
            split = split._replace(text=said, new=Raw(said))
        known, count = split.known, len(split.known.digests)
        ends = known.ends + _ends(split)
        messages = ClientMessages(split.text, split.start, ends, dialect)
        new = messages[count:]
        last = known.digests[-1] if count else empty_history_digest(dialect)
        digests = known.digests + extend_digests(last, new, dialect)
        instructions = known.instructions | {
            place: instruction_digest(one) for place, one in enumerate(new, count) if is_instruction(one)
        }
        refers = any(one.get("type") == "item_reference" for one in new)
        if not refers:
            cache.add(split.blocks, KnownHistory(ends, digests, instructions, known.values))
        return cls(messages, digests, instructions, refers)


def _user_of_claude_code(named: object) -> object:
    """Return the user in the `metadata.user_id` of a request: Claude Code adds its session, which is no other user
    when a conversation is resumed."""
    if not isinstance(named, str):
        return named
    if named.startswith("{"):
        with suppress(msgspec.DecodeError):
            fields = msgspec.json.decode(named, type=dict[str, Any])
            return fields.get("account_uuid") or fields.get("device_id")
    return _SESSION_OF_CLAUDE_CODE.sub("", named)


_SESSION_OF_CLAUDE_CODE: Final = re.compile(r"_session_[0-9a-f-]{36}$")


def instruction_digest(message: Json) -> bytes:
    """Return a digest of an instruction's text, or of all of it if it has settings in place of a text."""
    return digest_of(msgspec.json.encode(message.get("content", message)))


def _ends(split: SplitBody) -> array[int]:
    """Return where each new message ends, counted from the first message; raises the decoder's errors."""
    text, at, ends = split.text, split.new_start, array("Q")
    for raw in _decode_list(split.new):
        while text[at] in _BETWEEN_MESSAGES:
            at += 1
        at += memoryview(raw).nbytes
        ends.append(at - split.start)
    return ends


def _decode_chat(raw: bytes) -> Json:
    """Decode a chat message without null and empty-list fields: client libraries send missing values that way. In
    the other dialects such a field has a meaning, and may be required."""
    message = _decode_message(raw)
    values = message.values()
    if None not in values and [] not in values:
        return message
    return {name: value for name, value in message.items() if value is not None and value != []}


# ── Cache marks of a reduced history (Anthropic) ──────────────────────────────────────────────────

_MESSAGE_MARKS: Final = 2
"""Marks that the rule sets in the messages: on the newest block, and on the last one of the request before."""


def with_cache_marks(messages: Sequence[Json], request: ClientRequest, before: Sequence[Json]) -> list[Json]:
    """Return the messages with cache marks; `before` are the unmarked messages of the previous request.

    The messages that had the client's marks may be gone. So the client's marks are removed, and marks are set by
    the rule of `add_breakpoints`: as many as remain of the four, and none for a client without any."""
    bare: list[Json] = [strip_cache_marks(message) for message in messages]
    kept = count_cache_marks_in_json(request.system) + count_cache_marks_in_json(request.tools)
    left = MAX_CACHE_MARKS - kept
    if not count_cache_marks_in_json(request.body) or left <= 0:
        return bare
    marked = add_breakpoints({"messages": bare}, before if left >= _MESSAGE_MARKS else ())
    with_marks: list[Json] = marked["messages"]
    return with_marks
