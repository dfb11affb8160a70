"""Tools that a model can call: files, commands, the log itself, and those of MCP servers.

tool.py        what a tool is; the toolbox, which answers every call
arguments.py   what a model wrote, checked
"""

from __future__ import annotations

from foveal.tools.tool import Interrupted, Output, Tool, Toolbox

__all__ = ["Interrupted", "Output", "Tool", "Toolbox"]
