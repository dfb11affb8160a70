"""How a conversation is begun: at a terminal, in a pipe, or with one task; and how it ends."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

from foveal.apps.cli.chat.chat_loop import ChatLoop
from foveal.apps.cli.chat.chat_state import ChatState
from foveal.apps.cli.chat.options import ChatOptions
from foveal.apps.cli.chat.user_interface import JsonOutput, PlainOutput
from foveal.errors import FovealError

STOPPED = 130
"""The exit code after Ctrl-C in a pipe."""


async def chat(given: argparse.Namespace) -> int:
    """A dialogue: at a terminal with everything, otherwise a message a line."""
    options = ChatOptions.of(given)
    if not options.json and at_a_terminal():
        from foveal.apps.cli.chat.factory import needs

        needs("prompt_toolkit", "rich")
        from foveal.apps.cli.chat.interactive import run_interactive

        return await run_interactive(options)
    return await _alone(options, _lines())


async def run(given: argparse.Namespace) -> int:
    """One task; the exit code says whether it was done."""
    options = ChatOptions.of(given)
    task = sys.stdin.read() if given.task == "-" else given.task
    if not task.strip():
        raise FovealError('there is no task: foveal run "…", or write it to standard input')

    async def once() -> AsyncIterator[str]:
        yield task

    return await _alone(options, once())


async def _alone(options: ChatOptions, texts: AsyncIterator[str]) -> int:
    """Messages one after the other, with nobody to ask."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    front = JsonOutput() if options.json else PlainOutput()
    async with AsyncExitStack() as stack:
        desk = await ChatState.open(options, front, stack)
        if isinstance(front, JsonOutput):
            await front.opened(desk.session)
        dialogue = ChatLoop(desk, front)
        try:
            async for text in texts:
                await dialogue.do(text)
                if dialogue.left:
                    break
        except asyncio.CancelledError:
            return STOPPED
        return 1 if dialogue.failures else 0


async def _lines() -> AsyncIterator[str]:
    """What is written to standard input, line by line, as it comes."""
    pieces: list[bytes] = []
    async for data in _read(sys.stdin.fileno()):
        *ended, rest = data.split(b"\n")
        for line in ended:
            yield b"".join([*pieces, line]).decode("utf-8", "replace")
            pieces = []
        pieces.append(rest)
    if any(pieces):
        yield b"".join(pieces).decode("utf-8", "replace")


async def _read(file: int) -> AsyncIterator[bytes]:
    """Read in a thread that nobody has to wait for: Ctrl-C ends us even if nothing more is written."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        with suppress(RuntimeError):  # the loop has ended
            while data := os.read(file, 1 << 16):
                loop.call_soon_threadsafe(queue.put_nowait, data)
            loop.call_soon_threadsafe(queue.put_nowait, b"")

    threading.Thread(target=read, daemon=True).start()
    while data := await queue.get():
        yield data


def at_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
