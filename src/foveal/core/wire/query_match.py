"""Query terms and identifiers, and the parts of a long text that match them best."""

from __future__ import annotations

import re
from typing import Final

UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Runs of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han and Hangul."""
_STOP_WORDS: Final = (
    "a about after again all also am an and any are as at be because been before being between both but by can"
    " could d did do does doing down during each few for from further get got had has have having he her here"
    " hers him his how i if in into is it its itself just let ll m me more most my myself no nor not now of off"
    " on once only or other our ours out over own please re s same she should so some such t tell than that the"
    " their theirs them then there these they this those through to too under until up us ve very was we were"
    " what when where which while who whom why will with would you your yours"
)
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
"""English words of a question that its answer need not contain."""
_WORD: Final = re.compile(r"[^\W_]{2,}")
_IDENTIFIER: Final = re.compile(r"\w[^\w\s]\w|_")
_EXACT: Final = re.compile(r"(?=.{3}).*\d|(?=.{4}).*(?:_|\w[./:@#]\w)", re.DOTALL)
"""Numbers, ids, names of code and paths. One is never meant when a text has a similar one."""
_PUNCTUATION: Final = "\"'`.,;:!?()[]{}<>"
_MAX_SEARCHED_CHARS: Final = 2_000_000
"""Characters of one text that are searched for matches."""
_MAX_MATCHES: Final = 50_000
_MAX_QUERY_CHARS: Final = 2_000
_MAX_TERMS: Final = 64


def query_terms(query: str) -> frozenset[str]:
    """Return what to look for in a text: the identifiers of a query, the beginnings of its words, and pairs of
    characters where its script has no spaces."""
    query = query[:_MAX_QUERY_CHARS].lower()
    found = {
        word for word in (each.strip(_PUNCTUATION) for each in query.split()) if _IDENTIFIER.search(word)
    }
    for word in _WORD.findall(query):
        if UNSPACED.search(word):
            found.update(word[at : at + 2] for at in range(len(word) - 1))
        elif word not in STOP_WORDS:
            found.add(word[: max(4, len(word) - 2)])
    return frozenset(sorted(found)[:_MAX_TERMS])


def query_identifiers(query: str) -> frozenset[str]:
    """Return the numbers, ids and names of a query that a text contains as they are, or not at all."""
    words = (word.strip(_PUNCTUATION) for word in query[:_MAX_QUERY_CHARS].lower().split())
    return frozenset(sorted(filter(_EXACT.match, words))[:_MAX_TERMS])


def count_identifiers(text: str, identifiers: frozenset[str]) -> int:
    """Return how many of the identifiers stand in a text as whole words."""
    if not identifiers:
        return 0
    # Of two that begin alike, the longer is tried first.
    either = "|".join(map(re.escape, sorted(identifiers, key=lambda each: (-len(each), each))))
    found: set[str] = set()
    for match in re.compile(rf"(?<!\w)(?:{either})(?!\w)", re.I).finditer(text, 0, _MAX_SEARCHED_CHARS):
        found.add(match.group().lower())
        if len(found) == len(identifiers):
            break
    return len(found & identifiers)


def best_window(text: str, terms: frozenset[str], *, width: int) -> int:
    """Return where the `width` characters with the most letters of different terms begin; 0 if no term
    occurs."""
    matches = _matches(text, terms)
    best, score, start, low = 0, 0, 0, 0
    counts: dict[str, int] = {}  # of each term in the window from matches[low] to the current match
    for at, term in matches:
        score += 0 if counts.get(term) else len(term)
        counts[term] = counts.get(term, 0) + 1
        while at - matches[low][0] > width:
            left = matches[low][1]
            counts[left] -= 1
            score -= 0 if counts[left] else len(left)
            low += 1
        if score > best:
            best, start = score, matches[low][0]
    return start


def missing_terms(text: str, terms: frozenset[str], *, start: int, end: int) -> frozenset[str]:
    """Return the terms that a text contains, but not between `start` and `end`."""
    matches = _matches(text, terms)
    return frozenset(term for _, term in matches) - {term for at, term in matches if start <= at < end}


def _matches(text: str, terms: frozenset[str]) -> list[tuple[int, str]]:
    if not terms:
        return []
    pattern = re.compile(
        "|".join(re.escape(term) for term in sorted(terms, key=lambda t: (-len(t), t))), re.I
    )
    found: list[tuple[int, str]] = []
    for match in pattern.finditer(text, 0, _MAX_SEARCHED_CHARS):
        found.append((match.start(), match.group().lower()))
        if len(found) == _MAX_MATCHES:
            break
    return found


def next_line_start(text: str, at: int, reach: int) -> int:
    """Return the start of the first line within `reach` characters after `at`; `at` itself if there is none."""
    if at == 0:
        return 0
    after = text.find("\n", at - 1, at + reach)
    return after + 1 if after >= 0 else at
