"""Stores of sessions, in memory or in a file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from foveal.stores import MemoryStore, open_store
from support.effort import rest_in_soak


@pytest.fixture(params=rest_in_soak(["memory", "sqlite"]))
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Opens a store of sessions: what does not depend on its kind is shown with one in memory."""
    return _opener(request.param, tmp_path)


@pytest.fixture(params=rest_in_soak(["sqlite", "memory"]))
def lasting_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """The same for what is read from the store again, by another session or after it was closed."""
    return _opener(request.param, tmp_path)


def _opener(kind: str, folder: Path) -> Callable[[], Any]:
    if kind == "sqlite":
        return lambda: open_store(folder / "chats.db", durability="normal")
    kept = MemoryStore()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield kept

    return opened
