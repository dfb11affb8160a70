"""The Anthropic Messages dialect: reading and writing messages."""

from foveal.core.wire.anthropic.read import read
from foveal.core.wire.anthropic.write import ANTHROPIC, join, write

__all__ = ["ANTHROPIC", "join", "read", "write"]
