"""Data of an exported file: redacted, with versions as they were shown."""

from __future__ import annotations

from typing import Any

from foveal.core.log.events import (
    AnyFact,
    Call,
    Clipped,
    Event,
    Media,
    ModelSaid,
    Opened,
    ToolReturned,
    UserSaid,
    raw,
)
from foveal.inspector.export_data import export_data, redacted_log
from foveal.inspector.open_logs import inspected_settings
from foveal.inspector.sessions.source import SessionAbout
from foveal.inspector.timeline.builder import TimelineBuilder

TOKEN = "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"
ABOUT = SessionAbout(key="s", id="s", title="A talk")


def log_with(result: str, *clips: AnyFact) -> list[Event]:
    facts: list[AnyFact] = [
        Opened(model="gpt-5", policy="economy"),
        UserSaid(content="Look."),
        ModelSaid(content=(Call(id="c1", name="shell", arguments="{}"),)),
        ToolReturned(call_id="c1", content=result),
        *clips,
    ]
    return [Event(seq, fact, 1.0 + seq) for seq, fact in enumerate(facts)]


def exported(log: list[Event], **how: Any) -> dict[str, Any]:
    def report(done: int, total: int) -> None:
        assert 0 <= done <= total

    return export_data(ABOUT, redacted_log(log, report), how.get("timeline"), report)


def shown(data: dict[str, Any], key: str) -> str:
    return "".join(part.text for part in data["shown"][key].parts)


def test_a_clip_after_a_secret_has_the_text_that_was_shown() -> None:
    text = f"token {TOKEN} and then\nthe cause is a race\nand more\n"
    start = text.index("the cause")
    clip = Clipped(target=3, pieces=((0, 5), "[… cut …]", (start, start + 19), "[… cut …]"), rule="clip")
    data = exported(log_with(text, clip))
    assert shown(data, "e3@4") == "token[… cut …]the cause is a race[… cut …]"
    assert TOKEN not in str(data)
    assert "[foveal: redacted" in str(data["texts"]["e3"])


def test_no_part_of_a_secret_that_a_clip_cuts_is_left() -> None:
    text = f"{TOKEN}\nthe rest\n"
    data = exported(log_with(text, Clipped(target=3, pieces=((0, 20), "[… cut …]", (25, 50)), rule="clip")))
    version = shown(data, "e3@4")
    assert not any(TOKEN[at : at + 6] in version for at in range(len(TOKEN) - 6))
    assert "the rest" in version


def test_a_log_without_secrets_keeps_its_timeline() -> None:
    log = log_with("all is well\n")
    builder = TimelineBuilder(inspected_settings(ABOUT))
    builder.add(log)
    timeline = builder.document()
    assert exported(log, timeline=timeline)["timeline"].rows is timeline.rows
    assert exported(log)["timeline"] == timeline
    later = exported(log[:2], timeline=timeline)["timeline"]
    assert len(later.rows) == 2


def test_statements_are_those_of_the_recorded_log_without_secrets() -> None:
    facts: list[AnyFact] = [
        UserSaid(content=f"Never push to main. The token is {TOKEN}."),
        UserSaid(content="You can push to main now."),
    ]
    data = exported([Event(seq, fact, 1.0 + seq) for seq, fact in enumerate(facts)])
    assert data["statements"].at == 1
    assert [(one.text, one.replaced_by) for one in data["statements"].statements][::2] == [
        ("Never push to main.", "e1"),
        ("You can push to main now.", ""),
    ]
    assert "[foveal: redacted" in data["statements"].statements[1].text
    assert TOKEN not in str(data)


def test_a_log_whose_messages_no_dialect_can_read_is_exported_without_its_surprise() -> None:
    foreign = UserSaid(content=(Media(mime="image/png", native=raw({"kind": "unknown"})),))
    answer = ModelSaid(content="The cause is a race between two workers.")
    data = exported(log_with("text", foreign, Clipped(target=3, pieces=("[… cut …]",), rule="clip"), answer))
    assert data["surprises"] is None
    assert data["texts"].keys() >= {"e3", "e6"}
