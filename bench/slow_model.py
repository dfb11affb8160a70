"""A stand-in for a model that answers slowly and few requests at once, as a model on the same machine does.

1. A request whose last message begins with `slow` waits for one of `SLOTS` places of its process, and then
   `ANSWER_S` seconds. Any other request is answered at once.
2. A request whose last message begins with `hold` is never answered in a process that has the environment variable
   `BENCH_HOLDS`.
3. The answer contains the process id and the time, so that a client can compute how long it has waited for it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

from foveal.core.log.events import Dialect
from foveal.core.models.model import Model, model
from foveal.core.view.request import Fitted
from foveal.ports import Reply, ReplyPiece

SLOTS: Final = 4
"""Requests at once; the default of several model servers."""
ANSWER_S: Final = 0.5


class ModelAnswer(NamedTuple):
    """What the text of an answer says."""

    pid: int
    at: float
    """Seconds since 1970 at which the model had answered."""

    @classmethod
    def parse(cls, text: str) -> ModelAnswer:
        pid, at = text.split()
        return cls(int(pid), float(at))


class SlowModel:
    """A `Provider`."""

    dialect: Dialect = "openai_chat"
    name = "openai/gpt-4.1"

    def __init__(self, window: int, *, holds: bool) -> None:
        self.model: Model = model("gpt-4.1", window=window)
        self._holds = holds
        self._slots = asyncio.Semaphore(SLOTS)

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        said = str(request.to_openai()[-1].get("content"))
        if said.startswith("hold") and self._holds:
            await asyncio.Event().wait()
        if said.startswith("slow"):
            async with self._slots:
                await asyncio.sleep(ANSWER_S)
        text = f"{os.getpid()} {time.time():.6f}"
        yield ReplyPiece(text=text)
        yield Reply(message={"role": "assistant", "content": text}, stop="stop")

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def provider(
    name: str | None, *, environment: Mapping[str, str], window: int | None, progress: Any
) -> SlowModel:
    """Return the model, for `FOVEAL_PROVIDER=bench.slow_model:provider`."""
    return SlowModel(window or 128_000, holds="BENCH_HOLDS" in environment)
