"""Codex CLI rollouts: `~/.codex/sessions/**/rollout-*.jsonl`.

A line is `{"timestamp", "type", "payload"}`; older versions wrote a header without type and then bare items. Items
are those of OpenAI Responses. What the items say already (`user_message`, `agent_message`, `agent_reasoning`) is
passed over, other events are notes. A compaction covers all that came before it; the items that Codex put in the
place of the history follow it. A rollback is a rewind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from foveal.core.log.events import Dropped, Instructed, Noted, Rewound, SnapshotTaken, Used, UserSaid, text_of
from foveal.core.wire import wire
from foveal.core.wire.usage import used
from foveal.transcripts.jsonl import JsonLine
from foveal.transcripts.message_lists import MessageFeed, opaque, written
from foveal.transcripts.transcript import Transcript, TranscriptBuilder, headline, moment, words

NAME: Final = "codex"
ITEMS: Final = frozenset(
    {"message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
     "local_shell_call", "local_shell_call_output", "web_search_call", "image_generation_call", "mcp_tool_call",
     "tool_search_call", "tool_search_output", "compaction", "compaction_summary"}
)  # fmt: skip
TYPES: Final = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_SAID_ALREADY: Final = frozenset(
    {"user_message", "agent_message", "agent_reasoning", "agent_reasoning_raw_content"}
)
_NOT_A_TURN: Final = (
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
    "<turn_aborted>",
)


def read(lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]:
    rollout = _Rollout(path)
    for line in lines:
        held = line.mapping()
        if held is None or not rollout.line(held):
            rollout.feed.keep(line.raw)
    yield rollout.done(stem)


class _Rollout:
    def __init__(self, path: str) -> None:
        self.into = TranscriptBuilder(NAME, path)
        self.feed = MessageFeed(self.into, wire("openai_responses"))
        self.at: float | None = None
        self.turns: list[int] = []
        """Where the turns begin that still count, as far as `looked`."""
        self.looked = 0
        self.total: object = None
        """The running total of the last report: one that is told again is no new call."""

    def line(self, held: Mapping[str, Any]) -> bool:
        """Take in a line; False when it is not understood."""
        self.at = moment(held.get("timestamp")) or self.at
        payload = held.get("payload")
        if not isinstance(payload, Mapping):
            return self._old(held)
        match held.get("type"):
            case "response_item":
                return self._item(payload)
            case "event_msg":
                return self._event(payload)
            case "compacted":
                return self._compacted(payload)
            case "turn_context":
                self.into.model = words(payload.get("model")) or self.into.model
            case "session_meta":
                self._meta(payload)
            case _:
                return False
        self._note(str(held["type"]), payload)
        return True

    def done(self, stem: str) -> Transcript:
        self.feed.flush()
        self.into.title = self.into.title or headline(self.into.facts)
        return self.into.done(stem)

    def _note(self, topic: str, payload: Mapping[str, Any]) -> None:
        self.feed.beside(Noted(topic=f"codex {topic}", text=written(payload)), at=self.at)

    def _old(self, held: Mapping[str, Any]) -> bool:
        """A line of the versions before there were payloads."""
        if words(held.get("type")) in ITEMS:
            return self._item(held)
        if "record_type" in held:
            self._note("state", held)
            return True
        if "type" in held or not isinstance(held.get("id"), str) or "timestamp" not in held:
            return False
        self._meta(held)
        self._note("session_meta", held)
        return True

    def _meta(self, payload: Mapping[str, Any]) -> None:
        self.into.id = self.into.id or words(payload.get("id"))
        base = payload.get("base_instructions")
        text = words(base.get("text")) if isinstance(base, Mapping) else ""
        if text:
            self.feed.beside(Instructed(content=text, aside=True), at=self.at)

    def _item(self, payload: Mapping[str, Any]) -> bool:
        kind = words(payload.get("type"))
        if kind == "ghost_snapshot" and (data := opaque(payload)) is not None:
            self.feed.beside(SnapshotTaken(data=data, label="codex ghost_snapshot"), at=self.at)
            return True
        if kind not in ITEMS:
            return False
        return self.feed.message(payload, at=self.at)

    def _event(self, payload: Mapping[str, Any]) -> bool:
        kind = words(payload.get("type"))
        if kind in _SAID_ALREADY:
            return True
        if kind == "token_count":
            self.feed.beside(*self._used(payload), at=self.at)
            return True
        if kind == "thread_name_updated":
            self.into.title = words(payload.get("thread_name")) or self.into.title
        if kind == "thread_rolled_back":
            self._rolled_back(payload.get("num_turns"))
        if kind:
            self._note(f"event {kind}", payload)
        return bool(kind)

    def _used(self, payload: Mapping[str, Any]) -> Iterator[Used]:
        info = payload.get("info", payload)
        if not isinstance(info, Mapping):
            return
        total, before = info.get("total_token_usage"), self.total
        if total is not None and total == before:
            return
        self.total = total
        last = info.get("last_token_usage") or (info if total is None else _grown(total, before))
        fact = used(_spelled(last), model=self.into.model) if isinstance(last, Mapping) else None
        if fact is not None:
            yield fact

    def _compacted(self, payload: Mapping[str, Any]) -> bool:
        self.feed.flush()
        summary, history = words(payload.get("message")), payload.get("replacement_history")
        items = [item for item in history if isinstance(item, Mapping)] if isinstance(history, list) else []
        covered = len(self.into) - 1
        if not self.into.compact(summary, by=NAME, at=self.at):
            if not items or covered < 0:
                return False
            self.into.add(Dropped(ranges=((0, covered),), reason="recorded"), at=self.at)
        for item in items:
            if not (summary and summary in _text(item)) and not self._item(item):
                self.feed.keep(written(item))
        return True

    def _rolled_back(self, turns: object) -> None:
        """The last so many turns no longer count."""
        self.feed.flush()
        for place in range(self.looked, len(self.into)):
            fact, _ = self.into.facts[place]
            if isinstance(fact, UserSaid) and not text_of(fact.content).startswith(_NOT_A_TURN):
                self.turns.append(place)
        if isinstance(turns, int) and turns > 0 and self.turns:
            gone = self.turns[-turns:]
            del self.turns[-turns:]
            self.into.add(Rewound(to=gone[0] - 1), at=self.at)
        self.looked = len(self.into)


def _text(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    parts = content if isinstance(content, list) else ()
    return "\n".join(words(part.get("text")) for part in parts if isinstance(part, Mapping))


def _grown(total: object, before: object) -> Mapping[str, Any]:
    """What was used between two running totals."""
    if not isinstance(total, Mapping):
        return {}
    old = before if isinstance(before, Mapping) else {}
    return {
        name: value - old.get(name, 0)
        for name, value in total.items()
        if isinstance(value, int) and isinstance(old.get(name, 0), int)
    }


def _spelled(usage: Mapping[str, Any]) -> dict[str, Any]:
    """A report in Codex's spelling as the provider would spell it."""
    return {
        **usage,
        "input_tokens_details": {"cached_tokens": usage.get("cached_input_tokens", 0)},
        "output_tokens_details": {"reasoning_tokens": usage.get("reasoning_output_tokens", 0)},
    }
