"""The laws on every recorded conversation, with three windows and every preset.

The tests need ../shared/data beside the checkout. They replay a part of the combinations. In long
conversations every third call is made and the expensive checks run at every fifth of these; FOVEAL_SOAK=1 replays
more combinations, makes every call and checks every fourth.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from foveal import PRESETS, Context, ContextOverflow
from support.effort import some_cases
from support.histories import (
    ESTIMATE,
    Json,
    context,
    encode_and_decode,
    recount,
    render_log,
    strings,
    wire_bytes,
)
from support.legality import check_chat
from support.paths import RECORDED
from support.report_checks import adds_up, figures

DATA: Final = RECORDED
FILES: Final = sorted(path for path in DATA.glob("*.jsonl.gz") if path.name != "raw.jsonl.gz")
SOAK: Final = bool(os.environ.get("FOVEAL_SOAK"))
CALLED_EVERY: Final = 1 if SOAK else 3
CHECKED_EVERY: Final = 4 if SOAK else 5
MAX_SHORT_CALLS: Final = 12
"""A conversation with fewer calls is replayed and checked at each of them."""

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not FILES, reason="the recorded conversations are not beside this checkout"),
]


@cache
def conversations(path: Path) -> list[list[Json]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["messages"] for line in lines]


def call_points(messages: list[Json]) -> Iterator[int]:
    """Yield the lengths of the history at which the recorded agent called its model, and the whole length."""
    for at, message in enumerate(messages):
        if at and message["role"] == "assistant":
            yield at
    yield len(messages)


def words(message: Json | None) -> list[str]:
    """Return the texts of a message that must be in a request."""
    return [] if message is None else [text for text in strings(message["content"]) if text.strip()]


def said(messages: list[Json], role: str) -> list[Json]:
    return [message for message in messages if message["role"] == role]


def check(ctx: Context, so_far: list[Json], request: list[Json], *, task: bool) -> None:
    """Check everything that one request shows; `task` when the first user message must still be there."""
    report = figures(ctx)
    adds_up(report)
    assert recount(request) <= report.used <= report.limit
    assert check_chat(request) == []
    shown = set(strings([message["content"] for message in request]))
    for message in said(so_far, "system"):
        assert set(words(message)) <= shown
    users = said(so_far, "user")
    if users:
        assert set(words(users[-1])) <= shown
        assert not task or set(words(users[0])) <= shown, "the task is gone"


def floor(so_far: list[Json]) -> int:
    """Return roughly what must stay: system text, the latest user message, the newest step without its results."""
    kept = said(so_far[:2], "system")
    latest = next((m for m in reversed(so_far) if m["role"] == "user"), None)
    newest = next((m for m in reversed(so_far) if m["role"] in ("assistant", "user")), None)
    kept += [message for message in (latest, newest) if message is not None]
    return sum(_size(id(message), message) for message in kept)


def _size(name: int, message: Json) -> int:
    """Return the units of a recorded message. The messages are never freed, so their `id()` is a key."""
    if name not in _SIZES:
        _SIZES[name] = recount([message])
    return _SIZES[name]


_SIZES: Final[dict[int, int]] = {}


def attempt(ctx: Context, messages: list[Json]) -> tuple[list[Json], None] | tuple[None, ContextOverflow]:
    try:
        return ctx.fit(messages), None
    except ContextOverflow as problem:
        return None, problem


def replay(messages: list[Json], window: int, policy: str) -> None:
    ctx = context(window, policy)
    points = list(call_points(messages))
    every = 1
    if len(points) >= MAX_SHORT_CALLS:
        points, every = [*points[:-1:CALLED_EVERY], points[-1]], CHECKED_EVERY
    first = recount(said(messages, "user")[:1])
    limit = figures(ctx).limit
    task = policy == "economy"
    request: list[Json] | None = None
    for number, taken in enumerate(points):
        so_far = messages[:taken]
        request, problem = attempt(ctx, so_far)
        must_stay = floor(so_far)
        task = task and first + must_stay < limit * 0.6  # where both do not fit, the task has to go
        if problem is not None:
            assert problem.needed >= problem.floor > 0
            if policy == "off":
                return
            assert must_stay > limit * 0.6, str(problem)
        elif number % every == 0 or taken == len(messages):
            assert request is not None
            check(ctx, so_far, request, task=task)
    if request is not None:
        assert wire_bytes(render_log(ctx.log, "openai_chat")) == wire_bytes(request)
        assert ctx.fit(messages) == request
        log = encode_and_decode(ctx.log)
        assert log == list(ctx.log)
        assert wire_bytes(render_log(log, "openai_chat")) == wire_bytes(request)


WINDOWS: Final = (8_000, 32_000, 128_000)
OTHERS_SHARE: Final = 3
"""Of the conversations, one in this many is replayed with larger windows and under the other policies."""
MAX_REPLAYED: Final = 3 if SOAK else 1
"""Conversations of a file that one test replays; the tests of other windows and policies replay others."""


def windows(policy: str) -> tuple[int, ...]:
    """Return all windows for the default policy and one for each of the others; all with FOVEAL_SOAK."""
    if SOAK or policy == "economy":
        return WINDOWS
    place = list(PRESETS).index(policy) % len(WINDOWS)
    return WINDOWS[place : place + 1]


CASES: Final[list[Any]] = [
    pytest.param(path, window, policy, id=f"{path.name.partition('.')[0]}-{window // 1_000}k-{policy}")
    for path in FILES
    for policy in PRESETS
    for window in windows(policy)
]


@pytest.mark.parametrize(("path", "window", "policy"), some_cases(CASES, every=7))
def test_every_recorded_conversation_keeps_the_laws(path: Path, window: int, policy: str) -> None:
    for messages in selected(path, policy, window):
        replay(messages, window, policy)


def selected(path: Path, policy: str, window: int) -> list[list[Json]]:
    """Return the most conversations for the default policy in the smallest window."""
    found = conversations(path)
    share = 1 if policy == "economy" and window == WINDOWS[0] else min(OTHERS_SHARE, len(found))
    step = max(share, math.ceil(share * len(found) / MAX_REPLAYED))
    first = list(PRESETS).index(policy) + WINDOWS.index(window)
    return found[first % step :: step]


def test_the_estimate_agrees_with_the_recount_of_these_tests() -> None:
    assert recount([{"role": "user", "content": "word " * 10}]) == 4 + ESTIMATE.count("word " * 10)
