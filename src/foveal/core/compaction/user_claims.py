"""Finds claims of a draft about rules and approvals that the user did not state.

1. An *approval* ("the user agreed to delete the backups", "you may push to main") needs a message of the user that
   has its verb and half of its words, or a "yes" of the user to such a message of the model. Clauses that forbid
   something support no approval.
2. A *rule of the user* ("the user insists on …", "the user forbids …") needs a message that shares its words.
3. A sentence must not *turn a rule round*, unless the user has said both. After "never push to main", a sentence
   with these words is refused in any form but the negated one and a report of the past ("pushed to main in e4"). A
   report that claims permission ("as requested") is refused too.
4. After a prohibition with a condition ("never … without me"), a sentence may name a condition ("only …").

Statements are compared by their words and their polarity (`statements`). This finds plain inversions and
inventions. It does not understand sentences: a paraphrase in other words, a condition that was left out and a
changed number pass, and an honest paraphrase may be refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

from foveal.core.compaction import claim_words
from foveal.core.compaction.statements import (
    USE_BEGINNING,
    ComparableClause,
    agrees,
    lower,
    orders_like,
    read_statement,
    reports,
    rules_of,
    speaks_of,
    split_clauses,
    split_sentences,
    word_beginning,
)
from foveal.core.log.events import Event, ModelSaid, UserSaid, text_of

MAX_CLAIM_SOURCE_CHARS: Final = 4_000
"""Characters of one message that can support a claim, at its two ends."""
MAX_CLAIM_SOURCES_CHARS: Final = 200_000
"""Characters of all messages together that can support a claim, newest first."""
MIN_SHARED_WORDS: Final = 0.5
"""Share of a claim's words that the supporting message has."""
MAX_AFFIRMATION_CHARS: Final = 40
"""Characters at the start of a message in which a "yes" is looked for."""

_CLAIMS: Final = (claim_words.APPROVAL, claim_words.RULE, claim_words.PERMISSION)
_PERMITTING: Final = (claim_words.OBLIGATION, claim_words.ASSENT, *_CLAIMS)
_ACTION: Final = re.compile(r"\b(?:(?:to|zu) |d')(\w+)|\b(\w+ing)\b")
"""The verb of an approval: "agreed to delete the backups", "approved deleting the backups"."""


class _Source(NamedTuple):
    """What a message of the user, or a message of the model that the user affirmed, can support."""

    said: frozenset[str]
    """All its words."""
    agreed: frozenset[str]
    """The words of the clauses that forbid nothing."""
    clauses: tuple[ComparableClause, ...]


class UserStatements:
    """What the user said in a conversation, for comparison with what a draft claims."""

    def __init__(self, events: Sequence[Event], *, also: Iterable[str] = ()) -> None:
        self.events = events
        self.also: tuple[str, ...] = tuple(also)
        """Instructions, which can state rules like the user."""

    @cached_property
    def messages(self) -> list[str]:
        """The messages of the user, newest first."""
        facts = (event.fact for event in reversed(self.events))
        return [text_of(fact.content) for fact in facts if isinstance(fact, UserSaid)]

    @cached_property
    def texts(self) -> list[str]:
        """The instructions, then the messages of the user, newest first; long ones reduced to their ends."""
        return list(_bounded(chain(self.also, self.messages)))

    @cached_property
    def _sources(self) -> list[_Source]:
        return [_source(text) for text in (*self.texts, *_bounded(self._affirmed_texts()))]

    def _affirmed_texts(self) -> Iterator[str]:
        """Yield the messages of the model that the user answered with a "yes"."""
        asked = ""
        for event in self.events:
            if isinstance(event.fact, ModelSaid):
                asked = text_of(event.fact.content) or asked
            elif isinstance(event.fact, UserSaid) and _affirms(text_of(event.fact.content)):
                yield asked

    @cached_property
    def _rules(self) -> dict[str, dict[int, ComparableClause]]:
        """The clauses that may state a rule, each under every word that it has."""
        by_word: dict[str, dict[int, ComparableClause]] = defaultdict(dict)
        rules = dict.fromkeys(rule for text in self.texts for rule in rules_of(text))
        for number, rule in enumerate(rules):
            for word in rule.content:
                by_word[word][number] = rule
        return by_word

    def unsupported_claims(self, text: str) -> Iterator[str]:
        """Yield the sentences of a draft that claim what the user did not say."""
        for line in text.split("\n"):
            if not line.lstrip().startswith("#"):
                yield from (sentence for sentence in split_sentences(line) if not self._supports(sentence))

    def _supports(self, sentence: str) -> bool:
        lowered, statement = lower(sentence), read_statement(sentence)
        if lowered.rstrip(claim_words.CLOSING_MARKS).endswith(("?", "？")):  # a question claims nothing
            return True
        has_no_objection = claim_words.NO_OBJECTION.search(lowered) is not None
        statement = statement._replace(is_negated=statement.is_negated and not has_no_objection)
        if self._turns_rule_round(statement, lowered):
            return False
        by_user = bool(claim_words.THE_USER.search(lowered))
        if by_user and claim_words.RULE.search(lowered) and not self._has_words(lowered):
            return False
        is_approval = (
            by_user and (has_no_objection or claim_words.APPROVAL.search(lowered))
        ) or claim_words.PERMISSION.search(lowered)
        if not is_approval or statement.is_negated:
            return True
        is_ability = not by_user and claim_words.ABILITY.search(lowered)
        return self._has_words(lowered) if is_ability else self._agreed_to(lowered)

    def _has_words(self, claim: str) -> bool:
        """Return whether one message has half of a claim's words, beside the words of claiming."""
        wanted = read_statement(_subject(claim)).content
        return any(len(wanted & source.said) >= MIN_SHARED_WORDS * len(wanted) for source in self._sources)

    def _agreed_to(self, claim: str) -> bool:
        """Return whether one message has the verb of an approval and half of its words, without forbidding it."""
        subject = _subject(claim)
        wanted = read_statement(subject)
        if not wanted.content:  # "the user agreed"
            return any(map(_affirms, self.texts))
        verb = _verb(subject) or word_beginning(wanted.first)
        return any(
            (verb in ("", USE_BEGINNING) or verb in source.agreed)
            and len(wanted.content & source.agreed) >= MIN_SHARED_WORDS * len(wanted.content)
            for source in self._sources
        )

    def _turns_rule_round(self, statement: ComparableClause, lowered: str) -> bool:
        """Return whether a sentence orders or permits what the user forbade, or forbids what the user ordered."""
        near = {number: rule for word in statement.content for number, rule in self._near(word)}
        opposed = [rule for rule in near.values() if rule.is_negated != statement.is_negated]
        return any(_contradicts(statement, lowered, rule) for rule in opposed) and not self._says_the_same(
            statement
        )

    def _near(self, word: str) -> Iterable[tuple[int, ComparableClause]]:
        return self._rules[word].items() if word in self._rules else ()

    def _says_the_same(self, statement: ComparableClause) -> bool:
        """Return whether the user, or a question that the user affirmed, has said it with this polarity."""
        clauses = (clause for source in self._sources for clause in source.clauses)
        same = (clause for clause in clauses if clause.is_negated == statement.is_negated)
        return any(speaks_of(statement, clause) or clause.content == statement.content for clause in same)


def _contradicts(statement: ComparableClause, lowered: str, rule: ComparableClause) -> bool:
    """Return whether a sentence has the words of a rule of the other polarity, and more than reports them."""
    if rule.is_conditional and claim_words.RESTRICTION.search(lowered):
        return False
    if not speaks_of(statement, rule):
        return rule.forbids and _permits_object(statement, lowered, rule)
    if orders_like(statement, rule) or any(pattern.search(lowered) for pattern in _PERMITTING):
        return True
    is_plain = rule.forbids and not rule.is_conditional
    return is_plain and not reports(statement, lowered, rule)


def _permits_object(statement: ComparableClause, lowered: str, rule: ComparableClause) -> bool:
    """Return whether a sentence consists of the object of a prohibition, or permits it: "sudo is allowed"."""
    if statement.content == rule.content:
        return not reports(statement, lowered, rule)
    if not claim_words.ALLOWED.search(lowered):
        return False
    subject = read_statement(_subject(lowered)).content
    is_part = bool(subject) and subject <= rule.content and 2 * len(subject) >= len(rule.content)
    return is_part or (len(rule.content) == 1 and rule.content <= subject)


def _source(text: str) -> _Source:
    clauses = [(clause, read_statement(clause)) for clause in split_clauses(text)]
    said = frozenset[str]().union(*(statement.content for _, statement in clauses))
    agreed = frozenset[str]().union(
        *(statement.content for clause, statement in clauses if agrees(clause, statement))
    )
    return _Source(said, agreed, tuple(statement for _, statement in clauses if statement.content))


def _subject(claim: str) -> str:
    """Return a sentence in lower case without the words of claiming."""
    for pattern in (claim_words.THE_USER, claim_words.ALLOWED, claim_words.NO_OBJECTION, *_CLAIMS):
        claim = pattern.sub(" ", claim)
    return claim


def _verb(subject: str) -> str:
    found = _ACTION.search(subject)
    return word_beginning(found[1] or found[2]) if found else ""


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


def _affirms(text: str) -> bool:
    return claim_words.AFFIRMATION.match(lower(text[:MAX_AFFIRMATION_CHARS])) is not None
