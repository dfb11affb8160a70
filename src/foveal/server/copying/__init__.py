"""Copy of a server's data between a folder, a store file and a PostgreSQL database.

1. The source is only read. The target keeps what it has: a session or row that exists there with other content is
   an error, and is left as it is.
2. Everything is read back from the target and compared: events by their encoded bytes, rows column by column.
3. A copy that was interrupted is run again: it compares what is there, and continues after it.
4. Events and rows are copied in pages of about `PAGE_BYTES`, so memory does not grow with their number.

Copied: all sessions with titles, times, erasures and checkpoints, and the service's tables. Left out: the search
index, which the first search of a session builds again, and the job engine's own state: open jobs are handed to the
engine again.
"""

from foveal.server.copying.checked_copy import PAGE_BYTES, CopyProgress
from foveal.server.copying.database_copy import copy_database, copy_place

__all__ = ["PAGE_BYTES", "CopyProgress", "copy_database", "copy_place"]
