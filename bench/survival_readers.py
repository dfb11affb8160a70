"""Reads from a log what a later request must still tell: rules, edited files and unresolved errors.

The readers are simple on purpose, and share no code with the ledger that they judge.

1. A rule is a sentence of the user that commands or forbids something for good.
2. An edited file is the target of an editing tool, a patch, `sed -i`, `tee` or a redirected heredoc.
3. An error is unresolved if the latest result of the same command, or of the same tool on the same file, failed and
   has an error line. A request names it if it contains that line, or its handle and the command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from bench.survival_checks import Coverage, user_events
from foveal import Event, ModelSaid, ToolReturned
from foveal.core.log import Call, calls_of, text_of

MAX_RULE_CHARS: Final = 300
MIN_RULE_CHARS: Final = 12

_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_LEAD: Final = r"^(?:[-*•\d.)\s]*)(?:please,?\s+|and\s+|but\s+|also,?\s+|so\s+|then\s+)*"
_RULE: Final = re.compile(
    _LEAD
    + r"(?:never|always|do not|don't|don’t|must|only (?:use|edit|change|touch|run|write)|from now on|make sure"
    r"|under no circumstances|avoid|remember to|use \S+ (?:\S+ )?instead)\b"
    r"|\byou (?:must|should never|should always|may not|may only|are not allowed)\b"
    r"|\bmust (?:not|never|always)\b",
    re.IGNORECASE,
)


def rules(log: Sequence[Event]) -> list[str]:
    """Return the sentences of the user that state a rule, each with single spaces."""
    found: dict[str, None] = {}
    for event in user_events(log):
        for sentence in _SENTENCE.split(text_of(event.fact.content)):
            plain = " ".join(sentence.split())
            is_rule = MIN_RULE_CHARS <= len(plain) <= MAX_RULE_CHARS and _RULE.search(plain)
            if is_rule and not _is_title(plain):
                found[plain] = None
    return list(found)


def _is_title(line: str) -> bool:
    """Return whether a line is a heading of a pasted text, such as "Do Not Track Legislation"."""
    words = line.split()
    return line[-1] not in ".!?:" and len(words) >= 3 and sum(map(str.istitle, words)) >= len(words) - 1


# ── Calls and their results ──────────────────────────────────────────────────────────────────────────────


class Answered(NamedTuple):
    """A call and its result."""

    call: Call
    arguments: dict[str, Any]
    event: Event
    text: str


def answered_calls(log: Sequence[Event]) -> Iterator[Answered]:
    waiting: dict[str, Call] = {}
    for event in log:
        if isinstance(event.fact, ModelSaid):
            waiting |= {call.id: call for _, call in calls_of(event.fact.content)}
        elif isinstance(event.fact, ToolReturned) and event.fact.call_id in waiting:
            call = waiting.pop(event.fact.call_id)
            yield Answered(call, _arguments(call), event, text_of(event.fact.content))


def _arguments(call: Call) -> dict[str, Any]:
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _command(arguments: dict[str, Any]) -> str:
    value = arguments.get("command", arguments.get("cmd", ""))
    return str(value[-1]) if isinstance(value, list) and value else value if isinstance(value, str) else ""


def _path(arguments: dict[str, Any]) -> str:
    value = next((arguments[name] for name in ("path", "file_path", "filename") if name in arguments), "")
    return value if isinstance(value, str) else ""


# ── Edited files ─────────────────────────────────────────────────────────────────────────────────────────

_EDITORS: Final = frozenset(
    {"edit", "write", "multiedit", "editor", "write_file", "create_file", "apply_patch"}
)
_EDITOR_COMMANDS: Final = frozenset({"create", "str_replace", "insert"})
_NAME: Final = r"['\"]?([\w./~+@-]*[\w-]\.\w{1,8}|[\w./~-]*/(?:Makefile|Dockerfile))['\"]?"
_SHELL_EDITS: Final = (
    re.compile(rf"(?:^|[;&|\n]\s*)cat\s*>>?\s*{_NAME}\s*<<"),
    re.compile(rf"<<-?\s*['\"]?\w+['\"]?\s*>>?\s*{_NAME}"),
    re.compile(rf"\btee\s+(?:-a\s+)?{_NAME}"),
    re.compile(rf"^create\s+{_NAME}\s*$", re.MULTILINE),
)
_SED: Final = re.compile(r"\bsed\s+-i[^\n;&|]*?\s" + _NAME + r"(?=\s*(?:$|[;&|\n]))", re.MULTILINE)
_PATCH: Final = re.compile(r"^\*\*\* (?:Update|Add) File: (\S+)", re.MULTILINE)


def edited_files(log: Sequence[Event]) -> list[str]:
    """Return the paths of edited files, in the order of their first edit."""
    found: dict[str, None] = {}
    for one in answered_calls(log):
        found |= dict.fromkeys(_edits(one.call.name, one.arguments))
    return [path for path in found if not path.startswith("/dev/")]


def _edits(name: str, arguments: dict[str, Any]) -> Iterator[str]:
    command = _command(arguments)
    if command in _EDITOR_COMMANDS or (name.lower() in _EDITORS and _path(arguments)):
        yield from filter(None, [_path(arguments)])
        return
    for pattern in (*_SHELL_EDITS, _SED, _PATCH):
        yield from pattern.findall(command)
    yield from _PATCH.findall(str(arguments.get("input", arguments.get("patch", ""))))


def is_named(path: str, text: str, files: Sequence[str]) -> bool:
    """Return whether a text names a file: by its last part, or by the last two if several files share that."""
    *folders, last = path.rstrip("/").split("/")
    is_shared = sum(other.rstrip("/").split("/")[-1] == last for other in files) > 1
    name = "/".join([*folders[-1:], last]) if is_shared else last
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────

_STATUS: Final = re.compile(
    r"<returncode>(-?\d+)</returncode>|exit(?:ed with)? (?:code|status)[: ]+(-?\d+)|^Exit code (\d+)",
    re.IGNORECASE | re.MULTILINE,
)
_ERROR_LINE: Final = re.compile(
    r"^(?:E\s+)?[\w.]*(?:Error|Exception)\b.*|^.*\b(?:error|fatal|ERROR): .*|^FAILED .*"
    r"|^.*(?:command not found|No such file or directory|Permission denied|<tool_use_error>).*",
    re.MULTILINE,
)
_CD: Final = re.compile(r"^\s*cd\s+\S+\s*&&\s*")
_DISTINCTIVE_CHARS: Final = 60


class UnresolvedError(NamedTuple):
    """The latest result of a command, if it failed."""

    event: Event
    line: str
    command: str

    def is_named(self, text: str, coverage: Coverage) -> bool:
        """Return whether a request (`text` with single spaces) tells of the error."""
        if " ".join(self.line.split())[:_DISTINCTIVE_CHARS] in text:
            return True
        return coverage.names(self.event.seq) and " ".join(self.command.split())[:30] in text


def unresolved_errors(log: Sequence[Event]) -> list[UnresolvedError]:
    latest: dict[tuple[str, str], UnresolvedError | None] = {}
    for one in answered_calls(log):
        command = _CD.sub("", _command(one.arguments))
        target = _path(one.arguments) or command or one.call.arguments[:200]
        line = _error_line(one.text)
        latest[one.call.name, target] = UnresolvedError(one.event, line, target) if line else None
    return [error for error in latest.values() if error is not None]


def _error_line(text: str) -> str:
    """Return the last error line of a failed result, or ""."""
    statuses = [int(next(filter(None, found))) for found in _STATUS.findall(text)]
    lines = [found.strip() for found in _ERROR_LINE.findall(text)]
    if statuses:
        return lines[-1] if lines and statuses[-1] != 0 else ""
    is_failure = "Traceback (most recent call last)" in text or re.match(
        r"\s*(?:Error\b|ERROR\b|<tool_use_error>|\w*Error:)", text
    )
    return lines[-1] if lines and is_failure else ""
