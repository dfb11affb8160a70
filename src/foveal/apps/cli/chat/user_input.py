"""Completion: slash commands and what they take, names of files after that."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from foveal.apps.cli.chat.commands import COMMANDS
from foveal.core.policies.presets import PRESETS
from foveal.core.wire.safe_print import visible
from foveal.project import state_folder

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


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────
# What the keys do.


class TypedInput(Protocol):
    """Where the user types, as far as keys need it."""

    entry: Buffer
    pastes: Pastes

    def enter(self, line: str) -> None: ...


def bindings(screen: TypedInput, stopped: Callable[[], None]) -> KeyBindings:
    """`stopped` is told of Ctrl-C on an empty line."""
    keys = KeyBindings()
    _sending(keys, screen)
    _typing(keys, screen)
    _stopping(keys, screen, stopped)
    return keys


def _sending(keys: KeyBindings, screen: TypedInput) -> None:
    chosen = has_completions & Condition(lambda: _chosen(screen))

    @keys.add("enter", filter=chosen)
    def take(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @keys.add("enter", filter=~chosen)
    def send(event: KeyPressEvent) -> None:
        text = event.current_buffer.text
        if text.strip():
            event.current_buffer.append_to_history()
        event.current_buffer.reset()
        screen.enter(text)


def _typing(keys: KeyBindings, screen: TypedInput) -> None:
    @keys.add("escape", "enter")
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add(Keys.BracketedPaste)
    def paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(screen.pastes.short(text))


def _stopping(keys: KeyBindings, screen: TypedInput, stopped: Callable[[], None]) -> None:
    @keys.add("c-c")
    @keys.add("<sigint>")
    def stop(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            stopped()

    @keys.add("c-d", filter=Condition(lambda: not screen.entry.text))
    def leave(event: KeyPressEvent) -> None:
        screen.enter("/quit")


def _chosen(screen: TypedInput) -> bool:
    state = screen.entry.complete_state
    return state is not None and state.current_completion is not None


# ── entry ─────────────────────────────────────────────────────────────────────────────────────────
# Where the user types: history, several lines, and pastes of any size, of which only a short name is shown.

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
