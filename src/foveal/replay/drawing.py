"""Small pieces of a page: escaped text, colours, and SVG elements.

Everything that comes from a recording passes through `escaped`; nothing else writes text into the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from foveal.replay.oracle import ORACLE, ORACLE_ARGUMENTS
from foveal.replay.player import EVERYTHING
from foveal.visible import visible

COLOURS: Final = 8


def escaped(text: str) -> str:
    """A text that can stand anywhere in the page: no markup, no control characters, valid UTF-8."""
    return escape(visible(text), quote=True).encode("utf-8", "replace").decode()


def shortened(text: str, width: int) -> str:
    """At most so many characters on one line, escaped."""
    line = " ".join(text.split())
    return escaped(line if len(line) <= width else line[: width - 1] + "…")


def colour(policy: str, policies: Sequence[str]) -> str:
    """The colour of a policy: grey for what is no policy, else by its place."""
    if policy == EVERYTHING:
        return "var(--all)"
    if is_bound(policy):
        return "var(--bound)"
    real = [one for one in policies if one != EVERYTHING and not is_bound(one)]
    return f"var(--c{real.index(policy) % COLOURS})"


def is_bound(policy: str) -> bool:
    return policy in (ORACLE, ORACLE_ARGUMENTS)


def svg(width: int, height: int, parts: Sequence[str], *, label: str) -> str:
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escaped(label)}">'
    return "\n".join([head, *parts, "</svg>"])


def line(x1: float, y1: float, x2: float, y2: float, *, kind: str = "", stroke: str = "") -> str:
    paint = f' stroke="{stroke}"' if stroke else ""
    return f'<line class="{kind}"{paint} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(words)}</text>'


def path(points: Sequence[tuple[float, float]], *, stroke: str, kind: str = "series") -> str:
    steps = " ".join(f"{'L' if n else 'M'}{x:.1f} {y:.1f}" for n, (x, y) in enumerate(points))
    return f'<path class="{kind}" stroke="{stroke}" d="{steps}"/>'


def ticks(low: float, high: float, *, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`."""
    span = max(high - low, 1e-9)
    step = next(
        (s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1_000) if span / s <= about), span / about
    )
    first = int(low // step) * step
    return [first + n * step for n in range(int(span / step) + 2) if low <= first + n * step <= high]
