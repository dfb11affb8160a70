"""One profile for every property test: the same examples on every machine, no deadline on slow ones."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "foveal", derandomize=True, deadline=None, database=None, suppress_health_check=QUIET
)
settings.register_profile(
    "soak", parent=settings.get_profile("foveal"), derandomize=False, max_examples=2_000
)
settings.load_profile("soak" if os.environ.get("FOVEAL_SOAK") else "foveal")
