"""Search in the entries of a memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foveal.memory.fold import MemoryEntry

if TYPE_CHECKING:
    from foveal.stores.sqlite.full_text import FullTextIndex


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
        from foveal.stores.sqlite.full_text import (
            index_in_memory,  # loads apsw, which most programs never need
        )

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
