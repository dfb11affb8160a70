"""Search for a text in messages, and in the versions that requests showed of them.

1. A hit names a message and a version of it: -1 for the whole text as it was said, else the event that made the
   version (a placeholder or a clip). When each version was visible is in the changes of the timeline.
2. The search is linear in the log and reads each event once, so the log may come in parts. Upper and lower case are
   the same. Of the messages only those with the text are kept, because a clip can only show what they have.
3. Notices of dropped messages are not searched: they name ranges of events and quote nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Clipped,
    Compacted,
    Content,
    Event,
    Instructed,
    Masked,
    Media,
    ModelSaid,
    Opaque,
    Pinned,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    handle,
    parts,
)
from foveal.core.view.steps import ShownMessage
from foveal.core.view.text_facts import string_values
from foveal.errors import BadSetting

MIN_QUERY_CHARS: Final = 2
MAX_QUERY_CHARS: Final = 1_000
MAX_TEXT_HITS: Final = 500
"""Hits that are returned at most, the newest."""


class TextHits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The versions of messages that contain a text."""

    q: str
    hits: tuple[tuple[str, int], ...] = ()
    """The key of a message and the event that made the version, -1 for the whole text; newest first."""
    truncated: bool = False
    """Whether there are older hits."""


def search_log(events: Iterable[Event], q: str) -> TextHits:
    """Return where a text occurs; raises `BadSetting` for one that is too short or too long."""
    if not MIN_QUERY_CHARS <= len(q) <= MAX_QUERY_CHARS:
        raise BadSetting("q", q[:40], f"a text of {MIN_QUERY_CHARS} to {MAX_QUERY_CHARS:,} characters")
    newest: deque[tuple[str, int]] = deque(maxlen=MAX_TEXT_HITS + 1)
    newest.extend(_hits(events, q.lower()))
    found = list(reversed(newest))
    return TextHits(q=q, hits=tuple(found[:MAX_TEXT_HITS]), truncated=len(found) > MAX_TEXT_HITS)


def _hits(events: Iterable[Event], wanted: str) -> Iterator[tuple[str, int]]:
    containing: dict[int, ShownMessage] = {}
    for event in events:
        fact = event.fact
        match fact:
            case UserSaid() | ModelSaid() | ToolReturned() | Instructed():
                if any(wanted in text.lower() for text in _content_texts(fact.content)):
                    containing[event.seq] = ShownMessage(event.seq, fact)
                    yield event.handle, -1
            case Clipped():
                if _clip_contains(fact, containing.get(fact.target), wanted):
                    yield handle(fact.target), event.seq
            case _:
                if isinstance(fact, Masked | Compacted):
                    shown = (mask.target for mask in fact.masks if wanted in mask.text.lower())
                    yield from ((handle(target), event.seq) for target in dict.fromkeys(shown))
                if wanted in _other_text(fact).lower():
                    yield event.handle, -1


def _other_text(fact: AnyFact) -> str:
    match fact:
        case Compacted():
            return fact.summary
        case Pinned():
            return fact.text
        case _:
            return ""


def _clip_contains(fact: Clipped, message: ShownMessage | None, wanted: str) -> bool:
    if message is not None:
        return wanted in message.clipped_text(fact).lower()
    return any(wanted in piece.lower() for piece in fact.pieces if isinstance(piece, str))


def _content_texts(content: Content) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for part in parts(content):
        yield from _part_texts(part)


def _part_texts(part: AnyPart) -> Iterator[str]:
    match part:
        case Text() | Thinking():
            yield part.text
        case Call():
            yield part.name
            yield part.arguments
            if "\\" in part.arguments:  # the arguments are JSON: line breaks and other characters are escaped
                yield from string_values(part.arguments)
        case Opaque():
            yield bytes(part.native).decode("utf-8", "replace")
        case Media():
            pass
