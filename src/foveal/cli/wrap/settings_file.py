"""The settings file of a coding agent, with Foveal's settings or as it was before.

1. `planned` returns the file with the settings, and `original` the file without them. Neither writes.
2. The file as it was is stored in the user's state folder before the first change: `original` has the same bytes.
3. If the user has changed the file since, `original` is the file of now with only Foveal's settings taken back.
4. A write replaces the file at once: a crash leaves the old file or the new one, and either can be taken back.
5. A link stays a link, and a file keeps its mode, unless a secret is written to it: then it is for its owner only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from stat import S_IMODE
from typing import Final, NamedTuple

import msgspec

from foveal.cli.wrap.settings_text import SettingPath, SettingsFormat, format_of
from foveal.errors import FovealError

BOM: Final = "\ufeff"


class WrittenSetting(msgspec.Struct, frozen=True):
    """A setting that Foveal has written; values are as the file writes them."""

    path: SettingPath
    before: str | None
    written: tuple[str, ...]
    """All values that Foveal has given it, the newest last."""


class WrapRecord(msgspec.Struct, frozen=True):
    """What is stored about a file that Foveal has changed."""

    file: str
    before: bytes | None
    """None: there was no file."""
    after: bytes
    settings: tuple[WrittenSetting, ...]
    folders: tuple[str, ...] = ()
    """Folders that did not exist, the innermost first."""
    mode: int | None = None
    """The mode of the file from before; None if there was no file."""


class Original(NamedTuple):
    """The file without Foveal's settings."""

    content: bytes | None
    """None: no file."""
    is_exact: bool = True
    """Whether these are the bytes from before; otherwise the user has changed the file since."""
    changed_by_user: tuple[SettingPath, ...] = ()
    """Foveal's settings that have another value now, and stay."""


class SettingsFile:
    """A settings file, and the record of what Foveal has changed in it."""

    def __init__(self, path: Path, records: Path, agent: str) -> None:
        self.path = path
        name = sha256(os.fsencode(path)).hexdigest()[:16]
        self._record_file = records / f"{agent}-{name}.json"
        self.record: WrapRecord | None = _read_record(self._record_file)
        self.content: bytes | None = self._read()

    @classmethod
    def changed(cls, records: Path, agent: str) -> Iterator[SettingsFile]:
        """Yield the files of an agent that Foveal has changed."""
        for file in sorted(records.glob(f"{agent}-*.json")):
            record = _read_record(file)
            if record is not None:
                yield cls(Path(record.file), records, agent)

    def find(self, path: SettingPath) -> str | None:
        """Return the value that the user has given a setting, None if there is none."""
        return self._format.find(self._text(self.original().content), path)

    def original(self) -> Original:
        """Return the file as it is without Foveal's settings."""
        record, content = self.record, self.content
        if record is None or content is None or content == record.before:
            return Original(content)
        if content == record.after:
            return Original(record.before)
        text, bom = self._text(content), BOM * content.startswith(BOM.encode())
        changed: list[SettingPath] = []
        for setting in reversed(record.settings):
            value = self._format.find(text, setting.path)
            if value not in setting.written:
                changed += [setting.path] * (value is not None and value != setting.before)
            elif setting.before is None:
                text = self._format.remove(text, setting.path)
            else:
                text = self._format.put(text, setting.path, setting.before)
        is_nothing = record.before is None and text.strip() in ("", "{}")
        return Original(
            None if is_nothing else (bom + text).encode(), is_exact=False, changed_by_user=tuple(changed)
        )

    def planned(self, settings: Mapping[SettingPath, str]) -> WrapRecord:
        """Return the record of the file with these settings, in place of those that Foveal has written before."""
        before = self.original().content
        text, bom = self._text(before), BOM * (before or b"").startswith(BOM.encode())
        known = {setting.path: setting.written for setting in self.record.settings} if self.record else {}
        written = []
        for path, value in settings.items():
            values = tuple(dict.fromkeys([*known.get(path, ()), value]))
            written.append(WrittenSetting(path, self._format.find(text, path), values))
            text = self._format.put(text, path, value)
        folders = self.record.folders if self.record else tuple(map(str, self._missing_folders()))
        mode = self.record.mode if self.record else self._mode()
        return WrapRecord(str(self.path), before, (bom + text).encode(), tuple(written), folders, mode)

    def write(self, record: WrapRecord, *, is_secret: bool = False) -> None:
        """Write the planned file, and first the record with which it can be taken back."""
        self._check_unchanged()
        self._record_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(self._record_file, msgspec.json.encode(record))
        for folder in reversed(self._missing_folders()):
            folder.mkdir(exist_ok=True, mode=0o700)
        mode = self._mode()
        _replace(self._target, record.after, mode=mode & 0o700 if is_secret and mode is not None else mode)

    def restore(self) -> Original:
        """Write the file without Foveal's settings, and forget what was changed."""
        original = self.original()
        self._check_unchanged()
        if original.content is not None and original.content != self.content:
            _replace(self._target, original.content, mode=self._mode_before())
        elif original.content is None:
            self._target.unlink(missing_ok=True)
            for folder in self.record.folders if self.record else ():
                with suppress(OSError):  # it holds other files now
                    os.rmdir(folder)
        self._record_file.unlink(missing_ok=True)
        return original

    @property
    def _format(self) -> SettingsFormat:
        return format_of(self.path.name)

    def _mode(self) -> int | None:
        try:
            return S_IMODE(self._target.stat().st_mode)
        except FileNotFoundError:
            return None

    def _mode_before(self) -> int | None:
        """Return the mode from before, or that of now if the user has changed it since."""
        now, before = self._mode(), self.record.mode if self.record else None
        return before if before is not None and now == before & 0o700 else now

    @property
    def _target(self) -> Path:
        """The file itself, if the path is a link."""
        return Path(os.path.realpath(self.path))

    def _read(self) -> bytes | None:
        try:
            return self._target.read_bytes()
        except FileNotFoundError:
            return None

    def _check_unchanged(self) -> None:
        if self._read() != self.content:
            raise FovealError(f"{self.path} has changed meanwhile: run the command again")

    def _missing_folders(self) -> list[Path]:
        return [folder for folder in self._target.parents if not folder.exists()]

    def _text(self, content: bytes | None) -> str:
        try:
            return (content or b"").decode().removeprefix(BOM)
        except UnicodeDecodeError:
            raise FovealError(f"{self.path} cannot be changed safely: it is not UTF-8") from None


def _read_record(file: Path) -> WrapRecord | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=WrapRecord)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as problem:
        raise FovealError(f"{file} is damaged ({problem}): remove it after a look at its `before`") from None


def _replace(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace a file at once; it keeps its owner, and without a `mode` it is only for its owner."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(number, "wb") as file:
            with suppress(FileNotFoundError, PermissionError):
                old = path.stat()
                os.fchown(number, old.st_uid, old.st_gid)
            if mode is not None:
                os.fchmod(number, mode)
            file.write(content)
            file.flush()
            os.fsync(number)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
