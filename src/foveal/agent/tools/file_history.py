"""File history: earlier bytes of files that the agent changed, derived from the log.

1. The log has a record of each change by a file tool, and by a command in the sandbox: the path, and the SHA-256 of
   the file before and after it.
2. Earlier bytes come from what the log holds: edits are reversed or repeated, and texts that the model wrote, or
   read whole, are taken as they are. What a command changed comes from the copies of `file_backups`. A derived text
   counts only if its digest is the recorded one, so a file is restored to exactly the bytes of that point or not at
   all.
3. A file that is not as the last recorded change left it is not restored, because another program changed it.

`change_recording` makes the records. `plan_rewind` and `plan_undo` are pure functions of that log; `restore_files`
carries out a plan.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Final, Literal

import msgspec

from foveal.agent.tool import InvalidArguments, describe_error
from foveal.agent.tools import text_edit
from foveal.agent.tools.file_backups import FOLDER_DIGEST, FileBackups
from foveal.agent.tools.files import MAX_READ_BYTES
from foveal.agent.tools.workspace import FileStamp, Workspace
from foveal.core.log.events import (
    Call,
    Event,
    ModelSaid,
    SnapshotTaken,
    ToolReturned,
    calls_of,
    raw,
    text_of,
    unraw,
)

CHANGES_LABEL: Final = "file changes"
"""Label of the snapshots that record changes."""
FILE_CHANGING_TOOLS: Final = frozenset({"write", "edit"})
_CODINGS: Final = tuple(map(text_edit.detect_coding, (b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")))
"""The encodings that the file tools know, by the first bytes of a file."""
_MAX_PLACES: Final = 2_000
"""Most places of a file at which the reversal of an edit is tried."""
_MAX_HASHED_BYTES: Final = 256 * 1024 * 1024
"""Most bytes that are hashed to find the place of one edit."""
_LINE: Final = re.compile(r"at line ([\d,]+)$")
_NOTE: Final = re.compile(r"\[foveal: [^\n]*\]\n")

Digest = str | None
"""SHA-256 in hexadecimal; None for a file that does not exist."""


def digest_of(data: bytes | None) -> Digest:
    return None if data is None else sha256(data).hexdigest()


# ── Records ──────────────────────────────────────────────────────────────────────────────────────────────


class FileChange(msgspec.Struct, frozen=True):
    """One change of one file."""

    path: str
    """Absolute, links resolved."""
    before: Digest
    after: Digest
    mode: int | None = None
    """Mode of the file before a command changed it."""
    mode_after: int | None = None
    """Mode after that; None in records of older versions."""

    @property
    def is_folder(self) -> bool:
        return FOLDER_DIGEST in (self.before, self.after)

    @property
    def is_of_mode(self) -> bool:
        """Whether only the mode differs."""
        return self.before == self.after

    @property
    def has_other_mode(self) -> bool:
        return None not in (self.mode, self.mode_after) and self.mode != self.mode_after

    def reversed(self) -> FileChange:
        return FileChange(self.path, self.after, self.before, self.mode_after, self.mode)


class FileChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What one event did to files."""

    changes: tuple[FileChange, ...]
    by: Literal["tool", "background", "rewind", "undo"] = "tool"
    """`background`: a command that the agent did not wait for, or another program meanwhile."""
    target: int | None = None
    """Of a rewind: the event that rewinds the conversation, if one does; of an undo: the event that it takes
    back."""

    def to_fact(self) -> SnapshotTaken:
        return SnapshotTaken(data=raw(msgspec.to_builtins(self)), label=CHANGES_LABEL)


def read_changes(event: Event) -> FileChanges | None:
    """Return the changes that an event records, None for other events and for unreadable records."""
    if not isinstance(event.fact, SnapshotTaken) or event.fact.label != CHANGES_LABEL:
        return None
    try:
        return msgspec.convert(unraw(event.fact.data), FileChanges)
    except (msgspec.ValidationError, ValueError):
        return None


class RecordedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change with its place in the log and the call that made it."""

    seq: int
    change: FileChange
    call: Call | None = None
    """None for background commands, for a rewind and for an undo."""
    line: int = 0
    """The first line that an edit changed; 0 if it is not known."""
    is_certain: bool = True
    """Whether it is known that the agent made it: while a background command runs, others change files too."""


class ChangeHistory(msgspec.Struct, frozen=True, kw_only=True):
    """All that a log says about changed files."""

    changes: tuple[RecordedChange, ...] = ()
    """Changes of files."""
    folders: tuple[RecordedChange, ...] = ()
    """Folders that were made, removed, or have another mode."""
    unrecorded: tuple[tuple[int, str], ...] = ()
    """Results of file tools without a record, with the path in the call: sessions of older versions have them."""
    texts: tuple[tuple[str, str], ...] = ()
    """Names of files, and texts that they had as a whole at some time."""
    calls: tuple[tuple[int, Call], ...] = ()
    """Calls without a record, each with the seq of its result."""
    copies: FileBackups | None = None
    """Copies of files that commands changed."""

    @classmethod
    def of(cls, log: Sequence[Event], copies: FileBackups | None = None) -> ChangeHistory:
        """Read a log, with the events that were rewound: they changed files all the same."""
        reader = _LogReader()
        for event in log:
            reader.read(event)
        return cls(
            changes=tuple(reader.changes),
            folders=tuple(reader.folders),
            unrecorded=tuple(reader.unrecorded),
            texts=tuple(reader.texts),
            calls=tuple(reader.calls),
            copies=copies,
        )

    def paths(self) -> list[str]:
        """Return the changed files, in the order of their first change."""
        return list(dict.fromkeys(recorded.change.path for recorded in self.changes))

    def calls_after(self, seq: int) -> list[Call]:
        """Return the calls without a record that were answered since an event."""
        return [call for at, call in self.calls if at > seq]


class _LogReader:
    """Collects the parts of a `ChangeHistory`, event by event."""

    def __init__(self) -> None:
        self.changes: list[RecordedChange] = []
        self.folders: list[RecordedChange] = []
        self.unrecorded: list[tuple[int, str]] = []
        self.texts: list[tuple[str, str]] = []
        self.calls: list[tuple[int, Call]] = []
        self._open: list[Call] = []
        """Calls without a result. They run one after the other, so a record belongs to the first of them."""
        self._pending: list[int] = []
        """Indices of the changes that the running call has recorded."""
        self._is_recorded = False
        """Whether it has recorded what it changed, if only that it was nothing."""

    def read(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, ModelSaid):
            self._open, self._pending = [call for _, call in calls_of(fact.content)], []
            self._is_recorded = False
        elif isinstance(fact, ToolReturned):
            self._read_result(event.seq, fact)
        elif (record := read_changes(event)) is not None:
            self._read_record(event.seq, record)

    def _read_record(self, seq: int, record: FileChanges) -> None:
        call = self._open[0] if record.by == "tool" and self._open else None
        is_certain = record.by != "background"
        self._is_recorded |= record.by == "tool"
        for change in record.changes:
            recorded = RecordedChange(seq=seq, change=change, call=call, is_certain=is_certain)
            if change.is_folder:
                self.folders.append(recorded)
                continue
            if is_certain:
                self._pending.append(len(self.changes))
            self.changes.append(recorded)

    def _read_result(self, seq: int, fact: ToolReturned) -> None:
        call = next((call for call in self._open if call.id == fact.call_id), None)
        if call is None:
            return
        self._open = [other for other in self._open if other is not call]
        pending, self._pending = self._pending, []
        is_recorded, self._is_recorded = self._is_recorded, False
        given = _arguments(call)
        path, text = str(given.get("path", "")), text_of(fact.content)
        if call.name not in FILE_CHANGING_TOOLS:
            self.calls += [] if is_recorded else [(seq, call)]
            if call.name == "read" and not fact.error and isinstance(fact.content, str):
                self.texts += [(PurePath(path).name, whole) for whole in (text, _NOTE.sub("", text, count=1))]
            return
        if call.name == "write":
            self.texts.append((PurePath(path).name, str(given.get("content", ""))))
        if not pending and not fact.error:
            self.unrecorded.append((seq, path))
        found = _LINE.search(text)
        for index in pending if found is not None else ():
            line = int(found[1].replace(",", "")) if found is not None else 0
            self.changes[index] = msgspec.structs.replace(self.changes[index], line=line)


def _arguments(call: Call) -> Mapping[str, Any]:
    try:
        given = json.loads(call.arguments)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


# ── Plans ────────────────────────────────────────────────────────────────────────────────────────────────


class Restoration(msgspec.Struct, frozen=True, kw_only=True):
    """A file with the bytes that it gets back."""

    change: FileChange
    """From the present state to the restored one."""
    present: bytes | None
    data: bytes | None
    """None if the file is deleted, if it is a folder, and if only its mode changes."""


class LeftFile(msgspec.Struct, frozen=True):
    """A file that is not restored, and why."""

    path: str
    reason: str


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a rewind does to files."""

    restorations: tuple[Restoration, ...] = ()
    left: tuple[LeftFile, ...] = ()


def plan_rewind(history: ChangeHistory, to: int, present: Mapping[str, bytes | None]) -> RestorePlan:
    """Return how files get back to their state after event `to`. `present` has the bytes of all changed files."""
    chains: dict[str, list[FileChange]] = {}
    for recorded in sorted((*history.changes, *history.folders), key=lambda one: one.seq):
        if recorded.seq > to:
            chains.setdefault(recorded.change.path, []).append(recorded.change)
    unrecorded = dict.fromkeys(path for seq, path in history.unrecorded if seq > to)
    names = {PurePath(path).name for path in unrecorded}
    merged = {path: _merge(chain) for path, chain in chains.items() if PurePath(path).name not in names}
    plan = _plan(history, merged, present)
    return RestorePlan(
        restorations=plan.restorations,
        left=(*plan.left, *(LeftFile(path, "the log has no record of its state") for path in unrecorded)),
    )


def plan_undo(
    history: ChangeHistory, changes: Iterable[FileChange], present: Mapping[str, bytes | None]
) -> RestorePlan:
    """Return how the restoration of files is taken back."""
    return _plan(history, {change.path: change for change in changes}, present)


def _merge(chain: Sequence[FileChange]) -> FileChange | None:
    """Return changes of one file as one change, None if the file was changed by something else between them."""
    if any(one.after != after.before for one, after in pairwise(chain)):
        return None
    mode = next((one.mode for one in chain if one.mode is not None), None)
    mode_after = next((one.mode_after for one in reversed(chain) if one.mode_after is not None), None)
    return FileChange(chain[0].path, chain[0].before, chain[-1].after, mode, mode_after)


def _plan(
    history: ChangeHistory, undone: Mapping[str, FileChange | None], present: Mapping[str, bytes | None]
) -> RestorePlan:
    restorations: list[Restoration] = []
    left: list[LeftFile] = []
    for path, change in undone.items():
        if change is None:
            left.append(LeftFile(path, "something else changed it between the agent's changes"))
        elif change.is_folder and not {change.before, change.after} <= {None, FOLDER_DIGEST}:
            left.append(LeftFile(path, "a folder has taken its place, or it the place of a folder"))
        elif change.is_folder or change.is_of_mode:
            if change.has_other_mode or not change.is_of_mode:
                restorations.append(Restoration(change=change.reversed(), present=None, data=None))
        elif digest_of(present.get(path)) != change.after:
            left.append(LeftFile(path, "it is not as the agent left it"))
        else:
            states = derive_states(history, path, present.get(path), target=change.before)
            if change.before in states:
                data = states[change.before]
                restorations.append(
                    Restoration(change=change.reversed(), present=present.get(path), data=data)
                )
            else:
                left.append(LeftFile(path, "the log does not hold its earlier text"))
    return RestorePlan(restorations=tuple(restorations), left=tuple(left))


# ── Deriving bytes ───────────────────────────────────────────────────────────────────────────────────────


def derive_states(
    history: ChangeHistory, path: str, present: bytes | None, *, target: Digest
) -> dict[Digest, bytes | None]:
    """Return the states of a file that can be derived, by digest. Stops at the target."""
    states: dict[Digest, bytes | None] = {None: None, digest_of(present): present}
    if target is not None and target not in states and history.copies is not None:
        copy = history.copies.read(target)
        states |= {} if copy is None else {target: copy}
    if target in states:
        return states
    changes = [recorded for recorded in history.changes if recorded.change.path == path]
    wanted = {digest for one in changes for digest in (one.change.before, one.change.after)} | {target}
    name = PurePath(path).name
    for text in (text for owner, text in history.texts if owner == name):
        states |= {found: data for data in _encodings(text) if (found := digest_of(data)) in wanted}
    count = 0
    while target not in states and count != len(states):
        count = len(states)
        for recorded in reversed(changes):
            _derive_before(recorded, states)
        for recorded in changes:
            _derive_after(recorded, states)
    return states


def _encodings(text: str) -> Iterator[bytes]:
    """Yield the bytes that a text may have had in its file: the tools change line endings and byte order marks."""
    for variant in dict.fromkeys((text, text.replace("\n", "\r\n"))):
        for coding in _CODINGS:
            try:
                yield coding.encode(variant)
            except InvalidArguments:
                continue


def _derive_before(recorded: RecordedChange, states: dict[Digest, bytes | None]) -> None:
    change, call = recorded.change, recorded.call
    data = states.get(change.after)
    if change.before in states or data is None or call is None or call.name != "edit":
        return
    candidates = _reversed_edits(data, _arguments(call), line=recorded.line)
    found = next((one for one in candidates if digest_of(one) == change.before), None)
    if found is not None:
        states[change.before] = found


def _derive_after(recorded: RecordedChange, states: dict[Digest, bytes | None]) -> None:
    change, call = recorded.change, recorded.call
    data = states.get(change.before)
    if change.after in states or data is None or call is None or call.name != "edit":
        return
    given = _arguments(call)
    try:
        text, coding = text_edit.decode_exactly(data)
        old, new = str(given["old"]), str(given["new"])
        done = text_edit.replace_text(text, old, new, everywhere=bool(given.get("all")))[0]
        result = coding.encode(done)
    except (InvalidArguments, KeyError):
        return
    if digest_of(result) == change.after:
        states[change.after] = result


def _reversed_edits(data: bytes, given: Mapping[str, Any], *, line: int) -> Iterator[bytes]:
    """Yield what a file may have been before an edit, likely ones first."""
    try:
        text, coding = text_edit.decode_exactly(data)
        old, new = str(given["old"]), str(given["new"])
    except (InvalidArguments, KeyError):
        return
    budget = _MAX_HASHED_BYTES
    pairs = [(old, new)]
    if "\r\n" in text and "\r" not in old:
        pairs.append((old.replace("\n", "\r\n"), new.replace("\n", "\r\n")))
    for before, after in pairs:
        if after:
            yield coding.encode(text.replace(after, before))
        for place in _places(text, after, line):
            if (budget := budget - len(data)) < 0:
                return
            yield coding.encode(text[:place] + before + text[place + len(after) :])


def _places(text: str, new: str, line: int) -> list[int]:
    """Return where an edit may have put its text: for a deletion, everywhere in the line that the tool named."""
    if not new:
        start = _line_start(text, line)
        end = text.find("\n", start) if start >= 0 else -1
        stop = len(text) if end < 0 else end
        return list(range(start, min(stop + 1, start + _MAX_PLACES))) if start >= 0 else []
    places: list[int] = []
    at = text.find(new)
    while at >= 0 and len(places) < _MAX_PLACES:
        places.append(at)
        at = text.find(new, at + 1)
    start = max(0, _line_start(text, line))
    return sorted(places, key=lambda place: abs(place - start))


def _line_start(text: str, line: int) -> int:
    """Return where a line begins, counted from 1; -1 if there is none."""
    at = 0 if line else -1
    for _ in range(line - 1):
        at = text.find("\n", at) + 1
        if not at:
            return -1
    return at


def read_file(workspace: Workspace, path: Path) -> bytes | None:
    """Return the bytes of a regular file, None if there is no such path."""
    return _read_with_stamp(workspace, path)[0]


def present_states(workspace: Workspace, paths: Iterable[str]) -> dict[str, bytes | None]:
    """Return the bytes of files of the workspace; paths that cannot be read or are outside are left out, so that
    they are compared with no digest but that of a missing file."""
    states: dict[str, bytes | None] = {}
    for path in paths:
        with suppress(OSError, InvalidArguments):
            states[path] = read_file(workspace, workspace.resolve(path))
    return states


def restore_files(workspace: Workspace, plan: RestorePlan) -> RestorePlan:
    """Restore files; return the plan with what was done, and with the files that could not be restored."""
    done: list[Restoration] = []
    left = list(plan.left)
    for one in sorted(plan.restorations, key=_place_in_order):
        try:
            if one.change.is_folder or one.change.is_of_mode:
                _restore_entry(workspace, one.change)
            else:
                _restore(workspace, one)
            done.append(one)
        except (OSError, InvalidArguments) as problem:
            left.append(LeftFile(one.change.path, describe_error(problem)))
    return RestorePlan(restorations=tuple(done), left=tuple(left))


def _restore(workspace: Workspace, one: Restoration) -> None:
    path = workspace.resolve(one.change.path)
    if str(path) != one.change.path:
        raise InvalidArguments("a link is on its path now")
    data, stamp = _read_with_stamp(workspace, path)
    if digest_of(data) != one.change.before:
        raise InvalidArguments("it has changed in this moment")
    mode = one.change.mode_after
    if one.data is not None and mode is not None and stat.S_ISLNK(mode):
        with workspace.open_folder(path.parent, create=True) as folder:
            os.symlink(one.data, path.name, dir_fd=folder)
    elif one.data is not None:
        workspace.write(path, one.data, expected=stamp)
        if mode is not None:
            _set_mode(workspace, path, mode)
    elif data is not None:
        with workspace.open_folder(path.parent) as folder:
            os.unlink(path.name, dir_fd=folder)
        _remove_empty_folders(path.parent, workspace)


def _place_in_order(one: Restoration) -> tuple[int, int]:
    """Files come first, then folders that go, inner ones first, then folders that come, outer ones first."""
    depth = len(PurePath(one.change.path).parts)
    if not one.change.is_folder:
        return 0, 0
    return (1, -depth) if one.change.after is None else (2, depth)


def _restore_entry(workspace: Workspace, change: FileChange) -> None:
    """Make or remove a folder, and set the mode of a folder or a file."""
    path = workspace.resolve(change.path)
    if str(path) != change.path:
        raise InvalidArguments("a link is on its path now")
    if change.after is None:
        with suppress(OSError), workspace.open_folder(path.parent) as folder:
            os.rmdir(path.name, dir_fd=folder)  # it is not empty, or gone, if it fails
        return
    if change.is_folder:
        with workspace.open_folder(path, create=True):
            pass
    elif not all(stat.S_ISREG(mode or 0) for mode in (os.lstat(path).st_mode, change.mode_after)):
        raise InvalidArguments("it is not a file any more")
    if change.mode_after is not None:
        _set_mode(workspace, path, change.mode_after)


def _set_mode(workspace: Workspace, path: Path, mode: int) -> None:
    with workspace.open_folder(path.parent) as folder:
        try:
            os.chmod(path.name, stat.S_IMODE(mode), dir_fd=folder, follow_symlinks=False)
        except ValueError:  # so says Python about a link
            raise InvalidArguments("it has become a link") from None


def _remove_empty_folders(folder: Path, workspace: Workspace) -> None:
    """Remove the folders that were made for a file and have become empty with it."""
    with suppress(OSError, InvalidArguments):  # it is not empty
        while folder != workspace.root and folder.is_relative_to(workspace.root):
            with workspace.open_folder(folder.parent) as above:
                os.rmdir(folder.name, dir_fd=above)
            folder = folder.parent


def _read_with_stamp(workspace: Workspace, path: Path) -> tuple[bytes | None, FileStamp | None]:
    if not os.path.lexists(path):
        return None, None
    with workspace.open_file(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > MAX_READ_BYTES:
            raise InvalidArguments("it is too large")
        return file.read(MAX_READ_BYTES), FileStamp.of(found)
