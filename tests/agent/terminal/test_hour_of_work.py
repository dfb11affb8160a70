"""An hour of work in a real sandbox: 100 turns with real tools, and every question that was asked."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from foveal.core.log import Event, ToolReturned, UserSaid, text_of
from support.chat_project import ChatProject, InProcessChat, run_chat
from support.sandbox_here import needs_sandbox

pytestmark = needs_sandbox

MODULE = "def {name}(a, b):\n    return a - b\n"
TEST = (
    "import unittest\nfrom calc.{name} import {name}\n\n\nclass Test(unittest.TestCase):\n"
    "    def test(self):\n        self.assertEqual({name}(2, 1), {result})\n"
)
RESULTS = {"add": 3, "times": 2, "power": 2, "modulo": 0}
BODIES = {"add": "a + b", "times": "a * b", "power": "a**b", "modulo": "a % b"}


def run(command: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "run", {"command": command, **more}


def feature(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls of a model that adds a function: it looks around, writes, tests, repairs and commits."""
    test = f"tests/test_{name}.py"
    yield run(f"git checkout -q -b {name} && git branch --show-current")
    yield run("git status --short && git log --oneline -3")
    yield run('find . -name "*.py" -not -path "./.git/*" | sort')
    yield run(f"grep -rn 'def ' calc | wc -l; ls calc > /tmp/{name}.txt; cat /tmp/{name}.txt")
    yield "write", {"path": f"calc/{name}.py", "content": MODULE.format(name=name)}
    yield "write", {"path": test, "content": TEST.format(name=name, result=RESULTS[name])}
    yield run("cd tests && ls *.py")
    yield run(f"python3 -m unittest {test} 2>&1 | tail -5")
    yield "read", {"path": f"calc/{name}.py"}
    yield "edit", {"path": f"calc/{name}.py", "old": "a - b", "new": BODIES[name]}
    yield run(f"PYTHONDONTWRITEBYTECODE=1 python3 -m unittest {test} 2>&1 | tail -3")
    yield run(f"python3 - <<'E'\nfrom calc.{name} import {name}\nprint({name}(4, 2))\nE")
    yield run("for f in calc/*.py; do echo $f; head -1 $f; done")
    yield run(f"sed -i 's/(a, b)/(a: int, b: int) -> int/' calc/{name}.py && git diff --stat")
    yield run(f"cat <<'E' > notes-{name}.md\n# {name}\nE\ncat notes-{name}.md")
    yield run(f"mkdir -p build && cp calc/{name}.py build/ && rm -rf build")
    yield run(f"mv notes-{name}.md docs.md && git diff HEAD -- calc | head -20; rm docs.md")
    yield run(f"git add -A && git commit -q -m \"$(cat <<'E'\nAdd {name}\n\nIt's tested.\nE\n)\"")
    yield run("git log --oneline -3 && git show --stat HEAD")
    yield run(f"git checkout -q main && git merge -q {name} 2>&1; git log --oneline | wc -l")
    yield run("echo $((1 + 1)) && date +%Y | wc -c; env | grep -c PATH || true")
    yield run(
        "python3 -m unittest discover -s tests -t . 2>&1 | tail -3; find . -name __pycache__ | xargs rm -rf"
    )


EXCURSIONS: list[tuple[str, dict[str, Any]]] = [
    run("rm -rf calc"),  # a mistake, which git and /rewind repair
    run("git checkout -q . && ls calc"),
    run("git stash; git stash pop; git tag v1"),
    run("timeout 5 python3 -c \"open('big.log', 'w').write('x' * 1000)\"; rm big.log"),
    run("echo 'use nix' > .envrc; ls -A"),  # is set aside
    run("python3 -c \"open('CLAUDE' + '.md', 'w')\"; rm -f *.set-aside .*.set-aside"),
    run("curl -s --max-time 2 https://example.org"),  # there is no network
    run("git push origin main"),
    run("git push origin main", outside_sandbox=True),
    run("git reset -q --hard HEAD~1"),  # the repository is read-only
    run("git reset -q --hard HEAD~1", outside_sandbox=True),
    ("write", {"path": "AGENTS.md", "content": "Use tabs.\n"}),
]
QUESTIONS = [
    "? Allow run outside of the sandbox: git push origin main?",
    "? Allow run outside of the sandbox: git reset -q --hard HEAD~1?",
    "? Allow write AGENTS.md",
]


@pytest.mark.soak
def test_a_hundred_turns_ask_only_what_a_user_wants_to_be_asked(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [call for name in RESULTS for call in feature(name)] + EXCURSIONS
    assert len(calls) == 100
    project.script(
        *(answer for number, call in enumerate(calls) for answer in ([call], f"Done with {number}."))
    )
    (project.home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    (project.folder / "calc").mkdir()
    (project.folder / "tests").mkdir()
    for name in ("calc/__init__.py", "tests/__init__.py"):
        (project.folder / name).touch()
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "Begin"]):
        git(project, *words)
    asked: list[str] = []

    async def work(chat: InProcessChat) -> None:
        for number in range(len(calls)):
            await chat.send(f"step {number}")
            asked.extend(line for line in chat.err.getvalue().splitlines() if line.startswith("? "))

    run_chat(project, monkeypatch, work, sandbox="auto", allow=("write", "edit"))
    assert [question[: len(wanted)] for question, wanted in zip(asked, QUESTIONS, strict=True)] == QUESTIONS
    subjects = git(project, "log", "--format=%s", "--no-merges")
    assert subjects.splitlines() == ["Add modulo", "Add power", "Add times", "Add add", "Begin"]
    tests = subprocess.run(["python3", "-m", "unittest"], cwd=project.folder, capture_output=True, text=True)
    assert "Ran 4 tests" in tests.stderr
    assert tests.returncode == 0
    assert not [
        path for path in project.folder.iterdir() if path.name in (".envrc", "CLAUDE.md", "AGENTS.md")
    ]


def git(project: ChatProject, *words: str) -> str:
    return subprocess.check_output(
        ["git", *words], cwd=project.folder, env={**project.env, "LC_ALL": "C"}, text=True
    )


def test_rewind_restores_what_commands_deleted_and_changed(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "src").mkdir()
    (project.folder / "src/tool").write_bytes(b"#!/bin/sh\n\xff\n")
    (project.folder / "src/tool").chmod(0o755)
    (project.folder / "src/link").symlink_to("tool")
    (project.folder / ".env").write_text("KEY=1\n")
    project.script(
        [run("python3 -c \"import shutil; shutil.rmtree('src')\" && rm .env && echo x > a.txt; touch new")],
        "Removed.",
    )

    async def work(chat: InProcessChat) -> None:
        await chat.send("clean up")
        assert sorted(path.name for path in project.folder.iterdir()) == ["a.txt", "new"]
        (message,) = user_messages(await chat.state.session.events())
        shown = await chat.send(f"/rewind {message} files")
        assert "restored src/tool" in shown
        assert "deleted new" in shown
        assert "not undone" not in shown
        tool = project.folder / "src/tool"
        assert (tool.read_bytes(), tool.stat().st_mode & 0o777) == (b"#!/bin/sh\n\xff\n", 0o755)
        assert (project.folder / "src/link").readlink().name == "tool"
        assert (project.folder / ".env").read_text() == "KEY=1\n"
        assert (project.folder / "a.txt").read_text() == "one\ntwo\n"
        assert not (project.folder / "new").exists()
        await chat.send("/undo")
        assert sorted(path.name for path in project.folder.iterdir()) == ["a.txt", "new", "src"]

    def user_messages(events: list[Event]) -> list[str]:
        return [event.handle for event in events if isinstance(event.fact, UserSaid)]

    run_chat(project, monkeypatch, work, sandbox="auto")


ASKED_FOR_LARGE_FILES = (
    "rm data.bin",
    "rm -rf .",
    "cp a.txt data.bin",
    "ls > data.bin",
)
RUN_BESIDE_LARGE_FILES = (
    "rm *",
    "cd . && rm a.txt",
    'python3 -c \'open("data.bin", "w")\'',
    "mkdir moved && mv d* moved; find . -name '*.bin' -delete",
    "mv dee? elsewhere; cd deep && rm -rf *",
    "echo a > a.txt && sed -i s/a/b/ a.txt && tar czf /tmp/x.tgz a.txt",
    "find . -name '*.py' | xargs wc -l",
    "curl -sS https://example.com",
    "rm b.txt",
    "rm -rf sub",
    "ls *.txt > list",
    "echo more > a.txt",
    "cat data.bin | wc -c",
)


def test_beside_a_file_that_is_too_large_to_restore_only_what_may_delete_it_asks(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(project.folder / "data.bin", "wb") as file:
        file.truncate(11 * 1024 * 1024)
    (project.folder / "b.txt").write_text("b")
    (project.folder / "sub").mkdir()
    deep = project.folder / "deep" / "inner" / "more.bin"
    deep.parent.mkdir(parents=True)
    deep.write_bytes(b"x" * (11 * 1024 * 1024))
    project.script(*([run(text)] for text in (*ASKED_FOR_LARGE_FILES, *RUN_BESIDE_LARGE_FILES)), "Done.")

    async def work(chat: InProcessChat) -> None:
        await chat.send("clean up")
        said = chat.err.getvalue()
        assert (
            "/rewind cannot restore files of more than 10,485,760 bytes each: data.bin, deep/inner/more.bin"
            in said
        )
        asked = [line for line in said.splitlines() if line.startswith("? Allow")]
        assert [line.partition("run: ")[2].partition("? no:")[0] for line in asked] == list(
            ASKED_FOR_LARGE_FILES
        )
        events = await chat.state.session.events()
        results = [text_of(event.fact.content) for event in events if isinstance(event.fact, ToolReturned)]
        assert "read-only for a command that does not name what it changes: data.bin, deep" in results[4]
        assert results[9].endswith("exit status 0")
        (message,) = [event.handle for event in events if isinstance(event.fact, UserSaid)]
        await chat.send(f"/rewind {message} files")

    run_chat(project, monkeypatch, work, sandbox="auto")
    assert deep.read_bytes() == b"x" * (11 * 1024 * 1024)
    assert (project.folder / "b.txt").read_text() == "b"
    assert (project.folder / "a.txt").read_text() == "one\ntwo\n"
    assert not (project.folder / "list").exists()
    assert (project.folder / "data.bin").stat().st_size == 11 * 1024 * 1024
