"""Commands `chat` and `run`: the agent in a terminal, in a pipe, or for one task."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import Any, Final

from foveal.agent.terminal.options import WrongOption, add_options

COMMANDS: Final = ("chat", "run")


def add_commands(commands: Any, store: argparse.ArgumentParser) -> None:
    """Add both commands to the parser; `store` has the option that names the store."""
    chat = commands.add_parser("chat", help="chat with an agent in the terminal", parents=[store])
    add_options(chat)
    run = commands.add_parser("run", help="run one task and exit", parents=[store])
    run.add_argument("task", nargs="?", help="the task; default or -: read it from standard input")
    add_options(run)
    for parser in (chat, run):
        parser.set_defaults(usage_error=parser.error)


async def chat(args: argparse.Namespace) -> int:
    from foveal.agent.terminal import start

    return await _checked(start.chat, args)


async def run(args: argparse.Namespace) -> int:
    from foveal.agent.terminal import start

    return await _checked(start.run, args)


async def _checked(command: Callable[[argparse.Namespace], Awaitable[int]], args: argparse.Namespace) -> int:
    """Run a command; an option that cannot be used ends it as wrong usage."""
    try:
        return await command(args)
    except WrongOption as problem:
        args.usage_error(str(problem))
        raise  # not reached: the line above exits
