"""Memory: what a user wants to be known in every conversation, as a log with a view."""

from foveal.memory.facts import EntryOrigin
from foveal.memory.file_tool import MemoryTool, memory_tool
from foveal.memory.files import MemoryFiles, MemoryFileVersion
from foveal.memory.fold import MemoryEntry
from foveal.memory.memory import Memory, MemoryNote, QuotedLog
from foveal.memory.model_tools import MemoryTools, tools
from foveal.memory.proposed import Proposal, propose_from
from foveal.memory.spoken import SpokenRequest, spoken_requests

__all__ = [
    "EntryOrigin",
    "Memory",
    "MemoryEntry",
    "MemoryFileVersion",
    "MemoryFiles",
    "MemoryNote",
    "MemoryTool",
    "MemoryTools",
    "Proposal",
    "QuotedLog",
    "SpokenRequest",
    "memory_tool",
    "propose_from",
    "spoken_requests",
    "tools",
]
