"""The ledger: the part of a summary that code writes from the log, without a model."""

from foveal.core.compaction.ledger.call_reader import parse_command

__all__ = ["parse_command"]
