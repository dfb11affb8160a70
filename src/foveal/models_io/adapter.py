"""What the adapters share: one request is sent, its stream is read, and whatever goes wrong is told.

An adapter adds three things: how its library is called, what the body of a request is, and how an answer is put
together from the events of its stream.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from foveal.events import Dialect
from foveal.fitted import Fitted
from foveal.models import Model
from foveal.models_io import clients, faults
from foveal.models_io.place import Place
from foveal.ports import Piece, Reply

Json = dict[str, Any]


class Answer(Protocol):
    """An answer that is put together from what its stream brings."""

    began: bool
    """Something of it has come."""
    text: str
    """What was said so far."""

    @property
    def complete(self) -> bool:
        """Its end has come."""
        ...

    def add(self, event: Json) -> list[Piece]:
        """Take what one event brings, and tell what of it can be shown; raises what the event says went wrong."""
        ...

    def reply(self) -> Reply: ...


class Adapter(ABC):
    """A `Provider` for one model behind one address."""

    dialect: Dialect

    def __init__(
        self,
        place: Place,
        model: Model,
        *,
        name: str = "",
        served: str = "",
        options: Mapping[str, Any] | None = None,
        silence: float = clients.SILENCE,
    ) -> None:
        """`served` is what the server calls the model, `options` are further fields of every request, and after
        `silence` seconds without a byte an answer is given up."""
        self.name = name or model.name
        self.model = model
        self.place = place
        self.served = served or model.name.partition("/")[2] or model.name
        self.options = dict(options or {})
        self.silence = silence
        self._client: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.place!r})"

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncGenerator[Piece | Reply, None]:
        answer, kind = self.answer(), ""
        try:
            async with asyncio.timeout(self.silence):  # the libraries would try again and again
                stream = await self.ask(await self._ready(), self.body(request, max_tokens))
            async with stream:
                kind = stream.response.headers.get("content-type", "")
                async for event in stream:
                    for piece in answer.add(event.to_dict(mode="json")):
                        yield piece
        except Exception as error:
            told = faults.explained(error, self.place, self.served, said=answer.text, began=answer.began)
            if told is error:
                raise
            raise told from None
        if not answer.complete:
            raise faults.broken_off(self.place, answer.text, began=answer.began, kind=kind)
        yield answer.reply()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _ready(self) -> Any:
        if self._client is None:
            # Loading the library takes seconds: the terminal must not stand still meanwhile.
            self._client = await asyncio.to_thread(self.client)
        return self._client

    @abstractmethod
    def client(self) -> Any:
        """The library's client."""

    @abstractmethod
    async def ask(self, client: Any, body: Json) -> Any:
        """The stream of an answer."""

    @abstractmethod
    def body(self, request: Fitted, max_tokens: int) -> Json: ...

    @abstractmethod
    def answer(self) -> Answer: ...
