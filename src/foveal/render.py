"""The view in a provider's language, and where its beginning moved since the last time.

Each step is written once and kept until it changes; what goes out is a copy, so nobody can change what is kept.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

from foveal.steps import Step
from foveal.view import View
from foveal.wire import Wire

Json = dict[str, Any]
_NESTED: Final[frozenset[object]] = frozenset({dict, list})


class Renderer:
    """Writes views of one conversation, one after the other."""

    def __init__(self) -> None:
        self._wire: Wire | None = None
        self._before: list[list[Json]] = []

    def render(self, view: View, wire: Wire) -> tuple[list[Json], Step | None]:
        """The messages, and the first step that is not as it was in the last request (None: only new ones)."""
        if wire is not self._wire:
            for step in view.steps:
                step.native = None
            self._wire = wire
        groups = [step.native if step.native is not None else _written(step, wire) for step in view.steps]
        moved = self._moved(view, groups)
        self._before = groups
        return [fresh(message) for message in wire.join(groups)], moved

    def _moved(self, view: View, groups: list[list[Json]]) -> Step | None:
        before = self._before
        if groups[: len(before)] == before:
            return None
        same = (
            old == new or unmarked(old) == unmarked(new) for old, new in zip(before, groups, strict=False)
        )
        at = next((i for i, equal in enumerate(same) if not equal), min(len(before), len(groups)))
        if at == len(before):
            return None
        return view.steps[min(at, len(groups) - 1)] if groups else None


def _written(step: Step, wire: Wire) -> list[Json]:
    step.native = list(chain.from_iterable(map(wire.write, step.facts())))
    return step.native


def unmarked(value: Any) -> Any:
    """A JSON value without marks for the cache: where they stand does not change what is cached."""
    if value.__class__ is dict:
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    if value.__class__ is list:
        return [unmarked(item) for item in value]
    return value


def fresh(message: Json) -> Json:
    """A copy whose lists and dicts are its own."""
    new = message.copy()
    if len(new) == 2 and isinstance(new.get("content"), str):  # what most messages are
        return new
    for key, value in message.items():
        if value.__class__ in _NESTED:
            new[key] = copied(value)
    return new


def copied(value: Any) -> Any:
    """The same JSON value in containers of its own; leaves are shared."""
    if value.__class__ is dict:
        return {key: copied(item) if item.__class__ in _NESTED else item for key, item in value.items()}
    if value.__class__ is list:
        return [copied(item) if item.__class__ in _NESTED else item for item in value]
    return value
