"""Composes the ledger, the part of a summary that needs no model.

    Ledger(events, counter).write(room=2_000)

1. It is derived from the log alone, always succeeds, and is the same for the same events.
2. Its sections are, in this order: what the user said, in its order; files changed and read, and calls;
   unresolved errors; the agent's latest plan; what the agent said last; calls without a result; and quoted lines
   and names of calls and results, which take all room that is left, and at least half of it if there are enough.
3. Requests, paths of changed files, unresolved errors and the list of a planning tool come before everything else
   when the room is small. A line per section says what is left out; every request that is neither quoted nor
   visible is named by its handle.
4. Text quoted from the conversation follows a mark of its source; lines that begin at the margin are the ledger's
   own (`sections`).
5. Pinned rules, instructions and earlier summaries are left out: the first two stay in the request, and the events
   that an earlier summary covers are among the events.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from functools import cached_property
from itertools import islice
from typing import Final

import msgspec

from foveal.core.compaction.ledger import files_and_commands, likely_reused, unresolved_errors
from foveal.core.compaction.ledger.allocation import (
    AGENT_PREFIX,
    FOCUS_HEADING,
    ITEM_PREFIX,
    OUTPUT_PREFIX,
    PLAN_HEADING,
    SAID_HEADING,
    Item,
    Section,
    fill_sections,
    inline,
    quote_agent,
    quote_line,
    word_end,
    word_start,
)
from foveal.core.compaction.ledger.call_reader import heredoc_body, read_call
from foveal.core.compaction.ledger.event_facts import ToolCallFacts
from foveal.core.compaction.ledger.likely_reused import ReuseSigns
from foveal.core.compaction.ledger.range_facts import LedgerIndex, RangeFacts
from foveal.core.compaction.ledger.user_requests import collect_requests, requests_section
from foveal.core.compaction.plan import has_event
from foveal.core.log.events import DIALOGUE_TYPES, Event, ModelSaid, ToolReturned, handle, text_of
from foveal.core.reduction.unchanged_answers import is_unchanged_answer
from foveal.core.tokens.counter import Counter

MAX_LAST_WORDS_CHARS: Final = 800
"""Characters of the newest message that are shown whole."""
_SHORT_WORDS_CHARS: Final = 240
_EARLIER_CHARS: Final = 160
"""Characters of an earlier message that are shown."""
_MAX_EARLIER: Final = 40
_MAX_PLAN_ITEMS: Final = 20
_MAX_PLAN_ITEM_CHARS: Final = 120
_SHORT_PLANS: Final = ({"items": 1}, {"items": 5, "item_chars": 60}, {"item_chars": 60})
"""Limits of the shorter forms of a plan that is needed, the shortest first."""
_MAX_MESSAGES_WITH_PLAN: Final = 12
"""Newest messages in which a plan is looked for."""
_MAX_PLAN_ARGUMENT_CHARS: Final = 50_000
_NEEDED_PLAN_SHARE: Final = 0.3
"""Share of the room that a list of a planning tool may use before other sections have had theirs."""
_EMPTY_LIST: Final = re.compile(r'\A\s*\{\s*"\w{1,40}"\s*:\s*\[\s*\]\s*\}\s*\Z')
"""Arguments of a call that removes the plan."""
_MAX_PLAN_TEXT_CHARS: Final = 8_000
"""Characters at the end of a message in which a plan is looked for."""
_PLAN_WORDS: Final = ("plan", "todo", "to-do", "steps", "next", "tasks", "remaining")
_PLAN_WORD: Final = re.compile("|".join(_PLAN_WORDS), re.IGNORECASE)
_TITLE_KEYS: Final = ("content", "step", "title", "task", "description", "text", "name", "subject")
_STATUS_KEYS: Final = ("status", "state", "done", "completed")
_DONE_MARK: Final = "[x]"
_DONE: Final = frozenset(("done", "completed", "complete", "finished", "true", "x"))
_STARTED: Final = frozenset(("in_progress", "in progress", "inprogress", "active", "doing", "started"))
_CHECKLIST_LINE: Final = re.compile(r"^\s*(?:[-*]|\d+[.)])\s*\[[ xX~✓]\]\s+\S.*$", re.MULTILINE)
_LISTED_LINE: Final = re.compile(r"\s*(?:[-*•]|\d{1,2}[.)])\s+\S")
_TOP_LINE: Final = re.compile(r" {0,3}(?:(?P<bullet>[-*•])|\d{1,2}[.)])\s+\S")
_PLAN_LEAD: Final = re.compile(
    r"^(?:#{1,6}[^\n]{0,60}\b(?:plan|to-?do|next steps?|remaining|tasks)\b[^\n]{0,60}"
    r"|[^\w\n]{0,6}(?:(?:so|now|okay|ok|then|here is|here's|this is|let me|let's|i'll|i will)\b[ ,]*){0,2}"
    r"(?:(?:my|our|the|a|an|new|next|updated|revised|current|implementation|remaining|proposed|action|make)\s+){0,3}"
    r"(?:plan|to-?do(?: list)?|(?<=next )steps?|steps|tasks|remaining|what (?:i'll|i will|i'm going to) do)\b"
    r"(?! (?:to|for) reproduc)(?:(?: (?:for|to|i|is|are|now|next|below|left)\b[^\n:]{0,60})?:|(?=[^\w\n]*$))"
    r"[^\w\n]{0,4})$",
    re.IGNORECASE | re.MULTILINE,
)
"""A heading, or a line that ends in a colon, above a plan."""
_MIN_PLAN_LINES: Final = 2


# ── Plan ─────────────────────────────────────────────────────────────────────────────────────────────────
# A plan is the list in a call of a planning tool (`TodoWrite`, `update_plan`, `task_tracker`, also through a
# shell), a checklist in a message, or a list there under a line such as "Plan:" or "Next steps:". The newest one
# counts.


def plan_section(
    planned: Sequence[tuple[int, ToolCallFacts]],
    said: Sequence[Event],
    *,
    asked: Event | None,
    keep: Set[int],
    is_replaced: bool,
) -> Section:
    """Return the section of the latest plan, if there is one outside the message that is shown last.

    `planned` are the calls of planning tools with their seqs, `said` the messages with a text, both in their order,
    and `asked` is the newest request. A list that a tool was given is needed, because the agent relies on it,
    unless a call after the range has replaced it (`is_replaced`). Its call may still be shown, but goes before the
    record."""
    called = None if is_replaced else _called_plan(planned)
    found = [plan for plan in (called, _said_plan(said, keep)) if plan is not None]
    items = list(_plan_items(*max(found), asked)) if found else []
    needed = _needed_plan(*called, asked) if called is not None and max(found) == called else iter(())
    return Section(PLAN_HEADING, iter(items), 2.5, needed=needed, needed_share=_NEEDED_PLAN_SHARE)


def _plan_items(seq: int, lines: Sequence[str], asked: Event | None) -> Iterator[Item]:
    """Yield the plan: first what is not done, then all of it if there is room."""
    pending = _not_done(lines)
    title = _plan_title(seq, lines, asked)
    for shown in (pending, lines) if len(pending) < len(lines) else (lines,):
        yield _plan_item(title, shown)


def _needed_plan(seq: int, lines: Sequence[str], asked: Event | None) -> Iterator[Item]:
    """Yield what is not done, the shortest form first, so that a record with little room has its beginning."""
    pending, title = _not_done(lines), _plan_title(seq, lines, asked)
    for limits in _SHORT_PLANS:
        yield _plan_item(title, pending, **limits)
    yield _plan_item(title, pending)


def _not_done(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if not line.startswith(_DONE_MARK)]


def _plan_title(seq: int, lines: Sequence[str], asked: Event | None) -> str:
    done = len(lines) - len(_not_done(lines))
    of_all = f", {done} of {len(lines)} done" if done else ""
    return f"{ITEM_PREFIX}{handle(seq)}{of_all}{_later_request(seq, asked)}"


def _plan_item(
    title: str,
    lines: Sequence[str],
    *,
    items: int = _MAX_PLAN_ITEMS,
    item_chars: int = _MAX_PLAN_ITEM_CHARS,
) -> Item:
    quoted = [AGENT_PREFIX + quote_line(line, item_chars) for line in lines[:items]]
    if len(lines) > items:
        quoted.append(f"{AGENT_PREFIX}… {len(lines) - items} more")
    return Item(0, "\n".join([f"{title}:", *quoted]) if quoted else title)


def _later_request(seq: int, asked: Event | None) -> str:
    """Return a mark for a plan that is older than a request: the request may have changed it."""
    return f", before the user's {asked.handle}" if asked is not None and asked.seq > seq else ""


def _called_plan(planned: Sequence[tuple[int, ToolCallFacts]]) -> tuple[int, list[str]] | None:
    """Return the newest plan in a call of a planning tool; None if a later call has removed it."""
    for seq, facts in reversed(planned):
        argument = _plan_argument(facts)
        if lines := _plan_of_argument(argument):
            return seq, lines
        if _EMPTY_LIST.search(argument):
            return None
    return None


def _plan_argument(facts: ToolCallFacts) -> str:
    """Return the arguments of a call, or the here-document of one that goes through a shell."""
    if facts.command is None or not facts.command.is_plan:
        return facts.call.arguments
    return heredoc_body(max((text for _, text in read_call(facts.call).fields), key=len, default=""))


def _said_plan(said: Sequence[Event], keep: Set[int]) -> tuple[int, list[str]] | None:
    """Return the newest plan in the latest messages."""
    shown = (event for event in reversed(said) if event.seq not in keep)
    for number, event in enumerate(islice(shown, _MAX_MESSAGES_WITH_PLAN)):
        text = text_of(getattr(event.fact, "content", ""))
        # The newest message is quoted anyway, unless it is too long.
        is_quoted = number == 0 and len(text) <= MAX_LAST_WORDS_CHARS
        if not is_quoted and (lines := _plan_of_text(text)):
            return event.seq, lines
    return None


def _plan_of_argument(argument: str) -> list[str]:
    """Return the plan in the arguments of a call, which may be JSON."""
    value: object
    try:
        value = msgspec.json.decode(argument[:_MAX_PLAN_ARGUMENT_CHARS])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = argument
    for part in value.values() if isinstance(value, dict) else [value]:
        if isinstance(part, list) and (lines := [line for line in map(_plan_line, part) if line]):
            return lines
        if isinstance(part, str) and (lines := _plan_of_text(part) or _listed(part)):
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
    part = text[-_MAX_PLAN_TEXT_CHARS:]
    return _checklist(part) or _listed_under_lead(part)


def _checklist(text: str) -> list[str]:
    lines = _CHECKLIST_LINE.finditer(text) if "[" in text else ()
    checks = [found.group().strip().lstrip("-*0123456789.) ") for found in lines]
    if len(checks) < _MIN_PLAN_LINES:
        return []
    return [f"{_DONE_MARK}{line[3:]}" if line[1:2] in "xX✓" else line for line in checks]


def _listed_under_lead(text: str) -> list[str]:
    """Return the list under the last line that announces a plan; other lists describe or explain."""
    leads = list(_PLAN_LEAD.finditer(text)) if _has_plan_word(text) else []
    return next((lines for found in reversed(leads) if (lines := _listed(text[found.end() :]))), [])


def _has_plan_word(text: str) -> bool:
    """Return whether a text has a word of a plan. The expression takes several times as long as the searches."""
    return (
        any(map(text.lower().__contains__, _PLAN_WORDS)) if text.isascii() else bool(_PLAN_WORD.search(text))
    )


def _listed(text: str) -> list[str]:
    """Return the list at the beginning of a text, without the lists inside it."""
    lines: list[str] = []
    first: str | None = None
    for line in text.split("\n"):
        if found := _TOP_LINE.match(line):
            first = found["bullet"] or "number" if first is None else first
            lines += [line.strip()] if (found["bullet"] or "number") == first else []
        elif line.strip() and not (lines and line.startswith(("  ", "\t"))) and not _LISTED_LINE.match(line):
            break
    return lines if len(lines) >= _MIN_PLAN_LINES else []


# ── Last words ───────────────────────────────────────────────────────────────────────────────────────────
# What the agent said last is the best evidence, without a model, of what it was about to do.


def last_words_section(said: Sequence[Event], *, keep: Set[int]) -> Section:
    """Return the section of what the model said last: the newest message, then the beginnings of earlier ones.

    `said` are the messages with a text, in their order."""
    newest = list(islice((event for event in reversed(said) if event.seq not in keep), _MAX_EARLIER + 1))
    hidden = len(said) - sum(has_event(said, seq) for seq in keep)
    return Section(
        SAID_HEADING,
        _message_items(newest),
        3.0,
        needed=_newest_message(newest),
        left_out=lambda shown: f"+ {hidden - len(shown)} earlier" if len(shown) < hidden else "",
    )


def _newest_message(said: Sequence[Event]) -> Iterator[Item]:
    for event in said[:1]:
        text = text_of(getattr(event.fact, "content", ""))
        yield Item(0, f"{ITEM_PREFIX}{event.handle}: {inline(text.strip(), _EARLIER_CHARS)}")


def _message_items(said: Sequence[Event]) -> Iterator[Item]:
    for slot, event in enumerate(said):
        text = text_of(getattr(event.fact, "content", "")).strip()
        width = _EARLIER_CHARS if slot else _SHORT_WORDS_CHARS
        yield Item(slot, f"{ITEM_PREFIX}{event.handle}: {inline(text, width)}")
        if slot == 0 and len(text) > width:
            yield Item(slot, f"{ITEM_PREFIX}{_last_words(event, text)}")


def _last_words(event: Event, text: str) -> str:
    """Return the newest message, whole or its beginning and end."""
    if len(text) <= MAX_LAST_WORDS_CHARS:
        return f"{event.handle}:\n{quote_agent(text)}"
    head = text[: word_end(text, MAX_LAST_WORDS_CHARS * 5 // 8)]
    tail = text[word_start(text, len(text) - MAX_LAST_WORDS_CHARS * 3 // 8) :]
    omitted = len(text) - len(head) - len(tail)
    quoted = "\n".join((quote_agent(head), AGENT_PREFIX + "…", quote_agent(tail)))
    return f"{event.handle}, {omitted:,} characters left out:\n{quoted}"


# ── The ledger ───────────────────────────────────────────────────────────────────────────────────────────

_EXCERPT_SHARE: Final = 0.7
"""Share of the room that useful items of other sections leave for quoted lines and names."""
_MIN_EXCERPT_UNITS: Final = 16
_MAX_LEFT_OVER_SHARE: Final = 0.1
"""If more of the room is left over, because the range has few lines and names, the other sections may use it."""


class Ledger:
    """The ledger of a range: read once, written for any room.

    `events` are the effective events of the range, oldest first. Events in `keep` stay visible beside the ledger
    and are only referred to; those of them that are `shortened` miss lines, which may be quoted. The events `after`
    the range may have answered a request or resolved an error inside it. An `index` has what earlier ledgers of the
    conversation have read; it saves time and changes nothing. Lines with words of the `focus` have a section."""

    def __init__(
        self,
        events: Sequence[Event],
        counter: Counter,
        *,
        keep: Set[int] = frozenset(),
        shortened: Set[int] = frozenset(),
        after: Sequence[Event] = (),
        index: LedgerIndex | None = None,
        focus: str = "",
    ) -> None:
        self._focus = focus
        self._events = events
        self._counter = counter
        self._keep = keep
        self._shortened = shortened
        self._after = after
        self._index = index or LedgerIndex()
        self._sizes = self._index.item_sizes(counter)

    @cached_property
    def _facts(self) -> RangeFacts:
        return self._index.range_facts(self._events)

    @cached_property
    def _later(self) -> RangeFacts:
        return self._index.facts_after(self._facts, self._after)

    @cached_property
    def _signs(self) -> ReuseSigns:
        return ReuseSigns(
            self._facts, self._index, later=self._later, keep=self._keep, shortened=self._shortened
        )

    def write(
        self,
        *,
        room: int,
        elsewhere: Set[str] = frozenset(),
        span: tuple[int, int] | None = None,
        only_needed: bool = False,
    ) -> str:
        """Return the text in at most `room` units of the counter.

        Names in `elsewhere` are shown anyway and are not quoted. The last line names
        the seqs of the `span`, by default the first and last event; an empty one (0, -1) leaves the line out.
        `only_needed` writes nothing but requests, changed files and errors."""
        if room <= 0 or not any(type(event.fact) in DIALOGUE_TYPES for event in self._events):
            return ""
        last = _range_line(*(span or (self._events[0].seq, self._events[-1].seq)))
        left = room - (self._counter.count("\n" + last) + 1 if last else 0)
        if left < 0:
            return ""
        if only_needed:
            text = self._write_sections(left, useful=0, elsewhere=elsewhere)
        else:
            text = self._write_all(left, elsewhere)
        return "\n".join(filter(None, (text, last)))

    def _write_all(self, room: int, elsewhere: Set[str]) -> str:
        useful = int(room * (1 - _EXCERPT_SHARE)) if self._signs.results else room
        whole = self._write_with_excerpts(room, useful, elsewhere)
        unused = room - self._sizes.of_text(whole)
        if useful == room or unused <= room * _MAX_LEFT_OVER_SHARE:
            return whole
        return self._write_with_excerpts(room, min(room, useful + unused), elsewhere)

    def _write_with_excerpts(self, room: int, useful: int, elsewhere: Set[str]) -> str:
        text = self._write_sections(room, useful=useful, elsewhere=elsewhere)
        return self._with_excerpts(text, room, elsewhere=elsewhere)

    def _write_sections(self, room: int, *, useful: int, elsewhere: Set[str]) -> str:
        return fill_sections(
            self._sections(room, elsewhere), room=room, useful_room=useful, sizes=self._sizes
        )

    def _sections(self, room: int, elsewhere: Set[str]) -> Sequence[Section]:
        facts, later, keep = self._facts, self._later, self._keep
        requests = collect_requests(
            facts.requests,
            answered_at=max(facts.answered_at, later.answered_at),
            later=later.requests,
            superseded=facts.superseded | later.superseded,
            questions=facts.questions,
        )
        files, files_read = files_and_commands.file_sections(
            [file for file in facts.files.newest_first() if file.last not in keep],
            elsewhere=elsewhere,
            room=room,
        )
        asked = facts.requests[-1][0] if facts.requests else None
        return (
            requests_section(requests, keep=keep, room=room, counter=self._counter),
            *(
                [focus_section(facts.events, self._focus, hidden=lambda seq: seq not in keep)]
                if self._focus
                else []
            ),
            files,
            files_read,
            files_and_commands.calls_section(
                [run for run in facts.commands.newest_first(later=later.commands) if run.seq not in keep]
            ),
            unresolved_errors.errors_section(facts.failures.unresolved(later=later.failures), keep=keep),
            plan_section(facts.planned, facts.said, asked=asked, keep=keep, is_replaced=bool(later.planned)),
            last_words_section(facts.said, keep=keep),
            unresolved_errors.open_calls_section(facts.open_calls()),
        )

    def _with_excerpts(self, text: str, room: int, *, elsewhere: Set[str]) -> str:
        """Return the text with a block of quoted lines and names, if there is room for one."""
        left = room - self._sizes.of_text(text) - 2
        for _ in range(3):
            if left < _MIN_EXCERPT_UNITS:
                break
            block = likely_reused.write_excerpts(
                self._signs,
                text=text,
                elsewhere=elsewhere,
                room=left,
                counter=self._counter,
            )
            whole = "\n".join(filter(None, (text, block)))
            excess = self._sizes.of_text(whole) - room
            if excess <= 0:
                return whole
            left -= excess + 4
        return text


def _range_line(first: int, last: int) -> str:
    if last < first:
        return ""
    return f"look back: {handle(first)}–{handle(last)}" if last != first else f"look back: {handle(first)}"


# ── What is about a focus ────────────────────────────────────────────────────────────────────────────────

_MAX_LINES_EACH: Final = 3
"""Lines of one message."""
_MAX_FOCUS_WORDS: Final = 40
_MIN_WORD_CHARS: Final = 3
_NEEDED_SHARE: Final = 0.3
"""Share of the room that the section may use before others have had theirs."""
_WEIGHT: Final = 4.0
_WORD: Final = re.compile(r"\w[\w./-]*\w|\w")
_COMMON: Final = frozenset(
    ("the", "and", "for", "with", "from", "this", "that", "all", "what", "how", "why", "are")
)


def focus_words(focus: str) -> frozenset[str]:
    """Return the words by which a line is about a focus."""
    words = [word.casefold() for word in _WORD.findall(focus)]
    chosen = (word for word in words if len(word) >= _MIN_WORD_CHARS and word not in _COMMON)
    return frozenset(list(dict.fromkeys(chosen))[:_MAX_FOCUS_WORDS])


def focus_section(events: Sequence[Event], focus: str, *, hidden: Callable[[int], bool]) -> Section:
    """Return the section of the lines about a focus in messages that are `hidden`, by their seq."""
    words = focus_words(focus)
    items = [*_items(events, words, hidden)] if words else []
    return Section(FOCUS_HEADING, iter(items), _WEIGHT, needed=iter(items), needed_share=_NEEDED_SHARE)


def _items(events: Sequence[Event], words: frozenset[str], hidden: Callable[[int], bool]) -> Iterator[Item]:
    place = 0
    for event in reversed(events):
        fact = event.fact
        if not isinstance(fact, ModelSaid | ToolReturned) or not hidden(event.seq):
            continue
        if isinstance(fact, ToolReturned) and is_unchanged_answer(fact):
            continue
        found = _matching_lines(text_of(fact.content), words)
        if found:
            mark = AGENT_PREFIX if isinstance(fact, ModelSaid) else OUTPUT_PREFIX
            quoted = (mark + quote_line(line) for line in found)
            yield Item(place, "\n".join((f"{ITEM_PREFIX}{event.handle}:", *quoted)))
            place += 1


def _matching_lines(text: str, words: frozenset[str]) -> list[str]:
    """Return the lines with most of the words, in their order."""
    folded = text.casefold()
    if not any(word in folded for word in words):
        return []
    lines = [line for line in dict.fromkeys(text.split("\n")) if line.strip()]
    scores = [sum(word in line.casefold() for word in words) for line in lines]
    best = sorted((place for place in range(len(lines)) if scores[place]), key=lambda place: -scores[place])
    return [lines[place] for place in sorted(best[:_MAX_LINES_EACH])]
