"""Terminal input: completion, key bindings, pastes and history."""

from __future__ import annotations

import asyncio
import heapq
import os
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
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

from foveal.agent.terminal.commands import SLASH_COMMANDS
from foveal.agent.terminal.commands.remembering import MEMORY_ACTS
from foveal.agent.tools.search_worker import files_to_search
from foveal.core.wire.safe_print import counted, visible
from foveal.policies import policy_names
from foveal.user_paths import state_folder

MAX_LISTED_FILES: Final = 200
"""Files of a folder that completion reads."""
MAX_WORKSPACE_FILES: Final = 20_000
"""Files of the workspace that are looked through after `@`."""
MAX_FILE_LIST_AGE_S: Final = 5.0
"""Seconds after which the files of the workspace are read again."""
MAX_MATCHING_FILES: Final = 50
"""Files that the list after `@` has at most."""
MAX_PASTE_LINES: Final = 12
MAX_PASTE_CHARS: Final = 1_500
"""A larger paste is shown by its name."""
MAX_HISTORY_CHARS: Final = 10_000
"""A longer text is not stored in the history."""
_OPEN_QUOTE: Final = re.compile(r'(?<!\S)@"[^"\n]*$')
_PASTE_NAME: Final = re.compile(r"\[paste \d+: [\d,]+ lines?, [\d,]+ characters\]")

# ── Completion ───────────────────────────────────────────────────────────────────────────────────────────


class MentionableFiles:
    """The files of a folder, for the list after `@`: without those that git ignores, links and hidden folders of
    tools. They are read again when they are older than `MAX_FILE_LIST_AGE_S`."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = str(folder.resolve())
        self._clock = clock
        self._names: tuple[str, ...] = ()
        self._read_at: float | None = None

    def names(self) -> tuple[str, ...]:
        """Return paths from the folder, at most `MAX_WORKSPACE_FILES`."""
        now = self._clock()
        if self._read_at is None or now - self._read_at > MAX_FILE_LIST_AGE_S:
            found = files_to_search(self._folder, self._folder, Counter())
            listed = islice(found, MAX_WORKSPACE_FILES)
            self._names = tuple(os.path.relpath(file.path, self._folder) for file in listed)
            self._read_at = now
        return self._names

    def matching(self, typed: str) -> list[str]:
        """Return the names that have the typed characters in this order, the best first."""
        wanted = typed.casefold()
        found = [
            (rank, len(name), name)
            for name in self.names()
            if (rank := _match_rank(wanted, name)) is not None
        ]
        return [name for *_, name in heapq.nsmallest(MAX_MATCHING_FILES, found)]


def _match_rank(wanted: str, path: str) -> int | None:
    """Return how well a path matches, 0 for best, or None: a name that begins with the text, a name or a path that
    has it, and then by how far its characters are apart."""
    path = path.casefold()
    name = path[path.rfind(os.sep) + 1 :]
    if wanted in path:
        return 0 if name.startswith(wanted) else 1 if wanted in name else 2
    place, first = -1, -1
    for character in wanted:
        place = path.find(character, place + 1)
        if place < 0:
            return None
        first = place if first < 0 else first
    return 3 + place - first


class Completions(Completer):
    """Completes slash commands with their arguments and files after `@` while they are typed, file names on Tab."""

    def __init__(
        self,
        folder: Path,
        sessions: Callable[[], Iterable[str]] = tuple,
        entries: Callable[[], Iterable[str]] = tuple,
        policies: Callable[[], Iterable[str]] = policy_names,
    ) -> None:
        """`sessions` and `entries` return the ids of sessions, and of the entries of memories; `policies` names of
        policies."""
        self._folder = folder
        self._workspace_files = MentionableFiles(folder)
        self._sessions = sessions
        self._entries = entries
        self._policies = policies

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            name, space, rest = text.partition(" ")
            if not space:
                yield from _complete_commands(name)
            elif (known := self._arguments(name)) is not None:
                yield from _complete_names(known, rest)
                return
        if complete_event.completion_requested and not (text.startswith("/") and " " not in text):
            yield from self._files(text)
        elif is_mention(text):
            yield from self._mentioned(_last_word(text))

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        if is_mention(document.text_before_cursor) and not complete_event.completion_requested:
            # Reading a large folder takes a moment, and the user goes on typing.
            await asyncio.to_thread(self._workspace_files.names)
        async for completion in super().get_completions_async(document, complete_event):
            yield completion

    def _arguments(self, name: str) -> Iterable[str] | None:
        if name == "/policy":
            return self._policies()
        if name == "/memory":
            return MEMORY_ACTS
        if name == "/forget":
            return self._entries()
        return self._sessions() if name in ("/resume", "/continue-from") else None

    def _mentioned(self, word: str) -> Iterator[Completion]:
        """Yield the files of the workspace that match what follows `@`, after a folder that is named in full."""
        typed = word.removeprefix("@").removeprefix('"')
        if typed and os.path.isdir(self._folder / typed):
            yield Completion(word, start_position=-len(word), display=visible(typed))
        for path in self._workspace_files.matching(typed):
            yield Completion(f"@{_quoted(path)}", start_position=-len(word), display=visible(path))

    def _files(self, text: str) -> Iterator[Completion]:
        word = _last_word(text)
        at = "@" if word.startswith("@") else ""
        typed = word.removeprefix("@").removeprefix('"')
        folder, name = os.path.split(typed)
        for found in self._listed(folder):
            if found.name.startswith(name) and (name.startswith(".") or not found.name.startswith(".")):
                shown = found.name + ("/" if found.is_dir() else "")
                path = os.path.join(folder, shown)
                if at:
                    path = _quoted(path).removesuffix('"') if found.is_dir() else _quoted(path)
                yield Completion(at + path, start_position=-len(word), display=visible(shown))

    def _listed(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._folder / Path(folder).expanduser()) as entries:
                return sorted(islice(entries, MAX_LISTED_FILES), key=lambda entry: entry.name)
        except (OSError, ValueError, RuntimeError):
            return []


def is_mention(text: str) -> bool:
    """Return whether the word before the cursor names a file with `@`."""
    return _last_word(text).startswith("@")


def _quoted(path: str) -> str:
    return f'"{path}"' if any(map(str.isspace, path)) else path


def _last_word(text: str) -> str:
    """Return the word before the cursor; a path after `@"` is one word up to its closing quote."""
    if quoted := _OPEN_QUOTE.search(text):
        return quoted[0]
    return text.split()[-1] if text and not text[-1].isspace() else ""


def _complete_commands(typed: str) -> Iterator[Completion]:
    for command in SLASH_COMMANDS:
        names = (command.name, *command.aliases) if typed != "/" else (command.name,)
        name = next((name for name in names if name.startswith(typed)), "")
        if name:
            yield Completion(name, start_position=-len(typed), display_meta=command.description)


def _complete_names(known: Iterable[str], typed: str) -> Iterator[Completion]:
    for name in known:
        if name.startswith(typed.lstrip()):
            yield Completion(name, start_position=-len(typed.lstrip()), display=visible(name))


# ── Key bindings ─────────────────────────────────────────────────────────────────────────────────────────


class TypedInput(Protocol):
    """What the key bindings need of the screen."""

    entry: Buffer
    pastes: Pastes

    def submit(self, line: str) -> None: ...


def key_bindings(screen: TypedInput, on_interrupt: Callable[[], None]) -> KeyBindings:
    """Return the key bindings; Ctrl-C on an empty line calls `on_interrupt`."""
    keys = KeyBindings()
    _bind_submit(keys, screen)
    _bind_editing(keys, screen)
    _bind_interrupt(keys, screen, on_interrupt)
    return keys


def _bind_submit(keys: KeyBindings, screen: TypedInput) -> None:
    chosen = has_completions & Condition(lambda: _completion_is_chosen(screen))
    chosen |= Condition(lambda: _first_listed_file(screen.entry) is not None)

    @keys.add("enter", filter=chosen)
    def take(event: KeyPressEvent) -> None:
        if (listed := _first_listed_file(event.current_buffer)) is not None:
            event.current_buffer.apply_completion(listed)
        event.current_buffer.complete_state = None

    @keys.add("enter", filter=~chosen)
    def send(event: KeyPressEvent) -> None:
        text = event.current_buffer.text
        if text.strip():
            event.current_buffer.append_to_history()
        event.current_buffer.reset()
        screen.submit(text)


def _bind_editing(keys: KeyBindings, screen: TypedInput) -> None:
    @keys.add("escape", "enter")
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("s-tab", filter=~has_completions)
    def plan(event: KeyPressEvent) -> None:
        screen.submit("/plan")

    is_naming = Condition(lambda: is_mention(screen.entry.document.text_before_cursor))

    @keys.add("tab", filter=is_naming & ~has_completions)
    def complete(event: KeyPressEvent) -> None:
        """Complete the only possible name at once: the list can be on its way, and the key would be lost."""
        buffer = event.current_buffer
        wanted = CompleteEvent(completion_requested=True)
        found = list(islice(buffer.completer.get_completions(buffer.document, wanted), 2))
        if len(found) == 1:
            buffer.apply_completion(found[0])
        else:
            buffer.start_completion(insert_common_part=True)

    @keys.add(Keys.BracketedPaste)
    def paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(screen.pastes.collapse(text))


def _bind_interrupt(keys: KeyBindings, screen: TypedInput, on_interrupt: Callable[[], None]) -> None:
    @keys.add("c-c")
    @keys.add("<sigint>")
    def stop(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            on_interrupt()

    @keys.add("c-d", filter=Condition(lambda: not screen.entry.text))
    def leave(event: KeyPressEvent) -> None:
        screen.submit("/quit")


def _completion_is_chosen(screen: TypedInput) -> bool:
    state = screen.entry.complete_state
    return state is not None and state.current_completion is not None


def _first_listed_file(entry: Buffer) -> Completion | None:
    """Return the first file of the list after `@`, if none is chosen and the typed name is not in the list."""
    state, word = entry.complete_state, _last_word(entry.document.text_before_cursor)
    if state is None or state.current_completion is not None or not word.startswith("@") or word == "@":
        return None
    names = [completion.text for completion in state.completions]
    return state.completions[0] if names and word not in names else None


# ── Input line ───────────────────────────────────────────────────────────────────────────────────────────


class Pastes:
    """Large pasted texts, shown in the input line as `[paste 1: 20,480 lines, 1,048,576 characters]`."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def collapse(self, text: str) -> str:
        """Return a paste as the input line shows it: the text, or a name for a large text."""
        lines = text.removesuffix("\n").count("\n") + 1
        if lines <= MAX_PASTE_LINES and len(text) <= MAX_PASTE_CHARS:
            return text
        size = f"{counted(lines, 'line')}, {counted(len(text), 'character')}"
        name = f"[paste {len(self._texts) + 1}: {size}]"
        self._texts[name] = text
        return name

    def expand(self, line: str) -> str:
        """Return a line with the names replaced by the pasted texts."""
        if not self._texts:
            return line
        return re.sub("|".join(map(re.escape, self._texts)), lambda found: self._texts[found[0]], line)


def input_history() -> History:
    """Return the input history: a file that only the user can read, or memory if it cannot be created."""
    path = state_folder() / "history"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        return _History(path)
    return InMemoryHistory()


class _History(FileHistory):
    """A history file that skips very long input and names of pastes, and ignores write errors."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))

    def store_string(self, string: str) -> None:
        if len(string) <= MAX_HISTORY_CHARS and not _PASTE_NAME.search(string):
            with suppress(OSError, UnicodeError):
                super().store_string(string)


def input_buffer(completer: Completer) -> Buffer:
    """Return the buffer of the input line."""

    def is_completed() -> bool:
        is_command = buffer.text.startswith("/") and "\n" not in buffer.text
        return is_command or is_mention(buffer.document.text_before_cursor)

    buffer = Buffer(
        completer=completer,
        complete_while_typing=Condition(is_completed),
        history=input_history(),
        multiline=True,
        name="entry",
    )
    return buffer
