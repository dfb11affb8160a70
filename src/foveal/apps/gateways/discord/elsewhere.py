"""Where the bot looks for Discord: at another address, if one is set.

discord.py knows its hosts by heart, and asks for them in three places: the REST interface, the answers to
interactions and the gateway. All of them connect through the client's connector, so this one sends them elsewhere.
"""

from __future__ import annotations

import aiohttp
from aiohttp.tracing import Trace
from yarl import URL


class Elsewhere(aiohttp.TCPConnector):
    """Whatever is asked for, it is asked for at `base`."""

    def __init__(self, base: str) -> None:
        super().__init__(limit=0)
        self._base = URL(base)

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        asked = req.url
        req.url = URL.build(
            scheme=self._base.scheme,
            authority=self._base.raw_authority,
            path=self._base.raw_path.rstrip("/") + asked.raw_path,
            query_string=asked.raw_query_string,
            encoded=True,
        )
        req.headers["Host"] = self._base.raw_authority
        return await super().connect(req, traces, timeout)
