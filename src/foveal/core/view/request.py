"""A fitted request: what the model shall see, in whichever dialect it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import msgspec

from foveal.core import wire
from foveal.core.log.events import AnyFact, Dialect, Instructed, text_of, unraw
from foveal.core.view.steps import Step
from foveal.core.view.view import View
from foveal.core.wire import Wire

# ── render ────────────────────────────────────────────────────────────────────────────────────────
# The view in a provider's language, and where its beginning moved since the last time.
#
# Each step is written once and kept until it changes; what goes out is a copy, so nobody can change what is kept.

JsonObject = dict[str, Any]
_NESTED: Final[frozenset[object]] = frozenset({dict, list})


class Renderer:
    """Writes views of one conversation, one after the other."""

    def __init__(self) -> None:
        self._wire: Wire | None = None
        self._before: list[list[JsonObject]] = []

    def render(self, view: View, wire: Wire) -> tuple[list[JsonObject], Step | None]:
        """The messages, and the first step that is not as it was in the last request (None: only new ones)."""
        if wire is not self._wire:
            for step in view.steps:
                step.native = None
            self._wire = wire
        groups = [step.native if step.native is not None else _written(step, wire) for step in view.steps]
        moved = self._moved(view, groups)
        self._before = groups
        return [fresh(message) for message in wire.join(groups)], moved

    def _moved(self, view: View, groups: list[list[JsonObject]]) -> Step | None:
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


def _written(step: Step, wire: Wire) -> list[JsonObject]:
    step.native = list(chain.from_iterable(map(wire.write, step.facts())))
    return step.native


def unmarked(value: Any) -> Any:
    """A JSON value without marks for the cache: where they stand does not change what is cached."""
    if value.__class__ is dict:
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    if value.__class__ is list:
        return [unmarked(item) for item in value]
    return value


def fresh(message: JsonObject) -> JsonObject:
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


# ── fitted ────────────────────────────────────────────────────────────────────────────────────────


class ReducedCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many messages a request does not show as they were said."""

    clipped: int = 0
    masked: int = 0
    dropped: int = 0
    summarised: int = 0

    @classmethod
    def of(cls, view: View) -> ReducedCounts:
        levels = Counter(
            shown.level for step in view.steps for shown in step.shown() if shown.overlays is not None
        )
        return cls(
            clipped=levels["clipped"],
            masked=levels["masked"],
            dropped=view.dropped_messages,
            summarised=sum(step.messages for step in view.steps if step.kind == "summary"),
        )

    def __bool__(self) -> bool:
        return self != _NOTHING

    def __str__(self) -> str:
        told = (f"{name}={getattr(self, name)}" for name in self.__struct_fields__ if getattr(self, name))
        return ", ".join(told) or "none"


_NOTHING: Final = ReducedCounts()


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    facts: tuple[AnyFact, ...]
    """The messages as facts, reductions applied, every call answered."""
    aside: tuple[Instructed, ...]
    """System text that goes beside the messages."""
    tools: list[Any]
    tokens: int
    """What the provider is expected to count for it."""
    limit: int
    """The most that it might have been."""
    whole: int = 0
    """What it would have taken, had nothing been reduced."""
    reduced: ReducedCounts = _NOTHING
    intact: bool = False
    """It shows all that was said, and nothing else."""
    seqs: tuple[int, ...] = ()
    """For each of the facts the event that it is as it was said; -1 for one that no event is."""

    @classmethod
    def of(cls, view: View, *, tokens: int = 0, limit: int = 0, whole: int = 0) -> Fitted:
        aside = (shown.fact for shown in view.asides.values())
        reduced = ReducedCounts.of(view)
        return cls(
            facts=tuple(chain.from_iterable(step.facts() for step in view.steps)),
            aside=tuple(fact for fact in aside if isinstance(fact, Instructed)),
            tools=[] if view.tools is None else unraw(view.tools[1].tools),
            tokens=tokens,
            limit=limit,
            whole=whole,
            reduced=reduced,
            intact=not reduced and all(step.kind != "pinned" for step in view.steps),
            seqs=tuple(chain.from_iterable(map(_whole, view.steps))),
        )

    def to_openai(self) -> list[JsonObject]:
        """Messages for OpenAI's chat completions, and all who speak like it. System text stands in front."""
        return self._written("openai_chat", [*map(_inline, self.aside), *self.facts])

    def to_responses(self) -> list[JsonObject]:
        """Items for OpenAI's Responses. System text stands in front."""
        return self._written("openai_responses", [*map(_inline, self.aside), *self.facts])

    def to_anthropic(self) -> list[JsonObject]:
        """Messages for Anthropic; the system text at the beginning is in `system`."""
        return self._written("anthropic", self.facts[len(self._leading()) :])

    @property
    def system(self) -> str:
        """System text as one string, for a provider that takes it beside the messages."""
        return "\n\n".join(text_of(fact.content) for fact in (*self.aside, *self._leading()))

    def _leading(self) -> list[Instructed]:
        leading: list[Instructed] = []
        for fact in self.facts:
            if not isinstance(fact, Instructed):
                break
            leading.append(fact)
        return leading

    def _written(self, dialect: Dialect, facts: Any) -> list[JsonObject]:
        writer = wire.wire(dialect)
        return writer.join([writer.write(fact) for fact in facts])

    def moved(self, view: View, before: tuple[AnyFact, ...]) -> Step | None:
        """The first step that is not as it was in the request before; None when only new ones were added."""
        if self.facts[: len(before)] == before:
            return None
        at = next(
            (i for i, (a, b) in enumerate(zip(self.facts, before, strict=False)) if a != b), len(self.facts)
        )
        for step in view.steps:
            at -= 1 + len(step.slots)
            if at < 0:
                return step
        return view.steps[-1] if view.steps else None


def _whole(step: Step) -> Iterator[int]:
    """The events of a step that are shown as they were said, each in its place."""
    own = step.kind in ("instructed", "user", "model") and not step.said.overlays
    yield step.said.seq if own else -1
    for slot in step.slots:
        yield slot.result.seq if slot.result is not None and not slot.result.overlays else -1


def _inline(fact: Instructed) -> Instructed:
    return msgspec.structs.replace(fact, aside=False)
