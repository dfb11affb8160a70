"""Finds claims of a draft about rules and approvals that the user did not state.

1. An *approval* ("the user agreed to delete the backups", "you may push to main") needs a message of the user that
   shares its words, or a "yes" of the user to a message of the model that does.
2. A *rule of the user* ("the user insists on …", "the user forbids …") needs a message that shares its words.
3. A sentence must not *turn a rule round*: with the words of a rule of the user it must also have its polarity, so
   "push to main" is refused after "never push to main", unless the user has said both.

Words are compared by their first letters, polarity by words such as "not" and "never", in several languages. This
finds plain inversions and inventions. It does not understand sentences: a paraphrase in other words, a condition
that was left out and a changed number pass, and an honest paraphrase may be refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

from foveal.core.compaction import claim_words
from foveal.core.compaction.ledger.standing_rules import find_rules
from foveal.core.log.events import Event, ModelSaid, UserSaid, text_of

MAX_CLAIM_SOURCE_CHARS: Final = 4_000
"""Characters of one message that can support a claim, at its two ends."""
MAX_CLAIM_SOURCES_CHARS: Final = 200_000
"""Characters of all messages together that can support a claim, newest first."""
MIN_SHARED_WORDS: Final = 0.5
"""Share of a claim's words that the supporting message has."""
MIN_RULE_WORDS_SHARED: Final = 0.75
"""Share of a rule's words from which on a sentence speaks of that rule."""
MAX_WORDS_BETWEEN: Final = 2
"""Words that a sentence may have in between, more than the rule."""
MAX_AFFIRMATION_CHARS: Final = 40
"""Characters at the start of a message in which a "yes" is looked for."""

_CLAIMS: Final = (claim_words.APPROVAL, claim_words.RULE, claim_words.PERMISSION)
_WORD: Final = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d{2,}")
_HIRAGANA: Final = re.compile(r"[\u3040-\u309f]+")
"""Endings and particles of Japanese, without content of their own."""
_UNSPACED: Final = re.compile(r"[\u30a0-\u30ff\u3400-\u9fff]+")
"""Katakana and Han, whose words are compared by pairs of characters."""
_SENTENCE: Final = re.compile(r".+?(?:[.!?;]+(?=\s)\s*|[。！？；]+|$)")
_CLAUSE_END: Final = re.compile(r"[,;:.!?。，！？；：、\n]+\s*")


class _Statement(NamedTuple):
    """A sentence or a clause in comparable form."""

    words: tuple[str, ...]
    """The beginnings of its words, in their order; "" for a word without content."""
    content: frozenset[str]
    """The same without order, those with content."""
    first: str
    """The first word with content, whole: the verb of an order."""
    is_negated: bool


class UserStatements:
    """What the user said in a conversation, for comparison with what a draft claims."""

    def __init__(self, events: Sequence[Event], *, also: Iterable[str] = ()) -> None:
        self.events = events
        self.also = tuple(also)
        """Other messages of the user, and instructions."""

    @cached_property
    def texts(self) -> list[str]:
        """The other texts, then the messages of the user, newest first; long ones reduced to their ends."""
        said = (
            text_of(event.fact.content) for event in reversed(self.events) if isinstance(event.fact, UserSaid)
        )
        return list(_bounded(chain(self.also, said)))

    @cached_property
    def _messages(self) -> list[frozenset[str]]:
        """The words of each message of the user, and of those of the model that the user agreed to."""
        return [_statement(text).content for text in (*self.texts, *_bounded(self._affirmed_texts()))]

    def _affirmed_texts(self) -> Iterator[str]:
        """Yield the messages of the model that the user answered with a "yes"."""
        asked = ""
        for event in self.events:
            if isinstance(event.fact, ModelSaid):
                asked = text_of(event.fact.content) or asked
            elif isinstance(event.fact, UserSaid) and _affirms(text_of(event.fact.content)):
                yield asked

    @cached_property
    def _clauses(self) -> list[_Statement]:
        return list(_clauses(self.texts))

    @cached_property
    def _rules(self) -> list[_Statement]:
        """The clauses of sentences that may state a rule."""
        return list(_clauses(text[start:end] for text in self.texts for start, end in find_rules(text)))

    def unsupported_claims(self, text: str) -> Iterator[str]:
        """Yield the sentences of a draft that claim what the user did not say."""
        for line in text.split("\n"):
            if not line.lstrip().startswith("#"):
                yield from (sentence for sentence in split_sentences(line) if not self._supports(sentence))

    def _supports(self, sentence: str) -> bool:
        lowered, statement = _lower(sentence), _statement(sentence)
        if self._turns_rule_round(statement, lowered):
            return False
        by_user = bool(claim_words.THE_USER.search(lowered))
        is_permission = (by_user and claim_words.APPROVAL.search(lowered)) or claim_words.PERMISSION.search(
            lowered
        )
        is_rule = by_user and claim_words.RULE.search(lowered)
        is_claim = is_rule or (is_permission and not statement.is_negated)
        return not is_claim or self._has_words(lowered)

    def _has_words(self, claim: str) -> bool:
        """Return whether one message has half of a claim's words, beside the words of claiming."""
        for pattern in (claim_words.THE_USER, *_CLAIMS):
            claim = pattern.sub(" ", claim)
        wanted = _statement(claim).content
        if not wanted:  # "the user agreed"
            return any(map(_affirms, self.texts))
        return any(len(wanted & words) >= MIN_SHARED_WORDS * len(wanted) for words in self._messages)

    def _turns_rule_round(self, statement: _Statement, lowered: str) -> bool:
        """Return whether a sentence orders or permits what the user forbade, or forbids what the user ordered."""
        rules = [rule for rule in self._rules if _speaks_of(statement, rule)]
        if not any(rule.is_negated != statement.is_negated for rule in rules):
            return False
        is_order = any(rule.first == statement.first for rule in rules)
        if not (is_order or any(pattern.search(lowered) for pattern in (claim_words.OBLIGATION, *_CLAIMS))):
            return False
        said = (clause for clause in self._clauses if _speaks_of(statement, clause))
        return not any(clause.is_negated == statement.is_negated for clause in said)


def split_sentences(line: str) -> list[str]:
    """Return the sentences of a line; joined they are the line again."""
    return _SENTENCE.findall(line)


def remove_claims(text: str, claims: Iterable[str]) -> str:
    """Return a text without these sentences, and without the lines of which nothing else is left."""
    removed = frozenset(claims)
    lines = []
    for line in text.split("\n"):
        kept = [sentence for sentence in split_sentences(line) if sentence not in removed]
        rest = "".join(kept).rstrip()
        if len(kept) == len(split_sentences(line)):
            lines.append(line)
        elif len(rest.strip(" -*>")) > 2:
            lines.append(rest)
    return "\n".join(lines).strip()


def _bounded(texts: Iterable[str]) -> Iterator[str]:
    half, room = MAX_CLAIM_SOURCE_CHARS // 2, MAX_CLAIM_SOURCES_CHARS
    for text in texts:
        room -= len(short := text if len(text) <= 2 * half else f"{text[:half]}\n{text[-half:]}")
        if room < 0:
            return
        yield short


def _clauses(texts: Iterable[str]) -> Iterator[_Statement]:
    """Yield the clauses of texts that have two words of content or more."""
    for clause in (clause for text in texts for clause in _CLAUSE_END.split(text)):
        statement = _statement(clause)
        if len(statement.content) > 1:
            yield statement


def _affirms(text: str) -> bool:
    return claim_words.AFFIRMATION.match(_lower(text[:MAX_AFFIRMATION_CHARS])) is not None


def _lower(text: str) -> str:
    return text.lower().replace("’", "'")


def _statement(text: str) -> _Statement:
    lowered, unspaced, is_negated = _lower(text), [], False
    if not lowered.isascii():
        is_negated = claim_words.UNSPACED_NEGATION.search(lowered) is not None
        for pattern in (claim_words.UNSPACED_NEGATION, claim_words.UNSPACED_CLAIM, _HIRAGANA):
            lowered = pattern.sub(" ", lowered)
        unspaced = _UNSPACED.findall(lowered)
        lowered = _UNSPACED.sub(" ", lowered)
    spaced = _WORD.findall(lowered)
    words = [_word_beginning(word) for word in spaced]
    words += [run[place : place + 2] for run in unspaced for place in range(len(run) - 1)]
    firsts = chain((word for word in spaced if _word_beginning(word)), unspaced)
    content = frozenset(filter(None, words))
    return _Statement(tuple(words), content, next(firsts, ""), is_negated or any(map(_negates, spaced)))


def _negates(word: str) -> bool:
    beginnings = claim_words.NEGATION_BEGINNINGS
    return word in claim_words.NEGATIONS or word.endswith("n't") or word.startswith(beginnings)


def _word_beginning(word: str) -> str:
    """Return what the forms of a word share: "dele" of "delete" and "deletion"; "" for a word without content."""
    if word in claim_words.NO_CONTENT or (len(word) < 3 and not word.isdigit()) or _negates(word):
        return ""
    if "가" <= word[0] <= "힣":
        return word[:2]
    return word[:3] if "\u0400" <= word[0] <= "\u052f" else word[:4]


def _speaks_of(statement: _Statement, rule: _Statement) -> bool:
    """Return whether a sentence has most words of a rule, no further apart than they are there."""
    shared = statement.content & rule.content
    if len(shared) < max(2, MIN_RULE_WORDS_SHARED * len(rule.content)):
        return False
    return _span(statement, shared) <= _span(rule, shared) + MAX_WORDS_BETWEEN


def _span(statement: _Statement, shared: frozenset[str]) -> int:
    places = [statement.words.index(word) for word in shared]
    return max(places) - min(places)
