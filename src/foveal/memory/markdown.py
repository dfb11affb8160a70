"""A memory as a Markdown file that its owner can read and edit.

    <!-- foveal memory 3f9a2c81 12: edit, add and delete lines; a mark at the end of a line can stay or go -->
    ## Rules
    - Never push to main. <!-- m3 -->

1. `render` writes the entries that count, one per line. The first line names the log and its version.
2. `read_edits` compares a file with the entries as they were in that version. So an entry that came since, or was
   changed elsewhere since, is not taken for one that the owner deleted or changed.
3. Marks count only in the file of the same log. A file without the first line, or of another log, only adds
   entries. Of several lines with one mark, the unchanged one is the entry, and the others are new.
4. What was taken from the file and undone since is not taken from it again.
5. A line that cannot be an entry stays where it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from foveal.memory.facts import Edited, EntryKind, Forgotten, Remembered
from foveal.memory.fold import MemoryEntry, MemoryState, texts_of
from foveal.memory.quotes import plain_lines

_TITLES: Final[dict[EntryKind, str]] = {
    "rule": "Rules",
    "preference": "Preferences",
    "fact": "Facts",
    "procedure": "Procedures",
}
_KINDS: Final = {title.casefold(): kind for kind, title in _TITLES.items()}
_FIRST_LINE: Final = re.compile(r"<!-- foveal memory ([0-9a-f]{8}) (-?\d{1,15})[ :]")
_BULLET: Final = re.compile(r"\s{0,3}(?:[-*+]|\d{1,3}[.)])\s+(.*)")
_MARK: Final = re.compile(r"\s*<!--\s*([a-z]\d{1,15})\s*-->\s*$")
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)


class FileEdits(NamedTuple):
    """What the owner changed in a file."""

    added: tuple[tuple[EntryKind | None, str], ...] = ()
    """New lines, each with the kind of the section it stands in."""
    changed: tuple[tuple[str, str], ...] = ()
    """The ids of entries and their new texts."""
    deleted: tuple[str, ...] = ()
    """The ids of entries whose lines are gone."""

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.deleted)


class FileLine(NamedTuple):
    """A line of a file that has a text or a mark."""

    kind: EntryKind | None
    """The kind of the section it stands in."""
    text: str
    id: str
    """Its mark; "" if it has none."""
    raw: str
    """The line as it stands in the file."""
    after: str
    """The mark of the line before it in its section; "" if it is the first one, or that one has no mark."""


def log_name(state: MemoryState) -> str:
    """Return what tells the file of one log from that of another."""
    return sha256(state.begin.encode()).hexdigest()[:8]


def render(state: MemoryState, kept: Iterable[FileLine] = ()) -> str:
    """Return the file of a memory, with the lines in their places that are kept although they are no entries."""
    in_place = {line.id: line for line in kept if line.id}
    behind: dict[tuple[EntryKind | None, str], list[str]] = {}
    for line in kept:
        if not line.id:
            behind.setdefault((line.kind, line.after), []).append(line.raw)
    lines = [
        f"<!-- foveal memory {log_name(state)} {state.version}: edit, add and delete lines; a mark at the end of a"
        " line can stay or go -->"
    ]
    lines += behind.pop((None, ""), [])
    counting = state.counting()
    for kind, title in _TITLES.items():
        section = behind.pop((kind, ""), [])
        for entry in (entry for entry in counting if entry.kind == kind):
            own = in_place.get(entry.id)
            section.append(own.raw if own else f"- {_shown(entry)} <!-- {entry.id} -->")
            section += behind.pop((kind, entry.id), [])
        for place in [place for place in behind if place[0] == kind]:  # the entry before them is gone
            section += behind.pop(place)
        if section:
            lines += ["", f"## {title}", *section]
    for rest in behind.values():
        lines += rest
    return "\n".join(lines) + "\n"


def unusable_lines(text: str, is_usable: Callable[[str], bool]) -> list[FileLine]:
    """Return the lines of a file that cannot be entries."""
    return [line for line in _lines(plain_lines(text)) if line.text and not is_usable(line.text)]


def read_edits(text: str, state: MemoryState) -> FileEdits:
    """Return what the owner has changed in a file since it was written."""
    text = plain_lines(text)
    head = _FIRST_LINE.match(text)
    is_own = head is not None and head[1] == log_name(state)
    base = state.until(int(head[2])) if head is not None and is_own else MemoryState()
    known = {entry.id: entry for entry in base.counting()}
    lines = list(_lines(text))
    named: dict[str, FileLine] = {}
    for line in lines if is_own else []:
        if line.id in known and (line.id not in named or line.text == _shown(known[line.id])):
            named[line.id] = line
    unnamed = [line for line in lines if named.get(line.id) is not line]
    by_text = {_shown(entry).casefold(): id for id, entry in known.items() if id not in named}
    kept = {by_text[line.text.casefold()] for line in unnamed if line.text.casefold() in by_text}
    current = {*texts_of(state.counting())}
    added = {
        line.text.casefold(): (line.kind, line.text)
        for line in unnamed
        if line.text.casefold() not in by_text and line.text.casefold() not in current
    }
    edits = FileEdits(
        added=tuple(added.values()),
        changed=tuple(
            (id, line.text) for id, line in named.items() if line.text and line.text != _shown(known[id])
        ),
        deleted=tuple(id for id in known if id not in kept and not (id in named and named[id].text)),
    )
    return _without_undone(edits, state, int(head[2])) if head is not None and is_own else edits


def _without_undone(edits: FileEdits, state: MemoryState, version: int) -> FileEdits:
    """Leave out what was taken from the file since it was written, and undone."""
    undone = state.undone_file_edits(version)
    added = {fact.text for fact in undone if isinstance(fact, Remembered)}
    changed = {(state.name(fact.target), fact.text) for fact in undone if isinstance(fact, Edited)}
    deleted = {state.name(fact.target) for fact in undone if isinstance(fact, Forgotten)}
    return FileEdits(
        added=tuple(one for one in edits.added if one[1] not in added),
        changed=tuple(one for one in edits.changed if one not in changed),
        deleted=tuple(id for id in edits.deleted if id not in deleted),
    )


def _shown(entry: MemoryEntry) -> str:
    """Return the text of an entry as its line has it: a comment in it would hide the mark."""
    return " ".join(_COMMENT.sub(" ", entry.text).replace("<!--", "< !--").split())


def _lines(text: str) -> Iterator[FileLine]:
    """Yield the entries of a file: bullets, and other lines of text, each with the kind of its section."""
    kind: EntryKind | None = None
    before = ""
    for line in text.split("\n"):
        if line.startswith("#"):
            kind, before = _KINDS.get(line.lstrip("#").strip().casefold()), ""
            continue
        mark = _MARK.search(line)
        body = line[: mark.start()] if mark else line
        bullet = _BULLET.fullmatch(body)
        words = " ".join(_COMMENT.sub(" ", bullet[1] if bullet else body).split())
        if words or mark:
            yield FileLine(kind, words, mark[1] if mark else "", line, before)
            before = mark[1] if mark else before
