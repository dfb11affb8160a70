"""Collects the examples in the docstrings of the package."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import foveal
from support.doc_pages import code_blocks

SOURCE: Final = Path(foveal.__file__).parent
_DEFINITIONS: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class DocstringExample(NamedTuple):
    """A `python` block in a docstring. Blocks of frameworks that may be missing have the language `py`."""

    module: str
    name: str
    """The name of the class or function inside of its module; "" for the module itself."""
    number: int
    """Counts the examples of one docstring from 1."""
    code: str

    @property
    def id(self) -> str:
        """The name of the example in test ids."""
        return f"{self.module}:{self.name} {self.number}"


@cache
def docstring_examples() -> tuple[DocstringExample, ...]:
    """Return all examples of the package."""
    return tuple(example for path in sorted(SOURCE.rglob("*.py")) for example in _examples(path))


def _examples(path: Path) -> Iterator[DocstringExample]:
    text = path.read_text(encoding="utf-8")
    if "```python" not in text:
        return
    parts = ("foveal", *path.relative_to(SOURCE).with_suffix("").parts)
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    for name, docstring in _docstrings(ast.parse(text), ""):
        for number, code in enumerate(code_blocks(docstring), 1):
            yield DocstringExample(module, name, number, code)


def _docstrings(node: ast.Module | ast.ClassDef, name: str) -> Iterator[tuple[str, str]]:
    yield name, ast.get_docstring(node) or ""
    for child in node.body:
        if isinstance(child, _DEFINITIONS):
            inner = f"{name}.{child.name}".lstrip(".")
            if isinstance(child, ast.ClassDef):
                yield from _docstrings(child, inner)
            else:
                yield inner, inspect.cleandoc(ast.get_docstring(child) or "")
