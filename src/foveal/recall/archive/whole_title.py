"""Title of a session without secrets, also where a stored title ends within one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foveal.core.log.events import UserSaid, text_of
from foveal.core.redaction import scrub
from foveal.core.wire.safe_print import one_line
from foveal.transcripts.transcript import TimedFact, derive_title

MAX_SESSION_TITLE_CHARS: Final = 120
_SAME_TITLE_CHARS: Final = 12
"""Characters by which a title is recognised as the start of a message."""


def whole_title(title: str, first: Sequence[TimedFact]) -> str:
    """Return the title, redacted. A title that was cut is made again from its message, because the part of a secret
    at its end would not be recognised; `first` are the first facts of the session."""
    if not title:
        return derive_title(first)
    begin = title.removesuffix("…")[:_SAME_TITLE_CHARS]
    texts = (text_of(fact.content) for fact, _ in first if isinstance(fact, UserSaid))
    is_cut = title.endswith("…")
    found = next((text for text in texts if is_cut and one_line(text).startswith(begin)), title)
    return one_line(scrub(found), width=MAX_SESSION_TITLE_CHARS)
