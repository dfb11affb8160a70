"""The facts of a session: the log is the truth, and this is what it is made of.

An `Event` is one immutable `Fact` with a gapless `seq`. Facts are named in the past tense, compared whole,
and never changed: whoever wants something shown differently appends another fact.

What a provider sends that we do not interpret (thinking signatures, reasoning items, images, cache marks) is
kept as the JSON bytes it came in, in fields of type `Raw`, together with the dialect that can read them.
Tool arguments stay the text the model wrote.

How they are written down is the business of `codec`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

_HANDLE: Final = re.compile(r"#?e?(\d{1,15})")
FORMAT: Final = 1
"""Version of the line format; a line without `v` is version 1."""

Dialect: TypeAlias = Literal["", "openai_chat", "openai_responses", "anthropic"]
"""Whose language the opaque fields of a fact are written in; "" when it has none."""


# ── what messages are made of ────────────────────────────────────────────────────────────────────────────


class Part(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """One piece of a message."""


class Text(Part, frozen=True, tag_field="part", tag="text"):
    text: str
    extra: Raw | UnsetType = UNSET
    """The other fields of this part as a JSON object: cache marks, citations, annotations."""


class Thinking(Part, frozen=True, tag_field="part", tag="thinking"):
    """What the model thought: shown again only in the dialect it came in, signature and all."""

    native: Raw
    text: str = ""


class Call(Part, frozen=True, tag_field="part", tag="call"):
    """The model asks for a tool."""

    id: str
    name: str
    arguments: str
    """The text the model wrote: valid JSON or not."""
    variety: str = "function"
    """What the dialect calls this sort of call; `function` is the one that all dialects have."""
    extra: Raw | UnsetType = UNSET

    @property
    def replaceable(self) -> bool:
        """Other arguments can be written in the place of its own; a call of a provider's own sort is sent as it
        came."""
        return self.variety in ("function", "function_call", "custom", "custom_tool_call")


class Media(Part, frozen=True, tag_field="part", tag="media"):
    """An image, a sound or a file."""

    native: Raw
    mime: str = ""
    size: int = 0
    """Bytes inside the request, as encoded there."""
    units: int = 0
    """Tokens that the provider will count for it, as far as that is known."""


class Opaque(Part, frozen=True, tag_field="part", tag="opaque"):
    """Something of the provider's own (a server-side tool and its result, say): kept and sent as it came."""

    native: Raw


AnyPart: TypeAlias = Text | Thinking | Call | Media | Opaque
Content: TypeAlias = str | tuple[AnyPart, ...]


# ── the facts ────────────────────────────────────────────────────────────────────────────────────────────


class Fact(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    gc=False,
):
    """Something that happened."""


class Opened(Fact, frozen=True, tag="opened"):
    """A session began, or went on under another model or policy."""

    model: str
    policy: str = ""
    settings: Raw | UnsetType = UNSET
    origin: str = ""
    """The session this one continues, if any."""


class Equipped(Fact, frozen=True, tag="equipped"):
    """From here on the model is offered these tools."""

    tools: Raw


class Instructed(Fact, frozen=True, tag="instructed"):
    """System text or project instructions; never reduced."""

    content: Content
    role: Literal["system", "developer"] = "system"
    source: str = ""
    """Where the text comes from: "" for the caller's own messages, a path for an instructions file."""
    aside: bool = False
    """Sent beside the messages, not among them; a newer one from the same source replaces it."""
    replaces: int | None = None
    """The event whose text this is the new version of; it is shown in that one's place."""
    dialect: Dialect = ""
    extra: Raw | UnsetType = UNSET


class UserSaid(Fact, frozen=True, tag="user_said"):
    content: Content
    dialect: Dialect = ""
    extra: Raw | UnsetType = UNSET


class ModelSaid(Fact, frozen=True, tag="model_said"):
    """One utterance: text, thinking and calls in the order in which they came."""

    content: Content
    listed: bool = False
    """The text was given as a list of parts where the dialect also allows a plain string."""
    dialect: Dialect = ""
    extra: Raw | UnsetType = UNSET


class ToolReturned(Fact, frozen=True, tag="tool_returned"):
    """The whole result of one call, however long; what is shown of it is another fact's business."""

    call_id: str
    content: Content
    name: str = ""
    error: bool = False
    variety: str = "function"
    dialect: Dialect = ""
    extra: Raw | UnsetType = UNSET


class Pinned(Fact, frozen=True, tag="pinned"):
    """A rule to keep in every request, or the event `target` that must stay as it is."""

    text: str = ""
    target: int | None = None


class Noted(Fact, frozen=True, tag="noted"):
    """A remark for people who read the log; the model never sees it."""

    text: str
    topic: str = ""


class Used(Fact, frozen=True, tag="used"):
    """What a provider reported for one call, with the kinds of input apart."""

    input: int
    """Tokens read at the full price."""
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    model: str = ""
    units: int = 0
    """What we had counted for the same request, before calibration."""
    predicted: int = 0
    """What we had expected the provider to report."""
    unreduced: int = 0
    """Units that the whole conversation would have taken, had nothing been reduced."""

    @property
    def prompt(self) -> int:
        """The size of the request: all kinds of input together."""
        return self.input + self.cache_read + self.cache_write


class SnapshotTaken(Fact, frozen=True, tag="snapshot_taken"):
    """An application's own state (a commit id, say): never sent, survives every reduction."""

    data: Raw
    label: str = ""


class Erased(Fact, frozen=True, tag="erased"):
    """There was a fact here; its text was erased for good at somebody's request."""

    was: str
    """Its kind."""


# ── reductions: facts about what is shown ────────────────────────────────────────────────────────────────


class Clipped(Fact, frozen=True, tag="clipped"):
    """Of the result `target` only these pieces are shown: spans of its text, and markers between them."""

    target: int
    pieces: tuple[tuple[int, int] | str, ...]
    part: int = -1
    """Which part of the result's content; -1 when the content is plain text."""
    kept_tokens: int = 0
    total_tokens: int = 0
    kept_lines: int = 0
    total_lines: int = 0
    strategy: str = ""
    rule: str = ""
    sources: tuple[int, ...] = ()
    """The events that markers refer to, where they stand for lines that are shown elsewhere."""


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The other fields of one part; -1 for those of the message itself."""

    part: int
    extra: Raw | UnsetType = UNSET


class Marked(Fact, frozen=True, tag="marked"):
    """The message `target` came again with the same words and other fields: cache marks that moved on."""

    target: int
    marks: tuple[Mark, ...]
    """All that it has now."""


class Mask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One thing that is shown as `text` instead."""

    target: int
    text: str
    part: int = -1
    """A part of the content (a call's arguments, an image); -1 for a whole result."""


class Masked(Fact, frozen=True, tag="masked"):
    """These results are shown as placeholders from here on. The placeholders are recorded, so that no later
    version of the code can show another text for the same log."""

    masks: tuple[Mask, ...]
    reason: str = ""
    rule: str = ""


class Dropped(Fact, frozen=True, tag="dropped"):
    """Whole steps that begin in these ranges of seq (both ends included) are gone from the view; a notice
    says how many messages that makes. Instructions and pinned steps inside a range stay."""

    ranges: tuple[tuple[int, int], ...]
    reason: str = ""
    rule: str = ""


class Compacted(Fact, frozen=True, tag="compacted"):
    """Steps from `first` to `last` are shown as this summary, which stands where the last of them stood; pinned
    ones and those in `keep` stay as they are, in front of it."""

    first: int
    last: int
    summary: str
    keep: tuple[int, ...] = ()
    """Events in the range that the summary does not stand for: the task, the latest request, open calls."""
    chunks: tuple[str, ...] = ()
    """What a model wrote from the originals, stretch by stretch. A later summary of a wider range is merged from
    these, never from `summary`, so that nothing is a summary of a summary of a summary."""
    by: str = ""
    """Who wrote it: a model's name, or `ledger`."""
    metrics: Raw | UnsetType = UNSET
    """How it went: `foveal.core.compaction.health`."""
    reason: str = ""
    """What set it off: `tokens`, `turns`, `messages`, `hand`, `overflow`, `model` or `merge`."""
    rule: str = ""


class CompactionFailed(Fact, frozen=True, tag="compaction_failed"):
    """A summary of this range was begun and nothing came of it: what is shown has not changed."""

    first: int
    last: int
    problem: str
    by: str = ""
    metrics: Raw | UnsetType = UNSET
    reason: str = ""


class Expanded(Fact, frozen=True, tag="expanded"):
    """Until the user speaks again, the steps of this range are shown as they were said."""

    first: int
    last: int


class Overflowed(Fact, frozen=True, tag="overflowed"):
    """A provider refused a request as too large, or silently cut it."""

    model: str
    limit: int = 0
    """Tokens that it allows, if it said so."""
    needed: int = 0
    """Tokens that it had counted, if it said so."""
    output: int = 0
    """Tokens for the answer that it had been asked for, if it said so."""
    sent: int = 0
    """Tokens that we had counted."""
    limit_kind: Literal["tokens", "bytes", "output", "silent"] = msgspec.field(default="tokens", name="sort")
    problem: str = ""


class Reverted(Fact, frozen=True, tag="reverted"):
    """The event `target` (a reduction or a pin) no longer counts."""

    target: int


class Rewound(Fact, frozen=True, tag="rewound"):
    """What came after `to` no longer counts. When a history was edited, `keep_state` leaves what was pinned,
    offered and said beside the messages, and `keep_reductions` what had been cut of the messages that remain;
    `show_dropped` brings back those of them that were hidden whole, when there is room for them again."""

    to: int
    keep_state: bool = False
    keep_reductions: bool = False
    show_dropped: bool = False


class Unknown(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A fact from a later version: not understood, not lost."""

    kind: str
    raw: Raw
    version: int = FORMAT


Reduction: TypeAlias = Clipped | Masked | Dropped | Compacted
Known: TypeAlias = (
    Opened
    | Equipped
    | Instructed
    | UserSaid
    | ModelSaid
    | ToolReturned
    | Pinned
    | Noted
    | Used
    | SnapshotTaken
    | Erased
    | Marked
    | Clipped
    | Masked
    | Dropped
    | Compacted
    | CompactionFailed
    | Expanded
    | Overflowed
    | Reverted
    | Rewound
)
AnyFact: TypeAlias = Known | Unknown

REDUCTIONS: Final = (Clipped, Masked, Dropped, Compacted)


class Event(msgspec.Struct, frozen=True, gc=False):
    """One fact and its place in the session."""

    seq: int
    fact: AnyFact
    at: float | None = None
    """Seconds since 1970 when it was appended, if the appender had a clock."""

    @property
    def handle(self) -> str:
        return handle(self.seq)


def handle(seq: int) -> str:
    """How an event is called in placeholders, markers and tools: short, and the same for ever."""
    return f"e{seq}"


def parse_handle(name: str | int) -> int | None:
    """The seq that a handle names, however a person or a model writes it: e12, #e12, 12; None if it is none."""
    found = _HANDLE.fullmatch(str(name).strip())
    return int(found.group(1)) if found else None


def kind(fact: AnyFact) -> str:
    """The name under which a fact is written."""
    return fact.kind if isinstance(fact, Unknown) else cast(str, type(fact).__struct_config__.tag)


# ── opaque bytes ─────────────────────────────────────────────────────────────────────────────────────────


def raw(value: Any) -> Raw:
    """A JSON value as opaque bytes."""
    try:
        return Raw(msgspec.json.encode(value))
    except UnicodeEncodeError:
        return Raw(json.dumps(value).encode())


def unraw(value: Raw) -> Any:
    """The JSON value in opaque bytes: a new one each time, so that nobody can change the log through it."""
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return json.loads(bytes(value))


def extras(value: Raw | UnsetType) -> Mapping[str, Any]:
    """The fields of an `extra`, none when there is none."""
    return {} if value is UNSET else cast(Mapping[str, Any], unraw(value))


# ── small questions that many modules ask ────────────────────────────────────────────────────────────────


def parts(content: Content) -> tuple[AnyPart, ...]:
    return (Text(text=content),) if isinstance(content, str) else content


def text_of(content: Content) -> str:
    """The words of a content, without what only a provider can read."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, Text))


def calls_of(content: Content) -> tuple[tuple[int, Call], ...]:
    """The calls of an utterance, each with its place among the parts."""
    if isinstance(content, str):
        return ()
    return tuple((place, part) for place, part in enumerate(content) if isinstance(part, Call))
