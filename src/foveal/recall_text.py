"""The words of an event, for reading and for searching, and how they are quoted to a model.

What a tool of `foveal.recall` answers begins with `MARK`. Lines of ours begin with `[`; every line of the log stands
after a prefix (`> `, or its number), so that no text of the log can pass for a line of ours, and characters that
some readers take for the end of a line are shown as signs.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Final, assert_never

from foveal.events import (
    AnyFact,
    AnyPart,
    Call,
    Clipped,
    Compacted,
    Dropped,
    Equipped,
    Erased,
    Event,
    Instructed,
    Masked,
    Media,
    ModelSaid,
    Noted,
    Opaque,
    Opened,
    Pinned,
    Reverted,
    Rewound,
    SnapshotTaken,
    Text,
    Thinking,
    ToolReturned,
    Unknown,
    Used,
    UserSaid,
    calls_of,
    kind,
    parts,
)

SEARCH: Final = "recall_search"
READ: Final = "recall_read"
NAMES: Final = frozenset({SEARCH, READ})
MARK: Final = "[foveal recall: "
"""How every answer of these tools begins: answers are not found again."""

_BREAKS: Final = dict.fromkeys(map(ord, "\v\f\x1c\x1d\x1e\x85\u2028\u2029"), "␤") | {ord("\r"): "␍"}
_BREAK: Final = re.compile("[\v\f\r\x1c-\x1e\x85\u2028\u2029]")


# ── what an event says ───────────────────────────────────────────────────────────────────────────────────


def readable(fact: AnyFact) -> str:
    """All that can be read of a fact, "" when it has no words."""
    match fact:
        case UserSaid() | ModelSaid() | ToolReturned() | Instructed():
            if isinstance(fact.content, str):
                return fact.content
            return "\n".join(told for part in parts(fact.content) if (told := _part(part)))
        case Pinned() | Noted():
            return fact.text
        case Compacted():
            return fact.summary
        case Opened() | Equipped() | Used() | SnapshotTaken() | Erased() | Unknown():
            return ""
        case Clipped() | Masked() | Dropped() | Reverted() | Rewound():
            return ""
        case _:
            assert_never(fact)


def _part(part: AnyPart) -> str:
    match part:
        case Text():
            return part.text
        case Call():
            return f"calls {part.name}\n{arguments(part.arguments)}"
        case Media():
            return f"({part.mime or 'media'}, {part.size:,} bytes: not text)"
        case Thinking() | Opaque():
            return ""


def arguments(text: str) -> str:
    """The arguments of a call as lines of `key: value`, with the line breaks that the model meant."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(values, dict):
        return text
    return "\n".join(f"{key}: {_value(value)}" for key, value in values.items())


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def findable(fact: AnyFact) -> str:
    """The words by which a fact can be found: what was said, returned, pinned or summarised, but not what
    these tools were asked and what they answered."""
    match fact:
        case ToolReturned():
            text = readable(fact)
            return "" if fact.name in NAMES or text.startswith(MARK) else text
        case ModelSaid() if any(call.name in NAMES for _, call in calls_of(fact.content)):
            said = (p for p in parts(fact.content) if not (isinstance(p, Call) and p.name in NAMES))
            return "\n".join(told for part in said if (told := _part(part)))
        case UserSaid() | ModelSaid() | Pinned() | Compacted():
            return readable(fact)
        case _:
            return ""


def dialogue(fact: AnyFact) -> bool:
    """Whether a fact is part of the conversation, so that it may stand beside a hit."""
    return isinstance(fact, UserSaid | ModelSaid | ToolReturned) and bool(findable(fact))


# ── how it is introduced and quoted ──────────────────────────────────────────────────────────────────────


def who(fact: AnyFact) -> str:
    """Who said it, in a word or two."""
    match fact:
        case UserSaid():
            return "user"
        case ModelSaid():
            return "assistant"
        case Instructed():
            return fact.role
        case ToolReturned():
            return f"{'error' if fact.error else 'result'}{f' of {inline(fact.name)}' if fact.name else ''}"
        case Pinned():
            return "pinned rule"
        case Compacted():
            return f"summary of e{fact.first}-e{fact.last}"
        case Noted():
            return "note"
        case _:
            return inline(kind(fact))


def title(event: Event) -> str:
    """The handle, who said it, and when if that is known."""
    return ", ".join(
        (f"{event.handle} {who(event.fact)}", *([_when(event.at)] if event.at is not None else []))
    )


def _when(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%MZ")
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def plain(line: str) -> str:
    """One line of the log that stays one line, whatever characters it has."""
    line = line.removesuffix("\r")
    return line.translate(_BREAKS) if _BREAK.search(line) else line


def quoted(text: str) -> str:
    return "\n".join(f"> {plain(line)}" for line in text.removesuffix("\n").split("\n"))


def inline(text: str, *, most: int = 80) -> str:
    """A name or a query that stays on its line and inside its brackets."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(letter if letter.isprintable() and letter not in "[]" else "_" for letter in short)


# ── the part of a long text that a query is about ────────────────────────────────────────────────────────

_LOOKED: Final = 2_000_000
"""Characters of one text that are searched for the best place."""
_PLACES: Final = 2_000


def around(text: str, words: frozenset[str], *, width: int) -> tuple[int, int]:
    """The stretch of about `width` characters with the most different words of a query; the beginning if none."""
    places = _places(text, words)
    best, start, low = 0.0, 0, 0
    seen: dict[str, int] = {}
    for high, (at, word) in enumerate(places):
        seen[word] = seen.get(word, 0) + 1
        while at - places[low][0] > width * 2 // 3:
            gone = places[low][1]
            seen[gone] -= 1
            low += 1
            if not seen[gone]:
                del seen[gone]
        worth = len(seen) + min(high - low, 20) / 100
        if worth > best:
            best, start = worth, places[low][0]
    begin = max(0, min(start - width // 6, len(text) - width))
    return _at_line(text, begin, width // 8), min(len(text), begin + width)


def _places(text: str, words: frozenset[str]) -> list[tuple[int, str]]:
    if not words:
        return []
    pattern = re.compile(
        "|".join(re.escape(word) for word in sorted(words, key=lambda w: (-len(w), w))), re.I
    )
    found: list[tuple[int, str]] = []
    for match in pattern.finditer(text, 0, _LOOKED):
        found.append((match.start(), match.group().lower()))
        if len(found) == _PLACES:
            break
    return found


def _at_line(text: str, at: int, near: int) -> int:
    """The beginning of a line shortly before or after, if there is one."""
    if at == 0:
        return 0
    after = text.find("\n", at - 1, at + near)
    return after + 1 if after >= 0 else at
