"""Redaction: secrets kept out of the log."""

from foveal.core.redaction.redact import StreamRedactor, find_secrets, redact_fact, scrub, scrub_span

__all__ = ["StreamRedactor", "find_secrets", "redact_fact", "scrub", "scrub_span"]
