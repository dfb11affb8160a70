"""Leaves out the tests of the frameworks that have another environment than the one that runs."""

from __future__ import annotations

from support.framework_environments import other_environments

collect_ignore = [f"test_{name}.py" for name in other_environments()]
