"""`foveal chat` and `foveal run`: the agent in the terminal, in a pipe, and for one task."""

from __future__ import annotations

import argparse
from typing import Any, Final

from foveal.apps.cli.chat.options import add_options

COMMANDS: Final = ("chat", "run")


def add_commands(commands: Any, store: argparse.ArgumentParser) -> None:
    """Both commands; `store` has the option that names the store."""
    chat = commands.add_parser(
        "chat", help="talk with an agent that never outgrows its window", parents=[store]
    )
    add_options(chat)
    run = commands.add_parser("run", help="let the agent do one task, without a dialogue", parents=[store])
    run.add_argument("task", nargs="?", default="-", help="what to do; - or nothing: read standard input")
    add_options(run)


async def chat(given: argparse.Namespace) -> int:
    from foveal.apps.cli.chat import start

    return await start.chat(given)


async def run(given: argparse.Namespace) -> int:
    from foveal.apps.cli.chat import start

    return await start.run(given)
