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
from collections.abc import Mapping
from itertools import chain, pairwise
from typing import Final, Literal, NamedTuple, TypeAlias

from foveal.core.compaction.ledger.pasted_text import is_pasted_line, pasted_spans
from foveal.core.compaction.standing import statement_words as tables
from foveal.core.compaction.standing.comparison_words import UNSPACED_CHOICE
from foveal.core.compaction.standing.replaced_statements import Statement, find_replaced
from foveal.core.compaction.standing.rules import find_rules
from foveal.core.compaction.standing.statement_reader import CHOICE_CLASSES
from foveal.core.compaction.standing.statement_words import phrases_by_first_word, words_of

__all__ = [
    "Sentence",
    "Statement",
    "StatementKind",
    "find_answers",
    "find_replaced",
    "find_sentences",
    "question_in",
    "reopens",
]

StatementKind: TypeAlias = Literal["rule", "correction", "fact"]

MAX_STATEMENT_CHARS_READ: Final = 6_000
"""Characters of one text that are searched for corrections and facts, at its two ends."""
MAX_QUESTION_READ_CHARS: Final = 300
"""Characters of the agent's question that are quoted with the answer."""
MAX_STATEMENTS_PER_TEXT: Final = 20
"""Corrections and facts of one text."""
_MAX_SENTENCES_READ: Final = 50
"""Sentences that are read at each end of a text: at most this many."""
_MAX_STATEMENT_CHARS: Final = 300
"""Characters of the longest sentence that states a fact. Of a longer correction this much is taken."""
_MAX_ANSWER_CHARS: Final = 40
"""Characters of the longest message that is a choice by its length alone, after a question."""
_MAX_ANSWER_START_CHARS: Final = 200
"""Characters of the longest sentence that is an answer by its first word, after a question."""
_LINE_CHARS: Final = 500
"""Characters before and after a statement that are read to recognise a pasted line."""
_MAX_REOPENING_CHARS: Final = 600
"""Characters of a message that are searched for words that reopen a request."""
_LONG_TEXT_CHARS: Final = 3_000
"""Characters from which on a text is a specification or a report: few of its sentences are the user's facts."""
_MAX_LABEL_WORDS: Final = 9
"""Words of the longest statement without a verb, and of the longest order of a choice."""

_BREAK: Final = re.compile(r"[.!?][\"')\]]?(?=\s)|[。！？；]|\n\s*")
_DIGIT: Final = re.compile(r"\d")
_CORRECTION_LABEL: Final = re.compile(
    r"(?:update|correction|edit|korrektur|corrección|correção|поправка)\s*:", re.IGNORECASE
)
_NEGATES: Final = re.compile(r"not|no|never|nobody|\w+n't").fullmatch
_SYMBOLS: Final = "=+<>{|/$`\\&%@[_~^"
"""Characters with which no sentence of a person begins."""
_ABBREVIATIONS: Final = (
    "e.g.", "i.e.", " vs.", " Dr.", " Mr.", "Mrs.", " Ms.", "z.B.", "z. B.", "bzw.", " ca.", " No.", " Nr.",
    " Mme.", " Sr.", " Sra.", "т.е.", "т. е.", "напр.", " p. ex.", "a.m.", "p.m.",
)  # fmt: skip
_AFTER_ORDINAL: Final = re.compile(r"\s+(\w+)")
_LEAD: Final = re.compile(r"\s*(?:[-*•>#]+\s+|\d{1,2}[.)]\s+|\([a-z\d]\)\s+)?")
_WORD: Final = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_NAME: Final = re.compile(r"[ ,][A-ZÀ-ÞА-Я][\w-]")
_ADDRESS: Final = re.compile(r"[^\W_][@][^\W_]|[a-z0-9-]\.[a-z]{2,}\b|[a-z]_[a-z]")
_LATIN: Final = re.compile(r"[A-Za-z]{2}")
_ADDRESS_MARKS: Final = (".", "@", "_")
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
_AT_ONCE: Final = words_of("now jetzt maintenant ahora agora сейчас")
"""Words that begin an order: "now run the tests"."""
_NO_WORDS: Final = words_of("no nope nein non não нет")
_ANSWERS_NO: Final = re.compile(
    r"\b(?:no|nope|nein|non|não|нет)(?:\s*[,.!;:—–-]|\s+(?:i|it|that|this|the|we|you|they|use|keep|don't|wait|need)\b)",
    re.IGNORECASE,
)
"""A "no" that answers: "no errors" does not."""
_TELLING: Final = words_of("i i've it it's we've")
"""Words that begin a report: "I used clay instead of wood"."""
_POINTING: Final = words_of("this that it there issue problem output he she they everything all")
_WEAK_SUBJECTS: Final = words_of("this that it it's there one a an das es ce c'est il esto este isso это")
"""Words that begin a fact only with a number."""
_MODALS: Final = (
    "can", "could", "would", "will", "might", "kann", "könn", "würd", "wär", "acht", "pour", "peux", "pouv",
    "serait", "pod", "pued", "sería", "seria", "quer", "мог", "мож", "было", "не",
)  # fmt: skip
"""Beginnings of the words with which a polite question begins."""
_NO_SUBJECT: Final = words_of(
    """
    how whether what why when where which if who understand verify check run add fix let's let see look find create
    wie ob was warum wenn wo wer comment pourquoi quand où qui si cómo qué por cuándo dónde quién como quando onde
    quem как почему когда где кто если
    """
)
"""Words that begin questions, conditions and orders."""
_PEOPLE: Final = words_of(
    """
    i we i'm i've we're we've i'd we'd ich wir je j nous on yo nosotros eu nós я мы my our mein meine
    unser unsere mon ma mes notre mi mis nuestro nuestra meu minha nosso nossa мой моя наш наша у
    """
)
STYLE_ORDERS: Final = words_of(
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
    _MAY,
    _AGAIN,
    _IS_NOW,
) = (1 << place for place in range(14))


_TABLES: Final = (
    (tables.REVISIONS, _REVISES),
    (tables.NOT_REVISIONS, _NOT_REVISED),
    (tables.PERMISSIONS, _PERMITS),
    (tables.NOW_WORDS, _NOW),
    (tables.AGAIN_WORDS, _AGAIN),
    (tables.BE_WORDS, _IS),
    (tables.KEY_NOUNS, _NOUN),
    (tables.DECISIONS, _DECIDES),
    (tables.POLITE_WISHES, _WISHES),
    (tables.NOT_FACTS, _NO_FACT),
    (",".join(tables.MONTHS_AND_DAYS), _DATE),
)
_OPENING_TABLES: Final = ((tables.REVISION_OPENINGS, _OPENS), (tables.PERMISSION_OPENINGS, _MAY))


def _marks_of_words() -> dict[str, int]:
    """Return what single words mark."""
    marks: dict[str, int] = {}
    for table, mark in _TABLES:
        for first, phrases in phrases_by_first_word(table).items():
            if f" {first} " in phrases:
                marks[first] = marks.get(first, 0) | mark
    return marks


def _marks_of_pairs() -> dict[tuple[str, str], list[tuple[str, int]]]:
    """Return the longer phrases with what they mark, by their first two words."""
    marks: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for table, mark in _TABLES:
        for phrase in chain.from_iterable(phrases_by_first_word(table).values()):
            first, *rest = phrase.split()
            if rest:
                marks.setdefault((first, rest[0]), []).append((phrase, mark))
    return marks


def _marks_of_openings() -> dict[str, list[tuple[str, int]]]:
    """Return the phrases that count at the beginning of a sentence, by their first word."""
    marks: dict[str, list[tuple[str, int]]] = {}
    for table, mark in _OPENING_TABLES:
        for first, phrases in phrases_by_first_word(table).items():
            marks.setdefault(first, []).extend((phrase, mark) for phrase in phrases)
    return marks


_WORD_MARKS: Final = _marks_of_words()
_PAIR_MARKS: Final = _marks_of_pairs()
_OPENING_MARKS: Final = _marks_of_openings()
_ANSWERS: Final = phrases_by_first_word(tables.ANSWERS)
_NO_ANSWERS: Final = phrases_by_first_word(tables.NO_ANSWERS)
_BE_WORDS: Final = frozenset(
    word for word, phrases in phrases_by_first_word(tables.BE_WORDS).items() if f" {word} " in phrases
)
_KEY_NOUNS: Final = frozenset(phrases_by_first_word(tables.KEY_NOUNS))
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


def find_answers(text: str) -> tuple[Sentence, ...]:
    """Return the sentences of a message that answers a question of the agent."""
    return find_sentences(text, follows_question=True)


def question_in(text: str) -> str:
    """Return the question with which the agent ends a message; "" if it ends with none."""
    end = text.rstrip(" \t\n*_`\"')”»")
    if not end.endswith(_QUESTION_MARKS):
        return ""
    line = end[max(0, len(end) - MAX_QUESTION_READ_CHARS) :].rpartition("\n")[2]
    sentences = [found.end() for found in _BREAK.finditer(line, 0, len(line) - 1)]
    return line[sentences[-1] if sentences else 0 :].strip()


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
    for start, end in split_sentences(text):
        while rule is not None and rule.end <= start:
            rule = next(rest, None)
        if rule is not None and rule.start < end:
            is_first = False
            continue
        kind = (
            "correction"
            if is_first and _is_answer(text, start, end)
            else _kind(text[start:end], is_long=len(text) > _LONG_TEXT_CHARS)
        )
        is_first = False
        if kind is None:
            continue
        if pasted is None:
            pasted = pasted_spans(text)
        if _is_pasted(text, start) or any(low <= start < high for low, high in pasted):
            continue
        found.append(Sentence(start, min(end, start + _MAX_STATEMENT_CHARS), kind))
        if len(found) == MAX_STATEMENTS_PER_TEXT:
            break
    return found


def _is_pasted(text: str, start: int) -> bool:
    low = max(0, start - _LINE_CHARS)
    return is_pasted_line(text[low : start + _LINE_CHARS], start - low)


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Return the bounds of the sentences at the two ends of a text."""
    half = MAX_STATEMENT_CHARS_READ // 2
    size = len(text)
    bounds: list[tuple[int, int]] = []
    for low, high in ((0, size),) if size <= 2 * half else ((0, half), (size - half, size)):
        start = low
        for found in _BREAK.finditer(text, low, high):
            end = found.end()
            if text[found.start()] == "." and _continues(text, found.start() + 1):
                continue
            bounds.append((start, end))
            start = end
        bounds.append((start, high))
    if len(bounds) > 2 * _MAX_SENTENCES_READ:
        bounds = bounds[:_MAX_SENTENCES_READ] + bounds[-_MAX_SENTENCES_READ:]
    return [stripped for start, end in bounds if (stripped := _strip(text, start, end)) is not None]


def _continues(text: str, end: int) -> bool:
    """Return whether a full stop ends an abbreviation or the day of a date, and no sentence."""
    if text[end - 2 : end - 1].isdigit():
        after = _AFTER_ORDINAL.match(text, end, end + 20)
        return after is not None and after[1].lower() in tables.MONTHS_AND_DAYS
    return text.endswith(_ABBREVIATIONS, max(0, end - 7), end)


def _strip(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the bounds without blanks and the mark of a list, None if nothing is left."""
    found = _LEAD.match(text, start, end)
    if found:
        start = found.end()
    while end > start and text[end - 1].isspace():
        end -= 1
    return (start, end) if end > start else None


class _Read(NamedTuple):
    """A sentence with what its words mark."""

    text: str
    words: list[str]
    """Its words in lower case."""
    first: str
    """The first word after "ok", "and" and the like."""
    second: str
    marks: int
    asks: bool

    def has(self, marks: int) -> bool:
        """Return whether the sentence has one of the marks."""
        return bool(self.marks & marks)


def _kind(sentence: str, *, is_long: bool) -> Literal["correction", "fact"] | None:
    """Return what a sentence states, as far as it is no rule.

    Args:
        sentence: The sentence.
        is_long: It stands in a long text, such as a specification.
    """
    lowered = sentence.lower()
    if "’" in lowered:
        lowered = lowered.replace("’", "'")
    asks = lowered.rstrip().endswith(_QUESTION_MARKS)
    if not lowered.isascii() and tables.HAS_UNSPACED.search(lowered):
        return _unspaced_kind(sentence.strip(), asks=asks)
    words = _WORD.findall(lowered)
    if len(words) < 2 or sentence[0] in _SYMBOLS:
        return None
    read = _read(sentence, words, asks=asks)
    if read.marks == 0 and read.first not in _PEOPLE:
        return "fact" if _orders_style(read) else None
    if _corrects(read):
        return "correction"
    is_fact = len(sentence) <= _MAX_STATEMENT_CHARS and _states(read, is_long=is_long)
    return "fact" if is_fact or _orders_style(read) else None


def _read(sentence: str, words: list[str], *, asks: bool) -> _Read:
    opening = 0
    if words[0] in _INTERJECTIONS:
        opening = next((place for place, word in enumerate(words) if word not in _INTERJECTIONS), 0)
    first, second = words[opening], words[opening + 1] if opening + 1 < len(words) else ""
    marks = 0
    for word in _WORD_MARKS.keys() & words:
        marks |= _WORD_MARKS[word]
    padded = f" {' '.join(words)} "
    for pair in _PAIR_MARKS.keys() & pairwise(words):
        for phrase, mark in _PAIR_MARKS[pair]:
            if phrase in padded:
                marks |= mark
    for phrase, mark in _OPENING_MARKS.get(first, ()):
        if f" {' '.join(words[opening : opening + 5])} ".startswith(phrase):
            marks |= mark
    if marks & _NOW and tables.IS_NOW.search(padded):
        marks |= _IS_NOW
    if " any more " in padded and any(map(_NEGATES, words)):
        marks |= _REVISES
    return _Read(sentence, words, first, second, marks, asks)


def _has_number(sentence: str) -> bool:
    """Return whether a sentence has a number, an address, a host or a file."""
    if _DIGIT.search(sentence):
        return True
    return any(mark in sentence for mark in _ADDRESS_MARKS) and _ADDRESS.search(sentence) is not None


def _has_name(sentence: str) -> bool:
    """Return whether a sentence has a name after its first word."""
    return any(sentence[found.start() - 1].islower() for found in _NAME.finditer(sentence, 1))


def _orders_style(read: _Read) -> bool:
    """Return whether a sentence orders a lasting choice: "answer in French"."""
    if read.first not in STYLE_ORDERS or read.asks or len(read.words) > _MAX_LABEL_WORDS:
        return False
    return not CHOICE_CLASSES.keys().isdisjoint(read.words)


def _corrects(read: _Read) -> bool:
    """Return whether a sentence revises or revokes something."""
    if _CORRECTION_LABEL.match(read.text):
        return True
    if read.has(_NOT_REVISED):
        return False
    if read.first in _NO_WORDS and not _ANSWERS_NO.search(read.text):
        return False
    if read.has(_OPENS):
        return not read.asks or (read.has(_REVISES) and read.first != "instead")
    if read.asks or read.first in _NO_SUBJECT:
        return False
    if read.has(_REVISES):
        return not (read.first in _TELLING and "instead of" in read.text)
    if read.has(_NO_FACT) or read.first in _AT_ONCE:
        return False
    if read.has(_PERMITS) and read.has(_NOW | _AGAIN):
        return True
    if read.has(_IS_NOW) and read.first not in _POINTING:
        return True
    return read.has(_NOW) and read.has(_IS | _NOUN) and (read.has(_NOUN | _DATE) or _has_number(read.text))


def _states(read: _Read, *, is_long: bool) -> bool:
    """Return whether a sentence states a fact or a lasting wish."""
    if read.asks:
        return read.has(_WISHES) and any(word.startswith(_MODALS) for word in read.words[:4])
    if read.has(_NO_FACT):
        return False
    if read.has(_DECIDES | _MAY):
        return True
    if read.first in _NO_SUBJECT:
        return False
    has_number = read.has(_DATE) or _has_number(read.text)
    if not has_number and (read.first in _WEAK_SUBJECTS or not _has_name(read.text)):
        return False
    if read.has(_NOUN) and ((has_number and read.first in _KEY_NOUNS) or _is_label(read)):
        return True
    if is_long and not (read.has(_NOUN) and has_number):
        return False
    if read.first in _PEOPLE:
        return True
    is_known = has_number or read.has(_NOUN)
    return read.has(_IS) and (read.second in _BE_WORDS or (is_known and read.first in _SUBJECTS))


def _is_label(read: _Read) -> bool:
    """Return whether a sentence is a noun and its value, without a verb: "User ID: 12"."""
    found = _LABEL.search(read.text) if len(read.words) <= _MAX_LABEL_WORDS else None
    return (
        found is not None
        and _KEY_NOUNS.isdisjoint(_WORD.findall(read.text[: found.start()].lower())) is False
    )


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
    has_value = _LATIN.search(sentence) is not None or _has_number(sentence)
    return "fact" if has_value and tables.UNSPACED_STATE.search(sentence) else None


def _is_answer(text: str, start: int, end: int) -> bool:
    """Return whether the first sentence of a message answers a question with yes, no or a choice."""
    sentence = text[start:end].strip()
    if sentence.endswith(_QUESTION_MARKS):
        return False
    lowered = sentence[:_MAX_ANSWER_START_CHARS].lower().replace("’", "'")
    words = _WORD.findall(lowered)
    if _begins_with(words, _NO_ANSWERS) or sentence.endswith(":") or {*words[:1]} & _NO_SUBJECT:
        return False
    if len(text) <= _MAX_ANSWER_CHARS and words and sentence[0] not in _SYMBOLS:
        return True
    if len(sentence) > _MAX_ANSWER_START_CHARS:
        return False
    return _begins_with(words, _ANSWERS) or tables.UNSPACED_ANSWER.match(lowered) is not None


def _has_phrase(words: list[str], phrases: Mapping[str, tuple[str, ...]]) -> bool:
    padded = f" {' '.join(words)} "
    return any(phrase in padded for word in phrases.keys() & words for phrase in phrases[word])


def _begins_with(words: list[str], phrases: Mapping[str, tuple[str, ...]]) -> bool:
    return bool(words) and f" {' '.join(words[:4])} ".startswith(phrases.get(words[0], ("\n",)))
