"""Command lines: what rules can cover, and that bash runs exactly the commands that were parsed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foveal.agent.permissions.command_rules import MAX_PARSED_CHARS, CommandLine, parse_command_line
from support.effort import examples

BASH = shutil.which("bash") or "/bin/bash"


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("git status", [("git", "status")]),
        ("  git   log -n 5 --oneline ", [("git", "log", "-n", "5", "--oneline")]),
        ("a && b || c; d | e", [("a",), ("b",), ("c",), ("d",), ("e",)]),
        ("a;", [("a",)]),
        ("echo 'a  b' \"c d\" '' e'f'\"g\"", [("echo", "a  b", "c d", "", "efg")]),
        ("echo '$x `y` * ~ {a,b} # <>&;|'", [("echo", "$x `y` * ~ {a,b} # <>&;|")]),
        ('echo "* ~ {a,b} # <>&;| it\'s"', [("echo", "* ~ {a,b} # <>&;| it's")]),
        ("cmake -DX=1 a=b HEAD^ a@b c:d %1", [("cmake", "-DX=1", "a=b", "HEAD^", "a@b", "c:d", "%1")]),
        ("echo 'é'", [("echo", "é")]),
        ("pytest -q 2>&1 | tail -3", [("pytest", "-q"), ("tail", "-3")]),
        ("ls 2>/dev/null || a >/dev/null 2>&1; b &> /dev/null", [("ls",), ("a",), ("b",)]),
        ("ls2>/dev/null; a 2 >&2", [("ls2",), ("a", "2")]),
    ],
)
def test_plain_words_are_parsed_as_bash_reads_them(text: str, commands: list[tuple[str, ...]]) -> None:
    assert parse_command_line(text) == CommandLine(text=text, commands=tuple(commands))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("git status\nrm x", "it has several lines"),
        ("git status \\\n x", "it has several lines"),
        ("git status\r", "it has several lines"),
        ("git\tstatus", "it has control or invisible characters"),
        ("git\u00a0status", "it has control or invisible characters"),
        ("git 'a\u3000b'", "it has control or invisible characters"),
        ("git 'a\u202eb'", "it has control or invisible characters"),
        ("git 'a\u3164b'", "it has control or invisible characters"),
        ("git \x1b[2J", "it has control or invisible characters"),
        ("git \ud800", "it has control or invisible characters"),
        ("echo é", "it has more than plain words"),
        ("echo $HOME", "it has `$`"),
        ('echo "$(rm x)"', "it has `$`"),
        ("echo $'a'", "it has `$`"),
        ('echo $"a"', "it has `$`"),
        ("echo `rm x`", "it has a backquote"),
        ('echo "`rm x`"', "it has a backquote"),
        ('echo "a\\"; rm x"', "it has `\\`"),
        ("echo a\\ b", "it has `\\`"),
        (r'python3 -c "open(\"/x\")"', "it has `\\`"),
        ('echo "(`id`)"', "it has a backquote"),
        ('echo "(${x})"', "it has `$`"),
        ("rm *", "it has `*`"),
        ("rm ?", "it has `?`"),
        ("rm [ab]", "it has `[`"),
        ("rm {a,b}", "it has `{`"),
        ("ls ~", "it has `~`"),
        ("ls a:~", "it has `~`"),
        ("ls > x", "it has `>`"),
        ("ls 3>&1", "it has `>`"),
        ("ls >> /dev/null", "it has `>`"),
        ("ls > /dev/null/x", "it has `>`"),
        ("ls > /dev/nullx", "it has `>`"),
        ("ls > /dev/sda", "it has `>`"),
        ("ls 2>&1 x", None),
        ("ls >&1", "it has `>`"),
        ("ls >& x", "it has `>`"),
        ("2>&1", "its first word is not the name of a program"),
        ("ls; >/dev/null", "its first word is not the name of a program"),
        ("ls < x", "it has `<`"),
        ("cat <<< x", "it has `<`"),
        ("cat <<X", None),
        ("diff <(a) b", "it has `<`"),
        ("X=1 git status", "it sets a variable"),
        ("X=1", "it sets a variable"),
        ("X+=1 git", "it sets a variable"),
        ("'X'=1 git", "its first word is not the name of a program"),
        ("(git status)", "it has `(`"),
        ("{ git status; }", "it has `{`"),
        ("git status & rm x", "it has `&`"),
        ("git status &", "it has `&`"),
        ("a |& b", "it has `&`"),
        ("! a", "it has `!`"),
        ("if a; then b; fi", None),
        ("while a; do b; done", None),
        ("for x in a; do b; done", None),
        ("case a in b) c;; esac", None),
        ("f() { rm x; }; f", None),
        ("function f { rm x; }", None),
        ("[[ a ]]", "it has `[`"),
        ("[ a ]", "it has `[`"),
        ("((a))", None),
        ("time rm x", "`time` is a word of the shell"),
        ("coproc rm x", "`coproc` is a word of the shell"),
        ("then", None),
        ("git status # rm", "it has `#`"),
        ("export PATH=x", "`export` changes the shell"),
        ("declare -x A=b", "`declare` changes the shell"),
        ("unset PATH", "`unset` changes the shell"),
        ("-c x", "its first word is not the name of a program"),
        ("+O x", "its first word is not the name of a program"),
        ("%1", "its first word is not the name of a program"),
        ("''", "its first word is not the name of a program"),
        ("a ;; b", None),
        ("a &&", "it cannot be parsed"),
        ("echo 'a", None),
        ('echo "a', None),
        ("", "it is empty"),
        ("   ", "it is empty"),
        (";", "it cannot be parsed"),
        ("a" * (MAX_PARSED_CHARS + 1), "it has more than 10,000 characters"),
    ],
)
def test_everything_else_is_not_covered_and_says_why(text: str, problem: str | None) -> None:
    line = parse_command_line(text)
    assert line.commands == ()
    assert line.problem
    assert problem in (None, line.problem)


def test_without_the_parser_nothing_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter_bash", None)
    problem = "tree-sitter-bash is not installed, so it cannot be parsed"
    assert parse_command_line("git status") == CommandLine(text="git status", problem=problem)


# ── Against bash ─────────────────────────────────────────────────────────────────────────────────────────

PROGRAMS = ("aa", "bb", "cc")
RECORDER = """#!/bin/sh
printf '%s\\0' "${0##*/}" "$@" '
' >> "$RECORD"
"""
"""Writes its name, its words and a line end, each with a NUL, in one piece: commands of a pipeline run at once."""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with programs that record how they were called, and a file for each glob to find."""
    folder = tmp_path_factory.mktemp("stubs")
    for name in PROGRAMS:
        (folder / name).write_text(RECORDER)
        (folder / name).chmod(0o755)
    return folder


def commands_that_bash_runs(text: str, stubs: Path) -> list[tuple[str, ...]]:
    record = stubs / "record"
    record.unlink(missing_ok=True)
    (stubs / "work").mkdir(exist_ok=True)
    (stubs / "work" / "x").touch()
    env = {"PATH": str(stubs), "RECORD": str(record), "HOME": "/home/made"}
    subprocess.run(
        [BASH, "--noprofile", "--norc", "-c", text],
        cwd=stubs / "work", env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    if not record.exists():
        return []
    calls = os.fsdecode(record.read_bytes()).split("\n\0")[:-1]
    return [tuple(call.split("\0")[:-1]) for call in calls]


PLAIN = [*PROGRAMS, " ", ";", "&&", "||", "|", "x", "-n", "'a b'", '"a b"', "''", "^", "@", "/"]
SYNTAX = [
    *("2>&1", " >&2", " 2>/dev/null", " >/dev/null", "&> /dev/null", " 2"),
    *(
        "&",
        "'",
        '"',
        "$",
        "`",
        "\\",
        "*",
        "?",
        "[",
        "]",
        "{",
        "}",
        ",",
        "~",
        "<",
        ">",
        "(",
        ")",
        "#",
        "!",
        "=",
    ),
    *(
        "\n",
        "\r",
        "\t",
        "\u00a0",
        "é",
        "$(cc)",
        "`cc`",
        "time",
        "if",
        "then",
        "fi",
        "X=1",
        "<<E",
        "\\\n",
        "%",
        "+",
    ),
]


@examples(50)
@given(pieces=st.lists(st.sampled_from([*PLAIN * 3, *SYNTAX]), max_size=12))
@example(pieces=["aa", " ", "'", "$", "'", ";", "bb"])
def test_bash_runs_exactly_the_parsed_commands(pieces: list[str], stubs: Path) -> None:
    line = parse_command_line("".join(["aa ", *pieces]))
    if line.problem:
        return
    ran = commands_that_bash_runs(line.text, stubs)
    known = [words for words in line.commands if words[0] in PROGRAMS]
    # `&&` and `||` skip commands, and those of a pipeline come in any order.
    assert Counter(ran) <= Counter(known)
    if not {"&&", "||", "|"} & set(pieces):
        assert ran == known


@pytest.mark.long
@examples(25)
@given(words=st.lists(st.text(st.characters(codec="utf-8"), max_size=6), max_size=4))
def test_quoted_words_survive_or_are_not_covered(words: list[str], stubs: Path) -> None:
    text = shlex.join(["aa", *words])
    line = parse_command_line(text)
    if line.problem:
        return
    assert line.commands == (("aa", *words),)
    assert commands_that_bash_runs(text, stubs) == [("aa", *words)]
