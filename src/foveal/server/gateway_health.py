"""How a gateway to a chat app is, for `/healthz` and `/metrics`."""

from __future__ import annotations

import msgspec


class GatewayHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one gateway; its texts contain no secrets and nothing of a conversation."""

    platform: str
    status: str
    connected_since: float | None
    """When the gateway began to receive messages; None while it does not."""
    last_update: float | None
    """When the newest message arrived; None if none did since the start."""
    owed: int
    """Answers that are ready and not delivered, without those that their place refuses."""
    owed_oldest_at: float | None
    """When the oldest one became ready."""
    given_up: int
    """Answers that were not delivered within two days."""
    refused: int
    """Answers that their place refused, such as a closed topic; they are sent if it opens within two days."""
    last_error: str
    """What failed last, also if it works again; "" for nothing."""
