"""Slash commands that change the view, the session, the model or the permissions.

Each returns rows that say what it did and how to undo it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from foveal.agent.permissions.command_rules import SHELL_TOOL, CommandRule, Rule
from foveal.agent.permissions.protected_paths import protected_part
from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.factory import init_text
from foveal.agent.terminal.output.agent_event_rows import note, reduction_rows
from foveal.agent.terminal.output.context_card import acts_text, window_source
from foveal.agent.terminal.output.live_area import usage_row
from foveal.agent.terminal.output.styled_text import Row, bold, dim, row, table_lines, text_rows
from foveal.agent.terminal.tool_approval import ToolApproval
from foveal.agent.terminal.user_interface import NO, Choice, MenuItem, Question
from foveal.agent.tool import InvalidArguments
from foveal.agent.tools.background_commands import BackgroundCommand, end_advice
from foveal.config.project import open_output
from foveal.core import wire
from foveal.core.engine.operations import Operation
from foveal.core.log.events import Compacted, Dropped, Event, Masked, kind, parse_handle
from foveal.core.log.ranges import is_within
from foveal.core.view.fold import effective_events
from foveal.core.view.steps import hidden_ranges
from foveal.core.wire.safe_print import counted, one_line, visible
from foveal.errors import FovealError, UnknownHandle
from foveal.policies import policy_names
from foveal.sessions.export import EXPORT_FORMATS, SessionExport
from foveal.sessions.perform import compact_measured, perform

INSTRUCTIONS_NAME: Final = "AGENTS.md"
MAX_EXPANDED_LINES: Final = 200
"""Lines of a text that `/expand` prints at once."""

COMPACTION_CHOICES: Final = (Choice("y", "Yes"), NO)
"""Answers to the question whether the conversation is compacted."""


# ── The view ─────────────────────────────────────────────────────────────────────────────────────────────


async def compact(state: ChatState, argument: str) -> list[Row]:
    """Ask, then summarise old turns."""
    before = await state.session.report()
    state.ui.show([usage_row(before)])
    if state.ui.can_ask:
        question = Question(text="Compact the conversation now?", choices=COMPACTION_CHOICES, waits=False)
        if await state.ui.ask(question) != "y":
            return [note("nothing was changed")]
    return await run_compaction(state, argument)


async def run_compaction(state: ChatState, focus: str = "", *, agreed: bool = False) -> list[Row]:
    """Summarise old turns, or reduce as the user has agreed to; return the sizes before and after."""
    state.ui.show_progress("compacting")
    try:
        event, made, before, after = await compact_measured(state.session, focus, agreed=agreed)
    finally:
        state.ui.show_progress("")
    summary = event.fact.summary if isinstance(event.fact, Compacted) else ""
    sizes = (
        f"{before.used:,} → {after.used:,} tokens "
        f"({before.percent(before.used)} → {after.percent(after.used)} of the window)"
    )
    return [
        *reduction_rows(made, 0, 0),
        *text_rows(summary, style="dim", indent="  │ "),
        row(bold(f"before and after: {sizes}"), dim(f" · /undo {event.handle} takes it back")),
        usage_row(after),
    ]


async def focus(state: ChatState, argument: str) -> list[Row]:
    """Say what the next summary or record keeps above all."""
    await state.session.focus_next(argument)
    text = one_line(argument, width=60)
    return [note(f"the next summary keeps “{text}” above all" if text else "the focus is taken back", "good")]


async def expand(state: ChatState, argument: str) -> list[Row]:
    """Print an event in full; with `model`, show it to the model in full for one turn."""
    name, _, rest = argument.partition(" ")
    event = await _event_named(state, name)
    if rest.strip() == "model":
        state.expand_in_next_turn(event.handle)
        return [note(f"{event.handle} is shown in full to the model in the next turn, if it fits", "good")]
    first = _line_number(rest.strip() or "1")
    lines = full_text(event, await state.session.events()).split("\n")
    part = lines[first - 1 : first - 1 + MAX_EXPANDED_LINES]
    head = f"{kind(event.fact)}, {counted(len(lines), 'line')}"
    rows = [row(bold(f"{event.handle} "), dim(head)), *text_rows("\n".join(part), indent="  ")]
    if first - 1 + len(part) < len(lines):
        rows.append(note(f"more lines: /expand {event.handle} {first + MAX_EXPANDED_LINES}"))
    return rows


def full_text(event: Event, log: Sequence[Event]) -> str:
    """Return the text of an event; for a reduction, the text that it hides."""
    fact = event.fact
    masked = {mask.target for mask in fact.masks} if isinstance(fact, Masked | Compacted) else set()
    hidden = hidden_ranges(fact) if isinstance(fact, Compacted | Dropped) else ()
    if not masked and not hidden:
        return wire.original_text(fact)
    covered = {e.seq for e in effective_events(log) if is_within(e.seq, hidden)}
    return wire.transcript_text([e.fact for e in log if e.seq in masked | covered])


def _line_number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise FovealError(f"{text!r} is not allowed after the handle: give a line number, or the word model")
    return int(text)


async def _event_named(state: ChatState, name: str) -> Event:
    seq = parse_handle(name) if name else None
    found = await state.session.pick([seq]) if seq is not None else []
    if not found:
        last = state.session.last
        raise UnknownHandle(f"{name!r} is not a handle of this session, which has e0 to e{last}")
    return found[0]


async def operate(state: ChatState, argument: str, *, operation: Operation) -> list[Row]:
    """Carry out an operation of the table that needs no more than its arguments."""
    asked = operation.read_line(argument)
    done = await perform(state.session, asked)
    return [note(f"{operation.sentences(asked).line} · /undo {done.recorded}", "good")]


# ── Branches ─────────────────────────────────────────────────────────────────────────────────────────────


async def branch(state: ChatState, argument: str) -> list[Row]:
    """Begin a branch; without a task, list the branches."""
    if argument.strip():
        handle = await state.session.begin_branch(argument)
        return [note(f"branch {handle} begins: go on as usual, /return folds it to its result", "good")]
    found = await state.session.branches()
    if not found:
        return [note("there are no branches; /branch TASK begins one")]
    return [
        row(
            bold(f"{each.handle} "),
            dim("open · " if each.is_open else f"folded by {each.fold} · " if each.is_folded else "ended · "),
            one_line(f"{each.task} → {each.result}" if each.result else each.task),
        )
        for each in found
    ]


async def return_from_branch(state: ChatState, argument: str) -> list[Row]:
    """Fold the innermost branch to a result, or to the last words of the model."""
    before = await state.session.report(with_events=False)
    fold = await state.session.end_branch(argument.strip() or None)
    if not fold:
        return [note("the branch has ended; it has no result, and there was nothing in it to fold")]
    after = await state.session.report(with_events=False)
    event = (await state.session.pick([int(fold.removeprefix("e"))]))[0]
    summary = event.fact.summary if isinstance(event.fact, Compacted) else ""
    return [
        *text_rows(summary, style="dim", indent="  │ "),
        note(
            f"the branch is folded: {before.used:,} → {after.used:,} tokens · /undo {fold} unfolds it", "good"
        ),
        usage_row(after),
    ]


# ── The session ──────────────────────────────────────────────────────────────────────────────────────────


async def model(state: ChatState, argument: str) -> list[Row]:
    before = state.provider.name.partition("/")[0]
    if argument:
        await state.switch(model=argument)
    report = await state.session.report()
    rows = [row(bold(state.provider.name), f" · window {report.window:,} ({window_source(report)})")]
    service, slash, _ = argument.partition("/")
    if slash and state.provider.name == f"openai/{argument}":
        text = (
            f"there is no provider {service}: {argument} is taken as a model of the server at your base URL"
        )
        rows.append(note(text, "fair"))
    now, named, _ = state.provider.name.partition("/")
    if argument and named and not slash and now != before:
        text = f"the provider is now {now}; /model {before}/{argument} asks {before} for this model"
        rows.append(note(text, "fair"))
    return rows


async def policy(state: ChatState, argument: str) -> list[Row]:
    if argument:
        known = policy_names(state.config.loaded.named_policies)
        if argument not in known:
            raise FovealError(f"there is no policy {argument!r}; there are {', '.join(known)}")
        await state.switch(config=state.config.with_policy(argument))
    report = await state.session.report()
    chosen = state.config.session_settings(state.provider.model)["policy"]
    others = ", ".join(
        name for name in policy_names(state.config.loaded.named_policies) if name != chosen.name
    )
    verb = "asks" if chosen.mode == "confirm" else "acts"
    return [
        row(
            bold(chosen.name),
            f" · mode {chosen.mode} · {verb} at {acts_text(report, chosen)}",
        ),
        row(dim(f"others: {others}")),
    ]


async def tools(state: ChatState, argument: str) -> list[Row]:
    """List the tools that the model is offered; `on` and `off` change whether it is offered any."""
    if argument not in ("", "on", "off"):
        raise FovealError(f"/tools takes on or off, not {argument!r}")
    if argument:
        await state.offer_tools(argument == "on")
    tools = (await state.session.report()).tools
    names = [tool.name for tool in tools if not tool.deferred]
    if not names:
        return [row("the model is offered no tools; /tools on offers them")]
    rows = [row(f"the model is offered {counted(len(names), 'tool')}: {', '.join(names)}")]
    waiting = [tool.name for tool in tools if tool.deferred]
    return [*rows, row(f"it can load {len(waiting):,} more: {', '.join(waiting)}")] if waiting else rows


async def export(state: ChatState, argument: str) -> list[Row]:
    """Write the session to a new file; without a format, the ending `.md` means Markdown."""
    words = argument.split()
    usual = "markdown" if words and words[0].lower().endswith(".md") else "foveal"
    format = wire.full_name(words[1]) if len(words) > 1 else usual
    if not words or len(words) > 2 or format not in EXPORT_FORMATS:
        raise FovealError(f"/export needs a file, and takes a format: {', '.join(EXPORT_FORMATS)}")
    exported = SessionExport(state.session.store, await state.session.info(), format)
    path = _export_path(words[0], state.options.folder)
    with open_output(path, advice="name another file") as file:
        async for data in exported.parts():
            file.write(data)
    return [note(f"{exported.size} written to {path}", "good")]


def _export_path(name: str, folder: Path) -> Path:
    """Return the file to write; raises `FovealError` if it is protected, or its folder does not exist."""
    path = folder / Path(name).expanduser()
    if part := protected_part(str(path), folder.resolve()):
        raise FovealError(f"{part} is protected, because programs run or read it: name another file")
    if not path.parent.is_dir():
        raise FovealError(f"there is no folder {visible(str(path.parent))}: create it, or name another file")
    return path


async def init(state: ChatState, argument: str) -> list[Row]:
    """Let the agent write an AGENTS.md: send the prepared request; ask first if the file exists."""
    if state.toolbox.get("write") is None:
        raise FovealError("/init needs the tools read and write; /tools on offers tools to the model")
    path = state.options.folder / INSTRUCTIONS_NAME
    if path.exists():
        question = Question(
            text=f"{INSTRUCTIONS_NAME} exists. Let the agent rewrite it?",
            unattended_advice=f"Move {INSTRUCTIONS_NAME} away to have a new one written.",
        )
        if await state.ui.ask(question) != "y":
            return [note(f"{INSTRUCTIONS_NAME} stays as it is")]
    text = init_text()
    wish = f"{text}\n\nThe user adds: {argument}" if argument else text
    state.send_message(wish)
    return [note(f"the agent reads the project and writes {INSTRUCTIONS_NAME}; you are asked before it does")]


# ── Background commands ──────────────────────────────────────────────────────────────────────────────────


async def jobs(state: ChatState, argument: str) -> list[Row]:
    """List the background commands; `end ID` ends one, `keep ID` lets it run on after the chat."""
    word, _, id = argument.partition(" ")
    if not word:
        return _job_rows(list(state.background.all.values()))
    if word not in ("end", "keep") or not id:
        raise FovealError(f"/jobs takes end ID or keep ID, not {argument!r}")
    try:
        job = state.background.find(id.strip())
    except InvalidArguments as problem:
        raise FovealError(str(problem)) from None
    if job.ended.is_set():
        return [note(f"{job.id} has ended already, {job.state}")]
    if word == "end":
        await job.end()
        return [note(f"{job.id} is ended", "good")]
    job.keep()
    rows = [note(f"{job.id} runs on after the chat, without its output; to end it then: {end_advice(job)}")]
    if state.sandbox is not None:
        limits = (
            "what it changes then is not recorded, and protected files that it makes then keep their names"
        )
        rows.append(note(f"{limits} until the next chat here begins", "fair"))
    return rows


def _job_rows(every: Sequence[BackgroundCommand]) -> list[Row]:
    if not every:
        return [row(dim("no command runs in the background"))]
    table = [
        (
            job.id,
            job.state,
            time.strftime("since %H:%M:%S", time.localtime(job.started_at)),
            one_line(job.command, width=60),
            one_line(job.last_line, width=60),
        )
        for job in every
    ]
    rows = [row(f"  {line}") for line in table_lines(table)]
    return [*rows, row(dim("  /jobs end ID ends one, /jobs keep ID lets it run on after the chat"))]


# ── Permissions ──────────────────────────────────────────────────────────────────────────────────────────

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
