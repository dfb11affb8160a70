"""Benchmarks: `python -m bench` prints one table of measurements and targets.

Times are CPU time of this process and the best of several runs. Where possible a figure is the ratio of two
measurements in one run, because other load on the machine then affects both sides equally.
"""
