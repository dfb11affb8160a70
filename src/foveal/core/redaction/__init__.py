"""Redaction: secrets kept out of the log."""

from foveal.core.redaction.redact import find_secrets, redact_fact, scrub, scrub_span
from foveal.core.redaction.stream_redactor import StreamRedactor

__all__ = ["StreamRedactor", "find_secrets", "redact_fact", "scrub", "scrub_span"]
