"""The SQLite store."""

from foveal.stores.sqlite.full_text import TextIndex, pieces, prepared, searchable
from foveal.stores.sqlite.schema import APPLICATION, VERSION
from foveal.stores.sqlite.store import LastSeqCache

__all__ = ["APPLICATION", "VERSION", "LastSeqCache", "TextIndex", "pieces", "prepared", "searchable"]
