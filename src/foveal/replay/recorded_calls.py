"""Recorded conversations as the calls of their agents."""

from __future__ import annotations

import collections
from pathlib import PurePath
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
from foveal.core.view.fold import effective_events
from foveal.core.wire import wire_for
from foveal.transcripts import Transcript

# ── Recorded conversations ─────────────────────────────────────────────────────────────────────────────
# For each message of the model there is one call, with the messages before it. Rewound messages do not count, and
# recorded reductions are left out: the policies under test get the original history. Messages are in the
# recording's own dialect, so that no conversion loses anything.

MessageFact: TypeAlias = Instructed | UserSaid | ModelSaid | ToolReturned


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the model."""

    messages: int
    """Number of the conversation's messages that its request may contain."""
    facts: int
    """Number of facts that these messages are."""
    at: float | None = None
    """Time of the call, None if the recording has no times."""
    system: str | None = None
    """System text that is sent apart from the messages."""
    tools: tuple[Any, ...] = ()


class RecordedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation and its calls."""

    id: str
    title: str
    source: str
    path: str
    dialect: Dialect
    facts: tuple[MessageFact, ...]
    messages: list[Any]
    """The facts as messages of the dialect, those of the model included."""
    calls: tuple[RecordedCall, ...]

    @property
    def results(self) -> list[ToolReturned]:
        """All tool results."""
        return [fact for fact in self.facts if isinstance(fact, ToolReturned)]

    @property
    def tools(self) -> list[str]:
        """For each result the name of its tool, "" if neither the result nor its call has it."""
        called: dict[str, str] = {}
        names: list[str] = []
        for fact in self.facts:
            if isinstance(fact, ModelSaid):
                called |= {call.id: call.name for _, call in calls_of(fact.content)}
            elif isinstance(fact, ToolReturned):
                names.append(fact.name or called.get(fact.call_id, ""))
        return names


def recorded_conversation(recording: Transcript) -> RecordedConversation:
    """Return a transcript as the calls of its agent.

    Args:
        recording: The transcript.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        assert len(replay.recorded_conversation(recording).calls) == 1
        ```
    """
    events = [(event.fact, event.at) for event in effective_events(list(recording.events()))]
    dialect = _most_common_dialect(fact for fact, _ in events)
    target = wire_for(dialect)
    facts: list[MessageFact] = []
    messages: list[Any] = []
    calls: list[RecordedCall] = []
    system: dict[str, str] = {}
    tools: tuple[Any, ...] = ()
    for fact, at in events:
        if isinstance(fact, Equipped):
            offered = unraw(fact.tools)
            tools = tuple(offered) if isinstance(offered, list) else ()
        elif isinstance(fact, Instructed) and (fact.aside or fact.is_memory):
            system[fact.source] = text_of(fact.content)
        elif isinstance(fact, Instructed | UserSaid | ModelSaid | ToolReturned):
            if isinstance(fact, ModelSaid):
                aside = "\n\n".join(system.values()) if system else None
                call = RecordedCall(
                    messages=len(messages), facts=len(facts), at=at, system=aside, tools=tools
                )
                calls.append(call)
            facts.append(fact)
            messages += target.write(fact)
    return RecordedConversation(
        id=recording.id,
        title=recording.title,
        source=recording_source(recording),
        path=recording.path,
        dialect=dialect,
        facts=tuple(facts),
        messages=messages,
        calls=tuple(calls),
    )


def recording_source(recording: Transcript) -> str:
    """Return where a recording is from: the name of its data set without suffixes, or else its format."""
    file = PurePath(recording.path).name.partition(".")[0]
    return (recording.source == "data" and file) or recording.source


def _most_common_dialect(facts: Any) -> Dialect:
    """Return the dialect of most facts, OpenAI chat if no fact has one."""
    found: collections.Counter[Dialect] = collections.Counter(_fact_dialect(fact) for fact in facts)
    del found[""]
    return found.most_common(1)[0][0] if found else "openai_chat"


def _fact_dialect(fact: AnyFact) -> Dialect:
    return fact.dialect if isinstance(fact, UserSaid | ModelSaid | ToolReturned) else ""
