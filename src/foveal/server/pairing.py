"""Pairing codes that let users of a chat platform use its bot.

`foveal pair telegram` creates a code; the user sends `/pair CODE` to the bot, which claims it. A code works once,
within ten minutes, on one platform (`telegram` or `discord`), and is stored as a hash. After five wrong codes
within an hour a user cannot claim any code, not even a valid one, until the hour is over. Users on the configured
allow-list need no code.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import Final, Literal, TypeAlias

import apsw
import msgspec

from foveal.server.database import Database

ChatPlatform: TypeAlias = Literal["telegram", "discord"]

CODE_ALPHABET: Final = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
"""Without 0, O, 1, I and L, which are easy to confuse."""
CODE_CHARS: Final = 8
CODE_TTL_S: Final = 600.0
"""Seconds for which a code is valid."""
MAX_WRONG_CODES: Final = 5
"""Wrong codes allowed to a user within `WRONG_CODE_WINDOW_S` seconds."""
WRONG_CODE_WINDOW_S: Final = 3_600.0

# The columns `face` hold the platform; the name predates it and stays for existing databases.
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


class PairedUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user who claimed a code."""

    platform: ChatPlatform
    user: int
    since: float


class Pairing:
    """Codes and paired users, in the server's database."""

    def __init__(self, database: Database) -> None:
        database.create_tables(SCHEMA)
        self._database = database

    async def create_code(self, platform: ChatPlatform, *, now: float) -> str:
        """Create a code and return it; only its hash is stored."""
        code = "".join(secrets.choice(CODE_ALPHABET) for _ in range(CODE_CHARS))

        def act(connection: apsw.Connection) -> None:
            _delete_expired(connection, now)
            connection.execute(
                "INSERT INTO pairing_codes (face, code, until) VALUES (?, ?, ?)",
                (platform, _digest(code), now + CODE_TTL_S),
            )

        await self._database.write(act)
        return code

    async def claim(self, platform: ChatPlatform, code: str, user: int, *, now: float) -> bool:
        """Pair the user and use up the code if it is valid; return whether it was."""

        def act(connection: apsw.Connection) -> bool:
            _delete_expired(connection, now)
            if _count_wrong_codes(connection, platform, user) >= MAX_WRONG_CODES:
                return False
            used = connection.execute(
                "DELETE FROM pairing_codes WHERE face = ? AND code = ? RETURNING code",
                (platform, _digest(code)),
            ).fetchall()
            if not used:
                connection.execute(
                    "INSERT INTO pairing_misses (face, user, at) VALUES (?, ?, ?)", (platform, user, now)
                )
                return False
            connection.execute(
                "INSERT INTO paired (face, user, since) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (platform, user, now),
            )
            return True

        return await self._database.write(act)

    async def retry_after(self, platform: ChatPlatform, user: int, *, now: float) -> float:
        """Return the seconds until a user with too many wrong codes may try again; 0 if allowed now."""

        def act(connection: apsw.Connection) -> float:
            query = "SELECT at FROM pairing_misses WHERE face = ? AND user = ? AND at > ? ORDER BY at DESC LIMIT ?"
            times = [
                at
                for (at,) in connection.execute(
                    query, (platform, user, now - WRONG_CODE_WINDOW_S, MAX_WRONG_CODES)
                )
            ]
            return max(0.0, times[-1] + WRONG_CODE_WINDOW_S - now) if len(times) == MAX_WRONG_CODES else 0.0

        return await self._database.read(act)

    async def is_paired(self, platform: ChatPlatform, user: int) -> bool:
        def act(connection: apsw.Connection) -> bool:
            query = "SELECT 1 FROM paired WHERE face = ? AND user = ?"
            return connection.execute(query, (platform, user)).fetchone() is not None

        return await self._database.read(act)

    async def unpair(self, platform: ChatPlatform, user: int) -> bool:
        """Remove a paired user; return False if the user was not paired."""

        def act(connection: apsw.Connection) -> bool:
            query = "DELETE FROM paired WHERE face = ? AND user = ? RETURNING user"
            return bool(connection.execute(query, (platform, user)).fetchall())

        return await self._database.write(act)

    async def list(self) -> tuple[PairedUser, ...]:
        """Return all paired users, earliest first."""

        def act(connection: apsw.Connection) -> tuple[PairedUser, ...]:
            query = "SELECT face, user, since FROM paired ORDER BY since, face, user"
            rows = connection.execute(query)
            return tuple(
                PairedUser(platform=platform, user=user, since=since) for platform, user, since in rows
            )

        return await self._database.read(act)


def _delete_expired(connection: apsw.Connection, now: float) -> None:
    """Delete what has expired, so that it stays expired if the clock goes backwards."""
    connection.execute("DELETE FROM pairing_codes WHERE until <= ?", (now,))
    connection.execute("DELETE FROM pairing_misses WHERE at <= ?", (now - WRONG_CODE_WINDOW_S,))


def _count_wrong_codes(connection: apsw.Connection, platform: ChatPlatform, user: int) -> int:
    query = "SELECT 1 FROM pairing_misses WHERE face = ? AND user = ?"
    return len(connection.execute(query, (platform, user)).fetchall())


def _digest(code: str) -> bytes:
    """Hash a code as typed: case, spaces and dashes do not matter."""
    typed = "".join(code.split()).replace("-", "").upper()
    return sha256(typed.encode("utf-8", "replace")).digest()
