"""The Discord gateway: one session per channel, thread and direct message.

async with discord(service, pairing, config, environment) as bot:
    ...                        # it listens until the block ends
"""

from foveal.server.gateways.discord.gateway import discord

__all__ = ["discord"]
