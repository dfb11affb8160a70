"""Buttons below a message. What one does is in its name, so that it works after a restart of the server."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol, Self

import discord

from foveal.apps.gateways.talk import Button


class Pressable(Protocol):
    """A client that knows what to do when a button is pressed."""

    async def pressed(self, interaction: discord.Interaction[Any], action: str) -> None: ...


class Press(
    discord.ui.DynamicItem[discord.ui.Button[discord.ui.View]], template=r"foveal:(?P<action>[\w:.-]{1,80})"
):
    def __init__(self, button: discord.ui.Button[discord.ui.View], action: str) -> None:
        super().__init__(button)
        self._action = action

    @classmethod
    async def from_custom_id(
        cls, interaction: discord.Interaction[Any], item: discord.ui.Item[Any], match: re.Match[str], /
    ) -> Self:
        assert isinstance(item, discord.ui.Button)
        return cls(item, match["action"])

    async def callback(self, interaction: discord.Interaction[Any]) -> None:
        client: Pressable = interaction.client
        await client.pressed(interaction, self._action)


def view(buttons: Iterable[Button]) -> discord.ui.View:
    made = discord.ui.View(timeout=None)
    for button in buttons:
        shown: discord.ui.Button[discord.ui.View] = discord.ui.Button(
            label=button.label[:80], custom_id=f"foveal:{button.action}"
        )
        made.add_item(Press(shown, button.action))
    return made
