"""Full-text index over the events of all sessions, in one FTS5 table.

1. The index stores no text, only which words occur in which piece of an event (`content=''`, `detail=none`): about
   an eighth of the size of the text. Long texts are indexed whole, in pieces of `MAX_PIECE_CHARS` characters.
2. Words are stemmed and stripped of accents. Identifiers are found by their parts and, ranked higher, as a whole
   (`parse_http`, `parseHttp`, `http.py`); scripts without spaces are indexed by pairs of characters.
3. A search sees one session only: its pieces have the row ids from `session << 32` on, and the rarity of a word is
   computed within the session.
4. Any text is a safe query: its words are quoted before FTS5 sees them.
5. `remove` rewrites the index without the session's words. To overwrite the freed pages too, set
   `PRAGMA secure_delete` on the connection, as the store does.

All methods run in the caller's transaction, if there is one.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import apsw

from foveal.core.log.events import Event
from foveal.core.wire.event_text import search_text
from foveal.core.wire.query_match import STOP_WORDS, UNSPACED
from foveal.ports import Hit

MAX_PIECE_CHARS: Final = 4_000
"""Long enough for nearly every message, short enough to tell passages of a long text apart."""
MAX_QUERY_TERMS: Final = 64
"""Distinct words of a query that are looked up."""
MAX_ROWS_PER_TERM: Final = 20_000
"""Pieces read for one word, the newest first; a word that occurs in more of them hardly distinguishes events."""
_MAX_QUERY_CHARS: Final = 20_000
_MAX_WORD_CHARS: Final = 64
_EXTRA_PIECES_START: Final = 1 << 31
"""The row id of an event's first piece, within its session, is the event's seq. Further pieces have row ids from
here on, and `foveal_text_more` maps them to seqs."""

_BM25_K1: Final = 1.2
_BM25_B: Final = 0.3
_TYPICAL_PIECE_WORDS: Final = 200
"""BM25's k1, b and average length: a piece of this many words is neither favoured nor penalised for its length."""

_TOKENIZER: Final = ("unicode61", "remove_diacritics", "2")
_SCHEMA: Final = f"""
CREATE VIRTUAL TABLE IF NOT EXISTS foveal_text USING fts5(
    words, content='', contentless_delete=1, detail=none, tokenize='porter {" ".join(_TOKENIZER)}');
CREATE TABLE IF NOT EXISTS foveal_text_more (piece INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS foveal_text_done (
    session INTEGER PRIMARY KEY, seq INTEGER NOT NULL, pieces INTEGER NOT NULL, more INTEGER NOT NULL);
"""


def searchable_text(event: Event) -> str:
    """Return the text by which a search finds an event, "" if it has none."""
    return search_text(event.fact)


class FullTextIndex:
    """The full-text index in one database."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def create(self) -> None:
        """Create the tables, if they do not exist."""
        self._connection.execute(_SCHEMA)

    def last_indexed(self, session: int) -> int:
        """Return the newest seq that was added, -1 for none."""
        return self._progress(session)[0]

    def add(self, session: int, texts: Iterable[tuple[int, str]]) -> None:
        """Index the texts of events, in the order of their seqs; events that are already indexed are skipped."""
        base = session << 32
        newest, count, more = self._progress(session)
        run = self._connection.execute
        for seq, text in texts:
            if seq <= newest:
                continue
            newest = seq
            for number, piece in enumerate(split_into_pieces(text)):
                row = base + seq
                if number:
                    row, more = base + _EXTRA_PIECES_START + more, more + 1
                    run("INSERT INTO foveal_text_more VALUES (?, ?)", (row, seq))
                run("INSERT INTO foveal_text (rowid, words) VALUES (?, ?)", (row, text_to_index(piece)))
                count += 1
        run("INSERT OR REPLACE INTO foveal_text_done VALUES (?, ?, ?, ?)", (session, newest, count, more))

    def remove(self, session: int) -> None:
        """Remove a session's rows, and the words that only this session had."""
        if self.last_indexed(session) < 0:
            return
        run, rows = self._connection.execute, (session << 32, ((session + 1) << 32) - 1)
        run("DELETE FROM foveal_text WHERE rowid BETWEEN ? AND ?", rows)
        run("DELETE FROM foveal_text_more WHERE piece BETWEEN ? AND ?", rows)
        run("DELETE FROM foveal_text_done WHERE session = ?", (session,))
        run("INSERT INTO foveal_text (foveal_text) VALUES ('optimize')")

    def search(self, session: int, query: str, limit: int) -> list[Hit]:
        """Return the events that contain words of the query, best first; of equals, the newer first."""
        total = self._progress(session)[1]
        if not total or limit <= 0:
            return []
        scores: dict[int, float] = {}
        for term in self.terms(query):
            rows = self._rows(session, term)
            rarity = math.log(1 + (total - len(rows) + 0.5) / (len(rows) + 0.5))
            for row in rows:
                scores[row] = scores.get(row, 0.0) + rarity
        # More rows than `limit`, because `_hits` merges the pieces of an event and ranks again by length.
        best = heapq.nlargest(4 * limit + 100, scores.items(), key=lambda item: (item[1], item[0]))
        return self._hits(session << 32, best)[:limit]

    def terms(self, query: str) -> list[str]:
        """Return the distinct words of a query as FTS5 expressions; stop words only if there are no others."""
        split = self._connection.fts5_tokenizer(_TOKENIZER[0], list(_TOKENIZER[1:]))
        stem = self._connection.fts5_tokenizer("porter", list(_TOKENIZER))
        words = _tokens(split, text_to_index(query[:_MAX_QUERY_CHARS]))
        significant = [word for word in words if word not in STOP_WORDS] or words
        distinct = {tuple(_tokens(stem, word)): word for word in reversed(significant[: 4 * MAX_QUERY_TERMS])}
        return [_expression(word) for word in reversed(distinct.values())][:MAX_QUERY_TERMS]

    def _progress(self, session: int) -> tuple[int, int, int]:
        row = self._connection.execute(
            "SELECT seq, pieces, more FROM foveal_text_done WHERE session = ?", (session,)
        ).fetchone()
        return (-1, 0, 0) if row is None else row

    def _rows(self, session: int, term: str) -> list[int]:
        found = self._connection.execute(
            "SELECT rowid FROM foveal_text WHERE foveal_text MATCH ? AND rowid BETWEEN ? AND ?"
            " ORDER BY rowid DESC LIMIT ?",
            (term, session << 32, ((session + 1) << 32) - 1, MAX_ROWS_PER_TERM),
        )
        return [row for (row,) in found]

    def _hits(self, base: int, rows: Iterable[tuple[int, float]]) -> list[Hit]:
        """Return events with the score of their best piece, adjusted for its length as BM25 does."""
        best: dict[int, float] = {}
        for row, score in rows:
            seq = (
                row - base
                if row - base < _EXTRA_PIECES_START
                else self._value("seq FROM foveal_text_more WHERE piece", row)
            )
            length = _varint(self._value("sz FROM foveal_text_docsize WHERE id", row)) / _TYPICAL_PIECE_WORDS
            score *= (_BM25_K1 + 1) / (1 + _BM25_K1 * (1 - _BM25_B + _BM25_B * length))
            best[seq] = max(score, best.get(seq, 0.0))
        ranked = sorted(best.items(), key=lambda item: (-item[1], -item[0]))
        return [Hit(seq=seq, score=score) for seq, score in ranked]

    def _value(self, what: str, row: int) -> Any:
        return self._connection.execute(f"SELECT {what} = ?", (row,)).get


def _tokens(tokenizer: apsw.FTS5Tokenizer, text: str) -> list[str]:
    found = tokenizer(
        text.encode(), apsw.FTS5_TOKENIZE_QUERY, None, include_offsets=False, include_colocated=False
    )
    return list(dict.fromkeys(word for word in found if isinstance(word, str)))


def _expression(word: str) -> str:
    """Quote a word for FTS5; a single character of a script without spaces matches all pairs that start with it."""
    return f'"{word}" *' if len(word) == 1 and UNSPACED.match(word) else f'"{word}"'


def _varint(blob: bytes) -> int:
    """Decode the first number of a row in FTS5's docsize table: the piece's number of words."""
    value = 0
    for byte in blob[:4]:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return value


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
    if not text.isascii():
        text = UNSPACED.sub(_character_pairs, text.encode("utf-8", "replace").decode())
    if len(text) > 200 and _ENCODED_DATA.search(text):
        text = _ENCODED_DATA.sub(lambda blob: f" {blob.group()[:_MAX_WORD_CHARS]} ", text)
    others = set(map(_alternative_names, text.translate(_PUNCTUATION).split()))
    return f"{text} {' '.join(sorted(others))}"


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
