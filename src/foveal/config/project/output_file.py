"""Files that commands write for the user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from foveal.core.wire.safe_print import visible
from foveal.errors import FovealError


@contextmanager
def open_output(path: Path, *, advice: str, replaces: bool = False) -> Iterator[BinaryIO]:
    """Open a file to write; `advice` says what to do if it exists. A new file is removed if writing it fails.

    Only its owner can read it, like a store: what is written are conversations."""
    try:
        file = open(path, "wb" if replaces else "xb", opener=_open_private)  # noqa: SIM115 (closed below)
    except FileExistsError:
        raise FovealError(f"{visible(str(path))} exists and was not overwritten: {advice}") from None
    try:
        with file:
            yield file
    except BaseException:
        if not replaces:
            path.unlink(missing_ok=True)
        raise


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
