"""Views that several questions about one point share."""

from __future__ import annotations

import pytest

from foveal.core.log.events import Event, ModelSaid, UserSaid
from foveal.core.view.view import View
from foveal.errors import UnknownHandle
from foveal.inspector.timeline.message_text import MAX_KEPT_VIEWS, LogViews
from foveal.inspector.timeline.request_diff import request_diff
from foveal.inspector.timeline.sent_request import sent_request

LOG = [
    Event(seq, (UserSaid if seq % 2 == 0 else ModelSaid)(content=f"Text {seq}."), None) for seq in range(10)
]


def view(views: LogViews, seq: int) -> View:
    with views.at(LOG, seq) as found:
        return found


def test_a_view_is_folded_once_and_stays_while_the_log_grows() -> None:
    views = LogViews()
    with views.at(LOG[:5], 4) as first:
        assert view(views, 4) is first


def test_only_the_views_used_last_are_kept() -> None:
    views = LogViews()
    first, second = view(views, 0), view(views, 1)
    for seq in range(2, MAX_KEPT_VIEWS + 1):
        view(views, 0)
        view(views, seq)
    assert view(views, 0) is first
    assert view(views, 1) is not second


def test_answers_from_kept_views_are_the_same() -> None:
    views = LogViews()
    for dialect in ("anthropic", "openai_chat", "anthropic"):
        kept = sent_request(LOG, at=6, dialect=dialect, views=views)
        assert kept == sent_request(LOG, at=6, dialect=dialect)
        kept_diff = request_diff(LOG, a=6, b=8, dialect=dialect, views=views)
        assert kept_diff == request_diff(LOG, a=6, b=8, dialect=dialect)


def test_an_event_that_is_not_there_is_named() -> None:
    with pytest.raises(UnknownHandle, match="e99"):
        view(LogViews(), 99)
