"""Facts about a tool call, for the decision whether it needs the user's approval.

`call_facts` looks at the disk: it resolves links, finds programs and recognises protected paths. The decision is
made by `permissions.decision.decide`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from foveal.agent.permissions.command_rules import SHELL_TOOL, SimpleCommand, find_program, parse_command_line
from foveal.agent.permissions.decision import CallFacts
from foveal.agent.permissions.protected_paths import protected_part, protected_text, protected_word
from foveal.agent.tool import Arguments, InvalidArguments
from foveal.agent.tools.workspace import Workspace

CHANGING_FILE_TOOLS: Final = ("write", "edit")


def call_facts(
    tool: str,
    arguments: Arguments,
    workspace: Workspace,
    *,
    project_folders: Iterable[Path] = (),
    search_path: str | None = None,
) -> CallFacts:
    """Return the facts about a call.

    Rules cannot name programs in the workspace or in `project_folders`. `search_path` is the PATH of commands, by
    default this process's."""
    if tool == SHELL_TOOL:
        outside_of = (workspace.root, *project_folders)
        return _command_facts(arguments, workspace.root, outside_of, search_path)
    if tool in CHANGING_FILE_TOOLS:
        return _file_facts(tool, str(arguments.get("path", "")), workspace)
    return CallFacts(tool=tool, project=str(workspace.root))


def _command_facts(
    arguments: Arguments, root: Path, outside_of: Iterable[Path], search_path: str | None
) -> CallFacts:
    text = str(arguments.get("command", ""))
    line = parse_command_line(text)
    folders = tuple(Path(os.path.realpath(folder)) for folder in outside_of)
    commands = tuple(
        SimpleCommand(
            words=words,
            program=find_program(words[0], folder=root, outside_of=folders, search_path=search_path),
        )
        for words in line.commands
    )
    named = [word for words in line.commands for word in words]
    return CallFacts(
        tool=SHELL_TOOL,
        project=str(root),
        line=line,
        commands=commands,
        leaves_sandbox=bool(arguments.get("outside_sandbox")),
        protected=protected_text(text, root) if line.problem else protected_word(named, root),
    )


def _file_facts(tool: str, path: str, workspace: Workspace) -> CallFacts:
    try:
        is_inside = workspace.resolve(path).is_relative_to(workspace.root)
    except InvalidArguments:
        is_inside = False
    return CallFacts(
        tool=tool,
        project=str(workspace.root),
        protected=protected_part(path, workspace.root),
        is_inside=is_inside,
    )
