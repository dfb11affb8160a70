"""Retries of jobs: which errors are retried, and when."""

from __future__ import annotations

from typing import Final

from foveal.errors import TRANSIENT_CODES

RETRYABLE_CODES: Final = frozenset((*TRANSIENT_CODES, "StoreError", "StoreUnusable", "Conflict", "LeaseLost"))
"""Codes of failures that a retry may fix."""
RETRY_DELAYS_S: Final = (60.0, 300.0, 900.0, 3_600.0, 3_600.0, 3_600.0, 3_600.0, 3_600.0)
"""Seconds before each retry; a job has one attempt more than there are delays."""
