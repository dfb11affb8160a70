"""Command `pair`: creates pairing codes and manages the paired users of a bot.

    foveal pair discord                  print a code, which works once and for ten minutes
    foveal pair discord --list           list the paired users
    foveal pair discord --forget ID      remove a paired user

It uses the server's folder, whether or not the server runs.
"""

from __future__ import annotations

import os
import shlex
import time
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foveal.core.wire.safe_print import one_line

if TYPE_CHECKING:
    from foveal.server.audit import AuditTrail
    from foveal.server.pairing import ChatPlatform, Pairing

COMMANDS: Final = ("pair",)
PLATFORM_NAMES: Final = ("telegram", "discord")


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    about = "give a user access to the bot on Telegram or Discord"
    pair = commands.add_parser("pair", help=about, description=about)
    pair.add_argument("platform", type=_platform, metavar="|".join(PLATFORM_NAMES), help="the chat app")
    pair.add_argument("--folder", type=Path, metavar="PATH", help="the server's folder (server.folder)")
    what = pair.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="list the paired users")
    what.add_argument("--forget", type=_user, metavar="ID", help="remove this paired user")


def _platform(text: str) -> str:
    if text.lower() not in PLATFORM_NAMES:
        raise ArgumentTypeError(
            f"there is no bot on {one_line(text)!r}, only on {' and '.join(PLATFORM_NAMES)}"
        )
    return text.lower()


def _user(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ArgumentTypeError(f"a user id is a number, as `--list` shows it, not {one_line(text)!r}")
    return int(text)


async def pair(args: Namespace) -> int:
    """Print a code, list the paired users or remove one, and return the exit code."""
    from foveal.config import load
    from foveal.server.audit import AuditTrail
    from foveal.server.pairing import CODE_TTL_S, Pairing
    from foveal.server.storage import open_service_database

    async with open_service_database(load(project=False), os.environ, folder=args.folder) as database:
        pairing, audit = Pairing(database), AuditTrail(database, clock=time.time)
        if args.list:
            return await _print_users(pairing, args.platform)
        if args.forget is not None:
            return await _remove_user(pairing, audit, args)
        code = await pairing.create_code(args.platform, now=time.time())
        await audit.record("token", f"pairing:{args.platform} code created", tenant=args.platform)
    print(f"Send this to the bot on {args.platform.capitalize()} within {CODE_TTL_S / 60:.0f} minutes:\n")
    print(f"    /pair {code}\n")
    print("The user who sends it first has access from then on; the code works once.")
    return 0


async def _print_users(pairing: Pairing, platform: ChatPlatform) -> int:
    users = [entry for entry in await pairing.list() if entry.platform == platform]
    if not users:
        print(f"no user is paired with the bot on {platform.capitalize()}")
    for entry in users:
        print(f"{entry.user:<20} since {time.strftime('%Y-%m-%d %H:%M', time.localtime(entry.since))}")
    return 0


async def _remove_user(pairing: Pairing, audit: AuditTrail, args: Namespace) -> int:
    user, bot = args.forget, f"the bot on {args.platform.capitalize()}"
    if await pairing.unpair(args.platform, user):
        await audit.record("token", f"pairing:{args.platform} removed", tenant=args.platform)
        print(f"{user} no longer has access to {bot}")
        return 0
    folder = f" --folder {shlex.quote(str(args.folder))}" if args.folder else ""
    print(
        f"{user} is not paired with {bot}; `foveal pair {args.platform}{folder} --list` lists the paired users"
    )
    return 1
