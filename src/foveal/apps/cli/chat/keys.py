"""What the keys do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition, has_completions
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from foveal.apps.cli.chat.entry import Pastes


class Typed(Protocol):
    """Where the user types, as far as keys need it."""

    entry: Buffer
    pastes: Pastes

    def enter(self, line: str) -> None: ...


def bindings(screen: Typed, stopped: Callable[[], None]) -> KeyBindings:
    """`stopped` is told of Ctrl-C on an empty line."""
    keys = KeyBindings()
    _sending(keys, screen)
    _typing(keys, screen)
    _stopping(keys, screen, stopped)
    return keys


def _sending(keys: KeyBindings, screen: Typed) -> None:
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


def _typing(keys: KeyBindings, screen: Typed) -> None:
    @keys.add("escape", "enter")
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add(Keys.BracketedPaste)
    def paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(screen.pastes.short(text))


def _stopping(keys: KeyBindings, screen: Typed, stopped: Callable[[], None]) -> None:
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


def _chosen(screen: Typed) -> bool:
    state = screen.entry.complete_state
    return state is not None and state.current_completion is not None
