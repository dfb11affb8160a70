"""`tune`: the constants of `economy` for recordings, with half of them kept back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import foveal
from foveal import ModelSaid, ToolReturned, UserSaid, replay
from foveal.cli.__main__ import main
from foveal.core.log.events import AnyFact, Call
from foveal.replay import Tuning, policy_choices, tune, tuning_text
from foveal.replay.choice import ChoiceFigures
from foveal.replay.tune import loses_more
from foveal.transcripts import Transcript


def recording(number: int, *, calls: int = 9, lines: int = 45) -> Transcript:
    """A conversation in which each call names a part of the newest result."""
    facts: list[AnyFact] = [UserSaid(content="Make the build green.")]
    for at in range(calls):
        call = Call(
            id=f"c{at}", name="bash", arguments=json.dumps({"command": f"cc part_{number}_{at - 1}_0.c"})
        )
        text = "\n".join(
            f"part_{number}_{at}_{line}.c is built with {line} warnings" for line in range(lines)
        )
        facts += [ModelSaid(content=(call,)), ToolReturned(call_id=f"c{at}", content=text, name="bash")]
    facts.append(ModelSaid(content="Done."))
    return Transcript(id=f"log-{number}", source="made", facts=tuple((fact, None) for fact in facts))


@pytest.fixture(scope="module")
def recordings() -> list[Transcript]:
    return [recording(number) for number in range(21)]


@pytest.fixture(scope="module")
def tuned(recordings: list[Transcript]) -> tuple[Tuning, list[tuple[int, int]]]:
    seen: list[tuple[int, int]] = []
    found = tune(
        recordings, name="mine", window=5_000, samples=1, processes=1, progress=lambda *at: seen.append(at)
    )
    return found, seen


@pytest.mark.soak
def test_the_gain_is_measured_on_the_half_that_has_chosen_nothing(
    tuned: tuple[Tuning, list[tuple[int, int]]], recordings: list[Transcript]
) -> None:
    found, _ = tuned
    halves = [replay.half_of(each) for each in recordings]
    assert (found.chosen_on, found.measured_on) == (halves.count("A"), halves.count("B"))
    assert found.verdict == "tuned"
    assert found.gain is not None
    assert found.before is not None
    assert found.after is not None
    assert 0 < found.gain.low <= found.gain.value <= found.gain.high
    assert found.gain.value == pytest.approx(1 - found.after.bill / found.before.bill)


def test_the_result_is_a_policy_that_the_configuration_and_the_replay_read(
    tuned: tuple[Tuning, list[tuple[int, int]]], tmp_path: Path
) -> None:
    found, _ = tuned
    path = tmp_path / "foveal.toml"
    path.write_text(found.config)
    mine = foveal.policy("economy", name="mine", **found.values)
    assert foveal.config.load(tmp_path, environ={}, user_folder=tmp_path, project=False).policy() == mine
    assert policy_choices([path])[0].policy == mine
    assert found.config in tuning_text(found)
    assert f"On {found.measured_on} others it saves" in tuning_text(found)


def test_the_progress_reaches_its_end(tuned: tuple[Tuning, list[tuple[int, int]]]) -> None:
    found, seen = tuned
    total = 2 * found.chosen_on + found.measured_on
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_the_same_recordings_give_the_same_result(recordings: list[Transcript]) -> None:
    few = [tune(recordings[:20], window=8_000, samples=0, processes=1, max_calls=123) for _ in range(2)]
    assert few[0] == few[1]
    assert few[0].left_out == 8


@pytest.mark.parametrize(
    ("count", "window", "reason"),
    [
        (0, 8_000, "too few recordings: 0, 0 to choose on and 0 kept back; needed are 10 in each half"),
        (12, 8_000, "too few recordings: 12, "),
        (21, 400_000, "of which `economy` cuts 0; needed are 5 of these in each half"),
    ],
)
def test_too_few_recordings_are_refused_with_the_numbers(
    recordings: list[Transcript], count: int, window: int, reason: str
) -> None:
    found = tune(recordings[:count], window=window, samples=0, processes=1)
    assert (found.verdict, found.values, found.config) == ("too few", {}, "")
    assert reason in found.reason
    assert tuning_text(found).startswith(f"Not tuned: {found.reason}")


def test_too_few_because_calls_were_left_out_asks_for_more_calls(recordings: list[Transcript]) -> None:
    found = tune(recordings[:20], window=8_000, samples=0, processes=1, max_calls=123)
    assert found.reason.endswith(": raise --calls (8 conversations left out), or tune for a smaller window")
    assert tuning_text(found) == f"Not tuned: {found.reason}."


def figures(*, over: float = 0.0, recall: float | None = 0.9, surprise: float | None = 0.1) -> ChoiceFigures:
    return ChoiceFigures(paid=1.0, bill=0.5, over=over, recall=recall, surprise=surprise)


def test_a_candidate_may_lose_a_point_of_recall_and_a_little_surprise() -> None:
    base = figures()
    assert not loses_more(figures(recall=0.891, surprise=0.119), base)
    assert loses_more(figures(recall=0.889), base)
    assert loses_more(figures(surprise=0.121), base)
    assert loses_more(figures(over=0.001), base)
    assert not loses_more(figures(recall=None, surprise=None), base)


def test_the_command_refuses_a_file_that_exists_and_the_name_of_a_preset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"role": "user", "content": "Hello."}\n')
    for options, problem in (
        (["--write", str(log)], "exists; name a new file"),
        (["--name", "economy"], "--name 'economy' is not allowed"),
        (["--calls", "0"], "--calls 0 is not allowed"),
    ):
        assert main(["tune", str(log), *options]) == 1
        assert problem in capsys.readouterr().err
