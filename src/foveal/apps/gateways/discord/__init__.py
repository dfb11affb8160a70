"""The Discord gateway: one session per channel, thread and direct message.

async with discord(service, pairing, config, environment) as bot:
    ...                        # it listens until the block ends
"""

from foveal.apps.gateways.discord.discord_gateway import discord

__all__ = ["discord"]
