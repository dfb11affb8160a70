"""Ledger sections of the agent's latest plan and of what it said last.

A plan is the list in the newest call of a planning tool (`TodoWrite`, `update_plan`, `task_tracker`), or else the
newest checklist or numbered list in a message. What the agent said last is the best evidence, without a model, of
what it was about to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from typing import Final

import msgspec

from foveal.core.compaction.ledger.allocation import Item, Section
from foveal.core.compaction.ledger.sections import (
    AGENT_PREFIX,
    ITEM_PREFIX,
    PLAN_HEADING,
    SAID_HEADING,
    inline,
    quote_agent,
    quote_line,
)
from foveal.core.log.events import Call, Event, ModelSaid, calls_of, text_of

MAX_LAST_WORDS_CHARS: Final = 800
"""Characters of the newest message that are shown whole."""
_SHORT_WORDS_CHARS: Final = 240
_EARLIER_CHARS: Final = 160
"""Characters of an earlier message that are shown."""
_MAX_EARLIER: Final = 40
_MAX_PLAN_ITEMS: Final = 20
_MAX_PLAN_ITEM_CHARS: Final = 120
_MAX_MESSAGES_WITH_PLAN: Final = 12
"""Newest messages in which a plan is looked for."""
_MAX_PLAN_ARGUMENT_CHARS: Final = 50_000
_PLANNING_TOOL: Final = re.compile(r"todo|plan|task_?(?:tracker|list)|checklist", re.IGNORECASE)
_TITLE_KEYS: Final = ("content", "step", "title", "task", "description", "text", "name", "subject")
_STATUS_KEYS: Final = ("status", "state", "done", "completed")
_DONE_MARK: Final = "[x]"
_DONE: Final = frozenset(("done", "completed", "complete", "finished", "true", "x"))
_STARTED: Final = frozenset(("in_progress", "in progress", "inprogress", "active", "doing", "started"))
_CHECKLIST_LINE: Final = re.compile(r"^\s*(?:[-*]|\d+[.)])\s*\[[ xX~✓]\]\s+\S.*$", re.MULTILINE)
_NUMBERED_LINE: Final = re.compile(r"^\s*\d{1,2}[.)]\s+\S.*$", re.MULTILINE)
_PLAN_LEAD: Final = re.compile(
    r"\b(?:plan|steps?|next|todo|to-do|remaining|tasks?|approach)\b", re.IGNORECASE
)
_MIN_CHECKLIST_LINES, _MIN_NUMBERED_LINES = 2, 3


# ── Plan ─────────────────────────────────────────────────────────────────────────────────────────────────


def plan_section(events: Sequence[Event], *, tools: Set[str], keep: Set[int]) -> Section:
    """Return the section of the latest plan, if there is one outside the message that is shown last.

    `tools` are the names of the tools that the events call."""
    found = _latest_plan(events, frozenset(filter(_PLANNING_TOOL.search, tools)), keep)
    items = iter(()) if found is None else _plan_items(*found)
    return Section(PLAN_HEADING, items, 2.5)


def _plan_items(event: Event, lines: Sequence[str]) -> Iterator[Item]:
    """Yield the plan: first what is not done, then all of it if there is room."""
    pending = [line for line in lines if not line.startswith(_DONE_MARK)]
    done = f", {len(lines) - len(pending)} of {len(lines)} done" if len(pending) < len(lines) else ""
    title = f"{ITEM_PREFIX}{event.handle}{done}"
    for shown in (pending, lines) if done else (lines,):
        quoted = [AGENT_PREFIX + quote_line(line, _MAX_PLAN_ITEM_CHARS) for line in shown[:_MAX_PLAN_ITEMS]]
        if len(shown) > _MAX_PLAN_ITEMS:
            quoted.append(f"{AGENT_PREFIX}… {len(shown) - _MAX_PLAN_ITEMS} more")
        yield Item(0, "\n".join([f"{title}:", *quoted]) if quoted else title)


def _latest_plan(events: Sequence[Event], tools: Set[str], keep: Set[int]) -> tuple[Event, list[str]] | None:
    messages = 0
    for event in reversed(events):
        fact = event.fact
        if not isinstance(fact, ModelSaid) or event.seq in keep:
            continue
        if not tools and messages >= _MAX_MESSAGES_WITH_PLAN:
            return None
        for _, call in reversed(calls_of(fact.content)) if tools else ():
            if call.name in tools and (lines := _plan_of_call(call)):
                return event, lines
        text = text_of(fact.content) if messages < _MAX_MESSAGES_WITH_PLAN else ""
        if text.strip():
            messages += 1
            # The newest message is quoted anyway, unless it is too long.
            is_quoted = messages == 1 and len(text) <= MAX_LAST_WORDS_CHARS
            if not is_quoted and (lines := _plan_of_text(text)):
                return event, lines
    return None


def _plan_of_call(call: Call) -> list[str]:
    try:
        values = msgspec.json.decode(call.arguments[:_MAX_PLAN_ARGUMENT_CHARS])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    values = list(values.values()) if isinstance(values, dict) else [values]
    for value in values:
        if isinstance(value, list) and (lines := [line for line in map(_plan_line, value) if line]):
            return lines
        if isinstance(value, str) and (lines := _plan_of_text(value)):
            return lines
    return []


def _plan_line(item: object) -> str:
    if isinstance(item, str):
        return item
    if not isinstance(item, dict):
        return ""
    title = next((item[key] for key in _TITLE_KEYS if isinstance(item.get(key), str)), "")
    status = next((str(item[key]).lower() for key in _STATUS_KEYS if key in item), "")
    mark = _DONE_MARK if status in _DONE else "[~]" if status in _STARTED else "[ ]"
    return f"{mark} {title}" if title else ""


def _plan_of_text(text: str) -> list[str]:
    part = text[-8_000:]
    checks = [found.group().strip().lstrip("-*0123456789.) ") for found in _CHECKLIST_LINE.finditer(part)]
    if len(checks) >= _MIN_CHECKLIST_LINES:
        return [f"{_DONE_MARK}{line[3:]}" if line[1:2] in "xX✓" else line for line in checks]
    numbered = list(_NUMBERED_LINE.finditer(part))
    # Other numbered lists describe or explain.
    is_plan = numbered and _PLAN_LEAD.search(part[max(0, numbered[0].start() - 200) : numbered[0].start()])
    if not is_plan or len(numbered) < _MIN_NUMBERED_LINES:
        return []
    return [found.group().strip() for found in numbered]


# ── Last words ───────────────────────────────────────────────────────────────────────────────────────────


def last_words_section(events: Sequence[Event], *, keep: Set[int]) -> Section:
    """Return the section of what the model said last: the newest message, then the beginnings of earlier ones."""
    said = [
        event
        for event in reversed(events)
        if isinstance(event.fact, ModelSaid) and event.seq not in keep and text_of(event.fact.content).strip()
    ]
    return Section(
        SAID_HEADING,
        _message_items(said),
        3.0,
        needed=_newest_message(said),
        left_out=lambda shown: f"+ {len(said) - len(shown)} earlier" if len(shown) < len(said) else "",
    )


def _newest_message(said: Sequence[Event]) -> Iterator[Item]:
    for event in said[:1]:
        text = text_of(getattr(event.fact, "content", ""))
        yield Item(0, f"{ITEM_PREFIX}{event.handle}: {inline(text.strip(), _EARLIER_CHARS)}")


def _message_items(said: Sequence[Event]) -> Iterator[Item]:
    for slot, event in enumerate(said[: _MAX_EARLIER + 1]):
        text = text_of(getattr(event.fact, "content", "")).strip()
        width = _EARLIER_CHARS if slot else _SHORT_WORDS_CHARS
        yield Item(slot, f"{ITEM_PREFIX}{event.handle}: {inline(text, width)}")
        if slot == 0 and len(text) > width:
            yield Item(slot, f"{ITEM_PREFIX}{_last_words(event, text)}")


def _last_words(event: Event, text: str) -> str:
    """Return the newest message, whole or its beginning and end."""
    if len(text) <= MAX_LAST_WORDS_CHARS:
        return f"{event.handle}:\n{quote_agent(text)}"
    head, tail = text[: MAX_LAST_WORDS_CHARS * 5 // 8], text[-MAX_LAST_WORDS_CHARS * 3 // 8 :]
    omitted = len(text) - len(head) - len(tail)
    quoted = "\n".join((quote_agent(head), AGENT_PREFIX + "…", quote_agent(tail)))
    return f"{event.handle}, {omitted:,} characters left out:\n{quoted}"
