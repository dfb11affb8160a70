"""Images, sounds and files inside messages: their type, size and cost in tokens.

1. `media_source` returns what a part of any dialect contains and where its bytes are.
2. `measure_media` returns its mime type, its bytes inside the request, and the tokens that a provider counts.
3. Neither raises: a part that cannot be read costs a fixed default. Only the header bytes that give the size
   of an image are decoded.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

DEFAULT_MEDIA_UNITS: Final = 1_000
"""Tokens for media of unknown size: behind a URL, in an unknown format, or broken."""
PIXELS_PER_UNIT: Final = 750
MAX_IMAGE_UNITS: Final = 1_600
"""Providers scale larger images down: Anthropic to 1,568 pixels on the long edge, about 1,600 tokens; OpenAI's
tiles end at about 1,100. So no image costs more, whatever its header says."""
AUDIO_BYTES_PER_UNIT: Final = 1_600
"""Ten tokens per second at 16 kB per second of ordinary MP3; uncompressed sound is overcounted, never
undercounted."""
TEXT_BYTES_PER_UNIT: Final = 4
PDF_BYTES_PER_UNIT: Final = 20
"""A page has about 40 kB and costs about 2,000 tokens."""
MAX_FILE_UNITS: Final = 300_000
"""100 pages, the most that providers accept, at no more than 3,000 tokens each."""

_MIME: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}/[a-z0-9][a-z0-9.+-]{0,63}")
_DATA_URL: Final = re.compile(r"data:([^;,]{0,200})((?:;[^;,]{0,200})*?)(;base64)?,", re.IGNORECASE)
_MIME_OF_SUFFIX: Final = {
    "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
    "pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "wav": "audio/wav", "mp3": "audio/mp3",
}  # fmt: skip

MediaKind = Literal["image", "audio", "file"]


class MediaSource(NamedTuple):
    """An image, sound or file, independent of the dialect."""

    kind: MediaKind
    mime: str = ""
    data: str = ""
    """Base64, a data URL, or the text of a plain document."""
    url: str = ""
    name: str = ""
    plain: bool = False
    """Whether `data` is text, not Base64."""
    body: int = 0
    """Where the Base64 begins inside `data`: a data URL is stored uncopied."""

    @property
    def base64(self) -> str:
        return self.data[self.body :]

    @property
    def data_url(self) -> str:
        return f"data:{self.mime};base64,{self.base64}" if self.data and not self.plain else self.url


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
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    return reader(part) if reader is not None else None


def measure_media(part: Mapping[str, Any]) -> MediaSize:
    """Return the mime type, size and cost of a part of any dialect."""
    found = media_source(part)
    if found is None:
        return MediaSize("", 0, DEFAULT_MEDIA_UNITS)
    size = len(found.data) - found.body or len(found.url)
    return MediaSize(found.mime, size, _units(found))


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


def _units(found: MediaSource) -> int:
    encoded = len(found.data) - found.body
    if found.kind == "image":
        return _image_units(found) if encoded else DEFAULT_MEDIA_UNITS
    if not encoded:
        return DEFAULT_MEDIA_UNITS
    count = encoded if found.plain else encoded * 3 // 4
    if found.kind == "audio":
        return max(1, count // AUDIO_BYTES_PER_UNIT)
    if found.plain or found.mime.startswith("text/"):
        return max(1, count // TEXT_BYTES_PER_UNIT)
    return min(MAX_FILE_UNITS, max(DEFAULT_MEDIA_UNITS, count // PDF_BYTES_PER_UNIT))


def _image_units(found: MediaSource) -> int:
    pixels = image_dimensions(found.data, found.body)
    if pixels is None:
        return DEFAULT_MEDIA_UNITS
    width, height = pixels
    return min(MAX_IMAGE_UNITS, -(-width * height // PIXELS_PER_UNIT))


def image_dimensions(data: str, start: int = 0) -> tuple[int, int] | None:
    """Return width and height of the Base64 image that begins at `start`, None if its header cannot be read."""

    def read(offset: int, count: int) -> bytes:
        """Decode bytes at an offset without decoding the bytes before them."""
        first = start + offset // 3 * 4
        last = start + (offset + count + 2) // 3 * 4
        decoded = b64decode(data[first:last], validate=True)
        return decoded[offset % 3 : offset % 3 + count]

    try:
        size = _read_dimensions(read)
    except (ValueError, IndexError):
        return None
    return size if size is not None and min(size) > 0 else None


def _read_dimensions(read: Callable[[int, int], bytes]) -> tuple[int, int] | None:
    head = read(0, 30)
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    if head.startswith((b"GIF87a", b"GIF89a")):
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP" and len(head) == 30:
        return _webp(head)
    if head.startswith(b"\xff\xd8"):
        return _jpeg(read)
    return None


def _webp(head: bytes) -> tuple[int, int] | None:
    match head[12:16]:
        case b"VP8 ":
            width, height = int.from_bytes(head[26:28], "little"), int.from_bytes(head[28:30], "little")
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case _:
            return None


def _jpeg(read: Callable[[int, int], bytes]) -> tuple[int, int] | None:
    """Return the size from the start-of-frame segment; segments before it, such as previews, are skipped."""
    offset = 2
    for _ in range(64):
        segment = read(offset, 9)
        if len(segment) < 9 or segment[0] != 0xFF:
            return None
        if segment[1] in range(0xC0, 0xD0) and segment[1] not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(segment[7:9]), int.from_bytes(segment[5:7])
        offset += 2 + int.from_bytes(segment[2:4])
    return None
