"""Bearer tokens of the HTTP server.

1. A token has a role. That of a tenant opens the tenant's sessions. One with the role `admin` manages the server,
   one with the role `metrics` reads its numbers, and neither opens a session.
2. Its secret is shown once, when it is created; the database stores the SHA-256 of its 32 random bytes. These
   cannot be guessed, so a slow hash would protect nothing, and the time of a lookup by hash reveals nothing about
   the secret.
3. A token may name the memory that drop-in requests with it show, for clients that cannot send a header.
4. A browser that has logged in with a token sends the id of its login instead, of which the database stores the
   SHA-256. A login ends with its token, when the user logs out, and after `MAX_LOGIN_S`.
5. A revoked token stays in the table: a server that has required tokens once keeps requiring them.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Collection
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from foveal.errors import BadSetting
from foveal.server.databases import Database, Transaction
from foveal.stores import check_tenant_name
from foveal.web.http_headers import TOKEN_PREFIX

TokenRole: TypeAlias = Literal["tenant", "admin", "metrics"]
TOKEN_ROLES: Final[tuple[TokenRole, ...]] = get_args(TokenRole)
DEFAULT_TENANT: Final = "default"
MAX_LABEL_CHARS: Final = 200
MAX_TOKEN_CHARS: Final = 200
"""Longer strings are rejected without a lookup; Foveal's own tokens are shorter."""

LOGIN_PREFIX: Final = "login:"
"""What stands for the token of a login: this, and the id of the login. No request can bring it in a header."""
MAX_LOGIN_S: Final = 7 * 24 * 3600.0
MAX_LOGINS_PER_TOKEN: Final = 1_000
"""Logins that are kept; the oldest ends first."""
REQUEST_USER: Final = "@request"
"""In place of a user: the one whom the body of each request names."""
_COLUMNS: Final = "id, tenant, label, created, revoked, memory, role"
USER_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._~:@|+-]{0,199}"
"""Ids of users, as login services and e-mail addresses have them."""
_MEMORY_CHOICE: Final = re.compile(rf"({USER_PATTERN}|{REQUEST_USER})(\s*;\s*hears)?")


def is_user_id(text: str) -> bool:
    """Return whether a text can be the id of a user: ASCII, so that no two ids look alike."""
    return re.fullmatch(USER_PATTERN, text) is not None


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
    """"" for a role that belongs to no tenant."""
    token_id: str = ""
    """"" if the server requires no token."""
    role: TokenRole = "tenant"
    memory: MemoryChoice | None = None
    """The memory that drop-in requests show without asking for it."""

    @property
    def user(self) -> str:
        """The user as whom all requests act; "" if the token names none."""
        return "" if self.memory is None or self.memory.user == REQUEST_USER else self.memory.user


class AuthToken(msgspec.Struct, frozen=True, kw_only=True):
    """A stored token without its secret."""

    id: str
    tenant: str
    """"" for a role that belongs to no tenant."""
    label: str
    created: float
    revoked: float | None = None
    memory: MemoryChoice | None = None
    role: TokenRole = "tenant"


class NewToken(NamedTuple):
    """What a token is created with."""

    tenant: str
    role: TokenRole
    label: str
    memory: MemoryChoice | None

    @classmethod
    def checked(
        cls, *, role: TokenRole, tenant: str | None, label: str, memory: str | None, prefix: str = ""
    ) -> NewToken:
        """Return what was asked for; raises `BadSetting`, which names a field with `prefix` before it."""
        if role != "tenant" and (tenant is not None or memory is not None):
            field, value = ("tenant", tenant) if tenant is not None else ("memory", memory)
            raise BadSetting(f"{prefix}{field}", value, f"not for a token with the role {role}")
        choice = None if memory is None else MemoryChoice.read(memory)
        if memory is not None and choice is None:
            allowed = "the id of a user, or @request, and behind it `; hears` to obey what the user says"
            raise BadSetting(f"{prefix}memory", memory[:100], allowed)
        if len(label) > MAX_LABEL_CHARS:
            raise BadSetting(f"{prefix}label", f"{label[:20]}…", f"at most {MAX_LABEL_CHARS} characters")
        named = DEFAULT_TENANT if tenant is None else tenant
        return cls(check_tenant_name(named) if role == "tenant" else "", role, label, choice)


class AuthTokens:
    """The tokens table of the server's database."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock

    async def create(
        self,
        tenant: str,
        *,
        label: str = "",
        memory: MemoryChoice | None = None,
        role: TokenRole = "tenant",
        now: float,
    ) -> tuple[str, str]:
        """Create a token; return its id and its secret, which cannot be read again. `tenant` is "" for a role that
        belongs to none."""
        id, secret = secrets.token_hex(4), f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"
        sql = (
            "INSERT INTO tokens (id, hash, tenant, label, created, memory, role) VALUES (?, ?, ?, ?, ?, ?, ?)"
        )
        values = id, _hash(secret), tenant, label, now, str(memory or ""), role
        await self._database.write(lambda db: db.execute(sql, *values), tenant=tenant or None)
        return id, secret

    async def authenticate(self, secret: str) -> TokenCaller | None:
        """Return the caller with this secret, or with this login; None if it is unknown, revoked or has ended."""
        if not secret.startswith((TOKEN_PREFIX, LOGIN_PREFIX)) or len(secret) > MAX_TOKEN_CHARS:
            return None
        where = "hash = ?"
        values: tuple[object, ...] = (_hash(secret),)
        if secret.startswith(LOGIN_PREFIX):
            where = "id = (SELECT token FROM browser_logins WHERE id = ? AND until > ?)"
            values = _hash(secret.removeprefix(LOGIN_PREFIX)), self._clock()
        sql = f"SELECT id, tenant, memory, role FROM tokens WHERE {where} AND revoked IS NULL"
        for id, tenant, memory, role in await self._database.read(lambda db: db.fetch(sql, *values)):
            choice = MemoryChoice.read(memory)
            return TokenCaller(tenant=tenant, token_id=id, memory=choice, role=_role(role))
        return None

    async def log_in(self, login: str, secret: str) -> bool:
        """Store the login of a browser with a token; return False if it is no valid token of a tenant."""
        caller = await self.authenticate(secret) if secret.startswith(TOKEN_PREFIX) else None
        if caller is None or caller.role != "tenant":
            return False
        now = self._clock()

        async def act(db: Transaction) -> None:
            await db.execute("DELETE FROM browser_logins WHERE until <= ?", now)
            await db.execute(
                """INSERT INTO browser_logins (id, token, until) VALUES (?, ?, ?)
                    ON CONFLICT (id) DO UPDATE SET until = excluded.until""",
                *(_hash(login), caller.token_id, now + MAX_LOGIN_S),
            )
            await db.execute(
                """DELETE FROM browser_logins WHERE token = ? AND id NOT IN
                    (SELECT id FROM browser_logins WHERE token = ? ORDER BY until DESC LIMIT ?)""",
                *(caller.token_id, caller.token_id, MAX_LOGINS_PER_TOKEN),
            )

        await self._database.write(act, repeatable=True)
        return True

    async def log_out(self, login: str) -> None:
        """End the login of a browser."""
        sql = "DELETE FROM browser_logins WHERE id = ?"
        await self._database.write(lambda db: db.execute(sql, _hash(login)), repeatable=True)

    async def list(self) -> list[AuthToken]:
        """Return all tokens including revoked ones, oldest first."""
        sql = f"SELECT {_COLUMNS} FROM tokens ORDER BY created, id"
        rows = await self._database.read(lambda db: db.fetch(sql))
        return [_token(*row) for row in rows]

    async def revoke(self, id: str, *, now: float) -> AuthToken | None:
        """Revoke a token and return it; None if the id is unknown or already revoked."""
        sql = f"""UPDATE tokens SET revoked = ?, hash = NULL WHERE id = ? AND revoked IS NULL
            RETURNING {_COLUMNS}"""
        rows = await self._database.write(lambda db: db.fetch(sql, now, id))
        return _token(*rows[0]) if rows else None

    async def valid(self, ids: Collection[str]) -> set[str]:
        """Return those of these ids whose tokens are not revoked."""
        sql = f"SELECT id FROM tokens WHERE revoked IS NULL AND id IN ({', '.join('?' * len(ids))})"
        return {id for (id,) in await self._database.read(lambda db: db.fetch(sql, *ids))}

    async def any_exist(self) -> bool:
        """Return whether a token was ever created; if so, every request needs one."""
        return bool(await self._database.read(lambda db: db.fetch("SELECT 1 FROM tokens LIMIT 1")))


def _token(id: str, tenant: str, label: str, created: float, *others: Any) -> AuthToken:
    revoked, memory, role = others
    choice = MemoryChoice.read(memory)
    return AuthToken(
        id=id, tenant=tenant, label=label, created=created, revoked=revoked, memory=choice, role=_role(role)
    )


def _role(stored: str) -> TokenRole:
    """Return a stored role; one that a later version has added may do the least that this version knows."""
    return next((role for role in TOKEN_ROLES if role == stored), "metrics")


def _hash(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()
