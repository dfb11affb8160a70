"""What SQLite reports, in words that say what to do.

Whatever goes wrong, the transaction in progress is undone as a whole: what had been appended before is intact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import apsw
import zstandard

from foveal.errors import StoreError, StoreUnusable, UnreadableEvent

_ADVICE: Final[tuple[tuple[type[apsw.Error], str], ...]] = (
    (apsw.NotADBError, "is not a store, nor any other SQLite file: choose another path"),
    (
        apsw.CorruptError,
        "is damaged: copy it away, then restore a backup or run `sqlite3 FILE .recover` on the copy",
    ),
    (
        apsw.BusyError,
        "is locked by another process, which did not let go in time: end that process or try again",
    ),
    (apsw.LockedError, "is locked by another connection, which did not let go in time: try again"),
    (apsw.FullError, "could not grow, the disk is full: make room and try again; nothing was half written"),
    (
        apsw.ReadOnlyError,
        "cannot be written: the file, its folder or the disk is read-only; change that or the path",
    ),
    (apsw.PermissionsError, "may not be used by this user: change its owner or its permissions"),
    (
        apsw.CantOpenError,
        "cannot be opened: see that it and its folder exist and that this user may read and write both",
    ),
    (
        apsw.IOError,
        "could not be read or written: a quota or the disk is full, or the disk fails; make room and try again",
    ),
    (apsw.SchemaChangeError, "was changed by another program while in use: close it there and open it again"),
)


@contextmanager
def told(path: str) -> Iterator[None]:
    """Turn errors of SQLite and of the compression into ours."""
    try:
        yield
    except apsw.TooBigError:
        raise StoreError(
            "an event is larger than SQLite can hold (1 GB): split it; nothing was stored"
        ) from None
    except apsw.Error as problem:
        raise StoreUnusable(f"{path} {_advice(problem)} ({problem})") from problem
    except UnicodeEncodeError:
        raise StoreError(
            "the path of a store and the id and title of a session must be valid Unicode; nothing was stored"
        ) from None
    except (zstandard.ZstdError, UnreadableEvent) as problem:
        raise StoreUnusable(f"{path} is damaged: an event in it cannot be read ({problem})") from problem


def _advice(problem: apsw.Error) -> str:
    for kind, advice in _ADVICE:
        if isinstance(problem, kind):
            return advice
    return "could not be used"
