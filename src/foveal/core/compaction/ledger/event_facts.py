"""What a ledger reads in the text of one event.

1. `read_facts` returns what the sections about requests, files, commands and plans need. It is small: references to
   calls, paths, and short descriptions of changes.
2. `read_words` returns the names and lines that may be quoted: names as one text, lines as their hash values. A
   line itself is looked up again in its event when it is quoted.

Both are pure functions of the event. Their work is linear in its text up to a limit. What they return is kept for
every event and contains no cycles, so the garbage collector is told not to walk it (`gc=False`).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from foveal.core.compaction.ledger.call_reader import TouchedFiles, read_call
from foveal.core.compaction.ledger.edit_changes import describe_change
from foveal.core.compaction.ledger.pasted_text import is_tool_report
from foveal.core.compaction.ledger.sections import inline
from foveal.core.compaction.standing.statements import Sentence, find_sentences, reopens
from foveal.core.log.events import Call, Event, ModelSaid, ToolReturned, UserSaid, calls_of, text_of
from foveal.core.reduction.placeholder import call_subject
from foveal.core.view.text_facts import distinct_names, string_values, strip_line_number

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
    middle."""
    fact = event.fact
    if isinstance(fact, ToolReturned):
        return _ends(text_of(fact.content))
    if isinstance(fact, ModelSaid):
        calls = (call for _, call in calls_of(fact.content))
        return "\n".join(_ends(value) for call in calls for value in string_values(call.arguments))
    return ""


def quotable_lines(text: str) -> list[str]:
    """Return the lines that are long enough, without blanks around them, line numbers and marks of a diff."""
    lines = [line for line in map(str.strip, text.split("\n")) if len(line) >= MIN_LEDGER_LINE_CHARS]
    if _MARKED_STARTS.isdisjoint({line[0] for line in lines}):
        return lines
    bare: list[str] = []
    for line in lines:
        if line[0] in _MARKED_STARTS:
            # Most of these lines are those of a numbered listing: a call for each would take longer than the rest.
            number, tab, rest = line.partition("\t")
            line = rest.lstrip() if tab and number.isdecimal() else strip_line_number(line)
            if line.startswith(_DIFF_MARKS):
                line = line[2:].lstrip()
            if len(line) < MIN_LEDGER_LINE_CHARS:
                continue
        bare.append(line)
    return bare


def first_quotable_lines(text: str) -> Iterator[str]:
    """Yield the same lines. If only the first ones are needed, only a part of the text is read."""
    start, end = 0, len(text)
    while start < end:
        stop = text.find("\n", start + _BLOCK_CHARS)
        stop = end if stop < 0 else stop
        yield from quotable_lines(text[start:stop])
        start = stop


def _ends(text: str) -> str:
    """Return the beginning and the end of a long text, in whole lines."""
    if len(text) <= _MAX_READ_CHARS:
        return text
    head, tail = text[: _MAX_READ_CHARS * 3 // 4], text[-_MAX_READ_CHARS // 4 :]
    return f"{head.rpartition(chr(10))[0] or head}\n{tail.partition(chr(10))[2] or tail}"
