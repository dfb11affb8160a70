"""Buttons of Discord messages.

The action of a button is part of its id, so that it works after a restart of the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol, Self

import discord

from foveal.server.gateways.outgoing import Button


class ButtonHandler(Protocol):
    """A client that handles pressed buttons."""

    async def press_button(self, interaction: discord.Interaction[Any], action: str) -> None: ...


class ButtonItem(
    discord.ui.DynamicItem[discord.ui.Button[discord.ui.View]], template=r"foveal:(?P<action>[\w:.-]{1,80})"
):
    """A button whose id contains its action."""

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
        client: ButtonHandler = interaction.client
        await client.press_button(interaction, self._action)


def button_view(buttons: Iterable[Button]) -> discord.ui.View:
    view = discord.ui.View(timeout=None)
    for button in buttons:
        shown: discord.ui.Button[discord.ui.View] = discord.ui.Button(
            label=button.label[:80], custom_id=f"foveal:{button.action}"
        )
        view.add_item(ButtonItem(shown, button.action))
    return view
