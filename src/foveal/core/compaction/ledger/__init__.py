"""The ledger: the part of a summary that code writes from the log, without a model."""

from foveal.core.compaction.ledger.call_reader import parse_command
from foveal.core.compaction.ledger.likely_reused import count_seen, names_among

__all__ = ["count_seen", "names_among", "parse_command"]
