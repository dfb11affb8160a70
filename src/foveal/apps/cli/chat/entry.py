"""Where the user types: history, several lines, and pastes of any size, of which only a short name is shown."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from foveal.project import state_folder

LINES: Final = 12
CHARACTERS: Final = 1_500
"""A larger paste is shown by its name."""
REMEMBERED: Final = 10_000
"""A longer text is not kept in the history."""


_PASTE: Final = re.compile(r"\[paste \d+: [\d,]+ lines?, [\d,]+ characters\]")


class Pastes:
    """Large texts that stand in the line as `[paste 1: 20,480 lines, 1,048,576 characters]`."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def short(self, text: str) -> str:
        """What to show of a paste: itself, or its name."""
        lines = text.count("\n") + 1
        if lines <= LINES and len(text) <= CHARACTERS:
            return text
        size = f"{lines:,} line{'s' * (lines != 1)}, {len(text):,} characters"
        name = f"[paste {len(self._texts) + 1}: {size}]"
        self._texts[name] = text
        return name

    def whole(self, line: str) -> str:
        """A line with what its names stand for."""
        if not self._texts:
            return line
        return re.sub("|".join(map(re.escape, self._texts)), lambda found: self._texts[found[0]], line)


def history() -> History:
    """What was typed before, in a file that only its owner reads; in memory when there can be none."""
    path = state_folder() / "history"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        return _History(path)
    return InMemoryHistory()


class _History(FileHistory):
    """Lines in a file; very long ones, names of pastes, and a full disk are passed over."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))

    def store_string(self, string: str) -> None:
        if len(string) <= REMEMBERED and not _PASTE.search(string):
            with suppress(OSError, UnicodeError):
                super().store_string(string)


def buffer(completer: Completer) -> Buffer:
    """The line that is being typed. Commands are completed while they are typed, files on request."""

    def typing_a_command() -> bool:
        return made.text.startswith("/") and "\n" not in made.text

    made = Buffer(
        completer=completer,
        complete_while_typing=Condition(typing_a_command),
        history=history(),
        multiline=True,
        name="entry",
    )
    return made
