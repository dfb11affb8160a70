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

__all__ = [
    "DIALOGUE_TYPES",
    "FORMAT",
    "LEFT_OUT_BY_CALLER",
    "MEMORY_LOG_PREFIX",
    "MEMORY_SOURCE",
    "REDUCTIONS",
    "AnyFact",
    "AnyPart",
    "BranchEnded",
    "Branched",
    "Call",
    "Clipped",
    "Compacted",
    "CompactionFailed",
    "Content",
    "Dialect",
    "DialectName",
    "Dropped",
    "Equipped",
    "Erased",
    "Event",
    "Expanded",
    "Fact",
    "ForeignSummary",
    "Instructed",
    "Known",
    "Mark",
    "Marked",
    "Mask",
    "Masked",
    "Media",
    "ModelSaid",
    "Noted",
    "Opaque",
    "Opened",
    "Overflowed",
    "Part",
    "Pinned",
    "Prioritised",
    "Priority",
    "Reduction",
    "Reverted",
    "Rewound",
    "SnapshotTaken",
    "Steered",
    "Superseded",
    "Text",
    "Thinking",
    "ThinkingLeftOut",
    "ToolReturned",
    "ToolsLoaded",
    "Unknown",
    "Used",
    "UserSaid",
    "calls_of",
    "extras",
    "handle",
    "kind",
    "parse_handle",
    "parts",
    "raw",
    "text_of",
    "unraw",
]

_HANDLE: Final = re.compile(r"#?e?(\d{1,15})")
FORMAT: Final = 1
"""Version of the line format; a line without `v` is version 1."""
MEMORY_LOG_PREFIX: Final = "foveal-memory:"
"""The beginning of the ids of logs that are memories. No session has such an id, and no list of sessions has it."""
ATTACHED_MARK: Final = "[foveal: attached "
"""How the text of a file begins that the user attached to a message."""
MEMORY_SOURCE: Final = "foveal:memory"
"""The source of the instructions that show what a memory holds. It is no path, so no file has it."""
BUDGET_SOURCE: Final = "foveal:budget"
"""The source of a text that says how much of a spending limit is left."""

Priority: TypeAlias = Literal["low", "normal", "high"]
"""When a reduction hides a message: `low` goes first, and `high` last of all that may go."""
Dialect: TypeAlias = Literal["", "openai_chat", "openai_responses", "anthropic", "gemini", "bedrock"]
"""The dialect of the opaque fields of a fact; "" when it has none."""
DialectName: TypeAlias = Literal[Dialect, "openai", "responses"]
"""A dialect as an argument: `openai` is another name of `openai_chat`, `responses` of `openai_responses`."""


# ── Parts of a message ────────────────────────────────────────────────────────────────────────────


class Part(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Base class of the parts of a message.

    Examples:
        ```python
        from foveal import events

        assert isinstance(events.Text(text="Hello."), events.Part)
        ```
    """


class Text(Part, frozen=True, tag_field="part", tag="text"):
    """Text in a message.

    Examples:
        ```python
        import foveal

        said = foveal.UserSaid(content=(foveal.events.Text(text="Hello."),))
        ```
    """

    text: str
    """The text."""
    extra: Raw | UnsetType = UNSET
    """The other fields of this part as a JSON object: cache marks, citations, annotations."""


class Thinking(Part, frozen=True, tag_field="part", tag="thinking"):
    """A thinking block. It is sent only in the dialect it came in, with its signature.

    Examples:
        ```python
        from foveal import events

        block = events.raw({"type": "thinking", "thinking": "A bound?", "signature": "c2ln"})
        part = events.Thinking(native=block, text="A bound?")
        ```
    """

    native: Raw
    """The block as the provider sent it."""
    text: str = ""
    """The text of the block, as far as it is readable."""


class Call(Part, frozen=True, tag_field="part", tag="call"):
    """A tool call in a message of the model.

    Examples:
        ```python
        from foveal import events

        call = events.Call(id="call_1", name="bash", arguments='{"command": "make test"}')
        assert call.replaceable
        ```
    """

    id: str
    """The id that the result names."""
    name: str
    """The name of the tool."""
    arguments: str
    """The text that the model wrote; it may be invalid JSON."""
    variety: str = "function"
    """The dialect's name for this kind of call; every dialect has `function`."""
    extra: Raw | UnsetType = UNSET
    """The other fields of this part as a JSON object."""
    is_masked: bool = False
    """Whether a placeholder replaces the arguments. Only a view sets it; the log has the call as it was made."""

    @property
    def replaceable(self) -> bool:
        """Whether a placeholder may replace the arguments. A provider's own kind of call is sent as it came."""
        return self.variety in ("function", "function_call", "custom", "custom_tool_call")

    @property
    def needs_result(self) -> bool:
        """Whether a provider refuses the call without a result. A request for approval may stay unanswered."""
        return self.variety != "mcp_approval_request"


class Media(Part, frozen=True, tag_field="part", tag="media"):
    """An image, an audio clip or a file.

    Examples:
        ```python
        from foveal import events

        image = events.raw({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0="}})
        part = events.Media(native=image, mime="image/png", size=9)
        ```
    """

    native: Raw
    """The part as the provider takes it."""
    mime: str = ""
    """The media type, such as `image/png`; "" if it is unknown."""
    size: int = 0
    """Encoded bytes inside the request."""
    units: int = 0
    """Tokens that the provider counts for it, as far as known."""


class Opaque(Part, frozen=True, tag_field="part", tag="opaque"):
    """A part that only its provider understands, such as a server-side tool call.

    It is sent as it came.

    Examples:
        ```python
        from foveal import events

        part = events.Opaque(native=events.raw({"type": "web_search_call", "id": "ws_1"}))
        ```
    """

    native: Raw
    """The part as the provider sent it."""


AnyPart: TypeAlias = Text | Thinking | Call | Media | Opaque
"""One part of a message."""
Content: TypeAlias = str | tuple[AnyPart, ...]
"""The content of a message: a text, or its parts in order."""


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
    """Base class of all facts. Facts never change and are compared whole.

    Examples:
        ```python
        import foveal

        assert isinstance(foveal.UserSaid(content="Hello."), foveal.events.Fact)
        ```
    """


class Opened(Fact, frozen=True, tag="opened"):
    """A session started, or continued with another model or policy.

    Examples:
        ```python
        from foveal import events

        fact = events.Opened(model="gpt-4.1", policy="economy")
        ```
    """

    model: str
    """The name of the model."""
    policy: str = ""
    """The name of the policy."""
    settings: Raw | UnsetType = UNSET
    """The working folder and the window, as far as the caller set them."""
    origin: str = ""
    """The session this one continues, if any."""


class Equipped(Fact, frozen=True, tag="equipped"):
    """The tools offered to the model changed to these.

    Examples:
        ```python
        from foveal import events

        fact = events.Equipped(tools=events.raw([{"type": "function", "function": {"name": "bash"}}]))
        ```
    """

    tools: Raw
    """The schemas of the tools as a JSON list."""
    deferred: dict[str, int] = {}
    """The tools that the model can load, by name, each with the units of its schema."""


class ToolsLoaded(Fact, frozen=True, tag="tools_loaded"):
    """The model has these tools from a result on. The request says so in that place, and its `tools` stay.

    Only some providers have a form for it. For the others, the loaded tools are at the end of `Equipped.tools`.

    Examples:
        ```python
        from foveal import events

        schema = {"name": "get_issue", "input_schema": {"type": "object"}}
        fact = events.ToolsLoaded(target=4, tools=events.raw([schema]), dialect="anthropic")
        ```
    """

    target: int
    """The seq of the result: of the call that asked for the tools, or of the first call of the tool itself."""
    tools: Raw
    """The schemas of the tools as a JSON list."""
    dialect: Dialect
    """The dialect whose form is used."""


class Instructed(Fact, frozen=True, tag="instructed"):
    """System text or project instructions. They are never reduced.

    Examples:
        ```python
        import foveal

        fact = foveal.Instructed(content="You are careful.")
        ```
    """

    content: Content
    """The text."""
    role: Literal["system", "developer"] = "system"
    """The role of the message."""
    source: str = ""
    """Where the text comes from: "" for the caller's own messages, a path for an instructions file."""
    aside: bool = False
    """Sent beside the messages (Anthropic `system`, Responses `instructions`). A newer one from the same source
    replaces it."""
    replaces: int | None = None
    """The event that this text replaces, in the same place."""
    dialect: Dialect = ""
    """The dialect of the opaque fields; "" when there are none."""
    extra: Raw | UnsetType = UNSET
    """The other fields of the message as a JSON object."""

    @property
    def is_memory(self) -> bool:
        """Whether it shows what a memory holds: one block behind the instructions at the beginning."""
        return self.source == MEMORY_SOURCE

    @property
    def is_beside_history(self) -> bool:
        """Whether it is no message of the history itself: text beside it, a memory, or a newer version."""
        return self.aside or self.is_memory or self.replaces is not None


class UserSaid(Fact, frozen=True, tag="user_said"):
    """A message of the user.

    Examples:
        ```python
        import foveal

        fact = foveal.UserSaid(content="Why is CI red?")
        ```
    """

    content: Content
    """What the user said."""
    dialect: Dialect = ""
    """The dialect of the opaque fields; "" when there are none."""
    extra: Raw | UnsetType = UNSET
    """The other fields of the message as a JSON object."""


class ModelSaid(Fact, frozen=True, tag="model_said"):
    """One utterance of the model: text, thinking and calls in their original order.

    Examples:
        ```python
        import foveal

        call = foveal.events.Call(id="call_1", name="bash", arguments="{}")
        fact = foveal.ModelSaid(content=(foveal.events.Text(text="I look."), call))
        ```
    """

    content: Content
    """What the model said."""
    listed: bool = False
    """Whether the content came as a list of parts although the dialect allows a plain string."""
    imported: bool = False
    """Whether another program got this answer and stored it here: it is no call of this conversation."""
    dialect: Dialect = ""
    """The dialect of the opaque fields; "" when there are none."""
    extra: Raw | UnsetType = UNSET
    """The other fields of the message as a JSON object."""


class ToolReturned(Fact, frozen=True, tag="tool_returned"):
    """The complete result of one call. Other facts record what the view shows of it.

    Examples:
        ```python
        import foveal

        fact = foveal.ToolReturned(call_id="call_1", name="bash", content="2 failed")
        ```
    """

    call_id: str
    """The id of the call."""
    content: Content
    """The whole result."""
    name: str = ""
    """The name of the tool; "" if the dialect does not send it."""
    error: bool = False
    """Whether the tool failed."""
    variety: str = "function"
    """The dialect's name for this kind of result."""
    dialect: Dialect = ""
    """The dialect of the opaque fields; "" when there are none."""
    extra: Raw | UnsetType = UNSET
    """The other fields of the message as a JSON object."""


class ForeignSummary(Fact, frozen=True, tag="foreign_summary"):
    """A summary that the provider made of everything before it: its compaction block or item.

    It is sent as it came, in its place. No reduction hides or changes it. What the provider no longer reads,
    because this summary stands for it, is not counted.

    Examples:
        ```python
        from foveal import events

        item = events.raw({"type": "compaction", "encrypted_content": "gAAA"})
        fact = events.ForeignSummary(native=item, dialect="openai_responses")
        assert fact.text == ""
        ```
    """

    native: Raw
    """The block or item as the provider sent it, without cache marks."""
    text: str = ""
    """The summary, if it is readable; "" for one that only its provider can read."""
    dialect: Dialect = ""
    """The dialect that can send it."""
    extra: Raw | UnsetType = UNSET
    """The cache mark of the block, and under `message` the other fields of its message, as a JSON object."""

    @property
    def is_opaque(self) -> bool:
        """Whether only the model that wrote it can read it."""
        return not isinstance(unraw(self.native).get("content"), str)

    @property
    def content(self) -> Content:
        """What a reader sees of it: the text, or the item itself."""
        return self.text or (Opaque(native=self.native),)


class Pinned(Fact, frozen=True, tag="pinned"):
    """A rule that every request contains, or an event that is not reduced further.

    Examples:
        ```python
        from foveal import events

        fact = events.Pinned(text="Answer in French.")
        ```
    """

    text: str = ""
    """The rule; "" if only an event is pinned."""
    target: int | None = None
    """The seq of the pinned event; None if only a rule is pinned."""
    whole: bool = False
    """Whether the step that begins with `target` is shown as it was said, whatever reduced or hid it before."""


class Prioritised(Fact, frozen=True, tag="prioritised"):
    """When reductions hide a message: before others, or after them. The request is as it was.

    Examples:
        ```python
        from foveal import events

        fact = events.Prioritised(target=5, priority="low")
        ```
    """

    target: int
    """The seq of the message. A result is meant alone, a message of the model with its results."""
    priority: Priority
    """The priority; `normal` takes an earlier one back, and that of the tool."""


class Steered(Fact, frozen=True, tag="steered"):
    """The user, a hook or the model decided about the next cut. The request is as it was.

    Examples:
        ```python
        from foveal import events

        fact = events.Steered(by="hook", keep=(41,), focus="the migration", reason="tokens")
        ```
    """

    by: Literal["user", "hook", "model"]
    """Who decided."""
    keep: tuple[int, ...] = ()
    """The events whose steps the cut leaves as they are."""
    focus: str = ""
    """What the record or the summary keeps above all. That of the user is for the next one that is written."""
    veto: bool = False
    """Whether the cut was not to be made."""
    refused: str = ""
    """Why `keep` or `veto` was not followed; "" if it was."""
    reason: str = ""
    """The trigger of the cut; of the model, why it asked."""


class Superseded(Fact, frozen=True, tag="superseded"):
    """What the user said in one message no longer holds, because of a later one.

    The view shows the message with a line at its end that names the later one.

    Examples:
        ```python
        from foveal import events

        fact = events.Superseded(target=5, by=31)
        ```
    """

    target: int
    """The seq of the message, or of the pin, that no longer holds."""
    by: int
    """The seq of the later message of the user that replaces it."""


class Noted(Fact, frozen=True, tag="noted"):
    """A note for readers of the log. It is never sent to the model.

    Examples:
        ```python
        from foveal import events

        fact = events.Noted(text="deployed", topic="release")
        ```
    """

    text: str
    """The text of the note."""
    topic: str = ""
    """What the note is about."""


class Used(Fact, frozen=True, tag="used"):
    """Usage that a provider reported for one call, by kind of input.

    Examples:
        ```python
        from foveal import events

        used = events.Used(input=1_200, cache_read=8_000, output=150)
        assert used.prompt == 9_200
        ```
    """

    input: int
    """Tokens read at the full (uncached) price."""
    cache_read: int = 0
    """Tokens read from the cache."""
    cache_write: int = 0
    """Tokens written to the cache."""
    output: int = 0
    """Tokens that the model wrote."""
    reasoning: int = 0
    """Tokens of `output` that were reasoning."""
    model: str = ""
    """The model that answered; "" for that of the session."""
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
    cache_write_12h: int = 0
    """The part of `cache_write` that the provider keeps for 12 hours. It costs what other writes do: the bundled
    table has no price of its own for it."""
    cache_miss: str = ""
    """The provider's reason why its cache did not hold the prompt, such as `tools_changed`, if it gave one."""
    cache_missed: int = 0
    """Tokens that the cache would have held otherwise, as far as the provider says."""
    dropped_thinking: int = 0
    """Thinking blocks of the request that the provider left out, because it would have refused them."""
    others: tuple[Used, ...] = ()
    """What the provider did besides for the same reply, such as a compaction or earlier turns of its own tools:
    part of the bill, and no part of the size of the request."""

    @property
    def billed(self) -> tuple[Used, ...]:
        """All that the reply costs: the request itself, and the others."""
        return (self, *self.others)

    @property
    def prompt(self) -> int:
        """The size of the request: the sum of all kinds of input."""
        return self.input + self.cache_read + self.cache_write


class SnapshotTaken(Fact, frozen=True, tag="snapshot_taken"):
    """State of the application, such as a commit id.

    It is never sent and never reduced.

    Examples:
        ```python
        from foveal import events

        fact = events.SnapshotTaken(data=events.raw({"commit": "4f2a"}), label="workspace")
        assert events.unraw(fact.data) == {"commit": "4f2a"}
        ```
    """

    data: Raw
    """The state as JSON."""
    label: str = ""
    """The name of the snapshot."""


class Branched(Fact, frozen=True, tag="branched"):
    """A branch began: a part of the work that will be folded to its result.

    The messages after this event belong to the branch until a `BranchEnded` names it. The view does not change.

    Examples:
        ```python
        from foveal import events

        fact = events.Branched(task="Find the failing test.")
        ```
    """

    task: str
    """What the branch is to find out or to do."""
    is_joined: bool = False
    """Whether its messages come from another context, so that none of them is the user's own."""
    fork: str = ""
    """The id of the session that they come from; "" for those of a `Context`."""


class BranchEnded(Fact, frozen=True, tag="branch_ended"):
    """A branch ended, and with it those that began inside. The `Compacted` that follows folds it.

    Examples:
        ```python
        from foveal import events

        fact = events.BranchEnded(branch=12, result="test_dates.py fails: the bound is wrong.")
        ```
    """

    branch: int
    """The seq of its `Branched`."""
    result: str = ""
    """What came of it."""
    source: Literal["given", "model", "error"] = "given"
    """Where the result comes from: it was given, it is the last text of the model, or it says what failed."""
    keep: tuple[int, ...] = ()
    """Events inside whose steps stay in view."""
    by_code: bool = False
    """Whether code ended it, not a call of `return`: an edit of the messages inside does not open it again."""


class Erased(Fact, frozen=True, tag="erased"):
    """The fact at this place was erased on request.

    Its text is gone from the store.

    Examples:
        ```python
        from foveal import events

        fact = events.Erased(was="user_said")
        ```
    """

    was: str
    """The kind of the erased fact."""


# ── Reductions: facts about what the view shows ──────────────────────────────────────────────────────


class Clipped(Fact, frozen=True, tag="clipped"):
    """The view shows only some pieces of a result, with markers between them.

    Examples:
        ```python
        from foveal import events

        fact = events.Clipped(target=4, pieces=((0, 80), "[foveal: …]"), kept_tokens=20, total_tokens=900)
        ```
    """

    target: int
    """The seq of the result."""
    pieces: tuple[tuple[int, int] | str, ...]
    """Spans of its text, and markers, in the order in which they are shown."""
    part: int = -1
    """Index of the content part; -1 when the content is plain text."""
    kept_tokens: int = 0
    """Tokens of the shown text."""
    total_tokens: int = 0
    """Tokens of the whole text."""
    kept_lines: int = 0
    """Lines that are shown, whole or in part."""
    total_lines: int = 0
    """Lines of the whole text."""
    strategy: str = ""
    """The strategy of the limits: `head`, `tail`, `both` or `smart`."""
    rule: str = ""
    """The rule that decided it."""
    sources: tuple[int, ...] = ()
    """Events that show the lines which a marker refers to instead of repeating them."""
    again: int = -1
    """The earlier result whose text, the only piece, is shown in place of an answer that says only that nothing has
    changed since; -1 for every other clip."""

    @property
    def shows_all(self) -> bool:
        """Whether it takes an earlier clip back: the lines that a marker referred to are no longer shown."""
        return bool(self.pieces) and not any(isinstance(piece, str) for piece in self.pieces)


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The extra fields of one part.

    Examples:
        ```python
        from foveal import events

        mark = events.Mark(part=-1, extra=events.raw({"cache_control": {"type": "ephemeral"}}))
        ```
    """

    part: int
    """Index of the part; -1 is the message itself."""
    extra: Raw | UnsetType = UNSET
    """The fields as a JSON object."""


class Marked(Fact, frozen=True, tag="marked"):
    """A message came again with the same text and other fields.

    Moved cache marks are such fields.

    Examples:
        ```python
        from foveal import events

        fact = events.Marked(target=3, marks=(events.Mark(part=0),))
        ```
    """

    target: int
    """The seq of the message."""
    marks: tuple[Mark, ...]
    """All extra fields that it has now."""


class Mask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A placeholder for one result or part.

    Examples:
        ```python
        from foveal import events

        mask = events.Mask(target=4, text="[foveal: bash, 900 tokens; whole text: e4]")
        ```
    """

    target: int
    """The seq of the event."""
    text: str
    """The text of the placeholder."""
    part: int = -1
    """Index of the content part (the arguments of a call, an image); -1 for a whole result."""


class Masked(Fact, frozen=True, tag="masked"):
    """Results are shown as placeholders from here on.

    The event records the texts of the placeholders, so that a later version of the code renders the same bytes.

    Examples:
        ```python
        from foveal import events

        fact = events.Masked(masks=(events.Mask(target=4, text="[foveal: whole text: e4]"),))
        ```
    """

    masks: tuple[Mask, ...]
    """The placeholders."""
    reason: str = ""
    """What triggered it."""
    rule: str = ""
    """The rule that decided it."""


LEFT_OUT_BY_CALLER: Final = "caller"
"""The reason of a drop that the caller's own sliding window made."""
BRANCH: Final = "branch"
"""The reason, the author and the rule of a `Compacted` that folds a branch."""
UNREADABLE: Final = "unreadable"
"""The reason of a `Compacted` that takes the place of a provider's summary, because the model cannot read it."""


class Dropped(Fact, frozen=True, tag="dropped"):
    """Steps that begin in these ranges leave the view.

    A notice counts their messages, unless the caller left them out. Instructions and pinned steps inside a
    range stay.

    Examples:
        ```python
        from foveal import events

        fact = events.Dropped(ranges=((2, 9),), reason="hand")
        ```
    """

    ranges: tuple[tuple[int, int], ...]
    """Ranges of seqs, both ends included."""
    reason: str = ""
    """What triggered it."""
    rule: str = ""
    """The rule that decided it."""
    names_ranges: bool = False
    """Whether the notice names the ranges. Older logs have drops without it, which must render as they did."""
    users: tuple[int, ...] = ()
    """User messages in the ranges that the notice names one by one."""


class Compacted(Fact, frozen=True, tag="compacted"):
    """A summary replaces a range of steps, in the place of the last of them.

    Pinned steps and those in `keep` stay in front of it. With `masks`, the summary is the record of a cut: steps
    stay without their results, and the record stands behind the range. With the reason `unreadable`, it replaces
    one `ForeignSummary` that the model cannot read: the messages in front of that count again, and the summary, if
    there is one, is a record of those that are only in the log.

    Examples:
        ```python
        from foveal import events

        fact = events.Compacted(first=1, last=20, summary="The bound in parser.py is wrong.", by="ledger")
        ```
    """

    first: int
    """The first seq of the range."""
    last: int
    """The last seq of the range, included."""
    summary: str
    """The text of the summary."""
    keep: tuple[int, ...] = ()
    """Events in the range that the summary does not cover: the task, the latest request, open calls, and the calls
    and texts of the agent that stay."""
    masks: tuple[Mask, ...] = ()
    """Placeholders for results, long arguments and long texts of steps in the range that stay."""
    chunks: tuple[str, ...] = ()
    """What a model wrote from the original messages, chunk by chunk. A later summary of a wider range is
    merged from these, never from `summary`: repeated summaries of summaries would lose details."""
    native: Raw | UnsetType = UNSET
    """The block or item that the provider itself wrote for the conversation up to the end of the range. Requests in
    its dialect begin with it; every other provider gets `summary`."""
    dialect: Dialect = ""
    """The dialect of `native`."""
    by: str = ""
    """The author: the name of a model, `ledger`, or `branch`."""
    metrics: Raw | UnsetType = UNSET
    """Measurements of the compaction (`foveal.core.compaction.health`)."""
    reason: str = ""
    """The trigger: `tokens`, `turns`, `messages`, `hand` (requested by the user), `overflow`, `model`,
    `merge`, `room` (the request would not fit otherwise), `price` (a smaller request costs less), `asked` (by the
    model), `branch` (the end of a branch) or `unreadable` (the model cannot read the summary of another one)."""
    rule: str = ""
    """The rule that decided it."""
    written_from: tuple[tuple[int, int], ...] = ()
    """Ranges of messages that the summary is a record of although they are not in its range: the caller has left
    them out, and they were rewound."""

    @property
    def takes_item_back(self) -> bool:
        """Whether it replaces a summary of the provider that the model cannot read."""
        return self.reason == UNREADABLE


class CompactionFailed(Fact, frozen=True, tag="compaction_failed"):
    """A summary of this range was attempted and failed. The view is unchanged.

    With a `cause`, a summariser failed, and an event before it records the summary that another one, or the ledger,
    has written instead.

    Examples:
        ```python
        from foveal import events

        fact = events.CompactionFailed(first=1, last=20, problem="no connection", by="gpt-4.1-mini")
        ```
    """

    first: int
    """The first seq of the range."""
    last: int
    """The last seq of the range, included."""
    problem: str
    """What failed, in words."""
    by: str = ""
    """The summariser that failed last."""
    cause: str = ""
    """How a summariser failed: `error`, `refused` or `rejected` (its drafts); "" if there is no summary."""
    metrics: Raw | UnsetType = UNSET
    """Measurements of the attempt."""
    reason: str = ""
    """The trigger, as in `Compacted`."""


class Expanded(Fact, frozen=True, tag="expanded"):
    """The steps of this range are shown in full until the next user message.

    Examples:
        ```python
        from foveal import events

        fact = events.Expanded(first=2, last=9)
        ```
    """

    first: int
    """The first seq of the range."""
    last: int
    """The last seq of the range, included."""


class Overflowed(Fact, frozen=True, tag="overflowed"):
    """A provider refused a request as too large, or silently cut it.

    Examples:
        ```python
        from foveal import events

        fact = events.Overflowed(model="gpt-4.1", limit=128_000, needed=131_500)
        ```
    """

    model: str
    """The model that refused."""
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
    """The provider's message."""


class ThinkingLeftOut(Fact, frozen=True, tag="thinking_left_out"):
    """Requests leave out all thinking before this event.

    Something in front of that thinking has changed. Most changes need no such event, because their own events say
    enough. It is for an answer to a request from before a change, and for a provider that has refused thinking.

    Examples:
        ```python
        from foveal import events

        fact = events.ThinkingLeftOut(problem="The block is bound to a different conversation.")
        ```
    """

    problem: str = ""
    """The provider's message; "" if no provider has refused thinking."""


class Reverted(Fact, frozen=True, tag="reverted"):
    """A reduction, an expansion, a pin, a supersession or a rewind is undone.

    Examples:
        ```python
        from foveal import events

        fact = events.Reverted(target=12)
        ```
    """

    target: int
    """The seq of the event that is undone."""


class Rewound(Fact, frozen=True, tag="rewound"):
    """Events after a place in the log no longer count.

    Examples:
        ```python
        from foveal import events

        fact = events.Rewound(to=8)
        ```
    """

    to: int
    """The seq of the last event that counts."""
    keep_state: bool = False
    """Whether pins, tools and text beside the messages stay, after an edit of the history."""
    keep_reductions: bool = False
    """Whether the reductions of the remaining messages stay."""
    show_dropped: bool = False
    """Whether dropped steps are shown again, because there is room for them."""


class Unknown(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A fact of a kind that this version does not know.

    It is kept byte for byte.

    Examples:
        ```python
        from foveal import events

        fact = events.Unknown(kind="voted", raw=events.raw({"kind": "voted"}))
        assert events.kind(fact) == "voted"
        ```
    """

    kind: str
    """The kind as the log has it."""
    raw: Raw
    """The fact as JSON."""
    version: int = FORMAT
    """The version of the line format."""


Reduction: TypeAlias = Clipped | Masked | Dropped | Compacted
"""A fact that reduces what the view shows."""
Known: TypeAlias = (
    Opened
    | Equipped
    | ToolsLoaded
    | Instructed
    | UserSaid
    | ModelSaid
    | ToolReturned
    | ForeignSummary
    | Pinned
    | Prioritised
    | Steered
    | Superseded
    | Noted
    | Used
    | SnapshotTaken
    | Branched
    | BranchEnded
    | Erased
    | Marked
    | Clipped
    | Masked
    | Dropped
    | Compacted
    | CompactionFailed
    | Expanded
    | Overflowed
    | ThinkingLeftOut
    | Reverted
    | Rewound
)
"""A fact of a kind that this version knows."""
AnyFact: TypeAlias = Known | Unknown
"""A fact of any kind."""

DIALOGUE_TYPES: Final = frozenset({UserSaid, ModelSaid, ToolReturned})
"""What user, model and tools said: most events. `type(fact) in DIALOGUE_TYPES` takes a twentieth of the time of
`isinstance`, which is slow for structs."""
REDUCTIONS: Final = (Clipped, Masked, Dropped, Compacted)
"""The types of `Reduction`, for `isinstance`."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One fact and its position in the session.

    Examples:
        ```python
        import foveal

        event = foveal.Event(0, foveal.UserSaid(content="Hello."))
        assert event.handle == "e0"
        ```
    """

    seq: int
    """The number of the event in its session, from 0, without gaps."""
    fact: AnyFact
    """What happened."""
    at: float | None = None
    """Unix time of the append, if the writer has a clock."""

    @property
    def handle(self) -> str:
        """The name of the event, such as `e12`."""
        return handle(self.seq)


def handle(seq: int) -> str:
    """Return the name of an event in placeholders, markers and tools.

    Args:
        seq: The seq of the event.

    Examples:
        ```python
        from foveal import events

        assert events.handle(12) == "e12"
        ```
    """
    return f"e{seq}"


def parse_handle(name: str | int) -> int | None:
    """Return the seq that a handle names.

    Args:
        name: `e12`, `#e12` or `12`, as text or as a number.

    Returns:
        The seq; None for any other text.

    Examples:
        ```python
        from foveal import events

        assert events.parse_handle("#e12") == 12
        ```
    """
    found = _HANDLE.fullmatch(str(name).strip())
    return int(found.group(1)) if found else None


def kind(fact: AnyFact) -> str:
    """Return the kind of a fact as the log stores it.

    Args:
        fact: Any fact.

    Examples:
        ```python
        import foveal

        assert foveal.events.kind(foveal.UserSaid(content="Hello.")) == "user_said"
        ```
    """
    return fact.kind if isinstance(fact, Unknown) else cast(str, type(fact).__struct_config__.tag)


# ── Opaque bytes ───────────────────────────────────────────────────────────────────────────────────────


def raw(value: Any) -> Raw:
    """Encode a JSON value as opaque bytes.

    Args:
        value: Any value that JSON has.

    Raises:
        TypeError: JSON cannot hold the value.

    Examples:
        ```python
        from foveal import events

        data = events.raw({"commit": "4f2a"})
        ```
    """
    try:
        return Raw(msgspec.json.encode(value))
    except UnicodeEncodeError:
        return Raw(json.dumps(value).encode())


def unraw(value: Raw) -> Any:
    """Decode opaque bytes.

    Each call returns a new value, so a caller cannot change the log through it.

    Args:
        value: Bytes that `raw` returned.

    Examples:
        ```python
        from foveal import events

        assert events.unraw(events.raw([1, 2])) == [1, 2]
        ```
    """
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return json.loads(bytes(value))


def extras(value: Raw | UnsetType) -> Mapping[str, Any]:
    """Return the fields of an `extra`, or an empty mapping.

    Args:
        value: The field `extra` of a fact or part.

    Examples:
        ```python
        import foveal

        fact = foveal.UserSaid(content="Hello.")
        assert foveal.events.extras(fact.extra) == {}
        ```
    """
    return {} if value is UNSET else cast(Mapping[str, Any], unraw(value))


# ── Content ────────────────────────────────────────────────────────────────


def parts(content: Content) -> tuple[AnyPart, ...]:
    """Return the parts of a content; a plain text is one part.

    Args:
        content: The content of a message.

    Examples:
        ```python
        from foveal import events

        assert events.parts("Hello.") == (events.Text(text="Hello."),)
        ```
    """
    return (Text(text=content),) if isinstance(content, str) else content


def text_of(content: Content) -> str:
    """Return the plain text of a content, without opaque parts.

    Args:
        content: The content of a message.

    Examples:
        ```python
        from foveal import events

        assert events.text_of((events.Text(text="Hello."),)) == "Hello."
        ```
    """
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, Text))


def calls_of(content: Content) -> tuple[tuple[int, Call], ...]:
    """Return the calls of a model message, each with its index among the parts.

    Args:
        content: The content of the message.

    Examples:
        ```python
        from foveal import events

        assert events.calls_of("Hello.") == ()
        ```
    """
    if isinstance(content, str):
        return ()
    return tuple((place, part) for place, part in enumerate(content) if isinstance(part, Call))
