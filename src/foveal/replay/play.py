"""Replay of one recorded conversation under one policy, through `Context`.

For each call of the recording, `PolicyPlayer` fits the messages before it. `RequestScorer` bills the request and
searches it for what the call needs; at sampled calls it also measures surprise. The recorded answer follows,
whatever the request contained. The result is a `Trace`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UnsetType
from msgspec.structs import replace

from foveal.context import Context
from foveal.core.log.events import Event, ToolReturned, extras, handle, kind, parse_handle
from foveal.core.models.budget import Caps, reserve_for
from foveal.core.models.model import Model, model
from foveal.core.policies import Policy, policy
from foveal.core.tokens.counter import counter
from foveal.core.wire.request_text import RequestReader, RequestText, fact_text
from foveal.errors import BadSetting, ContextOverflow
from foveal.replay.cache_cost import BilledRequest, PromptCache
from foveal.replay.recall_score import Need, RecallScorer, contains_word
from foveal.replay.recorded_calls import MessageFact, RecordedCall, RecordedConversation
from foveal.replay.surprise import (
    CallSurprise,
    CountBits,
    FindCause,
    GoneQuote,
    SurpriseMeter,
    zstandard_bits,
)

EVERYTHING_LABEL: Final = "everything"
UNLIMITED_WINDOW: Final = 50_000_000
"""Tokens; more than any recording has."""
NON_REDUCTION_KINDS: Final = {
    "opened", "equipped", "instructed", "user_said", "model_said", "tool_returned", "pinned", "noted", "used",
    "marked", "snapshot_taken",
}  # fmt: skip
"""Kinds of events that reduce nothing."""


# ── Settings and results ──────────────────────────────────────────────────────────────────────────


class ReplaySetting(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are made and billed under every policy.

    Examples:
        ```python
        from foveal.replay import ReplaySetting

        setting = ReplaySetting(model="gpt-4.1", window=32_000, reserve=4_000)
        ```
    """

    model: str = "gpt-5"
    """The name of the model."""
    window: int | None = None
    """Tokens of the model's window; None for the known one."""
    reserve: int | None = None
    """Tokens kept free for the answer; None for the default of `Context`."""
    margin: float | None = None
    """Share of the window that is never planned for; None for the default of `Context`."""
    ttl: int | None = None
    """Seconds that a prefix stays in the cache; None for the model's known value."""
    pace: float = 15.0
    """Seconds from call to call if the recording has no times."""
    tokenizer: str = "auto"
    """The vocabulary that counts."""
    summariser: str = ""
    """`module:function` for `Context(summarise=…)`; "" for the ledger, which needs no model."""


DEFAULT_REPLAY_SETTING: Final = ReplaySetting()


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A need of a call that its request did not contain.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        assert rows[1].traces[0].losses == []
        ```
    """

    call: int
    """The number of the call, from 1."""
    kind: Literal["ident", "line"]
    """A name (`ident`) or a whole line (`line`)."""
    text: str
    """The string that the call needed."""
    far: bool
    """Whether the source is far back."""
    handle: str
    """The result that had it, by its handle in the log of the replay."""
    tool: str
    """The tool of that result, if the recording has its name."""
    level: str
    """The level at which the result was shown."""
    rule: str
    """The rule that decided the level."""
    by: str
    """The event that hid the result, and its kind."""


def loss_without_cause(need: Need) -> Loss:
    """Return a loss of a request that no policy of Foveal made."""
    return Loss(
        call=need.call,
        kind=need.kind,
        text=need.text,
        far=need.far,
        handle="",
        tool="",
        level="",
        rule="",
        by="",
    )


class RecallCount(msgspec.Struct, kw_only=True):
    """How many needs of one kind there were, and how many their requests contained.

    Examples:
        ```python
        from foveal.replay import RecallCount

        count = RecallCount()
        count.add(far=False, kept=True)
        assert count.share == 1.0
        ```
    """

    needed: int = 0
    """Needs."""
    kept: int = 0
    """Needs that the request contained."""
    needed_far: int = 0
    """Needs whose source is far back."""
    kept_far: int = 0
    """Far needs that the request contained."""

    def add(self, *, far: bool, kept: bool) -> None:
        """Count a need.

        Args:
            far: Whether its source is far back.
            kept: Whether the request contained it.
        """
        self.needed += 1
        self.kept += kept
        self.needed_far += far
        self.kept_far += far and kept

    def plus(self, other: RecallCount) -> RecallCount:
        """Return the sum of two counts.

        Args:
            other: The other count.
        """
        return RecallCount(
            needed=self.needed + other.needed,
            kept=self.kept + other.kept,
            needed_far=self.needed_far + other.needed_far,
            kept_far=self.kept_far + other.kept_far,
        )

    @property
    def share(self) -> float | None:
        """Recall of all needs, None if there were none."""
        return self.kept / self.needed if self.needed else None

    @property
    def far(self) -> float | None:
        """Recall of the far needs, None if there were none."""
        return self.kept_far / self.needed_far if self.needed_far else None


class Trace(msgspec.Struct, kw_only=True):
    """All calls of one conversation under one policy.

    A call whose request cannot be made to fit is billed as if everything had been sent, and all its needs count
    as lost, so that a policy gains nothing by failing.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        (trace,) = rows[1].traces
        assert trace.conversation == "demo"
        ```
    """

    conversation: str
    """The id of the conversation."""
    title: str = ""
    """The title of the conversation."""
    source: str = ""
    """The data set that has the conversation, or its format."""
    policy: str
    """The label of the policy."""
    window: int = 0
    """Tokens of the model's window."""
    limit: int = 0
    """Most tokens of a request, as the model's provider counts them: the window without the reserve."""
    sizes: list[int] = []
    """Tokens of each request."""
    cached: list[int] = []
    """Cached tokens of each request."""
    breaks: list[int] = []
    """Calls, counted from 1, with a prefix break: the request did not begin with the previous one."""
    over: list[int] = []
    """Calls whose request was too large for the window."""
    seconds: list[float] = []
    """CPU time of each `fit`."""
    with_task: int = 0
    """Requests that contain the first user message verbatim."""
    with_latest: int = 0
    """Requests that contain the latest user message verbatim."""
    ident: RecallCount = msgspec.field(default_factory=RecallCount)
    """Recall of names."""
    line: RecallCount = msgspec.field(default_factory=RecallCount)
    """Recall of lines."""
    surprises: list[CallSurprise] = []
    """The surprise of the sampled calls."""
    losses: list[Loss] = []
    """The needs that requests did not contain."""
    reductions: dict[str, int] = {}
    """Number of events of each kind that reduces."""
    summaries: tuple[int, int] = (0, 0)
    """Tokens that a model read to write summaries, and how many of them were cached."""
    full_sizes: list[int] = []
    """Tokens of each request if everything is sent."""
    ratio: float = 1.0
    """Tokens that the model's provider counts for one that the replay counts."""


# ── Scoring ───────────────────────────────────────────────────────────────────────────────────────


class ReplayCase:
    """A recorded conversation with all that its replays under several policies share."""

    def __init__(
        self,
        conversation: RecordedConversation,
        needs: Sequence[Need],
        setting: ReplaySetting,
        *,
        samples: int = 0,
        count_bits: CountBits = zstandard_bits,
    ) -> None:
        self.conversation = conversation
        self.tools: list[str] = conversation.tools
        self.needs = needs
        self.set_window(setting)
        self.reader: RequestReader = RequestReader(
            conversation.dialect, counter(setting.tokenizer, model=self.model.name)
        )
        self.recall: RecallScorer = RecallScorer(conversation, needs, self.reader)
        self.surprise: SurpriseMeter = SurpriseMeter(
            conversation, self.reader, samples=samples, count_bits=count_bits
        )
        self.times: list[float] = _call_times(conversation, setting.pace)
        """Time of each call."""
        self.full_sizes: list[int] = []
        """Tokens of each request if everything is sent; set by `set_full_sizes`."""

    def set_window(self, setting: ReplaySetting) -> None:
        """Continue in another window; the other settings must be the same, because their results are shared."""
        self.setting = setting
        self.model: Model = replay_model(setting)
        self.limit: float = input_limit(self.model, setting) / self.model.token_ratio
        """Most tokens of a request, as the replay counts them."""

    def set_full_sizes(self, sizes: Sequence[int]) -> None:
        """Record the sizes that `replay_everything` found; other replays are billed against them."""
        self.full_sizes = list(sizes)


def replay_model(setting: ReplaySetting) -> Model:
    """Return the model that the requests are for."""
    return model(setting.model, window=setting.window, cache_ttl=setting.ttl)


def input_limit(model: Model, setting: ReplaySetting) -> int:
    """Return the most tokens of a request to the model."""
    return model.input_limit(reserve_for(model, Caps(reserve=setting.reserve)))


def _call_times(conversation: RecordedConversation, pace: float) -> list[float]:
    """Return the recorded times if all are known, else times at an even pace."""
    known = [call.at for call in conversation.calls if call.at is not None]
    if len(known) == len(conversation.calls):
        return known
    return [number * pace for number in range(len(conversation.calls))]


class RequestScorer:
    """Bills and scores the requests of one conversation under one policy."""

    def __init__(self, case: ReplayCase, label: str) -> None:
        self._case = case
        self._cache = PromptCache(case.reader, ttl=case.model.cache_ttl)
        self.trace: Trace = Trace(
            conversation=case.conversation.id,
            title=case.conversation.title,
            source=case.conversation.source,
            policy=label,
            window=case.model.window,
            limit=input_limit(case.model, case.setting),
            full_sizes=case.full_sizes,
            ratio=case.model.token_ratio,
        )

    def score(
        self,
        number: int,
        request: RequestText | None,
        loss: Callable[[Need], Loss],
        find_cause: FindCause = lambda quote: quote,
    ) -> None:
        """Add the request of call `number`, counted from 0; None for a request that cannot be made to fit.

        Without `find_cause`, quotes that are gone from a request have no cause.
        """
        self._bill(number, request)
        recall, trace = self._case.recall, self.trace
        if request is not None:
            facts = self._case.conversation.calls[number].facts
            trace.with_task += recall.has_task(request, facts=facts)
            trace.with_latest += recall.has_latest(request, facts=facts)
        needs = recall.needs_of(number + 1)
        lost = set(needs) if request is None else set(recall.lost_needs(number + 1, request))
        for need in needs:
            count = trace.ident if need.kind == "ident" else trace.line
            count.add(far=need.far, kept=need not in lost)
            if need in lost:
                trace.losses.append(loss(need))
        surprise = self._case.surprise.measure(number, request, find_cause)
        if surprise is not None:
            trace.surprises.append(surprise)

    def _bill(self, number: int, request: RequestText | None) -> None:
        trace = self.trace
        if request is None:
            sizes = self._case.full_sizes
            billed = BilledRequest(sizes[number], sizes[number - 1] if number else 0, breaks_prefix=False)
        else:
            billed = self._cache.send(request, now=self._case.times[number])
        trace.sizes.append(billed.tokens)
        trace.cached.append(billed.cached)
        if billed.breaks_prefix:
            trace.breaks.append(number + 1)
        if request is None or billed.tokens > self._case.limit:
            trace.over.append(number + 1)


# ── Playing ───────────────────────────────────────────────────────────────────────────────────────


def replay_everything(case: ReplayCase) -> Trace:
    """Replay a case without reductions and window; its bill is the baseline of all bills."""
    unlimited = model(case.model.name, window=UNLIMITED_WINDOW, cache_ttl=case.model.cache_ttl)
    trace = PolicyPlayer(case, policy("off"), label=EVERYTHING_LABEL, model=unlimited).play()
    case.set_full_sizes(trace.sizes)
    return replace(trace, full_sizes=case.full_sizes)


def in_window_of(case: ReplayCase, everything: Trace) -> Trace:
    """Return the trace of `replay_everything` for the window of the case, on which only `over` depends."""
    return replace(
        everything,
        window=case.model.window,
        limit=input_limit(case.model, case.setting),
        over=[call for call, size in enumerate(everything.sizes, 1) if size > case.limit],
    )


class PolicyPlayer:
    """Replays a case under one policy."""

    def __init__(self, case: ReplayCase, rules: Policy, *, label: str, model: Model | None = None) -> None:
        self._case = case
        self._scorer = RequestScorer(case, label)
        self._now = 0.0
        self.context: Context = Context(
            model or case.model,
            dialect=case.conversation.dialect,
            clock=lambda: self._now,
            policy=rules,
            **_context_options(case.setting),
        )
        self._result_seqs: list[int] = []
        """For each tool result, the event that it became in the log of the replay."""
        self._read_events = 0

    @property
    def trace(self) -> Trace:
        """The calls that were replayed so far."""
        return self._scorer.trace

    def play(self, *, on_call: Callable[[int], None] | None = None) -> Trace:
        """Replay all calls; `on_call` is called after each one with its number, counted from 0."""
        trace = self._scorer.trace
        for number, call in enumerate(self._case.conversation.calls):
            request = self.request(number, call)
            self._scorer.score(number, request, self._loss, self._with_cause)
            if on_call is not None:
                on_call(number)
        log = self.context.log
        for name in (kind(event.fact) for event in log):
            if name not in NON_REDUCTION_KINDS:
                trace.reductions[name] = trace.reductions.get(name, 0) + 1
        trace.summaries = _summary_tokens(log)
        return trace

    def request(self, number: int, call: RecordedCall) -> RequestText | None:
        """Return the request of a call, None if it cannot be made to fit."""
        messages = self._case.conversation.messages[: call.messages]
        self._now = max(self._now, self._case.times[number])
        started = time.thread_time()
        try:
            fitted = self.context.fit(messages, tools=call.tools, system=call.system)
        except ContextOverflow:
            return None
        finally:
            self._scorer.trace.seconds.append(time.thread_time() - started)
        return self._case.reader.request(fitted, system=call.system, tools=call.tools)

    def _loss(self, need: Need) -> Loss:
        seq = self._result_seq(need.source)
        status = self.context.why(seq)
        return Loss(
            call=need.call,
            kind=need.kind,
            text=need.text,
            far=need.far,
            handle=handle(seq),
            tool=self._case.tools[need.source],
            level=status.level,
            rule=status.rule,
            by=self._describe(status.by),
        )

    def _with_cause(self, quote: GoneQuote) -> GoneQuote:
        """Return a gone quote with the newest event that had it, and what hid that event."""
        messages = (event for event in reversed(self.context.log) if isinstance(event.fact, MessageFact))
        seq = next(
            (event.seq for event in messages if contains_word(fact_text(event.fact), quote.text)), None
        )
        if seq is None:
            return quote
        status = self.context.why(seq)
        return replace(
            quote,
            handle=handle(seq),
            level=status.level,
            rule=status.rule,
            by=self._describe(status.by),
        )

    def _result_seq(self, result: int) -> int:
        log = self.context.log
        self._result_seqs += [e.seq for e in log[self._read_events :] if isinstance(e.fact, ToolReturned)]
        self._read_events = len(log)
        return self._result_seqs[result]

    def _describe(self, name: str) -> str:
        """Return a reduction's handle, kind and reason."""
        seq = parse_handle(name) if name else None
        return f"{name} {describe_reduction(self.context.log[seq])}" if seq is not None else ""


def describe_reduction(event: Event) -> str:
    """Return the kind of a reduction, and its reason."""
    reason = getattr(event.fact, "reason", "")
    return f"{kind(event.fact)} ({reason})" if reason else kind(event.fact)


def _context_options(setting: ReplaySetting) -> dict[str, Any]:
    """Return the arguments of `Context` that are the same for all policies."""
    options: dict[str, Any] = {"reserve": setting.reserve, "tokenizer": setting.tokenizer}
    if setting.margin is not None:
        options["margin"] = setting.margin
    if setting.summariser:
        options["summarise"] = import_function(setting.summariser)
    return options


def import_function(name: str) -> Any:
    """Return the function that `module:function` names."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as problem:
        raise BadSetting(
            "summariser", name, f"module:function, both of which can be imported ({problem})"
        ) from None


def _summary_tokens(log: Sequence[Event]) -> tuple[int, int]:
    """Return the tokens that a model read to write the summaries in a log, and how many of them were cached."""
    read = cached = 0
    for event in log:
        metrics = getattr(event.fact, "metrics", None)
        if metrics is not None and not isinstance(metrics, UnsetType):
            values = extras(metrics)
            read += int(values.get("input", 0))
            cached += int(values.get("cached", 0))
    return read, cached
