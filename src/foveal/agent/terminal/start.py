"""Starts a chat in a terminal, in a pipe, or with one task."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

from foveal.agent.terminal.chat_loop import ChatLoop
from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.commands.remembering import propose_at_end
from foveal.agent.terminal.options import ChatOptions
from foveal.agent.terminal.output.agent_event_rows import note
from foveal.agent.terminal.user_interface import JsonOutput, PlainOutput
from foveal.agent.tools.text_edit import is_binary
from foveal.core.wire.safe_print import counted
from foveal.errors import FovealError

DENIED_EXIT_CODE = 3
"""Exit code after a call that was not allowed, if nothing else failed."""
INTERRUPTED_EXIT_CODE = 130
"""Exit code after Ctrl-C outside of a terminal."""
MAX_PIPED_BYTES = 16 * 1024 * 1024
"""Bytes of standard input that `foveal run` keeps; what the model sees of them is limited further."""
_BINARY_CHECK_BYTES = 8_192
PIPE_NOTICE_S = 3.0
"""Seconds after which a user who waits is told that standard input has not ended."""


async def chat(args: argparse.Namespace) -> int:
    """Run an interactive chat in a terminal, else read one message per line from standard input."""
    options = ChatOptions.from_args(args)
    if not options.json and is_terminal():
        from foveal.agent.terminal.factory import require_modules

        require_modules("prompt_toolkit", "rich")
        from foveal.agent.terminal.interactive import run_interactive

        return await run_interactive(options)
    return await _run_unattended(options, _stdin_lines())


async def run(args: argparse.Namespace) -> int:
    """Run one task; the exit code is 0 if it succeeded, and 2 without a task."""
    options = ChatOptions.from_args(args)
    task, piped = await _read_task(args)
    if not task.strip():
        args.usage_error('there is no task: use foveal run "…", or write it to standard input')

    async def once() -> AsyncIterator[str]:
        yield task

    return await _run_unattended(options, once(), piped=piped)


async def _read_task(args: argparse.Namespace) -> tuple[str, str]:
    """Return the task, and what is piped beside it. Bytes that are not UTF-8 are replaced, as in the lines of a
    chat."""
    if args.task is None and sys.stdin.isatty():
        return "", ""
    if args.task in (None, "-"):
        return await _read_stdin(), ""
    piped = await _read_stdin() if _is_piped() else ""
    if not piped and _is_empty_pipe():
        sys.stderr.write("foveal: standard input is empty\n")
    return os.fsencode(args.task).decode("utf-8", "replace"), piped


def _is_piped() -> bool:
    """Return whether standard input is a pipe or a file; a terminal or /dev/null says nothing about the task."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # it is closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _is_empty_pipe() -> bool:
    """Return whether another program has piped nothing. Programs that start jobs, such as cron, pass an empty pipe
    too; they set no kind of terminal."""
    return _is_piped() and "TERM" in os.environ


async def _read_stdin() -> str:
    """Return standard input, of which at most `MAX_PIPED_BYTES` are kept; say so if it does not end soon."""
    waiting = "foveal: waiting for the end of standard input; add </dev/null if it has nothing for the task\n"
    notice = asyncio.get_running_loop().call_later(PIPE_NOTICE_S, sys.stderr.write, waiting)
    kept, total = bytearray(), 0
    async for data in _read_in_thread(sys.stdin.fileno()):
        kept += data[: max(0, MAX_PIPED_BYTES - len(kept))]
        total += len(data)
    notice.cancel()
    if is_binary(bytes(kept[:_BINARY_CHECK_BYTES])):
        raise FovealError("standard input is not a text: nothing was sent")
    text = kept.decode("utf-8", "replace")
    left_out = total - len(kept)
    return f"{text}\n[foveal: {left_out:,} more bytes of standard input were not read]" if left_out else text


async def _run_unattended(options: ChatOptions, texts: AsyncIterator[str], *, piped: str = "") -> int:
    """Handle messages one after the other, without a user to ask; `piped` belongs to the first one."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    ui = JsonOutput() if options.json else PlainOutput()
    async with AsyncExitStack() as stack:
        state = await ChatState.open(options, ui, stack)
        if isinstance(ui, JsonOutput):
            await ui.session_opened(state.session)
        loop = ChatLoop(state, ui)
        try:
            async for text in texts:
                await loop.handle(text, piped=piped)
                piped = ""
                if loop.has_left:
                    break
            await propose_at_end(state)
        except asyncio.CancelledError:
            return INTERRUPTED_EXIT_CODE
        if state.denials:
            ui.notify([note(f"{counted(state.denials, 'call')} denied, as said above", "fair")])
        return 1 if loop.failures else DENIED_EXIT_CODE if state.denials else 0


async def _stdin_lines() -> AsyncIterator[str]:
    """Yield the lines of standard input as they arrive."""
    pieces: list[bytes] = []
    async for data in _read_in_thread(sys.stdin.fileno()):
        *ended, rest = data.split(b"\n")
        for line in ended:
            yield b"".join([*pieces, line]).decode("utf-8", "replace")
            pieces = []
        pieces.append(rest)
    if any(pieces):
        yield b"".join(pieces).decode("utf-8", "replace")


async def _read_in_thread(file: int) -> AsyncIterator[bytes]:
    """Yield what is read from a file, read in a daemon thread so that Ctrl-C need not wait for more input."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        with suppress(RuntimeError):  # the event loop is closed
            while data := os.read(file, 1 << 16):
                loop.call_soon_threadsafe(queue.put_nowait, data)
            loop.call_soon_threadsafe(queue.put_nowait, b"")

    threading.Thread(target=read, daemon=True).start()
    while data := await queue.get():
        yield data


def is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
