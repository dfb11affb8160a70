"""Commands that a session answers: each returns what to say, and nothing of it enters the conversation."""

from __future__ import annotations

from foveal.apps.gateways import cards
from foveal.apps.gateways.voice import Says, Voice
from foveal.errors import UnknownHandle
from foveal.service.room import Room


async def compact(room: Room, focus: str = "", *, voice: Voice) -> Says:
    """Summarise old turns now."""
    made = await room.compact(focus)
    voice.calm(room.id)
    text = cards.compacted(made.event, before=made.before, after=made.after)
    return Says(text=text, footer=voice.below(await room.report()))


async def compact_if_full(room: Room, *, voice: Voice) -> Says:
    """What the button below a warning does; it may be an old one."""
    report = await room.report()
    return Says(text=cards.unneeded(report)) if report.state == "ok" else await compact(room, voice=voice)


async def undo(room: Room, name: str, *, voice: Voice) -> Says:
    """Take back a reduction. What is then too large will be reduced again, and that is told at once."""
    try:
        event = await room.undo(name or None)
    except UnknownHandle:
        return Says(text=cards.not_undone(name))
    voice.calm(room.id)
    return voice.card(cards.undone(event), await room.report(), session=room.id)


async def context(room: Room) -> Says:
    return Says(text=cards.context(await room.report()))


async def tokens(room: Room) -> Says:
    return Says(text=cards.tokens(await room.report(), await room.usage()))
