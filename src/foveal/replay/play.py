"""One conversation under one policy, through the same `Context` that users call.

For each utterance of the recording the messages before it are fitted, the request is billed and searched, and the
recorded answer follows whatever the request had shown.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UnsetType

from foveal.context import Context
from foveal.core.log.events import Event, ToolReturned, extras, handle, kind, parse_handle
from foveal.core.models import model as models
from foveal.core.models.budget import Caps, reserve_for
from foveal.core.models.model import Model
from foveal.core.policies import Policy, policy
from foveal.core.tokens.counter import counter
from foveal.errors import BadSetting, ContextOverflow
from foveal.replay.cache_cost import BilledRequest, PromptCache
from foveal.replay.recall_score import Need, RecallScorer, RequestReader, RequestText
from foveal.replay.recorded_calls import RecordedCall, RecordedConversation

# ── traces ────────────────────────────────────────────────────────────────────────────────────────
# What came of one conversation under one policy, call by call.


class ReplaySetting(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are made and billed, whatever the policy."""

    model: str = "gpt-5"
    window: int | None = None
    """Tokens that the model holds; None is what is known of it."""
    reserve: int | None = None
    margin: float | None = None
    """Share of the window that is never planned for; None is the default of `Context`."""
    ttl: int | None = None
    """Seconds that a prefix stays in the cache; None is what is known of the model."""
    pace: float = 15.0
    """Seconds from call to call where the recording has no times."""
    tokenizer: str = "auto"
    summariser: str = ""
    """`module:function` for `Context(summarise=…)`; "" is the ledger, which needs no model."""


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a call needed and the request no longer showed."""

    call: int
    kind: Literal["ident", "line"]
    text: str
    far: bool
    handle: str
    """The result that had it, as it is called in the log of the replay."""
    tool: str
    """The tool that had returned it, if the recording tells."""
    level: str
    rule: str
    by: str
    """The event that hid it, and its kind."""


class RecallCount(msgspec.Struct, kw_only=True):
    """Needs of one kind: how many there were, and how many of them stood in their requests."""

    needed: int = 0
    kept: int = 0
    needed_far: int = 0
    kept_far: int = 0

    def add(self, *, far: bool, kept: bool) -> None:
        self.needed += 1
        self.kept += kept
        self.needed_far += far
        self.kept_far += far and kept

    def plus(self, other: RecallCount) -> RecallCount:
        return RecallCount(
            needed=self.needed + other.needed,
            kept=self.kept + other.kept,
            needed_far=self.needed_far + other.needed_far,
            kept_far=self.kept_far + other.kept_far,
        )

    @property
    def share(self) -> float | None:
        return self.kept / self.needed if self.needed else None

    @property
    def far(self) -> float | None:
        return self.kept_far / self.needed_far if self.needed_far else None


class Trace(msgspec.Struct, kw_only=True):
    """All calls of one conversation under one policy.

    A call that could not be made to fit is billed as if everything had been sent, and what it needed counts as
    lost: a failure never looks cheap or mindful.
    """

    conversation: str
    title: str = ""
    policy: str
    sizes: list[int] = []
    """Tokens of each request."""
    cached: list[int] = []
    breaks: list[int] = []
    """Calls, counted from 1, whose request did not begin with the request before."""
    over: list[int] = []
    """Calls whose request was too large for the window."""
    seconds: list[float] = []
    """Processor time of each `fit`."""
    with_task: int = 0
    """Requests with the first user message, word for word."""
    with_latest: int = 0
    ident: RecallCount = msgspec.field(default_factory=RecallCount)
    line: RecallCount = msgspec.field(default_factory=RecallCount)
    losses: list[Loss] = []
    reductions: dict[str, int] = {}
    summaries: tuple[int, int] = (0, 0)
    """Tokens that a model read to write summaries, and how many of them were cached."""
    ideal: list[int] = []
    """Tokens of each request when everything is sent."""
    ratio: float = 1.0
    """Tokens of this model for one that the lab counts."""


# ── scoring ───────────────────────────────────────────────────────────────────────────────────────
# One conversation on the table, and the scorer that bills and searches each of its requests.


class ScoringTable:
    """What all policies share."""

    def __init__(
        self, conversation: RecordedConversation, needs: Sequence[Need], setting: ReplaySetting
    ) -> None:
        self.conversation = conversation
        self.tools = conversation.tools
        self.needs = needs
        self.setting = setting
        self.model = chosen(setting)
        self.reader = RequestReader(conversation.dialect, counter(setting.tokenizer, model=self.model.name))
        self.memory = RecallScorer(conversation, needs, self.reader)
        self.times = _times(conversation, setting.pace)
        """When each call is made."""
        self.limit = input_limit(self.model, setting) / self.model.token_ratio
        """Tokens, as the lab counts them, that a request may have."""
        self.ideal: list[int] = []
        """Tokens of each request when everything is sent; the first replay finds them."""


def chosen(setting: ReplaySetting) -> Model:
    """The model that the requests are for."""
    return models.model(setting.model, window=setting.window, cache_ttl=setting.ttl)


def input_limit(model: Model, setting: ReplaySetting) -> int:
    """Tokens that a request to the model may have."""
    return model.input_limit(reserve_for(model, Caps(reserve=setting.reserve)))


def _times(conversation: RecordedConversation, pace: float) -> list[float]:
    """As recorded if all times are known, else at an even pace."""
    known = [call.at for call in conversation.calls if call.at is not None]
    return (
        known if len(known) == len(conversation.calls) else [n * pace for n in range(len(conversation.calls))]
    )


class Scorer:
    """Follows the requests of one conversation under one policy."""

    def __init__(self, table: ScoringTable, label: str) -> None:
        self._table = table
        self._cache = PromptCache(table.reader, ttl=table.model.cache_ttl)
        self.trace = Trace(
            conversation=table.conversation.id,
            title=table.conversation.title,
            policy=label,
            ideal=table.ideal,
            ratio=table.model.token_ratio,
        )

    def score(self, number: int, request: RequestText | None, loss: Callable[[Need], Loss]) -> None:
        """Take the request of call `number`, counted from 0; None is one that nothing makes fit."""
        self._bill(number, request)
        memory, trace = self._table.memory, self.trace
        if request is not None:
            facts = self._table.conversation.calls[number].facts
            trace.with_task += memory.has_task(request, facts=facts)
            trace.with_latest += memory.has_latest(request, facts=facts)
        needed = memory.needed(number + 1)
        lost = set(needed) if request is None else set(memory.lost(number + 1, request))
        for need in needed:
            recall = trace.ident if need.kind == "ident" else trace.line
            recall.add(far=need.far, kept=need not in lost)
            if need in lost:
                trace.losses.append(loss(need))

    def _bill(self, number: int, request: RequestText | None) -> None:
        trace = self.trace
        if request is None:
            ideal = self._table.ideal
            billed = BilledRequest(ideal[number], ideal[number - 1] if number else 0, broke=False)
        else:
            billed = self._cache.send(request, now=self._table.times[number])
        trace.sizes.append(billed.tokens)
        trace.cached.append(billed.cached)
        if billed.broke:
            trace.breaks.append(number + 1)
        if request is None or billed.tokens > self._table.limit:
            trace.over.append(number + 1)


# ── player ────────────────────────────────────────────────────────────────────────────────────────

EVERYTHING: Final = "everything"
UNLIMITED: Final = 50_000_000
SAID: Final = {
    "opened", "equipped", "instructed", "user_said", "model_said", "tool_returned", "pinned", "noted", "used",
    "marked", "snapshot_taken",
}  # fmt: skip
"""Facts that reduce nothing."""


def everything(table: ScoringTable) -> Trace:
    """What it is to send everything, whatever the window; the measure of all bills."""
    unlimited = models.model(table.model.name, window=UNLIMITED, cache_ttl=table.model.cache_ttl)
    trace = Player(table, policy("off"), label=EVERYTHING, model=unlimited).play()
    trace.ideal = table.ideal = list(trace.sizes)
    return trace


class Player:
    """Plays one policy."""

    def __init__(self, table: ScoringTable, rules: Policy, *, label: str, model: Model | None = None) -> None:
        self._table = table
        self._scorer = Scorer(table, label)
        self._now = 0.0
        self.context = Context(
            model or table.model,
            dialect=table.conversation.dialect,
            clock=lambda: self._now,
            policy=rules,
            **_given(table.setting),
        )
        self._results: list[int] = []
        """For each result the event that it became."""
        self._read = 0

    def play(self) -> Trace:
        trace = self._scorer.trace
        for number, call in enumerate(self._table.conversation.calls):
            request = self.request(number, call)
            self._scorer.score(number, request, self._loss)
        log = self.context.log
        for name in (kind(event.fact) for event in log):
            if name not in SAID:
                trace.reductions[name] = trace.reductions.get(name, 0) + 1
        trace.summaries = _summaries(log)
        return trace

    def request(self, number: int, call: RecordedCall) -> RequestText | None:
        """The request of one call; None when nothing makes it fit."""
        messages = self._table.conversation.messages[: call.messages]
        self._now = max(self._now, self._table.times[number])
        begun = time.thread_time()
        try:
            fitted = self.context.fit(messages, tools=call.tools, system=call.system)
        except ContextOverflow:
            return None
        finally:
            self._scorer.trace.seconds.append(time.thread_time() - begun)
        return self._table.reader.request(fitted, system=call.system, tools=call.tools)

    # ── what was lost ────────────────────────────────────────────────────────────────────────────────

    def _loss(self, need: Need) -> Loss:
        seq = self._seq(need.source)
        line = self.context.why(seq)
        return Loss(
            call=need.call,
            kind=need.kind,
            text=need.text,
            far=need.far,
            handle=handle(seq),
            tool=self._table.tools[need.source],
            level=line.level,
            rule=line.rule,
            by=self.told(line.by),
        )

    def _seq(self, result: int) -> int:
        log = self.context.log
        self._results += [e.seq for e in log[self._read :] if isinstance(e.fact, ToolReturned)]
        self._read = len(log)
        return self._results[result]

    def told(self, name: str) -> str:
        """A reduction by its handle: what it is, and why it was made."""
        seq = parse_handle(name) if name else None
        return f"{name} {told(self.context.log[seq])}" if seq is not None else ""


def told(event: Event) -> str:
    """What a reduction is, and why it was made."""
    reason = getattr(event.fact, "reason", "")
    return f"{kind(event.fact)} ({reason})" if reason else kind(event.fact)


def _given(setting: ReplaySetting) -> dict[str, Any]:
    """The arguments of `Context` that are the same for all policies."""
    given: dict[str, Any] = {"reserve": setting.reserve, "tokenizer": setting.tokenizer}
    if setting.margin is not None:
        given["margin"] = setting.margin
    if setting.summariser:
        given["summarise"] = named(setting.summariser)
    return given


def named(name: str) -> Any:
    """What `module:function` names."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as problem:
        raise BadSetting(
            "summariser", name, f"module:function, both of which can be imported ({problem})"
        ) from None


def _summaries(log: Sequence[Event]) -> tuple[int, int]:
    """Tokens that a model read to write the summaries in a log, and how many of them were cached."""
    read = cached = 0
    for event in log:
        metrics = getattr(event.fact, "metrics", None)
        if metrics is not None and not isinstance(metrics, UnsetType):
            told = extras(metrics)
            read += int(told.get("input", 0))
            cached += int(told.get("cached", 0))
    return read, cached
