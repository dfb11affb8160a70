"""Measures clipping by text size and strategy, with the estimating and the exact token counter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, get_args

from bench.measure import Row, best_of, display, progress
from foveal.core.reduction import Limits, Strategy, clip
from foveal.core.tokens.counter import counter

SIZES: Final = {"10 kB": (10_000, 0.0001), "1 MB": (1_000_000, 0.001), "100 MB": (100_000_000, 0.1)}
"""Name -> characters, and the target in seconds."""
LIMIT: Final = 1_000
_LINE: Final = (
    "2025-08-01T02:43:12.158Z INFO module {} of the build was compiled in {} ms, nothing else happened\n"
)
_BLOCK: Final = (
    "".join(_LINE.format(i, i * 7 % 1000) for i in range(1000)) + "src/a.c:12:5: error: expected ';'\n"
)


def log_of(size: int) -> str:
    """Return a build log of `size` characters with an error every thousand lines."""
    return (_BLOCK * (size // len(_BLOCK) + 1))[:size]


def rows() -> Iterator[Row]:
    for name, (size, target) in SIZES.items():
        text = log_of(size)
        for strategy in get_args(Strategy):
            progress(f"clip: {name} {strategy} …")
            seconds, exact = (
                _clip_seconds(text, strategy, counting) for counting in ("estimate", "o200k_base")
            )
            note = f"to {LIMIT:,} tokens by estimate; {display(exact, 's')} with o200k_base"
            yield Row(f"clip {name}, {strategy}", seconds, limit=target, note=note)


def _clip_seconds(text: str, strategy: Strategy, counting: str) -> float:
    limits, counts = Limits(strategy=strategy, tokens=LIMIT), counter(counting)
    times = 3 if len(text) > 10**7 else 50
    return best_of(times, lambda: clip(text, limits, handle="e12", counter=counts))
