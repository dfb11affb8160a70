"""Completion: slash commands and what they take, names of files after that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from foveal.apps.cli.chat.commands import COMMANDS
from foveal.policies.settings import PRESETS
from foveal.visible import visible

MOST: Final = 200
"""Files of a folder that are looked at."""


class Completions(Completer):
    def __init__(self, folder: Path, sessions: Callable[[], Iterable[str]] = tuple) -> None:
        self._folder = folder
        self._sessions = sessions

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            name, space, rest = text.partition(" ")
            if not space:
                yield from _commands(name)
            elif (known := self._arguments(name)) is not None:
                yield from _beginning(known, rest)
                return
        if complete_event.completion_requested and not (text.startswith("/") and " " not in text):
            yield from self._files(text)

    def _arguments(self, name: str) -> Iterable[str] | None:
        if name == "/policy":
            return PRESETS
        return self._sessions() if name in ("/resume", "/continue-from") else None

    def _files(self, text: str) -> Iterator[Completion]:
        word = text.split()[-1] if text and not text[-1].isspace() else ""
        at = "@" if word.startswith("@") else ""
        typed = word.removeprefix("@")
        folder, name = os.path.split(typed)
        for found in self._listed(folder):
            if found.name.startswith(name) and (name.startswith(".") or not found.name.startswith(".")):
                shown = found.name + ("/" if found.is_dir() else "")
                path = at + os.path.join(folder, shown)
                yield Completion(path, start_position=-len(word), display=visible(shown))

    def _listed(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._folder / Path(folder).expanduser()) as entries:
                return sorted(islice(entries, MOST), key=lambda entry: entry.name)
        except (OSError, ValueError, RuntimeError):
            return []


def _commands(typed: str) -> Iterator[Completion]:
    for command in COMMANDS:
        if command.name.startswith(typed):
            yield Completion(command.name, start_position=-len(typed), display_meta=command.about)


def _beginning(known: Iterable[str], typed: str) -> Iterator[Completion]:
    for name in known:
        if name.startswith(typed.lstrip()):
            yield Completion(name, start_position=-len(typed.lstrip()), display=visible(name))
