"""Answers that say only that a file has not changed since the agent read it.

Some agents (Claude Code, Qwen Code) do not send a file a second time: the tool returns a short text that refers to
its earlier result. Where the view no longer shows that result, the engine shows its text again in the place of the
answer (`Clipped.again`), so the beginning of the request stays as it is.

1. The earlier result is the newest one of the same tool that was asked for the same, or for more: each argument of
   its call has the same value in the new call.
2. Nothing is shown again while a result with the text is shown whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from foveal.core.log.events import Call, Event, Media, ModelSaid, ToolReturned, calls_of, parts, text_of
from foveal.core.view.steps import Level, ShownMessage
from foveal.core.view.text_facts import parse_json
from foveal.core.view.view import View

MAX_ANSWER_CHARS: Final = 1_000
"""A longer result holds more than such an answer."""
_UNCHANGED: Final = re.compile(
    r"\b(?:unchanged|not changed) since (?:\w+ )?(?:last|earlier|previous) read\b"
    r"|\bfile is already in your context\b",
    re.IGNORECASE,
)
_REFERS_BACK: Final = re.compile(r"\b(?:earlier|previous|already)\b", re.IGNORECASE)


def is_unchanged_answer(fact: ToolReturned) -> bool:
    """Return whether a result only refers to an earlier one."""
    if fact.error or any(isinstance(part, Media) for part in parts(fact.content)):
        return False
    text = text_of(fact.content)
    if len(text) > MAX_ANSWER_CHARS:
        return False
    return _UNCHANGED.search(text) is not None and _REFERS_BACK.search(text) is not None


def asks_for_same(earlier: Call, call: Call) -> bool:
    """Return whether an earlier call asked for all that `call` asks for."""
    if earlier.name != call.name:
        return False
    if earlier.arguments == call.arguments:
        return True
    try:
        before, now = parse_json(earlier.arguments), parse_json(call.arguments)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(before, dict)
        and isinstance(now, dict)
        and bool(before)
        and all(key in now and now[key] == value for key, value in before.items())
    )


def call_of(view: View, seq: int) -> Call | None:
    """Return the call that the shown result `seq` answers."""
    found = view.find(seq)
    slots = found[0].slots if found is not None else []
    return next((slot.call for slot in slots if slot.result is not None and slot.result.seq == seq), None)


def levels_of(view: View, original: int) -> set[Level]:
    """Return the levels at which the view shows the text of a result, in its own place and where it is shown again.
    References to lines above leave nothing out."""
    return {
        "full" if _shows_all(shown) else shown.level
        for step in view.steps
        for slot in step.slots
        if (shown := slot.result) is not None and original in (shown.seq, shown.again)
    }


def _shows_all(shown: ShownMessage) -> bool:
    overlays = (shown.overlays or {}).values()
    return all(overlay.level == "clipped" and overlay.sources for overlay in overlays)


def earlier_result(events: Iterable[Event], call: Call) -> Event | None:
    """Return the newest result of `events`, which come newest first, that has what `call` asks for."""
    results: dict[str, Event] = {}
    for event in events:
        fact = event.fact
        if isinstance(fact, ToolReturned):
            results[fact.call_id] = event
        elif isinstance(fact, ModelSaid):
            for _, earlier in reversed(list(calls_of(fact.content))):
                found = results.pop(earlier.id, None)
                if found is None or not asks_for_same(earlier, call):
                    continue
                assert isinstance(found.fact, ToolReturned)
                if not is_unchanged_answer(found.fact):
                    return found
    return None
