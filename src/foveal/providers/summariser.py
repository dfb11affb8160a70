"""A provider as summariser.

With the conversation's own model, a summary can read the conversation from the provider's prompt cache.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from foveal.core import wire
from foveal.core.compaction.summariser import Summariser, SummaryRequest
from foveal.core.compaction.summariser_protocol import Draft, StopReason
from foveal.core.log.events import ForeignSummary, Instructed, ModelSaid, calls_of, text_of
from foveal.core.view.request import Fitted
from foveal.core.wire.usage import usage_or_none
from foveal.errors import ProviderError
from foveal.ports import Provider, Reply

TRUNCATED_STOPS: Final = frozenset({"length", "max_tokens", "max_output_tokens", "incomplete"})
"""Providers' stop reasons for a reply that reached its maximum length."""


def summariser_for(provider: Provider) -> Summariser:
    """Return a summariser that asks a provider."""

    async def write(request: SummaryRequest) -> Draft:
        reply = await _reply(provider, _fitted(request), request.max_tokens)
        chunks = wire.wire_for(provider.dialect).read(reply.messages)
        said = [fact for chunk in chunks for fact in chunk.facts if isinstance(fact, ModelSaid)]
        text = "\n".join(text_of(fact.content) for fact in said)
        stop = _stop(reply, has_calls=any(calls_of(fact.content) for fact in said))
        return Draft.of(text, usage_or_none(reply.usage), stop=stop)

    return Summariser(write, name=provider.name)


def native_summariser_for(provider: Provider) -> Summariser:
    """Return a summariser that has a provider compact the conversation with its own API."""

    async def compact(request: SummaryRequest) -> Draft:
        prefix = request.prefix
        assert prefix is not None  # a request of the form `native` has one
        reply = await _reply(provider, replace(prefix, compaction=request.instruction), request.max_tokens)
        chunks = wire.wire_for(provider.dialect).read(reply.messages)
        found = [fact for chunk in chunks for fact in chunk.facts if isinstance(fact, ForeignSummary)]
        return Draft.of("", usage_or_none(reply.usage), native=found[-1].native if found else None)

    return Summariser(compact, name=provider.name, native=True, dialect=provider.dialect)


def _stop(reply: Reply, *, has_calls: bool) -> StopReason:
    if has_calls:
        return "tools"
    if reply.stop in TRUNCATED_STOPS:
        return "length"
    return "end" if reply.stop else ""


async def _reply(provider: Provider, request: Fitted, max_tokens: int) -> Reply:
    async for piece in provider.send(request, max_tokens=max_tokens):
        if isinstance(piece, Reply):
            return piece
    raise ProviderError(f"{provider.name} ended without an answer", code="interrupted")


def _fitted(request: SummaryRequest) -> Fitted:
    """Return the request in the form that providers take; its sizes are not used."""
    chunks = wire.wire_for(request.dialect).read(request.messages)
    aside = (Instructed(content=request.system, aside=True),) if request.system else ()
    return Fitted(
        facts=tuple(fact for chunk in chunks for fact in chunk.facts),
        aside=aside,
        tools=request.tools,
        tokens=0,
        limit=0,
        binds_thinking=request.prefix is not None and request.prefix.binds_thinking,
    )
