"""One conversation on the table, and the scorer that bills and searches each of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foveal import models
from foveal.budget import Caps, reserve_for
from foveal.models import Model
from foveal.replay.bill import Billed, Cache
from foveal.replay.conversations import Conversation
from foveal.replay.memory import Memory
from foveal.replay.needs import Need
from foveal.replay.requests import Reader, Request
from foveal.replay.traces import Loss, Setting, Trace
from foveal.tokens import counter


class Table:
    """What all policies share."""

    def __init__(self, conversation: Conversation, needs: Sequence[Need], setting: Setting) -> None:
        self.conversation = conversation
        self.tools = conversation.tools
        self.needs = needs
        self.setting = setting
        self.model = chosen(setting)
        self.reader = Reader(conversation.dialect, counter(setting.tokenizer, model=self.model.name))
        self.memory = Memory(conversation, needs, self.reader)
        self.times = _times(conversation, setting.pace)
        """When each call is made."""
        self.limit = input_limit(self.model, setting) / self.model.token_ratio
        """Tokens, as the lab counts them, that a request may have."""
        self.ideal: list[int] = []
        """Tokens of each request when everything is sent; the first replay finds them."""


def chosen(setting: Setting) -> Model:
    """The model that the requests are for."""
    return models.model(setting.model, window=setting.window, cache_ttl=setting.ttl)


def input_limit(model: Model, setting: Setting) -> int:
    """Tokens that a request to the model may have."""
    return model.input_limit(reserve_for(model, Caps(reserve=setting.reserve)))


def _times(conversation: Conversation, pace: float) -> list[float]:
    """As recorded if all times are known, else at an even pace."""
    known = [call.at for call in conversation.calls if call.at is not None]
    return (
        known if len(known) == len(conversation.calls) else [n * pace for n in range(len(conversation.calls))]
    )


class Scorer:
    """Follows the requests of one conversation under one policy."""

    def __init__(self, table: Table, label: str) -> None:
        self._table = table
        self._cache = Cache(table.reader, ttl=table.model.cache_ttl)
        self.trace = Trace(
            conversation=table.conversation.id,
            title=table.conversation.title,
            policy=label,
            ideal=table.ideal,
            ratio=table.model.token_ratio,
        )

    def score(self, number: int, request: Request | None, loss: Callable[[Need], Loss]) -> None:
        """Take the request of call `number`, counted from 0; None is one that nothing makes fit."""
        self._bill(number, request)
        memory, trace = self._table.memory, self.trace
        if request is not None:
            facts = self._table.conversation.calls[number].facts
            trace.with_task += memory.has_task(request, facts=facts)
            trace.with_latest += memory.has_latest(request, facts=facts)
        needed = memory.needed(number + 1)
        lost = set(needed) if request is None else set(memory.lost(number + 1, request))
        for need in needed:
            recall = trace.ident if need.kind == "ident" else trace.line
            recall.add(far=need.far, kept=need not in lost)
            if need in lost:
                trace.losses.append(loss(need))

    def _bill(self, number: int, request: Request | None) -> None:
        trace = self.trace
        if request is None:
            ideal = self._table.ideal
            billed = Billed(ideal[number], ideal[number - 1] if number else 0, broke=False)
        else:
            billed = self._cache.send(request, now=self._table.times[number])
        trace.sizes.append(billed.tokens)
        trace.cached.append(billed.cached)
        if billed.broke:
            trace.breaks.append(number + 1)
        if request is None or billed.tokens > self._table.limit:
            trace.over.append(number + 1)
