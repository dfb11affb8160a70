"""Generates the captures of the chat in docs/screens from real runs in a pseudo-terminal.

`python tools/docs/chat_captures.py` runs `foveal chat` with a provider that answers from a script, and draws
what the terminal shows. With names, such as `try-reduced`, it draws only those. It needs the packages of the tests.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from terminal_svg import Run, capture

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.chat_project import ChatProject  # noqa: E402
from support.terminal import CTRL_C, ESCAPE, SECOND_KEY, Terminal  # noqa: E402

FOLDER = ROOT / "docs" / "screens"
COLUMNS, ROWS, TRY_ROWS = 80, 24, 20
CONTEXT_ROWS = 33
DEFAULT_COLOUR = "#c9d1d9"
STILL_S = 1.0
PASSING = ("question-early",)
"""Captures of what is on the screen for a moment only."""
SESSION_ID = re.compile(r"\d{4}-\d\d-\d\d-\d{6}-[0-9a-f]{4}")
SHOWN_ID = "2026-01-31-093000-4f1c"
"""Drawn in place of the id of a new session, which is never the same."""
SERVER = """\
import json
from http.server import BaseHTTPRequestHandler, HTTPServer


class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"status": "ok"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", 8000), Health).serve_forever()
"""
ANSWERS: tuple[Any, ...] = (
    [("read", {"path": "server.py"})],
    [("edit", {"path": "server.py", "old": "8000), Health", "new": "8080), Health"})],
    "The server listens on port **8080** now.",
    [("write", {"path": "health.py", "content": SERVER})],
    "Written.",
    [("run", {"command": "git push origin main"})],
    "Not pushed.",
)
SMALL_MODEL = ("--model", "local/qwen2.5-coder-0.5b", "--window", "4096")
ATTACHED_FILES = ("10_session", "13_compaction", "14_session_summaries", "15_service")
"""Files of examples/ that the page about trying Foveal attaches."""
LANGUAGE_ANSWER = "The language of this code is Python."
RECORDED_PROVIDER = f"""
from msgspec.structs import replace
from foveal.ports import Reply
from foveal.testing import Scripted

ANSWERS = [
    "A context window is a window that is used to display information about a specific context, such as a specific "
    "user or a specific event. It is typically used in applications that need to provide real-time information "
    "about the user's actions or events.",
    *[{LANGUAGE_ANSWER!r}] * {len(ATTACHED_FILES)},
    "The method of the session goes back to an earlier event when a provider's window is smaller than known.",
]
USAGE = [(32, 31, 48), (725, 92, 8), (1664, 735, 8), (2531, 1674, 8), (1720, 164, 8), (2182, 815, 21)]

class Recorded(Scripted):
    async def send(self, request, *, max_tokens):
        prompt, cached, answer = USAGE[len(self.requests)]
        usage = {{"prompt_tokens": prompt, "completion_tokens": answer}}
        usage["prompt_tokens_details"] = {{"cached_tokens": cached}}
        async for item in super().send(request, max_tokens=max_tokens):
            yield replace(item, usage=usage) if isinstance(item, Reply) else item

def make(name, *, environment, window, progress):
    return Recorded(*ANSWERS, window=window, name=name)
"""
"""Answers and usage as the bundled model gave them, so that the captures show its numbers."""


def take_captures() -> Iterator[tuple[str, str, Terminal]]:
    """Yield the name, the title and the terminal of each capture of a coding session."""
    with tempfile.TemporaryDirectory() as folder:
        project = ChatProject(Path(folder))
        (project.folder / "server.py").write_text(SERVER)
        project.script(*ANSWERS, window=32_000)
        env = {"FOVEAL_THEME": "dark", "LC_ALL": "C.UTF-8", "FOVEAL_TOOLS_SANDBOX": "auto"}
        env["FOVEAL_TOOLS_APPROVAL"] = "ask"  # the other mode asks about no command in the sandbox
        with project.terminal("--session", "port", env=env, columns=COLUMNS, rows=ROWS) as terminal:
            terminal.see("ctx ")
            terminal.enter("make the port 8080")
            terminal.see("one moment")
            yield "question-early", "A question that does not take keys yet", terminal
            terminal.see("Enter, Esc")
            yield "edit", "A question about an edit, with its diff", terminal
            terminal.type("s")
            terminal.see(lambda t: any(SECOND_KEY.match(line) for line in t.lines))
            yield "question-second", "The second key of an answer that lasts", terminal
            terminal.type(ESCAPE)
            terminal.answer("y")
            terminal.see("8080 now")
            terminal.enter("write a health check")
            terminal.see(
                lambda t: any("more lines between" in line for line in t.lines) and "queued" not in t.text
            )
            yield "write", "A question about a new file that is longer than the screen", terminal
            terminal.answer("y")
            terminal.see("Written.")
            terminal.enter("push it")
            terminal.see("Allow run: git push origin main?")
            yield "permission", "A question about a command", terminal
            terminal.answer("n")
            # The figures count the whole answer.
            terminal.see(lambda t: "Not pushed." in t.text and is_idle(t))
            terminal.type("explain @hlth")
            terminal.see(lambda t: any(line.strip() == "health.py" for line in t.lines))
            yield "mention", "The list of files after @", terminal
            terminal.type(CTRL_C)
            terminal.see(is_idle)
            terminal.resize(COLUMNS, CONTEXT_ROWS)
            terminal.enter("/context")
            terminal.see("recall_read")
            yield "context", "What fills the window", terminal
            terminal.resize(COLUMNS, ROWS)
            terminal.enter("/new")
            terminal.see("resume")
            terminal.enter("/resume")
            terminal.see(lambda t: shows_menu(t.lines))
            yield "resume", "The menu of /resume", terminal


def take_planning() -> Iterator[tuple[str, str, Terminal]]:
    """Yield the captures of plan mode and of the to-do list."""
    steps = ("read server.py", "add the path /health", "write a test of it", "describe it in the README")
    todo = [
        {"text": text, "state": "done" if place == 0 else "active" if place == 1 else "pending"}
        for place, text in enumerate(steps)
    ]
    plan = (
        "1. Add the path `/health` to `server.py`.\n2. Write `test_health.py`.\n3. Describe it in the README."
    )
    answers = ([("read", {"path": "server.py"})], plan, [("todo", {"items": todo})], "Next comes the path.")
    with tempfile.TemporaryDirectory() as folder:
        project = ChatProject(Path(folder))
        (project.folder / "server.py").write_text(SERVER)
        project.script(*answers, window=32_000)
        env = {"FOVEAL_THEME": "dark", "LC_ALL": "C.UTF-8", "FOVEAL_TOOLS_SANDBOX": "auto"}
        with project.terminal("--session", "health", env=env, columns=COLUMNS, rows=ROWS) as terminal:
            terminal.see("ctx ")
            terminal.enter("/plan add a health check")
            terminal.see("Carry out this plan?")
            yield "plan", "The question about a plan", terminal
            terminal.enter("y")
            terminal.see(lambda t: "Next comes the path." in t.text and is_idle(t))
            yield "todo", "The to-do list above the input line", terminal


def take_first_steps() -> Iterator[tuple[str, str, Terminal]]:
    """Yield the captures of the page about trying Foveal, with the answers of the bundled model."""
    with tempfile.TemporaryDirectory() as folder:
        project = ChatProject(Path(folder))
        (project.folder / "examples").mkdir()
        for name in ATTACHED_FILES:
            shutil.copy(ROOT / "examples" / f"{name}.py", project.folder / "examples")
        (project.home / "recorded.py").write_text(RECORDED_PROVIDER)
        env = {"FOVEAL_THEME": "dark", "LC_ALL": "C.UTF-8", "FOVEAL_PROVIDER": "recorded:make"}
        options = (*SMALL_MODEL, "--session", "try")
        with project.terminal(*options, env=env, columns=COLUMNS, rows=TRY_ROWS) as terminal:
            terminal.see("ctx ")
            terminal.enter("What is a context window?")
            terminal.see("actions or events.")
            for number, name in enumerate(ATTACHED_FILES, 1):
                question = "And this?" if number > 1 else "Which language is this?"
                terminal.enter(f"@examples/{name}.py {question} Answer in one word.")
                terminal.see(
                    lambda t, n=number: t.text.count(LANGUAGE_ANSWER) == n and "answering" not in t.text
                )
            terminal.see(lambda t: "turn" in t.bottom)
            yield "try-reduced", "A reduction in the chat", terminal
            terminal.enter("/why await session.rewind(8)")
            terminal.see("clipped by e15")
            terminal.enter("/undo e15")
            terminal.see("took back e15")
            terminal.enter("/why await session.rewind(8)")
            terminal.see("shown in full")
            terminal.enter("Which method of the session goes back to an earlier event?")
            terminal.see(lambda t: "The method of the session" in t.text and is_idle(t))
            terminal.enter("/why await session.rewind(8)")
            terminal.see(lambda t: "message 4 of" in t.text and "turn" in t.bottom)
            yield "try-undone", "Why a text was hidden, and how it came back", terminal


def is_idle(terminal: Terminal) -> bool:
    """Return whether the chat waits for a message: an answer has ended, and the status line counts it."""
    return (
        "›" in terminal.lines and "ctx " in terminal.bottom and "answering" not in "\n".join(terminal.lines)
    )


def shows_menu(lines: list[str]) -> bool:
    """Return whether a menu is open and nothing is queued; the input line is hidden then."""
    text = "\n".join(lines)
    return "type to search" in text and "queued" not in text and "›" not in lines


def wait_until_still(terminal: Terminal) -> None:
    """Wait until the screen does not change any more."""
    lines, since = terminal.lines, time.monotonic()

    def is_still(terminal: Terminal) -> bool:
        nonlocal lines, since
        if terminal.lines != lines:
            lines, since = terminal.lines, time.monotonic()
        return time.monotonic() - since > STILL_S

    terminal.see(is_still)


def runs(terminal: Terminal, y: int) -> list[Run]:
    """Return a line of the screen as runs of one colour."""
    cells = [terminal.screen.buffer[y][x] for x in range(COLUMNS)]
    for new_id in SESSION_ID.finditer("".join(cell.data for cell in cells)):
        for place, character in enumerate(SHOWN_ID, new_id.start()):
            cells[place] = cells[place]._replace(data=character)
    grouped = groupby(cells, key=lambda cell: (cell.fg, cell.bold))
    return [
        Run(
            "".join(cell.data for cell in same),
            DEFAULT_COLOUR if colour == "default" else f"#{colour}",
            is_bold,
        )
        for (colour, is_bold), same in grouped
    ]


def draw(title: str, terminal: Terminal) -> str:
    """Return the screen as SVG, without the empty lines at its end."""
    used = max(y for y, line in enumerate(terminal.lines) if line) + 1
    return capture([runs(terminal, y) for y in range(used)], title, columns=COLUMNS)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    wanted = sys.argv[1:]
    for name, title, terminal in chain(take_captures(), take_planning(), take_first_steps()):
        if wanted and name not in wanted:
            continue
        if name not in PASSING:
            wait_until_still(terminal)
        (FOLDER / f"{name}.svg").write_text(draw(title, terminal), encoding="utf-8")
