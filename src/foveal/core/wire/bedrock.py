"""The Bedrock Converse dialect: reading and writing messages.

`write` gives the messages of one fact; `join` makes a legal list of them: roles alternate, the user speaks first,
tool results come first in their message, the call ids of a message differ, and so do the names of all documents.
A list ends with the assistant only if the facts do: some models continue an answer, the others refuse it.

boto3 takes and returns `bytes` for images, documents and redacted reasoning; the JSON of the HTTP API has Base64
text there. The log keeps which of the two a value was: `bytes` become an object with one field, `BYTES_MARK`, and
come back as `bytes`; a text stays a text. Images and documents of other dialects are written as `bytes`.

`read` gives the facts of messages. A block has one field, which names its kind. Tool results are blocks of a user
message, which becomes one `ToolReturned` per result and one `UserSaid` for the other blocks. A `cachePoint` is not
a part of the content: the result or message before it keeps it as an extra field, with its place, so that moving it
does not count as an edit. Legal messages that are read, written and joined are unchanged, with these exceptions:

1. neighbouring messages of the same role become one message;
2. tool results come first in a message;
3. empty texts, empty messages, reasoning at the end of a message, and a `cachePoint` next to another are left out;
4. ids, names of tools and names of documents that Bedrock refuses are replaced.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from re import compile as pattern
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Content,
    Dialect,
    ForeignSummary,
    Instructed,
    Media,
    ModelSaid,
    Opaque,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    extras,
    parts,
    unraw,
)
from foveal.core.wire.cache_marks import CACHE_POINT, is_cache_point
from foveal.core.wire.common import (
    OPENING_USER_TEXT,
    RESULT_MESSAGE_FIELDS,
    SYSTEM_ROLE,
    TEXT_OR_PARTS,
    BadField,
    Json,
    MessageChunk,
    arguments_object,
    as_mapping,
    derived_name,
    distinct_ids,
    function_arguments,
    is_native,
    json_text,
    media_notice,
    native_dialect,
    other_fields,
    raw_json,
    read_each,
    read_list,
    read_media,
    readable_summary,
    required_string,
    same_role,
    unknown_role,
    with_message_fields,
)
from foveal.core.wire.media import BEDROCK_DOCUMENT_TYPES, BEDROCK_IMAGE_TYPES, BYTES_MARK, media_source


def mark_bytes(value: Any) -> Any:
    """Return a copy of a value with each `bytes` as an object that JSON can store."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {BYTES_MARK: b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {name: mark_bytes(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mark_bytes(inner) for inner in value]
    return value


def restore_bytes(value: Any) -> Any:
    """Return a copy of a stored value with its `bytes` restored."""
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(encoded := value.get(BYTES_MARK), str):
            restored = decode_base64(encoded)
            return value if restored is None else restored
        return {name: restore_bytes(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [restore_bytes(inner) for inner in value]
    return value


def decode_base64(text: str) -> bytes | None:
    """Return the bytes of a Base64 text, None if it is none."""
    try:
        return b64decode(text, validate=True)
    except (Error, ValueError):
        return None


BEDROCK_CONVERSE: Final[Dialect] = "bedrock"
CACHE_POINTS_FIELD: Final = "cachePoints"
"""Extra field of a fact: pairs of the number of parts before a `cachePoint` and its value."""
EMPTY_RESULT_TEXT: Final = "[no output]"
"""Text of a tool result that is blank, which Bedrock refuses."""
DOCUMENT_TEXT: Final = "[A document is attached.]"
"""Text beside a document in a message without any text, which Bedrock refuses."""
MAX_ID_CHARS: Final = 64
"""Characters of a call id and of the name of a tool."""
MAX_DOCUMENT_NAME_CHARS: Final = 200
_LEGAL_ID: Final = pattern(rf"[a-zA-Z0-9_.:-]{{1,{MAX_ID_CHARS}}}")
_ILLEGAL_ID_CHAR: Final = pattern(r"[^a-zA-Z0-9_-]")
_LEGAL_TOOL_NAME: Final = pattern(rf"[a-zA-Z0-9_-]{{1,{MAX_ID_CHARS}}}")
_ILLEGAL_DOCUMENT_CHARS: Final = pattern(r"[^a-zA-Z0-9\s()\[\]-]+")
_SPACES: Final = pattern(r"\s+")
_UNKNOWN_BLOCK: Final = "SDK_UNKNOWN_MEMBER"
"""What boto3 returns for a block that it does not know; its content is lost, and boto3 refuses to send it."""


# ── One fact ─────────────────────────────────────────────────────────────────────────────────────────────────


def write(fact: AnyFact) -> list[Json]:
    """Return the message of one fact; none if nothing of it may be sent."""
    return _write(fact, keeps_last_reasoning=False)


def write_bound(fact: AnyFact) -> list[Json]:
    """Return the message of one fact for a model that binds thinking: that at the end of a message stays, because
    later thinking is valid only behind it."""
    return _write(fact, keeps_last_reasoning=True)


def _write(fact: AnyFact, *, keeps_last_reasoning: bool) -> list[Json]:
    if isinstance(fact, ToolReturned):
        return [_write_result(fact)]
    if isinstance(fact, ModelSaid):
        return _write_message("assistant", fact, keeps_last_reasoning=keeps_last_reasoning)
    if isinstance(fact, UserSaid) or (isinstance(fact, Instructed) and not fact.aside):
        is_system = isinstance(fact, Instructed) and fact.dialect == BEDROCK_CONVERSE
        return _write_message(SYSTEM_ROLE if is_system else "user", fact)
    if isinstance(fact, ForeignSummary) and (summary := readable_summary(fact)) is not None:
        return _write_message("user", summary)
    return []


def _write_message(
    role: str, fact: UserSaid | Instructed | ModelSaid, *, keeps_last_reasoning: bool = False
) -> list[Json]:
    content = fact.content
    if type(content) is str and fact.extra is UNSET:  # fast path: most messages are one text
        return [{"role": role, "content": [{"text": content}]}] if content and not content.isspace() else []
    same_dialect = is_native(fact, BEDROCK_CONVERSE)
    fields = extras(fact.extra) if same_dialect else {}
    placed = list(_placed_blocks(content, same_dialect=same_dialect, allows_media=role == "user"))
    # Models that do not bind thinking refuse it at the end.
    while not keeps_last_reasoning and placed and "reasoningContent" in placed[-1][1]:
        placed.pop()
    if not placed:
        return []
    kinds = {kind for _, block in placed for kind in block}
    if "document" in kinds and "text" not in kinds:
        placed.append((len(content), {"text": DOCUMENT_TEXT}))
    blocks = _with_cache_points(placed, _cache_points(fields))
    others = {name: value for name, value in fields.items() if name != CACHE_POINTS_FIELD}
    return [{"role": role, "content": blocks, **others}]


def _write_result(fact: ToolReturned) -> Json:
    """Return a message with the result, and the `cachePoint` after it."""
    same_dialect = is_native(fact, BEDROCK_CONVERSE)
    fields = dict(extras(fact.extra)) if same_dialect else {}
    around, points = fields.pop(RESULT_MESSAGE_FIELDS, {}), _cache_points(fields)[-1:]
    written = [
        block
        for _, block in _placed_blocks(fact.content, same_dialect=same_dialect, allows_media=True)
        if "toolUse" not in block
    ]
    if not written and fact.content != ():
        written = [{"text": EMPTY_RESULT_TEXT}]
    result: Json = {"toolUseId": legal_id(fact.call_id), "content": written}
    if fact.error:
        result["status"] = "error"
    result.update((name, value) for name, value in fields.items() if name != CACHE_POINTS_FIELD)
    blocks = [{"toolResult": result}, *({CACHE_POINT: point} for _, point in points)]
    return {"role": "user", "content": blocks, **around}


def _cache_points(fields: Mapping[str, Any]) -> list[tuple[int, Json]]:
    """Return each `cachePoint` with the number of parts before it; what the log has in another form is left out."""
    found: Any = fields.get(CACHE_POINTS_FIELD)
    return [
        (point[0], point[1])
        for point in (found if isinstance(found, list) else ())
        if isinstance(point, list)
        and len(point) == 2
        and isinstance(point[0], int)
        and isinstance(point[1], dict)
    ]


def _with_cache_points(placed: list[tuple[int, Json]], points: list[tuple[int, Json]]) -> list[Json]:
    """Return the blocks with each `cachePoint` in its place; of neighbours the first is kept, and one whose blocks
    are all left out is left out too."""
    blocks: list[Json] = []
    waiting = list(points)
    for place, block in [*placed, (-1, None)]:
        while waiting and (block is None or waiting[0][0] <= place):
            at, point = waiting.pop(0)
            if (blocks and not is_cache_point(blocks[-1])) or (not blocks and at == 0 and block is not None):
                blocks.append({CACHE_POINT: point})
        if block is not None:
            blocks.append(block)
    return blocks


# ── Blocks ───────────────────────────────────────────────────────────────────────────────────────────────────


def _placed_blocks(content: Content, *, same_dialect: bool, allows_media: bool) -> Iterator[tuple[int, Json]]:
    """Yield the blocks of a content, each with its index among the parts."""
    for place, part in enumerate(parts(content)):
        block = _write_part(part, same_dialect=same_dialect, allows_media=allows_media)
        if block is not None and _UNKNOWN_BLOCK not in block:
            yield place, block


def _write_part(part: AnyPart, *, same_dialect: bool, allows_media: bool) -> Json | None:
    match part:
        case Text():
            if not part.text or part.text.isspace():
                return None
            if part.extra is UNSET or not same_dialect:
                return {"text": part.text}
            return _write_wrapped_text(part.text, extras(part.extra))
        case Call():
            call = {
                "toolUseId": legal_id(part.id),
                "name": legal_tool_name(part.name),
                "input": arguments_object(function_arguments(part)),
            }
            return {"toolUse": {**call, **extras(part.extra)} if same_dialect else call}
        case Media() if not same_dialect:
            return (_write_media(part) if allows_media else None) or {"text": media_notice(part)}
        case _ if same_dialect:
            native: Json = restore_bytes(unraw(part.native))
            return native
        case _:
            return None


def _write_wrapped_text(text: str, fields: Mapping[str, Any]) -> Json:
    """Return a text in the kind of block that it came in."""
    match fields:
        case {"json": True}:
            value = _parse_object(text)
            return {"text": text} if value is None else {"json": value}
        case {"guardContent": dict(rest)}:
            return {"guardContent": {"text": {"text": text, **rest}}}
        case {"citationsContent": dict(rest)}:
            return {"citationsContent": {"content": [{"text": text}], **restore_bytes(rest)}}
        case _:
            return {"text": text}


def _parse_object(text: str) -> Json | None:
    """Return the JSON object in a text, None if there is none: Bedrock refuses other values."""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def legal_id(name: str) -> str:
    """Return an id that Bedrock allows, always the same for the same id and unique to it."""
    return name if _LEGAL_ID.fullmatch(name) else derived_name(name, _ILLEGAL_ID_CHAR)


def legal_tool_name(name: str) -> str:
    """Return the name of a tool in a form that Bedrock allows: models also call tools that do not exist."""
    return name if _LEGAL_TOOL_NAME.fullmatch(name) else derived_name(name, _ILLEGAL_ID_CHAR)


def legal_document_name(name: str) -> str:
    """Return the name of a document in the characters that Bedrock allows."""
    cleaned = _SPACES.sub(" ", _ILLEGAL_DOCUMENT_CHARS.sub("-", name)).strip()
    return cleaned[:MAX_DOCUMENT_NAME_CHARS] or "document"


def _write_media(part: Media) -> Json | None:
    """Return an image or document of another dialect, None if Bedrock has no form for it: it reads no URLs, and few
    of its models take sound or video."""
    found = media_source(unraw(part.native))
    if found is None or not found.data:
        return None
    data = found.data.encode("utf-8", "replace") if found.plain else decode_base64(found.base64)
    formats = {"image": BEDROCK_IMAGE_TYPES, "file": BEDROCK_DOCUMENT_TYPES}.get(found.kind, {})
    format = next((name for name, mime in formats.items() if mime == found.mime), None)
    if not data or format is None:
        return None
    if found.kind == "image":
        return {"image": {"format": format, "source": {"bytes": data}}}
    return {
        "document": {"format": format, "name": legal_document_name(found.name), "source": {"bytes": data}}
    }


# ── All messages ─────────────────────────────────────────────────────────────────────────────────────────────


def join(groups: Iterable[Sequence[Json]]) -> list[Json]:
    """Return the messages of all steps as one legal list; the groups are not changed."""
    joined: list[Json] = []
    last: Json = {"role": ""}
    fresh = False  # whether the last message is a copy and may be changed; messages of a group may not
    has_begun = False
    new_ids: dict[str, list[str]] = {}
    document_names: set[str] = set()
    for message in chain.from_iterable(groups):
        role = message["role"]
        if new_ids or (role == "assistant" and len(message["content"]) > 1):
            message, new_ids = _with_distinct_ids(message, new_ids)
        if role == "user":
            message = _with_distinct_documents(message, document_names)
        is_merged, last = same_role(last, message), message
        if not is_merged:
            if role == "assistant" and not has_begun:
                joined.append({"role": "user", "content": [{"text": OPENING_USER_TEXT}]})
            joined.append(message)
            fresh, has_begun = False, has_begun or role != SYSTEM_ROLE
            continue
        if not fresh:
            joined[-1], fresh = {**joined[-1], "content": list(joined[-1]["content"])}, True
        _append(joined[-1], message)
    return joined


def _append(target: Json, message: Json) -> None:
    blocks: list[Json] = target["content"]
    added: list[Json] = message["content"]
    before = next((block for block in reversed(blocks) if not is_cache_point(block)), {})
    if "toolResult" in added[0] and "toolResult" not in before:
        target["content"] = _results_first([*blocks, *added])
    else:
        blocks.extend(_after(blocks, added))
    target.update((name, value) for name, value in message.items() if name not in target)


def _results_first(blocks: list[Json]) -> list[Json]:
    """Return the blocks with the tool results first; a `cachePoint` stays after its block."""
    results: list[Json] = []
    others: list[Json] = []
    current = others
    for block in blocks:
        if not is_cache_point(block):
            current = results if "toolResult" in block else others
        current.append(block)
    return [*results, *_after(results, others)]


def _after(before: list[Json], blocks: list[Json]) -> list[Json]:
    """Return the blocks to put after others: a `cachePoint` at their beginning adds nothing to one before it."""
    is_double = before and blocks and is_cache_point(before[-1]) and is_cache_point(blocks[0])
    return blocks[1:] if is_double else blocks


def _with_distinct_ids(message: Json, new_ids: dict[str, list[str]]) -> tuple[Json, dict[str, list[str]]]:
    """Return the message with a distinct id for each call, or with the ids of its results adapted.

    `new_ids` holds, for each repeated id of the calls before, the new ids that its results have not taken yet.
    """
    if message["role"] != "assistant":
        return (_with_new_ids(message, "toolResult", new_ids) if new_ids else message), new_ids
    ids = [id for block in message["content"] if (id := _call_id(block, "toolUse")) is not None]
    if len(ids) == len(set(ids)):
        return message, {}
    repeated = distinct_ids(ids, legal_id)
    untaken = {name: list(taken) for name, taken in repeated.items()}
    return _with_new_ids(message, "toolUse", repeated), untaken


def _with_new_ids(message: Json, kind: str, new_ids: dict[str, list[str]]) -> Json:
    blocks: list[Json] = []
    for block in message["content"]:
        left = new_ids.get(_call_id(block, kind) or "")
        blocks.append({kind: {**block[kind], "toolUseId": left.pop(0)}} if left else block)
    return {**message, "content": blocks}


def _call_id(block: Json, kind: str) -> str | None:
    """Return the id in a block of a call or result, None in other blocks and for tools that Bedrock runs itself."""
    value = block.get(kind)
    return value.get("toolUseId") if isinstance(value, dict) and "type" not in value else None


# ── Names of documents ───────────────────────────────────────────────────────────────────────────────────────


def _with_distinct_documents(message: Json, taken: set[str]) -> Json:
    """Return the message with names for its documents that are legal and not yet taken, and take them."""
    content = message["content"]
    if not any(map(_has_document, content)):
        return message
    blocks = [_with_document_names(block, taken) for block in content]
    return message if blocks == content else {**message, "content": blocks}


def _has_document(block: Json) -> bool:
    result = block.get("toolResult")
    if result is None:
        return isinstance(block.get("document"), dict)
    return any(map(_has_document, _result_content(result)))


def _result_content(result: Any) -> list[Json]:
    """Return the blocks of a tool result; that of a tool which Bedrock runs itself may have any form."""
    content = result.get("content") if isinstance(result, dict) else None
    return content if isinstance(content, list) and all(isinstance(one, dict) for one in content) else []


def _with_document_names(block: Json, taken: set[str]) -> Json:
    if not _has_document(block):
        return block
    if result := block.get("toolResult"):
        renamed = [_with_document_names(inner, taken) for inner in _result_content(result)]
        return {"toolResult": {**result, "content": renamed}}
    document = block["document"]
    return {"document": {**document, "name": _free_name(str(document.get("name", "")), taken)}}


def _free_name(given: str, taken: set[str]) -> str:
    """Return the name of a document, numbered if another document has it. Bedrock compares names in lower case."""
    name = legal = legal_document_name(given)
    number = 2
    while name.lower() in taken:
        name = f"{legal[: MAX_DOCUMENT_NAME_CHARS - 8]}-{number}"
        number += 1
    taken.add(name.lower())
    return name


T = TypeVar("T")

_MESSAGE_FIELDS: Final = frozenset({"role", "content", CACHE_POINTS_FIELD})
_CALL_FIELDS: Final = frozenset({"toolUseId", "name", "input"})
_RESULT_FIELDS: Final = frozenset({"toolUseId", "content", "status", CACHE_POINTS_FIELD})
_MEDIA_KINDS: Final = frozenset({"image", "document", "video", "audio"})


class _CachePoint(NamedTuple):
    """The value of a `cachePoint` block."""

    value: Json


_Block: TypeAlias = AnyPart | ToolReturned | _CachePoint
_PlacedPoint: TypeAlias = tuple[int, Json]
"""How many parts come before a `cachePoint`, and its value."""


def read(messages: Sequence[object], start: int = 0) -> Iterator[MessageChunk]:
    """Yield one chunk for each message from `start` on."""
    return read_each(messages, start, _read_message)


def _read_message(message: Mapping[str, Any]) -> tuple[AnyFact, ...]:
    role, content = message.get("role"), message.get("content")
    if content is None:
        raise BadField("content", "is missing")
    extra = other_fields(message, _MESSAGE_FIELDS)
    blocks: list[_Block] = (
        [Text(text=content)]
        if isinstance(content, str)
        else read_list(content, "content", _read_block, expected=TEXT_OR_PARTS)
    )
    _check_places(blocks, role)
    match role:
        case "user":
            return _user_facts(blocks, extra)
        case "assistant":
            content, extra, dialect = _said(blocks, extra)
            return (ModelSaid(content=content, dialect=dialect, extra=extra),)
        case "system":
            content, extra, _ = _said(blocks, extra)
            return (Instructed(content=content, dialect=BEDROCK_CONVERSE, extra=extra),)
        case None:
            raise BadField("role", "is missing")
        case other:
            raise unknown_role(other, "Bedrock messages", "user, assistant, system")


def _check_places(blocks: list[_Block], role: object) -> None:
    """Raise `BadField` for a call that is not the assistant's and for a result that is not the user's."""
    for place, block in enumerate(blocks):
        if isinstance(block, ToolReturned) and role != "user":
            raise BadField(f"content[{place}].toolResult", "belongs into a message of the user")
        if isinstance(block, Call) and role != "assistant":
            raise BadField(f"content[{place}].toolUse", "belongs into a message of the assistant")


# ── The blocks of a message ──────────────────────────────────────────────────────────────────────────────


def _said(blocks: list[_Block], extra: Raw | UnsetType) -> tuple[Content, Raw | UnsetType, Dialect]:
    """Return content, extra fields and dialect of a message without its tool results."""
    parts: list[AnyPart] = []
    points: list[_PlacedPoint] = []
    for block in blocks:
        if isinstance(block, _CachePoint):
            points.append((len(parts), block.value))
        elif not isinstance(block, ToolReturned):
            parts.append(block)
    extra = _with_points(extra, points)
    return _content(parts), extra, native_dialect(BEDROCK_CONVERSE, extra, parts)


def _user_facts(blocks: list[_Block], extra: Raw | UnsetType) -> tuple[AnyFact, ...]:
    if len(blocks) == 1 and isinstance(block := blocks[0], ToolReturned) and extra is UNSET:
        return (block,)  # fast path: one result
    results: list[ToolReturned] = []
    others: list[_Block] = []
    is_after_result = False
    for block in blocks:
        if isinstance(block, ToolReturned):
            results.append(block)
            is_after_result = True
        elif isinstance(block, _CachePoint) and is_after_result:
            results[-1] = _with_point_after(results[-1], block)
        else:
            others.append(block)
            is_after_result = False
    if results and all(isinstance(block, _CachePoint) for block in others):
        return with_message_fields(results, extra, BEDROCK_CONVERSE)
    content, extra, dialect = _said(others, extra)
    return (*results, UserSaid(content=content, dialect=dialect, extra=extra))


def _content(parts: list[AnyPart]) -> Content:
    """Return parts as content; a single text is plain text, because Bedrock has no other form of it."""
    if len(parts) == 1 and isinstance(part := parts[0], Text) and part.extra is UNSET:
        return part.text
    return tuple(parts)


def _with_points(extra: Raw | UnsetType, points: Sequence[_PlacedPoint]) -> Raw | UnsetType:
    return raw_json({**extras(extra), CACHE_POINTS_FIELD: points}) if points else extra


def _with_point_after(result: ToolReturned, point: _CachePoint) -> ToolReturned:
    return replace(result, extra=_with_points(result.extra, [(1, point.value)]), dialect=BEDROCK_CONVERSE)


# ── One block ────────────────────────────────────────────────────────────────────────────────────────────


def _read_block(item: Mapping[str, Any]) -> _Block:
    kind, value = _kind_and_value(item)
    match kind:
        case "toolUse":
            return _inside(kind, value, _read_call)
        case "toolResult":
            return _inside(kind, value, _read_result)
        case "cachePoint":
            return _CachePoint(dict(_inside(CACHE_POINT, value, as_mapping)))
        case "reasoningContent":
            return Thinking(native=_native(item), text=_inside(kind, value, _reasoning_text))
        case _:
            return _read_part(kind, value, item)


def _read_part(kind: str, value: Any, item: Mapping[str, Any]) -> AnyPart:
    """Read a block that a message and a tool result can have."""
    match kind:
        case "text":
            return Text(text=required_string(item, "text"))
        case _ if kind in _MEDIA_KINDS:
            return read_media({kind: mark_bytes(_inside(kind, value, as_mapping))})
        case "guardContent" if isinstance(value, Mapping) and "image" in value:
            return read_media(mark_bytes(item))
        case "guardContent":
            return _inside(kind, value, _read_guarded_text) or Opaque(native=_native(item))
        case "citationsContent":
            return _inside(kind, value, _read_cited_text) or Opaque(native=_native(item))
        case _:
            return Opaque(native=_native(item))


def _kind_and_value(item: Mapping[str, Any]) -> tuple[str, Any]:
    given = [(name, value) for name, value in item.items() if value is not None]
    if len(given) != 1:
        raise BadField("", f"must have one field, which names the kind of the block, not {len(given)}")
    return given[0]


def _inside(field: str, value: Any, reader: Callable[[Any], T]) -> T:
    """Read the value of a block; an error names the field."""
    try:
        return reader(as_mapping(value))
    except BadField as bad:
        raise bad.inside(field) from None


def _native(item: Mapping[str, Any]) -> Raw:
    return raw_json(mark_bytes(item))


def _reasoning_text(value: Mapping[str, Any]) -> str:
    thought = value.get("reasoningText")
    return (
        ""
        if thought is None
        else _inside("reasoningText", thought, lambda text: required_string(text, "text"))
    )


def _read_guarded_text(value: Mapping[str, Any]) -> Text | None:
    text = value.get("text")
    if not isinstance(text, Mapping) or not isinstance(text.get("text"), str):
        return None
    rest = {name: inner for name, inner in text.items() if name != "text"}
    return Text(text=text["text"], extra=raw_json({"guardContent": rest}))


def _read_cited_text(value: Mapping[str, Any]) -> Text | None:
    """Return an answer with citations as text, None if it is in several pieces."""
    match value.get("content"):
        case [{"text": str(text), **others}] if not others:
            rest = {name: inner for name, inner in value.items() if name != "content"}
            return Text(text=text, extra=raw_json({"citationsContent": mark_bytes(rest)}))
        case _:
            return None


def _read_call(value: Mapping[str, Any]) -> AnyPart:
    if value.get("type") == "server_tool_use":  # Bedrock runs it and puts its result into the same message
        return Opaque(native=_native({"toolUse": value}))
    id, name, arguments = (
        required_string(value, "toolUseId"),
        required_string(value, "name"),
        value.get("input"),
    )
    if arguments is None:
        raise BadField("input", "is missing")
    return Call(
        id=id,
        name=name,
        arguments=arguments if isinstance(arguments, str) else json_text(arguments),
        extra=other_fields(value, _CALL_FIELDS),
    )


# ── Tool results ─────────────────────────────────────────────────────────────────────────────────────────


def _read_result(value: Mapping[str, Any]) -> ToolReturned | Opaque:
    if value.get("type") is not None:  # of a tool that Bedrock ran
        return Opaque(native=_native({"toolResult": value}))
    call_id = required_string(value, "toolUseId")
    if value.get("content") is None:
        raise BadField("content", "is missing")
    parts = read_list(value["content"], "content", _read_result_block)
    extra, status = other_fields(value, _RESULT_FIELDS), value.get("status")
    if status is not None and status != "error":
        extra = raw_json({**extras(extra), "status": status})
    return ToolReturned(
        call_id=call_id,
        content=_content(parts),
        error=status == "error",
        dialect=native_dialect(BEDROCK_CONVERSE, extra, parts),
        extra=extra,
    )


def _read_result_block(item: Mapping[str, Any]) -> AnyPart:
    kind, value = _kind_and_value(item)
    if kind == "json":
        return Text(text=json_text(value), extra=raw_json({"json": True}))
    return _read_part(kind, value, item)
