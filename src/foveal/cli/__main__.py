"""The command `foveal`: the commands of the terminal, the servers and the gateways.

Only this module and `serve` import more than one app.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from foveal import cli
from foveal.cli import inspect_command, mcp_command, pair_command, serve, token_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    return cli.main(argv, others=(serve, token_command, pair_command, mcp_command, inspect_command))


if __name__ == "__main__":
    sys.exit(main())
