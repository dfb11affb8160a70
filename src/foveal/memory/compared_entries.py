"""Finds the entries that a later statement replaces or revokes."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

from foveal.core.compaction.standing.replaced_statements import KnownStatements, Statement
from foveal.memory.facts import EntryKind
from foveal.memory.fold import MemoryState
from foveal.memory.single_values import SingleValue, single_value

MAX_COMPARED_ENTRIES: Final = 1_000
"""Entries, the newest, among which a later one replaces earlier ones."""
_REVOKING: Final = "Forget what I said about "
"""A sentence that the comparison of statements reads as a revocation, in front of what to forget."""

_LIKES: Final = re.compile(
    r"\b(?:like|love|hate|dislike|mag|aime|gusta|gosto|нравится|люблю)\b|喜欢|喜歡|好き", re.IGNORECASE
)
"""Preferences that stand beside others: who loves French may love German too."""


class ComparedEntries:
    """The entries that count, as statements that can be replaced. It follows the state of the memory."""

    def __init__(self) -> None:
        self._known = KnownStatements()
        self._texts: dict[int, str] = {}
        """The texts of the entries that are among these statements."""
        self._by_subject: defaultdict[str, set[int]] = defaultdict(set)
        """The entries that give one value to a subject."""
        self._followed = ("", -1)
        """The beginning and the version of the state that was taken over last."""

    def replaced_by(self, state: MemoryState, seq: int, text: str, kind: EntryKind) -> list[int]:
        """Return the entries that a new statement replaces."""
        self._follow(state)
        found = {old.seq for old in self._known.replaced_by(_statement(seq, text, kind))}
        if new := single_value(text):
            given = self._by_subject.get(new.subject, set()) - {seq}
            found |= {old for old in given if not _shortens(single_value(self._texts[old]), new)}
        return sorted(found)

    def meant(self, state: MemoryState, words: str) -> list[int]:
        """Return the entries that the user means with "forget that …"."""
        same = [
            entry.seq for entry in state.counting() if entry.text.casefold().rstrip(".") == words.casefold()
        ]
        if same:
            return same
        self._follow(state)
        revoking = _statement(state.next_seq, f"{_REVOKING}{words}", "rule")
        return sorted({old.seq for old in self._known.replaced_by(revoking)})

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
                if value := single_value(known):
                    self._by_subject[value.subject].discard(seq)
        for seq, entry in counting.items():
            if seq not in self._texts:
                self._known.add(_statement(seq, entry.text, entry.kind))
                self._texts[seq] = entry.text
                if value := single_value(entry.text):
                    self._by_subject[value.subject].add(seq)


def _shortens(old: SingleValue | None, new: SingleValue) -> bool:
    """Return whether a value only leaves out words of the earlier one: "Ada" after "Ada Lovelace"."""
    return old is not None and {*new.value.casefold().split()} < {*old.value.casefold().split()}


def _statement(seq: int, text: str, kind: EntryKind) -> Statement:
    is_rule = kind == "rule" or (kind == "preference" and _LIKES.search(text) is None)
    return Statement(seq, 0, text, "rule" if is_rule else "fact")
