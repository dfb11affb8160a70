"""What a ledger reads in the text of one event or tool call.

1. `read_facts` returns what the sections about requests, files, commands and plans need. It is small: references to
   calls, paths, and short descriptions of changes.
2. `read_words` returns the names and lines that may be quoted: names as one text, lines as their hash values. A
   line itself is looked up again in its event when it is quoted.
3. `describe_change` tells in a few words what an edit changed, from the arguments of its call: the first line that
   differs, the first definition of a file that was written, an inline command's expression. The words are the
   agent's own; they are quoted and bounded.
4. A `ToolAction` is a call with its result. Only the two ends of a result are read, where exit statuses, counts of
   tests and error messages stand.

All are pure functions of the event. Their work is linear in its text up to a limit. What they return is kept for
every event and contains no cycles, so the garbage collector is told not to walk it (`gc=False`).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Final, NamedTuple, TypeAlias

import msgspec

from foveal.core.compaction.ledger.allocation import inline, word_start
from foveal.core.compaction.ledger.call_reader import (
    FIELD_KEYS_NEW,
    FIELD_KEYS_OLD,
    FIELD_KEYS_TEXT,
    FileAction,
    ReadCall,
    TouchedFiles,
    heredoc_body,
    read_call,
)
from foveal.core.compaction.ledger.pasted_text import is_tool_report
from foveal.core.compaction.standing.statements import Sentence, find_sentences, reopens
from foveal.core.log.events import Call, Event, ModelSaid, ToolReturned, UserSaid, calls_of, text_of
from foveal.core.reduction import important_lines
from foveal.core.reduction.placeholder import call_subject
from foveal.core.reduction.unchanged_answers import is_unchanged_answer
from foveal.core.view.text_facts import (
    distinct_names,
    exit_status,
    listing_separator,
    reports_failure,
    string_values,
    strip_line_number,
)

MIN_LEDGER_LINE_CHARS: Final = 24
"""Shortest line that is worth quoting."""
MAX_NAMES_PER_EVENT: Final = 150
_MAX_READ_CHARS: Final = 20_000
"""Characters of one event that are searched for names and lines: three quarters at its beginning, the rest at its
end."""
_BLOCK_CHARS: Final = 1_000
"""Characters that are split into lines at once, up to the end of a line."""
_PLANNING_TOOL: Final = re.compile(r"todo|plan|task_?(?:tracker|list)|checklist", re.IGNORECASE)
_MAX_SUBJECT_CHARS: Final = 500
"""Characters of a command that name a call."""
_FILE_WRITTEN: Final = re.compile(r"(?:(?:cat|tee)\b[^\n;&|]*<<…[^\n]*(?:\n+|\Z))+")
"""Files that a command writes before it runs something: they are listed with the files."""
_MAX_LISTING_CHARS: Final = 8_000
"""Characters at the beginning of a text that show whether it is a numbered listing."""
_DIFF_SIGNS: Final = ("@@", "*** Begin Patch")
_DIFF_MARKS: Final = ("+ ", "- ")
_MARKED_STARTS: Final = frozenset("0123456789+-")
_IMPORT_STARTS: Final = ("import", "from", "use", "using", "#include", "require", "package")
_IMPORT: Final = re.compile(rf"(?:{'|'.join(_IMPORT_STARTS)})\b")
_MAX_LINES_BEFORE_IMPORTS: Final = 80
"""Lines at the beginning of a result that are searched for imports."""


class CommandFacts(msgspec.Struct, frozen=True, gc=False):
    """A shell command. See `ShellCommand`; its texts are hash values here, which are small and only compared."""

    bare: int
    words: int
    """0 if it has no words by which a retry is recognised."""
    runs_program: bool
    is_read_only: bool
    is_search: bool
    is_edit: bool
    is_plan: bool


class ToolCallFacts(msgspec.Struct, frozen=True, gc=False):
    """One call, as far as its arguments tell what it does."""

    call: Call
    subject: str
    """The command, or the file, or the beginning of the arguments."""
    touched: TouchedFiles
    changes: tuple[str, ...]
    """For each touched file, what the call changed in it; "" for one that it only read."""
    command: CommandFacts | None
    is_plan: bool
    """Whether it passes a plan to a planning tool."""

    def title(self, width: int) -> str:
        """Return the command, or the tool with its file, or the tool with the beginning of its arguments."""
        subject = inline(self.subject, width)
        return subject if self.command is not None else f"{inline(self.call.name, 60)} {subject}"


class ModelFacts(msgspec.Struct, frozen=True, gc=False):
    """A message of the model."""

    calls: tuple[ToolCallFacts, ...]
    has_text: bool

    @property
    def ends_turn(self) -> bool:
        return self.has_text and not self.calls


class UserFacts(msgspec.Struct, frozen=True, gc=False):
    """A message of the user."""

    text: str
    """The text without blanks around it."""
    is_report: bool
    """Whether it reports the result of a tool."""
    sentences: tuple[Sentence, ...]
    """The sentences that still hold later."""
    keys: tuple[int, ...]
    """Hash values of these sentences, by which a repeated one is recognised."""
    reopens: bool
    """Whether it reopens what was answered before."""
    short_quotes: dict[Hashable, tuple[str, int]]
    """The latest short quote, which the next ledger is likely to repeat; the key says how it was made."""


EventFacts: TypeAlias = ModelFacts | UserFacts | None


class EventWords(msgspec.Struct, frozen=True, gc=False):
    """Names and lines of a result, or of the calls of a message."""

    names: str
    """Distinct names in their order, joined by newlines."""
    lines: bytes
    """Hash values of the lines that are long enough. They differ between processes, so they are only compared."""
    imports: tuple[str, ...]
    """Lines at the beginning of a result that import something."""

    def split_names(self) -> list[str]:
        return self.names.split("\n") if self.names else []

    def line_hashes(self) -> array[int]:
        return array("q", self.lines)


SentenceReader: TypeAlias = Callable[[int, str], tuple[Sentence, ...]]
"""Returns the sentences that still hold in a message of the user, by its seq and its text."""


def read_facts(event: Event, sentences_of: SentenceReader | None = None) -> EventFacts:
    """Return the facts of a message, None for any other event. `sentences_of` may know the sentences already."""
    fact = event.fact
    if isinstance(fact, ModelSaid):
        calls = tuple(_call_facts(call) for _, call in calls_of(fact.content))
        return ModelFacts(calls, bool(text_of(fact.content).strip()))
    if isinstance(fact, UserSaid):
        said = text_of(fact.content)
        text = said.strip()
        known = (
            sentences_of if text == said else None
        )  # in a text with blanks around it, the places are others
        sentences: dict[int, Sentence] = {}
        for sentence in find_sentences(text) if known is None else known(event.seq, text):
            sentences.setdefault(hash(text[sentence.start : sentence.end].strip()), sentence)
        is_report = is_tool_report(text)
        is_reopening = not is_report and reopens(text)
        return UserFacts(text, is_report, tuple(sentences.values()), tuple(sentences), is_reopening, {})
    return None


def _call_facts(call: Call) -> ToolCallFacts:
    read = read_call(call)
    changes = tuple(
        "" if verb in ("read", "ran") else describe_change(read, path.removeprefix("./"), verb)
        for path, verb in read.touched
    )
    if (command := read.command) is None:
        subject = read.touched[0][0] if read.touched else call_subject(call)
        return ToolCallFacts(
            call, subject, read.touched, changes, None, bool(_PLANNING_TOOL.search(call.name))
        )
    facts = CommandFacts(
        hash(command.bare),
        hash(command.words) if command.words else 0,
        command.runs_program,
        command.is_read_only,
        command.is_search,
        command.is_edit,
        command.is_plan,
    )
    subject = (_FILE_WRITTEN.sub("", command.bare) if "<<" in command.bare else "") or command.bare
    is_plan = command.is_plan or bool(_PLANNING_TOOL.search(call.name))
    return ToolCallFacts(call, subject[:_MAX_SUBJECT_CHARS], read.touched, changes, facts, is_plan)


def read_words(event: Event) -> EventWords:
    """Return the names and lines of a result, or of the calls of a message."""
    text = quotable_text(event)
    names = islice(distinct_names(text), MAX_NAMES_PER_EVENT)
    lines = quotable_lines(text)
    first = lines[:_MAX_LINES_BEFORE_IMPORTS] if isinstance(event.fact, ToolReturned) else []
    imports = tuple([line for line in first if line.startswith(_IMPORT_STARTS) and _IMPORT.match(line)])
    return EventWords("\n".join(names), array("q", set(map(hash, lines))).tobytes(), imports)


def quotable_text(event: Event) -> str:
    """Return the text of a result, or those among the arguments of a message's calls; long ones without their
    middle. A result that only refers to an earlier one has nothing to quote."""
    fact = event.fact
    if isinstance(fact, ToolReturned):
        return "" if is_unchanged_answer(fact) else _ends(text_of(fact.content))
    if isinstance(fact, ModelSaid):
        calls = (call for _, call in calls_of(fact.content))
        return "\n".join(_ends(value) for call in calls for value in string_values(call.arguments))
    return ""


def quotable_lines(text: str) -> list[str]:
    """Return the lines that are long enough, without blanks around them, and without the numbers of a listing and
    the marks of a diff. Numbers of other texts are data and stay."""
    return _lines_with(text, _marks_of(text))


def first_quotable_lines(text: str) -> Iterator[str]:
    """Yield the same lines. If only the first ones are needed, only a part of the text is read."""
    marks = _marks_of(text)
    start, end = 0, len(text)
    while start < end:
        stop = text.find("\n", start + _BLOCK_CHARS)
        stop = end if stop < 0 else stop
        yield from _lines_with(text[start:stop], marks)
        start = stop


class _LineMarks(NamedTuple):
    """What stands in front of the lines of a text and is not part of them."""

    separator: str
    """Of the numbers of a listing, or ""."""
    is_diff: bool


def _marks_of(text: str) -> _LineMarks:
    separator = listing_separator(text[:_MAX_LISTING_CHARS].split("\n"))
    return _LineMarks(separator, is_diff=bool(separator) or any(map(text.__contains__, _DIFF_SIGNS)))


def _lines_with(text: str, marks: _LineMarks) -> list[str]:
    lines = [line for line in map(str.strip, text.split("\n")) if len(line) >= MIN_LEDGER_LINE_CHARS]
    if not marks.is_diff or _MARKED_STARTS.isdisjoint({line[0] for line in lines}):
        return lines
    bare: list[str] = []
    for line in lines:
        if line[0] in _MARKED_STARTS:
            line = strip_line_number(line, marks.separator)
            if line.startswith(_DIFF_MARKS):
                line = line[2:].lstrip()
            if len(line) < MIN_LEDGER_LINE_CHARS:
                continue
        bare.append(line)
    return bare


def _ends(text: str) -> str:
    """Return the beginning and the end of a long text, in whole lines."""
    if len(text) <= _MAX_READ_CHARS:
        return text
    head, tail = text[: _MAX_READ_CHARS * 3 // 4], text[-_MAX_READ_CHARS // 4 :]
    return f"{head.rpartition(chr(10))[0] or head}\n{tail.partition(chr(10))[2] or tail}"


# ── Edit changes ───────────────────────────────────────────────────────────────────────────────────────

MAX_CHANGE_CHARS: Final = 60
"""Characters of the old or the new line that are shown."""
_MAX_COMPARED_CHARS: Final = 4_000
_MAX_COMPARED_LINES: Final = 200
_QUOTE_MARKS: Final = ('"', "'", "`")
_DEFINITION: Final = re.compile(
    r"^[ \t]*(?:export |default |async |public |private |static |pub )*"
    r"(?:def|class|function|func|fn|interface|struct|enum|type|const)\s+\w+[^\n]{0,80}",
    re.MULTILINE,
)
_SED: Final = re.compile(r"(?<=['\"])(?:\d+(?:,\d+)?)?[sdaic](?=[/|#@,:\\ d'\"]).{0,200}?(?=['\"](?:\s|$))")
_HUNK: Final = re.compile(r"^@@[^\n@]*(?:@@)?[ \t]*([^\n]*)$", re.MULTILINE)


def describe_change(call: ReadCall, path: str, verb: FileAction) -> str:
    """Return what the call changed in the file, or "" if its arguments do not tell."""
    if verb in ("deleted", "moved"):
        others = [other for other, _ in call.touched if other != path] if verb == "moved" else []
        return f"to {inline(others[-1], 120)}" if others else ""
    texts = [text for _, text in call.fields]
    patch = next((text for text in texts if "\n@@" in text or "*** Begin Patch" in text), None)
    if patch is not None:
        return _patch_change(patch, path)
    if call.command is not None:
        return _command_change(max(texts, key=len, default=""), path, verb)
    old = _first_value(call.fields, FIELD_KEYS_OLD)
    new = _first_value(call.fields, FIELD_KEYS_NEW)
    if new is not None:
        return _pair_change(old or "", new)
    text = next((text for key, text in call.fields if key.endswith(FIELD_KEYS_TEXT) and text != path), "")
    return _text_change(text)


def _first_value(fields: Sequence[tuple[str, str]], keys: tuple[str, ...]) -> str | None:
    return next((text for key, text in fields if key.startswith(keys)), None)


def _pair_change(old: str, new: str) -> str:
    before, after = _lines(old), _lines(new)
    if not before:
        return f"+ {_quoted(_definition(new) or after[0])}" if after else ""
    if not after:
        return f"removed {_quoted(before[0])}"
    for left, right in zip_longest(before, after):
        if left != right:
            added = len(after) - len(before)
            if left is None or (added > 0 and left in after[after.index(right) :]):
                return f"+ {_quoted(_definition_among(after, before) or right)}"
            if right is None or (added < 0 and right in before):
                return f"removed {_quoted(left)}"
            return _arrow(left, right) + _more_changed(before, after)
    return ""


def _more_changed(before: Sequence[str], after: Sequence[str]) -> str:
    """Return how many more lines are new."""
    more = len({*after} - {*before}) - 1
    return f" and {more} more line{'s' * (more > 1)}" if more > 0 else ""


def _arrow(left: str, right: str) -> str:
    """Return both lines without their common beginning, where that is long."""
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    start = word_start(left, max(0, same - 16)) if same > MAX_CHANGE_CHARS // 2 else 0
    start = start if start <= same else max(0, same - 12)  # the beginning of a long word is left out
    lead = "…" if start else ""
    return f"{_quoted(lead + left[start:])} → {_quoted(lead + right[start:])}"


def _text_change(text: str) -> str:
    """Return the first definition or line of a file that was written, and its length."""
    lines = _lines(text)
    if not lines:
        return ""
    count = text.count("\n", 0, 200_000) + 1
    return f"{count:,} line{'s' * (count > 1)}, {_quoted(_definition(text) or lines[0])}"


def _patch_change(patch: str, path: str) -> str:
    """Return the first removed and added line of the file's part in a patch."""
    at = patch.find(path.removeprefix("./"), 0, 100_000)
    part = patch[max(0, at) : max(0, at) + _MAX_COMPARED_CHARS].partition("\n")[2]
    part = re.split(r"^(?:\*\*\* |diff )", part, maxsplit=1, flags=re.MULTILINE)[0]
    before, after = list(_marked_lines(part, "-")), list(_marked_lines(part, "+"))
    removed = next((line for line in before if line not in after), "")
    added = next((line for line in after if line not in before), "")
    if removed and added:
        return _arrow(removed, added) + _more_changed(before, after)
    if removed or added:
        return f"+ {_quoted(added)}" if added else f"removed {_quoted(removed)}"
    hunk = _HUNK.search(part)
    return f"at {_quoted(hunk[1])}" if hunk and hunk[1].strip() else ""


def _marked_lines(part: str, mark: str) -> Iterator[str]:
    for line in part.split("\n"):
        if line.startswith(mark) and not line.startswith(mark * 3) and line[1:].strip():
            yield line[1:].strip()


def _command_change(command: str, path: str, verb: FileAction) -> str:
    if verb == "written":
        return _text_change(heredoc_body(command, max(0, command.find(path))))
    expression = _SED.search(command, 0, 2_000)
    return _quoted(expression.group()) if expression else ""


def _definition(text: str) -> str:
    found = _DEFINITION.search(text, 0, _MAX_COMPARED_CHARS)
    return found.group().strip() if found else ""


def _definition_among(lines: Sequence[str], known: Sequence[str]) -> str:
    """Return the first definition that is new."""
    seen = set(known)
    return next((line for line in lines if line not in seen and _DEFINITION.match(line)), "")


def _lines(text: str) -> list[str]:
    lines = (line.strip() for line in text[:_MAX_COMPARED_CHARS].split("\n"))
    return list(islice((line for line in lines if line and not line.startswith("#!")), _MAX_COMPARED_LINES))


def _quoted(line: str) -> str:
    """Return a line between marks that do not occur in it, or without any."""
    short = inline(line, MAX_CHANGE_CHARS)
    mark = next((mark for mark in _QUOTE_MARKS if mark not in short), "")
    return f"{mark}{short}{mark}"


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
