"""The messages of a client's request, decoded and digested only where they are new.

A client sends the same bytes again and again, with a little more at the end. So bytes are compared first: a prefix
that equals an earlier request's has the same digests, and its messages are decoded only when they are used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, overload

import msgspec
from msgspec import Raw

from foveal.core.log.events import Dialect
from foveal.core.wire.common import Json
from foveal.server.proxy.digests import digest_of, empty_history_digest, extend_digests, is_instruction

MAX_REMEMBERED_MESSAGES: Final = 400_000
"""Messages in the cache, of all requests together."""
_decode_list: Final = msgspec.json.Decoder(list[Raw])
_decode_message: Final = msgspec.json.Decoder(dict[str, Any])


class ClientMessages(Sequence[Json]):
    """A sequence of messages, each decoded on first use."""

    def __init__(self, raw: Sequence[Raw]) -> None:
        self._raw = raw
        self._decoded: dict[int, Json] = {}

    def __len__(self) -> int:
        return len(self._raw)

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
            self._decoded[at] = without_empty_fields(_decode_message.decode(self._raw[at]))
        return self._decoded[at]

    def message_bytes(self, at: int) -> int:
        """Return the size in bytes of a message as it arrived."""
        return memoryview(self._raw[at]).nbytes

    def __iter__(self) -> Iterator[Json]:
        return (self[at] for at in range(len(self)))


class KnownPrefix(NamedTuple):
    """Digests of the messages of an earlier request."""

    digests: list[bytes]
    instructions: dict[int, bytes]


class RequestCache:
    """Digests of earlier requests, found by the bytes of their messages; the oldest requests are removed first."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, KnownPrefix] = OrderedDict()
        self._size = 0

    def longest_prefix(self, byte_digests: Sequence[bytes]) -> tuple[int, KnownPrefix]:
        """Return how many messages equal those of an earlier request, and their digests."""
        for at in range(len(byte_digests) - 1, -1, -1):
            known = self._known.get(byte_digests[at])
            if known is not None:
                return at + 1, known
        return 0, KnownPrefix([], {})

    def add(self, byte_digest: bytes, known: KnownPrefix) -> None:
        if byte_digest not in self._known:
            self._size += len(known.digests)
            self._known[byte_digest] = known
        while self._size > MAX_REMEMBERED_MESSAGES:
            _, oldest = self._known.popitem(last=False)
            self._size -= len(oldest.digests)


class ClientHistory(NamedTuple):
    messages: ClientMessages
    digests: list[bytes]
    instructions: dict[int, bytes]
    has_references: bool
    """A message refers to something that only the provider has."""

    @classmethod
    def read(cls, raw: Raw, dialect: Dialect, cache: RequestCache) -> ClientHistory:
        """Read a history; raises the decoder's errors or `TypeError` if `raw` is not one."""
        if dialect == "openai_responses" and bytes(memoryview(raw)[:1]) == b'"':
            raw = Raw(msgspec.json.encode([{"role": "user", "content": msgspec.json.decode(raw)}]))
        listed = _decode_list.decode(raw)
        messages = ClientMessages(listed)
        byte_digests = _byte_digests(listed, dialect)
        start, known = cache.longest_prefix(byte_digests)
        new = messages[start:]
        last = known.digests[start - 1] if start else empty_history_digest(dialect)
        digests = known.digests[:start] + extend_digests(last, new, dialect)
        said = {place: instruction_digest(one) for place, one in enumerate(new, start) if is_instruction(one)}
        instructed = {place: text for place, text in known.instructions.items() if place < start} | said
        refers = any(one.get("type") == "item_reference" for one in new)
        if not refers and byte_digests:
            cache.add(byte_digests[-1], KnownPrefix(digests, instructed))
        return cls(messages, digests, instructed, refers)


def instruction_digest(message: Json) -> bytes:
    """Return a digest of an instruction's text."""
    return digest_of(msgspec.json.encode(message.get("content")))


def _byte_digests(raw: Sequence[Raw], dialect: Dialect) -> list[bytes]:
    """Return, for each message, a digest of all bytes up to it."""
    last = dialect.encode()
    found: list[bytes] = []
    for one in raw:
        last = blake2b(one, digest_size=16, key=last).digest()
        found.append(last)
    return found


def without_empty_fields(message: Json) -> Json:
    """Return a message without null and empty-list fields: client libraries send missing values that way."""
    values = message.values()
    if None not in values and [] not in values:
        return message
    return {name: value for name, value in message.items() if value is not None and value != []}
