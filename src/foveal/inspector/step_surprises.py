"""Surprise of a session's steps: which recorded steps the requests said least about.

1. A request that shows everything surprises by nothing, so only steps after the first reduction are measured: at
   most `MAX_SURPRISE_STEPS`, spread evenly, and fewer of a log so long that the coder would read more than
   `MAX_SURPRISE_CHARS`. The result says how many steps there were.
2. `replay/surprise.py` describes the measure. It compares words: a summary that says the same in other words counts
   as less than it is worth.
3. Nothing is recorded, and no model is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec

from foveal.core.log.events import REDUCTIONS, Event, ModelSaid, handle, text_of, unraw
from foveal.core.tokens.counter import Estimate
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import advance, effective_events
from foveal.core.view.view import View
from foveal.core.wire import wire_for
from foveal.core.wire.request_text import RequestReader, RequestText, fact_text
from foveal.core.wire.safe_print import one_line
from foveal.replay.recall_score import contains_word
from foveal.replay.recorded_calls import MessageFact, RecordedConversation, recorded_conversation
from foveal.replay.surprise import GoneQuote, SurpriseMeter
from foveal.transcripts import Transcript

MAX_SURPRISE_STEPS: Final = 32
"""Steps that are measured at most."""
MAX_SURPRISE_CHARS: Final = 12_000_000
"""Characters of the histories that the coder reads at most: about five seconds of one processor."""
MIN_SURPRISE_STEPS: Final = 4
"""Steps that are measured also of a log that is longer."""
MAX_WORST_STEPS: Final = 5
"""Steps that the result names."""
MAX_GONE_SHOWN: Final = 3
"""Quotes that the result names for each step."""
MAX_GONE_CHARS: Final = 200
MIN_SHOWN_BITS: Final = 0.02
"""Bits per byte; a step with less is not named, because the coder itself is not more exact."""

ReportSteps = Callable[[int, int], None]
"""Called with the steps that are measured, and of all to measure."""


class SurprisingStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step that its request said less about than the whole history does."""

    answer: int
    """The event of the step."""
    bits: float
    """Bits per byte more than after the whole history."""
    gone: tuple[tuple[str, str], ...] = ()
    """What the step quotes and its request did not have, the longest first, each with the newest event that has it:
    its handle."""


class StepSurprises(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The surprise of the steps of a session."""

    at: int
    """The newest event of the log that was measured."""
    steps: int = 0
    """Steps after the first reduction that are long enough to be measured."""
    measured: int = 0
    mean: float = 0.0
    """Bits per byte, over the measured steps."""
    worst: tuple[SurprisingStep, ...] = ()
    """The most surprising first."""


def step_surprises(
    log: Sequence[Event],
    *,
    progress: ReportSteps = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> StepSurprises:
    """Return the surprise of the steps of a log; if it is told to stop, that of the steps measured until then."""
    at = log[-1].seq if log else -1
    effective = effective_events(log)
    first_cut = next((event.seq for event in effective if isinstance(event.fact, REDUCTIONS)), None)
    if first_cut is None:
        return StepSurprises(at=at)
    answers = [event.seq for event in effective if isinstance(event.fact, ModelSaid)]
    conversation = logged_conversation(log)
    reader = RequestReader(conversation.dialect, Estimate())
    first = sum(seq < first_cut for seq in answers)
    meter = SurpriseMeter(conversation, reader, samples=_sample_count(conversation, first), first=first)
    found: list[SurprisingStep] = []
    for number, request in recorded_requests(log, conversation, reader, numbers=meter.numbers):
        if should_stop():
            break
        measured = meter.measure(number, request, _with_newest_holder(log, until=answers[number]))
        if measured is not None:
            gone = tuple(
                (one_line(quote.text, width=MAX_GONE_CHARS), quote.handle)
                for quote in measured.gone[:MAX_GONE_SHOWN]
            )
            found.append(SurprisingStep(answer=answers[number], bits=round(measured.bits, 4), gone=gone))
        progress(len(found), len(meter.numbers))
    worst = sorted((step for step in found if step.bits >= MIN_SHOWN_BITS), key=lambda step: -step.bits)
    return StepSurprises(
        at=at,
        steps=meter.candidates,
        measured=len(found),
        mean=round(sum(step.bits for step in found) / len(found), 4) if found else 0.0,
        worst=tuple(worst[:MAX_WORST_STEPS]),
    )


def _sample_count(conversation: RecordedConversation, first: int) -> int:
    """Return how many calls are measured from call `first` on."""
    sizes = list(accumulate((len(fact_text(fact)) for fact in conversation.facts), initial=0))
    histories = [sizes[call.facts] for call in conversation.calls[first:]]
    if not histories:
        return 0
    affordable = MAX_SURPRISE_CHARS * len(histories) // max(1, sum(histories))
    return max(MIN_SURPRISE_STEPS, min(MAX_SURPRISE_STEPS, affordable))


def _with_newest_holder(log: Sequence[Event], *, until: int) -> Callable[[GoneQuote], GoneQuote]:
    """Return a function that adds the newest event before `until` with the text of a quote."""

    def find(quote: GoneQuote) -> GoneQuote:
        said = (event for event in reversed(log) if event.seq < until and isinstance(event.fact, MessageFact))
        held = next((event.seq for event in said if contains_word(fact_text(event.fact), quote.text)), None)
        return quote if held is None else msgspec.structs.replace(quote, handle=handle(held))

    return find


# ── Recorded requests ──────────────────────────────────────────────────────────────────────────────────


def logged_conversation(log: Sequence[Event], *, id: str = "", title: str = "") -> RecordedConversation:
    """Return a log as the calls of its agent."""
    facts = tuple((event.fact, event.at) for event in log)
    first = log[0].seq if log else 0
    return recorded_conversation(
        Transcript(id=id, source="foveal", facts=facts, title=title, path="", first=first)
    )


def recorded_requests(
    log: Sequence[Event],
    conversation: RecordedConversation,
    reader: RequestReader,
    *,
    numbers: Collection[int] | None = None,
) -> Iterator[tuple[int, RequestText]]:
    """Yield the request before each answer that was not rewound, as the view showed it then, with the number of its
    call, counted from 0. Only those of `numbers`, if they are given."""
    wire = wire_for(conversation.dialect)
    answers = [event.seq for event in effective_events(log) if isinstance(event.fact, ModelSaid)]
    wanted = {seq: number for number, seq in enumerate(answers) if numbers is None or number in numbers}
    view, seen = View(MessageTokens(Estimate())), list[Event]()
    for event in log:
        if event.seq in wanted:
            bound = wire.for_thinking(is_bound=view.thinking.is_bound)
            messages = bound.join([step.render(bound) for step in view.steps])
            yield wanted[event.seq], reader.request(messages, system=_aside_text(view), tools=_tools(view))
        seen.append(event)
        view = advance(view, event, seen)


def _aside_text(view: View) -> str | None:
    return "\n\n".join(text_of(shown.fact.content) for shown in view.asides.values()) or None


def _tools(view: View) -> list[Any]:
    tools = [] if view.tools is None else unraw(view.tools[1].tools)
    return tools if isinstance(tools, list) else []
