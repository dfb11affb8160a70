"""A tool call with its result, and how it ended.

Only the two ends of a result are read, where exit statuses, counts of tests and error messages stand.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from foveal.core.compaction.ledger.call_reader import TouchedFiles
from foveal.core.compaction.ledger.event_facts import CommandFacts, ToolCallFacts
from foveal.core.compaction.ledger.sections import inline
from foveal.core.log.events import Call, ToolReturned, text_of
from foveal.core.reduction import important_lines
from foveal.core.view.text_facts import exit_status, reports_failure

_EDGE_CHARS: Final = 1_500
"""Characters at each end of a result that are searched for its outcome."""
_MAX_READ_FAILURE_CHARS: Final = 400
"""A longer result of reading a file is no failure: the file itself may contain error messages."""
_STATUS_EDGE_CHARS: Final = 200
"""Characters at each end of a result that are searched for its exit status."""
_VERDICT_CHARS: Final = 600
"""Characters at the end of a result in which a line with test counts is looked for."""
_STATUS_SIGNS: Final = ("xit", "XIT", "tatus", "TATUS", "code", "Code", "CODE")
_VERDICT_SIGNS: Final = (" passed", " failed", " error", "Ran ", "test result", "Tests")
_SEARCH_FAILURE_SIGNS: Final = ("No such file or directory", "command not found", "Permission denied")
"""A search that fails for another reason has found nothing."""
_FAILURE_SIGNS: Final = (
    "rror", "raceback", "atal", "FAIL", "failed", "xception", "not found", "No such", "denied", "panic",
)  # fmt: skip


_REPORTED_FAILURE: Final = re.compile(
    r"\W{0,3}(?:failed (?:in|to|with)\b|(?:the )?command (?:timed out|failed)|timed out\b)",
    re.IGNORECASE,
)
"""The beginning of a result in which an agent, not a program, reports a failure."""


class ToolAction(msgspec.Struct, frozen=True, gc=False):
    """One call, what it did, and its result."""

    seq: int
    """Seq of the model message."""
    facts: ToolCallFacts
    result: ToolReturned | None
    result_seq: int
    has_failed: bool
    """Whether the result reports a failure."""

    @property
    def call(self) -> Call:
        return self.facts.call

    @property
    def touched(self) -> TouchedFiles:
        return self.facts.touched

    @property
    def command(self) -> CommandFacts | None:
        return self.facts.command


def describe_outcome(action: ToolAction) -> str:
    """Return how a call ended: its exit status, or `ok` or `failed` where the result contains none."""
    if action.result is None:
        return "no result"
    text = text_of(action.result.content)
    status = status_of(text)
    verdict = _verdict(text)
    counts = f' "{verdict}"' if verdict else ""
    if status is not None:
        return f"exit {status}{counts}"
    return ("failed" if action.has_failed else "ok") + counts


def status_of(text: str) -> int | None:
    """Return the exit status; on the last line it is the shell's, before that it may be a program's."""
    head, tail = text[:_STATUS_EDGE_CHARS], text[-_STATUS_EDGE_CHARS:]
    regions = (tail.rstrip().rpartition("\n")[2], tail) if _has_any(_STATUS_SIGNS, tail) else ()
    for region in (*regions, head) if _has_any(_STATUS_SIGNS, head) else regions:
        if _has_any(_STATUS_SIGNS, region):
            status = exit_status(region)
            if status is not None:
                return status
    return None


def _has_any(signs: tuple[str, ...], text: str) -> bool:
    return any(map(text.__contains__, signs))


def head_and_tail(text: str) -> str:
    """Return the beginning and the end of a long text, in whole lines."""
    if len(text) <= 2 * _EDGE_CHARS:
        return text
    head, tail = text[:_EDGE_CHARS], text[-_EDGE_CHARS:]
    return f"{head.rpartition(chr(10))[0] or head}\n{tail.partition(chr(10))[2] or tail}"


def _verdict(text: str) -> str:
    """Return the line near the end that counts what passed and what failed."""
    text = text[-_VERDICT_CHARS:]
    if not _has_any(_VERDICT_SIGNS, text):
        return ""
    found = important_lines.find_important_lines(text, 0, len(text), enough=1)
    lines = [text[line.start : line.end] for line in found if line.rank == important_lines.VERDICT]
    counts = [line for line in lines if status_of(line) is None]
    return inline(counts[0].strip(" =-\n"), 80) if counts else ""


def has_failed(result: ToolReturned, command: CommandFacts | None, touched: TouchedFiles) -> bool:
    """Return whether the result of a call reports a failure."""
    text = text_of(result.content)
    if command is not None and command.is_search:
        return _has_any(_SEARCH_FAILURE_SIGNS, text[-_MAX_READ_FAILURE_CHARS:])
    status = status_of(text) if command is not None else None
    if status is not None:
        return status != 0
    if result.error:
        return True
    only_reads = command.is_read_only if command is not None else bool(touched)
    if only_reads and len(text) > _MAX_READ_FAILURE_CHARS:
        return False
    if command is not None and _REPORTED_FAILURE.match(text):
        return True
    part = head_and_tail(text)
    return _has_any(_FAILURE_SIGNS, part) and reports_failure(part)
