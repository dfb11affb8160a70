"""What does not fit its form, in a sentence for people. What a field must be is read off the struct: its type, its
bounds, and the description of its pattern.

    id must be text, 1 to 200 characters: letters, digits and . _ ~ : @ -, a letter or digit first; or null
    there is no field 'txt' here; known are background, content, key, stream, text
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

import msgspec
from msgspec import inspect

from foveal.visible import one_line

_SHOWN: Final = 64
"""Characters of a client's own words that are said back to it."""
_FIELD: Final = re.compile(r" - at `\$\.(\w+)[^`]*`\Z")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`\Z")
_GOT: Final = re.compile(r"got `(\w+)`")
_KINDS: Final = {
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
"""What msgspec calls the sorts of JSON values, and what people do."""


def in_words(problem: str, form: type[msgspec.Struct], *, part: str = "field") -> str:
    """What is wrong, from what msgspec says of it; `part` is what one of the form's fields is called."""
    fields = _fields(form)
    if unknown := _UNKNOWN.fullmatch(problem):
        name = one_line(unknown[1], width=_SHOWN)
        known = ", ".join(sorted(fields)) or "none"
        return f"there is no {part} {name!r} here; known are {known}"
    if missing := _MISSING.fullmatch(problem):
        return f"the {part} {missing[1]} is missing: it must be {must_be(fields[missing[1]])}"
    got = _GOT.search(problem)
    came = f", not {_KINDS[got[1]]}" if got and got[1] in _KINDS and part == "field" else ""
    at = _FIELD.search(problem)
    if at is None:
        return f"the body must be an object{came}" if came else problem
    if "[" in at[0]:
        came = ""  # that is one entry, and the sentence is about the list
    return f"{at[1]} must be {must_be(fields[at[1]])}{came}"


@cache
def _fields(form: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    told = inspect.type_info(form)
    assert isinstance(told, inspect.StructType)
    return {field.encode_name: field.type for field in told.fields}


def must_be(kind: inspect.Type) -> str:
    """What a value of this kind is, in words."""
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            told = (extra or {}).get("description", "")
            return ": ".join(filter(None, (must_be(inner), told)))
        case inspect.UnionType(types=types):
            return "; or ".join(must_be(each) for each in types)
        case inspect.StrType(min_length=least, max_length=most):
            return f"text{_bounds(least, most, unit=' characters')}"
        case inspect.ListType(min_length=least, max_length=most):
            return f"a list of objects{_bounds(least, most)}"
        case inspect.IntType(ge=least, le=most):
            return f"a whole number{_bounds(least, most)}"
        case inspect.LiteralType(values=values):
            return " or ".join(f'"{value}"' for value in values)
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "null"
    return _KINDS["object"]


def _bounds(least: int | None, most: int | None, *, unit: str = "") -> str:
    match least, most:
        case None, None:
            return ""
        case None, _:
            return f", at most {most:,}{unit}"
        case 1, None:
            return ", not empty"
        case _, None:
            return f", at least {least:,}{unit}"
    return f", {least:,} to {most:,}{unit}"
