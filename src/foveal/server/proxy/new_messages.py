"""The messages of a request, read only as far as they are new.

A client sends the same bytes again and again, with a little more at the end. So bytes are compared first: where
they are those of an earlier request, its digests hold, and nothing is decoded before somebody asks for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, overload

import msgspec
from msgspec import Raw

from foveal.core.log.events import Dialect
from foveal.server.proxy import digests as chain

Json = dict[str, Any]

MOST: Final = 400_000
"""Messages that are remembered, of all requests together."""
_list: Final = msgspec.json.Decoder(list[Raw])
_one: Final = msgspec.json.Decoder(dict[str, Any])


class ClientMessages(Sequence[Json]):
    """Messages that are decoded when they are needed."""

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
            return [self[place] for place in range(*at.indices(len(self)))]
        if at < 0:
            at += len(self)
        if at not in self._decoded:
            self._decoded[at] = cleaned(_one.decode(self._raw[at]))
        return self._decoded[at]

    def size(self, at: int) -> int:
        """Bytes of a message as it came."""
        return memoryview(self._raw[at]).nbytes

    def __iter__(self) -> Iterator[Json]:
        return (self[at] for at in range(len(self)))


class KnownPrefix(NamedTuple):
    """What was found out about the messages of a request."""

    digests: list[bytes]
    instructed: dict[int, bytes]


class RequestCache:
    """Requests by their bytes."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, KnownPrefix] = OrderedDict()
        self._size = 0

    def longest(self, marks: Sequence[bytes]) -> tuple[int, KnownPrefix]:
        """How many messages are those of an earlier request, and what is known of them."""
        for at in range(len(marks) - 1, -1, -1):
            known = self._known.get(marks[at])
            if known is not None:
                return at + 1, known
        return 0, KnownPrefix([], {})

    def keep(self, mark: bytes, known: KnownPrefix) -> None:
        if mark not in self._known:
            self._size += len(known.digests)
            self._known[mark] = known
        while self._size > MOST:
            _, oldest = self._known.popitem(last=False)
            self._size -= len(oldest.digests)


class ClientHistory(NamedTuple):
    messages: ClientMessages
    digests: list[bytes]
    instructed: dict[int, bytes]
    refers: bool
    """It refers to something that only the provider has."""

    @classmethod
    def read(cls, raw: Raw, dialect: Dialect, memory: RequestCache) -> ClientHistory:
        """Raises what the decoder raises, and TypeError, for what is no history."""
        if dialect == "openai_responses" and bytes(memoryview(raw)[:1]) == b'"':
            raw = Raw(msgspec.json.encode([{"role": "user", "content": msgspec.json.decode(raw)}]))
        listed = _list.decode(raw)
        messages = ClientMessages(listed)
        marks = _marks(listed, dialect)
        start, known = memory.longest(marks)
        new = messages[start:]
        last = known.digests[start - 1] if start else chain.start(dialect)
        digests = known.digests[:start] + chain.extended(last, new, dialect)
        said = {place: words(one) for place, one in enumerate(new, start) if chain.instructs(one)}
        instructed = {place: text for place, text in known.instructed.items() if place < start} | said
        refers = any(one.get("type") == "item_reference" for one in new)
        if not refers and marks:
            memory.keep(marks[-1], KnownPrefix(digests, instructed))
        return cls(messages, digests, instructed, refers)


def words(message: Json) -> bytes:
    """A digest of what an instruction says."""
    return chain.fingerprint(msgspec.json.encode(message.get("content")))


def _marks(raw: Sequence[Raw], dialect: Dialect) -> list[bytes]:
    """A digest of the bytes up to each message."""
    last = dialect.encode()
    found: list[bytes] = []
    for one in raw:
        last = blake2b(one, digest_size=16, key=last).digest()
        found.append(last)
    return found


def cleaned(message: Json) -> Json:
    """A message without fields that say nothing: libraries send what they have not got as null."""
    values = message.values()
    if None not in values and [] not in values:
        return message
    return {name: value for name, value in message.items() if value is not None and value != []}
