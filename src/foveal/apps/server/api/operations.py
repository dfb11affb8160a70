"""What an operation of the API is: one row of a table from which both the routes and the document are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic

from starlette.responses import Response

from foveal.apps.server.api.asking import JSON, Ask, BodyT, QueryT

EVERYWHERE: Final = (400, 401, 403, 408, 413, 415, 421, 429, 431, 500, 503)
"""What any request may be answered: by the guard, or because a store cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One way in which an operation succeeds."""

    status: int = 200
    what: str
    shape: Any = None
    """The struct of the body; None when there is none, or when it is no JSON object."""
    media: str = JSON
    schema: Mapping[str, Any] | None = None
    """In place of a struct's."""
    headers: Mapping[str, str] | None = None
    """Names, each with what it says."""
    gives: Mapping[str, str] | None = None
    """What stands in other paths, each with where it is found here."""


@dataclass(frozen=True, kw_only=True)
class Operation(Generic[BodyT, QueryT]):
    id: str
    method: str
    path: str
    what: str
    """One sentence."""
    handler: Callable[[Ask[BodyT, QueryT]], Awaitable[Response]]
    body: type[BodyT]
    query: type[QueryT]
    answers: tuple[Answer, ...]
    errors: tuple[int, ...] = ()
    """Statuses beside those that any request may have."""
    tag: str = "sessions"
    """What it belongs to."""
    reads: Mapping[str, str] | None = None
    """Headers that it looks at, each with what it is for."""
