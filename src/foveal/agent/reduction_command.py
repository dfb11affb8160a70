"""Hook command: a program of the user that is asked about each cut before it is made.

1. It gets the JSON of a `ProposedCut` on its standard input, long messages shortened, and answers that of a
   `Steering` on its standard output, or nothing for no wish.
2. It runs in the working folder, without a shell, for at most `COMMAND_HOOK_TIMEOUT_S`; its group is killed then.
   It may write `MAX_COMMAND_ANSWER_BYTES`.
3. Only the user's own configuration names it (`context.hook`): it runs outside of the sandbox.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from foveal.core.engine.reviews import ProposedCut, Steering, cut_to_send
from foveal.core.wire.safe_print import one_line, seconds_text
from foveal.errors import FovealError

COMMAND_HOOK_TIMEOUT_S: Final = 10.0
"""Seconds that the program may take."""
MAX_COMMAND_ANSWER_BYTES: Final = 65_536
_MAX_PROBLEM_CHARS: Final = 200


class ReductionCommand:
    """The hook `on_reduction` of a program."""

    def __init__(
        self, command: Sequence[str], *, folder: Path, timeout_s: float = COMMAND_HOOK_TIMEOUT_S
    ) -> None:
        self._command = tuple(command)
        self._folder = folder
        self._timeout_s = timeout_s

    async def __call__(self, cut: ProposedCut) -> Steering | None:
        """Return what the program answers about a cut; raises `FovealError` if it fails."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=self._folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=MAX_COMMAND_ANSWER_BYTES,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                answer, problem = await _exchange(process, msgspec.json.encode(cut_to_send(cut)))
                status = await process.wait()
        except TimeoutError:
            raise FovealError(f"{self._name} took longer than {seconds_text(self._timeout_s)}") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if status:
            said = one_line(problem.decode("utf-8", "replace"), width=_MAX_PROBLEM_CHARS)
            raise FovealError(f"{self._name} ended with status {status}: {said}")
        if len(answer) > MAX_COMMAND_ANSWER_BYTES:
            raise FovealError(f"{self._name} wrote more than {MAX_COMMAND_ANSWER_BYTES:,} bytes")
        return msgspec.json.decode(answer, type=Steering | None) if answer.strip() else None

    @property
    def _name(self) -> str:
        return one_line(self._command[0], width=80)


async def _exchange(process: asyncio.subprocess.Process, text: bytes) -> tuple[bytes, bytes]:
    """Write the input of a process; return the beginning of its output and of its errors."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    reads = asyncio.gather(_beginning(process.stdout), _beginning(process.stderr))
    with suppress(ConnectionError):  # it need not read its input
        process.stdin.write(text)
        await process.stdin.drain()
    process.stdin.close()
    return await reads


async def _beginning(stream: asyncio.StreamReader) -> bytes:
    """Read a stream to its end; return its beginning, a byte more than an answer may have."""
    data = bytearray()
    while piece := await stream.read(8_192):
        data += piece[: MAX_COMMAND_ANSWER_BYTES + 1 - len(data)]
    return bytes(data)
