"""Tuning: the constants of `economy` for your own recordings, with half of them kept back.

1. The recordings are divided by their ids. On one half, each constant is tried alone with the values beside its
   own; then the best ones together. A candidate counts only if it loses little against `economy`: at most
   `RECALL_STEP` of recall and `SURPRISE_STEP` of surprise, and no call more that does not fit.
2. The cheapest of them is measured on the other half, which has chosen nothing. Its gain has a range: that of
   random samples of these conversations, drawn with replacement.
3. Nothing is recommended without a gain in nearly all samples, or from too few recordings.

The work is bounded by a number of calls, and the same recordings give the same result.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Unpack

import msgspec

from foveal.core.policies import Policy, policy
from foveal.core.wire.safe_print import counted
from foveal.replay.cache_cost import model_prices
from foveal.replay.choice import (
    RECALL_STEP,
    SURPRISE_STEP,
    ChoiceFigures,
    TraceSums,
    choice_figures,
    trace_sums,
)
from foveal.replay.conclusion import FigureRange
from foveal.replay.play import ReplaySetting, replay_model
from foveal.replay.recall_score import common_names
from foveal.replay.recorded_calls import recorded_conversation
from foveal.replay.run import PolicyChoice, ReplayArguments, half_of, run
from foveal.replay.statistics import PolicyStatistics
from foveal.transcripts import Transcript

TRIED_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "target": (0.3, 0.6),
    "early_tokens": (14_000, 56_000),
    "skeleton_tokens": (20, 80),
    "summary_share": (0.06, 0.24),
}
"""The constants, each with the values that are tried beside that of `economy`: the target of a cut, the size of a
request from which cuts are made early, the size of a placeholder, and the size of a record."""
MIN_HALF_CONVERSATIONS: Final = 10
"""Fewer conversations in a half say nothing."""
MIN_CUT_CONVERSATIONS: Final = 5
"""As few of them in which `economy` cuts anything say nothing either."""
MAX_CALLS: Final = 4_000
"""Calls of the recordings that are replayed; others are left out at random."""
GAIN_SAMPLES: Final = 1_000
"""Random samples of the conversations."""
LOW: Final = 0.05
"""Share of the samples below the range of a figure, and above it."""
OnTuned = Callable[[int, int], None]
"""Called with the number of replayed conversations that are done, and of all."""


class HalfFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy costs and loses on one half of the recordings.

    Examples:
        ```python
        from foveal.replay import HalfFigures

        figures = HalfFigures(bill=0.61, recall=0.95, surprise=0.12, over=0.0)
        ```
    """

    bill: float
    """Relative to sending everything, at the model's own prices."""
    recall: float | None
    """Mean recall of names, far names, lines and far lines; None if calls quoted nothing."""
    surprise: float | None
    """Surprise in bits per byte; None if it was not measured."""
    over: float
    """Share of the calls that did not fit."""


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """Which constants of `economy` the recordings speak for.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        found = replay.tune([recording], window=32_000)
        assert (found.verdict, found.config) == ("too few", "")
        ```
    """

    verdict: Literal["tuned", "no gain", "too few"]
    """`tuned` if there is a policy to use."""
    reason: str
    """Why the verdict is what it is, in words."""
    chosen_on: int = 0
    """Conversations on which the constants were chosen."""
    measured_on: int = 0
    """Conversations on which the gain was measured."""
    left_out: int = 0
    """Conversations that were not replayed, because there are enough calls without them."""
    values: dict[str, Any] = {}
    """The constants that differ from `economy`; empty if none does."""
    gain: FigureRange | None = None
    """Share of the bill of `economy` that is saved on the other half, with its range."""
    before: HalfFigures | None = None
    """`economy` on the other half."""
    after: HalfFigures | None = None
    """The chosen constants on the other half."""
    config: str = ""
    """Lines for `foveal.toml`; "" unless the verdict is `tuned`."""


def tune(
    recordings: Sequence[Transcript],
    *,
    name: str = "tuned",
    max_calls: int = MAX_CALLS,
    seed: int = 0,
    processes: int | None = None,
    progress: OnTuned | None = None,
    **arguments: Unpack[ReplayArguments],
) -> Tuning:
    """Choose the constants of `economy` for recordings.

    Half of the recordings are for the choice, the other half for the figures. No model is called.

    Args:
        recordings: The conversations.
        name: The name of the policy in the lines for the configuration.
        max_calls: Calls that are replayed at most, under about a dozen policies; this bounds the time.
        seed: The seed of the sample, if there are more calls.
        processes: Processes to use. None uses all cores where that is faster.
        progress: Called with the number of replayed conversations that are done, and of all. None reports nothing.
        **arguments: The fields of `ReplayArguments`, such as `model`, `window` and `reserve`.

    Raises:
        BadSetting: A setting is unknown, or a value is invalid.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        found = replay.tune([recording], window=32_000)
        assert found.reason.startswith("too few recordings: 1")
        ```
    """
    kept = _sample(recordings, max_calls, seed)
    training = [each for each in kept if half_of(each) == "A"]
    kept_back = [each for each in kept if half_of(each) == "B"]
    left_out = len(recordings) - len(kept)
    tuner = _Tuner(training, kept_back, left_out, common_names(recordings), processes, progress, arguments)
    return msgspec.structs.replace(
        tuner.tune(name),
        chosen_on=len(tuner.training),
        measured_on=len(tuner.kept_back),
        left_out=left_out,
    )


def _sample(recordings: Sequence[Transcript], max_calls: int, seed: int) -> list[Transcript]:
    """Return as many recordings as have so many calls together, chosen at random, in their order."""
    places = list(range(len(recordings)))
    random.Random(seed).shuffle(places)
    kept: list[int] = []
    calls = 0
    for place in places:
        calls += len(recorded_conversation(recordings[place]).calls)
        if calls > max_calls and kept:
            break
        kept.append(place)
    return [recordings[place] for place in sorted(kept)]


class _TriedValues(NamedTuple):
    """A policy and what it did in each conversation, in the order of the recordings."""

    values: dict[str, Any]
    conversations: list[TraceSums]
    figures: ChoiceFigures


class _Tuner:
    """One run of `tune`."""

    def __init__(
        self,
        training: Sequence[Transcript],
        kept_back: Sequence[Transcript],
        left_out: int,
        common: Any,
        processes: int | None,
        progress: OnTuned | None,
        arguments: ReplayArguments,
    ) -> None:
        self.training = training
        self.kept_back = kept_back
        self._left_out = left_out
        self._processes = processes
        self._progress = progress
        self._arguments: dict[str, Any] = {**arguments, "bounds": False, "common": common}
        given: dict[str, Any] = {**arguments}
        setting = {k: v for k, v in given.items() if k in ReplaySetting.__struct_fields__}
        self._prices = model_prices(replay_model(ReplaySetting(**{**setting, "window": None})))
        self._total = 2 * len(training) + len(kept_back)
        self._done = 0

    def tune(self, name: str) -> Tuning:
        counts = len(self.training), len(self.kept_back)
        if min(counts) < MIN_HALF_CONVERSATIONS:
            return Tuning(verdict="too few", reason=_too_few(counts, None, self._left_out))
        tried = [{}, *({field: value} for field, values in TRIED_VALUES.items() for value in values)]
        (base, *single), cut = self._replay(self.training, tried)
        if cut < MIN_CUT_CONVERSATIONS:
            return Tuning(verdict="too few", reason=_too_few(counts, (cut, None), self._left_out))
        best = self._best_together(base, single)
        if best is base:
            reason = "no constant makes requests cheaper without losing more than it may"
            return Tuning(verdict="no gain", reason=f"{reason}; `economy` stays as it is")
        (before, after), cut_back = self._replay(self.kept_back, [{}, best.values])
        if cut_back < MIN_CUT_CONVERSATIONS:
            return Tuning(verdict="too few", reason=_too_few(counts, (cut, cut_back), self._left_out))
        return _verdict(name, best.values, before, after)

    def _best_together(self, base: _TriedValues, single: Sequence[_TriedValues]) -> _TriedValues:
        """Return the best candidate: the best value of one constant, or those of several together."""
        useful: dict[str, _TriedValues] = {}
        for one in sorted(single, key=lambda one: one.figures.paid):
            if one.figures.paid < base.figures.paid and not loses_more(one.figures, base.figures):
                useful.setdefault(next(iter(one.values)), one)
        together: list[dict[str, Any]] = []
        values: dict[str, Any] = {}
        for one in useful.values():
            values = values | one.values
            together.append(values)
        combined = self._replay(self.training, together[1:])[0] if len(together) > 1 else []
        self._count_as_done(2 * len(self.training))
        allowed = [one for one in combined if not loses_more(one.figures, base.figures)]
        return min([*useful.values(), *allowed, base], key=lambda one: one.figures.paid)

    def _replay(
        self, recordings: Sequence[Transcript], tried: Sequence[dict[str, Any]]
    ) -> tuple[list[_TriedValues], int]:
        """Return a candidate for each of the values, and in how many conversations the first one reduced."""
        choices = [PolicyChoice(str(number), _economy(values)) for number, values in enumerate(tried)]
        begin = self._done
        rows = run(
            recordings,
            choices,
            processes=self._processes,
            progress=lambda done, _: self._count_as_done(begin + done),
            **self._arguments,
        )[1:]
        found = [self._candidate(values, row) for values, row in zip(tried, rows, strict=True)]
        return found, sum(bool(trace.reductions) for trace in rows[0].traces)

    def _candidate(self, values: dict[str, Any], row: PolicyStatistics) -> _TriedValues:
        sums = [trace_sums(trace, self._prices) for trace in row.traces]
        return _TriedValues(values, sums, choice_figures(sums))

    def _count_as_done(self, done: int) -> None:
        if self._progress is not None and done > self._done:
            self._progress(done, self._total)
        self._done = max(self._done, done)


def _economy(values: dict[str, Any]) -> Policy:
    return policy("economy", **values)


def loses_more(one: ChoiceFigures, base: ChoiceFigures) -> bool:
    """Return whether a candidate loses more than it may against `economy`."""
    if one.over > base.over:
        return True
    if one.recall is not None and base.recall is not None and base.recall - one.recall > RECALL_STEP:
        return True
    return (
        one.surprise is not None
        and base.surprise is not None
        and one.surprise - base.surprise > SURPRISE_STEP
    )


def _verdict(name: str, values: dict[str, Any], before: _TriedValues, after: _TriedValues) -> Tuning:
    """Return what the half that was kept back says of the chosen values."""
    chance = random.Random(0)
    count = len(before.conversations)
    gains = sorted(
        _gain(*([one.conversations[number] for number in numbers] for one in (before, after)))
        for numbers in (chance.choices(range(count), k=count) for _ in range(GAIN_SAMPLES))
    )
    edge = int(LOW * GAIN_SAMPLES)
    gain = FigureRange(
        value=_gain(before.conversations, after.conversations), low=gains[edge], high=gains[-1 - edge]
    )
    told = Tuning(
        verdict="no gain",
        reason="",
        values=values,
        gain=gain,
        before=_half_figures(before.figures),
        after=_half_figures(after.figures),
    )
    if loses_more(after.figures, before.figures):
        reason = "on the half that was kept back, the chosen constants lose more than they may"
    elif gain.low <= 0:
        reason = "the gain on the half that was kept back is within what chance makes of it"
    else:
        reason = (
            f"a gain in at least {100 * (1 - LOW):.0f} of 100 random samples of the half that was kept back"
        )
        config = config_lines(name, values)
        return msgspec.structs.replace(told, verdict="tuned", reason=reason, config=config)
    return msgspec.structs.replace(told, reason=f"{reason}; `economy` stays as it is")


def _gain(before: Sequence[TraceSums], after: Sequence[TraceSums]) -> float:
    """Return the share of the first bill that the second one saves; the bill is the first of the sums."""
    paid = sum(one[0] for one in before)
    return 1 - sum(one[0] for one in after) / paid if paid else 0.0


def _half_figures(figures: ChoiceFigures) -> HalfFigures:
    return HalfFigures(bill=figures.bill, recall=figures.recall, surprise=figures.surprise, over=figures.over)


def _too_few(counts: tuple[int, int], cut: tuple[int, int | None] | None, left_out: int) -> str:
    """Return why the recordings are too few, with the numbers."""
    needed = f"{MIN_HALF_CONVERSATIONS} in each half"
    reason = f"too few recordings: {sum(counts):,}, {counts[0]:,} to choose on and {counts[1]:,} kept back"
    if cut is not None:
        needed = f"{MIN_CUT_CONVERSATIONS} of these in each half"
        found = " and ".join(f"{one:,}" for one in cut if one is not None)
        reason += f", of which `economy` cuts {found}"
    more = f"raise --calls ({counted(left_out, 'conversation')} left out)" if left_out else "record more"
    return f"{reason}; needed are {needed}: {more}, or tune for a smaller window"


def config_lines(name: str, values: dict[str, Any]) -> str:
    """Return a policy as lines for `foveal.toml`."""
    lines = ["[context]", f'policy = "{name}"', "", f"[policies.{name}]", 'preset = "economy"']
    return "\n".join([*lines, *(f"{field} = {value}" for field, value in values.items())])


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────


def tuning_text(found: Tuning) -> str:
    """Return what to use, its figures, and how sure that is.

    Args:
        found: What `tune` returned.

    Examples:
        ```python
        from foveal import replay

        found = replay.Tuning(verdict="too few", reason="too few recordings: 3, 2 to choose on and 1 kept back")
        assert replay.tuning_text(found).startswith("Not tuned: too few recordings")
        ```
    """
    sentences = []
    if found.verdict != "tuned":
        sentences.append(f"Not tuned: {found.reason}.")
    if found.left_out and found.verdict != "too few":
        sentences.append(
            f"Left out: {counted(found.left_out, 'conversation')}; the others have enough calls."
        )
    if found.gain is None or found.before is None or found.after is None:
        return "\n".join(sentences)
    values = ", ".join(f"{field} {value:,}" for field, value in found.values.items())
    gain = found.gain
    sentences += [
        f"Chosen on {counted(found.chosen_on, 'conversation')}: {values}.",
        f"On {found.measured_on:,} others it saves {100 * gain.value:.1f} % of the bill of economy "
        f"({100 * gain.low:.1f} to {100 * gain.high:.1f} in 90 of 100 random samples).",
        f"{_figures('economy', found.before)}\n{_figures('tuned', found.after)}",
    ]
    if found.verdict == "tuned":
        sentences += [f"How sure: {found.reason}.", "", found.config]
    return "\n".join(sentences)


def _figures(label: str, figures: HalfFigures) -> str:
    parts = [f"bill {100 * figures.bill:.1f} % of sending everything"]
    if figures.recall is not None:
        parts.append(f"recall {100 * figures.recall:.1f} %")
    if figures.surprise is not None:
        parts.append(f"surprise {figures.surprise:.3f}")
    return f"  {label + ':':<9} {', '.join(parts)}"
