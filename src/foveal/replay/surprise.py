"""Surprise: how much less a request says about the agent's next step than the whole history.

1. The *next step* is the recorded message of the model: its text, and its calls as JSON, up to `MAX_STEP_BYTES`.
2. A coder that has read a request writes the next step in a number of bits. *Surprise* is the bits per byte after
   the request of a policy minus those after the whole history. It is 0 if nothing was reduced, and may be a little
   below 0, because a shorter text has fewer places to refer to.
3. A request that cannot be made to fit is read as an empty one.
4. Surprise is measured at a sample of the calls, spread evenly over the conversation, which is the same for every
   policy and window.
5. A *gone quote* is a name or line of the next step that is in the history and not in the request; if there is
   none, the longest phrase.

The coder is zstandard with the request as its dictionary. docs/measure/replay.md says how far it agrees with a
language model, and where it errs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
import zstandard

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Instructed,
    ModelSaid,
    ToolReturned,
    UserSaid,
    parts,
)
from foveal.core.wire.request_text import (
    MessageText,
    RequestReader,
    RequestText,
    fact_text,
    make_request,
    part_texts,
)
from foveal.replay.recall_score import NeedKind, find_quotables, request_contains
from foveal.replay.recorded_calls import RecordedConversation

DEFAULT_SAMPLES: Final = 8
"""Calls of each conversation at which surprise is measured."""
MIN_STEP_BYTES: Final = 32
"""Shorter steps are not measured: one byte more or less of the coder's output would be most of their figure."""
MAX_STEP_BYTES: Final = 1_600
"""Of a longer step only the beginning is measured: what follows is mostly predicted by the step itself."""
MAX_GONE_QUOTES: Final = 5
"""Most gone quotes that are kept for a call."""

MIN_EXPLAINED_BITS: Final = 0.02
"""Bits per byte; the cause of less surprise is not searched."""
MIN_PHRASE_WORDS: Final = 3
"""Fewer words are no quote."""
_WORDS: Final = re.compile(r"\S+")

CODER_LEVEL: Final = 19
CODER_WINDOW_LOG: Final = 24
"""The coder refers to the last 16 MB of a request: more than any history has."""
MIN_DICTIONARY_BYTES: Final = 8
"""A shorter text is no dictionary."""

T = TypeVar("T")
QuoteKind: TypeAlias = NeedKind | Literal["phrase"]
CountBits: TypeAlias = Callable[[bytes, bytes], float]
"""Returns the bits in which a coder that has read the first text writes the second."""
FindCause: TypeAlias = "Callable[[GoneQuote], GoneQuote]"
"""Returns a gone quote with the event that had it, and what hid that event."""


def zstandard_bits(known: bytes, step: bytes) -> float:
    """Return the bits in which zstandard writes a step after a text that it knows."""
    settings = zstandard.ZstdCompressionParameters.from_level(
        CODER_LEVEL,
        window_log=CODER_WINDOW_LOG,
        source_size=len(step),
        dict_size=len(known),
        write_content_size=False,
        write_dict_id=False,
    )
    dictionary = None
    if len(known) >= MIN_DICTIONARY_BYTES:
        dictionary = zstandard.ZstdCompressionDict(known, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return 8.0 * len(
        zstandard.ZstdCompressor(dict_data=dictionary, compression_params=settings).compress(step)
    )


# ── Results ───────────────────────────────────────────────────────────────────────────────────────


class GoneQuote(msgspec.Struct, frozen=True, kw_only=True):
    """What the next step quotes and the request did not contain.

    The whole history has it.

    Examples:
        ```python
        from foveal.replay import GoneQuote

        quote = GoneQuote(kind="ident", text="part_0_7", handle="e5", level="masked")
        ```
    """

    kind: QuoteKind
    """A name (`ident`), a whole line (`line`), or some words (`phrase`)."""
    text: str
    """The string."""
    handle: str = ""
    """The newest event that had it; `""` if the request was not made by a policy of Foveal."""
    level: str = ""
    """The level at which that event was shown."""
    rule: str = ""
    """The rule that decided the level."""
    by: str = ""
    """The event that hid it, with its kind and reason."""


class CallSurprise(msgspec.Struct, frozen=True, kw_only=True):
    """The surprise of one call.

    Examples:
        ```python
        from foveal.replay import CallSurprise

        found = CallSurprise(call=12, bits=0.08)
        ```
    """

    call: int
    """The number of the call, from 1."""
    bits: float
    """Bits per byte of the next step after the request, minus those after the whole history."""
    gone: tuple[GoneQuote, ...] = ()
    """What the next step quotes and the request does not contain, the longest first."""


# ── Measuring ─────────────────────────────────────────────────────────────────────────────────────


class SurpriseMeter:
    """Measures the surprise of requests at sampled calls of one conversation."""

    def __init__(
        self,
        conversation: RecordedConversation,
        reader: RequestReader,
        *,
        samples: int,
        first: int = 0,
        count_bits: CountBits = zstandard_bits,
    ) -> None:
        """Calls before call `first`, counted from 0, are not measured."""
        self._conversation = conversation
        self._reader = reader
        self._count_bits = count_bits
        steps = _measurable_steps(conversation, first)
        self.candidates: int = len(steps)
        """The calls from which the sample is taken."""
        self._steps: dict[int, ModelSaid] = dict(_sample(steps, samples))
        self._histories: dict[int, RequestText] = {}
        """For each sampled call, the request with the whole history."""
        self._full_bits: dict[int, float] = {}
        """For each sampled call, the bits of the next step after the whole history."""
        self._rendered: dict[MessageText, bytes] = {}

    @property
    def numbers(self) -> Collection[int]:
        """The sampled calls, counted from 0."""
        return self._steps.keys()

    def measure(self, number: int, request: RequestText | None, find_cause: FindCause) -> CallSurprise | None:
        """Return the surprise of call `number`, counted from 0; None if it is not in the sample."""
        said = self._steps.get(number)
        if said is None:
            return None
        history = self._history(number)
        if request is not None and request.pieces == history.pieces:
            return CallSurprise(call=number + 1, bits=0.0)
        step = _step_bytes(said)
        # The same for every policy and window, and slow, because it reads the whole history.
        if number not in self._full_bits:
            self._full_bits[number] = self._count_bits(self._render(history), step)
        sent = make_request(()) if request is None else request
        bits = (self._count_bits(self._render(sent), step) - self._full_bits[number]) / len(step)
        quotes = _gone_quotes(said, history, sent) if bits >= MIN_EXPLAINED_BITS else []
        gone = tuple(map(find_cause, quotes))
        return CallSurprise(call=number + 1, bits=bits, gone=gone)

    def _history(self, number: int) -> RequestText:
        if number not in self._histories:
            call = self._conversation.calls[number]
            prefix = self._reader.prefix(system=call.system, tools=call.tools)
            messages = self._conversation.messages[: call.messages]
            self._histories[number] = make_request([*prefix, *map(self._reader.message, messages)])
        return self._histories[number]

    def _render(self, request: RequestText) -> bytes:
        return b"".join(map(self._render_piece, request.pieces))

    def _render_piece(self, piece: MessageText) -> bytes:
        known = self._rendered.get(piece)
        if known is None:
            text = "".join(map(_render_fact, piece.facts)) if piece.facts else f"{piece.text}\n\n"
            known = self._rendered[piece] = text.encode("utf-8", "surrogatepass")
        return known


def _measurable_steps(conversation: RecordedConversation, first: int) -> list[tuple[int, ModelSaid]]:
    """Return the number of each call from call `first` on that can be measured, and its next step."""
    found: list[tuple[int, ModelSaid]] = []
    for number, call in enumerate(conversation.calls):
        said = conversation.facts[call.facts]
        if number >= first and isinstance(said, ModelSaid) and len(_step_bytes(said)) >= MIN_STEP_BYTES:
            found.append((number, said))
    return found


def _sample(steps: Sequence[T], samples: int) -> Iterator[T]:
    """Yield some steps, spread evenly."""
    count = min(samples, len(steps))
    yield from (steps[(2 * place + 1) * len(steps) // (2 * count)] for place in range(count))


def _gone_quotes(said: ModelSaid, history: RequestText, sent: RequestText) -> list[GoneQuote]:
    """Return what a step quotes from the history that was not sent; a name in a gone line is not repeated."""
    texts = [text for part in parts(said.content) for text in part_texts(part)]
    found: list[GoneQuote] = []
    for kind, text in sorted(find_quotables(texts), key=lambda each: -len(each[1])):
        if any(text in longer.text for longer in found) or request_contains(sent, text):
            continue
        if request_contains(history, text):
            found.append(GoneQuote(kind=kind, text=text))
            if len(found) == MAX_GONE_QUOTES:
                break
    return found or list(_gone_phrase(texts, _joined_text(history), _joined_text(sent)))


def _gone_phrase(texts: Sequence[str], history: str, sent: str) -> Iterator[GoneQuote]:
    """Yield the longest run of words in texts that the history has and the request has not, if there is one."""
    runs = (run for text in texts for run in _shared_runs(text, history))
    longest = max((run for run in runs if run not in sent), key=len, default="")
    if longest:
        yield GoneQuote(kind="phrase", text=longest)


def _shared_runs(text: str, history: str) -> Iterator[str]:
    """Yield the longest run of words that is in the history from each word on, unless a longer one contains it."""
    words = [found.span() for found in _WORDS.finditer(text)]
    end = 0
    for start, (begin, _) in enumerate(words):
        before = end
        end = max(end, start)
        while end < len(words) and text[begin : words[end][1]] in history:
            end += 1
        if end > before and end - start >= MIN_PHRASE_WORDS:
            yield text[begin : words[end - 1][1]]


def _joined_text(request: RequestText) -> str:
    return "\n".join(piece.text for piece in request.pieces)


# ── Rendering ─────────────────────────────────────────────────────────────────────────────────────


def _step_bytes(said: ModelSaid) -> bytes:
    return _render_model(said).encode("utf-8", "surrogatepass")[:MAX_STEP_BYTES]


def _render_fact(fact: AnyFact) -> str:
    """Return a message as plain text: its role, its text, and its calls as JSON."""
    match fact:
        case ModelSaid():
            return f"assistant\n{_render_model(fact)}\n\n"
        case ToolReturned():
            role = "tool"
        case UserSaid():
            role = "user"
        case Instructed():
            role = "system"
        case _:
            return ""
    return f"{role}\n{fact_text(fact)}\n\n"


def _render_model(said: ModelSaid) -> str:
    return "\n".join(text for part in parts(said.content) for text in _render_part(part))


def _render_part(part: AnyPart) -> Iterator[str]:
    if isinstance(part, Call):
        yield f'{{"name": {json.dumps(part.name)}, "arguments": {part.arguments}}}'
    else:
        yield from part_texts(part)
