"""Limits that upstreams state when they refuse a request, shared by all machines.

1. A limit belongs to an upstream, a model, and the beta features of the request that change limits: the same name
   can mean different limits elsewhere.
2. A limit for the answer (`max_tokens`) counts from its first refusal on. A window counts for other sessions when
   two sessions were told the same one: a single refusal may come from an odd route or another account. The session
   that was refused learns from its own log at once.
3. Only numbers that an upstream states are shared, never guesses. A limit is forgotten `MAX_LIMIT_AGE_S` after it
   was last stated, so that a provider can raise it.
4. Limits of other machines arrive within `LIMITS_REFRESH_S`. While the database is away, what is known counts,
   and what is stated is not stored: the next refusal states it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from foveal.core.engine.overflow import LEARNED_FROM_REFUSAL
from foveal.core.models.model import Model
from foveal.core.wire.bound_thinking import BETA_HEADER
from foveal.errors import StoreError
from foveal.server.databases import Database, Transaction

LimitKind = Literal["window", "output"]
MIN_SESSIONS: Final[dict[LimitKind, int]] = {"window": 2, "output": 1}
"""Sessions that must have been told a limit before it counts for all."""
MAX_LIMIT_AGE_S: Final = 24 * 3600.0
LIMITS_REFRESH_S: Final = 10.0
MIN_LIMIT_TOKENS: Final[dict[LimitKind, int]] = {"window": 1_000, "output": 1}
"""A smaller number is no limit of a model."""
_LIMITING_BETAS: Final = ("context-", "output-")
"""How the names of beta features begin that change the window or the limit for the answer."""


class LimitedModel(NamedTuple):
    """A model at an upstream, as one kind of request reaches it."""

    upstream: str
    """The URL without its query; it has no credentials."""
    model: str
    features: str = ""
    """The beta features that change limits."""


def limiting_features(headers: Iterable[tuple[str, str]]) -> str:
    """Return the beta features of a request that change limits."""
    given = ",".join(value for name, value in headers if name.lower() == BETA_HEADER)
    return ",".join(
        sorted({one.strip() for one in given.split(",") if one.strip().startswith(_LIMITING_BETAS)})
    )


class LearnedLimits:
    """The limits that count now, and what was stated of them."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database, self._clock = database, clock
        self._limits: dict[tuple[LimitedModel, LimitKind], int] = {}
        self._read_at = float("-inf")

    async def refresh(self) -> None:
        """Read what all machines have learned, unless that was done a moment ago."""
        now = self._clock()
        if not 0 <= now - self._read_at < LIMITS_REFRESH_S:
            self._read_at = now
            with suppress(StoreError):
                await self._read()

    def limited(self, model: Model, at: LimitedModel) -> Model:
        """Return a model with the window that its upstream has stated."""
        window = self._limits.get((at, "window"), model.window)
        if window >= model.window:
            return model
        sources = model.sources | {"window": LEARNED_FROM_REFUSAL}
        return replace(model, window=window, max_input=min(window, model.max_input), sources=sources)

    def max_output(self, at: LimitedModel) -> int:
        """Return the most output tokens that an upstream allows; 0 if it has stated none."""
        return self._limits.get((at, "output"), 0)

    async def note(self, at: LimitedModel, kind: LimitKind, tokens: int, *, session: str) -> None:
        """Store that an upstream has stated a limit to a session."""
        if tokens < MIN_LIMIT_TOKENS[kind]:
            return
        teller = sha256(session.encode("utf-8", "surrogateescape")).digest()[:16]

        now = self._clock()

        async def act(db: Transaction) -> None:
            await db.execute("DELETE FROM learned_limits WHERE at <= ?", now - MAX_LIMIT_AGE_S)
            await db.execute(
                """INSERT INTO learned_limits (upstream, model, features, kind, tokens, teller, at)
                    VALUES (?, ?, ?, ?, ?, ?, ?)
                    ON CONFLICT (upstream, model, features, kind, tokens, teller) DO UPDATE SET at = excluded.at""",
                *(*at, kind, tokens, teller, now),
            )

        with suppress(StoreError):
            await self._database.write(act, durable=False, repeatable=True)
            await self._read()

    async def _read(self) -> None:
        """Read the limits: of several that count, the one that was stated last."""
        oldest = self._clock() - MAX_LIMIT_AGE_S
        sql = """SELECT upstream, model, features, kind, tokens, count(*), max(at) FROM learned_limits
            WHERE at > ? GROUP BY upstream, model, features, kind, tokens ORDER BY max(at)"""
        rows = await self._database.read(lambda db: db.fetch(sql, oldest))
        self._limits = {
            (LimitedModel(upstream, model, features), kind): tokens
            for upstream, model, features, kind, tokens, tellers, _ in rows
            if tellers >= MIN_SESSIONS[kind]
        }
