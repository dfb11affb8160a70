"""A stand-in for the model that writes summaries, and the account of what it wrote.

Each draft has all sections, names nothing that the conversation does not contain, and carries a mark of two common
words that no other draft has. The mark shows where a draft that was paid for ends up. A draft repeats the newest
marks of its request, as a model that merges summaries repeats what they say, and is about as long as it may be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from foveal import Event
from foveal.core.compaction import SummaryRequest
from foveal.core.log import Compacted

MAX_REPEATED_MARKS: Final = 8
MAX_WORDS: Final = 350
"""Words of a draft; models write summaries of 200 to 600."""
FILLER: Final = "The assistant looked at the next piece of the work and found nothing that changes the plan."
_COLOURS: Final = re.findall(
    r"\w+",
    "amber azure black blue bronze brown copper coral cream crimson dark golden green grey indigo ivory "
    "lilac maroon olive orange pale pink plum purple red rose ruby rusty scarlet silver tan teal violet white "
    "yellow bright dusty faded misty snowy",
)
_THINGS: Final = re.findall(
    r"\w+",
    "anchor bakery barn basket beach bell bottle bridge candle castle chapel cliff cloud cottage desert "
    "engine feather field forest fountain garden harbour hill island kettle ladder lantern market meadow mirror "
    "mountain orchard palace pebble river saddle tower valley village windmill",
)
_MARK: Final = re.compile(rf"\b(?:{'|'.join(_COLOURS)}) (?:{'|'.join(_THINGS)}) chapter\b")
_LIMIT: Final = re.compile(r"at most (\d[\d,]*) words", re.IGNORECASE)
_DRAFT: Final = """<summary>
## Goal
The work goes on.
## Decisions
- Nothing beyond what the messages say.
## State
- This is the {mark}.{older}
{filler}
## Next
- Continue where the messages end.
## Dead ends
- None known.
</summary>"""


def mark_of(number: int) -> str:
    return f"{_COLOURS[number % 40]} {_THINGS[number // 40 % 40]} chapter"


class MarkedWriter:
    """A `summarise=` callable that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, request: SummaryRequest) -> str:
        text = "\n".join(_strings([request.system, request.messages]))
        older = list(dict.fromkeys(_MARK.findall(text)))[-MAX_REPEATED_MARKS:]
        self.calls += 1
        told = f" Before it came the {', the '.join(older)}." if older else ""
        limits = [int(found.replace(",", "")) for found in _LIMIT.findall(text)]
        words = min([MAX_WORDS, *(limit * 3 // 4 for limit in limits[-1:])]) - 50 - 4 * len(older)
        filler = "\n".join([f"- {FILLER}"] * (words // len(FILLER.split())))
        return _DRAFT.format(mark=mark_of(self.calls - 1), older=told, filler=filler)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


class PaidSummaries(NamedTuple):
    """What became of the summaries that the model was paid for."""

    calls: int
    """Drafts that the model wrote."""
    written: int
    """Summaries that were recorded from them."""
    in_view: int
    """Those whose text, or that of a summary which covers their range, is in the last request."""
    unread: int
    """Those of which neither was in any request."""


def account_for_summaries(
    writer: MarkedWriter, log: Sequence[Event], seen: Sequence[frozenset[int]]
) -> PaidSummaries:
    """Return the account; `seen` holds for each request the summaries that it shows."""
    paid = [event for event in log if isinstance(event.fact, Compacted) and event.fact.by != "ledger"]
    last = seen[-1] if seen else frozenset()
    ever = frozenset().union(*seen)
    by_seq = {event.seq: event.fact for event in log if isinstance(event.fact, Compacted)}
    return PaidSummaries(
        calls=writer.calls,
        written=len(paid),
        in_view=sum(_is_among(event, last, by_seq) for event in paid),
        unread=sum(not _is_among(event, ever, by_seq) for event in paid),
    )


def shown_summaries(log: Sequence[Event], own_text: str) -> frozenset[int]:
    """Return the summaries whose text is in what Foveal wrote into a request."""
    return frozenset(
        event.seq for event in log if isinstance(event.fact, Compacted) and event.fact.summary in own_text
    )


def _is_among(event: Event, seqs: frozenset[int], facts: dict[int, Compacted]) -> bool:
    own = facts[event.seq]
    return any(
        seq >= event.seq and facts[seq].first <= own.first and own.last <= facts[seq].last for seq in seqs
    )
