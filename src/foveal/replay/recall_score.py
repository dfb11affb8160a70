"""Needed-later recall: what agents quote from earlier tool results, and what requests still contain.

    common = common_names(conversations)                     # once, over all conversations that are compared
    for need in find_needs(conversation, common=common):     # linear in the length of the conversation
        need.call, need.kind, need.text, need.far, need.source

1. A *need* is a string in the arguments of a call that is in an earlier tool result and in no system or user
   message before the call: the model can only have it from that result.

       ident   an identifier, a path or a number: 5 to 200 characters, with a digit, one of `_ . / : @ # -`, an
               inner capital, or at least 9 letters, and not in `common`
       line    a whole line of the arguments, 24 characters or more without the blanks around it

2. A string is in a text if it occurs there and is not a part of a longer word.
3. The *source* of a need is the newest result that contains it. The need is *far* if that result is six or more
   results back, the newest result being one back.
4. A string is needed once per message; if a later message has it again, that is another need.
5. *Common* names are in the results of more than max(3, 5 %) of all tasks that have calls: an agent writes them
   without having read them. Recordings with the same title are one task, those without a title are one each.
6. The recall of a policy is the share of needs that its requests still contain; `RecallScorer` finds them.

A conversation is a `Transcript`, or a sequence of facts, of events, or of messages as clients send them. All
functions are pure.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from foveal.core.log.events import (
    AnyFact,
    Event,
    Instructed,
    ModelSaid,
    ToolReturned,
    UserSaid,
    calls_of,
    text_of,
)
from foveal.core.wire import detect_dialect, wire_for
from foveal.core.wire.request_text import MessageText, RequestReader, RequestText, argument_texts
from foveal.replay.recorded_calls import RecordedConversation
from foveal.transcripts import Transcript

NeedKind: TypeAlias = Literal["ident", "line"]
ConversationSource: TypeAlias = Transcript | Sequence[AnyFact] | Sequence[Event] | Sequence[Mapping[str, Any]]

FAR_RESULTS_BACK: Final = 6
"""A need is far if its source is at least this many results back."""
MIN_LINE_CHARS: Final = 24
"""Shortest line that can be a need."""
MAX_UNCOMMON_TASKS: Final = 3
MAX_UNCOMMON_SHARE: Final = 0.05
"""A name in the results of more than this many tasks, and more than this share of them, is common."""

_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_./:@#\-]{5,200}")
_DISTINCTIVE: Final = re.compile(r"[\d_./:@#\-]|[a-z][A-Z]|[A-Za-z]{9}")
_LEADING_PUNCTUATION: Final = ":-#@"
_TRAILING_PUNCTUATION: Final = ".:-#/@"
_WORD: Final = re.compile(r"\w+")


class Need(NamedTuple):
    """A string that a call quotes from an earlier result.

    Examples:
        ```python
        import foveal
        from foveal import replay

        look = foveal.events.Call(id="c1", name="look", arguments="{}")
        open_it = foveal.events.Call(id="c2", name="open", arguments='{"part": "part_0_7"}')
        conversation: list[foveal.events.AnyFact] = [
            foveal.UserSaid(content="Find the part."),
            foveal.ModelSaid(content=(look,)),
            foveal.ToolReturned(call_id="c1", content="It is part_0_7."),
            foveal.ModelSaid(content=(open_it,)),
        ]
        (need,) = replay.find_needs(conversation)
        assert (need.call, need.text) == (2, "part_0_7")
        ```
    """

    call: int
    """Number of the model message with the call, counted from 1: its request had to contain the string."""
    kind: NeedKind
    """A name (`ident`) or a whole line (`line`)."""
    text: str
    """The string."""
    far: bool
    """Whether the source is far back."""
    back: int
    """How many results back the source is; 1 is the newest result."""
    source: int
    """Index of the source among the tool results of the conversation."""
    place: int
    """Index of the source among the facts of the conversation."""


def find_needs(conversation: ConversationSource, *, common: Set[str] = frozenset()) -> list[Need]:
    """Return all needs of a conversation in the order of the calls.

    Args:
        conversation: A transcript, events, facts, or messages of a provider.
        common: Names that are no needs, as `common_names` returns them.

    Examples:
        ```python
        import foveal
        from foveal import replay

        look = foveal.events.Call(id="c1", name="look", arguments="{}")
        open_it = foveal.events.Call(id="c2", name="open", arguments='{"part": "part_0_7"}')
        conversation: list[foveal.events.AnyFact] = [
            foveal.UserSaid(content="Find the part."),
            foveal.ModelSaid(content=(look,)),
            foveal.ToolReturned(call_id="c1", content="It is part_0_7."),
            foveal.ModelSaid(content=(open_it,)),
        ]
        (need,) = replay.find_needs(conversation)
        assert need.kind == "ident"
        ```
    """
    prompts, results, places = _TextIndex(), _TextIndex(), []
    found: list[Need] = []
    call = 0
    for place, fact in enumerate(to_facts(conversation)):
        match fact:
            case Instructed() | UserSaid():
                prompts.add(text_of(fact.content))
            case ToolReturned():
                results.add(text_of(fact.content))
                places.append(place)
            case ModelSaid():
                call += 1
                for kind, text in _candidates(fact, common):
                    source = results.newest(text)
                    if source >= 0 and prompts.newest(text) < 0:
                        back = len(places) - source
                        found.append(
                            Need(call, kind, text, back >= FAR_RESULTS_BACK, back, source, places[source])
                        )
            case _:
                pass
    return found


def common_names(conversations: Iterable[ConversationSource]) -> frozenset[str]:
    """Return the names that many of these conversations have in common.

    Only names in the arguments of calls can be needs, so no others are counted.

    Args:
        conversations: The conversations.

    Examples:
        ```python
        from foveal.replay import common_names

        assert common_names([]) == frozenset()
        ```
    """
    tasks: dict[str, list[ConversationSource]] = {}
    for number, conversation in enumerate(conversations):
        title = conversation.title if isinstance(conversation, Transcript) else ""
        tasks.setdefault(title or f"\0{number}", []).append(conversation)
    called = {task: set().union(*map(_called_names, same)) for task, same in tasks.items()}
    all_called = set().union(*called.values())
    counts: collections.Counter[str] = collections.Counter()
    for task, same in tasks.items():
        if called[task]:
            counts.update(all_called & set().union(*map(_returned_names, same)))
    max_tasks = max(MAX_UNCOMMON_TASKS, MAX_UNCOMMON_SHARE * sum(map(bool, called.values())))
    return frozenset(name for name, count in counts.items() if count > max_tasks)


def to_facts(conversation: ConversationSource) -> list[AnyFact]:
    """Return the facts of a conversation in any form.

    Args:
        conversation: A transcript, events, facts, or messages of a provider.

    Examples:
        ```python
        from foveal.replay import to_facts

        (fact,) = to_facts([{"role": "user", "content": "Hello."}])
        ```
    """
    if isinstance(conversation, Transcript):
        return [fact for fact, _ in conversation.facts]
    if conversation and isinstance(conversation[0], Mapping):
        dialect = wire_for(detect_dialect(conversation))
        return [fact for chunk in dialect.read(conversation) for fact in chunk.facts]
    return [item.fact if isinstance(item, Event) else item for item in conversation]  # type: ignore[misc]


def find_names(text: str) -> Iterator[str]:
    """Yield the identifiers, paths and numbers of a text, each once, in order."""
    for found in dict.fromkeys(_NAME_PATTERN.findall(text)):
        name = _strip_punctuation(found)
        if len(name) >= 5 and _DISTINCTIVE.search(name):
            yield name


def _strip_punctuation(name: str) -> str:
    return name.lstrip(_LEADING_PUNCTUATION).rstrip(_TRAILING_PUNCTUATION)


def contains_word(text: str, string: str) -> bool:
    """Return whether a text contains a string, not only inside longer words.

    Args:
        text: The text.
        string: The string, which is not empty.

    Examples:
        ```python
        from foveal.replay import contains_word

        assert not contains_word("drawer 70", "drawer 7")
        ```
    """
    at = text.find(string)
    while at >= 0:
        end = at + len(string)
        if not (
            _is_inside_word(text[at - 1 : at], string[0]) or _is_inside_word(string[-1], text[end : end + 1])
        ):
            return True
        at = text.find(string, at + 1)
    return False


def _is_inside_word(left: str, right: str) -> bool:
    return bool(left and right) and _is_word_character(left) and _is_word_character(right)


def _is_word_character(character: str) -> bool:
    return character.isalnum() or character == "_"


# ── Candidates ────────────────────────────────────────────────────────────────────────────────────


def _candidates(fact: ModelSaid, common: Set[str]) -> Iterator[tuple[NeedKind, str]]:
    """Yield the strings in the calls of a message that are needs if an earlier result contains them."""
    texts = [text for _, call in calls_of(fact.content) for text in argument_texts(call)]
    yield from (found for found in find_quotables(texts) if found[0] == "line" or found[1] not in common)


def find_quotables(texts: Sequence[str]) -> Iterator[tuple[NeedKind, str]]:
    """Yield the names and the whole lines of texts that can be recognised as quotes, each once."""
    for name in dict.fromkeys(name for text in texts for name in find_names(text)):
        yield "ident", name
    lines = (line.strip() for text in texts for line in text.splitlines())
    for line in dict.fromkeys(lines):
        if len(line) >= MIN_LINE_CHARS and _WORD.search(line):
            yield "line", line


def _called_names(conversation: ConversationSource) -> set[str]:
    """Return the names in the arguments of all calls."""
    calls = (
        call
        for fact in to_facts(conversation)
        if isinstance(fact, ModelSaid)
        for _, call in calls_of(fact.content)
    )
    return {name for call in calls for text in argument_texts(call) for name in find_names(text)}


def _returned_names(conversation: ConversationSource) -> set[str]:
    """Return the names in all results; of a path with a line number also the path and each folder in it.

    Plain words are among them, because the caller only asks for names that it knows.
    """
    found: set[str] = set()
    for fact in to_facts(conversation):
        if isinstance(fact, ToolReturned):
            found.update(_NAME_PATTERN.findall(text_of(fact.content)))
    names = {_strip_punctuation(name) for name in found}
    paths = (name for name in names if "/" in name or ":" in name)
    return names.union(*map(_path_parts, paths))


def _path_parts(name: str) -> Iterator[str]:
    for part in name.split(":"):
        yield part
        at = part.find("/", 1)
        while at > 0:
            yield part[:at]
            yield part[at + 1 :]
            at = part.find("/", at + 1)


class _TextIndex:
    """Growing list of texts that finds the newest text with a string."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._texts_with: dict[str, list[int]] = {}
        """For each word, the indices of the texts that have it, oldest first."""
        self._searched: dict[str, tuple[int, int]] = {}
        """For each string, the number of texts when it was last searched, and the answer."""

    def add(self, text: str) -> None:
        for word in set(_WORD.findall(text)):
            self._texts_with.setdefault(word, []).append(len(self._texts))
        self._texts.append(text)

    def newest(self, string: str) -> int:
        """Return the index of the newest text with the string, -1 if there is none."""
        seen, answer = self._searched.get(string, (0, -1))
        if seen < len(self._texts):
            answer = self._newest(string, seen, answer)
            self._searched[string] = (len(self._texts), answer)
        return answer

    def _newest(self, string: str, seen: int, known: int) -> int:
        """Search the texts since the last search, and of those only the ones with the string's longest word."""
        candidates = self._texts_with.get(max(_WORD.findall(string), key=len, default=""), ())
        for place in reversed(candidates):
            if place < seen:
                break
            if contains_word(self._texts[place], string):
                return place
        return known


# ── Scoring requests ──────────────────────────────────────────────────────────────────────────────


class RecallScorer:
    """Finds the needs and user messages of a conversation in its requests."""

    def __init__(
        self, conversation: RecordedConversation, needs: Sequence[Need], reader: RequestReader
    ) -> None:
        self._needs: dict[int, list[Need]] = {}
        for need in needs:
            self._needs.setdefault(need.call, []).append(need)
        sources = {need.source for need in needs}
        self._unreduced: dict[int, set[MessageText]] = {
            number: set(reader.messages_of(fact))
            for number, fact in enumerate(conversation.results)
            if number in sources
        }
        """For each source of a need, its messages when it is not reduced."""
        self._user_messages = [
            (place, text_of(fact.content))
            for place, fact in enumerate(conversation.facts)
            if isinstance(fact, UserSaid)
        ]

    def needs_of(self, call: int) -> Sequence[Need]:
        """Return the needs of a call, counted from 1."""
        return self._needs.get(call, ())

    def lost_needs(self, call: int, request: RequestText) -> Iterator[Need]:
        """Yield the needs of a call that its request does not contain."""
        needs = self._needs.get(call, ())
        shown = set(request.pieces) if needs else set()
        for need in needs:
            # An unreduced source contains its needs, so its text need not be searched.
            if self._unreduced[need.source].isdisjoint(shown) and not request_contains(request, need.text):
                yield need

    def has_task(self, request: RequestText, *, facts: int) -> bool:
        """Return whether a request contains the first user message verbatim, if the first `facts` facts have
        one."""
        return _contains_text(request, next((text for at, text in self._user_messages if at < facts), ""))

    def has_latest(self, request: RequestText, *, facts: int) -> bool:
        """Return whether a request contains the newest user message of the first `facts` facts verbatim."""
        return _contains_text(
            request, next((text for place, text in reversed(self._user_messages) if place < facts), "")
        )


def request_contains(request: RequestText, text: str) -> bool:
    """Return whether a request contains a string, not only inside longer words."""
    return any(contains_word(piece.text, text) for piece in reversed(request.pieces))


def _contains_text(request: RequestText, text: str) -> bool:
    return not text or any(text in piece.text for piece in request.pieces)
