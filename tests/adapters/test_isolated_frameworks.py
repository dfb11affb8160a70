"""The tests of the frameworks that need an environment of their own."""

from __future__ import annotations

import pytest

from support.framework_environments import PACKAGES, run_isolated_tests


@pytest.mark.soak
@pytest.mark.parametrize("name", PACKAGES)
def test_a_framework_in_its_own_environment(name: str) -> None:
    run = run_isolated_tests(name)
    assert run.returncode == 0, run.stdout + run.stderr
