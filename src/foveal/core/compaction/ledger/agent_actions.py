"""What the agent did: files and how they were touched, commands and how they ended, what failed and what is open.

Everything is read newest first, so that the latest state of a file, a command or a failure is the one that counts,
and the work done for very long ranges is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Final

from foveal.core.compaction.ledger.sections import ITEM, QUOTE, Section, inline, verbatim
from foveal.core.compaction.ledger.tool_calls import Action, CallReader, ToolAction
from foveal.core.log.events import Event, ModelSaid, ToolReturned, calls_of, handle, text_of
from foveal.core.reduction import important_lines
from foveal.core.reduction.placeholder import exit_status, failed, subject

MOST_FILES: Final = 400
_READ: Final = 1_500
"""Characters at each end of a result that are searched for how it ended."""
_SHORT: Final = 400
"""The result of a mere look tells of a failure only when it is short: a file may speak of errors."""
_VERDICT: Final = 600
"""Characters at the end in which a verdict is looked for."""
_STATUS: Final = ("xit", "XIT", "tatus", "TATUS", "code", "Code", "CODE")
_COUNTS: Final = (" passed", " failed", " error", "Ran ", "test result", "Tests")
_LINES: Final = 3
_ALARMS: Final = (
    "rror", "raceback", "atal", "FAIL", "failed", "xception", "not found", "No such", "denied", "panic",
)  # fmt: skip


def deeds(events: Sequence[Event], *, most: int) -> list[ToolAction]:
    """The newest `most` calls of the range with what came back, newest first. A result belongs to the latest call
    before it that has its id."""
    read = CallReader().deed
    done: list[ToolAction] = []
    returned: dict[str, tuple[ToolReturned, int]] = {}
    for event in reversed(events):
        fact = event.fact
        if isinstance(fact, ToolReturned):
            returned[fact.call_id] = fact, event.seq
        elif isinstance(fact, ModelSaid):
            for _, call in reversed(calls_of(fact.content)):
                done.append(read(event.seq, call, *returned.pop(call.id, (None, event.seq))))
            if len(done) >= most:
                break
    return done


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────


class _File:
    """One file and what was done to it."""

    def __init__(self, path: str, seq: int, rank: int) -> None:
        self.path = path
        self.last = seq
        self.rank = rank
        self.actions: dict[Action, int] = {}

    @property
    def changed(self) -> bool:
        return not self.actions.keys() <= {"read", "ran"}

    def shown(self, *, latest: bool) -> str:
        done = ", ".join(f"{name} ×{times}" if times > 1 else name for name, times in self.actions.items())
        mark = ", the last edit" if latest else ""
        return f"{ITEM}{inline(self.path, 300)}: {done}, {handle(self.last)}{mark}"


def files(done: Sequence[ToolAction], *, elsewhere: Set[str]) -> Section:
    """Files, those that were changed or touched last first, those that the view shows anyway a little later; of the
    actions the latest comes first."""
    known: dict[str, _File] = {}
    by_name: dict[str, list[str]] = {}
    for one in done:
        for path, action in one.touched:
            key = _same(path, by_name)
            if key not in known:
                if len(known) >= MOST_FILES:
                    continue
                known[key] = _File(path, one.seq, len(known))
            file = known[key]
            file.path = max(file.path, path, key=len)
            file.actions[action] = file.actions.get(action, 0) + 1
    latest = next((file for file in known.values() if file.changed), None)
    ordered = sorted(known.values(), key=lambda f: f.rank - 3 * f.changed + 3 * (f.path in elsewhere))
    items = (file.shown(latest=file is latest) for file in ordered)
    return Section("Files, latest state first:", 4.0, items)


def _same(path: str, by_name: dict[str, list[str]]) -> str:
    """The path under which the file is known: a relative path may be the end of an absolute one."""
    clean = path.removeprefix("./")
    name = clean.rsplit("/", 1)[-1]
    others = by_name.setdefault(name, [])
    for other in others:
        if other == clean or other.endswith("/" + clean) or clean.endswith("/" + other):
            return other
    others.append(clean)
    return clean


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────


def commands(done: Sequence[ToolAction], *, since: Sequence[ToolAction] = ()) -> Section:
    return Section("Commands, latest first:", 1.0, _commands(done, since))


def _commands(done: Sequence[ToolAction], since: Sequence[ToolAction]) -> Iterator[str]:
    """Commands that ran something, each once with its latest outcome; not those that ran again since."""
    told = {one.command.bare for one in since if one.command is not None}
    for one in done:
        if one.command is not None and one.command.runs and one.command.bare not in told:
            told.add(one.command.bare)
            yield f"{ITEM}{inline(one.command.bare, 120)} → {outcome(one)}, {handle(one.seq)}"


def outcome(one: ToolAction) -> str:
    """How a call ended, in a few words."""
    if one.result is None:
        return "no result"
    text = ends(text_of(one.result.content))
    status = _status(text)
    verdict = _verdict(text)
    told = f" ({verdict})" if verdict else ""
    if status is not None:
        return f"exit {status}{told}"
    return ("failed" if fails(one) else "ok") + told


def _status(text: str) -> int | None:
    """The exit status; what stands at the very end is the shell's, what stands before may be a program's."""
    tail = text[-200:]
    for region in (tail.rstrip().rpartition("\n")[2], tail, text[:200]):
        if any(sign in region for sign in _STATUS):
            status = exit_status(region)
            if status is not None:
                return status
    return None


def ends(text: str) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= 2 * _READ:
        return text
    head, tail = text[:_READ], text[-_READ:]
    return f"{head.rpartition(chr(10))[0] or head}\n{tail.partition(chr(10))[2] or tail}"


def _verdict(text: str) -> str:
    """The line near the end that counts what passed and what failed."""
    text = text[-_VERDICT:]
    if not any(sign in text for sign in _COUNTS):
        return ""
    found = important_lines.important_lines(text, 0, len(text), enough=1)
    lines = [text[line.start : line.end] for line in found if line.rank == important_lines.VERDICT]
    return inline(lines[0].strip(" =-\n"), 80) if lines else ""


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────


def fails(one: ToolAction) -> bool:
    """Whether the result of a call tells of a failure."""
    result = one.result
    if result is None or (one.command is not None and one.command.searches):
        return False
    text = text_of(result.content)
    status = _status(text) if one.command is not None else None
    if status is not None:
        return status != 0
    if result.error:
        return True
    looks = one.command.looks if one.command is not None else bool(one.touched)
    if looks and len(text) > _SHORT:
        return False
    part = ends(text)
    return any(sign in part for sign in _ALARMS) and failed(part)


def errors(done: Sequence[ToolAction], *, keep: Set[int], since: Sequence[ToolAction] = ()) -> Section:
    return Section("Unresolved errors, newest first:", 2.0, _errors(done, keep, since))


def _errors(done: Sequence[ToolAction], keep: Set[int], since: Sequence[ToolAction]) -> Iterator[str]:
    """Failures of things that were not tried again since, each with the lines that tell most."""
    settled = {thing for one in since if one.result is not None for thing in _things(one)}
    for one in done:
        things = set(_things(one))
        if one.result is None or things <= settled:
            continue
        if fails(one):
            kept = one.result_seq in keep
            yield f"{_failed(one)}, shown in full" if kept else _failure(one, text_of(one.result.content))
        settled |= things
        settled |= {("read", path) for kind, *paths in things if kind == "changed" for path in paths}


def _things(one: ToolAction) -> Iterator[tuple[str, ...]]:
    """By what a later success is known to be of the same thing: the program and the files that it was given, the
    file and whether it was changed, or the very call. Whoever changes a file can also read it."""
    command = one.command
    if command is not None and not command.looks:
        paths = sorted({path for path, _ in command.touched})
        yield (command.program, *paths) if paths or " -c " not in command.bare else ("", command.bare)
    elif one.touched:
        for path, action in one.touched:
            yield ("read" if action == "read" else "changed", path)
    else:
        yield (one.call.name, one.call.arguments[:2_000])


def _what(one: ToolAction) -> str:
    """What a call is about: its command, or the tool and the file, or the tool and how its arguments begin."""
    if one.command is not None:
        return inline(one.command.bare, 120)
    about = one.touched[0][0] if one.touched else subject(one.call)
    return f"{inline(one.call.name, 60)} {inline(about, 120)}"


def _failed(one: ToolAction) -> str:
    return f"{ITEM}{_what(one)}, {handle(one.result_seq)}"


def _failure(one: ToolAction, text: str) -> str:
    return "\n".join([_failed(one) + ":", *(QUOTE + line for line in _telling(text))])


def _telling(text: str) -> list[str]:
    """The lines that say what went wrong, in their order; the last ones when none does."""
    part = ends(text)
    found = [
        line
        for line in important_lines.important_lines(part, 0, len(part), enough=2)
        if line.rank <= important_lines.ITEM
    ]
    chosen = sorted((line.start, line.end) for line in found[:_LINES])
    lines = [part[start:end] for start, end in chosen]
    if all(
        _status(line) is not None for line in lines
    ):  # that it failed is known; what went wrong stands before
        lines = part.strip().split("\n")[-_LINES:]
    return [line for line in map(verbatim, lines) if line]


# ── open calls ───────────────────────────────────────────────────────────────────────────────────────────


def open_calls(done: Sequence[ToolAction]) -> Section:
    items = (f"{ITEM}{_what(one)}, {handle(one.seq)}" for one in done if one.result is None)
    return Section("Calls without a result:", 1.0, items)
