"""Finding a text or a simple pattern in a line, in bounded time.

What is wanted is text, upper and lower case alike, and also a pattern if it is of the harmless sort: characters,
classes, anchors, alternatives, groups without repetition, and repetitions of single characters. Each repetition is
bounded and `.*` becomes "and after that", so that no line of ordinary length takes long. Anything else (repeated
groups, look-around, back references, what is no valid pattern) is taken as plain text only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

CHOICES: Final = 5_000
"""Ways in which one piece of a pattern may try to match at one place."""
_LONGEST: Final = 200
_TIMES: Final = 64
"""What `*` and `+` on a single character end at."""
_SPECIAL: Final = re.compile(r"[\\^$.*+?{}\[\]()|]")
_TOKEN: Final = re.compile(
    r"(?P<atom>\\[dDwWsSbBtn]|\\[^A-Za-z0-9]|\[\^?\]?[^\[\]\\]*(?:\\.[^\[\]\\]*)*\]|[^\\\[\](){}?*+|])"
    r"(?P<times>[?*+]|\{\d{1,2}(?:,\d{0,2})?\})?\??"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))(?P<maybe>\??)|(?P<bar>\|)"
)

Pieces = list[re.Pattern[str]]


def finder(wanted: str) -> tuple[Callable[[str], int], str]:
    """A function that says where a line matches (-1: nowhere), and how `wanted` was understood."""
    wanted = next((line for line in wanted.split("\n") if line.strip()), wanted)[:1_000]
    literal = [re.compile(re.escape(wanted), re.I)]
    simple = _simple(wanted) if _SPECIAL.search(wanted) and len(wanted) <= _LONGEST else None
    if simple is None:
        return lambda line: _in_order(literal, line), "as plain text"
    choices = [literal, *simple]
    return lambda line: max(_in_order(pieces, line) for pieces in choices), "as text or pattern"


def _in_order(pieces: Pieces, line: str) -> int:
    """Where the first piece matches, if the others follow it."""
    start, at = -1, 0
    for piece in pieces:
        match = piece.search(line, at)
        if match is None:
            return -1
        start, at = match.start() if start < 0 else start, match.end()
    return start


def _simple(pattern: str) -> list[Pieces] | None:
    """A pattern as alternatives, each of pieces to be found one after the other; None when it is not valid, or
    could take long."""
    choices: list[list[str]] = [[""]]
    at, depth, ways = 0, 0, 1
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None or ways > CHOICES:
            return None
        at = token.end()
        depth += bool(token["open"]) - bool(token["close"])
        if token["bar"] and not depth:
            choices.append([""])
            ways = 1
        elif token["atom"] == "." and token["times"] in ("*", "+") and not depth:
            choices[-1].append("")
            ways = 1
        else:
            choices[-1][-1] += _bounded(token)
            ways *= _ways(token)
    try:
        return (
            [[re.compile(piece, re.I) for piece in pieces] for pieces in choices] if ways <= CHOICES else None
        )
    except (re.error, OverflowError):
        return None


def _ways(token: re.Match[str]) -> int:
    if token["bar"] or token["maybe"] or token["times"] == "?":
        return 2
    return 1 if token["times"] is None or re.fullmatch(r"\{\d+\}", token["times"]) else _TIMES


def _bounded(token: re.Match[str]) -> str:
    """The same with an end to its repetition."""
    if token["atom"] is None or token["times"] is None:
        return token.group()
    times = {"*": f"{{0,{_TIMES}}}", "+": f"{{1,{_TIMES}}}"}.get(token["times"], token["times"])
    return token["atom"] + (f"{times[:-1]}{_TIMES}}}" if times.endswith(",}") else times)
