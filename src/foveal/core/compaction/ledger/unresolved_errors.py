"""Ledger sections of unresolved errors and of calls without a result.

A failure is resolved when the same thing was tried again later and succeeded: the same command or program with the
same words, for an edit any change of the same file, the very call. A command that failed to write a file which was
changed later is listed last and says so. Of several failures of one command or file the latest is listed.

The line that says most comes first: the exception at the end of a traceback, an assertion, a compiler's message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence, Set
from functools import cached_property, lru_cache
from itertools import chain
from typing import Final, TypeAlias

from foveal.core.compaction.ledger.allocation import Item, Section
from foveal.core.compaction.ledger.call_outcome import head_and_tail, status_of
from foveal.core.compaction.ledger.call_reader import FileKeys, ToolAction
from foveal.core.compaction.ledger.sections import (
    ERRORS_HEADING,
    ITEM_PREFIX,
    OPEN_CALLS_HEADING,
    OUTPUT_PREFIX,
    inline,
    quote_line,
)
from foveal.core.log.events import handle, text_of
from foveal.core.reduction import important_lines
from foveal.core.reduction.placeholder import call_subject

_Target: TypeAlias = tuple[str, ...]
_MAX_ERROR_LINES: Final = 3
_SHORT_LINE_CHARS: Final = 100
_SHORT_TITLE_CHARS: Final = 60
_TITLE_CHARS: Final = 120
"""Characters of a command or of a tool's subject that name a call."""
_MAX_HANDLES: Final = 20
_MAX_OPEN_CALLS: Final = 20
_ERRORS_SHARE: Final = 0.3
_ERROR_RANKS: Final = (important_lines.CAUSE, important_lines.ITEM, important_lines.MENTION)
"""Lines that tell an error, the most specific first."""
_FILE_WRITTEN: Final = re.compile(r"(?:(?:cat|tee)\b[^\n;&|]*<<…[^\n]*(?:\n+|\Z))+")
"""Files that a command writes before it runs something: they are listed with the files."""
_BARE_TAG: Final = re.compile(r"</?[\w-]+>\Z|[\w.]*(?:Error|Exception):\Z")


class Failure:
    """A failed call, with its error lines once they are needed."""

    def __init__(self, action: ToolAction, *, changed_at: int | None) -> None:
        self.action = action
        self.handle = handle(action.result_seq)
        self.changed_at = changed_at
        """Seq of a later change of the files that the call failed to write."""

    @cached_property
    def lines(self) -> Sequence[str]:
        return _error_lines(self.action)

    def title(self, width: int) -> str:
        later = "" if self.changed_at is None else f", file changed in {handle(self.changed_at)}"
        return f"{ITEM_PREFIX}{call_title(self.action, width)}, {self.handle}{later}"


def collect_failures(actions: Sequence[ToolAction], *, later: Sequence[ToolAction] = ()) -> list[Failure]:
    """Return the failures that no later call resolved, newest first; writes that came to nothing are last."""
    failures = list(_unresolved(actions, later))
    failures.sort(key=lambda failure: failure.changed_at is not None)
    return failures


def errors_section(failures: Sequence[Failure], *, keep: Set[int]) -> Section:
    """Return the section of the failures."""
    return Section(
        ERRORS_HEADING,
        (Item(slot, _error_block(failure, keep)) for slot, failure in enumerate(failures)),
        2.0,
        needed=_needed_items(failures, keep),
        needed_share=_ERRORS_SHARE,
        left_out=lambda shown: _errors_left_out(failures, shown),
        told_when_empty=True,
    )


def _needed_items(failures: Sequence[Failure], keep: Set[int]) -> Iterator[Item]:
    """Yield what failed, then also its most informative line."""
    for slot, failure in enumerate(failures):
        yield Item(slot, failure.title(_SHORT_TITLE_CHARS))
    for slot, failure in enumerate(failures):
        if failure.action.result_seq not in keep and failure.lines:
            line = OUTPUT_PREFIX + inline(failure.lines[0], _SHORT_LINE_CHARS)
            yield Item(slot, f"{failure.title(_SHORT_TITLE_CHARS)}:\n{line}")


def _unresolved(actions: Sequence[ToolAction], later: Sequence[ToolAction]) -> Iterator[Failure]:
    """Yield the failures, newest first, that no later call resolved or repeated."""
    succeeded: set[_Target] = set()
    tried: set[_Target] = set()
    changed: dict[str, int] = {}
    keys = FileKeys()
    is_later = True
    for action in chain(later, (None,), actions):
        if action is None:
            is_later = False
            continue
        if action.result is None:
            continue
        targets = set(_targets(action, keys))
        # The same attempt is the very command, or a call about the same file.
        attempt = targets if action.command is None else {("", action.call.arguments[:2_000])}
        paths = {keys.of(path) for path, verb in action.touched if verb not in ("read", "ran")}
        if not action.has_failed:
            succeeded |= targets
            # An agent that changed a file can also read it.
            succeeded.update((kind, path) for path in paths for kind in ("changed", "read"))
            changed.update(dict.fromkeys(paths, action.seq))
        elif not is_later and not targets <= succeeded and not attempt <= tried:
            is_edit = action.command is not None and action.command.is_edit and paths <= changed.keys()
            yield Failure(action, changed_at=max(map(changed.__getitem__, paths)) if is_edit else None)
        tried |= attempt


def _targets(action: ToolAction, keys: FileKeys) -> Iterator[_Target]:
    """Yield what a later call must have done with success to resolve a failure of this one.

    That is the program with its words, the file and whether it was changed, or the very call."""
    command = action.command
    if command is not None and not command.is_read_only:
        yield ("ran", *command.words) if command.words else ("", action.call.arguments[:2_000])
    elif action.touched:
        for path, verb in action.touched:
            yield ("read" if verb == "read" else "changed", keys.of(path))
    else:
        yield (action.call.name, action.call.arguments[:2_000])


def call_title(action: ToolAction, width: int = _TITLE_CHARS) -> str:
    """Return the command, or the tool with its file, or the tool with the beginning of its arguments."""
    if action.command is not None:
        return inline(_FILE_WRITTEN.sub("", action.command.bare) or action.command.bare, width)
    about = action.touched[0][0] if action.touched else call_subject(action.call)
    return f"{inline(action.call.name, 60)} {inline(about, width)}"


def _error_block(failure: Failure, keep: Set[int]) -> str:
    title = failure.title(_TITLE_CHARS)
    if failure.action.result_seq in keep:
        return f"{title}, shown in full"
    return "\n".join([f"{title}:", *(OUTPUT_PREFIX + line for line in failure.lines)])


def _error_lines(action: ToolAction) -> Sequence[str]:
    """Return the lines that say what went wrong, the most specific first, or the last lines if none does."""
    return (
        _find_error_lines(head_and_tail(text_of(action.result.content))) if action.result is not None else ()
    )


@lru_cache(maxsize=512)
def _find_error_lines(part: str) -> Sequence[str]:
    found = [
        line
        for line in important_lines.find_important_lines(part, 0, len(part), enough=2)
        if line.rank in _ERROR_RANKS and _is_informative(part[line.start : line.end])
    ]
    # Causes come first: a count of failures says less than what failed. A traceback ends with its cause.
    is_traceback = "Traceback (" in part
    found.sort(key=lambda line: (line.rank, -line.start if is_traceback else line.start))
    if found and found[0].rank < important_lines.MENTION:
        found = [line for line in found if line.rank < important_lines.MENTION]
    lines = [_whole_message(part, line.start, line.end) for line in found[:_MAX_ERROR_LINES]]
    if not lines:
        last = part.strip().split("\n")[-4 * _MAX_ERROR_LINES :]
        lines = [line for line in last if _is_informative(line)][-_MAX_ERROR_LINES:]
    return tuple(line for line in map(quote_line, lines) if line)


def _whole_message(text: str, start: int, end: int) -> str:
    """Return a line, with the next one if it ends in a colon."""
    line = text[start:end].rstrip()
    return f"{line} {text[end : end + 400].strip().partition(chr(10))[0]}" if line.endswith(":") else line


def _is_informative(line: str) -> bool:
    """Return whether a line says more than that the call failed, unlike an exit status, a tag or a title."""
    line = line.strip()
    if not line or status_of(line) is not None or line.startswith("Traceback ("):
        return False
    return not _BARE_TAG.match(line)


def _errors_left_out(failures: Sequence[Failure], shown: Collection[int]) -> str:
    hidden = [failure.handle for slot, failure in enumerate(failures) if slot not in shown]
    if not hidden:
        return ""
    more = " …" if len(hidden) > _MAX_HANDLES else ""
    return f"+ {len(hidden)} more error{'s' * (len(hidden) > 1)}: {', '.join(hidden[:_MAX_HANDLES])}{more}"


def open_calls_section(actions: Sequence[ToolAction]) -> Section:
    """Return the section of calls whose result is missing, as an abort leaves them behind."""
    pending = list(
        dict.fromkeys(
            f"{ITEM_PREFIX}{call_title(action)}, {handle(action.seq)}"
            for action in actions
            if action.result is None
        )
    )
    return Section(
        OPEN_CALLS_HEADING,
        (Item(slot, line) for slot, line in enumerate(pending[:_MAX_OPEN_CALLS])),
        1.5,
        left_out=lambda shown: f"+ {len(pending) - len(shown)} more" if len(shown) < len(pending) else "",
    )
