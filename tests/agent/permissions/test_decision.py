"""Decisions about calls: rules, entries of the settings, modes, and tricks to run more than was agreed to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from foveal.agent.permissions.command_rules import (
    CommandRule,
    Rule,
    SimpleCommand,
    ToolRule,
    find_program,
    parse_allow_entries,
    parse_command_line,
    parse_deny_entries,
)
from foveal.agent.permissions.decision import (
    Allowed,
    Ask,
    CallDecision,
    CallFacts,
    Denied,
    Permissions,
    decide,
)
from foveal.agent.permissions.program_kinds import ALWAYS_ASKED, can_be_prefix, is_harmless
from foveal.errors import BadSetting

PROJECT = "/home/me/project"


def command(*words: str) -> SimpleCommand:
    return SimpleCommand(words=words, program=f"/usr/bin/{words[0]}")


def call(text: str, **facts: Any) -> CallFacts:
    line = parse_command_line(text)
    commands = tuple(command(*words) for words in line.commands)
    return CallFacts(tool="run", project=PROJECT, line=line, commands=commands, **facts)


def exact(*words: str) -> CommandRule:
    return CommandRule(words=words, project=PROJECT, program=f"/usr/bin/{words[0]}")


def prefix(*words: str) -> CommandRule:
    return CommandRule(words=words, is_prefix=True, project=PROJECT, program=f"/usr/bin/{words[0]}")


def decided(text: str, *rules: Rule, **how: Any) -> CallDecision:
    return decide(call(text), Permissions(allow=rules), **how)


def is_allowed(text: str, *rules: Rule, **how: Any) -> bool:
    return isinstance(decided(text, *rules, **how), Allowed)


@pytest.mark.parametrize(
    "text",
    [
        "rm foo -f victim", "rm foo victim", "rm -f foo", "rm foo; rm victim", "rm foo && rm victim",
        "rm foo $(id)", "rm foo `id`", "rm foo > x", "rm foo &", "rm foo\nrm victim", "X=1 rm foo", "rm foo | sh",
        "(rm foo)", "rm fo*", "/bin/rm foo", "rm 'foo '",
    ],
)  # fmt: skip
def test_an_exact_rule_covers_these_words_and_no_others(text: str) -> None:
    rule = exact("rm", "foo")
    assert is_allowed("rm foo", rule)
    assert is_allowed("rm 'foo'", rule)
    assert not is_allowed(text, rule, is_sandboxed=True)


def test_a_prefix_covers_arguments_and_no_options_that_write() -> None:
    rule, how = prefix("git", "status"), {"is_sandboxed": True, "mode": "ask"}
    covered = ["git status", "git status src", "git status --short src", "git status 'a b'"]
    not_covered = [
        "git status --output=x",
        "git statusx",
        "git -C / status",
        "git",
        "git status; rm x",
        "git log",
    ]
    assert [is_allowed(text, rule, **how) for text in (*covered, *not_covered)] == [True] * 4 + [False] * 6
    assert [is_allowed(text, prefix("ls", "src"), **how) for text in ("ls src a", "ls src -l")] == [
        True,
        False,
    ]


def test_a_rule_is_bound_to_its_project_and_program() -> None:
    wanted = command("git", "status")
    rule = exact("git", "status")
    assert rule.covers(wanted, PROJECT)
    assert not rule.covers(wanted, "/home/me/other")
    assert not rule.covers(SimpleCommand(words=wanted.words, program="/opt/bin/git"), PROJECT)
    assert not rule.covers(SimpleCommand(words=wanted.words), PROJECT)


def test_every_command_of_a_line_needs_its_own_rule() -> None:
    rules = (exact("a", "x"), exact("b"))
    assert is_allowed("a x && b; b | a x", *rules)
    assert decided("a x && c && b && d e", *rules) == Ask(session_rules=(exact("c"), exact("d", "e")))
    assert is_allowed("; ".join(["b"] * 20), *rules)
    assert decided("; ".join(["b"] * 21), *rules) == Ask(why="it has 21 commands")


def test_a_question_offers_only_rules_that_can_be_kept() -> None:
    rules = {
        "git status -s": Ask(
            session_rules=(exact("git", "status", "-s"),), project_rules=(prefix("git", "status"),)
        ),
        "rm foo": Ask(session_rules=(exact("rm", "foo"),)),
        "git status && rm foo": Ask(session_rules=(exact("git", "status"), exact("rm", "foo"))),
        "git status --output=x": Ask(session_rules=(exact("git", "status", "--output=x"),)),
        "cd src": Ask(why="`cd` changes the shell"),
        "git status && cd src": Ask(why="`cd` changes the shell"),
        "echo $x": Ask(why="it has `$`"),
    }
    found = {text: decided(text, is_sandboxed=True, mode="ask") for text in rules}
    assert found == rules
    # Without a sandbox nothing is allowed by its first words.
    assert decided("git status -s") == Ask(session_rules=(exact("git", "status", "-s"),))
    assert not is_allowed("git status -s", prefix("git", "status"))


@pytest.mark.parametrize(
    "words",
    [
        "bash -c", "sh x", "python3.12 -m", "env X", "git push", "git -C", "git reset", "rm -f", "sudo ls",
        "find .", "xargs ls", "sed -n", "gawk x", "tar xf", "rsync a", "ssh host", "make test", "docker run",
        "kubectl get", "pytest -x", "npm install", "pip install", "uv run", "cargo run", "curl x", "mv a", "cp a",
        "tee a", "busybox ls", "timeout 5", "cd x", "eval x", "source x", ". x", "printf -v", "RM -f",
        "git-push x", "ls",
    ],
)  # fmt: skip
def test_what_deletes_publishes_fetches_or_interprets_is_never_a_prefix(words: str) -> None:
    assert not can_be_prefix(tuple(words.split()))
    rule = CommandRule(words=tuple(words.split()), is_prefix=True, project=PROJECT, program="/usr/bin/x")
    longer = SimpleCommand(words=(*rule.words, "more"), program="/usr/bin/x")
    assert not rule.covers(longer, PROJECT)


def test_a_link_to_an_interpreter_is_one() -> None:
    assert can_be_prefix(("tool", "x"), "/usr/bin/tool")
    assert not can_be_prefix(("tool", "x"), "/usr/bin/python3.11")


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("ls -la", True),
        ("python build.py", True),
        ("pytest -x tests", True),
        ("npm test", True),
        ("git log --oneline --author=me", True),
        ("git --no-pager diff", True),
        ("timeout 60 make", True),
        ("find . -name x", True),
        ("npm install x", False),
        ("pip install x", False),
        ("rm x", False),
        ("mv a b", False),
        ("env git push", False),
        ("timeout 5 rm x", False),
        ("xargs rm", False),
        ("bash -c 'rm x'", False),
        ("git -c a=b log", False),
        ("git diff --output=x", False),
        ("find . -delete", False),
        ("sed -i s/a/b/ x", False),
        ("sudo ls", False),
        ("curl x", False),
        ("env", True),
        ("env ls", True),
        ("env -S 'rm c.txt'", False),
        ("env PAGER=rm git log", False),
        ("nice make", True),
        ("nice -n 5 rm x", False),
        ("script -qc 'rm d.txt' /dev/null", False),
        ("script out", False),
        ("flock x -c 'rm x'", False),
        ("watch ls", False),
        ("valgrind rm x", False),
        ("timeout 5 bash -c 'rm x'", False),
        ("timeout -k 1 5 ls", False),
        ("xargs grep x", True),
        ("xargs sed s/a/b/", False),
        ("xargs git", False),
        ("bash x.sh", True),
        ("bash +x -c 'rm x'", False),
        ("busybox rm x", False),
        ("coreutils --coreutils-prog=rm x", False),
        ("sed -n 1,5p x", True),
        ("sed -Ei s/a/b/ x", False),
        ("sed -ni.bak p x", False),
        ("sed --in-pl s/a/b/ x", False),
        ("perl -pi -e s/a/b/ x", False),
        ("perl -0777pi.bak -e s/a/b/ x", False),
        ("perl -Mstrict -e 1", True),
        ("ruby -pi -e x y", False),
        ("ruby -Ilib test.rb", True),
        ("gawk -i inplace 1 x", False),
        ("sort -u x", True),
        ("sort -o x y", False),
        ("sort -uo x y", False),
        ("sort --outp=x y", False),
        ("sort --compress-program=./x y", False),
        ("shuf -o x y", False),
        ("uniq x", True),
        ("uniq x y", False),
        ("tar xf x.tar", False),
        ("tar -xf x.tar", False),
        ("tar cf x.tar y", False),
        ("tar tf x.tar", True),
        ("tar -tzf x.tar", True),
        ("tar tf x.tar --to-command=sh", False),
        ("tar -tf x.tar -I ./x", False),
        ("unzip x.zip", False),
        ("unzip -l x.zip", True),
        ("gunzip x.gz", False),
        ("gzip -dc x.gz", True),
        ("7z x a.7z", False),
        ("fd x", True),
        ("fd x -x rm", False),
        ("fd -HX rm", False),
        ("rg --pretty x", True),
        ("rg --pre ./x y", False),
        ("vim -es x", False),
        ("uv run pytest -x", True),
        ("uv run rm x", False),
        ("poetry run git push", False),
        ("git grep -nOsh x", False),
        ("git diff --ext-d", False),
    ],
)
def test_what_deletes_asks_where_nothing_can_be_restored(text: str, harmless: bool) -> None:
    (words,) = parse_command_line(text).commands
    assert is_harmless(words) is harmless
    assert is_allowed(text, is_sandboxed=True) is harmless
    assert not is_allowed(text, is_sandboxed=False)
    assert not is_allowed(text, is_sandboxed=True, mode="ask")
    restorable = call(text, is_restorable=True)
    assert isinstance(decide(restorable, Permissions(), is_sandboxed=True), Allowed)
    assert isinstance(decide(restorable, Permissions()), Ask)


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("cd src && ls *.py | head > out.txt 2>&1", True),
        ("for x in a b; do cat $x; done", True),
        ("export A=1; echo $A", True),
        ("FOO=1 pytest -x", True),
        ("cat <<EOF\nhello $(date)\nEOF", True),
        ("[ -f a ] && echo there", True),
        ("git diff HEAD~1", True),
        ("find . -not -path './.git/*'", True),
        ("python3 - <<'E'\nprint(1)\nE", True),
        ("for x in a b; do rm $x; done", False),
        ("echo $(rm x)", False),
        ("cat <<EOF\n$(rm x)\nEOF", False),
        ("f() { rm x; }; f", False),
        ("x=rm; $x y", False),
        ('"r"m x', False),
        ("r\\m x", False),
        ("python3 - <<'E'\nimport shutil; shutil.rmtree('src')\nE", False),
        ("python3 -c \"import os; os.remove('x')\"", False),
        ('python3 -c \'open("k7","w")\'', False),
        ('python3 -c \'open("k7", mode="r+b")\'', False),
        ("python3 -c \"open('k7', 'rb').read()\"", True),
        ("python3 -c \"from pathlib import Path; Path('k').write_text('')\"", False),
        ('node -e \'fs.writeFileSync("k7", "")\'', False),
        ("perl -e 'open(F, \">k7\")'", False),
        ("test -v 'x[$(rm y)]'", False),
        ("eval 'rm x'", False),
        ("git checkout .", False),
        ("if true; then", False),
    ],
)
def test_the_same_counts_in_lines_of_any_syntax(text: str, harmless: bool) -> None:
    assert is_allowed(text, is_sandboxed=True) is harmless
    assert isinstance(decide(call(text, is_restorable=True), Permissions(), is_sandboxed=True), Allowed)


def test_a_file_that_cannot_be_restored_is_not_overwritten_without_a_question() -> None:
    facts = call("ls > a.txt", overwrites="a.txt")
    assert isinstance(decide(facts, Permissions(), is_sandboxed=True), Ask)


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("curl https://example.org", True),
        ("git push", True),
        ("git -C . push", True),
        ("for x in a; do npm publish; done", True),
        ("timeout 5 curl x", True),
        ("$x y", True),
        ("npm test", False),
        ("git commit -m x", False),
        ("git reflog", False),
        ("python -m pip install x", True),
        ("python -m pytest", False),
        ("sh -c 'cd x && curl y'", True),
        ("rm -rf src", False),
    ],
)
def test_where_the_sandbox_has_a_network_what_fetches_or_publishes_asks(text: str, asks: bool) -> None:
    facts = call(text, is_restorable=True)
    assert isinstance(decide(facts, Permissions(), is_sandboxed=True, has_network=True), Ask) is asks
    assert isinstance(decide(facts, Permissions(), is_sandboxed=True), Allowed)


def test_without_a_sandbox_reading_needs_no_question() -> None:
    reading = call("cat AGENTS.md", protected="AGENTS.md")
    reading = replace(reading, commands=tuple(replace(each, only_reads=True) for each in reading.commands))
    assert decide(reading, Permissions()) == Allowed("it only reads")
    assert isinstance(decide(reading, Permissions(), mode="ask"), Ask)


def test_beside_a_runner_what_only_reads_needs_no_rule() -> None:
    facts = call("pytest -q 2>&1 | tail -3")
    first, last = facts.commands
    facts = replace(facts, commands=(first, replace(last, only_reads=True)))
    assert decide(facts, Permissions()) == Ask(
        session_rules=(exact("pytest", "-q"),), project_rules=(prefix("pytest"),)
    )
    allowed = Permissions(allow=(prefix("pytest"),))
    assert isinstance(decide(facts, allowed), Allowed)
    assert isinstance(decide(facts, allowed, mode="ask"), Ask)
    assert isinstance(decide(facts, Permissions(allow=(prefix("mypy"),))), Ask)


def test_runners_and_commits_are_allowed_by_their_first_words_with_and_without_a_sandbox() -> None:
    for sandboxed in (True, False):
        how = {"is_sandboxed": sandboxed, "mode": "ask"}
        assert decided("pytest -x tests/a.py", **how) == Ask(
            session_rules=(exact("pytest", "-x", "tests/a.py"),), project_rules=(prefix("pytest"),)
        )
        covered = [
            "pytest",
            "pytest -q --tb=short tests",
            "python3 -m pytest -k 'a or b'",
            "git commit -m 'a b'",
        ]
        rules = (prefix("pytest"), prefix("python3", "-m", "pytest"), prefix("git", "commit"))
        assert [is_allowed(text, *rules, **how) for text in covered] == [True] * 4
        not_covered = [
            "pytest --junitxml=x", "pytest --basetemp=.", "pytest ../other", "pytest /etc", "pytest -p evil",
            "pytest $x", "pytest; rm x", "git commit -F x", "git push", "python3 -m pip", "python3 -c x",
        ]  # fmt: skip
        assert [is_allowed(text, *rules, **how) for text in not_covered] == [False] * 11
    # A commit without a sandbox runs the hooks of the repository.
    hooked = call("git commit -m x", runs_hooks=True)
    permissions = Permissions(allow=(prefix("git", "commit"),))
    assert decide(hooked, permissions) == Ask(session_rules=(exact("git", "commit", "-m", "x"),))
    assert isinstance(decide(hooked, permissions, is_sandboxed=True, mode="ask"), Allowed)


def test_every_builtin_and_keyword_of_bash_is_known() -> None:
    script = "compgen -b; compgen -k"
    listed = subprocess.check_output(["bash", "--noprofile", "--norc", "-c", script], text=True)
    assert set(listed.split()) - {"echo", "false", "pwd", "true"} <= ALWAYS_ASKED


def test_brackets_cannot_run_what_stands_in_them() -> None:
    text = "'[' -v 'x[$(rm b.txt; git push)]' ']'"  # bash evaluates it
    assert decided(text, exact("[", "-v", "x[$(rm b.txt; git push)]", "]"), is_sandboxed=True) == Ask(
        why="`[` changes the shell"
    )


def test_leaving_the_sandbox_and_protected_paths_always_ask() -> None:
    permissions = Permissions(allow=(exact("ls"), ToolRule("run"), ToolRule("write")))
    assert isinstance(decide(call("ls"), permissions), Allowed)
    leaving, protected = call("ls", leaves_sandbox=True), call("touch .git", protected=".git")
    assert decide(leaving, permissions) == Ask(why="it leaves the sandbox")
    assert decide(leaving, permissions, is_sandboxed=True) == Ask(
        why="it leaves the sandbox", needs_user=True
    )
    assert decide(protected, permissions) == Ask(why=".git is protected", needs_user=True)
    assert isinstance(decide(protected, permissions, allows_everything=True), Ask)
    # In the sandbox no command can change them.
    assert isinstance(decide(protected, permissions, is_sandboxed=True), Allowed)
    assert isinstance(decide(leaving, permissions, allows_everything=True, is_sandboxed=True), Ask)
    assert isinstance(decide(leaving, permissions, allows_everything=True), Allowed)
    write = CallFacts(tool="write", protected="AGENTS.md")
    assert decide(write, permissions) == Ask(why="AGENTS.md is protected", needs_user=True)
    assert decide(CallFacts(tool="write", is_inside=False), permissions) == Ask()


def test_other_tools_are_allowed_by_their_exact_name() -> None:
    assert decide(CallFacts(tool="github__close"), Permissions()) == Ask(
        session_rules=(ToolRule("github__close"),)
    )
    permissions = Permissions(allow=(ToolRule("github__close"), ToolRule("wiki__*")))
    tools = ("github__close", "github__close_all", "wiki__page", "wikix")
    allowed = [isinstance(decide(CallFacts(tool=tool), permissions), Allowed) for tool in tools]
    assert allowed == [True, False, True, False]


@pytest.mark.parametrize(
    ("pattern", "tool", "is_covered"),
    [
        ("github__*", "github__close", True),
        ("github__*", "github__a__b", True),
        ("github__*", "githubx__close", False),
        ("github__*", "github_close", False),
        ("github__*", "github_", False),
        ("github__get_*", "github__get_issue", True),
        ("github__get_*", "github__set", False),
        ("github_*", "github__close", True),
    ],
)
def test_a_pattern_names_the_tools_of_one_server(pattern: str, tool: str, *, is_covered: bool) -> None:
    assert ToolRule(pattern).covers(tool) is is_covered


# ── Entries of the settings ──────────────────────────────────────────────────────────────────────────────


def test_an_entry_is_a_prefix_only_where_that_is_allowed() -> None:
    rules, notes = parse_allow_entries(
        ["write", "github__*", "run: git status", "run: rm foo", "run: make", "write"]
    )
    assert rules == (
        ToolRule("write"),
        ToolRule("github__*"),
        CommandRule(words=("git", "status"), is_prefix=True),
        CommandRule(words=("rm", "foo")),
        CommandRule(words=("make",)),
    )
    assert notes == tuple(
        f"allow run: {text} allows exactly this command: commands that begin with `{text}` cannot be allowed"
        for text in ("rm foo", "make")
    )
    texts = ("git status -s src", "git status --output=x", "rm foo", "rm foo -f x", "make", "make x")
    assert [is_allowed(text, *rules) for text in texts] == [True, False, True, False, True, False]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("", "the name of a tool"),
        ("run:", "the name of a tool"),
        ("write: x", "the name of a tool"),
        ("read me", "the name of a tool"),
        ("run: a; b", "it has several commands"),
        ("run: cat $x", "it has `$`"),
        ("run: cd x", "`cd` changes the shell"),
        ("git*", "names of one MCP server's tools"),
    ],
)
def test_an_entry_that_can_allow_nothing_is_refused(entry: str, why: str) -> None:
    with pytest.raises(BadSetting, match="allow") as refused:
        parse_allow_entries([entry])
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("text", "denied"),
    [
        ("git push", True),
        ("git push origin main", True),
        ("/usr/bin/git push", True),
        ("ls && git push", True),
        ("echo $(git push)", True),
        ("env X git push", True),
        ("bash -c 'git push'", True),
        ("git -C . push", True),
        ("git -c a=b --no-pager push", True),
        ("git --git-dir=x --work-tree y push", True),
        ("git --git-dir x push", True),
        ("git -p push origin", True),
        ("git -c alias.x=push x", True),
        ("git -calias.x=push x", True),
        ("env git -C . push", True),
        ("cd x; git -C $PWD push", True),
        ("busybox git push", True),
        ("uv run git push", True),
        ("git -C push log", False),
        ("git --no-pager log push", False),
        ("git stash push", False),
        ("git pushx", False),
        ("git status", False),
        ("echo git push", False),
    ],
)
def test_deny_rules_come_first(text: str, denied: bool) -> None:
    permissions = Permissions(allow=(ToolRule("run"),), deny=parse_deny_entries(["run: git push", "write"]))
    for how in ({}, {"allows_everything": True}):
        expected = Denied("run: git push is denied by tools.deny") if denied else Allowed
        found = decide(call(text), permissions, **how)
        assert found == expected if denied else isinstance(found, Allowed)
    assert isinstance(decide(CallFacts(tool="write"), permissions, allows_everything=True), Denied)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("npm publish", "npm --prefix x publish"),
        ("npm publish", "npm --silent publish"),
        ("docker push", "docker --context=x push y"),
        ("cargo publish", "cargo +nightly publish"),
        ("kubectl delete", "kubectl -n x delete pod"),
    ],
)
def test_deny_looks_past_options_of_any_program(entry: str, text: str) -> None:
    permissions = Permissions(deny=parse_deny_entries([f"run: {entry}"]))
    assert isinstance(decide(call(text), permissions, allows_everything=True), Denied)


# ── Programs ─────────────────────────────────────────────────────────────────────────────────────────────


def test_rules_name_only_programs_outside_of_the_workspace(tmp_path: Path) -> None:
    inside = tmp_path / "tool"
    inside.write_text("#!/bin/sh\n")
    inside.chmod(0o755)
    (tmp_path / "link").symlink_to("/bin/sh")
    path = f"{tmp_path}:{os.environ['PATH']}"

    def found(word: str, outside_of: Path = tmp_path) -> str:
        return find_program(word, folder=tmp_path, outside_of=(outside_of,), search_path=path)

    assert [found(word) for word in ("tool", "./tool", str(inside), "no-such-program")] == [""] * 4
    assert found("tool", Path("/nowhere")) == "", "a folder for temporary files is not trusted either"
    assert found("git") == os.path.realpath(found("git")) != ""
    assert found("./link") == os.path.realpath("/bin/sh"), "the program is the file behind the link"
