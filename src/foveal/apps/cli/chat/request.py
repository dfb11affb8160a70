"""The provider of a conversation, watched: what it was last asked, and whether a summary is being written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from foveal import wire
from foveal.events import Dialect
from foveal.fitted import Fitted
from foveal.models import Model
from foveal.own_model import own_model
from foveal.ports import Piece, Provider, Reply
from foveal.summarise import Request, Summariser


class Watched:
    """A provider that remembers what it was last asked."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.last: Fitted | None = None

    @property
    def name(self) -> str:
        return self.provider.name

    @property
    def model(self) -> Model:
        return self.provider.model

    @property
    def dialect(self) -> Dialect:
        return self.provider.dialect

    def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[Piece | Reply]:
        self.last = request
        return self.provider.send(request, max_tokens=max_tokens)

    async def close(self) -> None:
        await self.provider.close()

    def places(self, text: str) -> list[str]:
        """Where a text stands in the last request, in words; none when it does not."""
        if self.last is None:
            return []
        wanted = text.casefold()
        facts = [*self.last.aside, *self.last.facts]
        shown = (f"message {i} of {len(facts)} ({_who(fact)})" for i, fact in _having(facts, wanted))
        return list(shown)


def _having(facts: list[Any], wanted: str) -> list[tuple[int, Any]]:
    return [(i, fact) for i, fact in enumerate(facts, 1) if wanted in wire.original(fact).casefold()]


def _who(fact: object) -> str:
    names = {"UserSaid": "user", "ModelSaid": "assistant", "ToolReturned": "result", "Instructed": "system"}
    return names.get(type(fact).__name__, "ours")


class Writing:
    """The writers of summaries, one that was chosen for it and the conversation's own; and whether they write."""

    def __init__(
        self, own: Provider, *, other: Provider | None = None, done: Callable[[], None] = lambda: None
    ) -> None:
        self._own, self._other, self._done = own, other, done
        self.busy = 0

    def summarisers(self) -> list[Summariser]:
        made = [self._watched(own_model(self._own), None)]
        if self._other is not None:
            made.insert(0, self._watched(own_model(self._other), self._other.model))
        return made

    async def close(self) -> None:
        if self._other is not None:
            await self._other.close()

    def _watched(self, writer: Summariser, model: Model | None) -> Summariser:
        async def write(request: Request) -> Any:
            self.busy += 1
            try:
                return await writer.call(request)
            finally:
                self.busy -= 1
                if not self.busy:
                    self._done()

        return Summariser(write, model=model, name=writer.name)
