"""Store of sessions in a SQLite file."""

from foveal.stores.search_words import searchable_text, split_into_pieces, text_to_index
from foveal.stores.sqlite.full_text import FullTextIndex
from foveal.stores.sqlite.schema import STORE_APPLICATION_ID, STORE_SCHEMA_VERSION
from foveal.stores.sqlite.store_files import LastSeqCache, StoreFiles

__all__ = [
    "STORE_APPLICATION_ID",
    "STORE_SCHEMA_VERSION",
    "FullTextIndex",
    "LastSeqCache",
    "StoreFiles",
    "searchable_text",
    "split_into_pieces",
    "text_to_index",
]
