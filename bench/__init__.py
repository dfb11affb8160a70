"""Benchmarks: `python -m bench` prints one table of what was promised and what was measured.

Figures are processor time of this process and the best of several runs, and what can be a ratio of two
measurements in one run is one: a busy machine then disturbs both sides alike.
"""
