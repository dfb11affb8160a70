"""`foveal token`: create, list and revoke the tokens of a server.

    foveal token create [--tenant NAME] [--label TEXT] [--memory USER]     prints the secret, once
    foveal token list
    foveal token revoke ID

The command works on the server's folder (`--folder` if it is not the configured one), whether or not the server
runs. A running server notices a change within a second.
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
MAX_LABEL_CHARS: Final = 200
FOLDER_ARGUMENT: Final[dict[str, Any]] = {
    "type": Path,
    "metavar": "PATH",
    "help": "the server's folder; default: server.folder of the configuration",
}


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    about = "create, list and revoke the tokens that clients of the server need"
    token = commands.add_parser("token", help=about, description=about)
    token.add_argument("--folder", **FOLDER_ARGUMENT)
    subcommands = token.add_subparsers(dest="act", required=True, metavar="create|list|revoke")
    create = _subcommand(subcommands, "create", "create a token and print its secret, once")
    create.add_argument(
        "--tenant",
        default="default",
        metavar="NAME",
        help="the tenant whose sessions it opens; default: default",
    )
    create.add_argument("--label", default="", metavar="TEXT", help="what it is for")
    create.add_argument(
        "--memory",
        metavar="USER",
        help="the user whose memory drop-in requests show; @request: the user whom each request names; "
        "'USER; hears' also obeys \"remember that\"",
    )
    _subcommand(subcommands, "list", "list all tokens, without their secrets")
    revoke = _subcommand(subcommands, "revoke", "revoke a token")
    revoke.add_argument("id", metavar="ID", help="as `foveal token list` shows it")


def _subcommand(subcommands: Any, name: str, about: str) -> ArgumentParser:
    """Return the parser of a subcommand; `--folder` is accepted before and after its name."""
    parser: ArgumentParser = subcommands.add_parser(name, help=about, description=about)
    parser.add_argument("--folder", **{**FOLDER_ARGUMENT, "default": SUPPRESS})
    return parser


def shell_command(words: str, folder: Path | None) -> str:
    """Return a command for the user to type, with `--folder` if a folder is given."""
    where = "" if folder is None else f" --folder {shlex.quote(str(folder))}"
    return f"`foveal {words}{where}`"


async def token(args: Namespace) -> int:
    """Run the subcommand and return the exit code."""
    from foveal.config import load
    from foveal.server.auth_tokens import AuthTokens
    from foveal.server.storage import open_service_database

    async with open_service_database(load(project=False), os.environ, folder=args.folder) as database:
        tokens = AuthTokens(database)
        if args.act == "create":
            return await _create(tokens, args.tenant, args.label, args.memory)
        if args.act == "list":
            return await _list(tokens, args.folder)
        return await _revoke(tokens, args.id, args.folder)


async def _create(tokens: AuthTokens, tenant: str, label: str, memory: str | None) -> int:
    from foveal.server.auth_tokens import MemoryChoice
    from foveal.stores import check_tenant_name

    choice = None if memory is None else MemoryChoice.read(memory)
    if memory is not None and choice is None:
        allowed = "the id of a user, or @request, and behind it `; hears` to obey what the user says"
        raise BadSetting("--memory", memory[:100], allowed)
    if len(label) > MAX_LABEL_CHARS:
        raise BadSetting("--label", f"{label[:20]}…", f"at most {MAX_LABEL_CHARS} characters")
    tenant = check_tenant_name(tenant)
    id, secret = await tokens.create(tenant, label=label, memory=choice, now=time.time())
    print(secret)
    print(f"token {id} of tenant {tenant}: keep the line above, it is not shown again", file=sys.stderr)
    return 0


async def _list(tokens: AuthTokens, folder: Path | None) -> int:
    found = await tokens.list()
    if not found:
        print(f"no token yet: {shell_command('token create', folder)} creates one")
    for token in found:
        state = "valid" if token.revoked is None else f"revoked {_time(token.revoked)}"
        label = one_line(token.label, width=60)
        memory = f"memory: {token.memory}  " if token.memory else ""
        print(f"{token.id}  {token.tenant:<20}  {_time(token.created)}  {state}  {memory}{label}".rstrip())
    return 0


async def _revoke(tokens: AuthTokens, id: str, folder: Path | None) -> int:
    if await tokens.revoke(id, now=time.time()):
        print(f"token {id} is revoked")
        return 0
    message = (
        f"there is no valid token {one_line(id, width=40)}; {shell_command('token list', folder)} shows them"
    )
    print(message, file=sys.stderr)
    return 1


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
