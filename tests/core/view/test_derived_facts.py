"""Facts derived from shown messages: who owns the caches, and when they are dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

import foveal
from foveal.core.log import AnyFact, Call, Clipped, Event, Mask, Masked, ModelSaid, ToolReturned, UserSaid
from foveal.core.policies import PRESETS, Moment, decide
from foveal.core.tokens import MessageTokens
from foveal.core.view.fold import fold
from foveal.core.view.steps import ShownMessage, Step
from foveal.core.view.view import View
from foveal.core.wire import wire_for
from support.histories import ESTIMATE, context, describe_view, session

CORE = Path(foveal.__file__).parent / "core"
TEXT = "def parse_header(self):\n    return self.header_line\n" * 20


def one_call() -> View:
    call = Call(id="a", name="read", arguments='{"path": "src/header_parser.py"}')
    facts: tuple[AnyFact, ...] = (
        UserSaid(content="go"),
        ModelSaid(content=(call,)),
        ToolReturned(call_id="a", content=TEXT),
    )
    return fold([Event(seq, fact) for seq, fact in enumerate(facts)], MessageTokens(ESTIMATE))


def shown(view: View, seq: int) -> tuple[Step, ShownMessage]:
    found = view.find(seq)
    assert found is not None
    return found


def test_names_and_texts_follow_what_is_shown() -> None:
    view = one_call()
    _, result = shown(view, 2)
    assert result.name_counts() == {"parse_header": 20, "self.header_line": 20}
    assert result.names() == ("parse_header", "self.header_line")
    assert result.verbatim_texts() == [TEXT]
    view.advance(Event(3, Masked(masks=(Mask(target=2, text="[masked parse_header]"),))))
    assert result.name_counts() == {"parse_header": 1}
    assert result.names() == ("parse_header",)
    assert result.verbatim_texts() == []


def test_a_clip_that_keeps_everything_shows_the_text_again() -> None:
    view = one_call()
    _, result = shown(view, 2)
    view.advance(Event(3, Clipped(target=2, pieces=((0, 10), "[…]"))))
    assert result.verbatim_texts() == []
    view.advance(Event(4, Clipped(target=2, pieces=((0, len(TEXT)),))))
    assert result.verbatim_texts() == [TEXT]


def test_a_step_is_rendered_once_for_each_dialect_until_it_changes() -> None:
    view = one_call()
    step, _ = shown(view, 2)
    chat = step.render(wire_for("openai_chat"))
    assert step.render(wire_for("openai_chat")) is chat
    assert step.render(wire_for("anthropic")) != chat
    assert step.render(wire_for("openai_chat")) == chat
    view.advance(Event(3, Masked(masks=(Mask(target=2, text="[masked]"),))))
    assert step.rendered is None
    assert step.render(wire_for("openai_chat")) != chat


def test_a_placeholder_that_saved_too_little_is_not_written_again() -> None:
    view = one_call()
    _, result = shown(view, 2)
    assert result.replacement(lambda: TEXT, view.meter, min_saving=24) is None
    assert result.replacement(lambda: "short", view.meter, min_saving=24) is None


def test_a_placeholder_with_a_key_is_written_once_for_each_key() -> None:
    view = one_call()
    _, result = shown(view, 2)
    texts = iter(("first", "second"))

    def made(key: tuple[int, int]) -> str | None:
        found = result.replacement(lambda: next(texts), view.meter, min_saving=1, key=key)
        return found and found[0]

    assert [made((9, 60)), made((9, 60)), made((9, 80)), made((9, 80))] == ["first"] * 2 + ["second"] * 2


@pytest.mark.parametrize("name", PRESETS)
def test_a_decision_changes_nothing_in_the_view(name: str) -> None:
    ctx = context(4_000, "off")
    for message in session(3):
        ctx.append(message)
    view, budget = ctx._engine.view, ctx._engine.budget()
    before = describe_view(view)
    moment = Moment(calls=3, refused=name == "recent")
    first = decide(view, budget, moment, PRESETS[name])
    assert describe_view(view) == before
    assert decide(view, budget, moment, PRESETS[name]) == first
