"""Approval of tool calls: the rules in force, the question, and what "always" stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable

from msgspec.structs import replace

from foveal.agent.permissions.command_rules import (
    SHELL_TOOL,
    CommandRule,
    Rule,
    RuleFile,
    parse_allow_entries,
    parse_deny_entries,
)
from foveal.agent.permissions.decision import (
    Allowed,
    ApprovalMode,
    Ask,
    CallDecision,
    CallFacts,
    Denied,
    Permissions,
    decide,
    is_in_force,
)
from foveal.agent.permissions.program_kinds import reaches_out
from foveal.agent.permissions.protected_paths import hook_names
from foveal.agent.terminal.options import ChatOptions
from foveal.agent.terminal.output.styled_text import Row, diff_rows, dim, row, text_rows
from foveal.agent.terminal.user_interface import NO, YES, Choice, Question, UserInterface
from foveal.agent.tool import Arguments, Toolbox, ToolOutput
from foveal.agent.tools.approvals import CHANGING_FILE_TOOLS, MAX_KEPT_FILES, call_facts, danger_to
from foveal.agent.tools.workspace import Workspace
from foveal.config import Config


class ToolApproval:
    """Decides about calls in one working folder and asks the user where needed."""

    def __init__(self, options: ChatOptions, config: Config, note: Callable[[str], None]) -> None:
        """Raises `BadSetting` for an entry of `tools.allow` or `tools.deny` that cannot be used."""
        self.rule_file: RuleFile = RuleFile()
        self.session_rules: tuple[Rule, ...] = ()
        self.allow_entries, self.notes = parse_allow_entries((*config.get("tools.allow"), *options.allow))
        self.deny_entries: tuple[Rule, ...] = parse_deny_entries(config.get("tools.deny"))
        self.mode: ApprovalMode = config.get("tools.approval")
        self.allows_everything: bool = options.yes
        self._workspace = Workspace(options.folder)
        self._project_root = config.root
        self._has_network: bool = config.get("tools.network")
        self._note = note

    @property
    def project(self) -> str:
        """Real path of the working folder, to which rules are bound."""
        return str(self._workspace.root)

    @property
    def project_rules(self) -> tuple[CommandRule, ...]:
        """The stored rules of this project."""
        return self.rule_file.rules(project=self.project)

    async def approve(
        self,
        name: str,
        arguments: str,
        what: str,
        toolbox: Toolbox,
        ui: UserInterface,
        *,
        is_sandboxed: bool,
        is_restorable: bool = False,
        without_copy: Collection[str] = (),
    ) -> bool:
        """Return whether a call may run; `what` describes it, and `is_restorable` says whether `/rewind` can
        restore what it deletes, except for files `without_copy`: see `files_to_keep`."""
        # The preview binds the call to what it shows, so it comes before the decision.
        preview = toolbox.preview(name, arguments)
        call = self._facts(name, arguments, toolbox)
        danger = danger_to(without_copy, call)
        is_safe = danger == "none" or (danger == "possible" and len(without_copy) <= MAX_KEPT_FILES)
        call = replace(call, is_restorable=is_restorable and is_safe)
        decision = self._decide(call, is_sandboxed=is_sandboxed)
        if isinstance(decision, Allowed):
            ui.expect_change(_preview_rows(call, preview))
            return True
        if isinstance(decision, Denied):
            self._note(decision.why)
            return False
        has_network = self._has_network or not is_sandboxed
        question = approval_question(decision, call, what, preview, has_network=has_network)
        answer = await ui.ask(question)
        self._store(decision, answer)
        return answer in ("y", "s", "p")

    def files_to_keep(self, command: str, without_copy: Collection[str]) -> Collection[str]:
        """Return the files that a command in the sandbox must not change: those without a copy, if it may delete
        them without naming them, and neither a rule nor `--yes` allows it."""
        call = self._call_facts(SHELL_TOOL, {"command": command})
        is_possible = danger_to(without_copy, call) == "possible" and len(without_copy) <= MAX_KEPT_FILES
        asks = is_possible and isinstance(self._decide(call, is_sandboxed=True), Ask)
        return without_copy if asks else ()

    def _decide(self, call: CallFacts, *, is_sandboxed: bool) -> CallDecision:
        return decide(
            call,
            self._permissions(),
            mode=self.mode,
            is_sandboxed=is_sandboxed,
            has_network=self._has_network,
            allows_everything=self.allows_everything,
        )

    def _facts(self, name: str, arguments: str, toolbox: Toolbox) -> CallFacts:
        parsed = toolbox.parse_call(name, arguments)
        return self._call_facts(name, {} if isinstance(parsed, ToolOutput) else parsed[1])

    def _call_facts(self, name: str, given: Arguments) -> CallFacts:
        return call_facts(
            name,
            given,
            self._workspace,
            project_folders=(self._project_root,),
            search_path=os.environ.get("PATH"),
        )

    def _permissions(self) -> Permissions:
        stored = self.project_rules
        if self.rule_file.problem:
            self._note(self.rule_file.problem)
        return Permissions(allow=(*self.allow_entries, *self.session_rules, *stored), deny=self.deny_entries)

    def _store(self, decision: Ask, answer: str) -> None:
        if answer == "s":
            self.session_rules = tuple(dict.fromkeys((*self.session_rules, *decision.session_rules)))
        elif answer == "p":
            self.rule_file.add(*decision.project_rules)

    def counts(self, rule: Rule, *, is_sandboxed: bool) -> bool:
        """Return whether a rule covers anything here: without a sandbox, some by first words do not."""
        if not isinstance(rule, CommandRule):
            return True
        has_hooks = bool(hook_names(self._workspace.root))
        return is_in_force(rule, is_sandboxed=is_sandboxed, runs_hooks=has_hooks)

    @property
    def has_network(self) -> bool:
        """Whether commands reach the network in the sandbox."""
        return self._has_network

    # ── Removing ─────────────────────────────────────────────────────────────────────────────────────

    def removable_rules(self) -> tuple[Rule, ...]:
        """Return the rules that `/permissions` numbers and can remove: this session's, then the project's."""
        return (*self.session_rules, *self.project_rules)

    def end_session(self) -> None:
        """Forget the rules of the session: the chat continues with another one."""
        self.session_rules = ()

    def remove(self, rule: Rule) -> None:
        """Forget a rule."""
        if rule in self.session_rules:
            self.session_rules = tuple(other for other in self.session_rules if other != rule)
        elif isinstance(rule, CommandRule):
            self.rule_file.remove(rule)


# ── The question ─────────────────────────────────────────────────────────────────────────────────────────


def approval_question(
    decision: Ask, call: CallFacts, what: str, preview: str, *, has_network: bool = True
) -> Question:
    """Return the question about a call; `what` describes it on one line, and `preview` shows all of it if that does
    not."""
    why = decision.why and f"It can be allowed only once: {decision.why}."
    return Question(
        text=_question_text(call, what, preview),
        details=tuple(_preview_rows(call, preview)),
        remarks=tuple(_why_rows(why)),
        choices=(YES, *_always_choices(decision, call), NO),
        unattended_advice=_advice(decision, call, has_network=has_network),
    )


def _question_text(call: CallFacts, what: str, preview: str) -> str:
    """Return the question. A change names its file; of another call, what the preview shows is not repeated."""
    if not preview or call.tool in CHANGING_FILE_TOOLS:
        return f"Allow {what}?"
    name = what.partition(":")[0] if call.line is not None else call.tool
    return f"Allow {name}, as shown above?"


def _preview_rows(call: CallFacts, preview: str) -> list[Row]:
    """Return a preview as rows; only a change of a file is a diff, whatever a command looks like."""
    if not preview:
        return []
    return diff_rows(preview) if call.tool in CHANGING_FILE_TOOLS else text_rows(preview)


def _why_rows(why: str) -> list[Row]:
    return [row(dim(f"  {why}"))] if why else []


def _always_choices(decision: Ask, call: CallFacts) -> list[Choice]:
    """Return the choices that store rules, each rule word for word."""
    choices: list[Choice] = []
    if decision.session_rules:
        exactly = "exactly " if call.line is not None else ""
        within = " in the working folder" if call.tool in CHANGING_FILE_TOOLS else ""
        label = f"Always {exactly}{_rule_texts(decision.session_rules)}{within}, in this session"
        choices.append(Choice("s", label, lasts=True))
    if decision.project_rules:
        texts = _rule_texts(decision.project_rules)
        label = f"Always commands that begin with {texts}, in this project, for 30 days"
        choices.append(Choice("p", label, lasts=True))
    return choices


def _rule_texts(rules: Iterable[Rule]) -> str:
    return ", ".join(f"`{rule.text}`" for rule in rules)


def _advice(decision: Ask, call: CallFacts, *, has_network: bool) -> str:
    if decision.needs_user:
        return f"No option allows it, because {decision.why}: foveal chat asks you."
    if not has_network and any(reaches_out(command.words) for command in call.commands):
        return "It needs the network, which commands have with tools.network = true."
    everything = "everything with --yes."
    if call.line is None:
        return f"Allow it with --allow {call.tool}, or {everything}"
    rules = [rule.text for rule in decision.session_rules]
    if len(rules) == 1:
        return f'Allow it with --allow "{SHELL_TOOL}: {rules[0]}", or {everything}'
    return f"Allow all commands with --allow {SHELL_TOOL}, or {everything}"
