"""Wrappers around a provider that record its last request and running summaries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from foveal.agent.agent_summariser import summariser_for
from foveal.core import wire
from foveal.core.compaction.summariser import Summariser, SummaryRequest
from foveal.core.log.events import Dialect
from foveal.core.models.model import Model
from foveal.core.view.request import Fitted
from foveal.ports import Provider, Reply, ReplyPiece

_ROLES: Final = {
    "UserSaid": "user",
    "ModelSaid": "assistant",
    "ToolReturned": "result",
    "Instructed": "system",
}


class WatchedProvider:
    """A provider that keeps the last request, for `/why`."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.last_request: Fitted | None = None

    @property
    def name(self) -> str:
        return self.provider.name

    @property
    def model(self) -> Model:
        return self.provider.model

    @property
    def dialect(self) -> Dialect:
        return self.provider.dialect

    def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        self.last_request = request
        return self.provider.send(request, max_tokens=max_tokens)

    async def close(self) -> None:
        await self.provider.close()

    def find_text(self, text: str) -> list[str]:
        """Return which messages of the last request contain a text, in words."""
        if self.last_request is None:
            return []
        facts: Sequence[Any] = [*self.last_request.aside, *self.last_request.facts]
        wanted = text.casefold()
        return [
            f"message {number} of {len(facts)} ({_ROLES.get(type(fact).__name__, 'foveal')})"
            for number, fact in enumerate(facts, 1)
            if wanted in wire.original_text(fact).casefold()
        ]


class SummaryWriters:
    """The models that write summaries: the configured one, if any, then the conversation's own."""

    def __init__(
        self, own: Provider, *, other: Provider | None = None, on_idle: Callable[[], None] = lambda: None
    ) -> None:
        self._own, self._other, self._on_idle = own, other, on_idle
        self._running = 0

    @property
    def is_busy(self) -> bool:
        """Whether a summary is being written."""
        return self._running > 0

    def summarisers(self) -> list[Summariser]:
        """Return the writers in the order in which a session tries them."""
        writers = [self._watch(summariser_for(self._own), None)]
        if self._other is not None:
            writers.insert(0, self._watch(summariser_for(self._other), self._other.model))
        return writers

    async def close(self) -> None:
        if self._other is not None:
            await self._other.close()

    def _watch(self, writer: Summariser, model: Model | None) -> Summariser:
        async def write(request: SummaryRequest) -> Any:
            self._running += 1
            try:
                return await writer.call(request)
            finally:
                self._running -= 1
                if not self._running:
                    self._on_idle()

        return Summariser(write, model=model, name=writer.name)
