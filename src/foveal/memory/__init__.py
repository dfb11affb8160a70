"""Memory: what a user wants to be known in every conversation, as a log with a view."""

from foveal.memory.facts import EntryKind, EntryOrigin, EntrySource
from foveal.memory.fold import MemoryEntry, MemoryState, fold_memory
from foveal.memory.markdown import FileEdits, read_edits, render
from foveal.memory.memory import Memory, MemoryNote, QuotedLog
from foveal.memory.proposed import Proposal, propose_from
from foveal.memory.spoken import SpokenRequest, spoken_requests
from foveal.memory.tools import MEMORY_TOOL_NAMES, MemoryTools, tools

__all__ = [
    "MEMORY_TOOL_NAMES",
    "EntryKind",
    "EntryOrigin",
    "EntrySource",
    "FileEdits",
    "Memory",
    "MemoryEntry",
    "MemoryNote",
    "MemoryState",
    "MemoryTools",
    "Proposal",
    "QuotedLog",
    "SpokenRequest",
    "fold_memory",
    "propose_from",
    "read_edits",
    "render",
    "spoken_requests",
    "tools",
]
