"""Gateways to chat apps: Telegram and Discord bots with one session per chat."""
