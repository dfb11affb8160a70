"""The stand-in of Discord behaves as Discord documents; the client is the real discord.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import discord
import pytest

from foveal.server.gateways.discord import CustomUrlConnector
from support.discord_stand_in import BOT, CHANNEL, DM, OWNER, TOKEN, DiscordApi, DiscordOutage, Json, until
from support.gated_provider import run


class Listener(discord.Client):
    """Keeps the messages and interactions that it receives."""

    def __init__(self, api: DiscordApi) -> None:
        intents = discord.Intents(guilds=True, guild_messages=True, dm_messages=True, message_content=True)
        super().__init__(
            intents=intents,
            connector=CustomUrlConnector(api.url),
            max_messages=None,
            guild_ready_timeout=0.05,
        )
        self.received: list[discord.Message] = []
        self.interactions: list[discord.Interaction[Any]] = []

    async def on_message(self, message: discord.Message) -> None:
        if message.author.id != BOT:
            self.received.append(message)

    async def on_interaction(self, interaction: discord.Interaction[Any]) -> None:
        self.interactions.append(interaction)

    async def hear(self, count: int = 1) -> list[discord.Message]:
        await until(lambda: len(self.received) >= count)
        return self.received

    async def send(self, channel: int, text: str, **more: Any) -> discord.Message:
        return await self.get_partial_messageable(channel).send(text, **more)


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[DiscordApi, Listener]]:
    async with DiscordApi() as api, Listener(api) as client:
        await client.login(TOKEN)
        running = asyncio.create_task(client.connect())
        await until(lambda: api.identified and client.is_ready())
        try:
            yield api, client
        finally:
            await client.close()
            running.cancel()
            await asyncio.wait([running])


@run
async def test_a_thread_is_a_channel_with_a_parent() -> None:
    async with listening() as (api, client):
        api.names[OWNER] = "Ada"
        thread = await api.open_thread("Plans")
        await api.say("Hello", channel=thread)
        (message,) = await client.hear()
        assert isinstance(message.channel, discord.Thread)
        assert (message.channel.id, message.channel.parent_id, message.channel.name) == (
            thread,
            CHANNEL,
            "Plans",
        )
        assert message.author.display_name == "Ada"
        await client.send(thread, "Hi")
        assert api.said(thread) == ["Hi"]


@run
async def test_closed_threads_and_deleted_channels_refuse_messages() -> None:
    async with listening() as (api, client):
        thread = await api.open_thread()
        await api.archive_thread(thread)
        await client.send(thread, "opens it")
        assert api.threads[thread]["thread_metadata"]["archived"] is False
        await api.close_thread(thread)
        with pytest.raises(discord.HTTPException) as closed:
            await client.send(thread, "Hi")
        api.deleted.add(CHANNEL)
        with pytest.raises(discord.NotFound) as gone:
            await client.send(CHANNEL, "Hi")
        assert (closed.value.code, gone.value.code) == (50083, 10003)


@run
async def test_replies_and_forwards_contain_the_other_message() -> None:
    async with listening() as (api, client):
        first = await api.say("One", guild=True, user=8)
        await api.say("Why?", guild=True, reply_to=first)
        await api.say("", forward=first)
        _, reply, forward = await client.hear(3)
        assert reply.reference is not None
        assert isinstance(reply.reference.resolved, discord.Message)
        assert (reply.type, reply.reference.resolved.content) == (discord.MessageType.reply, "One")
        assert forward.reference is not None
        assert forward.reference.type is discord.MessageReferenceType.forward
        assert [snapshot.content for snapshot in forward.message_snapshots] == ["One"]


@run
async def test_an_attachment_can_be_downloaded() -> None:
    async with listening() as (api, client):
        await api.say("", attachments=[api.attach("a.txt", b"text")])
        ((attachment,),) = [message.attachments for message in await client.hear()]
        assert (attachment.filename, attachment.size, attachment.content_type) == ("a.txt", 4, "text/plain")
        assert await attachment.read() == b"text"


@run
async def test_an_interaction_can_be_answered_for_15_minutes() -> None:
    async with listening() as (api, client):
        await api.slash("context")
        await until(lambda: client.interactions)
        (interaction,) = client.interactions
        await interaction.response.defer(thinking=True)
        await interaction.followup.send("Soon")
        api.expire_interactions()
        with pytest.raises(discord.HTTPException) as late:
            await interaction.followup.send("Late")
        assert (late.value.status, late.value.code) == (401, 50027)
        await api.slash("context")
        await until(lambda: len(client.interactions) == 2)
        api.expire_interactions()
        with pytest.raises(discord.NotFound) as unknown:
            await client.interactions[1].response.defer()
        assert unknown.value.code == 10062


@run
async def test_one_login_and_one_session_can_be_refused() -> None:
    async with DiscordApi(refused_logins=1, refusals=[4004]) as api:
        async with Listener(api) as client:
            with pytest.raises(discord.LoginFailure):
                await client.login(TOKEN)
        async with Listener(api) as client:
            await client.login(TOKEN)
            with pytest.raises(discord.ConnectionClosed) as closed:
                await client.connect()
            assert closed.value.code == 4004
        async with Listener(api) as client:
            await client.login(TOKEN)
            running = asyncio.create_task(client.connect())
            await until(lambda: client.is_ready())
            await client.close()
            await asyncio.wait([running])


@pytest.mark.parametrize("kind", ["refused", "hang", "unavailable"])
@run
async def test_events_of_an_outage_arrive_after_it(kind: DiscordOutage) -> None:
    async with listening() as (api, client):
        async with api.outage(kind):
            await api.say("Are you there?")
            sending = asyncio.create_task(client.send(DM, "Hi"))
            await asyncio.wait([sending], timeout=0.2)
            assert api.sent == []
        sending.cancel()
        assert [message.content for message in await client.hear()] == ["Are you there?"]
        assert api.resumed == 1


@run
async def test_a_message_whose_reply_was_lost_is_found_again_by_its_nonce() -> None:
    async with listening() as (api, client):
        options: Json = {"nonce": "7.0"}
        async with api.outage("lost replies"):
            with pytest.raises((aiohttp.ClientError, OSError)):
                await client.send(DM, "Hi", **options)
        again = await client.send(DM, "Hi", **options)
        assert [sent.id for sent in api.sent] == api.lost_replies == [again.id]
