"""Rules for commands and tools that run without a question; command lines, parsed.

1. A command rule is literal words, the project's real path, and the real path of the program, which lies outside of
   the workspace. It covers exactly these words, or commands that begin with them.
2. A rule by first words has those of a known test runner, check, build or commit, or at least two of a program that
   neither deletes, publishes, fetches nor interprets; it covers further arguments, and few further options (see
   program_kinds.py).
3. An entry of the settings (`tools.allow`, `--allow`, `tools.deny`) is one of

    write               every call of this tool
    github__*           every call of the tools of the MCP server `github`
    run: git status     commands that begin with these words, where that is possible, else exactly this command

`RuleFile` has the rules of projects, in `permissions.json` of the user's state folder:

1. The file is replaced atomically and only its owner can read it; a lock keeps two processes from losing a rule.
2. It is read on each call, so a rule that one process stores or removes counts for all.
3. A damaged file has no rules, and `problem` says so. Rules that are too old, or that the user cannot have agreed
   to, are ignored.

`parse_command_line` returns the commands of a line, as the words that bash reads:

1. The text is what `bash --noprofile --norc -c` gets. It is parsed with tree-sitter-bash, which is imported only
   when a command is parsed.
2. A line can be covered by rules only if it is plain words joined by `&&`, `||`, `;` and `|`, with output to
   `/dev/null` or to the other output (`2>&1`), which is left out. A word is plain if bash takes it literally: safe
   characters, text in single quotes, or text in double quotes without `$`, a backquote and a backslash.
3. Everything else has no commands and a `problem`: such a line can be allowed once only.
4. A second, independent parser (`shlex`) must find the same words, so that an error in one of them allows nothing.

`scan_command_line` returns the commands of a line of any syntax, for checks that must see all of them.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from foveal.agent.permissions.program_kinds import (
    can_be_prefix,
    defines_git_alias,
    is_always_asked,
    may_follow_prefix,
    runner_prefix,
    starts_programs,
    subcommand_places,
)
from foveal.config.code_runners import program_names
from foveal.config.keys import SERVER_MARK, is_tool_pattern, names_tool
from foveal.config.project import UnusableFile, read_text_file
from foveal.core.wire.safe_print import one_line, visible
from foveal.errors import BadSetting
from foveal.user_paths import state_folder

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_PARSED_CHARS: Final = 10_000
"""A longer line cannot be covered by rules."""
_OPERATORS: Final = frozenset({"&&", "||", ";", "|"})
_STRUCTURE: Final = frozenset(
    {"program", "list", "pipeline", "command", "command_name", "redirected_statement"}
)
_PLAIN_WORD: Final = re.compile(r"(?:[A-Za-z0-9_./:@%+,=^-]|(?<=[A-Za-z0-9^])~)+")
"""Characters that bash takes literally wherever they stand, and `~` after a letter, as in `HEAD~1`. Letters
outside of ASCII need quotes: bash on macOS takes some of their bytes for blanks."""
_SILENT_REDIRECT: Final = re.compile(r"[12&]?> ?/dev/null|2>&1|1?>&2")
"""Redirections that change only where output goes: to nowhere, or with the other output."""
_REDIRECT_PARTS: Final = re.compile(r"[>&]+|[^>& ]+")
_SYNTAX: Final = re.compile(r"[$`*?\[\]{}()~<>&!#\\]")
_QUOTED_SYNTAX: Final = re.compile(r"[$`\\]")
"""Characters that are not literal in double quotes."""
_RESERVED_WORDS: Final = frozenset(
    {
        *("case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in"),
        *("select", "then", "time", "until", "while"),
    }
)


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """The simple commands of a line as literal words, or why rules cannot cover it."""

    text: str
    commands: tuple[tuple[str, ...], ...] = ()
    problem: str = ""
    """"" if the line can be covered."""


def parse_command_line(text: str) -> CommandLine:
    """Return the commands of a line; see the contract above."""
    try:
        _check_characters(text)
        tokens = list(_tokens(text))
        _check_with_shlex(text, tokens)
        return CommandLine(text=text, commands=tuple(_split_commands(tokens)))
    except _NotPlain as found:
        return CommandLine(text=text, problem=str(found))


class _NotPlain(Exception):
    """The line is more than plain words; the message says what it has."""


class _Token(msgspec.Struct, frozen=True):
    text: str
    is_operator: bool = False
    is_redirect: bool = False


def _check_characters(text: str) -> None:
    if len(text) > MAX_PARSED_CHARS:
        raise _NotPlain(f"it has more than {MAX_PARSED_CHARS:,} characters")
    if "\n" in text or "\r" in text:
        raise _NotPlain("it has several lines")
    # What the user reads in the question must be what runs.
    if not text.isprintable() or visible(text) != text:
        raise _NotPlain("it has control or invisible characters")
    if not text.strip():
        raise _NotPlain("it is empty")


def _tokens(text: str) -> Iterator[_Token]:
    """Yield the words and operators in their order."""
    root = _parse(text.encode())
    if root.has_error:
        raise _NotPlain("it cannot be parsed")
    waiting = [root]
    while waiting:  # a loop, because a long chain of `&&` is a deep tree
        node = waiting.pop()
        if node.type in _STRUCTURE:
            waiting += reversed(node.children)
        elif node.type in _OPERATORS:
            yield _Token(node.type, is_operator=True)
        elif node.type == "file_redirect" and _SILENT_REDIRECT.fullmatch((node.text or b"").decode()):
            for part in _REDIRECT_PARTS.findall((node.text or b"").decode()):
                yield _Token(part, is_redirect=True)
        else:
            yield _Token(_literal(node))


def _parse(data: bytes) -> Node:
    try:
        import tree_sitter_bash
        from tree_sitter import Language, Parser
    except ImportError:
        raise _NotPlain("tree-sitter-bash is not installed, so it cannot be parsed") from None
    return Parser(Language(tree_sitter_bash.language())).parse(data).root_node


def _literal(node: Node) -> str:
    """Return the word that bash makes of a node; raise if it is not literal."""
    text = (node.text or b"").decode()
    if node.type in ("word", "number") and _PLAIN_WORD.fullmatch(text):
        return text
    if node.type == "raw_string" and len(text) >= 2 and "'" not in text[1:-1]:
        return text[1:-1]
    if node.type == "string" and len(text) >= 2 and not re.search(r'[$`"\\]', text[1:-1]):
        return text[1:-1]
    if node.type == "concatenation":
        return "".join(_literal(part) for part in node.children)
    raise _NotPlain(_syntax_of(node, text))


def _syntax_of(node: Node, text: str) -> str:
    """Return which syntax makes a node more than a plain word."""
    if node.type == "variable_assignment":
        return "it sets a variable"
    if node.type in ("declaration_command", "unset_command"):
        return f"`{text.split(maxsplit=1)[0]}` changes the shell"
    found = (_QUOTED_SYNTAX if node.type == "string" else _SYNTAX).search(text)
    shown = "" if found is None else "a backquote" if found.group() == "`" else f"`{found.group()}`"
    return f"it has {shown}" if shown else "it has more than plain words"


def _check_with_shlex(text: str, tokens: list[_Token]) -> None:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        raise _NotPlain("it cannot be parsed") from None
    if words != [token.text for token in tokens]:
        raise _NotPlain("its words are not clear")


def _split_commands(tokens: list[_Token]) -> Iterator[tuple[str, ...]]:
    words: list[str] = []
    above = ""
    for token in (*tokens, _Token(";", is_operator=True)):
        if token.is_operator and (words or above):
            _check_program(words[0] if words else "")
            yield tuple(words)
            words = []
        elif not token.is_operator and not token.is_redirect:
            words.append(token.text)
        above = token.text if token.is_redirect else ""


def _check_program(word: str) -> None:
    """Raise if the first word of a command is not the name of a program to bash."""
    if not word or "=" in word or word[0] in "-+%":
        raise _NotPlain("its first word is not the name of a program")
    if word in _RESERVED_WORDS:
        raise _NotPlain(f"`{word}` is a word of the shell")


class ScannedLine(msgspec.Struct, frozen=True, kw_only=True):
    """All commands of a line, also those in loops, functions and substitutions."""

    commands: tuple[tuple[str, ...], ...] = ()
    """Words without their quotes; what bash expands is as written. An assignment is a command of one word."""
    writes: tuple[str, ...] = ()
    """Files that redirections write from their beginning."""
    appends: tuple[str, ...] = ()
    """Files that redirections write at their end."""
    is_clear: bool = False
    """Whether the line could be parsed."""


def scan_command_line(text: str) -> ScannedLine:
    """Return all commands of a line of any syntax. Bash may run fewer of them, but no others, unless a word that it
    expands is the name of a program."""
    try:
        root = _parse(text.encode("utf-8", "surrogatepass"))
    except _NotPlain:
        return ScannedLine()
    commands: list[tuple[str, ...]] = []
    targets: dict[str, list[str]] = {operator: [] for operator in (*_OVERWRITING, *_APPENDING)}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting += reversed(node.children)
        if node.type == "command":
            words = [_unquoted(each) for each in node.children if each.type not in _NOT_WORDS]
            commands += [tuple(words)] if words else []
        elif node.type in ("variable_assignment", "declaration_command", "unset_command"):
            commands.append(tuple(_unquoted(node).split(maxsplit=1)))
        elif node.type == "file_redirect" and (target := node.child_by_field_name("destination")) is not None:
            for operator in (each.type for each in node.children if each.type in targets):
                targets[operator].append(_unquoted(target))
    return ScannedLine(
        commands=tuple(commands),
        writes=tuple(target for operator in _OVERWRITING for target in targets[operator]),
        appends=tuple(target for operator in _APPENDING for target in targets[operator]),
        is_clear=not root.has_error,
    )


_NOT_WORDS: Final = frozenset(
    {"variable_assignment", "file_redirect", "heredoc_redirect", "herestring_redirect"}
)
_OVERWRITING: Final = (">", ">|", "&>")
_APPENDING: Final = (">>", "&>>")


def _unquoted(node: Node) -> str:
    if node.type in ("command_name", "concatenation"):
        return "".join(map(_unquoted, node.children))
    text = (node.text or b"").decode("utf-8", "replace")
    return text[1:-1] if node.type in ("string", "raw_string") else text


SHELL_TOOL: Final = "run"
"""Name of the tool whose calls are command lines."""
RULE_LIFETIME_S: Final = 30 * 24 * 3600
"""Seconds for which a rule of a project is in force."""
_SHARED_FOLDERS: Final = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders where any process can write a program."""


class SimpleCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command of a line, and the program that its first word stands for."""

    words: tuple[str, ...]
    program: str = ""
    """Real path; "" if no rule can name it: it is not found, or lies where an agent can write."""
    only_reads: bool = False
    """Whether it only prints files of the workspace, and what git knows of them."""


class CommandRule(msgspec.Struct, frozen=True, kw_only=True):
    """Allows or denies a command by its words."""

    words: tuple[str, ...]
    is_prefix: bool = False
    project: str = ""
    """Real path of the folder in which it counts; "" in an entry of the settings, which counts everywhere."""
    program: str = ""
    """Real path of the program; "" in an entry of the settings: any outside of the workspace."""
    expires_at: float | None = None
    """Seconds since 1970; None for a rule of this session or of the settings."""

    @property
    def text(self) -> str:
        """The words as they are written in a shell, safe to print."""
        return visible(shlex.join(self.words))

    def covers(self, command: SimpleCommand, project: str) -> bool:
        """Return whether a command needs no question."""
        if not command.program or is_always_asked(command.words):
            return False
        if self.project not in ("", project) or self.program not in ("", command.program):
            return False
        if command.words == self.words:
            return True
        more = command.words[len(self.words) :]
        return (
            self.is_prefix
            and can_be_prefix(self.words, command.program)
            and command.words[: len(self.words)] == self.words
            and all(may_follow_prefix(self.words, word) for word in more)
        )


class ToolRule(msgspec.Struct, frozen=True):
    """Allows or denies tools by their name, or by how their names begin: `github__*` are all tools of the MCP
    server `github`, `github__get_*` those of its tools that begin with `get_`."""

    pattern: str

    @property
    def text(self) -> str:
        return visible(self.pattern)

    def covers(self, tool: str) -> bool:
        """Return whether calls of a tool need no question."""
        return names_tool(self.pattern, tool)


Rule = CommandRule | ToolRule


def find_program(word: str, *, folder: Path, outside_of: Iterable[Path], search_path: str | None) -> str:
    """Return the real path of the program of a command that runs in `folder`, "" if rules must not name it."""
    found = os.path.join(folder, word) if "/" in word else which(word, path=search_path)
    if found is None or not os.path.isabs(found) or not os.access(found, os.X_OK):
        return ""
    real = Path(os.path.realpath(found))
    writable = (*outside_of, Path(os.path.realpath(tempfile.gettempdir())), *map(Path, _SHARED_FOLDERS))
    return "" if any(real.is_relative_to(place) for place in writable) else str(real)


# ── Rules for a command ──────────────────────────────────────────────────────────────────────────────────


def exact_rule(command: SimpleCommand, project: str) -> CommandRule | None:
    """Return the rule for exactly this command, None if there can be none."""
    if not command.program or is_always_asked(command.words):
        return None
    return CommandRule(words=command.words, project=project, program=command.program)


def prefix_rule(command: SimpleCommand, project: str) -> CommandRule | None:
    """Return the rule for commands that begin with the words of a runner, or with the first two, None if there can
    be none."""
    words = runner_prefix(command.words) or command.words[:2]
    if not command.program or not can_be_prefix(words, command.program):
        return None
    rule = CommandRule(words=words, is_prefix=True, project=project, program=command.program)
    return rule if rule.covers(command, project) else None


# ── Entries of the settings ──────────────────────────────────────────────────────────────────────────────


def parse_allow_entries(entries: Iterable[str]) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """Return the rules, and a note for each entry that allows less than it may seem to; raises `BadSetting`."""
    rules = tuple(dict.fromkeys(_parse_entry(entry, "allow") for entry in entries))
    notes = [
        f"allow {SHELL_TOOL}: {rule.text} allows exactly this command: commands that begin with "
        f"`{rule.text}` cannot be allowed"
        for rule in rules
        if isinstance(rule, CommandRule) and not rule.is_prefix
    ]
    return rules, tuple(notes)


def parse_deny_entries(entries: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules of `tools.deny`; raises `BadSetting`."""
    return tuple(dict.fromkeys(_parse_entry(entry, "deny") for entry in entries))


def _parse_entry(entry: str, setting: str) -> Rule:
    text = entry.strip()
    tool, colon, command = (part.strip() for part in text.partition(":"))
    if not colon and is_tool_pattern(tool):
        if setting == "allow" and tool.endswith("*") and SERVER_MARK not in tool:
            raise BadSetting(setting, one_line(entry), "names of one MCP server's tools, such as github__*")
        return ToolRule(tool)
    if not colon or tool != SHELL_TOOL or not command:
        wanted = f'the name of a tool, names like "github__*", or "{SHELL_TOOL}: git status"'
        raise BadSetting(setting, one_line(entry), wanted)
    line = parse_command_line(command)
    problem = line.problem or ("" if len(line.commands) == 1 else "it has several commands")
    if setting == "deny" and not problem:
        return CommandRule(words=line.commands[0], is_prefix=True)
    if not problem and is_always_asked(line.commands[0]):
        problem = f"`{line.commands[0][0]}` changes the shell"
    if problem:
        raise BadSetting(setting, one_line(entry), f"one command of plain words; {problem}")
    return CommandRule(words=line.commands[0], is_prefix=can_be_prefix(line.commands[0]))


# ── Denying ──────────────────────────────────────────────────────────────────────────────────────────────

_TEXT_WORDS: Final = re.compile(r"[^\s;&|()<>`$\"'{}\\]+")


def denies_line(rule: CommandRule, text: str, commands: Iterable[tuple[str, ...]]) -> bool:
    """Return whether a deny rule matches one of the commands, words that a command could run (`env git push`) or,
    in a line that is not plain, any words of its text."""
    if not (found := tuple(commands)):
        return _is_in_text(rule, text)
    return any(
        _begins_with(words, rule.words) or (starts_programs(words) and _is_in_text(rule, " ".join(words)))
        for words in found
    )


def _is_in_text(rule: CommandRule, text: str) -> bool:
    words = tuple(_TEXT_WORDS.findall(text))
    return any(_begins_with(words[at:], rule.words) for at in range(len(words)))


def _begins_with(words: tuple[str, ...], prefix: tuple[str, ...]) -> bool:
    """Return whether a command is the one that a deny rule names, whatever options stand before its subcommand."""
    if not words or not program_names(words[0]) & program_names(prefix[0]):
        return False
    wanted = prefix[1:]
    is_found = any(words[at : at + len(wanted)] == wanted for at in subcommand_places(words))
    return is_found or (bool(wanted) and defines_git_alias(words))


_MAX_RULE_FILE_BYTES: Final = 4 * 1024 * 1024
_MAX_CLOCK_ERROR_S: Final = 3600.0
"""A rule that ends later than a new one could, by more than this, was not stored by this program."""


class _StoredRules(msgspec.Struct, frozen=True):
    """Content of `permissions.json`."""

    rules: tuple[CommandRule, ...] = ()


class RuleFile:
    """The stored rules, in the file `path`."""

    def __init__(self, path: Path | None = None) -> None:
        self.path: Path = path or state_folder() / "permissions.json"
        self.problem: str = ""
        """Why the file was not used when it was last read."""

    def rules(self, *, project: str | None = None) -> tuple[CommandRule, ...]:
        """Return the rules in force, of one project or of all."""
        return tuple(rule for rule in self._read() if project in (None, rule.project))

    def add(self, *rules: CommandRule) -> None:
        """Store rules; each is in force for `RULE_LIFETIME_S` from now on."""
        until = time.time() + RULE_LIFETIME_S
        new = [replace(rule, expires_at=until) for rule in rules]
        with self._locked():
            names = {_name(rule) for rule in new}
            self._write((*(rule for rule in self._read() if _name(rule) not in names), *new))

    def remove(self, *rules: CommandRule) -> None:
        """Delete rules; those that are not stored are ignored."""
        names = {_name(rule) for rule in rules}
        with self._locked():
            self._write(tuple(rule for rule in self._read() if _name(rule) not in names))

    def _read(self) -> tuple[CommandRule, ...]:
        self.problem = ""
        try:
            found = read_text_file(self.path, max_bytes=_MAX_RULE_FILE_BYTES)
            stored = _StoredRules() if found is None else msgspec.json.decode(found.text, type=_StoredRules)
        except (UnusableFile, msgspec.DecodeError) as problem:
            self.problem = f"{self.path} is damaged, so no rule of it counts: {problem}"
            return ()
        return tuple(rule for rule in stored.rules if _is_in_force(rule, time.time()))

    def _write(self, rules: tuple[CommandRule, ...]) -> None:
        data = msgspec.json.format(msgspec.json.encode(_StoredRules(rules)), indent=2)
        number, name = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)  # mode 0600
        try:
            with open(number, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the file, so that reading and replacing it is one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        lock = os.open(f"{self.path}.lock", flags, 0o600)
        try:
            with suppress(ImportError):  # Windows
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _name(rule: CommandRule) -> CommandRule:
    """Return a rule without its end, by which it is compared."""
    return replace(rule, expires_at=None)


def _is_in_force(rule: CommandRule, now: float) -> bool:
    if not (rule.expires_at and rule.project and rule.program and rule.words):
        return False
    is_young = now < rule.expires_at <= now + RULE_LIFETIME_S + _MAX_CLOCK_ERROR_S
    return is_young and rule.is_prefix and can_be_prefix(rule.words, rule.program)
