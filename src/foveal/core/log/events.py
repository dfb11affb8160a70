"""Event types of the append-only log.

1. An `Event` is one immutable `Fact` with a gapless `seq`. Facts have past-tense names and are compared whole.
2. Facts never change. To show something differently, append another fact.
3. Provider data that Foveal does not interpret (thinking signatures, reasoning items, images, cache marks) is
   kept as the JSON bytes it came in, in fields of type `Raw`, with the dialect that can read them. Tool
   arguments stay the text that the model wrote.

`codec` encodes events as lines of JSON. `Ranges` are ranges of seqs.
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

Dialect: TypeAlias = Literal["", "openai_chat", "openai_responses", "anthropic", "gemini", "bedrock"]
"""The dialect of the opaque fields of a fact; "" when it has none."""


# ── Parts of a message ────────────────────────────────────────────────────────────────────────────


class Part(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """One part of a message."""


class Text(Part, frozen=True, tag_field="part", tag="text"):
    text: str
    extra: Raw | UnsetType = UNSET
    """The other fields of this part as a JSON object: cache marks, citations, annotations."""


class Thinking(Part, frozen=True, tag_field="part", tag="thinking"):
    """A thinking block. It is sent only in the dialect it came in, with its signature."""

    native: Raw
    text: str = ""


class Call(Part, frozen=True, tag_field="part", tag="call"):
    """A tool call."""

    id: str
    name: str
    arguments: str
    """The text that the model wrote; it may be invalid JSON."""
    variety: str = "function"
    """The dialect's name for this kind of call; every dialect has `function`."""
    extra: Raw | UnsetType = UNSET
    is_masked: bool = False
    """Whether a placeholder replaces the arguments. Only a view sets it; the log has the call as it was made."""

    @property
    def replaceable(self) -> bool:
        """Whether the arguments may be replaced by a placeholder. A provider's own kind of call is sent as it
        came."""
        return self.variety in ("function", "function_call", "custom", "custom_tool_call")


class Media(Part, frozen=True, tag_field="part", tag="media"):
    """An image, an audio clip or a file."""

    native: Raw
    mime: str = ""
    size: int = 0
    """Encoded bytes inside the request."""
    units: int = 0
    """Tokens that the provider counts for it, as far as known."""


class Opaque(Part, frozen=True, tag_field="part", tag="opaque"):
    """A part that only its provider understands, such as a server-side tool call. It is sent as it came."""

    native: Raw


AnyPart: TypeAlias = Text | Thinking | Call | Media | Opaque
Content: TypeAlias = str | tuple[AnyPart, ...]


# ── Facts ────────────────────────────────────────────────────────────────────────────────────────────


class Fact(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    gc=False,
):
    """Base class of all facts."""


class Opened(Fact, frozen=True, tag="opened"):
    """A session started, or continued with another model or policy."""

    model: str
    policy: str = ""
    settings: Raw | UnsetType = UNSET
    origin: str = ""
    """The session this one continues, if any."""


class Equipped(Fact, frozen=True, tag="equipped"):
    """The tools offered to the model changed to these."""

    tools: Raw


class Instructed(Fact, frozen=True, tag="instructed"):
    """System text or project instructions. They are never reduced."""

    content: Content
    role: Literal["system", "developer"] = "system"
    source: str = ""
    """Where the text comes from: "" for the caller's own messages, a path for an instructions file."""
    aside: bool = False
    """Sent beside the messages (Anthropic `system`, Responses `instructions`). A newer one from the same source
    replaces it."""
    replaces: int | None = None
    """The event that this text replaces, in the same place."""
    dialect: Dialect = ""
    extra: Raw | UnsetType = UNSET


class UserSaid(Fact, frozen=True, tag="user_said"):
    content: Content
    dialect: Dialect = ""
    extra: Raw | UnsetType = UNSET


class ModelSaid(Fact, frozen=True, tag="model_said"):
    """One utterance of the model: text, thinking and calls in their original order."""

    content: Content
    listed: bool = False
    """The content came as a list of parts although the dialect allows a plain string."""
    dialect: Dialect = ""
    extra: Raw | UnsetType = UNSET


class ToolReturned(Fact, frozen=True, tag="tool_returned"):
    """The complete result of one call. Other facts record what the view shows of it."""

    call_id: str
    content: Content
    name: str = ""
    error: bool = False
    variety: str = "function"
    dialect: Dialect = ""
    extra: Raw | UnsetType = UNSET


class Pinned(Fact, frozen=True, tag="pinned"):
    """A rule that every request contains, or an event (`target`) that is not reduced further."""

    text: str = ""
    target: int | None = None
    whole: bool = False
    """Whether the step that begins with `target` is shown as it was said, whatever reduced or hid it before."""


class Noted(Fact, frozen=True, tag="noted"):
    """A note for readers of the log. It is never sent to the model."""

    text: str
    topic: str = ""


class Used(Fact, frozen=True, tag="used"):
    """Usage that a provider reported for one call, by kind of input."""

    input: int
    """Tokens read at the full (uncached) price."""
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    model: str = ""
    units: int = 0
    """Units counted locally for the same request, before calibration."""
    predicted: int = 0
    """Tokens that calibration predicted for the request."""
    unreduced: int = 0
    """Units of the whole conversation without any reduction."""
    until: int = 0
    """The seq after the newest event that the request could show; 0 in older logs."""
    cache_write_1h: int = 0
    """The part of `cache_write` that the provider keeps for an hour, at a higher price."""
    cache_miss: str = ""
    """The provider's reason why its cache did not hold the prompt, such as `tools_changed`, if it gave one."""
    cache_missed: int = 0
    """Tokens that the cache would have held otherwise, as far as the provider says."""

    @property
    def prompt(self) -> int:
        """The size of the request: the sum of all kinds of input."""
        return self.input + self.cache_read + self.cache_write


class SnapshotTaken(Fact, frozen=True, tag="snapshot_taken"):
    """State of the application, such as a commit id. It is never sent and never reduced."""

    data: Raw
    label: str = ""


class Erased(Fact, frozen=True, tag="erased"):
    """The fact at this place was erased on request. Its text is gone from the store."""

    was: str
    """The kind of the erased fact."""


# ── Reductions: facts about what the view shows ──────────────────────────────────────────────────────


class Clipped(Fact, frozen=True, tag="clipped"):
    """The view shows only these pieces of the result `target`: spans of its text, and markers between them."""

    target: int
    pieces: tuple[tuple[int, int] | str, ...]
    part: int = -1
    """Index of the content part; -1 when the content is plain text."""
    kept_tokens: int = 0
    total_tokens: int = 0
    kept_lines: int = 0
    total_lines: int = 0
    strategy: str = ""
    rule: str = ""
    sources: tuple[int, ...] = ()
    """Events that show the lines which a marker refers to instead of repeating them."""


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The extra fields of one part; part -1 is the message itself."""

    part: int
    extra: Raw | UnsetType = UNSET


class Marked(Fact, frozen=True, tag="marked"):
    """The message `target` came again with the same text and other fields, such as moved cache marks."""

    target: int
    marks: tuple[Mark, ...]
    """All extra fields that it has now."""


class Mask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A placeholder `text` for one result or part."""

    target: int
    text: str
    part: int = -1
    """Index of the content part (the arguments of a call, an image); -1 for a whole result."""


class Masked(Fact, frozen=True, tag="masked"):
    """These results are shown as placeholders from here on. The event records the placeholder texts, so that a
    later version of the code renders the same bytes."""

    masks: tuple[Mask, ...]
    reason: str = ""
    rule: str = ""


LEFT_OUT_BY_CALLER: Final = "caller"
"""The reason of a drop that the caller's own sliding window made."""


class Dropped(Fact, frozen=True, tag="dropped"):
    """Steps that begin in these ranges of seq (both ends included) leave the view, and a notice counts their
    messages, unless the caller left them out. Instructions and pinned steps inside a range stay."""

    ranges: tuple[tuple[int, int], ...]
    reason: str = ""
    rule: str = ""
    names_ranges: bool = False
    """Whether the notice names the ranges. Older logs have drops without it, which must render as they did."""
    users: tuple[int, ...] = ()
    """User messages in the ranges that the notice names one by one."""


class Compacted(Fact, frozen=True, tag="compacted"):
    """A summary replaces the steps from `first` to `last`, in the place of the last of them. Pinned steps and
    those in `keep` stay unchanged in front of it."""

    first: int
    last: int
    summary: str
    keep: tuple[int, ...] = ()
    """Events in the range that the summary does not cover: the task, the latest request, open calls."""
    chunks: tuple[str, ...] = ()
    """What a model wrote from the original messages, chunk by chunk. A later summary of a wider range is
    merged from these, never from `summary`: repeated summaries of summaries would lose details."""
    by: str = ""
    """The author: the name of a model, or `ledger`."""
    metrics: Raw | UnsetType = UNSET
    """Measurements of the compaction (`foveal.core.compaction.health`)."""
    reason: str = ""
    """The trigger: `tokens`, `turns`, `messages`, `hand` (requested by the user), `overflow`, `model`,
    `merge`, `room` (the request would not fit otherwise) or `price` (a smaller request costs less)."""
    rule: str = ""


class CompactionFailed(Fact, frozen=True, tag="compaction_failed"):
    """A summary of this range was attempted and failed. The view is unchanged."""

    first: int
    last: int
    problem: str
    by: str = ""
    metrics: Raw | UnsetType = UNSET
    reason: str = ""


class Expanded(Fact, frozen=True, tag="expanded"):
    """The steps of this range are shown in full until the next user message."""

    first: int
    last: int


class Overflowed(Fact, frozen=True, tag="overflowed"):
    """A provider refused a request as too large, or silently cut it."""

    model: str
    limit: int = 0
    """Tokens that the provider allows, if reported."""
    needed: int = 0
    """Tokens that the provider counted, if reported."""
    output: int = 0
    """Output tokens that the request asked for, if reported."""
    sent: int = 0
    """Tokens counted locally."""
    limit_kind: Literal["tokens", "bytes", "output", "silent"] = msgspec.field(default="tokens", name="sort")
    """Which limit was exceeded. Logs written since the first version call the field `sort`."""
    problem: str = ""


class Reverted(Fact, frozen=True, tag="reverted"):
    """The event `target` (a reduction, a pin or a rewind) is undone."""

    target: int


class Rewound(Fact, frozen=True, tag="rewound"):
    """Events after `to` no longer count. For an edited history, `keep_state` keeps pins, tools and text beside
    the messages, `keep_reductions` keeps the reductions of the remaining messages, and `show_dropped` shows
    dropped steps again because there is room for them."""

    to: int
    keep_state: bool = False
    keep_reductions: bool = False
    show_dropped: bool = False


class Unknown(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A fact of a kind that this version does not know. It is kept byte for byte."""

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
    """One fact and its position in the session."""

    seq: int
    fact: AnyFact
    at: float | None = None
    """Unix time of the append, if the writer has a clock."""

    @property
    def handle(self) -> str:
        return handle(self.seq)


def handle(seq: int) -> str:
    """Return the name of an event in placeholders, markers and tools, such as `e12`."""
    return f"e{seq}"


def parse_handle(name: str | int) -> int | None:
    """Return the seq that a handle names (`e12`, `#e12` and `12` are accepted), or None for any other text."""
    found = _HANDLE.fullmatch(str(name).strip())
    return int(found.group(1)) if found else None


def kind(fact: AnyFact) -> str:
    """Return the kind of a fact as the log stores it."""
    return fact.kind if isinstance(fact, Unknown) else cast(str, type(fact).__struct_config__.tag)


# ── Opaque bytes ───────────────────────────────────────────────────────────────────────────────────────


def raw(value: Any) -> Raw:
    """Encode a JSON value as opaque bytes."""
    try:
        return Raw(msgspec.json.encode(value))
    except UnicodeEncodeError:
        return Raw(json.dumps(value).encode())


def unraw(value: Raw) -> Any:
    """Decode opaque bytes. Each call returns a new value, so a caller cannot change the log through it."""
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return json.loads(bytes(value))


def extras(value: Raw | UnsetType) -> Mapping[str, Any]:
    """Return the fields of an `extra`, or an empty mapping."""
    return {} if value is UNSET else cast(Mapping[str, Any], unraw(value))


# ── Content ────────────────────────────────────────────────────────────────


def parts(content: Content) -> tuple[AnyPart, ...]:
    """Return the parts of a content; a plain text is one part."""
    return (Text(text=content),) if isinstance(content, str) else content


def text_of(content: Content) -> str:
    """Return the plain text of a content, without opaque parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, Text))


def calls_of(content: Content) -> tuple[tuple[int, Call], ...]:
    """Return the calls of a model message, each with its index among the parts."""
    if isinstance(content, str):
        return ()
    return tuple((place, part) for place, part in enumerate(content) if isinstance(part, Call))
