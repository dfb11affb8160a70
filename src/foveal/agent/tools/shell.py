"""The shell tool (`run`): runs a command in the working folder.

1. A command has no terminal, no input, its own process group, and an environment without secrets. It runs in the
   sandbox, if there is one, unless the call says otherwise.
2. The answer is the output of both streams in order, then `exit status N`.
3. Processes that a command leaves running are ended with it; a command that takes too long is ended itself.
4. A call with `background` starts the command and returns at once; background_commands.py has the rest.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from foveal.agent.permissions.command_rules import SHELL_TOOL, find_program, scan_command_line
from foveal.agent.permissions.program_kinds import change_queries
from foveal.agent.permissions.protected_paths import ProtectedFiles, hook_names, with_protected_names
from foveal.agent.permissions.sandbox import Sandbox
from foveal.agent.tool import Arguments, InvalidArguments, OutputListener, Tool, ToolOutput
from foveal.agent.tools.approvals import commits_only
from foveal.agent.tools.background_commands import JOB_TOOL, BackgroundCommands, aside_notes
from foveal.agent.tools.process_group import ProcessResult, command_environment, run_process
from foveal.agent.tools.workspace import Workspace
from foveal.core.wire.safe_print import marked, seconds_text, visible

DEFAULT_COMMAND_TIMEOUT_S: Final = 120.0
MAX_COMMAND_TIMEOUT_S: Final = 600.0
_SHELL_OPTIONS: Final = ("--noprofile", "--norc", "-c", "--")
"""No start file of the shell is read, so that exactly the text of the command runs."""
_SANDBOX_SYMPTOMS: Final = re.compile(
    r"read-only file system|EROFS|operation not permitted|EPERM|name resolution|could not resolve|"
    r"name or service not known|nodename nor servname|getaddrinfo|ENOTFOUND|EAI_AGAIN|network is unreachable|"
    r"ENETUNREACH|no address associated with hostname|failed to sign|device or resource busy|cross-device link"
    r"|EXDEV",
    re.I,
)
_COMMIT_SETTINGS: Final = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "safe.bareRepository": "explicit",
    "gc.auto": "0",
}
"""Settings of git while a command can write in the repository: no program of the project runs, and no other folder
is taken for a repository."""
_COMMIT_ENVIRONMENT: Final = {
    "GIT_CONFIG_COUNT": str(len(_COMMIT_SETTINGS)),
    **{f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(_COMMIT_SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(_COMMIT_SETTINGS.values())},
}
_REFUSED_CHANGE: Final = (
    "[foveal: nothing was run, because it would change protected files, which stay as they are in the sandbox: {}; "
    "outside_sandbox asks the user]"
)
_MAX_NAMED_CHANGES: Final = 20
_NO_RETRIES: Final = {"PIP_RETRIES": "0", "npm_config_fetch_retries": "0", "CARGO_NET_RETRY": "0"}
"""Without a network, package managers fail at once instead of after minutes."""
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
    background: BackgroundCommands | None
    reads_only: Callable[[], bool]
    unchanged: Callable[[str], Collection[str]]


def shell_tool(
    workspace: Workspace,
    *,
    timeout_s: float = DEFAULT_COMMAND_TIMEOUT_S,
    max_timeout_s: float = MAX_COMMAND_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
    sandbox: Sandbox | None = None,
    network: bool = False,
    background: BackgroundCommands | None = None,
    reads_only: Callable[[], bool] = lambda: False,
    unchanged: Callable[[str], Collection[str]] = lambda _: (),
) -> Tool:
    """Return the shell tool; commands get `environment`, by default this process's without secrets.

    With a sandbox, commands run in it unless the model sets `outside_sandbox`; `network` allows them the network
    there. While `reads_only` returns True, they have none and cannot write in the working folder. `unchanged`
    returns the files that a command cannot change there. The approval of a call covers `outside_sandbox` too. With
    `background`, the model can start commands that run on; the tool `job` reads and ends them."""
    env = command_environment(os.environ) if environment is None else dict(environment)
    settings = _CommandSettings(
        workspace, env, min(timeout_s, max_timeout_s), sandbox, network, background, reads_only, unchanged
    )
    return Tool(
        name=SHELL_TOOL,
        description=_description(sandbox, network=network),
        parameters=_parameters(
            timeout_s,
            max_timeout_s,
            has_sandbox=sandbox is not None,
            has_background=background is not None,
            network=network,
        ),
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
        f"{text} It runs in a sandbox: it {reach}can write only in the working folder, in .git to commit, and in "
        "/tmp, and sees no hidden folders of the home."
    )


def _parameters(
    timeout_s: float, max_timeout_s: float, *, has_sandbox: bool, has_background: bool, network: bool
) -> dict[str, Any]:
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
    if has_background:
        hidden = " In the sandbox, nothing outside reaches its ports." if has_sandbox and not network else ""
        properties["background"] = {
            "type": "boolean",
            "description": "For a server or a watcher: return at once with an id, with which the tool "
            f"{JOB_TOOL} reads its output and ends it.{hidden}",
        }
    return {
        "type": "object",
        "properties": properties,
        "required": ["command"],
        "additionalProperties": False,
    }


def _describe_call(given: Arguments) -> str:
    where = " outside of the sandbox" if given.get("outside_sandbox") else ""
    where += " in the background" if given.get("background") else ""
    return f"{SHELL_TOOL}{where}: {command_on_one_line(given['command'])}"


def _preview_command(given: Arguments) -> str:
    """Return the whole command where one line of the question may not show all of it."""
    command = given["command"]
    is_plain = len(command) <= _MAX_COMMAND_CHARS_IN_QUESTION and not _NOT_ON_ONE_LINE.search(command)
    return "" if is_plain else _shown(command)


def _shown(command: str) -> str:
    """Return a command with what cannot be seen as marks, and names of programs that only look like usual ones."""
    shown = visible(command)
    if not command.isascii():
        for name in {words[0] for words in scan_command_line(command).commands if not words[0].isascii()}:
            shown = shown.replace(visible(name), marked(name))
    return shown.replace("\t", TAB_MARK)


def command_on_one_line(command: str) -> str:
    """Return a command for the user who allows it: complete, except that a very long one is cut with a note."""
    shown = _shown(command).replace("\n", " ⏎ ")
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
    reads_only = where.reads_only()
    network = where.network and not reads_only
    jobs = where.background
    run = _confined(where._replace(network=network), sandbox, command, reads_only=reads_only)
    if (
        run.is_commit
        and sandbox is not None
        and (named := await _protected_changes(where, sandbox, run, command))
    ):
        return ToolOutput(content=_REFUSED_CHANGE.format(", ".join(map(visible, named))), error=True)
    if given.get("background") and jobs is not None:
        return await _start_in_background(command, run, where, jobs, is_sandboxed=sandbox is not None)
    protected = None if sandbox is None else await asyncio.to_thread(ProtectedFiles, where.workspace.root)
    try:
        result = await run_process(
            run.argv, cwd=where.workspace.root, env=run.env, timeout_s=timeout_s, on_output=on_output
        )
    finally:
        # No process of the sandbox is left, and nothing else has run yet.
        aside = [] if protected is None else protected.set_new_aside()
        if jobs is not None:
            aside += jobs.take_aside()
            if sandbox is None:
                jobs.accept_all()
    line_break = "" if result.output.endswith("\n") or not result.output else "\n"
    notes = [*aside_notes(aside), *run.notes, *_status_lines(result, timeout_s)]
    if sandbox is not None and _looks_blocked(result):
        notes.insert(0, READS_ONLY_NOTE if reads_only else _sandbox_note(sandbox, network=network))
        notes[:0] = _unchanged_notes(run.unchanged, where.workspace.root)
    return ToolOutput(
        content="".join([result.output, line_break, *notes]),
        error=result.status != 0 or result.timed_out,
        touched=mentioned_paths(command, where.workspace),
    )


class _Confined(NamedTuple):
    """How a command is started."""

    argv: list[str]
    env: Mapping[str, str]
    notes: list[str]
    is_commit: bool = False
    """Whether it can write in the repository."""
    unchanged: Collection[str] = ()
    """Files that it cannot change."""


def _confined(
    where: _CommandSettings, sandbox: Sandbox | None, command: str, *, reads_only: bool
) -> _Confined:
    """Return how a command is started in the sandbox; one that commits can write in the repository there."""
    argv = _shell_argv(command, where.workspace.root)
    if sandbox is None:
        return _Confined(argv, where.environment, [])
    root, path = where.workspace.root, where.environment.get("PATH")
    # A program of the project that is called git must not get the repository.
    git = find_program("git", folder=root, outside_of=[root], search_path=path)
    unchanged = where.unchanged(command)
    is_commit = bool(git) and not reads_only and commits_only(command)
    hooks = hook_names(root) if is_commit else []
    named = f"[foveal: hooks do not run in the sandbox: {visible(', '.join(hooks))}]\n"
    env = {
        **where.environment,
        **(_COMMIT_ENVIRONMENT if is_commit else {}),
        **({} if where.network else _NO_RETRIES),
    }
    return _Confined(
        sandbox.wrap(
            argv, network=where.network, commits=is_commit, reads_only=reads_only, unchanged=unchanged
        ),
        env,
        [named] if hooks else [],
        is_commit,
        unchanged,
    )


async def _protected_changes(
    where: _CommandSettings, sandbox: Sandbox, run: _Confined, command: str
) -> list[str]:
    """Return protected files that a line of git commands would change. The sandbox would keep these as they are
    and let the others change, which leaves a mixture of two states."""
    lines = []
    for words in scan_command_line(command).commands:
        if words[0] == "cd":
            lines.append(f"{_as_written(words)} >/dev/null")
        lines += [f"{_as_written(query)} 2>/dev/null" for query in change_queries(words)]
    if all(line.startswith("cd ") for line in lines):
        return []
    argv = sandbox.wrap(_shell_argv("\n".join(lines), where.workspace.root), reads_only=True)
    result = await run_process(argv, cwd=where.workspace.root, env=run.env, timeout_s=where.timeout_s)
    return with_protected_names(result.output.split("\0"))[:_MAX_NAMED_CHANGES]


def _as_written(words: Iterable[str]) -> str:
    """Return a command of scanned words, of which bash expands those that it expanded in the line."""
    return " ".join(
        f'"{word}"' if re.search(r"[$`]", word) and '"' not in word else shlex.quote(word) for word in words
    )


async def _start_in_background(
    command: str,
    run: _Confined,
    where: _CommandSettings,
    background: BackgroundCommands,
    *,
    is_sandboxed: bool,
) -> ToolOutput:
    job = await background.start(
        command, run.argv, cwd=where.workspace.root, env=run.env, is_sandboxed=is_sandboxed
    )
    return ToolOutput(
        content="".join(run.notes)
        + f"[foveal: it runs in the background as {job.id}; the tool {JOB_TOOL} reads and ends it]",
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
        "in .git, except by a line that only stages and commits; if the command needs that, outside_sandbox asks "
        "the user]\n"
    )


def _unchanged_notes(files: Collection[str], root: Path) -> list[str]:
    """Return the line that names the files which a command could not change."""
    if not files:
        return []
    names = sorted(visible(os.path.relpath(path, root)) for path in files)
    more = f" and {len(names) - _MAX_NAMED_CHANGES:,} more" if len(names) > _MAX_NAMED_CHANGES else ""
    return [
        "[foveal: too large to be restored, so read-only for a command that does not name what it changes: "
        f"{', '.join(names[:_MAX_NAMED_CHANGES])}{more}; rm, mv or cp with the name asks the user]\n"
    ]


def _status_lines(result: ProcessResult, timeout_s: float) -> list[str]:
    """Return the lines after the output."""
    lines = []
    if result.had_invalid_utf8:
        lines.append("[foveal: bytes that are not UTF-8 are shown as �]\n")
    if result.had_orphans:
        named = _named_processes(result, is_in_group=True)
        lines.append(f"[foveal: it had left processes in the background, which were ended{named}]\n")
    if named := _named_processes(result, is_in_group=False):
        lines.append(f"[foveal: it has left processes that still run{named}; kill NUMBER ends one]\n")
    if result.timed_out:
        lines.append(f"[foveal: it was stopped after {seconds_text(timeout_s)}]\n")
    if result.status >= 0:
        return [*lines, f"exit status {result.status}"]
    with suppress(ValueError):
        return [*lines, f"exit status {128 - result.status} ({signal.Signals(-result.status).name})"]
    return [*lines, f"exit status {128 - result.status}"]


def _named_processes(result: ProcessResult, *, is_in_group: bool) -> str:
    found = [
        f"{process.pid} {process.command}" for process in result.left if process.is_in_group == is_in_group
    ]
    return f": {', '.join(found)}" if found else ""


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
