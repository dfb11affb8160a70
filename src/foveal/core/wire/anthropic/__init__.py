"""Anthropic messages: reading and writing."""
