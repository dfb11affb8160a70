"""Store of sessions in a SQLite file."""

from foveal.stores.search_words import searchable_text
from foveal.stores.sqlite.full_text import FullTextIndex
from foveal.stores.sqlite.store_files import StoreFiles

__all__ = [
    "FullTextIndex",
    "StoreFiles",
    "searchable_text",
]
