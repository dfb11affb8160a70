"""Line index: which messages of a view show a line as it was said, and which results refer to it.

The view tells the index which messages it shows. A text is read once, when it is first needed; a message that
leaves the view costs nothing until the entries of such messages are half of all.

The index holds every fourth line or so (`indexed_lines`). It serves to find runs of many lines: one line of a run
suffices, and the index takes a fraction of the memory of the texts. Which lines it holds depends on their text
only: every process finds the same.

`References` has the results that refer to lines of other messages. A clip can show lines of a result as a reference
to another message (`foveal.core.reduction.repeated_lines`). It is valid while that message is shown as it was when
the clip was made. The view reports every change here, so a reference that is no longer valid is known at once,
without a search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Final, Protocol, TypeAlias
from zlib import crc32


class References:
    """Tracks which references are no longer valid. Messages are named by the seq of their event."""

    def __init__(self) -> None:
        self._sources: dict[int, dict[int, tuple[int, ...]]] = {}
        """For each message with references, the messages that each of its parts refers to."""
        self._referring: dict[int, set[int]] = {}
        """For each message that others refer to, these others."""
        self._dangling: set[tuple[int, int]] = set()

    def __bool__(self) -> bool:
        """Whether any reference is no longer valid."""
        return bool(self._dangling)

    def dangling(self) -> Iterator[tuple[int, int]]:
        """Yield the messages and parts with a reference to something that has changed, oldest first."""
        yield from sorted(self._dangling)

    def set(self, seq: int, part: int, sources: tuple[int, ...], *, are_shown: bool = True) -> None:
        """Note that a part of a message refers to these messages from now on, or to none."""
        self._dangling.discard((seq, part))
        if sources:
            self._sources.setdefault(seq, {})[part] = sources
            for source in sources:
                self._referring.setdefault(source, set()).add(seq)
            if not are_shown:
                self._dangling.add((seq, part))
        elif (parts := self._sources.get(seq)) is not None:
            parts.pop(part, ())

    def source_changed(self, seq: int) -> None:
        """Note that a message is shown differently, or no longer."""
        for other in self._referring.pop(seq, ()):
            parts = self._sources.get(other, {})
            self._dangling.update((other, part) for part, sources in parts.items() if seq in sources)

    def forget(self, seq: int) -> None:
        """Note that a message shows no references any more."""
        for part in self._sources.pop(seq, ()):
            self._dangling.discard((seq, part))


MIN_INDEXED_LINE_CHARS: Final = 8
"""Shorter lines (blank ones, brackets) occur everywhere and identify nothing."""
MAX_HOLDERS_PER_LINE: Final = 4
"""Messages that are offered for one line: the newest that show it."""
MAX_INDEXED_TEXT_CHARS: Final = 500_000
"""Longer texts are not indexed: splitting them would take longer than a turn may."""
MAX_RECENT_CHARS: Final = 400_000
"""Characters of the texts that are kept in lines, as long as they are not the last one."""
_MAX_TUPLE_HOLDERS: Final = 8
"""Messages that are kept in a tuple; a tuple of more would take too long to extend."""
_MIN_DEAD_ENTRIES: Final = 2_000
"""Fewer entries of messages that are no longer shown are not worth a clean-up."""

_MAX_DEAD_RATIO: Final = 4
"""How many times as many such entries are cleaned up at once, without waiting for a quiet moment."""
_MAX_PENDING: Final = 16
"""Messages that may wait for the next search: those of one or two turns."""


class TextSource(Protocol):
    """A message that is shown."""

    def verbatim_texts(self) -> Sequence[str]:
        """Return the texts that are shown as they were said."""
        ...


Holders: TypeAlias = int | tuple[int, ...] | list[int]
"""The messages that show a line, oldest first. Most lines have one or a few; the garbage collector walks neither
numbers nor tuples of numbers."""


def indexed_lines(lines: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places and keys of the lines that the index holds."""
    # A checksum chooses evenly where neighbouring lines differ in one character only: listings, tables, logs.
    # Encoding all lines at once takes half the time of encoding each.
    encoded = "\n".join(lines).encode("utf-8", "surrogatepass").split(b"\n")
    chosen = [place for place, checksum in enumerate(map(crc32, encoded)) if not checksum & 3]
    return [(place, hash(line)) for place in chosen if len(line := lines[place]) >= MIN_INDEXED_LINE_CHARS]


class SplitText:
    """A text with its lines."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines: list[str] = text.split("\n")

    @cached_property
    def keys(self) -> list[tuple[int, int]]:
        """Places and keys of the lines that the index holds."""
        return indexed_lines(self.lines)

    @cached_property
    def places(self) -> dict[str, int]:
        """The last place of each line."""
        return dict(zip(self.lines, range(len(self.lines)), strict=True))


class LineIndex:
    """Finds messages by their lines. Messages are named by the seq of their event."""

    def __init__(self) -> None:
        self._holders: dict[int, Holders] = {}
        """For each key of a line the messages that show it."""
        self._entries: dict[int, int] = {}
        """For each message that is indexed and shown, the number of its entries."""
        self._pending: dict[int, TextSource] = {}
        """Messages that are shown and not yet indexed."""
        self._left: set[int] = set()
        """Messages with entries that are no longer shown as they were indexed."""
        self._live = self._dead = 0
        self._recent: dict[int, SplitText] = {}
        """The texts that were split last, by their identity: a new result is searched first and indexed next, and
        the results that it repeats are often those that the one before it repeated."""
        self._recent_chars = 0

    def split(self, text: str) -> SplitText:
        """Return a text in lines."""
        known = self._recent.pop(id(text), None)
        if known is None:
            known = SplitText(text)
            self._recent_chars += len(text)
        while self._recent and self._recent_chars > MAX_RECENT_CHARS:
            oldest = self._recent.pop(next(iter(self._recent)))
            self._recent_chars -= len(oldest.text)
        self._recent[id(text)] = known
        return known

    def add(self, seq: int, shown: TextSource) -> None:
        """Note that a message is shown."""
        self._pending[seq] = shown

    def discard(self, seq: int) -> None:
        """Note that a message is no longer shown as it was said."""
        if self._pending.pop(seq, None) is None:
            entries = self._entries.pop(seq, 0)
            if entries:
                self._left.add(seq)
            self._live -= entries
            self._dead += entries

    def holders(self, keys: Iterable[tuple[int, int]], *, before: int) -> dict[int, tuple[int, ...]]:
        """Return for each place the newest messages older than `before` that show a line with its key; places
        without any are left out."""
        found: dict[int, tuple[int, ...]] = {}
        entries, known = self._entries, self._holders
        for place, key in keys:
            held = known.get(key)
            if held is None:
                continue
            if isinstance(held, int):
                if held < before and held in entries:
                    found[place] = (held,)
                continue
            # Most lines have few holders: a generator would take longer than the loop.
            newest = [
                seq for seq in held[: -MAX_HOLDERS_PER_LINE - 1 : -1] if seq < before and seq in entries
            ]
            if len(newest) < MAX_HOLDERS_PER_LINE < len(held):
                shown = (seq for seq in reversed(held) if seq < before and seq in entries)
                newest = list(islice(shown, MAX_HOLDERS_PER_LINE))
            if newest:
                found[place] = tuple(newest)
        return found

    def read_until(self, seq: int) -> None:
        """Index the messages before `seq` that are not yet indexed."""
        unread = [known for known in self._pending if known < seq]
        if not self._left.isdisjoint(
            unread
        ):  # a message is shown differently: its old entries would count again
            self._clean_up()
        for pending in unread:
            self._index(pending, self._pending.pop(pending).verbatim_texts())
        if self._dead > _MAX_DEAD_RATIO * max(_MIN_DEAD_ENTRIES, self._live):
            self._clean_up()

    def catch_up(self, *, is_quiet: bool) -> None:
        """Do what later searches would have to do. A quiet moment, in which nothing else is done, serves to clean
        up; where many messages came at once, they are indexed together with them, not with the next one."""
        if len(self._pending) > _MAX_PENDING:
            self.read_until(max(self._pending) + 1)
        if is_quiet and self._dead > max(_MIN_DEAD_ENTRIES, self._live):
            self._clean_up()

    def _index(self, seq: int, texts: Sequence[str]) -> None:
        entries = 0
        known = self._holders
        for text in (text for text in texts if len(text) <= MAX_INDEXED_TEXT_CHARS):
            for _, key in self.split(text).keys:
                held = known.get(key)
                known[key] = seq if held is None else _with_holder(held, seq)
                entries += 1
        self._entries[seq] = entries
        self._live += entries

    def _clean_up(self) -> None:
        """Forget the entries of messages that are no longer shown."""
        entries, holders = self._entries, self._holders
        # Most lines have one holder: these are chosen without a loop in Python for each.
        kept: dict[int, Holders] = {
            key: held for key, held in holders.items() if held.__class__ is int and held in entries
        }
        for key, held in holders.items():
            if not isinstance(held, int) and (shown := [seq for seq in held if seq in entries]):
                kept[key] = _compact_holders(shown)
        self._holders = kept
        self._left.clear()
        self._dead = 0


def _with_holder(held: Holders, seq: int) -> Holders:
    """Return the holders of a line with one more, if it is not among them."""
    if isinstance(held, int):
        return held if held == seq else (held, seq) if held < seq else (seq, held)
    if held[-1] >= seq:  # an older message, which is shown again or shown differently
        return held if seq in held else _compact_holders(sorted((*held, seq)))
    if isinstance(held, list):
        held.append(seq)
        return held
    return (*held, seq) if len(held) < _MAX_TUPLE_HOLDERS else [*held, seq]


def _compact_holders(seqs: list[int]) -> Holders:
    if len(seqs) == 1:
        return seqs[0]
    return tuple(seqs) if len(seqs) <= _MAX_TUPLE_HOLDERS else seqs
