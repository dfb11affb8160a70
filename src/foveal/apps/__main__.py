"""The program `foveal`: what the terminal can do, and what the server and its gateways can.

This and `serve` are the two places that know more than one app."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from foveal.apps import cli, serve
from foveal.apps.gateways import pair_command
from foveal.apps.http import token_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the answer is the exit code."""
    return cli.main(argv, others=(serve, token_command, pair_command))


if __name__ == "__main__":
    sys.exit(main())
