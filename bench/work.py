"""Synthetic agent conversations, generated from a fixed seed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

Json = dict[str, Any]
Sizes = dict[str, tuple[int, int]]

CHAT: Final[Sizes] = {"user": (40, 300), "assistant": (80, 500), "result": (200, 900)}
"""Minimum and maximum characters of short chat messages."""
AGENT: Final[Sizes] = {"user": (200, 600), "assistant": (200, 600), "result": (500, 3_000)}
"""Minimum and maximum characters of a coding agent's messages."""
TINY: Final[Sizes] = {"user": (2, 12), "assistant": (2, 12), "result": (2, 12)}

_WORDS: Final = re.findall(
    r"\S+",
    """the of a to and in is it build test module error function value returns when file path config user request
    please check update import class method result list server client token window budget message parser handler
    timeout retry connection database migration schema version release branch commit review""",
)
_NAMES: Final = ("parse_header", "loadConfig", "src/app/main.py", "HTTPServer", "test_timeout", "e4f1a9")
_STEMS: Final = ("server", "client", "parser", "schema", "handler", "budget", "window", "report")


def conversation(sizes: Sizes = CHAT, *, seed: int = 1) -> Iterator[Json]:
    """Yield chat messages endlessly: a system text, then turns; every second turn has a call and its result."""
    pick = random.Random(seed)
    yield {"role": "system", "content": _prose(pick, 400)}
    turn = 0
    while True:
        turn += 1
        yield {"role": "user", "content": _prose(pick, pick.randint(*sizes["user"]))}
        if turn % 2:
            call = {"name": "grep", "arguments": json.dumps({"pattern": _prose(pick, 20), "path": "src/"})}
            calls = [{"id": f"call_{turn:08x}", "type": "function", "function": call}]
            said = _prose(pick, pick.randint(*sizes["assistant"])) if turn % 3 else None
            yield {"role": "assistant", "content": said, "tool_calls": calls}
            content = _listing(pick, pick.randint(*sizes["result"]))
            yield {"role": "tool", "tool_call_id": f"call_{turn:08x}", "content": content}
        yield {"role": "assistant", "content": _prose(pick, pick.randint(*sizes["assistant"]))}


def messages(count: int, sizes: Sizes = CHAT) -> list[Json]:
    """Return the first `count` messages of a conversation."""
    return list(islice(conversation(sizes), count))


def _prose(pick: random.Random, size: int) -> str:
    return _fill_to_size(size, " ", lambda: pick.choice(_WORDS if pick.random() < 0.93 else _NAMES))


def _listing(pick: random.Random, size: int) -> str:
    """Return the output of a search: a path, a line number and some text on every line."""

    def line() -> str:
        place = f"src/{pick.choice(_STEMS)}.py:{pick.randint(1, 900)}"
        return f"{place}: {_prose(pick, pick.randint(20, 70))}"

    return _fill_to_size(size, "\n", line)


def _fill_to_size(size: int, separator: str, make: Callable[[], str]) -> str:
    pieces: list[str] = []
    length = 0
    while length < size:
        pieces.append(make())
        length += len(pieces[-1]) + len(separator)
    return separator.join(pieces)[:size]
