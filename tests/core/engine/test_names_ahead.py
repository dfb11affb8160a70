"""Names that are read before a cut are those that the cut would read."""

from __future__ import annotations

from foveal.core.engine.beside_range import MESSAGES_READ_AHEAD, NamesAhead
from foveal.core.log import Clipped, Dropped, Event, UserSaid
from foveal.core.tokens import MessageTokens
from foveal.core.view.fold import fold
from support.histories import ESTIMATE


def said(*texts: str) -> list[Event]:
    return [Event(seq, UserSaid(content=text)) for seq, text in enumerate(texts)]


def test_a_few_messages_are_read_in_each_turn_the_newest_first() -> None:
    log = said("parse_one", "parse_two", "parse_three", "parse_four")
    view, ahead = fold(log, MessageTokens(ESTIMATE)), NamesAhead()
    for event in log:
        ahead.note(event)
    read = []
    for _ in range(3):
        ahead.read_some(view)
        read.append([step.seq for step in view.steps if step.utterance._names is not None])
    assert MESSAGES_READ_AHEAD == 2
    assert read == [[2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_a_clipped_message_is_read_as_it_is_shown() -> None:
    log = said("parse_one and parse_two")
    log.append(Event(1, Clipped(target=0, pieces=((0, 9),))))
    view, ahead = fold(log, MessageTokens(ESTIMATE)), NamesAhead()
    ahead.note(log[1])
    ahead.read_some(view)
    assert view.steps[0].utterance._names == ("parse_one",)


def test_messages_that_left_the_view_are_not_read() -> None:
    log = said("parse_one", "parse_two")
    ahead = NamesAhead()
    ahead.note(log[0])
    log.append(Event(2, Dropped(ranges=((0, 0),))))
    view = fold(log, MessageTokens(ESTIMATE))
    ahead.read_some(view)
    assert [step.utterance._names for step in view.steps if step.seq == 1] == [None]
    ahead.note(log[1])
    ahead.read_some(view)
    assert [step.utterance._names for step in view.steps if step.seq == 1] == [("parse_two",)]


def test_a_view_knows_whether_anything_was_dropped() -> None:
    log = said("parse_one", "parse_two")
    assert not fold(log, MessageTokens(ESTIMATE)).has_drops
    log.append(Event(2, Dropped(ranges=((0, 0),))))
    assert fold(log, MessageTokens(ESTIMATE)).has_drops
