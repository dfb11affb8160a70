"""One parser for all commands that the tests of a file run in their own process."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from foveal import cli
from support.commands_here import PARSER


@pytest.fixture(autouse=True, scope="module")
def one_parser() -> Iterator[None]:
    with patch.object(cli, "_parser", PARSER):
        yield
