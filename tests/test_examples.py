"""Every example runs as a program of its own; those that need a provider talk to the stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from support import warm_start
from support.effort import rest_in_soak
from support.paths import ROOT
from support.provider_stand_in import StandIn
from support.serve_process import serving

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "01_three_lines": ["(measured)", "cache ", "prefix break"],
    "02_anthropic": ["(measured)", "cache ", "claude-sonnet-4-6"],
    "03_responses": ["(measured)", "cache ", "gpt-5.1"],
    "04_why_and_original": ["foveal: masked result of bash pytest", "level='masked'", "and 39 more"],
    "05_policies": [
        "economy ",
        "rolling ",
        "recent ",
        "mine ",
        "off      context needs",
        "a number from 0 to 1",
    ],
    "06_pins_and_snapshots": ["Pinned rule: Never touch the public API.", '{"commit":"0000096"}'],
    "07_clip_limits": ["ERROR: disk quota exceeded", "(smart)", "(tail)", "(both)"],
    "08_overflow_and_errors": [
        "context needs 5,00",
        "messages[1].tool_call_id",
        "no event has the handle 'e999'",
    ],
    "09_models": ["gpt-4.1: 1,047,576 tokens (snapshot)", "32,768 tokens (yours)"],
    "10_session": [
        "the same after opening again: True",
        "undone: e",
        "after a rewind to e8: ",
        "begins with: Pinned rule: Never touch the public API.",
        "'Failing tests'",
        "left of the text after delete: ''",
    ],
    "11_recall": [
        "in view: False",
        "> Table 17 belongs to Ada, ask her first.",
        "1| Table 17 belongs to Ada",
        "there is no e9000",
        "already visible to you",
    ],
    "12_import_export": [
        "1 line was not understood",
        "e3 rewound",
        "Sell them",
        "the round trip is exact: True",
    ],
    "13_compaction": [
        "the model is asked: shared",
        "e13 compacted     full",
        "Pinned rule: The public API stays as it is.",
        '- pytest → exit 0 "91 passed", e9',
        "## Dead ends",
        "expanded for this turn",
        "after the next user message",
        "e17 reverted",
        "e13 is still in the log: 3 to 11, by gpt-4.1",
    ],
    "14_session_summaries": [
        "a summary begins",
        "it is written",
        "refused as too large: True",
        "some other error: False",
        "learned from a refused request",
        "compacted, because of tokens",
        "overflowed, the limit is 9,000",
        "masked, because of overflow",
        "by gpt-4.1",
    ],
    "15_service": [
        "a session with openai/gpt-4.1",
        "stored as e",
        "answered: ",
        "compacted from ",
        "found in e",
        "'kind': 'compacted'",
        "the parts add up: True",
        "sessions left: []",
    ],
    "16_branches": [
        "3 messages after bash",
        "2 messages after the block",
        "begins with the same messages: True",
        "Find who calls parse(). → only report.py calls it",
        "Read the log of the build. → the disk was full",
        "unfolded: e",
    ],
    "17_hooks_and_priorities": [
        "the failing test is shown: full",
        "a hook kept (3,) with focus 'the failing tests'",
    ],
    "18_model_asks_for_a_cut": [
        "27.5 % of the window",
        "the cut is made. 66 results are hidden",
        "a cut must free a fifth: 2,448",
    ],
    "19_policy_by_topic": ["policy by-topic", "billing is shown whole: True", "parser is shown whole: False"],
    "20_policy_by_similarity": ["hidden:\n  1: invoice price tax customer\n  3: invoice"],
}
"""What each of them must print, in parts."""
SOAK = bool(os.environ.get("FOVEAL_SOAK"))


def run_example(example: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    wanted = {**os.environ, "NO_PROXY": "127.0.0.1", **environment}
    return warm_start.run([example], cwd=ROOT, env=wanted, encoding="utf-8", timeout=120)


def run_demo(*options: object) -> subprocess.CompletedProcess[str]:
    return warm_start.run(["-m", "foveal.cli.demo", *options], cwd=ROOT, encoding="utf-8")


def test_the_examples_are_numbered_without_a_gap_and_each_is_checked() -> None:
    assert [path.stem for path in EXAMPLES] == list(SAYS)
    assert [int(path.stem[:2]) for path in EXAMPLES] == list(range(1, len(EXAMPLES) + 1))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_says_what_it_should(example: Path) -> None:
    with StandIn(window=8_000) as provider, ExitStack() as stack:
        environment = {
            "OPENAI_BASE_URL": provider.openai,
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_BASE_URL": provider.anthropic,
            "ANTHROPIC_API_KEY": "none",
        }
        if (
            example.stem == "15_service" and not SOAK
        ):  # without FOVEAL_URL it starts a server as a new program
            model = {"model": "openai/gpt-4.1"}
            served = serving(provider="", window=6_000, settings=model, environment=environment)
            environment["FOVEAL_URL"] = stack.enter_context(served).url
        done = run_example(example, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert provider.faults == []
    assert [part for part in SAYS[example.stem] if part not in done.stdout] == []


# ── the demo ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_demo_shows_reductions_and_that_nothing_is_lost() -> None:
    done = run_demo()
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    for part in (
        "No model is called",
        "clipped the result",
        "summarised ",
        "turn 3:",
        "(estimated)",
    ):
        assert part in done.stdout
    assert "38 of 38 tool results in the log equal the recording" in done.stdout
    assert "with the rules, is in it word for word" in done.stdout
    assert ">>> ctx.original('e11')" in done.stdout


@pytest.mark.parametrize(
    ("window", "policy"),
    rest_in_soak(product((3_000, 16_000, 200_000), ("economy", "rolling", "recent")), every=4),
)
def test_the_demo_fits_every_window_under_every_preset(policy: str, window: int) -> None:
    done = run_demo("--policy", policy, "--window", window)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    assert "38 of 38" in done.stdout


def test_the_demo_says_what_does_not_fit() -> None:
    done = run_demo("--policy", "off")
    assert done.returncode == 1
    assert "ContextOverflow: context needs" in done.stdout


def test_the_demo_names_a_bad_setting() -> None:
    done = run_demo("--policy", "thrifty")
    assert done.returncode == 2
    assert done.stderr.startswith("foveal: policy = 'thrifty' is not allowed: one of economy, handoff, ")


def test_the_demo_can_be_cut_short_by_a_pipe() -> None:
    command = f'"{sys.executable}" -m foveal demo | head -n 2'
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=240)
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""


def test_the_recording_names_no_place_outside_its_workspace() -> None:
    text = (ROOT / "src/foveal/cli/recorded.jsonl").read_text(encoding="utf-8")
    for place in ("/home/", "/root/", "/Users/", "/tmp/pytest"):
        assert place not in text
