"""Shows one panel at a time in the application, and passes keys to it.

A key press is an answer only if the user could see what it answers:

1. The panel has been on the screen for `SHOWN_S`, and no key arrived for `QUIET_S`. Until then it looks inactive,
   and keys belong to the input line. A step that needs a second key is on the screen anew; a second key that comes
   sooner counts if no other key follows it for `SHOWN_S`, as in a word.
2. The input line is empty. A text that was begun before the question is finished first, or set aside with Tab.
3. For a character, no other character arrived with it: a paste, or several keys at once, is text.
4. The key is not the one that answered the question before, held down.

A question that does not wait invites a reply, so there every character is text, and a line answers: `y` and Enter.
A text that cannot become an answer means no, and is the next message.

Esc and Ctrl-C need none of this: they refuse.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.containers import Window

from foveal.agent.terminal.output.panels import CONFIRM_KEY, FullView, Panel, QuestionPanel
from foveal.agent.terminal.output.styled_text import Row

PANEL_KEYS: Final = ("up", "down", "pageup", "pagedown", "home", "end", "enter", "escape")
MENU_KEYS: Final = ("tab", "backspace", "c-c")
"""Keys that menus and views take from the input line; a question leaves them to it."""

SHOWN_S: Final = 0.7
"""Seconds that a panel is on the screen before it takes keys."""
QUIET_S: Final = 0.4
"""Seconds without a key before a panel takes keys: the user has stopped typing."""
REPEAT_S: Final = 0.3
"""Seconds within which the same key counts as one press: it was held down or pressed twice."""
CHECK_INTERVAL_S: Final = 0.05
"""Seconds between two checks whether a panel can take keys."""


class PanelHost:
    """The open panel and its keys; `run` shows a panel until it closes."""

    def __init__(
        self,
        entry: Buffer,
        *,
        on_view_closed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` returns the seconds that time panels and presses."""
        self.panel: Panel | None = None
        self.app: Application[None]
        self.window: Window
        """The window of the panel; set with `app` by the screen."""
        self._entry = entry
        self._on_view_closed = on_view_closed
        self._clock = clock
        self._closed: asyncio.Future[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._shown_at: float | None = None
        """When the panel, or its second step, was drawn first."""
        self._is_armed = False
        """Whether the panel takes keys."""
        self._checking: asyncio.TimerHandle | None = None
        self._can_line_answer = False
        """Whether a line that is entered now was typed after the question took keys."""
        self._set_aside = ""
        """Text of the input line that returns when the panel closes."""
        self._first_keys = ""
        """What was typed since a choice waits for its second key: text, if that key does not come."""
        self._is_confirmed_early = False
        """Whether the second key came before the step took keys."""
        self._key_at = -QUIET_S
        """When the last key arrived."""
        self._held_key, self._held_at = "", 0.0
        """The character that answered the last question, and when it arrived last."""
        entry.on_text_changed += self._text_typed

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

    @property
    def is_early(self) -> bool:
        """Whether a panel is open that does not take keys yet."""
        return self.panel is not None and self.panel.is_open and not self._is_armed

    @property
    def is_reply_invited(self) -> bool:
        """Whether the question does not wait, so that what is typed can be the next message."""
        return self.question is not None and not self.question.question.waits

    @property
    def has_other_text(self) -> bool:
        """Whether a reply is invited and the input line has one that cannot become an answer."""
        question = self.question
        return (
            self.is_reply_invited
            and question is not None
            and not question.can_become_answer(self._entry.text)
        )

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
            self.panel = panel
            self._begin_step()
            try:
                await self._closed
            finally:
                self._close()

    def _begin_step(self) -> None:
        """Take no keys until the user has seen the panel as it is now."""
        self._is_armed, self._shown_at, self._is_confirmed_early = False, None, False
        self.app.layout.focus(self._entry)
        self.app.invalidate()

    def _close(self) -> None:
        self._leave_view()
        if self._checking is not None:
            self._checking.cancel()
        self.panel, self._closed, self._is_armed, self._checking = None, None, False, None
        self._first_keys = ""
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
        if panel.view is not None:
            return panel.view.rows(width=width, height=height)
        panel.is_ready = self._is_armed
        if isinstance(panel, QuestionPanel):
            panel.has_typed_text = bool(self._entry.text)
        return panel.rows(width=width, height=height)

    def after_render(self, _: object = None) -> None:
        """Begin to count the time that a panel is on the screen."""
        if self.panel is not None and not self._is_armed and self._shown_at is None:
            self._shown_at = self._clock()
            if self._checking is None:
                self._check_later()

    def _check_later(self) -> None:
        self._checking = asyncio.get_running_loop().call_later(CHECK_INTERVAL_S, self._arm)

    def _arm(self) -> None:
        """Let the panel take keys, if it was seen for long enough and the user is not typing."""
        self._checking = None
        if self.panel is None or self._is_armed:
            return
        now = self._clock()
        was_seen = self._shown_at is not None and now - self._shown_at >= SHOWN_S
        quiet_s = SHOWN_S if self._is_confirmed_early else QUIET_S
        # Input that waits to be read was typed before the panel looks ready.
        if not was_seen or now - self._key_at < quiet_s or has_pending_input(self.app):
            self._check_later()
            return
        if self._is_confirmed_early:
            self.press(CONFIRM_KEY)
            return
        self._is_armed, self._can_line_answer = True, not self._entry.text
        if self.panel.takes_text:
            self.app.layout.focus(self.window)
        self.app.invalidate()

    # ── Keys ─────────────────────────────────────────────────────────────────────────────────────────

    def key_arrived(self, _: object = None) -> None:
        """Note the time of a key, whatever it does."""
        self._key_at = self._clock()

    def press(self, key: str) -> bool:
        """Pass a key to the panel or its view; return whether it was used."""
        panel = self.panel
        if panel is None:
            return False
        if panel.view is not None:
            return self._press_in_view(panel.view, key)
        was_confirming = panel.is_confirming
        is_used = panel.press(key)
        if self.is_viewing:
            self._switch_screen(is_full=True)
        if not panel.is_open and self._closed is not None and not self._closed.done():
            self._is_armed = False
            self._closed.set_result(None)
        elif panel.is_confirming != was_confirming:
            self._first_keys = key if panel.is_confirming and len(key) == 1 else ""
            self._begin_step()
        return is_used

    def press_character(self, character: str) -> bool:
        """Pass a character to the panel, unless it repeats the press before; return whether it was used."""
        if self._is_repeat(character):
            return True
        panel = self.panel
        if self.is_reply_invited:
            return False
        is_used = self.press(character)
        if panel is not None and (not panel.is_open or panel.is_confirming):
            self._held_key, self._held_at = character, self._clock()
        return is_used

    def press_early(self, character: str) -> None:
        """Handle a character before the panel takes keys: it is text of the input line, unless it repeats a press.
        A confirmation that comes too early waits whether other keys follow."""
        if self._is_repeat(character):
            return
        is_confirming = self.panel is not None and self.panel.is_confirming
        if is_confirming and character.casefold() == CONFIRM_KEY:
            self._first_keys += character
            self._is_confirmed_early = True
        else:
            self._entry.insert_text(character)

    def _text_typed(self, _: Buffer) -> None:
        """Text in the input line means that the user writes: what waits for its second key is text too."""
        if self._entry.text and self.panel is not None and self.panel.is_confirming:
            typed, self._first_keys = self._first_keys, ""
            self.panel.cancel_confirmation()
            self._begin_step()
            text = typed + self._entry.text
            self._entry.set_document(Document(text, len(typed) + self._entry.cursor_position))
        if self.has_other_text:
            self.decline()

    def _is_repeat(self, key: str) -> bool:
        """Return whether a character belongs to the press that answered the last question."""
        now = self._clock()
        if key != self._held_key or now - self._held_at >= REPEAT_S:
            self._held_key = ""
            return False
        self._held_at = now
        return True

    def take_line(self, answer: str | None) -> bool:
        """Use an entered line as the answer to an open question, if it is one; return whether it was used.

        `answer` is None for a line that is no answer. It means no where the question does not wait.
        """
        question = self.question
        # Where only a line answers, the question was seen when Enter was pressed.
        was_asked = self._is_armed and (self._can_line_answer or self.is_reply_invited)
        self._can_line_answer = True
        if question is not None and answer is not None and was_asked:
            return self.press(answer)
        self.decline()
        return False

    def decline(self) -> None:
        """Answer a question that does not wait with no, as the user types something else."""
        if self.is_reply_invited and self.panel is not None and self.panel.is_open:
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
        if not (arrived_alone(event) and host.press_character(event.data)):
            entry.insert_text(event.data)

    _bind_early_keys(keys, host, entry)
    is_typing = Condition(lambda: host.question is not None and host.question.has_typed_text)

    @keys.add("tab", filter=is_typing & ~has_completions, eager=True)
    def answer_now(event: KeyPressEvent) -> None:
        host.set_text_aside()

    for name in ("pageup", "pagedown"):
        keys.add(name, filter=is_typing, eager=True)(_pressing(host, name))


def _bind_early_keys(keys: KeyBindings, host: PanelHost, entry: Buffer) -> None:
    """Add the bindings of a panel that does not take keys: they belong to the input line, and only Esc and Ctrl-C
    reach it. Enter is a line break there: the line was not meant for what is asked now. At a question that does not
    wait it sends a line that is no answer, and does nothing with one that is."""
    is_early = Condition(lambda: host.is_early)
    is_asking = Condition(lambda: host.panel is not None and not host.is_viewing)
    is_menu = Condition(lambda: host.panel is not None and host.panel.takes_text and not entry.text)
    # Alt with a key is Esc and the key, which arrive together.
    is_alone = Condition(lambda: not host.app.key_processor.input_queue)

    @keys.add(Keys.Any, filter=is_early)
    def type_early(event: KeyPressEvent) -> None:
        if len(event.data) == 1 and event.data >= " ":  # other keys have longer data
            host.press_early(event.data)

    @keys.add("enter", filter=is_early & ~Condition(lambda: host.has_other_text), eager=True)
    def break_line(event: KeyPressEvent) -> None:
        if entry.text and not host.is_reply_invited:
            entry.newline(copy_margin=False)
        elif host.panel is not None and host.panel.is_confirming:
            host.press("enter")

    keys.add("escape", filter=is_asking & is_alone, eager=True)(_pressing(host, "escape"))
    keys.add("c-c", filter=is_early & is_menu, eager=True)(_pressing(host, "c-c"))


def _pressing(host: PanelHost, name: str) -> Callable[[KeyPressEvent], None]:
    def press(event: KeyPressEvent) -> None:
        host.press(name)

    return press


def arrived_alone(event: KeyPressEvent) -> bool:
    """Return whether nothing but Enter arrived together with a key."""
    waiting: Sequence[Any] = event.app.key_processor.input_queue
    return "".join(press.data for press in waiting) in ("", "\r", "\n")
