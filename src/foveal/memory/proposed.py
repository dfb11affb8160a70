"""Proposes entries from what the user stated in a conversation.

1. Code finds sentences that hold later (`propose_from`). A model can be asked once for more of them
   (`model_proposals`): each must quote words that stand in a message of the user, and an answer that cannot be used
   counts as none.
2. Words of others are no statements of the user: quotations, what "Bob wrote:" announces, code, logs, and
   sentences that report what other people said.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Iterable, Sequence
from concurrent.futures import Future
from importlib.resources import files
from itertools import islice
from typing import Any, Final, NamedTuple, cast, get_args

import msgspec
from msgspec.structs import replace

from foveal.core.compaction.ledger.pasted_text import is_harness_text, is_pasted_line
from foveal.core.compaction.standing.statements import Sentence, find_replaced, find_sentences
from foveal.core.compaction.summariser import DialogueRun, Summariser, SummaryRequest, run_dialogue
from foveal.core.compaction.summariser_protocol import Dialogue, Draft, DraftRequest
from foveal.core.engine.user_statements import said_statements
from foveal.core.log.events import Event, UserSaid, handle
from foveal.errors import NotRemembered
from foveal.memory.facts import EntryKind
from foveal.memory.quotes import (
    entry_text,
    find_quote,
    foreign_spans,
    is_long_enough,
    is_reported,
    kind_of,
    plain_lines,
    typed_words,
)
from foveal.memory.spoken import is_quoted, spoken_requests

MAX_PROPOSALS: Final = 10
"""Proposals from one conversation: the newest statements."""

MAX_MODEL_CHARS: Final = 24_000
"""Characters of the user's messages that a model is shown: the newest."""
MAX_MODEL_TOKENS: Final = 1_500
"""Tokens of its answer."""
MAX_MODEL_SECONDS: Final = 60.0
"""Seconds for its answer."""
_MAX_SHOWN_CHARS: Final = 4_000
"""Characters of one message that a model is shown."""
_MAX_LINES_READ: Final = 400
_MAX_LINE_CHARS: Final = 300
_LIST_MARK: Final = re.compile(r"^\s*[-*+•]\s+")
_MEMORY_WORDS: Final = re.compile(
    r"\W*(?:please\s+)?(?:do\s+you\s+)?(?:remember|recall|forget)\b", re.IGNORECASE
)
_OF_NO_USE: Final = re.compile(
    r"""(?:please\s+)?(?:don't|do\s+not|never)\s+remember\b
      | <[^>\n]{1,40}>
      | [^\n]{1,40}?:\s*(?:please\s+)?(?:remember|don't\s+forget|forget|from\s+now\s+on)\b
      | (?:please\s+)?(?:tell|ask|remind)\s+\w+\s+(?:to|that)\b
      | (?:imagine|pretend|suppose|assume|let's\s+say|act\s+as|stell\s+dir\s+vor|nimm\s+an|supposons|imagina|suponha
        |представь|假设|想象)
      | i(?:'d|\s+would)?\s+(?:want|need|like)\s+(?:a|an|some)\b
      | ich\s+(?:will|möchte|brauche)\s+eine?n?\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Sentences with words of a rule or a fact that state nothing of the user's: a label, a game, a task."""


class Proposal(NamedTuple):
    """A statement of the user that may be worth keeping.

    Examples:
        ```python
        from foveal.memory import Proposal

        proposal = Proposal(text="Never push to main.", kind="rule", event="e12")
        ```
    """

    text: str
    """What the user said, on one line."""
    kind: EntryKind
    """What it is."""
    event: str
    """The handle of the user's message."""


def propose_from(events: Iterable[Event]) -> tuple[Proposal, ...]:
    """Return what the user stated that holds at the end of a conversation.

    These are rules, corrections and facts, at most ten, oldest first. `Memory.propose` records them.

    Args:
        events: The effective events of its log.

    Examples:
        ```python
        import foveal

        said = [foveal.Event(1, foveal.UserSaid(content="Never push to main. Why is CI red?"))]
        (proposal,) = foveal.memory.propose_from(said)
        assert proposal.text == "Never push to main."
        ```
    """
    said = said_statements(map(_without_attached_files, events), lambda _, text: _own_sentences(text))
    replaced = find_replaced(said)
    holding = [one for one in said if (one.seq, one.start) not in replaced]
    found: dict[str, Proposal] = {}
    for one in holding:
        try:
            text = entry_text(_LIST_MARK.sub("", one.text))
        except NotRemembered:
            continue
        kind = kind_of(text, is_rule=one.kind == "rule")
        found[text.casefold()] = Proposal(text, kind, handle(one.seq))
    return tuple(found.values())[-MAX_PROPOSALS:]


# ── With a model ─────────────────────────────────────────────────────────────────────────────────────────


class _QuotedStatement(msgspec.Struct, frozen=True):
    """A line of the model's answer."""

    quote: str
    event: str = ""
    kind: str = ""


async def model_proposals(writer: Summariser, events: Sequence[Event]) -> tuple[Proposal, ...]:
    """Return the statements that a model finds in what the user said; none if it fails.

    The model is asked once, with the newest messages of the user."""
    said = [event for event in events if isinstance(event.fact, UserSaid)]
    if not (text := _shown_messages(said)):
        return ()
    system = files("foveal.memory").joinpath("proposal_prompt.md").read_text("utf-8")
    request = DraftRequest(
        writer=0, form="cold", text=text, system=system, max_tokens=MAX_MODEL_TOKENS, stage="proposals"
    )
    found: dict[str, Proposal] = {}
    for line in (await _ask(writer, request)).splitlines()[:MAX_PROPOSALS]:
        if (one := _checked_answer(line, said)) is not None:
            found[one.text.casefold()] = one
    return tuple(found.values())


def joined_proposals(found: Iterable[Proposal], more: Iterable[Proposal]) -> tuple[Proposal, ...]:
    """Return the proposals of both, the newest ones, oldest first."""
    joined = {one.text.casefold(): one for one in (*more, *found)}
    return tuple(sorted(joined.values(), key=lambda one: int(one.event[1:])))[-MAX_PROPOSALS:]


def _shown_messages(said: Sequence[Event]) -> str:
    """Return the newest messages of the user, each behind its handle, as far as they fit."""
    shown: list[str] = []
    room = MAX_MODEL_CHARS
    for event in reversed(said):
        assert isinstance(event.fact, UserSaid)
        text = plain_lines(typed_words(event.fact.content)).strip()
        line = f"[{event.handle}] {text[:_MAX_SHOWN_CHARS]}"
        room -= len(line)
        if room < 0:
            break
        if text and not is_harness_text(text):
            shown.append(line)
    return "\n\n".join(reversed(shown))


def _checked_answer(line: str, said: Sequence[Event]) -> Proposal | None:
    """Return what a line of the answer proposes; None if the user did not say it."""
    try:
        given = msgspec.json.decode(line.strip().strip("`,"), type=_QuotedStatement)
        named = [event for event in said if event.handle == given.event] or said
        quote = find_quote(named, given.quote) if is_long_enough(given.quote) else None
        if quote is None or not _states_something(quote.text):
            return None
        text = entry_text(quote.text)
    except (msgspec.DecodeError, NotRemembered):
        return None
    kind = given.kind if given.kind in get_args(EntryKind) else kind_of(text)
    return Proposal(text, cast(EntryKind, kind), quote.event.handle)


async def _ask(writer: Summariser, request: DraftRequest) -> str:
    """Return the answer of a model to one request; "" if it fails."""
    loop, waiting = asyncio.get_running_loop(), list[Future[Any]]()

    async def result(awaitable: Awaitable[Any]) -> Any:
        async with asyncio.timeout(MAX_MODEL_SECONDS):
            return await awaitable

    def wait(awaitable: Awaitable[Any]) -> Any:
        waiting.append(asyncio.run_coroutine_threadsafe(result(awaitable), loop))
        return waiting[-1].result()

    def dialogue() -> Dialogue[Any]:
        return (yield request)

    run = DialogueRun(
        dialogue(),
        [writer],
        build_request=lambda asked: SummaryRequest.cold(asked, writer.dialect or "openai_chat"),
        clock=time.monotonic,
        wait=wait,
    )
    try:
        draft: Any = await asyncio.to_thread(run_dialogue, run)
    finally:
        for one in waiting:  # a chat that ends does not wait for the thread
            one.cancel()
    return draft.text if isinstance(draft, Draft) else ""


# ── Sentences ────────────────────────────────────────────────────────────────────────────────────────────


def _own_sentences(text: str) -> list[Sentence]:
    """Return the sentences of a message that hold later and are the user's own."""
    found = find_sentences(text)
    foreign = [*foreign_spans(text), *_pasted_lines(text)] if found else []
    return [
        one
        for one in found
        if not any(low < one.end and one.start < high for low, high in foreign)
        and not is_quoted(text, one.start)
        and _states_something(text[one.start : one.end].strip())
    ]


def _states_something(sentence: str) -> bool:
    """Return whether a sentence states something of the user's. What is to be remembered was heard already, and
    what is to be forgotten is no entry."""
    if sentence.endswith((":", "：")) or is_reported(sentence):
        return False
    if _OF_NO_USE.match(sentence):
        return False
    is_about_memory = _MEMORY_WORDS.match(sentence) is not None
    return not is_about_memory or any(one.action == "remember" for one in spoken_requests(sentence))


def _pasted_lines(text: str) -> list[tuple[int, int]]:
    """Return what stands from the first to the last line of a pasted log or listing."""
    starts = [0, *(found.end() for found in islice(re.finditer("\n", text), _MAX_LINES_READ))]
    pasted = [start for start in starts if is_pasted_line(text[start : start + _MAX_LINE_CHARS], 0)]
    return [(pasted[0], pasted[-1])] if len(pasted) > 1 else []


def _without_attached_files(event: Event) -> Event:
    fact = event.fact
    if not isinstance(fact, UserSaid) or isinstance(fact.content, str):
        return event
    return replace(event, fact=replace(fact, content=typed_words(fact.content)))
