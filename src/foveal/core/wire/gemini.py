"""The Gemini dialect: reading and writing contents.

`write` gives the content of one fact; `join` makes a legal list of them: roles alternate, the user speaks first,
function responses come first in their content, and each has the name and the id of its call.

1. Signatures of thoughts are sent in the part they came in. The first call of a message from another dialect has
   none and gets `SKIPPED_SIGNATURE`. A call of Gemini without a signature is sent as it came: models before
   Gemini 3 give none. A signature belongs to the arguments that the model wrote: a call with masked arguments has
   `SKIPPED_SIGNATURE` in its place.
2. A list that ends with the model stays so, because only the caller knows what the user says next.

`read` gives the facts of contents. Function responses are parts of a user content, which becomes one `ToolReturned`
per response and one `UserSaid` for the other parts. Field names may be in camelCase, as in REST, or in snake_case,
as google-genai dumps them. Legal contents that are read, written and joined are unchanged, with these exceptions:

1. neighbouring contents of the same role become one content;
2. function responses come first in a content;
3. empty texts without a signature, empty parts and contents without parts are left out, and so are null fields;
4. a string, a list of parts and a single part, which google-genai accepts as contents, become contents;
5. a content without a role, or with the role `function` or `system`, becomes one of the user;
6. a function response without `response` gets an empty one;
7. bytes become Base64.

An id is optional in Gemini. A call without one has its name as id, and a response without one has the id of the
first call of its name that still waits. Ids that are made up here are not written back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
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
    calls_of,
    extras,
    parts,
    unraw,
)
from foveal.core.wire.common import (
    OPENING_USER_TEXT,
    RESULT_MESSAGE_FIELDS,
    BadField,
    Json,
    MessageChunk,
    arguments_object,
    as_mapping,
    function_arguments,
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
    required_string,
    unknown_role,
    with_message_fields,
)
from foveal.core.wire.media import media_source
from foveal.errors import MalformedMessage

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


MAX_LOOK_BACK_CONTENTS: Final = 64
"""Contents before the first one to read that are searched for the call of a response without an id."""
_CONTENT_FIELDS: Final = frozenset({"role", "parts"})
_TEXT_FIELDS: Final = frozenset({"text"})
_CALL_BODY: Final = frozenset({"id", "name", "args"})
_RESULT_BODY: Final = frozenset({"id", "name", "response", "parts"})
_PART_FIELDS: Final = frozenset(
    {"text", "functionCall", "function_call", "functionResponse", "function_response", "inlineData", "inline_data",
     "fileData", "file_data"}
)  # fmt: skip
"""Fields by which a part is recognised that is given in place of a content."""


# ── Contents ───────────────────────────────────────────────────────────────────────────────────────────


def read(messages: Sequence[object], start: int = 0) -> Iterator[MessageChunk]:
    """Yield one chunk for each content; raises `MalformedMessage`."""
    waiting = _WaitingCalls(messages, start)
    for index, message in indexed_from(messages, start):
        if type(message) is dict and len(message) == 2 and type(text := _only_text(message)) is str:
            role = message.get("role")
            if role == "user":
                yield MessageChunk(1, (UserSaid(content=text),))
                continue
            if role == "model":
                yield MessageChunk(1, (ModelSaid(content=text),))
                continue
        yield MessageChunk(1, tuple(map(waiting.pair, _read_at(index, message))))


def _only_text(message: dict[str, Any]) -> object:
    """Return the text of a content that has nothing else, which most contents are."""
    parts = message.get("parts")
    if type(parts) is list and len(parts) == 1 and type(part := parts[0]) is dict and len(part) == 1:
        return part.get("text") or None
    return None


def _read_at(index: int, message: object) -> tuple[AnyFact, ...]:
    return read_at(index, _read_content, _as_content(message))


def _as_content(value: object) -> object:
    """Return a content for a text or a list of parts, which google-genai accepts in place of one."""
    if isinstance(value, str):
        return {"role": "user", "parts": [{"text": value}]}
    if isinstance(value, list):
        return {
            "role": "user",
            "parts": [{"text": part} if isinstance(part, str) else part for part in value],
        }
    return value


def _read_content(message: Mapping[str, Any]) -> tuple[AnyFact, ...]:
    if _CONTENT_FIELDS.isdisjoint(message) and not _PART_FIELDS.isdisjoint(message):
        is_call = "functionCall" in message or "function_call" in message
        message = {"role": "model" if is_call else "user", "parts": [message]}
    role, given = message.get("role"), message.get("parts")
    if given is None:
        if role != "model":
            raise BadField("parts", "is missing")
        given = []  # a reply without an answer, such as one that its thoughts left no room for
    extra = other_fields(_without_nulls(message), _CONTENT_FIELDS)
    read_parts = read_list(given, "parts", _read_part)
    match role:
        case "user" | "function" | None:
            return _user_facts(read_parts, extra)
        case "model":
            content = _model_content(read_parts)
            return (ModelSaid(content=content, dialect=_native_dialect(extra, content), extra=extra),)
        case "system":
            content = _model_content(read_parts)
            return (Instructed(content=content, dialect=_native_dialect(extra, content), extra=extra),)
        case other:
            raise unknown_role(other, "Gemini contents", "user, model")


def _user_facts(
    read_parts: list[AnyPart | ToolReturned | None], extra: Raw | UnsetType
) -> tuple[AnyFact, ...]:
    results = [part for part in read_parts if isinstance(part, ToolReturned)]
    others: list[AnyPart] = []
    for place, part in enumerate(read_parts):
        if isinstance(part, Call):
            raise BadField(f"parts[{place}]", "a functionCall belongs into a content of the model")
        if part is not None and not isinstance(part, ToolReturned):
            others.append(part)
    if results and not others:
        return with_message_fields(results, extra, GEMINI_CONTENTS)
    content = _content(others)
    return (*results, UserSaid(content=content, dialect=_native_dialect(extra, content), extra=extra))


def _model_content(read_parts: list[AnyPart | ToolReturned | None]) -> Content:
    kept: list[AnyPart] = []
    for place, part in enumerate(read_parts):
        if isinstance(part, ToolReturned):
            raise BadField(f"parts[{place}]", "a functionResponse belongs into a content of the user")
        if part is not None:
            kept.append(part)
    return _content(kept)


def _content(kept: list[AnyPart]) -> Content:
    """Return one text without other fields as a string, the same fact as in the other dialects."""
    match kept:
        case [Text(text=text, extra=extra)] if extra is UNSET:
            return text
        case _:
            return tuple(kept)


def _native_dialect(extra: Raw | UnsetType, content: Content) -> Dialect:
    """Return "gemini" for a content with calls as well: a call without a signature is then sent without one."""
    if isinstance(content, str):
        return native_dialect(GEMINI_CONTENTS, extra)
    return GEMINI_CONTENTS if calls_of(content) else native_dialect(GEMINI_CONTENTS, extra, content)


def instruction_parts(system: object) -> object:
    """Return a `systemInstruction` of Gemini (a content, a part, or a list of parts and texts) as a list of parts,
    and the system text of any other dialect unchanged; raises `MalformedMessage`."""
    if not isinstance(system, str | list | tuple):
        system = read_at(0, lambda given: given["parts"] if given.get("parts") else [given], system)
    if isinstance(system, list | tuple) and not any(_has_type(part) for part in system):
        return [
            {"text": part} if isinstance(part, str) else read_at(0, _without_nulls, part) for part in system
        ]
    return system


def _has_type(part: object) -> bool:
    return isinstance(part, Mapping) and "type" in part


# ── Parts ──────────────────────────────────────────────────────────────────────────────────────────────


def _read_part(item: Mapping[str, Any]) -> AnyPart | ToolReturned | None:
    """Return a part; None if nothing is in it."""
    item = _without_nulls(item)
    for field in ("functionCall", "function_call"):
        if field in item:
            return _read_call(item, field)
    for field in ("functionResponse", "function_response"):
        if field in item:
            return _read_result(item, field)
    if "text" in item:
        return _read_text(item)
    if any(field in item for field in ("inlineData", "inline_data", "fileData", "file_data")):
        return _read_media(item)
    return Opaque(native=raw_json(item)) if item else None


def _without_nulls(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object without the fields that are null: google-genai dumps every field of its objects."""
    if None in item.values():
        return {name: value for name, value in item.items() if value is not None}
    return item


def _read_text(item: Mapping[str, Any]) -> Text | Thinking | None:
    text = required_string(item, "text")
    if item.get("thought") is True:
        return Thinking(native=raw_json(item), text=text)
    extra = other_fields(item, _TEXT_FIELDS)
    return Text(text=text, extra=extra) if text or extra is not UNSET else None


def _read_media(item: Mapping[str, Any]) -> Media:
    return read_media(unraw(raw_json(item)))  # without bytes and objects of a client library


def _read_call(item: Mapping[str, Any], field: str) -> Call:
    body = _body(item, field)
    name, id, arguments = _body_string(field, body, "name"), body.get("id"), body.get("args")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json_text(arguments)
    return Call(
        id=id if isinstance(id, str) and id else name,
        name=name,
        arguments=arguments or "",
        extra=_body_extra(item, field, body, _CALL_BODY),
    )


def _body(item: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    try:
        return _without_nulls(as_mapping(item[field]))
    except BadField as bad:
        raise bad.inside(field) from None


def _body_string(field: str, body: Mapping[str, Any], name: str) -> str:
    try:
        return required_string(body, name)
    except BadField as bad:
        raise bad.inside(field) from None


def _body_extra(
    item: Mapping[str, Any], field: str, body: Mapping[str, Any], known: frozenset[str], more: Any = ()
) -> Raw | UnsetType:
    """Return the other fields of a part and, under the spelling of its name, those of its body with the id. A body
    with an id, no other fields and its name in camelCase needs no such entry."""
    id = body.get("id")
    outer = {name: value for name, value in item.items() if name != field}
    outer.update(more)
    inner = {name: value for name, value in body.items() if name == "id" or name not in known}
    if "_" in field or inner.keys() != {"id"} or not isinstance(id, str) or not id:
        outer[field] = inner
    return raw_json(outer) if outer else UNSET


def _read_result(item: Mapping[str, Any], field: str) -> ToolReturned:
    body = _body(item, field)
    name, id, response = _body_string(field, body, "name"), body.get("id"), _response_object(field, body)
    text, text_field = _response_text(response)
    is_error = bool(response.get("error")) or response.get("isError") is True
    more = {} if text_field == ("error" if is_error else "output") else {RESPONSE_FIELD: text_field}
    extra = _body_extra(item, field, body, _RESULT_BODY, more)
    content: Content = text
    if body.get("parts"):
        content = (Text(text=text), *_response_parts(field, body["parts"]))
    return ToolReturned(
        call_id=id if isinstance(id, str) else "",
        content=content,
        name=name,
        error=is_error,
        dialect=native_dialect(GEMINI_CONTENTS, extra, () if isinstance(content, str) else content),
        extra=extra,
    )


def _response_object(field: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return as_mapping(body.get("response", {}))
    except BadField as bad:
        raise bad.inside(f"{field}.response") from None


def _response_text(response: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text of a response and the field that has it, "" if the text is the JSON of the whole response."""
    if len(response) == 1:
        ((field, value),) = response.items()
        if field and isinstance(field, str) and isinstance(value, str):
            return value, field
    return json_text(response), ""


def _response_parts(field: str, given: object) -> list[AnyPart]:
    try:
        return [part for part in read_list(given, "parts", _read_response_part) if part is not None]
    except BadField as bad:
        raise bad.inside(field) from None


def _read_response_part(item: Mapping[str, Any]) -> AnyPart | None:
    part = _read_part(item)
    if isinstance(part, Media):
        return part
    return Opaque(native=raw_json(item)) if part is not None else None


# ── Pairs without ids ──────────────────────────────────────────────────────────────────────────────────


class _WaitingCalls:
    """The calls of the newest model content without a response; one without an id gets the id of its call."""

    def __init__(self, messages: Sequence[object], start: int) -> None:
        self._messages = messages
        self._start = start
        self._calls: list[tuple[str, str]] | None = [] if start == 0 else None
        """Id and name of each call; None until the contents before the first one have been searched."""
        self._taken: list[str] = []
        """Ids of responses that were read before that search."""

    def pair(self, fact: AnyFact) -> AnyFact:
        """Return the fact with the id of its call, and note the calls that wait after it."""
        if isinstance(fact, ModelSaid):
            if calls := calls_of(fact.content):
                self._calls = [(call.id, call.name) for _, call in calls]
        elif isinstance(fact, ToolReturned):
            if not fact.call_id:
                return msgspec.structs.replace(fact, call_id=self._take_by_name(fact.name))
            self._take_by_id(fact.call_id)
        return fact

    def _take_by_name(self, wanted: str) -> str:
        waiting = self._waiting()
        place = next((at for at, (_, name) in enumerate(waiting) if name == wanted), None)
        return wanted if place is None else waiting.pop(place)[0]

    def _take_by_id(self, wanted: str) -> None:
        if self._calls is None:
            self._taken.append(wanted)
            return
        place = next((at for at, (id, _) in enumerate(self._calls) if id == wanted), None)
        if place is not None:
            self._calls.pop(place)

    def _waiting(self) -> list[tuple[str, str]]:
        if self._calls is None:
            self._calls = []
            self._look_back()
            for id in self._taken:
                self._take_by_id(id)
        return self._calls

    def _look_back(self) -> None:
        facts: list[AnyFact] = []
        oldest = max(0, self._start - MAX_LOOK_BACK_CONTENTS)
        for index in range(self._start - 1, oldest - 1, -1):
            try:
                found = _read_at(index, self._messages[index])
            except MalformedMessage:  # reported when it is read itself
                break
            facts[:0] = found
            if any(isinstance(fact, ModelSaid) and calls_of(fact.content) for fact in found):
                break
        for fact in facts:
            self.pair(fact)
