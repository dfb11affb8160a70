"""A recorded log under another policy, window or model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from foveal import Context
from foveal.core.log import Compacted, Event, Masked, ModelSaid, Opened, UserSaid
from foveal.errors import BadSetting
from foveal.inspector.timeline.builder import InspectedSettings
from foveal.inspector.what_if import ReplayStopped, WhatIf, WhatIfChoice, what_if
from support.histories import TOOLS, ManualClock

SETTINGS = InspectedSettings(id="s", title="A session", window=8_000)


def recorded_log(*, window: int = 8_000, policy: str = "economy", turns: int = 4) -> list[Event]:
    """Return the log of an agent that looks at files and comes back to their names."""
    clock = ManualClock()
    ctx = Context("gpt-5", window=window, policy=policy, clock=clock)  # type: ignore[arg-type]
    messages: list[Any] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Task {turn}: repair the module."})
        for step in range(5):
            clock.now += 10
            ctx.fit(messages, tools=TOOLS["openai_chat"])
            number = turn * 5 + step
            arguments = json.dumps({"command": f"cat src/module_{max(0, number - 3)}.py"})
            function = {"name": "bash", "arguments": arguments}
            call = {"id": f"c{number}", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            lines = "".join(f"src/module_{number}.py: value_{number}_{at} = {at}\n" for at in range(40))
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": lines})
        ctx.fit(messages, tools=TOOLS["openai_chat"])
        messages.append({"role": "assistant", "content": f"Task {turn} is done."})
    ctx.append(messages[-1])
    return list(ctx.log)


def figures_of(found: WhatIf) -> dict[str, tuple[float | None, float | None]]:
    return {figure.name: (figure.recorded, figure.replayed) for figure in found.figures}


def test_a_replayed_log_has_the_requests_of_the_recorded_one() -> None:
    log = recorded_log()
    found = what_if(log, SETTINGS, WhatIfChoice(policy="rolling", window=6_000))
    answers = sum(isinstance(event.fact, ModelSaid) for event in log)
    timeline = found.timeline
    assert [row.number for row in timeline.requests] == list(range(1, answers + 1))
    assert all(row.used >= 0 and row.tokens == row.read + row.uncached for row in timeline.requests)
    assert (found.label, timeline.window, timeline.policy) == (
        "rolling, 6,000 tokens, gpt-5",
        6_000,
        "rolling",
    )
    assert "estimated" in timeline.problems[-1]
    assert any(card.kind == "masked" for card in timeline.reductions)


def test_sending_everything_costs_what_sending_everything_costs() -> None:
    log = recorded_log(window=400_000, policy="off")
    wide = InspectedSettings(id="s", window=400_000)
    found = figures_of(what_if(log, wide, WhatIfChoice(policy="off")))
    assert found["simulated cost relative to sending everything"] == (1.0, 1.0)
    for name in ("prefix breaks", "reductions", "requests above the window"):
        assert found[name] == (0, 0)
    assert found["recall of names"] == (1.0, 1.0)
    assert found["simulated cost"][0] == found["simulated cost"][1]
    assert found["reported cost"] == (None, None)


def test_the_figures_of_both_sides_are_of_their_own_requests() -> None:
    log = recorded_log()
    assert any(isinstance(event.fact, Masked | Compacted) for event in log)
    found = figures_of(what_if(log, SETTINGS, WhatIfChoice(policy="off", window=400_000)))
    share, breaks, largest = (
        found[name]
        for name in ("simulated cost relative to sending everything", "prefix breaks", "largest request")
    )
    assert share[0] is not None
    assert share[0] < 1.0 == share[1]
    assert breaks[0] is not None
    assert breaks[0] > 0 == breaks[1]
    assert largest[0] is not None
    assert largest[1] is not None
    assert largest[0] < 8_000 < largest[1]


def test_without_a_choice_the_recorded_policy_window_and_model_are_used() -> None:
    assert what_if(recorded_log(), SETTINGS, WhatIfChoice()).label == "economy, 8,000 tokens, gpt-5"


def test_a_window_that_only_the_log_knows_is_the_recorded_one() -> None:
    log = recorded_log(window=8_000, turns=6)
    found = what_if(log, InspectedSettings(id="s"), WhatIfChoice())
    assert (found.label, found.timeline.window) == ("economy, 8,000 tokens, gpt-5", 8_000)
    sizes = [row.tokens for row in found.timeline.requests]
    assert max(sizes) <= 8_000
    assert figures_of(found)["requests above the window"] == (0, 0)


def test_a_log_without_a_policy_says_that_one_is_assumed() -> None:
    log = [event for event in recorded_log() if not isinstance(event.fact, Opened)]
    found = what_if(log, SETTINGS, WhatIfChoice())
    assert any("economy is assumed" in note for note in found.notes)
    chosen = what_if(log, SETTINGS, WhatIfChoice(policy="rolling"))
    assert not any("is assumed" in note and "policy" in note for note in chosen.notes)


def test_another_model_is_billed_by_its_own_prices_and_cache() -> None:
    found = what_if(recorded_log(), SETTINGS, WhatIfChoice(model="claude-sonnet-4-5"))
    assert (found.timeline.model, found.timeline.window) == ("claude-sonnet-4-5", 200_000)
    assert all(row.written and not row.uncached for row in found.timeline.requests)
    cost = figures_of(found)["simulated cost"]
    assert cost[0] is not None
    assert cost[1] is not None
    assert cost[1] > cost[0]


def test_the_recorded_log_is_left_as_it_is_and_progress_is_reported() -> None:
    log = recorded_log(turns=2)
    before, seen = list(log), list[tuple[int, int]]()
    what_if(log, SETTINGS, WhatIfChoice(), progress=lambda done, total: seen.append((done, total)))
    assert log == before
    assert seen == [(done, 24) for done in range(1, 25)]


def test_a_replay_can_be_stopped_at_every_request() -> None:
    seen: list[int] = []
    with pytest.raises(ReplayStopped):
        what_if(
            recorded_log(turns=2), SETTINGS, WhatIfChoice(), should_stop=lambda: len(seen) == 5,
            progress=lambda done, total: seen.append(done),
        )  # fmt: skip
    assert seen == [1, 2, 3, 4, 5]


def test_a_policy_of_the_configuration_is_one_to_replay_under() -> None:
    tables = {"mine": {"preset": "plain", "cut_at": 4_000}}
    found = what_if(recorded_log(), SETTINGS, WhatIfChoice(policy="mine"), policies=tables)
    assert found.label == "mine, 8,000 tokens, gpt-5"
    assert "compacted" in [row.kind for row in found.timeline.rows]
    log = [
        Event(event.seq, replace(event.fact, policy="mine")) if isinstance(event.fact, Opened) else event
        for event in recorded_log(turns=1)
    ]
    known = what_if(log, SETTINGS, WhatIfChoice(), policies=tables)
    assert known.label.startswith("mine, ")
    assert not any("is assumed" in note and "policy" in note for note in known.notes)
    with pytest.raises(BadSetting, match=r"economy, .*, mine"):
        what_if(log, SETTINGS, WhatIfChoice(policy="other"), policies=tables)


@pytest.mark.parametrize("choice", [WhatIfChoice(policy="../policy.toml"), WhatIfChoice(window=0)])
def test_a_choice_that_does_not_exist_is_refused(choice: WhatIfChoice) -> None:
    with pytest.raises(BadSetting):
        what_if(recorded_log(turns=1), SETTINGS, choice)


def test_a_log_without_answers_has_no_requests() -> None:
    log = [Event(0, Opened(model="gpt-5", policy="economy")), Event(1, UserSaid(content="hello"))]
    found = what_if(log, SETTINGS, WhatIfChoice())
    assert (found.timeline.requests, figures_of(found)["simulated cost"]) == ((), (0.0, 0.0))
    assert what_if([], SETTINGS, WhatIfChoice()).timeline.requests == ()


def test_an_unknown_model_and_an_unknown_recall_are_told() -> None:
    found = what_if(recorded_log(turns=1), SETTINGS, WhatIfChoice(model="nonsense-1"))
    (note,) = found.notes
    assert note == (
        f"The model nonsense-1 is not known: a window of {found.timeline.window:,} tokens is assumed; "
        "its prices are unknown, so costs are too."
    )
    chosen = what_if(recorded_log(turns=1), SETTINGS, WhatIfChoice(model="nonsense-1", window=4_000))
    assert chosen.notes == (
        "The model nonsense-1 is not known: the window of 4,000 tokens is the recorded or chosen one; "
        "its prices are unknown, so costs are too.",
    )
    log = [Event(0, Opened(model="gpt-5", policy="economy")), Event(1, UserSaid(content="hello"))]
    assert what_if(log, SETTINGS, WhatIfChoice()).notes == (
        "Recall is unknown, because the conversation uses no earlier result again.",
    )
    assert what_if(recorded_log(), SETTINGS, WhatIfChoice()).notes == ()
