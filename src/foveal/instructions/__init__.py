"""Instruction files (AGENTS.md, preferences) and the rules for them."""
