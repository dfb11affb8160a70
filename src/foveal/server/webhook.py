"""Webhook: asks a server of the operator about each cut before it is made.

1. The body is the JSON of a `ProposedCut` with the tenant and the session; the answer is that of a hook
   (`Steering`) as JSON, or empty for no wish.
2. `X-Foveal-Timestamp` has the Unix time, and `X-Foveal-Signature` `sha256=` with the HMAC-SHA256 of the time, a
   dot and the body, by the secret. A receiver refuses what is older than it allows.
3. A call takes at most `WEBHOOK_TIMEOUT_S`, an answer has at most `MAX_WEBHOOK_ANSWER_BYTES`, and
   redirects are not followed.
4. Only public addresses are contacted, unless the operator allows others: a name is resolved once, and the
   connection goes to the address that was checked.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final

import aiohttp
import msgspec
from yarl import URL

from foveal.config import Config
from foveal.core.engine.reviews import ProposedCut, Steering, cut_to_send
from foveal.errors import BadSetting, FovealError
from foveal.server.fetch_tool import CheckedResolver, FetchRefused, IsAllowed, check_literal, is_public

WEBHOOK_TIMEOUT_S: Final = 5.0
"""Seconds for one call."""
MAX_WEBHOOK_ANSWER_BYTES: Final = 65_536
MAX_EVENTS: Final = 2_000
"""Events of a cut that the body names, the oldest first."""
SIGNATURE_HEADER: Final = "X-Foveal-Signature"
TIMESTAMP_HEADER: Final = "X-Foveal-Timestamp"


class ReductionNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a call."""

    tenant: str
    session: str
    cut: ProposedCut


def sign(body: bytes, secret: str, *, timestamp: str) -> str:
    """Return the signature of a body that was sent at a time."""
    signed = timestamp.encode() + b"." + body
    return f"sha256={hmac.new(secret.encode(), signed, 'sha256').hexdigest()}"


class Webhook:
    """The webhook of a server."""

    def __init__(
        self,
        url: str,
        *,
        secret: str,
        clock: Callable[[], float],
        is_allowed: IsAllowed = is_public,
    ) -> None:
        if not secret:
            raise BadSetting("server.webhook_secret", "", "a secret, because calls of the webhook are signed")
        self._url = URL(url)
        self._secret = secret
        self._clock = clock
        self._is_allowed = is_allowed

    @classmethod
    def of(cls, config: Config, clock: Callable[[], float]) -> Webhook | None:
        """Return the webhook of a configuration; None if it has none. Raises `BadSetting` without a secret."""
        url = config.get("server.webhook")
        if not url:
            return None
        secret = config.get("server.webhook_secret") or ""
        allowed: IsAllowed = (lambda _: True) if config.get("server.webhook_private") else is_public
        return cls(url, secret=secret, clock=clock, is_allowed=allowed)

    async def ask(self, cut: ProposedCut, *, tenant: str, session: str) -> Steering | None:
        """Return what the operator's server answers about a cut; raises `FovealError` or an error of the client."""
        shown = cut_to_send(msgspec.structs.replace(cut, events=cut.events[:MAX_EVENTS]))
        body = msgspec.json.encode(ReductionNotice(tenant=tenant, session=session, cut=shown))
        timestamp = str(int(self._clock()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "foveal",
            TIMESTAMP_HEADER: timestamp,
            SIGNATURE_HEADER: sign(body, self._secret, timestamp=timestamp),
        }
        connector = aiohttp.TCPConnector(
            resolver=CheckedResolver(self._is_allowed), use_dns_cache=False, force_close=True
        )
        timeout = aiohttp.ClientTimeout(total=WEBHOOK_TIMEOUT_S)
        try:
            check_literal(self._url, self._is_allowed)
            async with (
                aiohttp.ClientSession(
                    connector=connector, timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
                ) as client,
                client.post(self._url, data=body, headers=headers, allow_redirects=False) as reply,
            ):
                return await _read(reply)
        except FetchRefused as problem:
            raise FovealError(
                f"the webhook was not called: {problem}; server.webhook_private allows it"
            ) from None
        except TimeoutError:
            raise FovealError(f"the webhook took longer than {WEBHOOK_TIMEOUT_S:g} seconds") from None


async def _read(reply: aiohttp.ClientResponse) -> Steering | None:
    if reply.status not in (200, 204):
        raise FovealError(f"the webhook answered with status {reply.status}")
    data = bytearray()
    async for piece in reply.content.iter_chunked(8_192):
        data += piece
        if len(data) > MAX_WEBHOOK_ANSWER_BYTES:
            raise FovealError(f"the answer of the webhook has more than {MAX_WEBHOOK_ANSWER_BYTES:,} bytes")
    return msgspec.json.decode(data, type=Steering | None) if data.strip() else None
