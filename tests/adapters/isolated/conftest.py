"""Leaves out the tests of the frameworks that have another environment than the one that runs."""

from __future__ import annotations

from support.framework_environments import framework_tests, other_environments

collect_ignore = [path.name for name in other_environments() for path in framework_tests(name)]
