"""A picture that a provider refuses does not end the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from foveal import ProviderError, Session
from foveal.agent.events import AgentEvent, ContextReduced
from foveal.agent.loop import Agent
from foveal.agent.tool import image_part, media_dialect
from foveal.agent.tools import Toolbox
from foveal.core.log.events import AnyPart, Content, Masked, Media, Reverted, Text, UserSaid, parts
from foveal.core.view.request import Fitted
from foveal.ports import Reply, ReplyPiece
from foveal.stores.memory import MemoryStore
from foveal.testing import Answer, Scripted

GOOD = image_part("image/png", b"good")
BAD = image_part("image/png", b"bad bytes")
MASK = "[foveal: image/png of 12 bytes is not shown: the provider refused it; whole: e{}]"


class PictureReader(Scripted):
    """Refuses every request with a picture that it cannot read."""

    def __init__(self, *answers: Answer, refused: tuple[Media, ...]) -> None:
        super().__init__(*answers)
        self.refused = refused

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        if any(media in self.refused for media in shown_media(request)):
            self.requests.append(request)
            raise ProviderError("the request was refused (400): could not process image", code="refused")
        async for piece in super().send(request, max_tokens=max_tokens):
            yield piece


def shown_media(request: Fitted) -> list[AnyPart]:
    users = [fact for fact in request.facts if isinstance(fact, UserSaid)]
    return [part for fact in users for part in parts(fact.content) if isinstance(part, Media)]


@asynccontextmanager
async def opened(provider: Scripted, *, policy: str = "economy") -> AsyncIterator[Agent]:
    async with MemoryStore() as store:
        session = await Session.open(store, "a", model=provider.model, policy=policy)
        yield Agent(session, provider, Toolbox([]))
        await session.close()


async def turn(agent: Agent, content: Content) -> list[AgentEvent]:
    return [event async for event in agent.run(content, dialect=media_dialect(content))]


async def facts(agent: Agent, *kinds: type) -> list[object]:
    return [event.fact for event in await agent.session.events() if isinstance(event.fact, kinds)]


def picture(media: Media) -> Content:
    return (Text(text="What is it?"), media)


def test_a_refused_picture_is_masked_and_the_message_is_asked_again() -> None:
    async def run() -> None:
        provider = PictureReader("I see nothing.", "Hello again.", refused=(BAD,))
        async with opened(provider) as agent:
            events = await turn(agent, picture(BAD))
            (said,) = [e for e in await agent.session.events() if isinstance(e.fact, UserSaid)]
            (masked,) = await facts(agent, Masked)
            assert isinstance(masked, Masked)
            assert [(mask.target, mask.part) for mask in masked.masks] == [(said.seq, 1)]
            assert masked.masks[0].text == MASK.format(said.seq)
            assert [event.events[0].fact for event in events if isinstance(event, ContextReduced)] == [masked]
            await turn(agent, "And now?")
            assert len(provider.requests) == 3

    asyncio.run(run())


def test_a_picture_that_was_answered_stays() -> None:
    async def run() -> None:
        provider = PictureReader("A cat.", "I see nothing.", refused=(BAD,))
        async with opened(provider) as agent:
            await turn(agent, picture(GOOD))
            await turn(agent, picture(BAD))
            assert shown_media(provider.requests[-1]) == [GOOD]

    asyncio.run(run())


def test_after_a_change_of_the_model_earlier_pictures_are_masked_too() -> None:
    async def run() -> None:
        provider = PictureReader("A cat.", "I see nothing.", refused=())
        async with opened(provider) as agent:
            await turn(agent, picture(GOOD))
            provider.refused = (GOOD, BAD)
            await turn(agent, picture(BAD))
            assert shown_media(provider.requests[-1]) == []

    asyncio.run(run())


@pytest.mark.parametrize("code", ["refused", "connection"])
def test_a_picture_that_was_not_the_cause_is_shown_again(code: str) -> None:
    async def run() -> None:
        answers = ProviderError("no such model", code="refused"), ProviderError("no", code=code), "A cat."
        provider = Scripted(*answers)
        async with opened(provider) as agent:
            with pytest.raises(ProviderError):
                await turn(agent, picture(GOOD))
            assert len(await facts(agent, Masked)) == len(await facts(agent, Reverted)) == 1
            await turn(agent, "And now?")
            assert shown_media(provider.requests[-1]) == [GOOD]

    asyncio.run(run())


def test_the_policy_off_masks_nothing() -> None:
    async def run() -> None:
        async with opened(PictureReader(refused=(BAD,)), policy="off") as agent:
            with pytest.raises(ProviderError, match="could not process image"):
                await turn(agent, picture(BAD))
            assert await facts(agent, Masked) == []

    asyncio.run(run())
