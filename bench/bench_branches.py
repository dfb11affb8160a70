"""Measures what branches cost and forget: recorded sessions with sub-agents, whose work runs in one context.

Each call of a sub-agent becomes a call of `branch` with its prompt, the recorded messages of the sub-agent, and a
call of `return` with the recorded answer. The same messages with answers that begin no branch are the baseline. The
recordings are those of `entire.jsonl.gz` in the folder that `FOVEAL_BENCH_DATA` names, or in `shared/data` beside
the checkout.

    python -m bench branches --limit 6    replay at most 6 sessions
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.bench_peer_recall import data_folder, percent
from bench.bench_redaction import DATA_VARIABLE
from bench.measure import Row, progress
from bench.work import Json
from foveal import replay
from foveal.branches import answer
from foveal.core import wire
from foveal.replay import PolicyStatistics
from foveal.replay.cache_cost import DEFAULT_PRICES
from foveal.replay.strata import trace_bill
from foveal.transcripts import Transcript

DEFAULT_LIMIT: Final = 8
RUNS: Final = ((1_000_000, "off"), (1_000_000, "economy"), (64_000, "economy"))
"""Windows and policies: first, only the branches reduce."""
SAMPLES: Final = 6
"""Calls of each session at which surprise is measured."""
SUB_AGENT_TOOLS: Final = ("Task", "Agent")
MAX_MESSAGES: Final = 800
"""Messages of a session with its sub-agents: longer ones take too long for a benchmark of every day."""
NOT_BEGUN: Final = "[note: go on]"
"""An answer that begins and ends no branch, about as long as one that does."""


def rows(limit: int = DEFAULT_LIMIT) -> Iterator[Row]:
    path = data_folder() / "entire.jsonl.gz"
    if not path.exists():
        yield Row("bill", None, note=f"there are no recorded conversations; name a folder in {DATA_VARIABLE}")
        return
    progress("branches: replaying …")
    sessions = sorted(sessions_with_sub_agents(path), key=lambda session: len(session[0]))[:limit]
    everything = 0.0
    for window, policy in RUNS:
        for name, folds in (("without branches", False), ("with branches", True)):
            recordings = [one_context(*session, folds=folds) for session in sessions]
            whole, found = replay.run(
                recordings, [policy], processes=1, window=window, bounds=False, samples=SAMPLES
            )
            everything = everything or _spent(whole)  # in the later runs, its requests are folded too
            bill = _spent(found) / everything
            yield Row(f"{policy}, window {window:,}, {name}", bill, "%", note=_note(found, sessions))


def _spent(found: PolicyStatistics) -> float:
    return sum(trace_bill(trace, DEFAULT_PRICES) for trace in found.traces)


def _note(found: PolicyStatistics, sessions: Sequence[Any]) -> str:
    surprise = "–" if found.surprise is None else f"{found.surprise:.3f}"
    return (
        f"surprise {surprise} bits per byte; names {percent(found.ident)} / far {percent(found.ident_far)}, "
        f"lines {percent(found.line)} / far {percent(found.line_far)}; largest request {found.peak:,}; "
        f"{found.breaks or 0:.1f} breaks per 100, {found.over} over; {len(sessions)} sessions, "
        f"{sum(len(agents) for _, agents in sessions)} branches, {found.calls:,} calls"
    )


def sessions_with_sub_agents(path: Path) -> Iterator[tuple[list[Json], dict[str, list[Json]]]]:
    """Yield the messages of each session that has recorded sub-agents, and theirs by their prompt."""
    with gzip.open(path) as lines:
        recorded = {each["id"]: each for each in map(json.loads, lines)}
    for id, session in recorded.items():
        agents = [each["messages"] for each in recorded.values() if each["meta"].get("parent") == id]
        by_prompt = {_prompt(messages): messages for messages in agents}
        total = len(session["messages"]) + sum(map(len, agents))
        if by_prompt and total <= MAX_MESSAGES:
            yield session["messages"], by_prompt


def _prompt(messages: Sequence[Json]) -> str:
    first = next((message["content"] for message in messages if message["role"] == "user"), "")
    return first.strip() if isinstance(first, str) else json.dumps(first)


def one_context(messages: Sequence[Json], agents: dict[str, list[Json]], *, folds: bool) -> Transcript:
    """Return a session whose model does the work of its sub-agents itself, in branches if it `folds`."""
    told: list[Json] = []
    results = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
    moved = set[str]()
    for message in messages:
        if message["role"] == "tool" and message["tool_call_id"] in moved:
            continue
        calls = message.get("tool_calls") or []
        inner = {call["id"]: prompt for call in calls if (prompt := _task_of(call)) in agents}
        moved |= inner.keys()
        others = [call for call in calls if call["id"] not in inner]
        if others or not calls:
            told.append({**message, "tool_calls": others} if calls else message)
        for id, prompt in inner.items():
            said = results.get(id, {}).get("content")
            told += _branch(id, prompt, agents[prompt], said if isinstance(said, str) else "", folds=folds)
    facts = (fact for chunk in wire.wire_for("openai_chat").read(told) for fact in chunk.facts)
    return Transcript(
        id=f"session-{len(messages)}", source="entire", facts=tuple((fact, None) for fact in facts)
    )


def _task_of(call: Json) -> str:
    if call["function"]["name"] not in SUB_AGENT_TOOLS:
        return ""
    given = json.loads(call["function"]["arguments"])
    return str(given.get("prompt", "")).strip()


def _branch(id: str, prompt: str, messages: Sequence[Json], result: str, *, folds: bool) -> list[Json]:
    work = [message for message in messages if message["role"] in ("assistant", "tool")]
    return [
        *_call(f"{id}-branch", "branch", {"task": prompt}, folds=folds),
        *work,
        *_call(f"{id}-return", "return", {"result": result or "It is done."}, folds=folds),
    ]


def _call(id: str, name: str, given: Json, *, folds: bool) -> list[Json]:
    function = {"name": name, "arguments": json.dumps(given)}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": id, "type": "function", "function": function}],
        },
        {
            "role": "tool",
            "tool_call_id": id,
            "content": answer(name, given, open_branches=1) if folds else NOT_BEGUN,
        },
    ]
