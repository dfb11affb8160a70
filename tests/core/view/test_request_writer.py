"""A request that is written from the one before equals one that is written anew, whatever the caller did to it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.log import Event
from foveal.core.log.events import Dialect, UserSaid
from foveal.core.tokens import MessageTokens
from foveal.core.view import advance, render_view
from foveal.core.view.fold import fold
from foveal.core.view.request import RequestWriter
from foveal.core.wire import wire_for
from support.effort import examples
from support.histories import (
    ESTIMATE,
    ScriptedHistory,
    context,
    logs,
    render_log,
    scripted_histories,
)

CHAT = wire_for("openai_chat")


def change_all(value: Any) -> None:
    """Change every list and dict of some messages in place."""
    for inner in list(value.values() if isinstance(value, dict) else value):
        if isinstance(inner, dict | list):
            change_all(inner)
    if isinstance(value, dict):
        value["changed"] = True
    else:
        value.append("changed")


@examples(60)
@given(logs(), st.integers(0, 2**32), st.booleans())
def test_each_request_of_a_log_is_the_one_written_anew(
    given_log: tuple[Dialect, list[Event]], seed: int, changes: bool
) -> None:
    dialect, log = given_log
    rng, writer, wire = Random(seed), RequestWriter(), wire_for(dialect)
    view = fold([], MessageTokens(ESTIMATE))
    for end, event in enumerate(log, 1):
        view = advance(view, event, log[:end])
        if rng.random() < 0.5:  # several changes between two requests, or one
            messages, groups = writer.write(view, wire)
            assert messages == render_log(log[:end], dialect)
            assert groups == render_view(view, wire)[1]
            if changes and messages and rng.random() < 0.3:
                change_all(rng.choice(messages))


@examples(10)
@given(scripted_histories(turns=3), st.integers(2_000, 12_000), st.booleans())
def test_a_loop_gets_what_its_log_says(history: ScriptedHistory, window: int, changes: bool) -> None:
    ctx = context(window, "economy", dialect=history.dialect)
    for size in history.calls:
        fitted = ctx.fit(history.messages[:size])
        assert fitted == render_log(ctx.log, history.dialect)
        if changes:
            change_all(fitted)


def written(count: int) -> tuple[RequestWriter, Any, list[Any]]:
    """Return a writer, its view and the first request of so many messages."""
    view = fold([Event(seq, UserSaid(content=f"m{seq}")) for seq in range(count)], MessageTokens(ESTIMATE))
    writer = RequestWriter()
    return writer, view, writer.write(view, CHAT)[0]


def test_unchanged_messages_are_given_again_in_a_new_list() -> None:
    writer, view, first = written(3)
    first.pop()
    second, _ = writer.write(view, CHAT)
    assert [message["content"] for message in second] == ["m0", "m1", "m2"]
    assert second[0] is first[0]


@pytest.mark.parametrize("place", [0, 100, -1])
def test_a_changed_message_does_not_reach_the_next_request(place: int) -> None:
    writer, view, first = written(256)
    first[place]["cache_control"] = {"type": "ephemeral"}
    second, _ = writer.write(view, CHAT)
    assert second == render_view(view, CHAT)[0]
    assert second[1] is not writer.write(view, CHAT)[0][1], (
        "a caller that changes messages gets its own copies"
    )


@pytest.mark.parametrize("places", [slice(3), slice(-3, None), slice(None, None, 40)])
def test_changes_of_a_long_request_do_not_reach_the_next_one(places: slice) -> None:
    writer, view, first = written(5_000)
    for message in first[places]:
        message["cache_control"] = {"type": "ephemeral"}
    assert writer.write(view, CHAT)[0] == render_view(view, CHAT)[0]


def test_one_changed_message_inside_a_long_request_is_found() -> None:
    writer, view, first = written(5_000)
    first[2_000]["content"] = "changed"
    assert writer.write(view, CHAT)[0][2_000]["content"] == "m2000"


def test_a_request_after_a_failed_one_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, view, _ = written(3)
    view.advance(Event(3, UserSaid(content="m3")))
    with monkeypatch.context() as broken:
        broken.setattr("foveal.core.view.request.copy_messages", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.write(view, CHAT)
    assert writer.write(view, CHAT)[0] == render_view(view, CHAT)[0]
