"""Who may talk to a bot besides those of the allow-list: whoever brought a code from the terminal of the server.

`foveal pair telegram` offers a code; the person sends `/pair CODE` to the bot, which claims it. A code is good
once, for ten minutes, for one face (`telegram` or `discord`), and is stored as a hash. A user who claimed wrong
codes five times within an hour claims nothing until the hour is over, not even with a right one.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import Final, Literal, TypeAlias

import apsw
import msgspec

from foveal.server.database import Database

Face: TypeAlias = Literal["telegram", "discord"]

ALPHABET: Final = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
"""Without 0, O, 1, I and L, which look alike."""
LENGTH: Final = 8
LIFE: Final = 600.0
"""Seconds that a code is good for."""
GUESSES: Final = 5
"""Wrong codes that a user may claim within `WINDOW` seconds."""
WINDOW: Final = 3_600.0

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS pairing_codes (
        face TEXT NOT NULL, code BLOB NOT NULL, until REAL NOT NULL, PRIMARY KEY (face, code)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS pairing_misses (
        face TEXT NOT NULL, user INTEGER NOT NULL, at REAL NOT NULL
    ) STRICT""",
    "CREATE INDEX IF NOT EXISTS pairing_misses_by_user ON pairing_misses (face, user)",
    """CREATE TABLE IF NOT EXISTS paired (
        face TEXT NOT NULL, user INTEGER NOT NULL, since REAL NOT NULL, PRIMARY KEY (face, user)
    ) STRICT, WITHOUT ROWID""",
)


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who may talk to the bot."""

    face: Face
    user: int
    since: float


class Pairing:
    """Codes and those who claimed them, in the server's own file."""

    def __init__(self, database: Database) -> None:
        database.create_tables(SCHEMA)
        self._database = database

    async def offer(self, face: Face, *, now: float) -> str:
        """A new code; it is told here and nowhere else."""
        code = "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))

        def act(connection: apsw.Connection) -> None:
            _tidy(connection, now)
            connection.execute(
                "INSERT INTO pairing_codes (face, code, until) VALUES (?, ?, ?)",
                (face, _digest(code), now + LIFE),
            )

        await self._database.do(act)
        return code

    async def claim(self, face: Face, code: str, user: int, *, now: float) -> bool:
        """Whether the code was right; if so the user is paired, and the code is used up."""

        def act(connection: apsw.Connection) -> bool:
            _tidy(connection, now)
            if _misses(connection, face, user) >= GUESSES:
                return False
            used = connection.execute(
                "DELETE FROM pairing_codes WHERE face = ? AND code = ? RETURNING code", (face, _digest(code))
            ).fetchall()
            if not used:
                connection.execute(
                    "INSERT INTO pairing_misses (face, user, at) VALUES (?, ?, ?)", (face, user, now)
                )
                return False
            connection.execute(
                "INSERT INTO paired (face, user, since) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (face, user, now),
            )
            return True

        return await self._database.do(act)

    async def wait(self, face: Face, user: int, *, now: float) -> float:
        """Seconds until a user may claim a code again, because of wrong ones; 0 when it is allowed."""

        def act(connection: apsw.Connection) -> float:
            query = "SELECT at FROM pairing_misses WHERE face = ? AND user = ? AND at > ? ORDER BY at DESC LIMIT ?"
            times = [at for (at,) in connection.execute(query, (face, user, now - WINDOW, GUESSES))]
            return max(0.0, times[-1] + WINDOW - now) if len(times) == GUESSES else 0.0

        return await self._database.look(act)

    async def paired(self, face: Face, user: int) -> bool:
        def act(connection: apsw.Connection) -> bool:
            query = "SELECT 1 FROM paired WHERE face = ? AND user = ?"
            return connection.execute(query, (face, user)).fetchone() is not None

        return await self._database.look(act)

    async def forget(self, face: Face, user: int) -> bool:
        """Whether there was somebody to forget."""

        def act(connection: apsw.Connection) -> bool:
            query = "DELETE FROM paired WHERE face = ? AND user = ? RETURNING user"
            return bool(connection.execute(query, (face, user)).fetchall())

        return await self._database.do(act)

    async def list(self) -> tuple[Paired, ...]:
        """Everybody who is paired, the first ones first."""

        def act(connection: apsw.Connection) -> tuple[Paired, ...]:
            query = "SELECT face, user, since FROM paired ORDER BY since, face, user"
            rows = connection.execute(query)
            return tuple(Paired(face=face, user=user, since=since) for face, user, since in rows)

        return await self._database.look(act)


def _tidy(connection: apsw.Connection, now: float) -> None:
    """What is over is removed, so that it stays over when the clock goes backwards."""
    connection.execute("DELETE FROM pairing_codes WHERE until <= ?", (now,))
    connection.execute("DELETE FROM pairing_misses WHERE at <= ?", (now - WINDOW,))


def _misses(connection: apsw.Connection, face: Face, user: int) -> int:
    query = "SELECT 1 FROM pairing_misses WHERE face = ? AND user = ?"
    return len(connection.execute(query, (face, user)).fetchall())


def _digest(code: str) -> bytes:
    """People type codes in lower case, and with spaces or dashes."""
    typed = "".join(code.split()).replace("-", "").upper()
    return sha256(typed.encode("utf-8", "replace")).digest()
