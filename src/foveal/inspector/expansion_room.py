"""What is hidden to make room when a hidden message is shown again.

It is found out with a trial of the engine, and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from foveal.core.engine.engine import Engine
from foveal.core.engine.operations import room_for_expansion
from foveal.core.engine.settings import SettingArguments, recorded_window, resolve_settings
from foveal.core.log.events import AnyFact, Clipped, Compacted, Dropped, Event, Masked, Opened, handle
from foveal.errors import FovealError
from foveal.inspector.sessions.actions import recorded_policy
from foveal.inspector.timeline.builder import InspectedSettings
from foveal.inspector.timeline.event_sentences import event_sentence, ranges_text

MAX_NAMED_MESSAGES: Final = 6
"""Hidden messages that a sentence names; more are counted."""


class ExpansionRoom(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What makes room for a message that is shown again."""

    text: str
    """For people."""
    possible: bool = True
    """Whether the session would accept it."""


def expansion_room(
    log: Sequence[Event], seq: int, *, pins: bool, settings: InspectedSettings
) -> ExpansionRoom:
    """Return what makes room if event `seq` of a whole log is expanded, or pinned while it is hidden."""
    opened = next((event.fact for event in reversed(log) if isinstance(event.fact, Opened)), None)
    if opened is None or not (opened.model or settings.model):
        return ExpansionRoom(text="The log names no model, so its limit is not known.")
    given = SettingArguments(
        policy=recorded_policy(opened), window=settings.window or recorded_window(opened)
    )
    try:
        engine = Engine(resolve_settings(opened.model or settings.model, **given), log=log)
        reductions = room_for_expansion(engine, log, seq, pins=pins)
    except FovealError as problem:
        return ExpansionRoom(text=f"This is not possible now: {problem}", possible=False)
    if not reductions:
        return ExpansionRoom(text="There is room for it: no other message has to be hidden.")
    hidden = "; ".join(_hidden_text(event.fact) for event in reductions)
    return ExpansionRoom(text=f"To make room, the next request hides {hidden}.")


def _hidden_text(fact: AnyFact) -> str:
    """Return what a reduction would hide."""
    match fact:
        case Clipped():
            return f"a part of {handle(fact.target)}"
        case Dropped():
            return f"{ranges_text(fact.ranges)}, with a notice in their place"
        case Masked() | Compacted() if fact.masks:
            targets = list(dict.fromkeys(mask.target for mask in fact.masks))
            names = ", ".join(map(handle, targets[:MAX_NAMED_MESSAGES]))
            more = len(targets) - MAX_NAMED_MESSAGES
            what = f"{len(targets):,} {'message' if len(targets) == 1 else 'messages'}"
            return f"{what} ({names}{f' and {more:,} more' if more > 0 else ''})"
        case Compacted():
            return f"{ranges_text([(fact.first, fact.last)])}, with a summary in their place"
        case _:
            return event_sentence(fact)
