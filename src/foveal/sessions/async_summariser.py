"""Runs a summary dialogue in an event loop.

A summariser may be an async function, an async generator, or a callable that returns an awaitable. Callables that
are not async, and streams that block, run in threads.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

from foveal.core.compaction.health import CompactionOutcome
from foveal.core.compaction.summariser import DialogueRun, SummaryRequest, read_complete
from foveal.core.compaction.summariser_protocol import Draft


async def run_dialogue_async(run: DialogueRun) -> CompactionOutcome:
    """Run a dialogue to its outcome in an event loop."""
    with closing(run):
        for request in run.requests():
            with run.errors_as_failures():
                call, summary_request = run.prepare(request)
                run.accept(await _collect_draft(await _call(call, summary_request), run))
    return run.outcome


async def _call(call: Callable[[SummaryRequest], Any], request: SummaryRequest) -> Any:
    functions = (call, getattr(call, "__call__", call))  # noqa: B004 - an instance may have an async __call__
    is_async = any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in functions)
    reply = call(request) if is_async else await asyncio.to_thread(_call_in_thread, call, request)
    return await reply if isinstance(reply, Awaitable) else reply


def _call_in_thread(call: Callable[[SummaryRequest], Any], request: SummaryRequest) -> Any:
    try:
        return call(request)
    except StopIteration as stop:  # a future cannot carry it: the await would never end
        raise RuntimeError("it raised StopIteration") from stop


async def _collect_draft(reply: Any, run: DialogueRun) -> Draft:
    draft = read_complete(reply)
    if draft is not None:
        return draft
    text = ""
    async for chunk in reply if isinstance(reply, AsyncIterable) else _iterate_in_threads(iter(reply)):
        text = run.append_chunk(text, chunk)
    return Draft(text=text)


async def _iterate_in_threads(stream: Iterator[object]) -> AsyncIterator[object]:
    """Yield the chunks of a blocking stream, each read in a thread."""
    end = object()
    while (chunk := await asyncio.to_thread(next, stream, end)) is not end:
        yield chunk
