"""Facts about a tool call, for the decision whether it needs the user's approval.

`call_facts` looks at the disk: it resolves links, finds programs and recognises protected paths. The decision is
made by `permissions.decision.decide`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from foveal.agent.permissions.command_rules import (
    SHELL_TOOL,
    SimpleCommand,
    find_program,
    parse_command_line,
    scan_command_line,
)
from foveal.agent.permissions.decision import CallFacts
from foveal.agent.permissions.program_kinds import (
    accompanies_commit,
    commits,
    deletes_only_named,
    may_delete,
    only_reads,
)
from foveal.agent.permissions.protected_paths import (
    configures_programs,
    hook_names,
    protected_in,
    protected_part,
)
from foveal.agent.tool import Arguments, InvalidArguments
from foveal.agent.tools.workspace import Workspace
from foveal.core.wire.safe_print import visible

CHANGING_FILE_TOOLS: Final = ("write", "edit")
MAX_KEPT_FILES: Final = 100
"""Most files without a copy that a command gets read-only; with more, it asks."""
Danger = Literal["none", "possible", "named"]
_FOLDER_CHANGES: Final = ("cd", "pushd", "popd")


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
        return _command_facts(arguments, workspace, outside_of, search_path)
    if tool in CHANGING_FILE_TOOLS:
        return _file_facts(tool, str(arguments.get("path", "")), workspace)
    return CallFacts(tool=tool, project=str(workspace.root))


def _command_facts(
    arguments: Arguments, workspace: Workspace, outside_of: Iterable[Path], search_path: str | None
) -> CallFacts:
    text, root = str(arguments.get("command", "")), workspace.root
    line, scanned = parse_command_line(text), scan_command_line(text)
    words = (
        word.replace("\\", "")
        for words in (*scanned.commands, scanned.writes, scanned.appends)
        for word in words
    )
    folders = tuple(Path(os.path.realpath(folder)) for folder in outside_of)
    programs = [
        (words, find_program(words[0], folder=root, outside_of=folders, search_path=search_path))
        for words in line.commands
    ]
    commands = tuple(
        SimpleCommand(words=words, program=program, only_reads=_only_reads(words, program, workspace))
        for words, program in programs
    )
    return CallFacts(
        tool=SHELL_TOOL,
        project=str(root),
        line=line,
        commands=commands,
        leaves_sandbox=bool(arguments.get("outside_sandbox")),
        protected=protected_in((text, *words), root),
        overwrites=_overwritten(scanned.writes, workspace),
        runs_hooks=any(command.words[:1] == ("git",) for command in commands) and bool(hook_names(root)),
    )


def danger_to(files: Collection[str], call: CallFacts) -> Danger:
    """Return whether a command line names some files, or folders around them, as what it deletes or overwrites. A
    line that changes its folder may name any."""
    if call.line is None or not files:
        return "none"
    scanned = scan_command_line(call.line.text)
    programs = {command.words: command.program for command in call.commands}
    deleting = [
        words
        for words in scanned.commands
        if may_delete(words, call.line.text, programs.get(words, "")) or words[0] in _FOLDER_CHANGES
    ]
    clear = [words for words in deleting if deletes_only_named(words)]
    named = [*scanned.writes, *(word for words in clear for word in words[1:])]
    places = [os.path.realpath(os.path.join(call.project, word)) for word in named]
    if any(Path(file).is_relative_to(place) for file in files for place in places):
        return "named"
    is_expanded = any("$" in word or "`" in word for word in scanned.writes)
    is_known = scanned.is_clear and clear == deleting and not is_expanded
    return "none" if is_known else "possible"


def commits_only(command: str) -> bool:
    """Return whether a command line stages or commits, and runs nothing else that could change the repository."""
    scanned = scan_command_line(command)
    return (
        scanned.is_clear
        and all(target == os.devnull for target in (*scanned.writes, *scanned.appends))
        and any(map(commits, scanned.commands))
        and all(map(accompanies_commit, scanned.commands))
    )


def _overwritten(targets: Iterable[str], workspace: Workspace) -> str:
    """Return the first target of a redirection that is a file with content, or may be."""
    for target in targets:
        if target.startswith(("/dev/", "/tmp/")):
            continue
        with suppress(InvalidArguments, OSError):
            path = workspace.resolve(target)
            if "$" in target or "`" in target or (path.exists() and os.path.getsize(path)):
                return visible(target)
    return ""


def _only_reads(words: tuple[str, ...], program: str, workspace: Workspace) -> bool:
    """Return whether a command of plain words only prints, and names no file outside of the workspace."""
    if not only_reads(words, program):
        return False
    try:
        for word in {word for word in words[1:] if not word.startswith("-")}:
            workspace.resolve(word)
    except InvalidArguments:
        return False
    return words[0] != "git" or not configures_programs(workspace.root)


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
