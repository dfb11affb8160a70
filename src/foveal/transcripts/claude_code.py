"""Reader of Claude Code sessions: `~/.claude/projects/*/*.jsonl`.

1. A line names its parent, so a file is a tree. It is read in file order: a line whose parent is earlier than the
   last line becomes a rewind to that parent. The view is the newest branch; the log has all branches.
2. Three things look like branches and are not: an utterance spans several lines with one `message.id`; the result
   of each parallel call has its own call as parent; a compaction starts a new root. Therefore an utterance, its
   results and the notes between them are collected into one group before they are added.
3. Lines of subagents (`isSidechain`, or an `agentId` where that is missing) are conversations of their own.
4. The other fields of a line (cwd, version, the `toolUseResult` beside a result) are not imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from foveal.core.log.events import AnyFact, Noted, Rewound, ToolReturned, UserSaid, text_of
from foveal.core.wire import wire_for
from foveal.transcripts.jsonl import JsonLine
from foveal.transcripts.message_lists import MESSAGE_ERRORS, usage_facts
from foveal.transcripts.transcript import (
    API_ERROR_TOPIC,
    TimedFact,
    Transcript,
    TranscriptBuilder,
    TranscriptFormat,
    decode_line,
    derive_title,
    parse_time,
    text_or_empty,
)

_MESSAGE_TYPES: Final = ("user", "assistant")
_NOTE_TYPES: Final = frozenset(
    {"system", "attachment", "progress", "summary", "custom-title", "ai-title", "file-history-snapshot", "tag",
     "queue-operation", "last-prompt", "agent-name", "agent-color", "pr-link", "permission-mode", "mode",
     "api-request", "api-request-blob", "api-request-shape", "atis-latch", "tools-used", "cost-state"}
)  # fmt: skip


def _matches(value: Mapping[str, Any], kind: str) -> bool:
    if kind == "summary":
        return "leafUuid" in value
    known = kind in _NOTE_TYPES or kind in _MESSAGE_TYPES
    return known and bool({"sessionId", "uuid", "parentUuid", "isSidechain", "messageId"} & value.keys())


def _read(lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]:
    main = _ClaudeCodeConversation(path)
    sides: dict[str, _ClaudeCodeConversation] = {}
    side_of: dict[str, str] = {}  # subagent by uuid, for lines that name only their parent
    for line in lines:
        entry = line.parse_object()
        if entry is None:
            main.add_unknown(line)
        elif entry.get("isSidechain", bool(text_or_empty(entry.get("agentId")))) is True:
            side = text_or_empty(entry.get("agentId")) or side_of.get(text_or_empty(entry.get("parentUuid")))
            side = side or text_or_empty(entry.get("uuid")) or "side"
            side_of[text_or_empty(entry.get("uuid"))] = side
            sides.setdefault(side, _ClaudeCodeConversation(path)).add_line(entry, line)
        else:
            main.add_line(entry, line)
    main.flush()
    if len(main.builder) or not sides:
        yield main.build(stem)
    for side, conversation in sides.items():
        yield conversation.build(stem, side=side)


class _ClaudeCodeConversation:
    """Builds the transcript of one conversation from its lines."""

    def __init__(self, path: str) -> None:
        self.builder = TranscriptBuilder(CLAUDE_CODE.name, path)
        self.titles: dict[str, str] = {}
        self.groups: dict[str, int] = {}
        """Group number by uuid."""
        self.spans: list[tuple[int, int]] = []
        """First and last position of each group that was added."""
        self.current = {0}
        """Groups whose lines may be the parent of the next line without a rewind."""
        self.message_id = ""
        self.utterance: list[Mapping[str, Any]] = []
        self.lines: list[bytes] = []
        self.results: list[TimedFact] = []
        self.notes: list[TimedFact] = []
        self.first_kept = ""
        """Uuid of the first message that the next compaction does not summarise."""
        self.usage: object = None
        self.at: float | None = None

    def add_unknown(self, line: JsonLine) -> None:
        """Add a line that was not understood, unchanged, as a note."""
        self._add_beside(self.builder.unknown_note(line.raw), None)

    def _add_beside(self, note: Noted, at: float | None) -> None:
        """Add a note; while an utterance is collected, after it."""
        if self.utterance:
            self.notes.append((note, at))
        else:
            self.builder.add(note, at=at)

    # ── Lines ────────────────────────────────────────────────────────────────────────────────────────────

    def add_line(self, entry: Mapping[str, Any], line: JsonLine) -> None:
        """Add the facts of a line; `entry` is its JSON object."""
        kind, at = text_or_empty(entry.get("type")), parse_time(entry.get("timestamp"))
        self.builder.describe(id=text_or_empty(entry.get("sessionId")) or self.builder.id)
        message = entry.get("message")
        if (
            kind in _MESSAGE_TYPES
            and isinstance(message, Mapping)
            and entry.get("isApiErrorMessage") is not True
        ):
            if entry.get("isCompactSummary") is True and self._add_compaction(entry, message, at):
                return
            if kind == "assistant":
                self._add_assistant(entry, message, line, at)
            else:
                self._add_user(entry, message, line, at)
        elif kind in _NOTE_TYPES or kind in _MESSAGE_TYPES:
            self._add_note(entry, line, kind, at)
        else:
            self.add_unknown(line)

    def _add_note(self, entry: Mapping[str, Any], line: JsonLine, kind: str, at: float | None) -> None:
        """Add a line that the model does not see; it never causes a rewind, but may be a parent."""
        for field in ("customTitle", "aiTitle", "summary"):
            if text_or_empty(entry.get(field)):
                self.titles[field] = text_or_empty(entry.get(field))
        self.first_kept = _first_kept(entry.get("compactMetadata")) or self.first_kept
        uuid, parent = text_or_empty(entry.get("uuid")), text_or_empty(entry.get("parentUuid"))
        if uuid:
            self.groups[uuid] = self.groups.get(parent, self._group())
        topic = f"claude_code {entry.get('subtype') or kind}"
        self._add_beside(_error_note(entry) or Noted(topic=topic, text=decode_line(line.raw)), at)

    def _add_assistant(
        self, entry: Mapping[str, Any], message: Mapping[str, Any], line: JsonLine, at: float | None
    ) -> None:
        name = text_or_empty(message.get("id")) or text_or_empty(entry.get("uuid"))
        if not self.utterance or name != self.message_id:
            self._continue_from(entry, at)
            self.message_id, self.at = name, at
        model = text_or_empty(message.get("model"))
        self.builder.describe(model=model if model and not model.startswith("<") else self.builder.model)
        self.groups[text_or_empty(entry.get("uuid"))] = self._group()
        self.utterance.append(message)
        self.lines.append(line.raw)
        self.usage = message.get("usage") or self.usage

    def _add_user(
        self, entry: Mapping[str, Any], message: Mapping[str, Any], line: JsonLine, at: float | None
    ) -> None:
        facts = _read_facts(({"role": "user", "content": message.get("content")},))
        if facts is None:
            self.add_unknown(line)
            return
        results = any(isinstance(fact, ToolReturned) for fact in facts)
        if not results:
            self._continue_from(entry, at)
        self.groups[text_or_empty(entry.get("uuid"))] = self._group()
        if results and self.utterance:
            self.results += [(fact, at) for fact in facts]
            return
        self.builder.add(*facts, at=at)
        self._close(len(self.builder) - len(facts))

    # ── Groups ───────────────────────────────────────────────────────────────────────────────────────────

    def _group(self) -> int:
        """Return the number of the group that is being collected."""
        return len(self.spans)

    def _close(self, first: int) -> None:
        """Make the facts from position `first` on a group, from which the next line may continue."""
        self.current = {len(self.spans), len(self.spans) + 1}
        self.spans.append((first, len(self.builder) - 1))

    def _continue_from(self, entry: Mapping[str, Any], at: float | None) -> None:
        """Add the collected group, and a rewind if the parent of this line is in an earlier group."""
        self.flush()
        if "parentUuid" not in entry or not self.spans:
            return
        parent = entry["parentUuid"] or entry.get("logicalParentUuid")
        group = self.groups.get(parent) if isinstance(parent, str) else -1
        if group is None or group in self.current:
            return
        to = self.spans[group][1] if group >= 0 else self.spans[0][0] - 1
        self.builder.add(Rewound(to=to), at=at)

    def flush(self) -> None:
        """Add the collected utterance, its results and the notes beside it."""
        if not self.utterance:
            return
        first = len(self.builder)
        utterance, lines, results, notes = self.utterance, self.lines, self.results, self.notes
        self.utterance, self.lines, self.results, self.notes = [], [], [], []
        blocks = [block for message in utterance for block in _content_blocks(message)]
        facts = _read_facts(({"role": "assistant", "content": blocks},))
        if facts is None:
            for raw in lines:
                self.builder.add_unknown(raw)
        else:
            self.builder.add(*facts, *usage_facts(self.builder, self.usage), at=self.at)
        self.usage = None
        self.builder.extend(results + notes)
        self._close(first)

    def _add_compaction(self, entry: Mapping[str, Any], message: Mapping[str, Any], at: float | None) -> bool:
        """Add a compaction of all that came before, or up to the part that it preserves."""
        self.flush()
        facts = _read_facts(({"role": "user", "content": message.get("content")},)) or ()
        summary = "\n".join(text_of(fact.content) for fact in facts if isinstance(fact, UserSaid))
        group, self.first_kept = self.groups.get(self.first_kept), ""
        last = self.spans[group][0] - 1 if group is not None and group < len(self.spans) else None
        if not self.builder.compact(summary, by=self.builder.model or CLAUDE_CODE.name, last=last, at=at):
            return False
        self.groups[text_or_empty(entry.get("uuid"))] = self._group()
        before = self.current
        self._close(len(self.builder) - 1)
        self.current |= before  # a child of the last group before the summary continues from the summary
        return True

    def build(self, stem: str, *, side: str = "") -> Transcript:
        """Return the transcript; `side` is the id of a subagent."""
        self.flush()
        title = next(
            (self.titles[field] for field in ("customTitle", "aiTitle", "summary") if field in self.titles),
            derive_title(self.builder.facts),
        )
        self.builder.describe(title=title)
        session = self.builder.id or stem
        if side:
            self.builder.describe(id=f"{session}/{side}", parent=session)
        else:
            self.builder.describe(id=session)
        return self.builder.build(stem)


def _error_note(entry: Mapping[str, Any]) -> Noted | None:
    """Return the error of the provider that a line has in place of an answer."""
    message = entry.get("message")
    if entry.get("isApiErrorMessage") is not True or not isinstance(message, Mapping):
        return None
    texts = (block.get("text") for block in _content_blocks(message) if isinstance(block, Mapping))
    text = "\n".join(filter(None, map(text_or_empty, texts)))
    return Noted(topic=API_ERROR_TOPIC, text=text) if text else None


def _first_kept(metadata: object) -> str:
    """Return the uuid of the first message that a compaction preserves, or ""."""
    segment = metadata.get("preservedSegment") if isinstance(metadata, Mapping) else None
    return text_or_empty(segment.get("headUuid")) if isinstance(segment, Mapping) else ""


def _content_blocks(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def _read_facts(messages: tuple[object, ...]) -> tuple[AnyFact, ...] | None:
    try:
        return tuple(fact for chunk in wire_for("anthropic").read(messages) for fact in chunk.facts)
    except MESSAGE_ERRORS:
        return None


CLAUDE_CODE: Final = TranscriptFormat("claude_code", _matches, _read)
