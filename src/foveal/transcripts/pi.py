"""Sessions of pi's coding agent: `~/.pi/agent/sessions/*/*.jsonl`.

Entries form a tree by `id` and `parentId`. The file is read in the order in which it was written, and an entry
that goes on from an earlier one makes a rewind to there: the view is the newest branch, and the log has them all.
Entries without ids (version 1) are a line. Thinking that Anthropic did not sign is kept but not sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from foveal.events import AnyFact, Rewound, UserSaid
from foveal.transcripts.lines import Line
from foveal.transcripts.messages import written
from foveal.transcripts.pi_messages import assistant, bash, result, user
from foveal.transcripts.recording import Builder, Recording, headline, moment, words

NAME: Final = "pi"
NOTES: Final = frozenset(
    {"model_change", "thinking_level_change", "custom", "label", "session_info", "active_tools_change"}
)
ENTRIES: Final = NOTES | {"message", "compaction", "branch_summary", "custom_message"}


def read(lines: Iterable[Line], path: str, stem: str) -> Iterator[Recording]:
    session: _Session | None = None
    for line in lines:
        held = line.mapping()
        if held is not None and held.get("type") == "session":
            if session is not None and session.entries:
                yield session.done(stem)
                session = None
            session = session or _Session(path)
            session.header(held)
            continue
        session = session or _Session(path)
        if held is None or not session.entry(held):
            session.into.keep(line.raw)
    if session is not None:
        yield session.done(stem)


class _Session:
    def __init__(self, path: str) -> None:
        self.into = Builder(NAME, path)
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

    def done(self, stem: str) -> Recording:
        self.into.title = self.into.title or headline(self.into.facts)
        return self.into.done(stem)
