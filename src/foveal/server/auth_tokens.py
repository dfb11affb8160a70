"""Bearer tokens of the HTTP server.

1. A token belongs to one tenant. Its secret is shown once, when it is created; the database stores the SHA-256 of
   its 32 random bytes. These cannot be guessed, so a slow hash would protect nothing, and the time of a lookup by
   hash reveals nothing about the secret.
2. A token may name the memory that drop-in requests with it show, for clients that cannot send a header.
3. A revoked token stays in the table: a server that has required tokens once keeps requiring them.
"""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from foveal.server.databases import Database
from foveal.web.http_headers import TOKEN_PREFIX

MAX_TOKEN_CHARS: Final = 200
"""Longer strings are rejected without a lookup; Foveal's own tokens are shorter."""

REQUEST_USER: Final = "@request"
"""In place of a user: the one whom the body of each request names."""
_USER: Final = r"[A-Za-z0-9][A-Za-z0-9._~:@-]{0,199}"
_MEMORY_CHOICE: Final = re.compile(rf"({_USER}|{REQUEST_USER})(\s*;\s*hears)?")


def is_user_id(text: str) -> bool:
    """Return whether a text can be the id of a user: ASCII, so that no two ids look alike."""
    return re.fullmatch(_USER, text) is not None


class MemoryChoice(NamedTuple):
    """Whose memory drop-in requests show."""

    user: str
    hears: bool = False
    """Whether "remember that …" in the newest message is obeyed: clients put other texts into messages too."""

    @classmethod
    def read(cls, text: str) -> MemoryChoice | None:
        """Return the choice that `USER`, or `USER; hears`, stands for; None for any other text."""
        found = _MEMORY_CHOICE.fullmatch(text)
        return None if found is None else cls(found[1], hears=found[2] is not None)

    def __str__(self) -> str:
        return f"{self.user}; hears" if self.hears else self.user


class TokenCaller(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated caller of a request."""

    tenant: str
    token_id: str = ""
    """"" if the server requires no token."""
    memory: MemoryChoice | None = None
    """The memory that drop-in requests show without asking for it."""


class AuthToken(msgspec.Struct, frozen=True, kw_only=True):
    """A stored token without its secret."""

    id: str
    tenant: str
    label: str
    created: float
    revoked: float | None = None
    memory: MemoryChoice | None = None


class AuthTokens:
    """The tokens table of the server's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, tenant: str, *, label: str = "", memory: MemoryChoice | None = None, now: float
    ) -> tuple[str, str]:
        """Create a token; return its id and its secret, which cannot be read again."""
        id, secret = secrets.token_hex(4), f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"
        sql = "INSERT INTO tokens (id, hash, tenant, label, created, memory) VALUES (?, ?, ?, ?, ?, ?)"
        values = id, _hash(secret), tenant, label, now, str(memory or "")
        await self._database.write(lambda db: db.execute(sql, *values), tenant=tenant)
        return id, secret

    async def authenticate(self, secret: str) -> TokenCaller | None:
        """Return the caller with this secret; None if the secret is unknown or revoked."""
        if not secret.startswith(TOKEN_PREFIX) or len(secret) > MAX_TOKEN_CHARS:
            return None
        sql = "SELECT id, tenant, memory FROM tokens WHERE hash = ? AND revoked IS NULL"
        for id, tenant, memory in await self._database.read(lambda db: db.fetch(sql, _hash(secret))):
            return TokenCaller(tenant=tenant, token_id=id, memory=MemoryChoice.read(memory))
        return None

    async def list(self) -> list[AuthToken]:
        """Return all tokens including revoked ones, oldest first."""
        sql = "SELECT id, tenant, label, created, revoked, memory FROM tokens ORDER BY created, id"
        rows = await self._database.read(lambda db: db.fetch(sql))
        return [
            AuthToken(
                id=id,
                tenant=tenant,
                label=label,
                created=created,
                revoked=revoked,
                memory=MemoryChoice.read(memory),
            )
            for id, tenant, label, created, revoked, memory in rows
        ]

    async def revoke(self, id: str, *, now: float) -> bool:
        """Revoke a token; return False if the id is unknown or already revoked."""
        sql = "UPDATE tokens SET revoked = ?, hash = NULL WHERE id = ? AND revoked IS NULL"
        return await self._database.write(lambda db: db.execute(sql, now, id)) > 0

    async def any_exist(self) -> bool:
        """Return whether a token was ever created; if so, every request needs one."""
        return bool(await self._database.read(lambda db: db.fetch("SELECT 1 FROM tokens LIMIT 1")))


def _hash(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()
