"""Recognises provider errors about state that only the provider understands.

1. Thinking that is bound to another conversation (`bound_thinking`).
2. Encrypted content, of reasoning or of a compaction item, that the provider cannot decrypt: another account,
   organisation or model made it, or its key has expired.
3. The field `block_binding`, which a gateway may not know.

The first two can be left out, and the request is sent again (`Engine.refusal`).
"""

from __future__ import annotations

import re
from typing import Final

from foveal.core.wire.bound_thinking import BINDING_BETA
from foveal.core.wire.overflow_errors import error_texts

MAX_PROBLEM_CHARS: Final = 500
"""Characters of a provider's message that are recorded."""
_REFUSED_THINKING: Final = "bound to a different conversation"
_REFUSED_ENCRYPTION: Final = re.compile(
    r"\binvalid_encrypted_content\b|encrypted content\b.{0,200}(?:could not be|cannot be|did not match)"
)
_CONTROL_FIELDS: Final = ("block_binding", "prefix_mismatch_behavior", BINDING_BETA)


def refused_thinking(error: object) -> str | None:
    """Return the provider's message if it refused thinking that is bound to another conversation, else None."""
    found = (text for text in error_texts(error) if _REFUSED_THINKING in text.lower())
    message = next(found, None)
    return None if message is None else message[:MAX_PROBLEM_CHARS]


def refused_encryption(error: object) -> str | None:
    """Return the provider's message if it cannot decrypt what was sent, else None."""
    texts = error_texts(error)
    found = [text for text in texts if _REFUSED_ENCRYPTION.search(text.lower())]
    if not found:
        return None
    # The code alone says less than the message beside it, which need not name it.
    prose = (text for text in (*found, *texts) if " " in text)
    return next(prose, found[0])[:MAX_PROBLEM_CHARS]


def refuses_controls(error: object) -> bool:
    """Return whether an upstream refused the field `block_binding` or its header, which a gateway may not know."""
    texts = [text.lower() for text in error_texts(error)]
    if any(_REFUSED_THINKING in text for text in texts):
        return False
    return any(field in text for text in texts for field in _CONTROL_FIELDS)
