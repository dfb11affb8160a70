"""Files of chat messages: which of them a model gets, and the limits."""

from __future__ import annotations

import asyncio
import struct

import pytest
from msgspec.structs import replace

from foveal.core.models.model import model
from foveal.server.gateways import chat_files
from foveal.server.gateways.chat_files import (
    MAX_CHAT_IMAGE_BYTES,
    MAX_FILES_PER_MESSAGE,
    MAX_IMAGES_PER_MESSAGE,
    NOT_FETCHED,
    FileUnavailable,
    read_files,
    read_kinds,
)
from foveal.server.gateways.incoming import IncomingFile

READER = model("claude-sonnet-4-5")
TEXT_MODEL = model("scripted/model", window=1_000)
IMAGE = IncomingFile(name="cat.png", mime="image/png", reference="cat")
NOTES = IncomingFile(name="notes.txt", mime="text/plain", reference="notes")
PDF = IncomingFile(name="a.pdf", mime="application/pdf", reference="pdf")


def png(width: int = 4, height: int = 4) -> bytes:
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I4sII", 13, b"IHDR", width, height)
        + b"\x08\x06\0\0\0"
        + b"0" * 9
    )


DATA = {"cat": png(), "notes": b"One.", "pdf": b"%PDF-1.7 x"}


def read(
    *files: IncomingFile, of: object = READER, data: dict[str, bytes] = DATA
) -> tuple[IncomingFile, ...]:
    fetched: list[str] = []

    async def fetch(file: IncomingFile) -> bytes:
        fetched.append(file.reference)
        if file.reference not in data:
            raise FileUnavailable
        return data[file.reference]

    found = asyncio.run(read_files(files, of, fetch=fetch))  # type: ignore[arg-type]
    assert not {file.reference for file in found if file.problem and not file.is_missing} & set(
        fetched
    ) - set(data)
    return found


def problem(file: IncomingFile, **more: object) -> str:
    return read(file, **more)[0].problem  # type: ignore[arg-type]


def test_a_model_that_reads_them_gets_images_pdf_files_and_texts() -> None:
    assert read(IMAGE, PDF, NOTES) == (
        replace(IMAGE, data=DATA["cat"]),
        replace(PDF, data=DATA["pdf"]),
        replace(NOTES, data=DATA["notes"]),
    )


def test_every_model_gets_texts_and_no_other_files() -> None:
    image, pdf, notes = read(IMAGE, PDF, NOTES, of=TEXT_MODEL)
    assert image.problem == "the model is not known to read images"
    assert pdf.problem == "the model is not known to read PDF files"
    assert notes == replace(NOTES, data=b"One.")


def test_a_file_that_cannot_be_fetched_is_missing() -> None:
    assert read(IMAGE, data={}) == (replace(IMAGE, problem=NOT_FETCHED, is_missing=True),)


def test_a_fetch_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_files, "FETCH_TIMEOUT_S", 0.01)

    async def fetch(file: IncomingFile) -> bytes:
        await asyncio.sleep(60)
        return b""

    (file,) = asyncio.run(read_files([IMAGE], READER, fetch=fetch))
    assert file.is_missing


def test_the_files_of_a_message_fit_into_a_request_together() -> None:
    large = b"%PDF-1.7 ".ljust(8_000_000, b"x")
    for size in (0, len(large)):  # whether or not the chat app says the size
        first, second, notes = read(*[replace(PDF, size=size)] * 2, NOTES, data={**DATA, "pdf": large})
        assert first == replace(PDF, size=size, data=large)
        too_large = "at most 15,000,000 bytes of pictures and PDF files per message"
        assert second == replace(PDF, size=size, problem=too_large)
        assert notes.data == b"One."


def test_too_many_and_too_large_files_are_not_fetched() -> None:
    images = read(*[IMAGE] * (MAX_IMAGES_PER_MESSAGE + 1))
    assert [bool(file.problem) for file in images] == [*[False] * MAX_IMAGES_PER_MESSAGE, True]
    texts = read(*[NOTES] * (MAX_FILES_PER_MESSAGE + 1))
    assert [bool(file.problem) for file in texts] == [*[False] * MAX_FILES_PER_MESSAGE, True]
    assert problem(replace(IMAGE, size=MAX_CHAT_IMAGE_BYTES + 1)).endswith("more than 3,750,000 bytes")
    assert problem(NOTES, data={"notes": b"x" * 200_001}).endswith(
        "more than 200,000 bytes"
    )  # its size was not said


@pytest.mark.parametrize(
    ("file", "data", "reason"),
    [
        (IMAGE, b"<svg>", "no PNG, JPEG, GIF or WebP image"),
        (IMAGE, png(width=9_000), "more than 8,000 pixels on one edge"),
        (PDF, b"hello", "no PDF file"),
        (NOTES, b"\xff\xfe", "no text in UTF-8"),
        (NOTES, b"a\0b", "no text in UTF-8"),
    ],
)
def test_bytes_that_are_not_what_their_type_says_are_not_shown(
    file: IncomingFile, data: bytes, reason: str
) -> None:
    assert problem(file, data={file.reference: data}) == reason


def test_the_type_of_an_image_comes_from_its_bytes() -> None:
    (file,) = read(replace(IMAGE, mime="image/jpeg"))
    assert file.mime == "image/png"


def test_other_files_are_not_read_and_unknown_types_are_tried_as_text() -> None:
    assert problem(replace(NOTES, mime="application/zip")) == "I do not read such files"
    assert not problem(replace(NOTES, name="Makefile", mime=""))
    assert problem(replace(NOTES, name="a.zip", mime="")) == "I do not read such files"
    assert not problem(replace(IMAGE, mime="application/octet-stream"))


def test_texts_are_cut_to_a_share_of_the_window() -> None:
    first, second = read(NOTES, NOTES, of=TEXT_MODEL, data={"notes": b"word " * 10_000})
    assert 200 < len(first.data.split()) <= 350
    assert first.left_out == 50_000 - len(first.data)
    assert first.extent == f"{len(first.data):,} of 50,000 characters"
    assert (second.data, second.left_out, second.extent) == (b"", 50_000, "0 of 50,000 characters")


def test_a_text_of_several_lines_is_cut_and_counted_in_lines() -> None:
    first, second = read(NOTES, NOTES, of=TEXT_MODEL, data={"notes": b"One word.\n" * 1_500})
    assert first.extent == f"{first.data.count(10)} of 1,500 lines"
    assert second.extent == "0 of 1,500 lines"


def test_a_bot_reads_what_its_model_reads() -> None:
    assert read_kinds(READER) == ["text", "text files", "pictures", "PDF files"]
    assert read_kinds(TEXT_MODEL) == ["text", "text files"]
