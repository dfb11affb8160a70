"""The OpenAI Responses dialect: reading and writing items.

Each variety of call has its own type of item, and so has its result. A run of the model's items (reasoning,
assistant messages, calls, actions of server tools) gives one fact, so reasoning is never separated from the item
that it belongs to; every other item gives one fact. Legal items that are read and written back are unchanged, with
these exceptions:

1. reasoning that no item follows is not sent again, because the provider refuses it;
2. an empty text beside calls is left out;
3. arguments that were given as an object come back as text.

The extra fields of a text record the structure around it: the first text of an assistant message has the message's
fields under `item`, and a text that was part of a list has its `type`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

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
    Opaque,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    extras,
    unraw,
)
from foveal.core.wire.common import (
    TEXT_OR_PARTS,
    BadField,
    Json,
    MessageChunk,
    arguments_text,
    function_arguments,
    given_value,
    indexed_from,
    is_native,
    json_text,
    media_notice,
    native_dialect,
    other_fields,
    raw_json,
    read_at,
    read_list,
    read_media,
    readable_summary,
    required_content,
    required_string,
    unknown_role,
    write_content,
)
from foveal.core.wire.media import media_source

OPENAI_RESPONSES: Final[Dialect] = "openai_responses"
CUSTOM_CALL: Final = "custom_tool_call"
NATIVE_CALLS: Final = frozenset({"local_shell_call", "shell_call", "computer_call", "apply_patch_call"})
"""Types of calls, run by the client, that have their own type of item."""

BLANK_IMAGE_URL: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
)
"""One transparent pixel: the result of a computer call must be an image, even if none is shown."""
STDERR_FIELDS: Final = {"stream": "stderr"}
APPROVAL_REQUEST: Final = "mcp_approval_request"
"""A request to approve a call that the provider runs itself; also the variety of the call in the log."""
APPROVAL_TYPE: Final = "mcp_approval_response"
"""The answer to an approval request: its result, so that no reduction separates the two."""
ADDITIONAL_TOOLS_TYPE: Final = "additional_tools"
SETTING_TYPES: Final = frozenset({ADDITIONAL_TOOLS_TYPE, "configuration_update"})
"""Types of items that hold for all later turns. No reduction hides them."""
COMPACTION_TYPES: Final = frozenset({"compaction", "compaction_summary"})
"""Types of items that stand for all items before them. Codex has called them `compaction_summary`."""
_WHOLE_ITEMS: Final = SETTING_TYPES | {APPROVAL_TYPE}
"""Types of items that are the only part of a message in the log; earlier versions recorded an approval so."""
_SUCCESS_OUTCOME: Final = {"type": "exit", "exit_code": 0}


def write(fact: AnyFact) -> list[Json]:
    """Return the items of one fact; none for facts that no model sees."""
    match fact:
        case ToolReturned():
            return _write_result(fact, same_dialect=is_native(fact, OPENAI_RESPONSES))
        case ModelSaid():
            return _write_model_items(fact)
        case UserSaid():
            return [_write_message("user", fact)]
        case Instructed() if not fact.aside:
            return [_write_message(fact.role, fact)]
        case ForeignSummary() if fact.dialect == OPENAI_RESPONSES:
            return [unraw(fact.native)]
        case ForeignSummary() if (summary := readable_summary(fact)) is not None:
            return [_write_message("user", summary)]
        case _:
            return []


def join(groups: Iterable[Sequence[Json]]) -> list[Json]:
    """Return the items of all steps as one list."""
    return list(chain.from_iterable(groups))


def _write_message(role: str, fact: UserSaid | Instructed) -> Json:
    content = fact.content
    if isinstance(content, str) and fact.extra is UNSET:
        return {"role": role, "content": content}
    same_dialect = is_native(fact, OPENAI_RESPONSES)
    if same_dialect and len(content) == 1 and isinstance(content[0], Opaque):
        native: Json = unraw(content[0].native)
        if native.get("type") in _WHOLE_ITEMS:
            return native
    extra = extras(fact.extra) if same_dialect else {}
    return {
        "role": role,
        "content": _write_content(content, same_dialect=same_dialect, allows_media=role == "user"),
        **extra,
    }


def _write_model_items(fact: ModelSaid) -> list[Json]:
    if isinstance(fact.content, str):
        return [{"role": "assistant", "content": fact.content}]
    same_dialect = is_native(fact, OPENAI_RESPONSES)
    items: list[Json] = []
    for part in _without_trailing_reasoning(fact.content):
        match part:
            case Text():
                _write_text(part, items, same_dialect=same_dialect)
            case Call():
                items.append(_write_call(part, same_dialect=same_dialect))
            case Thinking() | Opaque() if same_dialect:
                items.append(unraw(part.native))
            case _:
                pass
    return items


def _without_trailing_reasoning(content: Content) -> Sequence[AnyPart]:
    """Return the parts without the reasoning at the end, which the provider refuses."""
    end = len(content)
    while end and isinstance(content[end - 1], Thinking):
        end -= 1
    return content[:end]  # type: ignore[return-value]


def _write_text(part: Text, items: list[Json], *, same_dialect: bool) -> None:
    """Append the text to the last message if it belongs there, otherwise as a new message."""
    extra = dict(extras(part.extra)) if same_dialect else {}
    beside = extra.pop("item", None)
    if "type" not in extra:
        if part.text or beside is not None:  # otherwise the text beside the calls is empty
            items.append({"role": "assistant", "content": part.text, **(beside or {})})
        return
    words = {**extra, "refusal" if extra["type"] == "refusal" else "text": part.text}
    if beside is None and items and isinstance(items[-1].get("content"), list) and "role" in items[-1]:
        items[-1]["content"].append(words)
    else:
        items.append({"role": "assistant", "content": [words], **(beside or {})})


def _write_call(call: Call, *, same_dialect: bool) -> Json:
    if same_dialect and call.extra is not UNSET and call.variety in (*NATIVE_CALLS, APPROVAL_REQUEST):
        native: Json = unraw(call.extra)
        return native
    extra = extras(call.extra) if same_dialect else {}
    if same_dialect and call.variety == CUSTOM_CALL:
        body = {"type": "custom_tool_call", "name": call.name, "input": call.arguments}
    else:
        body = {"type": "function_call", "name": call.name, "arguments": function_arguments(call)}
    return {"call_id": call.id, **body, **extra}


# ── Results and content ────────────────────────────────────────────────────────────────────────────────────


def _write_result(fact: ToolReturned, *, same_dialect: bool) -> list[Json]:
    if fact.variety == "computer_call":
        return _write_screenshot(fact)
    if fact.variety == APPROVAL_REQUEST:  # nothing is approved that the user has not approved
        return [unraw(fact.extra)] if same_dialect and fact.extra is not UNSET else []
    extra = dict(extras(fact.extra)) if same_dialect else {}
    kind = fact.variety if fact.variety in NATIVE_CALLS or fact.variety == CUSTOM_CALL else "function_call"
    item: Json = {"type": f"{kind}_output", "call_id": fact.call_id}
    if fact.variety == "shell_call":
        item["output"] = _write_shell(fact.content)
    elif fact.content or fact.variety != "apply_patch_call":
        item["output"] = _write_content(fact.content, same_dialect=same_dialect, allows_media=True)
    if fact.variety == "apply_patch_call":
        item["status"] = "failed" if fact.error else "completed"
    item |= extra
    if item["call_id"] is None:
        del item["call_id"]
    return [item]


def _write_screenshot(fact: ToolReturned) -> list[Json]:
    """Write an image; a text in its place follows as a message, beside a blank image."""
    item: Json = {"type": "computer_call_output", "call_id": fact.call_id, **extras(fact.extra)}
    first = None if isinstance(fact.content, str) or not fact.content else fact.content[0]
    if isinstance(first, Media | Opaque):
        return [{**item, "output": unraw(first.native)}]
    words = fact.content if isinstance(fact.content, str) else getattr(first, "text", "")
    blank = {**item, "output": {"type": "computer_screenshot", "image_url": BLANK_IMAGE_URL}}
    return [blank, {"role": "user", "content": words}] if words else [blank]


def _write_shell(content: Content) -> list[Json]:
    entries: list[Json] = []
    for part in (Text(text=content),) if isinstance(content, str) else content:
        if not isinstance(part, Text):
            continue
        extra = extras(part.extra)
        if extra == STDERR_FIELDS and entries:
            entries[-1]["stderr"] = part.text
        else:
            entries.append({"outcome": dict(_SUCCESS_OUTCOME), **extra, "stdout": part.text, "stderr": ""})
    return entries


def _write_content(content: Content, *, same_dialect: bool, allows_media: bool) -> str | list[Json]:
    if isinstance(content, str):  # most content: skip the partial
        return content
    write_part = partial(_write_part, same_dialect=same_dialect, allows_media=allows_media)
    return write_content(content, write_part, text_type="input_text", join_texts=not same_dialect)


def _write_part(part: AnyPart, *, same_dialect: bool, allows_media: bool) -> Json | None:
    match part:
        case Text():
            return {"type": "input_text", "text": part.text, **(extras(part.extra) if same_dialect else {})}
        case Media() | Opaque() if same_dialect:
            native: Json = unraw(part.native)
            return native
        case Media():
            return _write_media(part, allows_media=allows_media) or {
                "type": "input_text",
                "text": media_notice(part),
            }
        case _:
            return None


def _write_media(part: Media, *, allows_media: bool) -> Json | None:
    """Return an image or file of another dialect, None if Responses has no form for it."""
    found = media_source(unraw(part.native))
    if found is not None and found.plain:
        return {"type": "input_text", "text": found.data}
    if found is None or not allows_media:
        return None
    if found.kind == "image":
        return {"type": "input_image", "image_url": found.data_url, "detail": "auto"}
    if found.kind == "file" and found.data:
        return {"type": "input_file", "filename": found.name or "file", "file_data": found.data_url}
    return {"type": "input_file", "file_url": found.url} if found.kind == "file" else None


_MESSAGE_FIELDS: Final = frozenset({"role", "content"})
_CALL_FIELDS: Final = frozenset({"type", "call_id", "name", "arguments"})
_CUSTOM_CALL_FIELDS: Final = frozenset({"type", "call_id", "name", "input"})
_NATIVE_CALL_FIELDS: Final = frozenset({"type", "id", "call_id", "status"})
_RESULT_TYPES: Final = {f"{variety}_output": variety for variety in (*NATIVE_CALLS, CUSTOM_CALL)} | {
    "function_call_output": "function",
    APPROVAL_TYPE: APPROVAL_REQUEST,
}
_MEDIA_TYPES: Final = frozenset({"input_image", "input_file", "input_audio", "computer_screenshot"})
_TEXT_FIELDS: Final = frozenset({"type", "text"})
_RESULT_FIELDS: Final = frozenset({"type", "call_id", "output", "answers"})


def read(messages: Sequence[object], start: int = 0) -> Iterator[MessageChunk]:
    """Yield one chunk for each run of the model's items and for every other item; raises `MalformedMessage`."""
    run: list[AnyPart] = []
    length = 0
    for index, message in indexed_from(messages, start):
        if type(message) is dict and message.get("role") == "assistant" and _is_plain(message):
            run.append(Text(text=message["content"]))
            length += 1
            continue
        item, kind = read_at(index, _with_kind, message)
        if kind == "model":
            run += read_at(index, _read_model_item, item)
            length += 1
            continue
        if length:
            yield MessageChunk(length, (_model_fact(run),))
            run, length = [], 0
        if kind == "summary":
            yield MessageChunk(1, (ForeignSummary(native=raw_json(item), dialect=OPENAI_RESPONSES),))
        elif kind == "plain":
            yield MessageChunk(1, (UserSaid(content=item["content"]),))
        elif kind == "said":
            yield MessageChunk(1, (read_at(index, _read_user_or_system, item),))
        else:
            yield MessageChunk(1, (read_at(index, _read_result, _with_call_id(item, messages, index)),))
    if length:
        yield MessageChunk(length, (_model_fact(run),))


def _is_plain(item: Mapping[str, Any]) -> bool:
    """Return whether a message has only a role and a text, as most have."""
    return len(item) == 2 and type(item.get("content")) is str


def _with_kind(item: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return an item with its kind: `model`, `result`, `said` (user or system), `plain` (a user text), or `summary`
    (made by the provider)."""
    if item.get("role") == "user" and _is_plain(item):
        return item, "plain"
    kind = item.get("type")
    if kind is None and "role" not in item and "id" not in item:
        raise BadField("type", "is missing")
    if kind is not None and not isinstance(kind, str):
        raise BadField("type", f"must be a string, not {given_value(kind)}")
    if kind == "message" or (kind is None and "role" in item):
        return item, "model" if item.get("role") == "assistant" else "said"
    if kind in _RESULT_TYPES:
        return item, "result"
    if kind in COMPACTION_TYPES and item.get("encrypted_content"):  # one without content says nothing
        return item, "summary"
    return item, "said" if kind in SETTING_TYPES else "model"


def _read_user_or_system(item: Mapping[str, Any]) -> UserSaid | Instructed:
    if item.get("type") in SETTING_TYPES:
        whole = (Opaque(native=raw_json(item)),)
        return Instructed(content=whole, role="developer", dialect=OPENAI_RESPONSES)
    content, extra = _read_content(item, "content"), other_fields(item, _MESSAGE_FIELDS)
    fact_dialect = native_dialect(OPENAI_RESPONSES, extra, () if isinstance(content, str) else content)
    match item.get("role"):
        case "user":
            return UserSaid(content=content, dialect=fact_dialect, extra=extra)
        case "system" | "developer" as role:
            return Instructed(
                content=content,
                role="developer" if role == "developer" else "system",
                dialect=fact_dialect,
                extra=extra,
            )
        case None:
            raise BadField("role", "is missing")
        case other:
            raise unknown_role(other, "Responses messages", "system, developer, user, assistant")


def _model_fact(run: list[AnyPart]) -> ModelSaid:
    first = run[0] if len(run) == 1 else None
    if isinstance(first, Text) and first.extra is UNSET:
        return ModelSaid(content=first.text)
    return ModelSaid(content=tuple(run), dialect=native_dialect(OPENAI_RESPONSES, UNSET, run))


def _read_model_item(item: Mapping[str, Any]) -> Sequence[AnyPart]:
    match item.get("type"):
        case "message" | None if "role" in item:
            return _read_assistant_texts(item)
        case "reasoning":
            return (Thinking(native=raw_json(item), text=_reasoning_text(item)),)
        case "function_call":
            return (_read_call(item, "arguments", "function", _CALL_FIELDS),)
        case "custom_tool_call":
            return (_read_call(item, "input", CUSTOM_CALL, _CUSTOM_CALL_FIELDS),)
        case variety if variety == APPROVAL_REQUEST:
            return (_read_approval_request(item),)
        case variety if variety in NATIVE_CALLS:
            return (_read_native_call(item, variety),)
        case _:
            return (Opaque(native=raw_json(item)),)


def _read_assistant_texts(item: Mapping[str, Any]) -> Sequence[AnyPart]:
    """Return the texts of an assistant message; a message with other parts is kept whole as `Opaque`."""
    content = item.get("content")
    if isinstance(content, str):
        extra = UNSET if item.keys() <= _MESSAGE_FIELDS else raw_json({"item": _other_message_fields(item)})
        return (Text(text=content, extra=extra),)
    parts = read_list(content, "content", dict, expected=TEXT_OR_PARTS)
    if not parts or not all(isinstance(part.get(_text_field(part)), str) for part in parts):
        return (Opaque(native=raw_json(item)),)
    return [_read_text(part, item if place == 0 else None) for place, part in enumerate(parts)]


def _text_field(part: Mapping[str, Any]) -> str:
    return "refusal" if part.get("type") == "refusal" else "text"


def _read_text(part: Mapping[str, Any], item: Mapping[str, Any] | None) -> Text:
    field = _text_field(part)
    required_string(part, "type")
    extra = {name: value for name, value in part.items() if name != field}
    if item is not None:
        extra["item"] = _other_message_fields(item)
    return Text(text=part[field], extra=raw_json(extra))


def _other_message_fields(item: Mapping[str, Any]) -> Json:
    return {name: value for name, value in item.items() if name not in _MESSAGE_FIELDS}


def _reasoning_text(item: Mapping[str, Any]) -> str:
    """Return the text of a reasoning item, as far as the provider reveals it."""
    found: list[str] = []
    for field in ("summary", "content"):
        words = [part.get("text") for part in read_list(item.get(field) or (), field, dict)]
        found += [text for text in words if isinstance(text, str)]
    return "\n".join(found)


def _read_call(item: Mapping[str, Any], field: str, variety: str, known: frozenset[str]) -> Call:
    return Call(
        id=required_string(item, "call_id"),
        name=required_string(item, "name"),
        arguments=arguments_text(item, field),
        variety=variety,
        extra=other_fields(item, known),
    )


def _read_native_call(item: Mapping[str, Any], variety: str) -> Call:
    """Read a call of a native type, kept whole; other dialects see it as a function call."""
    return Call(
        id=required_string(item, "call_id"),
        name=variety.removesuffix("_call"),
        arguments=json_text({name: value for name, value in item.items() if name not in _NATIVE_CALL_FIELDS}),
        variety=variety,
        extra=raw_json(item),
    )


def _read_approval_request(item: Mapping[str, Any]) -> Call:
    """Read a request to approve a call of the provider, kept whole; the approval is its result."""
    return Call(
        id=required_string(item, "id"),
        name=required_string(item, "name"),
        arguments=arguments_text(item, "arguments"),
        variety=APPROVAL_REQUEST,
        extra=raw_json(item),
    )


def _with_call_id(item: Mapping[str, Any], messages: Sequence[object], index: int) -> Mapping[str, Any]:
    """Add the call's id to a result that names the item of its call, as older local shell results do."""
    if item.get("call_id") is not None or item.get("type") != "local_shell_call_output":
        return item
    for place in range(index - 1, -1, -1):
        call, _ = read_at(place, _with_kind, messages[place])
        if call.get("type") == "local_shell_call" and call.get("id") == item.get("id"):
            return {**item, "answers": call.get("call_id")}
    return {**item, "answers": item.get("id")}


# ── Results and content ────────────────────────────────────────────────────────────────────────────────────


def _read_content(item: Mapping[str, Any], field: str) -> Content:
    content = required_content(item, field)
    return (
        content
        if isinstance(content, str)
        else tuple(read_list(content, field, _read_part, expected=TEXT_OR_PARTS))
    )


def _read_part(item: Mapping[str, Any]) -> AnyPart:
    kind = required_string(item, "type")
    if kind == "input_text":
        return Text(text=required_string(item, "text"), extra=other_fields(item, _TEXT_FIELDS))
    if kind in ("text", "output_text"):
        return Text(text=required_string(item, "text"), extra=other_fields(item, frozenset({"text"})))
    return read_media(item) if kind in _MEDIA_TYPES else Opaque(native=raw_json(item))


def _read_result(item: Mapping[str, Any]) -> ToolReturned:
    kind = required_string(item, "type")
    if kind == APPROVAL_TYPE:
        return _read_approval(item)
    variety = _RESULT_TYPES[kind]
    call_id = item.get("answers") or item.get("call_id")
    if not isinstance(call_id, str):
        raise BadField(
            "call_id", "is missing" if call_id is None else f"must be a string, not {given_value(call_id)}"
        )
    content, extra = _read_output(item, variety), _result_extra(item)
    return ToolReturned(
        call_id=call_id,
        content=content,
        error=item.get("status") == "failed",
        variety=variety,
        dialect=OPENAI_RESPONSES
        if variety != "function"
        else native_dialect(OPENAI_RESPONSES, extra, () if isinstance(content, str) else content),
        extra=extra,
    )


def _read_approval(item: Mapping[str, Any]) -> ToolReturned:
    reason = item.get("reason")
    decision = "approved" if item.get("approve") is True else "not approved"
    return ToolReturned(
        call_id=required_string(item, "approval_request_id"),
        content=f"{decision}: {reason}" if isinstance(reason, str) and reason else decision,
        variety=APPROVAL_REQUEST,
        dialect=OPENAI_RESPONSES,
        extra=raw_json(item),
    )


def _result_extra(item: Mapping[str, Any]) -> Any:
    """Return the other fields; a null `call_id` marks a result that did not have one."""
    if "answers" not in item:
        return other_fields(item, _RESULT_FIELDS)
    others = {name: value for name, value in item.items() if name not in _RESULT_FIELDS}
    return raw_json({**others, "call_id": None})


def _read_output(item: Mapping[str, Any], variety: str) -> Content:
    output = item.get("output")
    if variety == "shell_call" and not isinstance(output, str):
        entries = read_list(output, "output", _read_shell_entry)
        return tuple(part for parts in entries for part in parts)
    if variety == "computer_call" and not isinstance(output, str | list):
        return (read_media(output),) if isinstance(output, Mapping) else (Opaque(native=raw_json(output)),)
    if output is None and variety not in ("function", CUSTOM_CALL):  # optional in results of native calls
        return ()
    return _read_content(item, "output")


def _read_shell_entry(entry: Mapping[str, Any]) -> tuple[AnyPart, ...]:
    """Return the output of one command: a second text if it also wrote to stderr."""
    words = Text(
        text=required_string(entry, "stdout"), extra=other_fields(entry, frozenset({"stdout", "stderr"}))
    )
    stderr = entry.get("stderr")
    return (
        (words, Text(text=stderr, extra=raw_json(STDERR_FIELDS)))
        if isinstance(stderr, str) and stderr
        else (words,)
    )
