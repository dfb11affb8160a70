"""Facts and outcomes of the service in the shapes of the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import asdict

from foveal import events, happenings
from foveal.accounts import Accounts
from foveal.apps.server.api import shapes
from foveal.codec import plain
from foveal.ports import Hit, SessionInfo
from foveal.recall.text import around, findable, telling
from foveal.report import Report
from foveal.service import Outcome, Turn
from foveal.visible import one_line
from foveal.wire import original

EXCERPT: Final = 240
"""Characters of an excerpt, at the most."""


def session(info: SessionInfo) -> shapes.Session:
    return shapes.Session(
        id=info.id,
        title=info.title,
        created=info.created,
        active=info.active,
        events=info.events,
        bytes=info.bytes,
    )


def opened(info: SessionInfo, model: str) -> shapes.Opened:
    return shapes.Opened(**asdict(session(info)), model=model)


def event(told: events.Event) -> shapes.Event:
    return shapes.Event(
        handle=told.handle,
        seq=told.seq,
        at=told.at,
        kind=events.kind(told.fact),
        fact=_written(told.fact),
    )


def _written(fact: events.AnyFact) -> Raw:
    if isinstance(fact, events.Unknown):
        return fact.raw
    try:
        return Raw(msgspec.json.encode(fact))
    except UnicodeEncodeError:  # a lone surrogate is not UTF-8, but JSON's own escapes can carry it
        return events.raw(plain(fact))


def context(report: Report) -> shapes.Context:
    return shapes.Context(used=report.used, limit=report.limit, window=report.window, state=report.state)


def outcome(told: Outcome) -> shapes.Outcome:
    return shapes.Outcome(
        text=told.text,
        why=told.why,
        problem=told.problem,
        sort=told.sort,
        context=None if told.report is None else context(told.report),
    )


async def turn(told: Turn) -> shapes.Turn:
    ended = outcome(await told.outcome()) if told.state == "ended" else None
    return shapes.Turn(turn=told.id, session=told.session, key=told.key, state=told.state, outcome=ended)


def happening(told: happenings.Happening) -> msgspec.Struct:
    """What a stream says of a happening: events as everywhere in the API, and of the report only its numbers."""
    match told:
        case happenings.Reduced():
            made = tuple(map(event, told.events))
            return shapes.Reduced(events=made, before=told.before, after=told.after)
        case happenings.Ended():
            return shapes.Ended(why=told.why, context=context(told.report))
        case _:
            return told


def usage(accounts: Accounts) -> shapes.Usage:
    return shapes.Usage(
        calls=accounts.calls,
        input=accounts.input,
        cache_read=accounts.cache_read,
        cache_write=accounts.cache_write,
        output=accounts.output,
        reasoning=accounts.reasoning,
        spent=accounts.spent,
        saved=accounts.saved,
        cached_share=accounts.cached_share,
    )


def hits(found: Sequence[Hit], among: Sequence[events.Event], query: str) -> shapes.Hits:
    """What was found, best first, each with the part of its text that the query is about."""
    held = {told.seq: told for told in among}
    words = telling(query)
    return shapes.Hits(
        hits=[_hit(hit, held[hit.seq], words) for hit in found if hit.seq in held],
    )


def _hit(hit: Hit, told: events.Event, words: frozenset[str]) -> shapes.Hit:
    text = findable(told.fact) or original(told.fact)
    start = max(0, around(text, words, width=EXCERPT) - EXCERPT // 4)
    excerpt = one_line(text[start : start + 2 * EXCERPT], width=EXCERPT)
    return shapes.Hit(
        handle=told.handle,
        seq=hit.seq,
        kind=events.kind(told.fact),
        score=hit.score,
        excerpt=f"…{excerpt}" if start else excerpt,
    )
