"""Writes facts as items of OpenAI Responses.

Each variety of call has its own type of item, and so has its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Final

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
    Json,
    function_arguments,
    is_native,
    media_notice,
    readable_summary,
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
