"""Synthetic agent conversations, generated from a fixed seed."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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

RESULT_BANDS: Final = ((0.6, 500, 3_000), (0.3, 3_000, 12_000), (0.1, 12_000, 50_000))
"""Share, minimum and maximum characters of the tool results in `coding_session`."""
_FILES: Final = 60
_RECENT_FILES: Final = 6
_MESSAGES_PER_TASK: Final = 40
_CODE_WORDS: Final = _WORDS[8:] + [
    f"{stem}_{word}" for stem in _STEMS for word in ("id", "size", "path", "rows")
]
_CODE_LINES: Final = (
    "    {a} = {b}.{c}({a}, limit={n})",
    "    if {a} is None or {a}.{b} > {n}:",
    "        return {a}[{b}:{n}]",
    "    for {a} in self.{b}.{c}():",
    "        {a}.append(({b}, {n}))",
    "def {a}_{b}({c}: str, *, {a}: int = {n}) -> list[str]:",
    '    raise ValueError(f"{a} of {{{b}}} exceeds {n}")',
    "    # The {a} keeps its {b} until the {c} is closed, see issue {n}.",
    "",
)
_LOG_LINES: Final = (
    "2026-03-{d:02} 10:{e:02}:{d:02},{n} INFO  {a}.{b}: {c} finished in {n} ms",
    "2026-03-{d:02} 10:{e:02}:{d:02},{n} WARN  {a}.{b}: retry {d} of {c} after {n} ms",
    "tests/test_{a}.py::test_{b}_{c}_{n} PASSED",
    "tests/test_{a}.py::test_{b}_{c}_{n} FAILED",
    "E       AssertionError: assert {n} == {d}{e} in {a}_{b}",
    '  File "src/app/{a}.py", line {n}, in {b}_{c}',
)


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


def coding_session(*, seed: int = 1) -> Iterator[Json]:
    """Yield the messages of a coding agent endlessly: calls, results of real sizes, and now and then a new task.

    The agent reads the files of one project, edits them and reads them again, so many lines of a result are in
    earlier results too, as in recorded conversations."""
    pick = random.Random(seed)
    files = {f"src/app/{pick.choice(_STEMS)}_{number}.py": _code(pick) for number in range(_FILES)}
    yield {"role": "system", "content": _prose(pick, 3_000)}
    for number in itertools.count(1):
        if number % _MESSAGES_PER_TASK == 1:
            recent = pick.sample(list(files), _RECENT_FILES)
            yield {"role": "user", "content": f"{_prose(pick, pick.randint(200, 1_500))} {recent[0]}"}
        name, arguments, result = _tool_use(pick, pick.choice(recent), files, _result_size(pick))
        call = {"name": name, "arguments": json.dumps(arguments)}
        yield {
            "role": "assistant",
            "content": _prose(pick, pick.randint(80, 500)),
            "tool_calls": [{"id": f"call_{number:08x}", "type": "function", "function": call}],
        }
        yield {"role": "tool", "tool_call_id": f"call_{number:08x}", "content": result}


def texts(given: Iterable[Json]) -> list[str]:
    """Return the contents and the arguments of chat messages."""
    found = []
    for message in given:
        found.append(message["content"] or "")
        found += [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return found


def _result_size(pick: random.Random) -> int:
    (low, high) = pick.choices([band[1:] for band in RESULT_BANDS], [band[0] for band in RESULT_BANDS])[0]
    return pick.randint(low, high)


def _tool_use(
    pick: random.Random, path: str, files: dict[str, list[str]], size: int
) -> tuple[str, Json, str]:
    """Return the name, the arguments and the result of a call whose result has about `size` characters."""
    kind = pick.random()
    if kind < 0.45:
        start = pick.randrange(max(1, len(files[path]) - size // 40))
        return "read_file", {"path": path, "start": start + 1}, _numbered(files[path], start, size)
    if kind < 0.65 and size < RESULT_BANDS[0][2]:
        return "edit_file", *_edit(pick, path, files[path], size)
    if kind < 0.75:
        rows = [{"id": pick.randrange(10_000), "name": pick.choice(_CODE_WORDS)} for _ in range(size // 45)]
        return "query", {"table": pick.choice(_STEMS)}, json.dumps({"rows": rows}, indent=1)[:size]
    if kind < 0.85:
        return "bash", {"command": f"grep -rn {pick.choice(_CODE_WORDS)} src"}, _listing(pick, size)
    lines = (_filled(pick, _LOG_LINES) for _ in itertools.count())
    return "bash", {"command": f"pytest -x {path}"}, _fill_to_size(size, "\n", lambda: next(lines))


def _edit(pick: random.Random, path: str, lines: list[str], size: int) -> tuple[Json, str]:
    """Replace some lines of a file; return the arguments, which quote them, and the lines around the change."""
    start = pick.randrange(len(lines) - 8)
    old = lines[start : start + pick.randint(2, 8)]
    new = [_filled(pick, _CODE_LINES) for _ in old]
    lines[start : start + len(old)] = new
    arguments = {"path": path, "old": "\n".join(old), "new": "\n".join(new)}
    return arguments, f"{path} was changed.\n{_numbered(lines, max(0, start - 6), size)}"


def _numbered(lines: list[str], start: int, size: int) -> str:
    shown: list[str] = []
    for number, line in enumerate(lines[start:], start + 1):
        if size <= 0:
            break
        shown.append(f"{number:6}\t{line}")
        size -= len(shown[-1]) + 1
    return "\n".join(shown)


def _code(pick: random.Random) -> list[str]:
    return [_filled(pick, _CODE_LINES) for _ in range(pick.randint(200, 1_400))]


def _filled(pick: random.Random, templates: Sequence[str]) -> str:
    a, b, c = pick.choices(_CODE_WORDS, k=3)
    return pick.choice(templates).format(a=a, b=b, c=c, n=pick.randrange(1_000), d=pick.randrange(10), e=10)


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
