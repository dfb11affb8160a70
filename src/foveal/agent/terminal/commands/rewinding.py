"""Slash commands that go back: /rewind, /undo, /retry, and /diff, a coloured diff of files."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from pathlib import PurePath
from typing import Final

from foveal.agent.permissions.command_rules import SHELL_TOOL
from foveal.agent.permissions.protected_paths import protected_part
from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.output.agent_event_rows import note
from foveal.agent.terminal.output.styled_text import (
    Row,
    Span,
    bold,
    diff_rows,
    dim,
    row,
    table_lines,
)
from foveal.agent.terminal.resuming import age, split_turns
from foveal.agent.terminal.user_interface import Choice, MenuItem, Question
from foveal.agent.terminal.user_message import UserMessage, typed_text
from foveal.agent.tools.file_history import (
    ChangeHistory,
    FileChanges,
    LeftFile,
    Restoration,
    RestorePlan,
    derive_states,
    digest_of,
    plan_rewind,
    plan_undo,
    present_states,
    read_changes,
    restore_files,
)
from foveal.agent.tools.text_edit import decode_for_reading, is_binary
from foveal.agent.tools.workspace import Workspace
from foveal.core.engine.operations import OperationRequest
from foveal.core.log.events import REDUCTIONS, Event, Rewound, Superseded, UserSaid, handle, kind
from foveal.core.view.fold import effective_events, effective_rewinds
from foveal.core.wire.safe_print import counted, exact_line, one_line, visible
from foveal.errors import FovealError
from foveal.sessions.perform import perform

MAX_LISTED_TURNS: Final = 10
"""Messages that `/rewind` lists without a terminal."""
MAX_NAMED_CALLS: Final = 5
"""Calls that `/rewind` names because it cannot take them back."""
MAX_DIFF_LINES: Final = 200
"""Lines that `/diff` shows of all files together."""
_WHAT: Final = ("conversation", "files", "both")
_CHOICES: Final = (
    Choice("b", "Conversation and files"),
    Choice("c", "Conversation only"),
    Choice("f", "Files only"),
    Choice("n", "Neither"),
)
_KEYS: Final = {"b": "both", "c": "conversation", "f": "files"}


# ── Rewind ───────────────────────────────────────────────────────────────────────────────────────────────


async def rewind(state: ChatState, argument: str) -> list[Row]:
    """Go back to before a message of the user: the conversation, the files, or both."""
    await state.background.settle()
    log = await state.session.events()
    messages = [turn[0] for turn in split_turns(effective_events(log))]
    name, _, what = argument.partition(" ")
    if not name and not (state.ui.can_ask and messages):
        return _message_list(messages)
    event = _message_named(name, messages) if name else await _pick_message(state, messages)
    if event is None:
        return [note("nothing was changed")]
    history = ChangeHistory.of(log, state.file_copies)
    workspace = Workspace(state.options.folder)
    present = await asyncio.to_thread(present_states, workspace, history.paths())
    plan = plan_rewind(history, event.seq - 1, present)
    chosen = what.strip() or await _ask_what(state, event, plan, history)
    if not chosen:
        return [note("nothing was changed")]
    if chosen not in _WHAT:
        raise FovealError(f"/rewind takes {', '.join(_WHAT)} after the handle, not {what.strip()!r}")
    return await _rewind(state, event, chosen, plan, history)


async def _rewind(
    state: ChatState, event: Event, chosen: str, plan: RestorePlan, history: ChangeHistory
) -> list[Row]:
    rows: list[Row] = []
    rewound: int | None = None
    if chosen != "files":
        await state.session.rewind(event.seq - 1)
        newest = [e for e in await state.session.events(first=event.seq) if isinstance(e.fact, Rewound)]
        rewound = newest[-1].seq
        text = f"back to before “{_title(event)}”; /undo takes the rewind back"
        rows.append(note(text, "good"))
        if isinstance(event.fact, UserSaid):
            state.ui.suggest_input(typed_text(event.fact.content))
    if chosen != "conversation":
        rows += await _restore(state, plan, FileChanges(changes=(), by="rewind", target=rewound))
        rows += _perhaps_others(state, plan, history, event.seq)
        rows += _not_undone(state, history, event.seq)
    elif plan.restorations or plan.left:
        rows.append(note("files stay as they are; /rewind with “files” restores them"))
    return rows


def _message_list(messages: Sequence[Event]) -> list[Row]:
    table = [(event.handle, _title(event)) for event in messages[-MAX_LISTED_TURNS:]]
    rows = [row(f"  {line}") for line in table_lines(table)] if table else []
    return [
        row("/rewind HANDLE goes back to before that message:" if rows else "there are no messages yet"),
        *rows,
    ]


def _message_named(name: str, messages: Sequence[Event]) -> Event:
    event = next((event for event in messages if event.handle == name.lstrip("#")), None)
    if event is None:
        names = ", ".join(event.handle for event in messages[-MAX_LISTED_TURNS:]) or "none"
        raise FovealError(f"{name!r} is not one of your messages in this session; there are {names}")
    return event


async def _pick_message(state: ChatState, messages: Sequence[Event]) -> Event | None:
    now = time.time()
    items = [
        MenuItem(event.handle, _title(event), age(now - event.at) if event.at is not None else "")
        for event in reversed(messages)
    ]
    picked = await state.ui.pick("Go back to before which message?", items)
    return next((event for event in messages if event.handle == picked), None)


async def _ask_what(state: ChatState, event: Event, plan: RestorePlan, history: ChangeHistory) -> str:
    """Ask what to take back, showing what would change in files; without files to restore there is no question."""
    if not (state.ui.can_ask and plan.restorations):
        return "conversation"
    details = [
        # First, because a small screen shows only the first and the last of many lines.
        *_perhaps_others(state, plan, history, event.seq),
        *(
            line
            for one in _shown_restorations(plan)
            for line in _restoration_rows(_short_path(state, one.change.path), one)
        ),
        *_left_rows(state, plan.left),
        *_not_undone(state, history, event.seq),
    ]
    question = Question(
        text=f"Go back to before “{_title(event)}”: what?", details=tuple(details), choices=_CHOICES
    )
    return _KEYS.get(await state.ui.ask(question), "")


def _title(event: Event) -> str:
    return one_line(typed_text(event.fact.content), width=60) if isinstance(event.fact, UserSaid) else ""


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────


async def _restore(state: ChatState, plan: RestorePlan, record: FileChanges) -> list[Row]:
    """Restore files, record it so that it can be undone, and return what was done."""
    workspace = Workspace(state.options.folder)
    if not state.ui.can_ask:
        plan = _without_protected(plan, workspace)
    done = await asyncio.to_thread(restore_files, workspace, plan)
    back = ""
    if done.restorations:
        changes = tuple(one.change for one in done.restorations)
        recorded = FileChanges(changes=changes, by=record.by, target=record.target).to_fact()
        (event,) = await state.session.append(recorded)
        back = f" · /undo {event.handle}" if record.by == "rewind" and record.target is None else ""
    rows = [
        note(
            f"{'deleted' if one.change.after is None else 'restored'} "
            f"{_short_path(state, one.change.path)}{'/' * one.change.is_folder}{back}",
            "good",
        )
        for one in _shown_restorations(done)
    ]
    return [*rows, *_left_rows(state, done.left)] or [note("there are no files to restore")]


def _shown_restorations(plan: RestorePlan) -> list[Restoration]:
    """Return what the user is told: all but the folders of files that are named anyway."""
    above = {folder for one in plan.restorations for folder in PurePath(one.change.path).parents}
    return [
        one for one in plan.restorations if not (one.change.is_folder and PurePath(one.change.path) in above)
    ]


def _restoration_rows(name: str, one: Restoration) -> list[Row]:
    """Return what a restoration changes, in detail."""
    change = one.change
    if change.is_of_mode:
        modes = [stat.S_IMODE(mode or 0) for mode in (change.mode, change.mode_after)]
        return [row(bold(f"  {name}"), dim(f"  mode {modes[0]:04o} becomes {modes[1]:04o}"))]
    if change.is_folder:
        return [
            row(bold(f"  {name}/"), dim("  deleted, if empty" if change.after is None else "  new folder"))
        ]
    return file_diff_rows(name, one.present, one.data)


def _without_protected(plan: RestorePlan, workspace: Workspace) -> RestorePlan:
    """Return a plan that leaves files alone which only the user may change."""
    kept = [one for one in plan.restorations if not protected_part(one.change.path, workspace.root)]
    left = [
        LeftFile(one.change.path, "it is protected, and there is no terminal to ask at")
        for one in plan.restorations
        if one not in kept
    ]
    return RestorePlan(restorations=tuple(kept), left=(*plan.left, *left))


def _left_rows(state: ChatState, left: Sequence[LeftFile]) -> list[Row]:
    return [note(f"not restored: {_short_path(state, one.path)}: {one.reason}", "fair") for one in left]


def _perhaps_others(state: ChatState, plan: RestorePlan, history: ChangeHistory, since: int) -> list[Row]:
    """Return notices about files that another program may have made, which are deleted, or changed."""
    unsure = {one.change.path for one in history.changes if one.seq > since and not one.is_certain}
    others = [one.change for one in plan.restorations if one.change.path in unsure]
    made = [_short_path(state, change.path) for change in others if change.after is None]
    changed = [_short_path(state, change.path) for change in others if change.after is not None]
    rows = []
    if made:
        rows.append(
            note(f"deleted, perhaps yours: {', '.join(made)} (made while a command ran unattended)", "bad")
        )
    if changed:
        text = f"changed while a command ran unattended, perhaps by you: {', '.join(changed)}"
        rows.append(note(text, "fair"))
    return rows


def _not_undone(state: ChatState, history: ChangeHistory, since: int) -> list[Row]:
    """Return a notice about calls whose effects are not in the log, such as commands, newest last."""
    calls = [
        one_line(state.toolbox.describe(call.name, call.arguments), width=60)
        for call in history.calls_after(since)
        if (tool := state.toolbox.get(call.name)) is None or tool.needs_approval
    ]
    if not calls:
        return []
    more = len(calls) - MAX_NAMED_CALLS
    head = "what these calls did is not undone" + (f", and {more:,} before them" if more > 0 else "")
    return [note(f"{head}: {' · '.join(calls[-MAX_NAMED_CALLS:])}", "fair")]


def _short_path(state: ChatState, path: str) -> str:
    root = os.path.realpath(state.options.folder)
    return exact_line(os.path.relpath(path, root) if path.startswith(root + os.sep) else path)


# ── Undo ─────────────────────────────────────────────────────────────────────────────────────────────────


async def undo(state: ChatState, argument: str) -> list[Row]:
    """Take back a reduction or a rewind; files that it restored get back what they were before it."""
    log = await state.session.events()
    restored = _files_to_undo(log, argument.strip().lstrip("#"))
    if restored is not None:
        return await _undo_files(state, log, restored)
    done = await perform(state.session, OperationRequest(operation="undo", event=argument))
    event = await state.session.event(done.named)
    report = await state.session.report()
    again = "what it had hidden is shown again"
    if isinstance(event.fact, Rewound):
        again = "its messages are back in their places"
    elif isinstance(event.fact, Superseded):
        again = f"{handle(event.fact.target)} holds again"
    rows = [note(f"took back {event.handle} ({kind(event.fact)}): {again}", "good")]
    if done.warning:
        rows.append(note(done.warning, "fair"))
    for other in _restorations(log):
        record = read_changes(other)
        if record is not None and record.target == event.seq:
            rows += await _undo_files(state, log, other)
    if report.state == "over":
        sizes = f"{report.percent(report.used)} of the window, and at most {report.percent(report.limit)} fit"
        rows.append(note(f"the next request is reduced again: it takes {sizes}", "fair"))
    return rows


def _restorations(log: Sequence[Event]) -> list[Event]:
    """Return the events that restored files by a rewind and are not taken back."""
    records = [(event, record) for event in log if (record := read_changes(event)) is not None]
    undone = {record.target for _, record in records if record.by == "undo"}
    return [event for event, record in records if record.by == "rewind" and event.seq not in undone]


def _files_to_undo(log: Sequence[Event], name: str) -> Event | None:
    """Return the restoration of files that `/undo` takes back: the one with this handle or, without a handle, the
    newest one that left the conversation alone, unless something else that it takes back is newer."""
    restorations = _restorations(log)
    if name:
        return next((event for event in restorations if event.handle == name), None)
    alone = [e for e in restorations if (record := read_changes(e)) is not None and record.target is None]
    others = [event for event in effective_events(log) if isinstance(event.fact, (*REDUCTIONS, Superseded))]
    newest = max((event.seq for event in (*others, *effective_rewinds(log))), default=-1)
    return alone[-1] if alone and alone[-1].seq > newest else None


async def _undo_files(state: ChatState, log: Sequence[Event], event: Event) -> list[Row]:
    record = read_changes(event)
    assert record is not None
    history = ChangeHistory.of(log, state.file_copies)
    paths = [change.path for change in record.changes]
    present = await asyncio.to_thread(present_states, Workspace(state.options.folder), paths)
    plan = plan_undo(history, record.changes, present)
    return await _restore(state, plan, FileChanges(changes=(), by="undo", target=event.seq))


# ── Retry and diff ───────────────────────────────────────────────────────────────────────────────────────


async def retry(state: ChatState, argument: str) -> list[Row]:
    """Rewind the last turn and send its message again."""
    log = await state.session.events()
    turns = split_turns(effective_events(log))
    said = turns[-1][0].fact if turns else None
    if not isinstance(said, UserSaid):
        raise FovealError("there is no message yet that could be sent again")
    await state.session.rewind(turns[-1][0].seq - 1)
    state.send_message(
        UserMessage(content=said.content, dialect=said.dialect, shown=typed_text(said.content))
    )
    rows = [note("the last turn runs again; /undo brings its first answer back")]
    changed = [one for one in ChangeHistory.of(log).changes if one.seq > turns[-1][0].seq]
    if names := dict.fromkeys(_short_path(state, one.change.path) for one in changed):
        rows.append(note(f"files that it changed stay as they are: {', '.join(names)}", "fair"))
    return rows


async def diff(state: ChatState, argument: str) -> list[Row]:
    """Show what the agent changed in files with its file tools in this session; with a path, in that file."""
    await state.background.settle()
    log = await state.session.events()
    history = ChangeHistory.of(log, state.file_copies)
    paths = [_changed_path(state, history, argument)] if argument else history.paths()
    present = await asyncio.to_thread(present_states, Workspace(state.options.folder), paths)
    files = {path: _changes_of(state, history, path, present.get(path)) for path in paths}
    if argument:
        return files[paths[0]]
    rows = _first_changes(state, files)
    older = dict.fromkeys(path for _, path in history.unrecorded)
    rows += [
        note(f"{one_line(path)}: changed, and the log has no record of its state", "fair") for path in older
    ]
    if not rows:
        rows = [row("the file tools have changed nothing in this session")]
    return [*rows, *_not_shown(history)]


def _changed_path(state: ChatState, history: ChangeHistory, name: str) -> str:
    """Return the changed file that a path names, relative to the working folder or absolute."""
    wanted = os.path.realpath(os.path.join(state.options.folder, name))
    if wanted in history.paths():
        return wanted
    names = ", ".join(_short_path(state, path) for path in history.paths()) or "none"
    raise FovealError(f"the file tools have not changed {name!r} in this session; changed are: {names}")


def _first_changes(state: ChatState, files: Mapping[str, list[Row]]) -> list[Row]:
    """Return the changes of all files; of many lines the first, and the files that are not shown whole."""
    rows = [line for lines in files.values() for line in lines]
    left_out = len(rows) - MAX_DIFF_LINES
    if left_out <= 0:
        return rows
    table, end = [], 0
    for path, lines in files.items():
        end += len(lines)
        if end > MAX_DIFF_LINES:
            table.append((_short_path(state, path), counted(len(lines), "line")))
    return [
        *rows[:MAX_DIFF_LINES],
        note(f"{counted(left_out, 'more line')}; /diff PATH shows a file whole:", "fair"),
        *(row(f"  {line}") for line in table_lines(table, right=(1,))),
    ]


def _changes_of(state: ChatState, history: ChangeHistory, path: str, present: bytes | None) -> list[Row]:
    changes = [one for one in history.changes if one.change.path == path]
    first, last = changes[0].change.before, changes[-1].change.after
    name = _short_path(state, path)
    states = derive_states(history, path, present, target=first)
    if first not in states:
        many = counted(len(changes), "change")
        handles = ", ".join(handle(one.seq) for one in changes)
        return [row(bold(f"  {name}"), dim(f"  {many} ({handles}); the log does not hold its first text"))]
    if states[first] == present:
        return [row(bold(f"  {name}"), dim("  as it was at the beginning"))]
    rows = file_diff_rows(name, states[first], present)
    if digest_of(present) != last:
        rows.insert(1, row(Span("    something else has changed it since, which is shown too", "fair")))
    return rows


def _not_shown(history: ChangeHistory) -> list[Row]:
    commands = sum(call.name == SHELL_TOOL for call in history.calls_after(-1))
    if not commands:
        return []
    return [note(f"not shown: what {counted(commands, 'command')} changed; `git diff` shows more")]


MAX_COMPARED_CHARS: Final = 400_000
"""Most characters of two texts that are compared."""


def file_diff_rows(name: str, before: bytes | None, after: bytes | None) -> list[Row]:
    """Return the difference between two states of a file; None is a file that does not exist."""
    kind = "  new file" if before is None else "  deleted" if after is None else ""
    head = row(bold(f"  {name}"), dim(kind))
    if is_binary((before or b"")[:8_192]) or is_binary((after or b"")[:8_192]):
        return [head, row(dim(f"    {len(before or b''):,} bytes become {len(after or b''):,}; not a text"))]
    old, new = (decode_for_reading(data or b"")[0] for data in (before, after))
    if len(old) + len(new) > MAX_COMPARED_CHARS:
        return [
            head,
            row(dim(f"    {len(old):,} characters become {len(new):,}; too long to be compared here")),
        ]
    lines = list(unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2))[2:]
    if not lines:
        return [head, row(dim("    only line endings or the encoding differ"))]
    return [head, *diff_rows(visible("\n".join(lines)))]
