"""The conclusion of a replay: which policy for these conversations, how sure, and the lines for foveal.toml."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from foveal import PRESETS, Policy, policy, replay
from foveal.cli import main
from foveal.config import load
from foveal.core.models.model import model
from foveal.replay import CallSurprise, PolicyStatistics, RecallCount, ReplaySetting, Trace
from foveal.replay.conclusion import config_lines
from foveal.replay.statistics import policy_statistics

SETTING: Final = ReplaySetting(model="gpt-5")
FULL: Final = 10_000
"""Tokens of each conversation if everything is sent."""


def row(
    label: str,
    *,
    bill: float,
    recall: float = 1.0,
    surprise: float = 0.0,
    over: int = 0,
    count: int = 30,
    windows: tuple[int, ...] = (32_000,),
    sources: tuple[str, ...] = ("data",),
) -> PolicyStatistics:
    """Return the row of a policy with these figures in each of `count` conversations of one call."""
    kept = RecallCount(
        needed=1_000, kept=round(1_000 * recall), needed_far=1_000, kept_far=round(1_000 * recall)
    )
    traces = [
        Trace(
            conversation=f"c{number}",
            source=sources[number % len(sources)],
            policy=label,
            window=window,
            limit=window,
            sizes=[round(FULL * bill)],
            cached=[0],
            full_sizes=[FULL],
            over=[1] if number < over else [],
            ident=kept,
            line=kept,
            surprises=[CallSurprise(call=1, bits=surprise)],
        )
        for window in windows
        for number in range(count)
    ]
    preset: Mapping[str, Policy] = PRESETS
    return policy_statistics(label, traces, model("gpt-5"), preset.get(label))


def everything(**given: Any) -> PolicyStatistics:
    return row("everything", bill=1.0, **given)


def chosen(*rows: PolicyStatistics, **given: Any) -> replay.Conclusion:
    return replay.conclude([everything(**given), *rows], setting=SETTING)


# ── The choice ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_cheapest_policy_of_those_that_lose_little_is_chosen() -> None:
    found = chosen(
        row("economy", bill=0.6, recall=0.99, surprise=1 / 64),
        row("recent-summary", bill=0.7),
        row("sliding-summary", bill=0.4, recall=0.9, surprise=0.2),
    )
    assert (found.policy, found.verdict, found.agreement, found.window) == ("economy", "clear", 1.0, 32_000)
    assert (found.bill, found.surprise) == (
        replay.FigureRange(value=0.6, low=0.6, high=0.6),
        replay.FigureRange(value=1 / 64, low=1 / 64, high=1 / 64),
    )
    assert found.recall is not None
    assert found.recall.value == pytest.approx(0.99)
    assert found.cheaper is not None
    assert found.more_faithful is not None
    assert (found.cheaper.policy, found.cheaper.bill) == ("sliding-summary", 0.4)
    assert (found.more_faithful.policy, found.more_faithful.bill) == ("recent-summary", 0.7)


def test_a_policy_that_costs_more_than_sending_everything_is_not_chosen_for_a_little_recall() -> None:
    rows = (row("economy", bill=0.64, recall=0.95, surprise=0.04), row("recent", bill=1.84, recall=0.99))
    found = chosen(*rows)
    assert (found.policy, found.costs_more, found.cheaper) == ("economy", False, None)
    text = replay.table([everything(), *rows], setting=SETTING)
    assert "Loses least: recent in 32,000 tokens (bill 184.0 %, surprise 0.000, recall 99.0 %)." in text


def test_it_is_chosen_if_all_others_lose_far_more_and_the_conclusion_says_so() -> None:
    rows = [
        everything(over=3),
        row("handoff", bill=0.6, recall=0.5, surprise=0.4),
        row("recent", bill=1.84, recall=0.95),
        row("rolling", bill=1.9, recall=0.95),
    ]
    found = replay.conclude(rows, setting=SETTING)
    assert (found.policy, found.costs_more) == ("recent", True)
    assert (
        "It costs more than sending everything, but 10.0 % of the calls do not fit the window then, and no cheaper "
        "policy loses as little."
    ) in replay.table(rows)


def test_where_everything_fits_no_policy_that_costs_more_is_recommended() -> None:
    rows = [everything(), row("rolling", bill=1.07), row("recent", bill=1.16)]
    found = replay.conclude(rows, setting=SETTING)
    assert (found.verdict, found.policy, found.config) == ("none", "", "")
    assert found.reason == (
        "sending everything fits in a window of 32,000 tokens, loses nothing, and costs less than rolling "
        "(bill 100.0 % against 107.0 %)"
    )
    assert f"No recommendation: {found.reason}." in replay.table(rows)


def test_where_everything_fits_no_policy_that_loses_more_for_the_same_bill_is_recommended() -> None:
    found = chosen(row("rolling", bill=1.0, recall=0.9), row("recent", bill=1.2))
    assert (found.verdict, found.policy) == ("none", "")
    assert "costs no more than rolling (bill 100.0 % against 100.0 %)" in found.reason


def test_a_policy_that_loses_far_more_is_named_beside_sending_everything() -> None:
    rows = [everything(), row("handoff", bill=0.6, recall=0.5, surprise=0.4), row("recent", bill=1.84)]
    text = replay.table(rows, setting=SETTING)
    assert "No recommendation: sending everything fits" in text
    assert "Costs least: handoff in 32,000 tokens (bill 60.0 %, surprise 0.400, recall 50.0 %)." in text


def test_a_window_in_which_everything_fits_is_better_than_a_smaller_one_that_costs_more() -> None:
    traces = [
        *everything(over=30, windows=(8_000,)).traces,
        *everything(windows=(64_000,)).traces,
    ]
    base = policy_statistics("everything", traces, model("gpt-5"))
    rows = [row(name, bill=1.07, windows=(8_000, 64_000)) for name in ("rolling", "recent")]
    assert "fits in a window of 64,000 tokens" in replay.conclude([base, *rows], setting=SETTING).reason


def test_a_difference_of_seven_percent_shows_in_the_dollars() -> None:
    found = replay.table(
        [everything(over=3), row("rolling", bill=1.07), row("recent", bill=1.16)], setting=SETTING
    )
    assert "107.0 % (107.0 to 107.0) of sending everything, 0.4012 dollars in place of 0.3750" in found


def test_a_policy_that_leaves_calls_over_the_window_is_not_chosen() -> None:
    rows = (row("off", bill=0.5, over=20), row("economy", bill=0.9, recall=0.9))
    assert chosen(*rows).policy == "economy"


def test_of_equal_policies_the_default_is_chosen() -> None:
    assert chosen(*(row(name, bill=1.0) for name in PRESETS)).policy == "economy"


def test_a_policy_that_asks_is_not_chosen_because_a_replay_has_no_answers() -> None:
    assert (
        chosen(row("economy", bill=0.9), row("handoff", bill=0.8), row("confirm", bill=0.1)).policy
        == "handoff"
    )


def test_the_window_is_chosen_too() -> None:
    small = row("economy", bill=0.4, recall=0.8, windows=(8_000,))
    large = row("economy", bill=0.5, windows=(64_000,))
    both = policy_statistics("economy", [*small.traces, *large.traces], model("gpt-5"), PRESETS["economy"])
    found = chosen(both, windows=(8_000, 64_000))
    assert (found.policy, found.window, found.conversations) == ("economy", 64_000, 30)
    assert "window = 64000" in found.config


def test_the_prices_of_the_model_decide() -> None:
    # All that `recent` sends comes from the cache, and nothing of the little that `economy` sends.
    cached = row("recent", bill=0.9)
    for trace in cached.traces:
        trace.cached = list(trace.sizes)
    rows = [everything(), row("economy", bill=0.4), cached]
    assert (model("gpt-5").read_ratio, model("gpt-4o").read_ratio) == (0.1, 0.5)
    assert replay.conclude(rows, setting=ReplaySetting(model="gpt-5")).policy == "recent"
    assert replay.conclude(rows, setting=ReplaySetting(model="gpt-4o")).policy == "economy"


def test_leaving_out_a_source_chooses_in_the_same_way() -> None:
    rows = [
        everything(sources=("one", "two")),
        row("economy", bill=0.64, recall=0.95, surprise=0.04, sources=("one", "two")),
        row("recent", bill=1.84, recall=0.99, sources=("one", "two")),
    ]
    found = replay.leave_one_source_out(rows)
    assert found is not None
    assert [(each.source, each.policy) for each in found.sources] == [("one", "economy"), ("two", "economy")]
    assert [each.statistics.bill.pooled for each in found.sources] == [0.64, 0.64]


# ── How sure ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("count", "verdict"), [(1, "none"), (4, "none"), (5, "tentative"), (20, "clear")])
def test_few_conversations_say_little(count: int, verdict: str) -> None:
    rows = [
        everything(count=count),
        row("economy", bill=0.6, count=count),
        row("rolling", bill=0.9, count=count),
    ]
    found = replay.conclude(rows, setting=SETTING)
    assert (found.verdict, found.conversations, bool(found.policy)) == (verdict, count, verdict != "none")
    assert ("too few to say" in found.reason) == (verdict == "none")
    assert (found.config == "") == (verdict == "none")


def test_conversations_that_disagree_make_the_choice_tentative() -> None:
    # Half of the conversations speak for each policy, so samples choose now one and now the other.
    mixed = []
    for label, first in (("economy", 0.3), ("handoff", 0.9)):
        low, high = row(label, bill=first, count=15), row(label, bill=1.2 - first, count=15)
        mixed.append(
            policy_statistics(label, [*low.traces, *high.traces], model("gpt-5"), PRESETS["economy"])
        )
    found = chosen(*mixed)
    assert (found.verdict, found.conversations) == ("tentative", 30)
    assert found.agreement is not None
    assert 0.2 < found.agreement < 0.9
    assert found.bill is not None
    assert found.bill.low < found.bill.value < found.bill.high


def test_one_policy_alone_is_no_choice() -> None:
    found = chosen(row("economy", bill=0.6))
    assert (found.verdict, found.reason) == (
        "none",
        "only economy was replayed; name other policies to compare it with",
    )


def test_the_bill_alone_decides_nothing() -> None:
    rows = [everything(), row("economy", bill=0.6), row("handoff", bill=0.5)]
    for trace in (trace for each in rows for trace in each.traces):
        trace.surprises, trace.ident, trace.line = [], RecallCount(), RecallCount()
    found = replay.conclude(rows, setting=SETTING)
    assert (found.verdict, found.policy) == ("none", "")
    assert "neither recall nor surprise was measured" in found.reason


def test_nothing_replayed_gives_no_conclusion() -> None:
    assert replay.conclude([], setting=SETTING).verdict == "none"


# ── Lines for foveal.toml ────────────────────────────────────────────────────────────────────────────────


def loaded_policy(lines: str, folder: Path) -> tuple[Policy, dict[str, Any]]:
    """Return the policy, and the arguments of a session, that foveal.toml with these lines gives."""
    (folder / "foveal.toml").write_text(lines, encoding="utf-8")
    arguments = load(folder, environ={}, user_folder=folder).session(model("gpt-5"))
    return arguments["policy"], arguments


@pytest.mark.parametrize(
    "rules",
    [
        *PRESETS.values(),
        policy("economy", keep_last=7),
        policy("economy", mode="off"),
        policy("rolling", max_history_tokens=9_000, keep_first=0),
        policy("handoff", act=0.8),
        policy("handoff", act_tokens=20_000),
        policy("handoff", every_turns=4),
        policy("rolling", clip={"strategy": "tail", "tokens": 900}),
    ],
    ids=lambda rules: rules.name,
)
def test_the_lines_give_the_policy_that_was_measured(rules: Policy, tmp_path: Path) -> None:
    lines = config_lines(rules, window=32_000, setting=ReplaySetting(reserve=4_000, margin=0.05))
    found, arguments = loaded_policy(lines, tmp_path)
    assert found == rules
    assert {key: arguments[key] for key in ("window", "reserve", "margin")} == {
        "window": 32_000,
        "reserve": 4_000,
        "margin": 0.05,
    }
    assert "#" not in lines


def test_the_known_window_and_default_caps_need_no_line() -> None:
    lines = config_lines(PRESETS["handoff"], window=model("gpt-5").window, setting=SETTING)
    assert lines.strip() == '[context]\npolicy = "handoff"'


def test_a_setting_without_a_key_is_named_in_a_comment(tmp_path: Path) -> None:
    lines = config_lines(policy("economy", target=0.2, name="deep"), window=32_000, setting=SETTING)
    assert lines.endswith('# no key sets the rest; in Python: foveal.policy("economy", target=0.2)')
    assert loaded_policy(lines, tmp_path)[0] == PRESETS["economy"]


# ── Output ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_terminal_the_page_and_the_json_have_the_same_conclusion() -> None:
    rows = [everything(), row("economy", bill=0.6, recall=0.99), row("rolling", bill=0.9)]
    found = replay.conclude(rows, setting=SETTING)
    text, page = replay.table(rows, setting=SETTING), html.unescape(replay.html_page(rows, setting=SETTING))
    for words in (
        "Use economy in a window of 32,000 tokens.",
        "bill 60.0 % (60.0 to 60.0) of sending everything",
        "recall 99.0 % (99.0 to 99.0)",
        "How sure: 30 conversations; the same choice in 100 of 100 random samples of them",
    ):
        assert words in text
        assert words in page
    assert found.config in page
    assert all(line in text for line in found.config.splitlines())
    assert json.loads(replay.as_json(rows, setting=SETTING))["conclusion"]["config"] == found.config


def test_the_default_run_has_every_preset_and_a_conclusion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hello, and welcome. " * 9},
    ]
    rows = ({"id": f"c{n}", "source": "us", "licence": "MIT", "messages": chat, "meta": {}} for n in range(6))
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert main(["replay", str(tmp_path), "--no-bounds", "--json", "--window", "16000"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["policy"] for each in found["policies"]] == ["everything", *PRESETS]
    assert (found["conclusion"]["policy"], found["conclusion"]["verdict"]) == ("economy", "tentative")
    assert loaded_policy(found["conclusion"]["config"], tmp_path)[0] == PRESETS["economy"]
