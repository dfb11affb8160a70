"""References in view: which results refer to lines of which other messages.

A clip can show lines of a result as a reference to another message (`foveal.core.reduction.repeated_lines`). It is
valid while that message is shown as it was when the clip was made. The view reports every change here, so a
reference that is no longer valid is known at once, without a search.
"""

from __future__ import annotations

from collections.abc import Iterator


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
