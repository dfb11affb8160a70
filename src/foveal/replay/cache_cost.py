"""What requests cost when the provider keeps the beginning of the one before in its cache.

Cached is the longest prefix that a request shares with the request before it: whole messages, and of the first
that differs as much text as is the same. A cache that nobody used for longer than its TTL is empty.

    bill = write × uncached + read × cached        in tokens at the price of uncached input
"""

from __future__ import annotations

from typing import Final, NamedTuple

from foveal.core.models.model import Model
from foveal.replay.recall_score import MessageText, RequestReader, RequestText


class RelativePrices(NamedTuple):
    """What a token costs relative to one of uncached input that nobody keeps."""

    read: float
    write: float
    minimum: int = 0
    """A shorter prefix than this is not cached."""

    def bill(self, tokens: int, cached: int) -> float:
        cached = cached if cached >= self.minimum else 0
        return self.write * (tokens - cached) + self.read * cached


PLAIN: Final = RelativePrices(read=0.1, write=1.0)
"""The prices that most providers have, for comparing figures between models."""


def prices(model: Model) -> RelativePrices:
    """A model's own price row."""
    return RelativePrices(model.read_ratio, model.write_ratio, model.cache_minimum)


class BilledRequest(NamedTuple):
    tokens: int
    cached: int
    broke: bool
    """The request before was not the beginning of this one."""


class PromptCache:
    """The provider's cache, as one conversation fills it."""

    def __init__(self, reader: RequestReader, *, ttl: float) -> None:
        self._reader = reader
        self._ttl = ttl
        self._before: RequestText | None = None
        self._used = 0.0

    def send(self, request: RequestText, *, now: float) -> BilledRequest:
        before, self._before = self._before, request
        cold, self._used = now - self._used > self._ttl, now
        if before is None:
            return BilledRequest(request.tokens, 0, broke=False)
        same, tokens = _shared(before.pieces, request.pieces)
        broke = same < len(before.pieces)
        if cold:
            return BilledRequest(request.tokens, 0, broke)
        if broke and same < len(request.pieces):
            tokens += self._partly(before.pieces[same], request.pieces[same])
        return BilledRequest(request.tokens, tokens, broke)

    def _partly(self, old: MessageText, new: MessageText) -> int:
        """Tokens of the beginning that two different messages have in common."""
        same = common_prefix(old.text, new.text)
        return min(old.tokens, new.tokens, self._reader.count(new.text[:same])) if same else 0


def _shared(old: tuple[MessageText, ...], new: tuple[MessageText, ...]) -> tuple[int, int]:
    """How many pieces both begin with, and their tokens."""
    count = tokens = 0
    for one, other in zip(old, new, strict=False):
        if one is not other:
            break
        count += 1
        tokens += one.tokens
    return count, tokens


def common_prefix(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
