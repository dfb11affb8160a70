"""One script made of all modules, for the pages and for exported files.

Modules have only static named imports, and no top-level name occurs twice (a test checks both). So the bundle is
their text in the order of their imports, without the import lines and the word `export`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Final

from foveal.errors import FovealError
from foveal.inspector.static_files import (
    MAIN_SCRIPT,
    StaticFile,
    static_body,
    static_file,
    style_names,
)

_IMPORT: Final = re.compile(r'^import\s[^;"]*"\./([\w.-]+)";?[ \t]*\n?', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export\s+(?=(?:async\s+)?(?:function|class|const|let)\b)", re.MULTILINE)
_END_TAG: Final = re.compile(r"<(?=/(?:script|style)|!--|script)", re.IGNORECASE)


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
