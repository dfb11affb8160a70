"""Instruction files on disk: finding, reading, and keeping a session up to date.

    files, trust = InstructionFiles(cwd, rules=config.rules), Trust()
    new = [answer.item for answer in files.items() if answer.is_open]    # the user was not asked about these files
    trust.answer(files.root, new, allowed=ask(new))                      # the keys of those that the user allows
    await session.append(*await files.refresh(session))   # before each user message
    paths = paths_in(call.arguments)                      # after a step's results
    await session.append(*await files.instructions_for(session, paths))

1. `refresh` returns the facts after which the model sees every file exactly once and in its newest version;
   none if nothing has changed.
2. `instructions_for` returns the instructions for files that no call had touched before.
3. `notes` says what was left out, cut or looks unusual. Each note goes into the log once, as `Noted`, which no
   model sees. The first file begins with a line that names the files which are cut.
4. A file of the project is used only if the user allows it as it is now, and only if it is between the project's
   root and the working directory or the touched files. Nothing above the root is read, and `@imports` in a file are
   not followed.

`fit_by_owner` brings the files within their limit:

1. The files of the user have a share of the limit that files of a project cannot take.
2. Among the files of a project, general ones are cut before specific ones. A short file is shown whole: half of the
   limit is divided among the files, and one that fits into its part cannot lose it to a longer one.
3. `cut_line` names what is cut, for the start of the instructions.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from foveal.config.instructions.rules import (
    PREFERENCES_NAME,
    InstructionFile,
    InstructionKind,
    InstructionRules,
    InstructionSet,
    ShownFile,
    _safe_path,
    affects_instructions,
    changed_facts,
    folders_between,
    instruction_set,
    slot_of,
)
from foveal.config.project import (
    ITEM_STATE_WORDS,
    FileText,
    ItemAnswer,
    ItemTrust,
    ProjectItem,
    Trust,
    UnusableFile,
    find_root,
    read_text_file,
)
from foveal.core.log.events import AnyFact, Event, Instructed, Noted
from foveal.core.tokens.counter import Counter, Estimate
from foveal.core.wire.safe_print import one_line, readable
from foveal.user_paths import config_folder

USER_SHARE: Final = 0.75
"""Share of a limit that the user's own files can take, however long those of the project are."""
SHORT_FILES_SHARE: Final = 0.5
"""Share of a limit that is divided among the files, so that short ones are shown whole."""
MAX_CUT_FILES_NAMED: Final = 8
"""Files that the line about cut files names."""


def fit_by_owner(
    user: Sequence[InstructionFile], project: Sequence[InstructionFile], room: int
) -> list[ShownFile | None]:
    """Return what is shown of the user's files, then of the project's, within `room` bytes together."""
    needed = sum(_utf8_size(_heading(file)) + _utf8_size(file.text) for file in project)
    own = fit_files(user, max(int(room * USER_SHARE), room - needed))
    taken = sum(_utf8_size(file.content) for file in own if file is not None)
    return [*own, *fit_files(project, room - taken)]


def cut_line(files: Sequence[InstructionFile], shown: Sequence[ShownFile | None]) -> str:
    """Return a line that names the files that are cut or left out, with the lines shown of each; "" without any."""
    cut = [
        f"{_safe_path(file.path)} ({_lines_shown(file, part)})"
        for file, part in zip(files, shown, strict=True)
        if part is None or not part.whole
    ]
    if len(cut) > MAX_CUT_FILES_NAMED:
        cut = [*cut[:MAX_CUT_FILES_NAMED], f"and {len(cut) - MAX_CUT_FILES_NAMED:,} more"]
    return f"[foveal: instructions are cut: {'; '.join(cut)}]\n" if cut else ""


def _lines_shown(file: InstructionFile, part: ShownFile | None) -> str:
    total = len(_split_lines(file.text)) if part is None else part.total
    more = " or more" if file.unread else ""
    return f"{part.lines if part is not None else 0:,} of {total:,}{more} lines shown"


def fit_files(files: Sequence[InstructionFile], room: int) -> list[ShownFile | None]:
    """Return what is shown of each file within `room` bytes; the files are ordered from the least specific on.

    None for a file that has no room even for a notice."""
    shown: list[ShownFile | None] = []
    lines = [_split_lines(file.text) for file in files]
    part_of_each = int(room * SHORT_FILES_SHARE) // max(1, len(files))
    sizes = [_utf8_size(_heading(file)) + _utf8_size(file.text) for file in files]
    are_short = [size <= part_of_each and not file.unread for file, size in zip(files, sizes, strict=True)]
    kept = [
        size if is_short else _utf8_size(_notice(file, len(parts)))
        for file, parts, size, is_short in zip(files, lines, sizes, are_short, strict=True)
    ]
    full = False
    for file, is_short in zip(reversed(files), reversed(are_short), strict=True):
        own, parts = kept.pop(), lines.pop()
        # Leave room for the short files above it, and for the notices of the others.
        allowed = max(room - sum(kept), min(room, own))
        is_left_out = full and not is_short
        visible = _notice_only(file, parts, allowed) if is_left_out else _cut_file(file, parts, allowed)
        full = full or visible is None or not visible.whole
        room -= _utf8_size(visible.content) if visible is not None else 0
        shown.append(visible)
    return shown[::-1]


def _split_lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _cut_file(file: InstructionFile, lines: Sequence[str], room: int) -> ShownFile | None:
    heading, total = _heading(file), len(lines)
    if not file.unread and _utf8_size(heading) + _utf8_size(file.text) <= room:
        return ShownFile(file.path, heading + file.text, total, total, whole=True)
    left = room - _utf8_size(heading) - _utf8_size(_notice(file, total))
    kept = 0
    while kept < total and (left := left - _utf8_size(lines[kept])) >= 0:
        kept += 1
    if not kept:
        return _notice_only(file, lines, room)
    content = f"{heading}{''.join(lines[:kept])}{_notice(file, total - kept)}"
    return ShownFile(file.path, content, kept, total, whole=False)


def _notice_only(file: InstructionFile, lines: Sequence[str], room: int) -> ShownFile | None:
    notice = _notice(file, len(lines))
    return ShownFile(file.path, notice, 0, len(lines), whole=False) if _utf8_size(notice) <= room else None


def _heading(file: InstructionFile) -> str:
    path = _safe_path(file.path)
    match file.kind:
        case "user":
            return f"# Instructions of the user, for every project ({path})\n\n"
        case "preferences":
            return f"# Preferences of the user ({path})\n\n"
        case "project":
            folder = path.rpartition("/")[0] or "/"
            return f"# Instructions for {folder} ({path}); they go before those of folders above it\n\n"


def _notice(file: InstructionFile, lines: int) -> str:
    more = "more than " if file.unread else ""
    return f"[foveal: {more}{lines:,} lines of {_safe_path(file.path)} are not shown; read the file for the rest]"


INSTRUCTION_NOTE_TOPIC: Final = "instructions"
"""Topic of the notes in the log."""
PROJECT_FOLDER_NAME: Final = ".foveal"
"""The folder of a project that holds its preferences.md."""
MAX_ROOM_SHARE: Final = 1 / 3
"""Share of a model's room that instructions and preferences take at most."""
PREFERENCES_ROOM_SHARE: Final = 1 / 8
"""The part of it that preferences take at most."""
MIN_BYTES_PER_TOKEN: Final = 3
"""Bytes of UTF-8 that a token of a file in another folder has at least, in most texts."""
_MAX_FIT_TRIES: Final = 8
_FULL_SHARE: Final = 0.97
"""Share of the limit in tokens from which on the search for a limit in bytes stops."""
_MIN_READ_BYTES: Final = 1 << 20


class FilesByOwner(NamedTuple):
    """Files as they were read, from the least specific on."""

    user: Sequence[InstructionFile] = ()
    project: Sequence[InstructionFile] = ()


class InstructionLog(Protocol):
    """The part of a session that `InstructionFiles` needs: reading its log."""

    async def events(self, *, first: int = 0, last: int | None = None) -> list[Event]: ...


class InstructionFiles:
    """The instruction files of one working directory, for one session."""

    def __init__(
        self,
        cwd: Path | str,
        *,
        rules: InstructionRules | None = None,
        user_folder: Path | None = None,
        trust: ItemTrust | None = None,
        project: bool = True,
        room: int | None = None,
        counter: Counter | None = None,
    ) -> None:
        """`room` are the tokens that a request has for messages, as `counter` counts them (by default an estimate).
        Instructions take at most a third of it; None leaves only the limits of the rules. With `project=False`,
        only the user's own files are read."""
        self.rules: InstructionRules = rules or InstructionRules()
        self._max_tokens = None if room is None else int(room * MAX_ROOM_SHARE)
        self._most_bytes = self.rules.max_bytes + self.rules.preferences_max_bytes
        self._counter = counter or Estimate()
        self.cwd: Path = Path(os.path.realpath(cwd))
        self.root: Path = find_root(self.cwd, self.rules.root_markers)
        self.user_folder: Path = user_folder or config_folder()
        self.trust: ItemTrust = trust or Trust()
        self._uses_project = project
        self.shown: tuple[ShownFile, ...] = ()
        """What the model sees of each file, in order."""
        self.notes: tuple[str, ...] = ()
        """What the user should know about the files: left out, cut, unusual."""
        self.open_notes: tuple[str, ...] = ()
        """Those of the notes that name a file which the user was not asked about."""
        self._log: list[Event] = []
        self._noted: set[str] = set()
        """Texts of the notes that are in the log."""
        self._next = 0
        """The seq of the next event to take in."""
        self._other_folders: dict[str, None] = {}
        """Touched folders that are not between the root and the working directory."""
        self._checked: set[str] = set()
        """Folders that were checked since the last refresh."""
        self._waiting: dict[str, None] = {}
        """Touched folders whose file the user does not allow, or was not asked about."""
        self._unused: dict[str, str] = {}
        """Paths of files that the user does not allow, and why they are not used."""

    # ── Consent ──────────────────────────────────────────────────────────────────────────────────────────

    def items(self) -> tuple[ItemAnswer, ...]:
        """Return the instruction files of the project as they are now, and which of them the user allows."""
        reader = _DiskReader(self.rules, self.root)
        self._user_files(reader)  # a file of the project that is also the user's needs no answer
        folders = dict.fromkeys([*self._main_folders(), *self._other_folders, *self._waiting])
        found = [file for folder in folders for file in self._project_files(reader, folder)]
        return tuple(map(self._answer, [*found, *self._project_preferences(reader)]))

    def _answer(self, file: InstructionFile) -> ItemAnswer:
        lines = file.text.count("\n") + (not file.text.endswith("\n"))
        name = os.fsencode(os.path.relpath(file.path, self.root)).decode("utf-8", "backslashreplace")
        item = ProjectItem(
            key=f"file {name}",
            title=f"{lines:,} line{'s' * (lines != 1)} of instructions for the model",
            source=name,
            text=file.text,
        )
        return ItemAnswer(item, self.trust.state(self.root, item))

    def _only_allowed(self, reader: _DiskReader, files: Sequence[InstructionFile]) -> list[InstructionFile]:
        """Return the files that the user allows, and note the others."""
        allowed = []
        for file in files:
            answer = self._answer(file)
            if answer.state == "allowed":
                allowed.append(file)
            else:
                self._unused[file.path] = ITEM_STATE_WORDS[answer.state]
                reader.note(file.path, f"is not used: {ITEM_STATE_WORDS[answer.state]}")
                self.open_notes += (reader.notes[-1],) if answer.is_open else ()
        return allowed

    # ── Async, for an agent ────────────────────────────────────────────────────────────────────────────

    async def refresh(self, session: InstructionLog) -> tuple[AnyFact, ...]:
        """Return the facts for what has changed since the last turn."""
        events = await session.events(first=self._next)
        return await asyncio.to_thread(self.refresh_blocking, events)

    async def instructions_for(self, session: InstructionLog, paths: Sequence[str]) -> tuple[AnyFact, ...]:
        """Return the instructions for files and folders that were touched for the first time."""
        if not await asyncio.to_thread(self._unchecked, paths):
            return ()
        events = await session.events(first=self._next)
        return await asyncio.to_thread(self.instructions_for_blocking, paths, events)

    # ── Blocking ───────────────────────────────────────────────────────────────────────────────────────

    def refresh_blocking(self, events: Iterable[Event]) -> tuple[AnyFact, ...]:
        """Do the work of `refresh` with the session's events; earlier events need not be passed again."""
        current = self._update(events)
        self._checked.clear()
        elsewhere = {*self._main_folders(), self.user_folder.as_posix()}
        self._other_folders = dict.fromkeys(
            folder
            for folder, file in current.files.items()
            if folder not in elsewhere
            and folder != file.source
            and folders_between(self.root.as_posix(), folder)
        )
        self._other_folders |= self._waiting
        return (*self._read_changes(current), *self._new_notes())

    def instructions_for_blocking(
        self, paths: Sequence[str], events: Iterable[Event] = ()
    ) -> tuple[AnyFact, ...]:
        """Do the work of `instructions_for`: read folders that were not checked before. Other changes wait for
        `refresh`."""
        current = self._update(events)
        new = self._unchecked(paths)
        self._checked.update(new)
        if not new or not self._uses_project:
            return ()
        self._other_folders |= dict.fromkeys(new)
        facts = self._read_changes(current)
        known = {slot_of(file.path) for file in self.shown} | current.files.keys()
        self._other_folders = dict.fromkeys(folder for folder in self._other_folders if folder in known)
        added = (fact for fact in facts if fact.replaces is None and slot_of(fact.source) in new)
        return (*added, *self._new_notes())

    def _update(self, events: Iterable[Event]) -> InstructionSet:
        """Take in new events and return what the session shows now."""
        for event in events:
            if event.seq >= self._next:
                self._next = event.seq + 1
                if affects_instructions(event):
                    self._log.append(event)
                elif isinstance(event.fact, Noted) and event.fact.topic == INSTRUCTION_NOTE_TOPIC:
                    self._noted.add(event.fact.text)
        return instruction_set(self._log)

    def _new_notes(self) -> tuple[Noted, ...]:
        return tuple(
            Noted(text=note, topic=INSTRUCTION_NOTE_TOPIC) for note in self.notes if note not in self._noted
        )

    # ── Folders ────────────────────────────────────────────────────────────────────────────────────────

    def _main_folders(self) -> tuple[str, ...]:
        """Return the folders from the root down to the working directory."""
        return folders_between(self.root.as_posix(), self.cwd.as_posix())

    def _unchecked(self, paths: Sequence[str]) -> list[str]:
        """Return folders of the project on the way to these paths that were not checked yet."""
        seen = {*self._main_folders(), *self._other_folders, *self._checked}
        found = (folder for path in paths for folder in self._folders_to(path) if folder not in seen)
        return list(dict.fromkeys(found))

    def _folders_to(self, path: str) -> tuple[str, ...]:
        try:
            folder = Path(os.path.realpath(self.cwd / os.path.expanduser(path)))
        except (OSError, ValueError):
            return ()
        while not os.path.isdir(folder) and folder != folder.parent:
            folder = folder.parent
        return folders_between(self.root.as_posix(), folder.as_posix())

    # ── Content ────────────────────────────────────────────────────────────────────────────────────────

    def _read_changes(self, current: InstructionSet) -> tuple[Instructed, ...]:
        """Read all files again and return the facts for what differs from what is shown."""
        reader = _DiskReader(self.rules, self.root)
        self._unused.clear()
        self.open_notes = ()
        self.shown = tuple(self._fit(reader, self._instructions(reader), self._preferences(reader)))
        self.notes = tuple(reader.notes)
        return changed_facts(
            current, self.shown, {key: self._why_gone(file.source) for key, file in current.files.items()}
        )

    def _instructions(self, reader: _DiskReader) -> FilesByOwner:
        user = self._user_files(reader)
        project = [file for folder in self._main_folders() for file in self._project_files(reader, folder)]
        return FilesByOwner(user, self._only_allowed(reader, project))

    def _user_files(self, reader: _DiskReader) -> list[InstructionFile]:
        return reader.first(self.user_folder, self.rules.names, kind="user") if self.rules.max_bytes else []

    def _project_files(self, reader: _DiskReader, folder: str) -> list[InstructionFile]:
        if not self.rules.max_bytes or not self._uses_project:
            return []
        return reader.first(Path(folder), self.rules.names)

    def _preferences(self, reader: _DiskReader) -> FilesByOwner:
        if not self.rules.preferences_max_bytes:
            return FilesByOwner()
        user = reader.first(self.user_folder, (PREFERENCES_NAME,), kind="preferences")
        return FilesByOwner(user, self._only_allowed(reader, self._project_preferences(reader)))

    def _project_preferences(self, reader: _DiskReader) -> list[InstructionFile]:
        if not self.rules.preferences_max_bytes or not self._uses_project:
            return []
        folder = self.root / PROJECT_FOLDER_NAME
        return reader.first(folder, (PREFERENCES_NAME,), kind="preferences", within=self.root)

    def _fit(
        self, reader: _DiskReader, instructions: FilesByOwner, preferences: FilesByOwner
    ) -> Iterator[ShownFile]:
        """Yield what is shown of all files, in order; the first begins with the line about cut files."""
        files = [*instructions.user, *instructions.project, *preferences.user, *preferences.project]
        shown, line, room = self._parts(instructions, preferences)
        reader.note_cuts(files, shown)
        if line and self._max_tokens is not None and room < self.rules.max_bytes:
            reader.note(
                "instructions", f"take at most {self._max_tokens:,} tokens in the window of this model"
            )
        parts = list(shown)
        first = next((place for place, file in enumerate(shown) if file is not None), 0)
        if line and (file := shown[first]) is not None:
            parts[first] = file._replace(content=line + file.content)
        count = len(instructions.user) + len(instructions.project)
        yield from (file for file in parts[:count] if file is not None)
        # Other folders share the remaining room, so that nothing before them moves.
        yield from self._in_other_folders(reader, self._left_bytes(parts, parts[:count]))
        yield from (file for file in parts[count:] if file is not None)

    def _left_bytes(self, shown: Sequence[ShownFile | None], instructions: Sequence[ShownFile | None]) -> int:
        """Return the bytes that are left for instructions of other folders."""
        left = self.rules.max_bytes - sum(_utf8_size(file.content) for file in instructions if file)
        if self._max_tokens is None:
            return left
        return max(0, min(left, (self._max_tokens - self._tokens(shown)) * MIN_BYTES_PER_TOKEN))

    def _parts(
        self, instructions: FilesByOwner, preferences: FilesByOwner
    ) -> tuple[list[ShownFile | None], str, int]:
        """Return what is shown of each file, the line about cut files, and the limit in bytes.

        The limits of the rules are in bytes, that of the room in tokens: the largest limit in bytes that is within
        both is searched for between one that fits and one that does not."""
        limit = high = self._most_bytes
        low, best = 0, None
        for _ in range(_MAX_FIT_TRIES):
            shown, line = self._parts_within(instructions, preferences, limit)
            if self._max_tokens is None:
                return shown, line, limit
            # The vocabulary takes some 16 MB in each thread that counts: nothing is counted without files.
            tokens = self._tokens(shown) + (self._counter.count(line) if line else 0)
            if tokens <= self._max_tokens:
                low, best = limit, (shown, line)
                if limit == self._most_bytes or tokens >= self._max_tokens * _FULL_SHARE:
                    break
            else:
                high = limit
            guess = limit * self._max_tokens // max(1, tokens)
            limit = guess if low < guess < high else (low + high) // 2
        # Few bytes take more than one token each, so this limit holds where the search found none.
        low = low or min(self._most_bytes, self._max_tokens or 0)
        return *(best or self._parts_within(instructions, preferences, low)), low

    def _tokens(self, shown: Sequence[ShownFile | None]) -> int:
        return sum(self._counter.count_all([file.content for file in shown if file is not None]))

    def _parts_within(
        self, instructions: FilesByOwner, preferences: FilesByOwner, limit: int
    ) -> tuple[list[ShownFile | None], str]:
        """Return what is shown of each file within a limit in bytes, and the line about cut files, which takes room
        as well. Preferences leave to instructions what they do not need."""
        files = [*instructions.user, *instructions.project, *preferences.user, *preferences.project]
        most_preferences = self.rules.preferences_max_bytes
        if limit < self._most_bytes:
            most_preferences = min(most_preferences, int(limit * PREFERENCES_ROOM_SHARE))

        def fit(reserved: int) -> list[ShownFile | None]:
            reserved, other = (reserved, 0) if any(instructions) else (0, reserved)
            preferred = fit_by_owner(*preferences, most_preferences - other)
            taken = sum(_utf8_size(file.content) for file in preferred if file is not None)
            most = min(self.rules.max_bytes, limit - taken)
            return [*fit_by_owner(*instructions, most - reserved), *preferred]

        reserved = 0
        while _utf8_size(line := cut_line(files, shown := fit(reserved))) > reserved:
            reserved = _utf8_size(line)
        most = min(self.rules.max_bytes, limit) if any(instructions) else most_preferences
        return (shown, line) if 2 * reserved <= most else (fit(0), "")

    def _in_other_folders(self, reader: _DiskReader, room: int) -> Iterator[ShownFile]:
        for folder in self._other_folders:
            found = self._project_files(reader, folder)
            files = self._only_allowed(reader, found)
            if len(files) < len(found):
                self._waiting[folder] = None
            else:
                self._waiting.pop(folder, None)
            shown = fit_by_owner((), files, room)
            reader.note_cuts(files, shown)
            for file in shown:
                if file is not None:
                    room -= _utf8_size(file.content)
                    yield file

    def _why_gone(self, source: str) -> str:
        if not os.path.lexists(source):
            return "was deleted"
        if source in self._unused:
            return f"is not used, because {self._unused[source]}"
        return "is not used any more"


class _DiskReader:
    """Reads each file once and collects notes about unusual ones."""

    def __init__(self, rules: InstructionRules, root: Path) -> None:
        self.notes: list[str] = []
        self._rules = rules
        self._root = root
        self._max_bytes = max(_MIN_READ_BYTES, rules.max_bytes, rules.preferences_max_bytes)
        self._seen: dict[tuple[int, int], str] = {}

    def note(self, path: Path | str, what: str) -> None:
        """Add a note about a file or folder."""
        self.notes.append(f"{one_line(str(path), width=1_000)} {what}")

    def first(
        self,
        folder: Path,
        names: Sequence[str],
        *,
        kind: InstructionKind = "project",
        within: Path | None = None,
    ) -> list[InstructionFile]:
        """Return the first usable file of a folder, as a list of at most one."""
        if kind == "project":
            within = self._root
            if self._rules.ignores(folder.relative_to(self._root).as_posix()):
                return []
        for name in names:
            path = folder / name
            try:
                found = read_text_file(path, max_bytes=self._max_bytes, within=within)
            except UnusableFile as problem:
                self.note(path, f"is left out: {problem}")
                continue
            if found is None:
                continue
            if found.identity in self._seen:  # already shown; no other file of this folder counts
                self.note(path, f"is left out: it is the same file as {self._seen[found.identity]}")
                return []
            if self._usable(path, found):
                return [InstructionFile(path.as_posix(), found.text, kind, found.unread)]
        return []

    def _usable(self, path: Path, found: FileText) -> bool:
        if not found.text.strip() and not found.unread:
            self.note(path, "is left out: it is empty")
            return False
        self._seen[found.identity] = one_line(str(path), width=1_000)
        if found.damaged:
            self.note(path, "is not UTF-8 throughout: what could not be read is shown as U+FFFD")
        if hidden := _hidden_characters(found.text):
            self.note(path, f"has characters that cannot be seen ({hidden}); they are kept as they are")
        return True

    def note_cuts(self, files: Sequence[InstructionFile], shown: Sequence[ShownFile | None]) -> None:
        """Note the files that are cut or left out."""
        for file, part in zip(files, shown, strict=True):
            if part is None:
                self.note(file.path, "is left out: there is no room for it")
            elif not part.whole:
                more = " or more" if file.unread else ""
                self.note(file.path, f"is cut: {part.lines:,} of {part.total:,}{more} lines are shown")


def _utf8_size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _hidden_characters(text: str) -> str:
    """Return the code points of invisible characters in a text."""
    marks = set(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    found = sorted(ord(mark) for mark in marks if readable(mark) != mark)
    named = ", ".join(f"U+{code:04X}" for code in found[:5])
    return named + (f" and {len(found) - 5:,} more" if len(found) > 5 else "")
