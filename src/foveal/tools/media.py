"""Pictures, sounds and files that a tool returned, as parts of its answer."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from foveal.events import Media, raw
from foveal.media import measure, mime


def image(sort: str, data: bytes | str) -> Media:
    """A picture, from its bytes or their Base64."""
    return _media({"type": "image", "source": _base64(sort, data)})


def sound(sort: str, data: str) -> Media:
    form = {"audio/mpeg": "mp3", "audio/x-wav": "wav"}.get(mime(sort), mime(sort).partition("/")[2])
    return _media({"type": "input_audio", "input_audio": {"data": data, "format": form}})


def document(sort: str, data: str, *, name: str) -> Media:
    """A file of any other sort, from its Base64."""
    if mime(sort).startswith("image/"):
        return image(sort, data)
    kind = mime(sort) or "application/octet-stream"
    return _media({"type": "file", "file": {"filename": name, "file_data": f"data:{kind};base64,{data}"}})


def _base64(sort: str, data: bytes | str) -> dict[str, str]:
    text = data if isinstance(data, str) else b64encode(data).decode()
    return {"type": "base64", "media_type": mime(sort), "data": text}


def _media(native: dict[str, Any]) -> Media:
    found = measure(native)
    return Media(native=raw(native), mime=found.mime, size=found.size, units=found.units)
