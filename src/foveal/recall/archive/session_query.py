"""Parts of a query for sessions, all of which a session must contain.

A part is a word, in any of its forms; an identifier such as `db-zh-7`, exactly as it is written; or a phrase in
double quotes. Upper and lower case are the same.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from foveal.core.wire.query_match import STOP_WORDS

MAX_QUERY_PARTS: Final = 64
_PART: Final = re.compile(r'"([^"]*)"?|([^\s"]+)')
_IDENTIFIER: Final = re.compile(r"\w[-_./:@#\\]+\w")
_OUTER_PUNCTUATION: Final = ".,;:!?()[]{}<>'`“”‘’"


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
