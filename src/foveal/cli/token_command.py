"""`foveal token`: create, list and revoke the tokens of a server.

    foveal token create [--tenant NAME] [--label TEXT] [--memory USER]     prints the secret, once
    foveal token create --role admin                                       one that manages the server
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

if TYPE_CHECKING:
    from foveal.server.audit import AuditTrail
    from foveal.server.auth_tokens import AuthTokens

COMMANDS: Final = ("token",)
TOKEN_ROLE_NAMES: Final = ("tenant", "admin", "metrics")
"""`TOKEN_ROLES` of the server, which the parser does without."""
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
        "--role",
        choices=TOKEN_ROLE_NAMES,
        default=TOKEN_ROLE_NAMES[0],
        help="tenant opens the sessions of a tenant; admin manages the server and opens none; metrics reads its"
        " numbers only; default: tenant",
    )
    create.add_argument(
        "--tenant", metavar="NAME", help="the tenant whose sessions it opens; default: default"
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
    from foveal.server.audit import AuditTrail
    from foveal.server.auth_tokens import AuthTokens
    from foveal.server.storage import open_service_database

    async with open_service_database(load(project=False), os.environ, folder=args.folder) as database:
        tokens, audit = AuthTokens(database), AuditTrail(database, clock=time.time)
        if args.act == "create":
            return await _create(tokens, audit, args)
        if args.act == "list":
            return await print_tokens(tokens, args.folder)
        return await _revoke(tokens, audit, args.id, args.folder)


async def _create(tokens: AuthTokens, audit: AuditTrail, args: Namespace) -> int:
    from foveal.server.audit import token_object
    from foveal.server.auth_tokens import NewToken

    new = NewToken.checked(
        role=args.role, tenant=args.tenant, label=args.label, memory=args.memory, prefix="--"
    )
    id, secret = await tokens.create(**new._asdict(), now=time.time())
    await audit.record("token", token_object(id, "created", new.role), tenant=new.tenant)
    print(secret)
    whose = f"of tenant {new.tenant}" if new.tenant else f"with the role {new.role}"
    print(f"token {id} {whose}: keep the line above, it is not shown again", file=sys.stderr)
    return 0


async def print_tokens(tokens: AuthTokens, folder: Path | None) -> int:
    """Print all tokens, without their secrets, and return the exit code."""
    found = await tokens.list()
    if not found:
        print(f"no token yet: {shell_command('token create', folder)} creates one")
    for token in found:
        state = "valid" if token.revoked is None else f"revoked {_time(token.revoked)}"
        label = one_line(token.label, width=60)
        memory = f"memory: {token.memory}  " if token.memory else ""
        whose = token.tenant or f"({token.role})"
        print(f"{token.id}  {whose:<20}  {_time(token.created)}  {state}  {memory}{label}".rstrip())
    return 0


async def _revoke(tokens: AuthTokens, audit: AuditTrail, id: str, folder: Path | None) -> int:
    from foveal.server.audit import token_object

    if (revoked := await tokens.revoke(id, now=time.time())) is not None:
        await audit.record("token", token_object(id, "revoked", revoked.role), tenant=revoked.tenant)
        print(f"token {id} is revoked")
        return 0
    message = (
        f"there is no valid token {one_line(id, width=40)}; {shell_command('token list', folder)} shows them"
    )
    print(message, file=sys.stderr)
    return 1


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
