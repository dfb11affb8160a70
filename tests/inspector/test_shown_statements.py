"""The user's statements at a point of a log, as the inspector's panel lists them."""

from __future__ import annotations

import pytest

from foveal.core.engine.user_statements import UserStatement
from foveal.core.log.events import AnyFact, Compacted, Event, ModelSaid, Rewound, Superseded, UserSaid
from foveal.errors import UnknownHandle
from foveal.inspector.timeline import sent_request as module
from foveal.inspector.timeline.message_text import LogViews
from foveal.inspector.timeline.sent_request import ShownStatements, shown_statements

PUSH = "Never push to main."
BUDGET = "The budget is 12,450.50 EUR."
BOLIVIA = "We ship to Bolivia first."


def talk() -> list[AnyFact]:
    return [
        UserSaid(content=f"{PUSH} {BUDGET}"),
        ModelSaid(content="All right."),
        UserSaid(content=BOLIVIA),
        ModelSaid(content="I see."),
        Compacted(first=0, last=3, summary=f"The user said:\ne0: {PUSH}"),
        UserSaid(content="You can push to main now."),
    ]


def found(*facts: AnyFact, at: int | None = None) -> ShownStatements:
    log = [Event(seq, fact) for seq, fact in enumerate(facts)]
    return shown_statements(log, at=len(log) - 1 if at is None else at, views=LogViews())


def brief(shown: ShownStatements) -> list[tuple[str, str, str]]:
    return [(one.text, one.shown, one.replaced_by) for one in shown.statements]


def test_each_statement_has_its_place_in_the_request_of_the_point() -> None:
    assert brief(found(*talk())) == [
        (PUSH, "record", "e5"),
        (BUDGET, "nowhere", ""),
        (BOLIVIA, "nowhere", ""),
        ("You can push to main now.", "verbatim", ""),
    ]
    earlier = found(*talk(), at=3)
    assert earlier.at == 3
    assert brief(earlier) == [(text, "verbatim", "") for text in (PUSH, BUDGET, BOLIVIA)]


def test_what_was_taken_back_is_no_statement_and_what_was_superseded_is_replaced() -> None:
    facts = [*talk()[:4], Superseded(target=0, by=2)]
    assert [one.replaced_by for one in found(*facts).statements] == ["e2", "e2", ""]
    assert brief(found(*talk()[:4], Rewound(to=1))) == [(PUSH, "verbatim", ""), (BUDGET, "verbatim", "")]


def test_of_too_many_those_that_are_shown_nowhere_are_listed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SHOWN_STATEMENTS", 3)
    shown = found(*talk())
    assert [one.text for one in shown.statements] == [BUDGET, BOLIVIA, "You can push to main now."]
    assert shown.left_out == 1


def test_a_session_without_statements_has_none() -> None:
    assert found(UserSaid(content="Hello!")) == ShownStatements(at=0)
    with pytest.raises(UnknownHandle):
        found(UserSaid(content="Hello!"), at=7)


def test_a_statement_is_that_of_the_library() -> None:
    (one,) = found(UserSaid(content=PUSH)).statements
    assert one == UserStatement(handle="e0", text=PUSH, kind="rule", replaced_by="", shown="verbatim")
