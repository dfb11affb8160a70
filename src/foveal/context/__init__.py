"""`Context`: the context of one conversation in your own agent loop."""

from foveal.context.context import Context

__all__ = ["Context"]
