"""Which past sessions a call is about: by text, folder and date."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from math import inf

import msgspec

from foveal.recall.archive.session_query import query_parts
from foveal.recall.archive.source import RecallProblem, SessionDetails, SessionEntry


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that a session must meet; "" for none."""

    text: str = ""
    """Words, and phrases in double quotes, that must all occur in its title, folder, id or format."""
    folder: str = ""
    """Its working folder, or a folder above that."""
    since: str = ""
    """Earliest day or time of its newest message, in ISO 8601; UTC unless it names an offset."""
    until: str = ""
    """Latest day (all of it) or time of its newest message."""

    def period(self) -> tuple[float, float]:
        """Return the first and the last time of the period; raises `RecallProblem`."""
        first = _parse_date("since", self.since, is_end=False) if self.since else -inf
        last = _parse_date("until", self.until, is_end=True) if self.until else inf
        if first > last:
            raise RecallProblem(f"since {self.since} is later than until {self.until}: exchange them")
        return first, last

    @property
    def needs_details(self) -> bool:
        """Whether an entry alone does not show if its session matches."""
        return bool(self.text.strip() or self.folder.strip())

    def matches(self, entry: SessionEntry, details: SessionDetails) -> bool:
        """Return whether a session has the text and the folder."""
        if self.folder.strip() and not _is_below(details.folder, self.folder.strip()):
            return False
        shown = "\n".join((details.title, details.folder, details.kind, entry.name, entry.handle)).casefold()
        return all(part.occurs_in(shown) for part in query_parts(self.text))


def _parse_date(name: str, text: str, *, is_end: bool) -> float:
    try:
        parsed = datetime.fromisoformat(text.strip())
        if is_end and len(text.strip()) <= len("2026-10-01"):
            parsed += timedelta(days=1) - timedelta(microseconds=1)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise RecallProblem(
            f'{name} must be a day or a time such as "2026-10-01" or "2026-10-01T14:30"'
        ) from None


def _is_below(folder: str, above: str) -> bool:
    if not folder:
        return False
    wanted, given = os.path.normpath(os.path.expanduser(above)), os.path.normpath(folder)
    return given == wanted or given.startswith(wanted.rstrip(os.sep) + os.sep)
