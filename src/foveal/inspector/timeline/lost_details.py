"""Details that a compaction lost: what its source has and the request after it does not.

1. The source is what the request before the compaction showed of the covered messages. What an earlier reduction
   had already hidden is not lost again, unless the request before still stated it.
2. Listed are, in this order: rules and other sentences of the user, errors that were open, names and paths that the
   user or the model uses again later, and other paths that they wrote.
3. A name counts as kept if it occurs, a sentence also if one line has most of its words. So a paraphrase in other
   words is listed as lost, and a name that the summary uses in another sense is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from foveal.core.compaction.known_names import is_code_like
from foveal.core.compaction.ledger.event_facts import UserFacts
from foveal.core.compaction.ledger.pasted_text import is_pasted_line, pasted_spans
from foveal.core.compaction.ledger.range_facts import LedgerIndex, RangeFacts
from foveal.core.log.events import (
    AnyFact,
    Call,
    Compacted,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Marked,
    ModelSaid,
    Noted,
    Pinned,
    Text,
    ToolReturned,
    ToolsLoaded,
    Unknown,
    UserSaid,
    handle,
    parts,
)
from foveal.core.log.ranges import is_within
from foveal.core.view.fold import effective_events
from foveal.core.view.steps import hidden_ranges
from foveal.core.view.text_facts import distinct_names, name_candidates, string_values
from foveal.core.view.view import View
from foveal.core.wire.event_text import readable_text
from foveal.core.wire.safe_print import one_line
from foveal.errors import UnknownHandle
from foveal.inspector.timeline.message_text import LogViews

LostKind: TypeAlias = Literal["rule", "request", "error", "path", "name"]

MAX_LOST_DETAILS: Final = 200
MAX_LOST_SENTENCES: Final = 80
MAX_LOST_ERRORS: Final = 40
MAX_LOST_CHARS: Final = 300
"""Characters of one detail that are shown."""
MAX_NAMES_COMPARED: Final = 3_000
"""Names that are looked up in the request after the compaction."""
MAX_LATER_CHARS: Final = 2_000_000
"""Characters of the messages after the compaction that are searched for names."""
_MAX_SENTENCES: Final = 30
"""Sentences of one message that are compared."""
_MAX_MESSAGE_CHARS: Final = 20_000
"""Characters of one message in which sentences are looked for."""
_MIN_WORDS: Final = 3
"""Words of a sentence below which it says too little to be missed, such as "go on"."""
_KEPT_SHARE: Final = 0.5
"""Share of the words of a sentence that a line must have to state the same."""
_STEM_CHARS: Final = 6
"""Characters by which words are compared, so that `test` and `tests`, `price` and `prices` are alike."""
_WORD: Final = re.compile(r"[^\W_][\w./\-]{2,}")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|[\n。！？]+")
_COMMON_WORDS: Final = frozenset(
    [
        "the",
        "and",
        "for",
        "you",
        "are",
        "was",
        "has",
        "have",
        "with",
        "that",
        "this",
        "from",
        "please",
        "can",
        "could",
        "will",
        "would",
        "should",
        "its",
        "not",
        "but",
    ]
)
_BEFORE_NEXT_ANSWER: Final = (UserSaid, Instructed, Pinned, Noted, Equipped, ToolsLoaded, Marked, Unknown)


class LostDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One detail that the request after a compaction does not have."""

    kind: LostKind
    text: str
    key: str
    """The message that has it, the newest one."""
    again: int = -1
    """The first later event that uses it; -1 if none does."""


class LostDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one compaction lost."""

    event: int
    at: int
    """The newest event of the request that was compared."""
    details: tuple[LostDetail, ...] = ()
    left_out: int = 0
    """Further details that are not listed."""


def lost_details(log: Sequence[Event], seq: int, *, views: LogViews) -> LostDetails:
    """Return what the compaction or drop at event `seq` lost; raises `UnknownHandle` for any other event."""
    first = log[0].seq if log else 0
    event = log[seq - first] if first <= seq < first + len(log) else None
    if event is None or not isinstance(event.fact, Compacted | Dropped):
        raise UnknownHandle(f"no compaction has the handle {handle(seq)!r}")
    end = _end_of_request(log, seq - first)
    with views.at(log, max(first, seq - 1)) as before, views.at(log, first + end - 1) as after:
        source = _read_source(log[: seq - first + 1], event.fact, before=before, after=after)
        kept = RequestWords(_shown_facts(after))
        found = [
            _lost_sentences(source, kept),
            _lost_errors(source, kept),
            _lost_names(source, kept, later=log[end:]),
        ]
    # Many sentences must not displace the names that were needed later.
    listed = [*found[0][:MAX_LOST_SENTENCES], *found[1][:MAX_LOST_ERRORS], *found[2]][:MAX_LOST_DETAILS]
    left_out = sum(map(len, found)) - len(listed)
    return LostDetails(event=seq, at=first + end - 1, details=tuple(listed), left_out=left_out)


def _end_of_request(log: Sequence[Event], place: int) -> int:
    """Return the place behind the last event of the request that follows a compaction. Codex records messages
    that it keeps behind its summary."""
    rest = range(place + 1, len(log))
    return next((at for at in rest if not isinstance(log[at].fact, _BEFORE_NEXT_ANSWER)), len(log))


# ── The source and the request ────────────────────────────────────────────────────────────────────


class _LossSource(NamedTuple):
    """What a compaction covers."""

    facts: RangeFacts
    """The covered events, also those that an earlier reduction had hidden."""
    since: RangeFacts
    """What follows them up to the compaction."""
    shown: list[tuple[int, AnyFact]]
    """The messages that the compaction took out of the request or shortened, as they were shown."""
    said: RequestWords
    """What earlier summaries, the user and the model state in these messages."""


def _read_source(
    log: Sequence[Event], fact: Compacted | Dropped, *, before: View, after: View
) -> _LossSource:
    ranges, masked = hidden_ranges(fact), set[int]()
    if (
        isinstance(fact, Compacted) and fact.masks
    ):  # the calls of masked results stay, and say what they are of
        ranges, masked = ((fact.first, fact.last),), {mask.target for mask in fact.masks}
    end = max((last for _, last in ranges), default=-1)
    facts = RangeFacts(LedgerIndex())
    since = RangeFacts(LedgerIndex(), keys=facts.keys)
    effective = effective_events(log)
    facts.extend(event for event in effective if is_within(event.seq, ranges))
    since.extend(event for event in effective if event.seq > end)
    kept = set(after.seqs) - masked  # of a masked message, the request has only what its placeholder says
    shown: list[tuple[int, AnyFact]] = [
        (message.seq, message.as_shown())
        for step in before.steps
        for message in step.shown_messages()
        if message.seq >= 0 and message.seq not in kept
    ]
    said = RequestWords(fact for _, fact in shown if not isinstance(fact, ToolReturned))
    return _LossSource(facts, since, shown, said)


def _shown_facts(view: View) -> Iterator[AnyFact]:
    for shown in view.asides.values():
        yield shown.as_shown()
    for step in view.steps:
        yield from step.facts()


class RequestWords:
    """The texts of a request, for the question whether they state something."""

    def __init__(self, facts: Iterable[AnyFact]) -> None:
        self._lines: dict[str, set[int]] = {}
        """For each word the numbers of the lines that have it; lines of results are not searched by words."""
        self._count = 0
        self._names: set[str] = set()
        texts: list[str] = []
        for fact in facts:
            small = readable_text(fact).lower()
            texts.append(" ".join(small.split()))
            self._names |= name_candidates(small)
            if not isinstance(fact, ToolReturned):
                self._add_lines(small)
        self._text = "\n".join(texts)

    def _add_lines(self, lowered: str) -> None:
        for line in lowered.split("\n"):
            self._count += 1
            for word in set(_stems(line)):
                self._lines.setdefault(word, set()).add(self._count)

    def states(self, sentence: str) -> bool:
        """Return whether the texts have a sentence, or a line with most of its words."""
        small = " ".join(sentence.lower().split())
        if small.rstrip(".!? ") in self._text:
            return True
        words = set(_stems(small))
        weights: dict[int, float] = {}
        for word in words:
            for line in self._lines.get(word, ()):
                weights[line] = weights.get(line, 0) + _weight(word)
        return max(weights.values(), default=0) >= _KEPT_SHARE * sum(map(_weight, words))

    def has_name(self, name: str) -> bool:
        """Return whether the texts have a name; for a path, its last two parts or the bare file name suffice."""
        small = name.lower()
        parts = [part for part in small.split("/") if part]
        if small in self._names or (len(parts) > 1 and parts[-1] in self._names):
            return True
        return "/".join(parts[-2:]) in self._text


def _stems(lowered: str) -> Iterator[str]:
    """Yield the words of a line that carry meaning: names as they are, other words by their beginning."""
    for word in _WORD.findall(lowered):
        word = word.rstrip("./-")
        if len(word) > 2 and word not in _COMMON_WORDS:
            yield word if _is_name(word) else word[:_STEM_CHARS]


def _weight(word: str) -> float:
    return 2.0 if _is_name(word) else 1.0


def _is_name(word: str) -> bool:
    return not word.isalpha()


# ── What is lost ──────────────────────────────────────────────────────────────────────────────────


def _lost_sentences(source: _LossSource, kept: RequestWords) -> list[LostDetail]:
    """Return the rules of the user that are not stated any more, then the other messages."""
    removed = {seq for seq, _ in source.shown}
    rules: dict[str, LostDetail] = {}
    requests: dict[str, LostDetail] = {}
    for event, said in reversed(source.facts.requests):
        if said.is_report:
            continue
        for sentence in _rules(said):
            is_known = event.seq in removed or source.said.states(sentence)
            if is_known and not kept.states(sentence):
                rules.setdefault(sentence, _lost_quote("rule", event, sentence))
        lost = [sentence for sentence in _requests(said) if not kept.states(sentence)]
        if lost and event.seq in removed:
            requests.setdefault(" … ".join(lost), _lost_quote("request", event, " … ".join(lost)))
    return [*reversed(rules.values()), *reversed(requests.values())]


def _lost_quote(kind: LostKind, event: Event, text: str) -> LostDetail:
    return LostDetail(kind=kind, text=one_line(text, width=MAX_LOST_CHARS), key=event.handle)


def _rules(said: UserFacts) -> Iterator[str]:
    for one in said.sentences:
        if one.kind != "fact":
            yield said.text[one.start : one.end].strip()


def _requests(said: UserFacts) -> Iterator[str]:
    """Yield the other sentences of a message."""
    for start, sentence in islice(_own_sentences(said.text[:_MAX_MESSAGE_CHARS]), _MAX_SENTENCES):
        if not any(
            one.start < start + len(sentence) and start < one.end
            for one in said.sentences
            if one.kind != "fact"
        ):
            yield sentence


def _own_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences that the user wrote, not pasted, each with its position."""
    pasted = pasted_spans(text)
    start = 0
    while start < len(text):
        found = _SENTENCE_END.search(text, start)
        end = found.start() if found else len(text)
        sentence = text[start:end].strip()
        is_pasted = any(low <= start < high for low, high in pasted) or is_pasted_line(text, start)
        if not is_pasted and len(set(_stems(sentence.lower()))) >= _MIN_WORDS:
            yield start, sentence
        start = found.end() if found else len(text)


def _lost_errors(source: _LossSource, kept: RequestWords) -> list[LostDetail]:
    found: list[LostDetail] = []
    removed = {seq for seq, _ in source.shown}
    for failure in source.facts.failures.unresolved(later=source.since.failures):
        line = next(iter(failure.lines), "")
        if failure.failed.action.result_seq in removed and line and not kept.states(line):
            text = one_line(line, width=MAX_LOST_CHARS)
            found.append(LostDetail(kind="error", text=text, key=failure.handle))
    return found


def _lost_names(source: _LossSource, kept: RequestWords, *, later: Sequence[Event]) -> list[LostDetail]:
    """Return the names that are used again, in the order of their use, then other paths, newest first."""
    later_uses = _first_uses(later)
    holders: dict[str, int] = {}
    written: dict[str, None] = {}
    for seq, fact in source.shown:
        if isinstance(fact, UserSaid | ModelSaid):
            names: Iterable[str] = _written_names(fact)
            written.update(dict.fromkeys(names))
        else:
            # A result has many names; those that occur nowhere else are not missed.
            names = name_candidates(readable_text(fact)) & later_uses.keys()
        holders.update(dict.fromkeys(names, seq))
    again = [name for name in later_uses if name in holders and (_is_path(name) or is_code_like(name))]
    others = [name for name in reversed(written) if name not in later_uses and _is_path(name)]
    return [
        LostDetail(
            kind="path" if _is_path(name) else "name",
            text=one_line(name, width=MAX_LOST_CHARS),
            key=handle(holders[name]),
            again=later_uses.get(name, -1),
        )
        for name in (again + others)[:MAX_NAMES_COMPARED]
        if not kept.has_name(name)
    ]


def _first_uses(later: Sequence[Event]) -> dict[str, int]:
    """Return the names that the user and the model use, each with the first event that does."""
    uses: dict[str, int] = {}
    chars = 0
    for event in later:
        if isinstance(event.fact, UserSaid | ModelSaid):
            chars += len(readable_text(event.fact))
            for name in _written_names(event.fact):
                uses.setdefault(name, event.seq)
        if chars > MAX_LATER_CHARS:
            break
    return uses


def _written_names(fact: UserSaid | ModelSaid) -> list[str]:
    """Return the names in a message and in the values of its calls' arguments."""
    texts = (
        "\n".join(string_values(part.arguments)) if isinstance(part, Call) else part.text
        for part in parts(fact.content)
        if isinstance(part, Text | Call)
    )
    return list(distinct_names("\n".join(texts)))


def _is_path(name: str) -> bool:
    """Return whether a name is a path; `/name` alone is mostly the end of an element, or a command of a chat."""
    is_joined = "/" in name[1:] and "://" not in name
    return is_joined and (is_code_like(name) or any(map(str.isdigit, name)))
