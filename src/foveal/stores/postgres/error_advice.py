"""Errors of psycopg as `StoreError`s that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
import zstandard

from foveal.errors import StoreError, StoreUnusable, UnreadableEvent

_ADVICE: Final[dict[str, str]] = {
    "28P01": "refused the password of this user: check the URL's user and password",
    "28000": "refused this user: check the URL's user, and the server's pg_hba.conf",
    "3D000": "does not exist: create the database first (`createdb`), or check the URL",
    "53100": "could not grow, its disk is full: make room and try again; nothing was half written",
    "53200": "is out of memory: try again, or give the database server more",
    "53300": "has no connection left: raise the server's max_connections, or allow fewer per process",
    "25006": "is read-only, perhaps a standby: name the primary in the URL, or end its read-only mode",
    "57P01": "was shut down, or an administrator ended the connection: try again when it runs",
    "57P02": "was stopped after a crash of one of its processes: try again when it runs",
    "57P03": "is starting up or shutting down: try again in a moment",
    "57P04": "was dropped: restore it from a backup, or check the URL",
    "57014": "took too long for an operation: try again; if it happens often, the database is overloaded",
    "55P03": "has rows locked by another process, which did not release them in time: try again",
    "40P01": "ended one of two operations that waited for each other: try again",
    "40001": "was changed by another process at the same time: try again",
    "25P03": "ended a transaction in which nothing happened for too long: try again",
    "42501": "does not permit this: let the owner run `foveal database migrate URL --grant ROLE` with this role",
    "42P01": "lacks a table: run `foveal database migrate` with the role that owns the database",
    "3F000": "lacks Foveal's tables: run `foveal database migrate` with the role that owns the database",
    "58030": "could not read or write its disk: check the database server's disk and log",
    "58P01": "lacks a file of its own: check the database server's disk and log, and restore a backup",
    "XX001": "is damaged: copy its folder away, then restore a backup",
    "XX002": "has a damaged index: run REINDEX on it, and check the server's disk",
}
"""What to do, by SQLSTATE; the words after the name of the database."""

_UNREACHABLE: Final = "cannot be reached: check that the server runs, and the host and port of the URL"
_LOST: Final = "ended the connection, or the network did: try again"
_LOSS_STATES: Final = ("57P01", "57P02", "57P04", "57P05", "25P03")
"""States after which the server has closed the connection, beside class 08."""


class ConnectionLost(StoreUnusable):
    """The connection broke during a transaction; `outcome_unknown` when COMMIT may have been carried out."""

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class TransactionUndone(StoreUnusable):
    """The server has undone the transaction because of a concurrent one: it can be run again."""


class BlobMissing(StoreError):
    """An append refers to a blob that was erased meanwhile; nothing was stored."""


@contextmanager
def translate_errors(name: str, *, connecting: bool = False, committing: bool = False) -> Iterator[None]:
    """Raise errors of psycopg and zstd as `StoreError`s; `name`: the database without its password.

    psycopg's error is not kept as the cause, because it refers to the URL with its password."""
    try:
        yield
    except psycopg.Error as problem:
        raise _translate(name, problem, connecting=connecting, committing=committing) from None
    except UnicodeEncodeError:
        raise StoreError("the id and title of a session must be valid Unicode; nothing was stored") from None
    except (zstandard.ZstdError, UnreadableEvent) as problem:
        raise StoreUnusable(f"{name} is damaged: an event in it cannot be read ({problem})") from problem


def _translate(name: str, problem: psycopg.Error, *, connecting: bool, committing: bool) -> StoreError:
    state = problem.sqlstate or ""
    reason = " ".join(f"{state} {problem}".split())
    if connecting:
        return StoreUnusable(f"{name} {_ADVICE.get(state) or _advice_from_text(reason)} ({reason})")
    if _is_connection_loss(problem):
        unknown = "; whether the last operation was carried out is unknown" if committing else ""
        return ConnectionLost(
            f"{name} {_ADVICE.get(state, _LOST)}{unknown} ({reason})", outcome_unknown=committing
        )
    if state in ("40P01", "40001"):
        return TransactionUndone(f"{name} {_ADVICE[state]} ({reason})")
    if state == "23503":  # the foreign key of `cut` is the only one
        return BlobMissing(f"{name}: a text was erased while it was stored again ({reason}): try again")
    if state == "54000":  # program_limit_exceeded
        return StoreError(f"{name} cannot hold a value of this size ({reason}); nothing was stored")
    return StoreUnusable(f"{name} {_ADVICE.get(state, 'could not be used')} ({reason})")


def _is_connection_loss(problem: psycopg.Error) -> bool:
    """Return whether the connection broke; libpq's own errors have no SQLSTATE."""
    if not isinstance(problem, psycopg.OperationalError) or isinstance(
        problem, psycopg.errors.PipelineAborted
    ):
        return False
    state = problem.sqlstate
    return state is None or state.startswith("08") or state in _LOSS_STATES


def _advice_from_text(reason: str) -> str:
    """While connecting, libpq gives the server's error as text without its SQLSTATE."""
    for words, state in (
        ("password authentication failed", "28P01"),
        ("no password supplied", "28P01"),
        ("no pg_hba.conf entry", "28000"),
        ("does not exist", "3D000"),
        ("too many clients", "53300"),
        ("remaining connection slots", "53300"),
        ("starting up", "57P03"),
        ("shutting down", "57P03"),
    ):
        if words in reason:
            return _ADVICE[state]
    return _UNREACHABLE
