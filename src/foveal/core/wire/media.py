"""Images, sounds and files inside messages: what they are and what they will cost.

A part of any dialect goes in, a `Source` (what it is and where its bytes are) or a `Measure` (its mime type, its
bytes inside the request, the tokens a provider will count) comes out. Nothing here raises: whatever cannot be
read costs a fixed default, and only the few bytes of a header that name the size are ever decoded.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

UNKNOWN_UNITS: Final = 1_000
"""Tokens for a picture whose size is unknown: behind a URL, of a strange format, or broken."""
PIXELS_PER_UNIT: Final = 750
MOST_IMAGE_UNITS: Final = 1_600
"""Providers shrink what is larger before they look at it: Anthropic to 1,568 pixels at the long edge, which is
about 1,600 tokens; tiles of OpenAI end at about 1,100. So no picture costs more, whatever its header says."""
AUDIO_BYTES_PER_UNIT: Final = 1_600
"""Ten tokens a second, and a second of ordinary MP3 has 16 kB; uncompressed sound is over-counted, never under."""
TEXT_BYTES_PER_UNIT: Final = 4
PDF_BYTES_PER_UNIT: Final = 20
"""A page costs some 2,000 tokens and takes some 40 kB."""
MOST_FILE_UNITS: Final = 300_000
"""A hundred pages, the most that providers take, at the dearest 3,000 tokens each."""

_MIME: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}/[a-z0-9][a-z0-9.+-]{0,63}")
_DATA_URL: Final = re.compile(r"data:([^;,]{0,200})((?:;[^;,]{0,200})*?)(;base64)?,", re.IGNORECASE)
_FROM_NAME: Final = {
    "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
    "pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "wav": "audio/wav", "mp3": "audio/mp3",
}  # fmt: skip

MediaKind = Literal["image", "audio", "file"]


class MediaSource(NamedTuple):
    """A picture, sound or file, said in no dialect."""

    kind: MediaKind
    mime: str = ""
    data: str = ""
    """Base64, or the plain text of a text document."""
    url: str = ""
    name: str = ""
    plain: bool = False
    """`data` is text, not base64."""
    body: int = 0
    """Where the Base64 begins inside `data`; a data URL is not copied only to be measured."""

    @property
    def base64(self) -> str:
        return self.data[self.body :]

    @property
    def data_url(self) -> str:
        return f"data:{self.mime};base64,{self.base64}" if self.data and not self.plain else self.url


class MediaSize(NamedTuple):
    mime: str
    size: int
    """Bytes inside the request, as encoded there."""
    units: int
    """Tokens a provider will count."""


# ── what a part is ───────────────────────────────────────────────────────────────────────────────────────


def source(part: Mapping[str, Any]) -> MediaSource | None:
    """What this part of any dialect is, None when it only names a file that the provider holds."""
    kind = part.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    return reader(part) if reader is not None else None


def measure(part: Mapping[str, Any]) -> MediaSize:
    """The mime type, size and price of a part of any dialect."""
    found = source(part)
    if found is None:
        return MediaSize("", 0, UNKNOWN_UNITS)
    size = len(found.data) - found.body or len(found.url)
    return MediaSize(found.mime, size, _units(found))


def mime(text: object) -> str:
    """A mime type in lower case, "" unless it has the form of one: it is shown in placeholders, and must not
    be able to break out of them."""
    lowered = text.strip().lower() if isinstance(text, str) else ""
    return lowered if _MIME.fullmatch(lowered) else ""


def _field(part: Mapping[str, Any], *path: str) -> str:
    """The text at a path of nested fields, "" when there is none."""
    value: Any = part
    for name in path:
        if not isinstance(value, Mapping):
            return ""
        value = value.get(name)
    return value if isinstance(value, str) else ""


def _from_url(media_kind: MediaKind, url: str, *, name: str = "") -> MediaSource | None:
    """A URL, or the data inside a data URL."""
    if not url:
        return None
    match = _DATA_URL.match(url)
    if match is None or match[3] is None:
        return MediaSource(media_kind, _named(name), url=url, name=name)
    return MediaSource(media_kind, mime(match[1]) or _named(name), data=url, name=name, body=match.end())


def _named(name: str) -> str:
    return _FROM_NAME.get(name.rpartition(".")[2].lower(), "")


def _chat_image(part: Mapping[str, Any]) -> MediaSource | None:
    return _from_url("image", _field(part, "image_url", "url") or _field(part, "image_url"))


def _chat_audio(part: Mapping[str, Any]) -> MediaSource | None:
    data = _field(part, "input_audio", "data")
    return (
        MediaSource("audio", mime(f"audio/{_field(part, 'input_audio', 'format')}"), data=data)
        if data
        else None
    )


def _file(part: Mapping[str, Any]) -> MediaSource | None:
    """A file of chat (fields inside `file`) or of Responses (fields beside the type)."""
    inner = part.get("file") if isinstance(part.get("file"), Mapping) else part
    assert isinstance(inner, Mapping)
    name, data = _field(inner, "filename"), _field(inner, "file_data")
    if data and _DATA_URL.match(data) is None:
        return MediaSource("file", _named(name), data=data, name=name)
    return _from_url("file", data or _field(inner, "file_url"), name=name)


def _anthropic(part: Mapping[str, Any]) -> MediaSource | None:
    media_kind: MediaKind = "image" if part.get("type") == "image" else "file"
    name = _field(part, "title")
    match _field(part, "source", "type"):
        case "base64":
            kind = mime(_field(part, "source", "media_type"))
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
    "image_url": _chat_image,
    "input_image": _chat_image,
    "computer_screenshot": _chat_image,
    "input_audio": _chat_audio,
    "file": _file,
    "input_file": _file,
    "image": _anthropic,
    "document": _anthropic,
}


# ── what it costs ────────────────────────────────────────────────────────────────────────────────────────


def _units(found: MediaSource) -> int:
    encoded = len(found.data) - found.body
    if found.kind == "image":
        return _image_units(found) if encoded else UNKNOWN_UNITS
    if not encoded:
        return UNKNOWN_UNITS
    count = encoded if found.plain else encoded * 3 // 4
    if found.kind == "audio":
        return max(1, count // AUDIO_BYTES_PER_UNIT)
    if found.plain or found.mime.startswith("text/"):
        return max(1, count // TEXT_BYTES_PER_UNIT)
    return min(MOST_FILE_UNITS, max(UNKNOWN_UNITS, count // PDF_BYTES_PER_UNIT))


def _image_units(found: MediaSource) -> int:
    pixels = dimensions(found.data, found.body)
    if pixels is None:
        return UNKNOWN_UNITS
    width, height = pixels
    return min(MOST_IMAGE_UNITS, -(-width * height // PIXELS_PER_UNIT))


def dimensions(data: str, start: int = 0) -> tuple[int, int] | None:
    """Width and height of the Base64 image that begins at `start`, None when its header does not tell."""

    def read(offset: int, count: int) -> bytes:
        """Some decoded bytes, without decoding what lies before them."""
        first = start + offset // 3 * 4
        last = start + (offset + count + 2) // 3 * 4
        decoded = b64decode(data[first:last], validate=True)
        return decoded[offset % 3 : offset % 3 + count]

    try:
        size = _sniff(read)
    except (ValueError, IndexError):
        return None
    return size if size is not None and min(size) > 0 else None


def _sniff(read: Callable[[int, int], bytes]) -> tuple[int, int] | None:
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
    """Walk from segment to segment to the one that starts the frame; previews before it are jumped over."""
    offset = 2
    for _ in range(64):
        segment = read(offset, 9)
        if len(segment) < 9 or segment[0] != 0xFF:
            return None
        if segment[1] in range(0xC0, 0xD0) and segment[1] not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(segment[7:9]), int.from_bytes(segment[5:7])
        offset += 2 + int.from_bytes(segment[2:4])
    return None
