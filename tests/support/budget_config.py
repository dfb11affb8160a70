"""Configurations with budgets, for tests and their processes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveal import config


def budget_config(flags: Mapping[str, Any]) -> config.Config:
    """Return a configuration that has these values and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        return config.load(Path(folder), flags=dict(flags), environ={}, user_folder=Path(folder))
