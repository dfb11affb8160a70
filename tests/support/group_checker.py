"""Checks what clients of several servers have logged against the database.

1. Each message that was acknowledged is in the log of its session once, followed by the right answer and no other.
2. Messages are in the order in which the inbox stored them. A message that was acknowledged before another was sent
   comes before it.
3. The seqs of a session are 0, 1, 2 … without a gap, and the client's answer is the one in the log.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from foveal.core.log import ModelSaid, Noted, UserSaid, text_of
from foveal.core.log.events import Event
from foveal.server.turns import TURN_NOTE_TOPIC
from support.group_client import ClientLine
from support.grouped_server import expected_answer
from support.server_group import ServerGroup


class CheckedRun(NamedTuple):
    """What a check has counted."""

    acknowledged: int
    answered: int
    """Messages whose answer reached a client; those in the background are not among them."""
    attempts: int
    slowest_s: float
    """The longest time from the first request to the answer."""


def check_group(group: ServerGroup, lines: Sequence[ClientLine]) -> CheckedRun:
    """Raise `AssertionError` if a message was lost, answered twice or answered out of order."""
    logs = group.logs()
    stored = {session: check_log(session, events) for session, events in logs.items()}
    _check_rows(group, stored)
    by_session: dict[str, list[ClientLine]] = defaultdict(list)
    for line in lines:
        by_session[line.session].append(line)
    for session, own in by_session.items():
        check_clients(session, own, stored[session])
    return _counted(lines)


def check_log(session: str, events: Sequence[Event]) -> list[str]:
    """Check one log, and return its messages."""
    assert [event.seq for event in events] == list(range(len(events))), session
    said = [event.fact for event in events if isinstance(event.fact, UserSaid | ModelSaid)]
    texts = [text_of(fact.content) for fact in said]
    messages, answers = texts[::2], texts[1::2]
    assert all(isinstance(fact, UserSaid) for fact in said[::2]), _around(said, texts)
    assert all(isinstance(fact, ModelSaid) for fact in said[1::2]), _around(said, texts)
    assert answers == [expected_answer(text) for text in messages], session
    assert _more_than_once(messages) == []
    notes = [event.fact.text for event in events if _is_turn_note(event)]
    assert _more_than_once(notes) == []
    return messages


def _check_rows(group: ServerGroup, stored: dict[str, list[str]]) -> None:
    """Check the tables: the length of each log, and that the inbox has the order of the log."""
    heads = group.rows(
        """SELECT id, head, count(*), min(seq), max(seq) FROM foveal.session JOIN foveal.event
        ON event.tenant = session.tenant AND event.session = session.key GROUP BY id, head"""
    )
    assert [row for row in heads if row[1:] != (row[1], row[1], 0, row[1] - 1)] == []
    inbox: dict[str, list[str]] = defaultdict(list)
    for session, key, state, why in group.rows(
        "SELECT session, key, state, why FROM foveal.inbox ORDER BY id"
    ):
        assert (state, why) == ("done", "answered"), (session, key, state, why)
        inbox[session].append(key)
    assert inbox == {
        session: [text.split()[1] for text in texts] for session, texts in stored.items() if texts
    }


def check_clients(session: str, lines: Sequence[ClientLine], stored: Sequence[str]) -> None:
    """Check what the clients of a session have logged against its messages."""
    places = {text.split()[1]: place for place, text in enumerate(stored)}
    sent, acknowledged = _first(lines, "sent"), _first(lines, "acknowledged")
    assert [line for line in lines if line.what == "gave up"] == []
    assert [key for key in sent if key not in acknowledged] == [], session
    assert [key for key in acknowledged if key not in places] == [], session
    assert [key for key in places if key not in sent] == [], session
    for line in lines:
        if line.what == "answered":
            assert line.text == expected_answer(sent[line.key].text), line
    assert _more_than_once([line.key for line in lines if line.what == "answered"]) == []
    for key, line in acknowledged.items():
        later = [other for other, first in sent.items() if first.at > line.at]
        assert [other for other in later if places[other] < places[key]] == [], (session, key)


def _counted(lines: Sequence[ClientLine]) -> CheckedRun:
    sent, answered = _first(lines, "sent"), _first(lines, "answered")
    return CheckedRun(
        acknowledged=len(_first(lines, "acknowledged")),
        answered=len(answered),
        attempts=sum(line.what == "sent" for line in lines),
        slowest_s=max((line.at - sent[key].at for key, line in answered.items()), default=0.0),
    )


def _first(lines: Sequence[ClientLine], what: str) -> dict[str, ClientLine]:
    """Return the first line of a kind for each message."""
    found: dict[str, ClientLine] = {}
    for line in lines:
        if line.what == what:
            found.setdefault(line.key, line)
    return found


def _is_turn_note(event: Event) -> bool:
    return isinstance(event.fact, Noted) and event.fact.topic == TURN_NOTE_TOPIC


def _more_than_once(texts: Sequence[str]) -> list[str]:
    return [text for text, count in Counter(texts).items() if count > 1]


def _around(said: Sequence[object], texts: Sequence[str]) -> list[str]:
    """Return the messages around the first one that has no answer, or the first answer that has no message."""
    kinds = [UserSaid if place % 2 == 0 else ModelSaid for place in range(len(said))]
    at = next(place for place, fact in enumerate(said) if not isinstance(fact, kinds[place]))
    return texts[max(0, at - 3) : at + 3]
