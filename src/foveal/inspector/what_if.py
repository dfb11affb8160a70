"""The same conversation under another policy, window or model, without a model call.

1. The replay lab fits the recorded messages before each recorded answer, as `foveal replay` does. The recorded
   answer follows, whatever the request contained. Rewound messages are not replayed.
2. Usage is simulated with the lab's prompt cache and written to the replayed log as estimated usage, so its
   timeline has requests, costs and cache misses. Summaries are written from the log alone.
3. The figures compare both logs by the same simulation: what was recorded is billed as if its provider had cached
   ideally, so that they differ only in what was sent. What the provider reported is a figure of its own.
4. Recall is computed only for conversations of up to `MAX_RECALL_CHARS` characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from foveal.core.compaction.health import read_metrics
from foveal.core.engine.settings import recorded_reserve, recorded_window
from foveal.core.log.events import (
    REDUCTIONS,
    Compacted,
    CompactionFailed,
    Event,
    Opened,
    Used,
)
from foveal.core.models.catalogue import find_row, model_rows
from foveal.core.models.model import Model
from foveal.core.policies import Policy
from foveal.core.wire.request_text import fact_text
from foveal.errors import FovealError
from foveal.inspector.step_surprises import logged_conversation, recorded_requests
from foveal.inspector.timeline.builder import InspectedSettings, TimelineBuilder
from foveal.inspector.timeline.timeline import Timeline
from foveal.policies import NO_TABLES, PolicyTables, find_policy, policy_names
from foveal.replay.play import Loss, PolicyPlayer, ReplayCase, ReplaySetting, RequestScorer, Trace
from foveal.replay.recall_score import Need, find_needs
from foveal.replay.recorded_calls import RecordedConversation

DEFAULT_WHAT_IF_POLICY: Final = "economy"
DEFAULT_WHAT_IF_MODEL: Final = "gpt-5"
"""The model of a log that names none."""
MAX_RECALL_CHARS: Final = 20_000_000
"""Longest conversation whose recall is computed; in a longer one the search takes too long."""

OnReplayProgress = Callable[[int, int], None]
"""Called with the number of requests that are done, and of all."""


class ReplayStopped(FovealError):
    """The caller has stopped the replay."""


class WhatIfFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both logs."""

    name: str
    unit: str
    """`dollars`, `share` (0 to 1), `tokens` or `count`."""
    recorded: float | None
    """None if it is unknown."""
    replayed: float | None


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """A replayed log beside the recorded one."""

    label: str
    timeline: Timeline
    """Of the replayed log; its requests have the numbers of the recorded ones, unless some were rewound."""
    figures: tuple[WhatIfFigure, ...]
    notes: tuple[str, ...] = ()
    """What was assumed, and why a figure is unknown, for people."""


class WhatIfChoice(NamedTuple):
    """Under what to replay; an empty value stands for what was recorded."""

    policy: str = ""
    window: int | None = None
    model: str = ""


def what_if(
    log: Sequence[Event],
    settings: InspectedSettings,
    choice: WhatIfChoice,
    *,
    policies: PolicyTables = NO_TABLES,
    progress: OnReplayProgress = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> WhatIf:
    """Replay a log; raises `BadSetting` for a choice that does not exist and `ReplayStopped`. `policies` are the
    tables `[policies.NAME]` of a configuration."""
    opened = _opened(log)
    is_known = opened.policy in policy_names(policies)
    chosen = _resolved(log, settings, choice, recorded=opened.policy if is_known else DEFAULT_WHAT_IF_POLICY)
    replay = _Replay(
        log,
        settings,
        chosen,
        progress,
        should_stop,
        policy=find_policy(chosen.policy, policies),
        is_policy_assumed=not choice.policy and not is_known,
    )
    replayed, figures = replay.run()
    shown = msgspec.structs.replace(
        settings, model=chosen.model, window=chosen.window, problems=(*settings.problems, _ESTIMATED)
    )
    timeline = _timeline(shown, replayed, should_stop)
    label = f"{chosen.policy}, {timeline.window:,} tokens, {chosen.model}"
    return WhatIf(label=label, timeline=timeline, figures=tuple(figures), notes=tuple(replay.notes()))


def _timeline(settings: InspectedSettings, log: Sequence[Event], should_stop: Callable[[], bool]) -> Timeline:
    builder = TimelineBuilder(settings)
    for event in log:
        if should_stop():
            raise ReplayStopped("the replay was stopped")
        builder.add((event,))
    return builder.document()


_ESTIMATED: Final = "The usage of replayed requests is estimated: the prompt cache is simulated."


def _resolved(
    log: Sequence[Event], settings: InspectedSettings, choice: WhatIfChoice, *, recorded: str
) -> WhatIfChoice:
    model = _recorded_model(log, settings)
    window = choice.window
    if window is None and choice.model in ("", model):
        window = _recorded_window(log, settings)
    return WhatIfChoice(choice.policy or recorded, window, choice.model or model)


def _opened(log: Sequence[Event]) -> Opened:
    found = (event.fact for event in reversed(log) if isinstance(event.fact, Opened))
    return next(found, Opened(model=""))


def _recorded_model(log: Sequence[Event], settings: InspectedSettings) -> str:
    return _opened(log).model or settings.model or DEFAULT_WHAT_IF_MODEL


def _recorded_window(log: Sequence[Event], settings: InspectedSettings) -> int | None:
    """Return the window in which the log was recorded; None for the known one of its model."""
    return settings.window or recorded_window(_opened(log))


# ── Replay ────────────────────────────────────────────────────────────────────────────────────────


class _Replay:
    """One replay of a log, with the same calls billed as they were recorded."""

    def __init__(
        self,
        log: Sequence[Event],
        settings: InspectedSettings,
        choice: WhatIfChoice,
        progress: OnReplayProgress,
        should_stop: Callable[[], bool],
        *,
        policy: Policy,
        is_policy_assumed: bool,
    ) -> None:
        """`is_policy_assumed` says that neither the caller nor the log names the policy."""
        self._log = log
        self._choice = choice
        self._policy = policy
        self._is_policy_assumed = is_policy_assumed
        self._progress = progress
        self._should_stop = should_stop
        self._done = 0
        self._conversation = logged_conversation(log, id=settings.id, title=settings.title)
        self._needs = _bounded_needs(self._conversation)
        reserve = recorded_reserve(_opened(log))
        recorded = ReplaySetting(
            model=_recorded_model(log, settings), window=_recorded_window(log, settings), reserve=reserve
        )
        self._recorded = ReplayCase(self._conversation, self._needs, recorded)
        chosen = ReplaySetting(model=choice.model, window=choice.window, reserve=reserve)
        self._replayed = ReplayCase(self._conversation, self._needs, chosen)

    def run(self) -> tuple[Sequence[Event], Iterator[WhatIfFigure]]:
        """Return the replayed log and the figures of both."""
        was, now = self._recorded, self._replayed
        before, after = _bill_everything(was), _bill_everything(now)
        recorded = _Side(was, self._score_recorded(), self._log, before)
        player = PolicyPlayer(now, self._policy, label=self._choice.policy)
        trace = player.play(on_call=lambda number: self._observe(player, number))
        calls = self._conversation.calls
        if calls:  # the last answer and what follows it
            player.context.append(*self._conversation.messages[calls[-1].messages :])
        log = player.context.log
        return log, _figures(recorded, _Side(now, trace, log, after))

    def notes(self) -> Iterator[str]:
        """Yield what the replay had to assume, and what it cannot know."""
        opened = _opened(self._log)
        if self._is_policy_assumed:
            was = (
                f"the policy {opened.policy!r} is not installed" if opened.policy else "no policy is recorded"
            )
            yield f"The log does not say how it was reduced ({was}): {self._choice.policy} is assumed."
        model = self._replayed.model
        if find_row(model.name, model_rows()) is None:
            cost = "; its prices are unknown, so costs are too" if model.input_price is None else ""
            is_given = self._choice.window is not None
            window = f"{model.window:,} tokens is {'the recorded or chosen one' if is_given else 'assumed'}"
            yield f"The model {model.name} is not known: {'the' if is_given else 'a'} window of {window}{cost}."
        if not self._needs:
            is_long = _text_chars(self._conversation) > MAX_RECALL_CHARS
            reason = (
                f"has more than {MAX_RECALL_CHARS:,} characters"
                if is_long
                else "uses no earlier result again"
            )
            yield f"Recall is unknown, because the conversation {reason}."

    def _step(self) -> None:
        if self._should_stop():
            raise ReplayStopped("the replay was stopped")
        self._done += 1
        self._progress(self._done, 2 * len(self._conversation.calls))

    def _observe(self, player: PolicyPlayer, number: int) -> None:
        """Record the simulated usage of a request that was just fitted, as a provider would report it."""
        trace = player.trace
        if number + 1 not in trace.over[-1:]:
            usage = _usage(self._replayed, trace, number)
            player.context.observe(
                {
                    "input_tokens": usage.input,
                    "cache_read_input_tokens": usage.cache_read,
                    "cache_creation_input_tokens": usage.cache_write,
                    "output_tokens": usage.output,
                }
            )
        self._step()

    def _score_recorded(self) -> Trace:
        """Bill and score the requests that the log itself shows."""
        scorer = RequestScorer(self._recorded, "recorded")
        case = self._recorded
        for number, request in recorded_requests(self._log, case.conversation, case.reader):
            scorer.score(number, request, _unexplained_loss)
            self._step()
        return scorer.trace


def _bounded_needs(conversation: RecordedConversation) -> list[Need]:
    return find_needs(conversation.facts) if _text_chars(conversation) <= MAX_RECALL_CHARS else []


def _text_chars(conversation: RecordedConversation) -> int:
    return sum(len(fact_text(fact)) for fact in conversation.facts)


def _unexplained_loss(need: Need) -> Loss:
    """Return a loss without its cause, which the figures do not need."""
    return Loss(
        call=need.call, kind=need.kind, text=need.text, far=need.far, handle="", tool="", level="", rule="", by=""
    )  # fmt: skip


# ── Bills ─────────────────────────────────────────────────────────────────────────────────────────


def _usage(case: ReplayCase, trace: Trace, number: int) -> Used:
    """Return the simulated usage of a request and of the recorded answer to it."""
    answer = case.conversation.facts[case.conversation.calls[number].facts]
    output = sum(piece.tokens for piece in case.reader.messages_of(answer))
    return _simulated(case.model, trace.sizes[number], trace.cached[number], output)


def _simulated(model: Model, tokens: int, cached: int, output: int) -> Used:
    """Return usage in the tokens of the model. Providers that charge for writing to the cache write all that is
    new."""
    size, read = round(tokens * model.token_ratio), round(cached * model.token_ratio)
    read = read if read >= model.cache_minimum else 0
    new, output = size - read, round(output * model.token_ratio)
    if model.write_ratio > 1:
        return Used(input=0, cache_read=read, cache_write=new, output=output)
    return Used(input=new, cache_read=read, output=output)


def _bill(case: ReplayCase, trace: Trace) -> list[Used]:
    return [_usage(case, trace, number) for number in range(len(trace.sizes))]


def _bill_everything(case: ReplayCase) -> float | None:
    """Return the dollars of sending every message with each request, and record the sizes for requests that do
    not fit."""
    reader, conversation = case.reader, case.conversation
    sizes = [0]
    for message in conversation.messages:
        sizes.append(sizes[-1] + reader.message(message).tokens)
    trace = Trace(conversation=conversation.id, policy="everything")
    before: tuple[Any, ...] = ()
    for number, call in enumerate(conversation.calls):
        beside = (call.system, call.tools)
        prefix = sum(piece.tokens for piece in reader.prefix(system=call.system, tools=call.tools))
        idle = case.times[number] - case.times[number - 1] if number else 0.0
        is_cached = before == beside and idle <= case.model.cache_ttl
        trace.cached.append(trace.sizes[-1] if is_cached else 0)
        trace.sizes.append(prefix + sizes[call.messages])
        before = beside
    case.set_full_sizes(trace.sizes)
    return _dollars(case.model, _bill(case, trace))


def _dollars(model: Model, bill: Sequence[Used]) -> float | None:
    costs = [
        model.cost(
            input=used.input,
            cache_read=used.cache_read,
            cache_write=used.cache_write,
            cache_write_1h=used.cache_write_1h,
            output=used.output,
        )
        for used in bill
    ]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


# ── Figures ───────────────────────────────────────────────────────────────────────────────────────


class _Side(NamedTuple):
    """The recorded or the replayed log, with its requests."""

    case: ReplayCase
    trace: Trace
    log: Sequence[Event]
    everything: float | None
    """Dollars of sending everything."""

    @property
    def cost(self) -> float | None:
        """Dollars of all requests and of the summaries in the log."""
        summaries = _summary_cost(self.log)
        requests = _dollars(self.case.model, _bill(self.case, self.trace))
        return None if requests is None or summaries is None else requests + summaries


def _summary_cost(log: Sequence[Event]) -> float | None:
    """Return the dollars for the summaries that a model wrote; None if one is unknown."""
    outcomes = (event.fact for event in log if isinstance(event.fact, Compacted | CompactionFailed))
    costs = [metrics.cost for metrics in map(read_metrics, outcomes) if metrics.asked]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _reported_cost(side: _Side) -> float | None:
    """Return the dollars by the usage that the provider reported; None if it reported none."""
    reported = [event.fact for event in side.log if isinstance(event.fact, Used)]
    return _dollars(side.case.model, reported) if reported else None


def _figures(recorded: _Side, replayed: _Side) -> Iterator[WhatIfFigure]:
    """Yield each figure of both sides."""
    for name, unit, figure in _SIDE_FIGURES:
        yield WhatIfFigure(name=name, unit=unit, recorded=figure(recorded), replayed=figure(replayed))
    yield WhatIfFigure(name="reported cost", unit="dollars", recorded=_reported_cost(recorded), replayed=None)


def _cost_share(side: _Side) -> float | None:
    cost = side.cost
    return cost / side.everything if cost is not None and side.everything else None


def _cache_share(side: _Side) -> float | None:
    size = sum(side.trace.sizes)
    return sum(side.trace.cached) / size if size else None


def _largest(side: _Side) -> float:
    return round(max(side.trace.sizes, default=0) * side.case.model.token_ratio)


def _reduction_count(side: _Side) -> float:
    return sum(isinstance(event.fact, REDUCTIONS) for event in side.log)


_SIDE_FIGURES: Final[tuple[tuple[str, str, Callable[[_Side], float | None]], ...]] = (
    ("simulated cost", "dollars", lambda side: side.cost),
    ("simulated cost relative to sending everything", "share", _cost_share),
    ("read from the cache", "share", _cache_share),
    ("prefix breaks", "count", lambda side: len(side.trace.breaks)),
    ("largest request", "tokens", _largest),
    ("requests above the window", "count", lambda side: len(side.trace.over)),
    ("reductions", "count", _reduction_count),
    ("recall of names", "share", lambda side: side.trace.ident.share),
    ("recall of lines", "share", lambda side: side.trace.line.share),
)
"""Name, unit and value of each figure."""
