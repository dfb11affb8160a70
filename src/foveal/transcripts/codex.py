"""Reader of Codex CLI rollouts: `~/.codex/sessions/**/rollout-*.jsonl`.

1. A line is `{"timestamp", "type", "payload"}`; older versions wrote a header without type and then bare items. The
   items are those of OpenAI Responses.
2. Events that repeat the items (`user_message`, `agent_message`, `agent_reasoning`) are skipped; other events
   become notes.
3. A compaction covers all that came before it; the items by which Codex replaced the history follow it.
4. A rollback becomes a rewind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from foveal.core.log.events import Dropped, Instructed, Noted, Rewound, SnapshotTaken, Used, UserSaid, text_of
from foveal.core.wire import wire_for
from foveal.core.wire.usage import usage_or_none
from foveal.transcripts.jsonl import JsonLine
from foveal.transcripts.message_lists import RESPONSES_ITEM_TYPES, MessageFeed, to_json_text, to_raw
from foveal.transcripts.transcript import (
    API_ERROR_TOPIC,
    Transcript,
    TranscriptBuilder,
    TranscriptFormat,
    derive_title,
    parse_time,
    text_or_empty,
)

_LINE_TYPES: Final = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_REPEATED_EVENTS: Final = frozenset(
    {"user_message", "agent_message", "agent_reasoning", "agent_reasoning_raw_content"}
)
_NON_TURN_PREFIXES: Final = (
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
    "<turn_aborted>",
)


def _matches(value: Mapping[str, Any], kind: str) -> bool:
    if "payload" in value:
        return kind in _LINE_TYPES
    is_header = {"id", "timestamp"} <= value.keys() and not {"type", "role", "messages"} & value.keys()
    return "record_type" in value or (is_header and bool({"instructions", "git"} & value.keys()))


def _read(lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]:
    rollout = _Rollout(path)
    for line in lines:
        value = line.parse_object()
        if value is None or not rollout.add_line(value):
            rollout.feed.add_unknown(line.raw)
    yield rollout.build(stem)


class _Rollout:
    """Builds the transcript of one rollout from its lines."""

    def __init__(self, path: str) -> None:
        self.builder = TranscriptBuilder(CODEX.name, path)
        self.feed = MessageFeed(self.builder, wire_for("openai_responses"))
        self.at: float | None = None
        self.turns: list[int] = []
        """Positions where the turns start that were not rolled back, among the first `scanned` facts."""
        self.scanned = 0
        self.last_total: object = None
        """Running total of the last usage report: the same total again is not another call."""

    def add_line(self, line: Mapping[str, Any]) -> bool:
        """Add the facts of a line; False if it is not understood."""
        self.at = parse_time(line.get("timestamp")) or self.at
        payload = line.get("payload")
        if not isinstance(payload, Mapping):
            return self._add_legacy(line)
        match line.get("type"):
            case "response_item":
                return self._add_item(payload)
            case "event_msg":
                return self._add_event(payload)
            case "compacted":
                return self._add_compaction(payload)
            case "turn_context":
                self.builder.describe(model=text_or_empty(payload.get("model")) or self.builder.model)
            case "session_meta":
                self._add_header(payload)
            case "world_state" | "token_usage_record":  # the usage is in the event `token_count` too
                pass
            case _:
                return False
        self._note(str(line["type"]), payload)
        return True

    def build(self, stem: str) -> Transcript:
        self.feed.flush()
        self.builder.describe(title=self.builder.title or derive_title(self.builder.facts))
        return self.builder.build(stem)

    def _note(self, topic: str, payload: Mapping[str, Any]) -> None:
        self.feed.add_beside(Noted(topic=f"codex {topic}", text=to_json_text(payload)), at=self.at)

    def _add_legacy(self, line: Mapping[str, Any]) -> bool:
        """Add a line of the versions without payloads."""
        if text_or_empty(line.get("type")) in RESPONSES_ITEM_TYPES:
            return self._add_item(line)
        if "record_type" in line:
            self._note("state", line)
            return True
        if "type" in line or not isinstance(line.get("id"), str) or "timestamp" not in line:
            return False
        self._add_header(line)
        self._note("session_meta", line)
        return True

    def _add_header(self, payload: Mapping[str, Any]) -> None:
        self.builder.describe(id=self.builder.id or text_or_empty(payload.get("id")))
        base = payload.get("base_instructions")
        text = text_or_empty(base.get("text")) if isinstance(base, Mapping) else ""
        if text:
            self.feed.add_beside(Instructed(content=text, aside=True), at=self.at)

    def _add_item(self, payload: Mapping[str, Any]) -> bool:
        kind = text_or_empty(payload.get("type"))
        if kind == "ghost_snapshot" and (data := to_raw(payload)) is not None:
            self.feed.add_beside(SnapshotTaken(data=data, label="codex ghost_snapshot"), at=self.at)
            return True
        if kind not in RESPONSES_ITEM_TYPES:
            return False
        return self.feed.add(payload, at=self.at)

    def _add_event(self, payload: Mapping[str, Any]) -> bool:
        kind = text_or_empty(payload.get("type"))
        if kind in _REPEATED_EVENTS:
            return True
        if kind == "token_count":
            self.feed.add_beside(*self._usage(payload), at=self.at)
            return True
        if kind == "thread_name_updated":
            self.builder.describe(title=text_or_empty(payload.get("thread_name")) or self.builder.title)
        if kind == "thread_rolled_back":
            self._add_rollback(payload.get("num_turns"))
        if kind == "error" and (text := text_or_empty(payload.get("message"))):
            self.feed.add_beside(Noted(topic=API_ERROR_TOPIC, text=text), at=self.at)
        elif kind:
            self._note(f"event {kind}", payload)
        return bool(kind)

    def _usage(self, payload: Mapping[str, Any]) -> Iterator[Used]:
        info = payload.get("info", payload)
        if not isinstance(info, Mapping):
            return
        window = info.get("model_context_window")
        if isinstance(window, int) and window > 0:
            self.builder.describe(window=window)
        total, before = info.get("total_token_usage"), self.last_total
        if total is not None and total == before:
            return
        self.last_total = total
        last = info.get("last_token_usage") or (info if total is None else _usage_difference(total, before))
        fact = (
            usage_or_none(_to_provider_usage(last), model=self.builder.model)
            if isinstance(last, Mapping)
            else None
        )
        if fact is not None:
            yield fact

    def _add_compaction(self, payload: Mapping[str, Any]) -> bool:
        self.feed.flush()
        summary, history = text_or_empty(payload.get("message")), payload.get("replacement_history")
        items = [item for item in history if isinstance(item, Mapping)] if isinstance(history, list) else []
        covered = len(self.builder) - 1
        if not self.builder.compact(summary, by=CODEX.name, at=self.at):
            if not items or covered < 0:
                return False
            self.builder.add(Dropped(ranges=((0, covered),), reason="recorded"), at=self.at)
        for item in items:
            if not (summary and summary in _item_text(item)) and not self._add_item(item):
                self.feed.add_unknown(to_json_text(item))
        return True

    def _add_rollback(self, turns: object) -> None:
        """Rewind to before the last `turns` turns."""
        self.feed.flush()
        for position in range(self.scanned, len(self.builder)):
            fact, _ = self.builder.facts[position]
            if isinstance(fact, UserSaid) and not text_of(fact.content).startswith(_NON_TURN_PREFIXES):
                self.turns.append(position)
        if isinstance(turns, int) and turns > 0 and self.turns:
            undone = self.turns[-turns:]
            del self.turns[-turns:]
            self.builder.add(Rewound(to=undone[0] - 1), at=self.at)
        self.scanned = len(self.builder)


def _item_text(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    parts = content if isinstance(content, list) else ()
    return "\n".join(text_or_empty(part.get("text")) for part in parts if isinstance(part, Mapping))


def _usage_difference(total: object, before: object) -> Mapping[str, Any]:
    """Return the usage between two running totals."""
    if not isinstance(total, Mapping):
        return {}
    old = before if isinstance(before, Mapping) else {}
    return {
        name: value - old.get(name, 0)
        for name, value in total.items()
        if isinstance(value, int) and isinstance(old.get(name, 0), int)
    }


def _to_provider_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return a usage report of Codex with the provider's field names."""
    return {
        **usage,
        "input_tokens_details": {"cached_tokens": usage.get("cached_input_tokens", 0)},
        "output_tokens_details": {"reasoning_tokens": usage.get("reasoning_output_tokens", 0)},
    }


CODEX: Final = TranscriptFormat("codex", _matches, _read)
