"""Proposes entries from what the user stated in a conversation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from foveal.core.compaction.standing.statements import find_replaced, find_sentences
from foveal.core.engine.user_statements import said_statements
from foveal.core.log.events import Event, UserSaid, handle
from foveal.errors import NotRemembered
from foveal.memory.facts import EntryKind
from foveal.memory.quotes import entry_text, kind_of, typed_words

MAX_PROPOSALS: Final = 10
"""Proposals from one conversation: the newest statements."""


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
    said = said_statements(map(_without_attached_files, events), lambda _, text: find_sentences(text))
    replaced = find_replaced(said)
    holding = [one for one in said if (one.seq, one.start) not in replaced]
    found: dict[str, Proposal] = {}
    for one in holding:
        try:
            text = entry_text(one.text)
        except NotRemembered:
            continue
        kind = kind_of(text, is_rule=one.kind == "rule")
        found[text.casefold()] = Proposal(text, kind, handle(one.seq))
    return tuple(found.values())[-MAX_PROPOSALS:]


def _without_attached_files(event: Event) -> Event:
    fact = event.fact
    if not isinstance(fact, UserSaid) or isinstance(fact.content, str):
        return event
    return replace(event, fact=replace(fact, content=typed_words(fact.content)))
