"""A provider that cannot be asked: for sessions that are to be read, searched and erased all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator

from foveal import models
from foveal.errors import ProviderError
from foveal.events import Dialect
from foveal.fitted import Fitted
from foveal.models import Model
from foveal.ports import Piece, Reply


class Unasked:
    """A `Provider` that says why it gives no answer."""

    dialect: Dialect = "openai_chat"

    def __init__(
        self, name: str, why: str, *, window: int | None, sort: str = "refused", elsewhere: bool = False
    ) -> None:
        """`elsewhere`: not even a message may be left for it."""
        self.name = name or "unknown"
        self.model: Model = models.model(self.name.partition("@")[0], window=window)
        self.why = why
        self.elsewhere = elsewhere
        self._sort = sort

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[Piece | Reply]:
        nothing: tuple[Piece, ...] = ()
        for piece in nothing:
            yield piece
        raise ProviderError(self.why, sort=self._sort)

    async def close(self) -> None:
        """There is nothing to close."""
