"""Parses a command line into the commands that bash runs, word by word.

1. The text is what `bash --noprofile --norc -c` gets. It is parsed with tree-sitter-bash, which is imported only
   when a command is parsed.
2. A line can be covered by rules only if it is plain words joined by `&&`, `||`, `;` and `|`. A word is plain if
   bash takes it literally: safe characters, text in single quotes, or text in double quotes without `$`, a
   backquote and a backslash.
3. Everything else has no commands and a `problem`: such a line can be allowed once only.
4. A second, independent parser (`shlex`) must find the same words, so that an error in one of them allows nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from foveal.core.wire.safe_print import visible

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_PARSED_CHARS: Final = 10_000
"""A longer line cannot be covered by rules."""
_OPERATORS: Final = frozenset({"&&", "||", ";", "|"})
_STRUCTURE: Final = frozenset({"program", "list", "pipeline", "command", "command_name"})
_PLAIN_WORD: Final = re.compile(r"[A-Za-z0-9_./:@%+,=^-]+")
"""Characters that bash takes literally wherever they stand. Letters outside of ASCII need quotes: bash on macOS
takes some of their bytes for blanks."""
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
    for token in (*tokens, _Token(";", is_operator=True)):
        if not token.is_operator:
            words.append(token.text)
        elif words:
            _check_program(words[0])
            yield tuple(words)
            words = []


def _check_program(word: str) -> None:
    """Raise if the first word of a command is not the name of a program to bash."""
    if not word or "=" in word or word[0] in "-+%":
        raise _NotPlain("its first word is not the name of a program")
    if word in _RESERVED_WORDS:
        raise _NotPlain(f"`{word}` is a word of the shell")
