"""Composition roots: the programs. No other package imports them, and they do not import each other."""
