"""The Gemini dialect: reading and writing contents."""

from foveal.core.wire.gemini.read import instruction_parts, read
from foveal.core.wire.gemini.write import GEMINI_CONTENTS, join, write

__all__ = ["GEMINI_CONTENTS", "instruction_parts", "join", "read", "write"]
