"""Recording of what tools and commands change in files, so that `/rewind` can restore it.

1. `record_changes` wraps the tools that change files: what each call changed goes to a callback, which stores it in
   the log.
2. Of commands in the sandbox, `CommandChanges` compares the files before and after. While some run in the
   background, it does so before each step of the agent, when one ends, and when the chat ends.
3. While a command runs, a journal in the user's state folder has the state of the files before it. The journal of a
   process that was killed is found by the next chat in the same folder (`recover`). So is that of a process whose
   background commands are kept: until they have ended, each chat sets aside the protected files that they made.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from foveal.agent.permissions.command_rules import SHELL_TOOL
from foveal.agent.permissions.protected_paths import KnownProtected, ProtectedFiles, SetAside
from foveal.agent.tool import Arguments, InvalidArguments, Tool, ToolOutput
from foveal.agent.tools.approvals import commits_only
from foveal.agent.tools.file_backups import (
    ChangedFile,
    FileBackups,
    WorkspaceState,
    changed_files,
)
from foveal.agent.tools.file_history import FILE_CHANGING_TOOLS, Digest, FileChange, digest_of, read_file
from foveal.agent.tools.workspace import Workspace
from foveal.user_paths import state_folder

_UNREADABLE: Final = "unreadable"
"""In place of the digest of a file that cannot be read."""
_MAX_JOURNAL_AGE_S: Final = 30 * 24 * 3600
"""Copies of files are deleted after this time, so a journal is of no use any more."""

_LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)

Record = Callable[[Sequence[FileChange]], Awaitable[None]]
_Run = Callable[..., Awaitable[ToolOutput]]


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────────────


def record_changes(
    tools: Iterable[Tool],
    workspace: Workspace,
    record: Record,
    commands: CommandChanges | None = None,
) -> list[Tool]:
    """Return tools of which those that change files report what each call changed to `record`. Of commands, which
    run in a sandbox, `commands` says what they changed."""
    return [
        replace(tool, run=_recording(tool, workspace, record, commands))
        if tool.name in FILE_CHANGING_TOOLS
        else _recording_command(tool, record, commands)
        if tool.name == SHELL_TOOL and commands is not None
        else tool
        for tool in tools
    ]


def _recording(tool: Tool, workspace: Workspace, record: Record, commands: CommandChanges | None) -> _Run:
    async def run(given: Arguments) -> ToolOutput:
        path = workspace.resolve(str(given["path"]))
        before = await asyncio.to_thread(_digest, workspace, path)
        output = await tool.run(given)
        after = await asyncio.to_thread(_digest, workspace, path)
        if not output.error and _UNREADABLE not in (before, after):
            await record([FileChange(str(path), before, after)])
        if commands is not None:
            await commands.accept(str(path))
        return output

    return run


def _digest(workspace: Workspace, path: Path) -> Digest:
    try:
        return digest_of(read_file(workspace, path))
    except (OSError, InvalidArguments):
        return _UNREADABLE


def _recording_command(tool: Tool, record: Record, commands: CommandChanges) -> Tool:
    async def changed_only(changes: Sequence[FileChange]) -> None:
        if changes:  # what the command did in the repository is not recorded
            await record(changes)

    def recording(run: _Run) -> _Run:
        async def run_and_record(given: Arguments, *more: Any) -> ToolOutput:
            if given.get("outside_sandbox") or given.get("background"):  # the second is begun where it starts
                return await run(given, *more)
            await commands.begin(given["command"])
            try:
                return await run(given, *more)
            finally:
                await commands.end(
                    given["command"], changed_only if commits_only(given["command"]) else record
                )

        return run_and_record

    live = None if tool.run_live is None else recording(tool.run_live)
    return replace(tool, run=recording(tool.run), run_live=live)


# ── Commands ─────────────────────────────────────────────────────────────────────────────────────────────


class CommandChanges:
    """What the commands of one chat change in a workspace.

    The files are compared with one state for all commands, so no change is recorded twice."""

    def __init__(
        self, root: Path, copies: FileBackups, *, store: Path, session: Callable[[], str], record: Record
    ) -> None:
        """`record` gets what changed while commands ran that the agent did not wait for; `session` returns the id
        of the session that gets it if this process is killed."""
        self._root, self._copies, self._session, self._record = root, copies, session, record
        self._before = WorkspaceState({})
        self._running: list[str] = []
        self._journals = _Journals(root, store)
        self._lock = asyncio.Lock()

    async def begin(self, command: str) -> None:
        """Note the files before a command starts."""
        async with self._lock:
            if self._running:
                await self._compare(self._record)
            else:
                self._before = await asyncio.to_thread(self._copies.take)
            await asyncio.to_thread(self._save, [*self._running, command])
            self._running.append(command)

    async def end(self, command: str, record: Record | None = None) -> None:
        """Record what has changed; the command is over. `record` is the callback of the call that waited for it."""
        async with self._lock:
            self._running.remove(command)
            await self._compare(record or self._record)
            if self._running:
                await asyncio.to_thread(self._save, self._running)
            else:
                await asyncio.to_thread(self._journals.remove)

    async def settle(self) -> None:
        """Record what running commands have changed so far."""
        async with self._lock:
            if self._running and await self._compare(self._record):
                await asyncio.to_thread(self._save, self._running)

    async def accept(self, path: str) -> None:
        """Take a file for known that a tool has changed while commands run."""
        async with self._lock:
            if not self._running:
                return
            present = (await asyncio.to_thread(self._copies.take)).files
            known = {name: file for name, file in self._before.files.items() if name != path}
            self._before = self._before._replace(
                files={**known, path: present[path]} if path in present else known
            )
            await asyncio.to_thread(self._save, self._running)

    def lifeline(self) -> AbstractContextManager[int]:
        """Open a file that a background command holds while it runs, so that other processes know of it."""
        return self._journals.lifeline()

    async def close(self, protected: KnownProtected | None = None) -> None:
        """Forget the commands that run on after this process: what they change from now on is not recorded. The
        next chats compare the protected files with the known ones."""
        async with self._lock:
            if self._running and protected is not None:
                await asyncio.to_thread(self._leave_behind, protected)
            else:
                await asyncio.to_thread(self._journals.remove)
            self._running.clear()

    def _leave_behind(self, protected: KnownProtected) -> None:
        journal = _Journal(
            session=self._session(),
            command="; ".join(self._running),
            before=WorkspaceState({}),
            protected=protected,
            changes=(),
            is_kept=True,
        )
        self._journals.save(journal)
        self._journals.release()

    async def _compare(self, record: Record) -> bool:
        """Record what has changed since the last time; return whether something has. Of a call that was waited
        for, it is recorded too that it changed nothing."""
        after = await asyncio.to_thread(self._copies.take)
        if after.problem:
            return False
        before, self._before = self._before, after
        if before.problem:
            return False
        changed = _changes(before, after)
        is_whole = before.too_large == after.too_large and before.rebuilt <= after.rebuilt
        if changed or (is_whole and record is not self._record):
            await record(changed)
        return bool(changed)

    def _save(self, running: Sequence[str]) -> None:
        self._journals.save(
            _Journal(
                session=self._session(),
                command="; ".join(running),
                before=self._before,
                protected=ProtectedFiles(self._root).known,
            )
        )

    async def recover(self, session: str) -> list[Recovered]:
        """Look for commands of processes that were killed: set aside protected files that they made, and record
        what they changed if the session is theirs. What belongs to other sessions is kept for them."""
        found = await asyncio.to_thread(self._reconcile, session)
        for recovered in found:
            if recovered.session == session and recovered.changes:
                await self._record(recovered.changes)
        return [one for one in found if one.changes or one.aside]

    def _reconcile(self, session: str) -> list[Recovered]:
        """Return what commands have changed, and keep it in their journals: later changes are not theirs."""
        found: list[Recovered] = []
        for path, journal in self._journals.abandoned():
            is_new, still_runs = journal.changes is None, self._journals.is_alive(path)
            changes = journal.changes or ()
            aside: list[SetAside] = []
            if is_new or journal.is_kept:
                aside = ProtectedFiles(self._root, journal.protected).set_new_aside()
            if is_new:
                after = self._copies.take()
                is_known = not journal.before.problem and not after.problem
                changes = tuple(_changes(journal.before, after)) if is_known else ()
            left = () if journal.session == session else changes
            if left or still_runs:
                known = replace(journal, changes=left, before=WorkspaceState({}), is_kept=still_runs)
                self._journals.write(path, known)
            else:
                self._journals.remove(path)
            if is_new or journal.session == session or aside:  # else it waits, and the user was told
                told = changes if is_new or journal.session == session else ()
                found.append(
                    Recovered(journal.command, journal.session, told, aside, is_kept=journal.is_kept)
                )
        return found


class _NoFile(NamedTuple):
    """The state of a file that does not exist."""

    digest: None = None
    mode: None = None


_MISSING: Final = _NoFile()


def _changes(before: WorkspaceState, after: WorkspaceState) -> list[FileChange]:
    return [_change_by_command(one) for one in changed_files(before, after)]


def _change_by_command(one: ChangedFile) -> FileChange:
    before, after = one.before or _MISSING, one.after or _MISSING
    return FileChange(one.path, before.digest, after.digest, before.mode, after.mode)


# ── Journals ─────────────────────────────────────────────────────────────────────────────────────────────


class Recovered(msgspec.Struct, frozen=True):
    """What a command did whose chat was killed, or which was kept."""

    command: str
    session: str
    changes: tuple[FileChange, ...]
    aside: list[SetAside]
    is_kept: bool = False


class _Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The files before commands that run."""

    session: str
    command: str
    before: WorkspaceState
    protected: KnownProtected
    changes: tuple[FileChange, ...] | None = None
    """What was found after the process had been killed; None before that."""
    is_kept: bool = False
    """Whether a command ran on when the journal was written; its protected files are compared again."""


class _Journals:
    """The journals of a workspace and a store; a process holds the lock of its own while commands run."""

    def __init__(self, root: Path, store: Path) -> None:
        names = os.fsencode(f"{os.path.realpath(store)}\0{root}")
        self._folder = state_folder() / "running-commands"
        self._key = sha256(names).hexdigest()[:16]
        self._own = self._folder / f"{self._key}-{token_hex(4)}.json"
        self._held = -1
        """The locked file; -1 while no command runs."""

    def save(self, journal: _Journal) -> None:
        """Write the own journal, and lock it."""
        if self._held < 0:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = _locked(_lock_of(self._own))
        self.write(self._own, journal)

    def write(self, path: Path, journal: _Journal) -> None:
        """Write a journal. Names of files may not be UTF-8, so characters are escaped."""
        new = path.with_suffix(".new")
        text = json.dumps(msgspec.to_builtins(journal))
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text)
        os.replace(new, path)

    def remove(self, path: Path | None = None) -> None:
        """Remove a journal, by default the own one."""
        journal = path or self._own
        for each in (journal, _lock_of(journal), _lifeline_of(journal)):
            each.unlink(missing_ok=True)
        if path is None:
            self.release()

    def release(self) -> None:
        """Leave the own journal to other processes."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    @contextmanager
    def lifeline(self) -> Iterator[int]:
        """Open a file for a program that inherits it: it is locked until every such program has ended."""
        import fcntl

        file = os.open(_lifeline_of(self._own), _LOCK_FLAGS, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield file
        finally:
            os.close(file)

    def is_alive(self, path: Path) -> bool:
        """Return whether a program holds the lifeline of a journal."""
        if not _lifeline_of(path).exists():
            return False
        lock = _locked(_lifeline_of(path))
        if lock >= 0:
            os.close(lock)
        return lock < 0

    def abandoned(self) -> Iterator[tuple[Path, _Journal]]:
        """Yield the journals of processes that have ended; old and unreadable ones are removed."""
        for path in sorted(self._folder.glob(f"{self._key}-*.json")):
            lock = _locked(_lock_of(path))
            if lock < 0:
                continue
            try:
                is_old = time.time() - path.stat().st_mtime > _MAX_JOURNAL_AGE_S and not self.is_alive(path)
                journal = None if is_old else msgspec.convert(json.loads(path.read_text()), _Journal)
            except (OSError, ValueError):
                journal = None
            if journal is None:
                self.remove(path)
            else:
                yield path, journal
            os.close(lock)


def _lock_of(path: Path) -> Path:
    return path.with_suffix(".lock")


def _lifeline_of(path: Path) -> Path:
    return path.with_suffix(".alive")


def _locked(path: Path) -> int:
    """Return an open and locked file, -1 if another process holds it."""
    import fcntl  # there is no sandbox on Windows

    file = os.open(path, _LOCK_FLAGS, 0o600)
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    os.close(file)
    return -1
