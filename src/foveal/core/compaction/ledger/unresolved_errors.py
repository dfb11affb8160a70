"""Ledger sections of unresolved errors and of calls without a result.

A failure is resolved when the same thing was tried again later and succeeded: the same command or program with the
same words, for an edit any change of the same file, the very call. A command that failed to write a file which was
changed later is listed last and says so. Of several failures of one command or file the latest is listed.

The line that says most comes first: the exception at the end of a traceback, an assertion, a compiler's message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence, Set
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from foveal.core.compaction.ledger.allocation import (
    ERRORS_HEADING,
    ITEM_PREFIX,
    MAX_CALL_TITLE_CHARS,
    OPEN_CALLS_HEADING,
    OUTPUT_PREFIX,
    Item,
    Section,
    inline,
    quote_line,
)
from foveal.core.compaction.ledger.call_reader import FileKeys
from foveal.core.compaction.ledger.event_facts import ToolAction, head_and_tail, status_of
from foveal.core.log.events import handle, text_of
from foveal.core.reduction import important_lines

_Target: TypeAlias = int
"""Hash value of something that calls do: it is small, and is only compared."""
_MAX_ERROR_LINES: Final = 3
_SHORT_LINE_CHARS: Final = 100
_SHORT_TITLE_CHARS: Final = 60
_MAX_COMPARED_CHARS: Final = 2_000
"""Characters of the arguments by which a call is recognised as the same."""
_MAX_HANDLES: Final = 20
_MAX_OPEN_CALLS: Final = 20
_ERRORS_SHARE: Final = 0.3
_ERROR_RANKS: Final = (important_lines.CAUSE, important_lines.ITEM, important_lines.MENTION)
"""Lines that tell an error, the most specific first."""
_BARE_TAG: Final = re.compile(r"</?[\w-]+>\Z|[\w.]*(?:Error|Exception):\Z")


class FailedCall:
    """A failed call, with its error lines once they are needed."""

    def __init__(
        self,
        action: ToolAction,
        *,
        number: int,
        targets: Set[_Target],
        attempt: Set[_Target],
        writes: Set[str],
    ) -> None:
        self.action: ToolAction = action
        self.number = number
        """Its place among all calls of its history."""
        self.targets = targets
        """What later calls must do with success to resolve it."""
        self.attempt = attempt
        """What later calls must try for it to be no longer the latest failure of its kind."""
        self.writes = writes
        """Files that it failed to write, if that is all it does."""

    @cached_property
    def lines(self) -> Sequence[str]:
        return _error_lines(self.action)

    def release_text(self) -> None:
        """Find the error lines now, and forget the result."""
        if self.action.result is not None:
            assert self.lines is not None
            self.action = replace(self.action, result=None)


class Failure(NamedTuple):
    """A failure that is not resolved."""

    failed: FailedCall
    changed_at: int | None
    """Seq of a later change of the files that the call failed to write."""

    @property
    def handle(self) -> str:
        return handle(self.failed.action.result_seq)

    @property
    def lines(self) -> Sequence[str]:
        return self.failed.lines

    def title(self, width: int) -> str:
        later = "" if self.changed_at is None else f", file changed in {handle(self.changed_at)}"
        return f"{ITEM_PREFIX}{self.failed.action.facts.title(width)}, {self.handle}{later}"


class FailureHistory:
    """The failures of calls, and what other calls resolved or tried again."""

    def __init__(self, keys: FileKeys) -> None:
        self._keys = keys
        self._failures: list[FailedCall] = []
        self._succeeded: dict[_Target, int] = {}
        """The number of the latest call that did something with success."""
        self._tried: dict[_Target, int] = {}
        """The same for calls that tried something."""
        self._changes: dict[str, list[int]] = {}
        """Seqs of the calls that changed a file."""
        self._calls = 0

    def add(self, action: ToolAction) -> None:
        self._calls += 1
        targets = frozenset(_targets(action, self._keys))
        # The same attempt is the very command, or a call about the same file.
        attempt = targets if action.command is None else frozenset((_very_call("", action),))
        paths = frozenset(self._keys.of(path) for path, verb in action.touched if verb not in ("read", "ran"))
        if action.has_failed:
            writes = paths if action.command is not None and action.command.is_edit else frozenset[str]()
            self._failures.append(
                FailedCall(action, number=self._calls, targets=targets, attempt=attempt, writes=writes)
            )
        else:
            self._succeeded.update(dict.fromkeys(targets, self._calls))
            for path in paths:
                # An agent that changed a file can also read it.
                self._succeeded[_target("changed", path)] = self._succeeded[_target("read", path)] = (
                    self._calls
                )
                self._changes.setdefault(path, []).append(action.seq)
        self._tried.update(dict.fromkeys(attempt, self._calls))

    def unresolved(self, *, later: FailureHistory) -> list[Failure]:
        """Return the failures that no later call resolved or repeated, newest first; failed writes of files that
        were changed later come last. `later` has the calls after these ones."""
        self._discard_resolved()
        done, again = later._succeeded.keys(), later._tried.keys()
        found = [
            Failure(failed, self._changed_at(failed, later))
            for failed in reversed(self._failures)
            if self._is_open(failed, done, again)
        ]
        found.sort(key=lambda failure: failure.changed_at is not None)
        return found

    def release_texts(self) -> None:
        """Forget the results; the error lines of failures that are not resolved stay."""
        self._discard_resolved()
        for failed in self._failures:
            failed.release_text()

    def _discard_resolved(self) -> None:
        """Forget what is resolved: it stays so when further calls are added."""
        self._failures = [
            failed for failed in self._failures if self._is_open(failed, frozenset(), frozenset())
        ]

    def _is_open(self, failed: FailedCall, done: Set[_Target], again: Set[_Target]) -> bool:
        """Return whether something is left to be done with success, and was not tried again since."""
        return any(
            one not in done and self._succeeded.get(one, 0) <= failed.number for one in failed.targets
        ) and any(one not in again and self._tried[one] <= failed.number for one in failed.attempt)

    def _changed_at(self, failed: FailedCall, later: FailureHistory) -> int | None:
        """Return the seq after which all files that a call failed to write had been changed."""
        seqs: list[int] = []
        for path in failed.writes:
            changes = (*self._changes.get(path, ()), *later._changes.get(path, ()))
            first = next((seq for seq in changes if seq > failed.action.seq), None)
            if first is None:
                return None
            seqs.append(first)
        return max(seqs, default=None)


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
        if failure.failed.action.result_seq not in keep and failure.lines:
            line = OUTPUT_PREFIX + inline(failure.lines[0], _SHORT_LINE_CHARS)
            yield Item(slot, f"{failure.title(_SHORT_TITLE_CHARS)}:\n{line}")


def _targets(action: ToolAction, keys: FileKeys) -> Iterator[_Target]:
    """Yield what a later call must have done with success to resolve a failure of this one.

    That is the program with its words, the file and whether it was changed, or the very call."""
    command = action.command
    if command is not None and not command.is_read_only:
        yield hash(("ran", command.words)) if command.words else _very_call("", action)
    elif action.touched:
        for path, verb in action.touched:
            yield _target("read" if verb == "read" else "changed", keys.of(path))
    else:
        yield _very_call(action.call.name, action)


def _target(kind: str, path: str) -> _Target:
    return hash((kind, path))


def _very_call(name: str, action: ToolAction) -> _Target:
    return hash((name, action.call.arguments[:_MAX_COMPARED_CHARS]))


def _error_block(failure: Failure, keep: Set[int]) -> str:
    title = failure.title(MAX_CALL_TITLE_CHARS)
    if failure.failed.action.result_seq in keep:
        return f"{title}, shown in full"
    return "\n".join([f"{title}:", *(OUTPUT_PREFIX + line for line in failure.lines)])


def _error_lines(action: ToolAction) -> Sequence[str]:
    """Return the lines that say what went wrong, the most specific first, or the last lines if none does."""
    return (
        _find_error_lines(head_and_tail(text_of(action.result.content))) if action.result is not None else ()
    )


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
    """Return the section of calls whose result is missing, as an abort leaves them behind; newest first."""
    titles = ((action.facts.title(MAX_CALL_TITLE_CHARS), handle(action.seq)) for action in actions)
    pending = list(dict.fromkeys(f"{ITEM_PREFIX}{title}, {place}" for title, place in titles))
    return Section(
        OPEN_CALLS_HEADING,
        (Item(slot, line) for slot, line in enumerate(pending[:_MAX_OPEN_CALLS])),
        1.5,
        left_out=lambda shown: f"+ {len(pending) - len(shown)} more" if len(shown) < len(pending) else "",
    )
