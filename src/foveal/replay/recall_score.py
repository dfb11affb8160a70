"""What an agent later needed of its earlier tool results: the measure of what a policy forgets.

    common = vocabulary(conversations)                 # once, over all conversations that are compared
    for need in needs(conversation, common=common):    # linear in the length of the conversation
        need.call, need.kind, need.text, need.far, need.source

A *need* is a string in the arguments of a call that stands in an earlier tool result and in no system or user
message before the call: the model can only have it from that result.

ident   an identifier, a path or a number: 5 to 200 characters, with a digit, one of `_ . / : @ # -`, an inner
        capital, or at least 9 letters, and not in `common`
line    a whole line of the arguments, 24 characters or more without the blanks around it

A string stands in a text when it occurs in it and is no part of a longer word there. Its *source* is the newest
result that it stands in; it is *far* when six or more results back, the newest result being one back. In one
message a string is needed once; when a later message has it again, that is another need.

*Common* is what anybody would write without having read it: names that stand in the results of more than
max(3, 5 %) of all tasks that have calls. Recordings with the same title are one task, those without a title are
one each.

A conversation is given as a `Recording`, or as a sequence of facts, of events, or of messages as clients send
them. Everything here is pure, and the same input gives the same answer.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Dialect,
    Event,
    Instructed,
    Media,
    ModelSaid,
    Opaque,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    calls_of,
    parts,
    raw,
    text_of,
)
from foveal.core.tokens.counter import Counter
from foveal.core.tokens.message_tokens import PER_MESSAGE, MessageTokens
from foveal.core.wire import detect, tools_text, wire
from foveal.replay.recorded_calls import RecordedConversation
from foveal.transcripts import Transcript

# ── requests ──────────────────────────────────────────────────────────────────────────────────────
# A request as the lab looks at it: pieces with their tokens and their words.
#
# The same message is always the same piece, so two requests are compared piece by piece, by identity, and nothing is
# counted or read twice.


class MessageText:
    """One message, or what stands in front of all messages."""

    __slots__ = ("text", "tokens")

    def __init__(self, tokens: int, text: str) -> None:
        self.tokens = tokens
        self.text = text
        """All words in it; the arguments of calls are decoded."""


class RequestText(NamedTuple):
    pieces: tuple[MessageText, ...]
    tokens: int


class RequestReader:
    """Turns messages of one conversation into pieces."""

    def __init__(self, dialect: Dialect, counter: Counter) -> None:
        self._wire = wire(dialect)
        self._meter = MessageTokens(counter)
        self._counted = 0
        self._known: dict[bytes, MessageText] = {}

    def request(self, messages: Sequence[Any], *, system: str | None, tools: Sequence[Any]) -> RequestText:
        """The whole request, in the order in which providers read it: tools, system, messages."""
        return whole([*self.front(system=system, tools=tools), *map(self.piece, messages)])

    def front(self, *, system: str | None, tools: Sequence[Any]) -> list[MessageText]:
        """What stands in front of all messages."""
        return [self._words(text) for text in (tools_text(tools), system or "") if text]

    def piece(self, message: Any) -> MessageText:
        key = bytes(raw(message))
        known = self._known.get(key)
        if known is None:
            facts = [fact for chunk in self._wire.read((message,)) for fact in chunk.facts]
            tokens = sum(map(self._units, facts))
            known = self._known[key] = MessageText(tokens, "\n".join(map(words, facts)))
        return known

    def fact(self, fact: AnyFact) -> list[MessageText]:
        """The pieces that one fact is written as."""
        return [self.piece(message) for message in self._wire.write(fact)]

    def count(self, text: str) -> int:
        return self._meter.counter.count(text)

    def _words(self, text: str) -> MessageText:
        key = text.encode("utf-8", "surrogatepass")
        if key not in self._known:
            self._known[key] = MessageText(PER_MESSAGE + self.count(text), text)
        return self._known[key]

    def _units(self, fact: Any) -> int:
        self._counted += 1
        return self._meter.message(self._counted, fact)


def whole(pieces: Sequence[MessageText]) -> RequestText:
    return RequestText(tuple(pieces), sum(piece.tokens for piece in pieces))


def words(fact: AnyFact) -> str:
    """All words of a message, each text as it is."""
    content = getattr(fact, "content", "")
    return content if isinstance(content, str) else "\n".join(t for p in parts(content) for t in _texts(p))


def _texts(part: AnyPart) -> Iterator[str]:
    match part:
        case Text() | Thinking():
            yield part.text
        case Call():
            yield part.name
            yield from argument_texts(part)
        case Opaque():
            yield bytes(part.native).decode("utf-8", "replace")
        case Media():
            pass


# ── needs ─────────────────────────────────────────────────────────────────────────────────────────

Kind: TypeAlias = Literal["ident", "line"]
Conversation: TypeAlias = Transcript | Sequence[AnyFact] | Sequence[Event] | Sequence[Mapping[str, Any]]

FAR: Final = 6
"""A need is far when its newest source is so many results back, or more."""
LINE: Final = 24
"""Characters that make a line worth looking for."""
COMMON_TASKS: Final = 3
COMMON_SHARE: Final = 0.05

_NAME: Final = re.compile(r"[A-Za-z0-9_./:@#\-]{5,200}")
_TELLING: Final = re.compile(r"[\d_./:@#\-]|[a-z][A-Z]|[A-Za-z]{9}")
_BEFORE: Final = ":-#@"
_AFTER: Final = ".:-#/@"
_WORD: Final = re.compile(r"\w+")


class Need(NamedTuple):
    """One string that a call took from an earlier result."""

    call: int
    """Which utterance of the model has the call, counted from 1: the request that had to show the string."""
    kind: Kind
    text: str
    far: bool
    back: int
    """How many results back its newest source is; 1 is the newest result."""
    source: int
    """Which result that is, counted from 0 among all tool results of the conversation."""
    place: int
    """Where that result stands among the facts of the conversation."""


def needs(conversation: Conversation, *, common: Set[str] = frozenset()) -> list[Need]:
    """All needs of a conversation, in the order of the calls; within a call names before lines."""
    said, results, places = _Index(), _Index(), []
    found: list[Need] = []
    call = 0
    for place, fact in enumerate(facts_of(conversation)):
        match fact:
            case Instructed() | UserSaid():
                said.add(text_of(fact.content))
            case ToolReturned():
                results.add(text_of(fact.content))
                places.append(place)
            case ModelSaid():
                call += 1
                for kind, text in _quotable(fact, common):
                    source = results.newest(text)
                    if source >= 0 and said.newest(text) < 0:
                        back = len(places) - source
                        found.append(Need(call, kind, text, back >= FAR, back, source, places[source]))
            case _:
                pass
    return found


def vocabulary(conversations: Iterable[Conversation]) -> frozenset[str]:
    """The names that are common to many of these conversations; see above. Only names that some call's arguments
    have can be needed, so no others are counted."""
    tasks: dict[str, list[Conversation]] = {}
    for number, conversation in enumerate(conversations):
        title = conversation.title if isinstance(conversation, Transcript) else ""
        tasks.setdefault(title or f"\0{number}", []).append(conversation)
    asked = {task: set().union(*map(_asked, same)) for task, same in tasks.items()}
    wanted = set().union(*asked.values())
    counts: collections.Counter[str] = collections.Counter()
    for task, same in tasks.items():
        if asked[task]:
            counts.update(wanted & set().union(*map(_returned, same)))
    most = max(COMMON_TASKS, COMMON_SHARE * sum(map(bool, asked.values())))
    return frozenset(name for name, count in counts.items() if count > most)


def facts_of(conversation: Conversation) -> list[AnyFact]:
    """The facts of a conversation, however it is given."""
    if isinstance(conversation, Transcript):
        return [fact for fact, _ in conversation.facts]
    if conversation and isinstance(conversation[0], Mapping):
        dialect = wire(detect(conversation))
        return [fact for chunk in dialect.read(conversation) for fact in chunk.facts]
    return [item.fact if isinstance(item, Event) else item for item in conversation]  # type: ignore[misc]


def names(text: str) -> Iterator[str]:
    """The identifiers, paths and numbers of a text, each once, in their order."""
    for found in dict.fromkeys(_NAME.findall(text)):
        name = found.lstrip(_BEFORE).rstrip(_AFTER)
        if len(name) >= 5 and _TELLING.search(name):
            yield name


def argument_texts(call: Call) -> Iterator[str]:
    """The texts among the arguments of a call, decoded; the arguments themselves when they are no JSON."""
    try:
        yield from _leaves(json.loads(call.arguments))
    except (ValueError, RecursionError):
        yield call.arguments


def stands(text: str, string: str) -> bool:
    """The string occurs in the text, and not only as a part of longer words."""
    at = text.find(string)
    while at >= 0:
        end = at + len(string)
        if not (_joined(text[at - 1 : at], string[0]) or _joined(string[-1], text[end : end + 1])):
            return True
        at = text.find(string, at + 1)
    return False


def _joined(left: str, right: str) -> bool:
    return bool(left and right) and _wordy(left) and _wordy(right)


def _wordy(character: str) -> bool:
    return character.isalnum() or character == "_"


# ── what could be needed, and where it stands ────────────────────────────────────────────────────────────


def _quotable(fact: ModelSaid, common: Set[str]) -> Iterator[tuple[Kind, str]]:
    texts = [text for _, call in calls_of(fact.content) for text in argument_texts(call)]
    for name in dict.fromkeys(name for text in texts for name in names(text)):
        if name not in common:
            yield "ident", name
    lines = (line.strip() for text in texts for line in text.splitlines())
    for line in dict.fromkeys(lines):
        if len(line) >= LINE and _WORD.search(line):
            yield "line", line


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _asked(conversation: Conversation) -> set[str]:
    """The names in the arguments of all calls."""
    calls = (
        call
        for fact in facts_of(conversation)
        if isinstance(fact, ModelSaid)
        for _, call in calls_of(fact.content)
    )
    return {name for call in calls for text in argument_texts(call) for name in names(text)}


def _returned(conversation: Conversation) -> set[str]:
    """The names in all results; of a path with a line number also the path, and each folder on its way."""
    found: set[str] = set()
    for fact in facts_of(conversation):
        if isinstance(fact, ToolReturned):
            found.update(names(text_of(fact.content)))
    return found | {part for name in found for part in _parts(name)}


def _parts(name: str) -> Iterator[str]:
    for part in name.split(":"):
        yield part
        at = part.find("/", 1)
        while at > 0:
            yield part[:at]
            yield part[at + 1 :]
            at = part.find("/", at + 1)


class _Index:
    """Texts that come one after the other, and the newest of them that a string stands in."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._with: dict[str, list[int]] = {}
        """For each word the texts that have it, oldest first."""
        self._looked: dict[str, tuple[int, int]] = {}
        """For each string how many texts there were when it was looked for, and the answer."""

    def add(self, text: str) -> None:
        for word in set(_WORD.findall(text)):
            self._with.setdefault(word, []).append(len(self._texts))
        self._texts.append(text)

    def newest(self, string: str) -> int:
        """The newest text that the string stands in, -1 if there is none."""
        seen, answer = self._looked.get(string, (0, -1))
        if seen < len(self._texts):
            answer = self._newest(string, seen, answer)
            self._looked[string] = (len(self._texts), answer)
        return answer

    def _newest(self, string: str, seen: int, known: int) -> int:
        """Looks only at texts that came since, and of those only at the ones that have its longest word."""
        candidates = self._with.get(max(_WORD.findall(string), key=len, default=""), ())
        for place in reversed(candidates):
            if place < seen:
                break
            if stands(self._texts[place], string):
                return place
        return known


# ── memory ────────────────────────────────────────────────────────────────────────────────────────
# What of a conversation still stands in a request: what its next answer needs, the task, the latest message.


class RecallScorer:
    """Looks into the requests of one conversation."""

    def __init__(
        self, conversation: RecordedConversation, needs: Sequence[Need], reader: RequestReader
    ) -> None:
        self._needs: dict[int, list[Need]] = {}
        for need in needs:
            self._needs.setdefault(need.call, []).append(need)
        self._sources = {need.source for need in needs}
        self._whole: dict[int, set[MessageText]] = {
            number: set(reader.fact(fact))
            for number, fact in enumerate(conversation.results)
            if number in self._sources
        }
        """For each result that is needed once, what it is when shown as it was."""
        self._users = [
            (place, text_of(fact.content))
            for place, fact in enumerate(conversation.facts)
            if isinstance(fact, UserSaid)
        ]

    def needed(self, call: int) -> Sequence[Need]:
        """What the answer to this request, counted from 1, quotes from results."""
        return self._needs.get(call, ())

    def lost(self, call: int, request: RequestText) -> Iterator[Need]:
        """What of it does not stand in the request."""
        wanted = self._needs.get(call, ())
        shown = set(request.pieces) if wanted else set()
        for need in wanted:
            if self._whole[need.source].isdisjoint(shown) and not _found(request, need.text):
                yield need

    def has_task(self, request: RequestText, *, facts: int) -> bool:
        """The first user message, if it is among the first `facts` facts, stands in it, word for word."""
        return _holds(request, next((text for place, text in self._users if place < facts), ""))

    def has_latest(self, request: RequestText, *, facts: int) -> bool:
        """The newest user message among the first `facts` facts stands in it, word for word."""
        return _holds(request, next((text for place, text in reversed(self._users) if place < facts), ""))


def _found(request: RequestText, text: str) -> bool:
    return any(stands(piece.text, text) for piece in reversed(request.pieces))


def _holds(request: RequestText, text: str) -> bool:
    return not text or any(text in piece.text for piece in request.pieces)
