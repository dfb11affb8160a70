"""Reductions that are reported below an answer, and the lines about them.

The log has them: the reductions between the last message before a turn and the last message in it. So each
reduction is reported with one answer, whichever process made it, also after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

from foveal.core.compaction.health import CutCounts, read_metrics
from foveal.core.engine.unreadable_summaries import instead_text
from foveal.core.log.events import (
    AnyFact,
    Clipped,
    Compacted,
    Dropped,
    Equipped,
    Event,
    Masked,
    ModelSaid,
    Reverted,
    UserSaid,
    parse_handle,
)
from foveal.core.policies import AGREED, NO_CONSENT
from foveal.core.policies.ladder.mask import REFUSED_MEDIA
from foveal.server.gateways import texts
from foveal.server.live_session import LiveSession

MAX_EVENTS_BEFORE_TURN: Final = 64
"""Events before a turn that are read; there are few between two turns."""


async def turn_reductions(session: LiveSession, first_message: str) -> list[Event]:
    """Return the reductions to report with a turn, given the handle of its first message.

    Reductions that a user requested, agreed to or has already undone are left out. Tools that came with the first
    one are the last event.
    """
    seq = parse_handle(first_message)
    if seq is None:
        return []
    events = await session.events(first=max(0, seq - MAX_EVENTS_BEFORE_TURN))
    first, last = _message_range(events, seq)
    undone = {event.fact.target for event in events if isinstance(event.fact, Reverted)}
    said = {event.seq for event in events if isinstance(event.fact, UserSaid)}
    between = [event for event in events if first < event.seq < last]
    reported = [
        event
        for event in between
        if (is_reported(event.fact) or _is_clip_of(event.fact, said)) and event.seq not in undone
    ]
    tools = [event for event in between if isinstance(event.fact, Equipped) and reported]
    return reported + [event for event in tools[-1:] if event.seq > reported[0].seq]


def _is_clip_of(fact: AnyFact, said: Set[int]) -> bool:
    """Return whether a message of the user was clipped, which is always reported."""
    return isinstance(fact, Clipped) and fact.target in said and not fact.rule.endswith(AGREED)


def is_reported(fact: AnyFact) -> bool:
    """Return whether a reduction is reported: not one that the user requested or agreed to. A clip or a mask is a
    detail and reported only in mode `confirm`, where the user is told of all that happens without a yes, or if it
    hides a file that the provider refused."""
    if isinstance(fact, Compacted | Dropped):
        return fact.reason != "hand" and not fact.rule.endswith(AGREED)
    if isinstance(fact, Masked) and fact.reason == REFUSED_MEDIA:
        return True
    return isinstance(fact, Masked | Clipped) and fact.rule.endswith(NO_CONSENT)


async def is_unreported(session: LiveSession, event: Event) -> bool:
    """Return whether a reduction was made since the last message, so that no answer has reported it."""
    later = await session.events(first=event.seq)
    return is_reported(event.fact) and not any(isinstance(e.fact, UserSaid | ModelSaid) for e in later)


def _message_range(events: list[Event], seq: int) -> tuple[int, int]:
    """Return the last message before the turn that begins at `seq`, and the last message in it."""
    before, last = -1, seq
    for event in events:
        if isinstance(event.fact, UserSaid) and event.seq > seq:
            break  # the next turn
        if isinstance(event.fact, UserSaid | ModelSaid):
            before, last = (event.seq, last) if event.seq < seq else (before, event.seq)
    return before, last


# ── Lines ──────────────────────────────────────────────────────────────────────────────────────────────


def reduction_notes(events: Iterable[Event], *, tool_tokens: int = 0) -> list[str]:
    """Return the reductions that were made for an answer, with the commands that undo each; all summaries are one
    line, and all clips are another. `tool_tokens` is what the tools take that came with them."""
    listed = list(events)
    tools = [event for event in listed if isinstance(event.fact, Equipped)]
    listed = [event for event in listed if event not in tools]
    summaries = [event for event in listed if _is_summary(event.fact)]
    clips = [event for event in listed if isinstance(event.fact, Clipped)]
    groups = [summaries, *([event] for event in listed if event not in summaries + clips), clips]
    lines = [
        f"{_reduction_note([event.fact for event in group])}. {texts.undo_hint(group)}"
        for group in groups
        if group
    ]
    return [*lines, *([texts.added_tools(tool_tokens)] if tools and tool_tokens else [])]


def _is_summary(fact: AnyFact) -> bool:
    return isinstance(fact, Compacted) and not fact.takes_item_back


def _summary_sizes(facts: list[Compacted]) -> tuple[int, int]:
    """Return the tokens before and after. A summary that became part of a later one counts in neither."""
    inner = sum(
        read_metrics(fact).after
        for place, fact in enumerate(facts)
        if any(later.first <= fact.first <= fact.last <= later.last for later in facts[place + 1 :])
    )
    before, after = (sum(getattr(read_metrics(fact), name) for fact in facts) for name in ("before", "after"))
    return before - inner, after - inner


def _compacted_text(facts: list[Compacted]) -> str:
    """Return what summaries and cuts did: a cut leaves the steps of the agent and hides their results."""
    if not all(fact.masks for fact in facts):
        return "Older turns were summarised"
    counts = list(map(CutCounts.of, facts))
    results, shortened = sum(count.results for count in counts), sum(count.shortened for count in counts)
    done = []
    if results:
        done.append(f"{results:,} older result{'s were' if results != 1 else ' was'} hidden")
    if shortened:
        done.append(f"{shortened:,} long message{'s were' if shortened != 1 else ' was'} shortened")
    return " and ".join(done)


def _reduction_note(facts: list[AnyFact]) -> str:
    """Return what reductions of one kind did."""
    match facts[0]:
        case Compacted() as fact if fact.takes_item_back:
            return f"⚠️ The model cannot read a summary of another model or account: {instead_text(fact)}"
        case Compacted():
            summaries = [fact for fact in facts if isinstance(fact, Compacted)]
            before, after = _summary_sizes(summaries)
            is_early = all(fact.reason == "price" for fact in summaries)
            why = " to make further answers cheaper" if is_early else ""
            return f"🗜 {_compacted_text(summaries)}{why}: {before:,} → {after:,} tokens"
        case Masked() as fact if fact.reason == REFUSED_MEDIA:
            files = "a file" if len(fact.masks) == 1 else f"{len(fact.masks):,} files"
            return f"⚠️ The model could not read {files}, and this answer does without"
        case Masked() as fact:
            count = len(fact.masks)
            return f"✂️ {count:,} older result{'s were' if count != 1 else ' was'} replaced by placeholders"
        case Clipped():
            clips = [fact for fact in facts if isinstance(fact, Clipped)]
            newest = {clip.target: clip for clip in clips}  # a text may be clipped again and again
            kept = sum(clip.kept_tokens for clip in newest.values())
            total = sum({clip.target: clip.total_tokens for clip in reversed(clips)}.values())
            what = "A long text was" if len(newest) == 1 else f"{len(newest):,} long texts were"
            return f"✂️ {what} clipped to {kept:,} of {total:,} tokens"
        case _:
            return "✂️ Older turns were left out to make room"
