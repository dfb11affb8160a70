"""What a shell command does to files, as far as its words tell: no shell is run, and no product is known.

Only programs that every system has are known by name (`cat`, `sed`, `rm`, …); whatever else is run counts as a
command that was run, with the files that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

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
_PATH: Final = re.compile(r"[\w.~/@+-]+\Z")
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


class Command(NamedTuple):
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


def understood(command: str) -> Command:
    bare = _bare(command[:SCANNED])
    plain = _QUOTED.sub(_unquoted, bare) if '"' in bare or "'" in bare else bare
    touched: dict[tuple[str, Action], None] = {}
    programs: list[str] = []
    for piece in _SPLIT.split(plain, maxsplit=_PIECES)[:_PIECES]:
        words = _words(piece)
        if words:
            programs.append(_program(words))
            touched |= dict.fromkeys(_touched(words, piece))
    runs = [name for name in programs if name.partition(" ")[0] not in _PASSIVE]
    changes = any(action not in ("read", "ran") for _, action in touched)
    return Command(
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
    if not dot or not stem or len(word) > 300 or not _PATH.match(word):
        return False
    return ending.lower() in _ENDINGS or ("/" in stem and ending.isalnum() and len(ending) <= 10)


def _unquoted(found: re.Match[str]) -> str:
    """A quoted word without its quotes, if it is a path; what else is quoted is no business of the shell."""
    word = found.group()[1:-1]
    return word if _PATH.match(word) else "…"


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


def _touched(words: list[str], piece: str) -> Iterator[tuple[str, Action]]:
    for found in _REDIRECT.findall(piece) if ">" in piece else ():
        path = found.strip("\"'")
        if path and not path.startswith(("/dev/", "&")) and _PATH.match(path):
            yield path, "written"
            words = words[:1] + [word for word in words[1:] if word.strip(">\"'") != path]
    action = _action(words, piece)
    others = [word.strip("\"'`,()") for word in words[1:] if word[0] != "-"]
    named = [word for word in others[words[0] in _PATTERNED :] if file_like(word)]
    if words[0] in ("mv", "cp") and len(named) == 2:
        yield named[0], "deleted" if words[0] == "mv" else "read"
        named = named[1:]
    for path in named:
        yield path, action


def _action(words: list[str], piece: str) -> Action:
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
