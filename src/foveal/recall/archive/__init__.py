"""The archive of past sessions: stores of Foveal and transcripts of other agents, read-only.

archive = Archive([TranscriptSource(Path("~/.claude/projects").expanduser())])
print(await archive.sessions(SessionFilter(text="flaky test")))
print(await archive.search("race in the parser"))
print(await archive.read("s1f3a9c2e", "e12-e20"))
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foveal.recall.archive.archive import Archive
    from foveal.recall.archive.listing import SessionFilter
    from foveal.recall.archive.source import ArchiveSource, RecallProblem
    from foveal.recall.archive.store_sources import PostgresSource, SqliteSource, StoreSource
    from foveal.recall.archive.transcript_source import TranscriptSource
else:  # `foveal sessions` needs none of these, and loading the index takes a while
    from importlib import import_module

    _MODULE_OF = {
        "Archive": "archive",
        "ArchiveSource": "source",
        "PostgresSource": "store_sources",
        "RecallProblem": "source",
        "SessionFilter": "listing",
        "SqliteSource": "store_sources",
        "StoreSource": "store_sources",
        "TranscriptSource": "transcript_source",
    }

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'foveal.recall.archive' has no attribute {name!r}")
        return getattr(import_module(f"foveal.recall.archive.{_MODULE_OF[name]}"), name)


__all__ = [
    "Archive",
    "ArchiveSource",
    "PostgresSource",
    "RecallProblem",
    "SessionFilter",
    "SqliteSource",
    "StoreSource",
    "TranscriptSource",
]
