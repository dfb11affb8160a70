"""Scripts, styles and the icon of the pages, and bundles of them.

A bundle is one script made of all modules. They have only static named imports, and no top-level name occurs twice
(a test checks both). So it is their text in the order of their imports, without the import lines and the word
`export`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final, NamedTuple

from foveal.errors import FovealError

STATIC_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
MAIN_SCRIPT: Final = "main.js"
LOGIN_SCRIPT: Final = "login_form.js"
"""Keeps the point of the address; the form works without it."""
_IMPORT: Final = re.compile(r'^import\s[^;"]*"\./([\w.-]+)";?[ \t]*\n?', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export\s+(?=(?:async\s+)?(?:function|class|const|let)\b)", re.MULTILINE)
_END_TAG: Final = re.compile(r"<(?=/(?:script|style)|!--|script)", re.IGNORECASE)


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


# ── Bundles ──────────────────────────────────────────────────────────────────────────────────────────────


def script_bundle(main: str = MAIN_SCRIPT, read: Callable[[str], str] | None = None) -> str:
    """Return the text of a module and of all modules that it imports, the imported ones first."""
    read = read or _static_text
    done: dict[str, str] = {}
    path: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        if name in path:
            raise FovealError(f"modules import each other: {' → '.join([*path, name])}")
        path.append(name)
        text = read(name)
        for imported in _IMPORT.findall(text):
            visit(imported)
        path.pop()
        done[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    visit(main)
    return inline_safe("\n".join(done.values()))


@cache
def main_script() -> StaticFile:
    """Return the script of the pages as one file: a request for each module would take longer than the rest."""
    return static_body(script_bundle().encode("utf-8"), MAIN_SCRIPT)


def style_bundle() -> str:
    """Return all style sheets as one."""
    return inline_safe("\n".join(_static_text(name) for name in style_names()))


def inline_safe(code: str) -> str:
    """Return code that an HTML page can contain: nothing in it ends the element or begins a comment.

    In strings, regular expressions and comments, the only places where these occur, `\\<` is `<`.
    """
    return _END_TAG.sub(r"\\<", code)


def _static_text(name: str) -> str:
    found = static_file(name)
    if found is None:
        raise FovealError(f"the package has no {name}: install it again")
    return found.body.decode("utf-8")
