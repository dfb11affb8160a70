"""Instruction files (AGENTS.md, preferences) and the rules for them."""

from foveal.instructions.instruction_files import InstructionFiles
from foveal.instructions.rules import (
    MARKERS,
    WITHDRAWN,
    InstructionFile,
    InstructionRules,
    fit,
    folders,
    instruction_set,
    paths_in,
)

__all__ = [
    "MARKERS",
    "WITHDRAWN",
    "InstructionFile",
    "InstructionFiles",
    "InstructionRules",
    "fit",
    "folders",
    "instruction_set",
    "paths_in",
]
