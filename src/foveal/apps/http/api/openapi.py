"""The OpenAPI 3.1 document of the API, made from its table and from the structs that it reads and writes."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from itertools import pairwise
from typing import Any, Final

import msgspec

import foveal
from foveal.apps.http.api import schemas as shapes
from foveal.apps.http.api.operation import EVERYWHERE, Operation, OperationResult
from foveal.apps.http.api.schemas import EmptyBody
from foveal.apps.http.http_errors import TITLES
from foveal.core.engine import report

# ── remarks ───────────────────────────────────────────────────────────────────────────────────────
# What stands under the fields of a struct in its source, so that the document says it, too.


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


# ── document ──────────────────────────────────────────────────────────────────────────────────────

Json = dict[str, Any]

REF: Final = "#/components/schemas/{name}"
PROBLEM: Final = "application/problem+json"
EITHER: Final[Mapping[type, tuple[str, ...]]] = {
    shapes.NewTurn: ("text", "content"),
    shapes.NewMessages: ("text", "messages"),
}
"""Requests that need exactly one of these fields."""
NAMES: Final[Mapping[str, Json]] = {
    "session": {"type": "string", "minLength": 1, "maxLength": 200},
    "turn": {"type": "string", "minLength": 1, "maxLength": 200},
    "schedule": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
    "handle": {"type": "string", "pattern": "^e?[0-9]{1,15}$"},
}
"""What stands in a path."""
NUMBER: Final[Json] = {"type": "string", "pattern": "^[0-9]{0,15}$"}
"""What stands in a header."""


def document(operations: Sequence[Operation[Any, Any]]) -> Json:
    forms = _forms(operations)
    made, schemas = msgspec.json.schema_components(forms, ref_template=REF)
    refs = dict(zip(forms, made, strict=True))
    for form, fields in EITHER.items():
        schemas[form.__name__]["oneOf"] = [{"required": [field]} for field in fields]
    _remark(schemas, forms)
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
            operation, refs, operations
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Foveal",
            "version": foveal.__version__,
            "description": "Sessions that stay inside their model's context window.",
        },
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {str(status): _problem(status) for status in TITLES},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _forms(operations: Iterable[Operation[Any, Any]]) -> list[Any]:
    found: dict[Any, None] = {shapes.ApiProblem: None}
    for operation in operations:
        found |= dict.fromkeys((operation.body, *(answer.shape for answer in operation.answers)))
    return [form for form in found if form not in (None, EmptyBody)]


def _remark(schemas: Mapping[str, Json], forms: Sequence[Any]) -> None:
    """Say of each field what its source says."""
    known = {**vars(report), **vars(shapes), **{form.__name__: form for form in forms}}
    for name, schema in schemas.items():
        for field, text in remarks(known[name]).items():
            schema["properties"][field]["description"] = text


def _operation(
    operation: Operation[Any, Any], refs: Mapping[Any, Json], operations: Sequence[Operation[Any, Any]]
) -> Json:
    made: Json = {
        "operationId": operation.id,
        "summary": operation.what,
        "tags": [operation.tag],
        "parameters": [*_in_path(operation.path), *_in_query(operation.query), *_in_headers(operation)],
        "responses": _responses(operation, refs, operations),
    }
    if operation.body is not EmptyBody:
        required = any(field.required for field in msgspec.structs.fields(operation.body))
        made["requestBody"] = {
            "required": required or operation.body in EITHER,
            "content": {"application/json": {"schema": refs[operation.body]}},
        }
    return made


def _in_path(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": NAMES[name]}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _in_query(form: type[msgspec.Struct]) -> list[Json]:
    (_,), schemas = msgspec.json.schema_components([form])
    schema = schemas[form.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema["required"],
            "description": remarks(form).get(name, ""),
            "schema": inner,
        }
        for name, inner in schema["properties"].items()
    ]


def _in_headers(operation: Operation[Any, Any]) -> list[Json]:
    return [
        {
            "name": name,
            "in": "header",
            "description": what,
            "schema": {"type": "string", "pattern": "^[0-9]{0,15}$"},
        }
        for name, what in (operation.reads or {}).items()
    ]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────


def _responses(
    operation: Operation[Any, Any], refs: Mapping[Any, Json], operations: Sequence[Operation[Any, Any]]
) -> Json:
    made: dict[str, Json] = {}
    for answer in operation.answers:
        into = made.setdefault(str(answer.status), {"description": answer.what})
        if answer.what not in into["description"]:
            into["description"] += f" Or: {answer.what}"
        if answer.headers:
            into.setdefault("headers", {}).update(_headers(answer.headers))
        if (schema := _schema(answer, refs)) is not None:
            into.setdefault("content", {})[answer.media] = {"schema": schema}
        if links := _links(answer, operations):
            into["links"] = links
    for status in sorted({*EVERYWHERE, *operation.errors}):
        made[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return made


def _links(answer: OperationResult, operations: Sequence[Operation[Any, Any]]) -> Json:
    """What can be asked next with what was answered."""
    made: Json = {}
    for operation in operations:
        names = re.findall(r"{(\w+)}", operation.path)
        if answer.gives and names and set(names) <= answer.gives.keys():
            given = {name: answer.gives[name] for name in names}
            made[operation.id] = {"operationId": operation.id, "parameters": given}
    return made


def _schema(answer: OperationResult, refs: Mapping[Any, Json]) -> Json | None:
    if answer.schema is not None:
        return dict(answer.schema)
    return None if answer.shape is None else refs[answer.shape]


def _headers(names: Mapping[str, str]) -> Json:
    return {name: {"description": what, "schema": {"type": "string"}} for name, what in names.items()}


def _problem(status: int) -> Json:
    title = TITLES.get(status) or HTTPStatus(status).phrase
    schema = {"$ref": REF.format(name=shapes.ApiProblem.__name__)}
    return {"description": title, "content": {PROBLEM: {"schema": schema}}}
