"""Finds which statement of the user replaces an earlier one.

A later statement replaces an earlier one about the same thing when it

1. gives another value of the same kind: "the deadline is 14 March" / "the deadline moved to 2 April";
2. permits what was forbidden, forbids what was permitted, or ends an obligation: "you can push to main now";
3. revokes it by name: "forget what I said about tabs";
4. names what it replaces: "use spaces instead of tabs".

A wrong pair hides a statement that still holds, while without a pair both are shown in their order. So a statement
that may be an exception to the earlier one, or covers only a part of it, replaces nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from foveal.core.compaction.standing.statement_reader import (
    ComparedStatement,
    Polarity,
    ValueKind,
    read_statement,
)

StatementKey: TypeAlias = tuple[int, int]
"""The number of a message and the start of a sentence in it."""

MAX_COMPARED_MESSAGES: Final = 400
"""Messages, the newest, among which later ones are looked for that replace earlier ones."""
MAX_STATEMENTS_PER_WORD: Final = 8
"""Earlier statements with a word that are compared: the newest ones."""
_MAX_RATIO: Final = 10
"""How many times as large a new amount may be if the sentence does not name the thing: "we have 7,500 now"."""
_TURNED: Final[Mapping[Polarity, tuple[Polarity, ...]]] = {
    "permits": ("forbids",),
    "forbids": ("permits", "requires"),
    "releases": ("requires",),
    "requires": ("forbids", "releases"),
    "": (),
}
"""What each kind of statement turns into its opposite."""
_KINDS_OF_ONE_VALUE: Final = ("amount", "duration", "when")


class Statement(NamedTuple):
    """A sentence of the user that still holds, or held until it was replaced."""

    seq: int
    """The number of the message."""
    start: int
    """Where the sentence begins in the message."""
    text: str
    kind: Literal["rule", "correction", "fact"]


class _Known(NamedTuple):
    statement: Statement
    compared: ComparedStatement


def find_replaced(statements: Sequence[Statement]) -> dict[StatementKey, StatementKey]:
    """Return the later statement that replaces each earlier one, by their messages and starts.

    Args:
        statements: The statements, in the order in which they were said.
    """
    known = KnownStatements()
    replaced: dict[StatementKey, StatementKey] = {}
    for statement in statements:
        for earlier in known.replaced_by(statement):
            known.remove(earlier[:2])
            replaced[earlier[:2]] = statement[:2]
        known.add(statement)
    for key in reversed(replaced):  # the newest first, so that a chain is followed in one step
        replaced[key] = replaced.get(replaced[key], replaced[key])
    return replaced


class KnownStatements:
    """Statements that count so far. Each call takes the same time whatever their number."""

    def __init__(self) -> None:
        self._index = _Index()

    def replaced_by(self, statement: Statement) -> list[Statement]:
        """Return those that a later statement replaces."""
        later = _Known(statement, read_statement(statement.text))
        return [earlier.statement for _, earlier in _replaced_by(later, self._index)]

    def add(self, statement: Statement) -> None:
        """Add a later statement."""
        self._index.add(_Known(statement, read_statement(statement.text)))

    def remove(self, key: StatementKey) -> None:
        """Remove a statement, which counts no longer."""
        self._index.remove(key)


_Candidates: TypeAlias = list[tuple[int, _Known]]
"""Earlier statements, each with its place."""


class _Index:
    """The statements that count, by their words and by the kinds of their values."""

    def __init__(self) -> None:
        self._known: list[_Known] = []
        self._removed: set[int] = set()
        self._places: dict[StatementKey, int] = {}
        self._by_word: defaultdict[str, deque[int]] = defaultdict(
            lambda: deque(maxlen=MAX_STATEMENTS_PER_WORD)
        )

    def add(self, known: _Known) -> None:
        for word in known.compared.content:
            self._by_word[word].append(len(self._known))
        for kind in known.compared.values:
            self._by_word[f"\n{kind}"].append(len(self._known))
        self._places[known.statement[:2]] = len(self._known)
        self._known.append(known)

    def remove(self, key: StatementKey) -> None:
        self._removed.add(self._places.pop(key))

    def with_words(self, words: Iterable[str]) -> _Candidates:
        """Return the newest statements with one of the words."""
        places = {place for word in words for place in self._by_word.get(word, ())}
        return [(place, self._known[place]) for place in places if place not in self._removed]

    def with_kind(self, kind: ValueKind) -> _Candidates:
        """Return the newest statements with a value of a kind."""
        return self.with_words((f"\n{kind}",))


def _replaced_by(later: _Known, index: _Index) -> _Candidates:
    """Return the earlier statements that a later one replaces."""
    compared = later.compared
    candidates = index.with_words(compared.content | compared.replaced)
    if compared.revokes:
        return _revoked(compared, candidates)
    if compared.adds:
        return []
    surely = [found for found in candidates if _is_replaced(found[1], later)]
    if surely or not compared.changes:
        return surely
    return _only_candidate(later, candidates, index)


def _revoked(later: ComparedStatement, candidates: _Candidates) -> _Candidates:
    """Return the statements that a revocation names."""
    topic = later.content
    named = [found for found in candidates if topic and topic <= found[1].compared.content]
    is_clear = len(topic) > 1 or len({known.compared.content for _, known in named}) == 1
    return named if is_clear else []


def _is_replaced(earlier: _Known, later: _Known) -> bool:
    old, new = earlier.compared, later.compared
    if old.revokes or old == new:
        return False
    if old.subject == new.subject and _has_other_value(earlier, later):
        return True
    return _turns(old, new, kind=earlier.statement.kind) or (bool(new.replaced) and _names(old, new))


def _has_other_value(earlier: _Known, later: _Known) -> bool:
    """Return whether a statement gives another value to the same thing."""
    old, new = earlier.compared, later.compared
    if not old.values or old.values.keys() != new.values.keys():
        return False
    if not old.subject or old.values == new.values or old.is_compound or not _have_same_sense(old, new):
        return False
    if any(len(values) > 3 for values in old.values.values()):
        return False
    if new.changes:
        return True
    if earlier.statement.seq == later.statement.seq or "name" in new.values:
        return False
    return (old.has_verb and new.has_verb) or earlier.statement.kind == later.statement.kind == "rule"


def _have_same_sense(old: ComparedStatement, new: ComparedStatement) -> bool:
    if old.polarity == new.polarity and new.polarity in ("forbids", "permits"):
        return all(kind in _KINDS_OF_ONE_VALUE for kind in new.values)
    return old.polarity == new.polarity or {old.polarity, new.polarity} <= {"", "requires", "permits"}


def _turns(old: ComparedStatement, new: ComparedStatement, *, kind: str) -> bool:
    """Return whether a statement permits, forbids or releases what the earlier one did not."""
    turned = old.polarity in _TURNED[new.polarity]
    if old.polarity == "":
        turned = kind != "fact" and (
            new.polarity == "releases" or (new.polarity == "forbids" and new.changes)
        )
    if not turned or new.has_condition:
        return False
    before, after = old.content, new.content
    if before == after:
        return bool(after)
    is_broader = len(after) > 1 and after < before and not old.is_compound
    return is_broader and (new.polarity in ("permits", "releases") or new.changes)


def _names(old: ComparedStatement, new: ComparedStatement) -> bool:
    """Return whether a statement names the earlier one as what no longer counts: "spaces instead of tabs"."""
    content = old.content
    if old.polarity == "forbids":
        return False
    return bool(content & new.replaced) and content <= new.replaced | new.content


def _only_candidate(later: _Known, candidates: _Candidates, index: _Index) -> _Candidates:
    """Return the one earlier statement that a change without its full subject can mean, if there is only one."""
    new = later.compared
    if new.polarity == "forbids" or new.has_condition:
        return []
    if new.values and not new.subject:
        kind, *others = new.values
        known = [] if others or kind == "name" else index.with_kind(kind)
        found = [each for each in known if _may_be_meant(each[1].compared, new, kind)]
    elif new.values:
        found = [each for each in candidates if _is_narrower(each[1].compared, new)]
    else:
        found = [each for each in candidates if _differs_in_one_word(each[1].compared, new)]
    return found if len({(each.compared.subject, *each.compared.values) for _, each in found}) == 1 else []


def _may_be_meant(old: ComparedStatement, new: ComparedStatement, kind: ValueKind) -> bool:
    if old.values.keys() != {kind} or old.values == new.values or old.is_compound or old.revokes:
        return False
    if not _have_same_sense(old, new) or len(old.values[kind]) > 3:
        return False
    if kind != "amount":
        return True
    amounts = [_amount(value) for values in (old.values[kind], new.values[kind]) for value in values]
    return len(amounts) == 2 and min(amounts) > 0 and max(amounts) / min(amounts) <= _MAX_RATIO


def _amount(value: str) -> float:
    """Return an amount roughly: its digits before the decimals."""
    whole = value if value[-3:-2] not in (".", ",") else value[:-3]
    digits = "".join(char for char in whole if "0" <= char <= "9")
    return float(digits or 0) * (1_000 if value.endswith("k") else 1)


def _is_narrower(old: ComparedStatement, new: ComparedStatement) -> bool:
    """Return whether an earlier statement is about the same thing in more words."""
    is_same = (
        new.subject < old.subject and old.values.keys() == new.values.keys() and old.values != new.values
    )
    return is_same and not old.is_compound and not old.revokes and _have_same_sense(old, new)


def _differs_in_one_word(old: ComparedStatement, new: ComparedStatement) -> bool:
    """Return whether two statements are the same up to one word: "deploy to Nomad now"."""
    shared = old.content & new.content
    if len(shared) < 2 or len(old.content) != len(shared) + 1 or len(new.content) != len(shared) + 1:
        return False
    return not old.is_compound and not new.is_compound and old.verb == new.verb and _have_same_sense(old, new)
