"""The server's database: tokens, inbox, chats, schedules, jobs, digest index.

`Database` is what the modules that own tables use; SQLite and PostgreSQL implement it.
"""

from foveal.server.databases.database import Database, Transaction
from foveal.server.databases.sqlite_database import SqliteDatabase

__all__ = ["Database", "SqliteDatabase", "Transaction"]
