"""Finds what the user said that still holds later: rules, corrections and facts.

1. A rule is what `find_rules` finds.
2. A correction revises, revokes, replaces or answers an earlier statement: "the deadline moved to 2 April",
   "you can push to main now", and "yes" to a question of the agent.
3. A fact is a short statement with a number, a date, a name or a decision, or a lasting wish, also as a polite
   question: "could you make sure that no salary shows up?"

Greetings, thanks, plain questions, single orders ("fix line 12") and pasted text state none of these. A sentence
that is taken for a statement by mistake stays visible for longer, while one that is missed may be lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from foveal.core.compaction.ledger.pasted_text import is_pasted_line, pasted_spans
from foveal.core.compaction.standing import statement_words as tables
from foveal.core.compaction.standing.comparison_words import UNSPACED_CHOICE
from foveal.core.compaction.standing.replaced_statements import Statement, find_replaced
from foveal.core.compaction.standing.standing_rules import find_rules
from foveal.core.compaction.standing.statement_reader import CHOICE_CLASSES
from foveal.core.compaction.standing.statement_words import phrases_by_first_word, words_of

__all__ = ["Sentence", "Statement", "StatementKind", "find_replaced", "find_sentences", "reopens"]

StatementKind: TypeAlias = Literal["rule", "correction", "fact"]

MAX_STATEMENT_CHARS_READ: Final = 8_000
"""Characters of one text that are searched for corrections and facts, at its two ends."""
MAX_STATEMENTS_PER_TEXT: Final = 20
"""Corrections and facts of one text."""
_MAX_STATEMENT_CHARS: Final = 300
"""Characters of the longest sentence that states a fact. Of a longer correction this much is taken."""
_MAX_ANSWER_CHARS: Final = 80
"""Characters of the longest message that is a choice by its length alone, after a question."""
_MAX_ANSWER_START_CHARS: Final = 200
"""Characters of the longest sentence that is an answer by its first word, after a question."""
_MAX_REOPENING_CHARS: Final = 600
"""Characters of a message that are searched for words that reopen a request."""
_MAX_BARE_WORDS: Final = 5
"""Words of the longest statement without a verb that begins with its noun: "Port 8080"."""
_MAX_LABEL_WORDS: Final = 9
"""Words of the longest statement without a verb: "Budget 5,000 EUR"."""

_BREAK: Final = re.compile(r"[.!?]+[\"')\]]*(?=\s)|[。！？；]+|\n")
_ABBREVIATIONS: Final = (
    "e.g.", "i.e.", " vs.", " Dr.", " Mr.", "Mrs.", " Ms.", "z.B.", "z. B.", "bzw.", " ca.", " No.", " Nr.",
    " Mme.", " Sr.", " Sra.", "т.е.", "т. е.", "напр.", " p. ex.", "a.m.", "p.m.",
)  # fmt: skip
_AFTER_ORDINAL: Final = re.compile(r"\s+(\w+)")
_LEAD: Final = re.compile(r"\s*(?:[-*•>#]+\s+|\d{1,2}[.)]\s+|\([a-z\d]\)\s+)?")
_WORD: Final = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_VALUE: Final = re.compile(
    r"\d|(?<=[^\W\d_A-Z][ ,])[A-ZÀ-ÞА-Я][\w-]+|[^\W_][@][^\W_]|[a-z0-9-]\.[a-z]{2,}\b|[a-z]_[a-z]"
)
"""A number, a name inside the sentence, an address, a host or a file."""
_LABEL: Final = re.compile(r"[:=—–]|\s-\s")
_QUESTION_MARKS: Final = ("?", "？", "؟")

_INTERJECTIONS: Final = words_of(
    """
    ok okay so well and but also oh hm hmm ah please hi hey btw um uh yes yeah yep then by way note that
    fyi right alright great thanks cool sorry hello just additionally however because since ach und aber
    übrigens bitte ja gut hallo et mais aussi oui bon alors bonjour y pero también sí bueno hola e mas
    também sim bom olá и но а так да ну кстати привет пожалуйста
    """
)
_PEOPLE: Final = words_of(
    """
    i we i'm i've we're we've i'd we'd ich wir je j nous on yo nosotros eu nós я мы my our mein meine
    unser unsere mon ma mes notre mi mis nuestro nuestra meu minha nosso nossa мой моя наш наша у
    """
)
_STYLE_ORDERS: Final = words_of(
    """
    use answer reply respond write speak talk translate keep indent format benutze verwende nutze antworte
    schreib schreibe sprich übersetze nimm utilise utilisez réponds répondez écris écrivez parle traduis
    traduisez usa usad responde escribe habla traduce utiliza responda escreva fale traduza utilize
    отвечай отвечайте пиши пишите говори используй используйте переводи переведи
    """
)
"""Verbs of orders that last if they name a choice: "answer in French", "use tabs"."""
_SUBJECTS: Final = words_of(tables.SUBJECTS.replace(",", " "))
(
    _REVISES,
    _OPENS,
    _NOT_REVISED,
    _PERMITS,
    _NOW,
    _IS,
    _NOUN,
    _DECIDES,
    _WISHES,
    _NO_FACT,
    _DATE,
    _OPENS_PERMISSION,
) = (1 << place for place in range(12))
_AT_OPENING: Final = _OPENS | _OPENS_PERMISSION


def _marks() -> Mapping[str, tuple[tuple[str, int], ...]]:
    """Return the phrases of all tables with what they mark, by their first word."""
    marks: dict[str, tuple[tuple[str, int], ...]] = {}
    for table, mark in (
        (tables.REVISIONS, _REVISES),
        (tables.REVISION_OPENINGS, _OPENS),
        (tables.NOT_REVISIONS, _NOT_REVISED),
        (tables.PERMISSIONS, _PERMITS),
        (tables.NOW_WORDS, _NOW),
        (tables.BE_WORDS, _IS),
        (tables.KEY_NOUNS, _NOUN),
        (tables.DECISIONS, _DECIDES),
        (tables.POLITE_WISHES, _WISHES),
        (tables.PERMISSION_OPENINGS, _OPENS_PERMISSION),
        (tables.NOT_FACTS, _NO_FACT),
        (",".join(tables.MONTHS_AND_DAYS), _DATE),
    ):
        for first, phrases in phrases_by_first_word(table).items():
            marks[first] = (*marks.get(first, ()), *((phrase, mark) for phrase in phrases))
    return marks


_MARKS: Final = _marks()
_MARKED: Final = frozenset(_MARKS)
_ANSWERS: Final = phrases_by_first_word(tables.ANSWERS)
_NO_ANSWERS: Final = phrases_by_first_word(tables.NO_ANSWERS)
_KEY_NOUNS: Final = phrases_by_first_word(tables.KEY_NOUNS).keys()
_REOPENINGS: Final = phrases_by_first_word(tables.REOPENINGS)


class Sentence(NamedTuple):
    """A sentence of a message that still holds later."""

    start: int
    """Where it begins in the text."""
    end: int
    """Where it ends."""
    kind: StatementKind
    """What it states."""


def find_sentences(text: str, *, follows_question: bool = False) -> tuple[Sentence, ...]:
    """Return the sentences of a user's message that still hold later, in their order, without overlap.

    Args:
        text: The message.
        follows_question: The agent asked a question before. A yes, a no or a short choice is a correction
    then.
    """
    rules: list[Sentence] = []
    for start, end in find_rules(text):
        first = max(start, rules[-1].end) if rules else start
        if first < end:
            rules.append(Sentence(first, end, "rule"))
    found = _beside(text, rules, follows_question=follows_question)
    return tuple(sorted((*rules, *found))) if found else tuple(rules)


def reopens(text: str) -> bool:
    """Return whether a message reopens what was answered before: "that still fails", "no, not yet"."""
    lowered = text[:_MAX_REOPENING_CHARS].lower().replace("’", "'")
    words = _WORD.findall(lowered)
    if _has_phrase(words, _REOPENINGS):
        return True
    return not lowered.isascii() and tables.UNSPACED_REOPENING.search(lowered) is not None


def _beside(text: str, rules: list[Sentence], *, follows_question: bool) -> list[Sentence]:
    """Return the corrections and facts outside the rules."""
    found: list[Sentence] = []
    pasted: list[tuple[int, int]] | None = None
    rest = iter(rules)
    rule = next(rest, None)
    is_first = follows_question
    for start, end in _sentences(text):
        while rule is not None and rule.end <= start:
            rule = next(rest, None)
        if rule is not None and rule.start < end:
            is_first = False
            continue
        kind = "correction" if is_first and _is_answer(text, start, end) else _kind(text[start:end])
        is_first = False
        if kind is None:
            continue
        if pasted is None:
            pasted = pasted_spans(text)
        if is_pasted_line(text, start) or any(low <= start < high for low, high in pasted):
            continue
        found.append(Sentence(start, min(end, start + _MAX_STATEMENT_CHARS), kind))
        if len(found) == MAX_STATEMENTS_PER_TEXT:
            break
    return found


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the sentences at the two ends of a text."""
    half = MAX_STATEMENT_CHARS_READ // 2
    size = len(text)
    for low, high in ((0, size),) if size <= 2 * half else ((0, half), (size - half, size)):
        start = low
        for found in _BREAK.finditer(text, low, high):
            end = found.end()
            if text[found.start()] == "." and _continues(text, found.start() + 1):
                continue
            yield from _bounds(text, start, end)
            start = end
        yield from _bounds(text, start, high)


def _continues(text: str, end: int) -> bool:
    """Return whether a full stop ends an abbreviation or the day of a date, and no sentence."""
    if text[end - 2 : end - 1].isdigit():
        after = _AFTER_ORDINAL.match(text, end, end + 20)
        return after is not None and after[1].lower() in tables.MONTHS_AND_DAYS
    return text.endswith(_ABBREVIATIONS, max(0, end - 7), end)


def _bounds(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    found = _LEAD.match(text, start, end)
    if found:
        start = found.end()
    if text[end - 1 : end] == "\n":
        end -= 1
    if end > start:
        yield start, end


def _kind(sentence: str) -> Literal["correction", "fact"] | None:
    """Return what a sentence states, as far as it is no rule."""
    lowered = sentence.lower()
    if "’" in lowered:
        lowered = lowered.replace("’", "'")
    words = _WORD.findall(lowered)
    asks = lowered.rstrip().endswith(_QUESTION_MARKS)
    if not lowered.isascii() and tables.HAS_UNSPACED.search(lowered):
        return _unspaced_kind(sentence.strip(), asks=asks)
    known = _MARKED.intersection(words)
    if len(words) < 2:
        return None
    opening = next((place for place, word in enumerate(words) if word not in _INTERJECTIONS), 0)
    if words[opening] in _STYLE_ORDERS and not asks and not CHOICE_CLASSES.keys().isdisjoint(words):
        return "fact"
    if not known:
        return None
    padded = f" {' '.join(words)} "
    tail = padded if not opening else f" {' '.join(words[opening:])} "
    marks = 0
    for word in known:
        for phrase, mark in _MARKS[word]:
            if tail.startswith(phrase) if mark & _AT_OPENING else phrase in padded:
                marks |= mark
    if _corrects(sentence, words[opening], marks, asks=asks):
        return "correction"
    if len(sentence) <= _MAX_STATEMENT_CHARS and _states(sentence, words, opening, marks, asks=asks):
        return "fact"
    return None


def _corrects(sentence: str, first: str, marks: int, *, asks: bool) -> bool:
    if marks & _NOT_REVISED:
        return False
    if marks & _OPENS:
        return not asks or bool(marks & _REVISES)
    if asks:
        return False
    if marks & _REVISES:
        return True
    if (
        not marks & _NOW
        or marks & _NO_FACT
        or first in ("now", "jetzt", "maintenant", "ahora", "agora", "сейчас")
    ):
        return False
    return bool(marks & _PERMITS) or bool(marks & (_IS | _NOUN) and _VALUE.search(sentence))


def _states(sentence: str, words: list[str], opening: int, marks: int, *, asks: bool) -> bool:
    if asks:
        return bool(marks & _WISHES)
    if marks & _NO_FACT:
        return False
    if marks & (_DECIDES | _OPENS_PERMISSION):
        return True
    if not marks & (_IS | _NOUN | _DATE) and words[opening] not in _PEOPLE:
        return False
    if not marks & _DATE and not _VALUE.search(sentence):
        return False
    first = words[opening]
    is_label = len(words) <= _MAX_LABEL_WORDS and _LABEL.search(sentence)
    if marks & _NOUN and (marks & _IS or is_label or (first in _KEY_NOUNS and len(words) <= _MAX_BARE_WORDS)):
        return True
    if first in _PEOPLE:
        return True
    is_subject = first in _SUBJECTS or first.capitalize() in sentence[: len(first) + 1]
    return bool(marks & _IS) and is_subject


def _unspaced_kind(sentence: str, *, asks: bool) -> Literal["correction", "fact"] | None:
    """Return what a sentence states in a language that writes without blanks."""
    body = sentence.rstrip("。！!.?？ \n")
    asks = asks or tables.UNSPACED_QUESTION.search(body) is not None
    if tables.UNSPACED_REVISION.search(sentence) and not asks:
        return "correction"
    if len(sentence) > _MAX_STATEMENT_CHARS or tables.UNSPACED_NOT_FACT.search(sentence):
        return None
    if tables.UNSPACED_WISH.search(sentence) or (
        not asks and UNSPACED_CHOICE.search(sentence) and tables.UNSPACED_STYLE.search(sentence)
    ):
        return "fact"
    if asks or tables.UNSPACED_COMMAND.search(body):
        return None
    return "fact" if _VALUE.search(sentence) and tables.UNSPACED_STATE.search(sentence) else None


def _is_answer(text: str, start: int, end: int) -> bool:
    """Return whether the first sentence of a message answers a question with yes, no or a choice."""
    sentence = text[start:end].strip()
    if sentence.endswith(_QUESTION_MARKS):
        return False
    lowered = sentence[:_MAX_ANSWER_START_CHARS].lower().replace("’", "'")
    words = _WORD.findall(lowered)
    if _begins_with(words, _NO_ANSWERS):
        return False
    if len(text) <= _MAX_ANSWER_CHARS and bool(words):
        return True
    if len(sentence) > _MAX_ANSWER_START_CHARS:
        return False
    return _begins_with(words, _ANSWERS) or tables.UNSPACED_ANSWER.match(lowered) is not None


def _has_phrase(words: list[str], phrases: Mapping[str, tuple[str, ...]]) -> bool:
    padded = f" {' '.join(words)} "
    return any(phrase in padded for word in phrases.keys() & words for phrase in phrases[word])


def _begins_with(words: list[str], phrases: Mapping[str, tuple[str, ...]]) -> bool:
    return bool(words) and f" {' '.join(words[:4])} ".startswith(phrases.get(words[0], ("\n",)))
