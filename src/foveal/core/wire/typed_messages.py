"""Types of messages for type checkers: clients' own TypedDicts in and out.

A list of a client's TypedDicts comes back as a list of the same type, so that the client accepts it. Dicts without
a type and objects of a client come back as `list[Any]`, which checkers accept in every client. No client has to be
installed for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, TypedDict, TypeVar


class TypedMessage(Protocol):
    """A message whose type is a TypedDict, such as `ChatCompletionMessageParam` or `MessageParam`."""

    # Every TypedDict class has this attribute and `dict` does not: nothing else tells them apart for both mypy and
    # pyright.
    __required_keys__: ClassVar[frozenset[str]]


MessageT = TypeVar("MessageT", bound=TypedMessage)
"""The type of the caller's messages."""


class Beside(TypedDict, total=False):
    """What a request has beside its messages; each is optional."""

    tools: Sequence[object]
    """The tools that are offered: dicts, or objects of the client."""
    system: object
    """The system text that is sent beside the messages: a string or a list of blocks."""
