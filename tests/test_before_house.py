"""Logs and stores written before the packages were put in order: they open, and show the same bytes.

`data/before_house/make.py` wrote them, and with them what the code of its time showed.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from pathlib import Path
from typing import Any, Final

import pytest

import foveal

DATA: Final = Path(__file__).parent / "data" / "before_house"
sys.path.insert(0, str(DATA))

import make as made  # noqa: E402


def unpacked(name: str) -> bytes:
    return gzip.decompress((DATA / f"{name}.gz").read_bytes())


CONTEXTS: Final[dict[str, Any]] = json.loads(unpacked("contexts.json"))


@pytest.mark.parametrize("preset", made.PRESETS)
def test_a_saved_context_continues_with_the_same_request(preset: str) -> None:
    saved = unpacked(f"{preset}.jsonl")
    assert made.observe_context(saved, preset) == CONTEXTS[preset]


def test_the_sessions_of_a_store_show_the_same_requests(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    path.write_bytes(unpacked("sessions.db"))
    assert asyncio.run(made.observe_store(path)) == json.loads(unpacked("sessions.json"))


def test_the_files_have_reductions() -> None:
    kinds = {type(event.fact).__name__ for event in foveal.Context.load(unpacked("economy.jsonl")).log}
    assert kinds & {"Masked", "Dropped", "Compacted", "Clipped"}
