"""Adapters: Foveal inside the loops of agent frameworks, one module per framework.

Each module is imported only when you use it and needs its framework installed. `conversations` and `native_context`
hold what they share.
"""

from foveal.adapters.conversations import Conversations
from foveal.adapters.native_context import MessageFormat, NativeContext, Piece

__all__ = ["Conversations", "MessageFormat", "NativeContext", "Piece"]
