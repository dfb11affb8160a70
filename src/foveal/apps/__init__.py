"""Composition roots: programs that put the library together. Nobody imports them, nor do they each other."""
