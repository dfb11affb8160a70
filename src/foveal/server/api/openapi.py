"""OpenAPI 3.1 document of the API, made from its operations and structs."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from itertools import pairwise
from typing import Any, Final

import msgspec

import foveal
from foveal.core.compaction import health
from foveal.core.engine import report
from foveal.core.wire.common import Json
from foveal.server.api import schemas as api_schemas
from foveal.server.api.operation import ApiOperation, ApiResult
from foveal.server.api.schemas import EmptyBody
from foveal.server.auth_tokens import USER_PATTERN
from foveal.web.http_errors import TITLES
from foveal.web.request_body import JSON_TYPE

SCHEMA_REF: Final = "#/components/schemas/{name}"
PROBLEM_TYPE: Final = "application/problem+json"
EXACTLY_ONE_OF: Final[Mapping[type, tuple[str, ...]]] = {
    api_schemas.NewTurn: ("text", "content"),
    api_schemas.NewMessages: ("text", "messages"),
}
"""Bodies that need exactly one of these fields."""
PATH_PARAMETERS: Final[Mapping[str, Json]] = {
    "session": {"type": "string", "minLength": 1, "maxLength": 200},
    "turn": {"type": "string", "minLength": 1, "maxLength": 200},
    "schedule": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
    "user": {"type": "string", "pattern": f"^{USER_PATTERN}$"},
    "entry": {"type": "string", "pattern": "^m?[0-9]{1,15}$"},
    "handle": {"type": "string", "pattern": "^e?[0-9]{1,15}$"},
    "token": {"type": "string", "pattern": "^[0-9a-f]{8}$"},
}
"""JSON schemas of the parameters in paths."""
HEADER_NUMBER: Final[Json] = {"type": "string", "pattern": "^[0-9]{0,15}$"}
"""JSON schema of the request headers: all of them are numbers."""


def openapi_document(operations: Sequence[ApiOperation[Any, Any]]) -> Json:
    """Return the document for these operations."""
    structs = _structs(operations)
    refs, schemas = msgspec.json.schema_components(structs, ref_template=SCHEMA_REF)
    ref_of = dict(zip(structs, refs, strict=True))
    for struct, fields in EXACTLY_ONE_OF.items():
        schemas[struct.__name__]["oneOf"] = [{"required": [field]} for field in fields]
    for schema in schemas.values():
        # The rest of a docstring is about Python: parameters and examples.
        if "description" in schema:
            schema["description"] = schema["description"].partition("\n\n")[0]
    _add_field_docs(schemas, structs)
    paths: dict[str, Json] = {}
    for operation in operations:
        methods = paths.setdefault(operation.path, {})
        methods[operation.method.lower()] = _operation(operation, ref_of, operations)
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


def _structs(operations: Iterable[ApiOperation[Any, Any]]) -> list[Any]:
    """Return the structs of all bodies and results, each once."""
    found: dict[Any, None] = {api_schemas.ApiProblem: None}
    for operation in operations:
        found |= dict.fromkeys((operation.body, *(result.struct for result in operation.results)))
    return [struct for struct in found if struct not in (None, EmptyBody)]


# ── Field descriptions ───────────────────────────────────────────────────────────────────────────────────
# The docstring below a field of a struct becomes the field's description. Python does not keep it, so it is
# read from the source.


def field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstrings of the fields of a struct and its bases; empty if there is no source."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            found |= _module_field_docs(base.__module__).get(base.__name__, {})
    return found


@cache
def _module_field_docs(module: str) -> dict[str, dict[str, str]]:
    """Return the field docstrings of every class of a module, by class name."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {node.name: _class_field_docs(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _class_field_docs(node: ast.ClassDef) -> dict[str, str]:
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(node.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def _add_field_docs(schemas: Mapping[str, Json], structs: Sequence[Any]) -> None:
    known = {
        **vars(health),
        **vars(report),
        **vars(api_schemas),
        **{struct.__name__: struct for struct in structs},
    }
    for name, schema in schemas.items():
        for field, text in field_docs(known[name]).items():
            schema["properties"][field]["description"] = text


# ── Operations ───────────────────────────────────────────────────────────────────────────────────────────


def _operation(
    operation: ApiOperation[Any, Any], refs: Mapping[Any, Json], operations: Sequence[ApiOperation[Any, Any]]
) -> Json:
    parameters = [*_path_parameters(operation), *_query_parameters(operation), *_header_parameters(operation)]
    entry: Json = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": ["sessions"],
        "parameters": parameters,
        "responses": _responses(operation, refs, operations),
    }
    if operation.body is not EmptyBody:
        required = any(field.required for field in msgspec.structs.fields(operation.body))
        entry["requestBody"] = {
            "required": required or operation.body in EXACTLY_ONE_OF,
            "content": {JSON_TYPE: {"schema": refs[operation.body]}},
        }
    return entry


def _path_parameters(operation: ApiOperation[Any, Any]) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": PATH_PARAMETERS[name]}
        for name in operation.path_params
    ]


def _query_parameters(operation: ApiOperation[Any, Any]) -> list[Json]:
    struct = operation.query
    (_,), schemas = msgspec.json.schema_components([struct])
    schema = schemas[struct.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema["required"],
            "description": field_docs(struct).get(name, ""),
            "schema": inner,
        }
        for name, inner in schema["properties"].items()
    ]


def _header_parameters(operation: ApiOperation[Any, Any]) -> list[Json]:
    return [
        {"name": name, "in": "header", "description": description, "schema": HEADER_NUMBER}
        for name, description in (operation.request_headers or {}).items()
    ]


# ── Responses ────────────────────────────────────────────────────────────────────────────────────────────


def _responses(
    operation: ApiOperation[Any, Any], refs: Mapping[Any, Json], operations: Sequence[ApiOperation[Any, Any]]
) -> Json:
    responses: dict[str, Json] = {}
    for result in operation.results:  # results of one status differ in their media type
        entry = responses.setdefault(str(result.status), {"description": result.description})
        if result.description not in entry["description"]:
            entry["description"] += f" Or: {result.description}"
        if result.headers:
            entry.setdefault("headers", {}).update(_headers(result.headers))
        if (schema := _schema(result, refs)) is not None:
            entry.setdefault("content", {})[result.media_type] = {"schema": schema}
        if links := _links(result, operations):
            entry["links"] = links
    for status in operation.error_statuses:
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return responses


def _links(result: ApiResult, operations: Sequence[ApiOperation[Any, Any]]) -> Json:
    """Return the operations whose path parameters a result contains."""
    links: Json = {}
    for operation in operations:
        names = operation.path_params
        if result.links and names and set(names) <= result.links.keys():
            parameters = {name: result.links[name] for name in names}
            links[operation.id] = {"operationId": operation.id, "parameters": parameters}
    return links


def _schema(result: ApiResult, refs: Mapping[Any, Json]) -> Json | None:
    if result.schema is not None:
        return dict(result.schema)
    return None if result.struct is None else refs[result.struct]


def _headers(headers: Mapping[str, str]) -> Json:
    return {
        name: {"description": description, "schema": {"type": "string"}}
        for name, description in headers.items()
    }


def _problem(status: int) -> Json:
    title = TITLES.get(status) or HTTPStatus(status).phrase
    schema = {"$ref": SCHEMA_REF.format(name=api_schemas.ApiProblem.__name__)}
    return {"description": title, "content": {PROBLEM_TYPE: {"schema": schema}}}
