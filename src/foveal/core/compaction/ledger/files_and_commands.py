"""Ledger sections about what the agent did: files and calls.

`FileHistory` and `CallHistory` are told of the calls in their order and keep the latest state of each file and
call, so that a ledger of a longer range continues where the one before it ended.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Final

from foveal.core.compaction.ledger.allocation import (
    CALLS_HEADING,
    FILES_HEADING,
    FILES_READ_HEADING,
    ITEM_PREFIX,
    MAX_CALL_TITLE_CHARS,
    Item,
    Section,
    inline,
)
from foveal.core.compaction.ledger.call_reader import FileAction, FileKeys, word_set
from foveal.core.compaction.ledger.event_facts import ToolAction, describe_outcome
from foveal.core.log.events import handle, text_of

MAX_READ_FILES_TRACKED: Final = 400
"""Files that were only named, newest first; files that were changed are all tracked."""
MAX_PATHS_KEPT: Final = 1_024
"""Paths that are kept as they are shown: each ledger names most files of the one before again."""
_MAX_PATH_CHARS: Final = 300
_MAX_CHANGES_PER_FILE: Final = 3
"""Changes of one file that are told, newest first."""
_INSTRUCTION_FILES: Final = word_set(
    "agents.md agent.md claude.md gemini.md contributing.md .cursorrules .windsurfrules .clinerules"
    " copilot-instructions.md conventions.md"
)
"""Files in which a project states rules for agents."""
_MIN_TOUCHES: Final = 3
"""A file that this many calls name is worked on: its text is quoted."""
_MIN_TEXT_CHARS: Final = 800
"""A shorter result is a message about a file, not its text."""
_MAX_FILES_OF_TEXT: Final = 2
"""The result of a call that names more files, such as a search, is the text of none."""
_MAX_TEXTS_PER_FILE: Final = 12
_NEEDED_SHARE: Final = 0.3
_MIN_NAMES_LEFT_OUT: Final = 3
_UNITS_PER_NAME_LEFT_OUT: Final = 25
"""The line about files left out names one more file for this much more room."""


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────


class TouchedFile:
    """One file and the actions on it."""

    def __init__(self, path: str) -> None:
        self.path: str = path.removeprefix("./")
        self.last: int = -1
        """Seq of the latest action."""
        self.is_changed: bool = False
        self._counts: dict[str, int] = {}
        """Times of each action, the latest one last."""
        self._changes: list[tuple[int, str]] = []
        """The latest changes, each with its seq, the latest one last."""
        self.touches: int = 0
        """Calls that name it."""
        self.texts: list[int] = []
        """Seqs of the latest results that contain text of it, the latest one last."""

    def add(self, path: str, verb: FileAction, change: str, action: ToolAction) -> None:
        """Count an action; the longest spelling of the path is kept."""
        path = path.removeprefix("./")
        self.path = path if len(path) >= len(self.path) else self.path
        self.last = action.seq
        self.touches += 1
        if _is_file_text(action):
            self.texts = [*self.texts[1 - _MAX_TEXTS_PER_FILE :], action.result_seq]
        is_change = verb not in ("read", "ran")
        word = f"{verb} in a call that failed" if is_change and action.has_failed else verb
        self._counts[word] = self._counts.pop(word, 0) + 1
        self.is_changed = self.is_changed or is_change
        if is_change and not action.has_failed:
            self._changes = [*self._changes[1 - _MAX_CHANGES_PER_FILE :], (action.seq, change)]

    @property
    def has_several_changes(self) -> bool:
        return len(self._changes) > 1

    @property
    def is_instructions(self) -> bool:
        return self.path.rsplit("/", 1)[-1].lower() in _INSTRUCTION_FILES

    def read_item(self) -> str:
        """Return the path; a file with rules of the project has a line of its own."""
        path = _shown_path(self.path)
        return (
            f"{ITEM_PREFIX}{path}: the project's instructions, {handle(self.last)}"
            if self.is_instructions
            else path
        )

    def line(self, *, max_changes: int) -> str:
        counted = [
            f"{word} ×{times}" if times > 1 else word
            for word, times in reversed(self._counts.items())
            if word not in ("read", "ran")
        ]
        told = [
            f"{handle(seq)}{': ' if change else ''}{change}"
            for seq, change in reversed(self._changes[-max_changes:])
        ]
        where = "; ".join(told) or handle(self.last)
        return f"{ITEM_PREFIX}{_shown_path(self.path)}: {', '.join(counted)}, {where}"


def _is_file_text(action: ToolAction) -> bool:
    """Return whether the result of a call is likely to be text of the file that it names."""
    if action.result is None or action.has_failed or len(action.touched) > _MAX_FILES_OF_TEXT:
        return False
    return len(text_of(action.result.content)) >= _MIN_TEXT_CHARS


@lru_cache(maxsize=MAX_PATHS_KEPT)
def _shown_path(path: str) -> str:
    return inline(path, _MAX_PATH_CHARS)


class FileHistory:
    """The files that calls touched."""

    def __init__(self, keys: FileKeys) -> None:
        self._keys = keys
        self._files: dict[str, TouchedFile] = {}
        """The file that was touched last is the last one."""

    def add(self, action: ToolAction) -> None:
        for (path, verb), change in zip(
            reversed(action.touched), reversed(action.facts.changes), strict=True
        ):
            key = self._keys.of(path)
            file = self._files.pop(key) if key in self._files else TouchedFile(path)
            self._files[key] = file
            file.add(path, verb, change, action)

    def newest_first(self) -> list[TouchedFile]:
        """Return all files that were changed, and those that were only named up to a limit."""
        files = list(reversed(self._files.values()))
        if len(files) <= MAX_READ_FILES_TRACKED:
            return files
        return [
            file for number, file in enumerate(files) if file.is_changed or number < MAX_READ_FILES_TRACKED
        ]

    def worked_on(self, *, later: FileHistory) -> list[TouchedFile]:
        """Return the files that are named most often, here and `later`, most often first."""
        touches = {key: file.touches for key, file in self._files.items() if file.texts}
        for key in touches.keys() & later._files.keys():
            touches[key] += later._files[key].touches
        # Of files that are named equally often, the one that was touched last comes first.
        keys = [key for key in reversed(touches) if touches[key] >= _MIN_TOUCHES]
        return [self._files[key] for key in sorted(keys, key=touches.__getitem__, reverse=True)]


def file_sections(
    files: Sequence[TouchedFile], *, elsewhere: Container[str], room: int
) -> tuple[Section, Section]:
    """Return the sections of the files that were changed, and of those that were only named."""
    changed = [file for file in files if file.is_changed]
    read = [file for file in files if not file.is_changed]
    read.sort(key=lambda file: (not file.is_instructions, file.path in elsewhere))
    return (
        Section(
            FILES_HEADING,
            _change_items(changed),
            3.0,
            needed=(Item(slot, _shown_path(file.path)) for slot, file in enumerate(changed)),
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


def _change_items(files: Sequence[TouchedFile]) -> Iterator[Item]:
    """Yield what changed last in each file, then more changes of each."""
    for max_changes in (1, _MAX_CHANGES_PER_FILE):
        for slot, file in enumerate(files):
            if max_changes == 1 or file.has_several_changes:
                yield Item(slot, file.line(max_changes=max_changes))


def _files_left_out(files: Sequence[TouchedFile], shown: Collection[int], room: int) -> str:
    hidden = [file.path for slot, file in enumerate(files) if slot not in shown]
    if not hidden:
        return ""
    limit = _MIN_NAMES_LEFT_OUT + room // _UNITS_PER_NAME_LEFT_OUT
    names = [inline(path.rsplit("/", 1)[-1], 60) for path in hidden[:limit]]
    more = " …" if len(hidden) > limit else ""
    return f"+ {len(hidden)} more changed: {', '.join(names)}{more}"


# ── Calls ────────────────────────────────────────────────────────────────────────────────────────────────


class LatestCall:
    """The latest one of equal calls, with its line once it is needed: most ledgers repeat it."""

    def __init__(self, action: ToolAction) -> None:
        self._action: ToolAction | None = action
        self.seq: int = action.seq

    def release_text(self) -> None:
        """Write the line now, and forget the call and its result."""
        assert self.line
        self._action = None

    @cached_property
    def line(self) -> str:
        action = self._action
        assert action is not None, "the line is written before the call is forgotten"
        title = action.facts.title(MAX_CALL_TITLE_CHARS)
        is_run = action.command is not None and action.command.runs_program
        outcome = f" → {describe_outcome(action)}" if is_run or action.has_failed else ""
        return f"{ITEM_PREFIX}{title}{outcome}, {handle(action.seq)}"


class CallHistory:
    """The latest one of equal calls. Of what an agent continues from, its own calls are the largest part."""

    def __init__(self) -> None:
        self._latest: dict[int, LatestCall] = {}
        """By the command or the title; the one that was made last is the last one."""
        self._tried: set[int] = set()
        """All calls."""
        self._with_text: dict[int, LatestCall] = {}
        """The latest calls whose texts are not forgotten."""

    def release_texts(self) -> None:
        """Forget the texts of all calls; their lines stay."""
        for run in self._with_text.values():
            run.release_text()
        self._with_text = {}

    def add(self, action: ToolAction) -> None:
        command = action.command
        key = hash(action.facts.title(MAX_CALL_TITLE_CHARS)) if command is None else command.bare
        self._tried.add(key)
        self._latest.pop(key, None)
        changes_file = command is None and any(verb not in ("read", "ran") for _, verb in action.touched)
        if changes_file or action.facts.is_plan:
            return  # the file that it changes, or the plan, has a section of its own
        self._latest[key] = self._with_text[key] = LatestCall(action)

    def newest_first(self, *, later: CallHistory) -> list[LatestCall]:
        """Return the calls, without those that were made again later."""
        again = later._tried
        return [run for bare, run in reversed(self._latest.items()) if bare not in again]


def calls_section(latest: Sequence[LatestCall]) -> Section:
    """Return the section of calls, one line each; they are newest first."""
    return Section(
        CALLS_HEADING,
        (Item(slot, run.line) for slot, run in enumerate(latest)),
        1.5,
        left_out=lambda shown: f"+ {len(latest) - len(shown)} more" if len(shown) < len(latest) else "",
    )
