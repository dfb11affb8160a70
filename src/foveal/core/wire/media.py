"""Images, sounds and files inside messages of each dialect.

1. `media_source` returns what a part of any dialect contains and where its bytes are.
2. `measure_media` returns its mime type, its bytes inside the request, and the tokens that a provider counts
   (`core.tokens.media_tokens`).
3. Neither raises: a part that cannot be read costs a fixed default. Only the header bytes that give the size
   of an image are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from foveal.core.tokens.message_tokens import DEFAULT_MEDIA_UNITS, MediaKind, MediaSource, media_units

BYTES_MARK: Final = "$bytes"
"""Field of the object that stands for `bytes` of boto3 in stored Bedrock blocks; its value is Base64."""
BEDROCK_IMAGE_TYPES: Final = {
    "png": "image/png", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
}  # fmt: skip
"""Mime types of the formats that Bedrock names."""
BEDROCK_DOCUMENT_TYPES: Final = {
    "pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "csv": "text/csv", "html": "text/html",
    "doc": "application/msword", "xls": "application/vnd.ms-excel",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}  # fmt: skip
_MIME: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}/[a-z0-9][a-z0-9.+-]{0,63}")
_DATA_URL: Final = re.compile(r"data:([^;,]{0,200})((?:;[^;,]{0,200})*?)(;base64)?,", re.IGNORECASE)
_MIME_OF_SUFFIX: Final = {
    "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
    "pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "wav": "audio/wav", "mp3": "audio/mp3",
}  # fmt: skip


_GEMINI_FIELDS: Final = ("inlineData", "inline_data", "fileData", "file_data")
_GOOGLE_FILES: Final = "//generativelanguage.googleapis.com/"
_STANDARD_BASE64: Final = str.maketrans("-_", "+/")


class MediaSize(NamedTuple):
    """Type, size and cost of a part."""

    mime: str
    size: int
    """Bytes inside the request, as encoded there."""
    units: int
    """Tokens that a provider counts."""


# ── Content of a part ──────────────────────────────────────────────────────────────────────────────────


def media_source(part: Mapping[str, Any]) -> MediaSource | None:
    """Return what a part of any dialect contains, None if it only names a file stored at the provider."""
    kind = part.get("type")
    if kind is None:
        return _gemini_media(part) or _bedrock_media(part)
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    return reader(part) if reader is not None else None


def measure_media(part: Mapping[str, Any]) -> MediaSize:
    """Return the mime type, size and cost of a part of any dialect."""
    found = media_source(part)
    if found is None:
        return MediaSize("", 0, DEFAULT_MEDIA_UNITS)
    size = len(found.data) - found.body or len(found.url)
    return MediaSize(found.mime, size, media_units(found))


def mime_type(text: object) -> str:
    """Return a mime type in lower case, "" if it is malformed.

    The type is shown in placeholders, so it must not contain characters that could close them.
    """
    lowered = text.strip().lower() if isinstance(text, str) else ""
    return lowered if _MIME.fullmatch(lowered) else ""


def _field(part: Mapping[str, Any], *path: str) -> str:
    """Return the string at a path of nested fields, "" if there is none."""
    value: Any = part
    for name in path:
        if not isinstance(value, Mapping):
            return ""
        value = value.get(name)
    return value if isinstance(value, str) else ""


def _from_url(media_kind: MediaKind, url: str, *, name: str = "") -> MediaSource | None:
    """Return a link, or the data inside a data URL."""
    if not url:
        return None
    match = _DATA_URL.match(url)
    if match is None or match[3] is None:
        return MediaSource(media_kind, _mime_of_name(name), url=url, name=name)
    return MediaSource(
        media_kind, mime_type(match[1]) or _mime_of_name(name), data=url, name=name, body=match.end()
    )


def _mime_of_name(name: str) -> str:
    return _MIME_OF_SUFFIX.get(name.rpartition(".")[2].lower(), "")


def _openai_image(part: Mapping[str, Any]) -> MediaSource | None:
    return _from_url("image", _field(part, "image_url", "url") or _field(part, "image_url"))


def _openai_audio(part: Mapping[str, Any]) -> MediaSource | None:
    data = _field(part, "input_audio", "data")
    return (
        MediaSource("audio", mime_type(f"audio/{_field(part, 'input_audio', 'format')}"), data=data)
        if data
        else None
    )


def _openai_file(part: Mapping[str, Any]) -> MediaSource | None:
    """Read a file of Chat (fields inside `file`) or of Responses (fields beside the type)."""
    inner = part.get("file") if isinstance(part.get("file"), Mapping) else part
    assert isinstance(inner, Mapping)
    name, data = _field(inner, "filename"), _field(inner, "file_data")
    if data and _DATA_URL.match(data) is None:
        return MediaSource("file", _mime_of_name(name), data=data, name=name)
    return _from_url("file", data or _field(inner, "file_url"), name=name)


def _anthropic_media(part: Mapping[str, Any]) -> MediaSource | None:
    media_kind: MediaKind = "image" if part.get("type") == "image" else "file"
    name = _field(part, "title")
    match _field(part, "source", "type"):
        case "base64":
            kind = mime_type(_field(part, "source", "media_type"))
            return MediaSource(media_kind, kind, data=_field(part, "source", "data"), name=name)
        case "text":
            return MediaSource(
                media_kind, "text/plain", data=_field(part, "source", "data"), name=name, plain=True
            )
        case "url":
            return _from_url(media_kind, _field(part, "source", "url"), name=name)
        case _:
            return None


def _gemini_media(part: Mapping[str, Any]) -> MediaSource | None:
    """Read a part of Gemini. A file of Google's Files API or in its cloud storage is stored at the provider."""
    field = next((field for field in _GEMINI_FIELDS if isinstance(part.get(field), Mapping)), "")
    mime = mime_type(_field(part, field, "mimeType") or _field(part, field, "mime_type"))
    name = _field(part, field, "displayName") or _field(part, field, "display_name")
    top, _, _ = mime.partition("/")
    media_kind: MediaKind = "image" if top == "image" else "audio" if top == "audio" else "file"
    if data := _field(part, field, "data"):  # google-genai writes the URL-safe alphabet
        standard = data.translate(_STANDARD_BASE64) if "-" in data or "_" in data else data
        return MediaSource(media_kind, mime, data=standard, name=name)
    url = _field(part, field, "fileUri") or _field(part, field, "file_uri")
    if not url.startswith(("https://", "http://")) or _GOOGLE_FILES in url:
        return None
    return MediaSource(media_kind, mime, url=url, name=name)


def _bedrock_media(part: Mapping[str, Any]) -> MediaSource | None:
    """Read a block of Bedrock, whose one field names its kind. A file in S3 is stored at the provider."""
    guarded = part.get("guardContent")
    block = guarded if isinstance(guarded, Mapping) else part
    kind = next((kind for kind in _BEDROCK_KINDS if isinstance(block.get(kind), Mapping)), None)
    if kind is None:
        return None
    format, name = _field(block, kind, "format"), _field(block, kind, "name")
    mime = _bedrock_mime(kind, format)
    if text := _field(block, kind, "source", "text"):
        return MediaSource("file", mime or "text/plain", data=text, name=name, plain=True)
    data = _field(block, kind, "source", "bytes") or _field(block, kind, "source", "bytes", BYTES_MARK)
    return MediaSource(_BEDROCK_KINDS[kind], mime, data=data, name=name) if data else None


def _bedrock_mime(kind: str, format: str) -> str:
    match kind:
        case "image":
            return BEDROCK_IMAGE_TYPES.get(format, "")
        case "document":
            return BEDROCK_DOCUMENT_TYPES.get(format, "")
        case _:
            return mime_type(f"{kind}/{format}")


_BEDROCK_KINDS: Final[dict[str, MediaKind]] = {
    "image": "image",
    "document": "file",
    "audio": "audio",
    "video": "file",
}
_READERS: Final[dict[str, Callable[[Mapping[str, Any]], MediaSource | None]]] = {
    "image_url": _openai_image,
    "input_image": _openai_image,
    "computer_screenshot": _openai_image,
    "input_audio": _openai_audio,
    "file": _openai_file,
    "input_file": _openai_file,
    "image": _anthropic_media,
    "document": _anthropic_media,
}


# ── Cost in tokens ─────────────────────────────────────────────────────────────────────────────────────
