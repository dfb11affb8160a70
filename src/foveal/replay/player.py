"""One conversation under one policy, through the same `Context` that users call.

For each utterance of the recording the messages before it are fitted, the request is billed and searched, and the
recorded answer follows whatever the request had shown.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any, Final

from msgspec import UnsetType

from foveal import models
from foveal.context import Context
from foveal.errors import BadSetting, ContextOverflow
from foveal.events import Event, ToolReturned, extras, handle, kind, parse_handle
from foveal.models import Model
from foveal.policies import Policy, policy
from foveal.replay.conversations import Call
from foveal.replay.needs import Need
from foveal.replay.requests import Request
from foveal.replay.scoring import Scorer, Table
from foveal.replay.traces import Loss, Setting, Trace

EVERYTHING: Final = "everything"
UNLIMITED: Final = 50_000_000
SAID: Final = {
    "opened", "equipped", "instructed", "user_said", "model_said", "tool_returned", "pinned", "noted", "used",
    "marked", "snapshot_taken",
}  # fmt: skip
"""Facts that reduce nothing."""


def everything(table: Table) -> Trace:
    """What it is to send everything, whatever the window; the measure of all bills."""
    unlimited = models.model(table.model.name, window=UNLIMITED, cache_ttl=table.model.cache_ttl)
    trace = Player(table, policy("off"), label=EVERYTHING, model=unlimited).play()
    trace.ideal = table.ideal = list(trace.sizes)
    return trace


class Player:
    """Plays one policy."""

    def __init__(self, table: Table, rules: Policy, *, label: str, model: Model | None = None) -> None:
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

    def request(self, number: int, call: Call) -> Request | None:
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


def _given(setting: Setting) -> dict[str, Any]:
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
