"""Cost of requests with the provider's prompt cache.

The cached part of a request is the longest prefix that it shares with the previous request: whole messages, and the
common beginning of the first message that differs. A cache that was not used for longer than its TTL is empty.

    bill = write × uncached + read × cached        in tokens at the price of uncached input
"""

from __future__ import annotations

from typing import Final, NamedTuple

from foveal.core.models.model import Model
from foveal.core.wire.request_text import MessageText, RequestReader, RequestText, common_prefix_chars


class RelativePrices(NamedTuple):
    """Prices of a token relative to uncached input that is not written to the cache.

    Examples:
        ```python
        from foveal.replay import RelativePrices

        assert RelativePrices(read=0.1, write=1.0).bill(1_000, 900) == 190.0
        ```
    """

    read: float
    """Price of a token that is read from the cache."""
    write: float
    """Price of a token that is not in the cache."""
    minimum: int = 0
    """Tokens of the shortest prefix that is cached."""

    def bill(self, tokens: int, cached: int) -> float:
        """Return the cost of a request in tokens at the price of uncached input.

        Args:
            tokens: Tokens of the request.
            cached: Tokens of it that are in the cache.
        """
        cached = cached if cached >= self.minimum else 0
        return self.write * (tokens - cached) + self.read * cached


DEFAULT_PRICES: Final = RelativePrices(read=0.1, write=1.0)
"""The prices of most providers, to compare figures between models."""


def model_prices(model: Model) -> RelativePrices:
    """Return the relative prices of a model."""
    return RelativePrices(model.read_ratio, model.write_ratio, model.cache_minimum)


class BilledRequest(NamedTuple):
    """A request and its cached part."""

    tokens: int
    cached: int
    breaks_prefix: bool
    """Whether the previous request was not a prefix of this one."""


class PromptCache:
    """The provider's prompt cache with the requests of one conversation.

    Args:
        reader: Counts the tokens of a common beginning.
        ttl: Seconds after its last use that the cache is empty.

    Examples:
        ```python
        from foveal.core.tokens.counter import counter
        from foveal.replay import MessageText, PromptCache, RequestReader, make_request

        cache = PromptCache(RequestReader("openai_chat", counter("estimate")), ttl=300)
        request = make_request([MessageText(12, "Why is CI red?")])
        cache.send(request, now=0.0)
        assert cache.send(request, now=10.0).cached == 12
        ```
    """

    def __init__(self, reader: RequestReader, *, ttl: float) -> None:
        self._reader = reader
        self._ttl = ttl
        self._previous: RequestText | None = None
        self._last_used = 0.0

    def send(self, request: RequestText, *, now: float) -> BilledRequest:
        """Return what is cached of a request, and put the request into the cache.

        Args:
            request: The request.
            now: The time in seconds.
        """
        previous, self._previous = self._previous, request
        is_expired, self._last_used = now - self._last_used > self._ttl, now
        if previous is None:
            return BilledRequest(request.tokens, 0, breaks_prefix=False)
        shared, tokens = _shared_pieces(previous.pieces, request.pieces)
        breaks_prefix = shared < len(previous.pieces)
        if is_expired:
            return BilledRequest(request.tokens, 0, breaks_prefix)
        if breaks_prefix and shared < len(request.pieces):
            tokens += self._shared_tokens(previous.pieces[shared], request.pieces[shared])
        return BilledRequest(request.tokens, tokens, breaks_prefix)

    def _shared_tokens(self, old: MessageText, new: MessageText) -> int:
        """Return the tokens of the common beginning of two different messages."""
        same = common_prefix_chars(old.text, new.text)
        return min(old.tokens, new.tokens, self._reader.count(new.text[:same])) if same else 0


def _shared_pieces(old: tuple[MessageText, ...], new: tuple[MessageText, ...]) -> tuple[int, int]:
    """Return how many pieces both requests begin with, and their tokens."""
    count = tokens = 0
    for one, other in zip(old, new, strict=False):
        if one is not other:
            break
        count += 1
        tokens += one.tokens
    return count, tokens
