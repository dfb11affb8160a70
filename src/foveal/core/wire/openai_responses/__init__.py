"""The OpenAI Responses dialect: reading and writing items."""

from foveal.core.wire.openai_responses.read import read
from foveal.core.wire.openai_responses.write import OPENAI_RESPONSES, join, write

__all__ = ["OPENAI_RESPONSES", "join", "read", "write"]
