"""Events in words: what each one did, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from foveal.core.compaction.health import cut_text
from foveal.core.engine.unreadable_summaries import instead_text
from foveal.core.log.events import (
    UNREADABLE,
    AnyFact,
    Branched,
    BranchEnded,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Equipped,
    Erased,
    Expanded,
    ForeignSummary,
    Instructed,
    Marked,
    Masked,
    ModelSaid,
    Noted,
    Opened,
    Overflowed,
    Pinned,
    Prioritised,
    Reverted,
    Rewound,
    SnapshotTaken,
    Steered,
    Superseded,
    ThinkingLeftOut,
    ToolReturned,
    ToolsLoaded,
    Unknown,
    Used,
    UserSaid,
    handle,
    unraw,
)
from foveal.core.view.loaded_tools import named_tools
from foveal.core.wire.event_text import original_text
from foveal.core.wire.safe_print import one_line

MAX_SENTENCE_CHARS: Final = 140
_PREVIEW_SOURCE_CHARS: Final = 2_000
"""Characters of a text that its preview is made of: most of a long blank beginning is skipped, not all of it."""

_REASONS: Final = {
    "tokens": "the request came near the limit",
    "room": "the request would not have fitted otherwise",
    "price": "a smaller request costs less",
    "asked": "the model asked for it",
    "priority": "messages of low priority go first",
    "turns": "enough turns had passed",
    "messages": "there were too many messages",
    "hand": "requested by the user",
    "overflow": "the provider refused the request as too large",
    "model": "the model changed",
    "merge": "older summaries were merged",
    "recorded": "recorded by the program that wrote the transcript",
    UNREADABLE: "the model cannot read it",
    "caller": "the caller left them out of its history",
}
"""Triggers of reductions in words, by the reason that the log stores."""


def reason_text(reason: str) -> str:
    """Return the trigger of a reduction in words; an unknown one as the log has it."""
    return _REASONS.get(reason, one_line(reason))


def preview_text(text: str) -> str:
    """Return the beginning of a text on one line."""
    return one_line(text[:_PREVIEW_SOURCE_CHARS], width=MAX_SENTENCE_CHARS)


def event_sentence(fact: AnyFact) -> str:
    """Return in one line what an event says, or what it did."""
    match fact:
        case UserSaid() | ModelSaid() | ToolReturned() | Instructed():
            return preview_text(original_text(fact))
        case ForeignSummary():
            return preview_text(f"summary by the provider: {fact.text or 'only the provider can read it'}")
        case Clipped() | Masked() | Dropped() | Compacted() | CompactionFailed():
            return reduction_sentence(fact)
        case Opened():
            return one_line(", ".join(filter(None, (f"model {fact.model or 'unknown'}", _policy_text(fact)))))
        case Equipped():
            waiting = f", {len(fact.deferred):,} of them deferred" if fact.deferred else ""
            offered = {name for name, _ in named_tools(_list(fact))}
            return _count(len(_list(fact)) + len(fact.deferred.keys() - offered), "tool") + waiting
        case Pinned():
            return preview_text(fact.text) if fact.text else f"pinned {_handle(fact.target)}"
        case Superseded():
            return f"{handle(fact.target)} replaced by {handle(fact.by)}: {reason_text('hand')}"
        case Prioritised():
            return f"{handle(fact.target)} has {fact.priority} priority"
        case Steered():
            return preview_text(steered_text(fact))
        case Noted():
            return preview_text(f"{fact.topic}: {fact.text}" if fact.topic else fact.text)
        case Used():
            return _usage_sentence(fact)
        case SnapshotTaken():
            return preview_text(fact.label)
        case Branched():
            return preview_text(f"branch: {fact.task}")
        case BranchEnded():
            return preview_text(f"branch {handle(fact.branch)} ended: {fact.result}")
        case Erased():
            return f"erased: {one_line(fact.was)}"
        case Marked():
            return f"cache marks of {handle(fact.target)} moved"
        case Expanded():
            return f"{handle(fact.first)} to {handle(fact.last)} shown in full until the next user message"
        case Overflowed():
            return _overflow_sentence(fact)
        case ToolsLoaded():
            names = ", ".join(name for name, _ in named_tools(unraw(fact.tools)))
            return preview_text(f"loaded {names} for {handle(fact.target)}")
        case ThinkingLeftOut():
            who = "the provider refused it, because" if fact.problem else "because"
            return f"thinking before this is left out: {who} something in front of it has changed"
        case Reverted():
            return f"took back {handle(fact.target)}"
        case Rewound():
            return f"went back to {handle(fact.to)}"
        case Unknown():
            return f"an event that this version does not know: {one_line(fact.kind)}"
        case _:
            assert_never(fact)


def steered_text(fact: Steered) -> str:
    """Return what the user, a hook or the model decided about a cut."""
    wishes = (
        "no cut" if fact.veto else "",
        f"keep {', '.join(map(handle, fact.keep))}" if fact.keep else "",
        f"focus on {fact.focus}" if fact.focus else "" if fact.keep or fact.veto else "no focus",
    )
    refused = f"; not followed: {fact.refused}" if fact.refused else ""
    return f"the {fact.by} asked for: {', '.join(filter(None, wishes))}{refused}"


def reduction_sentence(fact: Clipped | Masked | Dropped | Compacted | CompactionFailed) -> str:
    """Return in one line what a reduction did, and why, such as `masked 4 messages: a smaller request costs
    less`."""
    match fact:
        case Clipped() if fact.again >= 0:
            done = f"shows {handle(fact.again)} again in {handle(fact.target)}, which only refers to it"
        case Clipped() if fact.shows_all:
            done = f"shows {handle(fact.target)} whole again"
        case Clipped():
            done = f"clipped {handle(fact.target)} from {fact.total_tokens:,} to {fact.kept_tokens:,} tokens"
        case Masked():
            done = f"masked {_count(len({mask.target for mask in fact.masks}), 'message')}"
        case Dropped():
            done = f"dropped {ranges_text(fact.ranges)}"
        case Compacted() if fact.masks:
            done = cut_text(fact)
        case Compacted() if fact.takes_item_back:
            return one_line(f"{fact.rule}, a summary by a provider: {instead_text(fact)}", width=200)
        case Compacted(reason="branch"):
            return f"folded {handle(fact.first)} to {handle(fact.last)}, a branch, to its result"
        case Compacted():
            by = f" by {one_line(fact.by)}" if fact.by else ""
            done = f"summarised {handle(fact.first)} to {handle(fact.last)}{by}"
        case CompactionFailed():
            return one_line(f"{failure_subject(fact)}: {fact.problem}", width=200)
    reason = "" if isinstance(fact, Clipped) else reason_text(fact.reason)
    return f"{done}: {reason}" if reason else done


def failure_subject(fact: CompactionFailed) -> str:
    """Return what was not written: a summary at all, or one by a summariser that failed."""
    by = f"{fact.by} wrote " if fact.cause and fact.by else ""
    return f"{by}no summary of {handle(fact.first)} to {handle(fact.last)}"


def ranges_text(ranges: Sequence[tuple[int, int]]) -> str:
    """Return ranges of events in one line, such as `e3 to e60, e71`."""
    texts = [
        handle(first) if first == last else f"{handle(first)} to {handle(last)}" for first, last in ranges
    ]
    return one_line(", ".join(texts) or "nothing")


def _policy_text(fact: Opened) -> str:
    origin = f"continues {fact.origin}" if fact.origin else ""
    return ", ".join(filter(None, (f"policy {fact.policy}" if fact.policy else "", origin)))


def _usage_sentence(fact: Used) -> str:
    parts = [f"{fact.prompt:,} tokens read"]
    if fact.cache_read:
        parts.append(f"{fact.cache_read:,} of them from the cache")
    if fact.cache_write:
        long = {"an hour": fact.cache_write_1h, "12 hours": fact.cache_write_12h}
        kept = "".join(f" ({tokens:,} for {time})" for time, tokens in long.items() if tokens)
        parts.append(f"{fact.cache_write:,} written to it{kept}")
    parts.append(f"{fact.output:,} tokens answered")
    return ", ".join(parts)


def _overflow_sentence(fact: Overflowed) -> str:
    size = (
        f"{fact.needed:,} tokens"
        if fact.needed
        else f"about {fact.sent:,} tokens"
        if fact.sent
        else "a request"
    )
    limit = f", {fact.limit:,} are allowed" if fact.limit else ""
    return f"the provider refused {size}{limit}"


def _list(fact: Equipped) -> list[object]:
    tools = unraw(fact.tools)
    return tools if isinstance(tools, list) else []


def _handle(target: int | None) -> str:
    return "" if target is None else handle(target)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
