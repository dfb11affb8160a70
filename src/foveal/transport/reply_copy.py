"""Copy of the bytes of a response, kept until the reply is read.

A client may stop reading, and an upstream may keep the connection open, after the event that ends a stream. So the
copy finds that event: the reply can be read as soon as `ends` returns True for a chunk.
"""

from __future__ import annotations

from typing import Final

from foveal.core.log.events import Dialect
from foveal.transport.upstream_reply import (
    MAX_RECORDED_REPLY_BYTES,
    STREAM_ENDS,
    UpstreamReply,
    read_reply,
)

MAX_EARLY_READS: Final = 3
"""How often text in a stream may look like its end before the stream ends."""
_TAIL_BYTES: Final = 32
"""Bytes of the previous chunk that are searched again: the end marker may be split between two chunks."""


class ReplyCopy:
    def __init__(self, dialect: Dialect) -> None:
        self.size: int = 0
        """Bytes so far, including those of a copy that was dropped."""
        self._dialect: Dialect = dialect
        self._find_end = STREAM_ENDS[dialect].search
        self._chunks: list[bytes] = []
        self._tail = b""
        """The end of the previous chunk."""
        self._early_reads_left = MAX_EARLY_READS

    @property
    def is_too_large(self) -> bool:
        """Whether the response is too large to be read; then nothing is kept."""
        return self.size > MAX_RECORDED_REPLY_BYTES

    def ends(self, chunk: bytes) -> bool:
        """Return whether a chunk that is not added yet contains the event that ends the stream."""
        return self._find_end(self._tail + chunk if self._tail else chunk) is not None

    def add(self, chunk: bytes) -> None:
        """Keep a chunk, unless the response is too large."""
        # A marker contains no line break, so the next chunk can complete one only if this chunk ends within a line.
        self._tail = b"" if chunk.endswith(b"\n") else (self._tail + chunk)[-_TAIL_BYTES:]
        self.size += len(chunk)
        self._chunks.append(chunk)
        if self.is_too_large:
            self._chunks.clear()

    def may_read_early(self) -> bool:
        """Return whether an apparent end is worth a look, and count it."""
        self._early_reads_left -= 1
        return self._early_reads_left >= 0

    def data(self) -> bytes:
        return b"".join(self._chunks)

    def read(self, *, streamed: bool) -> UpstreamReply | None:
        """Return the reply; None if there is no complete one."""
        return read_reply(self.data(), self._dialect, streamed=streamed)
