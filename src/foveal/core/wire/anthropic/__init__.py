"""The Anthropic Messages dialect: reading and writing messages."""

from foveal.core.wire.anthropic.read import read
from foveal.core.wire.anthropic.write import ANTHROPIC_MESSAGES, join, write, write_bound

__all__ = ["ANTHROPIC_MESSAGES", "join", "read", "write", "write_bound"]
