"""Sentences and clauses of a text in a form that can be compared.

1. Words are compared by their first letters, so that "delete", "deleting" and "deletion" are equal. Words of
   languages that write without blanks are compared by pairs of characters.
2. A statement is negated when it has a word such as "not", "never" or "forbid", in several languages.
3. A prohibition is read up to its condition: "never run it" of "never run it without me". Of "never push or delete
   it" each part is a prohibition too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from foveal.core.compaction import claim_words
from foveal.core.compaction.standing.standing_rules import find_rules

MAX_CACHED_TEXTS: Final = 512
"""Texts whose rules are cached: each compaction reads most messages of the one before again."""
MIN_RULE_WORDS_SHARED: Final = 0.75
"""Share of a rule's words, or of a sentence's, from which on the sentence speaks of the rule."""
USE_BEGINNING: Final = "use"
"""The beginning of "use" and "using", a verb that says little: "the user allowed sudo" has it too."""
MAX_WORDS_BETWEEN: Final = 2
"""Words that a sentence may have in between, more than the rule."""

_WORD: Final = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d{2,}")
_HIRAGANA: Final = re.compile(r"[\u3040-\u309f]+")
"""Endings and particles of Japanese, without content of their own."""
_UNSPACED: Final = re.compile(r"[\u30a0-\u30ff\u3400-\u9fff]+")
"""Katakana and Han, whose words are compared by pairs of characters."""
_SENTENCE: Final = re.compile(r".+?(?:[.!?;]+(?=\s)\s*|[。！？；]+|$)")
_CLAUSE_END: Final = re.compile(r"[,;:.!?]+(?:\s+|$)|[。，！？；：、\n]+\s*")


class ComparableClause(NamedTuple):
    """A sentence or a clause in comparable form."""

    words: tuple[str, ...]
    """The beginnings of its words, in their order; "" for a word without content."""
    content: frozenset[str]
    """The same without order, those with content."""
    spaced: tuple[str, ...]
    """Its words in full, of languages that write with blanks."""
    first: str
    """The first word with content, whole: the verb of an order."""
    is_negated: bool
    forbids: bool = False
    """Whether it is a prohibition, and not a description such as "it doesn't work"."""
    is_conditional: bool = False
    """Whether a condition follows, such as "without me"."""


def split_sentences(line: str) -> list[str]:
    """Return the sentences of a line; joined they are the line again."""
    return _SENTENCE.findall(line)


def lower(text: str) -> str:
    """Return a text as the patterns of `claim_words` expect it."""
    return text.lower().replace("’", "'")


def read_statement(text: str) -> ComparableClause:
    lowered, unspaced, is_negated = lower(text), [], False
    whole = lowered
    if not lowered.isascii():
        is_negated = claim_words.UNSPACED_NEGATION.search(lowered) is not None
        for pattern in (claim_words.UNSPACED_NEGATION, claim_words.UNSPACED_CLAIM, _HIRAGANA):
            lowered = pattern.sub(" ", lowered)
        unspaced, whole = _UNSPACED.findall(lowered), lowered
        lowered = _UNSPACED.sub(" ", lowered)
    spaced = tuple(_WORD.findall(lowered))
    words = [word_beginning(word) for word in spaced]
    firsts = (*islice(filter(word_beginning, spaced), 1), *unspaced[:1])
    first = min(firsts, key=whole.find, default="")
    words += [run[place : place + 2] for run in unspaced for place in range(len(run) - 1)]
    content = frozenset(filter(None, words))
    return ComparableClause(tuple(words), content, spaced, first, is_negated or any(map(_negates, spaced)))


def split_clauses(text: str) -> Iterator[str]:
    """Yield the clauses of a text, in lower case."""
    return filter(None, _CLAUSE_END.split(lower(text)))


def agrees(clause: str, statement: ComparableClause) -> bool:
    """Return whether a clause of the user, in lower case, forbids nothing: "I do not mind" permits."""
    return not statement.is_negated or claim_words.NOT_FORBIDDING.search(clause) is not None


@lru_cache(maxsize=MAX_CACHED_TEXTS)
def rules_of(text: str) -> tuple[ComparableClause, ...]:
    """Return the clauses of the sentences of a text that may state a rule."""
    sentences = (text[start:end] for start, end in find_rules(text))
    return tuple(rule for sentence in sentences for rule in _rules_of_sentence(sentence))


def _rules_of_sentence(sentence: str) -> Iterator[ComparableClause]:
    for clause in split_clauses(sentence):
        statement = read_statement(clause)
        if not statement.is_negated:
            if len(statement.content) > 1:
                yield statement
        elif not claim_words.NOT_FORBIDDING.search(clause):
            yield from _prohibitions(clause)


def _prohibitions(clause: str) -> Iterator[ComparableClause]:
    """Yield what a clause with a negation forbids: all of it up to its condition, then each alternative."""
    found = claim_words.CONDITION.search(clause)
    forbidden = clause[: found.start()] if found else clause
    if not read_statement(forbidden).is_negated:  # the condition comes first
        forbidden = clause
    forbids, is_conditional = not claim_words.DESCRIPTION.search(clause), forbidden != clause

    def read(part: str) -> ComparableClause:
        # "not allowed to push" forbids to push, not to allow.
        return read_statement(claim_words.ALLOWED.sub(" ", part))._replace(
            is_negated=True, forbids=forbids, is_conditional=is_conditional
        )

    if (whole := read(forbidden)).content:
        yield whole
    alternatives = claim_words.ALTERNATIVE.split(forbidden)
    for part in map(read, alternatives if len(alternatives) > 1 else ()):
        if len(part.content) > 1:
            yield part


@lru_cache(maxsize=8_192)
def word_beginning(word: str) -> str:
    """Return what the forms of a word share: "dele" of "delete" and "deletion"; "" for a word without content."""
    if word in claim_words.NO_CONTENT or (len(word) < 3 and not word.isdigit()) or _negates(word):
        return ""
    if "가" <= word[0] <= "힣" or _UNSPACED.match(word):
        return word[:2]
    if word in ("used", "uses", "using"):
        return USE_BEGINNING
    return word[:3] if "\u0400" <= word[0] <= "\u052f" else word[:4]


def speaks_of(statement: ComparableClause, rule: ComparableClause) -> bool:
    """Return whether a sentence has most words of a rule, or a rule most of its, no further apart than there."""
    shared = statement.content & rule.content
    if len(shared) < 2:
        return False
    is_most_of_rule = len(shared) >= MIN_RULE_WORDS_SHARED * len(rule.content)
    has_verb = word_beginning(rule.first) in shared
    if not is_most_of_rule and not (
        has_verb and len(shared) >= MIN_RULE_WORDS_SHARED * len(statement.content)
    ):
        return False
    return _span(statement, shared) <= _span(rule, shared) + MAX_WORDS_BETWEEN


def orders_like(statement: ComparableClause, rule: ComparableClause) -> bool:
    """Return whether a sentence begins with the verb of a rule, as an order and not as a report."""
    verb = statement.first
    if verb == rule.first:
        return True
    is_form = word_beginning(verb) == word_beginning(rule.first) != ""
    return is_form and not claim_words.NOT_AN_ORDER.search(verb)


def reports(statement: ComparableClause, lowered: str, rule: ComparableClause) -> bool:
    """Return whether a sentence tells of the past, by words that the rule does not have."""
    own = (word for word in statement.spaced if word not in rule.spaced)
    return any(map(claim_words.PAST.search, own)) or (
        not lowered.isascii() and claim_words.UNSPACED_PAST.search(lowered) is not None
    )


@lru_cache(maxsize=8_192)
def _negates(word: str) -> bool:
    beginnings = claim_words.NEGATION_BEGINNINGS
    return word in claim_words.NEGATIONS or word.endswith("n't") or word.startswith(beginnings)


def _span(statement: ComparableClause, shared: frozenset[str]) -> int:
    places = [statement.words.index(word) for word in shared]
    return max(places) - min(places)
