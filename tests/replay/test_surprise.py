"""Surprise: the sample of calls, the measure, its tables, its plot and its details."""

from __future__ import annotations

import json
import random
from typing import Any, Final

import pytest
from bench.surprise_replay import candidates, choose_work, ppmd_bits, spread_halves

from foveal import replay
from foveal.cli import main
from foveal.core.policies import PRESETS, policy
from foveal.core.tokens.counter import counter
from foveal.errors import BadSetting
from foveal.replay import (
    CallSurprise,
    GoneQuote,
    MessageText,
    RequestReader,
    html_page,
    make_request,
    recorded_conversation,
    to_facts,
)
from foveal.replay.surprise import MAX_STEP_BYTES, SurpriseMeter, zstandard_bits
from foveal.transcripts import Transcript

SMALL: Final[dict[str, Any]] = {"window": 6_000, "reserve": 500, "tokenizer": "estimate", "processes": 1}
HALF: Final = policy("recent", name="half", target=0.5, keep_task=True)
"""A policy that drops the older half of the history when it no longer fits."""

Json = dict[str, Any]


def nonsense(seed: int, words: int = 12) -> str:
    """Return a line that no other line predicts."""
    letters = random.Random(seed)
    return " ".join("".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(words))


def quoting(steps: int = 24, *, back: int = 8) -> list[Json]:
    """Return a conversation whose agent quotes, in every call, a line of the result `back` results ago."""
    messages: list[Json] = [{"role": "user", "content": "Copy the lines that belong together."}]
    for number in range(steps):
        wanted = 100 * (number - back) if number >= back else 10_000 + number
        arguments = json.dumps({"line": nonsense(wanted)})
        call = {"id": f"c{number}", "type": "function", "function": {"name": "copy", "arguments": arguments}}
        result = "\n".join(nonsense(100 * number + row) for row in range(30))
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": result},
        ]
    return messages


def transcript(messages: list[Json], id: str = "quoting") -> Transcript:
    return Transcript(id=id, source="data", facts=tuple((fact, None) for fact in to_facts(messages)))


def rows_of(*policies: Any, **settings: Any) -> list[replay.PolicyStatistics]:
    return replay.run([transcript(quoting())], policies, bounds=False, **{**SMALL, **settings})


def meter(messages: list[Json], *, samples: int = 8) -> tuple[SurpriseMeter, RequestReader]:
    conversation = recorded_conversation(transcript(messages))
    reader = RequestReader(conversation.dialect, counter("estimate"))
    return SurpriseMeter(conversation, reader, samples=samples), reader


def without_cause(quote: GoneQuote) -> GoneQuote:
    return quote


# ── The measure ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_text_that_the_coder_knows_takes_fewer_bits() -> None:
    step = nonsense(1).encode()
    known = zstandard_bits(b"before " + step + nonsense(2, words=900).encode(), step)
    unknown = zstandard_bits(nonsense(2, words=900).encode(), step)
    assert known < unknown / 3
    assert zstandard_bits(b"", step) == zstandard_bits(b"short", step) >= unknown


def test_the_whole_history_has_no_surprise() -> None:
    everything, off = rows_of(policy("off"), window=200_000)
    assert (everything.surprise, everything.surprise_worst, everything.samples) == (0, 0, 8)
    assert off.traces[0].surprises == everything.traces[0].surprises


def test_dropping_what_is_quoted_raises_surprise() -> None:
    messages = quoting()
    measured, reader = meter(messages, samples=1)
    (number,) = (n for n in range(24) if measured.measure(n, None, without_cause))
    history = messages[: 1 + 2 * number]
    source = 2 + 2 * (number - 8)
    without_source = reader.request([*history[:source], *history[source + 1 :]], system=None, tools=())
    without_other = reader.request([*history[: source - 2], *history[source - 1 :]], system=None, tools=())
    lost = measured.measure(number, without_source, without_cause)
    other = measured.measure(number, without_other, without_cause)
    assert lost is not None
    assert other is not None
    assert lost.bits > 1 > 0.1 > abs(other.bits)
    assert (lost.call, lost.gone) == (
        number + 1,
        (GoneQuote(kind="line", text=nonsense(100 * (number - 8))),),
    )
    assert other.gone == ()


def test_a_phrase_is_shown_where_no_name_or_line_is_gone() -> None:
    said = "We should oil the old lathe soon, and then go on."
    messages = [
        {"role": "user", "content": "Oil the machines."},
        {"role": "assistant", "content": "Let us oil the old lathe now, before we do the rest of it."},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": said},
    ]
    measured, reader = meter(messages)
    request = reader.request([messages[0], messages[2]], system=None, tools=())
    found = measured.measure(1, request, without_cause)
    assert found is not None
    assert found.gone == (GoneQuote(kind="phrase", text="oil the old lathe"),)


def test_a_request_that_does_not_fit_is_read_as_an_empty_one() -> None:
    measured, _ = meter(quoting(), samples=1)
    (number,) = (n for n in range(24) if measured.measure(n, None, without_cause))
    nothing = measured.measure(number, None, without_cause)
    assert nothing == measured.measure(number, make_request([]), without_cause)
    assert nothing is not None
    assert nothing.bits > 1


def test_only_the_beginning_of_a_long_step_is_measured() -> None:
    words = nonsense(7, words=400)
    assert len(words) > MAX_STEP_BYTES + 400
    task = {"role": "user", "content": words[:MAX_STEP_BYTES]}
    measured, _ = meter([task, {"role": "assistant", "content": words}])
    found = measured.measure(0, make_request([MessageText(1, words[:MAX_STEP_BYTES])]), without_cause)
    assert found is not None
    assert abs(found.bits) < 0.02


# ── The sample ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_sample_is_the_same_for_every_policy_and_window() -> None:
    rows = rows_of(HALF, "rolling", "off", samples=5, window=(6_000, 9_000))
    sampled = {tuple(each.call for each in trace.surprises) for row in rows for trace in row.traces}
    assert sampled == {(3, 8, 13, 17, 22)}


def test_a_sample_larger_than_the_conversation_has_each_call_once() -> None:
    (row,) = rows_of(samples=500)
    assert [each.call for each in row.traces[0].surprises] == list(range(1, 25))


def test_steps_of_a_few_bytes_are_not_measured() -> None:
    messages = [*quoting(2), {"role": "assistant", "content": "Done."}]
    (row,) = replay.run([transcript(messages)], [], bounds=False, **SMALL)
    assert [each.call for each in row.traces[0].surprises] == [1, 2]


def test_no_samples_turn_surprise_off() -> None:
    rows = rows_of(HALF, samples=0)
    assert [(row.surprise, row.surprise_worst, row.samples) for row in rows] == [(None, None, 0)] * 2
    assert "most surprising" not in replay.table(rows)
    assert "Cost and surprise" not in html_page(rows, setting=replay.ReplaySetting())
    with pytest.raises(BadSetting, match="samples"):
        rows_of(HALF, samples=-1)


def test_conversations_without_recall_have_no_surprise() -> None:
    (row,) = rows_of(no_recall=["quot*"])
    assert (row.surprise, row.samples) == (None, 0)


def test_the_coder_reads_each_history_once() -> None:
    conversation = recorded_conversation(transcript(quoting()))
    reader = RequestReader(conversation.dialect, counter("estimate"))
    read: list[int] = []

    def count_bits(known: bytes, step: bytes) -> float:
        read.append(len(known))
        return zstandard_bits(known, step)

    measured = SurpriseMeter(conversation, reader, samples=2, count_bits=count_bits)
    for _ in range(3):
        for number in range(24):
            measured.measure(number, None, without_cause)
    assert sum(size > 0 for size in read) == 2


# ── Results ──────────────────────────────────────────────────────────────────────────────────────────────


def test_statistics_have_the_mean_the_worst_calls_and_the_strata() -> None:
    _, row = rows_of(HALF)
    bits = [each.bits for each in row.traces[0].surprises]
    assert row.surprise == pytest.approx(sum(bits) / 8)
    assert row.surprise_worst == max(bits) > 1
    (stratum,) = row.strata
    assert stratum.surprise == replay.FigureSpread(pooled=row.surprise, mean=row.surprise, worst=row.surprise)


def test_the_most_surprising_calls_name_what_was_gone_and_what_hid_it() -> None:
    first, second = replay.most_surprising_calls(rows_of(HALF), limit=2)
    assert (first.policy, first.conversation, first.window) == ("half", "quoting", 6_000)
    assert first.surprise.bits >= second.surprise.bits
    (quote,) = first.surprise.gone
    assert quote.text == nonsense(100 * (first.surprise.call - 9))
    assert (quote.kind, quote.level, quote.rule) == ("line", "dropped", "half")
    assert quote.by.split()[1] == "dropped"


def test_the_tables_have_surprise_beside_bill_recall_breaks_and_over() -> None:
    text = replay.table(rows_of(HALF), losses=1)
    heads = [line.split() for line in text.splitlines() if line.startswith("policy ")]
    assert heads[0][1:3] == ["bill", "surprise"]
    assert {"samples", "surprise"} <= set(heads[1])
    assert heads[2][1:7] == ["bill", "surprise", "ident/far", "line/far", "breaks", "over"]
    assert heads[2][-2:] == ["highest", "bill"]
    lines = text.splitlines()
    place = lines.index("most surprising calls of half, and what they quote:")
    assert lines[place + 1].startswith("  quoting call ")
    assert "dropped by e" in lines[place + 2]


def test_the_page_plots_surprise_and_lists_the_most_surprising_calls() -> None:
    rows = rows_of(HALF, "rolling")
    text = html_page(rows, setting=replay.ReplaySetting())
    assert 'aria-label="bill and surprise"' in text
    assert text.count(" bits per byte</title>") == 3
    assert "The most surprising calls" in text
    quotes = (
        quote.text for call in replay.most_surprising_calls(rows, limit=1) for quote in call.surprise.gone
    )
    assert all(quote[:100] in text for quote in quotes)


def test_the_json_has_surprise_and_the_most_surprising_calls() -> None:
    output = json.loads(replay.as_json(rows_of(HALF), losses=2))
    everything, half = output["policies"]
    assert everything["surprise"] == 0 < half["surprise"] == half["strata"][0]["surprise"]["pooled"]
    assert [call["policy"] for call in output["surprising_calls"]] == ["half", "half"]


def test_a_call_with_nothing_gone_is_listed_with_a_reason() -> None:
    rows = rows_of(HALF)
    rows[1].traces[0].surprises[:] = [CallSurprise(call=3, bits=0.25)]
    assert "no name, line or phrase of the history" in replay.table(rows)
    assert "no name, line or phrase of the history" in html_page(rows, setting=replay.ReplaySetting())


def test_samples_on_the_command_line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(quoting()))
    run = ["replay", str(path), "--policy", "recent", "--no-bounds", "--window", "6000", "--json"]
    for options, samples in (([], 8), (["--samples", "3"], 3), (["--samples", "0"], 0)):
        assert main([*run, *options]) == 0
        rows = json.loads(capsys.readouterr().out)["policies"]
        assert [row["samples"] for row in rows] == [samples, samples]
    assert main([*run, "--samples", "-1"]) == 1
    assert "samples" in capsys.readouterr().err


# ── Benchmark ────────────────────────────────────────────────────────────────────────────────────────────


def test_ppmd_needs_fewer_bits_for_a_text_that_it_knows() -> None:
    pytest.importorskip("pyppmd")
    step = nonsense(1).encode()
    other = nonsense(2, words=900).encode()
    assert ppmd_bits(step + other, step) < ppmd_bits(other, step) / 3


def test_the_benchmark_takes_half_of_its_conversations_from_each_half() -> None:
    long = quoting(140)
    recordings = [transcript(long, f"miniswe/{n}") for n in range(8)]
    work = choose_work(recordings, limit=4, samples=2)
    assert sorted(each.half for each in work) == ["A", "A", "B", "B"]
    assert all(replay.half_of(each.recording) == each.half for each in work)
    assert len(choose_work(recordings, limit=3, samples=2)) == 3
    assert [each.half for each in spread_halves(work)] == ["A", "B", "A", "B"]


def test_the_benchmark_compares_all_presets_and_three_targets_of_each_family() -> None:
    found = candidates()
    assert {each.label for each in found} >= PRESETS.keys() - {"off"}
    for family in ("economy", "half cut", "rolling in batches"):
        assert [each.target for each in found if each.family == family and each.target] == [0.3, 0.5, 0.7]
    assert [each.label for each in found if each.family == "economy" and each.is_default] == ["economy"]
    assert len({each.label for each in found}) == len(found)
