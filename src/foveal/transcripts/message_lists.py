"""Transcripts that are lists of provider messages: two formats, and export of facts.

1. A message that no dialect allows becomes a note in its place; the messages around it are read.
2. Format `openai`: messages as clients keep them, of OpenAI chat, OpenAI Responses or Anthropic. A file is a JSON
   list of messages; an object with `messages` or `input` (a request, a line of a training or a batch file), perhaps
   with `system` or `instructions`, `tools`, `model`, `usage`; a list of such objects; or JSONL with one of these,
   or one message, per line. Lines of one message each form one conversation.
3. Format `data`: the recorded trajectories with which Foveal is measured, one conversation per line, in OpenAI chat
   messages. `meta.usage` holds what the provider reported, as rows of message index, prompt, cached and completion
   tokens; each row becomes a `Used` after its message. All other fields of a line go into one note at the end.
4. `write_messages` returns facts as messages of a dialect, to continue a conversation elsewhere.

The readers of other products use `MessageFeed` and the small functions below.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, Final, TypeAlias

from msgspec import Raw
from msgspec.structs import replace

from foveal.core.log.events import (
    AnyFact,
    Dialect,
    DialectName,
    Equipped,
    Event,
    Instructed,
    ModelSaid,
    Used,
    parts,
    raw,
)
from foveal.core.tokens.counter import counter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import fold
from foveal.core.view.request import copy_messages, render_view
from foveal.core.view.view import View
from foveal.core.wire import Wire, detect_dialect, wire_for
from foveal.core.wire.common import native_dialect
from foveal.core.wire.gemini import instruction_parts
from foveal.core.wire.usage import MAX_REPORTED_TOKENS, usage_or_none
from foveal.errors import MalformedMessage
from foveal.transcripts.jsonl import JsonLine, NotJson
from foveal.transcripts.transcript import (
    TimedFact,
    Transcript,
    TranscriptBuilder,
    TranscriptFormat,
    derive_title,
    parse_time,
    text_or_empty,
)

MESSAGE_ERRORS: Final = (MalformedMessage, ValueError, TypeError, OverflowError, RecursionError)
"""What `Wire.read` can raise for a malformed message."""
RESPONSES_ITEM_TYPES: Final = frozenset(
    {"message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
     "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call",
     "apply_patch_call_output", "web_search_call", "image_generation_call", "mcp_tool_call", "mcp_call",
     "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "tool_search_call", "tool_search_output",
     "additional_tools", "configuration_update", "compaction", "compaction_summary"}
)  # fmt: skip
"""Types of OpenAI Responses items, and those that Codex adds."""


# ── Messages to facts ────────────────────────────────────────────────────────────────────────────────────


def to_json_text(value: object) -> str:
    """Return a JSON value as text."""
    try:
        return bytes(raw(value)).decode()
    except (ValueError, TypeError, OverflowError, RecursionError):
        try:
            return json.dumps(value)
        except (ValueError, TypeError, RecursionError):
            return repr(value)[:10_000]


def to_raw(value: object) -> Raw | None:
    """Return a JSON value as bytes, None if it cannot be serialised."""
    try:
        return raw(value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _read_runs(dialect: Wire, messages: Sequence[object]) -> Iterator[tuple[int, tuple[AnyFact, ...] | None]]:
    """Yield each chunk's number of messages and its facts; None for a message that cannot be read."""
    try:
        chunks = [(chunk.messages, chunk.facts) for chunk in dialect.read(messages)]
    except MESSAGE_ERRORS:
        chunks = []
    if chunks or not messages:
        yield from chunks
        return
    # At least one message is malformed: read the others in runs.
    for good, run in groupby(messages, lambda message: _is_readable(dialect, message)):
        if good:
            yield from ((chunk.messages, chunk.facts) for chunk in dialect.read(list(run)))
        else:
            yield from ((1, None) for _ in run)


def _is_readable(dialect: Wire, message: object) -> bool:
    try:
        return all(chunk.facts for chunk in dialect.read((message,)))
    except MESSAGE_ERRORS:
        return False


class MessageFeed:
    """Adds messages one by one to a transcript.

    A run of OpenAI Responses items of the model is one utterance, which is added when another message follows.
    Facts that come between its items are added after it."""

    def __init__(self, builder: TranscriptBuilder, dialect: Wire) -> None:
        self.builder = builder
        self.dialect = dialect
        self._run: list[object] = []
        self._at: float | None = None
        self._beside: list[TimedFact] = []

    def add(self, message: object, *, at: float | None = None) -> bool:
        """Add the next message; False if it is malformed."""
        facts = self._facts((message,))
        if facts is None:
            return False
        if self.dialect.dialect == "openai_responses" and isinstance(facts[0], ModelSaid):
            self._at = at if not self._run else self._at
            self._run.append(message)
        else:
            self.flush()
            self.builder.add(*facts, at=at)
        return True

    def add_beside(self, *facts: AnyFact, at: float | None = None) -> None:
        """Add facts that are not messages; they do not end an utterance."""
        if self._run:
            self._beside += [(fact, at) for fact in facts]
        else:
            self.builder.add(*facts, at=at)

    def add_unknown(self, line: bytes | str) -> None:
        """Add a line that was not understood, unchanged, as a note."""
        self.add_beside(self.builder.unknown_note(line))

    def flush(self) -> None:
        """Add the utterance that is still open, and the facts beside it."""
        if self._run:
            run, self._run = self._run, []
            self.builder.add(*(self._facts(run) or ()), at=self._at)
        self.builder.extend(self._beside)
        self._beside = []

    def _facts(self, messages: Sequence[object]) -> tuple[AnyFact, ...] | None:
        try:
            return tuple(fact for chunk in self.dialect.read(messages) for fact in chunk.facts) or None
        except MESSAGE_ERRORS:
            return None


UsageByIndex: TypeAlias = Mapping[int, Sequence[Used]]
"""Usage reports by the index of their message."""


def add_messages(
    builder: TranscriptBuilder,
    messages: Sequence[object],
    *,
    dialect: Dialect | None = None,
    usage: UsageByIndex | None = None,
) -> None:
    """Add the facts of a list of messages, each usage report after its message."""
    reader = wire_for(detect_dialect(messages) if dialect is None else dialect)
    index = 0
    for count, facts in _read_runs(reader, messages):
        if facts is None:
            builder.add_unknown(to_json_text(messages[index]))
        else:
            builder.add(*facts)
        for position in range(index, index + count):
            builder.add(*(usage or {}).get(position, ()))
        index += count


def _add_request_fields(builder: TranscriptBuilder, request: Mapping[str, Any]) -> None:
    """Add the fields beside the messages of a request: model, system text, tools."""
    builder.describe(model=text_or_empty(request.get("model")) or builder.model)
    for field in ("system", "instructions", "systemInstruction", "system_instruction"):
        if request.get(field):
            _add_system_text(builder, request[field])
    tools = request.get("tools")
    if isinstance(tools, list) and tools:
        serialised = to_raw(tools)
        if serialised is None:
            builder.add_unknown(to_json_text(tools))
        else:
            builder.add(Equipped(tools=serialised))


def _add_system_text(builder: TranscriptBuilder, text: object) -> None:
    """Add system text that is sent beside the messages."""
    try:
        blocks = instruction_parts(text)
        # Gemini's parts have the form of Bedrock's blocks.
        is_bedrock = detect_dialect((), system=blocks) == "bedrock"
        reader = wire_for("bedrock" if is_bedrock else "anthropic")
        (chunk,) = reader.read(({"role": "system", "content": blocks},))
        (fact,) = chunk.facts
        assert isinstance(fact, Instructed)
        dialect = native_dialect(fact.dialect, fact.extra, parts(fact.content))
        builder.add(Instructed(content=fact.content, aside=True, dialect=dialect, extra=fact.extra))
    except MESSAGE_ERRORS:
        builder.add_unknown(to_json_text(text))


def usage_facts(builder: TranscriptBuilder, usage: object) -> tuple[Used, ...]:
    """Return the `Used` fact of a provider's usage report, if it has numbers."""
    fact = usage_or_none(usage, model=builder.model) if isinstance(usage, Mapping) else None
    return () if fact is None else (fact,)


# ── Format `openai` ──────────────────────────────────────────────────────────────────────────────────────

_MESSAGE_FIELDS: Final = ("messages", "input", "contents")


def _matches_message_list(value: Mapping[str, Any], kind: str) -> bool:
    return any(find_requests(value)) or "role" in value or kind in RESPONSES_ITEM_TYPES


def _read_message_list(lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]:
    loose: list[tuple[JsonLine, Any]] = []  # lines of one message each, and lines that are not understood
    number = 0
    for line in lines:
        try:
            value = line.parse()
        except NotJson:
            loose.append((line, NotJson))
            continue
        requests = list(find_requests(value))
        if not requests:
            loose.append((line, value))
        for request in requests:
            number += 1
            yield _read_request(request, path, f"{stem}:{number}" if number > 1 else stem)
    if loose:
        yield _read_loose_messages(loose, path, stem if not number else f"{stem}:rest")


def find_requests(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the requests in a JSON value; none if it is a single message or has no messages."""
    if isinstance(value, list):
        nested = [list(find_requests(item)) for item in value]
        if value and all(nested):
            yield from chain.from_iterable(nested)
        elif value and all(isinstance(item, Mapping) for item in value):
            yield {"messages": value}
    elif isinstance(value, Mapping):
        body = value.get("body")
        request = {**value, **body} if isinstance(body, Mapping) else value
        if any(isinstance(request.get(field), list) for field in _MESSAGE_FIELDS):
            yield request


def _read_request(request: Mapping[str, Any], path: str, id: str) -> Transcript:
    builder = TranscriptBuilder(MESSAGE_LIST.name, path)
    builder.describe(id=text_or_empty(request.get("id")) or text_or_empty(request.get("custom_id")))
    _add_request_fields(builder, request)
    for field in (*_MESSAGE_FIELDS, "output"):
        if isinstance(request.get(field), list):
            add_messages(builder, request[field])
    builder.add(*usage_facts(builder, request.get("usage")), at=parse_time(request.get("created")))
    builder.describe(title=text_or_empty(request.get("title")) or derive_title(builder.facts))
    return builder.build(id)


def _read_loose_messages(lines: list[tuple[JsonLine, Any]], path: str, id: str) -> Transcript:
    """Read lines of one message each as one conversation."""
    builder = TranscriptBuilder(MESSAGE_LIST.name, path)
    feed = MessageFeed(
        builder, wire_for(detect_dialect([value for _, value in lines if isinstance(value, Mapping)]))
    )
    for line, value in lines:
        if not isinstance(value, Mapping) or not feed.add(value):
            feed.add_unknown(line.raw)
    feed.flush()
    builder.describe(title=derive_title(builder.facts))
    return builder.build(id)


MESSAGE_LIST: Final = TranscriptFormat("openai", _matches_message_list, _read_message_list)


# ── Format `data` ────────────────────────────────────────────────────────────────────────────────────────


def _matches_dataset(value: Mapping[str, Any], kind: str) -> bool:
    return isinstance(value.get("messages"), list) and {"id", "source", "meta"} <= value.keys()


def _read_dataset(lines: Iterable[JsonLine], path: str, stem: str) -> Iterator[Transcript]:
    for line in lines:
        builder = TranscriptBuilder(DATASET.name, path)
        row = line.parse_object()
        if row is None or not isinstance(row.get("messages"), list):
            builder.add_unknown(line.raw)
        else:
            _add_dataset_row(builder, row)
        yield builder.build(f"{stem}:{line.number}")


def _add_dataset_row(builder: TranscriptBuilder, row: Mapping[str, Any]) -> None:
    given = row.get("meta")
    meta: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    builder.describe(id=text_or_empty(row.get("id")))
    builder.describe(title=text_or_empty(meta.get("task")) or builder.id)
    builder.describe(model=text_or_empty(meta.get("model")))
    usage = _usage_by_index(meta.get("usage"), builder.model)
    add_messages(builder, row["messages"], dialect="openai_chat", usage=usage)
    rest = {name: value for name, value in row.items() if name not in ("messages", "meta")}
    beside = {name: value for name, value in meta.items() if name != "usage" or not usage}
    builder.note("data", to_json_text({**rest, "meta": beside if isinstance(given, Mapping) else given}))


def _usage_by_index(rows: object, model: str) -> dict[int, list[Used]]:
    found: dict[int, list[Used]] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == 4 and all(map(_is_token_count, row)):
            index, prompt, cached, output = row
            cached = min(cached, prompt)
            fact = Used(input=prompt - cached, cache_read=cached, output=output, model=model)
            found.setdefault(index, []).append(fact)
    return found


def _is_token_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_REPORTED_TOKENS


DATASET: Final = TranscriptFormat("data", _matches_dataset, _read_dataset)


# ── Export ───────────────────────────────────────────────────────────────────────────────────────────────


def write_messages(facts: Iterable[AnyFact], dialect: DialectName) -> list[dict[str, Any]]:
    """Return the view of some facts as a legal list of messages.

    Reductions and rewinds apply, and calls without a result get one, as in every view. System text that is sent
    beside the messages comes first among them.

    Args:
        facts: The facts, numbered from 0.
        dialect: The dialect of the messages.

    Examples:
        ```python
        import foveal
        from foveal.transcripts import write_messages

        messages = write_messages([foveal.UserSaid(content="Hello.")], "openai_chat")
        assert messages == [{"role": "user", "content": "Hello."}]
        ```
    """
    log = [Event(seq, fact) for seq, fact in enumerate(facts)]
    return write_view(fold(log, MessageTokens(counter("estimate"))), dialect)


def write_view(view: View, dialect: DialectName) -> list[dict[str, Any]]:
    """Return what a view shows as a legal list of messages.

    System text that is sent beside the messages comes first among them.

    Args:
        view: The view.
        dialect: The dialect of the messages.

    Examples:
        ```python
        import foveal
        from foveal.core.tokens.counter import counter
        from foveal.core.tokens.message_tokens import MessageTokens
        from foveal.core.view.fold import fold
        from foveal.transcripts import write_view

        events = [foveal.Event(0, foveal.UserSaid(content="Hello."))]
        messages = write_view(fold(events, MessageTokens(counter("estimate"))), "anthropic")
        ```
    """
    target = wire_for(dialect)
    asides = [shown.fact for shown in view.asides.values() if isinstance(shown.fact, Instructed)]
    beside = [message for fact in asides for message in target.write(replace(fact, aside=False))]
    messages, _ = render_view(view, target)
    return copy_messages(target.join([beside, messages])) if beside else messages
