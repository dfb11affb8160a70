"""Ledger sections about the agent's actions: errors, open calls, files and commands.

Calls are read newest first, so that the latest state of a file, a command or an error counts, and the work for very
long ranges is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Final

from foveal.core.compaction.ledger.call_reader import CallReader, FileAction, ToolAction
from foveal.core.compaction.ledger.sections import ITEM_PREFIX, QUOTE_PREFIX, Section, inline, quote_line
from foveal.core.log.events import Event, ModelSaid, ToolReturned, calls_of, handle, text_of
from foveal.core.reduction import important_lines
from foveal.core.reduction.placeholder import call_subject
from foveal.core.view.text_facts import exit_status, reports_failure

MAX_FILES_TRACKED: Final = 400
_EDGE_CHARS: Final = 1_500
"""Characters at each end of a result that are searched for its outcome."""
_MAX_READ_FAILURE_CHARS: Final = 400
"""A longer result of reading a file is no failure: the file itself may contain error messages."""
_VERDICT_CHARS: Final = 600
"""Characters at the end of a result in which a line with test counts is looked for."""
_STATUS_SIGNS: Final = ("xit", "XIT", "tatus", "TATUS", "code", "Code", "CODE")
_VERDICT_SIGNS: Final = (" passed", " failed", " error", "Ran ", "test result", "Tests")
_MAX_ERROR_LINES: Final = 3
_FAILURE_SIGNS: Final = (
    "rror", "raceback", "atal", "FAIL", "failed", "xception", "not found", "No such", "denied", "panic",
)  # fmt: skip


def collect_actions(events: Sequence[Event], *, max_calls: int) -> list[ToolAction]:
    """Return the newest `max_calls` calls of the range with their results, newest first.

    A result belongs to the latest call before it that has its id."""
    read = CallReader().read
    actions: list[ToolAction] = []
    results: dict[str, tuple[ToolReturned, int]] = {}
    for event in reversed(events):
        fact = event.fact
        if isinstance(fact, ToolReturned):
            results[fact.call_id] = fact, event.seq
        elif isinstance(fact, ModelSaid):
            for _, call in reversed(calls_of(fact.content)):
                actions.append(read(event.seq, call, *results.pop(call.id, (None, event.seq))))
            if len(actions) >= max_calls:
                break
    return actions


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────


class _File:
    """One file and the actions on it."""

    def __init__(self, path: str, seq: int, rank: int) -> None:
        self.path = path
        self.last = seq
        self.rank = rank
        self.actions: dict[FileAction, int] = {}

    def add(self, path: str, action: FileAction) -> None:
        """Count an action; the longest spelling of the path is kept."""
        self.path = max(self.path, path, key=len)
        self.actions[action] = self.actions.get(action, 0) + 1

    @property
    def is_changed(self) -> bool:
        return not self.actions.keys() <= {"read", "ran"}

    def line(self, *, is_last_edit: bool) -> str:
        done = ", ".join(f"{name} ×{times}" if times > 1 else name for name, times in self.actions.items())
        mark = ", the last edit" if is_last_edit else ""
        return f"{ITEM_PREFIX}{inline(self.path, 300)}: {done}, {handle(self.last)}{mark}"


def files_section(actions: Sequence[ToolAction], *, elsewhere: Set[str]) -> Section:
    """Return the section of files.

    Files that were changed or touched last come first, files that the view shows anyway a little later. The actions
    on a file are listed latest first."""
    known: dict[str, _File] = {}
    by_name: dict[str, list[str]] = {}
    for action in actions:
        for path, verb in action.touched:
            key = _file_key(path, by_name)
            if key not in known:
                if len(known) >= MAX_FILES_TRACKED:
                    continue
                known[key] = _File(path, action.seq, len(known))
            known[key].add(path, verb)
    last_edit = next((file for file in known.values() if file.is_changed), None)
    ordered = sorted(known.values(), key=lambda f: f.rank - 3 * f.is_changed + 3 * (f.path in elsewhere))
    items = (file.line(is_last_edit=file is last_edit) for file in ordered)
    return Section("Files, latest state first:", 4.0, items)


def _file_key(path: str, by_name: dict[str, list[str]]) -> str:
    """Return the path by which the file is known: a relative path may be the end of an absolute one."""
    clean = path.removeprefix("./")
    name = clean.rsplit("/", 1)[-1]
    others = by_name.setdefault(name, [])
    for other in others:
        if other == clean or other.endswith("/" + clean) or clean.endswith("/" + other):
            return other
    others.append(clean)
    return clean


# ── Commands ─────────────────────────────────────────────────────────────────────────────────────────────


def commands_section(actions: Sequence[ToolAction], *, later: Sequence[ToolAction] = ()) -> Section:
    return Section("Commands, latest first:", 1.0, _command_items(actions, later))


def _command_items(actions: Sequence[ToolAction], later: Sequence[ToolAction]) -> Iterator[str]:
    """Yield the commands that ran a program, each once with its latest outcome; not those that ran again later."""
    listed = {action.command.bare for action in later if action.command is not None}
    for action in actions:
        if action.command is not None and action.command.runs_program and action.command.bare not in listed:
            listed.add(action.command.bare)
            outcome = describe_outcome(action)
            yield f"{ITEM_PREFIX}{inline(action.command.bare, 120)} → {outcome}, {handle(action.seq)}"


def describe_outcome(action: ToolAction) -> str:
    """Return how a call ended, in a few words."""
    if action.result is None:
        return "no result"
    text = head_and_tail(text_of(action.result.content))
    status = _status(text)
    verdict = _verdict(text)
    counts = f" ({verdict})" if verdict else ""
    if status is not None:
        return f"exit {status}{counts}"
    return ("failed" if has_failed(action) else "ok") + counts


def _status(text: str) -> int | None:
    """Return the exit status; on the last line it is the shell's, before that it may be a program's."""
    tail = text[-200:]
    for region in (tail.rstrip().rpartition("\n")[2], tail, text[:200]):
        if any(sign in region for sign in _STATUS_SIGNS):
            status = exit_status(region)
            if status is not None:
                return status
    return None


def head_and_tail(text: str) -> str:
    """Return the beginning and the end of a long text, in whole lines."""
    if len(text) <= 2 * _EDGE_CHARS:
        return text
    head, tail = text[:_EDGE_CHARS], text[-_EDGE_CHARS:]
    return f"{head.rpartition(chr(10))[0] or head}\n{tail.partition(chr(10))[2] or tail}"


def _verdict(text: str) -> str:
    """Return the line near the end that counts what passed and what failed."""
    text = text[-_VERDICT_CHARS:]
    if not any(sign in text for sign in _VERDICT_SIGNS):
        return ""
    found = important_lines.find_important_lines(text, 0, len(text), enough=1)
    lines = [text[line.start : line.end] for line in found if line.rank == important_lines.VERDICT]
    return inline(lines[0].strip(" =-\n"), 80) if lines else ""


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────


def has_failed(action: ToolAction) -> bool:
    """Return whether the result of a call reports a failure."""
    result = action.result
    if result is None or (action.command is not None and action.command.is_search):
        return False
    text = text_of(result.content)
    status = _status(text) if action.command is not None else None
    if status is not None:
        return status != 0
    if result.error:
        return True
    only_reads = action.command.is_read_only if action.command is not None else bool(action.touched)
    if only_reads and len(text) > _MAX_READ_FAILURE_CHARS:
        return False
    part = head_and_tail(text)
    return any(sign in part for sign in _FAILURE_SIGNS) and reports_failure(part)


def errors_section(
    actions: Sequence[ToolAction], *, keep: Set[int], later: Sequence[ToolAction] = ()
) -> Section:
    return Section("Unresolved errors, newest first:", 2.0, _error_items(actions, keep, later))


def _error_items(actions: Sequence[ToolAction], keep: Set[int], later: Sequence[ToolAction]) -> Iterator[str]:
    """Yield the failures of what was not tried again later, each with its most informative lines."""
    retried = {target for action in later if action.result is not None for target in _targets(action)}
    for action in actions:
        targets = set(_targets(action))
        if action.result is None or targets <= retried:
            continue
        if has_failed(action):
            is_kept = action.result_seq in keep
            text = text_of(action.result.content)
            yield f"{_error_line(action)}, shown in full" if is_kept else _error_block(action, text)
        retried |= targets
        # An agent that changed a file can also read it.
        retried |= {("read", path) for kind, *paths in targets if kind == "changed" for path in paths}


def _targets(action: ToolAction) -> Iterator[tuple[str, ...]]:
    """Yield what identifies a later call as a retry of this one.

    That is the program with the files it was given, the file and whether it was changed, or the very call."""
    command = action.command
    if command is not None and not command.is_read_only:
        paths = sorted({path for path, _ in command.touched})
        yield (command.program, *paths) if paths or " -c " not in command.bare else ("", command.bare)
    elif action.touched:
        for path, verb in action.touched:
            yield ("read" if verb == "read" else "changed", path)
    else:
        yield (action.call.name, action.call.arguments[:2_000])


def _call_title(action: ToolAction) -> str:
    """Return the command, or the tool with its file, or the tool with the beginning of its arguments."""
    if action.command is not None:
        return inline(action.command.bare, 120)
    about = action.touched[0][0] if action.touched else call_subject(action.call)
    return f"{inline(action.call.name, 60)} {inline(about, 120)}"


def _error_line(action: ToolAction) -> str:
    return f"{ITEM_PREFIX}{_call_title(action)}, {handle(action.result_seq)}"


def _error_block(action: ToolAction, text: str) -> str:
    return "\n".join([_error_line(action) + ":", *(QUOTE_PREFIX + line for line in _error_lines(text))])


def _error_lines(text: str) -> list[str]:
    """Return the lines that say what went wrong, in their order, or the last lines if none does."""
    part = head_and_tail(text)
    found = [
        line
        for line in important_lines.find_important_lines(part, 0, len(part), enough=2)
        if line.rank <= important_lines.ITEM
    ]
    chosen = sorted((line.start, line.end) for line in found[:_MAX_ERROR_LINES])
    lines = [part[start:end] for start, end in chosen]
    # An exit status says only that the call failed; the cause is in the lines before it.
    if all(_status(line) is not None for line in lines):
        lines = part.strip().split("\n")[-_MAX_ERROR_LINES:]
    return [line for line in map(quote_line, lines) if line]


# ── Open calls ───────────────────────────────────────────────────────────────────────────────────────────


def open_calls_section(actions: Sequence[ToolAction]) -> Section:
    items = (
        f"{ITEM_PREFIX}{_call_title(action)}, {handle(action.seq)}"
        for action in actions
        if action.result is None
    )
    return Section("Calls without a result:", 1.0, items)
