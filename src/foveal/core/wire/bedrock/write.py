"""Writes facts as Bedrock Converse messages.

`write` gives the messages of one fact; `join` makes a legal list of them: roles alternate, the user speaks first,
tool results come first in their message, the call ids of a message differ, and so do the names of all documents.
A list ends with the assistant only if the facts do: some models continue an answer, the others refuse it.

Images and documents of other dialects are written as `bytes`, as boto3 takes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from re import compile as pattern
from typing import Any, Final

import msgspec
from msgspec import UNSET

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
    Text,
    ToolReturned,
    UserSaid,
    extras,
    parts,
    unraw,
)
from foveal.core.wire.bedrock.converse_bytes import decode_base64, restore_bytes
from foveal.core.wire.cache_marks import CACHE_POINT, is_cache_point
from foveal.core.wire.common import (
    OPENING_USER_TEXT,
    RESULT_MESSAGE_FIELDS,
    SYSTEM_ROLE,
    Json,
    arguments_object,
    derived_name,
    distinct_ids,
    function_arguments,
    is_native,
    media_notice,
    readable_summary,
    same_role,
)
from foveal.core.wire.media import BEDROCK_DOCUMENT_TYPES, BEDROCK_IMAGE_TYPES, media_source

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
