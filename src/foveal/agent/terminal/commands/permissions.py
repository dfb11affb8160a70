"""Slash command `/permissions`: lists the rules in force and removes them."""

from __future__ import annotations

import time
from typing import Final

from foveal.agent.permissions.command_rules import SHELL_TOOL, CommandRule, Rule
from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.output.styled_text import Row, bold, dim, row, table_lines
from foveal.agent.terminal.tool_approval import ToolApproval
from foveal.agent.terminal.user_interface import MenuItem
from foveal.errors import FovealError

_ALWAYS_ASKS: Final = "protected paths and leaving the sandbox ask each time, whatever the rules"
_OTHERS_ASK: Final = "each call of an MCP server"
_PLANNING: Final = "plan mode is on: nothing is changed until you agree to the plan"


async def permissions(state: ChatState, argument: str) -> list[Row]:
    """List the rules; with `remove N`, or `remove` and a choice, forget one."""
    word, _, number = argument.partition(" ")
    if not word:
        return _list_rules(
            state.approval, is_sandboxed=state.sandbox is not None, is_planning=state.plan.is_on
        )
    if word != "remove":
        raise FovealError(f"/permissions has no {word!r}; /permissions remove N forgets a rule")
    rules = state.approval.removable_rules()
    if not rules:
        raise FovealError("there is no rule to remove; entries of the settings are removed in the settings")
    chosen = number.strip() or await state.ui.pick("Remove which rule?", _menu(rules)) or ""
    if not chosen:
        return [row(dim("no rule was removed"))]
    if not chosen.isdecimal() or not 1 <= int(chosen) <= len(rules):
        raise FovealError(f"there is no rule {chosen}; /permissions lists rules 1 to {len(rules):,}")
    rule = rules[int(chosen) - 1]
    state.approval.remove(rule)
    return [row(f"removed: {_scope(rule)}, {_meaning(rule)}; it asks again")]


def _list_rules(approval: ToolApproval, *, is_sandboxed: bool, is_planning: bool) -> list[Row]:
    rules = approval.removable_rules()
    table = [
        (
            str(number),
            _scope(rule),
            _meaning(rule),
            _program(rule),
            _end(rule, counts=approval.counts(rule, is_sandboxed=is_sandboxed)),
        )
        for number, rule in enumerate(rules, 1)
    ]
    table += [("", "settings", _meaning(rule), "", "") for rule in approval.allow_entries]
    table += [("", "settings", f"never {_meaning(rule)}", "", "") for rule in approval.deny_entries]
    mode = "everything runs without asking (--yes)" if approval.allows_everything else f"mode {approval.mode}"
    rows = [row(bold("permissions"), dim(f"  {mode} · {approval.project}"))]
    rows += [row(f"  {line}") for line in table_lines(table)]
    begin, *more = _defaults(approval, is_sandboxed=is_sandboxed)
    rows.append(row(dim(f"  {'everything else' if table else 'no rules'}: {begin}")))
    rows += [row(dim(f"  {text}")) for text in (*more, _ALWAYS_ASKS, *([_PLANNING] if is_planning else []))]
    if approval.rule_file.problem:
        rows.append(row(dim(f"  {approval.rule_file.problem}")))
    return [*rows, row(dim("  /permissions remove N forgets a rule"))] if rules else rows


def _defaults(approval: ToolApproval, *, is_sandboxed: bool) -> list[str]:
    """Return what happens with a call that no rule covers."""
    if approval.allows_everything:
        return ["runs; commands stay in the sandbox" if is_sandboxed else "runs, and there is no sandbox"]
    if approval.mode == "ask":
        return [f"each command asks, and each change of a file, and {_OTHERS_ASK}"]
    others = f"each change of a file asks, and {_OTHERS_ASK}"
    if not is_sandboxed:
        return ["there is no sandbox, so each command asks that does not only read files here", others]
    exceptions = "what cannot be restored" + (", fetches or publishes" if approval.has_network else "")
    return [f"in the sandbox, commands run; outside, each asks, and so does {exceptions}", others]


def _menu(rules: tuple[Rule, ...]) -> list[MenuItem]:
    return [MenuItem(str(number), _meaning(rule), _scope(rule)) for number, rule in enumerate(rules, 1)]


def _scope(rule: Rule) -> str:
    return "project" if isinstance(rule, CommandRule) and rule.expires_at else "session"


def _meaning(rule: Rule) -> str:
    if not isinstance(rule, CommandRule):
        return f"tool `{rule.text}`"
    return f"{SHELL_TOOL}: {'begins with' if rule.is_prefix else 'exactly'} `{rule.text}`"


def _program(rule: Rule) -> str:
    return rule.program if isinstance(rule, CommandRule) else ""


def _end(rule: Rule, *, counts: bool) -> str:
    until = "until the session ends"
    if isinstance(rule, CommandRule) and rule.expires_at:
        until = time.strftime("until %Y-%m-%d", time.localtime(rule.expires_at))
    return until if counts else f"{until}; does not count without a sandbox"
