"""All items that a project brings, for a working directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveal.config.instructions.files import InstructionFiles
from foveal.config.load import load
from foveal.config.memory_file import project_memory_item
from foveal.config.project import EveryItem, ItemAnswer, ItemTrust, Trust


def project_items(
    cwd: Path | str = ".", *, flags: Mapping[str, Any] | None = None, trust: ItemTrust | None = None
) -> tuple[ItemAnswer, ...]:
    """Return the MCP servers, settings, instruction files and memory of a project, and which the user allows.

    These are the items that would be used if the user allowed all of them: settings of the project can add names of
    instruction files, or ignore folders. Raises `BadConfig`."""
    config = load(cwd, flags=flags, trust=EveryItem())
    files = InstructionFiles(cwd, rules=config.rules, trust=EveryItem())
    memory = project_memory_item(config.root) if config.memory.enabled else None
    answers = trust or Trust()
    return tuple(
        ItemAnswer(item, answers.state(config.root, item))
        for item, _ in (*config.project_items, *files.items(), *([memory] if memory else []))
    )
