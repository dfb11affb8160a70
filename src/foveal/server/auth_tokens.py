"""Who may call the server: bearer tokens, each bound to a tenant.

1. The secret is shown once, when it is made; what is kept is the SHA-256 of its 32 random bytes. Nobody can guess
   those, so a slow hash would protect nothing, and looking the hash up tells nothing about the secret by its time.
2. A token that was revoked stays known as such: a server that once asked for tokens goes on to ask for them.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import Final

import apsw
import msgspec

from foveal.server.database import Database

# ── limits ────────────────────────────────────────────────────────────────────────────────────────
# How often somebody may ask: a bucket with a minute's requests for each name, refilled evenly. Pure: the caller
# says what time it is.

MOST: Final = 10_000
"""Names that are remembered; the fullest buckets are forgotten first, since they tell nothing."""


class RateLimiter:
    """`per_minute` requests for every name; 0 is no limit."""

    def __init__(self, per_minute: int) -> None:
        self._per_second = per_minute / 60
        self._size = float(per_minute)
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, name: str, *, now: float) -> float:
        """Take one request; 0 when it was there, otherwise the seconds until it would be."""
        if not self._per_second:
            return 0.0
        left, since = self._buckets.get(name, (self._size, now))
        left = min(self._size, left + max(0.0, now - since) * self._per_second)
        if left < 1.0:
            self._buckets[name] = left, now
            return (1.0 - left) / self._per_second
        self._buckets[name] = left - 1.0, now
        if len(self._buckets) > MOST:
            self._forget(now)
        return 0.0

    def _forget(self, now: float) -> None:
        """Keep the half of the names that have used most."""
        ranked = sorted(
            self._buckets.items(), key=lambda one: one[1][0] + (now - one[1][1]) * self._per_second
        )
        self._buckets = dict(ranked[: MOST // 2])


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS tokens (
        id TEXT PRIMARY KEY, hash BLOB UNIQUE, tenant TEXT NOT NULL, label TEXT NOT NULL, created REAL NOT NULL,
        revoked REAL) WITHOUT ROWID""",
)
PREFIX: Final = "fv_"
"""What every secret begins with, so that a provider's key is never taken for one, nor one for a provider's key."""
LONGEST: Final = 200
"""Characters that are looked at; ours are shorter."""


class TokenCaller(msgspec.Struct, frozen=True, kw_only=True):
    """Who makes a request, as the transport says."""

    tenant: str
    token_id: str = ""
    """"" when no token is asked for."""


class AuthToken(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a token: all but its secret."""

    id: str
    tenant: str
    label: str
    created: float
    revoked: float | None = None


class AuthTokens:
    """The tokens of a server, in its own file."""

    def __init__(self, database: Database) -> None:
        database.create_tables(SCHEMA)
        self._database = database

    async def create(self, tenant: str, *, label: str = "", now: float) -> tuple[str, str]:
        """A new token: its id, and the secret, which cannot be had again."""
        id, secret = secrets.token_hex(4), f"{PREFIX}{secrets.token_urlsafe(32)}"

        def act(connection: apsw.Connection) -> None:
            row = (id, _hash(secret), tenant, label, now)
            connection.execute(
                "INSERT INTO tokens (id, hash, tenant, label, created) VALUES (?, ?, ?, ?, ?)", row
            )

        await self._database.do(act)
        return id, secret

    async def tenant_of(self, secret: str) -> TokenCaller | None:
        """Whose secret it is; None when it is nobody's, or nobody's any more."""
        if not secret.startswith(PREFIX) or len(secret) > LONGEST:
            return None

        def act(connection: apsw.Connection) -> TokenCaller | None:
            asked = "SELECT id, tenant FROM tokens WHERE hash = ? AND revoked IS NULL"
            row = connection.execute(asked, (_hash(secret),)).fetchone()
            return None if row is None else TokenCaller(tenant=row[1], token_id=row[0])

        return await self._database.look(act)

    async def list(self) -> list[AuthToken]:
        """All that there ever were, the oldest first."""

        def act(connection: apsw.Connection) -> list[AuthToken]:
            asked = "SELECT id, tenant, label, created, revoked FROM tokens ORDER BY created, id"
            return [
                AuthToken(id=id, tenant=tenant, label=label, created=created, revoked=revoked)
                for id, tenant, label, created, revoked in connection.execute(asked)
            ]

        return await self._database.look(act)

    async def revoke(self, id: str, *, now: float) -> bool:
        """From now on the token is nobody's; False when there is none with this id, or it was revoked before."""

        def act(connection: apsw.Connection) -> bool:
            change = "UPDATE tokens SET revoked = ?, hash = NULL WHERE id = ? AND revoked IS NULL"
            connection.execute(change, (now, id))
            return connection.changes() > 0

        return await self._database.do(act)

    async def any(self) -> bool:
        """Somebody has made a token at some time, so that every request needs one."""

        def act(connection: apsw.Connection) -> bool:
            return connection.execute("SELECT 1 FROM tokens LIMIT 1").fetchone() is not None

        return await self._database.look(act)


def _hash(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()
