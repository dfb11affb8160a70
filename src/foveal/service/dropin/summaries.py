"""Summaries by the conversation's own upstream: the client's model, asked with the client's key.

A request of the `shared` sort begins like the conversation itself, with the client's own system text and tools, so
that what upstream has cached is read again. The key is in memory for as long as the conversation is open, and is
never stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from foveal import wire
from foveal.errors import ProviderError
from foveal.events import Dialect
from foveal.service.dropin.conversation import Conversation
from foveal.summarise import Request, Summariser

Ask = Callable[[Dialect, bytes], Awaitable[tuple[int, bytes]]]
"""Sends a body upstream and gives back the status and the body of the answer."""

_SYSTEM: Final = frozenset({"system", "instructions"})


class Refused(ProviderError):
    """Upstream did not write a summary."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"upstream answered {status}", sort="refused")
        self.status_code = status
        self.body = body[:20_000]


class Writer:
    """Writes the summaries of one conversation; `conversation` and `ask` are set before the first request."""

    def __init__(self, name: str) -> None:
        self.conversation: Conversation | None = None
        self.ask: Ask | None = None
        self.summariser = Summariser(self._write, name=name)

    async def _write(self, request: Request) -> Any:
        if self.conversation is None or self.ask is None or self.conversation.latest is None:
            raise ProviderError("nobody has asked for anything here yet", sort="refused")
        gist, shared = self.conversation.latest, request.form == "shared"
        beside = shared and _SYSTEM & gist.fields.keys()  # the client's own goes beside the messages
        messages = _messages(request, gist.dialect, skip=bool(beside) and request.dialect != "anthropic")
        more: Mapping[str, Any] = {"system": request.system} if request.system else {}
        body = gist.written(messages, max_tokens=request.max_tokens, more=gist.fields if shared else more)
        status, answer = await self.ask(gist.dialect, body)
        if status != 200:
            raise Refused(status, answer)
        return msgspec.json.decode(answer)


def _messages(request: Request, dialect: Dialect, *, skip: bool) -> list[dict[str, Any]]:
    """The messages in the conversation's dialect: a history of plain texts can be of any. The first one is left out
    if it says what the client's request says beside its messages."""
    messages = request.messages[1:] if skip else request.messages
    if request.dialect == dialect:
        return messages
    writer = wire.wire(dialect)
    facts = [fact for chunk in wire.wire(request.dialect).read(messages) for fact in chunk.facts]
    return writer.join([writer.write(fact) for fact in facts])
