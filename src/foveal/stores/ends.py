"""Where sessions end, as far as one store can know that without looking.

SQLite has a number for each connection that changes when anybody else has written into the file. While it is the
same, a session ends where this store has left it, and nothing needs to be read to tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_MOST: Final = 10_000
"""Sessions that are remembered."""


class Ends:
    """For one event loop."""

    def __init__(self) -> None:
        self.begun = 0
        """Appends that were begun: what was read beside one of them says nothing about the end."""
        self._known: dict[str, tuple[int, int]] = {}
        self._doubtful: set[str] = set()

    def known(self, session: str, version: int | None, end: int) -> bool:
        """While the file has this version, the session ends there."""
        return version is not None and self._known.get(session) == (version, end)

    def keep(self, session: str, version: int | None, end: int) -> None:
        """The session ended there after the file had this version."""
        if version is None or session in self._doubtful:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[session] = version, end

    @contextmanager
    def appending(self, session: str, version: int | None, end: int) -> Iterator[None]:
        """Something is appended to a session, which then ends there. When that is cancelled, nobody can say when it
        will be carried out, so nothing is known of this session any more."""
        self.begun += 1
        self._known.pop(session, None)
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._doubtful.add(session)
            raise
        finally:
            self.begun += 1
        self.keep(session, version, end)

    @contextmanager
    def unknown(self) -> Iterator[None]:
        """Something else is done to sessions: what was known before, or is read meanwhile, does not hold."""
        try:
            yield
        finally:
            self.begun += 1
            self._known.clear()
