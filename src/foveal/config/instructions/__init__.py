"""Instruction files (AGENTS.md, preferences.md): finding, reading, showing them."""

from foveal.config.instructions.files import InstructionFiles, fit_files
from foveal.config.instructions.rules import (
    ROOT_MARKERS,
    WITHDRAWN_PREFIX,
    InstructionFile,
    InstructionRules,
    folders_between,
    instruction_set,
    paths_in,
)

__all__ = [
    "ROOT_MARKERS",
    "WITHDRAWN_PREFIX",
    "InstructionFile",
    "InstructionFiles",
    "InstructionRules",
    "fit_files",
    "folders_between",
    "instruction_set",
    "paths_in",
]
