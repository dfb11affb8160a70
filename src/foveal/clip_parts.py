"""Several texts of one result cut so that together they are within one limit: media in between are not touched."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import inf

import msgspec

from foveal.clip import Clip, Limits, Pieces, Strategy, clip, room_of
from foveal.extent import Size, measure, measure_alone, total_tokens
from foveal.tokens import Counter


def clip_parts(texts: Sequence[str], limits: Limits, *, handle: str, counter: Counter) -> list[Clip | None]:
    """Cut several texts of one result so that together they are within the limits.

    Small parts stay whole, and the large ones share what is left evenly. When there are more parts than the
    room has places, whole parts are left out (their pieces are empty), and the first of them says how many.
    """
    whole = room_of(limits)
    sizes = {i: measure_alone(text, whole, counter) for i, text in enumerate(texts) if text}
    if _fair_level(list(sizes.values()), whole) == Size(inf, inf, inf):
        return [None] * len(texts)
    notice = (
        f"[foveal: left out {len(sizes):,} of {len(sizes):,} parts ({limits.strategy}); whole text: {handle}]"
    )
    seated, level = _seats(sizes, whole, measure(notice, whole, counter), limits.strategy)
    out = [i for i in sizes if i not in seated]
    notice = notice.replace(f"{len(sizes):,}", f"{len(out):,}", 1)
    each = msgspec.structs.replace(limits, **{k: int(v) for k, v in level._asdict().items() if v < inf})
    return [
        _left_out(text, limits.strategy, counter, (notice,) if i == out[0] else ())
        if i in out
        else clip(text, each, handle=handle, counter=counter)
        for i, text in enumerate(texts)
    ]


def _fair_level(sizes: Sequence[Size], room: Size) -> Size:
    """In each unit, the most that a part may have so that all parts are within the room; `inf` if all are.

    A part that is cut in one unit takes its fair share in all, because its marker needs room in all.
    """
    while True:
        level = Size(*(_water_level([size[unit] for size in sizes], room[unit]) for unit in range(3)))
        wanted = [size if size.within(level) else Size(inf, inf, inf) for size in sizes]
        if wanted == sizes:
            return level
        sizes = wanted


def _water_level(sizes: Sequence[float], room: float) -> float:
    """How high each may be filled, so that those who need less leave the rest to the others."""
    for filled, size in enumerate(sorted(sizes) if room < inf else ()):
        share = room // (len(sizes) - filled)
        if size > share:
            return max(0, share)
        room -= size
    return inf


def _seats(sizes: Mapping[int, Size], room: Size, notice: Size, strategy: Strategy) -> tuple[set[int], Size]:
    """The parts that are shown at all, and the most each may have; a cut part needs room for its marker."""
    order = _in_order(list(sizes), strategy)

    def level(count: int) -> Size:
        rest = room if count == len(order) else room.minus(notice)
        return _fair_level([sizes[i] for i in order[:count]], rest)

    def crowded(count: int) -> int:
        return not notice.times(3).within(level(count))

    count = bisect_left(range(1, len(order) + 1), 1, key=crowded)
    return set(order[:count]), level(count) if count else room


def _in_order(parts: list[int], strategy: Strategy) -> list[int]:
    """Which parts to show first: from the beginning, from the end, or from both inwards."""
    if strategy == "head":
        return parts
    if strategy == "tail":
        return parts[::-1]
    inwards = [at for pair in zip(parts, parts[::-1], strict=True) for at in pair]
    return list(dict.fromkeys(inwards))


def _left_out(text: str, strategy: Strategy, counter: Counter, pieces: Pieces) -> Clip | None:
    if not text:
        return None
    tokens, exact = total_tokens(text, counter)
    lines = text.count("\n") + (text[-1] != "\n")
    return Clip(
        pieces=pieces,
        strategy=strategy,
        kept_tokens=0,
        total_tokens=tokens,
        exact=exact,
        kept_lines=0,
        total_lines=lines,
    )
