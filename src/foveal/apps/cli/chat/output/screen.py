"""The terminal screen: printed output, the live area, the input line, the status line.

Finished output is printed above and scrolls away. Below it the screen redraws the live area (`live_area.py`), the
input line and the status line. All text goes through `foveal.core.wire.safe_print`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from prompt_toolkit.application import Application
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText
from prompt_toolkit.layout.containers import (
    ConditionalContainer,
    Float,
    FloatContainer,
    HSplit,
    VerticalAlign,
    Window,
)
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.layout import Layout
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.renderer import CPR_Support
from prompt_toolkit.styles import Style

from foveal.agent.agent_events import (
    AgentEvent,
    ModelAnswered,
    TextStreamed,
    ToolCalling,
    ToolFinished,
    UserMessageStored,
)
from foveal.apps.cli.chat.output.agent_event_rows import agent_event_rows
from foveal.apps.cli.chat.output.live_area import LiveArea, answer_choices, question_rows, status_row
from foveal.apps.cli.chat.output.streaming import StreamingMarkdown
from foveal.apps.cli.chat.output.styled_text import Row, Span, ansi_text, bold, dim, row, wrap_row
from foveal.apps.cli.chat.user_input import Pastes, input_buffer, key_bindings
from foveal.apps.cli.chat.user_interface import Question, UserAnswer
from foveal.core.engine.report import Report

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer

MAX_INPUT_LINES: Final = 10
"""Lines of the input that are visible at once."""
MENU_LINES: Final = 6
"""Completions that are visible at once."""
MAX_ECHOED_LINES: Final = 8
"""Lines of a sent message that are printed."""
MENU_STYLE: Final = Style.from_dict(
    {
        "completion-menu": "bg:default fg:default",
        "completion-menu.completion": "bg:default fg:ansicyan",
        "completion-menu.completion.current": "bold reverse",
        "completion-menu.meta.completion": "bg:default fg:ansibrightblack",
        "completion-menu.meta.completion.current": "bg:default",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "bg:ansibrightblack",
    }
)


class Screen:
    """The `UserInterface` of a terminal."""

    can_ask = True

    def __init__(
        self,
        completer: Completer,
        *,
        on_submit: Callable[[str], None],
        on_interrupt: Callable[[], None],
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_busy` returns whether `on_interrupt` would stop something."""
        self.colours = not os.environ.get("NO_COLOR")
        self.live = LiveArea()
        self.pastes = Pastes()
        self.entry = input_buffer(completer)
        self._on_submit = on_submit
        self._is_busy = is_busy
        self._streaming = StreamingMarkdown(colours=self.colours)
        self._report: Report | None = None
        self._pending_answer: asyncio.Future[UserAnswer] | None = None
        self._ends_with_blank_line = True
        """The last printed line is empty."""
        self._has_printed_answer = False
        """A part of the current answer is printed."""
        self._message = ""
        """The message of the running turn."""
        self.app: Application[None] = Application(
            layout=Layout(self._container(), focused_element=self.entry),
            key_bindings=key_bindings(self, on_interrupt),
            style=MENU_STYLE,
            erase_when_done=True,
        )
        # The layout does not depend on the cursor position, so the terminal is not queried for it.
        self.app.renderer.cpr_support = CPR_Support.NOT_SUPPORTED

    # ── Layout ───────────────────────────────────────────────────────────────────────────────────────

    def _container(self) -> FloatContainer:
        live = Window(FormattedTextControl(self._live), dont_extend_height=True, wrap_lines=False)
        entry = Window(
            BufferControl(self.entry),
            height=self._entry_height,
            dont_extend_height=True,
            wrap_lines=True,
            get_line_prefix=self._prefix,
        )
        bottom = Window(FormattedTextControl(self._status), height=1, dont_extend_height=True)
        is_visible = Condition(lambda: bool(self._live_text()))
        rows = HSplit([ConditionalContainer(live, is_visible), entry, bottom], align=VerticalAlign.TOP)
        menu = Float(CompletionsMenu(max_height=MENU_LINES), xcursor=True, ycursor=True)
        return FloatContainer(rows, [menu])

    def _entry_height(self) -> Dimension:
        completing = self.entry.complete_state is not None and bool(self.entry.complete_state.completions)
        return Dimension(min=MENU_LINES + 1 if completing else 1, max=max(MAX_INPUT_LINES, MENU_LINES + 1))

    def _prefix(self, line: int, wrapped: int) -> AnyFormattedText:
        if line or wrapped:
            return "  "
        mark = f"{answer_choices(self.live.question)} " if self.live.question is not None else "› "
        return self._ansi([row(Span(mark, "fair" if self.live.question is not None else "accent"))])

    def _status(self) -> AnyFormattedText:
        if self._report is None:
            return self._ansi([row(dim(" opening …"))])
        return self._ansi([status_row(self._report, width=self.width - 1)])

    def _live(self) -> AnyFormattedText:
        return ANSI(self._live_text())

    def _live_text(self) -> str:
        live_rows = self.live.rows(width=self.width - 1, can_stop=self._is_busy())
        rows = ansi_text(live_rows, width=self.width - 1, colours=self.colours)
        height = max(3, self.app.output.get_size().rows - rows.count("\n") - MAX_INPUT_LINES - 3)
        lines = self.live.answer.split("\n")[-height - 1 :]
        return ("\n".join(lines) + rows).rstrip("\n")

    def _ansi(self, rows: Sequence[Row]) -> ANSI:
        return ANSI(ansi_text(rows, colours=self.colours).rstrip("\n"))

    @property
    def width(self) -> int:
        return max(20, self.app.output.get_size().columns)

    # ── Printing ─────────────────────────────────────────────────────────────────────────────────────

    def write(self, text: str) -> None:
        """Print safe text above the live area; it ends with a newline."""
        if not text:
            return
        output = self.app.output
        if self.app.is_running:
            self.app.renderer.erase()
        output.write_raw(text)
        output.flush()
        self._ends_with_blank_line = text.endswith("\n\n") or text == "\n"
        self.app.invalidate()

    def ensure_blank_line(self) -> None:
        """Print an empty line, unless the last line is empty."""
        if not self._ends_with_blank_line:
            self.write("\n")

    def print_rows(self, rows: Sequence[Row], *, cut: bool = False) -> None:
        """Print rows: those of tools are cut to the width, all others are wrapped at words."""
        width = self.width - 1
        if not cut:
            rows = [line for parts in rows for line in wrap_row(parts, width)]
        self.write(ansi_text(rows, width=width, colours=self.colours))

    def show(self, rows: Sequence[Row]) -> None:
        self.ensure_blank_line()
        self.print_rows([*rows, row()])

    def notify(self, rows: Sequence[Row]) -> None:
        self._print_rest_of_answer()
        self.print_rows(rows)

    def show_error(self, problem: str, *, code: str = "") -> None:
        self.ensure_blank_line()
        self.print_rows([row(Span(f"✗ {problem}", "bad")), row()])

    # ── A turn ───────────────────────────────────────────────────────────────────────────────────────

    def turn_started(self, text: str) -> None:
        self.live.start("sending")
        self._message, self._has_printed_answer = text, False
        self.app.invalidate()

    def agent_event(self, event: AgentEvent) -> None:
        match event:
            case UserMessageStored():
                self._print_message(self._message)
            case TextStreamed():
                self._stream(event)
            case ModelAnswered():
                self._print_rest_of_answer()
                self.live.start("thinking")
            case ToolCalling():
                self._print_rest_of_answer()
                self.ensure_blank_line()
                self.print_rows(agent_event_rows(event), cut=True)
                self.live.start(event.what)
            case ToolFinished():
                self._print_rest_of_answer()
                self.print_rows([*agent_event_rows(event), row()], cut=True)
                self.live.start("thinking")
            case _:
                self.notify(agent_event_rows(event))

    def turn_ended(self) -> None:
        self._print_rest_of_answer()
        self.live.stop()
        self._has_printed_answer = False
        self.ensure_blank_line()

    def show_status(self, report: Report) -> None:
        self._report = report
        self.app.invalidate()

    def show_progress(self, stage: str, detail: str = "") -> None:
        self.live.set_stage(stage, detail)
        self.app.invalidate()

    def _print_message(self, text: str) -> None:
        """Print the user's message, once it is stored."""
        lines = text.rstrip("\n").split("\n")
        shown = lines[1:MAX_ECHOED_LINES]
        rows = [row(Span("› ", "accent"), bold(lines[0])), *(row("  ", bold(line)) for line in shown)]
        if len(lines) > MAX_ECHOED_LINES:
            more = f"  … {len(lines) - MAX_ECHOED_LINES:,} more lines, {len(text):,} characters in all"
            rows.append(row(dim(more)))
        self.ensure_blank_line()
        self.write(ansi_text(rows, width=self.width - 1, colours=self.colours) + "\n")
        self.live.start("thinking")

    def _stream(self, streamed: TextStreamed) -> None:
        piece = streamed.piece
        if piece.kind != "text":
            activity = "thinking" if piece.kind == "thinking" else "writing a call"
            if self.live.activity != activity:
                self.live.start(activity)
            return
        if self.live.activity != "answering":
            self.live.start("answering")
        for block in self._streaming.feed(piece.text, width=self.width):
            self._print_block(block)
        if (preview := self._streaming.preview(width=self.width)) is not None:
            self.live.set_answer(preview)
            self.app.invalidate()

    def _print_rest_of_answer(self) -> None:
        self.live.set_answer("")
        self._print_block(self._streaming.end(width=self.width))

    def _print_block(self, drawn: str) -> None:
        if drawn:
            if self._has_printed_answer:
                self.ensure_blank_line()
            self.write(drawn)
            self._has_printed_answer = True

    # ── Input and questions ──────────────────────────────────────────────────────────────────────────

    async def ask(self, question: Question) -> UserAnswer:
        self._print_rest_of_answer()
        self._pending_answer = asyncio.get_running_loop().create_future()
        self.live.set_question(question)
        self.app.invalidate()
        try:
            answer = await self._pending_answer
            words = {"y": "yes", "n": "no", "a": f"always {question.always}"}[answer]
            rows = question_rows(question, width=self.width - 1)
            self.print_rows(rows[:-1], cut=True)
            self.print_rows([(*rows[-1], dim(f" {words}"))])
            return answer
        finally:
            self._pending_answer = None
            self.live.set_question(None)
            self.app.invalidate()

    def submit(self, line: str) -> None:
        """Handle a line that the user has entered: the answer to an open question, or new input."""
        text = self.pastes.expand(line)
        question, pending = self.live.question, self._pending_answer
        if question is not None and pending is not None and not pending.done():
            answer = parse_answer(text, question)
            if answer is not None:
                pending.set_result(answer)
                return
            if not question.waits:
                pending.set_result("n")
        if text.strip():
            self._on_submit(text)

    def show_queue(self, texts: Sequence[str]) -> None:
        self.live.set_queued(texts)
        self.app.invalidate()


def parse_answer(text: str, question: Question) -> UserAnswer | None:
    """Return the answer that a line gives, or None if the line is not an answer."""
    word = text.strip().casefold()
    if word in ("", "n", "no"):
        return "n"
    if word in ("y", "yes"):
        return "y"
    return "a" if word in ("a", "always") and question.always else None
