"""Commands that change a session wait for the answer that is being written."""

from __future__ import annotations

import asyncio
from pathlib import Path

from foveal.config import load
from foveal.core.log import Compacted, Reverted, UserSaid
from foveal.server import ChatPlace, Pairing, Service
from foveal.server.gateways import texts
from foveal.server.gateways.chat_sessions import ChatSessions
from foveal.server.gateways.incoming import IncomingMessage
from foveal.server.gateways.outgoing import COMPACT_ACTION, ChannelMessage
from foveal.testing import Scripted
from support.gated_provider import GatedProvider, run
from support.provided import provided

PLACE = ChatPlace(42)


class Chat:
    """One private chat; `read` collects the replies to a text in the background."""

    def __init__(self, folder: Path, provider: Scripted) -> None:
        self._config = load(folder, flags={}, environ={}, user_folder=folder / "no-config")
        self._folder = folder / "served"
        self._provider = provider
        self._sent = 0

    async def __aenter__(self) -> Chat:
        self._opening = Service.open(
            self._config, folder=self._folder, environment={}, make_provider=provided(self._provider)
        )
        self.service = await self._opening.__aenter__()
        pairing = Pairing(self.service.runtime.database)
        self.chats = ChatSessions(
            self.service, pairing, platform="telegram", allowed=frozenset({42}), footer=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opening.__aexit__(None, None, None)

    async def read(self, text: str) -> tuple[list[str], asyncio.Task[None]]:
        """Send a text; return its replies, which grow, and the task that collects them."""
        self._sent += 1
        message = IncomingMessage(key=f"telegram-{self._sent}", place=PLACE, user=42, text=text)
        return self._collect((await self.chats.accept(message)).replies)

    async def press(self, action: str) -> tuple[list[str], asyncio.Task[None]]:
        return self._collect((await self.chats.press_button(place=PLACE, user=42, action=action)).replies)

    def _collect(self, replies: object) -> tuple[list[str], asyncio.Task[None]]:
        found: list[str] = []

        async def collect() -> None:
            async for reply in replies:  # type: ignore[attr-defined]
                assert isinstance(reply, ChannelMessage)
                found.append(reply.text)

        return found, asyncio.create_task(collect())

    async def changes(self) -> list[str]:
        """Return the kinds of the messages, summaries and undone summaries in the log, in their order."""
        live = await self.service.tenant("telegram").session("telegram-42")
        kinds = (UserSaid, Compacted, Reverted)
        return [type(event.fact).__name__ for event in await live.events() if isinstance(event.fact, kinds)]


def long(number: int) -> str:
    return f"Answer {number}: " + " ".join(f"word{number}x{i}" for i in range(150))


async def talk(chat: Chat, provider: GatedProvider, count: int) -> None:
    provider.gate.set()
    for number in range(count):
        _, task = await chat.read(f"Tell me about {number}.")
        await task
    await (await chat.service.tenant("telegram").session("telegram-42")).wait_idle()
    provider.gate.clear()
    provider.asked_once.clear()


@run
async def test_compact_runs_after_the_answer_and_before_the_next_one(tmp_path: Path) -> None:
    provider = GatedProvider(*(long(n) for n in range(9)))
    async with Chat(tmp_path, provider) as chat:
        await talk(chat, provider, 4)
        _, answer = await chat.read("One more.")
        await provider.asked_once.wait()
        compacted, compacting = await chat.read("/compact")
        _, next_answer = await chat.read("And another.")
        while not compacted:
            await asyncio.sleep(0.01)
        assert compacted == [texts.AFTER_ANSWER]
        provider.gate.set()
        await asyncio.gather(answer, compacting, next_answer)
        assert compacted[1].startswith("🗜 Summarised")
        assert (await chat.changes())[5:] == ["Compacted", "UserSaid"]


@run
async def test_commands_that_wait_keep_their_order(tmp_path: Path) -> None:
    provider = GatedProvider(*(long(n) for n in range(9)))
    async with Chat(tmp_path, provider) as chat:
        await talk(chat, provider, 4)
        _, answer = await chat.read("One more.")
        await provider.asked_once.wait()
        compacted, compacting = await chat.read("/compact")
        undone, undoing = await chat.read("/undo")
        while not (compacted and undone):
            await asyncio.sleep(0.01)
        provider.gate.set()
        await asyncio.gather(answer, compacting, undoing)
        assert undone[0] == texts.AFTER_ANSWER
        assert undone[1].startswith("↩️ I took back a summary")
        assert (await chat.changes())[5:] == ["Compacted", "Reverted"]


@run
async def test_the_button_waits_too(tmp_path: Path) -> None:
    provider = GatedProvider("One.")
    async with Chat(tmp_path, provider) as chat:
        _, answer = await chat.read("Hello.")
        await provider.asked_once.wait()
        pressed, pressing = await chat.press(COMPACT_ACTION)
        while not pressed:
            await asyncio.sleep(0.01)
        provider.gate.set()
        await asyncio.gather(answer, pressing)
        assert pressed[0] == texts.AFTER_ANSWER
        assert pressed[1].startswith("There is room again, so I leave it.")


@run
async def test_new_says_to_which_conversation_the_next_answer_belongs(tmp_path: Path) -> None:
    provider = GatedProvider("One.", "Two.")
    async with Chat(tmp_path, provider) as chat:
        _, answer = await chat.read("Hello.")
        await provider.asked_once.wait()
        said, new = await chat.read("/new")
        await new
        assert said == [f"{texts.NEW_SESSION} {texts.OLD_ANSWER}"]
        provider.gate.set()
        await answer
        said, new = await chat.read("/new")
        await new
        assert said == [texts.NO_MESSAGES]
