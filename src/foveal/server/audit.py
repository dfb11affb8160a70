"""The audit trail: who did what with a server and its sessions, without any text of a message.

1. The table is append-only: the database itself refuses to change or delete a row.
2. A row names a user by a digest with a salt of its own. So an erased user leaves the fact of the erasure and no
   name, and those who know the id find its rows again.
3. Reads of the same object by the same actor are one row per minute: a client that polls must not fill the disk.
   So are refused logins, of which the trail also keeps a bounded number per minute: they need no token.
4. A row is written before its request is answered. Only reads are answered while the table cannot be written, such
   as on a full disk: their rows wait in memory.
5. Drop-in requests and turns are not in it: they are the traffic of a session, which its own log records.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from hashlib import blake2b, scrypt
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from foveal.config import Config
from foveal.errors import StoreError
from foveal.server.auth_tokens import TokenRole
from foveal.server.databases import Database, RowValues, Transaction
from foveal.server.rate_limit import RateLimiter

LOG: Final = logging.getLogger("foveal.service")
AuditAction: TypeAlias = Literal[
    "login", "logout", "token", "read", "export", "change", "undo", "erase", "config"
]
AuditOutcome: TypeAlias = Literal["ok", "refused", "failed"]
"""`refused`: the client's fault, such as an unknown session; `failed`: the server's or the provider's."""
COMMAND_LINE: Final = "command line"
"""Actor of what a command of this machine did."""
RETENTION: Final = "retention"
"""Actor of erasures because a session was not used for a configured time."""
PAIRING_CODE: Final = "pairing code"
"""Actor of the login of a user who sent a code to a bot."""
WITHOUT_TOKEN: Final = "no token"
"""Actor of a request to a server that needs no token."""
REPEAT_INTERVAL_S: Final = 60.0
MAX_REMEMBERED_READS: Final = 10_000
MAX_WAITING_READS: Final = 10_000
MAX_REFUSED_LOGINS_PER_MINUTE: Final = 60
AUDIT_PAGE: Final = 1_000
"""Rows that one query reads."""
_OWN_SETTINGS: Final = frozenset({"server.host", "server.port", "server.folder", "server.database"})
_USER: Final = "user:"
_SALT_BYTES: Final = 8
_KEY_BYTES: Final = 10
_SCRYPT_COST: Final = 1 << 14
"""A digest takes about 40 ms and 16 MB."""
_INSERT: Final = """INSERT INTO audit (key, at, tenant, actor, action, object, outcome, address)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_COLUMNS: Final = "id, at, tenant, actor, action, object, outcome, address"


class AuditedObject(NamedTuple):
    """What a request is about, as its handler tells the trail: the path of the request does not say it."""

    name: str
    tenant: str | None = None
    """The tenant that it concerns, if that is not the caller's."""


def token_object(id: str, act: Literal["created", "revoked"], role: TokenRole) -> str:
    """Return how the trail names a token that was created or revoked."""
    return f"token:{id} {act}, role {role}"


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the trail."""

    id: int
    """Rises with each row."""
    at: float
    tenant: str
    """"" for what concerns the server as a whole."""
    actor: str
    """The id of a token, `command line`, `retention`, `pairing code` for a user of a bot, or `no token` on a server
    without tokens; "" for a refused login."""
    action: str
    object: str
    """Such as `session:demo` or `token:3f2a9c01 created, role admin`; of a user, a digest; "" for a list."""
    outcome: str
    """`ok`; `refused` for the client's fault, `failed` for the server's or the provider's."""
    address: str
    """Where the connection came from: that of a reverse proxy, if there is one; "" for a command."""


class AuditFilter(NamedTuple):
    """Which rows of the trail to read."""

    since: float = float("-inf")
    until: float = float("inf")
    tenant: str | None = None
    action: str | None = None
    user: str | None = None
    """The id of a user: only rows that name this one."""


class AuditTrail:
    """The audit table of the server's database."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._recent: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._waiting: list[RowValues] = []
        """Rows of reads that could not be written yet."""
        self._refused_logins = RateLimiter(MAX_REFUSED_LOGINS_PER_MINUTE)

    async def record(
        self,
        action: AuditAction,
        object: str = "",
        *,
        tenant: str = "",
        actor: str = COMMAND_LINE,
        outcome: AuditOutcome = "ok",
        address: str = "",
    ) -> None:
        """Add a row. `object` is a kind, a colon and a name; that of a user is replaced by its digest. Raises
        `StoreError`; but rows of reads wait in memory until the table can be written."""
        now, values = self._clock(), (tenant, actor, action, object, outcome, address)
        if (action == "read" or not actor) and self._is_repeated(values, now):
            return
        if not actor and self._refused_logins.take("", now=now):
            return
        row = (_new_key(now), now, *values[:3], _storable_object(object), *values[4:])
        await self._write([row], may_wait=action == "read")

    async def close(self) -> None:
        """Write the rows that wait, if the table can be written."""
        await self._write([], may_wait=True)

    async def _write(self, rows: list[RowValues], *, may_wait: bool) -> None:
        """Write the rows that wait, and these."""
        waiting, self._waiting = self._waiting, []
        given = [*waiting, *rows]
        try:
            if given:
                await self._database.write(lambda db: db.execute_many(_INSERT, given), durable=not may_wait)
        except StoreError as problem:
            kept = given if may_wait else waiting
            self._waiting = [*kept, *self._waiting][-MAX_WAITING_READS:]
            if not may_wait:
                raise
            LOG.warning("%d rows of the audit trail wait: %s", len(self._waiting), problem)

    async def record_config(self, config: Config, *, changed: Sequence[str] = ()) -> None:
        """Record the settings of a server by their digest, if they are not those of the last row. After a reload,
        the row also has the names of the `changed` ones. Several machines that reload at the same time write one
        row."""
        now = self._clock()

        async def act(db: Transaction) -> None:
            await db.lock("audit/config")
            sql = "SELECT object FROM audit WHERE action = 'config' ORDER BY id DESC LIMIT 1"
            (last,), *_ = [*await db.fetch(sql), ("",)]
            last = last.partition(" ")[0]
            digest = f"config:{_config_digest(config, last)}"
            object = f"{digest} changed, {' '.join(changed)}" if changed else digest
            if last != digest:
                await db.execute(_INSERT, _new_key(now), now, "", COMMAND_LINE, "config", object, "ok", "")

        await self._database.write(act)

    async def page(self, chosen: AuditFilter, *, after: int = 0, limit: int) -> list[AuditEntry]:
        """Return the oldest rows with an id above `after`, at most `limit`."""
        found: list[AuditEntry] = []
        while len(found) < limit:
            rows = await self._read(chosen, after)
            entries = [
                AuditEntry(**dict(zip(AuditEntry.__struct_fields__, row, strict=True))) for row in rows
            ]
            found += (entry for entry in entries if _names(entry.object, chosen.user))
            if len(rows) < AUDIT_PAGE:
                break
            after = entries[-1].id
        return found[:limit]

    async def entries(self, chosen: AuditFilter) -> AsyncIterator[AuditEntry]:
        """Yield all rows, oldest first."""
        after = 0
        while page := await self.page(chosen, after=after, limit=AUDIT_PAGE):
            for entry in page:
                yield entry
            after = page[-1].id

    async def _read(self, chosen: AuditFilter, after: int) -> list[RowValues]:
        wanted = {"tenant": chosen.tenant, "action": chosen.action}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = "".join(f" AND {name} = ?" for name in given)
        if chosen.user is not None:
            where += f" AND object LIKE '{_USER}%'"
        sql = f"""SELECT {_COLUMNS} FROM audit WHERE id > ? AND at >= ? AND at < ?{where}
            ORDER BY id LIMIT {AUDIT_PAGE}"""
        values = after, chosen.since, chosen.until, *given.values()
        return await self._database.read(lambda db: db.fetch(sql, *values))

    def _is_repeated(self, values: tuple[str, ...], now: float) -> bool:
        """Return whether the same was recorded less than a minute ago; remember it otherwise."""
        at = self._recent.get(values)
        if at is not None and now - at < REPEAT_INTERVAL_S:
            return True
        self._recent[values] = now
        self._recent.move_to_end(values)
        if len(self._recent) > MAX_REMEMBERED_READS:
            self._recent.popitem(last=False)
        return False


def _new_key(now: float) -> str:
    """Return a key that no row of any database has. Keys sort by time, so that a copy of the rows is in order."""
    return f"{int(now * 1_000_000):014x}{secrets.token_hex(_KEY_BYTES)}"


def _config_digest(config: Config, last: str) -> str:
    """Return a digest of all settings but the place of a server: those of several machines are the same. Behind it,
    if there are secrets, is one of them with the salt of the last row, which is slow to compute: a secret that is a
    short word must not be found by trying."""
    shown = {entry.name: entry.value for entry in config.entries() if entry.name not in _OWN_SETTINGS}
    found = blake2b(_json(shown), digest_size=8).hexdigest()
    secrets_given = {name: value for name, value in config.hidden_values() if name not in _OWN_SETTINGS}
    if not secrets_given:
        return found
    salt = last.split(".")[1] if "." in last else secrets.token_hex(_SALT_BYTES)
    hidden = scrypt(_json(secrets_given), salt=salt.encode(), n=_SCRYPT_COST, r=8, p=1, dklen=8)
    return f"{found}.{salt}.{hidden.hex()}"


def _json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, default=str).encode()


def _storable_object(object: str) -> str:
    if not object.startswith(_USER):
        return object
    salt = secrets.token_hex(_SALT_BYTES)
    return f"{_USER}{salt}.{_digest(object.removeprefix(_USER), salt)}"


def _names(object: str, user: str | None) -> bool:
    """Return whether an object is this user; every object is, if no user is asked for."""
    if user is None:
        return True
    salt, _, digest = object.removeprefix(_USER).partition(".")
    return digest == _digest(user, salt)


def _digest(user: str, salt: str) -> str:
    return blake2b(user.encode("utf-8", "surrogatepass"), key=salt.encode(), digest_size=16).hexdigest()
