"""What a call does, told by the shape of its arguments: which files, how, and which command.

Nothing here knows a product. A path is a value that looks like one, a command is a value that looks like one, a
pair of old and new text is an edit, a long text beside a path is a file written. Verbs in the name of a tool or in
a short argument (`view`, `create`, `str_replace`) only help.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from foveal.core.log.events import Call, ToolReturned

# ── shell ─────────────────────────────────────────────────────────────────────────────────────────
# What a shell command does to files, as far as its words tell: no shell is run, and no product is known.
#
# Only programs that every system has are known by name (`cat`, `sed`, `rm`, …); whatever else is run counts as a
# command that was run, with the files that it names.

Action = Literal["read", "edited", "written", "created", "deleted", "ran"]

SCANNED: Final = 2_000
"""Characters of one command that are looked at."""
_PIECES: Final = 30
_WORDS: Final = 60
_HEREDOC: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_QUOTED: Final = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")
_SPLIT: Final = re.compile(r"&&|\|\||[;|\n]")
_REDIRECT: Final = re.compile(r"(?<![\d&>])>{1,2}\s*([^\s&|;<>]+)")
_CD: Final = re.compile(r"cd\s+\S+\s*(?:&&|;)\s*")
_SHELL_PATH: Final = re.compile(r"[\w.~/@+-]+\Z")
_PLAIN: Final = re.compile(r"[A-Za-z][\w:-]*\Z")
_IN_PLACE: Final = re.compile(r"\s-[a-zA-Z]*i\b|\s--in-place")


def listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ENDINGS: Final = listed(
    "bash bat c cc cfg cpp cs css csv cu cxx dart diff docx exs go gradle graphql groovy h hpp hs htm html ini"
    " ipynb java jl js json jsonl jsx kt less lua md mdx mjs mk ml mm patch pdf php pl png proto ps1 py pyi pyx rb"
    " rs rst sass scala scss sh sql svelte svg swift tcl tex tf toml ts tsx txt vim vue xlsx xml yaml yml zig zsh"
)
"""Endings by which a word without a slash is known for a file."""
_READERS: Final = listed("cat head tail less more nl bat sed awk view file stat wc diff sort uniq cut tr jq")
_SEARCHES: Final = listed("grep egrep fgrep rg ag ack find ls dir tree test [ which whereis locate diff cmp")
_IDLE: Final = listed("cd pwd echo printf true sleep export source . set")
_PASSIVE: Final = _READERS | _SEARCHES | _IDLE
_PATTERNED: Final = listed("grep egrep fgrep rg ag ack sed awk perl")
"""Their first word is no file but what is looked for."""
_WRITERS: Final = listed("tee touch cp mv install ln truncate")
_WRAPPERS: Final = listed("sudo time nohup env exec command xargs then do else")
_GIT_LOOKS: Final = listed("show log diff status blame grep branch ls-files rev-parse")


class ShellCommand(NamedTuple):
    """One shell command, understood."""

    bare: str
    """Without a leading `cd`, and without the documents that it carries."""
    program: str
    """What is run: the last program that is not a mere look."""
    touched: tuple[tuple[str, Action], ...]
    runs: bool
    """It runs a program that does more than to look at files or to write them."""
    looks: bool
    """It changes nothing and runs nothing."""
    searches: bool
    """Its status is that of a search, so a failure means that nothing was found."""


def understood(command: str) -> ShellCommand:
    bare = _bare(command[:SCANNED])
    plain = _QUOTED.sub(_unquoted, bare) if '"' in bare or "'" in bare else bare
    touched: dict[tuple[str, Action], None] = {}
    programs: list[str] = []
    for piece in _SPLIT.split(plain, maxsplit=_PIECES)[:_PIECES]:
        words = _words(piece)
        if words:
            programs.append(_program(words))
            touched |= dict.fromkeys(_shell_touched(words, piece))
    runs = [name for name in programs if name.partition(" ")[0] not in _PASSIVE]
    changes = any(action not in ("read", "ran") for _, action in touched)
    return ShellCommand(
        bare=bare,
        program=(runs or programs or [""])[-1],
        touched=tuple(touched),
        runs=bool(runs),
        looks=not runs and not changes,
        searches=bool(programs) and programs[-1].partition(" ")[0] in _SEARCHES,
    )


def _bare(command: str) -> str:
    text = _undocumented(command) if "<<" in command else command
    text = text[:SCANNED].strip()
    while text.startswith("cd ") and (found := _CD.match(text)):
        text = text[found.end() :]
    return text


def _undocumented(command: str) -> str:
    """The command without the documents that it carries."""
    pieces: list[str] = []
    start = 0
    while len(pieces) < _PIECES and (found := _HEREDOC.search(command, start, start + SCANNED)):
        pieces.append(command[start : found.start()])
        end = command.find("\n" + found[2], found.end())
        head = command[found.end() : command.find("\n", found.end())] if end >= 0 else ""
        start = end + 1 + len(found[2]) if end >= 0 else len(command)
        pieces.append(f"<<…{head}")
    return "".join([*pieces, command[start:]])


def file_like(word: str) -> bool:
    """A word that names a file: it has an ending, and nothing that a shell would expand."""
    stem, dot, ending = word.rpartition(".")
    if not dot or not stem or len(word) > 300 or not _SHELL_PATH.match(word):
        return False
    return ending.lower() in _ENDINGS or ("/" in stem and ending.isalnum() and len(ending) <= 10)


def _unquoted(found: re.Match[str]) -> str:
    """A quoted word without its quotes, if it is a path; what else is quoted is no business of the shell."""
    word = found.group()[1:-1]
    return word if _SHELL_PATH.match(word) else "…"


def _words(piece: str) -> list[str]:
    words = piece.split(None, _WORDS)[:_WORDS]
    while words and (words[0] in _WRAPPERS or "=" in words[0]):
        del words[0]
    return words[2:] if len(words) > 2 and words[0] == "timeout" else words


def _program(words: list[str]) -> str:
    """What is run, with the words that say which part of it: `git commit`, `npm run check`, `python -m pytest`."""
    if words[0] == "git" and words[1:2] and words[1] in _GIT_LOOKS:
        return "diff"
    named = [words[0].strip("()")]
    for word in words[1:3]:
        if word != "-m" and not _PLAIN.match(word):
            break
        named.append(word)
    return " ".join(named)


def _shell_touched(words: list[str], piece: str) -> Iterator[tuple[str, Action]]:
    for found in _REDIRECT.findall(piece) if ">" in piece else ():
        path = found.strip("\"'")
        if path and not path.startswith(("/dev/", "&")) and _SHELL_PATH.match(path):
            yield path, "written"
            words = words[:1] + [word for word in words[1:] if word.strip(">\"'") != path]
    action = _shell_action(words, piece)
    others = [word.strip("\"'`,()") for word in words[1:] if word[0] != "-"]
    named = [word for word in others[words[0] in _PATTERNED :] if file_like(word)]
    if words[0] in ("mv", "cp") and len(named) == 2:
        yield named[0], "deleted" if words[0] == "mv" else "read"
        named = named[1:]
    for path in named:
        yield path, action


def _shell_action(words: list[str], piece: str) -> Action:
    program = words[0]
    if program in ("sed", "perl") and _IN_PLACE.search(piece):
        return "edited"
    if program == "rm" or (program == "git" and words[1:2] == ["rm"]):
        return "deleted"
    if program in ("patch", "ed"):
        return "edited"
    if program in _WRITERS:
        return "written"
    return "read" if program in _READERS or program in _SEARCHES else "ran"


# ── deeds ─────────────────────────────────────────────────────────────────────────────────────────

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


class ToolAction(NamedTuple):
    """One call, what it did, and what came back."""

    seq: int
    """Of the utterance."""
    call: Call
    touched: tuple[tuple[str, Action], ...]
    command: ShellCommand | None
    texts: tuple[str, ...]
    """The texts among the arguments."""
    result: ToolReturned | None
    result_seq: int


class CallReader:
    """Understands calls; what it knows of the names of tools it remembers."""

    def __init__(self) -> None:
        self._tools: dict[str, list[str]] = {}

    def deed(self, seq: int, call: Call, result: ToolReturned | None, result_seq: int) -> ToolAction:
        fields = _fields(_decoded(call.arguments))
        words = self._words(call.name)
        told = _command(fields, words)
        command = None if told is None else understood(told)
        touched = tuple(_touched(fields, words)) if command is None else command.touched
        return ToolAction(seq, call, touched, command, tuple(text for _, text in fields), result, result_seq)

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
