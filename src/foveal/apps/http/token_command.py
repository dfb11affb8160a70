"""`foveal token`: who may use a server that is not for this machine alone.

    foveal token create [--tenant NAME] [--label TEXT]     prints the secret, once
    foveal token list
    foveal token revoke ID

It works on the server's folder (`--folder`, if it is not the configured one), whether or not the server runs; a
server that runs notices within a second.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from argparse import SUPPRESS, ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foveal.core.wire.safe_print import one_line
from foveal.errors import BadSetting

if TYPE_CHECKING:
    from foveal.server.auth_tokens import AuthTokens

COMMANDS: Final = ("token",)
LONGEST: Final = 200
FOLDER: Final[dict[str, Any]] = {
    "type": Path,
    "metavar": "PATH",
    "help": "the server's folder; default: that of the configuration (server.folder)",
}


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    about = "make, list and revoke the tokens that clients of the server need"
    token = commands.add_parser("token", help=about, description=about)
    token.add_argument("--folder", **FOLDER)
    acts = token.add_subparsers(dest="act", required=True, metavar="create|list|revoke")
    create = _act(acts, "create", "a new token; its secret is printed once")
    create.add_argument(
        "--tenant", default="default", metavar="NAME", help="whose sessions it opens; default: default"
    )
    create.add_argument("--label", default="", metavar="TEXT", help="what it is for")
    _act(acts, "list", "all tokens, without their secrets")
    revoke = _act(acts, "revoke", "a token is good no longer")
    revoke.add_argument("id", metavar="ID", help="as `foveal token list` shows it")


def _act(acts: Any, name: str, about: str) -> ArgumentParser:
    """A part of the command; the folder may stand before it and behind it."""
    made: ArgumentParser = acts.add_parser(name, help=about, description=about)
    made.add_argument("--folder", **{**FOLDER, "default": SUPPRESS})
    return made


def command(words: str, folder: Path | None) -> str:
    """A command to type, with the folder unless it is the one that is found anyway."""
    where = "" if folder is None else f" --folder {shlex.quote(str(folder))}"
    return f"`foveal {words}{where}`"


async def token(given: Namespace) -> int:
    """Do what is asked; the answer is the exit code."""
    from foveal.config import load
    from foveal.server.auth_tokens import AuthTokens
    from foveal.server.data_folder import server_database

    async with server_database(load(), os.environ, given=given.folder) as database:
        tokens = AuthTokens(database)
        if given.act == "create":
            return await _create(tokens, given.tenant, given.label)
        if given.act == "list":
            return await _list(tokens, given.folder)
        return await _revoke(tokens, given.id, given.folder)


async def _create(tokens: AuthTokens, tenant: str, label: str) -> int:
    from foveal.server.tenants import checked_name

    if len(label) > LONGEST:
        raise BadSetting("--label", f"{label[:20]}…", f"at most {LONGEST} characters")
    id, secret = await tokens.create(checked_name(tenant), label=label, now=time.time())
    print(secret)
    print(f"token {id} of tenant {tenant}: keep the line above, it is not shown again", file=sys.stderr)
    return 0


async def _list(tokens: AuthTokens, folder: Path | None) -> int:
    every = await tokens.list()
    if not every:
        print(f"no token yet: {command('token create', folder)} makes one")
    for one in every:
        state = "good" if one.revoked is None else f"revoked {_day(one.revoked)}"
        print(
            f"{one.id}  {one.tenant:<20}  {_day(one.created)}  {state}  {one_line(one.label, width=60)}".rstrip()
        )
    return 0


async def _revoke(tokens: AuthTokens, id: str, folder: Path | None) -> int:
    if await tokens.revoke(id, now=time.time()):
        print(f"token {id} is revoked")
        return 0
    told = f"there is no good token {one_line(id, width=40)}; {command('token list', folder)} shows them"
    print(told, file=sys.stderr)
    return 1


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
