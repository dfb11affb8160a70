"""Discord: one session for each channel, thread and direct message.

async with discord(service, pairing, config, environment):
    ...                                     # the bot listens until this ends
"""

from foveal.apps.gateways.discord.running import discord

__all__ = ["discord"]
