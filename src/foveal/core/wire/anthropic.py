"""The Anthropic Messages dialect: reading and writing messages.

`write` gives the messages of one fact; `join` makes a legal list of them: roles alternate, the user speaks first
unless a compaction block does, tool results come first in their message, and the call ids of a message differ.
System messages among the others stay as they were given, in their places.

`read` gives the facts of messages. Tool results are blocks of a user message, which becomes one `ToolReturned` per
result and one `UserSaid` for the other blocks. Legal messages that are read, written and joined are unchanged, with
these exceptions:

1. neighbouring messages of the same role become one message;
2. tool results come first in a message;
3. empty texts, empty messages, and thinking at the end of a message are left out;
4. an empty tool result has no content;
5. the fields of a reply other than role and content are not sent back.

For a model that binds thinking, 1 holds only for what follows tool results, and thinking at the end stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from re import compile as pattern
from typing import Any, Final

from msgspec import UNSET, Raw, UnsetType

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
    unraw,
)
from foveal.core.wire.cache_marks import CACHE_MARK
from foveal.core.wire.common import (
    OPENING_USER_TEXT,
    RESULT_MESSAGE_FIELDS,
    SYSTEM_ROLE,
    TEXT_OR_PARTS,
    BadField,
    Json,
    MessageChunk,
    arguments_object,
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
    required_content,
    required_string,
    same_role,
    unknown_role,
    with_message_fields,
)
from foveal.core.wire.media import media_source

ANTHROPIC_MESSAGES: Final[Dialect] = "anthropic"
COMPACTION_TYPE: Final = "compaction"
_LEGAL_ID: Final = pattern(r"[a-zA-Z0-9_-]+")
_ILLEGAL_ID_CHAR: Final = pattern(r"[^a-zA-Z0-9_-]")
_THINKING_TYPES: Final = ("thinking", "redacted_thinking")
_IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


# ── One fact ─────────────────────────────────────────────────────────────────────────────────────────────────


def write(fact: AnyFact) -> list[Json]:
    """Return the message of one fact; none if nothing of it may be sent."""
    return _write(fact, keeps_last_thinking=False)


def write_bound(fact: AnyFact) -> list[Json]:
    """Return the message of one fact for a model that binds thinking: that at the end of a message stays, because
    later thinking is valid only behind it."""
    return _write(fact, keeps_last_thinking=True)


def _write(fact: AnyFact, *, keeps_last_thinking: bool) -> list[Json]:
    if isinstance(fact, ToolReturned):
        block = _write_result(fact)
        return [{"role": "user", "content": [block], **block.pop(RESULT_MESSAGE_FIELDS, {})}]
    if isinstance(fact, ModelSaid):
        return _write_message("assistant", fact, keeps_last_thinking=keeps_last_thinking)
    if isinstance(fact, Instructed) and fact.dialect == ANTHROPIC_MESSAGES and not fact.aside:
        return _write_system(fact)
    if isinstance(fact, UserSaid) or (isinstance(fact, Instructed) and not fact.aside):
        return _write_message("user", fact)
    if isinstance(fact, ForeignSummary):
        return _write_summary(fact)
    return []


def _write_system(fact: Instructed) -> list[Json]:
    """Return a system message as it was given. Without content, it has settings for the turns after it."""
    content: Any = fact.content
    if not isinstance(content, str):
        content = _write_parts(content, same_dialect=True, allows_media=False)
    message = {"role": "system", "content": content, **extras(fact.extra)}
    if content == "":
        del message["content"]
    return [message] if len(message) > 1 else []


def _write_summary(fact: ForeignSummary) -> list[Json]:
    if fact.dialect != ANTHROPIC_MESSAGES:
        summary = readable_summary(fact)
        return [] if summary is None else _write_message("user", summary)
    marks = dict(extras(fact.extra))
    around = marks.pop("message", {})
    return [{"role": "assistant", "content": [{**unraw(fact.native), **marks}], **around}]


def _write_message(
    role: str, fact: UserSaid | Instructed | ModelSaid, *, keeps_last_thinking: bool = False
) -> list[Json]:
    content = fact.content
    if type(content) is str and fact.extra is UNSET:  # fast path: most messages are a role and a text
        return [{"role": role, "content": content}] if content and not content.isspace() else []
    same_dialect = is_native(fact, ANTHROPIC_MESSAGES)
    if isinstance(content, str):
        blocks = "" if content.isspace() else content
    else:
        blocks = _write_parts(content, same_dialect=same_dialect, allows_media=role == "user")
        # Models that do not bind thinking refuse it at the end.
        while not keeps_last_thinking and blocks and blocks[-1].get("type") in _THINKING_TYPES:
            blocks.pop()
    if not blocks:
        return []
    if fact.extra is UNSET or not same_dialect:
        return [{"role": role, "content": blocks}]
    return [{"role": role, "content": blocks, **extras(fact.extra)}]


def _write_result(fact: ToolReturned) -> Json:
    same_dialect, content = is_native(fact, ANTHROPIC_MESSAGES), fact.content
    block: Json = {"type": "tool_result", "tool_use_id": legal_id(fact.call_id)}
    if isinstance(content, str):
        block["content"] = content
    elif blocks := _write_parts(content, same_dialect=same_dialect, allows_media=True):
        block["content"] = blocks
    if fact.error:
        block["is_error"] = True
    if same_dialect and fact.extra is not UNSET:
        block.update(extras(fact.extra))
    return block


def _write_parts(content: Iterable[AnyPart], *, same_dialect: bool, allows_media: bool) -> Any:
    return [
        block
        for part in content
        if (block := _write_part(part, same_dialect=same_dialect, allows_media=allows_media)) is not None
    ]


def _write_part(part: AnyPart, *, same_dialect: bool, allows_media: bool) -> Json | None:
    match part:
        case Text():
            if not part.text or part.text.isspace():
                return None
            if part.extra is UNSET or not same_dialect:
                return {"type": "text", "text": part.text}
            return {"type": "text", "text": part.text, **extras(part.extra)}
        case Call():
            given = arguments_object(function_arguments(part))
            block = {"type": "tool_use", "id": legal_id(part.id), "name": part.name, "input": given}
            return block if part.extra is UNSET or not same_dialect else {**block, **extras(part.extra)}
        case Media() if not same_dialect:
            return (_write_media(part) if allows_media else None) or {
                "type": "text",
                "text": media_notice(part),
            }
        case _ if same_dialect:
            native: Json = unraw(part.native)
            return native
        case _:
            return None


def legal_id(name: str) -> str:
    """Return an id in the characters that Anthropic allows, always the same for the same id and unique to it."""
    return name if _LEGAL_ID.fullmatch(name) else derived_name(name, _ILLEGAL_ID_CHAR)


def _write_media(part: Media) -> Json | None:
    """Return an image or document of another dialect, None if Anthropic has no form for it."""
    found = media_source(unraw(part.native))
    if found is None or found.kind == "audio":
        return None
    block = "image" if found.kind == "image" else "document"
    if found.url:
        return {"type": block, "source": {"type": "url", "url": found.url}}
    if found.mime in _IMAGE_TYPES if block == "image" else found.mime == "application/pdf":
        given = {"type": "base64", "media_type": found.mime, "data": found.base64}
        return {"type": block, "source": given}
    return None


# ── All messages ─────────────────────────────────────────────────────────────────────────────────────────────


def merges_bound(before: Json, message: Json) -> bool:
    """Return whether `join_bound` makes one message of two: of a tool result or a compaction block, and what
    follows it. Thinking is bound to the messages before it, and the provider accepts neighbours of one role."""
    content = before.get("content")
    if before["role"] != message["role"] or type(content) is not list or not content:
        return False
    return content[-1].get("type") in ("tool_result", COMPACTION_TYPE)


def join(groups: Iterable[Sequence[Json]]) -> list[Json]:
    """Return the messages of all steps as one legal list; the groups are not changed."""
    return _join(groups, same_role)


def join_bound(groups: Iterable[Sequence[Json]]) -> list[Json]:
    """Return the messages of all steps as one legal list for a model that binds thinking; the groups are not
    changed."""
    return _join(groups, merges_bound)


def _join(groups: Iterable[Sequence[Json]], merges: Callable[[Json, Json], bool]) -> list[Json]:
    joined: list[Json] = []
    last: Json = {"role": ""}
    fresh = False  # whether the last message is a copy and may be changed; messages of a group may not
    has_begun = False
    names: dict[str, list[str]] = {}
    for message in chain.from_iterable(groups):
        role, content = message["role"], message.get("content")
        if type(content) is list and (names or (role == "assistant" and len(content) > 1)):
            message, names = _with_distinct_ids(message, names)
        is_merged = merges(last, message)
        last = message
        if not is_merged:
            if role == "assistant" and not has_begun and not _begins_with_summary(message):
                joined.append({"role": "user", "content": OPENING_USER_TEXT})
            joined.append(message)
            fresh, has_begun = False, has_begun or role != SYSTEM_ROLE
            continue
        if not fresh:
            joined[-1], fresh = {**joined[-1], "content": list(_blocks(joined[-1]))}, True
        _append(joined[-1], message)
    return joined


def _begins_with_summary(message: Json) -> bool:
    """Return whether a message begins with a compaction block, which the provider takes as the first of all."""
    content = message["content"]
    return type(content) is list and content[0].get("type") == COMPACTION_TYPE


def _append(target: Json, message: Json) -> None:
    blocks: list[Json] = target["content"]
    added = _blocks(message)
    if added[0].get("type") == "tool_result" and blocks[-1].get("type") != "tool_result":
        target["content"] = sorted((*blocks, *added), key=_after_results)
    else:
        blocks.extend(added)
    target.update((name, value) for name, value in message.items() if name not in target)


def _blocks(message: Json) -> Any:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _after_results(block: Json) -> bool:
    return block.get("type") != "tool_result"


def _with_distinct_ids(message: Json, names: dict[str, list[str]]) -> tuple[Json, dict[str, list[str]]]:
    """Return the message with a distinct id for each call, or with the ids of its results adapted.

    `names` holds, for each repeated id of the calls before, the new ids that its results have not taken yet.
    """
    if message["role"] == "user":
        return (_with_new_ids(message, "tool_use_id", names) if names else message), names
    ids = [block["id"] for block in message["content"] if block.get("type") == "tool_use"]
    if len(ids) == len(set(ids)):
        return message, {}
    names = distinct_ids(ids)
    untaken = {name: list(taken) for name, taken in names.items()}
    return _with_new_ids(message, "id", names), untaken


def _with_new_ids(message: Json, field: str, names: dict[str, list[str]]) -> Json:
    blocks: list[Json] = []
    for block in message["content"]:
        left = names.get(block.get(field, "")) if block.get("type") in ("tool_use", "tool_result") else None
        blocks.append({**block, field: left.pop(0)} if left else block)
    return {**message, "content": blocks}


_COMPACTION: Final = b'"compaction"'
_MESSAGE_FIELDS: Final = frozenset({"role", "content"})
_REPLY_FIELDS: Final = frozenset(
    {"id", "type", "role", "content", "model", "usage", "container", "context_management",
     "stop_reason", "stop_sequence", "stop_details"}
)  # fmt: skip
"""Fields of a whole reply; only role and content may be sent back."""
_TEXT_FIELDS: Final = frozenset({"type", "text"})
_CALL_FIELDS: Final = frozenset({"type", "id", "name", "input"})
_RESULT_FIELDS: Final = frozenset({"type", "tool_use_id", "content", "is_error"})


def read(messages: Sequence[object], start: int = 0) -> Iterator[MessageChunk]:
    """Yield one chunk for each message; raises `MalformedMessage`."""
    return read_each(messages, start, _read_message)


def _read_message(message: Mapping[str, Any]) -> tuple[AnyFact, ...]:
    role = message.get("role")
    if role == SYSTEM_ROLE:
        return (_read_system(message),)
    content: Any = required_content(message, "content")
    extra: Raw | UnsetType = UNSET
    if len(message) != 2 or role is None:  # else there are no other fields
        extra = other_fields(message, _REPLY_FIELDS if message.get("type") == "message" else _MESSAGE_FIELDS)
    if not isinstance(content, str):
        content = _read_blocks(content, role)
    match role:
        case "user":
            return _user_facts(content, extra)
        case "assistant":
            parts: Content = content if isinstance(content, str) else tuple(content)
            if not isinstance(parts, str) and any(map(_is_summary, parts)):
                return tuple(_split_at_summaries(parts, extra))
            return (_model_fact(parts, extra),)
        case None:
            raise BadField("role", "is missing")
        case other:
            raise unknown_role(other, "Anthropic messages", "user, assistant, system")


def _read_system(message: Mapping[str, Any]) -> Instructed:
    """Read a system message among the messages. It may have settings for the next turns instead of content."""
    extra = other_fields(message, _MESSAGE_FIELDS)
    has_settings = extra is not UNSET and any(value is not None for value in unraw(extra).values())
    is_bare = has_settings and message.get("content") is None
    content: Any = "" if is_bare else required_content(message, "content")
    if not isinstance(content, str):
        content = tuple(_read_blocks(content, SYSTEM_ROLE))
    return Instructed(content=content, dialect=ANTHROPIC_MESSAGES, extra=extra)


def _model_fact(parts: Content, extra: Raw | UnsetType) -> ModelSaid:
    listed = not isinstance(parts, str) and _is_list_of_texts(parts)
    return ModelSaid(content=parts, listed=listed, dialect=_native_dialect(extra, parts), extra=extra)


def _is_summary(part: AnyPart) -> bool:
    """Return whether a part is a compaction block with a summary. One without is a failed compaction, which the
    provider ignores."""
    return isinstance(part, Opaque) and _COMPACTION in bytes(part.native) and bool(_summary_text(part))


def _summary_text(part: Opaque) -> str:
    block = unraw(part.native)
    text = block.get("content") if block.get("type") == COMPACTION_TYPE else None
    return text if isinstance(text, str) else ""


def _split_at_summaries(parts: Sequence[AnyPart], extra: Raw | UnsetType) -> Iterator[AnyFact]:
    """Yield each compaction block as a fact of its own; the fields of the message go with the first fact."""
    for is_summary, run in groupby(parts, key=_is_summary):
        if not is_summary:
            yield _model_fact(tuple(run), extra)
            extra = UNSET
            continue
        for part in run:
            assert isinstance(part, Opaque)
            block = unraw(part.native)
            marks = {CACHE_MARK: block.pop(CACHE_MARK)} if CACHE_MARK in block else {}
            around = marks | ({} if extra is UNSET else {"message": unraw(extra)})
            native = raw_json(block) if marks else part.native
            rest = raw_json(around) if around else UNSET
            yield ForeignSummary(
                native=native, text=_summary_text(part), dialect=ANTHROPIC_MESSAGES, extra=rest
            )
            extra = UNSET


def _native_dialect(extra: Any, content: Content) -> Dialect:
    return native_dialect(ANTHROPIC_MESSAGES, extra, () if isinstance(content, str) else content)


def _user_facts(content: str | list[AnyPart | ToolReturned], extra: Any) -> tuple[AnyFact, ...]:
    if isinstance(content, str):
        return (UserSaid(content=content, dialect=_native_dialect(extra, ""), extra=extra),)
    if len(content) == 1 and isinstance(result := content[0], ToolReturned) and extra is UNSET:
        return (result,)  # fast path: one result
    results = [block for block in content if isinstance(block, ToolReturned)]
    if results and len(results) == len(content):
        return with_message_fields(results, extra, ANTHROPIC_MESSAGES)
    parts = tuple(block for block in content if not isinstance(block, ToolReturned))
    return (*results, UserSaid(content=parts, dialect=_native_dialect(extra, parts), extra=extra))


def _is_list_of_texts(parts: Sequence[AnyPart]) -> bool:
    for part in parts:  # a loop, because `all` takes longer for a few parts
        if not isinstance(part, Text):
            return False
    return bool(parts)


def _read_blocks(content: object, role: object) -> list[AnyPart | ToolReturned]:
    """Read the blocks of a message; raises `BadField` for a call that is not the assistant's and for a result that
    is not the user's."""
    blocks = read_list(content, "content", _read_block, expected=TEXT_OR_PARTS)
    for place, block in enumerate(blocks):
        if isinstance(block, ToolReturned) and role != "user":
            raise BadField(f"content[{place}].type", "a tool_result belongs into a message of the user")
        if isinstance(block, Call) and role != "assistant":
            raise BadField(f"content[{place}].type", "a tool_use belongs into a message of the assistant")
    return blocks


def _read_block(item: Mapping[str, Any]) -> AnyPart | ToolReturned:
    kind = item.get("type")
    if kind == "tool_use":  # calls and results first: most blocks of an agent's history
        return _read_call(item)
    return _read_result(item) if kind == "tool_result" else _read_part(item)


def _read_part(item: Mapping[str, Any]) -> AnyPart:
    match required_string(item, "type"):
        case "text":
            return Text(text=required_string(item, "text"), extra=other_fields(item, _TEXT_FIELDS))
        case "tool_use":
            return _read_call(item)
        case "thinking":
            return Thinking(native=raw_json(item), text=required_string(item, "thinking"))
        case "redacted_thinking":
            return Thinking(native=raw_json(item))
        case "image" | "document":
            return read_media(item)
        case _:
            return Opaque(native=raw_json(item))


def _read_call(item: Mapping[str, Any]) -> Call:
    id, name, arguments = item.get("id"), item.get("name"), item.get("input")
    if len(item) == 4 and type(id) is str and type(name) is str and type(arguments) is dict:
        return Call(id=id, name=name, arguments=json_text(arguments))  # fast path: no other fields
    id, name = required_string(item, "id"), required_string(item, "name")
    if arguments is None:
        raise BadField("input", "is missing")
    return Call(
        id=id,
        name=name,
        arguments=arguments if isinstance(arguments, str) else json_text(arguments),
        extra=other_fields(item, _CALL_FIELDS),
    )


def _read_result(item: Mapping[str, Any]) -> ToolReturned:
    call_id, blocks = item.get("tool_use_id"), item.get("content")
    if len(item) == 3 and type(call_id) is str and type(blocks) is str:
        return ToolReturned(call_id=call_id, content=blocks)  # fast path: no other fields
    if isinstance(blocks, str):
        content: Content = blocks
    else:
        content = (
            () if blocks is None else tuple(read_list(blocks, "content", _read_part, expected=TEXT_OR_PARTS))
        )
    extra = _result_extra(item)
    return ToolReturned(
        call_id=required_string(item, "tool_use_id"),
        content=content,
        error=item.get("is_error") is True,
        dialect=_native_dialect(extra, content),
        extra=extra,
    )


def _result_extra(item: Mapping[str, Any]) -> Any:
    """Return the other fields, and an `is_error` that is false, so that the result is written back as it came."""
    if item.get("is_error") is not False:
        return other_fields(item, _RESULT_FIELDS)
    others = {name: value for name, value in item.items() if name not in _RESULT_FIELDS}
    return raw_json({**others, "is_error": False})
