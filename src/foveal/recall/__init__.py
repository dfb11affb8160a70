"""Recall: tools for the model to look back into the log."""
