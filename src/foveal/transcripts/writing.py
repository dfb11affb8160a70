"""Facts as the messages of a provider, for whoever wants to take a conversation elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from foveal.events import AnyFact, Dialect, Event, Instructed
from foveal.fold import fold
from foveal.meter import Meter
from foveal.render import Renderer, fresh
from foveal.tokens import counter
from foveal.wire import wire


def write_messages(facts: Iterable[AnyFact], dialect: Dialect) -> list[dict[str, Any]]:
    """What the model would see of these facts, counted from 0, as a legal list of messages.

    Reductions and rewinds are in effect and calls without a result are answered, as in every view. System text that
    is sent beside the messages comes first among them.
    """
    view = fold([Event(seq, fact) for seq, fact in enumerate(facts)], Meter(counter("estimate")))
    target = wire(dialect)
    asides = [shown.fact for shown in view.asides.values() if isinstance(shown.fact, Instructed)]
    beside = [message for fact in asides for message in target.write(replace(fact, aside=False))]
    messages, _ = Renderer().render(view, target)
    return [*map(fresh, target.join([beside, messages]))] if beside else messages
