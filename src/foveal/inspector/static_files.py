"""Scripts, styles and the icon of the pages, from the package."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import Final, NamedTuple

STATIC_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
MAIN_SCRIPT: Final = "main.js"
LOGIN_SCRIPT: Final = "login_form.js"
"""Keeps the point of the address; the form works without it."""


class StaticFile(NamedTuple):
    body: bytes
    media_type: str
    tag: str
    """The value of `ETag`."""


def static_file(name: str) -> StaticFile | None:
    """Return a file; None if there is none. Only names of the folder are known, so no path leads out of it."""
    if name not in static_names():
        return None
    return static_body(files("foveal.inspector").joinpath("static", name).read_bytes(), name)


def static_body(body: bytes, name: str) -> StaticFile:
    """Return bytes as the file of this name."""
    return StaticFile(body, STATIC_TYPES[_suffix(name)], f'"{sha256(body).hexdigest()[:32]}"')


def static_names() -> tuple[str, ...]:
    """Return the names of all files, sorted."""
    folder = files("foveal.inspector").joinpath("static")
    names = (file.name for file in folder.iterdir() if file.is_file())
    return tuple(sorted(name for name in names if _suffix(name) in STATIC_TYPES))


def style_names() -> tuple[str, ...]:
    """Return the style sheets in the order in which pages load them: later ones refine `inspector.css`."""
    names = [name for name in static_names() if name.endswith(".css")]
    return tuple(sorted(names, key=lambda name: (name != "inspector.css", name)))


def _suffix(name: str) -> str:
    return f".{name.rpartition('.')[2]}"
