"""Reads a statement of the user into a form that can be compared with another.

1. Words are compared by their first letters without common endings. Words of languages that write without blanks
   are compared by pairs of characters.
2. Values are numbers, dates, names, addresses, languages and other choices; each has a kind. A value before the
   verb is part of the thing: "chapter 2 has 30 pages".
3. Words of a condition ("without me"), of a reason ("because …") and of what no longer counts ("instead of tabs")
   are kept apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from foveal.core.compaction.standing import comparison_words as tables
from foveal.core.compaction.standing.statement_words import words_of

Polarity: TypeAlias = Literal["forbids", "releases", "permits", "requires", ""]
ValueKind: TypeAlias = str
"""`amount`, `duration`, `when`, `code`, `name`, or a class of choices."""

MAX_COMPARED_STATEMENT_CHARS: Final = 400
"""Characters of a statement that are compared."""

_TOKEN: Final = re.compile(
    r"\d+(?:[.,:/-]\d+)*[^\W\d_]*|[^\W\d_](?:[\w'’]|[-.@/:](?=[^\W_]))*|[,;:()=?!.—–€$£¥%&]"
)
_CLAUSE_MARKS: Final = frozenset(",;:()?!.—–")
_BUT: Final = frozenset(["but", "sondern", "mais", "sino", "mas", "но"])
_GERMAN: Final = words_of(
    """
    der die das den dem ist sind ein eine einen nicht wir ich und auf nach bitte mein meine unser unsere
    du
    """
)
_PORTUGUESE: Final = words_of("é não nao você do dos da das em os ou são na nas foi pode agora sempre")
_GERMAN_NEEDS: Final = words_of("muss musst müssen müsst brauchst brauchen brauche")
"""With a negation these end an obligation: "du musst nicht"."""
_GERMAN_PARTICLES: Final = words_of("aus an ab auf ein mit zu um vor nach hoch hin her zurück weg durch")
"""Parts of verbs that stand at the end: "führe den Linter aus"."""
_WEAKLY_REVOKING: Final = words_of(
    "drop lift cancel strike scratch withdraw ignore disregard ignoriere ignorier annule ignorez ignora cancela"
    " cancele descarta отмени отменяю игнорируй aufgehoben"
)
"""Verbs that revoke only beside the word "rule": "drop the table" is an order."""
_RULE_WORDS: Final = words_of(
    "rule rules said earlier previous instruction instructions regel regeln gesagt anweisung règle règles dit"
    " consigne regla reglas dije instrucción regra regras disse instrução правило правила говорил сказал"
)
_BEFORE_ORDERS: Final = words_of(
    "please ok okay so and well bitte und ok s'il plaît et y por favor e и пожалуйста no yes just actually then"
)
_NOT_PERMITTED_BY: Final = words_of(
    """
    i it that which he she they who this
    """
)
_LETTER_WORDS: Final = frozenset("aioyeustdvàéяавиксоу")
"""Letters that are words, or parts of some."""
_ELIDED: Final = frozenset("ldnjsmtc")
_SUFFIXES: Final = tuple(
    sorted(
        words_of(
            """
            ing ed es s e en er est ern n t te st ung ungen ion ions tion ment y ies ez ons ent é ée és ées ait
            ant ir re ar as an a o os amos emos ando iendo ado ada ida ido ão ões ou em ть ти й ь и ы а я у ю е о
            ов ей ам ах ой ом ить ать ять ете ите йте ешь ишь ет ит ют ят
            """
        ),
        key=len,
        reverse=True,
    )
)
_MIN_STEM_CHARS: Final = 3
_STEM_CHARS: Final = 5
_ORDINAL: Final = ("st", "nd", "rd", "th", "er", "º", "ª", "го", "е")
_SHORT_DURATIONS: Final = frozenset(["s", "ms", "h", "min", "mins", "sec", "d"])
_HAN_OR_KATAKANA: Final = re.compile(r"[\u30a0-\u30ff\u3400-\u9fff]+")
_UNSPACED_ORDINAL: Final = re.compile(r"第\s?\d+")
_DIGIT: Final = re.compile(r"\d")
_CODE: Final = re.compile(r"[.@/_:\d]")
_UNSPACED: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff]")

_FORBIDS, _RELEASES, _PERMITS, _REQUIRES, _CHANGES, _REVOKES, _INSTEAD_OF, _CONDITION, _REASON = (
    1 << place for place in range(9)
)


class ComparedStatement(NamedTuple):
    """A statement in comparable form."""

    subject: frozenset[str]
    """Its words without values, conditions and reasons."""
    values: Mapping[ValueKind, frozenset[str]]
    """Its values by kind."""
    content: frozenset[str]
    """Its words and values."""
    replaced: frozenset[str]
    """Words and values that it says no longer count: "tabs" of "spaces instead of tabs"."""
    polarity: Polarity
    changes: bool
    """Whether it says that something changed: "now", "instead", "moved to"."""
    revokes: bool
    """Whether it revokes what it names: "forget what I said about tabs"."""
    has_condition: bool
    is_compound: bool
    """Whether it joins several things: "push or delete"."""
    adds: bool
    """Whether it adds to what was said before: "also notify Ada"."""
    has_verb: bool
    """Whether it says what something is: "the deadline is …"."""
    verb: str
    """Its first word, shortened: the verb of an order."""


def _phrases() -> Mapping[str, tuple[tuple[tuple[str, ...], int], ...]]:
    """Return the phrases of all tables with their marks by their first word, the longest first."""
    marks: dict[tuple[str, ...], int] = {}
    for table, mark in (
        (tables.FORBIDDING, _FORBIDS),
        (tables.RELEASING, _RELEASES),
        (tables.PERMITTING, _PERMITS),
        (tables.REQUIRING, _REQUIRES),
        (tables.CHANGING, _CHANGES),
        (tables.REVOKING, _REVOKES),
        (tables.INSTEAD_OF, _INSTEAD_OF),
        (tables.CONDITIONS, _CONDITION),
        (tables.REASONS, _REASON),
    ):
        for phrase in (phrase.strip() for line in table.split("\n") for phrase in line.split(",")):
            if phrase:
                words = tuple(_split_elisions(phrase.split()))
                marks[words] = marks.get(words, 0) | mark
    phrases: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    for words, mark in marks.items():
        phrases.setdefault(words[0], []).append((words, mark))
    return {first: tuple(sorted(each, key=lambda found: -len(found[0]))) for first, each in phrases.items()}


def _split_elisions(words: list[str]) -> Iterator[str]:
    """Yield the words, "n'utilise" as "n'" and "utilise"."""
    for word in words:
        if word[1:2] == "'" and word[0].lower() in _ELIDED and len(word) > 3:
            yield word[:2]
            yield word[2:]
        else:
            yield word


_PHRASES: Final = _phrases()
CHOICE_CLASSES: Final = {
    word: f"choice {number}"
    for number, words in enumerate(tables.CHOICES.split("|"))
    for word in words.split()
}
"""Words of which one replaces another, such as names of languages, with their class."""


@lru_cache(maxsize=2_048)
def read_statement(text: str) -> ComparedStatement:
    """Return a statement in comparable form."""
    text = text[:MAX_COMPARED_STATEMENT_CHARS]
    if not text.isascii() and _UNSPACED.search(text):
        return _read_unspaced(text)
    return _SpacedReader(text).read()


@lru_cache(maxsize=8_192)
def stem(word: str) -> str:
    """Return what the forms of a word share, roughly."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _MIN_STEM_CHARS:
            word = word[: -len(suffix)]
            break
    if word.endswith(("gu", "qu")):
        word = word[:-1]  # "apague" and "apagar"
    return word[: 4 if "\u0400" <= word[0] <= "\u052f" else _STEM_CHARS]


@lru_cache(maxsize=8_192)
def _kind_of_word(word: str) -> ValueKind:
    """Return what a word is by itself: the kind of a value, `month`, `day`, `unit`, or ""."""
    if word in tables.MONTHS:
        return "month"
    if word in tables.DAYS:
        return "day"
    if word in tables.UNITS or word in tables.DURATIONS:
        return "unit"
    if _CODE.search(word):
        return "code"
    return CHOICE_CLASSES.get(word, "")


class _SpacedReader:
    """Reads one statement in a language that writes with blanks, word by word."""

    def __init__(self, text: str) -> None:
        text = text.replace("’", "'")
        tokens = _TOKEN.findall(text)
        self._originals = [*_split_elisions(tokens)] if "'" in text else tokens
        self._words = [token.lower() for token in self._originals]
        self._has_digit = _DIGIT.search(text) is not None
        self._asks = "?" in self._words
        self._joins_with_but = not _BUT.isdisjoint(self._words)
        self._is_german = not _GERMAN.isdisjoint(self._words)
        self._is_portuguese = not _PORTUGUESE.isdisjoint(self._words)
        self._marks = 0
        self._bucket = 0
        self._subject: list[str] = []
        self._replaced: list[str] = []
        self._values: list[tuple[int, ValueKind, str]] = []
        self._verb_at = -1
        self._first = ""
        self._is_compound = False

    def read(self) -> ComparedStatement:
        at = 0
        while at < len(self._words):
            at += self._step(at)
        if self._is_german:
            self._join_german_verb()
        subject = {*self._subject}
        values: dict[ValueKind, set[str]] = {}
        has_later = bool(self._values) and self._values[-1][0] > self._verb_at
        for place, kind, value in self._values:
            if place < self._verb_at and (has_later or self._is_part_of_name(place, kind)):
                subject.add(value)
            else:
                values.setdefault(kind, set()).add(value)
        return ComparedStatement(
            subject=frozenset(subject),
            values={kind: frozenset(found) for kind, found in values.items()},
            content=frozenset(subject.union(*values.values())),
            replaced=frozenset(self._replaced),
            polarity=_polarity(self._marks),
            changes=bool(self._marks & _CHANGES) or bool(self._replaced),
            revokes=bool(self._marks & _REVOKES),
            has_condition=bool(self._marks & _CONDITION),
            is_compound=self._is_compound,
            adds=not tables.ADDITIONS.isdisjoint(self._words),
            has_verb=self._verb_at >= 0,
            verb=self._first,
        )

    def _is_part_of_name(self, at: int, kind: ValueKind) -> bool:
        """Return whether a value before the verb names the thing: "port 80 is open", "the 9:00 train is late"."""
        if at + 1 == self._verb_at:
            return at > 0 and self._words[at].isdecimal() and self._is_thing(self._words[at - 1])
        return kind == "when" and self._is_thing(self._words[at + 1])

    @staticmethod
    def _is_thing(word: str) -> bool:
        return word.isalpha() and word not in tables.EMPTY and not _kind_of_word(word)

    def _join_german_verb(self) -> None:
        """Join the verb with its particle at the end, and read "musst nicht" as the end of an obligation."""
        if self._marks & _FORBIDS and not _GERMAN_NEEDS.isdisjoint(self._words):
            self._marks |= _RELEASES
        ends = [word for word in self._words[-2:] if word in _GERMAN_PARTICLES]
        if ends and self._subject and self._first == self._subject[0]:
            verb = next(word for word in self._words if stem(word) == self._first)
            self._subject[0] = stem(ends[-1] + verb)

    def _step(self, at: int) -> int:
        """Read the word or phrase at a place and return the number of its words."""
        word = self._words[at]
        if word in _CLAUSE_MARKS:
            # What follows "forget X," is something else.
            names_topic = self._marks & _REVOKES and (self._subject or self._values)
            self._bucket = _REASON if names_topic else 0
            return 1
        if word in _BUT and not (word == "mais" and self._is_portuguese):
            self._bucket = 0
            return 1
        if (kind := self._value_kind(at, word)) is not None:
            self._add_value(at, word, kind)
            return 1
        for phrase, marks in _PHRASES.get(word, ()):
            if len(phrase) == 1 or tuple(self._words[at : at + len(phrase)]) == phrase:
                if marks & _REVOKES and len(phrase) == 1 and not self._may_revoke(at, word):
                    break
                self._mark(at, marks)
                return len(phrase)
        self._add_word(at, word)
        return 1

    def _may_revoke(self, at: int, word: str) -> bool:
        """Return whether "forget" begins a clause, and "drop" names a rule too."""
        before = self._words[at - 1] if at else ","
        is_order = before in _CLAUSE_MARKS or before in _BEFORE_ORDERS
        return is_order and (word not in _WEAKLY_REVOKING or not _RULE_WORDS.isdisjoint(self._words))

    def _mark(self, at: int, marks: int) -> None:
        if marks & _PERMITS and (self._asks or (at and self._words[at - 1] in _NOT_PERMITTED_BY)):
            marks &= ~_PERMITS
        if marks & _INSTEAD_OF:
            is_instead = not marks & _FORBIDS or (at and self._words[at - 1] == ",") or self._joins_with_but
            if is_instead:
                self._bucket = _INSTEAD_OF
                self._marks |= _CHANGES
                return
            marks &= ~_INSTEAD_OF
        if self._bucket in (_CONDITION, _REASON):
            return
        if marks & _CONDITION and any(next_word[0].isdigit() for next_word in self._words[at + 1 : at + 4]):
            marks &= ~_CONDITION  # "until 14 March" is a value
        if marks & (_CONDITION | _REASON):
            self._bucket = marks & (_CONDITION | _REASON)
        self._marks |= marks & ~_REASON

    def _add_word(self, at: int, word: str) -> None:
        if word in tables.CONJUNCTIONS and not (word == "o" and self._is_portuguese):
            self._is_compound = self._is_compound or self._bucket == 0
            return
        if word in tables.BEING and self._bucket == 0 and self._verb_at < 0 and at:
            self._verb_at = at
        if not self._first and word not in _CLAUSE_MARKS:
            self._first = stem(word)
        if self._is_label(at, word):
            self._put(word)
            return
        if word in tables.EMPTY or word in tables.BEING or len(word) < 2 or word[-1] == "'":
            return
        self._put("-".join(map(stem, word.split("-"))) if "-" in word else stem(word))

    def _is_label(self, at: int, word: str) -> bool:
        """Return whether a letter tells one thing from another: "project A", "server b", "node a is"."""
        if len(word) != 1 or not word.isalpha() or not at or word == "i":
            return False
        if self._originals[at].isupper() or word not in _LETTER_WORDS:
            return True
        return at + 1 < len(self._words) and self._words[at + 1] in tables.BEING and self._verb_at < 0

    def _put(self, word: str) -> None:
        if self._bucket == 0:
            self._subject.append(word)
        elif self._bucket == _INSTEAD_OF:
            self._replaced.append(word)

    def _add_value(self, at: int, word: str, kind: ValueKind) -> None:
        if self._bucket == _INSTEAD_OF:
            self._replaced.append(word)
        elif self._bucket == 0 and kind:
            self._values.append((at, kind, word))

    def _value_kind(self, at: int, word: str) -> ValueKind | None:
        """Return the kind of a value, "" for a unit of one, and None for any other word."""
        if word[0].isdigit():
            return self._number_kind(at, word)
        kind = _kind_of_word(word)
        if word == "est" and not self._originals[at].isupper():
            return None  # the French verb, and no time zone
        if kind in ("month", "day", "unit"):
            return self._kind_near_digit(at, word, kind)
        if kind:
            return kind
        if at == 0 or self._is_german or not self._originals[at][0].isupper():
            return None
        is_name = self._words[at - 1] not in _CLAUSE_MARKS and word not in tables.EMPTY and len(word) > 1
        return "name" if is_name else None

    def _kind_near_digit(self, at: int, word: str, kind: str) -> ValueKind | None:
        """Return the kind of a word that may be a part of a date or an amount: "may" is one beside a number."""
        is_near = self._has_digit and any(
            token[0].isdigit() for token in self._words[max(0, at - 3) : at + 3]
        )
        if kind == "unit":
            return "" if is_near else None
        if kind == "month":
            return "when" if is_near or len(word) > 5 else None
        return "when" if len(word) > 4 else "" if is_near else None

    def _number_kind(self, at: int, word: str) -> ValueKind:
        ending = word.lstrip("0123456789.,:/-")
        digits = word[: len(word) - len(ending)]
        if ending in _SHORT_DURATIONS:
            return "duration"
        if ending in ("am", "pm"):
            return "when"
        if ending and ending not in _ORDINAL and ending not in ("k", "m"):
            return "code"
        if ":" in digits or digits.count("-") == 2 or digits.count("/") == 2:
            return "when"
        around = self._words[max(0, at - 3) : at + 4]
        if ending in _ORDINAL or not tables.MONTHS.isdisjoint(around):
            return "when"
        after = self._words[at + 1] if at + 1 < len(self._words) else ""
        return "duration" if after in tables.DURATIONS else "when" if after in tables.DAYS else "amount"


def _polarity(marks: int) -> Polarity:
    if marks & _RELEASES:
        return "releases"
    if marks & _FORBIDS:
        return "forbids"
    if marks & _PERMITS:
        return "permits"
    return "requires" if marks & _REQUIRES else ""


def _read_unspaced(text: str) -> ComparedStatement:
    """Read a statement in Chinese or Japanese."""
    values: dict[ValueKind, set[str]] = {}
    replaced: set[str] = set()
    found = tables.UNSPACED_INSTEAD_OF.search(text)
    if found:
        replaced.update(_unspaced_words(found["after"] or found["before"]))
    verb = tables.UNSPACED_BEING.search(text)
    for match in tables.UNSPACED_CHOICE.finditer(text):
        value = match[0]
        if found and found.start() <= match.start() < found.end():
            replaced.add(value)
        else:
            values.setdefault(f"choice {match.lastgroup}", set()).add(value)
    rest = tables.UNSPACED_CHOICE.sub(
        " ", text if not found else text[: found.start()] + " " + text[found.end() :]
    )
    marks = 0
    for pattern, mark in (
        (tables.UNSPACED_REVOKING, _REVOKES),
        (tables.UNSPACED_RELEASING, _RELEASES),
        (tables.UNSPACED_PERMITTING, _PERMITS),
        (tables.UNSPACED_CHANGING, _CHANGES),
        (tables.UNSPACED_FORBIDDING, _FORBIDS),
        (tables.UNSPACED_REQUIRING, _REQUIRES),
        (tables.UNSPACED_CONDITION, _CONDITION),
    ):
        without = pattern.sub(" ", rest)
        if without != rest:
            marks |= mark
            rest = without
    identifiers = {*_UNSPACED_ORDINAL.findall(rest)}
    rest = _UNSPACED_ORDINAL.sub(" ", rest)
    for pattern, kind in ((tables.UNSPACED_DATE, "when"), (tables.UNSPACED_NUMBER, "amount")):
        for match in pattern.finditer(rest):
            values.setdefault(kind, set()).add(match[0])
        rest = pattern.sub(" ", rest)
    subject = identifiers | {*_unspaced_words(rest)}
    return ComparedStatement(
        subject=frozenset(subject),
        values={kind: frozenset(each) for kind, each in values.items()},
        content=frozenset(subject.union(*values.values())),
        replaced=frozenset(replaced),
        polarity=_polarity(marks),
        changes=bool(marks & _CHANGES) or bool(replaced),
        revokes=bool(marks & _REVOKES),
        has_condition=bool(marks & _CONDITION),
        is_compound=tables.UNSPACED_AND.search(text) is not None,
        adds=tables.UNSPACED_ADDITION.search(text) is not None,
        has_verb=verb is not None,
        verb="",
    )


def _unspaced_words(text: str) -> Iterator[str]:
    """Yield the words in Latin letters, and the pairs of characters of the others."""
    rest = tables.UNSPACED_EMPTY.sub(" ", text)
    for run in _HAN_OR_KATAKANA.findall(rest):
        yield from (run[place : place + 2] for place in range(max(1, len(run) - 1)))
    for word in _TOKEN.findall(_HAN_OR_KATAKANA.sub(" ", rest)):
        if word[0].isalnum() and not _UNSPACED.match(word):
            yield stem(word.lower())
