"""Redaction: secrets kept out of the log."""

from foveal.core.redaction.redact import find_secrets, redact_fact, scrub, scrub_json

__all__ = ["find_secrets", "redact_fact", "scrub", "scrub_json"]
