"""Texts of messages, whole and as requests show them."""

from __future__ import annotations

import pytest

from foveal.core.log import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Mask,
    Masked,
    Media,
    ModelSaid,
    Opaque,
    Opened,
    Pinned,
    Rewound,
    Text,
    Thinking,
    ToolReturned,
    Used,
    UserSaid,
    raw,
)
from foveal.core.view.steps import NO_RESULT
from foveal.errors import UnknownHandle
from foveal.inspector.timeline.message_text import (
    InspectedText,
    TextPiece,
    TextWindow,
    shown_text,
    whole_text,
)


def numbered(*facts: AnyFact) -> list[Event]:
    return [Event(seq, fact) for seq, fact in enumerate(facts)]


def text(words: str, **more: str) -> tuple[TextPiece, ...]:
    return (TextPiece(kind="text", text=words, **more),)


LOG = numbered(
    Opened(model="gpt-5"),
    Instructed(content="Careful.", aside=True),
    UserSaid(content="look"),
    ModelSaid(content=(Text(text="Yes."), Call(id="a", name="bash", arguments='{"n": 1}'))),
    ToolReturned(call_id="a", content="one\ntwo\nthree", name="bash"),
    Clipped(target=4, pieces=((0, 3), "\n[… 2 lines …]"), rule="clip"),
    Masked(masks=(Mask(target=4, text="[masked]"), Mask(target=3, part=1, text="[arguments]")), rule="mask"),
    Pinned(text="Never push."),
    ModelSaid(content=(Call(id="b", name="bash", arguments="not JSON"),)),
    UserSaid(content="wait"),
    Dropped(ranges=((3, 4),), rule="drop", names_ranges=True),
    Compacted(first=8, last=8, summary="It waited.", rule="compact"),
    Rewound(to=7, keep_reductions=True),
)


def test_every_part_of_a_message_is_shown_without_bytes_of_media() -> None:
    event = Event(
        7,
        ModelSaid(
            content=(
                Thinking(native=raw({"thinking": "Hm."}), text="Hm."),
                Thinking(native=raw({"data": "secret"})),
                Text(text="Yes."),
                Call(id="a", name="bash", arguments='{"command":"ls","n":[1]}'),
                Call(id="b", name="bash", arguments="not JSON"),
                Media(native=raw({"data": "AAAA"}), mime="image/png", size=4_000),
                Opaque(native=raw({"type": "web_search"})),
            )
        ),
    )
    assert whole_text(event) == InspectedText(
        key="e7",
        kind="model_said",
        role="assistant",
        chars=82,
        parts=(
            TextPiece(kind="thinking", text="Hm."),
            TextPiece(kind="thinking", size=17),
            TextPiece(kind="text", text="Yes."),
            TextPiece(
                kind="call", id="a", name="bash", text='{\n  "command": "ls",\n  "n": [\n    1\n  ]\n}'
            ),
            TextPiece(kind="call", id="b", name="bash", text="not JSON"),
            TextPiece(kind="media", mime="image/png", size=4_000),
            TextPiece(kind="opaque", text='{\n  "type": "web_search"\n}'),
        ),
    )


def test_a_window_selects_a_part_of_a_long_text() -> None:
    event = Event(1, UserSaid(content=(Text(text="abc"), Text(text="defg"))))
    found = whole_text(event, TextWindow(start=2, max_chars=3))
    assert (found.parts, found.chars, found.start, found.truncated) == (
        (TextPiece(kind="text", text="c"), TextPiece(kind="text", text="de")), 7, 2, True,
    )  # fmt: skip
    assert not whole_text(event, TextWindow(start=5, max_chars=2)).truncated
    assert whole_text(event, TextWindow(start=99)).parts == ()
    whole = "".join(
        p.text for at in range(0, 7, 2) for p in whole_text(event, TextWindow(start=at, max_chars=2)).parts
    )
    assert whole == "abcdefg"


@pytest.mark.parametrize("event", LOG)
def test_every_event_has_a_text(event: Event) -> None:
    found = whole_text(event)
    assert (found.key, found.chars > 0) == (event.handle, True)


def test_events_that_are_no_messages_are_shown_as_json() -> None:
    used = whole_text(Event(9, Used(input=5)))
    assert (used.kind, used.parts[0].kind, '"input": 5' in used.parts[0].text) == ("used", "opaque", True)
    tools = whole_text(Event(9, Equipped(tools=raw([{"name": "bash"}]))))
    assert tools.parts[0].text == '[\n  {\n    "name": "bash"\n  }\n]'


def test_a_message_is_shown_as_each_request_showed_it() -> None:
    assert shown_text(LOG, "e4", at=4) == whole_text(LOG[4])
    assert shown_text(LOG, "e4", at=5) == InspectedText(
        key="e4", kind="tool_returned", role="tool", parts=text("one\n[… 2 lines …]"), chars=17,
        level="clipped", rule="clip", by=5,
    )  # fmt: skip
    masked = shown_text(LOG, "e4", at=6)
    assert (masked.parts, masked.level, masked.rule, masked.by) == (text("[masked]"), "masked", "mask", 6)
    call = shown_text(LOG, "e3", at=6)
    assert call.parts[1] == TextPiece(kind="call", id="a", name="bash", text="[arguments]")


def test_what_hides_a_message_is_named() -> None:
    hidden = [shown_text(LOG, key, at=11) for key in ("e4", "e8")]
    assert [(found.parts, found.level, found.rule, found.by) for found in hidden] == [
        ((), "dropped", "drop", 10),
        ((), "summarised", "compact", 11),
    ]
    assert (shown_text(LOG, "e9", at=12).level, shown_text(LOG, "e9", at=12).rule) == (
        "removed",
        "taken back",
    )


def test_texts_that_foveal_wrote_have_keys_of_their_own() -> None:
    notice = shown_text(LOG, "n10", at=10)
    assert (notice.kind, notice.role, notice.by) == ("notice", "user", 10)
    assert "2 older messages" in notice.parts[0].text
    assert shown_text(LOG, "n10", at=9).level == "removed"
    missing = shown_text(LOG, "m8.0", at=9)
    assert (missing.kind, missing.parts) == ("missing_result", text(NO_RESULT))
    assert shown_text(LOG, "m3.0", at=9).level == "removed"
    assert shown_text(LOG, "e11", at=11).parts == text("It waited.")
    assert shown_text(LOG, "e7", at=11).parts == text("Pinned rule: Never push.")
    assert shown_text(LOG, "e1", at=11) == whole_text(LOG[1])


@pytest.mark.parametrize(
    ("key", "at"), [("e99", 11), ("x1", 11), ("e5", 4), ("", 11), ("e1", 99), ("e-1", 3)]
)
def test_an_unknown_key_is_refused(key: str, at: int) -> None:
    with pytest.raises(UnknownHandle):
        shown_text(LOG, key, at=at)
