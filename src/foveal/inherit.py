"""What a new session takes over from an earlier one: its pinned rules, and a summary of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from foveal.events import AnyFact, Compacted, Event, Instructed, Pinned, UserSaid, text_of
from foveal.fold import effective
from foveal.tokens import Counter

MOST_TOKENS: Final = 2_000
"""Of what the user asked in a session that was never summarised, so much is taken over."""


def inheritance(log: Sequence[Event], origin: str, counter: Counter) -> Iterator[AnyFact]:
    """Facts for the beginning of the new session."""
    counting = [event.fact for event in effective(log)]
    for fact in counting:
        if isinstance(fact, Pinned) and fact.text:
            yield Pinned(text=fact.text)
    summaries = [fact.summary for fact in counting if isinstance(fact, Compacted)]
    summary = summaries[-1] if summaries else _requests(counting, counter)
    if summary:
        text = f"This conversation continues session {origin!r}. What happened there:\n\n{summary}"
        yield Instructed(content=text, source=f"session {origin}")


def _requests(facts: Sequence[AnyFact], counter: Counter) -> str:
    """What the user asked for, newest first, as far as the room goes; then in its order."""
    room = MOST_TOKENS
    lines: list[str] = []
    for fact in reversed(facts):
        if isinstance(fact, UserSaid):
            words = " ".join(text_of(fact.content).split())
            line = f"- {words[: counter.head(words, 400)]}"
            room -= counter.count(line)
            if room < 0:
                break
            lines.append(line)
    return "The user asked:\n" + "\n".join(reversed(lines)) if lines else ""
