"""Rendering: a view as provider messages, and a fitted request in any dialect.

1. `render_view` writes the steps of a view in one dialect. Each step caches its messages until it changes; the
   result is a copy, so a caller cannot change what is cached.
2. `Fitted` holds a request as facts, independent of the dialect, with its size and what was reduced.

`RequestWriter` writes the requests of one conversation, each from the one before:

1. Only the steps that have changed since the last request are rendered and joined.
2. The caller gets copies, so it cannot change what is cached. A copy that the caller has left as it was is given
   again with the next request; the list around the copies is a new one each time.
3. Every copy is compared with its original before it is given again: what a caller changed is in no later request.
4. A caller that changes messages gets new copies of all of them from then on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import msgspec

from foveal.core import wire
from foveal.core.log.events import AnyFact, Dialect, Instructed, text_of, unraw
from foveal.core.view.steps import ProviderMessage, Step
from foveal.core.view.view import View
from foveal.core.wire import Wire

_NESTED: Final[frozenset[object]] = frozenset({dict, list})
_KEPT_TYPES: Final = (bytes,)
"""Types besides those of JSON that a message may hold: boto3 takes images as `bytes`."""


def render_view(view: View, wire: Wire) -> tuple[list[ProviderMessage], list[list[ProviderMessage]]]:
    """Return the messages, and those of each step, which `core.engine.prefix` compares with the next request's."""
    wire = wire.for_thinking(is_bound=view.thinking.is_bound)
    # Most steps are rendered already. A call for each of them would take longer than the rest of this function.
    groups = [
        rendered
        if step.rendered_by is wire and (rendered := step.rendered) is not None
        else step.render(wire)
        for step in view.steps
    ]
    return copy_messages(wire.join(groups)), groups


def copy_messages(messages: list[ProviderMessage]) -> list[ProviderMessage]:
    """Return a copy of written messages that shares no list or dict with them."""
    # Every message in view is copied for every request. msgspec takes a third of the time of `copy_json`, and
    # needs a hook for the one type that it refuses: a caller's subclass of `str`.
    copied: list[ProviderMessage] = msgspec.to_builtins(
        messages, enc_hook=str.__str__, builtin_types=_KEPT_TYPES
    )
    return copied


def copy_json(value: Any) -> Any:
    """Return a copy of a JSON value with new lists and dicts; strings and numbers are shared."""
    if value.__class__ is dict:
        copied = value.copy()
        for key, item in value.items():
            if item.__class__ in _NESTED:
                copied[key] = copy_json(item)
        return copied
    if value.__class__ is list:
        return [copy_json(item) if item.__class__ in _NESTED else item for item in value]
    return value


class ReducedCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many messages a request does not show as they were said.

    It is true if there are any.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        ctx.fit([{"role": "user", "content": "Why is CI red?"}])
        assert not ctx.report().reduced
        ```
    """

    clipped: int = 0
    """Results of which a part is shown."""
    masked: int = 0
    """Results and arguments that a placeholder replaces."""
    dropped: int = 0
    """Messages that left the request."""
    summarised: int = 0
    """Messages that a summary replaces."""

    @classmethod
    def of(cls, view: View) -> ReducedCounts:
        """Count the reduced messages of a view.

        Args:
            view: The view.
        """
        levels = Counter(
            shown.level
            for step in view.steps
            if step.kind != "passed"
            for shown in step.shown_messages()
            if shown.overlays is not None
        )
        return cls(
            clipped=levels["clipped"],
            masked=levels["masked"],
            dropped=view.dropped.messages,
            summarised=sum(step.message_count for step in view.steps if step.kind == "summary"),
        )

    def __bool__(self) -> bool:
        return self != _NO_REDUCTIONS

    def __str__(self) -> str:
        counts = (f"{name}={getattr(self, name)}" for name in self.__struct_fields__ if getattr(self, name))
        return ", ".join(counts) or "none"


_NO_REDUCTIONS: Final = ReducedCounts()


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """A request that fits, with methods that write it for a provider.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            session = await foveal.Session.open(store, "demo", model="gpt-4.1")
            await session.append(foveal.UserSaid(content="Why is CI red?"))
            request = await session.fit()
            reply = client.chat.completions.create(model="gpt-4.1", messages=request.to_openai())
        ```
    """

    facts: tuple[AnyFact, ...]
    """The messages as facts: reductions applied, every call answered."""
    aside: tuple[Instructed, ...]
    """System text that is sent beside the messages."""
    tools: list[Any]
    """The tools that are offered."""
    tokens: int
    """Tokens that the provider is expected to count."""
    limit: int
    """Tokens that the request may take at most."""
    whole: int = 0
    """Tokens that the request would take without any reduction."""
    reduced: ReducedCounts = _NO_REDUCTIONS
    """How many messages are not shown as they were said, by level."""
    intact: bool = False
    """Whether the request shows everything that was said, and nothing else."""
    thinking_from: int = 0
    """The event before which thinking is left out, because something in front of it has changed."""
    binds_thinking: bool = False
    """Whether the model binds thinking to what comes before it."""
    compaction: str | None = None
    """Instructions for the provider's own compaction of the request, which is asked for in place of an answer; ""
    for those of the provider. None asks for an answer."""
    seqs: tuple[int, ...] = ()
    """For each fact the seq of the event that it shows unchanged, but for thinking that is left out; -1 for a
    changed or synthetic one."""

    @classmethod
    def of(cls, view: View, *, tokens: int = 0, limit: int = 0, whole: int = 0) -> Fitted:
        """Return the request that a view stands for.

        Args:
            view: The view.
            tokens: Tokens that the provider is expected to count.
            limit: Tokens that the request may take at most.
            whole: Tokens that the request would take without any reduction.
        """
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
            intact=not reduced
            and view.memory is None
            and all(step.kind != "pinned" for step in view.steps)
            and all(view.find(seq) is None for seq in view.superseded)
            and not view.thinking.was_refused
            and not (view.thinking.start and not view.thinking.is_bound)
            and not view.unreadable,
            thinking_from=view.thinking.start,
            binds_thinking=view.thinking.is_bound,
            seqs=tuple(chain.from_iterable(map(_unchanged_seqs, view.steps))),
        )

    def to_openai(self) -> list[Any]:
        """Return messages for OpenAI's chat completions and compatible APIs.

        The system text comes first.
        """
        return self._write("openai_chat", [*map(_inline, self.aside), *self.facts])

    def to_responses(self) -> list[Any]:
        """Return items for OpenAI's Responses API.

        The system text comes first.
        """
        return self._write("openai_responses", [*map(_inline, self.aside), *self.facts])

    def to_anthropic(self) -> list[Any]:
        """Return messages for Anthropic.

        The system text at the beginning is in `system`.
        """
        return self._write("anthropic", self.facts[len(self._leading_instructions()) :])

    def to_gemini(self) -> list[Any]:
        """Return contents for Gemini.

        The system text at the beginning is in `system`, for `systemInstruction`.
        """
        return self._write("gemini", self.facts[len(self._leading_instructions()) :])

    def to_bedrock(self) -> list[Any]:
        """Return messages for Bedrock Converse.

        The system text at the beginning is in `system`, which you send as `system=[{"text": …}]`. Images of
        other dialects are `bytes`, as boto3 takes them.
        """
        return self._write("bedrock", self.facts[len(self._leading_instructions()) :])

    @property
    def system(self) -> str:
        """System text as one string, for a provider that takes it beside the messages."""
        return "\n\n".join(text_of(fact.content) for fact in (*self.aside, *self._leading_instructions()))

    def _leading_instructions(self) -> list[Instructed]:
        leading: list[Instructed] = []
        for fact in self.facts:
            if not isinstance(fact, Instructed):
                break
            leading.append(fact)
        return leading

    def _write(self, dialect: Dialect, facts: Any) -> list[ProviderMessage]:
        writer = wire.wire_for(dialect).for_thinking(is_bound=self.binds_thinking)
        return writer.join([writer.write(fact) for fact in facts])


def _unchanged_seqs(step: Step) -> Iterator[int]:
    """Yield for each message of a step the event that it shows as it was said, or -1."""
    is_own = step.is_said and step.utterance.is_as_said
    yield step.utterance.seq if is_own else -1
    for slot in step.all_slots:
        result = slot.result
        yield result.seq if result is not None and not result.overlays and result.again < 0 else -1


def _inline(fact: Instructed) -> Instructed:
    return msgspec.structs.replace(fact, aside=False)


_BLOCK: Final = 256
"""Messages that are compared at once."""
_seq = attrgetter("seq")


class RequestWriter:
    """Writes the views of one conversation as messages of a dialect."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._wire: Wire | None = None
        self._groups: list[list[ProviderMessage]] = []
        """The messages of each step."""
        self._messages: list[ProviderMessage] = []
        """The messages of the request."""
        self._copies: list[ProviderMessage] = []
        """What the caller was given for them."""
        self._is_changed_by_caller = False

    def write(self, view: View, wire: Wire) -> tuple[list[ProviderMessage], list[list[ProviderMessage]]]:
        """Return the messages, and those of each step, which `core.engine.prefix` compares with the next
        request's."""
        wire = wire.for_thinking(is_bound=view.thinking.is_bound)
        first_changed = view.take_first_changed()
        if view is not self._view or wire is not self._wire:
            self._groups, self._messages, self._copies = [], [], []
            first_changed = 0
        self._view = None  # until all of this has succeeded: the view will not report these changes again
        start = bisect_left(view.steps, first_changed, key=_seq)
        changed = [step.render(wire) for step in view.steps[start:]]
        # Each copy of a list reads every one of thousands of messages, so these lists are changed in place.
        if wire.merges is not None:
            messages = wire.join([*self._groups[:start], *changed])
            unchanged = common_beginning(self._messages, messages)
            new = messages[unchanged:]
        else:  # the messages of a step do not depend on its neighbours
            unchanged = len(self._messages) - sum(map(len, self._groups[start:]))
            new = wire.join(changed)
        self._copy(unchanged, new)
        self._groups[start:] = changed
        self._view, self._wire = view, wire
        return self._copies.copy(), self._groups.copy()

    def _copy(self, unchanged: int, new: list[ProviderMessage]) -> None:
        """Replace the messages behind the `unchanged` ones, and their copies."""
        del self._messages[unchanged:], self._copies[unchanged:]
        if not self._is_changed_by_caller:
            self._is_changed_by_caller = self._copies != self._messages
        self._messages += new
        if self._is_changed_by_caller:
            self._copies = copy_messages(self._messages)
        else:
            self._copies += copy_messages(new)


def common_beginning(before: list[Any], now: list[Any]) -> int:
    """Return how many messages, or messages of steps, two requests begin with in common."""
    # Most of them are the same objects: comparing many at once is much faster than one after the other.
    start, end = 0, min(len(before), len(now))
    while start < end and before[start : start + _BLOCK] == now[start : start + _BLOCK]:
        start += _BLOCK
    while start < end and before[start] == now[start]:
        start += 1
    return min(start, end)
