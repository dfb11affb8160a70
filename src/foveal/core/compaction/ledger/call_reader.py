"""Reads what a tool call does from the shape of its arguments.

It finds the files a call touches, how, and the command it runs. It knows no product: a path is a value that looks
like a path, a command is a value that looks like a command, a pair of old and new text is an edit, a long text
beside a path is a file written. Verbs in the name of a tool or in a short argument (`view`, `create`,
`str_replace`) only help.

Shell commands are read without running a shell. Only common programs are known by name (`cat`, `sed`, `rm`, …); any
other program counts as a command that was run, with the files that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from foveal.core.log.events import Call

# ── Shell commands ───────────────────────────────────────────────────────────────────────────────────────

FileAction = Literal["read", "edited", "written", "created", "deleted", "moved", "ran"]
TouchedFiles: TypeAlias = tuple[tuple[str, FileAction], ...]
CallFields: TypeAlias = tuple[tuple[str, str], ...]
"""The texts among the arguments of a call, each with its key in lower case."""

MAX_COMMAND_CHARS: Final = 2_000
"""Characters of one command that are read, without its here-documents."""
_MAX_SCRIPT_CHARS: Final = 20_000
"""Characters of one command that are read, with its here-documents."""
_MAX_SIMPLE_COMMANDS: Final = 30
_MAX_WORDS: Final = 60
_HEREDOC: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_QUOTED: Final = re.compile(r"""'(?:([\w.~/@+-]+)'|[^']*')|"(?:([\w.~/@+-]+)"|[^"\\]*(?:\\.[^"\\]*)*")""")
"""A quoted text; a group contains it if it is a path."""
_SUBSTITUTION: Final = re.compile(r"\$\([^()\n]*\)|`[^`\n]*`")
"""A part of a command that a shell replaces by the output of another command."""
_REDIRECT: Final = re.compile(r"(?<![\d&>])>{1,2}\s*([^\s&|;<>]+)")
_INLINE_CODE: Final = frozenset(("-c", "-e", "-r", "-"))
"""Options of an interpreter whose program stands in the command."""
_REDIRECTED: Final = re.compile(r"\d?[<>]|&")
_REDIRECTION_START: Final = "<>&0123456789"
_LEADING_CD: Final = re.compile(r"cd\s+\S+\s*(?:&&|;)\s*")
_AROUND_WORDS: Final = "\"'`,()"
_SHELL_PATH: Final = re.compile(r"[\w.~/@+-]+\Z")
_IN_PLACE: Final = re.compile(r"\s-[a-zA-Z]*i\b|\s--in-place")
_SCRIPT_WRITES: Final = ("write_text(", "write_bytes(", ".write(", ".writelines(", "writeFile", "File.write")
_SCRIPT_FILE: Final = re.compile(r"""['"]([\w./~@+-]{1,200}\.\w{1,8})['"]""")
_SCRIPT_OPENS: Final = re.compile(r"(?:=|\b(?:open|Path|writeFile\w*|write)\()\s*r?\Z")
_SCRIPT_LEAD_CHARS: Final = 24
"""Characters before a file name in a program that tell whether the program opens it."""


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_FILE_ENDINGS: Final = word_set(
    "bash bat c cc cfg cpp cs css csv cu cxx dart diff docx exs go gradle graphql groovy h hpp hs htm html ini"
    " ipynb java jl js json jsonl jsx kt less lua md mdx mjs mk ml mm patch pdf php pl png proto ps1 py pyi pyx rb"
    " rs rst sass scala scss sh sql svelte svg swift tcl tex tf toml ts tsx txt vim vue xlsx xml yaml yml zig zsh"
)
"""Endings that make a word without a slash a file name."""
_READERS: Final = word_set(
    "cat head tail less more nl bat sed awk view file stat wc diff sort uniq cut tr jq"
)
_SEARCHES: Final = word_set(
    "grep egrep fgrep rg ag ack find ls dir tree test [ which whereis locate diff cmp"
)
_NO_EFFECT: Final = word_set("cd pwd echo printf true sleep export source . set")
_PASSIVE: Final = _READERS | _SEARCHES | _NO_EFFECT
_PATTERN_FIRST: Final = word_set("grep egrep fgrep rg ag ack sed awk perl")
"""Programs whose first argument is a pattern, not a file."""
_WRITERS: Final = word_set("tee touch cp mv install ln truncate")
_EDITS_AND_PLANS: Final = word_set("apply_patch applypatch update_plan")
"""Tools that some agents call through a shell."""
_FILE_PROGRAMS: Final = _WRITERS | _EDITS_AND_PLANS | word_set("rm mkdir ed create sed perl")
_PLANNING: Final = re.compile(r"\w{0,20}(?:todo|plan|checklist)\w{0,20} <<", re.IGNORECASE)
_WRAPPERS: Final = word_set("sudo time nohup env exec command xargs then do else")
_GIT_READERS: Final = word_set("show log diff status blame grep branch ls-files rev-parse")


_GIT_ACTIONS: Final[dict[str, FileAction]] = {"rm": "deleted", "mv": "written"}


class ShellCommand(NamedTuple):
    """What a shell command does."""

    bare: str
    """The command without a leading `cd` and without here-documents."""
    words: tuple[str, ...]
    """The last program that does more than read files, and what it was given: a later command with the same words
    is a retry. Empty when the command contains the program or a file for it, since another such program is no
    retry."""
    touched: TouchedFiles
    runs_program: bool
    """Whether it runs a program that does more than read or write files."""
    is_read_only: bool
    """Whether it only reads: it changes no file and runs no other program."""
    is_search: bool
    """Whether its status is that of a search, so that a failure means that nothing was found."""
    is_edit: bool
    """Whether it changes files and runs no other program."""
    is_plan: bool
    """Whether it passes a plan to a tool that is called through the shell."""


def parse_command(command: str) -> ShellCommand:
    """Return what a shell command does, as far as its words tell."""
    script = command[:_MAX_SCRIPT_CHARS]
    bare = _strip_command(script)
    plain = _SUBSTITUTION.sub("…", bare) if "$(" in bare or "`" in bare else bare
    plain = _QUOTED.sub(_unquote, plain) if '"' in plain or "'" in plain else plain
    touched: list[tuple[str, FileAction]] = []
    program = ""
    words: list[str] = []
    runs = False
    only_files = True
    plain = plain.replace("&&", ";").replace("||", ";").replace("|", ";").replace("\n", ";")
    for piece in plain.split(";", _MAX_SIMPLE_COMMANDS)[:_MAX_SIMPLE_COMMANDS]:
        if given := _words(piece):
            touched += _find_shell_touched(given, piece)
            program = _program(given)
            is_passive = program in _PASSIVE
            words = words if words and is_passive else given
            runs = runs or not (is_passive or program in _EDITS_AND_PLANS)
            only_files = only_files and (is_passive or program in _FILE_PROGRAMS)
    touched += _find_scripted(script, bare)
    changes = any(action not in ("read", "ran") for _, action in touched)
    return ShellCommand(
        bare=bare,
        words=() if "<<" in bare else _identifying_words(words),
        touched=tuple(dict.fromkeys(touched)),
        runs_program=runs,
        is_read_only=not runs and not changes,
        is_search=program in _SEARCHES,
        is_edit=changes and only_files,
        is_plan=_PLANNING.match(bare) is not None,
    )


def _identifying_words(words: list[str]) -> tuple[str, ...]:
    """Return the words without redirections, and without options where there are others."""
    if not _INLINE_CODE.isdisjoint(words):
        return ()
    given = [word for word in words if word[0] not in _REDIRECTION_START or not _REDIRECTED.match(word)]
    plain = [word for word in given if word[0] != "-"]
    return tuple(plain if len(plain) > 1 else given)


def _strip_command(command: str) -> str:
    text = _without_heredocs(command) if "<<" in command else command
    text = text[:MAX_COMMAND_CHARS].strip()
    while text.startswith("cd ") and (found := _LEADING_CD.match(text)):
        text = text[found.end() :]
    return text


def _without_heredocs(command: str) -> str:
    """Return the command without its here-documents."""
    pieces: list[str] = []
    start = 0
    while len(pieces) < _MAX_SIMPLE_COMMANDS and (
        found := _HEREDOC.search(command, start, start + MAX_COMMAND_CHARS)
    ):
        pieces.append(command[start : found.start()])
        end = command.find("\n" + found[2], found.end())
        head = command[found.end() : command.find("\n", found.end())] if end >= 0 else ""
        start = end + 1 + len(found[2]) if end >= 0 else len(command)
        pieces.append(f"<<…{head}")
    return "".join([*pieces, command[start:]])


def heredoc_body(command: str, start: int = 0) -> str:
    """Return the first here-document after a position."""
    found = _HEREDOC.search(command, start, _MAX_SCRIPT_CHARS)
    line_end = command.find("\n", found.end()) if found else -1
    if found is None or line_end < 0:
        return ""
    end = command.find("\n" + found[2], line_end)
    return command[line_end + 1 : end if end >= 0 else len(command)]


def is_file_name(word: str) -> bool:
    """Return whether a word names a file: it has an ending, and nothing that a shell would expand."""
    stem, _, ending = word.rpartition(".")
    if not stem or len(word) > 300:
        return False
    if ending.lower() not in _FILE_ENDINGS and not ("/" in stem and ending.isalnum() and len(ending) <= 10):
        return False
    return _SHELL_PATH.match(word) is not None


def _find_scripted(command: str, bare: str) -> Iterator[tuple[str, FileAction]]:
    """Yield the files that a patch or an inline program in a command changes."""
    if "patch" in bare or "git apply" in bare:
        yield from _patched_files(command)
    if "write" in command and any(sign in command for sign in _SCRIPT_WRITES):
        for found in islice(_SCRIPT_FILE.finditer(command), _MAX_WORDS):
            start = found.start()
            lead = command[max(0, start - _SCRIPT_LEAD_CHARS) : start]
            if lead.removesuffix("r").rstrip()[-1:] not in ("=", "("):
                continue
            if _SCRIPT_OPENS.search(lead) and is_file_name(found[1]):
                yield found[1], "edited"


def _is_plain_path(word: str) -> bool:
    return (
        bool(_SHELL_PATH.match(word)) and not word.replace(".", "").isdigit() and word not in (".", "/", "..")
    )


def _unquote(found: re.Match[str]) -> str:
    """Return a quoted path without its quotes; other quoted text is hidden, since it is not shell syntax."""
    return found[1] or found[2] or "…"


def _words(piece: str) -> list[str]:
    words = piece.split(None, _MAX_WORDS)[:_MAX_WORDS]
    while words and (words[0] in _WRAPPERS or "=" in words[0]):
        del words[0]
    return words[2:] if len(words) > 2 and words[0] == "timeout" else words


def _program(words: list[str]) -> str:
    """Return the program; `git` counts as `diff` where it only reads."""
    if words[0] == "git" and words[1:2] and words[1] in _GIT_READERS:
        return "diff"
    return words[0].strip("()")


def _find_shell_touched(words: list[str], piece: str) -> Iterator[tuple[str, FileAction]]:
    for found in _REDIRECT.findall(piece) if ">" in piece else ():
        path = found.strip("\"'")
        if path and not path.startswith(("/dev/", "&")) and _SHELL_PATH.match(path):
            yield path, "written"
            words = words[:1] + [word for word in words[1:] if word.strip(">\"'") != path]
    action = _shell_action(words, piece)
    is_changing = action not in ("read", "ran")
    if not is_changing and "." not in piece:  # so it names no file
        return
    if words[0] == "git" and words[1:2] in (["mv"], ["rm"]):
        words = words[1:]
    given = [word for word in words[1:] if word[0] != "-"][words[0] in _PATTERN_FIRST :]
    # What a program changes is a file, even without an ending (`Makefile`); other words may be anything.
    if is_changing:
        named = [word for word in (word.strip(_AROUND_WORDS) for word in given) if _is_plain_path(word)]
    else:
        named = [
            word
            for word in (word.strip(_AROUND_WORDS) for word in given if "." in word)
            if is_file_name(word)
        ]
    if words[0] in ("mv", "cp") and len(named) == 2:
        yield named[0], "moved" if words[0] == "mv" else "read"
        named = named[1:]
    for path in named:
        yield path, action


def _shell_action(words: list[str], piece: str) -> FileAction:
    program = words[0]
    if program in ("sed", "perl") and _IN_PLACE.search(piece):
        return "edited"
    if program == "git":
        return _GIT_ACTIONS.get("".join(words[1:2]), "ran")
    if program == "rm":
        return "deleted"
    if program in ("ed", "create"):
        return "edited" if program == "ed" else "created"
    if program in _WRITERS:
        return "written"
    return "read" if program in _READERS or program in _SEARCHES else "ran"


# ── Tool calls ───────────────────────────────────────────────────────────────────────────────────────────

_MAX_FIELDS: Final = 40
_MAX_DEPTH: Final = 3
_MAX_PATH_CHARS: Final = 300
_PATCH_HEADER: Final = re.compile(
    r"^(?:\*\*\* (?P<how>Add|Update|Delete) File: |\+\+\+ (?:b/)?)(?P<path>[^\s].*)$", re.MULTILINE
)
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_COMMAND_START: Final = re.compile(r"[\w./-]+ ")
_PATH: Final = re.compile(r"[^\s\"'<>|*?{}$]*/[^\s\"'<>|*?{}$]+\Z")
_SHELL_WORDS: Final = word_set("bash shell sh terminal console powershell cmd")
_RUN_WORDS: Final = _SHELL_WORDS | word_set("exec execute run command")
_COMMAND_KEYS: Final = word_set("command cmd script shell commandline command_line shell_command bash")
_PATH_KEYS: Final = ("path", "file", "filename", "uri")
FIELD_KEYS_TEXT: Final = ("content", "contents", "text", "body", "data", "code")
FIELD_KEYS_OLD: Final = ("old", "search", "find", "before", "original")
FIELD_KEYS_NEW: Final = ("new", "replace", "after", "updated")
_VERB_KEYS: Final = word_set("command action operation op mode type method tool tool_name")
_VERBS: Final[dict[str, FileAction]] = {
    **dict.fromkeys(word_set("read view open show cat get list ls search grep find glob"), "read"),
    **dict.fromkeys(word_set("edit replace insert update patch apply append modify change undo"), "edited"),
    **dict.fromkeys(word_set("write save overwrite put"), "written"),
    **dict.fromkeys(word_set("create add new touch"), "created"),
    **dict.fromkeys(word_set("delete remove rm unlink"), "deleted"),
    **dict.fromkeys(word_set("move rename mv"), "moved"),
}


class FileKeys:
    """Tells which spellings of a path mean one file: a relative path may be the end of an absolute one."""

    def __init__(self, known: FileKeys | None = None) -> None:
        """Start without paths, or with a copy of those that another one knows."""
        self._keys: dict[str, str] = dict(known._keys) if known else {}
        self._by_name: dict[str, tuple[str, ...]] = dict(known._by_name) if known else {}

    def of(self, path: str) -> str:
        """Return the path by which the file is known."""
        key = self._keys.get(path)
        if key is None:
            key = self._keys[path] = self._find(path.removeprefix("./"))
        return key

    def _find(self, clean: str) -> str:
        name = clean.rsplit("/", 1)[-1]
        others = self._by_name.get(name, ())
        for other in others:
            if other == clean or other.endswith("/" + clean) or clean.endswith("/" + other):
                return other
        self._by_name[name] = (*others, clean)
        return clean


class ReadCall(NamedTuple):
    """What a call does, as far as its arguments tell."""

    touched: TouchedFiles
    command: ShellCommand | None
    fields: CallFields


def read_call(call: Call) -> ReadCall:
    """Return what a call does."""
    fields = _fields(_decode(call.arguments))
    words = tuple(word.lower() for word in _WORD.findall(call.name[:_MAX_PATH_CHARS]))
    command_line = _command(fields, words)
    command = None if command_line is None else parse_command(command_line)
    touched = tuple(_find_touched(fields, words)) if command is None else command.touched
    return ReadCall(touched, command, tuple(fields))


def _decode(arguments: str) -> object:
    """Return the decoded arguments, or their text if it is not JSON."""
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments


def _fields(values: object) -> list[tuple[str, str]]:
    """Return the texts among the arguments, each with its key in lower case."""
    fields: list[tuple[str, str]] = []
    if isinstance(values, dict):
        for key, value in values.items():
            if isinstance(value, str) and len(fields) < _MAX_FIELDS:
                fields.append((key.lower(), value))
            else:
                _collect(key.lower(), value, _MAX_DEPTH, fields)
    else:
        _collect("", values, _MAX_DEPTH, fields)
    return fields


def _collect(key: str, value: object, depth: int, into: list[tuple[str, str]]) -> None:
    if len(into) >= _MAX_FIELDS:
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
            for inner in value[:_MAX_FIELDS]:
                _collect(key, inner, depth - 1, into)


def _command(fields: list[tuple[str, str]], words: tuple[str, ...]) -> str | None:
    for key, value in fields:
        if key in _COMMAND_KEYS and (" " in value or "\n" in value or not _RUN_WORDS.isdisjoint(words)):
            return value
    if not _SHELL_WORDS.isdisjoint(words):
        texts = [value for key, value in fields if not key.endswith(_PATH_KEYS)]
        return max(texts, key=len) if texts else None
    return next((value for key, value in fields if _looks_like_command(key, value)), None)


def _looks_like_command(key: str, value: str) -> bool:
    """Return whether a value is a word followed by an option, a pipe or another command."""
    if key.endswith(FIELD_KEYS_TEXT) or "\n" in value:
        return False
    return (" -" in value or " && " in value or " | " in value) and bool(_COMMAND_START.match(value))


def _find_touched(fields: list[tuple[str, str]], words: tuple[str, ...]) -> Iterator[tuple[str, FileAction]]:
    for _, value in fields:
        yield from _patched_files(value)
    paths = [value for key, value in fields if len(value) <= _MAX_PATH_CHARS and _is_path(key, value)]
    if paths:
        action = _action(fields, words)
        for path in dict.fromkeys(paths):
            yield path.removeprefix("file://"), action


def _is_path(key: str, value: str) -> bool:
    if len(value) < 2 or "\n" in value or value.startswith(("http://", "https://")):
        return False
    if key.endswith(_PATH_KEYS):
        return True
    return " " not in value and (is_file_name(value) or ("/" in value and bool(_PATH.match(value))))


def _patched_files(text: str) -> Iterator[tuple[str, FileAction]]:
    if "+++ " not in text and "*** " not in text:
        return
    how: dict[str, FileAction] = {"Add": "created", "Delete": "deleted"}
    for found in islice(_PATCH_HEADER.finditer(text, 0, 100_000), _MAX_FIELDS):
        path = found["path"].strip().partition("\t")[0]
        if path != "/dev/null":
            yield path, how.get(found["how"] or "", "edited")


def _action(fields: list[tuple[str, str]], words: tuple[str, ...]) -> FileAction:
    """Return the action on the paths, from a verb among the arguments, their shape, or the tool's name."""
    for key, value in fields:
        if key in _VERB_KEYS and len(value) < 40:
            for word in _WORD.findall(value):
                if verb := _VERBS.get(word.lower()):
                    return verb
    keys = [key for key, _ in fields]
    if any(key.startswith(FIELD_KEYS_OLD) for key in keys) and any(
        key.startswith(FIELD_KEYS_NEW) for key in keys
    ):
        return "edited"
    named = next((verb for word in words if (verb := _VERBS.get(word))), None)
    if named in (None, "read") and any(key.endswith(FIELD_KEYS_TEXT) for key in keys):
        return "written"
    return named or "read"
