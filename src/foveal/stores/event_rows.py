"""Events as the rows of a store: packing, unpacking and erasing, without SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Final, NamedTuple

from foveal.core.log.codec import decode, encode
from foveal.core.log.events import Erased, Event, kind
from foveal.errors import StoreError
from foveal.stores.compression import CutText, LinePacker, PackedLine

BLOB_ROW_BYTES: Final = 90
"""Bytes of a blob's row beside its body: its digest, which is also in an index, and the rows that refer to it."""
MAX_COUNTED_SHARERS: Final = 100
"""Sessions of a blob that are counted: a text that all sessions have in common must not cost a walk over all."""


class EventRow(NamedTuple):
    """An event as it is inserted: its time and its packed line."""

    at: float | None
    packed: PackedLine


def to_rows(packer: LinePacker, events: Sequence[Event]) -> list[EventRow]:
    """Pack events for insertion; raises `StoreError` if their seqs are not consecutive."""
    return pack_lines(packer, events, to_lines(events))


def to_lines(events: Sequence[Event]) -> list[bytes]:
    """Return the lines of events, at seq 0 and without times; raises `StoreError` if seqs are not consecutive."""
    for before, after in pairwise(events):
        if after.seq != before.seq + 1:
            raise StoreError(f"event {after.seq} was given right after event {before.seq}; seqs are gapless")
    return [encode(Event(0, event.fact)) for event in events]


def pack_lines(packer: LinePacker, events: Sequence[Event], lines: Sequence[bytes]) -> list[EventRow]:
    """Pack the lines of events for insertion."""
    return [
        EventRow(_finite_or_none(event.at), packer.pack(line))
        for event, line in zip(events, lines, strict=True)
    ]


def to_events(
    packer: LinePacker,
    rows: Iterable[tuple[int, float | None, bytes]],
    cuts: Mapping[int, Sequence[CutText]],
) -> list[Event]:
    """Unpack rows of seq, time and body; `cuts` has the decompressed texts of blobs by seq."""
    return [Event(seq, decode(packer.unpack(body, cuts.get(seq, ()))).fact, at) for seq, at, body in rows]


def erase_line(packer: LinePacker, line: bytes) -> bytes:
    """Return the body of an event after erasure: only its kind is left.

    The line may lack its cuts: it is still JSON, with empty strings, and names its kind."""
    fact = decode(line).fact
    left = fact if isinstance(fact, Erased) else Erased(was=kind(fact))
    return packer.pack(encode(Event(0, left))).body


def _finite_or_none(at: float | None) -> float | None:
    return at if at is not None and isfinite(at) else None
