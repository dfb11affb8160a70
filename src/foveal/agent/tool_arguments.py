"""Parses, coerces and validates the arguments of tool calls.

1. A schema may use `type`, `enum`, `minimum`, `maximum`, `minLength`, `maxLength`, `properties`, `required`,
   `additionalProperties: false` and `items`. Other keywords are not checked here (MCP servers check their own).
2. A number or boolean may be written as text, and an optional field may be null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

from foveal.core.wire.safe_print import one_line

_MISSING: Final = object()
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class InvalidArguments(ValueError):
    """Wrong arguments; the message tells the model what is wrong and what is allowed."""


def parse_arguments(arguments: str) -> dict[str, Any]:
    """Parse the JSON object that a model wrote."""
    try:
        value = json.loads(arguments if arguments.strip() else "{}")
    except RecursionError:
        raise InvalidArguments("its arguments are nested too deeply.") from None
    except ValueError as problem:
        raise InvalidArguments(
            f"its arguments are not valid JSON ({one_line(str(problem))}). Send them again."
        ) from None
    if not isinstance(value, dict):
        raise InvalidArguments(f"its arguments must be a JSON object, not {_type_name(value)}.")
    return value


def check_arguments(value: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, coerced to the schema and checked against it."""
    try:
        return _check_object("", value, schema)
    except RecursionError:
        raise InvalidArguments("its arguments are nested too deeply.") from None


def _check_value(place: str, value: Any, schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return value
    types = _types(schema)
    value = _coerce(value, types)
    if types and not any(_has_type(value, name) for name in types):
        raise InvalidArguments(
            f"{place} must be {' or '.join(map(_with_article, types))}, not {_type_name(value)}."
        )
    allowed = schema.get("enum")
    if isinstance(allowed, Sequence) and value not in allowed:
        raise InvalidArguments(
            f"{place} must be one of {', '.join(map(_as_json, allowed))}, not {_as_json(value)}."
        )
    _check_bounds(place, value, schema)
    if isinstance(value, dict):
        return _check_object(place, value, schema)
    if isinstance(value, list):
        return [_check_value(f"{place}[{i}]", item, schema.get("items")) for i, item in enumerate(value)]
    return value


def _check_object(place: str, value: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    fields: Mapping[str, Any] = schema.get("properties") or {}
    needed = schema.get("required") or ()
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    checked = {}
    for name, item in value.items():
        inside = f"{place}.{name}" if place else one_line(name)
        field = fields.get(name, _MISSING)
        if field is _MISSING and closed:
            raise InvalidArguments(f"there is no field {inside!r}. {_describe_fields(fields, needed)}")
        if item is None and name not in needed and _types(field) and "null" not in _types(field):
            continue
        checked[name] = _check_value(inside, item, field)
    for name in needed:
        if name not in checked:
            where = f"{place}.{name}" if place else name
            raise InvalidArguments(f"the field {where!r} is missing. {_describe_fields(fields, needed)}")
    return checked


def _check_bounds(place: str, value: Any, schema: Mapping[str, Any]) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    size = value if number else len(value) if isinstance(value, str) else None
    low, high = ("minimum", "maximum") if number else ("minLength", "maxLength")
    unit = "" if number else " characters"
    if size is None:
        return
    if isinstance(schema.get(low), int | float) and size < schema[low]:
        raise InvalidArguments(f"{place} must be at least {schema[low]:,}{unit}, not {size:,}.")
    if isinstance(schema.get(high), int | float) and size > schema[high]:
        raise InvalidArguments(f"{place} must be at most {schema[high]:,}{unit}, not {size:,}.")


def _types(schema: Any) -> tuple[str, ...]:
    """Return the types that a schema allows; none if it allows any, or uses keywords that are not read here."""
    named = schema.get("type") if isinstance(schema, Mapping) else None
    listed = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    return tuple(name for name in listed if isinstance(name, str) and name in _TYPES)


def _has_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, float) and not isfinite(value):
        return False
    return isinstance(value, _TYPES[name])


def _coerce(value: Any, types: tuple[str, ...]) -> Any:
    """Convert a number or boolean written as text, and an integer written as a float."""
    if isinstance(value, float) and "integer" in types and "number" not in types and value.is_integer():
        return int(value)
    if not isinstance(value, str) or "string" in types:
        return value
    word = value.strip().lower()
    if "boolean" in types and word in ("true", "false"):
        return word == "true"
    if {"integer", "number"} & set(types) and re.fullmatch(r"-?\d{1,15}", word):
        return int(word)
    return value


def _type_name(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    for name, kinds in _TYPES.items():
        if isinstance(value, kinds):
            return _with_article(name)
    return "a number"


def _with_article(name: str) -> str:
    if name == "null":
        return name
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _as_json(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False))


def _describe_fields(fields: Mapping[str, Any], needed: Sequence[str]) -> str:
    if not fields:
        return "It takes no fields."
    names = (f"{name} (needed)" if name in needed else name for name in fields)
    return f"Its fields are: {', '.join(names)}."
