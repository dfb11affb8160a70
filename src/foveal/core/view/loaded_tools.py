"""Tools in a view: which were loaded in the middle of the conversation, and how often each was called.

A loaded tool stands in a message: as a reference in a result, or as an item of its own (`wire.tool_loading`). If
later tools no longer have it, it leaves that message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from foveal.core.log.events import Equipped, ToolsLoaded, unraw
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.steps import ShownMessage, Step
from foveal.core.wire.common import Json, json_text
from foveal.core.wire.event_text import LOAD_TOOLS
from foveal.core.wire.tool_schemas import DEFER_FIELD, additional_tools, each_tool, neutral_form


class LoadedTools(NamedTuple):
    """What one event has loaded, as far as the model can still load it."""

    seq: int
    fact: ToolsLoaded
    schemas: dict[str, Json]
    """By name."""
    text: str
    """The same as JSON, for counting."""

    @property
    def is_item(self) -> bool:
        """Whether they stand in an item of their own, and not in a result."""
        return self.fact.dialect == "openai_responses"


class ShownSteps(Protocol):
    """What loading tools needs of a view."""

    def find(self, seq: int) -> tuple[Step, ShownMessage] | None: ...
    def add_permanent(self, step: Step) -> None: ...
    def remove_permanent(self, step: Step) -> None: ...
    def invalidate(self, step: Step) -> None: ...


class ToolUse:
    """The tools of one view."""

    def __init__(self, steps: ShownSteps) -> None:
        self._steps = steps
        self.calls: Counter[str] = Counter()
        """How often the model has called each tool, shown or not."""
        self.loaded: list[LoadedTools] = []
        """What was loaded by events of its own, oldest first."""
        self._offered_text: str | None = None
        self._equipped: Equipped | None = None
        self._summary: str | None = None

    @property
    def summary(self) -> str:
        """How many tools there are, how many were used, and how many are deferred, in words; "" without tools."""
        if self._summary is None:
            self._summary = "" if self._equipped is None else self._count_tools(self._equipped)
        return self._summary

    def _count_tools(self, fact: Equipped) -> str:
        tools = list(each_tool(unraw(fact.tools)))
        named = {name for name, _ in named_tools(tools)} | fact.deferred.keys()
        count = len(named) + sum(neutral_form(tool) is None for tool in tools)
        used = sum(self.calls[name] > 0 for name in named)
        waiting = len(fact.deferred.keys() - {name for entry in self.loaded for name in entry.schemas})
        text = f"{count:,} tool{'s' * (count != 1)}, {used:,} used" if count else ""
        return f"{text}, {waiting:,} deferred" if waiting else text

    def count_call(self, name: str) -> None:
        """Take in a call."""
        self.calls[name] += 1
        if self.calls[name] == 1:
            self._summary = None

    def restore_calls(self, calls: dict[str, int]) -> None:
        """Set how often each tool was called, as a checkpoint knows it."""
        self.calls, self._summary = Counter(calls), None

    def equip(self, seq: int, fact: Equipped) -> None:
        """Take in other tools. What was loaded and cannot be any more is no longer shown."""
        self._offered_text = self._summary = None
        self._equipped = fact
        before, self.loaded = self.loaded, []
        for loaded in before:
            schemas = {name: tool for name, tool in loaded.schemas.items() if name in fact.deferred}
            left = loaded._replace(schemas=schemas, text=json_text([*schemas.values()]))
            if schemas:
                self.loaded.append(left)
            if schemas != loaded.schemas:
                self._show_rest(left, changed_by=seq)

    def load(self, seq: int, fact: ToolsLoaded) -> None:
        """Take in loaded tools, and show them."""
        self._summary = None
        schemas = dict(named_tools(unraw(fact.tools)))
        found = LoadedTools(seq, fact, schemas, json_text([*schemas.values()]))
        self.loaded.append(found)
        if found.is_item:
            self._steps.add_permanent(Step(seq, "instructed", additional_tools([*schemas.values()])))
        else:
            self._show_references(found)

    def _show_rest(self, loaded: LoadedTools, *, changed_by: int) -> None:
        """Show what is left of loaded tools since an event."""
        if not loaded.is_item:
            self._show_references(loaded)
        elif (place := self._steps.find(loaded.seq)) is not None:
            step, shown = place
            if not loaded.schemas:
                self._steps.remove_permanent(step)
                return
            shown.replace_fact(changed_by, additional_tools([*loaded.schemas.values()]))
            self._steps.invalidate(step)

    def _show_references(self, loaded: LoadedTools) -> None:
        if (place := self._steps.find(loaded.fact.target)) is not None:
            step, shown = place
            is_answer = any(slot.result is shown and slot.call.name == LOAD_TOOLS for slot in step.slots)
            shown.load_tools(loaded.schemas, is_load_answer=is_answer)
            self._steps.invalidate(step)

    def units(self, tools: tuple[int, Equipped], meter: MessageTokens) -> int:
        """Return the units of the tools that a request has beside its messages: those on offer, and those that a
        reference in a message loads."""
        seq, fact = tools
        if self._offered_text is None:
            self._offered_text = offered_text(fact)
        units = meter.text(seq, seq, -1, self._offered_text) if self._offered_text else 0
        for loaded in self.loaded:
            if not loaded.is_item:
                units += meter.text(seq, loaded.seq, -1, loaded.text)
        return units


def named_tools(tools: Any) -> Iterator[tuple[str, Json]]:
    """Yield the tools of a list that have a name and are run by the caller, by name."""
    for tool in each_tool(tools):
        if (found := neutral_form(tool)) is not None:
            yield found["name"], tool


def offered_text(fact: Equipped) -> str:
    """Return the tools that are part of the prompt from its beginning as JSON text; "" if there are none."""
    text = bytes(fact.tools).decode("utf-8", "replace")
    if DEFER_FIELD not in text:
        return "" if text == "[]" else text
    tools = unraw(fact.tools)
    offered = [tool for tool in tools if not (isinstance(tool, dict) and tool.get(DEFER_FIELD) is True)]
    return json_text(offered) if offered else ""
