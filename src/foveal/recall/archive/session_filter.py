"""Which past sessions a call is about: by text, folder and date.

A query has parts, all of which a session must contain: a word, in any of its forms; an identifier such as
`db-zh-7`, exactly as it is written; or a phrase in double quotes. Upper and lower case are the same.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final, NamedTuple

import msgspec

from foveal.core.wire.query_match import STOP_WORDS
from foveal.recall.archive.source import RecallProblem, SessionDetails, SessionEntry

MAX_QUERY_PARTS: Final = 64
_PART: Final = re.compile(r'"([^"]*)"?|([^\s"]+)')
_IDENTIFIER: Final = re.compile(r"\w[-_./:@#\\]+\w")
_OUTER_PUNCTUATION: Final = ".,;:!?()[]{}<>'`“”‘’"


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


# ── Query ────────────────────────────────────────────────────────────────────────────────────────────────


class QueryPart(NamedTuple):
    """A word, an identifier or a phrase."""

    text: str
    is_exact: bool
    """Whether it must occur as it is written."""

    def occurs_in(self, text: str) -> bool:
        """Return whether a text has the part as it is written."""
        return self.text.casefold() in text.casefold()


def query_parts(query: str) -> list[QueryPart]:
    """Return the distinct parts of a query."""
    parts = (_part(phrase.strip(), word) for phrase, word in _PART.findall(query))
    return list(dict.fromkeys(part for part in parts if part.text))[:MAX_QUERY_PARTS]


def significant_parts(query: str) -> list[QueryPart]:
    """Return the distinct parts of a query; stop words only if there are no others."""
    parts = query_parts(query)
    return [part for part in parts if part.is_exact or part.text.casefold() not in STOP_WORDS] or parts


def _part(phrase: str, word: str) -> QueryPart:
    if phrase:
        return QueryPart(phrase, is_exact=True)
    bare = word.strip(_OUTER_PUNCTUATION) or word
    return QueryPart(bare, is_exact=_IDENTIFIER.search(bare) is not None)
