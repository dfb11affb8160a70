"""What the faces have in common: a token from the environment, conversations by the configuration, and a bot that
is told of answers which nobody in its chats has asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

from foveal.apps.gateways.talk import Talk
from foveal.config import Config
from foveal.errors import BadSetting
from foveal.service import Room, Service, Turn
from foveal.service.pairing import Face, Pairing

SETTLE: Final = 5.0
"""Seconds that answers get to be said when the server stops."""


class Bot(Protocol):
    async def unasked(self, room: Room, turn: Turn) -> None:
        """A turn has ended; if nobody in its chat waits for it, it is told there."""
        ...

    async def close(self, *, settle: float) -> None: ...


def token_of(environment: Mapping[str, str], name: str, wanted: str) -> str:
    """A bot's token; raises `BadSetting`, which says what is wanted, when there is none."""
    token = environment.get(name, "").strip()
    if not token:
        raise BadSetting(name, "", wanted)
    return token


def talk_of(service: Service, pairing: Pairing, config: Config, face: Face) -> Talk:
    """The conversations of a face, with those whom the configuration allows."""
    return Talk(
        service,
        pairing,
        face=face,
        allowed=frozenset(config.get(f"{face}.allowed")),
        footer=config.get(f"{face}.footer"),
    )


@asynccontextmanager
async def told(service: Service, face: Face, bot: Bot, *, settle: float) -> AsyncIterator[None]:
    """While the block lasts the bot is told how turns end; then it says what it still has to say."""
    answered = service.tenant(face).answered
    answered.append(bot.unasked)
    try:
        yield
    finally:
        answered.remove(bot.unasked)
        await bot.close(settle=settle)
