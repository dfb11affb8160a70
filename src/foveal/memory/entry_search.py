"""Finds entries: by words, and those that a later statement replaces, denies or asks to forget.

1. A statement denies an earlier one that has the same words without "not".
2. To forget an entry, the user says the same, with or without "not" as the entry does, or names what it is about.
   Whose it is counts: "my name" is not "my sister's name".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from foveal.core.compaction.standing.replaced_statements import KnownStatements, Statement
from foveal.core.compaction.standing.statement_reader import stem
from foveal.core.compaction.standing.statement_words import HAS_UNSPACED, words_of
from foveal.memory.facts import EntryKind
from foveal.memory.fold import MemoryEntry, MemoryState
from foveal.memory.single_values import SingleValue, are_apart, single_value, topic_subject
from foveal.memory.spoken import SpokenRequest

if TYPE_CHECKING:
    from foveal.stores.sqlite.full_text import FullTextIndex

MAX_COMPARED_ENTRIES: Final = 1_000
"""Entries, the newest, among which a later one replaces earlier ones."""
MAX_NAMED_ENTRIES: Final = 5
"""Entries that a question which one is meant names."""
_LIKES: Final = re.compile(
    r"\b(?:like|love|hate|dislike|mag|aime|gusta|gosto|нравится|люблю)\b|喜欢|喜歡|好き", re.IGNORECASE
)
"""Preferences that stand beside others: who loves French may love German too."""
_ME: Final = "1"
"""What stands for all words of the speaker: "I", "my"."""
_OWN_WORDS: Final = words_of(
    """
    i me my mine ich mir mich mein meine meinen meinem meiner meines je j me moi mon ma mes yo mi mis eu meu minha
    meus minhas io mio mia я мне меня мой моя моё мое мои моего моей моим моём
    """
)
_ARTICLES: Final = words_of(
    "the a an der die das den dem ein eine le la les l un une el los las o os as um uma il"
)
_EMPTY_WORDS: Final = _ARTICLES | words_of(
    """
    am is are be was been do does did that any more anymore longer now really very still s m re ve d ll bin ist sind
    mehr dass suis est ne n de ya é больше уже
    """
)
_CONNECTING: Final = words_of(
    "in to of for at on with by from and or it in auf mit von für zu à en con em com в на с у"
)
_NEGATING: Final = words_of(
    """
    not no never nicht nie niemals kein keine keinen keinem keiner pas jamais plus nunca jamás tampoco não nao non
    не нет никогда
    """
)
_NEGATING_UNSPACED: Final = re.compile("不(?:再)?|没有?|(?<=ま)せん")
_WORD: Final = re.compile(r"[^\W_]+")
_JOINED: Final = re.compile(
    rf";|\b(?:and|und|et|y|e|и)\s+(?:(?:we|our|wir|unser\w*|nous|notre|the)\b|(?:{'|'.join(sorted(_OWN_WORDS))})\b)",
    re.IGNORECASE,
)
"""What shows that an entry says two things."""


class _Plain(NamedTuple):
    """What a statement says, whatever its order and form."""

    words: frozenset[str]
    is_negated: bool


def _words(text: str) -> list[str]:
    text = (
        text.casefold().replace("can't", "can not").replace("won't", "will not").replace("cannot", "can not")
    )
    return [_ME if word in _OWN_WORDS else word for word in _WORD.findall(text.replace("n't", " not"))]


def _plain(text: str) -> _Plain:
    if HAS_UNSPACED.search(text):
        said, count = _NEGATING_UNSPACED.subn("", "".join(_WORD.findall(text.casefold())))
        return _Plain(frozenset([said.removesuffix("です").removesuffix("だ")]), count > 0)
    words = _words(text)
    kept = (word for word in words if word not in _NEGATING and word not in _EMPTY_WORDS)
    return _Plain(frozenset(map(stem, kept)), not _NEGATING.isdisjoint(words))


def _is_about(text: str, topic: str) -> bool:
    """Return whether an entry says one thing, and says it about a topic."""
    if _JOINED.search(text):
        return False
    if HAS_UNSPACED.search(topic):
        return topic in text
    said, named = _words(text), _words(topic)
    if not named or not ({*named} - _EMPTY_WORDS - {_ME}):
        return False
    if named[0] in _ARTICLES:  # "forget the tests" calls off an order, unless the entry describes them
        return said[: len(named)] == named
    if named[0] == _ME:
        ends = (at + len(named) for at in range(len(said)) if said[at : at + len(named)] == named)
        return any(said[end : end + 1] != ["s"] for end in ends)
    return {stem(word) for word in named if word not in _EMPTY_WORDS} <= {*map(stem, said)}


class ComparedEntries:
    """The entries that count, as statements that can be replaced. It follows the state of the memory."""

    def __init__(self) -> None:
        self._known = KnownStatements()
        self._texts: dict[int, str] = {}
        """The texts of the entries that are among these statements."""
        self._by_subject: defaultdict[str, set[int]] = defaultdict(set)
        """The entries that give one value to a subject."""
        self._by_words: defaultdict[_Plain, set[int]] = defaultdict(set)
        """Entries by what they say."""
        self._followed = ("", -1)
        """The beginning and the version of the state that was taken over last."""

    def replaced_by(self, state: MemoryState, seq: int, text: str, kind: EntryKind) -> list[int]:
        """Return the entries that a new statement replaces."""
        self._follow(state)
        alike = self._known.replaced_by(_statement(seq, text, kind))
        found = {old.seq for old in alike if not are_apart(old.text, text)}
        plain = _plain(text)
        found |= self._by_words.get(_Plain(plain.words, not plain.is_negated), set()) - {seq}
        if new := single_value(text):
            given = self._by_subject.get(new.subject, set()) - {seq}
            found |= {old for old in given if not _shortens(single_value(self._texts[old]), new)}
        return sorted(found)

    def meant(self, state: MemoryState, request: SpokenRequest) -> list[int]:
        """Return the entries that the user may mean with a request to forget."""
        counting = state.counting()
        if named := [entry.seq for entry in counting if entry.id == request.text.casefold()]:
            return named
        same = _WORD.findall(request.text.casefold())
        if found := [entry.seq for entry in counting if _WORD.findall(entry.text.casefold()) == same]:
            return found
        self._follow(state)
        if not request.names_topic:
            return self._saying(_plain(request.text))
        if subject := topic_subject(request.text):
            wider = f"{subject} country"
            return sorted(self._by_subject.get(subject, set()) | self._by_subject.get(wider, set()))
        return [entry.seq for entry in counting if _is_about(entry.text, request.text)]

    def denied(self, state: MemoryState, words: str) -> list[int]:
        """Return the entries that say the opposite of a sentence."""
        self._follow(state)
        plain = _plain(words)
        return self._saying(_Plain(plain.words, not plain.is_negated))

    def _saying(self, wanted: _Plain) -> list[int]:
        words = wanted.words - {_ME}
        return sorted(
            seq
            for said, seqs in self._by_words.items()
            if said.is_negated == wanted.is_negated and said.words - {_ME} == words
            for seq in seqs
        )

    def near(self, state: MemoryState, words: str) -> list[int]:
        """Return some entries that share words with a text."""
        self._follow(state)
        wanted = {*map(stem, {*_words(words)} - _EMPTY_WORDS - _NEGATING - _CONNECTING)} - {_ME}
        found = [seq for said, seqs in self._by_words.items() if said.words & wanted for seq in seqs]
        return sorted(found)[-MAX_NAMED_ENTRIES:]

    def _follow(self, state: MemoryState) -> None:
        """Take over what has changed in the entries since the last call."""
        if self._followed == (state.begin, state.version):
            return
        self._followed = (state.begin, state.version)
        counting = {entry.seq: entry for entry in state.counting()[-MAX_COMPARED_ENTRIES:]}
        for seq, known in [*self._texts.items()]:
            if seq not in counting or counting[seq].text != known:
                self._known.remove((seq, 0))
                del self._texts[seq]
                self._by_words[_plain(known)].discard(seq)
                if value := single_value(known):
                    self._by_subject[value.subject].discard(seq)
        for seq, entry in counting.items():
            if seq not in self._texts:
                self._known.add(_statement(seq, entry.text, entry.kind))
                self._texts[seq] = entry.text
                self._by_words[_plain(entry.text)].add(seq)
                if value := single_value(entry.text):
                    self._by_subject[value.subject].add(seq)


def _shortens(old: SingleValue | None, new: SingleValue) -> bool:
    """Return whether a value only leaves out words of the earlier one: "Ada" after "Ada Lovelace"."""
    return old is not None and {*new.value.casefold().split()} < {*old.value.casefold().split()}


def _statement(seq: int, text: str, kind: EntryKind) -> Statement:
    is_rule = kind == "rule" or (kind == "preference" and _LIKES.search(text) is None)
    return Statement(seq, 0, text, "rule" if is_rule else "fact")


class EntryIndex:
    """A full-text index of entries. It only grows: a changed text is another row, and the old one is not found."""

    def __init__(self) -> None:
        self._index: FullTextIndex | None = None
        self._rows: list[tuple[str, str]] = []
        """The id and the text of each row."""
        self._newest: dict[str, str] = {}
        """The newest text of each entry in the index."""

    def search(self, words: str, entries: Sequence[MemoryEntry], *, limit: int) -> list[MemoryEntry]:
        """Return those of the entries that have words of a query, best first."""
        from foveal.stores.sqlite.full_text import index_in_memory  # loads apsw, which most never need

        index = self._index = self._index or index_in_memory()
        new = [(entry.id, entry.text) for entry in entries if self._newest.get(entry.id) != entry.text]
        index.add(0, [(len(self._rows) + place, text) for place, (_, text) in enumerate(new)])
        self._rows += new
        self._newest.update(new)
        known = {(entry.id, entry.text): entry for entry in entries}
        # Rows that do not count any more take places among the hits.
        hits = index.search(0, words, limit + len(self._rows) - len(known)) if limit > 0 else []
        found = (known.get(self._rows[hit.seq]) for hit in hits)
        return [entry for entry in found if entry is not None][:limit]
