"""Measures what survives in the requests of long conversations, for every preset and four windows.

Each recorded conversation that is longer than a window runs through a `Context` as its agent ran it, once with a
stand-in for the model that writes summaries and once with the ledger alone. The rows count what was lost: user
messages, rules, edited files, unresolved errors, events that are neither shown nor named, and summaries that the
model was paid for. `survival_checks` and `survival_readers` define these without Foveal's own code.

1. User messages within their share, and events accounted for, are checked in up to 60 requests of a conversation;
   everything else in the last one.
2. Conversations whose id has an even CRC-32 (half A) may be used to choose constants. A row shows half B; its note
   has each window of half B, and half A.
3. A bounded number of conversations runs in each window, in turn from each source. FOVEAL_SURVIVAL_ALL=1 runs all.

    python -m bench survival                                 print the rows
    python -m bench.bench_survival --why economy 16000       print what was lost, conversation by conversation
    python -m bench.bench_survival --why economy 16000 pi    the same for ids that contain `pi`
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple
from zlib import crc32

from bench.bench_ledger import DATA, rows_of
from bench.measure import Row, Unit, progress
from bench.statement_cases import StatementCase, fact_cases, faults, pair_cases
from bench.survival_cases import (
    RULE,
    SHAPES,
    Json,
    one_long_request,
    parallel_step,
    short_turns,
    user,
    with_rule,
)
from bench.survival_checks import (
    Coverage,
    kept_faults,
    pieces,
    room_of,
    share_of,
    unaccounted,
    user_events,
)
from bench.survival_readers import edited_files, is_named, rules, unresolved_errors
from bench.survival_writer import MarkedWriter, PaidSummaries, account_for_summaries, shown_summaries
from foveal import PRESETS, Context, ContextOverflow
from foveal.core.log import Compacted, Dropped
from foveal.core.tokens.counter import counter

WINDOWS: Final = (8_000, 16_000, 32_000, 128_000)
STATEMENT_WINDOWS: Final = (8_000, 12_000, 32_000, 128_000)
STATEMENT_STEP: Final = 13
"""Of the conversations with statements one in this many runs; FOVEAL_SURVIVAL_ALL=1 runs all."""
TARGET_PRESETS: Final = ("economy", "handoff", "sliding-summary", "recent-summary")
SUMMARISING: Final = (*TARGET_PRESETS, "confirm")
SOURCES: Final = (
    "pi", "openhands", "miniswe", "roo", "claude_code", "longmemeval", "moatless", "sweagent_py", "tau2", "codex",
    "cline", "livemcp", "aider", "swesmith", "taubench",
)  # fmt: skip
MAX_CONVERSATIONS: Final = 14
"""Conversations in each window, unless FOVEAL_SURVIVAL_ALL is set."""
MAX_CHECKED_REQUESTS: Final = 60
CHARS_PER_TOKEN: Final = 4
WRITERS: Final = {True: "model", False: "ledger"}
O200K: Final = counter("o200k_base")
count: Final[Callable[[str], int]] = cache(O200K.count)


# ── The conversations ──────────────────────────────────────────────────────────────────────────────────


class Conversation(NamedTuple):
    id: str
    source: str
    tokens: int
    """Roughly, from its characters."""
    messages: list[Json]

    @property
    def is_half_a(self) -> bool:
        return crc32(self.id.encode()) % 2 == 0


@cache
def conversations() -> dict[str, Conversation]:
    found: dict[str, Conversation] = {}
    for source in SOURCES if DATA.exists() else ():
        for row in rows_of([source]):
            chars = sum(len(str(message)) for message in row["messages"])
            found[row["id"]] = Conversation(row["id"], source, chars // CHARS_PER_TOKEN, row["messages"])
    return found


def chosen(window: int) -> list[Conversation]:
    """Return conversations longer than a window, in turn from each source and from each half."""
    long = [one for one in conversations().values() if one.tokens > window]
    long.sort(key=lambda one: crc32(one.id.encode()[::-1]))
    if os.environ.get("FOVEAL_SURVIVAL_ALL"):
        return long
    sources = [
        _alternate([one for one in long if one.source == source], a_first=bool(place % 2))
        for place, source in enumerate(SOURCES)
    ]
    in_turn = (one for group in zip_longest(*sources) for one in group if one is not None)
    return [one for _, one in zip(range(MAX_CONVERSATIONS), in_turn, strict=False)]


def _alternate(found: Sequence[Conversation], *, a_first: bool) -> list[Conversation]:
    """Return the conversations of a source, in turn from each half."""
    halves = [[one for one in found if one.is_half_a is half] for half in (a_first, not a_first)]
    return [one for one in chain.from_iterable(zip_longest(*halves)) if one is not None]


# ── One run ──────────────────────────────────────────────────────────────────────────────────────────────


class Run(NamedTuple):
    """One conversation with one preset in one window."""

    id: str
    preset: str
    window: int
    asking: bool
    """Whether the stand-in for the model writes summaries; otherwise the ledger does."""


class Loss(NamedTuple):
    """How many are lost of how many, and which."""

    lost: int = 0
    of: int = 0
    which: tuple[str, ...] = ()

    def __add__(self, other: Loss) -> Loss:  # type: ignore[override]
        return Loss(self.lost + other.lost, self.of + other.of, (*self.which, *other.which)[:40])

    @classmethod
    def count(cls, lost: Sequence[str], of: int) -> Loss:
        return cls(len(lost), of, tuple(lost[:40]))

    @property
    def share(self) -> float:
        return self.lost / self.of if self.of else 0.0


class Outcome(NamedTuple):
    """What one run lost."""

    run: Run
    within_share: Loss
    """User messages, in requests in which all of them must be verbatim."""
    users: Loss
    """User messages not verbatim in the last request."""
    beyond_share: Loss
    """User messages neither shown, clipped nor named by handle, in the other requests."""
    rules: Loss
    files: Loss
    errors: Loss
    events: Loss
    paid: PaidSummaries
    over: Loss
    """Requests larger than their limit."""
    refused: Loss
    """Requests that did not fit at all (`ContextOverflow`)."""

    @property
    def unread(self) -> Loss:
        return Loss(self.paid.unread, self.paid.written)

    @property
    def out_of_view(self) -> Loss:
        return Loss(self.paid.written - self.paid.in_view, self.paid.written)


class Measurement:
    """Measures one run, request by request."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.writer = MarkedWriter()
        self.ctx = Context(
            "gpt-4.1",
            window=run.window,
            policy=run.preset,
            tokenizer="o200k_base",
            clock=lambda: 1_000.0,
            summarise=self.writer if run.asking else None,
        )
        self.seen: list[frozenset[int]] = []
        self.read: set[int] = set()
        """Summaries that a request has shown."""
        self.within_share = self.beyond_share = self.events = self.over = self.refused = Loss()
        self.last: tuple[Coverage, list[Json]] | None = None

    def fit(self, messages: list[Json], *, check: bool) -> None:
        name = f"at {len(messages)}"
        try:
            request = self.ctx.fit(messages)
        except ContextOverflow:
            self.refused += Loss(1, 1, (name,))
            return
        self.refused += Loss(0, 1)
        self._note_summaries(request)
        if check:
            self._check(request, name)

    def _note_summaries(self, request: list[Json]) -> None:
        """Note which summaries a request is the first to show."""
        new = [
            event
            for event in self.ctx.log
            if event.seq not in self.read and isinstance(event.fact, Compacted)
        ]
        shown = shown_summaries(new, "\n".join(_texts(request))) if new else frozenset()
        self.read |= shown
        self.seen.append(shown)

    def _check(self, request: list[Json], name: str) -> None:
        log, report = self.ctx.log, self.ctx.report()
        self.over += Loss.count([name] if report.used > report.limit else [], 1)
        coverage = Coverage(log, request)
        self.last = coverage, request
        missing = unaccounted(coverage, lambda: report)
        whole = len(coverage.shown) + len(coverage.missing)
        self.events += Loss.count([f"{event.handle} {name}" for event in missing], whole)
        users = user_events(log)
        share = share_of(log, room=room_of(report), count=count)
        faults = Loss.count([f"{fault} {name}" for fault in kept_faults(coverage, users, share)], len(users))
        if share == "within":
            self.within_share += faults
        else:
            self.beyond_share += faults

    def outcome(self) -> Outcome:
        log = self.ctx.log
        coverage, request = self.last or (Coverage(log, []), [])
        self.seen.append(shown_summaries(log, coverage.own_text))
        text = "\n".join(_texts(request))
        plain = " ".join(text.split())
        users, files = user_events(log), edited_files(log)
        stated, errors = rules(log), unresolved_errors(log)
        not_verbatim = [
            event.handle for event in users if pieces(event.fact) and coverage.user_state(event) != "verbatim"
        ]
        unnamed = [
            f"{one.event.handle} {one.line[:80]}" for one in errors if not one.is_named(plain, coverage)
        ]
        return Outcome(
            run=self.run,
            within_share=self.within_share,
            users=Loss.count(not_verbatim, len(users)),
            beyond_share=self.beyond_share,
            rules=Loss.count([rule for rule in stated if rule not in plain], len(stated)),
            files=Loss.count([path for path in files if not is_named(path, text, files)], len(files)),
            errors=Loss.count(unnamed, len(errors)),
            events=self.events,
            paid=account_for_summaries(self.writer, log, self.seen),
            over=self.over,
            refused=self.refused,
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def measure(run: Run) -> Outcome:
    messages = conversations()[run.id].messages
    points = [at for at, message in enumerate(messages) if at and message["role"] == "assistant"]
    points = [*points, len(messages)]
    measurement = Measurement(run)
    every = -(-len(points) // MAX_CHECKED_REQUESTS)
    try:
        for number, taken in enumerate(points):
            measurement.fit(messages[:taken], check=number % every == 0 or taken == len(messages))
        return measurement.outcome()
    except Exception as problem:
        problem.add_note(str(run))
        raise


def runs(presets: Sequence[str] = tuple(PRESETS), windows: Sequence[int] = WINDOWS) -> list[Run]:
    return [
        Run(one.id, preset, window, asking)
        for window in windows
        for one in chosen(window)
        for preset in presets
        for asking in ((True, False) if preset in SUMMARISING else (False,))
    ]


def measure_all(todo: Sequence[Run]) -> list[Outcome]:
    """Measure on all cores, and show the progress."""
    conversations()  # the workers inherit what is loaded here
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for outcome in pool.map(measure, todo, chunksize=4):
            outcomes.append(outcome)
            progress(f"survival: {len(outcomes)} of {len(todo)} runs …")
    return outcomes


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────────────


class Metric(NamedTuple):
    what: str
    loss: Callable[[Outcome], Loss]
    limit: float | None
    """The most that may be lost, for the presets with targets."""
    unit: Unit = "%"


METRICS: Final = (
    Metric("user messages lost within their share", lambda one: one.within_share, 0),
    Metric("user messages not verbatim at the end", lambda one: one.users, None),
    Metric("user messages beyond it not named", lambda one: one.beyond_share, 0),
    Metric("rules lost", lambda one: one.rules, 0),
    Metric("edited files not named", lambda one: one.files, 0.02),
    Metric("unresolved errors not named", lambda one: one.errors, 0.02),
    Metric("events not accounted for", lambda one: one.events, 0),
    Metric("summaries paid for and gone unread", lambda one: one.unread, 0, "summaries"),
    Metric("summaries paid for and out of view", lambda one: one.out_of_view, None, "summaries"),
    Metric("requests over the limit", lambda one: one.over, 0, "requests"),
    Metric("requests refused as too large", lambda one: one.refused, None, "requests"),
)


def rows() -> Iterator[Row]:
    yield from scripted_rows()
    if not DATA.exists():
        yield Row("what survives in recorded conversations", None, note="the conversations are not available")
        return
    outcomes = measure_all(runs())
    for preset in PRESETS:
        for asking in (True, False):
            of_preset = [one for one in outcomes if (one.run.preset, one.run.asking) == (preset, asking)]
            for metric in METRICS if of_preset else ():
                if asking or metric.unit != "summaries":
                    yield _row(preset, asking, metric, of_preset)


def _row(preset: str, asking: bool, metric: Metric, outcomes: Sequence[Outcome]) -> Row:
    half_a = [one for one in outcomes if conversations()[one.run.id].is_half_a]
    half_b = [one for one in outcomes if not conversations()[one.run.id].is_half_a]
    total = _sum(metric, half_b)
    by_window = [
        f"{window // 1_000}k {_figure(metric, [one for one in half_b if one.run.window == window])}"
        for window in WINDOWS
    ]
    note = f"{', '.join(by_window)}; half A {_figure(metric, half_a)}"
    value = total.share if metric.unit == "%" else total.lost
    limit = metric.limit if preset in TARGET_PRESETS else None
    return Row(f"{preset}, {WRITERS[asking]}: {metric.what}", value, metric.unit, limit, note)


def _sum(metric: Metric, outcomes: Sequence[Outcome]) -> Loss:
    return sum(map(metric.loss, outcomes), Loss())


def _figure(metric: Metric, outcomes: Sequence[Outcome]) -> str:
    total = _sum(metric, outcomes)
    return f"{total.lost:,}/{total.of:,}"


# ── Scripted cases ───────────────────────────────────────────────────────────────────────────────────────


def scripted_rows() -> Iterator[Row]:
    for preset in PRESETS:
        progress(f"survival: scripted cases, {preset} …")
        limit = 0 if preset in TARGET_PRESETS else None
        yield _early_rule_row(preset, limit)
        if preset in SUMMARISING:
            yield _long_request_row(preset, limit)
        yield _parallel_row(preset, limit)
    for preset in SUMMARISING:
        progress(f"survival: what the user said, {preset} …")
        yield _statements_row(preset)


class StatementRun(NamedTuple):
    """One scripted conversation with a statement, or with one and its correction."""

    case: StatementCase
    preset: str
    window: int

    def is_wrong(self) -> bool:
        """Return whether a request misses the later statement, or shows it before the earlier one."""
        ctx = _context(self.preset, self.window)
        last = max(place for place, _ in self.case.statements)
        for number, turn in enumerate(self.case.turns):
            for message in turn:
                if message["role"] == "assistant":
                    try:
                        request = "\n".join(_texts(ctx.fit()))
                    except ContextOverflow:
                        return True
                    if number > last and any(faults(request, self.case.statements)):
                        return True
                ctx.append(message)
        return False


def _statements_row(preset: str) -> Row:
    """Count the conversations in which what the user said is missing or in the wrong order."""
    cases = [*pair_cases(), *fact_cases()][:: 1 if os.environ.get("FOVEAL_SURVIVAL_ALL") else STATEMENT_STEP]
    todo = [StatementRun(case, preset, window) for window in STATEMENT_WINDOWS for case in cases]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        wrong = [
            run
            for run, bad in zip(todo, pool.map(StatementRun.is_wrong, todo, chunksize=4), strict=True)
            if bad
        ]
    counts = Counter(run.window for run in wrong)
    by_window = ", ".join(f"{window // 1_000}k {counts[window]}/{len(cases)}" for window in STATEMENT_WINDOWS)
    at_8k = [run.case.name for run in wrong if run.window == STATEMENT_WINDOWS[0]]
    note = f"{by_window}; 8k does not count{': ' if at_8k else ''}{', '.join(at_8k[:6])}"
    beyond = [run for run in wrong if run.window > STATEMENT_WINDOWS[0]]
    return Row(f"{preset}: statements missing or before what they correct", len(beyond), "runs", 0, note)


def _context(preset: str, window: int, writer: MarkedWriter | None = None) -> Context:
    return Context("gpt-4.1", window=window, policy=preset, tokenizer="o200k_base", summarise=writer)


def _early_rule_row(preset: str, limit: float | None) -> Row:
    """Count the runs of 60 turns in which the second message is missing from a request."""
    lost: list[str] = []
    of = 0
    for shape, make in SHAPES.items():
        for window in WINDOWS[:3]:
            of += 1
            ctx = _context(preset, window, MarkedWriter())
            if not all(
                RULE in "\n".join(_texts(request)) for request in _requests(ctx, with_rule(make(60)), 2)
            ):
                lost.append(f"{shape} {window // 1_000}k")
    note = f"of {of} runs of 60 turns{': ' if lost else ''}{', '.join(lost)}"
    return Row(f"{preset}: runs that lose a rule stated early", len(lost), "runs", limit, note)


def _requests(ctx: Context, turns: Sequence[Sequence[Json]], after: int) -> Iterator[list[Json]]:
    """Yield the request after each turn but the first; one that does not fit is empty."""
    for number, turn in enumerate(turns, 1):
        ctx.append(*turn)
        if number >= after:
            try:
                yield ctx.fit()
            except ContextOverflow:
                yield []


def _long_request_row(preset: str, limit: float | None) -> Row:
    """Count the summaries of a long loop that are not in view at its end."""
    gone = 0
    notes: list[str] = []
    for window, tokens in ((8_000, 4_500), (16_000, 6_000)):
        writer = MarkedWriter()
        ctx = _context(preset, window, writer)
        messages = one_long_request(tokens, 2_000)
        steps = [messages[at : at + 2] for at in range(1, len(messages), 2)]
        ctx.append(messages[0])
        seen = [
            shown_summaries(ctx.log, Coverage(ctx.log, request).own_text)
            for request in _requests(ctx, steps, 1)
        ]
        paid = account_for_summaries(writer, ctx.log, seen)
        gone += paid.written - paid.in_view
        notes.append(f"{window // 1_000}k: {paid.in_view} of {paid.written} in view, {paid.unread} unread")
    return Row(
        f"{preset}: summaries of one long loop that are gone", gone, "summaries", limit, "; ".join(notes)
    )


def _parallel_row(preset: str, limit: float | None) -> Row:
    """Count the events that three large results of one step push out of a window of 16k."""
    ctx = _context(preset, 16_000, MarkedWriter())
    ctx.append(*short_turns(11), user("Now read all three files."))
    try:
        ctx.fit()
        before = len(ctx.log)
        ctx.append(*parallel_step(3, 8_000))
        request = ctx.fit()
    except ContextOverflow:
        return Row(f"{preset}: events dropped for three large results", None, note="does not fit")
    drops = [event.fact for event in ctx.log[before:] if isinstance(event.fact, Dropped)]
    dropped = sum(last - first + 1 for drop in drops for first, last in drop.ranges)
    report = ctx.report()
    unnamed = unaccounted(Coverage(ctx.log, request), lambda: report)
    note = f"{len(unnamed)} not named; {report.limit - report.used:,} tokens stay free"
    return Row(f"{preset}: events dropped for three large results", dropped, "events", limit, note)


# ── Why ──────────────────────────────────────────────────────────────────────────────────────────────────


def explain(preset: str, window: int, part_of_id: str = "") -> None:
    """Print what each run lost, the worst first."""
    todo = [run for run in runs([preset], [window]) if part_of_id in run.id]
    for outcome in sorted(measure_all(todo), key=_badness, reverse=True):
        half = "A" if conversations()[outcome.run.id].is_half_a else "B"
        print(f"\n{outcome.run.id}, half {half}, {WRITERS[outcome.run.asking]}, {outcome.paid}")
        for metric in METRICS:
            loss = metric.loss(outcome)
            if loss.lost:
                print(f"  {metric.what}: {loss.lost:,} of {loss.of:,}")
                for one in loss.which[:12]:
                    print(f"      {one}")


def _badness(outcome: Outcome) -> float:
    return sum(metric.loss(outcome).share for metric in METRICS if metric.limit is not None)


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] != "--why":
        sys.exit(__doc__)
    explain(sys.argv[2], int(sys.argv[3]), *sys.argv[4:5])
