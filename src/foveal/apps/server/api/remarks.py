"""What stands under the fields of a struct in its source, so that the document says it, too."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise

import msgspec


def remarks(form: type[msgspec.Struct]) -> dict[str, str]:
    """The fields that have a remark, those of its bases included; none when there is no source to look at."""
    found: dict[str, str] = {}
    for base in reversed(form.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            found |= _of_module(base.__module__).get(base.__name__, {})
    return found


@cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    """The remarks of every class, by its name."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except OSError:
        return {}
    return {made.name: _of_class(made) for made in tree.body if isinstance(made, ast.ClassDef)}


def _of_class(made: ast.ClassDef) -> dict[str, str]:
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(made.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
