"""Redaction: secrets kept out of the log."""
