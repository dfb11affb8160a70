"""Images, sounds and files: type, size and cost in tokens."""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.tokens.message_tokens import DEFAULT_MEDIA_UNITS, MAX_IMAGE_UNITS, image_dimensions
from foveal.core.wire.media import MediaSize, measure_media, media_source, mime_type
from foveal.core.wire.openai_responses import BLANK_IMAGE_URL


def b64(data: bytes) -> str:
    return b64encode(data).decode()


def png(width: int, height: int) -> bytes:
    return (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x06\0\0\0" + b"x" * 5000
    )


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0" * 100


def jpeg(width: int, height: int, *, preview: int = 0) -> bytes:
    exif = b"\xff\xe1" + struct.pack(">H", preview + 2) + b"e" * preview
    return b"\xff\xd8" + exif + b"\xff\xc2\0\x11\x08" + struct.pack(">HH", height, width) + b"\x03" * 100


def webp(kind: bytes, width: int, height: int) -> bytes:
    head = b"RIFF\0\0\0\0WEBP" + kind + b"\0\0\0\0"
    if kind == b"VP8 ":
        return head + b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height)
    if kind == b"VP8L":
        return head + b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + b"\0" * 9
    return head + b"\0\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")


IMAGES = {
    "png": png(640, 480),
    "gif": gif(640, 480),
    "jpeg": jpeg(640, 480),
    "jpeg with a large preview": jpeg(640, 480, preview=60_000),
    "webp lossy": webp(b"VP8 ", 640, 480),
    "webp lossless": webp(b"VP8L", 640, 480),
    "webp extended": webp(b"VP8X", 640, 480),
}


def chat_image(data: bytes, kind: str = "image/png", marker: str = "data:{};base64,") -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": marker.format(kind) + b64(data)}}


@pytest.mark.parametrize("name", IMAGES)
def test_image_dimensions_are_read_from_the_header(name: str) -> None:
    assert image_dimensions(b64(IMAGES[name])) == (640, 480)


def test_an_image_costs_its_pixels_over_750_rounded_up() -> None:
    assert measure_media(chat_image(png(640, 480))).units == 410


def test_a_huge_image_costs_at_most_the_maximum() -> None:
    assert measure_media(chat_image(png(20_000, 20_000))).units == MAX_IMAGE_UNITS


def test_the_cost_does_not_depend_on_the_bytes() -> None:
    assert measure_media(chat_image(png(100, 100) + b"\0" * 1_000_000)).units == 14


def test_the_size_is_that_of_the_encoded_data() -> None:
    assert measure_media(chat_image(gif(10, 10))) == MediaSize("image/png", 148, 1)


@pytest.mark.parametrize("marker", ["DATA:{};base64,", "Data:{};BASE64,", "data:{};charset=utf-8;Base64,"])
def test_data_markers_are_recognised_in_any_case(marker: str) -> None:
    assert measure_media(chat_image(png(750, 10), "Image/PNG", marker)) == measure_media(
        chat_image(png(750, 10))
    )


def test_a_plain_url_costs_the_default() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.org/data:image/png;base64,iVBO"}}
    assert measure_media(part).units == DEFAULT_MEDIA_UNITS


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": None},
        {"type": "image_url", "image_url": {"url": 7}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,@@@@"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}},
        {"type": "image", "source": "?"},
        {"type": "document", "source": {"type": "file", "file_id": "f"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "input_audio", "input_audio": {"data": 3}},
        {"type": ["image"]},
        {},
    ],
)
def test_a_malformed_part_costs_the_default(part: dict[str, object]) -> None:
    assert measure_media(part).units == DEFAULT_MEDIA_UNITS


def test_truncated_headers_cost_the_default() -> None:
    for data in IMAGES.values():
        for length in range(26):
            assert measure_media(chat_image(data[:length])).units >= 1


@given(st.binary(max_size=200), st.sampled_from(sorted(IMAGES)), st.integers(0, 40))
def test_no_bytes_raise_an_error(noise: bytes, name: str, keep: int) -> None:
    assert 1 <= measure_media(chat_image(IMAGES[name][:keep] + noise)).units <= MAX_IMAGE_UNITS


def test_an_image_costs_the_same_in_every_dialect() -> None:
    data = png(300, 300)
    url = f"data:image/png;base64,{b64(data)}"
    anthropic = {"type": "base64", "media_type": "image/png", "data": b64(data)}
    forms = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_image", "image_url": url},
        {"type": "computer_screenshot", "image_url": url},
        {"type": "image", "source": anthropic},
    ]
    assert {measure_media(form) for form in forms} == {MediaSize("image/png", len(b64(data)), 120)}


def test_sound_is_counted_by_its_bytes() -> None:
    part = {"type": "input_audio", "input_audio": {"data": b64(b"\0" * 160_000), "format": "mp3"}}
    assert measure_media(part).units == 100
    assert measure_media(part).mime == "audio/mp3"


def test_files_are_counted_by_their_kind() -> None:
    pdf = {
        "type": "file",
        "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64," + "A" * 400_000},
    }
    text = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "word " * 100}}
    assert measure_media(pdf) == MediaSize("application/pdf", 400_000, 15_000)
    assert measure_media(text) == MediaSize("text/plain", 500, 125)


@pytest.mark.parametrize(
    "hostile", ["image/png]\n[system", "image/png; x", "<b>", "a" * 500 + "/x", "", None, 3]
)
def test_a_hostile_mime_type_is_ignored(hostile: object) -> None:
    assert mime_type(hostile) == ""


def test_a_source_gives_back_the_same_data_url() -> None:
    part = chat_image(gif(2, 2), "image/gif")
    found = media_source(part)
    assert found is not None
    assert found.data_url == part["image_url"]["url"]  # type: ignore[index]


def test_the_blank_image_is_a_png_of_one_pixel() -> None:
    import zlib

    data = b64decode(BLANK_IMAGE_URL.partition(",")[2], validate=True)
    offset, kinds = 8, []
    while offset < len(data):
        (length,) = struct.unpack(">I", data[offset : offset + 4])
        body = data[offset + 4 : offset + 8 + length]
        assert zlib.crc32(body) == struct.unpack(">I", data[offset + 8 + length : offset + 12 + length])[0]
        kinds.append(body[:4])
        if body[:4] == b"IDAT":
            assert len(zlib.decompress(body[4:])) == 5
        offset += 12 + length
    assert kinds == [b"IHDR", b"IDAT", b"IEND"]
    assert image_dimensions(BLANK_IMAGE_URL, BLANK_IMAGE_URL.index(",") + 1) == (1, 1)
