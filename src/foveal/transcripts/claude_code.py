"""Claude Code sessions: `~/.claude/projects/*/*.jsonl`.

A line names its parent, so a file is a tree. It is read in the order in which it was written: a line that goes on
from an earlier place makes a rewind to there, so the view is the newest branch and the log has them all. Three
things look like branches and are none: an utterance comes in several lines with one `message.id`; the results of
parallel calls each hang on their own call; a compaction begins a new root. An utterance, its results and what
happened meanwhile are therefore gathered before they are written, as one group.

Lines of subagents (`isSidechain`) are conversations of their own. The rest of a line's envelope (cwd, version, the
`toolUseResult` beside a result) is not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from foveal.core.log.events import AnyFact, Noted, Rewound, ToolReturned, UserSaid, text_of
from foveal.core.wire import wire
from foveal.transcripts.jsonl import JsonLine
from foveal.transcripts.message_lists import REFUSED, reported
from foveal.transcripts.transcript import (
    Recorded,
    Transcript,
    TranscriptBuilder,
    as_text,
    headline,
    moment,
    words,
)

NAME: Final = "claude_code"
MESSAGES: Final = ("user", "assistant")
NOTES: Final = frozenset(
    {"system", "attachment", "progress", "summary", "custom-title", "ai-title", "file-history-snapshot", "tag",
     "queue-operation", "last-prompt", "agent-name", "agent-color", "pr-link", "permission-mode", "mode"}
)  # fmt: skip


def read(lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]:
    main = _Chain(path)
    sides: dict[str, _Chain] = {}
    whose: dict[str, str] = {}  # which subagent a line belongs to, where only its parent tells
    for line in lines:
        held = line.mapping()
        if held is None:
            main.keep(line)
        elif held.get("isSidechain") is True:
            side = words(held.get("agentId")) or whose.get(words(held.get("parentUuid")))
            side = side or words(held.get("uuid")) or "side"
            whose[words(held.get("uuid"))] = side
            sides.setdefault(side, _Chain(path)).line(held, line)
        else:
            main.line(held, line)
    main.flush()
    if len(main.into) or not sides:
        yield main.done(stem)
    for side, chain in sides.items():
        yield chain.done(stem, side=side)


class _Chain:
    """One conversation as its lines come."""

    def __init__(self, path: str) -> None:
        self.into = TranscriptBuilder(NAME, path)
        self.titles: dict[str, str] = {}
        self.groups: dict[str, int] = {}
        """The group that each uuid is in."""
        self.spans: list[tuple[int, int]] = []
        """First and last position of each group that is written."""
        self.current = {0}
        """Groups that a line can go on from without going back."""
        self.message_id = ""
        self.said: list[Mapping[str, Any]] = []
        self.lines: list[bytes] = []
        self.results: list[Recorded] = []
        self.beside: list[Recorded] = []
        self.kept = ""
        """The first message that a compaction leaves as it is."""
        self.usage: object = None
        self.at: float | None = None

    def keep(self, line: JsonLine) -> None:
        self.into.unknown += 1
        self.note("unknown line", line.raw, None)

    def note(self, topic: str, raw: bytes, at: float | None) -> None:
        fact = Noted(topic=topic, text=as_text(raw))
        (self.beside if self.said else self.into.facts).append((fact, at))

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────

    def line(self, held: Mapping[str, Any], line: JsonLine) -> None:
        kind, at = words(held.get("type")), moment(held.get("timestamp"))
        self.into.id = words(held.get("sessionId")) or self.into.id
        message = held.get("message")
        if kind in MESSAGES and isinstance(message, Mapping) and held.get("isApiErrorMessage") is not True:
            if held.get("isCompactSummary") is True and self._compacted(held, message, at):
                return
            if kind == "assistant":
                self._assistant(held, message, line, at)
            else:
                self._user(held, message, line, at)
        elif kind in NOTES or kind in MESSAGES:
            self._noted(held, line, kind, at)
        else:
            self.keep(line)

    def _noted(self, held: Mapping[str, Any], line: JsonLine, kind: str, at: float | None) -> None:
        """A line that says nothing to the model; it never goes back, but others may go on from it."""
        for field in ("customTitle", "aiTitle", "summary"):
            if words(held.get(field)):
                self.titles[field] = words(held.get(field))
        self.kept = _kept(held.get("compactMetadata")) or self.kept
        uuid, parent = words(held.get("uuid")), words(held.get("parentUuid"))
        if uuid:
            self.groups[uuid] = self.groups.get(parent, self._group())
        self.note(f"claude_code {held.get('subtype') or kind}", line.raw, at)

    def _assistant(
        self, held: Mapping[str, Any], message: Mapping[str, Any], line: JsonLine, at: float | None
    ) -> None:
        name = words(message.get("id")) or words(held.get("uuid"))
        if not self.said or name != self.message_id:
            self._go_on(held, at)
            self.message_id, self.at = name, at
        model = words(message.get("model"))
        self.into.model = model if model and not model.startswith("<") else self.into.model
        self.groups[words(held.get("uuid"))] = self._group()
        self.said.append(message)
        self.lines.append(line.raw)
        self.usage = message.get("usage") or self.usage

    def _user(
        self, held: Mapping[str, Any], message: Mapping[str, Any], line: JsonLine, at: float | None
    ) -> None:
        facts = _facts(({"role": "user", "content": message.get("content")},))
        if facts is None:
            self.keep(line)
            return
        results = any(isinstance(fact, ToolReturned) for fact in facts)
        if not results:
            self._go_on(held, at)
        self.groups[words(held.get("uuid"))] = self._group()
        if results and self.said:
            self.results += [(fact, at) for fact in facts]
            return
        self.into.add(*facts, at=at)
        self._close(len(self.into) - len(facts))

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────

    def _group(self) -> int:
        """The group that is being gathered."""
        return len(self.spans)

    def _close(self, first: int) -> None:
        """What was written from `first` on is a group, and what follows goes on from it."""
        self.current = {len(self.spans), len(self.spans) + 1}
        self.spans.append((first, len(self.into) - 1))

    def _go_on(self, held: Mapping[str, Any], at: float | None) -> None:
        """Write what is gathered, and go back if this line hangs on something earlier."""
        self.flush()
        if "parentUuid" not in held or not self.spans:
            return
        parent = held["parentUuid"] or held.get("logicalParentUuid")
        group = self.groups.get(parent) if isinstance(parent, str) else -1
        if group is None or group in self.current:
            return
        to = self.spans[group][1] if group >= 0 else self.spans[0][0] - 1
        self.into.add(Rewound(to=to), at=at)

    def flush(self) -> None:
        if not self.said:
            return
        first = len(self.into)
        said, lines, results, beside = self.said, self.lines, self.results, self.beside
        self.said, self.lines, self.results, self.beside = [], [], [], []
        facts = _facts(({"role": "assistant", "content": [part for one in said for part in _parts(one)]},))
        if facts is None:
            for raw in lines:
                self.into.keep(raw)
        else:
            self.into.add(*facts, *reported(self.into, self.usage), at=self.at)
        self.usage = None
        self.into.facts += results + beside
        self._close(first)

    def _compacted(self, held: Mapping[str, Any], message: Mapping[str, Any], at: float | None) -> bool:
        """The summary that stands for all that came before it."""
        self.flush()
        facts = _facts(({"role": "user", "content": message.get("content")},)) or ()
        summary = "\n".join(text_of(fact.content) for fact in facts if isinstance(fact, UserSaid))
        group, self.kept = self.groups.get(self.kept), ""
        last = self.spans[group][0] - 1 if group is not None and group < len(self.spans) else None
        if not self.into.compact(summary, by=self.into.model or NAME, last=last, at=at):
            return False
        self.groups[words(held.get("uuid"))] = self._group()
        before = self.current
        self._close(len(self.into) - 1)
        self.current |= before  # what goes on from before the summary goes on from the summary
        return True

    def done(self, stem: str, *, side: str = "") -> Transcript:
        self.flush()
        self.into.title = next(
            (self.titles[field] for field in ("customTitle", "aiTitle", "summary") if field in self.titles),
            headline(self.into.facts),
        )
        session = self.into.id or stem
        self.into.id = f"{session}/{side}" if side else session
        return self.into.done(stem)


def _kept(metadata: object) -> str:
    """Where the part begins that a compaction leaves as it is."""
    segment = metadata.get("preservedSegment") if isinstance(metadata, Mapping) else None
    return words(segment.get("headUuid")) if isinstance(segment, Mapping) else ""


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def _facts(messages: tuple[object, ...]) -> tuple[AnyFact, ...] | None:
    try:
        return tuple(fact for chunk in wire("anthropic").read(messages) for fact in chunk.facts)
    except REFUSED:
        return None
