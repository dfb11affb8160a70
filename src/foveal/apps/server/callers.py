"""Who makes a request. What was looked up is remembered for a moment, so that a request costs no look into the
file, and a token that was revoked is good for that moment at the most."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from foveal.apps.server.headers import Headers, secret_of
from foveal.service.tokens import Caller, Tokens

MOMENT: Final = 1.0
"""Seconds."""
MOST: Final = 1_000
OPEN: Final = Caller(tenant="default")
"""Whoever asks while no token was ever made."""


class Callers:
    def __init__(
        self, tokens: Tokens, *, loopback: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`loopback`: the server listens on this machine only, where nobody needs a token before there is one."""
        self._tokens = tokens
        self._loopback = loopback
        self._clock = clock
        self._known: dict[str, tuple[Caller, float]] = {}
        self._asked = float("-inf")
        self._needed = False

    async def caller(self, headers: Headers) -> Caller | None:
        """Who it is; None for somebody who needs a token and has none that is good."""
        secret = secret_of(headers)
        found = await self._owner(secret) if secret else None
        if secret:  # whoever has one speaks of a token that was made: what is remembered of none is old
            self._asked = float("-inf")
        if found is not None or await self.needed():
            return found
        return OPEN

    async def needed(self) -> bool:
        """Whether a request needs a token. Once it does, it always will."""
        if not self._needed and self._clock() - self._asked >= MOMENT:
            self._needed = not self._loopback or await self._tokens.any()
            self._asked = self._clock()
        return self._needed

    async def _owner(self, secret: str) -> Caller | None:
        known = self._known.get(secret)
        if known is not None and self._clock() - known[1] < MOMENT:
            return known[0]
        found = await self._tokens.tenant_of(secret)
        self._known.pop(secret, None)
        if found is not None:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[secret] = found, self._clock()
        return found
