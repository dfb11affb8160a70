"""Redaction of a turn's events while they are streamed to clients.

The stored answer is redacted as a whole; the pieces that clients see before are redacted here with the same result,
also where a secret is split over two pieces.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from msgspec.structs import replace

from foveal.agent.events import AgentEvent, TextStreamed, ToolOutputStreamed
from foveal.core.redaction import StreamRedactor, scrub
from foveal.ports import ReplyPiece


async def redacted_events(events: AsyncIterator[AgentEvent]) -> AsyncIterator[AgentEvent]:
    """Yield the events without the secrets in streamed text and output."""
    pieces = _Pieces()
    async for event in events:
        if isinstance(event, TextStreamed):
            for piece in pieces.take(event.piece):
                yield TextStreamed(piece=piece)
            continue
        for piece in pieces.rest():
            yield TextStreamed(piece=piece)
        if isinstance(event, ToolOutputStreamed):
            event = replace(event, lines=tuple(scrub("\n".join(event.lines)).split("\n")))
        yield event


class _Pieces:
    """The pieces of one answer; a piece of another kind ends the text before it."""

    def __init__(self) -> None:
        self._redactor = StreamRedactor()
        self._last: ReplyPiece | None = None

    def take(self, piece: ReplyPiece) -> Iterator[ReplyPiece]:
        if self._last is not None and self._last.kind != piece.kind:
            yield from self.rest()
        if piece.kind == "call":
            yield piece
            return
        self._last = piece
        if text := self._redactor.feed(piece.text):
            yield replace(piece, text=text)

    def rest(self) -> Iterator[ReplyPiece]:
        last, self._last = self._last, None
        if last is not None and (text := self._redactor.close()):
            yield replace(last, text=text)
