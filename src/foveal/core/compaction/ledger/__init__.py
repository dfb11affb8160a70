"""The ledger: the part of a summary that code writes from the log."""

from foveal.core.compaction.ledger.likely_reused import named, seen
from foveal.core.compaction.ledger.tool_calls import understood

__all__ = ["named", "seen", "understood"]
