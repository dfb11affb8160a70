"""Generates the captures of the chat in docs/screens from real runs in a pseudo-terminal.

`python tools/docs/chat_captures.py` runs `foveal chat` with a provider that answers from a script, and draws
what the terminal shows. It needs the packages of the tests.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from terminal_svg import Run, capture

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.chat_project import ChatProject  # noqa: E402
from support.terminal import Terminal  # noqa: E402

FOLDER = ROOT / "docs" / "screens"
COLUMNS, ROWS = 80, 24
CONTEXT_ROWS = 33
DEFAULT_COLOUR = "#c9d1d9"
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


def take_captures() -> Iterator[tuple[str, str, Terminal]]:
    """Yield the name, the title and the terminal of each capture."""
    with tempfile.TemporaryDirectory() as folder:
        project = ChatProject(Path(folder))
        (project.folder / "server.py").write_text(SERVER)
        project.script(*ANSWERS, window=32_000)
        env = {"FOVEAL_THEME": "dark", "LC_ALL": "C.UTF-8", "FOVEAL_TOOLS_SANDBOX": "auto"}
        with project.terminal("--session", "port", env=env, columns=COLUMNS, rows=ROWS) as terminal:
            terminal.see("ctx ")
            terminal.enter("make the port 8080")
            terminal.see("Enter, Esc")
            yield "edit", "A question about an edit, with its diff", terminal
            terminal.type("y")
            terminal.see("8080 now")
            terminal.enter("write a health check")
            terminal.see(
                lambda t: any("more lines below" in line for line in t.lines) and "queued" not in t.text
            )
            yield "write", "A question about a new file that is longer than the screen", terminal
            terminal.type("y")
            terminal.see("Written.")
            terminal.enter("push it")
            terminal.see("Allow run: git push origin main?")
            yield "permission", "A question about a command", terminal
            terminal.type("n")
            terminal.see("Not pushed.")
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


def shows_menu(lines: list[str]) -> bool:
    """Return whether a menu is open and nothing is queued; the input line is hidden then."""
    text = "\n".join(lines)
    return "type to search" in text and "queued" not in text and "›" not in lines


def runs(terminal: Terminal, y: int) -> list[Run]:
    """Return a line of the screen as runs of one colour."""
    cells = [terminal.screen.buffer[y][x] for x in range(COLUMNS)]
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
    for name, title, terminal in take_captures():
        (FOLDER / f"{name}.svg").write_text(draw(title, terminal), encoding="utf-8")
