"""What came of one conversation under one policy, call by call."""

from __future__ import annotations

from typing import Literal

import msgspec


class Setting(msgspec.Struct, frozen=True, kw_only=True):
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


class Recall(msgspec.Struct, kw_only=True):
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

    def plus(self, other: Recall) -> Recall:
        return Recall(
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
    ident: Recall = msgspec.field(default_factory=Recall)
    line: Recall = msgspec.field(default_factory=Recall)
    losses: list[Loss] = []
    reductions: dict[str, int] = {}
    summaries: tuple[int, int] = (0, 0)
    """Tokens that a model read to write summaries, and how many of them were cached."""
    ideal: list[int] = []
    """Tokens of each request when everything is sent."""
    ratio: float = 1.0
    """Tokens of this model for one that the lab counts."""
