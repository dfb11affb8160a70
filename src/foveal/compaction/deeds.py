"""What a call does, told by the shape of its arguments: which files, how, and which command.

Nothing here knows a product. A path is a value that looks like one, a command is a value that looks like one, a
pair of old and new text is an edit, a long text beside a path is a file written. Verbs in the name of a tool or in
a short argument (`view`, `create`, `str_replace`) only help.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from foveal.compaction.shell import Action, Command, file_like, listed, understood
from foveal.events import Call, ToolReturned

_MOST_FIELDS: Final = 40
_DEPTH: Final = 3
_LONGEST: Final = 300
"""Characters of a path."""
_PATCHED: Final = re.compile(
    r"^(?:\*\*\* (?P<how>Add|Update|Delete) File: |\+\+\+ (?:b/)?)(?P<path>[^\s].*)$", re.MULTILINE
)
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_RUN: Final = re.compile(r"[\w./-]+ ")
_PATH: Final = re.compile(r"[^\s\"'<>|*?{}$]*/[^\s\"'<>|*?{}$]+\Z")
_SHELL: Final = listed("bash shell sh terminal console powershell cmd")
_RUNS: Final = _SHELL | listed("exec execute run command")
_COMMAND_KEYS: Final = listed("command cmd script shell commandline command_line shell_command bash")
_PATH_KEYS: Final = ("path", "file", "filename", "uri")
_TEXT_KEYS: Final = ("content", "contents", "text", "body", "data", "code")
_OLD_KEYS: Final = ("old", "search", "find", "before", "original")
_NEW_KEYS: Final = ("new", "replace", "after", "updated")
_VERB_KEYS: Final = listed("command action operation op mode type method")
_VERBS: Final[dict[str, Action]] = {
    **dict.fromkeys(listed("read view open show cat get list ls search grep find glob"), "read"),
    **dict.fromkeys(listed("edit replace insert update patch apply append modify change undo"), "edited"),
    **dict.fromkeys(listed("write save overwrite put"), "written"),
    **dict.fromkeys(listed("create add new touch"), "created"),
    **dict.fromkeys(listed("delete remove rm unlink"), "deleted"),
}


class Deed(NamedTuple):
    """One call, what it did, and what came back."""

    seq: int
    """Of the utterance."""
    call: Call
    touched: tuple[tuple[str, Action], ...]
    command: Command | None
    texts: tuple[str, ...]
    """The texts among the arguments."""
    result: ToolReturned | None
    result_seq: int


class Reader:
    """Understands calls; what it knows of the names of tools it remembers."""

    def __init__(self) -> None:
        self._tools: dict[str, list[str]] = {}

    def deed(self, seq: int, call: Call, result: ToolReturned | None, result_seq: int) -> Deed:
        fields = _fields(_decoded(call.arguments))
        words = self._words(call.name)
        told = _command(fields, words)
        command = None if told is None else understood(told)
        touched = tuple(_touched(fields, words)) if command is None else command.touched
        return Deed(seq, call, touched, command, tuple(text for _, text in fields), result, result_seq)

    def _words(self, tool: str) -> list[str]:
        if tool not in self._tools:
            self._tools[tool] = [word.lower() for word in _WORD.findall(tool)]
        return self._tools[tool]


def _decoded(arguments: str) -> object:
    """The arguments, or the text that they are when they are no JSON."""
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments


def _fields(values: object) -> list[tuple[str, str]]:
    """The texts among the arguments, each with its key in small letters."""
    fields: list[tuple[str, str]] = []
    if isinstance(values, dict):
        for key, value in values.items():
            if isinstance(value, str) and len(fields) < _MOST_FIELDS:
                fields.append((key.lower(), value))
            else:
                _collect(key.lower(), value, _DEPTH, fields)
    else:
        _collect("", values, _DEPTH, fields)
    return fields


def _collect(key: str, value: object, depth: int, into: list[tuple[str, str]]) -> None:
    if len(into) >= _MOST_FIELDS:
        return
    if isinstance(value, str):
        into.append((key, value))
    elif isinstance(value, dict) and depth:
        for name, inner in value.items():
            _collect(str(name).lower(), inner, depth - 1, into)
    elif isinstance(value, list) and depth:
        if key in _COMMAND_KEYS and value and all(isinstance(word, str) for word in value):
            into.append((key, value[-1] if len(value) > 2 and value[1].startswith("-") else " ".join(value)))
        else:
            for inner in value[:_MOST_FIELDS]:
                _collect(key, inner, depth - 1, into)


def _command(fields: list[tuple[str, str]], words: list[str]) -> str | None:
    for key, value in fields:
        if key in _COMMAND_KEYS and (" " in value or "\n" in value or not _RUNS.isdisjoint(words)):
            return value
    if not _SHELL.isdisjoint(words):
        texts = [value for key, value in fields if not key.endswith(_PATH_KEYS)]
        return max(texts, key=len) if texts else None
    return next((value for key, value in fields if _looks_run(key, value)), None)


def _looks_run(key: str, value: str) -> bool:
    """A word, and then an option, a pipe or another command."""
    if key.endswith(_TEXT_KEYS) or "\n" in value:
        return False
    return (" -" in value or " && " in value or " | " in value) and bool(_RUN.match(value))


def _touched(fields: list[tuple[str, str]], words: list[str]) -> Iterator[tuple[str, Action]]:
    for _, value in fields:
        if "+++ " in value or "*** " in value:
            yield from _patched(value)
    paths = [value for key, value in fields if len(value) <= _LONGEST and _is_path(key, value)]
    if paths:
        action = _action(fields, words)
        for path in dict.fromkeys(paths):
            yield path.removeprefix("file://"), action


def _is_path(key: str, value: str) -> bool:
    if len(value) < 2 or "\n" in value or value.startswith(("http://", "https://")):
        return False
    if key.endswith(_PATH_KEYS):
        return True
    return " " not in value and (file_like(value) or ("/" in value and bool(_PATH.match(value))))


def _patched(text: str) -> Iterator[tuple[str, Action]]:
    how: dict[str, Action] = {"Add": "created", "Delete": "deleted"}
    for found in list(_PATCHED.finditer(text, 0, 100_000))[:_MOST_FIELDS]:
        path = found["path"].strip().partition("\t")[0]
        if path != "/dev/null":
            yield path, how.get(found["how"] or "", "edited")


def _action(fields: list[tuple[str, str]], words: list[str]) -> Action:
    """What is done to the paths: a verb among the arguments says so, else their shape, else the tool's name."""
    for key, value in fields:
        if key in _VERB_KEYS and len(value) < 40:
            for word in _WORD.findall(value):
                if verb := _VERBS.get(word.lower()):
                    return verb
    keys = [key for key, _ in fields]
    if any(key.startswith(_OLD_KEYS) for key in keys) and any(key.startswith(_NEW_KEYS) for key in keys):
        return "edited"
    named = next((verb for word in words if (verb := _VERBS.get(word))), None)
    if named in (None, "read") and any(key.endswith(_TEXT_KEYS) for key in keys):
        return "written"
    return named or "read"
