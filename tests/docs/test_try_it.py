"""The steps of the page about trying Foveal work as they are written, in a chat in a terminal.

1. A line of a `text` block that begins with `›` is typed, and the lines below it are expected on the screen.
2. A scripted model answers, so numbers may differ from those of the page; names of events may not.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from foveal.core.log import Clipped, Reverted
from support.chat_project import ChatProject
from support.doc_pages import code_blocks, page_text
from support.paths import ROOT
from support.terminal import CTRL_D, Terminal

PROMPT = "› "
ANSWERS = (
    "A context window is what a model reads at once.",
    *["The language of this code is Python."] * 4,
    "The method is called rewind.",
)


class PageStep(NamedTuple):
    """A line that the reader types, and what the page shows below it."""

    typed: str
    shown: list[str]


def page_steps() -> list[PageStep]:
    steps: list[PageStep] = []
    for block in code_blocks(page_text("try-it"), "text"):
        for line in block.splitlines():
            if line.startswith(PROMPT):
                steps.append(PageStep(line.removeprefix(PROMPT), []))
            elif block.startswith(PROMPT):
                steps[-1].shown.append(line)
    return steps


STEPS = page_steps()


def without_numbers(text: str) -> str:
    """Replace numbers, but not those in names of events and of files, and the space that a narrow screen adds."""
    return re.sub(r"\s+", " ", re.sub(r"(?<![\w/])\d[\d,.]*", "0", text))


class ShownAgain(NamedTuple):
    """A condition: a line is on the screen once more than before."""

    line: str
    before: str
    """The screen before, without numbers."""

    def __call__(self, terminal: Terminal) -> bool:
        wanted = without_numbers(self.line)
        return without_numbers(terminal.text).count(wanted) > self.before.count(wanted)


@pytest.fixture
def project(tmp_path: Path) -> ChatProject:
    """A folder with the examples, and a model that answers the questions of the page."""
    found = ChatProject(tmp_path)
    shutil.copytree(ROOT / "examples", found.folder / "examples")
    found.script(*ANSWERS)
    return found


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--model", "local/qwen2.5-coder-0.5b", "--window", "4096"), id="small model"),
        pytest.param(
            ("--window", "4096", "--no-tools", "--no-project"), id="API key", marks=pytest.mark.soak
        ),
    ],
)
def test_the_steps_lead_to_a_reduction_and_its_undo(project: ChatProject, options: tuple[str, ...]) -> None:
    answers = iter(ANSWERS)
    with project.terminal("--session", "s", *options, columns=100) as terminal:
        terminal.see("ctx ")
        for typed, shown in STEPS:
            before = without_numbers(terminal.text)
            terminal.enter(typed)
            for line in shown if typed.startswith("/") else [*shown, next(answers)]:
                terminal.see(ShownAgain(line, before))
            terminal.see(lambda t: "answering" not in t.text and t.bottom.startswith(" ctx "))
        terminal.type(CTRL_D)
        terminal.see("to continue: foveal --resume s")
        assert terminal.ended() == 0
    facts = {event.handle: event.fact for event in project.events()}
    undone = next(fact for fact in facts.values() if isinstance(fact, Reverted))
    assert isinstance(facts[f"e{undone.target}"], Clipped)
