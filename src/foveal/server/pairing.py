"""Pairing codes that let users of a chat platform use its bot.

`foveal pair telegram` creates a code; the user sends `/pair CODE` to the bot, which claims it. A code works once,
within ten minutes, on one platform (`telegram` or `discord`), and is stored as a hash. After five wrong codes
within an hour a user cannot claim any code, not even a valid one, until the hour is over. Users on the configured
allow-list need no code.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import Final, TypeAlias

import msgspec

from foveal.server.databases import Database, Transaction

ChatPlatform: TypeAlias = str
"""Name of a chat app: `telegram`, `discord`, or that of your own gateway."""

CODE_ALPHABET: Final = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
"""Without 0, O, 1, I and L, which are easy to confuse."""
CODE_CHARS: Final = 8
CODE_TTL_S: Final = 600.0
"""Seconds for which a code is valid."""
MAX_WRONG_CODES: Final = 5
"""Wrong codes allowed to a user within `WRONG_CODE_WINDOW_S` seconds."""
WRONG_CODE_WINDOW_S: Final = 3_600.0


class PairedUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user who claimed a code."""

    platform: ChatPlatform
    user: int
    since: float


class Pairing:
    """Codes and paired users, in the server's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_code(self, platform: ChatPlatform, *, now: float) -> str:
        """Create a code and return it; only its hash is stored."""
        code = "".join(secrets.choice(CODE_ALPHABET) for _ in range(CODE_CHARS))

        async def act(db: Transaction) -> None:
            await _delete_expired(db, now)
            sql = "INSERT INTO pairing_codes (face, code, until) VALUES (?, ?, ?)"
            await db.execute(sql, platform, _digest(code), now + CODE_TTL_S)

        await self._database.write(act)
        return code

    async def claim(self, platform: ChatPlatform, code: str, user: int, *, now: float) -> bool:
        """Pair the user and use up the code if it is valid; return whether it was."""

        async def act(db: Transaction) -> bool:
            await _delete_expired(db, now)
            if await _count_wrong_codes(db, platform, user) >= MAX_WRONG_CODES:
                return False
            sql = "DELETE FROM pairing_codes WHERE face = ? AND code = ?"
            if not await db.execute(sql, platform, _digest(code)):
                sql = 'INSERT INTO pairing_misses (face, "user", at) VALUES (?, ?, ?)'
                await db.execute(sql, platform, user, now)
                return False
            sql = 'INSERT INTO paired (face, "user", since) VALUES (?, ?, ?) ON CONFLICT DO NOTHING'
            await db.execute(sql, platform, user, now)
            return True

        return await self._database.write(act)

    async def retry_after(self, platform: ChatPlatform, user: int, *, now: float) -> float:
        """Return the seconds until a user with too many wrong codes may try again; 0 if allowed now."""
        sql = (
            'SELECT at FROM pairing_misses WHERE face = ? AND "user" = ? AND at > ? ORDER BY at DESC LIMIT ?'
        )
        values = platform, user, now - WRONG_CODE_WINDOW_S, MAX_WRONG_CODES
        times = [at for (at,) in await self._database.read(lambda db: db.fetch(sql, *values))]
        return max(0.0, times[-1] + WRONG_CODE_WINDOW_S - now) if len(times) == MAX_WRONG_CODES else 0.0

    async def is_paired(self, platform: ChatPlatform, user: int) -> bool:
        sql = 'SELECT 1 FROM paired WHERE face = ? AND "user" = ?'
        return bool(await self._database.read(lambda db: db.fetch(sql, platform, user)))

    async def unpair(self, platform: ChatPlatform, user: int) -> bool:
        """Remove a paired user; return False if the user was not paired."""
        sql = 'DELETE FROM paired WHERE face = ? AND "user" = ?'
        return await self._database.write(lambda db: db.execute(sql, platform, user)) > 0

    async def list(self) -> tuple[PairedUser, ...]:
        """Return all paired users, earliest first."""
        sql = 'SELECT face, "user", since FROM paired ORDER BY since, face, "user"'
        rows = await self._database.read(lambda db: db.fetch(sql))
        return tuple(PairedUser(platform=platform, user=user, since=since) for platform, user, since in rows)


async def _delete_expired(db: Transaction, now: float) -> None:
    """Delete what has expired, so that it stays expired if the clock goes backwards."""
    await db.lock("pairing")  # a guess in another transaction counts before this one is decided
    await db.execute("DELETE FROM pairing_codes WHERE until <= ?", now)
    await db.execute("DELETE FROM pairing_misses WHERE at <= ?", now - WRONG_CODE_WINDOW_S)


async def _count_wrong_codes(db: Transaction, platform: ChatPlatform, user: int) -> int:
    sql = 'SELECT count(*) FROM pairing_misses WHERE face = ? AND "user" = ?'
    return int((await db.fetch(sql, platform, user))[0][0])


def _digest(code: str) -> bytes:
    """Hash a code as typed: case, spaces and dashes do not matter."""
    typed = "".join(code.split()).replace("-", "").upper()
    return sha256(typed.encode("utf-8", "replace")).digest()
