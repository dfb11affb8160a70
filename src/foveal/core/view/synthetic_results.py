"""Synthetic results: what a request shows for a call that has no result.

Providers refuse a call without a result. The text is always the same, so a request does not change after a reload.
"""

from __future__ import annotations

from typing import Final

from foveal.core.log.events import Call, ToolReturned
from foveal.core.tokens.message_tokens import PER_MESSAGE, MessageTokens

NO_RESULT: Final = "[foveal: this call has no recorded result; it was interrupted]"


def synthetic_result(call: Call) -> ToolReturned:
    """Return the result that stands for a missing one."""
    return ToolReturned(call_id=call.id, content=NO_RESULT, name=call.name, variety=call.variety)


def synthetic_units(meter: MessageTokens) -> int:
    """Return the units of a synthetic result."""
    return PER_MESSAGE + meter.text(-1, -1, -1, NO_RESULT)
