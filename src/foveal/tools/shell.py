"""The command tool: a line for the shell, run in the working folder.

1. It has no terminal and no input, a process group of its own, and an environment without secrets.
2. Its answer is what both streams said, in order, then `exit status N`.
3. Whatever it leaves running is ended with it; so is the command itself when it takes too long.
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
from foveal.tools.process_group import ProcessResult, execute
from foveal.tools.tool import Arguments, Tool, ToolOutput
from foveal.tools.tool_arguments import InvalidArguments
from foveal.tools.workspace import Workspace

NAME: Final = "run"
SECONDS: Final = 120.0
LONGEST: Final = 600.0
_SECRET: Final = re.compile(
    r"API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|_KEY$|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|^(PG|MYSQL_?)?PASS$",
    re.I,
)
_PLAIN: Final = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "NO_COLOR": "1",
}
_TOUCHED: Final = 50
_WIDTH: Final = 2_000


def run(
    workspace: Workspace,
    *,
    seconds: float = SECONDS,
    longest: float = LONGEST,
    environment: Mapping[str, str] | None = None,
) -> Tool:
    """The tool; `environment` is given to commands as it is, in place of ours without its secrets."""
    env = clean(os.environ) if environment is None else dict(environment)
    return Tool(
        name=NAME,
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
                    "maximum": longest,
                    "description": f"Seconds, {seconds:g} if not given",
                },
            },
            "required": ["command"],
            "additionalProperties": False,
        },
        run=partial(_run, workspace, env, min(seconds, longest)),
        describe=lambda given: f"{NAME}: {on_one_line(given['command'])}",
        preview=lambda given: visible(given["command"]) if "\n" in given["command"].strip() else "",
        changes=True,
        timeout=longest + 10,
    )


def on_one_line(command: str) -> str:
    """A command as whoever allows it must see it: all of it, unless it is very long, and that is said."""
    shown = visible(command.strip().replace("\n", " ⏎ ").replace("\t", " "))
    return shown if len(shown) <= _WIDTH else f"{shown[:_WIDTH]}… (+{len(shown) - _WIDTH:,} characters)"


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without keys and other secrets, for programs that nobody talks to."""
    return {name: value for name, value in environment.items() if not _SECRET.search(name)} | _PLAIN


async def _run(workspace: Workspace, env: Mapping[str, str], seconds: float, given: Arguments) -> ToolOutput:
    command, timeout = given["command"], float(given.get("timeout", seconds))
    if "\0" in command:
        raise InvalidArguments("A command cannot have a NUL character in it; it was not run.")
    shell = shutil.which("bash") or "/bin/sh"
    ran = await execute([shell, "-c", command], cwd=workspace.root, env=env, timeout=timeout)
    text = "".join(
        [ran.output, "" if ran.output.endswith("\n") or not ran.output else "\n", *_ending(ran, timeout)]
    )
    return ToolOutput(content=text, error=ran.status != 0 or ran.late, touched=named(command, workspace))


def _ending(ran: ProcessResult, timeout: float) -> list[str]:
    """The lines after the output."""
    lines = []
    if ran.garbled:
        lines.append("[foveal: bytes that are not UTF-8 are shown as �]\n")
    if ran.orphans:
        lines.append("[foveal: it had left processes in the background, which were ended]\n")
    if ran.late:
        lines.append(f"[foveal: it was stopped after {timeout:g} seconds]\n")
    if ran.status >= 0:
        return [*lines, f"exit status {ran.status}"]
    with suppress(ValueError):
        return [*lines, f"exit status {128 - ran.status} ({signal.Signals(-ran.status).name})"]
    return [*lines, f"exit status {128 - ran.status}"]


def named(command: str, workspace: Workspace) -> tuple[str, ...]:
    """The files and folders of the workspace that a command names; its flags are passed over."""
    words: list[str] = []
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    with suppress(ValueError):  # a quotation without an end: what came before it counts
        words.extend(lexer)
    found: dict[str, None] = {}
    for word in words:
        if word.startswith("-") or len(found) >= _TOUCHED:
            continue
        with suppress(InvalidArguments, OSError):
            path = workspace.find(word)
            if path != workspace.root and path.exists():
                found[str(path)] = None
    return tuple(found)
