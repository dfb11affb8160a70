"""Proposes entries from what the user stated in a conversation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from foveal.core.compaction.standing.statements import find_replaced, find_sentences
from foveal.core.engine.user_statements import said_statements
from foveal.core.log.events import Event, handle
from foveal.errors import NotRemembered
from foveal.memory.facts import EntryKind
from foveal.memory.quotes import entry_text, kind_of

MAX_PROPOSALS: Final = 10
"""Proposals from one conversation: the newest statements."""


class Proposal(NamedTuple):
    """A statement of the user that may be worth keeping."""

    text: str
    kind: EntryKind
    event: str
    """The handle of the user's message."""


def propose_from(events: Iterable[Event]) -> tuple[Proposal, ...]:
    """Return the rules, corrections and facts of the user that hold at the end of a conversation, oldest first.

    Args:
        events: The effective events of its log.
    """
    said = said_statements(events, lambda _, text: find_sentences(text))
    replaced = find_replaced(said)
    holding = [one for one in said if (one.seq, one.start) not in replaced]
    found: dict[str, Proposal] = {}
    for one in holding:
        try:
            text = entry_text(one.text)
        except NotRemembered:
            continue
        kind = "rule" if one.kind == "rule" and kind_of(text) == "fact" else kind_of(text)
        found[text.casefold()] = Proposal(text, kind, handle(one.seq))
    return tuple(found.values())[-MAX_PROPOSALS:]
