"""Summaries written by the model that a framework's agent runs on.

An adapter knows the model only during a call, so it sets the writer for that time; `summarise="own"` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

from foveal.core.compaction.summariser import Summarise, SummaryRequest
from foveal.errors import BadSetting

AdapterSummarise: TypeAlias = Literal["own"] | Summarise | Sequence[Summarise] | None
"""What writes the summaries: the agent's own model, your callables, or (None) only the log."""
WriteSummary: TypeAlias = Callable[[SummaryRequest], Any]

_writer: ContextVar[WriteSummary | None] = ContextVar("foveal_own_model", default=None)


@contextmanager
def own_model(write: WriteSummary) -> Iterator[None]:
    """Let the current call's model write the summaries that the call needs. In async code, `write` may return an
    awaitable."""
    token = _writer.set(write)
    try:
        yield
    finally:
        _writer.reset(token)


def summarise_with_own_model(request: SummaryRequest) -> Any:
    """Write a summary with the model of the current call."""
    write = _writer.get()
    if write is None:
        raise RuntimeError("no model call is running whose model could write the summary")
    return write(request)


def resolve_summarise(
    given: AdapterSummarise | str, *, has_own_model: bool
) -> Summarise | Sequence[Summarise] | None:
    """Return the summariser that a `Context` takes. Raises `BadSetting` for `"own"` where nothing calls
    `own_model`, because then no model could ever write a summary."""
    if not isinstance(given, str):
        return given
    if given != "own":
        own = '"own", ' if has_own_model else ""
        raise BadSetting("summarise", given, f"{own}a callable, or a list of callables")
    if not has_own_model:
        raise BadSetting(
            "summarise",
            given,
            "a callable, or a list of callables: only the adapter of a framework knows the agent's own model; pass "
            "a function that calls your model, or None to summarise from the log alone",
        )
    return summarise_with_own_model
