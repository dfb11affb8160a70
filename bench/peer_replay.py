"""Replays recorded conversations through the reducers of other packages.

    python -m bench.peer_replay FOLDER --limit 20      prints one JSON object per reducer and stratum of pressure

1. The requests are billed and searched by the code of `foveal replay`. Foveal's policies run in the same process,
   on the same conversations and windows.
2. A request larger than the window is refused: the peer may reduce and send another. If it cannot, the call counts
   as over the window, is billed as if everything had been sent, and loses all its needs, as under `foveal replay`.
3. There is no model. Summaries are a fixed text without a name in it, or a ledger of everything that the request
   does not show verbatim, in as many tokens as `handoff` uses. What the model would have read is billed; a request
   for a summary that begins with the conversation's own request finds that part in the cache.
4. A peer is told the usage of each answer: the tokens of its request, as the replay counts them.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from bench.peer_histories import (
    LangChainHistory,
    PeerHistory,
    ReportedUsage,
    pydantic_sliding,
    pydantic_tiered,
    strands_auto,
    strands_sliding,
    text_of_chat,
)
from bench.peer_loops import SUMMARY, installed_version
from bench.work import Json
from foveal.core.compaction.ledger.ledger import Ledger
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.log.events import Event
from foveal.core.policies import policy
from foveal.core.tokens.counter import counter
from foveal.core.view.text_facts import find_names
from foveal.core.wire import wire_for
from foveal.core.wire.request_text import RequestText
from foveal.replay import ReplaySetting, Trace, common_names, find_needs, load, recorded_conversation, select
from foveal.replay.play import (
    PolicyPlayer,
    ReplayCase,
    RequestScorer,
    loss_without_cause,
    replay_everything,
)
from foveal.replay.run import Half
from foveal.replay.strata import by_pressure
from foveal.transcripts import Transcript

MODEL: Final = "gpt-5"
WINDOWS: Final = (32_000, 64_000, 128_000)
RESERVE: Final = 4_000
MIN_TOKENS: Final = 40_000
HALF: Final = "B"
NO_RECALL: Final = "sweagent"
"""Sources whose agents saw only a part of their history are billed, and not searched."""
OWN_POLICIES: Final = ("economy", "handoff")
MODEL_DRAFT: Final = """<summary>
## Goal
The task is in progress.
## Decisions
- None.
## State
- Files were read and edited.
## Next
- Go on.
## Dead ends
- None.
</summary>"""
PROCESSES: Final = 2


class PeerReducer(NamedTuple):
    """A reducer of another package."""

    package: str
    what: str
    history: Callable[..., PeerHistory]
    """Takes the window and a `WriteSummary`."""
    summarises: bool
    has_target: bool = False
    """Whether `history` takes the share of its tokens to which it reduces."""

    @property
    def installed(self) -> str:
        return installed_version(self.package)


REDUCERS: Final = (
    PeerReducer("pydantic-ai-harness", "sliding window", pydantic_sliding, summarises=False, has_target=True),
    PeerReducer("pydantic-ai-harness", "tiered", pydantic_tiered, summarises=True, has_target=True),
    PeerReducer("langchain", "summarisation middleware", LangChainHistory, summarises=True, has_target=True),
    PeerReducer("strands-agents", "sliding window", strands_sliding, summarises=False),
    PeerReducer("strands-agents", "auto", strands_auto, summarises=True),
)


def fixed_draft(request: SummaryRequest) -> Json:
    """Return the answer of a model that quotes nothing, in the form that Foveal asks for."""
    count = counter(model=MODEL).count
    sizes = [count(json.dumps(message, ensure_ascii=False)) for message in request.messages]
    cached = sum(sizes[:-1]) if request.form == "shared" else 0
    usage = {"prompt_tokens": sum(sizes), "prompt_tokens_details": {"cached_tokens": cached}}
    choice = {"message": {"role": "assistant", "content": MODEL_DRAFT}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": usage}


# ── Summaries ────────────────────────────────────────────────────────────────────────────────────────────


class FixedSummaries:
    """Summaries that contain no name, and the tokens that a model reads for them."""

    name = "fixed text"

    def __init__(self, _case: ReplayCase, _window: int) -> None:
        self.read = 0
        self._count = counter(model=MODEL).count

    def write(self, prompt: str) -> str:
        """Return the summary for a prompt of the peer."""
        self.read += self._count(prompt)
        return SUMMARY

    def show(self, messages: list[Json], _recorded: Sequence[Json]) -> list[Json]:
        """Return the request with its summaries."""
        return messages


class LedgerSummaries:
    """Summaries that are a ledger of all messages that the request does not show verbatim.

    A summary is written before the peer has removed messages. Therefore the peer gets a placeholder of the same
    size, and the request gets the ledger in its place."""

    name = "ledger"

    def __init__(self, case: ReplayCase, window: int) -> None:
        rules = policy("handoff")
        self.read = 0
        self._case = case
        self._counter = counter(model=MODEL)
        self._room = min(rules.summary_tokens, int(rules.summary_share * (window - RESERVE)))
        self._ledgers: list[str] = []
        self._written = 0

    def write(self, prompt: str) -> str:
        """Return the placeholder for a prompt of the peer."""
        self.read += self._counter.count(prompt)
        self._written += 1
        return f"[summary {self._written - 1}]" + " word" * (self._room * 4 // 5)

    def show(self, messages: list[Json], recorded: Sequence[Json]) -> list[Json]:
        """Return the request with ledgers in place of the placeholders."""
        if self._written > len(self._ledgers):
            ledger = self._ledger(messages, recorded)
            self._ledgers += [ledger] * (self._written - len(self._ledgers))
        return [self._filled(message) for message in messages]

    def _ledger(self, messages: Sequence[Json], recorded: Sequence[Json]) -> str:
        shown = {id(message) for message in messages}
        read = wire_for("openai_chat").read
        events = [
            Event(place, fact)
            for place, message in enumerate(recorded)
            if id(message) not in shown and message["role"] != "system"
            for chunk in read((message,))
            for fact in chunk.facts
        ]
        elsewhere = {name for message in messages for name in find_names(text_of_chat(message))}
        return Ledger(events, self._counter).write(room=self._room, elsewhere=elsewhere)

    def _filled(self, message: Json) -> Json:
        text = message.get("content")
        if not isinstance(text, str) or "[summary " not in text:
            return message
        filled = _PLACEHOLDER.sub(lambda found: self._ledgers[int(found[1])], text)
        return message if filled == text else {**message, "content": filled}


_PLACEHOLDER: Final = re.compile(r"\[summary (\d+)\](?: word){9,}")


# ── Replaying ────────────────────────────────────────────────────────────────────────────────────────────


class RecordedMessages:
    """Finds the recorded message for a message that a peer has written back."""

    def __init__(self, messages: Iterable[Json]) -> None:
        self._found: dict[tuple[Any, ...], list[Json]] = {}
        for message in messages:
            self._found.setdefault(_key(message), []).append(message)

    def original(self, message: Json) -> Json:
        """Return the recorded message if the peer did not change it, else the given one."""
        same = self._found.get(_key(message), ())
        if len(same) == 1:
            return same[0]
        return next((each for each in same if _arguments(each) == _arguments(message)), message)


def _key(message: Json) -> tuple[Any, ...]:
    ids = tuple(call["id"] for call in message.get("tool_calls") or ())
    return message["role"], text_of_chat(message), ids, message.get("tool_call_id")


def _arguments(message: Json) -> list[Any]:
    return [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls") or ()]


class PeerReplay:
    """Replays one conversation through a peer's reducer."""

    def __init__(self, case: ReplayCase, reducer: PeerReducer, summaries: Any, label: str) -> None:
        self._case = case
        self._window = case.model.window
        self._summaries = summaries
        self._history = reducer.history(self._window, summaries.write)
        self._originals = RecordedMessages(case.conversation.messages)
        self._scorer = RequestScorer(case, label)

    def play(self) -> Trace:
        """Replay all calls."""
        conversation, trace = self._case.conversation, self._scorer.trace
        start, usage = 0, None
        for number, call in enumerate(conversation.calls):
            self._add(conversation.messages[start : call.messages], usage)
            started = time.thread_time()
            if call.messages:  # a conversation may begin with an answer
                self._history.reduce()
            trace.seconds.append(time.thread_time() - started)
            recorded = conversation.messages[: call.messages]
            request = self._request(recorded)
            while request.tokens > self._window and self._history.shrink():
                request = self._request(recorded)
            is_refused = request.tokens > self._window
            self._scorer.score(number, None if is_refused else request, loss_without_cause)
            output = self._case.reader.message(conversation.messages[call.messages]).tokens
            usage = None if is_refused else ReportedUsage(request.tokens, output)
            start = call.messages
        trace.summaries = (self._summaries.read, 0)
        return trace

    def _add(self, messages: Sequence[Json], usage: ReportedUsage | None) -> None:
        given: list[Json] = []
        for message in messages:
            if message["role"] == "assistant":
                self._history.add_input(given)
                self._history.add_answer(message, usage)
                given = []
            else:
                given.append(message)
        self._history.add_input(given)

    def _request(self, recorded: Sequence[Json]) -> RequestText:
        written = [self._originals.original(message) for message in self._history.messages()]
        return self._case.reader.request(self._summaries.show(written, recorded), system=None, tools=())


def _conversation_traces(case: ReplayCase) -> Iterator[Trace]:
    """Yield the traces of one conversation in one window: Foveal's policies, and each peer with each summary."""
    setting = case.setting
    for name in OWN_POLICIES:
        yield PolicyPlayer(case, policy(name), label=f"foveal, {name}, {LedgerSummaries.name}").play()
    case.set_window(msgspec.structs.replace(setting, summariser="bench.peer_replay:fixed_draft"))
    for name in OWN_POLICIES:
        yield PolicyPlayer(case, policy(name), label=f"foveal, {name}, {FixedSummaries.name}").play()
    case.set_window(setting)
    for label, reducer, summaries in installed_peers():
        yield PeerReplay(case, reducer, summaries(case, case.model.window), label).play()


def installed_peers() -> Iterator[tuple[str, PeerReducer, type[FixedSummaries | LedgerSummaries]]]:
    """Yield each peer that is installed with each kind of its summaries, and a label for both."""
    for reducer in REDUCERS:
        if not reducer.installed:
            continue
        label = f"{reducer.package} {reducer.installed}, {reducer.what}"
        if not reducer.summarises:
            yield label, reducer, FixedSummaries
            continue
        for kind in (FixedSummaries, LedgerSummaries):
            yield f"{label}, {kind.name}", reducer, kind


def replay_recording(given: tuple[Any, frozenset[str]]) -> list[Trace]:
    """Replay one conversation in all windows."""
    recording, common = given
    be_quiet()
    conversation = recorded_conversation(recording)
    needs = [] if conversation.source.startswith(NO_RECALL) else find_needs(conversation.facts, common=common)
    settings = [ReplaySetting(model=MODEL, window=window, reserve=RESERVE) for window in WINDOWS]
    case = ReplayCase(conversation, needs, settings[0])
    replay_everything(case)
    found: list[Trace] = []
    for setting in settings:
        case.set_window(setting)
        found += _conversation_traces(case)
    return [msgspec.structs.replace(trace, losses=[]) for trace in found]


def be_quiet() -> None:
    """Silence the peers."""
    warnings.simplefilter("ignore")  # peers warn of experimental parts and of windows that they do not know
    logging.disable(logging.CRITICAL)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peer_replay")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, metavar="N", help="conversations at most; default: all")
    given = parser.parse_args()
    be_quiet()
    recordings = load([given.folder])
    common = common_names(recordings)
    chosen = long_chats(recordings, half=HALF)
    if given.limit is not None:
        chosen = select(chosen, limit=given.limit)
    print_missing()
    largest_first = sorted(chosen, key=lambda each: -len(each.facts))
    traces: dict[str, list[Trace]] = {}
    # A forked process would share the event loop of `peer_loops` with the others.
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for found in pool.map(replay_recording, ((each, common) for each in largest_first)):
            for trace in found:
                traces.setdefault(trace.policy, []).append(trace)
    for name, group in traces.items():
        for row in _rows(name, group):
            print(json.dumps(row), flush=True)


def long_chats(recordings: Sequence[Transcript], *, half: Half) -> list[Transcript]:
    """Return the recordings of one half that are long enough, and in the dialect that all peers read."""
    return [
        each
        for each in select(recordings, half=half, min_tokens=MIN_TOKENS)
        if recorded_conversation(each).dialect == "openai_chat"
    ]


def print_missing() -> None:
    """Print a JSON object for each peer that is not installed."""
    for reducer in REDUCERS:
        if not reducer.installed:
            print(json.dumps({"missing": f"{reducer.package}, {reducer.what}"}), flush=True)


def _rows(name: str, traces: Sequence[Trace]) -> Iterator[Json]:
    """Yield the figures of a reducer in each stratum of pressure."""
    for stratum in by_pressure(traces):
        group = [trace for trace in traces if by_pressure([trace])[0].name == stratum.name]
        unread = [msgspec.structs.replace(trace, summaries=(0, 0)) for trace in group]
        yield {
            "reducer": name,
            "counter": repr(counter(model=MODEL)),
            "bill_without_summaries": by_pressure(unread)[0].bill.pooled,
            "task": sum(trace.with_task for trace in group) / stratum.calls,
            **msgspec.to_builtins(stratum),
        }


if __name__ == "__main__":
    main()
