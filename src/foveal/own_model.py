"""An agent's own model as the writer of its summaries: a provider as `foveal.summarise` wants it."""

from __future__ import annotations

from foveal import wire
from foveal.compaction.asking import Draft
from foveal.errors import ProviderError
from foveal.events import Instructed, ModelSaid, calls_of, text_of
from foveal.fitted import Fitted
from foveal.ports import Provider, Reply
from foveal.summarise import Request, Summariser
from foveal.usage import used

CUT_OFF = frozenset({"length", "max_tokens", "max_output_tokens", "incomplete"})


def own_model(provider: Provider) -> Summariser:
    """Summaries by the model that answers in the conversation, so that its cached prefix can be used."""

    async def write(request: Request) -> Draft:
        reply = await _reply(provider, _fitted(request), request.max_tokens)
        chunks = wire.wire(provider.dialect).read(reply.messages)
        said = [fact for chunk in chunks for fact in chunk.facts if isinstance(fact, ModelSaid)]
        spent = used(reply.usage) if reply.usage is not None else None
        calling = any(calls_of(fact.content) for fact in said)
        return Draft(
            text="\n".join(text_of(fact.content) for fact in said),
            stop="tools" if calling else "length" if reply.stop in CUT_OFF else "end" if reply.stop else "",
            input=spent.input if spent else 0,
            cache_read=spent.cache_read if spent else 0,
            cache_write=spent.cache_write if spent else 0,
            output=spent.output if spent else 0,
        )

    return Summariser(write, name=provider.name)


async def _reply(provider: Provider, request: Fitted, max_tokens: int) -> Reply:
    async for piece in provider.send(request, max_tokens=max_tokens):
        if isinstance(piece, Reply):
            return piece
    raise ProviderError(f"{provider.name} ended without an answer", sort="interrupted")


def _fitted(request: Request) -> Fitted:
    chunks = wire.wire(request.dialect).read(request.messages)
    aside = (Instructed(content=request.system, aside=True),) if request.system else ()
    return Fitted(
        facts=tuple(fact for chunk in chunks for fact in chunk.facts),
        aside=aside,
        tools=request.tools,
        tokens=0,
        limit=0,
    )
