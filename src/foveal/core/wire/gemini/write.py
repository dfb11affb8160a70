"""Writes facts as Gemini contents.

`write` gives the content of one fact; `join` makes a legal list of them: roles alternate, the user speaks first,
function responses come first in their content, and each has the name and the id of its call.

1. Signatures of thoughts are sent in the part they came in. The first call of a message from another dialect has
   none and gets `SKIPPED_SIGNATURE`. A call of Gemini without a signature is sent as it came: models before
   Gemini 3 give none. A signature belongs to the arguments that the model wrote: a call with masked arguments has
   `SKIPPED_SIGNATURE` in its place.
2. A list that ends with the model stays so, because only the caller knows what the user says next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    Text,
    ToolReturned,
    UserSaid,
    extras,
    parts,
    unraw,
)
from foveal.core.wire.common import (
    OPENING_USER_TEXT,
    RESULT_MESSAGE_FIELDS,
    Json,
    arguments_object,
    function_arguments,
    is_native,
    media_notice,
    readable_summary,
)
from foveal.core.wire.media import media_source

GEMINI_CONTENTS: Final[Dialect] = "gemini"
SKIPPED_SIGNATURE: Final = "skip_thought_signature_validator"
"""Stand-in that Google documents for the signature of a call that another model made."""
RESPONSE_FIELD: Final = "responseField"
"""Name in the `extra` of a result: the field of `response` that has the text, "" if the text is the whole of it."""
_SIGNATURE_NAMES: Final = ("thoughtSignature", "thought_signature")
_CALL_NAMES: Final = ("functionCall", "function_call")
_RESPONSE_NAMES: Final = ("functionResponse", "function_response")
_INLINE_TYPES: Final = frozenset(
    {"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "application/pdf",
     "audio/wav", "audio/mp3", "audio/mpeg", "audio/aiff", "audio/aac", "audio/ogg", "audio/flac"}
)  # fmt: skip


# ── One fact ─────────────────────────────────────────────────────────────────────────────────────────────────


def write(fact: AnyFact) -> list[Json]:
    """Return the content of one fact; none if nothing of it may be sent."""
    if isinstance(fact, ToolReturned):
        part = _write_result(fact)
        return [{"role": "user", "parts": [part], **part.pop(RESULT_MESSAGE_FIELDS, {})}]
    if isinstance(fact, ModelSaid):
        return _write_message("model", fact)
    if isinstance(fact, UserSaid) or (isinstance(fact, Instructed) and not fact.aside):
        return _write_message("user", fact)
    if isinstance(fact, ForeignSummary) and (summary := readable_summary(fact)) is not None:
        return _write_message("user", summary)
    return []


def _write_message(role: str, fact: UserSaid | Instructed | ModelSaid) -> list[Json]:
    content = fact.content
    if type(content) is str and fact.extra is UNSET:  # fast path: most messages are a role and a text
        return [{"role": role, "parts": [{"text": content}]}] if content else []
    same_dialect = is_native(fact, GEMINI_CONTENTS)
    written = _write_parts(content, same_dialect=same_dialect, allows_media=role == "user")
    if fact.dialect != GEMINI_CONTENTS:
        _sign_first_call(written)
    if not written:
        return []
    if fact.extra is UNSET or not same_dialect:
        return [{"role": role, "parts": written}]
    return [{"role": role, "parts": written, **extras(fact.extra)}]


def _sign_first_call(written: list[Json]) -> None:
    first = next((part for part in written if "functionCall" in part), None)
    if first is not None:
        first["thoughtSignature"] = SKIPPED_SIGNATURE


def _write_parts(content: Content, *, same_dialect: bool, allows_media: bool) -> list[Json]:
    return [
        written
        for part in parts(content)
        if (written := _write_part(part, same_dialect=same_dialect, allows_media=allows_media)) is not None
    ]


def _write_part(part: AnyPart, *, same_dialect: bool, allows_media: bool) -> Json | None:
    match part:
        case Text():
            if part.extra is not UNSET and same_dialect:
                return {"text": part.text, **extras(part.extra)}
            return {"text": part.text} if part.text else None
        case Call():
            return _write_call(part, same_dialect=same_dialect)
        case Media() if not same_dialect:
            return (_write_media(part) if allows_media else None) or {"text": media_notice(part)}
        case _ if same_dialect:
            native: Json = unraw(part.native)
            return native
        case _:
            return None


def _write_call(call: Call, *, same_dialect: bool) -> Json:
    extra = dict(extras(call.extra)) if same_dialect else {}
    field = _field_in(extra, _CALL_NAMES) or "functionCall"
    body = {**extra.pop(field, {"id": call.id}), "name": call.name}
    if call.arguments or not same_dialect:
        body["args"] = arguments_object(function_arguments(call))
    if call.is_masked and (signature := _field_in(extra, _SIGNATURE_NAMES)):
        extra[signature] = SKIPPED_SIGNATURE
    return {field: body, **extra}


def _write_result(fact: ToolReturned) -> Json:
    same_dialect = is_native(fact, GEMINI_CONTENTS)
    extra = dict(extras(fact.extra)) if same_dialect else {}
    field = _field_in(extra, _RESPONSE_NAMES) or "functionResponse"
    text_field = extra.pop(RESPONSE_FIELD, None)
    written = _write_parts(fact.content, same_dialect=same_dialect, allows_media=True)
    media = [part for part in written if "text" not in part]
    text = "\n".join(part["text"] for part in written if "text" in part)
    body = {
        **extra.pop(field, {"id": fact.call_id}),
        "name": fact.name or fact.call_id,
        "response": _response(text, text_field, error=fact.error),
    }
    if media:
        body["parts"] = media
    return {field: body, **extra}


def _response(text: str, text_field: str | None, *, error: bool) -> Json:
    """Return the object that a function response has, with the text in the field it came from."""
    if text_field == "":
        whole = arguments_object(text)
        if whole != {"_raw": text}:  # else a part of the text was left out, and it is no object any more
            return whole
    elif text_field is not None:
        return {text_field: text}
    return {"error" if error else "output": text}


def _field_in(item: Json, names: tuple[str, str]) -> str:
    """Return the spelling that an object has for a field, "" if it does not have the field."""
    return names[0] if names[0] in item else names[1] if names[1] in item else ""


def _write_media(part: Media) -> Json | None:
    """Return an image, sound or file of another dialect, None if Gemini has no form for it."""
    found = media_source(unraw(part.native))
    if found is None:
        return None
    if found.plain:
        return {"text": found.data} if found.data else None
    if found.url:
        kind = {"mimeType": found.mime} if found.mime else {}
        return {"fileData": {**kind, "fileUri": found.url}}
    if found.mime in _INLINE_TYPES or found.mime.startswith("text/"):
        return {"inlineData": {"mimeType": found.mime, "data": found.base64}}
    return None


# ── All messages ─────────────────────────────────────────────────────────────────────────────────────────────


def join(groups: Iterable[Sequence[Json]]) -> list[Json]:
    """Return the contents of all steps as one legal list; the groups are not changed."""
    joined: list[Json] = []
    last = ""
    fresh = False  # whether the last content is a copy and may be changed; contents of a group may not
    open_calls: list[Json] = []
    for message in chain.from_iterable(groups):
        role, written = message["role"], message["parts"]
        if role == "model" and (len(written) > 1 or "text" not in written[0]):  # else it has no calls
            message, calls = _with_distinct_ids(message)
            open_calls = [*open_calls, *calls] if last == "model" else calls
        elif open_calls and role == "user":
            message = _with_calls_of(message, open_calls)
        if role != last:
            if not joined and role == "model":
                joined.append({"role": "user", "parts": [{"text": OPENING_USER_TEXT}]})
            joined.append(message)
            last, fresh = role, False
            continue
        if not fresh:
            joined[-1], fresh = {**joined[-1], "parts": list(joined[-1]["parts"])}, True
        _append(joined[-1], message)
    return joined


def _append(target: Json, message: Json) -> None:
    existing: list[Json] = target["parts"]
    added: list[Json] = message["parts"]
    if not _is_after_responses(added[0]) and _is_after_responses(existing[-1]):
        target["parts"] = sorted((*existing, *added), key=_is_after_responses)
    else:
        existing.extend(added)
    target.update((name, value) for name, value in message.items() if name not in target)


def _is_after_responses(part: Json) -> bool:
    return not _field_in(part, _RESPONSE_NAMES)


def _with_distinct_ids(message: Json) -> tuple[Json, list[Json]]:
    """Return the content and its calls, without ids if one occurs twice: then responses are paired by order."""
    calls = [part[field] for part in message["parts"] if (field := _field_in(part, _CALL_NAMES))]
    ids = [call["id"] for call in calls if "id" in call]
    if len(ids) == len(set(ids)):
        return message, calls
    bare = [_without_id(part, _field_in(part, _CALL_NAMES)) for part in message["parts"]]
    return {**message, "parts": bare}, [_body_without_id(call) for call in calls]


def _without_id(part: Json, field: str) -> Json:
    return {**part, field: _body_without_id(part[field])} if field else part


def _body_without_id(body: Json) -> Json:
    return {name: value for name, value in body.items() if name != "id"}


def _with_calls_of(message: Json, open_calls: list[Json]) -> Json:
    """Return the content with the name and id of its call in each response, and remove these calls from the open
    ones. A response without an id needs none."""
    repaired: list[Any] = []
    for part in message["parts"]:
        field = _field_in(part, _RESPONSE_NAMES)
        if field and open_calls:
            body = _matched(part[field], open_calls)
            part = part if body is part[field] else {**part, field: body}
        repaired.append(part)
    is_same = all(new is old for new, old in zip(repaired, message["parts"], strict=True))
    return message if is_same else {**message, "parts": repaired}


def _matched(body: Json, open_calls: list[Json]) -> Json:
    id, name = body.get("id"), body["name"]
    place = next((at for at, call in enumerate(open_calls) if id is not None and call.get("id") == id), None)
    if place is None:
        place = next((at for at, call in enumerate(open_calls) if call["name"] == name), 0)
    call = open_calls.pop(place)
    if name == call["name"] and (id is None or id == call.get("id")):
        return body
    given = {**_body_without_id(body), "name": call["name"]}
    return {"id": call["id"], **given} if id is not None and "id" in call else given
