"""Facts as items of OpenAI Responses: each sort of call has a form of its own, and so has its result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from msgspec import UNSET

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Content,
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
from foveal.core.wire.common import Json, as_function, instead_of
from foveal.core.wire.media import source

CUSTOM: Final = "custom_tool_call"
NATIVE: Final = frozenset({"local_shell_call", "shell_call", "computer_call", "apply_patch_call"})
"""Calls that the client runs and that have a form of their own."""

BLANK: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
)
"""One transparent pixel: the result of a computer call must be a picture, even where none is shown."""
STDERR: Final = {"stream": "stderr"}
FROM_USER: Final = "mcp_approval_response"
"""The one item beside messages and results that is the user's."""
_CALM: Final = {"type": "exit", "exit_code": 0}


def write(fact: AnyFact) -> list[Json]:
    """The items of one fact; none for facts that no model sees."""
    match fact:
        case ToolReturned():
            return _write_result(fact, own=_own(fact))
        case ModelSaid():
            return _write_utterance(fact)
        case UserSaid():
            return [_write_said("user", fact)]
        case Instructed() if not fact.aside:
            return [_write_said(fact.role, fact)]
        case _:
            return []


def join(groups: Iterable[Sequence[Json]]) -> list[Json]:
    """The items of all steps as one list."""
    return list(chain.from_iterable(groups))


def _own(fact: UserSaid | Instructed | ModelSaid | ToolReturned) -> bool:
    return fact.dialect in ("", "openai_responses")


def _write_said(role: str, fact: UserSaid | Instructed) -> Json:
    content = fact.content
    if isinstance(content, str) and fact.extra is UNSET:
        return {"role": role, "content": content}
    own = _own(fact)
    if own and len(content) == 1 and isinstance(content[0], Opaque):
        native: Json = unraw(content[0].native)
        if native.get("type") == FROM_USER:
            return native
    extra = extras(fact.extra) if own else {}
    return {"role": role, "content": _write_content(content, own=own, seen=role == "user"), **extra}


def _write_utterance(fact: ModelSaid) -> list[Json]:
    if isinstance(fact.content, str):
        return [{"role": "assistant", "content": fact.content}]
    own = _own(fact)
    items: list[Json] = []
    for part in _without_loose_thoughts(fact.content):
        match part:
            case Text():
                _write_text(part, items, own=own)
            case Call():
                items.append(_write_call(part, own=own))
            case Thinking() | Opaque() if own:
                items.append(unraw(part.native))
            case _:
                pass
    return items


def _without_loose_thoughts(content: Content) -> Sequence[AnyPart]:
    """The parts up to the last that is not reasoning."""
    end = len(content)
    while end and isinstance(content[end - 1], Thinking):
        end -= 1
    return content[:end]  # type: ignore[return-value]


def _write_text(part: Text, items: list[Json], *, own: bool) -> None:
    """Begin a message with this text, or add it to the one that is being written."""
    extra = dict(extras(part.extra)) if own else {}
    beside = extra.pop("item", None)
    if "type" not in extra:
        if part.text or beside is not None:  # nothing was said beside the calls
            items.append({"role": "assistant", "content": part.text, **(beside or {})})
        return
    words = {**extra, "refusal" if extra["type"] == "refusal" else "text": part.text}
    if beside is None and items and isinstance(items[-1].get("content"), list) and "role" in items[-1]:
        items[-1]["content"].append(words)
    else:
        items.append({"role": "assistant", "content": [words], **(beside or {})})


def _write_call(call: Call, *, own: bool) -> Json:
    if own and call.variety in NATIVE and call.extra is not UNSET:
        native: Json = unraw(call.extra)
        return native
    extra = extras(call.extra) if own else {}
    if own and call.variety == CUSTOM:
        body = {"type": "custom_tool_call", "name": call.name, "input": call.arguments}
    else:
        body = {"type": "function_call", "name": call.name, "arguments": as_function(call)}
    return {"call_id": call.id, **body, **extra}


# ── results and contents ────────────────────────────────────────────────────────────────────────────────────


def _write_result(fact: ToolReturned, *, own: bool) -> list[Json]:
    if fact.variety == "computer_call":
        return _write_screenshot(fact)
    extra = dict(extras(fact.extra)) if own else {}
    kind = fact.variety if fact.variety in NATIVE or fact.variety == CUSTOM else "function_call"
    item: Json = {"type": f"{kind}_output", "call_id": fact.call_id}
    if fact.variety == "shell_call":
        item["output"] = _write_shell(fact.content)
    elif fact.content or fact.variety != "apply_patch_call":
        item["output"] = _write_content(fact.content, own=own, seen=True)
    if fact.variety == "apply_patch_call":
        item["status"] = "failed" if fact.error else "completed"
    item |= extra
    if item["call_id"] is None:
        del item["call_id"]
    return [item]


def _write_screenshot(fact: ToolReturned) -> list[Json]:
    """A picture; words in its place follow as a message, because the picture can only be blank."""
    item: Json = {"type": "computer_call_output", "call_id": fact.call_id, **extras(fact.extra)}
    first = None if isinstance(fact.content, str) or not fact.content else fact.content[0]
    if isinstance(first, Media | Opaque):
        return [{**item, "output": unraw(first.native)}]
    words = fact.content if isinstance(fact.content, str) else getattr(first, "text", "")
    blank = {**item, "output": {"type": "computer_screenshot", "image_url": BLANK}}
    return [blank, {"role": "user", "content": words}] if words else [blank]


def _write_shell(content: Content) -> list[Json]:
    entries: list[Json] = []
    for part in (Text(text=content),) if isinstance(content, str) else content:
        if not isinstance(part, Text):
            continue
        extra = extras(part.extra)
        if extra == STDERR and entries:
            entries[-1]["stderr"] = part.text
        else:
            entries.append({"outcome": dict(_CALM), **extra, "stdout": part.text, "stderr": ""})
    return entries


def _write_content(content: Content, *, own: bool, seen: bool) -> str | list[Json]:
    """Content for a role that sees pictures or not; only a text where it came from another dialect as texts."""
    if isinstance(content, str):
        return content
    items = [item for part in content if (item := _write_part(part, own=own, seen=seen)) is not None]
    if not own and all(item["type"] == "input_text" for item in items):
        return "\n".join(item["text"] for item in items)
    return items or ""


def _write_part(part: AnyPart, *, own: bool, seen: bool) -> Json | None:
    match part:
        case Text():
            return {"type": "input_text", "text": part.text, **(extras(part.extra) if own else {})}
        case Media() | Opaque() if own:
            native: Json = unraw(part.native)
            return native
        case Media():
            return _write_media(part, seen=seen) or {"type": "input_text", "text": instead_of(part)}
        case _:
            return None


def _write_media(part: Media, *, seen: bool) -> Json | None:
    """A picture or file from another dialect, None when Responses has no form for it."""
    found = source(unraw(part.native))
    if found is not None and found.plain:
        return {"type": "input_text", "text": found.data}
    if found is None or not seen:
        return None
    if found.kind == "image":
        return {"type": "input_image", "image_url": found.data_url, "detail": "auto"}
    if found.kind == "file" and found.data:
        return {"type": "input_file", "filename": found.name or "file", "file_data": found.data_url}
    return {"type": "input_file", "file_url": found.url} if found.kind == "file" else None
