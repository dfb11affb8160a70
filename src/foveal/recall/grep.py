"""Grep of recall: plain text or a simple pattern, in bounded time.

Plain text matches, ignoring case, and also patterns that cannot take long: characters, classes, anchors,
alternatives, groups without repetition, and repetitions of single characters. Each repetition is bounded, and `.*`
splits a pattern into pieces that must match one after another. Anything else (repeated groups, look-around, back
references, invalid patterns) is matched as plain text only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

MAX_PATTERN_WAYS: Final = 5_000
"""Ways in which one piece of a pattern may match at one position, as an upper bound."""
_MAX_PATTERN_CHARS: Final = 200
_MAX_REPETITIONS: Final = 64
"""Upper bound of `*` and `+` on a single character."""
_SPECIAL: Final = re.compile(r"[\\^$.*+?{}\[\]()|]")
_TOKEN: Final = re.compile(
    r"(?P<atom>\\[dDwWsSbBtn]|\\[^A-Za-z0-9]|\[\^?\]?[^\[\]\\]*(?:\\.[^\[\]\\]*)*\]|[^\\\[\](){}?*+|])"
    r"(?P<times>[?*+]|\{\d{1,2}(?:,\d{0,2})?\})?\??"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))(?P<maybe>\??)|(?P<bar>\|)"
)


PatternPieces = list[re.Pattern[str]]


def compile_grep(wanted: str) -> tuple[Callable[[str], int], str]:
    """Return a function that finds a text or simple pattern in a line.

    Args:
        wanted: The text or pattern; case does not matter.

    Returns:
        A function that returns the position of a match, -1 if there is none, and how `wanted` is matched.

    Examples:
        ```python
        from foveal.recall import compile_grep

        find, how = compile_grep("error")
        assert find("an Error occurred") == 3
        ```
    """
    wanted = next((line for line in wanted.split("\n") if line.strip()), wanted)[:1_000]
    literal = [re.compile(re.escape(wanted), re.I)]
    simple = (
        _compile_pattern(wanted) if _SPECIAL.search(wanted) and len(wanted) <= _MAX_PATTERN_CHARS else None
    )
    if simple is None:
        return lambda line: _match_in_order(literal, line), "as plain text"
    choices = [literal, *simple]
    return lambda line: max(_match_in_order(pieces, line) for pieces in choices), "as text or pattern"


def _match_in_order(pieces: PatternPieces, line: str) -> int:
    """Return where the first piece matches if the others match after it, else -1."""
    start, at = -1, 0
    for piece in pieces:
        match = piece.search(line, at)
        if match is None:
            return -1
        start, at = match.start() if start < 0 else start, match.end()
    return start


def _compile_pattern(pattern: str) -> list[PatternPieces] | None:
    """Return a pattern as alternatives, each a list of pieces that must match one after another.

    None if the pattern is invalid or could take long."""
    choices: list[list[str]] = [[""]]
    at, depth, ways = 0, 0, 1
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None or ways > MAX_PATTERN_WAYS:
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
            choices[-1][-1] += _limit_repetition(token)
            ways *= _count_ways(token)
    try:
        return (
            [[re.compile(piece, re.I) for piece in pieces] for pieces in choices]
            if ways <= MAX_PATTERN_WAYS
            else None
        )
    except (re.error, OverflowError):
        return None


def _count_ways(token: re.Match[str]) -> int:
    if token["bar"] or token["maybe"] or token["times"] == "?":
        return 2
    return 1 if token["times"] is None or re.fullmatch(r"\{\d+\}", token["times"]) else _MAX_REPETITIONS


def _limit_repetition(token: re.Match[str]) -> str:
    """Return the token with a bounded repetition."""
    if token["atom"] is None or token["times"] is None:
        return token.group()
    times = {"*": f"{{0,{_MAX_REPETITIONS}}}", "+": f"{{1,{_MAX_REPETITIONS}}}"}.get(
        token["times"], token["times"]
    )
    return token["atom"] + (f"{times[:-1]}{_MAX_REPETITIONS}}}" if times.endswith(",}") else times)


GREP_TIMEOUT_S: Final = 1.0
