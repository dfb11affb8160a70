"""Shows one panel at a time in the application, and passes keys to it.

A key press is an answer only if the user could see what it answers:

1. The panel has been drawn, and all input that was waiting at that time has been read. What was typed earlier is
   text of the input line.
2. The input line is empty. A text that was begun before the question is finished first, or set aside with Tab.
3. For a character, no other character arrived with it: a paste, or several keys at once, is text.
4. The key is not the one that answered the question before, pressed again within `REPEAT_S`.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition, has_completions
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.containers import Window

from foveal.agent.terminal.output.panels import FullView, Panel, QuestionPanel
from foveal.agent.terminal.output.styled_text import Row

PANEL_KEYS: Final = ("up", "down", "pageup", "pagedown", "home", "end", "enter", "escape")
MENU_KEYS: Final = ("tab", "backspace", "c-c")
"""Keys that menus and views take from the input line; a question leaves them to it."""

REPEAT_S: Final = 0.3
"""Seconds within which the same key counts as one press: it was held down or pressed twice."""


class PanelHost:
    """The open panel and its keys; `run` shows a panel until it closes."""

    def __init__(
        self,
        entry: Buffer,
        *,
        on_view_closed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` returns the seconds that tell a repeated key from a new press."""
        self.panel: Panel | None = None
        self.app: Application[None]
        self.window: Window
        """The window of the panel; set with `app` by the screen."""
        self._entry = entry
        self._on_view_closed = on_view_closed
        self._clock = clock
        self._closed: asyncio.Future[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._drawn: Panel | None = None
        self._has_early_input = False
        """Whether input from before the first drawing is left."""
        self._is_armed = False
        """Whether the panel takes keys."""
        self._can_line_answer = False
        """Whether a line that is entered now was typed after the question was drawn."""
        self._set_aside = ""
        """Text of the input line that returns when the panel closes."""
        self._last_key, self._last_press_at = "", 0.0

    # ── State ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def question(self) -> QuestionPanel | None:
        return self.panel if isinstance(self.panel, QuestionPanel) else None

    @property
    def is_viewing(self) -> bool:
        """Whether a text is shown over the whole screen."""
        return self.panel is not None and self.panel.view is not None

    @property
    def hides_entry(self) -> bool:
        """Whether the panel takes all keys, so that the input line is not shown."""
        return self.is_viewing or (self.panel is not None and self.panel.takes_text and self._is_armed)

    def takes_keys(self) -> bool:
        if self.panel is None or not self._is_armed:
            return False
        question = self.question
        return self.hides_entry or (question is not None and not self._entry.text)

    # ── A panel from its opening to its end ──────────────────────────────────────────────────────────

    async def run(self, panel: Panel) -> None:
        """Show a panel until the user closes it; panels that are opened meanwhile wait."""
        async with self._one_at_a_time:
            self._closed = asyncio.get_running_loop().create_future()
            self.panel, self._is_armed, self._drawn = panel, False, None
            self.app.invalidate()
            try:
                await self._closed
            finally:
                self._close()

    def _close(self) -> None:
        self._leave_view()
        self.panel, self._closed, self._is_armed = None, None, False
        self.app.layout.focus(self._entry)
        if self._set_aside:
            self._entry.insert_text(self._set_aside)
            self._set_aside = ""
        self.app.invalidate()

    def rows(self, *, width: int, height: int) -> list[Row]:
        """Return the rows of the panel, or of its view."""
        panel = self.panel
        if panel is None:
            return []
        if self._drawn is not panel:
            self._drawn, self._has_early_input = panel, has_pending_input(self.app)
        if panel.view is not None:
            return panel.view.rows(width=width, height=height)
        if isinstance(panel, QuestionPanel):
            panel.has_typed_text = bool(self._entry.text)
        return panel.rows(width=width, height=height)

    def after_render(self, _: object = None) -> None:
        """Arm the panel once it is drawn, if no input was waiting when the drawing began."""
        if self.panel is None or self._is_armed or self._drawn is not self.panel:
            return
        if self._has_early_input:
            self._has_early_input = has_pending_input(self.app)
            asyncio.get_running_loop().call_soon(self.after_render)
            return
        self._is_armed, self._can_line_answer = True, not self._entry.text
        if self.panel.takes_text:
            self.app.layout.focus(self.window)
        self.app.invalidate()

    # ── Keys ─────────────────────────────────────────────────────────────────────────────────────────

    def press(self, key: str) -> bool:
        """Pass a key to the panel or its view; return whether it was used."""
        panel = self.panel
        if panel is None:
            return False
        if panel.view is not None:
            return self._press_in_view(panel.view, key)
        is_used = panel.press(key)
        if self.is_viewing:
            self._switch_screen(is_full=True)
        if not panel.is_open and self._closed is not None and not self._closed.done():
            self._is_armed = False
            self._closed.set_result(None)
        return is_used

    def is_repeat(self, key: str) -> bool:
        """Return whether a character belongs to the press before."""
        before, now = self._last_press_at, self._clock()
        is_same, self._last_key, self._last_press_at = key == self._last_key, key, now
        return is_same and now - before < REPEAT_S

    def take_line(self, answer: str | None) -> bool:
        """Use an entered line as the answer to an open question, if it is one; return whether it was used.

        `answer` is None for a line that is no answer. It means no where the question does not wait.
        """
        question, can_answer = self.question, self._can_line_answer and self._is_armed
        self._can_line_answer = True
        if question is not None and answer is not None and can_answer:
            return self.press(answer)
        self.decline()
        return False

    def decline(self) -> None:
        """Answer a question that does not wait with no, as the user types something else."""
        if (question := self.question) is not None and question.is_open and not question.question.waits:
            self.press("n")

    def set_text_aside(self) -> None:
        """Empty the input line until the panel closes."""
        self._set_aside += self._entry.text
        self._entry.reset()
        self._can_line_answer = True

    # ── The whole screen ─────────────────────────────────────────────────────────────────────────────

    def _press_in_view(self, view: FullView, key: str) -> bool:
        view.press(key)
        if not view.is_open:
            self._leave_view()
        return True

    def _leave_view(self) -> None:
        if self.panel is not None and self.panel.view is not None:
            self.panel.view = None
            self._switch_screen(is_full=False)
            self._on_view_closed()

    def _switch_screen(self, *, is_full: bool) -> None:
        self.app.renderer.erase()
        self.app.full_screen = self.app.renderer.full_screen = is_full
        self.app.invalidate()


def has_pending_input(app: Application[Any]) -> bool:
    """Return whether the terminal has input that was not read yet."""
    try:
        return bool(select.select([app.input.fileno()], [], [], 0)[0])
    except (OSError, ValueError, NotImplementedError):  # not a file that can be waited for
        return False


def bind_panel_keys(keys: KeyBindings, host: PanelHost, entry: Buffer) -> None:
    """Add the bindings of panels; they come before those of the input line."""
    is_taking = Condition(host.takes_keys)
    is_alone = Condition(lambda: host.hides_entry)
    for name in PANEL_KEYS:
        keys.add(name, filter=is_taking, eager=True)(_pressing(host, name))
    for name in MENU_KEYS:
        keys.add(name, filter=is_taking & is_alone, eager=True)(_pressing(host, name))

    @keys.add(Keys.Any, filter=is_taking)
    def type_character(event: KeyPressEvent) -> None:
        if host.hides_entry:
            host.press(event.data)
            return
        is_answer = arrived_alone(event) and (host.is_repeat(event.data) or host.press(event.data))
        if not is_answer:
            host.decline()
            entry.insert_text(event.data)

    is_typing = Condition(lambda: host.question is not None and host.question.has_typed_text)

    @keys.add("tab", filter=is_typing & ~has_completions, eager=True)
    def answer_now(event: KeyPressEvent) -> None:
        host.set_text_aside()

    for name in ("pageup", "pagedown"):
        keys.add(name, filter=is_typing, eager=True)(_pressing(host, name))


def _pressing(host: PanelHost, name: str) -> Callable[[KeyPressEvent], None]:
    def press(event: KeyPressEvent) -> None:
        host.press(name)

    return press


def arrived_alone(event: KeyPressEvent) -> bool:
    """Return whether nothing but Enter arrived together with a key."""
    waiting: Sequence[Any] = event.app.key_processor.input_queue
    return "".join(press.data for press in waiting) in ("", "\r", "\n")
