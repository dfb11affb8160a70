"""Writes facts as Anthropic messages.

`write` gives the messages of one fact; `join` makes a legal list of them: roles alternate, the user speaks first
unless a compaction block does, tool results come first in their message, and the call ids of a message differ.
System messages among the others stay as they were given, in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from re import compile as pattern
from typing import Any, Final

from msgspec import UNSET

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Dialect,
    ForeignSummary,
    Instructed,
    Media,
    ModelSaid,
    Text,
    ToolReturned,
    UserSaid,
    extras,
    unraw,
)
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
            if role == "assistant" and not has_begun and not _is_summary(message):
                joined.append({"role": "user", "content": OPENING_USER_TEXT})
            joined.append(message)
            fresh, has_begun = False, has_begun or role != SYSTEM_ROLE
            continue
        if not fresh:
            joined[-1], fresh = {**joined[-1], "content": list(_blocks(joined[-1]))}, True
        _append(joined[-1], message)
    return joined


def _is_summary(message: Json) -> bool:
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
