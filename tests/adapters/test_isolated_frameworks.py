"""The tests of the frameworks that need an environment of their own. FOVEAL_SOAK=1 runs all of them."""

from __future__ import annotations

import os

import pytest

from support.framework_environments import PACKAGES, TESTED_ALWAYS, run_isolated_tests


@pytest.mark.long
@pytest.mark.parametrize("name", PACKAGES)
def test_a_framework_in_its_own_environment(name: str) -> None:
    if name not in TESTED_ALWAYS and not os.environ.get("FOVEAL_SOAK"):
        pytest.skip("makes an environment; FOVEAL_SOAK=1 runs it")
    run = run_isolated_tests(name)
    assert run.returncode == 0, run.stdout + run.stderr
