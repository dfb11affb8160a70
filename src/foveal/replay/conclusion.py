"""The conclusion of a replay: which policy, in which window, for these conversations, and how sure that is.

It is a function of the rows alone. How sure it is shows in random samples of the conversations, drawn with
replacement: how often the same policy is chosen, and how far its figures spread.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from foveal.config.config import POLICY_FIELDS, build_policy
from foveal.core.policies import PRESETS, Policy
from foveal.core.wire.safe_print import counted
from foveal.replay.cache_cost import model_prices
from foveal.replay.choice import (
    ChoiceFigures,
    TraceSums,
    cheapest,
    choice_figures,
    choosable_rows,
    choose,
    costs_more,
    is_everything_better,
    most_faithful,
    trace_sums,
)
from foveal.replay.play import DEFAULT_REPLAY_SETTING, EVERYTHING_LABEL, ReplaySetting, replay_model
from foveal.replay.statistics import PolicyStatistics, dollars_text

MIN_CONVERSATIONS: Final = 5
"""From fewer conversations nothing is concluded."""
CLEAR_CONVERSATIONS: Final = 20
"""From fewer conversations a conclusion is tentative."""
CLEAR_AGREEMENT: Final = 0.9
"""Share of the samples that must have the same choice, else the conclusion is tentative."""
SAMPLES: Final = 100
"""Random samples of the conversations."""


class FigureRange(msgspec.Struct, frozen=True, kw_only=True):
    """A figure, and its range in random samples of the conversations.

    Examples:
        ```python
        from foveal.replay import FigureRange

        bill = FigureRange(value=0.62, low=0.55, high=0.71)
        ```
    """

    value: float
    """Of all conversations together."""
    low: float
    """The 5th percentile of the samples."""
    high: float
    """The 95th percentile of the samples."""


class OtherChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that costs or loses less than the chosen one.

    Examples:
        ```python
        from foveal.replay import OtherChoice

        other = OtherChoice(policy="handoff", window=32_000, bill=0.49, recall=0.93, surprise=0.15)
        ```
    """

    policy: str
    """The label of the policy."""
    window: int
    """Tokens of the window."""
    bill: float
    """Relative to sending everything, at the model's own prices."""
    recall: float | None
    """Mean recall, as in `Conclusion`."""
    surprise: float | None
    """Surprise in bits per byte."""


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """Which policy the measured conversations speak for.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        found = replay.conclude(replay.run([recording], ["economy", "rolling"], window=32_000))
        assert (found.verdict, found.policy) == ("none", "")  # one conversation is too few
        ```
    """

    verdict: Literal["clear", "tentative", "none"]
    """How sure the choice is; `none` if nothing is chosen."""
    reason: str
    """Why the verdict is what it is, in words."""
    conversations: int
    """Conversations that were replayed."""
    agreement: float | None = None
    """Share of random samples of the conversations in which the same policy and window are chosen."""
    policy: str = ""
    """The label of the policy; "" if nothing is chosen."""
    window: int | None = None
    """Tokens of the window."""
    bill: FigureRange | None = None
    """Relative to sending everything, at the model's own prices."""
    recall: FigureRange | None = None
    """Mean recall of names, far names, lines and far lines; None if calls quoted nothing."""
    surprise: FigureRange | None = None
    """Surprise in bits per byte; None if it was not measured."""
    dollars: float | None = None
    """Cost of the input of these conversations, None if the prices are unknown."""
    dollars_everything: float | None = None
    """The same if everything is sent."""
    costs_more: bool = False
    """Whether it costs more than sending everything, which does not fit the window in each call."""
    over_everything: float | None = None
    """Share of the calls that do not fit the window if everything is sent."""
    cheaper: OtherChoice | None = None
    """The cheapest policy, if it costs less than the chosen one."""
    more_faithful: OtherChoice | None = None
    """The policy that loses least, if it is another one."""
    config: str = ""
    """Lines for `foveal.toml`."""


class _Candidate(NamedTuple):
    """A policy in a window."""

    row: PolicyStatistics
    window: int
    conversations: list[TraceSums]


def conclude(
    rows: Sequence[PolicyStatistics], *, setting: ReplaySetting = DEFAULT_REPLAY_SETTING
) -> Conclusion:
    """Return which policy, in which window, the rows speak for.

    Args:
        rows: The rows that `run` returned.
        setting: The settings of the replay: the model with its prices, reserve and margin.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        found = replay.conclude(replay.run([recording], ["economy", "rolling"], window=32_000))
        assert found.reason.startswith("too few to say: 1 conversation")
        ```
    """
    candidates = [each for row in choosable_rows(rows) for each in _by_window(row, setting)]
    everything = [each for row in rows if row.policy == EVERYTHING_LABEL for each in _by_window(row, setting)]
    count = len(candidates[0].conversations) if candidates else 0
    problem = _why_nothing(candidates, everything, count)
    if problem:
        return Conclusion(verdict="none", reason=problem, conversations=count)
    base = everything[0].conversations
    place = _choose_of(candidates, base, range(count))
    chosen = candidates[place]
    all_figures = [choice_figures(each.conversations) for each in candidates]
    figures, least = all_figures[place], choice_figures(base)
    cheaper = _other(candidates, all_figures, cheapest(all_figures), place)
    whole = min(everything, key=lambda each: choice_figures(each.conversations).over)
    if is_everything_better(figures, choice_figures(whole.conversations)):
        reason = _why_everything(chosen, figures, whole)
        return Conclusion(verdict="none", reason=reason, conversations=count, cheaper=cheaper)
    chance = random.Random(0)
    samples = [chance.choices(range(count), k=count) for _ in range(SAMPLES)]
    agreement = sum(_choose_of(candidates, base, sample) == place for sample in samples) / SAMPLES
    is_clear = count >= CLEAR_CONVERSATIONS and agreement >= CLEAR_AGREEMENT
    spread = [choice_figures([chosen.conversations[number] for number in sample]) for sample in samples]
    return Conclusion(
        verdict="clear" if is_clear else "tentative",
        reason=(
            f"{counted(count, 'conversation')}; "
            f"the same choice in {100 * agreement:.0f} of 100 random samples of them"
        ),
        conversations=count,
        agreement=agreement,
        policy=chosen.row.policy,
        window=chosen.window,
        bill=_range(figures, spread, "bill"),
        recall=_range(figures, spread, "recall"),
        surprise=_range(figures, spread, "surprise"),
        dollars=_dollars(figures, setting),
        dollars_everything=_dollars(least, setting),
        costs_more=costs_more(figures, least),
        over_everything=next(
            choice_figures(each.conversations).over for each in everything if each.window == chosen.window
        ),
        cheaper=cheaper,
        more_faithful=_other(candidates, all_figures, most_faithful(all_figures), place),
        config=config_lines(chosen.row.rules, window=chosen.window, setting=setting),
    )


def _by_window(row: PolicyStatistics, setting: ReplaySetting) -> list[_Candidate]:
    """Return a row in each of its windows; the conversations have the same order in all of them."""
    prices = model_prices(replay_model(setting))
    found: dict[int, list[TraceSums]] = {}
    for trace in row.traces:
        found.setdefault(trace.window, []).append(trace_sums(trace, prices))
    return [_Candidate(row, window, conversations) for window, conversations in found.items()]


def _why_nothing(candidates: Sequence[_Candidate], everything: Sequence[_Candidate], count: int) -> str:
    """Return why nothing can be concluded, "" if something can."""
    if not everything or not candidates:
        return "no policy was replayed that can be recommended"
    if len(candidates) == 1:
        return f"only {candidates[0].row.policy} was replayed; name other policies to compare it with"
    if count < MIN_CONVERSATIONS:
        plural = "s" * (count != 1)
        return f"too few to say: {count} conversation{plural}; at least {MIN_CONVERSATIONS} are needed"
    figures = [choice_figures(each.conversations) for each in candidates]
    if all(each.recall is None and each.surprise is None for each in figures):
        return "neither recall nor surprise was measured, so what the policies lose is unknown"
    return ""


def _why_everything(chosen: _Candidate, figures: ChoiceFigures, whole: _Candidate) -> str:
    """Return in words why sending everything is better than the chosen policy."""
    least = choice_figures(whole.conversations)
    fits = "fits as often" if least.over else "fits"
    price = "less" if costs_more(figures, least) else "no more"
    bills = f"{100 * least.bill:.1f} % against {100 * figures.bill:.1f} %"
    return (
        f"sending everything {fits} in a window of {whole.window:,} tokens, loses nothing, and costs {price} than "
        f"{chosen.row.policy} (bill {bills})"
    )


def _choose_of(candidates: Sequence[_Candidate], everything: list[TraceSums], numbers: Sequence[int]) -> int:
    """Return the place of the best candidate on some of the conversations."""
    found = [choice_figures([each.conversations[number] for number in numbers]) for each in candidates]
    return choose(found, choice_figures([everything[number] for number in numbers]))


def _other(
    candidates: Sequence[_Candidate], figures: Sequence[ChoiceFigures], place: int, chosen: int
) -> OtherChoice | None:
    """Return a candidate beside the chosen one; None if it is the same, or has the same figures."""
    one = figures[place]
    if one == figures[chosen]:
        return None
    row, window, _ = candidates[place]
    return OtherChoice(
        policy=row.policy, window=window, bill=one.bill, recall=one.recall, surprise=one.surprise
    )


def _range(figures: ChoiceFigures, spread: Sequence[ChoiceFigures], name: str) -> FigureRange | None:
    value = getattr(figures, name)
    values = sorted(found for each in spread if (found := getattr(each, name)) is not None)
    if value is None or not values:
        return None
    return FigureRange(value=value, low=values[len(values) // 20], high=values[-1 - len(values) // 20])


def _dollars(figures: ChoiceFigures, setting: ReplaySetting) -> float | None:
    model = replay_model(setting)
    if model.input_price is None:
        return None
    return figures.paid * model.token_ratio * model.input_price / 1_000_000


# ── Lines for foveal.toml ─────────────────────────────────────────────────────────────────────────

_TOP_KEYS: Final = ("window", "reserve", "margin")
_TURN_FIELDS: Final = ("every_turns", "overlap_turns")
"""Settings that a configuration has both or neither of."""


def config_lines(rules: Policy | None, *, window: int, setting: ReplaySetting) -> str:
    """Return a policy, and the caps that it was replayed with, as lines for `foveal.toml`.

    A comment names the settings that have no configuration key."""
    if rules is None:
        return ""
    known = replay_model(msgspec.structs.replace(setting, window=None)).window
    caps = (None if window == known else window, setting.reserve, setting.margin)
    values: dict[str, Any] = {k: v for k, v in zip(_TOP_KEYS, caps, strict=True) if v is not None}
    preset = _nearest_preset(rules)
    values["context.policy"] = preset
    values |= _policy_values(rules, PRESETS[preset])
    written = build_policy(values.get, {}, window=window)
    missing = {field: value for field, value in _changes(rules, written).items() if field != "name"}
    return "\n".join([*_toml_lines(values), *_missing_lines(preset, missing)])


def _nearest_preset(rules: Policy) -> Any:
    return min(PRESETS, key=lambda name: len(_changes(rules, PRESETS[name])))


def _changes(rules: Policy, base: Policy) -> dict[str, Any]:
    return {
        field: getattr(rules, field)
        for field in rules.__struct_fields__
        if getattr(rules, field) != getattr(base, field)
    }


def _policy_values(rules: Policy, base: Policy) -> dict[str, Any]:
    """Return the configuration values of what differs from a preset, by key."""
    changed = _changes(rules, base)
    if any(field in changed for field in _TURN_FIELDS):
        changed |= {field: getattr(rules, field) for field in _TURN_FIELDS}
    values = {key: changed[field] for key, field in POLICY_FIELDS.items() if field in changed}
    if rules.act_tokens != base.act_tokens and rules.act_tokens:
        values["compaction.token_threshold"] = rules.act_tokens
    if "clip" in changed and rules.clip is not None:
        values["context.max_tool_result_tokens"] = rules.clip.tokens or 0
        values["context.tool_result_truncation"] = rules.clip.strategy
    return values


def _toml_lines(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield values by dotted key as TOML: those without a table first."""
    table = ""
    for key, value in sorted(values.items(), key=lambda item: item[0].rpartition(".")[0]):
        name, _, field = key.rpartition(".")
        if name != table:
            table = name
            yield from ("", f"[{table}]")
        yield f"{field} = {json.dumps(value)}"


def _missing_lines(preset: str, missing: Mapping[str, Any]) -> Iterator[str]:
    if missing:
        values = ", ".join(f"{field}={msgspec.to_builtins(value)!r}" for field, value in missing.items())
        yield f'# no key sets the rest; in Python: foveal.policy("{preset}", {values})'


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────


def conclusion_sentences(found: Conclusion) -> list[str]:
    """Return the conclusion as sentences: what to use, its figures, and how sure that is."""
    others = list(_other_sentences(found))
    if found.verdict == "none" or found.bill is None:
        return [f"No recommendation: {found.reason}.", *others]
    sure = "" if found.verdict == "clear" else ", tentatively"
    figures = [f"bill {_percent_range(found.bill)} of sending everything{_saving(found)}"]
    if found.surprise is not None:
        one = found.surprise
        figures.append(f"surprise {one.value:.3f} ({one.low:.3f} to {one.high:.3f})")
    if found.recall is not None:
        figures.append(f"recall {_percent_range(found.recall)}")
    sentences = [
        f"Use {found.policy} in a window of {found.window:,} tokens{sure}.",
        f"It would have had: {'; '.join(figures)}.",
        f"How sure: {found.reason}; in brackets, the range of 90 of these samples.",
    ]
    if found.costs_more:
        sentences.insert(1, _why_costs_more(found.over_everything or 0.0))
    return sentences + others


def _why_costs_more(over: float) -> str:
    return (
        f"It costs more than sending everything, but {100 * over:.1f} % of the calls do not fit the window then, "
        "and no cheaper policy loses as little."
    )


def _other_sentences(found: Conclusion) -> Iterator[str]:
    named = (("Costs least", found.cheaper), ("Loses least", found.more_faithful))
    return (f"{words}: {_other_words(other)}." for words, other in named if other is not None)


def _other_words(other: OtherChoice) -> str:
    figures = [f"bill {100 * other.bill:.1f} %"]
    if other.surprise is not None:
        figures.append(f"surprise {other.surprise:.3f}")
    if other.recall is not None:
        figures.append(f"recall {100 * other.recall:.1f} %")
    return f"{other.policy} in {other.window:,} tokens ({', '.join(figures)})"


def _saving(found: Conclusion) -> str:
    if found.dollars is None or found.dollars_everything is None:
        return ""
    return f", {dollars_text(found.dollars)} dollars in place of {dollars_text(found.dollars_everything)}"


def _percent_range(one: FigureRange) -> str:
    return f"{100 * one.value:.1f} % ({100 * one.low:.1f} to {100 * one.high:.1f})"
