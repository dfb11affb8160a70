"""Foveal in chat apps: one session for each chat, behind Telegram and Discord."""
