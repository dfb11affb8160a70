"""The ledger: the part of a summary that code writes from the log, without a model."""

__all__ = []
