"""Ledger section of the user's requests.

1. Requests are quoted verbatim, in the order in which they were made.
2. A request is *answered* when a later model message without calls ended its turn and nothing reopened it, else it
   is *open*. An empty model message, which an abort leaves behind, ends no turn. A request that states a rule, a
   correction or a fact is *standing* and never *answered*, until a later one has replaced it. What replaced it is
   quoted with it, also if it is visible: the later statement must stand behind the earlier one.
3. The newest open request and the first one are chosen before all others. Standing requests come next, rules and
   corrections before facts; while others wait, they take at most half of the room.
4. A long request is reduced to its beginning, the sentences that hold and its end, cut between words, with the
   number of characters left out. Of a long standing request other than those two, only these sentences are quoted.
5. A statement that a newer request repeats counts there. A tool result in the user role is quoted briefly.
6. Requests that stay visible beside the ledger are not repeated; one line tells their state.
7. One line names the handles of requests that are neither quoted nor visible.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence, Set
from itertools import chain, islice, pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

from foveal.core.compaction.ledger.allocation import (
    GAP_LINE,
    ITEM_PREFIX,
    REQUESTS_HEADING,
    Item,
    Section,
    inline,
    quote_user,
    word_end,
    word_start,
)
from foveal.core.compaction.ledger.event_facts import UserFacts
from foveal.core.compaction.ledger.pasted_text import end_of_own_words
from foveal.core.compaction.standing.replaced_statements import MAX_COMPARED_MESSAGES
from foveal.core.compaction.standing.statements import (
    Sentence,
    Statement,
    find_answers,
    find_replaced,
)
from foveal.core.log.events import Event, Media, UserSaid, handle, parts
from foveal.core.tokens.counter import Counter

MAX_REQUEST_UNITS: Final = 20_000
"""Limit of all requests together."""
_MAX_OTHER_SHARE: Final = 0.25
"""Share of the room for any other request."""
_MAX_STANDING_SHARE: Final = 0.5
"""Share of the room for standing requests while others wait."""
_NEEDED_SHARE: Final = 0.3
"""Share of the room for open and standing requests before files and errors have had theirs."""
_SHORT_REQUEST_UNITS: Final = 80
"""Units of an open or standing request that come before files and errors."""
_MAX_SHORT_SENTENCES: Final = 4
"""Statements of one request that have as much room each."""
_LONG_REQUEST_CHARS: Final = 400
"""A longer standing request is reduced to its rules, unless all of it fits."""
_FOREMOST_SHARES: Final = (0.15, 0.25, 0.5)
"""Shares of the room for the newest open request or the first one, each tried in turn; a longer one is reduced."""
_NEWEST_WAITING: Final = 8
"""Requests that are quoted briefly before the newest open request and the first one are quoted at length."""
_BARE_COMMAND: Final = re.compile(r"/[\w-]+\Z")
_STRONG_RULE: Final = re.compile(
    r"\b(?:never|always|must|do not|don['’]t|under no circumstances|from now on|make sure|avoid|niemals|nie|immer"
    r"|jamais|toujours|nunca|siempre|sempre|никогда|всегда)\b|不要|必须|必須|禁止|絶対|必ず|ないで|절대|항상|반드시",
    re.IGNORECASE,
)
"""Words that seldom describe something; rules with them come first when not all fit."""
_MIN_HANDLES, _MAX_HANDLES = 6, 40
_UNITS_PER_HANDLE: Final = 15
"""The line about requests left out names one more handle for this much more room."""
_MIN_LIST_UNITS: Final = 60
"""In less room that line has only the first and the last handle, so that it stays."""
_MAX_QUESTION_WIDTH: Final = 160
_MAX_ANSWER_WIDTH: Final = 80
_MAX_STATES: Final = 12
"""Visible requests whose state is told, for each state."""


class Request:
    """One request of the user in the range."""

    def __init__(
        self,
        event: Event,
        facts: UserFacts,
        *,
        is_open: bool,
        sentences: tuple[Sentence, ...],
        replaced: Later | None,
        question: str = "",
    ) -> None:
        self.event = event
        self.text: str = facts.text
        self.short_quotes: dict[Hashable, tuple[str, int]] = facts.short_quotes
        self.is_report: bool = facts.is_report
        self.is_open = is_open
        self.sentences = sentences
        """The sentences that hold, without those that a newer request repeats or replaces."""
        self.is_standing: bool = bool(sentences)
        self.replaced = replaced
        """What has replaced a statement of it."""
        self.question = question
        """The question of the agent that it answers in a word or two."""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        return tuple((one.start, one.end) for one in self.sentences)

    @property
    def is_binding(self) -> bool:
        """Whether it states a rule or a correction, not only facts."""
        return any(one.kind != "fact" for one in self.sentences)

    @property
    def tells_something(self) -> bool:
        """Whether it is neither a tool result nor a bare command such as `/clear`."""
        return not self.is_report and not _BARE_COMMAND.match(self.text)

    @property
    def state(self) -> str:
        if self.is_standing:
            return "standing, open" if self.is_open else "standing"
        if self.replaced is not None:
            return "replaced"
        return "open" if self.is_open else "answered"


class Later(NamedTuple):
    """A statement that replaces an earlier one."""

    handle: str
    text: str


def collect_requests(
    said: Sequence[tuple[Event, UserFacts]],
    *,
    answered_at: int,
    later: Sequence[tuple[Event, UserFacts]] = (),
    superseded: Mapping[int, int] = MappingProxyType({}),
    questions: Mapping[int, str] = MappingProxyType({}),
) -> list[Request]:
    """Return the requests, oldest first, from the messages of the user in their order.

    Those before `answered_at`, the seq of the latest message that ended a turn, are answered. Messages `later` than
    the range may replace what was said in it, and so do those that the user has named (`superseded`). The agent's
    `questions` are quoted with a short answer."""
    every = [*said, *later]
    texts = {event.seq: facts.text for event, facts in every}
    replaced = _replaced(every)
    reopened = {before.seq for (before, _), (_, facts) in pairwise(every) if facts.reopens}
    requests: list[Request] = []
    stated: set[int] = set()
    named = set(superseded.values())
    for _, facts in later:
        stated.update(facts.keys)
    for event, facts in reversed(said):
        pairs = zip(facts.sentences, facts.keys, strict=True)
        new = tuple(one for one, key in pairs if key not in stated and (event.seq, one.start) not in replaced)
        stated.update(facts.keys)
        by = next(
            (replaced[event.seq, one.start] for one in facts.sentences if (event.seq, one.start) in replaced),
            None,
        )
        if event.seq in superseded:
            new, by = (), Later(handle(superseded[event.seq]), texts.get(superseded[event.seq], ""))
        elif event.seq in named and not new:
            new = (Sentence(0, len(facts.text), "correction"),)
        question = "" if facts.sentences or new else questions.get(event.seq, "")
        if question:
            new = find_answers(facts.text)
        requests.append(
            Request(
                event,
                facts,
                is_open=event.seq > answered_at or event.seq in reopened,
                sentences=new,
                replaced=by,
                question=question if new else "",
            )
        )
    return requests[::-1]


def _replaced(said: Sequence[tuple[Event, UserFacts]]) -> dict[tuple[int, int], Later]:
    """Return the statements that do not hold any longer, by the seq of their message and their place in it."""
    statements = [
        Statement(event.seq, one.start, facts.text[one.start : one.end], one.kind)
        for event, facts in said[-MAX_COMPARED_MESSAGES:]
        for one in facts.sentences
    ]
    by_place = {(one.seq, one.start): one for one in statements}
    return {
        place: Later(handle(later[0]), by_place[later].text)
        for place, later in find_replaced(statements).items()
    }


def requests_section(requests: Sequence[Request], *, keep: Set[int], room: int, counter: Counter) -> Section:
    """Return the section of requests."""
    visible = [request for request in requests if request.event.seq in keep]
    hidden = [request for request in requests if request.event.seq not in keep]
    limit = min(MAX_REQUEST_UNITS, room)
    quotes = _Quotes(hidden, foremost=_foremost(hidden), limit=limit, counter=counter)
    return Section(
        REQUESTS_HEADING,
        quotes.useful(),
        4.0,
        needed=chain(quotes.needed(), _states(visible, slot=len(hidden))),
        needed_share=_NEEDED_SHARE,
        max_units=limit,
        left_out=lambda shown: _left_out(hidden, shown, room),
        told_when_empty=True,
    )


def _foremost(hidden: Sequence[Request]) -> list[int]:
    """Return the slots of the newest open request and of the first one, of those that tell something if any do."""
    slots = range(len(hidden))
    told = [slot for slot in slots if hidden[slot].tells_something] or [*slots]
    pending = (slot for slot in reversed(told) if hidden[slot].is_open)
    return list(dict.fromkeys([*islice(pending, 1), *told[:1]]))


class _Quotes:
    """The quotes of requests, the most valuable first."""

    def __init__(
        self, requests: Sequence[Request], *, foremost: Sequence[int], limit: int, counter: Counter
    ) -> None:
        self._requests = requests
        self._foremost = foremost
        self._limit = limit
        self._counter = counter
        self._short_units = max(1, min(_SHORT_REQUEST_UNITS, limit // 4))
        others = [slot for slot in reversed(range(len(requests))) if slot not in foremost]
        self._standing = [slot for slot in others if requests[slot].is_standing]
        self._waiting = [slot for slot in others if not requests[slot].is_standing]

    def needed(self) -> Iterator[Item]:
        """Yield the foremost requests, the standing ones, and other open ones, all of them short."""
        yield from map(self._short, self._foremost)
        left = int(self._limit * (_MAX_STANDING_SHARE if self._waiting else 1))
        for slot in sorted(self._standing, key=self._urgency):
            item = self._short(slot)
            left -= self._counter.count(item.text)
            if left < 0:
                break
            yield item
        for slot in self._waiting:
            if self._requests[slot].is_open and not self._requests[slot].is_report:
                yield self._short(slot)

    def useful(self) -> Iterator[Item]:
        """Yield the foremost requests at length, then the others short, then these at length, newest first."""
        first, *longer = _FOREMOST_SHARES
        yield from (self._quote(slot, int(self._limit * first)) for slot in self._foremost)
        yield from map(self._short, self._waiting[:_NEWEST_WAITING])
        for share in longer:
            yield from (self._quote(slot, int(self._limit * share)) for slot in self._foremost)
        yield from map(self._short, self._waiting[_NEWEST_WAITING:])
        yield from map(self._short, self._standing)
        for slot in sorted(
            (*self._waiting, *self._standing), key=lambda slot: -self._requests[slot].event.seq
        ):
            if not self._requests[slot].is_report:
                yield self._quote(slot, int(self._limit * _MAX_OTHER_SHARE))

    def _urgency(self, slot: int) -> tuple[bool, bool, bool]:
        request = self._requests[slot]
        is_binding = request.is_binding
        is_strong = is_binding and any(_STRONG_RULE.search(request.text, *span) for span in request.spans)
        return not request.is_open, not is_binding, not is_strong

    def _short(self, slot: int) -> Item:
        count = len(self._requests[slot].sentences)
        return self._quote(slot, self._short_units * max(1, min(count, _MAX_SHORT_SENTENCES)), is_short=True)

    def _quote(self, slot: int, max_units: int, *, is_short: bool = False) -> Item:
        request = self._requests[slot]
        only_rules = (
            slot not in self._foremost and request.is_standing and len(request.text) > _LONG_REQUEST_CHARS
        )
        quote = self._quote_again if is_short else _quote_bounded
        return Item(
            slot, _with_title(request, *quote(request, max_units, self._counter, only_rules=only_rules))
        )

    def _quote_again(
        self, request: Request, max_units: int, counter: Counter, *, only_rules: bool
    ) -> tuple[str, int]:
        key = max_units, counter.name, only_rules, request.sentences
        quoted = request.short_quotes.get(key)
        if quoted is None:
            quoted = _quote_bounded(request, max_units, counter, only_rules=only_rules)
            request.short_quotes.clear()
            request.short_quotes[key] = quoted
        return quoted


def _states(visible: Sequence[Request], *, slot: int) -> Iterator[Item]:
    """Yield one line about the requests that stay visible beside the ledger."""
    standing = [request.event.handle for request in visible if request.is_standing]
    pending = [request.event.handle for request in visible if request.is_open]
    told = [
        f"{state} {', '.join(handles[:_MAX_STATES])}{' …' * (len(handles) > _MAX_STATES)}"
        for state, handles in (("open", pending), ("standing", standing))
        if handles
    ]
    if len({*standing, *pending}) < len(visible):
        told.append("the others answered" if told else "all answered")
    if told:
        yield Item(slot, f"{ITEM_PREFIX}shown beside this record: {'; '.join(told)}")
    answers = [request for request in visible if request.question]
    for number, request in enumerate(answers[-_MAX_STATES:], 1):
        said = f"“{inline(request.text, _MAX_ANSWER_WIDTH)}”"
        yield Item(slot + number, f"{ITEM_PREFIX}{request.event.handle}{_asked(request)}: {said}")


def _asked(request: Request) -> str:
    """Return what is said about the question that a request answers."""
    return f", to “{inline(request.question, _MAX_QUESTION_WIDTH)}”" if request.question else ""


def _left_out(requests: Sequence[Request], shown: Collection[int], room: int) -> str:
    hidden = sorted(request.event.seq for slot, request in enumerate(requests) if slot not in shown)
    if not hidden:
        return ""
    what = f"{len(hidden)} more user message{'s' * (len(hidden) > 1)}"
    if room < _MIN_LIST_UNITS and len(hidden) > 1:
        return f"+ {what}: between e{hidden[0]} and e{hidden[-1]}"
    limit = max(_MIN_HANDLES, min(_MAX_HANDLES, room // _UNITS_PER_HANDLE))
    # The newest are named one by one, since they are the most likely to be asked for.
    named = hidden if len(hidden) <= limit else hidden[-limit:]
    older = hidden[: len(hidden) - len(named)]
    beyond = f" and {len(older)} more between e{older[0]} and e{older[-1]}" if older else ""
    listed = ", ".join(f"e{seq}" for seq in named)
    return f"+ {what}: {listed}{beyond}"


# ── Text of one request ──────────────────────────────────────────────────────────────────────────────────


def _with_title(request: Request, quoted: str, omitted: int) -> str:
    fact = request.event.fact
    files = sum(isinstance(part, Media) for part in parts(fact.content)) if isinstance(fact, UserSaid) else 0
    beside = f", with {files} file{'s' * (files > 1)}" if files else ""
    title = f"{ITEM_PREFIX}{request.event.handle}, {request.state}{beside}{_asked(request)}"
    if not request.text:
        return title
    cut = f", {omitted:,} characters left out" if omitted else ""
    by = request.replaced
    later = "" if by is None else f"\n{ITEM_PREFIX}replaced by {by.handle}:\n{quote_user(by.text)}"
    return f"{title}{cut}:\n{quoted}{later}"


def _quote_bounded(
    request: Request, max_units: int, counter: Counter, *, only_rules: bool
) -> tuple[str, int]:
    """Return the text quoted, whole or its most important parts, and how many characters are left out."""
    text = request.text
    part = text[: 8 * max_units + 1]
    units = counter.count(part)
    if len(part) == len(text) and units + text.count("\n") * 3 <= max_units:
        return quote_user(text), 0
    size = max(1, int(0.8 * max_units * len(part) / max(1, units)))
    spans = (
        _rule_spans(text, request.spans, size) if only_rules else _important_spans(text, request.spans, size)
    )
    omitted = len(text) - sum(end - start for start, end in spans)
    if omitted <= 0:
        return quote_user(text), 0
    quoted = [quote_user(text[start:end].strip()) for start, end in spans]
    return f"\n{GAP_LINE}\n".join(quoted), omitted


def _rule_spans(text: str, rules: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the sentences with rules, about `size` characters in all, and at least the beginning of one."""
    spans = _fitting_rules(text, rules, size)
    if not spans:
        start, end = rules[0]
        spans.append((start, max(start + 1, word_end(text, min(end, start + size)))))
    return _joined(sorted(spans), text)


def _fitting_rules(text: str, rules: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for start, end in sorted(rules, key=lambda rule: not _STRONG_RULE.search(text, *rule)):
        if end - start <= size:
            spans.append((start, end))
            size -= end - start
    return spans


def _important_spans(text: str, rules: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the beginning, sentences with rules, and the end of a text: about `size` characters in all."""
    stop = end_of_own_words(text)
    if stop <= size:
        return [(0, stop)]
    head, tail = (size // 3, size // 6) if rules else (size * 3 // 4, size // 4)
    last = max(head, stop - tail)
    inner = _fitting_rules(
        text, [rule for rule in rules if rule[0] >= head and rule[1] <= last], size - head - tail
    )
    # What the rules leave goes to the beginning.
    left = size - head - tail - sum(end - start for start, end in inner)
    head = min([head + max(0, left), last, *(start for start, _ in inner)])
    return _joined(sorted([(0, _line_end(text, head)), *inner, (_line_start(text, last, stop), stop)]), text)


def _line_end(text: str, at: int) -> int:
    """Return the end of a line shortly before a position, if there is one."""
    found = text.rfind("\n", at * 2 // 3, at)
    return found if found > 0 else at


def _line_start(text: str, at: int, stop: int) -> int:
    found = text.find("\n", at, at + (stop - at) // 3)
    return found + 1 if found >= 0 else at


def _joined(spans: Sequence[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Return the spans without empty ones, with whole words; spans that touch become one."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        start, end = word_start(text, start), word_end(text, end)
        if end <= start:
            continue
        if joined and start <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
