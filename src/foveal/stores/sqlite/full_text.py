"""Full-text search over the events of all sessions: one FTS5 table, small, and safe with any query.

1. No text is kept here, only which words are in which piece of an event (`content=''`, `detail=none`): about an
   eighth of the size of the text. Long texts are indexed whole, in pieces of `PIECE` characters.
2. Words are stemmed and stripped of accents. Identifiers are found by their parts and, ranked higher, as a whole
   (`parse_http`, `parseHttp`, `http.py`); scripts without spaces are indexed by pairs of characters.
3. A search sees one session only: its pieces have the row ids from `session << 32` on, and even how rare a word
   is, is judged within the session.
4. `remove` rewrites the index without the session's words. Whoever also wants the freed pages overwritten sets
   `PRAGMA secure_delete` on the connection, as the store does.

All methods run in the transaction of the caller, if there is one.
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
from foveal.core.wire.event_text import STOP_WORDS, UNSPACED, findable
from foveal.ports import Hit

PIECE: Final = 4_000
"""Characters of one piece: long enough for nearly every message, short enough to tell passages apart."""
TERMS: Final = 64
"""Different words of a query that are looked up."""
ROWS: Final = 20_000
"""Pieces looked at for one word, the newest first; a word in more of them says little."""
_QUERY: Final = 20_000
_WORD: Final = 64
_MORE: Final = 1 << 31
"""Row ids above this one in a session are second and further pieces of an event; `foveal_text_more` knows whose."""

_SATURATION: Final = 1.2
_LENGTH_SHARE: Final = 0.3
_USUAL_LENGTH: Final = 200
"""BM25's k1 and b, and the words of a piece that is neither favoured for being short nor marked down."""

_TOKENIZER: Final = ("unicode61", "remove_diacritics", "2")
_SCHEMA: Final = f"""
CREATE VIRTUAL TABLE IF NOT EXISTS foveal_text USING fts5(
    words, content='', contentless_delete=1, detail=none, tokenize='porter {" ".join(_TOKENIZER)}');
CREATE TABLE IF NOT EXISTS foveal_text_more (piece INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS foveal_text_done (
    session INTEGER PRIMARY KEY, seq INTEGER NOT NULL, pieces INTEGER NOT NULL, more INTEGER NOT NULL);
"""


def searchable(event: Event) -> str:
    """The words by which an event can be found, "" when it has none."""
    return findable(event.fact)


class TextIndex:
    """The index in one database."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def create(self) -> None:
        """Make the tables, if they are not there."""
        self._connection.execute(_SCHEMA)

    def indexed(self, session: int) -> int:
        """The newest seq that was added, -1 for none."""
        return self._done(session)[0]

    def add(self, session: int, texts: Iterable[tuple[int, str]]) -> None:
        """Take in the texts of events, in the order of their seqs; those already there are passed over."""
        base = session << 32
        newest, count, more = self._done(session)
        run = self._connection.execute
        for seq, text in texts:
            if seq <= newest:
                continue
            newest = seq
            for place, piece in enumerate(pieces(text)):
                row = base + seq
                if place:
                    row, more = base + _MORE + more, more + 1
                    run("INSERT INTO foveal_text_more VALUES (?, ?)", (row, seq))
                run("INSERT INTO foveal_text (rowid, words) VALUES (?, ?)", (row, prepared(piece)))
                count += 1
        run("INSERT OR REPLACE INTO foveal_text_done VALUES (?, ?, ?, ?)", (session, newest, count, more))

    def remove(self, session: int) -> None:
        """Forget a session for good: not only its rows, also the words that only it had."""
        if self.indexed(session) < 0:
            return
        run, rows = self._connection.execute, (session << 32, ((session + 1) << 32) - 1)
        run("DELETE FROM foveal_text WHERE rowid BETWEEN ? AND ?", rows)
        run("DELETE FROM foveal_text_more WHERE piece BETWEEN ? AND ?", rows)
        run("DELETE FROM foveal_text_done WHERE session = ?", (session,))
        run("INSERT INTO foveal_text (foveal_text) VALUES ('optimize')")

    def search(self, session: int, query: str, limit: int) -> list[Hit]:
        """The events that have words of the query, best first; of equals, the newer first."""
        total = self._done(session)[1]
        if not total or limit <= 0:
            return []
        scores: dict[int, float] = {}
        for term in self.terms(query):
            rows = self._rows(session, term)
            worth = math.log(1 + (total - len(rows) + 0.5) / (len(rows) + 0.5))
            for row in rows:
                scores[row] = scores.get(row, 0.0) + worth
        best = heapq.nlargest(4 * limit + 100, scores.items(), key=lambda item: (item[1], item[0]))
        return self._hits(session << 32, best)[:limit]

    def terms(self, query: str) -> list[str]:
        """The different words of a query, as FTS5 expressions; question words only if there are no others."""
        split = self._connection.fts5_tokenizer(_TOKENIZER[0], list(_TOKENIZER[1:]))
        stem = self._connection.fts5_tokenizer("porter", list(_TOKENIZER))
        words = _tokens(split, prepared(query[:_QUERY]))
        telling = [word for word in words if word not in STOP_WORDS] or words
        distinct = {tuple(_tokens(stem, word)): word for word in reversed(telling[: 4 * TERMS])}
        return [_expression(word) for word in reversed(distinct.values())][:TERMS]

    def _done(self, session: int) -> tuple[int, int, int]:
        row = self._connection.execute(
            "SELECT seq, pieces, more FROM foveal_text_done WHERE session = ?", (session,)
        ).fetchone()
        return (-1, 0, 0) if row is None else row

    def _rows(self, session: int, term: str) -> list[int]:
        found = self._connection.execute(
            "SELECT rowid FROM foveal_text WHERE foveal_text MATCH ? AND rowid BETWEEN ? AND ?"
            " ORDER BY rowid DESC LIMIT ?",
            (term, session << 32, ((session + 1) << 32) - 1, ROWS),
        )
        return [row for (row,) in found]

    def _hits(self, base: int, rows: Iterable[tuple[int, float]]) -> list[Hit]:
        """Events with the score of their best piece, which counts a little more when it is short."""
        best: dict[int, float] = {}
        for row, score in rows:
            seq = (
                row - base if row - base < _MORE else self._one("seq FROM foveal_text_more WHERE piece", row)
            )
            length = _varint(self._one("sz FROM foveal_text_docsize WHERE id", row)) / _USUAL_LENGTH
            score *= (_SATURATION + 1) / (1 + _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * length))
            best[seq] = max(score, best.get(seq, 0.0))
        ranked = sorted(best.items(), key=lambda item: (-item[1], -item[0]))
        return [Hit(seq=seq, score=score) for seq, score in ranked]

    def _one(self, what: str, row: int) -> Any:
        return self._connection.execute(f"SELECT {what} = ?", (row,)).get


def _tokens(tokenizer: apsw.FTS5Tokenizer, text: str) -> list[str]:
    found = tokenizer(
        text.encode(), apsw.FTS5_TOKENIZE_QUERY, None, include_offsets=False, include_colocated=False
    )
    return list(dict.fromkeys(word for word in found if isinstance(word, str)))


def _expression(word: str) -> str:
    """A word as FTS5 reads it; a single character of a script without spaces stands for all pairs it begins."""
    return f'"{word}" *' if len(word) == 1 and UNSPACED.match(word) else f'"{word}"'


def _varint(blob: bytes) -> int:
    """The first number of a row of FTS5's table of lengths."""
    value = 0
    for byte in blob[:4]:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return value


# ── what is given to FTS5 ────────────────────────────────────────────────────────────────────────────────

_BLOB: Final = re.compile(r"[A-Za-z0-9+/=_-]{200,}")
"""Encoded data: its beginning is enough to find it by."""
_SEPARATORS: Final = str.maketrans(
    {c: " " for c in map(chr, range(128)) if not c.isalnum() and c not in "_.-"}
)
_JOINTS: Final = re.compile(r"[_.\-]+")
_HUMPED: Final = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
_HUMP: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")


def pieces(text: str) -> Iterator[str]:
    """A text in pieces of at most `PIECE` characters, cut between words where there is a gap near."""
    at = 0
    while at < len(text):
        end = at + PIECE
        if end < len(text):
            gap = max(text.rfind(" ", end - 200, end), text.rfind("\n", end - 200, end))
            end = gap + 1 if gap >= 0 else end
        yield text[at:end]
        at = end


def prepared(text: str) -> str:
    """A text and, after it, what its identifiers are also called; unspaced scripts in pairs of characters."""
    if not text.isascii():
        text = UNSPACED.sub(_pairs, text.encode("utf-8", "replace").decode())
    if len(text) > 200 and _BLOB.search(text):
        text = _BLOB.sub(lambda blob: f" {blob.group()[:_WORD]} ", text)
    others = set(map(_other_names, text.translate(_SEPARATORS).split()))
    return f"{text} {' '.join(sorted(others))}"


def _pairs(run: re.Match[str]) -> str:
    letters = "".join(letter for letter in run.group() if letter.isalnum())
    return f" {' '.join(letters[at : at + 2] for at in range(len(letters)))} "


@lru_cache(maxsize=1 << 15)
def _other_names(word: str) -> str:
    """The parts of a camelCase word, and an identifier or file name without its joints."""
    word = word.strip("_.-")
    if len(word) > _WORD or (word.isalpha() and (word.islower() or word.istitle())):
        return ""
    parts = _JOINTS.split(word)
    names: list[str] = []
    if _HUMPED.search(word):
        humps = [_HUMP.findall(part) for part in parts]
        names += [hump for found in humps if len(found) > 1 for hump in found if len(hump) > 1]
    if len(parts) > 1 and any(part.isalpha() for part in parts):
        names += [part.replace("_", "") for part in re.split(r"[.\-]+", word) if "_" in part.strip("_")]
        names += [parts[-2] + parts[-1]] if "." in word or "-" in word else []
    return " ".join(names)
