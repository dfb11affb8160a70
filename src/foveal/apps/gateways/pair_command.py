"""`foveal pair`: codes that let people talk to the bots of this server.

    foveal pair discord                  a code, good once and for ten minutes
    foveal pair discord --list           who may talk to the bot because of a code
    foveal pair discord --forget ID      and who may no longer

It works on the server's folder, whether or not the server runs.
"""

from __future__ import annotations

import os
import shlex
import time
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foveal.config import load
from foveal.core.wire.safe_print import one_line

if TYPE_CHECKING:
    from foveal.server.pairing import Face, Pairing

COMMANDS: Final = ("pair",)
FACES: Final = ("telegram", "discord")


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    about = "let somebody talk to the bot on Telegram or Discord"
    pair = commands.add_parser("pair", help=about, description=about)
    pair.add_argument("face", type=_face, metavar="|".join(FACES), help="where the bot is")
    pair.add_argument("--folder", type=Path, metavar="PATH", help="the server's folder (server.folder)")
    what = pair.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="who was let in by a code")
    what.add_argument("--forget", type=_user, metavar="ID", help="let this user in no longer")


def _face(text: str) -> str:
    if text.lower() not in FACES:
        raise ArgumentTypeError(f"there is no bot on {one_line(text)!r}, only on {' and '.join(FACES)}")
    return text.lower()


def _user(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ArgumentTypeError(
            f"a user is named by a number, as `--list` shows it, not by {one_line(text)!r}"
        )
    return int(text)


async def pair(given: Namespace) -> int:
    """Print a code, or do what is asked instead; the answer is the exit code."""
    from foveal.server.data_folder import server_database
    from foveal.server.pairing import LIFE, Pairing

    async with server_database(load(), os.environ, given=given.folder) as database:
        pairing = Pairing(database)
        if given.list:
            return await _listed(pairing, given.face)
        if given.forget is not None:
            return await _forgotten(pairing, given)
        code = await pairing.offer(given.face, now=time.time())
    print(f"Send this to the bot on {given.face.capitalize()} within {LIFE / 60:.0f} minutes:\n")
    print(f"    /pair {code}\n")
    print("Whoever sends it may talk to the bot from then on; it works once.")
    return 0


async def _listed(pairing: Pairing, face: Face) -> int:
    found = [one for one in await pairing.list() if one.face == face]
    if not found:
        print(f"nobody is paired with the bot on {face.capitalize()}")
    for one in found:
        print(f"{one.user:<20} since {time.strftime('%Y-%m-%d %H:%M', time.localtime(one.since))}")
    return 0


async def _forgotten(pairing: Pairing, given: Namespace) -> int:
    user, bot = given.forget, f"the bot on {given.face.capitalize()}"
    if await pairing.forget(given.face, user):
        print(f"{user} may no longer talk to {bot}")
        return 0
    where = f" --folder {shlex.quote(str(given.folder))}" if given.folder else ""
    print(f"{user} is not paired with {bot}; `foveal pair {given.face}{where} --list` shows who is")
    return 1
