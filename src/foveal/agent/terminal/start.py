"""Starts a chat in a terminal, in a pipe, or with one task."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

from foveal.agent.terminal.chat_loop import ChatLoop
from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.options import ChatOptions
from foveal.agent.terminal.proposals import propose_at_end
from foveal.agent.terminal.user_interface import JsonOutput, PlainOutput

INTERRUPTED_EXIT_CODE = 130
"""Exit code after Ctrl-C outside of a terminal."""


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
    task = _read_task(args)
    if not task.strip():
        args.usage_error('there is no task: use foveal run "…", or write it to standard input')

    async def once() -> AsyncIterator[str]:
        yield task

    return await _run_unattended(options, once())


def _read_task(args: argparse.Namespace) -> str:
    """Return the task; bytes that are not UTF-8 are replaced, as in the lines of a chat."""
    if args.task is None and sys.stdin.isatty():
        return ""
    given = sys.stdin.buffer.read() if args.task in (None, "-") else os.fsencode(args.task)
    return given.decode("utf-8", "replace")


async def _run_unattended(options: ChatOptions, texts: AsyncIterator[str]) -> int:
    """Handle messages one after the other, without a user to ask."""
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
                await loop.handle(text)
                if loop.has_left:
                    break
            await propose_at_end(state)
        except asyncio.CancelledError:
            return INTERRUPTED_EXIT_CODE
        return 1 if loop.failures else 0


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
