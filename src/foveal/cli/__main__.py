"""The command `foveal`: the commands of the terminal, the servers and the gateways.

Only this module and `serve` import more than one app.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Final

from foveal import cli
from foveal.cli import inspect_command, mcp_command, serve, server_commands, wrap
from foveal.errors import BadSetting

SECRETS_BESIDE_KEYS: Final = ("TELEGRAM_BOT_TOKEN", "DISCORD_BOT_TOKEN", "FOVEAL_DATABASE", "PGPASSWORD")
"""Secrets that can be in files, as every API key can."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    try:
        read_secret_files(os.environ)
    except BadSetting as problem:
        print(f"foveal: {problem}", file=sys.stderr)
        return 1
    others = serve, server_commands, mcp_command, wrap, inspect_command
    return cli.main(argv, others=others)


def read_secret_files(environ: MutableMapping[str, str]) -> None:
    """Set a key, token or password whose variable with `_FILE` names a file, as container secrets and systemd
    credentials are. A variable that is set wins. Raises `BadSetting`."""
    for variable in [name for name in environ if name.endswith("_FILE") and environ[name]]:
        name = variable.removesuffix("_FILE")
        if environ.get(name) or not (name.endswith("_API_KEY") or name in SECRETS_BESIDE_KEYS):
            continue
        try:
            environ[name] = Path(environ[variable]).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            allowed = f"a file that can be read ({problem})"
            raise BadSetting(variable, environ[variable], allowed) from None


if __name__ == "__main__":
    sys.exit(main())
