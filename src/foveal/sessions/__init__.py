"""Durable sessions: the engine with its log in a store."""
