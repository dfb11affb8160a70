"""Full-text index over the events of all sessions, in one FTS5 table.

1. The index stores no text, only which words occur in which piece of an event (`content=''`, `detail=none`): about
   an eighth of the size of the text. `search_words` makes the words, and `bm25` orders what is found.
2. A search sees the sessions that it names: their pieces have the row ids from `session << 32` on.
3. Any text is a safe query: its words are quoted before FTS5 sees them.
4. `remove` rewrites the index without the session's words. To overwrite the freed pages too, set
   `PRAGMA secure_delete` on the connection, as the store does.

All methods run in the caller's transaction, if there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import apsw

from foveal.ports import Hit
from foveal.stores.search_words import (
    EXTRA_PIECES_START,
    MAX_ROWS_PER_TERM,
    TOKENIZER,
    FoundPiece,
    QueryTerm,
    Tokenizer,
    best_pieces,
    rank,
    split_into_pieces,
    text_to_index,
)

_SCHEMA: Final = f"""
CREATE VIRTUAL TABLE IF NOT EXISTS foveal_text USING fts5(
    words, content='', contentless_delete=1, detail=none, tokenize='porter {" ".join(TOKENIZER)}');
CREATE TABLE IF NOT EXISTS foveal_text_more (piece INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS foveal_text_done (
    session INTEGER PRIMARY KEY, seq INTEGER NOT NULL, pieces INTEGER NOT NULL, more INTEGER NOT NULL);
"""


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
                    row, more = base + EXTRA_PIECES_START + more, more + 1
                    run("INSERT INTO foveal_text_more VALUES (?, ?)", (row, seq))
                run("INSERT INTO foveal_text (rowid, words) VALUES (?, ?)", (row, text_to_index(piece)))
                count += 1
        run("INSERT OR REPLACE INTO foveal_text_done VALUES (?, ?, ?, ?)", (session, newest, count, more))

    def remove(self, session: int) -> None:
        """Remove a session's rows, and the words that only this session had."""
        if self.last_indexed(session) >= 0:
            self.hide(session)
            self.drop_unused_words()

    def hide(self, session: int) -> None:
        """Remove a session's rows; the words that only it had stay in the file until `drop_unused_words`."""
        run, rows = self._connection.execute, (session << 32, ((session + 1) << 32) - 1)
        run("DELETE FROM foveal_text WHERE rowid BETWEEN ? AND ?", rows)
        run("DELETE FROM foveal_text_more WHERE piece BETWEEN ? AND ?", rows)
        run("DELETE FROM foveal_text_done WHERE session = ?", (session,))

    def drop_unused_words(self) -> None:
        """Rewrite the index without the words of rows that were removed."""
        self._connection.execute("INSERT INTO foveal_text (foveal_text) VALUES ('optimize')")

    def search(self, session: int, query: str, limit: int) -> list[Hit]:
        """Return the events that contain words of the query, best first; of equals, the newer first."""
        total = self._progress(session)[1]
        if not total or limit <= 0:
            return []
        found = (self._rows(session, term) for term in self.terms(query))
        best = best_pieces(found, total=total, limit=limit)
        return rank((self._piece(session << 32, row, score) for row, score in best), limit=limit)

    def events_with_all(self, sessions: Collection[int], text: str) -> dict[int, list[int]]:
        """Return the seqs of events with all words of a text in one piece, newest first, by session."""
        words = Tokenizer(self._connection).terms(text, with_alternatives=False)
        terms = [_expression(term) for term in words]
        found: dict[int, set[int]] = {}
        for row in self._all_rows(" AND ".join(terms)) if terms else ():
            session = row >> 32
            if session in sessions:
                found.setdefault(session, set()).add(self._seq(session << 32, row))
        return {session: sorted(seqs, reverse=True) for session, seqs in found.items()}

    def remove_from(self, session: int, first: int) -> None:
        """Remove a session's rows from seq `first` on, so that these events can be added again."""
        newest, count, more = self._progress(session)
        if newest < first:
            return
        base, run = session << 32, self._connection.execute
        further = (base + EXTRA_PIECES_START, base + (1 << 32) - 1, first)
        longer = "SELECT piece FROM foveal_text_more WHERE piece BETWEEN ? AND ? AND seq >= ?"
        run(f"DELETE FROM foveal_text WHERE rowid IN ({longer})", further)
        count -= self._connection.changes()
        run("DELETE FROM foveal_text_more WHERE piece BETWEEN ? AND ? AND seq >= ?", further)
        run("DELETE FROM foveal_text WHERE rowid BETWEEN ? AND ?", (base + first, base + newest))
        count -= self._connection.changes()
        run("INSERT OR REPLACE INTO foveal_text_done VALUES (?, ?, ?, ?)", (session, first - 1, count, more))

    def terms(self, query: str) -> list[str]:
        """Return the distinct words of a query as FTS5 expressions."""
        return [_expression(term) for term in Tokenizer(self._connection).terms(query)]

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

    def rows_of(self, sessions: Collection[int], term: str) -> list[int]:
        """Return the row ids of the pieces of these sessions with an expression of `terms`."""
        return [row for row in self._all_rows(term) if row >> 32 in sessions]

    def count_pieces(self, sessions: Collection[int]) -> int:
        """Return how many pieces these sessions have."""
        return sum(self._progress(session)[1] for session in sessions)

    def piece(self, row: int, score: float) -> FoundPiece:
        """Return a piece with the seq of its event, to which the session's base is added."""
        base = row >> 32 << 32
        found = self._piece(base, row, score)
        return found._replace(seq=base + found.seq)

    def _all_rows(self, term: str) -> list[int]:
        found = self._connection.execute("SELECT rowid FROM foveal_text WHERE foveal_text MATCH ?", (term,))
        return [row for (row,) in found]

    def _piece(self, base: int, row: int, score: float) -> FoundPiece:
        words = _varint(self._value("sz FROM foveal_text_docsize WHERE id", row))
        return FoundPiece(self._seq(base, row), words, score)

    def _seq(self, base: int, row: int) -> int:
        """Return the seq of the event to which a piece belongs."""
        number = row - base
        if number < EXTRA_PIECES_START:
            return number
        return int(self._value("seq FROM foveal_text_more WHERE piece", row))

    def _value(self, what: str, row: int) -> Any:
        return self._connection.execute(f"SELECT {what} = ?", (row,)).get


def index_in_memory() -> FullTextIndex:
    """Return an empty index that ends with its object."""
    index = FullTextIndex(apsw.Connection(":memory:"))
    index.create()
    return index


def search_sessions(
    parts: Sequence[tuple[FullTextIndex, Collection[int]]], query: str, limit: int
) -> list[tuple[int, Hit]]:
    """Return events of several sessions with their session, best first; a word is as rare as it is in all of these
    sessions together. They may be in several indexes, in which no two have the same number."""
    total = sum(index.count_pieces(sessions) for index, sessions in parts)
    if not total or limit <= 0:
        return []
    owners = {session: index for index, sessions in parts for session in sessions}
    found = (
        [row for index, sessions in parts for row in index.rows_of(sessions, term)]
        for term in parts[0][0].terms(query)
    )
    best = best_pieces(found, total=total, limit=limit)
    ranked = rank((owners[row >> 32].piece(row, score) for row, score in best), limit=limit)
    return [(hit.seq >> 32, Hit(seq=hit.seq & 0xFFFFFFFF, score=hit.score)) for hit in ranked]


def _expression(term: QueryTerm) -> str:
    return f'"{term.word}" *' if term.is_prefix else f'"{term.word}"'


def _varint(blob: bytes) -> int:
    """Decode the first number of a row in FTS5's docsize table: the piece's number of words."""
    value = 0
    for byte in blob[:4]:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return value
