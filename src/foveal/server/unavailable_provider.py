"""A provider that cannot answer: its session can still be read, searched and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator

from foveal.core.log.events import Dialect
from foveal.core.models.model import Model, model
from foveal.core.view.request import Fitted
from foveal.errors import FovealError, ProviderError
from foveal.ports import Reply, ReplyPiece


class UnavailableProvider:
    """A `Provider` that only raises an error."""

    dialect: Dialect = "openai_chat"

    def __init__(
        self,
        name: str,
        why: str = "",
        *,
        window: int | None,
        code: str = "refused",
        refusal: FovealError | None = None,
    ) -> None:
        """`refusal` is raised for every message; without it, messages wait until the provider is available."""
        self.name: str = name or "unknown"
        self.model: Model = model(self.name.partition("@")[0], window=window)
        self.refusal = refusal
        self._why = why
        self._code = code

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        no_pieces: tuple[ReplyPiece, ...] = ()
        for piece in no_pieces:  # makes this an async generator, as the protocol requires
            yield piece
        raise ProviderError(self._why, code=self._code)

    async def close(self) -> None:
        """Do nothing: there is no connection."""
