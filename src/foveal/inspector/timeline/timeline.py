"""Timeline of a session: rows of its log, changes of its view, requests and reductions.

A timeline is what the inspector's page draws. It is JSON without texts: a row has a preview, and the page asks for
whole texts one by one.

1. A *row* is an event. A *change* says how the request shows a message from an event on. The view after event `e`
   is the result of all changes with `at` ≤ `e`, applied in order; only the last change of a key counts.
2. Messages are named by keys: `e12` is an event, `n40` the notice of dropped messages since e40, `m12.0` the
   synthetic result of the first call of e12.
3. Sizes are units, counted locally. The request says how many tokens a unit is (`ratio`), and what the provider
   counted beyond the messages (`overhead`), so sizes add up to what it reported.
4. A document can begin at any event: `TimelineBuilder.document(first)` has the rows from there on and the changes
   since, so a page that follows a session appends it to what it has.
5. An *outline* shows the newest request of a long log before its history is known. It has the rows, and one change
   for each message, without sizes. The timeline that follows replaces it.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

ShownLevel: TypeAlias = Literal["full", "clipped", "masked", "summarised", "dropped", "removed"]
"""How a request shows a message; `removed`: a rewind or a newer version took it out of the conversation."""
Category: TypeAlias = Literal[
    "system", "instructions", "tools", "pinned", "user", "assistant", "results", "summaries", "placeholders"
]
"""The part of the request that a message belongs to, as in `Report.totals`."""
MissCause: TypeAlias = Literal[
    "expired", "tools", "model", "system", "reduction", "edit", "provider", "unknown"
]
"""Why a request was not read from the cache: the cache's lifetime passed, another tool list, model or system text,
a reduction of Foveal, a history that the client edited, or what the provider says."""

MAX_CARD_KEYS: Final = 200


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of the log."""

    seq: int
    kind: str
    """The kind of the event as the log stores it, such as `tool_returned`."""
    category: str = ""
    """A `Category` for a message that can be sent, "" for any other event."""
    at: float | None = None
    """Seconds since 1970; None if unknown."""
    preview: str = ""
    """The beginning of the text in one line, or what the event does."""
    chars: int = 0
    """Characters of the whole text."""
    units: int = 0
    """Units of the whole message, before any reduction."""
    tool: str = ""
    """The tool that a result comes from, or that a message calls (the first one)."""
    path: str = ""
    """The file that the call is about, as far as it is known."""
    call: int = -1
    """For a result: the event that called for it; -1 if none did."""
    failed: bool = False
    """Whether a result reports a failure."""
    target: int = -1
    """For an event about another one (undo, pin, clip): that event."""


class ViewChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """From event `at` on, requests show a message like this."""

    at: int
    key: str
    level: str
    """A `ShownLevel`."""
    category: str = ""
    units: int = 0
    """Units as it is shown; 0 for what is not in the request."""
    by: int = -1
    """The event that put it at this level; -1 if it is shown as it was said. If the `ReductionCard.ranges` of later
    reductions have the message too, the newest of them hides it, as `Session.why` says."""
    rule: str = ""
    preview: str = ""
    """What is shown instead, in one line, if that is not the whole text."""
    place: int = -1
    """For a summary, a notice, a late result and a moved instruction: the event at whose place it stands in the
    request. 0 is the system text beside the messages, which comes first."""


class CacheMiss(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a part of a request had to be read again."""

    cause: str
    """A `MissCause`."""
    text: str
    """The cause in one sentence, such as "e1499 masked 4 messages: a smaller request costs less"."""
    by: int = -1
    """The event that caused it; -1 if none did."""
    key: str = ""
    """The first message that differs from the request before; "" if the tools or the system text differ."""
    tokens: int = 0
    """Tokens that the cache would have held otherwise."""
    lost: float | None = None
    """Dollars that these tokens cost more than from the cache; None if a price is unknown."""
    provider: str = ""
    """The provider's own diagnosis, if it gave one."""


class RequestRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to the model, as far as the log shows it: one that was answered, or whose usage was reported."""

    number: int
    """Counted from 1."""
    at: int
    """The newest event that the request could show: the view after this event was sent."""
    answer: int = -1
    """The event of the answer; -1 if the log does not have it."""
    used: int = -1
    """The event with the reported usage; -1 if the provider reported none."""
    time: float | None = None
    model: str = ""
    window: int = 0
    units: int = 0
    """Units of everything sent."""
    tools: int = 0
    """Units of the tool list."""
    tool_text: str = ""
    """How many tools there are, how many of them were used, and how many are deferred."""
    tokens: int = 0
    """Tokens of the request: reported if `used`, else estimated."""
    predicted: int = 0
    """Tokens that were expected before the provider reported; 0 if unknown."""
    ratio: float = 1.0
    """Tokens per unit."""
    overhead: int = 0
    """Tokens that the provider counts beyond the messages."""
    read: int = 0
    """Tokens from the cache."""
    written: int = 0
    """Tokens written to the cache."""
    uncached: int = 0
    """Tokens read at the full price and not written."""
    output: int = 0
    cost: float | None = None
    """Dollars; None if a price is unknown."""
    prefix: int = 0
    """Tokens at the beginning that are the same as in the request before."""
    breakpoints: tuple[str, ...] = ()
    """Keys of the messages with a cache mark."""
    miss: CacheMiss | None = None


class ReductionCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reduction: what it did, why, what it cost, and whether it pays."""

    seq: int
    kind: str
    rule: str = ""
    reason: str = ""
    """The trigger as the log stores it."""
    why: str = ""
    """The trigger in words."""
    before: int = 0
    """Tokens of the whole request before it."""
    after: int = 0
    keys: tuple[str, ...] = ()
    """The messages that it changed, at most `MAX_CARD_KEYS` of them."""
    count: int = 0
    """How many messages it changed."""
    first: int = -1
    """The range of events that it covers."""
    last: int = -1
    ranges: tuple[tuple[int, int], ...] = ()
    """The events that it hides, also those that an earlier reduction has hidden before."""
    did: str = ""
    """What a cut did, in words: the results, messages and steps that it changed. "" for other reductions."""
    by: str = ""
    """The author of a summary: a model, or `ledger`."""
    chars: int = 0
    """Characters of the summary."""
    checks: tuple[str, ...] = ()
    """What was found wrong with drafts before this one."""
    checked: tuple[str, ...] = ()
    """What was checked of the summary, in words."""
    unchecked: tuple[str, ...] = ()
    """What was not."""
    score: float | None = None
    """Share of the rare names of the source that occur in the summary."""
    cost: float | None = None
    """Dollars for the summary; 0.0 if no model was asked, None if a price is unknown."""
    seconds: float = 0.0
    behind: int = 0
    """Tokens behind the first changed message, which the provider had to read again."""
    pays_after: int | None = None
    """Calls after which the smaller request has saved what the rewrite cost; None if a price is unknown."""
    undone: int = -1
    """The event that took it back; -1 if it is in force."""
    problem: str = ""
    """Why a summary failed."""


class Prices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Dollars per million tokens; None if unknown."""

    input: float | None = None
    cache_read: float | None = None
    cache_write: float | None = None
    output: float | None = None


class Timeline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session, or its continuation from event `first` on."""

    id: str
    title: str = ""
    format: str = "foveal"
    """Where the session comes from: `foveal`, or the name of a transcript format."""
    model: str = ""
    policy: str = ""
    window: int = 0
    limit: int = 0
    """Most tokens of a request."""
    prices: Prices = Prices()
    cache_ttl: float | None = None
    """Seconds that the provider keeps a prefix."""
    origin: str = ""
    """The session that this one continues, or was forked from."""
    first: int = 0
    next: int = 0
    """The seq after the newest event."""
    generation: int = 0
    """Changes when earlier events of a transcript are others now; a continuation has to be of the same one."""
    outline: bool = False
    """Whether this is an outline: sizes, requests, reductions and earlier views are not known yet."""
    rows: tuple[TimelineRow, ...] = ()
    changes: tuple[ViewChange, ...] = ()
    requests: tuple[RequestRow, ...] = ()
    """All requests from `first_request` on."""
    first_request: int = 0
    """Index of the first request in `requests`."""
    reductions: tuple[ReductionCard, ...] = ()
    """All reductions of the session, also earlier ones: a later event can take them back."""
    spent: float | None = None
    """Dollars of the calls whose price is known; None if it is known of none."""
    unpriced: int = 0
    """Calls with reported usage whose price is unknown."""
    saved: float | None = None
    problems: tuple[str, ...] = ()
    """What could not be read of the session, for people."""
