"""Files of chat messages: which of them the model gets, and the limits.

1. Images and PDF files go to models that are known to read them, text files to every model.
2. A file that the model does not get keeps its place in the message, with the reason.
3. Texts of files are cut to a share of the window: the latest message is never reduced.

The bundled table of models does not list which of them read images and PDF files, so their names decide. A model of
no known family counts as one that reads text only: a provider refuses a request with an image that its model cannot
read, and the image stays in the conversation.
"""

from __future__ import annotations

import asyncio
import logging
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator
from mimetypes import guess_type
from typing import Final, Literal

from msgspec.structs import replace

from foveal.core.models.model import Model, counter_for
from foveal.core.tokens.message_tokens import image_dimensions
from foveal.server.gateways.incoming import IncomingFile

Modality = Literal["image", "pdf"]

_PDF_FAMILIES: Final = (
    r"claude-(?:3[.-][57]|(?:opus|sonnet|haiku)-[4-9]|[4-9])|gpt-?4o|gpt-?4[.-]1|gpt-?[5-9]|\bo[134]\b|gemini"
)
_IMAGE_FAMILIES: Final = (
    rf"{_PDF_FAMILIES}|claude-3|gpt-4-(?:turbo|vision)|grok-(?:[4-9]|\d+-?vision)|llama-?(?:4|3[.-]2-(?:11|90)b)"
    r"|pixtral|mistral-(?:medium-3|small-3[.-][1-9]|large-3)|gemma-?3(?![-:]?1b)|nova-(?:lite|pro|premier)"
    r"|[-_.:/]vl\b|\bqvq|llava|minicpm-v|internvl|moondream|vision|glm-\d+(?:[.-]\d+)?v|kimi-k2[.-][5-9]"
)
_TEXT_ONLY: Final = re.compile(r"o1-mini|o1-preview|o3-mini|claude-(?:2|instant)|embed|audio|realtime")
_PATTERNS: Final = {"image": re.compile(_IMAGE_FAMILIES), "pdf": re.compile(_PDF_FAMILIES)}


def reads(model: str, modality: Modality) -> bool:
    """Return whether a model is known to read images or PDF files."""
    name = model.lower().partition("@")[0]
    return _PATTERNS[modality].search(name) is not None and _TEXT_ONLY.search(name) is None


LOG: Final = logging.getLogger("foveal.gateways")
MAX_IMAGES_PER_MESSAGE: Final = 4
MAX_FILES_PER_MESSAGE: Final = 10
MAX_CHAT_IMAGE_BYTES: Final = 3_750_000
"""5 MB in Base64, which is the limit of some providers."""
MAX_PDF_BYTES: Final = 10_000_000
MAX_MEDIA_BYTES_PER_MESSAGE: Final = 15_000_000
"""Of images and PDF files; in Base64 as much as the default of `max_media_bytes` lets a request have."""
MAX_TEXT_FILE_BYTES: Final = 200_000
MAX_TEXT_SHARE: Final = 0.35
"""Share of the window that the texts of one message's files may take."""
FETCH_TIMEOUT_S: Final = 30.0
MAX_IMAGE_PIXELS: Final = 8_000
"""On the long edge; providers refuse larger images."""
IMAGE_SIGNATURES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
TEXT_TYPES: Final = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml"}
    | {"application/javascript", "application/sql", "application/x-sh", "application/x-ndjson"}
)
UNKNOWN_TYPES: Final = frozenset({"", "application/octet-stream"})
"""Types that say nothing: such a file is a text if its bytes are UTF-8."""
NOT_FETCHED: Final = "the download failed, send it again later"
"""The only problem that may be gone with the next file."""

FileKind = Literal["image", "pdf", "text"]
Fetch = Callable[[IncomingFile], Awaitable[bytes]]
"""Returns the bytes of a file; raises `FileUnavailable`."""
FILE_NOUNS: Final[dict[FileKind | None, str]] = {
    "image": "picture",
    "pdf": "PDF file",
    "text": "text file",
    None: "file",
}
"""What the bot calls a file of each kind."""


class FileUnavailable(Exception):
    """The chat app did not return a file."""


async def no_fetch(file: IncomingFile) -> bytes:
    """Stand for a chat app without files."""
    raise FileUnavailable


async def read_files(
    files: Iterable[IncomingFile], model: Model, *, fetch: Fetch
) -> tuple[IncomingFile, ...]:
    """Return the files with their bytes, or with the reason why the model does not get them."""
    checked: list[IncomingFile] = []
    for number, file in enumerate(_typed(file) for file in files):
        images = sum(_kind(other) == "image" and not other.problem for other in checked)
        checked.append(replace(file, problem=_problem(file, model, number=number, images=images)))
    fetched = await asyncio.gather(*(_fetched(file, fetch) for file in _within_request(checked)))
    return _within_window(_within_request(fetched), model)


def file_noun(file: IncomingFile) -> str:
    """Return what the bot calls a file: "picture", "PDF file", "text file" or "file"."""
    return FILE_NOUNS[_kind(file)]


def read_kinds(model: Model) -> list[str]:
    """Return what the bot reads with a model, in words."""
    media: tuple[Modality, ...] = ("image", "pdf")
    return ["text", "text files", *(f"{FILE_NOUNS[kind]}s" for kind in media if reads(model.name, kind))]


def _typed(file: IncomingFile) -> IncomingFile:
    """Return the file with a type by its name, if the chat app did not say the type."""
    guessed = guess_type(file.name)[0] if file.mime in UNKNOWN_TYPES else None
    return replace(file, mime=guessed) if guessed else file


def _kind(file: IncomingFile) -> FileKind | None:
    if file.mime in IMAGE_TYPES:
        return "image"
    if file.mime == "application/pdf":
        return "pdf"
    is_text = file.mime.startswith("text/") or file.mime in TEXT_TYPES | UNKNOWN_TYPES
    return "text" if is_text else None


def _problem(file: IncomingFile, model: Model, *, number: int, images: int) -> str:
    """Return why the model does not get a file; "" if it does."""
    kind = _kind(file)
    if kind is None:
        return "I do not read such files"
    if kind != "text" and not reads(model.name, kind):
        what = "images" if kind == "image" else "PDF files"
        return f"the model is not known to read {what}"
    if number >= MAX_FILES_PER_MESSAGE:
        return f"at most {MAX_FILES_PER_MESSAGE} files per message"
    if kind == "image" and images >= MAX_IMAGES_PER_MESSAGE:
        return f"at most {MAX_IMAGES_PER_MESSAGE} pictures per message"
    return _size_problem(kind, file.size)


def _size_problem(kind: FileKind, size: int) -> str:
    limit = {"image": MAX_CHAT_IMAGE_BYTES, "pdf": MAX_PDF_BYTES, "text": MAX_TEXT_FILE_BYTES}[kind]
    return f"more than {limit:,} bytes" if size > limit else ""


async def _fetched(file: IncomingFile, fetch: Fetch) -> IncomingFile:
    kind = _kind(file)
    if file.problem or kind is None:
        return file
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            data = await fetch(file)
    except (FileUnavailable, TimeoutError):
        return replace(file, problem=NOT_FETCHED, is_missing=True)
    except Exception as problem:  # noqa: BLE001  (the message is answered without the file)
        LOG.warning("a file of a chat could not be fetched: %s", type(problem).__name__)
        return replace(file, problem=NOT_FETCHED, is_missing=True)
    if found := _size_problem(kind, len(data)) or _data_problem(kind, data):
        return replace(file, problem=found)
    return replace(file, data=data, mime=_image_type(data) if kind == "image" else file.mime)


def _data_problem(kind: FileKind, data: bytes) -> str:
    """Return why bytes are not what their type says: providers refuse such a file, and all requests with it."""
    if kind == "text":
        return "" if _is_text(data) else "no text in UTF-8"
    if kind == "pdf":
        return "" if data.startswith(b"%PDF-") else "no PDF file"
    if not _image_type(data):
        return "no PNG, JPEG, GIF or WebP image"
    pixels = image_dimensions(b64encode(data).decode())
    is_large = pixels is not None and max(pixels) > MAX_IMAGE_PIXELS
    return f"more than {MAX_IMAGE_PIXELS:,} pixels on one edge" if is_large else ""


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode("utf-8")
    except UnicodeDecodeError:
        return False


def _image_type(data: bytes) -> str:
    """Return the type of an image by its first bytes; "" if it is none that providers take."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    found = (kind for signature, kind in IMAGE_SIGNATURES.items() if data.startswith(signature))
    return next(found, "")


def _within_request(files: Iterable[IncomingFile]) -> Iterator[IncomingFile]:
    """Yield the files; images and PDF files only while all of them together are small enough for a request."""
    left = MAX_MEDIA_BYTES_PER_MESSAGE
    for file in files:
        size = 0 if file.problem or _kind(file) == "text" else len(file.data) or file.size
        if size > left:
            limit = f"at most {MAX_MEDIA_BYTES_PER_MESSAGE:,} bytes of pictures and PDF files per message"
            yield replace(file, data=b"", problem=limit)
            continue
        left -= size
        yield file


def _within_window(files: Iterable[IncomingFile], model: Model) -> tuple[IncomingFile, ...]:
    """Cut the texts that take more than the rest of their share of the window."""
    counter = counter_for(model.name)
    room, cut = int(model.window * MAX_TEXT_SHARE), list[IncomingFile]()
    for file in files:
        if _kind(file) != "text" or file.problem:
            cut.append(file)
            continue
        text = file.data.decode("utf-8")
        tokens = counter.count(text)
        kept = text if tokens <= room else text[: len(text) * room // tokens]
        left_out = len(text) - len(kept)
        cut.append(replace(file, data=kept.encode(), left_out=left_out, extent=_extent(kept, text)))
        room = max(0, room - tokens)
    return tuple(cut)


def _extent(kept: str, text: str) -> str:
    """Return how much of a text was kept, in whole lines if it has several; "" for all of it."""
    lines, total = kept.count("\n"), len(text.splitlines())
    if kept == text:
        return ""
    if total > 1 and (lines or not kept):
        return f"{lines:,} of {total:,} lines"
    return f"{len(kept):,} of {len(text):,} characters"
