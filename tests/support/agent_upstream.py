"""The upstream of coding agents: it lets them call their own tools, and counts what they send.

1. Requests that offer a tool for shell commands are steps of a turn. They are answered with calls of that tool, and
   after `steps` of them with the final text of the turn.
2. Requests for a summary, of Foveal or of the client itself, are answered with a summary.
3. Requests of the client for a compaction by the provider are answered with one, and `CompactionCheck` finds later
   requests that have lost it. Thinking of models that bind it is checked with `ThinkingCheck`. Both are faults.
4. `UpstreamFigures` are counted from the received requests, in the same way for every client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from foveal.core.wire.native_compaction import COMPACTION_TRIGGER
from support.compaction_check import CompactionCheck, asks_for_compaction
from support.provider_stand_in import (
    Answer,
    Dialect,
    Json,
    Request,
    StandIn,
    _shared_chars,
    compacted_response,
)

COMPACT_PATH: Final = "/v1/responses/compact"

SHELL_TOOLS: Final = {
    "Bash": "command",
    "bash": "command",
    "exec_command": "cmd",
    "run_shell_command": "command",
}
"""The tools of coding agents that run a command, each with the name of its argument."""


@dataclass
class AgentUpstream(StandIn):
    """Lets one client call its own tools for some steps per turn, and writes valid summaries."""

    steps: int = 10
    """Requests of a turn that are answered with calls; the next one gets the final text."""
    has_tools: bool = True
    """Without tools, every streamed request is a turn and gets a long text."""
    summaries: int = 0
    """Summaries that Foveal requested; they are not streamed."""
    client_summaries: int = 0
    """Summaries that the client itself requested."""
    answered: int = 0
    """Steps and final texts that were answered."""
    compactions: int = 0
    """Compactions that the client had the provider make."""
    memory: CompactionCheck = field(default_factory=CompactionCheck)

    def next_answer(self, number: int, body: Json) -> Answer:
        is_native = asks_for_compaction(body)
        if not body.get("stream"):
            self.summaries += 1
        elif is_native:
            self.compactions += 1
        if is_native:
            return Answer(compaction=f"What was done until {number}. " * 20)
        if not body.get("stream"):
            return Answer(text=SUMMARY)
        tools = _tool_names(body)
        if _asks_for_summary(body):
            self.client_summaries += 1
            return Answer(text=SUMMARY)
        if self.has_tools and not tools & SHELL_TOOLS.keys():
            return Answer(text="A title")
        if self._is_turn_done and _newest_text(body) == "continue":
            return self._last_answer()  # Continue says so after each turn in which it has compacted
        self.answered += 1
        if not self.has_tools:
            return Answer(text=_long_text(self.answered))
        if self._is_turn_done:
            return self._last_answer()
        calls = tuple(_calls(self.answered, tools))
        return Answer(text="I look further.", calls=calls, thought=f"Step {self.answered}.")

    @property
    def _is_turn_done(self) -> bool:
        return self.answered > 0 and self.answered % (self.steps + 1) == 0

    def _last_answer(self) -> Answer:
        return Answer(text=f"Turn {self.answered // (self.steps + 1)} is done.")

    def request_faults(self, dialect: Dialect, body: Json) -> list[str]:
        faults = super().request_faults(dialect, body)
        is_step = asks_for_compaction(body) or bool(_tool_names(body) & SHELL_TOOLS.keys())
        return [*faults, *(self.memory.faults(body) if is_step and body.get("stream") else ())]

    def reply(self, path: str, body: Json) -> tuple[int, Json]:
        if path == COMPACT_PATH:
            asked = {**body, "stream": True, "input": [*body["input"], COMPACTION_TRIGGER]}
            status, reply = self.reply(path.removesuffix("/compact"), asked)
            return status, compacted_response(reply, body) if status == 200 else reply
        try:
            status, reply = super().reply(path, body)
        except LookupError:  # an endpoint that only some clients use
            return 404, {"error": {"message": f"no {path} here", "type": "not_found"}}
        if status == 200 and body.get("stream"):
            self.memory.remember(int(re.split("[-_]", reply["id"])[-1]), reply)
        return status, reply


SUMMARY: Final = """\
<summary>
## Goal
The user wants the parts to be found.

## Decisions
-

## State
Some files were read.

## Next
Read further.

## Dead ends
-
</summary>"""


def _tool_names(body: Json) -> set[str]:
    offered = (tool.get("function") or tool for tool in body.get("tools") or [])
    return {str(tool.get("name")) for tool in offered}


def _asks_for_summary(body: Json) -> bool:
    """Return whether the newest message asks for a summary, as clients do that compact their own history."""
    text = _newest_text(body)
    return (
        text.startswith("<conversation>") or _SUMMARY_PROMPT.search(text) is not None
    )  # the first is pi's form


def _newest_text(body: Json) -> str:
    """Return the last text of the newest message; "" if it is not one of the user or the client."""
    newest = (body.get("messages") or body["input"])[-1]
    if newest.get("role") not in ("user", "system", "developer"):
        return ""
    content = newest.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return str(parts[-1].get("text", ""))


_SUMMARY_PROMPT: Final = re.compile(
    r"\b(create|write|provide|generate|produce|update)\s[^.]{0,120}(summar|snapshot)", re.IGNORECASE
)
"""Matches the prompts with which clients compact, and not the message with which they continue afterwards."""


def _calls(number: int, tools: set[str]) -> Iterator[tuple[str, Json | str]]:
    """Yield one or two calls: a command with an output of changing size, and a file that is read."""
    name = next(name for name in SHELL_TOOLS if name in tools)
    field = SHELL_TOOLS[name]
    command = f"seq -f 'line %g of part {number}' {number * 10} {number * 10 + 40 + number % 7 * 60}"
    # Clients may insist on a description; those that know none ignore it.
    more = {} if name == "exec_command" else {"description": "List a part"}
    yield name, {field: command, **more}
    if number % 3 == 0:
        yield (
            ("Read", {"file_path": "notes.txt"})
            if "Read" in tools and "Glob" in tools
            else (name, {field: "cat notes.txt", **more})
        )


def _long_text(number: int) -> str:
    """Return a text. Every third contains an edit in aider's format, which ends the current turns for aider."""
    lines = (f"line {line} of part {number}" for line in range(40 + number % 7 * 60))
    edit = f"\nnotes.txt\n```\n<<<<<<< SEARCH\nnote {number}\n=======\nnote {number}: found\n>>>>>>> REPLACE\n```\n"
    return f"Turn {number} is done.\n" + "\n".join(lines) + (edit if number % 3 == 0 else "")


# ── What was sent ────────────────────────────────────────────────────────────────────────────────────────

CACHE_PRICE: Final = 0.1
"""Price of a cached token relative to an uncached one."""
_LAST_REQUESTS: Final = 6
"""Requests whose prefix a provider still has: the client's side requests and summaries come between."""
_MIN_CACHED: Final = 1_024


class UpstreamFigures(NamedTuple):
    """What a client sent in a run."""

    requests: int
    illegal: int
    """Requests with a form that a provider refuses."""
    too_large: int
    """Requests that exceed the window."""
    tokens: int
    """Prompt tokens of all requests that were accepted."""
    uncached: int
    """Those of them that no earlier request had as its prefix."""
    largest: int

    @property
    def cost(self) -> float:
        """Prompt tokens, weighted by their price."""
        return self.uncached + CACHE_PRICE * (self.tokens - self.uncached)


def upstream_figures(upstream: StandIn) -> UpstreamFigures:
    """Return what the upstream received."""
    accepted = [request for request in upstream.requests if not request.faults]
    texts = [_cache_text(request) for request in accepted]
    cached = 0
    for at, (request, text) in enumerate(zip(accepted, texts, strict=True)):
        before = texts[max(0, at - _LAST_REQUESTS) : at]
        shared = max((_shared_chars(other, text) for other in before), default=0)
        tokens = request.prompt * shared // len(text)
        cached += tokens if tokens >= _MIN_CACHED else 0
    tokens = sum(request.prompt for request in accepted)
    return UpstreamFigures(
        requests=len(upstream.requests),
        illegal=sum(any("in a window of" not in fault for fault in r.faults) for r in upstream.requests),
        too_large=sum(any("in a window of" in fault for fault in r.faults) for r in upstream.requests),
        tokens=tokens,
        uncached=tokens - cached,
        largest=max((request.prompt for request in accepted), default=0),
    )


def _cache_text(request: Request) -> str:
    """Return a request as a provider's cache compares it: the prompt that is made of it. Marks, the ids and
    states of items, empty fields and the order of fields are not in it, and a text is a list of one block."""
    body = request.body
    parts = [body.get(name) for name in ("tools", "system", "instructions", "messages", "input")]
    return json.dumps(_in_prompt(parts), sort_keys=True)


_NOT_IN_PROMPT: Final = frozenset({"cache_control", "id", "status"})


def _in_prompt(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_prompt(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {
        name: _in_prompt(item)
        for name, item in value.items()
        if item is not None and name not in _NOT_IN_PROMPT
    }
    if "role" in kept and isinstance(kept.get("content"), str):
        kept["content"] = [{"type": "text", "text": kept["content"]}]
    return kept
