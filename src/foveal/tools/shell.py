"""The shell tool (`run`): runs a command in the working folder.

1. A command has no terminal, no input, its own process group, and an environment without secrets.
2. The answer is the output of both streams in order, then `exit status N`.
3. Processes that a command leaves running are ended with it; a command that takes too long is ended itself.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from foveal.core.wire.safe_print import visible
from foveal.tools.process_group import ProcessResult, run_process
from foveal.tools.tool import Arguments, Tool, ToolOutput
from foveal.tools.tool_arguments import InvalidArguments
from foveal.tools.workspace import Workspace

SHELL_TOOL: Final = "run"
"""Name of the tool."""
DEFAULT_COMMAND_TIMEOUT_S: Final = 120.0
MAX_COMMAND_TIMEOUT_S: Final = 600.0
_SECRET_NAME: Final = re.compile(
    r"API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|_KEY$|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|^(PG|MYSQL_?)?PASS$",
    re.I,
)
_NONINTERACTIVE: Final = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "NO_COLOR": "1",
}
_MAX_TOUCHED_PATHS: Final = 50
_MAX_SHOWN_CHARS: Final = 2_000


def shell_tool(
    workspace: Workspace,
    *,
    timeout_s: float = DEFAULT_COMMAND_TIMEOUT_S,
    max_timeout_s: float = MAX_COMMAND_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> Tool:
    """Return the shell tool; commands get `environment` unchanged, by default this process's without secrets."""
    env = without_secrets(os.environ) if environment is None else dict(environment)
    return Tool(
        name=SHELL_TOOL,
        description=(
            "Run a command with the shell in the working folder, and get what it prints and its exit status. It "
            "has no input and no terminal; what it leaves in the background is ended with it."
        ),
        parameters={
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1, "maxLength": 100_000},
                "timeout": {
                    "type": "number",
                    "minimum": 0.1,
                    "maximum": max_timeout_s,
                    "description": f"Seconds, {timeout_s:g} if not given",
                },
            },
            "required": ["command"],
            "additionalProperties": False,
        },
        run=partial(_run_command, workspace, env, min(timeout_s, max_timeout_s)),
        describe=lambda given: f"{SHELL_TOOL}: {command_on_one_line(given['command'])}",
        preview=lambda given: visible(given["command"]) if "\n" in given["command"].strip() else "",
        needs_approval=True,
        timeout=max_timeout_s + 10,
    )


def command_on_one_line(command: str) -> str:
    """Return a command for the user who allows it: complete, except that a very long one is cut with a note."""
    shown = visible(command.strip().replace("\n", " ⏎ ").replace("\t", " "))
    if len(shown) <= _MAX_SHOWN_CHARS:
        return shown
    return f"{shown[:_MAX_SHOWN_CHARS]}… (+{len(shown) - _MAX_SHOWN_CHARS:,} characters)"


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for non-interactive programs, without keys and other secrets."""
    return {
        name: value for name, value in environment.items() if not _SECRET_NAME.search(name)
    } | _NONINTERACTIVE


async def _run_command(
    workspace: Workspace, env: Mapping[str, str], default_timeout_s: float, given: Arguments
) -> ToolOutput:
    command, timeout_s = given["command"], float(given.get("timeout", default_timeout_s))
    if "\0" in command:
        raise InvalidArguments("A command cannot have a NUL character in it; it was not run.")
    shell = shutil.which("bash") or "/bin/sh"
    result = await run_process([shell, "-c", command], cwd=workspace.root, env=env, timeout_s=timeout_s)
    line_break = "" if result.output.endswith("\n") or not result.output else "\n"
    return ToolOutput(
        content="".join([result.output, line_break, *_status_lines(result, timeout_s)]),
        error=result.status != 0 or result.timed_out,
        touched=mentioned_paths(command, workspace),
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
