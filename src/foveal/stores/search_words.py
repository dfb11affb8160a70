"""Words and ranking of a full-text index, the same in every store.

1. Long texts are indexed whole, in pieces of `MAX_PIECE_CHARS` characters.
2. Words are stemmed and stripped of accents. Identifiers are found by their parts and, ranked higher, as a whole
   (`parse_http`, `parseHttp`, `http.py`); scripts without spaces are indexed by pairs of characters.
3. The words are those of FTS5's tokenizers, which a store without FTS5 calls too.

The ranking is BM25. An index stores which words occur in which piece of an event, not how often. The rarity of a
word is computed within the session. Pieces are numbered: the first piece of an event has the event's seq, further
pieces have numbers from `EXTRA_PIECES_START` on.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import apsw

from foveal.core.log.events import Event
from foveal.core.wire.event_text import search_text
from foveal.core.wire.query_match import STOP_WORDS, UNSPACED
from foveal.ports import Hit

MAX_PIECE_CHARS: Final = 4_000
"""Long enough for nearly every message, short enough to tell passages of a long text apart."""
MAX_QUERY_TERMS: Final = 64
"""Distinct words of a query that are looked up."""
_MAX_QUERY_CHARS: Final = 20_000
_MAX_WORD_CHARS: Final = 64

TOKENIZER: Final = ("unicode61", "remove_diacritics", "2")
"""FTS5's tokenizer with its options; `porter` around it stems the words."""


def searchable_text(event: Event) -> str:
    """Return the text by which a search finds an event, "" if it has none."""
    return search_text(event.fact)


class QueryTerm(NamedTuple):
    """A word of a query."""

    word: str
    stem: str
    is_prefix: bool
    """A single character of a script without spaces matches all pairs that start with it."""


class Tokenizer:
    """FTS5's tokenizers, for one thread at a time."""

    def __init__(self, connection: apsw.Connection | None = None) -> None:
        self._connection = connection or apsw.Connection(":memory:")  # kept alive with its tokenizers
        self._split = self._connection.fts5_tokenizer(TOKENIZER[0], list(TOKENIZER[1:]))
        self._stem = self._connection.fts5_tokenizer("porter", list(TOKENIZER))

    def stems(self, piece: str) -> list[str]:
        """Return the stems of a piece of text, in order and with repetitions."""
        return _tokens(self._stem, text_to_index(piece), apsw.FTS5_TOKENIZE_DOCUMENT)

    def terms(self, query: str, *, with_alternatives: bool = True) -> list[QueryTerm]:
        """Return the distinct words of a query; stop words only if there are no others.

        Alternative names of identifiers rank them higher; a text with the identifier in a longer one has others."""
        prepared = text_to_index if with_alternatives else _indexed_words
        text = prepared(query[:_MAX_QUERY_CHARS])
        words = list(dict.fromkeys(_tokens(self._split, text, apsw.FTS5_TOKENIZE_QUERY)))
        significant = [word for word in words if word not in STOP_WORDS] or words
        distinct = {self._stem_of(word): word for word in reversed(significant[: 4 * MAX_QUERY_TERMS])}
        return [
            QueryTerm(word, stem, len(word) == 1 and UNSPACED.match(word) is not None)
            for stem, word in reversed(distinct.items())
        ][:MAX_QUERY_TERMS]

    def _stem_of(self, word: str) -> str:
        return " ".join(_tokens(self._stem, word, apsw.FTS5_TOKENIZE_QUERY))


def _tokens(tokenizer: apsw.FTS5Tokenizer, text: str, reason: int) -> list[str]:
    found = tokenizer(text.encode(), reason, None, include_offsets=False, include_colocated=False)
    return [word for word in found if isinstance(word, str)]


# ── Text preparation ─────────────────────────────────────────────────────────────────────────────────────

_ENCODED_DATA: Final = re.compile(r"[A-Za-z0-9+/=_-]{200,}")
"""Encoded data such as base64; only its first `_MAX_WORD_CHARS` characters are indexed."""
_PUNCTUATION: Final = str.maketrans(
    {c: " " for c in map(chr, range(128)) if not c.isalnum() and c not in "_.-"}
)
_SEPARATOR_RUN: Final = re.compile(r"[_.\-]+")
_CAMEL_CASE: Final = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
_CAMEL_CASE_PART: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")


def split_into_pieces(text: str) -> Iterator[str]:
    """Split a text into pieces of at most `MAX_PIECE_CHARS`, between words if one ends in the last 200."""
    at = 0
    while at < len(text):
        end = at + MAX_PIECE_CHARS
        if end < len(text):
            gap = max(text.rfind(" ", end - 200, end), text.rfind("\n", end - 200, end))
            end = gap + 1 if gap >= 0 else end
        yield text[at:end]
        at = end


def text_to_index(text: str) -> str:
    """Return the text followed by alternative names of its identifiers, unspaced scripts as pairs of characters."""
    text = _indexed_words(text)
    others = set(map(_alternative_names, text.translate(_PUNCTUATION).split()))
    return f"{text} {' '.join(sorted(others))}"


def _indexed_words(text: str) -> str:
    if not text.isascii():
        text = UNSPACED.sub(_character_pairs, text.encode("utf-8", "replace").decode())
    if len(text) > 200 and _ENCODED_DATA.search(text):
        text = _ENCODED_DATA.sub(lambda blob: f" {blob.group()[:_MAX_WORD_CHARS]} ", text)
    return text


def _character_pairs(run: re.Match[str]) -> str:
    letters = "".join(letter for letter in run.group() if letter.isalnum())
    return f" {' '.join(letters[at : at + 2] for at in range(len(letters)))} "


@lru_cache(maxsize=1 << 15)
def _alternative_names(word: str) -> str:
    """Return the parts of a camelCase word, and an identifier or file name without its separators."""
    word = word.strip("_.-")
    if len(word) > _MAX_WORD_CHARS or (word.isalpha() and (word.islower() or word.istitle())):
        return ""
    parts = _SEPARATOR_RUN.split(word)
    names: list[str] = []
    if _CAMEL_CASE.search(word):
        part_lists = [_CAMEL_CASE_PART.findall(part) for part in parts]
        names += [part for found in part_lists if len(found) > 1 for part in found if len(part) > 1]
    if len(parts) > 1 and any(part.isalpha() for part in parts):
        names += [part.replace("_", "") for part in re.split(r"[.\-]+", word) if "_" in part.strip("_")]
        names += [parts[-2] + parts[-1]] if "." in word or "-" in word else []
    return " ".join(names)


MAX_ROWS_PER_TERM: Final = 20_000
"""Pieces read for one word, the newest first; a word that occurs in more of them hardly distinguishes events."""
EXTRA_PIECES_START: Final = 1 << 31

_BM25_K1: Final = 1.2
_BM25_B: Final = 0.3
_TYPICAL_PIECE_WORDS: Final = 200
"""BM25's k1, b and average length: a piece of this many words is neither favoured nor penalised for its length."""


class FoundPiece(NamedTuple):
    """A piece of an event that was found."""

    seq: int
    words: int
    score: float


def best_pieces(found: Iterable[Sequence[int]], *, total: int, limit: int) -> list[tuple[int, float]]:
    """Return the pieces with the highest scores; `found` has the pieces of each word of the query.

    These are more than `limit`, because `rank` merges the pieces of an event and ranks again by length."""
    scores: dict[int, float] = {}
    for pieces in found:
        rarity = math.log(1 + (total - len(pieces) + 0.5) / (len(pieces) + 0.5))
        for piece in pieces:
            scores[piece] = scores.get(piece, 0.0) + rarity
    return heapq.nlargest(4 * limit + 100, scores.items(), key=lambda item: (item[1], item[0]))


def rank(pieces: Iterable[FoundPiece], *, limit: int) -> list[Hit]:
    """Return events with the score of their best piece, adjusted for its length; of equals, the newer first."""
    best: dict[int, float] = {}
    for seq, words, score in pieces:
        length = words / _TYPICAL_PIECE_WORDS
        adjusted = score * ((_BM25_K1 + 1) / (1 + _BM25_K1 * (1 - _BM25_B + _BM25_B * length)))
        best[seq] = max(adjusted, best.get(seq, 0.0))
    ranked = sorted(best.items(), key=lambda item: (-item[1], -item[0]))
    return [Hit(seq=seq, score=score) for seq, score in ranked[:limit]]
