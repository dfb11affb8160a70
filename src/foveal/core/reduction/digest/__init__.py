"""Digests of tool results: short lines that say what a result holds, one module per kind."""
