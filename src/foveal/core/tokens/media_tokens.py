"""Tokens of images, audio and files, as providers count them.

Only the header bytes that give the size of an image are decoded. A source that cannot be read costs a fixed
default.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

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


def media_units(found: MediaSource) -> int:
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
