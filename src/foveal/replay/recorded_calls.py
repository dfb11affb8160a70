"""A recording as the requests that its agent made: for each utterance of the model, the messages before it.

What was rewound does not count, and reductions that were recorded are left out: the policies under test get the
history as it was said. Messages are in the dialect that the recording has, so that nothing is lost on the way.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

import msgspec

from foveal.core.log.events import (
    AnyFact,
    Dialect,
    Equipped,
    Instructed,
    ModelSaid,
    ToolReturned,
    UserSaid,
    calls_of,
    text_of,
    unraw,
)
from foveal.core.view.fold import effective
from foveal.core.wire import wire
from foveal.transcripts import Transcript

Said: TypeAlias = Instructed | UserSaid | ModelSaid | ToolReturned


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the agent."""

    messages: int
    """How many of the conversation's messages it may show."""
    facts: int
    """How many facts those are."""
    at: float | None = None
    system: str | None = None
    """System text that is sent beside the messages."""
    tools: tuple[Any, ...] = ()


class RecordedConversation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    title: str
    path: str
    dialect: Dialect
    facts: tuple[Said, ...]
    messages: list[Any]
    """The same as messages, the utterances of the model included."""
    calls: tuple[RecordedCall, ...]

    @property
    def results(self) -> list[ToolReturned]:
        return [fact for fact in self.facts if isinstance(fact, ToolReturned)]

    @property
    def tools(self) -> list[str]:
        """For each result the tool that returned it, as far as it or its call tells."""
        called: dict[str, str] = {}
        names: list[str] = []
        for fact in self.facts:
            if isinstance(fact, ModelSaid):
                called |= {call.id: call.name for _, call in calls_of(fact.content)}
            elif isinstance(fact, ToolReturned):
                names.append(fact.name or called.get(fact.call_id, ""))
        return names


def conversation(recording: Transcript) -> RecordedConversation:
    events = [(event.fact, event.at) for event in effective(list(recording.events()))]
    dialect = _dialect(fact for fact, _ in events)
    target = wire(dialect)
    facts: list[Said] = []
    messages: list[Any] = []
    calls: list[RecordedCall] = []
    system: dict[str, str] = {}
    tools: tuple[Any, ...] = ()
    for fact, at in events:
        if isinstance(fact, Equipped):
            offered = unraw(fact.tools)
            tools = tuple(offered) if isinstance(offered, list) else ()
        elif isinstance(fact, Instructed) and fact.aside:
            system[fact.source] = text_of(fact.content)
        elif isinstance(fact, Instructed | UserSaid | ModelSaid | ToolReturned):
            if isinstance(fact, ModelSaid):
                beside = "\n\n".join(system.values()) if system else None
                before = RecordedCall(
                    messages=len(messages), facts=len(facts), at=at, system=beside, tools=tools
                )
                calls.append(before)
            facts.append(fact)
            messages += target.write(fact)
    return RecordedConversation(
        id=recording.id,
        title=recording.title,
        path=recording.path,
        dialect=dialect,
        facts=tuple(facts),
        messages=messages,
        calls=tuple(calls),
    )


def _dialect(facts: Any) -> Dialect:
    """The dialect that most of the facts have; chat when none has any."""
    found: Counter[Dialect] = Counter(_named(fact) for fact in facts)
    del found[""]
    return found.most_common(1)[0][0] if found else "openai_chat"


def _named(fact: AnyFact) -> Dialect:
    return fact.dialect if isinstance(fact, UserSaid | ModelSaid | ToolReturned) else ""
