"""Reductions of one text: truncation, placeholders, repeated lines, and their undo."""
