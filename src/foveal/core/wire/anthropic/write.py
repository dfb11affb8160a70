"""Facts as Anthropic messages: roles alternate, the user begins, ids differ within a message."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain
from re import compile as pattern
from typing import Any, Final

import msgspec
from msgspec import UNSET

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Instructed,
    Media,
    ModelSaid,
    Text,
    ToolReturned,
    UserSaid,
    extras,
    unraw,
)
from foveal.core.wire.common import Json, as_function, instead_of
from foveal.core.wire.media import source

OPENING: Final = "[The conversation continues from here.]"
"""What the user says where the first words would be the model's."""
_ID: Final = pattern(r"[a-zA-Z0-9_-]+")
_NOT_ID: Final = pattern(r"[^a-zA-Z0-9_-]")
_THOUGHTS: Final = ("thinking", "redacted_thinking")
_PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


# ── one fact ─────────────────────────────────────────────────────────────────────────────────────────────────


def write(fact: AnyFact) -> list[Json]:
    """The message of one fact; none when nothing of it may be sent."""
    match fact:
        case ToolReturned():
            return [{"role": "user", "content": [_write_result(fact)]}]
        case ModelSaid():
            return _write_said("assistant", fact)
        case UserSaid():
            return _write_said("user", fact)
        case Instructed() if not fact.aside:
            return _write_said("user", fact)
        case _:
            return []


def _own(fact: UserSaid | Instructed | ModelSaid | ToolReturned) -> bool:
    return fact.dialect in ("", "anthropic")


def _write_said(role: str, fact: UserSaid | Instructed | ModelSaid) -> list[Json]:
    own, content = _own(fact), fact.content
    if isinstance(content, str):
        blocks = "" if content.isspace() else content
    else:
        blocks = _write_parts(content, own=own, seen=role == "user")
        while blocks and blocks[-1]["type"] in _THOUGHTS:  # refused where nothing follows them
            blocks.pop()
    if not blocks:
        return []
    if fact.extra is UNSET or not own:
        return [{"role": role, "content": blocks}]
    return [{"role": role, "content": blocks, **extras(fact.extra)}]


def _write_result(fact: ToolReturned) -> Json:
    own, content = _own(fact), fact.content
    block: Json = {"type": "tool_result", "tool_use_id": legal_id(fact.call_id)}
    if isinstance(content, str):
        block["content"] = content
    elif blocks := _write_parts(content, own=own, seen=True):
        block["content"] = blocks
    if fact.error:
        block["is_error"] = True
    if own and fact.extra is not UNSET:
        block.update(extras(fact.extra))
    return block


def _write_parts(content: Iterable[AnyPart], *, own: bool, seen: bool) -> Any:
    return [block for part in content if (block := _write_part(part, own=own, seen=seen)) is not None]


def _write_part(part: AnyPart, *, own: bool, seen: bool) -> Json | None:
    match part:
        case Text():
            if not part.text or part.text.isspace():
                return None
            return {"type": "text", "text": part.text, **(extras(part.extra) if own else {})}
        case Call():
            extra = extras(part.extra) if own else {}
            given = _object(as_function(part))
            return {"type": "tool_use", "id": legal_id(part.id), "name": part.name, "input": given, **extra}
        case Media() if not own:
            return (_write_media(part) if seen else None) or {"type": "text", "text": instead_of(part)}
        case _ if own:
            native: Json = unraw(part.native)
            return native
        case _:
            return None


def _object(arguments: str) -> Json:
    """Arguments as the object that Anthropic demands; what is none stays readable inside one."""
    if not arguments.strip():
        return {}
    try:
        given = msgspec.json.decode(arguments)
    except RecursionError:
        return {"_raw": arguments}
    except (ValueError, UnicodeEncodeError):
        given = _escaped(arguments)
    return given if isinstance(given, dict) else {"_raw": arguments}


def _escaped(arguments: str) -> Any:
    """JSON with escapes that are not valid Unicode, which only the standard library reads."""
    try:
        return json.loads(arguments, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def legal_id(name: str) -> str:
    """An id in the letters that Anthropic allows: always the same one for the same id, and no other's."""
    if _ID.fullmatch(name):
        return name
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{_NOT_ID.sub('_', name)[:40]}_{digest}"


def _write_media(part: Media) -> Json | None:
    """A picture or document from another dialect, None when Anthropic has no form for it."""
    found = source(unraw(part.native))
    if found is None or found.kind == "audio":
        return None
    block = "image" if found.kind == "image" else "document"
    if found.url:
        return {"type": block, "source": {"type": "url", "url": found.url}}
    if found.mime in _PICTURES if block == "image" else found.mime == "application/pdf":
        given = {"type": "base64", "media_type": found.mime, "data": found.base64}
        return {"type": block, "source": given}
    return None


# ── all of them ─────────────────────────────────────────────────────────────────────────────────────────────


def join(groups: Iterable[Sequence[Json]]) -> list[Json]:
    """The messages of all steps as one legal list; the groups stay as they are."""
    joined: list[Json] = []
    last = ""
    fresh = False
    """The last message is ours to add to; a message of a group never is."""
    names: dict[str, list[str]] = {}
    for message in chain.from_iterable(groups):
        role = message["role"]
        if type(message["content"]) is list:
            message, names = _told_apart(message, names)
        if role != last:
            if not joined and role == "assistant":
                joined.append({"role": "user", "content": OPENING})
            joined.append(message)
            last, fresh = role, False
            continue
        if not fresh:
            joined[-1], fresh = {**joined[-1], "content": list(_blocks(joined[-1]))}, True
        _add(joined[-1], message)
    return joined


def _add(target: Json, message: Json) -> None:
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


def _told_apart(message: Json, names: dict[str, list[str]]) -> tuple[Json, dict[str, list[str]]]:
    """The message with an id of its own for each call, and its results likewise.

    `names` holds, for each repeated id of the calls before, the ids that its results still have to take.
    """
    if message["role"] == "user":
        return (_renamed(message, "tool_use_id", names) if names else message), names
    ids = [block["id"] for block in message["content"] if block.get("type") == "tool_use"]
    if len(ids) == len(set(ids)):
        return message, {}
    names = _distinct(ids)
    waiting = {name: list(taken) for name, taken in names.items()}
    return _renamed(message, "id", names), waiting


def _distinct(ids: list[str]) -> dict[str, list[str]]:
    """For each id that occurs more than once, one id for each time, derived from it."""
    taken = set(ids)
    names: dict[str, list[str]] = {}
    for name, count in Counter(ids).items():
        if count == 1:
            continue
        names[name] = [name]
        number = 2
        while len(names[name]) < count:
            if (other := f"{name}_{number}") not in taken:
                taken.add(other)
                names[name].append(other)
            number += 1
    return names


def _renamed(message: Json, field: str, names: dict[str, list[str]]) -> Json:
    blocks: list[Json] = []
    for block in message["content"]:
        left = names.get(block[field]) if block.get("type") in ("tool_use", "tool_result") else None
        blocks.append({**block, field: left.pop(0)} if left else block)
    return {**message, "content": blocks}
