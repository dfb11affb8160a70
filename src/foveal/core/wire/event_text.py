"""Text of events, for reading and for searching, and its quotation to a model.

1. `readable_text` and `search_text` return the text of one fact. `original_text` returns what `Context.original`
   does: all of it, unchanged, whatever requests show.
2. Recall tools quote events with `event_title` and `quote_lines`. Their answers begin with `RECALL_PREFIX`,
   and lines that Foveal adds begin with `[`. Every line of the log has a prefix (`> `, or its number), so no
   text of the log can imitate an added line. Characters that some readers treat as the end of a line are shown
   as symbols.
3. `transcript_text` writes facts as a transcript, for people and for the model that summarises. Only its
   headers are unquoted: a fake header, a fake end of the transcript or instructions in a tool result stay
   inside the quotation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, assert_never

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Branched,
    BranchEnded,
    Call,
    Clipped,
    Compacted,
    CompactionFailed,
    Content,
    Dropped,
    Equipped,
    Erased,
    Event,
    Expanded,
    ForeignSummary,
    Instructed,
    Marked,
    Masked,
    Media,
    ModelSaid,
    Noted,
    Opaque,
    Opened,
    Overflowed,
    Pinned,
    Prioritised,
    Reverted,
    Rewound,
    SnapshotTaken,
    Steered,
    Superseded,
    Text,
    Thinking,
    ThinkingLeftOut,
    ToolReturned,
    ToolsLoaded,
    Unknown,
    Used,
    UserSaid,
    calls_of,
    kind,
    parts,
)

RECALL_SEARCH: Final = "recall_search"
RECALL_READ: Final = "recall_read"
RECALL_SESSIONS: Final = "recall_sessions"
LOAD_TOOLS: Final = "load_tools"
"""The tool with which a model loads others."""
_RECALL_TOOL: Final = re.compile(rf"(?:^|__|[./])(?:{RECALL_SEARCH}|{RECALL_READ}|{RECALL_SESSIONS})$")
"""A recall tool, also with the name of an MCP server before it."""
RECALL_PREFIX: Final = "[foveal recall: "
"""Start of every answer of the recall tools, by which a search leaves these answers out."""

_MAX_TRANSCRIPT_NAME_CHARS: Final = 100
_BREAK_SYMBOLS: Final = dict.fromkeys(map(ord, "\v\f\x1c\x1d\x1e\x85\u2028\u2029"), "␤") | {ord("\r"): "␍"}
_BREAK: Final = re.compile("[\v\f\r\x1c-\x1e\x85\u2028\u2029]")


# ── Text of one fact ───────────────────────────────────────────────────────────────────────────────────


def readable_text(fact: AnyFact) -> str:
    """Return what a reader can use of a fact, without thinking and opaque parts; "" if it has no text."""
    match fact:
        case UserSaid() | ModelSaid() | ToolReturned() | Instructed():
            return fact.content if isinstance(fact.content, str) else _readable_parts(fact.content)
        case Pinned() | Noted() | ForeignSummary():
            return fact.text
        case Compacted():
            return fact.summary
        case Branched():
            return fact.task
        case BranchEnded():
            return fact.result
        case Opened() | Equipped() | ToolsLoaded() | Used() | SnapshotTaken() | Erased() | Unknown():
            return ""
        case Superseded() | Clipped() | Marked() | Masked() | Dropped() | Expanded() | Reverted() | Rewound():
            return ""
        case Prioritised():
            return ""
        case Steered():
            return fact.focus or fact.reason if fact.by != "hook" else ""
        case CompactionFailed() | Overflowed() | ThinkingLeftOut():
            return fact.problem
        case _:
            assert_never(fact)


def _readable_parts(content: Iterable[AnyPart]) -> str:
    return "\n".join(text for part in content if (text := _readable_part(part)))


def _readable_part(part: AnyPart) -> str:
    match part:
        case Text():
            return part.text
        case Call():
            return f"calls {part.name}\n{argument_lines(part.arguments)}"
        case Media():
            return f"({part.mime or 'media'}, {part.size:,} bytes: not text)"
        case Thinking() | Opaque():
            return ""


def argument_lines(text: str) -> str:
    """Return the JSON arguments of a call as lines of `key: value`, with line breaks unescaped."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(values, dict):
        return text
    return "\n".join(f"{key}: {_value(value)}" for key, value in values.items())


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def search_text(fact: AnyFact) -> str:
    """Return the text by which a search finds a fact: what was said, returned, pinned or summarised.

    Calls of the recall tools and their answers are left out.
    """
    match fact:
        case ToolReturned():
            text = readable_text(fact)
            return "" if is_recall_tool(fact.name) or text.startswith(RECALL_PREFIX) else text
        case ModelSaid() if any(is_recall_tool(call.name) for _, call in calls_of(fact.content)):
            return _readable_parts(part for part in parts(fact.content) if not _is_recall_call(part))
        case UserSaid() | ModelSaid() | Pinned() | Compacted() | ForeignSummary():
            return readable_text(fact)
        case _:
            return ""


def is_recall_tool(name: str) -> bool:
    """Return whether a tool is one of the recall tools; `mcp__foveal__recall_read` is one too."""
    return _RECALL_TOOL.search(name) is not None


def _is_recall_call(part: AnyPart) -> bool:
    return isinstance(part, Call) and is_recall_tool(part.name)


def is_dialogue(fact: AnyFact) -> bool:
    """Return whether a fact is part of the conversation and can be shown beside a search hit."""
    return isinstance(fact, UserSaid | ModelSaid | ToolReturned) and bool(search_text(fact))


# ── Quotation in recall answers ────────────────────────────────────────────────────────────────────────


def speaker(fact: AnyFact) -> str:
    """Return the origin of a fact in a word or two, such as `user` or `result of bash`."""
    match fact:
        case UserSaid():
            return "user"
        case ModelSaid():
            return "assistant"
        case Instructed():
            return fact.role
        case ToolReturned():
            return f"{_outcome(fact)}{f' of {inline(fact.name)}' if fact.name else ''}"
        case Pinned():
            return "pinned rule"
        case Compacted():
            return f"summary of e{fact.first}-e{fact.last}"
        case ForeignSummary():
            return "summary by the provider"
        case Noted():
            return "note"
        case _:
            return inline(kind(fact))


def _outcome(fact: ToolReturned) -> str:
    return "error" if fact.error else "result"


def event_title(event: Event) -> str:
    """Return the handle of an event, its origin, and its time if that is known."""
    title = f"{event.handle} {speaker(event.fact)}"
    return title if event.at is None else f"{title}, {_time(event.at)}"


def _time(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%MZ")
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def escape_breaks(line: str) -> str:
    """Return a line of the log with all characters that could break it shown as symbols."""
    line = line.removesuffix("\r")
    return line.translate(_BREAK_SYMBOLS) if _BREAK.search(line) else line


def quote_lines(text: str) -> str:
    """Return the text with `> ` before each line."""
    return "\n".join(f"> {escape_breaks(line)}" for line in text.removesuffix("\n").split("\n"))


def inline(text: str, *, max_chars: int = 80) -> str:
    """Return a name or query that cannot break its line or close its brackets."""
    return _bracket_safe(text if len(text) <= max_chars else text[: max_chars - 1] + "…")


def _bracket_safe(text: str) -> str:
    return "".join(letter if letter.isprintable() and letter not in "[]" else "_" for letter in text)


# ── Transcript ─────────────────────────────────────────────────────────────────────────────────────────


def transcript_text(facts: Iterable[AnyFact]) -> str:
    """Return one paragraph for each fact that a model sees."""
    return "\n\n".join(entry for fact in facts if (entry := transcript_entry(fact)))


def transcript_entry(fact: AnyFact) -> str:
    """Return a header and the quoted text of a fact; "" if no model sees it."""
    match fact:
        case UserSaid():
            return _entry("user", fact.content)
        case ModelSaid():
            return _entry("assistant", fact.content)
        case Instructed():
            return _entry(fact.role, fact.content)
        case ToolReturned():
            name = f" of {_transcript_name(fact.name)}" if fact.name else ""
            return _entry(f"{_outcome(fact)}{name}", fact.content)
        case Pinned() if fact.text:
            return _entry("pinned", fact.text)
        case ForeignSummary():
            return _entry("summary by the provider", fact.text) if fact.text else ""
        case _:
            return ""


def _entry(header: str, content: Content) -> str:
    quoted = [line for part in parts(content) for line in _transcript_lines(part)]
    return "\n".join((f"[{header}]", *quoted))


def _transcript_lines(part: AnyPart) -> list[str]:
    match part:
        case Text():
            return _quote_for_transcript(part.text)
        case Call():
            return [f"[calls {_transcript_name(part.name)}]", *_quote_for_transcript(part.arguments)]
        case Media():
            return [f"[{_transcript_name(part.mime) or 'media'}, {part.size:,} bytes]"]
        case Thinking() | Opaque():
            return []


def _quote_for_transcript(text: str) -> list[str]:
    # Unlike `quote_lines`: a transcript is split at every kind of line break, so none is left to be escaped.
    return [f"> {line}" for line in text.splitlines()]


def _transcript_name(text: str) -> str:
    return _bracket_safe(text)[:_MAX_TRANSCRIPT_NAME_CHARS]


# ── Original text ────────────────────────────────────────────────────────────────────────────────────────


def original_text(fact: AnyFact) -> str:
    """Return all text of a fact, unchanged; each part starts on a new line."""
    content: Content | None = getattr(fact, "content", None)
    if isinstance(fact, Branched | BranchEnded):
        return readable_text(fact)
    if content is None:
        return str(getattr(fact, "text", "") or getattr(fact, "summary", ""))
    return content if isinstance(content, str) else "\n".join(map(_original_part, content))


def _original_part(part: AnyPart) -> str:
    match part:
        case Text() | Thinking():
            return part.text
        case Call():
            return f"{part.name} {part.arguments}"
        case Media():
            return f"[{part.mime or 'media'}, {part.size:,} bytes]"
        case Opaque():
            return bytes(part.native).decode("utf-8", "replace")
