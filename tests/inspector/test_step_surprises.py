"""Surprise of a session's steps, as the inspector's first screen shows it."""

from __future__ import annotations

import json
from pathlib import Path

from foveal.core.log.events import (
    AnyFact,
    Call,
    Event,
    Mask,
    Masked,
    ModelSaid,
    Opened,
    ToolReturned,
    UserSaid,
)
from foveal.inspector.step_surprises import MAX_SURPRISE_STEPS, StepSurprises, step_surprises
from support.inspected_server import InspectedServer, write_session

PASSAGE = "the drawer of bolts M8x40 zinc is 17B, below the lamp with the green switch"
LOOK = (
    UserSaid(content="Where are the bolts?"),
    ModelSaid(content=(Call(id="c1", name="look", arguments="{}"),)),
    ToolReturned(call_id="c1", content=PASSAGE),
)


def log_of(*facts: AnyFact) -> list[Event]:
    return [Event(seq, fact, 1.0 + seq) for seq, fact in enumerate((Opened(model="gpt-5"), *facts))]


def masked(*, answers: int = 1) -> list[Event]:
    """A log whose only result is masked before the answers quote it."""
    mask = Masked(masks=(Mask(target=3, text="[foveal: whole text: e3]"),))
    return log_of(*LOOK, mask, *[ModelSaid(content=f"{number}: {PASSAGE}.") for number in range(answers)])


def test_a_step_that_quotes_a_masked_result_surprises_and_names_it() -> None:
    (worst,) = step_surprises(masked()).worst
    assert worst.answer == 5
    assert worst.bits > 0.5
    assert ("M8x40", "e3") in worst.gone


def test_a_log_without_reductions_is_not_measured() -> None:
    assert step_surprises(log_of(*LOOK, ModelSaid(content=PASSAGE))) == StepSurprises(at=4)
    assert step_surprises([]) == StepSurprises(at=-1)


def test_only_some_of_many_steps_are_measured_and_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    found = step_surprises(masked(answers=100), progress=lambda done, total: seen.append((done, total)))
    assert (found.steps, found.measured) == (100, MAX_SURPRISE_STEPS)
    assert seen == [(done, MAX_SURPRISE_STEPS) for done in range(1, MAX_SURPRISE_STEPS + 1)]


def test_measuring_stops_when_it_is_told_to() -> None:
    seen: list[int] = []
    found = step_surprises(
        masked(answers=9),
        progress=lambda done, total: seen.append(done),
        should_stop=lambda: len(seen) == 2,
    )
    assert (found.steps, found.measured) == (9, 2)


def test_the_api_streams_the_surprise_and_keeps_it_until_the_log_grows(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    facts = [event.fact for event in masked()[1:]]
    write_session(path, "bolts", facts, title="Bolts", begin=(), policy="off")
    with InspectedServer(path) as server:
        client, query = server.client(), {"id": server.keys()["Bolts"]}
        first, second = (client.get("/inspect/api/surprises", params=query).text for _ in range(2))
    found = json.loads(first.rpartition("event: result\ndata: ")[2])
    assert (found["at"], found["steps"], found["measured"]) == (5, 1, 1)
    assert found["worst"][0]["answer"] == 5
    assert second.endswith(first[first.index("event: result") :])
