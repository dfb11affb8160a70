"""Rules of projects, stored in `permissions.json` of the user's state folder.

1. The file is replaced atomically and only its owner can read it; a lock keeps two processes from losing a rule.
2. It is read on each call, so a rule that one process stores or removes counts for all.
3. A damaged file has no rules, and `problem` says so. Rules that are too old, or that the user cannot have agreed
   to, are ignored.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from foveal.agent.permissions.command_rules import RULE_LIFETIME_S, CommandRule
from foveal.agent.permissions.program_kinds import can_be_prefix
from foveal.config.project import UnusableFile, read_text_file
from foveal.user_paths import state_folder

_MAX_RULE_FILE_BYTES: Final = 4 * 1024 * 1024
_MAX_CLOCK_ERROR_S: Final = 3600.0
"""A rule that ends later than a new one could, by more than this, was not stored by this program."""


class _StoredRules(msgspec.Struct, frozen=True):
    """Content of `permissions.json`."""

    rules: tuple[CommandRule, ...] = ()


class RuleFile:
    """The stored rules, in the file `path`."""

    def __init__(self, path: Path | None = None) -> None:
        self.path: Path = path or state_folder() / "permissions.json"
        self.problem: str = ""
        """Why the file was not used when it was last read."""

    def rules(self, *, project: str | None = None) -> tuple[CommandRule, ...]:
        """Return the rules in force, of one project or of all."""
        return tuple(rule for rule in self._read() if project in (None, rule.project))

    def add(self, *rules: CommandRule) -> None:
        """Store rules; each is in force for `RULE_LIFETIME_S` from now on."""
        until = time.time() + RULE_LIFETIME_S
        new = [replace(rule, expires_at=until) for rule in rules]
        with self._locked():
            names = {_name(rule) for rule in new}
            self._write((*(rule for rule in self._read() if _name(rule) not in names), *new))

    def remove(self, *rules: CommandRule) -> None:
        """Delete rules; those that are not stored are ignored."""
        names = {_name(rule) for rule in rules}
        with self._locked():
            self._write(tuple(rule for rule in self._read() if _name(rule) not in names))

    def _read(self) -> tuple[CommandRule, ...]:
        self.problem = ""
        try:
            found = read_text_file(self.path, max_bytes=_MAX_RULE_FILE_BYTES)
            stored = _StoredRules() if found is None else msgspec.json.decode(found.text, type=_StoredRules)
        except (UnusableFile, msgspec.DecodeError) as problem:
            self.problem = f"{self.path} is damaged, so no rule of it counts: {problem}"
            return ()
        return tuple(rule for rule in stored.rules if _is_in_force(rule, time.time()))

    def _write(self, rules: tuple[CommandRule, ...]) -> None:
        data = msgspec.json.format(msgspec.json.encode(_StoredRules(rules)), indent=2)
        number, name = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)  # mode 0600
        try:
            with open(number, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the file, so that reading and replacing it is one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        lock = os.open(f"{self.path}.lock", flags, 0o600)
        try:
            with suppress(ImportError):  # Windows
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _name(rule: CommandRule) -> CommandRule:
    """Return a rule without its end, by which it is compared."""
    return replace(rule, expires_at=None)


def _is_in_force(rule: CommandRule, now: float) -> bool:
    if not (rule.expires_at and rule.project and rule.program and rule.words):
        return False
    is_young = now < rule.expires_at <= now + RULE_LIFETIME_S + _MAX_CLOCK_ERROR_S
    return is_young and rule.is_prefix and can_be_prefix(rule.words, rule.program)
