"""Proposes entries from what the user stated in a conversation.

Words of others are no statements of the user: quotations, what "Bob wrote:" announces, code, logs, and sentences
that report what other people said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from foveal.core.compaction.ledger.pasted_text import is_pasted_line
from foveal.core.compaction.standing.statements import Sentence, find_replaced, find_sentences
from foveal.core.engine.user_statements import said_statements
from foveal.core.log.events import Event, UserSaid, handle
from foveal.errors import NotRemembered
from foveal.memory.facts import EntryKind
from foveal.memory.quotes import entry_text, foreign_spans, kind_of, typed_words
from foveal.memory.spoken import is_quoted, spoken_requests

MAX_PROPOSALS: Final = 10
"""Proposals from one conversation: the newest statements."""

_MAX_LINES_READ: Final = 400
_LIST_MARK: Final = re.compile(r"^\s*[-*+•]\s+")
_REPORTS: Final = re.compile(
    r"\W*(?:(?:according to|laut|selon|según|segundo|secondo|по словам"
    r"|he|she|they|his|her|their|er|il|elle|él|ella|ele|ela|он|она|они)\b"
    r"|(?!(?:i|we|you|ich|wir|je|j|nous|yo|eu|я|мы)\b)(?:[\w.'’-]+\s+){1,4}?(?:says?|said|wrote|writes|thinks?|claims?"
    r"|tells|told|asks|asked|replied|sagt|sagte|schreibt|schrieb|dit|écrit|dice|dijo|escribió|disse|diz|escreveu"
    r"|говорит|сказал|сказала|пишет|написал|написала)\b)",
    re.IGNORECASE,
)
"""Sentences about what others said: "Bob told me that …"."""
_REPORTED: Final = re.compile(r", ?(?:says|said|wrote|sagt|sagte|dit|dice|disse|diz) [A-Z]\w+\W*$")
_MEMORY_WORDS: Final = re.compile(
    r"\W*(?:please\s+)?(?:do\s+you\s+)?(?:remember|recall|forget)\b", re.IGNORECASE
)


class Proposal(NamedTuple):
    """A statement of the user that may be worth keeping.

    Examples:
        ```python
        from foveal.memory import Proposal

        proposal = Proposal(text="Never push to main.", kind="rule", event="e12")
        ```
    """

    text: str
    """What the user said, on one line."""
    kind: EntryKind
    """What it is."""
    event: str
    """The handle of the user's message."""


def propose_from(events: Iterable[Event]) -> tuple[Proposal, ...]:
    """Return what the user stated that holds at the end of a conversation.

    These are rules, corrections and facts, at most ten, oldest first. `Memory.propose` records them.

    Args:
        events: The effective events of its log.

    Examples:
        ```python
        import foveal

        said = [foveal.Event(1, foveal.UserSaid(content="Never push to main. Why is CI red?"))]
        (proposal,) = foveal.memory.propose_from(said)
        assert proposal.text == "Never push to main."
        ```
    """
    said = said_statements(map(_without_attached_files, events), lambda _, text: _own_sentences(text))
    replaced = find_replaced(said)
    holding = [one for one in said if (one.seq, one.start) not in replaced]
    found: dict[str, Proposal] = {}
    for one in holding:
        try:
            text = entry_text(_LIST_MARK.sub("", one.text))
        except NotRemembered:
            continue
        kind = kind_of(text, is_rule=one.kind == "rule")
        found[text.casefold()] = Proposal(text, kind, handle(one.seq))
    return tuple(found.values())[-MAX_PROPOSALS:]


def _own_sentences(text: str) -> list[Sentence]:
    """Return the sentences of a message that hold later and are the user's own."""
    found = find_sentences(text)
    foreign = [*foreign_spans(text), *_pasted_lines(text)] if found else []
    return [
        one
        for one in found
        if not any(low < one.end and one.start < high for low, high in foreign)
        and not is_quoted(text, one.start)
        and _states_something(text[one.start : one.end].strip())
    ]


def _states_something(sentence: str) -> bool:
    """Return whether a sentence states something of the user's. What is to be remembered was heard already, and
    what is to be forgotten is no entry."""
    if sentence.endswith((":", "：")) or _REPORTS.match(sentence) or _REPORTED.search(sentence):
        return False
    is_about_memory = _MEMORY_WORDS.match(sentence) is not None
    return not is_about_memory or any(one.action == "remember" for one in spoken_requests(sentence))


def _pasted_lines(text: str) -> list[tuple[int, int]]:
    """Return what stands from the first to the last line of a pasted log or listing."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))][:_MAX_LINES_READ]
    pasted = [start for start in starts if is_pasted_line(text, start)]
    return [(pasted[0], pasted[-1])] if len(pasted) > 1 else []


def _without_attached_files(event: Event) -> Event:
    fact = event.fact
    if not isinstance(fact, UserSaid) or isinstance(fact.content, str):
        return event
    return replace(event, fact=replace(fact, content=typed_words(fact.content)))
