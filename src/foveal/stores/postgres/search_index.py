"""Full-text index of one session in PostgreSQL, with the words and ranks of SQLite.

1. A row of `search_term` lists the pieces of text in which a word occurs, for events that were indexed together.
   The index is a B-tree and not GIN: under row-level security PostgreSQL uses only leakproof operators in an index
   scan, and those of arrays and `tsvector` are not. It also reads nothing of other sessions.
2. A search first indexes the events that are new. Words are split outside of the transaction that stores them; it
   stores them only if no other process was faster and the session was not erased meanwhile.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from foveal.core.log.events import Event
from foveal.ports import Hit
from foveal.stores.postgres.connection import (
    ConnectionLost,
    PostgresPool,
    SqlStatement,
    TransactionUndone,
    to_key,
)
from foveal.stores.postgres.reading import outside_loop, read_range, tokenizer
from foveal.stores.postgres.sql_statements import SessionName
from foveal.stores.search_words import (
    EXTRA_PIECES_START,
    MAX_ROWS_PER_TERM,
    FoundPiece,
    QueryTerm,
    best_pieces,
    rank,
    searchable_text,
    split_into_pieces,
)

_INDEX_PAGE_EVENTS: Final = 200
_MAX_INDEX_S: Final = 60.0
_HIGHEST_CHARACTER: Final = "\U0010ffff"


class _Progress(NamedTuple):
    """How much of a session is indexed."""

    key: int
    head: int
    erasures: int
    seq: int
    """The newest event that is indexed, -1 for none."""
    pieces: int
    more: int
    """Pieces beyond the first ones of their events."""


class _NewWords(NamedTuple):
    """What is added to the index."""

    pieces: list[tuple[int, int, int]]
    """Number, seq and count of words of each piece."""
    terms: dict[str, list[int]]
    more: int


class PostgresIndex:
    """The index of one session."""

    def __init__(self, pool: PostgresPool, session: SessionName) -> None:
        self._pool = pool
        self._session = session

    async def catch_up(self) -> bool:
        """Index the events that are new; return whether the session exists."""
        until = time.monotonic() + self._pool.wait_s
        while True:
            progress = await self._progress()
            if progress is None:
                return False
            if progress.seq + 1 >= progress.head:
                return True
            seqs = range(progress.seq + 1, min(progress.seq + 1 + _INDEX_PAGE_EVENTS, progress.head))
            page = await read_range(self._pool, self._session, seqs)
            if page is not None and page.erasures == progress.erasures and page.events:
                try:
                    await self._add(progress, page.events)
                except (ConnectionLost, TransactionUndone):
                    # Whatever the outcome: the progress tells whether these events are indexed.
                    if time.monotonic() > until:
                        raise

    async def search(self, query: str, limit: int) -> list[Hit]:
        """Return the events that contain words of the query, best first."""
        progress = await self._progress()
        if progress is None or not progress.pieces:
            return []
        found = await self._pieces_of(progress.key, tokenizer().terms(query))
        best = dict(best_pieces(found, total=progress.pieces, limit=limit))
        (rows,) = await self._pool.run(
            self._session.tenant,
            SqlStatement(
                "SELECT piece, seq, words FROM foveal.search_piece"
                " WHERE tenant = %s AND session = %s AND piece = ANY(%s::bigint[])",
                (self._session.tenant, progress.key, list(best)),
            ),
            snapshot=True,
        )
        return rank((FoundPiece(seq, words, best[piece]) for piece, seq, words in rows), limit=limit)

    async def _progress(self) -> _Progress | None:
        (rows,) = await self._pool.run(
            self._session.tenant,
            SqlStatement(
                """
                SELECT key, head, erasures, coalesce(seq, -1), coalesce(pieces, 0), coalesce(more, 0)
                FROM foveal.session LEFT JOIN foveal.search_progress AS done
                    ON done.tenant = session.tenant AND done.session = session.key
                WHERE session.tenant = %s AND id = %s
                """,
                (self._session.tenant, self._session.key),
            ),
            snapshot=True,
        )
        return _Progress(*rows[0]) if rows else None

    async def _pieces_of(self, key: int, terms: Sequence[QueryTerm]) -> list[list[int]]:
        """Return the pieces of each word, the newest first."""
        words = [to_key(term.stem) for term in terms]
        statements = [_select_terms(self._session.tenant, key, words)]
        statements += [
            _select_prefix(self._session.tenant, key, word)
            for term, word in zip(terms, words, strict=True)
            if term.is_prefix
        ]
        exact, *by_prefix = await self._pool.run(self._session.tenant, *statements, snapshot=True)
        pieces: dict[str, set[int]] = defaultdict(set)
        for term, packed in exact:
            pieces[term].update(msgspec.msgpack.decode(packed, type=list[int]))
        prefixes = (word for term, word in zip(terms, words, strict=True) if term.is_prefix)
        for word, rows in zip(prefixes, by_prefix, strict=True):
            for (packed,) in rows:
                pieces[word].update(msgspec.msgpack.decode(packed, type=list[int]))
        return [sorted(pieces[word], reverse=True)[:MAX_ROWS_PER_TERM] for word in words]

    async def _add(self, progress: _Progress, events: Sequence[Event]) -> None:
        texts = [(event.seq, searchable_text(event)) for event in events]
        new = await outside_loop(
            sum(len(text) for _, text in texts), lambda: _split_into_words(texts, progress.more)
        )
        tenant = self._session.tenant
        async with self._pool.transaction(tenant, durable=False, statement_s=_MAX_INDEX_S) as connection:
            # The lock lets others append, but an erasure waits; one that came first is seen by its number.
            locked = await connection.execute(
                "SELECT 1 FROM foveal.session WHERE tenant = %s AND key = %s AND erasures = %s FOR KEY SHARE",
                (tenant, progress.key, progress.erasures),
            )
            if not await locked.fetchall():
                return
            advanced = await connection.execute(
                """
                INSERT INTO foveal.search_progress AS done (tenant, session, seq, pieces, more)
                VALUES (%s, %s, %s, %s, %s)
                ON CONFLICT (tenant, session) DO UPDATE
                    SET seq = excluded.seq, pieces = excluded.pieces, more = excluded.more WHERE done.seq = %s
                """,
                (
                    tenant,
                    progress.key,
                    events[-1].seq,
                    progress.pieces + len(new.pieces),
                    new.more,
                    progress.seq,
                ),
            )
            if advanced.rowcount == 0:  # another process has indexed these events
                return
            for statement in _insert_words(tenant, progress.key, events[0].seq, new):
                await connection.execute(statement.sql, statement.values)


def _split_into_words(texts: Sequence[tuple[int, str]], more: int) -> _NewWords:
    pieces: list[tuple[int, int, int]] = []
    terms: dict[str, list[int]] = defaultdict(list)
    for seq, text in texts:
        for nr, piece in enumerate(split_into_pieces(text)):
            number = seq
            if nr:
                number, more = EXTRA_PIECES_START + more, more + 1
            stems = tokenizer().stems(piece)
            pieces.append((number, seq, len(stems)))
            for stem in set(stems):
                terms[to_key(stem)].append(number)
    return _NewWords(pieces, terms, more)


def _insert_words(tenant: str, key: int, first: int, new: _NewWords) -> tuple[SqlStatement, SqlStatement]:
    numbers, seqs, words = map(list, zip(*new.pieces, strict=True)) if new.pieces else ([], [], [])
    packed = [msgspec.msgpack.encode(pieces) for pieces in new.terms.values()]
    return (
        SqlStatement(
            "INSERT INTO foveal.search_piece (tenant, session, piece, seq, words)"
            " SELECT %s, %s, * FROM unnest(%s::bigint[], %s::bigint[], %s::int[])",
            (tenant, key, numbers, seqs, words),
        ),
        SqlStatement(
            "INSERT INTO foveal.search_term (tenant, session, first, term, pieces)"
            " SELECT %s, %s, %s, * FROM unnest(%s::text[], %s::bytea[])",
            (tenant, key, first, list(new.terms), packed),
        ),
    )


def _select_terms(tenant: str, key: int, words: Sequence[str]) -> SqlStatement:
    return SqlStatement(
        "SELECT term, pieces FROM foveal.search_term"
        " WHERE tenant = %s AND session = %s AND term = ANY(%s::text[])",
        (tenant, key, list(words)),
    )


def _select_prefix(tenant: str, key: int, word: str) -> SqlStatement:
    return SqlStatement(
        "SELECT pieces FROM foveal.search_term WHERE tenant = %s AND session = %s AND term >= %s AND term < %s",
        (tenant, key, word, word + _HIGHEST_CHARACTER),
    )
