"""Decides whether a tool call runs, asks the user, or is denied.

`decide` is pure: it gets what is known about the call and the rules, and answers in this order.

1. What a deny rule names is denied.
2. Leaving the sandbox asks, each time. So do protected paths, except for a command in the sandbox, which cannot
   change them, and for a command that only reads.
3. With `--yes` everything else runs.
4. In mode `auto`, a command runs in the sandbox if `/rewind` can restore the files of the workspace. If not, it
   runs if none of its commands may delete or overwrite a file. Where the sandbox has a network, what fetches or
   publishes asks.
5. In mode `auto`, a command that only reads files of the workspace runs without a sandbox too.
6. A tool that a rule covers runs; of a command line, every command needs a rule of its own, except, in mode
   `auto`, one that only reads.
7. Everything else asks. The answer offers rules only where they could cover the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from foveal.agent.permissions.command_rules import (
    SHELL_TOOL,
    CommandLine,
    CommandRule,
    Rule,
    SimpleCommand,
    ToolRule,
    denies_line,
    exact_rule,
    prefix_rule,
    scan_command_line,
)
from foveal.agent.permissions.program_kinds import (
    is_always_asked,
    may_delete,
    reaches_out,
    runner_prefix,
)

ApprovalMode = Literal["ask", "auto"]
MAX_COVERED_COMMANDS: Final = 20
"""A line with more commands is not covered by rules."""


class CallFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a call before it runs."""

    tool: str
    project: str = ""
    """Real path of the working folder."""
    line: CommandLine | None = None
    """Set for the shell tool."""
    commands: tuple[SimpleCommand, ...] = ()
    """The commands of the line with their programs."""
    leaves_sandbox: bool = False
    protected: str = ""
    """A protected path that the call names."""
    is_inside: bool = True
    """Whether the files that a file tool changes lie in the workspace."""
    is_restorable: bool = False
    """Whether `/rewind` can restore all files that a command in the sandbox may change."""
    overwrites: str = ""
    """A file that a redirection of the line overwrites."""
    runs_hooks: bool = False
    """Whether the repository has hooks, which a commit without a sandbox runs."""

    @property
    def only_reads(self) -> bool:
        """Whether the line only prints files of the workspace, and what git knows of them."""
        return bool(self.commands) and all(command.only_reads for command in self.commands)


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force."""

    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()


class Allowed(msgspec.Struct, frozen=True):
    """The call runs without a question."""

    why: str


class Denied(msgspec.Struct, frozen=True):
    """The call does not run."""

    why: str


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """The user is asked; the rules are what "always" would store."""

    why: str = ""
    """Why no rule covers the call, "" if one could."""
    needs_user: bool = False
    """Whether nothing but the user's yes allows it, not even `--yes`."""
    session_rules: tuple[Rule, ...] = ()
    project_rules: tuple[CommandRule, ...] = ()


CallDecision = Allowed | Denied | Ask


def decide(
    call: CallFacts,
    permissions: Permissions,
    *,
    mode: ApprovalMode = "auto",
    is_sandboxed: bool = False,
    has_network: bool = False,
    allows_everything: bool = False,
) -> CallDecision:
    """Return what happens with a call; `is_sandboxed` says whether commands run in a sandbox, and `has_network`
    whether they reach the network there."""
    for rule in permissions.deny:
        if _denies(rule, call):
            return Denied(f"{_entry_text(rule)} is denied by tools.deny")
    if call.leaves_sandbox and (is_sandboxed or not allows_everything):
        return Ask(why="it leaves the sandbox", needs_user=is_sandboxed)
    is_confined = call.line is not None and is_sandboxed
    if call.protected and not is_confined and not (call.only_reads and mode == "auto"):
        return Ask(why=f"{call.protected} is protected", needs_user=True)
    if allows_everything:
        return Allowed("--yes")
    if (
        any(isinstance(rule, ToolRule) and rule.covers(call.tool) for rule in permissions.allow)
        and call.is_inside
    ):
        return Allowed(f"{call.tool} is allowed")
    if call.line is None:
        return Ask(session_rules=(ToolRule(call.tool),) if call.is_inside else ())
    if not _needs_consent(call, call.line, mode=mode, is_sandboxed=is_sandboxed, has_network=has_network):
        return Allowed("it stays in the sandbox" if is_sandboxed else "it only reads")
    return _decide_line(call, call.line, permissions.allow, mode=mode, is_sandboxed=is_sandboxed)


def _needs_consent(
    call: CallFacts, line: CommandLine, *, mode: ApprovalMode, is_sandboxed: bool, has_network: bool
) -> bool:
    """Return whether a line needs a rule or an answer, or can do no lasting harm where it runs."""
    if mode == "ask":
        return True
    if not is_sandboxed:
        return not call.only_reads
    if call.is_restorable and not has_network:
        return False
    scanned = scan_command_line(line.text)
    if not scanned.is_clear or (has_network and any(map(reaches_out, scanned.commands))):
        return True
    programs = {command.words: command.program for command in call.commands}
    return not call.is_restorable and (
        bool(call.overwrites)
        or any(may_delete(words, line.text, programs.get(words, "")) for words in scanned.commands)
    )


def _decide_line(
    call: CallFacts, line: CommandLine, rules: Sequence[Rule], *, mode: ApprovalMode, is_sandboxed: bool
) -> CallDecision:
    if problem := _line_problem(line):
        return Ask(why=problem)
    missing = [
        command
        for command in call.commands
        if not (command.only_reads and mode == "auto")
        and not _is_covered(command, call, rules, is_sandboxed=is_sandboxed)
    ]
    if not missing:
        return Allowed("a rule covers each command")
    return _offer(missing, call, is_sandboxed=is_sandboxed)


def _line_problem(line: CommandLine) -> str:
    """Return why rules cannot cover a line."""
    if line.problem:
        return line.problem
    if len(line.commands) > MAX_COVERED_COMMANDS:
        return f"it has {len(line.commands):,} commands"
    asked = next((words[0] for words in line.commands if is_always_asked(words)), "")
    return f"`{asked}` changes the shell" if asked else ""


def _is_covered(
    command: SimpleCommand, call: CallFacts, rules: Sequence[Rule], *, is_sandboxed: bool
) -> bool:
    return any(
        isinstance(rule, CommandRule)
        and is_in_force(rule, is_sandboxed=is_sandboxed, runs_hooks=call.runs_hooks)
        and rule.covers(command, call.project)
        for rule in rules
    )


def is_in_force(rule: CommandRule, *, is_sandboxed: bool, runs_hooks: bool) -> bool:
    """Return whether a rule counts: without a sandbox, agreed rules by first words do only for runners, and for
    commits that run no hook. Entries of the settings, which name no project, always count."""
    if is_sandboxed or not rule.is_prefix or not rule.project:
        return True
    return runner_prefix(rule.words) == rule.words and not (runs_hooks and rule.words[0] == "git")


def _offer(missing: Sequence[SimpleCommand], call: CallFacts, *, is_sandboxed: bool) -> Ask:
    """Return the question with one rule for each command that lacks one, if each can have one."""
    unnamed = next((command.words[0] for command in missing if not command.program), "")
    if unnamed:
        return Ask(why=f"`{unnamed}` is not a program outside of the working folder")
    exact = [exact_rule(command, call.project) for command in missing]
    by_prefix = [prefix_rule(command, call.project) for command in missing]
    counting = [
        rule
        if rule is not None and is_in_force(rule, is_sandboxed=is_sandboxed, runs_hooks=call.runs_hooks)
        else None
        for rule in by_prefix
    ]
    return Ask(session_rules=_all_or_none(exact), project_rules=_all_or_none(counting))


def _all_or_none(rules: Sequence[CommandRule | None]) -> tuple[CommandRule, ...]:
    found = [rule for rule in rules if rule is not None]
    return tuple(dict.fromkeys(found)) if len(found) == len(rules) else ()


def _denies(rule: Rule, call: CallFacts) -> bool:
    if isinstance(rule, ToolRule):
        return rule.covers(call.tool)
    return call.line is not None and denies_line(rule, call.line.text, call.line.commands)


def _entry_text(rule: Rule) -> str:
    return rule.text if isinstance(rule, ToolRule) else f"{SHELL_TOOL}: {rule.text}"
