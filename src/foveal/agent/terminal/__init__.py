"""Commands `chat` and `run`: the agent in a terminal, in a pipe, or for one task."""

from __future__ import annotations

import argparse
from typing import Any, Final

from foveal.agent.terminal.options import add_options

COMMANDS: Final = ("chat", "run")


def add_commands(commands: Any, store: argparse.ArgumentParser) -> None:
    """Add both commands to the parser; `store` has the option that names the store."""
    chat = commands.add_parser("chat", help="chat with an agent in the terminal", parents=[store])
    add_options(chat)
    run = commands.add_parser("run", help="run one task and exit", parents=[store])
    run.add_argument("task", nargs="?", help="the task; default or -: read it from standard input")
    run.set_defaults(usage_error=run.error)
    add_options(run)


async def chat(args: argparse.Namespace) -> int:
    from foveal.agent.terminal import start

    return await start.chat(args)


async def run(args: argparse.Namespace) -> int:
    from foveal.agent.terminal import start

    return await start.run(args)
