"""Branches: parts of the work that fold to their result, for your code and as tools of the model."""

from foveal.branches.branch import Branch
from foveal.branches.model_tools import answer, tools
from foveal.core.engine.branches import BranchStatus

__all__ = ["Branch", "BranchStatus", "answer", "tools"]
