"""Sessions of pi's coding agent: `~/.pi/agent/sessions/*/*.jsonl`.

Entries form a tree by `id` and `parentId`. The file is read in the order in which it was written, and an entry
that goes on from an earlier one makes a rewind to there: the view is the newest branch, and the log has them all.
Entries without ids (version 1) are a line. Thinking that Anthropic did not sign is kept but not sent again.
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
from foveal.core.wire import wire
from foveal.core.wire.usage import used
from foveal.transcripts.jsonl import JsonLine
from foveal.transcripts.message_lists import REFUSED, written
from foveal.transcripts.transcript import Transcript, TranscriptBuilder, headline, moment, words

# ── pi messages ───────────────────────────────────────────────────────────────────────────────────
# The messages of pi's sessions as facts; None for one that is not understood.

Json = Mapping[str, Any]


def user(content: object) -> list[AnyFact] | None:
    return _read({"role": "user", "content": _parts(content)})


def result(message: Json) -> list[AnyFact] | None:
    block: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": message.get("toolCallId"),
        "content": _parts(message.get("content")),
    }
    if message.get("isError") is True:
        block["is_error"] = True
    facts = _read({"role": "user", "content": [block]})
    if facts is None or not isinstance(facts[0], ToolReturned):
        return None
    return [replace(facts[0], name=words(message.get("toolName")))]


def bash(message: Json) -> list[AnyFact]:
    """A command that the user ran, as pi tells it to the model, unless the user wanted to keep it to himself."""
    if message.get("excludeFromContext") is True:
        return [Noted(topic="pi bashExecution", text=written(message))]
    output, code = words(message.get("output")), message.get("exitCode")
    told = [f"Ran `{words(message.get('command'))}`", f"```\n{output}\n```" if output else "(no output)"]
    if message.get("cancelled") is True:
        told.append("\n(command cancelled)")
    elif isinstance(code, int) and code:
        told.append(f"\nCommand exited with code {code}")
    return [UserSaid(content="\n".join(told))]


def assistant(message: Json, model: str) -> list[AnyFact] | None:
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        return None
    thoughts = [block for block in blocks if block.get("type") == "thinking"]
    signed = all(words(block.get("thinkingSignature")) for block in thoughts)
    own = bool(thoughts) and signed and words(message.get("api")).startswith("anthropic")
    try:
        parts = tuple(_said(block, own=own) for block in blocks)
    except REFUSED:
        return None
    # thinking is sent in the dialect of its fact: what only another provider can read goes where none is sent
    said = ModelSaid(content=parts, dialect="anthropic" if own else "openai_chat" if thoughts else "")
    return [said, *_usage(message.get("usage"), model)]


def _said(block: Json, *, own: bool) -> AnyPart:
    match block.get("type"):
        case "text":
            return Text(text=_string(block, "text"))
        case "thinking":
            native = _native(block) if own else block
            return Thinking(native=raw(native), text=words(block.get("thinking")))
        case "toolCall":
            given = block.get("arguments")
            arguments = given if isinstance(given, str) else written({} if given is None else given)
            return Call(id=_string(block, "id"), name=_string(block, "name"), arguments=arguments)
        case _:
            raise TypeError("not a block of pi's")


def _string(block: Json, field: str) -> str:
    value = block.get(field)
    if not isinstance(value, str):
        raise TypeError(f"{field} is not a text")
    return value


def _native(block: Json) -> dict[str, Any]:
    """Thinking as Anthropic signed it."""
    if block.get("redacted") is True:
        return {"type": "redacted_thinking", "data": block["thinkingSignature"]}
    return {
        "type": "thinking",
        "thinking": words(block.get("thinking")),
        "signature": block["thinkingSignature"],
    }


def _usage(usage: object, model: str) -> Iterator[Used]:
    if not isinstance(usage, Mapping):
        return
    spelled = {
        "input_tokens": usage.get("input"),
        "cache_read_input_tokens": usage.get("cacheRead"),
        "cache_creation_input_tokens": usage.get("cacheWrite"),
        "output_tokens": usage.get("output"),
    }
    fact = used(spelled, model=model)
    if fact is not None:
        yield fact


def _read(message: Json) -> list[AnyFact] | None:
    try:
        return [fact for chunk in wire("anthropic").read((message,)) for fact in chunk.facts]
    except REFUSED:
        return None


def _parts(content: object) -> object:
    """Texts and images in Anthropic's form."""
    return [_part(block) for block in content] if isinstance(content, list) else content


def _part(block: object) -> object:
    if not isinstance(block, Mapping) or block.get("type") not in ("image", "text"):
        return block
    if block["type"] == "text":
        return {"type": "text", "text": block.get("text")}
    source = {"type": "base64", "media_type": block.get("mimeType"), "data": block.get("data")}
    return {"type": "image", "source": source}


# ── pi ────────────────────────────────────────────────────────────────────────────────────────────

NAME: Final = "pi"
NOTES: Final = frozenset(
    {"model_change", "thinking_level_change", "custom", "label", "session_info", "active_tools_change"}
)
ENTRIES: Final = NOTES | {"message", "compaction", "branch_summary", "custom_message"}


def read(lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]:
    session: _PiSession | None = None
    for line in lines:
        held = line.mapping()
        if held is not None and held.get("type") == "session":
            if session is not None and session.entries:
                yield session.done(stem)
                session = None
            session = session or _PiSession(path)
            session.header(held)
            continue
        session = session or _PiSession(path)
        if held is None or not session.entry(held):
            session.into.keep(line.raw)
    if session is not None:
        yield session.done(stem)


class _PiSession:
    def __init__(self, path: str) -> None:
        self.into = TranscriptBuilder(NAME, path)
        self.spans: dict[str, tuple[int, int]] = {}
        """First and last position of each entry's facts."""
        self.entries: list[str] = []
        """The ids in the order of the file, for version 1 made from the place in it."""
        self.tip: str | None = None

    def header(self, held: Mapping[str, Any]) -> None:
        self.into.id = words(held.get("id")) or self.into.id
        self.into.model = words(held.get("modelId")) or self.into.model
        self.into.note("pi session", written(held), at=moment(held.get("timestamp")))

    def entry(self, held: Mapping[str, Any]) -> bool:
        """Take in an entry; False when it is not understood."""
        if words(held.get("type")) not in ENTRIES:
            return False
        id = words(held.get("id")) or f"#{len(self.entries)}"
        at = moment(held.get("timestamp"))
        before = len(self.into)
        self._go_on(held, at)
        first = len(self.into)
        if not self._take(held, at):
            del self.into.facts[before:]
            return False
        self.entries.append(id)
        self.spans[id] = (first, len(self.into) - 1)
        self.tip = id
        return True

    def _go_on(self, held: Mapping[str, Any], at: float | None) -> None:
        parent = held.get("parentId", self.tip)
        if parent == self.tip or not self.entries:
            return
        if parent is None:
            self.into.add(Rewound(to=self.spans[self.entries[0]][0] - 1), at=at)
        elif isinstance(parent, str) and parent in self.spans:
            self.into.add(Rewound(to=self.spans[parent][1]), at=at)

    def _take(self, held: Mapping[str, Any], at: float | None) -> bool:
        match held.get("type"):
            case "message":
                facts = self._message(held.get("message"))
            case "custom_message":
                facts = user(held.get("content"))
            case "branch_summary":
                facts = [UserSaid(content=words(held.get("summary")))]
            case "compaction":
                return self._compacted(held, at)
            case kind:
                self.into.model = words(held.get("modelId")) or self.into.model
                self.into.title = words(held.get("name")) or self.into.title
                self.into.note(f"pi {kind}", written(held), at=at)
                return True
        if facts is None:
            return False
        self.into.add(*facts, at=at)
        return True

    def _message(self, message: object) -> list[AnyFact] | None:
        if not isinstance(message, Mapping):
            return None
        match message.get("role"):
            case "user" | "custom" | "hookMessage":
                return user(message.get("content"))
            case "branchSummary" | "compactionSummary":
                return [UserSaid(content=words(message.get("summary")))]
            case "assistant":
                self.into.model = words(message.get("model")) or self.into.model
                return assistant(message, self.into.model)
            case "toolResult":
                return result(message)
            case "bashExecution":
                return bash(message)
            case _:
                return None

    def _compacted(self, held: Mapping[str, Any], at: float | None) -> bool:
        """What came before the first entry that is kept is shown as the summary."""
        kept = held.get("firstKeptEntryId")
        index = held.get("firstKeptEntryIndex")  # version 1 counts the header too
        if isinstance(index, int) and 0 < index <= len(self.entries):
            kept = self.entries[index - 1]
        last = self.spans[kept][0] - 1 if isinstance(kept, str) and kept in self.spans else None
        tail = held.get("retainedTail")
        if not self.into.compact(words(held.get("summary")), by=NAME, last=last, at=at):
            return False
        for message in tail if isinstance(tail, list) and last is None else ():
            facts = self._message(message)
            if facts is None:
                self.into.keep(written(message))
            else:
                self.into.add(*facts, at=at)
        return True

    def done(self, stem: str) -> Transcript:
        self.into.title = self.into.title or headline(self.into.facts)
        return self.into.done(stem)
