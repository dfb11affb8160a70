"""Ledger sections about what the agent did: files and commands.

All calls of the range are read, newest first, so that the latest state of a file or a command counts. The work per
call is bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from typing import Final

from foveal.core.compaction.ledger.allocation import Item, Section
from foveal.core.compaction.ledger.call_outcome import describe_outcome, has_failed
from foveal.core.compaction.ledger.call_reader import FileAction, FileKeys, ToolAction, read_call, word_set
from foveal.core.compaction.ledger.edit_changes import describe_change
from foveal.core.compaction.ledger.sections import (
    COMMANDS_HEADING,
    FILES_HEADING,
    FILES_READ_HEADING,
    ITEM_PREFIX,
    inline,
)
from foveal.core.compaction.ledger.unresolved_errors import call_title
from foveal.core.log.events import Event, ModelSaid, ToolReturned, calls_of, handle

MAX_READ_FILES_TRACKED: Final = 400
"""Files that were only read, newest first; files that were changed are all tracked."""
_MAX_CHANGES_PER_FILE: Final = 3
"""Changes of one file that are told, newest first."""
_INSTRUCTION_FILES: Final = word_set(
    "agents.md agent.md claude.md gemini.md contributing.md .cursorrules .windsurfrules .clinerules"
    " copilot-instructions.md conventions.md"
)
"""Files in which a project states rules for agents."""
_NEEDED_SHARE: Final = 0.3
_MIN_NAMES_LEFT_OUT: Final = 3
_UNITS_PER_NAME_LEFT_OUT: Final = 25
"""The line about files left out names one more file for this much more room."""


def collect_actions(events: Sequence[Event]) -> list[ToolAction]:
    """Return the calls of the range with their results, newest first.

    A result belongs to the latest call before it that has its id."""
    actions: list[ToolAction] = []
    results: dict[str, tuple[ToolReturned, int]] = {}
    for event in reversed(events):
        fact = event.fact
        if isinstance(fact, ToolReturned):
            results[fact.call_id] = fact, event.seq
        elif isinstance(fact, ModelSaid):
            for _, call in reversed(calls_of(fact.content)):
                result, result_seq = results.pop(call.id, (None, event.seq))
                touched, command, fields = read_call(call)
                failed = result is not None and has_failed(result, command, touched)
                actions.append(
                    ToolAction(event.seq, call, touched, command, fields, result, result_seq, failed)
                )
    return actions


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────


class TouchedFile:
    """One file and the actions on it, latest first."""

    def __init__(self, path: str, seq: int) -> None:
        self.path = path.removeprefix("./")
        self.last = seq
        self.counts: dict[str, int] = {}
        self.changes: list[tuple[ToolAction, FileAction]] = []
        """The latest changes."""

    def add(self, path: str, verb: FileAction, action: ToolAction) -> None:
        """Count an action; the longest spelling of the path is kept."""
        self.path = max(self.path, path.removeprefix("./"), key=len)
        is_change = verb not in ("read", "ran")
        has_worked = not is_change or not action.has_failed
        word = verb if has_worked else f"{verb} in a call that failed"
        self.counts[word] = self.counts.get(word, 0) + 1
        if is_change and has_worked and len(self.changes) < _MAX_CHANGES_PER_FILE:
            self.changes.append((action, verb))

    @property
    def is_changed(self) -> bool:
        return not self.counts.keys() <= {"read", "ran"}

    @property
    def is_instructions(self) -> bool:
        return self.path.rsplit("/", 1)[-1].lower() in _INSTRUCTION_FILES

    def read_item(self) -> str:
        """Return the path; a file with rules of the project has a line of its own."""
        path = inline(self.path, 300)
        return (
            f"{ITEM_PREFIX}{path}: the project's instructions, {handle(self.last)}"
            if self.is_instructions
            else path
        )

    def line(self, *, max_changes: int) -> str:
        counted = [
            f"{word} ×{times}" if times > 1 else word
            for word, times in self.counts.items()
            if word not in ("read", "ran")
        ]
        told = [
            f"{handle(action.seq)}{': ' if change else ''}{change}"
            for action, verb in self.changes[:max_changes]
            for change in (describe_change(action, self.path, verb),)
        ]
        where = "; ".join(told) or handle(self.last)
        return f"{ITEM_PREFIX}{inline(self.path, 300)}: {', '.join(counted)}, {where}"


def file_sections(files: Sequence[TouchedFile], *, elsewhere: Set[str], room: int) -> tuple[Section, Section]:
    """Return the sections of the files that were changed and of those that were only read."""
    changed = [file for file in files if file.is_changed]
    read = [file for file in files if not file.is_changed]
    read.sort(key=lambda file: (not file.is_instructions, file.path in elsewhere))
    return (
        Section(
            FILES_HEADING,
            _change_items(changed),
            3.0,
            needed=(Item(slot, inline(file.path, 300)) for slot, file in enumerate(changed)),
            needed_share=_NEEDED_SHARE,
            left_out=lambda shown: _files_left_out(changed, shown, room),
            told_when_empty=True,
        ),
        Section(
            FILES_READ_HEADING,
            (Item(slot, file.read_item()) for slot, file in enumerate(read)),
            1.0,
            left_out=lambda shown: f"+ {len(read) - len(shown)} more" if len(shown) < len(read) else "",
        ),
    )


def collect_files(actions: Sequence[ToolAction]) -> list[TouchedFile]:
    """Return the files that the calls touched; the calls are newest first, and so are the files."""
    known: dict[str, TouchedFile] = {}
    keys = FileKeys()
    for action in actions:
        for path, verb in action.touched:
            if len(known) >= MAX_READ_FILES_TRACKED and verb in ("read", "ran") and path not in known:
                continue
            key = keys.of(path)
            if key not in known:
                known[key] = TouchedFile(path, action.seq)
            known[key].add(path, verb, action)
    return list(known.values())


def _change_items(files: Sequence[TouchedFile]) -> Iterator[Item]:
    """Yield what changed last in each file, then more changes of each."""
    for max_changes in (1, _MAX_CHANGES_PER_FILE):
        for slot, file in enumerate(files):
            if max_changes == 1 or len(file.changes) > 1:
                yield Item(slot, file.line(max_changes=max_changes))


def _files_left_out(files: Sequence[TouchedFile], shown: Collection[int], room: int) -> str:
    hidden = [file.path for slot, file in enumerate(files) if slot not in shown]
    if not hidden:
        return ""
    limit = _MIN_NAMES_LEFT_OUT + room // _UNITS_PER_NAME_LEFT_OUT
    names = [inline(path.rsplit("/", 1)[-1], 60) for path in hidden[:limit]]
    more = " …" if len(hidden) > limit else ""
    return f"+ {len(hidden)} more changed: {', '.join(names)}{more}"


# ── Commands ─────────────────────────────────────────────────────────────────────────────────────────────


def commands_section(actions: Sequence[ToolAction], *, later: Sequence[ToolAction] = ()) -> Section:
    """Return the section of commands that ran a program, each once with its latest outcome.

    A command that ran again after the range is left out."""
    listed = {action.command.bare for action in later if action.command is not None}
    latest: list[ToolAction] = []
    for action in actions:
        if action.command is not None and action.command.runs_program and action.command.bare not in listed:
            listed.add(action.command.bare)
            latest.append(action)
    return Section(
        COMMANDS_HEADING,
        (Item(slot, _command_line(action)) for slot, action in enumerate(latest)),
        1.5,
        left_out=lambda shown: f"+ {len(latest) - len(shown)} more" if len(shown) < len(latest) else "",
    )


def _command_line(action: ToolAction) -> str:
    return f"{ITEM_PREFIX}{call_title(action)} → {describe_outcome(action)}, {handle(action.seq)}"
