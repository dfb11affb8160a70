"""Measures clipping by text size, kind of text and strategy, with the exact and the estimating token counter.

The targets are for the exact vocabulary. A row has the slowest kind of text; its note has all kinds, and the time
with the estimate. Counting Chinese takes several times as long per character, so its rows have no target.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Final, get_args

from bench.measure import Row, best_of, display, progress
from foveal.core.reduction import Limits, Strategy, clip
from foveal.core.tokens.counter import counter

MAX_SECONDS: Final = {10_000: 0.000_1, 1_000_000: 0.001, 100_000_000: 0.06}
"""Characters → the target in seconds."""
MAX_SMART_SECONDS: Final = {10_000: None, 1_000_000: 0.003, 100_000_000: 0.06}
"""`smart` also reads the middle in search of errors; no target is set for 10 kB."""
NAMES: Final = {10_000: "10 kB", 1_000_000: "1 MB", 100_000_000: "100 MB"}
LIMIT: Final = 1_000
LARGE_LIMIT: Final = 16_000
_BLOCK_LINES: Final = 5_000


def rows() -> Iterator[Row]:
    for size, name in NAMES.items():
        texts = {kind: _text(size, line) for kind, line in KINDS.items()}
        for strategy in get_args(Strategy):
            yield _row(f"clip {name}, {strategy}", texts, strategy, LIMIT, _target(size, strategy))
        if size == 1_000_000:
            for strategy in get_args(Strategy):
                what = f"clip {name}, {strategy}, to {LARGE_LIMIT:,} tokens"
                yield _row(what, texts, strategy, LARGE_LIMIT, None)
        chinese = {"Chinese": _text(size // 3, _chinese_line)}
        yield _row(f"clip {name} of Chinese, both", chinese, "both", LIMIT, None)


def _target(size: int, strategy: Strategy) -> float | None:
    return MAX_SMART_SECONDS[size] if strategy == "smart" else MAX_SECONDS[size]


def _row(what: str, texts: dict[str, str], strategy: Strategy, tokens: int, target: float | None) -> Row:
    progress(f"{what} …")
    limits = Limits(strategy=strategy, tokens=tokens)
    exact = {kind: _clip_seconds(text, limits, "o200k_base") for kind, text in texts.items()}
    first = next(iter(texts))
    estimate = _clip_seconds(texts[first], limits, "estimate")
    kinds = ", ".join(f"{kind} {display(seconds, 's')}" for kind, seconds in exact.items())
    note = f"to {tokens:,} tokens: {kinds}; {first} by estimate {display(estimate, 's')}"
    return Row(what, max(exact.values()), limit=target, note=note)


def _clip_seconds(text: str, limits: Limits, counting: str) -> float:
    counts = counter(counting)
    times = 3 if len(text) > 10**7 else 50
    return best_of(times, lambda: clip(text, limits, handle="e12", counter=counts))


# ── Texts ────────────────────────────────────────────────────────────────────────────────────────────────


def _text(size: int, line: Callable[[random.Random], str]) -> str:
    """Return a text of `size` characters, repeated after `_BLOCK_LINES` different lines."""
    pick = random.Random(1)
    block = "".join(line(pick) for _ in range(_BLOCK_LINES))
    return (block * (size // len(block) + 1))[:size]


def _log_line(pick: random.Random) -> str:
    if pick.random() < 0.001:
        return "src/a.c:12:5: error: expected ';'\n"
    time, number = f"02:{pick.randint(10, 59)}:12.{pick.randint(100, 999)}", pick.randint(1, 9_999)
    return f"2025-08-01T{time}Z INFO module {number} of the build was compiled, nothing else happened\n"


def _code_line(pick: random.Random) -> str:
    names = pick.choices(("parser", "load_config", "window", "HTTPServer", "result", "self", "limits"), k=3)
    indent = " " * pick.choice((0, 4, 4, 8))
    return f'{indent}{names[0]} = {names[1]}.{names[2]}("{pick.choice(names)}", size={pick.randint(1, 99)})\n'


def _json_line(pick: random.Random) -> str:
    fields = {
        "id": pick.getrandbits(64),
        "path": f"src/part_{pick.randint(1, 999)}.py",
        "score": pick.random(),
    }
    return json.dumps({**fields, "hash": f"{pick.getrandbits(128):032x}"}) + "\n"


def _json_in_one_line(pick: random.Random) -> str:
    return _json_line(pick).replace("\n", ", ")


def _chinese_line(pick: random.Random) -> str:
    phrases = (
        "我们需要检查",
        "这个模块的",
        "测试结果",
        "没有发现错误",
        "请更新配置文件",
        "并且重新编译",
        "服务器的日志",
    )
    return "".join(pick.choices(phrases, k=pick.randint(2, 8))) + "。\n"


KINDS: Final = {"log": _log_line, "code": _code_line, "JSON lines": _json_line, "one line": _json_in_one_line}
