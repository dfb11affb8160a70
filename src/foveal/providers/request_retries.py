"""Retries of a request: which errors may heal, and how long to wait.

1. Only a request without any part of an answer is retried. The client libraries retry nothing: their retries are
   silent, and they retry errors that cannot heal.
2. The wait is what the provider asks for, else it doubles from `FIRST_RETRY_WAIT_S`. If the provider asks for more
   than `MAX_RETRY_WAIT_S`, the error is reported instead.
"""

from __future__ import annotations

import random
from typing import Any, Final

from foveal.ports import RetryWait
from foveal.providers.errors import is_out_of_credit, retry_after_s, status_of

MAX_RETRIES: Final = 4
"""Retries after a failed connection, a rate limit or a server error."""
MAX_RETRY_WAIT_S: Final = 30.0
"""Longest wait before a retry."""
FIRST_RETRY_WAIT_S: Final = 1.0
RETRIED_STATUSES: Final = frozenset({408, 409, 429})
"""Statuses that may heal, beside those of server errors (500 and above)."""


def retry_wait(error: Exception, attempt: int) -> RetryWait | None:
    """Return the wait after a failed attempt, counted from 1; None if the error is to be reported."""
    reason = _healing_reason(error)
    if not reason or attempt > MAX_RETRIES:
        return None
    headers = getattr(getattr(error, "response", None), "headers", {})
    asked = retry_after_s(headers)
    if headers.get("x-should-retry") == "false" or (asked is not None and asked > MAX_RETRY_WAIT_S):
        return None
    # A random part, so that clients that failed together do not come back together.
    seconds = (
        asked if asked is not None else FIRST_RETRY_WAIT_S * 2 ** (attempt - 1) * random.uniform(0.75, 1)
    )
    return RetryWait(reason=reason, seconds=seconds, attempt=attempt + 1, attempts=MAX_RETRIES + 1)


def _healing_reason(error: Exception) -> str:
    """Return in words what has failed, "" for an error that does not heal by waiting."""
    status = status_of(error)
    if status == 429:
        return "" if is_out_of_credit(error) else "rate limited (429)"
    if status in RETRIED_STATUSES or status >= 500:
        return f"overloaded ({status})" if status in (503, 529) else f"server error ({status})"
    return "no connection" if not status and _is_connection_error(error) else ""


def _is_connection_error(error: Any) -> bool:
    """Whether no connection was made or it was lost; a server that is silent for too long is not asked again."""
    classes = {kind.__name__ for kind in type(error).__mro__}
    if "APITimeoutError" in classes:
        return type(error.__cause__).__name__ == "ConnectTimeout"
    return "APIConnectionError" in classes
