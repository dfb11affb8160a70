"""How long clipping takes, by size of the text and strategy; run as a script it prints the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import get_args

from foveal.clip import Counter, Limits, Strategy, clip

SIZES = {"10 kB": (10_000, 0.0001), "1 MB": (1_000_000, 0.001), "100 MB": (100_000_000, 0.1)}
"""Name -> characters, and the seconds that are aimed at."""
_LINE = "2025-08-01T02:43:12.158Z INFO module {} of the build was compiled in {} ms, nothing else happened\n"
_BLOCK = "".join(_LINE.format(i, i * 7 % 1000) for i in range(1000)) + "src/a.c:12:5: error: expected ';'\n"


class Quarters:
    """A stand-in for `foveal.tokens.counter("estimate")`, to be replaced by it: four characters are a token."""

    exact = False

    def count(self, text: str) -> int:
        return -(-len(text) // 4)

    def count_all(self, texts: Sequence[str]) -> list[int]:
        return [self.count(text) for text in texts]

    def head(self, text: str, tokens: int) -> int:
        return min(len(text), 4 * tokens)

    tail = head


def log_of(size: int) -> str:
    """A build log of that many characters with an error every thousand lines."""
    return (_BLOCK * (size // len(_BLOCK) + 1))[:size]


def best_of(times: int, act: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - start)
    return best


def rows() -> list[tuple[str, float, str]]:
    """(what, seconds, target), best of several, with the estimating counter and a limit of 1,000 tokens."""
    estimate: Counter = Quarters()
    table = []
    for name, (size, target) in SIZES.items():
        text = log_of(size)
        for strategy in get_args(Strategy):
            limits = Limits(strategy=strategy, tokens=1_000)
            act = lambda: clip(text, limits, handle="e12", counter=estimate)  # noqa: B023, E731
            seconds = best_of(5 if size > 10**7 else 50, act)
            table.append((f"clip {name} {strategy}", seconds, f"< {target * 1000:g} ms"))
    return table


if __name__ == "__main__":
    for what, seconds, target in rows():
        print(f"{what:<22}{seconds * 1000:>10.3f} ms   {target}")
