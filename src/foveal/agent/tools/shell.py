"""The shell tool (`run`): runs a command in the working folder.

1. A command has no terminal, no input, its own process group, and an environment without secrets. It runs in the
   sandbox, if there is one, unless the call says otherwise.
2. The answer is the output of both streams in order, then `exit status N`.
3. Processes that a command leaves running are ended with it; a command that takes too long is ended itself.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from foveal.agent.permissions.command_rules import SHELL_TOOL, find_program
from foveal.agent.permissions.sandbox import Sandbox
from foveal.agent.tool import Arguments, InvalidArguments, OutputListener, Tool, ToolOutput
from foveal.agent.tools.process_group import ProcessResult, command_environment, run_process
from foveal.agent.tools.workspace import Workspace
from foveal.core.wire.safe_print import visible

DEFAULT_COMMAND_TIMEOUT_S: Final = 120.0
MAX_COMMAND_TIMEOUT_S: Final = 600.0
_SHELL_OPTIONS: Final = ("--noprofile", "--norc", "-c", "--")
"""No start file of the shell is read, so that exactly the text of the command runs."""
_SANDBOX_SYMPTOMS: Final = re.compile(
    r"read-only file system|EROFS|operation not permitted|EPERM|name resolution|could not resolve|"
    r"name or service not known|nodename nor servname|getaddrinfo|ENOTFOUND|EAI_AGAIN|network is unreachable|"
    r"ENETUNREACH|no address associated with hostname|device or resource busy|cross-device link|EXDEV",
    re.I,
)
_MAX_SYMPTOM_CHARS: Final = 4_000
_MAX_TOUCHED_PATHS: Final = 50
_MAX_SHOWN_CHARS: Final = 2_000
_MAX_COMMAND_CHARS_IN_QUESTION: Final = 60
"""A longer command is shown above the question instead of in it."""
TAB_MARK: Final = "␉ "
"""Shown for a tab, which looks like spaces."""
READS_ONLY_NOTE: Final = "[foveal: in plan mode, commands have no network and cannot write]\n"
_NOT_ON_ONE_LINE: Final = re.compile(r"[\n\t]|  ")
"""What a wrapped line does not show as it is."""


class _CommandSettings(NamedTuple):
    """What all commands of a tool share."""

    workspace: Workspace
    environment: Mapping[str, str]
    timeout_s: float
    sandbox: Sandbox | None
    network: bool
    reads_only: Callable[[], bool]


def shell_tool(
    workspace: Workspace,
    *,
    timeout_s: float = DEFAULT_COMMAND_TIMEOUT_S,
    max_timeout_s: float = MAX_COMMAND_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
    sandbox: Sandbox | None = None,
    network: bool = False,
    reads_only: Callable[[], bool] = lambda: False,
) -> Tool:
    """Return the shell tool; commands get `environment` unchanged, by default this process's without secrets.

    With a sandbox, commands run in it unless the model sets `outside_sandbox`; `network` allows them the network
    there. While `reads_only` returns True, they have no network there, and cannot write in the working folder. The
    approval of a call covers `outside_sandbox` too."""
    env = command_environment(os.environ) if environment is None else dict(environment)
    settings = _CommandSettings(workspace, env, min(timeout_s, max_timeout_s), sandbox, network, reads_only)
    return Tool(
        name=SHELL_TOOL,
        description=_description(sandbox, network=network),
        parameters=_parameters(timeout_s, max_timeout_s, has_sandbox=sandbox is not None),
        run=partial(_run_command, settings),
        run_live=partial(_run_command, settings),
        describe=_describe_call,
        preview=_preview_command,
        needs_approval=True,
        timeout=max_timeout_s + 10,
    )


def _description(sandbox: Sandbox | None, *, network: bool) -> str:
    text = (
        "Run a command with the shell in the working folder, and get what it prints and its exit status. It "
        "has no input and no terminal; what it leaves in the background is ended with it."
    )
    if sandbox is None:
        return text
    reach = "" if network else "has no network and "
    return (
        f"{text} It runs in a sandbox: it {reach}can write only in the working folder, except .git, and in /tmp, "
        "and does not see the hidden folders of the home."
    )


def _parameters(timeout_s: float, max_timeout_s: float, *, has_sandbox: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "command": {"type": "string", "minLength": 1, "maxLength": 100_000},
        "timeout": {
            "type": "number",
            "minimum": 0.1,
            "maximum": max_timeout_s,
            "description": f"Seconds, {timeout_s:g} if not given",
        },
    }
    if has_sandbox:
        properties["outside_sandbox"] = {
            "type": "boolean",
            "description": "Only for a command that cannot work in the sandbox; the user is asked each time",
        }
    return {
        "type": "object",
        "properties": properties,
        "required": ["command"],
        "additionalProperties": False,
    }


def _describe_call(given: Arguments) -> str:
    where = " outside of the sandbox" if given.get("outside_sandbox") else ""
    return f"{SHELL_TOOL}{where}: {command_on_one_line(given['command'])}"


def _preview_command(given: Arguments) -> str:
    """Return the whole command where one line of the question may not show all of it."""
    command = given["command"]
    is_plain = len(command) <= _MAX_COMMAND_CHARS_IN_QUESTION and not _NOT_ON_ONE_LINE.search(command)
    return "" if is_plain else visible(command).replace("\t", TAB_MARK)


def command_on_one_line(command: str) -> str:
    """Return a command for the user who allows it: complete, except that a very long one is cut with a note."""
    shown = visible(command).replace("\n", " ⏎ ").replace("\t", TAB_MARK)
    if len(shown) <= _MAX_SHOWN_CHARS:
        return shown
    return f"{shown[:_MAX_SHOWN_CHARS]}… (+{len(shown) - _MAX_SHOWN_CHARS:,} characters)"


async def _run_command(
    where: _CommandSettings, given: Arguments, on_output: OutputListener | None = None
) -> ToolOutput:
    command, timeout_s = given["command"], float(given.get("timeout", where.timeout_s))
    if "\0" in command:
        raise InvalidArguments("A command cannot have a NUL character in it; it was not run.")
    sandbox = None if given.get("outside_sandbox") else where.sandbox
    argv, reads_only = _shell_argv(command, where.workspace.root), where.reads_only()
    network = where.network and not reads_only
    result = await run_process(
        argv if sandbox is None else sandbox.wrap(argv, network=network, reads_only=reads_only),
        cwd=where.workspace.root,
        env=where.environment,
        timeout_s=timeout_s,
        on_output=on_output,
    )
    line_break = "" if result.output.endswith("\n") or not result.output else "\n"
    notes = _status_lines(result, timeout_s)
    if sandbox is not None and _looks_blocked(result):
        notes.insert(0, READS_ONLY_NOTE if reads_only else _sandbox_note(sandbox, network=network))
    return ToolOutput(
        content="".join([result.output, line_break, *notes]),
        error=result.status != 0 or result.timed_out,
        touched=mentioned_paths(command, where.workspace),
    )


def _shell_argv(command: str, root: Path) -> list[str]:
    # A project may have a program of the same name in the search path.
    found = find_program("bash", folder=root, outside_of=[root], search_path=None)
    for shell in ("/bin/bash", "/usr/bin/bash", found):
        if os.access(shell, os.X_OK):
            return [shell, *_SHELL_OPTIONS, command]
    return ["/bin/sh", "-c", "--", command]


def _looks_blocked(result: ProcessResult) -> bool:
    """Return whether a command has failed with an error that the sandbox causes."""
    return result.status != 0 and bool(_SANDBOX_SYMPTOMS.search(result.output[-_MAX_SYMPTOM_CHARS:]))


def _sandbox_note(sandbox: Sandbox, *, network: bool) -> str:
    blocked = "" if network else "the network and "
    return (
        f"[foveal: the sandbox blocks {blocked}writes outside of {visible(str(sandbox.workspace))} and /tmp, and "
        "in .git; if the command needs that, outside_sandbox asks the user]\n"
    )


def _status_lines(result: ProcessResult, timeout_s: float) -> list[str]:
    """Return the lines after the output."""
    lines = []
    if result.had_invalid_utf8:
        lines.append("[foveal: bytes that are not UTF-8 are shown as �]\n")
    if result.had_orphans:
        lines.append("[foveal: it had left processes in the background, which were ended]\n")
    if result.timed_out:
        lines.append(f"[foveal: it was stopped after {timeout_s:g} seconds]\n")
    if result.status >= 0:
        return [*lines, f"exit status {result.status}"]
    with suppress(ValueError):
        return [*lines, f"exit status {128 - result.status} ({signal.Signals(-result.status).name})"]
    return [*lines, f"exit status {128 - result.status}"]


def mentioned_paths(command: str, workspace: Workspace) -> tuple[str, ...]:
    """Return the existing files and folders of the workspace that a command mentions, without its flags."""
    words: list[str] = []
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    with suppress(ValueError):  # an unclosed quotation: the words before it count
        words.extend(lexer)
    found: dict[str, None] = {}
    for word in words:
        if word.startswith("-") or len(found) >= _MAX_TOUCHED_PATHS:
            continue
        with suppress(InvalidArguments, OSError):
            path = workspace.resolve(word)
            if path != workspace.root and path.exists():
                found[str(path)] = None
    return tuple(found)
