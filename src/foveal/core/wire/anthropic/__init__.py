"""The Anthropic Messages dialect: reading and writing messages."""

from foveal.core.wire.anthropic.read import read
from foveal.core.wire.anthropic.write import (
    ANTHROPIC_MESSAGES,
    join,
    join_bound,
    merges_bound,
    write,
    write_bound,
)

__all__ = [
    "ANTHROPIC_MESSAGES",
    "join",
    "join_bound",
    "merges_bound",
    "read",
    "write",
    "write_bound",
]
