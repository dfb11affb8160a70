"""Reader of sessions of pi's coding agent: `~/.pi/agent/sessions/*/*.jsonl`.

1. Entries form a tree by `id` and `parentId`. The file is read in order, and an entry whose parent is not the last
   entry becomes a rewind to that parent: the view is the newest branch, and the log has all branches.
2. Entries without ids (version 1) follow one another.
3. Thinking that Anthropic did not sign is imported but not sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    ModelSaid,
    Noted,
    Rewound,
    Text,
    Thinking,
    ToolReturned,
    Used,
    UserSaid,
    raw,
)
from foveal.core.wire import wire_for
from foveal.core.wire.usage import usage_or_none
from foveal.transcripts.jsonl import JsonLine
from foveal.transcripts.message_lists import MESSAGE_ERRORS, to_json_text
from foveal.transcripts.transcript import (
    Transcript,
    TranscriptBuilder,
    TranscriptFormat,
    derive_title,
    parse_time,
    text_or_empty,
)

# ── Messages ─────────────────────────────────────────────────────────────────────────────────────────────
# Functions return the facts of a message; None for one that is not understood.

_JsonObject = Mapping[str, Any]


def _user_facts(content: object) -> list[AnyFact] | None:
    return _read_facts({"role": "user", "content": _anthropic_content(content)})


def _result_facts(message: _JsonObject) -> list[AnyFact] | None:
    block: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": message.get("toolCallId"),
        "content": _anthropic_content(message.get("content")),
    }
    if message.get("isError") is True:
        block["is_error"] = True
    facts = _read_facts({"role": "user", "content": [block]})
    if facts is None or not isinstance(facts[0], ToolReturned):
        return None
    return [replace(facts[0], name=text_or_empty(message.get("toolName")))]


def _bash_facts(message: _JsonObject) -> list[AnyFact]:
    """Return a command that the user ran, worded as pi shows it to the model; a note if pi excludes it."""
    if message.get("excludeFromContext") is True:
        return [Noted(topic="pi bashExecution", text=to_json_text(message))]
    output, code = text_or_empty(message.get("output")), message.get("exitCode")
    lines = [
        f"Ran `{text_or_empty(message.get('command'))}`",
        f"```\n{output}\n```" if output else "(no output)",
    ]
    if message.get("cancelled") is True:
        lines.append("\n(command cancelled)")
    elif isinstance(code, int) and code:
        lines.append(f"\nCommand exited with code {code}")
    return [UserSaid(content="\n".join(lines))]


def _assistant_facts(message: _JsonObject, model: str) -> list[AnyFact] | None:
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        return None
    thinking = [block for block in blocks if block.get("type") == "thinking"]
    signed = all(text_or_empty(block.get("thinkingSignature")) for block in thinking)
    signed_by_anthropic = (
        bool(thinking) and signed and text_or_empty(message.get("api")).startswith("anthropic")
    )
    try:
        parts = tuple(_content_part(block, signed_by_anthropic=signed_by_anthropic) for block in blocks)
    except MESSAGE_ERRORS:
        return None
    # Thinking is sent only in the dialect of its fact. `openai_chat` sends none, so unsigned thinking stays unsent.
    said = ModelSaid(
        content=parts, dialect="anthropic" if signed_by_anthropic else "openai_chat" if thinking else ""
    )
    return [said, *_usage_facts(message.get("usage"), model)]


def _content_part(block: _JsonObject, *, signed_by_anthropic: bool) -> AnyPart:
    match block.get("type"):
        case "text":
            return Text(text=_get_text(block, "text"))
        case "thinking":
            native = _anthropic_thinking(block) if signed_by_anthropic else block
            return Thinking(native=raw(native), text=text_or_empty(block.get("thinking")))
        case "toolCall":
            given = block.get("arguments")
            arguments = given if isinstance(given, str) else to_json_text({} if given is None else given)
            return Call(id=_get_text(block, "id"), name=_get_text(block, "name"), arguments=arguments)
        case _:
            raise TypeError("not a block of a pi message")


def _get_text(block: _JsonObject, field: str) -> str:
    value = block.get(field)
    if not isinstance(value, str):
        raise TypeError(f"{field} is not a text")
    return value


def _anthropic_thinking(block: _JsonObject) -> dict[str, Any]:
    """Return a thinking block in the form that Anthropic signed."""
    if block.get("redacted") is True:
        return {"type": "redacted_thinking", "data": block["thinkingSignature"]}
    return {
        "type": "thinking",
        "thinking": text_or_empty(block.get("thinking")),
        "signature": block["thinkingSignature"],
    }


def _usage_facts(usage: object, model: str) -> Iterator[Used]:
    if not isinstance(usage, Mapping):
        return
    report = {
        "input_tokens": usage.get("input"),
        "cache_read_input_tokens": usage.get("cacheRead"),
        "cache_creation_input_tokens": usage.get("cacheWrite"),
        "output_tokens": usage.get("output"),
    }
    fact = usage_or_none(report, model=model)
    if fact is not None:
        yield fact


def _read_facts(message: _JsonObject) -> list[AnyFact] | None:
    try:
        return [fact for chunk in wire_for("anthropic").read((message,)) for fact in chunk.facts]
    except MESSAGE_ERRORS:
        return None


def _anthropic_content(content: object) -> object:
    """Return texts and images in Anthropic's form."""
    return [_anthropic_block(block) for block in content] if isinstance(content, list) else content


def _anthropic_block(block: object) -> object:
    if not isinstance(block, Mapping) or block.get("type") not in ("image", "text"):
        return block
    if block["type"] == "text":
        return {"type": "text", "text": block.get("text")}
    source = {"type": "base64", "media_type": block.get("mimeType"), "data": block.get("data")}
    return {"type": "image", "source": source}


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────────────

_NOTE_TYPES: Final = frozenset(
    {"model_change", "thinking_level_change", "custom", "label", "session_info", "active_tools_change"}
)
_ENTRY_TYPES: Final = _NOTE_TYPES | {"message", "compaction", "branch_summary", "custom_message"}


def _matches(value: Mapping[str, Any], kind: str) -> bool:
    if kind == "session":
        return "id" in value
    if not {"id", "parentId"} <= value.keys() and "timestamp" not in value:
        return False
    message = value.get("message")
    if kind == "message":
        return isinstance(message, Mapping) and "role" in message
    return "uuid" not in value and "sessionId" not in value and kind in _ENTRY_TYPES


def _read(lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]:
    session: _PiSession | None = None
    for line in lines:
        value = line.parse_object()
        if value is not None and value.get("type") == "session":
            if session is not None and session.entries:
                yield session.build(stem)
                session = None
            session = session or _PiSession(path)
            session.add_header(value)
            continue
        session = session or _PiSession(path)
        if value is None or not session.add_entry(value):
            session.builder.add_unknown(line.raw)
    if session is not None:
        yield session.build(stem)


class _PiSession:
    """Builds the transcript of one session from its entries."""

    def __init__(self, path: str) -> None:
        self.builder = TranscriptBuilder(PI.name, path)
        self.spans: dict[str, tuple[int, int]] = {}
        """First and last position of each entry's facts."""
        self.entries: list[str] = []
        """Ids in file order; entries of version 1 get ids from their position."""
        self.tip: str | None = None
        """Id of the last entry."""

    def add_header(self, entry: Mapping[str, Any]) -> None:
        self.builder.describe(id=text_or_empty(entry.get("id")) or self.builder.id)
        self.builder.describe(model=text_or_empty(entry.get("modelId")) or self.builder.model)
        self.builder.note("pi session", to_json_text(entry), at=parse_time(entry.get("timestamp")))

    def add_entry(self, entry: Mapping[str, Any]) -> bool:
        """Add the facts of an entry; False if it is not understood."""
        if text_or_empty(entry.get("type")) not in _ENTRY_TYPES:
            return False
        id = text_or_empty(entry.get("id")) or f"#{len(self.entries)}"
        at = parse_time(entry.get("timestamp"))
        before = len(self.builder)
        self._continue_from(entry, at)
        first = len(self.builder)
        if not self._add_facts(entry, at):
            del self.builder.facts[before:]
            return False
        self.entries.append(id)
        self.spans[id] = (first, len(self.builder) - 1)
        self.tip = id
        return True

    def _continue_from(self, entry: Mapping[str, Any], at: float | None) -> None:
        parent = entry.get("parentId", self.tip)
        if parent == self.tip or not self.entries:
            return
        if parent is None:
            self.builder.add(Rewound(to=self.spans[self.entries[0]][0] - 1), at=at)
        elif isinstance(parent, str) and parent in self.spans:
            self.builder.add(Rewound(to=self.spans[parent][1]), at=at)

    def _add_facts(self, entry: Mapping[str, Any], at: float | None) -> bool:
        match entry.get("type"):
            case "message":
                facts = self._message_facts(entry.get("message"))
            case "custom_message":
                facts = _user_facts(entry.get("content"))
            case "branch_summary":
                facts = [UserSaid(content=text_or_empty(entry.get("summary")))]
            case "compaction":
                return self._add_compaction(entry, at)
            case kind:
                self.builder.describe(model=text_or_empty(entry.get("modelId")) or self.builder.model)
                self.builder.describe(title=text_or_empty(entry.get("name")) or self.builder.title)
                self.builder.note(f"pi {kind}", to_json_text(entry), at=at)
                return True
        if facts is None:
            return False
        self.builder.add(*facts, at=at)
        return True

    def _message_facts(self, message: object) -> list[AnyFact] | None:
        if not isinstance(message, Mapping):
            return None
        match message.get("role"):
            case "user" | "custom" | "hookMessage":
                return _user_facts(message.get("content"))
            case "branchSummary" | "compactionSummary":
                return [UserSaid(content=text_or_empty(message.get("summary")))]
            case "assistant":
                self.builder.describe(model=text_or_empty(message.get("model")) or self.builder.model)
                return _assistant_facts(message, self.builder.model)
            case "toolResult":
                return _result_facts(message)
            case "bashExecution":
                return _bash_facts(message)
            case _:
                return None

    def _add_compaction(self, entry: Mapping[str, Any], at: float | None) -> bool:
        """Add a compaction of all that came before the first kept entry."""
        kept = entry.get("firstKeptEntryId")
        index = entry.get("firstKeptEntryIndex")  # version 1 counts the header too
        if isinstance(index, int) and 0 < index <= len(self.entries):
            kept = self.entries[index - 1]
        last = self.spans[kept][0] - 1 if isinstance(kept, str) and kept in self.spans else None
        tail = entry.get("retainedTail")
        if not self.builder.compact(text_or_empty(entry.get("summary")), by=PI.name, last=last, at=at):
            return False
        for message in tail if isinstance(tail, list) and last is None else ():
            facts = self._message_facts(message)
            if facts is None:
                self.builder.add_unknown(to_json_text(message))
            else:
                self.builder.add(*facts, at=at)
        return True

    def build(self, stem: str) -> Transcript:
        self.builder.describe(title=self.builder.title or derive_title(self.builder.facts))
        return self.builder.build(stem)


PI: Final = TranscriptFormat("pi", _matches, _read)
