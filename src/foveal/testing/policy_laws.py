"""A check that a policy of your own keeps the laws of context management.

    foveal.testing.check_policy(Mine())        # raises LawBroken, with the law and a short history

It plays made conversations, in two dialects and several windows, through `foveal.Context` with the policy, and
checks each request. The conversations are made from a seed, so a failure comes back. One that breaks a law is
shortened before it is reported.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Final, Literal, NamedTuple, TypeAlias

from foveal.context import Context
from foveal.core.compaction.kept_messages import user_room
from foveal.core.engine.prefix import may_move_prefix
from foveal.core.engine.report import CATEGORIES, report
from foveal.core.log.events import (
    DIALOGUE_TYPES,
    REDUCTIONS,
    Event,
    Instructed,
    UserSaid,
    handle,
    kind,
    text_of,
)
from foveal.core.models.budget import check_whole_number
from foveal.core.policies import Policy
from foveal.core.policies import policy as make_policy
from foveal.core.policies.ladder import maskable_results
from foveal.core.policies.presets import PresetName
from foveal.core.tokens.counter import Estimate
from foveal.core.wire.common import Json, json_text
from foveal.core.wire.legality import request_faults
from foveal.errors import BadReduction, ContextOverflow, PicklableError

Law: TypeAlias = Literal[
    "Answers", "Allowed", "Fits", "Legal", "Stable", "Lossless", "Idempotent", "Honest", "Pinned", "Replay = live",
    "Kept", "Accounted for", "Trace", "Later wins", "Foreign state", "Apart", "Repeatable",
]  # fmt: skip
LAWS: Final[Mapping[Law, str]] = {
    "Answers": "`decide` returns and does not raise",
    "Allowed": "a reduction names results and steps that may go, and leads back to what it hides",
    "Fits": "each request fits into the window",
    "Legal": "a provider accepts each request: each call has one result right after it",
    "Stable": "the beginning of a request changes only where the log has a reduction",
    "Lossless": "every hidden text can be read again",
    "Idempotent": "the same history twice changes nothing the second time",
    "Honest": "the parts of the report add up to the window",
    "Pinned": "system text, pinned messages and the latest user message stay as they were said",
    "Replay = live": "a saved and loaded context makes the same request",
    "Kept": "the user's messages stay while they take no more than their share of the room",
    "Accounted for": "a summary, a notice or a placeholder stands for everything that is not shown",
    "Trace": "a message of the user is not hidden while an older result that may be hidden is shown in full",
    "Later wins": "what the user corrected is not shown without the correction, and not after it",
    "Foreign state": "thinking that a provider has signed is sent as it came, or not at all",
    "Apart": "nothing of another conversation under the same policy is in a request",
    "Repeatable": "the same conversation twice gives the same log: no clock, no randomness, no memory of its own",
}
"""The laws that are checked, each with what it says."""
WINDOWS: Final = (3_000, 8_000, 40_000)
"""Tokens of the windows, in turn: hardly anything fits, half of a conversation fits, and everything does."""
MIN_TRACE_UNITS: Final = 200
"""Units from which on a result is worth to be hidden before a message of the user."""
MAX_TRIES: Final = 150
"""Shorter histories that are tried for a report."""

EARLIER: Final = "The deadline is 14 March 2027."
LATER: Final = "The deadline moved to 2 April 2027."
"""Two statements of the user, of which the second replaces the first."""
_OTHER_TAG: Final = "apart"
"""What the words of another conversation begin with."""
_PLAYED_AGAIN: Final[tuple[Law, ...]] = ("Repeatable", "Replay = live")
"""Laws that need a second context in which all requests are played."""
_TOPICS: Final = ("parser", "billing", "login", "search", "deploy")
_TOOLS: Final = ("read_file", "bash", "search")
_Dialect = Literal["openai_chat", "anthropic"]


class HistoryStep(NamedTuple):
    """A part of a made conversation: a message, or a call with its results.

    Examples:
        ```python
        from foveal.testing import HistoryStep

        assert str(HistoryStep("user", "parser", (12,))) == "the user says 12 words about parser"
        ```
    """

    kind: Literal["user", "calls", "answer"]
    """What it is: a message of the user, calls with their results, or an answer."""
    topic: str
    """The word that its text is about."""
    sizes: tuple[int, ...]
    """Words of the message, or of each result."""
    tool: str = ""
    """The tool that is called."""
    has_thinking: bool = False
    """Whether a thinking block precedes it."""
    is_pinned: bool = False
    """Whether it is pinned."""
    has_failed: bool = False
    """Whether the results are errors."""
    says: str = ""
    """A sentence that stands in front of the words of a user's message."""

    def __str__(self) -> str:
        """The step in words."""
        words = " and ".join(f"{size:,}" for size in self.sizes)
        marks = [mark for mark, holds in (("pinned", self.is_pinned), ("failed", self.has_failed)) if holds]
        about = f" ({', '.join(marks)})" if marks else ""
        if self.kind == "user":
            said = f"“{self.says}” and " if self.says else ""
            return f"the user says {said}{words} words about {self.topic}{about}"
        if self.kind == "answer":
            return f"the model answers {words} words about {self.topic}{about}"
        return f"the model calls {self.tool} about {self.topic}: results of {words} words{about}"


class PolicyCheck(NamedTuple):
    """What a check of a policy has played.

    Examples:
        ```python
        import foveal

        played = foveal.testing.check_policy(foveal.policy("plain", cut_at=2_000), histories=3)
        assert played.histories == 3
        ```
    """

    histories: int
    """Conversations that were played."""
    requests: int
    """Requests that were checked."""
    reductions: dict[str, int]
    """Reductions that were made, by kind of event. A check without any says little: your policy never acted."""


class LawBroken(PicklableError, AssertionError):
    """A policy breaks a law.

    Examples:
        ```python
        import foveal
        from foveal.policies import Budget, Decision, Moment, PolicyView
        from foveal.testing import LawBroken, check_policy

        class DropsAll(foveal.Policy, frozen=True):
            def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
                return foveal.events.Dropped(ranges=((0, 9_999),))

        try:
            check_policy(DropsAll(), histories=3)
        except LawBroken as error:
            assert error.law == "Allowed"
        ```
    """

    def __init__(
        self, policy: str, law: Law, problem: str, *, history: Sequence[HistoryStep], about: str
    ) -> None:
        lines = [f"    {number}. {step}" for number, step in enumerate(history, 1)]
        super().__init__(
            "\n".join(
                [
                    f"the policy {policy} breaks the law {law} ({LAWS[law]}): {problem}",
                    f"  {about}, with the shortest history found:",
                    *lines,
                ]
            )
        )
        self.policy: str = policy
        """The name of the policy."""
        self.law: Law = law
        """The law, a key of `foveal.testing.LAWS`."""
        self.problem: str = problem
        """What is wrong."""
        self.history: tuple[HistoryStep, ...] = tuple(history)
        """The steps of the shortest history that was found."""


class _Broken(NamedTuple):
    """The first law that a history breaks."""

    law: Law
    problem: str
    request: int
    """Its request, counted from 1."""
    cause: BaseException | None = None


class _Setting(NamedTuple):
    """How a history is played."""

    policy: Policy
    dialect: _Dialect
    window: int

    def context(self) -> Context:
        return Context(
            "gpt-4.1" if self.dialect == "openai_chat" else "claude-sonnet-4-5",
            policy=self.policy,
            window=self.window,
            reserve=200,
            dialect=self.dialect,
            tokenizer=Estimate(),
            clock=lambda: 0.0,
        )


def check_policy(policy: Policy | PresetName, *, histories: int = 30, seed: int = 0) -> PolicyCheck:
    """Check that a policy keeps the laws, on made conversations.

    Args:
        policy: The policy: an instance of your class, or a preset or its name.
        histories: Conversations to play, at least one. 30 take a few seconds.
        seed: Another seed makes other conversations.

    Returns:
        What was played, and how often the policy acted.

    Raises:
        BadSetting: `policy` is no policy, or `histories` is less than 1.
        LawBroken: The policy breaks a law. The message names the law, what is wrong, and a short history.

    Examples:
        ```python
        import foveal

        played = foveal.testing.check_policy(foveal.policy("economy"), histories=3)
        assert played.requests > 3
        ```
    """
    policy, histories = make_policy(policy), check_whole_number("histories", histories, least=1)
    requests, reductions = 0, Counter[str]()
    for number in range(histories):
        random = Random(seed * 1_000_003 + number)
        setting = _Setting(
            policy, ("openai_chat", "anthropic")[number % 2], WINDOWS[number // 2 % len(WINDOWS)]
        )
        history = _made_history(random)
        played = _Play(setting, history)
        broken = played.find_broken()
        if broken is not None:
            raise _shortest(setting, history, broken) from broken.cause
        requests += played.requests
        reductions.update(kind(event.fact) for event in played.log if isinstance(event.fact, REDUCTIONS))
    return PolicyCheck(histories, requests, dict(reductions))


def _shortest(setting: _Setting, history: Sequence[HistoryStep], broken: _Broken) -> LawBroken:
    """Return the report for the shortest history found that breaks the same law."""
    tries = 0
    steps, found = list(history), broken
    is_shorter = True
    while is_shorter and tries < MAX_TRIES:
        is_shorter = False
        for shorter in _shorter(steps):
            tries += 1
            again = _Play(setting, shorter).find_broken(broken.law)
            if again is not None and again.law == found.law:
                steps, found, is_shorter = shorter, again, True
                break
            if tries >= MAX_TRIES:
                break
    about = f"in a window of {setting.window:,} tokens, at request {found.request} in the form of {setting.dialect}"
    return LawBroken(setting.policy.name, found.law, found.problem, history=steps, about=about)


def _shorter(steps: list[HistoryStep]) -> Iterator[list[HistoryStep]]:
    """Yield shorter histories: first without halves, then without single steps, then with half of the words."""
    size = len(steps) // 2
    while size >= 1:
        for begin in range(0, len(steps), size):
            left = steps[:begin] + steps[begin + size :]
            if left and left[0].kind == "user":
                yield left
        size //= 2
    for at, step in enumerate(steps):
        if max(step.sizes) > 8:
            half = step._replace(sizes=tuple(max(4, words // 2) for words in step.sizes))
            yield [*steps[:at], half, *steps[at + 1 :]]


# ── Made conversations ───────────────────────────────────────────────────────────────────────────────────


def _made_history(random: Random) -> list[HistoryStep]:
    steps: list[HistoryStep] = []
    for _ in range(random.randint(2, 5)):
        topic = random.choice(_TOPICS)
        steps.append(
            HistoryStep("user", topic, (random.choice((6, 12, 40)),), is_pinned=random.random() < 0.1)
        )
        steps += [_made_calls(random, topic) for _ in range(random.randint(0, 6))]
        steps.append(HistoryStep("answer", topic, (random.choice((10, 50, 200)),)))
    steps.append(HistoryStep("user", random.choice(_TOPICS), (random.choice((6, 30)),)))
    asked = [at for at, step in enumerate(steps) if step.kind == "user"]
    for at, says in zip(sorted(random.sample(asked, 2)), (EARLIER, LATER), strict=True):
        steps[at] = steps[at]._replace(says=says)
    return steps


def _made_calls(random: Random, topic: str) -> HistoryStep:
    sizes = tuple(random.choice((8, 60, 250, 900)) for _ in range(random.choice((1, 1, 1, 2, 3))))
    return HistoryStep(
        "calls",
        topic,
        sizes,
        tool=random.choice(_TOOLS),
        has_thinking=random.random() < 0.4,
        is_pinned=sum(sizes) <= 60 and random.random() < 0.2,  # large pins leave no room
        has_failed=random.random() < 0.15,
    )


def _words(topic: str, number: int, size: int) -> str:
    """Return a text about a topic, in lines of ten words, with names that no other message has."""
    words = [f"{topic}_{number}_{place}" if place % 5 == 0 else f"{topic}" for place in range(size)]
    return "\n".join(" ".join(words[begin : begin + 10]) for begin in range(0, size, 10))


SYSTEM_TEXT: Final = "You are a careful engineer. Follow the rules of the project."


class _AgentCall(NamedTuple):
    """A request of the agent."""

    taken: int
    """How many messages precede it."""
    is_pinned: bool
    """Whether the newest of them is to be pinned."""


class _Story(NamedTuple):
    """A history as messages of a dialect."""

    messages: list[Json]
    calls: list[_AgentCall]


def _story(history: Sequence[HistoryStep], dialect: _Dialect) -> _Story:
    messages: list[Json] = [{"role": "system", "content": SYSTEM_TEXT}] if dialect == "openai_chat" else []
    calls: list[_AgentCall] = []
    is_pinned = False
    for number, step in enumerate(history):
        if step.kind != "user":
            calls.append(_AgentCall(len(messages), is_pinned))
        messages += _step_messages(step, number, dialect)
        is_pinned = step.is_pinned
    calls.append(_AgentCall(len(messages), is_pinned))
    return _Story(messages, calls)


def _step_messages(step: HistoryStep, number: int, dialect: _Dialect) -> list[Json]:
    if step.kind == "user":
        said = f"{step.says} " if step.says else ""
        return [{"role": "user", "content": f"{said}{_words(step.topic, number, step.sizes[0])}"}]
    if step.kind == "answer":
        return [{"role": "assistant", "content": _words(step.topic, number, step.sizes[0])}]
    results = [
        ("error: command failed\n" if step.has_failed else "") + _words(step.topic, number * 10 + place, size)
        for place, size in enumerate(step.sizes)
    ]
    ids = [f"call_{number}_{place}" for place in range(len(results))]
    if dialect == "openai_chat":
        return _chat_calls(step, ids, results)
    return _anthropic_calls(step, number, ids, results)


def _chat_calls(step: HistoryStep, ids: list[str], results: list[str]) -> list[Json]:
    arguments = f'{{"about": "{step.topic}"}}'
    calls = [
        {"id": id, "type": "function", "function": {"name": step.tool, "arguments": arguments}} for id in ids
    ]
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        *(
            {"role": "tool", "tool_call_id": id, "content": text}
            for id, text in zip(ids, results, strict=True)
        ),
    ]


def _anthropic_calls(step: HistoryStep, number: int, ids: list[str], results: list[str]) -> list[Json]:
    thinking = {"type": "thinking", "thinking": f"I look at {step.topic}.", "signature": f"s{number}"}
    blocks: list[Json] = [thinking] if step.has_thinking else []
    blocks += [
        {"type": "tool_use", "id": id, "name": step.tool, "input": {"about": step.topic}} for id in ids
    ]
    answers = [
        {"type": "tool_result", "tool_use_id": id, "content": text}
        for id, text in zip(ids, results, strict=True)
    ]
    return [{"role": "assistant", "content": blocks}, {"role": "user", "content": answers}]


# ── Playing and checking ─────────────────────────────────────────────────────────────────────────────────


class _Play:
    """One history, played request by request."""

    def __init__(self, setting: _Setting, history: Sequence[HistoryStep]) -> None:
        self._setting = setting
        self._history = history
        self._story = _story(history, setting.dialect)
        self._thinking = list(_thinking_blocks(self._story.messages))
        self._context = setting.context()
        self._system = SYSTEM_TEXT if setting.dialect == "anthropic" else None
        self._before: list[Json] = []
        self._read_events = 0
        self._taken = 0
        """How many messages the request has that is checked."""
        self._pinned: dict[int, str] = {}
        """The level at which pinned messages were shown when they were pinned."""
        self.requests = 0
        self._plays_again = True

    @property
    def log(self) -> Sequence[Event]:
        """The log of what was played."""
        return self._context.log

    def find_broken(self, sought: Law | None = None) -> _Broken | None:
        """Play all requests; return the first law that is broken. If only one law is sought, those are not tried
        for which all requests are played again."""
        self._plays_again = sought in (None, *_PLAYED_AGAIN)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._play_another()
            for call in self._story.calls:
                self.requests += 1
                try:
                    self._play(call)
                except _Problem as found:
                    return _Broken(found.law, found.problem, self.requests)
                except BadReduction as problem:
                    return _Broken("Allowed", problem.problem, self.requests, problem)
                except ContextOverflow as problem:
                    return _Broken("Fits", str(problem), self.requests, problem)
                except Exception as problem:  # noqa: BLE001 (code of the policy's author)
                    raised = f"it raised {type(problem).__name__}: {problem}"
                    return _Broken("Answers", raised, self.requests, problem)
        return None

    def _play_another(self) -> None:
        """Play a conversation with other words under the same policy, which a policy could remember."""
        steps = [step._replace(topic=f"{_OTHER_TAG}_{step.topic}", says="") for step in self._history]
        story, context = _story(steps, self._setting.dialect), self._setting.context()
        with suppress(Exception):  # what is wrong with it shows in the conversation that is checked
            context.fit(story.messages, system=self._system)

    def _play(self, call: _AgentCall) -> None:
        messages = self._story.messages[: call.taken]
        context = self._context
        request, self._taken = self._fit(context, call), call.taken
        if call.is_pinned:
            newest = _newest(context)
            self._pinned[newest] = context.why(newest).level
        self._check_request(request)
        self._check_texts(request)
        new = context.log[self._read_events :]
        self._check_stable(request, new)
        if any(isinstance(event.fact, REDUCTIONS) for event in new):
            self._check_log()
        self._check_repeats(messages, request)
        self._before = request

    def _fit(self, context: Context, call: _AgentCall) -> list[Json]:
        messages = self._story.messages[: call.taken]
        request = context.fit(messages, system=self._system)
        if call.is_pinned:
            context.pin(event=_newest(context))
            request = context.fit(messages, system=self._system)
        return request

    def _check_request(self, request: list[Json]) -> None:
        size = report(self._context._engine, fitted=0, breaks=(), with_events=False)
        _require(
            size.used <= size.limit,
            "Fits",
            f"the request takes {size.used:,} tokens, and {size.limit:,} are available",
        )
        faults = request_faults(self._setting.dialect, request, system=self._system)
        _require(not faults, "Legal", "; ".join(faults[:3]))
        total = sum(size.totals[name] for name in CATEGORIES)
        _require(total == size.window, "Honest", f"the parts are {total:,} of {size.window:,} tokens")

    def _check_texts(self, request: list[Json]) -> None:
        """Check what the request says, whatever the log says of it."""
        changed = [block for block in _thinking_blocks(request) if block not in self._thinking]
        _require(
            not changed, "Foreign state", f"{len(changed):,} blocks of thinking differ from what was given"
        )
        text = json_text(request)
        _require(_OTHER_TAG not in text, "Apart", "the request has words of another conversation")
        shown = text.rfind(EARLIER)
        is_corrected = any(LATER in json_text(message) for message in self._story.messages[: self._taken])
        _require(
            not (is_corrected and shown >= 0 and text.rfind(LATER) < shown),
            "Later wins",
            f"“{EARLIER}” is shown, and “{LATER}” is not shown after it",
        )

    def _check_stable(self, request: list[Json], new: Sequence[Event]) -> None:
        if self._before and not any(may_move_prefix(event.fact) for event in new):
            length = len(self._before)
            _require(
                request[:length] == self._before,
                "Stable",
                f"the first {length:,} messages changed without a reduction",
            )

    def _check_log(self) -> None:
        """Check what the context says about each message of the log."""
        context = self._context
        users = [event for event in context.log if isinstance(event.fact, UserSaid)]
        levels = {event.seq: "full" for event in context.log if isinstance(event.fact, Instructed)}
        levels |= {users[-1].seq: "full"} if users else {}
        levels |= self._pinned
        kept = self._kept_users(users)
        reductions = {handle(event.seq) for event in context.log if isinstance(event.fact, REDUCTIONS)}
        statuses = {status.handle: status for status in context.report().events}
        for event in context.log:
            if type(event.fact) not in DIALOGUE_TYPES and not isinstance(event.fact, Instructed):
                continue
            name = handle(event.seq)
            status = statuses[name]
            _require(
                status.level == levels.get(event.seq, status.level),
                "Pinned",
                f"{name} is {status.level}: {_quoted(event)}",
            )
            _require(
                status.level == "full" or event.seq not in kept,
                "Kept",
                f"{name}, a message of the user, is {status.level}: {_quoted(event)}",
            )
            if status.level in ("masked", "summarised", "dropped"):
                _require(
                    status.by in reductions,
                    "Accounted for",
                    f"{name} is {status.level}, and no event says so",
                )
            if status.level != "full":
                text = context.original(event.seq)
                said = text_of(event.fact.content) if hasattr(event.fact, "content") else ""
                _require(said in text, "Lossless", f"the text of {name} cannot be read again")
        self._check_trace(
            [event for event in users if statuses[handle(event.seq)].level in ("summarised", "dropped")]
        )

    def _check_trace(self, hidden: Sequence[Event]) -> None:
        """Check that results go before these messages of the user, which are hidden."""
        view = self._context._engine.view
        large = (
            slot.result.seq
            for slot in maskable_results(view, self._setting.policy)
            if slot.result is not None
            and slot.result.level == "full"
            and slot.result.units(view.meter) >= MIN_TRACE_UNITS
        )
        first = min(large, default=-1) if hidden else -1
        later = next((event for event in hidden if 0 <= first < event.seq), None)
        if later is not None:
            problem = (
                f"{handle(later.seq)}, a message of the user, is hidden, and the older {handle(first)} is not"
            )
            raise _Problem("Trace", problem)

    def _kept_users(self, users: Sequence[Event]) -> set[int]:
        """Return the user messages that must stay: all, while they take no more than their share."""
        engine = self._context._engine
        room = user_room(engine.budget(), self._setting.policy)
        count = engine.view.meter.message
        units = sum(count(event.seq, event.fact) for event in users if isinstance(event.fact, UserSaid))
        return {event.seq for event in users} if room and units <= room else set()

    def _check_repeats(self, messages: list[Json], request: list[Json]) -> None:
        context, before = self._context, len(self._context.log)
        again = context.fit(messages, system=self._system)
        names = ", ".join(kind(event.fact) for event in context.log[before:])
        _require(not names, "Idempotent", f"the same history again recorded: {names}")
        _require(again == request, "Idempotent", "the same history again gives another request")
        self._read_events = len(context.log)
        if self._plays_again and self.requests == len(self._story.calls):
            self._check_loaded(messages, request)
            self._check_repeatable()

    def _check_loaded(self, messages: list[Json], request: list[Json]) -> None:
        setting = self._setting
        loaded = Context.load(
            self._context.save(), policy=setting.policy, tokenizer=Estimate(), clock=lambda: 0.0
        )
        _require(
            loaded.fit(messages, system=self._system) == request,
            "Replay = live",
            "a saved and loaded context makes another request",
        )

    def _check_repeatable(self) -> None:
        twin = self._setting.context()
        for call in self._story.calls:
            self._fit(twin, call)
            twin.fit(self._story.messages[: call.taken], system=self._system)
        for one, other in zip(self._context.log, twin.log, strict=False):
            _require(
                one.fact == other.fact,
                "Repeatable",
                f"{handle(one.seq)} is {kind(one.fact)} the first time, and {kind(other.fact)} the second time, "
                "or has other values",
            )
        counts = len(self._context.log), len(twin.log)
        _require(counts[0] == counts[1], "Repeatable", f"{counts[0]:,} events, then {counts[1]:,}")


class _Problem(Exception):
    """A law that is broken, and how."""

    def __init__(self, law: Law, problem: str) -> None:
        super().__init__(law, problem)
        self.law: Law = law
        self.problem = problem


def _require(holds: bool, law: Law, problem: str) -> None:  # noqa: FBT001
    if not holds:
        raise _Problem(law, problem)


def _newest(context: Context) -> int:
    """Return the newest message of a log."""
    return next(event.seq for event in reversed(context.log) if type(event.fact) in DIALOGUE_TYPES)


def _thinking_blocks(messages: Sequence[Json]) -> Iterator[Json]:
    """Yield the blocks of signed thinking."""
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            yield from (block for block in content if block.get("type") == "thinking")


def _quoted(event: Event) -> str:
    text = text_of(event.fact.content) if hasattr(event.fact, "content") else ""
    return repr(text if len(text) <= 60 else f"{text[:59]}…")
