"""Recall over many past sessions: stores of Foveal and transcripts of other agents, read-only.

archive = Archive([TranscriptSource(Path("~/.claude/projects").expanduser())])
print(await archive.sessions(SessionFilter(text="flaky test")))
print(await archive.search("race in the parser"))
print(await archive.read("s1f3a9c2e", "e12-e20"))
"""

from foveal.recall.archive.archive import Archive
from foveal.recall.archive.session_filter import SessionFilter
from foveal.recall.archive.source import ArchiveSource, RecallProblem
from foveal.recall.archive.store_sources import PostgresSource, SqliteSource, StoreSource
from foveal.recall.archive.transcript_source import TranscriptSource

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
