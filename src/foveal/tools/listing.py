"""What is in a folder, one line each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from foveal.tools.hunt import CLOSED
from foveal.visible import one_line

MOST: Final = 2_000
"""Lines of one answer."""


def listing(folder: Path, *, depth: int) -> str:
    """Folders end in `/`, links show where they lead; the order is that of the names."""
    lines = list(islice(_lines(folder, "", depth), MOST + 1))
    if len(lines) > MOST:
        lines[-1] = f"[foveal: there is more; this is the first {MOST:,}]"
    return "\n".join(lines) or "[foveal: the folder is empty]"


def _lines(folder: Path, before: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as problem:
        yield f"{before}[foveal: cannot be listed: {problem.strerror}]"
        return
    for entry in entries:
        name = before + one_line(entry.name, width=300)
        if entry.is_symlink():
            yield f"{name} -> {one_line(os.readlink(entry.path), width=300)}"
        elif entry.is_dir(follow_symlinks=False):
            yield f"{name}/"
            if depth > 1 and entry.name not in CLOSED:
                yield from _lines(Path(entry.path), f"{name}/", depth - 1)
        elif entry.is_file(follow_symlinks=False):
            yield f"{name}  {entry.stat(follow_symlinks=False).st_size:,} bytes"
        else:
            yield f"{name}  (no ordinary file)"
