"""Redaction: secrets kept out of the log."""

from foveal.core.redaction.redact import facts, found, scrub, scrub_json

__all__ = ["facts", "found", "scrub", "scrub_json"]
