"""Deferred tools: requests offer few tools, and `load_tools`, with which the model loads others.

1. A request has the tools marked as core, those that the provider runs itself, `load_tools` with an index of the
   others, and those that were loaded, in the order in which they were.
2. The model loads a tool by a call of `load_tools`, or by calling it. Both are read from the messages, so a saved
   or reopened conversation knows what is loaded.
3. Where the provider has a form for it (`wire.tool_loading`), a `ToolsLoaded` event has the request load the tool
   in its place: `tools` do not change, and neither does anything in front of that place. Elsewhere the tool is
   added at the end of `tools` by an `Equipped` event, which breaks the cached prefix once.
4. A reduction can hide the place of a loaded tool. The tool is then added to `tools`, with that reduction.
5. If deferral would save less than `MIN_SAVED_CHARS`, all tools are offered.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, Literal

from msgspec import Raw

from foveal.core.log.events import AnyFact, Dialect, Equipped, ToolsLoaded, raw, unraw
from foveal.core.tokens.counter import Counter
from foveal.core.view.loaded_tools import named_tools
from foveal.core.view.steps import ShownMessage
from foveal.core.view.view import View
from foveal.core.wire import plain_json, tools_text
from foveal.core.wire.common import Json, arguments_object, json_text
from foveal.core.wire.event_text import LOAD_TOOLS, is_recall_tool
from foveal.core.wire.safe_print import one_line
from foveal.core.wire.tool_schemas import DEFER_FIELD, loads_in_place, neutral_form, tool_schema
from foveal.errors import BadSetting

MIN_SAVED_CHARS: Final = 4_000
"""Characters of schemas that deferral must save: each load takes a request of its own."""
MAX_INDEX_CHARS: Final = 90
"""Characters of a description that the index has."""
MAX_NAMED_TOOLS: Final = 20
"""Tools that an answer to the model lists by name."""
DeferTools = bool | Literal["appended"]
"""Whether tools are deferred; `"appended"` never uses a provider's own form for loading them."""
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s")
_DESCRIPTION: Final = (
    "Load tools before you use them. The tools below exist, but their arguments are not shown yet. Name all that "
    "you need in one call; from your next message on you can call them.\n\n"
)


def tool_deferral(defer: object, core: object) -> ToolDeferral | None:
    """Return what defers tools, None if nothing does; raises `BadSetting`."""
    if not isinstance(defer, bool) and defer != "appended":
        raise BadSetting("defer_tools", defer, 'True, False or "appended"')
    if isinstance(core, str) or not isinstance(core, Iterable) or not all(isinstance(n, str) for n in core):
        raise BadSetting("core_tools", core, "a list of names of tools")
    if core and not defer:
        raise BadSetting("core_tools", core, "empty without `defer_tools`: no tool is deferred")
    return ToolDeferral(core=frozenset(core), in_place=defer is True) if defer else None


class ToolDeferral:
    """Decides which tools the requests of one conversation offer."""

    def __init__(self, *, core: Collection[str] = (), in_place: bool = True) -> None:
        """`core` are the tools that are always offered; without `in_place`, loaded tools always go to `tools`."""
        self._core = frozenset(core)
        self._in_place = in_place
        self._given = ""
        self._base: list[Json] = []
        self._deferred: dict[str, Json] = {}
        self._load_tools: Json = {}
        self._units: dict[str, int] = {}
        self._dialect: Dialect = ""
        self._looked_at = -1
        """The newest step whose calls were looked at."""
        self._held: Equipped | None = None
        """The tools on offer when they were last read: they are large, and rarely change."""
        self._held_added: list[str] = []
        """What was added to these tools."""
        self._confirmed: tuple[bool, list[str]] | None = None
        """What `_equipped` was last asked for, if these tools are the answer."""

    # ── The tools that are given ─────────────────────────────────────────────────────────────────────

    def give(self, tools: Sequence[Any], dialect: Dialect, counter: Counter) -> None:
        """Take the tools of the next request, in the form of a dialect, "" for the neutral one; raises
        `BadSetting`."""
        text = tools_text(tools)
        if (text, dialect) == (self._given, self._dialect):
            return
        base, deferred = self._split(plain_json(list(tools)) if tools else [])
        load_tools = tool_schema(
            dialect,
            LOAD_TOOLS,
            _DESCRIPTION + "\n".join(_index_line(name, tool) for name, tool in deferred.items()),
            {"names": {"type": "array", "items": {"type": "string"}, "description": "Names of tools"}},
            ["names"],
        )
        saved = len(json_text([*deferred.values()])) - len(json_text(load_tools))
        if saved < MIN_SAVED_CHARS:
            base, deferred = plain_json(list(tools)) if tools else [], {}
        self._given, self._dialect, self._held, self._confirmed = text, dialect, None, None
        self._base, self._deferred, self._load_tools = base, deferred, load_tools
        self._units = {name: counter.count(json_text(tool)) for name, tool in deferred.items()}

    def _split(self, tools: list[Any]) -> tuple[list[Json], dict[str, Json]]:
        """Return the tools that are always offered, and the others by name."""
        base: list[Json] = []
        deferred: dict[str, Json] = {}
        seen: set[str] = set()
        for tool in tools:
            names = dict(named_tools([tool]))
            if twice := next((name for name in names if name in seen or name == LOAD_TOOLS), ""):
                raise BadSetting(
                    "tools", twice, f"each tool needs a name of its own, other than {LOAD_TOOLS}"
                )
            seen.update(names)
            if not names or tool.get(DEFER_FIELD) is not None:
                base.append(tool)
                continue
            kept = {name: one for name, one in names.items() if name in self._core or is_recall_tool(name)}
            deferred |= {name: one for name, one in names.items() if name not in kept}
            base += _as_entries(kept.values(), like=tool)
        return base, deferred

    @property
    def is_active(self) -> bool:
        """Whether some of the given tools are deferred."""
        return bool(self._deferred)

    # ── What is offered ──────────────────────────────────────────────────────────────────────────────

    def facts(self, view: View, model: str, *, dialect: Dialect | None = None) -> list[AnyFact]:
        """Return what the log must record before the next request: other tools on offer, and loaded ones.

        `dialect` is that of the request, if the given tools have the neutral form."""
        request_dialect = self._dialect if dialect is None else dialect
        in_place = self._in_place and loads_in_place(request_dialect, model)
        added, shown = self._added(view), self._shown(view, request_dialect if in_place else "")
        added += [name for name in self._loaded(view) if name not in shown and name not in added]
        loads: list[AnyFact] = []
        for result, names in self._new_loads(view):
            fresh = [name for name in names if name not in shown and name not in added]
            if not fresh:
                continue
            if in_place and result.fact.dialect in ("", request_dialect):
                shown.update(fresh)
                loads.append(self._loaded_fact(result.seq, fresh, request_dialect))
            else:
                added += fresh
        return [*self._equipped(view, added, declares=in_place and request_dialect == "anthropic"), *loads]

    def _added(self, view: View) -> list[str]:
        """Return the tools that were added to `tools` so far, in their order."""
        fact = view.tools[1] if view.tools is not None else None
        if fact is None or fact is not self._held:
            held = list(named_tools(unraw(fact.tools))) if fact is not None else []
            self._held, self._confirmed = fact, None
            self._held_added = [
                name for name, tool in held if name in self._deferred and not tool.get(DEFER_FIELD)
            ]
            if not any(name == LOAD_TOOLS for name, _ in held):
                # Nothing was deferred so far: the tools that were called are loaded.
                self._held_added, self._looked_at = [], -1
        return list(self._held_added)

    def _loaded(self, view: View) -> Iterator[str]:
        loaded = (name for entry in view.tool_use.loaded for name in entry.schemas)
        return (name for name in loaded if name in self._deferred)

    def _shown(self, view: View, dialect: Dialect) -> set[str]:
        """Return the tools that a message of the view loads in this dialect."""
        return {
            name
            for entry in view.tool_use.loaded
            if entry.fact.dialect == dialect
            and (dialect != "anthropic" or view.find(entry.fact.target) is not None)
            for name in entry.schemas
        }

    def _new_loads(self, view: View) -> list[tuple[ShownMessage, list[str]]]:
        """Return the results since the last look that load tools, oldest first, with the names."""
        found: list[tuple[ShownMessage, list[str]]] = []
        newest = self._looked_at
        for step in reversed(view.steps):
            if step.seq <= self._looked_at:
                break
            newest = max(newest, step.seq - step.has_open_call)
            for slot in reversed(step.slots):
                called = self._names_in(slot.call.name, slot.call.arguments)
                if slot.result is not None and called:
                    found.append((slot.result, called))
        self._looked_at = newest
        return found[::-1]

    def _names_in(self, tool: str, arguments: str) -> list[str]:
        asked = requested_names(arguments_object(arguments)) if tool == LOAD_TOOLS else [tool]
        return [name for name in dict.fromkeys(asked) if name in self._deferred]

    def _loaded_fact(self, target: int, names: Iterable[str], dialect: Dialect) -> ToolsLoaded:
        schemas = [self._deferred[name] for name in names]
        if dialect == "openai_responses" and not self._dialect:
            neutral = [neutral_form(tool) or tool for tool in schemas]
            schemas = [{"type": "function", **tool, "strict": False} for tool in neutral]
        return ToolsLoaded(target=target, tools=raw(schemas), dialect=dialect)

    def _equipped(self, view: View, added: Sequence[str], *, declares: bool) -> list[AnyFact]:
        """Return the tools on offer as a fact, if they are others than before."""
        if self._confirmed == (declares, list(added)):
            return []
        waiting = [name for name in self._deferred if name not in added]
        tools = list(self._base)
        if self._deferred:
            tools += self._entries([self._load_tools, *(self._deferred[name] for name in added)])
            tools += [{**self._deferred[name], DEFER_FIELD: True} for name in waiting] if declares else []
        fact = Equipped(
            tools=Raw(json_text(tools).encode("utf-8", "replace")),
            deferred={name: self._units[name] for name in waiting},
        )
        held = view.tools
        is_same = held is not None and (held[1].tools, held[1].deferred) == (fact.tools, fact.deferred)
        self._confirmed = (declares, list(added)) if is_same else None
        return [] if is_same or (held is None and not tools) else [fact]

    def _entries(self, schemas: list[Json]) -> list[Json]:
        return [{"functionDeclarations": schemas}] if self._dialect == "gemini" else schemas

    # ── Answers to the model ─────────────────────────────────────────────────────────────────────────

    def answer(self, arguments: str | Mapping[str, Any]) -> str:
        """Return the answer to a call of `load_tools`. A wrong call is answered with what is wrong."""
        given = arguments_object(arguments) if isinstance(arguments, str) else arguments
        asked = list(dict.fromkeys(requested_names(given)))
        if not asked:
            return f'{LOAD_TOOLS} needs the names of tools, such as {{"names": ["{self._example()}"]}}.'
        known = [name for name in asked if name in self._deferred]
        parts = [f"Loaded: {', '.join(known)}. You can call them now."] if known else []
        parts += [self._unknown_text(name) for name in asked[:MAX_NAMED_TOOLS] if name not in self._deferred]
        return " ".join(parts)

    def _example(self) -> str:
        return next(iter(self._deferred), "name_of_a_tool")

    def _unknown_text(self, name: str) -> str:
        offered = {found for found, _ in named_tools(self._base)}
        if name in offered or name == LOAD_TOOLS:
            return f"{name} needs no loading: call it."
        close = get_close_matches(name, self._deferred, n=3, cutoff=0.5)
        advice = f"similar: {', '.join(close)}" if close else f"the description of {LOAD_TOOLS} lists all"
        return f"There is no tool {one_line(name, width=100)!r} to load; {advice}."


def requested_names(given: Mapping[str, Any]) -> list[str]:
    """Return the names in the arguments of `load_tools`; models also write one name, or several in one text."""
    names = given.get("names", given.get("name", ()))
    if isinstance(names, str):
        names = re.split(r"[\s,]+", names)
    listed = names if isinstance(names, list | tuple) else ()
    return [name.strip() for name in listed if isinstance(name, str) and name.strip()]


def _index_line(name: str, tool: Json) -> str:
    """Return a tool as one line: its name and the beginning of its description."""
    form = neutral_form(tool) or {}
    words = one_line(str(form.get("description", "")), width=10 * MAX_INDEX_CHARS)
    first = _SENTENCE_END.split(words, maxsplit=1)[0].rstrip(".")
    if len(first) > MAX_INDEX_CHARS:
        first = first[:MAX_INDEX_CHARS].rsplit(" ", 1)[0] + "…"
    return f"- {name}: {first}" if first else f"- {name}"


def _as_entries(kept: Iterable[Json], *, like: Json) -> list[Json]:
    """Return tools as entries of a request, in the form in which Gemini's or another dialect's `tools` had them."""
    tools = list(kept)
    field = next((name for name in ("functionDeclarations", "function_declarations") if name in like), "")
    return tools if not field else [{**like, field: tools}] if tools else []
