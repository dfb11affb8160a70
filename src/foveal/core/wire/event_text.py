"""The words of an event, for reading and for searching, and how they are quoted to a model.

What a tool of `foveal.recall.recall` answers begins with `MARK`. Lines of ours begin with `[`; every line of the log
stands after a prefix (`> `, or its number), so that no text of the log can pass for a line of ours, and characters
that some readers take for the end of a line are shown as signs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, assert_never

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Clipped,
    Compacted,
    CompactionFailed,
    Content,
    Dropped,
    Equipped,
    Erased,
    Event,
    Expanded,
    Instructed,
    Marked,
    Masked,
    Media,
    ModelSaid,
    Noted,
    Opaque,
    Opened,
    Overflowed,
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
        case Clipped() | Marked() | Masked() | Dropped() | Expanded() | Reverted() | Rewound():
            return ""
        case CompactionFailed() | Overflowed():
            return fact.problem
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

UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Thai, Lao, Burmese, Khmer, kana, Han and Hangul."""
_STOP_WORDS: Final = (
    "a about after again all also am an and any are as at be because been before being between both but by can"
    " could d did do does doing down during each few for from further get got had has have having he her here"
    " hers him his how i if in into is it its itself just let ll m me more most my myself no nor not now of off"
    " on once only or other our ours out over own please re s same she should so some such t tell than that the"
    " their theirs them then there these they this those through to too under until up us ve very was we were"
    " what when where which while who whom why will with would you your yours"
)
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
"""English words that a question has and its answer need not have."""
_WORD: Final = re.compile(r"[^\W_]{2,}")
_JOINED: Final = re.compile(r"\w[^\w\s]\w|_")
_ENDS: Final = "\"'`.,;:!?()[]{}<>"
_LOOKED: Final = 2_000_000
"""Characters of one text that are searched for the best place."""
_PLACES: Final = 50_000


def telling(query: str) -> frozenset[str]:
    """What to look for in a text: identifiers of a query, the beginnings of its words, and pairs of characters if
    it has no spaces."""
    query = query[:2_000].lower()
    found = {word for word in (each.strip(_ENDS) for each in query.split()) if _JOINED.search(word)}
    for word in _WORD.findall(query):
        if UNSPACED.search(word):
            found.update(word[at : at + 2] for at in range(len(word) - 1))
        elif word not in STOP_WORDS:
            found.add(word[: max(4, len(word) - 2)])
    return frozenset(sorted(found)[:64])


def around(text: str, words: frozenset[str], *, width: int) -> int:
    """Where the `width` characters begin that have most letters of different words of a query; 0 if none has."""
    places = _places(text, words)
    best, worth, start, low = 0, 0, 0, 0
    seen: dict[str, int] = {}
    for at, word in places:
        worth += 0 if seen.get(word) else len(word)
        seen[word] = seen.get(word, 0) + 1
        while at - places[low][0] > width:
            gone = places[low][1]
            seen[gone] -= 1
            worth -= 0 if seen[gone] else len(gone)
            low += 1
        if worth > best:
            best, start = worth, places[low][0]
    return start


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


def line_start(text: str, at: int, near: int) -> int:
    """The beginning of a line at most `near` characters further on, if there is one."""
    if at == 0:
        return 0
    after = text.find("\n", at - 1, at + near)
    return after + 1 if after >= 0 else at


# ── text ──────────────────────────────────────────────────────────────────────────────────────────
# A readable transcript of facts, for people and for models that summarise.
#
# Every line that somebody said is quoted with `> `; only the headers are not. So whatever a tool returns (a fake
# header, a fake end of the transcript, instructions to the reader) stays visibly inside the quotation.


def transcript(facts: Iterable[AnyFact]) -> str:
    """What was said, one paragraph for each fact that a model sees."""
    return "\n\n".join(told for fact in facts if (told := tell(fact)))


def tell(fact: AnyFact) -> str:
    """One fact, "" when no model sees it."""
    match fact:
        case UserSaid():
            return _said("user", fact.content)
        case ModelSaid():
            return _said("assistant", fact.content)
        case Instructed():
            return _said(fact.role, fact.content)
        case ToolReturned():
            name = f" of {_inline(fact.name)}" if fact.name else ""
            return _said(f"{'error' if fact.error else 'result'}{name}", fact.content)
        case Pinned() if fact.text:
            return _said("pinned", fact.text)
        case _:
            return ""


def _said(who: str, content: Content) -> str:
    told = [line for part in parts(content) for line in _lines(part)]
    return "\n".join((f"[{who}]", *told))


def _lines(part: AnyPart) -> list[str]:
    match part:
        case Text():
            return _quoted(part.text)
        case Call():
            return [f"[calls {_inline(part.name)}]", *_quoted(part.arguments)]
        case Media():
            return [f"[{_inline(part.mime) or 'media'}, {part.size:,} bytes]"]
        case Thinking() | Opaque():
            return []


def _quoted(text: str) -> list[str]:
    return [f"> {line}" for line in text.splitlines()]


def _inline(text: str) -> str:
    """A name that stays on its line and inside its brackets."""
    return "".join(letter if letter.isprintable() and letter not in "[]" else "_" for letter in text)[:100]
