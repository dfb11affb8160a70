"""The OpenAI chat completions dialect: reading and writing messages."""

from foveal.core.wire.openai_chat.read import read
from foveal.core.wire.openai_chat.write import OPENAI_CHAT, join, write

__all__ = ["OPENAI_CHAT", "join", "read", "write"]
