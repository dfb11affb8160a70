"""Opening a store's file: made for its owner only, recognised before anything is written to it."""

from __future__ import annotations

import os
import time
from typing import Final, Literal, TypeAlias

import apsw

from foveal.errors import StoreUnusable
from foveal.stores.schema import migrate, refuse_at_sight, refuse_foreign

Durability: TypeAlias = Literal["full", "normal"]
"""`full`: what was appended survives a power cut. `normal`: it survives the end of the process, and after a power
cut the newest appends may be missing, as if they had not been made."""

_LARGEST_WAL: Final = 8 << 20
"""Bytes that the file of the write-ahead log keeps after it was copied into the database."""


def opened(path: str, *, durability: Durability, timeout: float) -> apsw.Connection:
    """A connection that may write, to a file of this version's schema."""
    make(path)
    if not _has_log(path):
        _at_sight(path)
    connection = connected(path, timeout)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # a file that is refused stays as it is
        refuse_foreign(connection, path)
        if connection.readonly("main"):
            raise StoreUnusable(
                f"{path} cannot be written: change its permissions, or copy it to another place"
            )
        connection.pragma("secure_delete", 1)
        migrate(connection)
        use_wal(connection, timeout)
        connection.pragma("synchronous", durability)
        connection.pragma("journal_size_limit", _LARGEST_WAL)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    except BaseException:
        connection.close()
        raise
    return connection


def reader(path: str, *, timeout: float) -> apsw.Connection:
    """Another connection to a file that is open already; it never writes."""
    connection = connected(path, timeout)
    connection.pragma("query_only", 1)
    return connection


def connected(path: str, timeout: float) -> apsw.Connection:
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(int(timeout * 1000))
    connection.wal_autocheckpoint(0)
    return connection


def make(path: str) -> None:
    """Make the file with the permissions that SQLite then gives to those beside it; leave an existing one."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise StoreUnusable(f"{path} cannot be made: there is no folder {folder}; make it first")
    if os.path.isdir(path):
        raise StoreUnusable(f"{path} is a folder: name a file in it")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as problem:
        raise StoreUnusable(f"{path} cannot be made ({problem.strerror}): choose another folder") from problem
    _settle(folder)


def _has_log(path: str) -> bool:
    try:
        return os.path.getsize(f"{path}-wal") > 0
    except OSError:
        return False


def _at_sight(path: str) -> None:
    try:
        refuse_at_sight(path)
    except OSError as problem:
        raise StoreUnusable(
            f"{path} cannot be read ({problem.strerror}): change its permissions, or the path"
        ) from problem


def _settle(folder: str) -> None:
    """Make sure that the new file's name survives a power cut."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that may be written but not read, or a system without handles of folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def use_wal(connection: apsw.Connection, timeout: float) -> None:
    """Switch the file to the write-ahead log, which waits for no lock by itself."""
    until = time.monotonic() + timeout
    while True:
        try:
            mode = connection.pragma("journal_mode", "wal")
            break
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StoreUnusable(
            f"{connection.filename} cannot use a write-ahead log here: is it on a network disk?"
        )
